//! Completing what others have begun: a transaction over several pages whose master is there has all its pages, so that
//! clearing `creating` is all that is left to do, whoever began it (`DESIGN.md` section 5, "Recovery").
//!
//! The sweep needs no log: it finds what is half created by its age. It never makes a master: pages without one belong to their event, which
//! is not completed before it has made it, and are only reported.

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

use super::{Store, body::BodyError, create::clear, digest::PAGES_AT_A_TIME, into_page, scan::Scan};

/// Older than that, ms, and whoever is at it should have come to its end long ago.
const LONG_AGO_MS: u64 = 3_600_000;
/// Keys that are looked for at once.
const AT_ONCE: usize = 100;

/// What a sweep may touch.
#[derive(Debug, Clone, Copy)]
pub struct Sweep {
    /// Milliseconds since the epoch.
    pub now_ms: u64,
    /// What has not moved for so long; longer than a whole attempt takes.
    pub older_than_ms: u64,
    /// Nothing is changed: what would be completed is told.
    pub dry_run: bool,
}

/// What a sweep found. Transactions in the order of the age of their oldest page.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Swept {
    /// Completed; or to be completed, in a dry run.
    pub completed: Vec<Txid>,
    /// Somebody holds their lock records: they are left alone.
    pub running: Vec<Txid>,
    /// Contested: their pages wait for the verdict.
    pub contested: u64,
    /// Pages without a master: their event makes it.
    pub orphaned: Vec<OrphanedPages>,
    /// What cannot be completed, and why.
    pub damaged: Vec<Damaged>,
    /// How many of all these are older than an hour.
    pub older_than_an_hour: u64,
}

/// Pages of a transaction that has no master.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OrphanedPages {
    /// Whose.
    pub txid: Txid,
    /// Which.
    pub pages: BTreeSet<u32>,
    /// Since when, ms since the epoch.
    pub since_ms: u64,
}

/// A transaction that cannot be completed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Damaged {
    /// Which.
    pub txid: Txid,
    /// Why not.
    pub problem: String,
}

/// The pages of one transaction that are half created.
#[derive(Debug, Default)]
struct Half {
    pages: BTreeSet<u32>,
    since_ms: u64,
}

/// Why a transaction cannot be completed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CompleteError {
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The store is damaged, or has forgotten: a page that was written before its master is not there.
    #[error("page {page} of {txid} is missing: {why}")]
    MissingPage {
        /// Whose.
        txid: Txid,
        /// Which.
        page: u32,
        /// Why it is not made again.
        why: NotRestored,
    },
}

/// Why a page that is missing is not made again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotRestored {
    /// Its slots would be free, though they may have been spent. Where a node forgot the page, those who spent them come again.
    #[error("no node of this store can have forgotten it, and what was spent of it is not known")]
    Lasting,
    /// The same, of an event that comes after the one that made the page, and is not done again for it.
    #[error("this event did not make it, and what was spent of it is not known")]
    OfAnotherEvent,
    /// It is made from the body, which cannot be had.
    #[error(transparent)]
    Body(BodyError),
    /// The body is of a transaction with another number of pages.
    #[error("its body does not tell what it was")]
    OtherPages,
    /// It was made again.
    #[error("it was made again, and is gone again")]
    GoneAgain,
}

impl Store {
    /// Completes a transaction whose master has slots and is not contested: a page that is missing, which a node may have
    /// forgotten, is made from the body, and `creating` is cleared, the master's last. Answers its master as it is then; anything
    /// else is left as it is.
    ///
    /// # Errors
    /// The engine failed for good, or a page cannot be had.
    pub async fn complete(&self, txid: Txid) -> Result<Option<Arc<Page>>, CompleteError> {
        let Some(master) = self.master(txid).await? else { return Ok(None) };
        if !matches!(master.state(), TxState::Creating | TxState::Live) {
            return Ok(Some(master));
        }
        let pages = master.master.as_ref().map_or(0, |bins| bins.total_extra_recs);
        self.clear_others(&master, pages).await?;
        if master.creating_at.is_none() {
            return Ok(Some(master));
        }
        // Refused: it has fallen meanwhile.
        self.apply_one(Row { key: Key::master(txid), operation: Operation::ClearCreating }).await?;
        tracing::info!(%txid, pages = pages + 1, "a half-created transaction is complete");
        Ok(self.master(txid).await?)
    }

    /// Completes what is half created and has not moved for long, oldest first, and tells what it left alone.
    ///
    /// # Errors
    /// The engine failed for good.
    pub async fn sweep(&self, sweep: Sweep) -> Result<Swept, EngineError> {
        let mut swept = Swept::default();
        for (txid, half) in self.half_created(sweep.now_ms.saturating_sub(sweep.older_than_ms)).await? {
            swept.older_than_an_hour += u64::from(sweep.now_ms.saturating_sub(half.since_ms) >= LONG_AGO_MS);
            self.sweep_one(txid, half, sweep, &mut swept).await?;
        }
        Ok(swept)
    }

    async fn sweep_one(&self, txid: Txid, half: Half, sweep: Sweep, swept: &mut Swept) -> Result<(), EngineError> {
        let mut records = self.read(vec![Key::LockRecord(txid), Key::master(txid)]).await?.into_iter();
        let lock_record = match records.next().flatten() {
            Some(Record::LockRecord(lock_record)) => Some(lock_record),
            _ => None,
        };
        let master = into_page(records.next().flatten());
        if lock_record.as_ref().is_some_and(|there| there.expires_at > sweep.now_ms) {
            swept.running.push(txid);
            return Ok(());
        }
        match master.map(|master| master.state()) {
            Some(TxState::Creating | TxState::Live) if sweep.dry_run => swept.completed.push(txid),
            Some(TxState::Creating | TxState::Live) => match self.complete(txid).await {
                Ok(_) => swept.completed.push(txid),
                Err(CompleteError::Engine(error)) => return Err(error),
                Err(error) => swept.damaged.push(Damaged { txid, problem: error.to_string() }),
            },
            Some(TxState::Conflicting(_) | TxState::Pruned(_)) => swept.contested += 1,
            Some(TxState::Stub(_)) | None => {
                let Half { pages, since_ms } = half;
                swept.orphaned.push(OrphanedPages { txid, pages, since_ms });
            }
        }
        // Where the engine does not end it by itself.
        if let Some(LockRecord { owner, .. }) = lock_record.filter(|_| !sweep.dry_run) {
            self.apply_one(Row { key: Key::LockRecord(txid), operation: Operation::ReleaseLockRecord { owner } })
                .await?;
        }
        Ok(())
    }

    /// Transactions with pages that are `creating` since `until_ms` or before, oldest first.
    async fn half_created(&self, until_ms: u64) -> Result<Vec<(Txid, Half)>, EngineError> {
        let mut found: BTreeMap<Txid, Half> = BTreeMap::new();
        let (mut from_ms, mut limit) = (0, AT_ONCE);
        loop {
            let keys = self.query(Index::CreatingAt, from_ms, until_ms, limit).await?;
            let mut latest_ms = from_ms;
            for keys in keys.chunks(PAGES_AT_A_TIME as usize) {
                for page in self.read(keys.to_vec()).await?.into_iter().filter_map(into_page) {
                    let Some(since_ms) = page.creating_at else { continue };
                    latest_ms = latest_ms.max(since_ms);
                    let half = found.entry(page.txid).or_insert_with(|| Half { since_ms, ..Half::default() });
                    half.since_ms = half.since_ms.min(since_ms);
                    half.pages.insert(page.number);
                }
            }
            if keys.len() < limit {
                let mut found: Vec<_> = found.into_iter().collect();
                found.sort_by_key(|(_, half)| half.since_ms);
                return Ok(found);
            }
            // More of one millisecond than are asked for at once: more are asked for.
            limit = if latest_ms == from_ms { limit * 2 } else { AT_ONCE };
            from_ms = latest_ms;
        }
    }

    /// All lock records that there are, and the transactions whose pages they fence.
    ///
    /// # Errors
    /// The engine failed for good.
    pub async fn lock_records(&self, mut each: impl FnMut(Txid, LockRecord)) -> Result<(), EngineError> {
        let mut scan = Scan::new(self, Set::Transactions);
        while let Some(records) = scan.next().await? {
            for (key, record) in records {
                if let (Key::LockRecord(txid), Record::LockRecord(lock_record)) = (key, record) {
                    each(txid, lock_record);
                }
            }
        }
        Ok(())
    }

    async fn clear_others(&self, master: &Page, pages: u32) -> Result<(), CompleteError> {
        let missing = self.clear_pages(master.txid, (1..=pages).collect()).await?;
        if missing.is_empty() {
            return Ok(());
        }
        self.restore_pages(master, &missing).await?;
        match self.clear_pages(master.txid, missing).await?.first() {
            None => Ok(()),
            Some(page) => {
                Err(CompleteError::MissingPage { txid: master.txid, page: *page, why: NotRestored::GoneAgain })
            }
        }
    }

    /// Clears `creating` on these pages; those that are not there.
    async fn clear_pages(&self, txid: Txid, pages: Vec<u32>) -> Result<Vec<u32>, EngineError> {
        let mut missing = Vec::new();
        // One that is cleared already is read whole, to say so.
        for numbers in pages.chunks(PAGES_AT_A_TIME as usize) {
            let rows = numbers.iter().flat_map(|number| clear(txid, *number..*number + 1)).collect();
            let outcomes = numbers.iter().zip(self.apply(rows).await?);
            missing.extend(
                outcomes.filter(|(_, it)| *it == Outcome::Rejected(Rejection::NotFound)).map(|(number, _)| *number),
            );
        }
        Ok(missing)
    }

    /// Makes these pages again, `creating`, from the body that the master has, over a store that may forget.
    ///
    /// # Errors
    /// The engine failed for good; or they cannot be made, or must not.
    pub(crate) async fn restore_pages(&self, master: &Page, missing: &[u32]) -> Result<(), CompleteError> {
        let page = missing.first().copied().unwrap_or_default();
        let cannot = |why| CompleteError::MissingPage { txid: master.txid, page, why };
        let others = self.other_pages(master).await.map_err(cannot)?;
        tracing::warn!(txid = %master.txid, ?missing, "pages that are not there are made again from the body");
        for numbers in missing.chunks(PAGES_AT_A_TIME as usize) {
            let row = |number: &u32| {
                let page = others.page(*number, master.creating_at.unwrap_or_default());
                Row { key: Key::Page(master.txid, *number), operation: Operation::Create(Arc::new(page)) }
            };
            self.apply(numbers.iter().map(row).collect()).await?;
        }
        Ok(())
    }

    async fn other_pages(&self, master: &Page) -> Result<OtherPages, NotRestored> {
        if !self.may_forget() {
            return Err(NotRestored::Lasting);
        }
        let body = self.body(master).await.map_err(NotRestored::Body)?;
        let others = OtherPages::of_stored(master, &body, self.settings.network, self.settings.utxo_batch_size);
        others.ok_or(NotRestored::OtherPages)
    }
}

#[cfg(test)]
#[path = "recovery_tests.rs"]
mod tests;
