//! Completion of half-created transactions (`docs/protocols/paged-create.md`). A transaction of several pages whose
//! master exists has all its pages, so that only the clearing of `creating` is left to do.
//!
//! The sweep needs no log: an index finds half-created transactions by their age. The sweep never creates a master:
//! pages without a master belong to an event that is not completed yet, and are only reported.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde::Serialize;

use crate::{
    engine::{EngineError, Index, Row, Set},
    record::{Key, LockRecord, Operation, Outcome, Page, Record, Rejection, TxState, build::OtherPages},
    tx::Txid,
};

use super::{Store, body::BodyError, create::build_clear_rows, digest::PAGES_AT_A_TIME, into_page, scan::SetScan};

/// Age from which a half-created transaction is counted as old, ms: no creation takes so long.
const OLD_AFTER_MS: u64 = 3_600_000;
/// Number of keys of one index query.
const QUERY_LIMIT: usize = 100;

/// Settings of a sweep.
#[derive(Debug, Clone, Copy)]
pub struct Sweep {
    /// Present time, ms since the epoch.
    pub now_ms: u64,
    /// Least age of a transaction that is completed, ms; longer than a whole creation takes.
    pub older_than_ms: u64,
    /// Lists the transactions that would be completed, and changes nothing.
    pub dry_run: bool,
}

/// Result of a sweep. Transactions are in the order of the age of their oldest page.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Swept {
    /// Completed transactions; in a dry run transactions that would be completed.
    pub completed: Vec<Txid>,
    /// Transactions whose lock record has not expired: a creation may be running, so that these are skipped.
    pub running: Vec<Txid>,
    /// Number of contested transactions, whose pages wait for the verdict.
    pub contested: u64,
    /// Pages without a master, which the transaction's event creates.
    pub orphaned: Vec<OrphanedPages>,
    /// Transactions that cannot be completed, with the problem.
    pub damaged: Vec<DamagedTx>,
    /// Number of all these transactions that are older than an hour.
    pub older_than_an_hour: u64,
}

/// Pages of a transaction without a master.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OrphanedPages {
    /// Txid of the transaction.
    pub txid: Txid,
    /// Numbers of the pages.
    pub pages: BTreeSet<u32>,
    /// Time since which the oldest page is creating, ms since the epoch.
    pub since_ms: u64,
}

/// A transaction that cannot be completed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DamagedTx {
    /// Txid of the transaction.
    pub txid: Txid,
    /// Description of the problem.
    pub problem: String,
}

/// Creating pages of one transaction, and the time of the oldest.
#[derive(Debug, Default)]
struct HalfCreated {
    pages: BTreeSet<u32>,
    since_ms: u64,
}

/// Reason why a transaction cannot be completed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CompleteError {
    /// The engine answered with an error that no retry heals.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A page that was written before its master is absent: the store is damaged or has lost the page.
    #[error("page {page} of {txid} is missing: {why}")]
    MissingPage {
        /// Txid of the transaction.
        txid: Txid,
        /// Number of the page.
        page: u32,
        /// Reason why the page is not restored.
        why: RestoreError,
    },
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

impl Store {
    /// Completes a transaction whose master has slots and is not contested. A missing page, which a node may have lost,
    /// is restored from the body, and `creating` is cleared on all pages, on the master last. Returns the master
    /// afterwards; any other transaction stays unchanged.
    ///
    /// # Errors
    /// The engine answers with an error that no retry heals, or a page cannot be restored.
    pub async fn complete(&self, txid: Txid) -> Result<Option<Arc<Page>>, CompleteError> {
        let Some(master) = self.master(txid).await? else { return Ok(None) };
        if !matches!(master.state(), TxState::Creating | TxState::Live) {
            return Ok(Some(master));
        }
        let pages = master.master.as_ref().map_or(0, |bins| bins.total_extra_recs);
        self.clear_further_pages(&master, pages).await?;
        if master.creating_at.is_none() {
            return Ok(Some(master));
        }
        // A refusal means that the transaction has become conflicting meanwhile.
        self.apply_one(Row { key: Key::master(txid), operation: Operation::ClearCreating }).await?;
        tracing::info!(%txid, pages = pages + 1, "recovery: half-created transaction completed");
        Ok(self.master(txid).await?)
    }

    /// Completes half-created transactions of the given age, oldest first, and lists the transactions that it skipped.
    ///
    /// # Errors
    /// The engine answers with an error that no retry heals.
    pub async fn sweep(&self, sweep: Sweep) -> Result<Swept, EngineError> {
        let mut swept = Swept::default();
        for (txid, half) in self.half_created(sweep.now_ms.saturating_sub(sweep.older_than_ms)).await? {
            swept.older_than_an_hour += u64::from(sweep.now_ms.saturating_sub(half.since_ms) >= OLD_AFTER_MS);
            self.sweep_one(txid, half, sweep, &mut swept).await?;
        }
        Ok(swept)
    }

    async fn sweep_one(
        &self,
        txid: Txid,
        half: HalfCreated,
        sweep: Sweep,
        swept: &mut Swept,
    ) -> Result<(), EngineError> {
        let mut records = self.read(vec![Key::LockRecord(txid), Key::master(txid)]).await?.into_iter();
        let lock_record = match records.next().flatten() {
            Some(Record::LockRecord(lock_record)) => Some(lock_record),
            _ => None,
        };
        let master = into_page(records.next().flatten());
        if lock_record.as_ref().is_some_and(|lock_record| lock_record.expires_at > sweep.now_ms) {
            swept.running.push(txid);
            return Ok(());
        }
        match master.map(|master| master.state()) {
            Some(TxState::Creating | TxState::Live) if sweep.dry_run => swept.completed.push(txid),
            Some(TxState::Creating | TxState::Live) => match self.complete(txid).await {
                Ok(_) => swept.completed.push(txid),
                Err(CompleteError::Engine(error)) => return Err(error),
                Err(error) => swept.damaged.push(DamagedTx { txid, problem: error.to_string() }),
            },
            Some(TxState::Conflicting(_) | TxState::Pruned(_)) => swept.contested += 1,
            Some(TxState::Stub(_)) | None => {
                let HalfCreated { pages, since_ms } = half;
                swept.orphaned.push(OrphanedPages { txid, pages, since_ms });
            }
        }
        // Not every engine deletes an expired lock record.
        if let Some(LockRecord { owner, .. }) = lock_record.filter(|_| !sweep.dry_run) {
            self.apply_one(Row { key: Key::LockRecord(txid), operation: Operation::ReleaseLockRecord { owner } })
                .await?;
        }
        Ok(())
    }

    /// Reads the transactions with pages that are creating since `until_ms` or before, oldest first.
    async fn half_created(&self, until_ms: u64) -> Result<Vec<(Txid, HalfCreated)>, EngineError> {
        let mut found: BTreeMap<Txid, HalfCreated> = BTreeMap::new();
        let (mut from_ms, mut limit) = (0, QUERY_LIMIT);
        loop {
            let keys = self.query(Index::CreatingAt, from_ms, until_ms, limit).await?;
            let mut latest_ms = from_ms;
            for keys in keys.chunks(PAGES_AT_A_TIME as usize) {
                for page in self.read(keys.to_vec()).await?.into_iter().filter_map(into_page) {
                    let Some(since_ms) = page.creating_at else { continue };
                    latest_ms = latest_ms.max(since_ms);
                    let new = || HalfCreated { since_ms, ..HalfCreated::default() };
                    let half = found.entry(page.txid).or_insert_with(new);
                    half.since_ms = half.since_ms.min(since_ms);
                    half.pages.insert(page.number);
                }
            }
            if keys.len() < limit {
                let mut found: Vec<_> = found.into_iter().collect();
                found.sort_by_key(|(_, half)| half.since_ms);
                return Ok(found);
            }
            // A page of one query may hold keys of one millisecond only: then the next query is larger.
            limit = if latest_ms == from_ms { limit * 2 } else { QUERY_LIMIT };
            from_ms = latest_ms;
        }
    }

    /// Reads all lock records, with the transactions whose pages they guard.
    ///
    /// # Errors
    /// The engine answers with an error that no retry heals.
    pub async fn lock_records(&self, mut each: impl FnMut(Txid, LockRecord)) -> Result<(), EngineError> {
        let mut scan = SetScan::new(self, Set::Transactions);
        while let Some(records) = scan.next().await? {
            for (key, record) in records {
                if let (Key::LockRecord(txid), Record::LockRecord(lock_record)) = (key, record) {
                    each(txid, lock_record);
                }
            }
        }
        Ok(())
    }

    async fn clear_further_pages(&self, master: &Page, pages: u32) -> Result<(), CompleteError> {
        let missing = self.clear_pages(master.txid, (1..=pages).collect()).await?;
        if missing.is_empty() {
            return Ok(());
        }
        self.restore_pages(master, &missing).await?;
        match self.clear_pages(master.txid, missing).await?.first() {
            None => Ok(()),
            Some(page) => {
                Err(CompleteError::MissingPage { txid: master.txid, page: *page, why: RestoreError::LostAgain })
            }
        }
    }

    /// Clears `creating` on these pages. Returns the absent pages.
    async fn clear_pages(&self, txid: Txid, pages: Vec<u32>) -> Result<Vec<u32>, EngineError> {
        let mut missing = Vec::new();
        // The engine reads a page that is cleared already as a whole, so that few pages are cleared at once.
        for numbers in pages.chunks(PAGES_AT_A_TIME as usize) {
            let rows = numbers.iter().flat_map(|number| build_clear_rows(txid, *number..*number + 1)).collect();
            let outcomes = numbers.iter().zip(self.apply(rows).await?);
            missing.extend(
                outcomes
                    .filter(|(_, outcome)| *outcome == Outcome::Rejected(Rejection::NotFound))
                    .map(|(number, _)| *number),
            );
        }
        Ok(missing)
    }

    /// Restores these pages, `creating`, from the master's body, over an engine that can lose writes.
    ///
    /// # Errors
    /// The engine answers with an error that no retry heals; or the pages cannot or must not be restored.
    pub(crate) async fn restore_pages(&self, master: &Page, missing: &[u32]) -> Result<(), CompleteError> {
        let page = missing.first().copied().unwrap_or_default();
        let cannot = |why| CompleteError::MissingPage { txid: master.txid, page, why };
        let others = self.other_pages(master).await.map_err(cannot)?;
        tracing::warn!(txid = %master.txid, ?missing, "recovery: restoring missing pages from the body");
        for numbers in missing.chunks(PAGES_AT_A_TIME as usize) {
            let row = |number: &u32| {
                let page = others.page(*number, master.creating_at.unwrap_or_default());
                Row { key: Key::Page(master.txid, *number), operation: Operation::Create(Arc::new(page)) }
            };
            self.apply(numbers.iter().map(row).collect()).await?;
        }
        Ok(())
    }

    async fn other_pages(&self, master: &Page) -> Result<OtherPages, RestoreError> {
        if !self.can_lose_writes() {
            return Err(RestoreError::EngineKeepsWrites);
        }
        let body = self.body(master).await.map_err(RestoreError::Body)?;
        let others = OtherPages::of_stored(master, &body, self.settings.network, self.settings.utxo_batch_size);
        others.ok_or(RestoreError::OtherPages)
    }
}

#[cfg(test)]
#[path = "recovery_tests.rs"]
mod tests;
