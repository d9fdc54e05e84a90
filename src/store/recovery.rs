//! Completion of half-created transactions (`docs/protocols/paged-create.md`). A transaction of several pages whose
//! master exists has all its pages, so that only the clearing of `creating` is left to do.

use std::sync::Arc;

use crate::{
    broker::partitioner::partition_of,
    engine::{EngineError, Row},
    record::{CreatingEvent, Key, MetaRecord, Operation, Page, Record, TxState, build::OtherPages},
    tx::Txid,
};

use super::{
    StateStore,
    body::BodyError,
    clearing::{Clearing, ClearingStep, build_clear_rows},
    pages::PAGES_AT_A_TIME,
};

mod sweep;

pub use sweep::{Sweep, SweepCursor, Swept, count_old};

/// Reason why a transaction cannot be completed.
#[derive(Debug, Clone, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants and name the fields")]
pub enum CompleteError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A page that was written before its master is absent: the store is damaged or has lost the page.
    #[error("page {page} of {txid} is missing: {why}")]
    MissingPage { txid: Txid, page: u32, why: RestoreError },
}

/// Reason why a missing page is not restored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// The engine loses no write. The slots of a restored page would be free, though they may have been spent; only
    /// after a node has lost the page do the events that spent the slots come again.
    #[error("the engine loses no write, so the page is damaged, and the spends of its slots are not known")]
    EngineKeepsWrites,
    /// The present event is later than the event that created the page, so that spends of the page do not come again.
    #[error("another event created the page, and the spends of its slots are not known")]
    OtherEvent,
    /// The event that created the page is below the durable offset. No restart can have lost the page, so that spends
    /// of the page do not come again.
    #[error("the page was durable, so that no restart has lost the page, and the spends of its slots are not known")]
    Durable,
    /// The body, from which a page is restored, cannot be read.
    #[error(transparent)]
    Body(BodyError),
    /// The body belongs to a transaction with another number of pages.
    #[error("the stored body has another number of pages")]
    OtherPages,
    /// The restored page is missing again.
    #[error("the page was restored and is missing again")]
    LostAgain,
}

/// Completes and restores transactions of a store.
#[derive(Clone, Copy)]
pub struct Recovery<'a> {
    store: &'a StateStore,
}

impl<'a> Recovery<'a> {
    /// Creates the recovery of this store.
    pub fn of(store: &'a StateStore) -> Self {
        Recovery { store }
    }

    /// Completes a transaction whose master has slots and is not contested. A missing page, which a node may have lost,
    /// is restored from the body, and `creating` is cleared on all pages, on the master last. Any other transaction
    /// stays unchanged. Returns the pages of a live transaction that are conflicting all the same.
    ///
    /// # Errors
    /// The engine answers with an error that no retry heals, or a page cannot be restored.
    pub async fn complete(&self, txid: Txid) -> Result<Vec<u32>, CompleteError> {
        let Some(master) = self.store.master(txid).await? else { return Ok(Vec::new()) };
        if !matches!(master.state(), TxState::Creating | TxState::Live) {
            return Ok(Vec::new());
        }
        let others = master.extra_pages();
        // The engine reads a page that is cleared already as a whole, so that few pages are cleared at once.
        let mut clearing = Clearing::new(others, PAGES_AT_A_TIME);
        loop {
            match clearing.step() {
                ClearingStep::Pages(pages) => {
                    clearing.on_pages_cleared(&self.store.apply(build_clear_rows(txid, &pages)).await?);
                }
                ClearingStep::Restore(pages) => {
                    self.restore_pages(&master, &pages).await?;
                    clearing.on_restored();
                }
                ClearingStep::LostAgain(page) => {
                    return Err(CompleteError::MissingPage { txid, page, why: RestoreError::LostAgain });
                }
                ClearingStep::Master if master.creating_at.is_none() => return Ok(clearing.into_conflicting()),
                ClearingStep::Master => break,
            }
        }
        // A refusal means that the transaction has become conflicting meanwhile.
        self.store.apply_one(Row { key: Key::master(txid), operation: Operation::ClearCreating }).await?;
        tracing::info!(%txid, pages = others + 1, "recovery: half-created transaction completed");
        Ok(clearing.into_conflicting())
    }

    /// Restores these pages, `creating`, from the master's body, over an engine that can lose writes.
    ///
    /// # Errors
    /// The engine answers with an error that no retry heals; or the pages cannot or must not be restored.
    pub(crate) async fn restore_pages(&self, master: &Page, missing: &[u32]) -> Result<(), CompleteError> {
        let page = missing.first().copied().unwrap_or_default();
        let cannot = |why| CompleteError::MissingPage { txid: master.txid, page, why };
        self.check_can_be_lost(master).await?.map_err(cannot)?;
        let others = self.other_pages(master).await.map_err(cannot)?;
        tracing::warn!(txid = %master.txid, ?missing, "recovery: restoring missing pages from the body");
        for numbers in missing.chunks(PAGES_AT_A_TIME as usize) {
            let row = |number: &u32| {
                let page = others.page(*number, master.creating_at.unwrap_or_default());
                Row { key: Key::Page(master.txid, *number), operation: Operation::Create(Arc::new(page)) }
            };
            self.store.apply(numbers.iter().map(row).collect()).await?;
        }
        Ok(())
    }

    /// Verifies that a restart can have lost a page of this transaction. The event that created the transaction then
    /// comes again, and so do the spends of the page, which are younger.
    pub(crate) async fn check_can_be_lost(&self, master: &Page) -> Result<Result<(), RestoreError>, EngineError> {
        if !self.store.can_lose_writes() {
            return Ok(Err(RestoreError::EngineKeepsWrites));
        }
        let created_by = master.master.as_deref().and_then(|bins| bins.created_by);
        let Some(event) = created_by else { return Ok(Ok(())) };
        let durable = match self.store.read(vec![Key::Meta]).await?.pop().flatten() {
            Some(Record::Meta(meta)) => is_durable(&meta, master.txid, event),
            _ => false,
        };
        Ok(if durable { Err(RestoreError::Durable) } else { Ok(()) })
    }

    async fn other_pages(&self, master: &Page) -> Result<OtherPages, RestoreError> {
        let body = self.store.body(master).await.map_err(RestoreError::Body)?;
        let others =
            OtherPages::of_stored(master, &body, self.store.settings.network, self.store.settings.utxo_batch_size);
        others.ok_or(RestoreError::OtherPages)
    }
}

/// Returns whether the store can lose no write of the event that created a transaction.
fn is_durable(meta: &MetaRecord, txid: Txid, event: CreatingEvent) -> bool {
    match event {
        CreatingEvent::Chain(offset) => offset < meta.durable.chain,
        CreatingEvent::Validated(offset) => {
            let partitions = meta.partitions.and_then(|count| i32::try_from(count).ok());
            let partition = partitions.and_then(|count| partition_of(&txid.0, count));
            let durable = partition.and_then(|partition| meta.durable.validated.get(&partition.unsigned_abs()));
            durable.is_some_and(|durable| offset < *durable)
        }
    }
}

#[cfg(test)]
#[path = "recovery_tests.rs"]
mod tests;
