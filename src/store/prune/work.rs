//! Reads and writes of a pruning pass, each for the few transactions of one step.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    blob::BlobName,
    engine::{EngineError, Row},
    record::{
        Blob, Body, HeldSlot, Key, Operation, Outcome, Page, Phase, Rejection, Sequenced, SpendingData, Stamp, TxState,
        Verdict,
    },
    store::{
        StateStore,
        body::{BodyError, ParsedBody},
        page_reports::PageReports,
        pages::ExtraPages,
    },
    tx::Txid,
};

use super::{PruneBasis, PruneError, PruneFacts, PruneTerms, Ruling, Spenders, blocks::LongestChainBlocks, rule};

/// Greatest number of spenders read at once.
const MAX_SPENDERS: usize = 4_096;
/// Greatest number of pages of one transaction changed at once: rows of a few bytes.
const MAX_PAGES: usize = 1_024;

/// An examined transaction: its master and the ruling.
#[derive(Debug, Clone)]
pub struct ExaminedTx {
    pub master: Arc<Page>,
    pub ruling: Ruling,
}

impl ExaminedTx {
    fn is_conflicting(&self) -> bool {
        self.master.conflicting
    }
}

/// Transactions that are not ready for tombstones after the marks on their parents.
#[derive(Debug, Default)]
pub struct ParentRelease {
    /// Transactions with a parent that an uncommitted event has changed.
    pub uncommitted: BTreeSet<Txid>,
    /// Transactions whose body cannot be read, so that their outpoints are not known.
    pub damaged: BTreeSet<Txid>,
}

/// Result of writing tombstones.
#[derive(Debug, Default)]
pub struct TombstoneResult {
    pub done: BTreeSet<Txid>,
    /// Transactions that an uncommitted event has changed since they were examined.
    pub uncommitted: BTreeSet<Txid>,
    /// Transactions of which a record refused to be pruned.
    pub refused: Vec<Txid>,
}

/// Result of writing the tombstones of the pages beside the master.
enum PageTombstones {
    Written,
    Refused,
    /// An uncommitted event has changed a page.
    Changed,
}

/// The facts of several transactions, and the indexes of the transactions that each spender spends.
struct Examination<'a> {
    store: &'a StateStore,
    blocks: LongestChainBlocks,
    facts: Vec<PruneFacts>,
    spenders: BTreeMap<Txid, BTreeSet<usize>>,
}

/// Reads and writes of the pruner on a store, under the terms and the stamp of one basis.
pub struct PruneWork<'a> {
    store: &'a StateStore,
    basis: PruneBasis,
}

impl<'a> PruneWork<'a> {
    /// Creates the reads and writes under this basis.
    pub fn new(store: &'a StateStore, basis: PruneBasis) -> Self {
        PruneWork { store, basis }
    }

    /// Examines these transactions. Absent transactions are left out.
    pub async fn examine(&self, txids: &[Txid]) -> Result<Vec<ExaminedTx>, EngineError> {
        let masters: Vec<Arc<Page>> = self.store.masters(txids).await?.into_iter().flatten().collect();
        let facts = masters.iter().map(|master| PruneFacts::of_master(master)).collect();
        let (blocks, spenders) = (LongestChainBlocks::default(), BTreeMap::new());
        let mut examination = Examination { store: self.store, blocks, facts, spenders };
        let mined = masters.iter().filter_map(|master| master.master.as_ref()).flat_map(|bins| &bins.mined);
        examination.blocks.load(self.store, mined).await?;
        for (index, master) in masters.iter().enumerate() {
            examination.read_pages(index, master).await?;
        }
        examination.read_spenders().await?;
        let rulings = examination.facts.iter().map(|facts| rule(&self.basis.terms, facts));
        Ok(masters.into_iter().zip(rulings).map(|(master, ruling)| ExaminedTx { master, ruling }).collect())
    }

    /// Postpones transactions that are not due. Returns transactions that an uncommitted event has changed.
    pub async fn postpone(&self, put_off: &[(Key, u32)]) -> Result<BTreeSet<Txid>, EngineError> {
        let row = |(key, until): &(Key, u32)| self.row(*key, Sequenced::PostponePruning { until: *until });
        Ok(self.apply(put_off.iter().map(row).collect()).await?.1)
    }

    /// Settles the slots that conflicting transactions may hold, and marks the slots that other transactions spend.
    pub async fn release_parents(&self, due: &[ExaminedTx]) -> Result<ParentRelease, EngineError> {
        let (mut rows, mut whose, mut released) = (Vec::new(), Vec::new(), ParentRelease::default());
        for examined in due {
            let txid = examined.master.txid;
            let spent = match self.spent_by(&examined.master).await {
                Ok(spent) => spent,
                Err(error) => {
                    tracing::error!(%txid, %error, "prune: body unreadable; transaction not pruned");
                    released.damaged.insert(txid);
                    continue;
                }
            };
            for (key, held) in spent {
                if examined.is_conflicting() {
                    let settle = |held| self.row(key, Sequenced::Settle(vec![held]));
                    rows.extend(held.into_iter().map(settle));
                } else {
                    rows.push(self.row(key, Sequenced::MarkSpenderPruned(held)));
                }
                whose.resize(rows.len(), txid);
            }
        }
        let (outcomes, mut changed) = self.apply(rows.clone()).await?;
        changed.append(&mut self.report_pages(&rows, &outcomes).await?);
        let of_changed = |(key, _): &(Key, Txid)| matches!(key, Key::Page(parent, _) if changed.contains(parent));
        let targets = rows.iter().map(|row| row.key).zip(whose);
        released.uncommitted = targets.filter(of_changed).map(|(_, txid)| txid).collect();
        Ok(released)
    }

    /// Reports to the masters whether their other pages are all spent. A repeat reports again, since the master may
    /// lack the report: the pruner was stopped before, the report was late, or the master did not exist yet. Returns
    /// the transactions whose masters an uncommitted event has changed.
    async fn report_pages(&self, rows: &[Row], outcomes: &[Outcome]) -> Result<BTreeSet<Txid>, EngineError> {
        let reports = PageReports::of(rows, outcomes);
        let (_, mut changed) = self.apply(reports.rows()).await?;
        let pages = reports.pages_to_read_again();
        if !pages.is_empty() {
            let since = reports.rows_since(&self.store.read(pages).await?);
            changed.append(&mut self.apply(since).await?.1);
        }
        Ok(changed)
    }

    /// Slots that a transaction spends, by page of its parents.
    async fn spent_by(&self, master: &Page) -> Result<BTreeMap<Key, Vec<HeldSlot>>, BodyError> {
        let mut spent: BTreeMap<Key, Vec<HeldSlot>> = BTreeMap::new();
        if master.body().is_none() || master.is_coinbase || master.is_partial() {
            return Ok(spent);
        }
        let body = self.store.body(master).await?;
        let parsed = ParsedBody::parse(master.txid, &body)?;
        let inputs = parsed.transaction().into_iter().flat_map(|transaction| transaction.inputs());
        for (input, number) in inputs.zip(0..) {
            let (page, offset) = self.store.locate_slot(input.outpoint);
            let holder = SpendingData { txid: master.txid, input: number };
            spent.entry(Key::Page(input.outpoint.txid, page)).or_default().push(HeldSlot { offset, holder });
        }
        Ok(spent)
    }

    /// Writes tombstones for the other pages and then for the masters. A transaction that was changed since it was
    /// examined has a later stamp and stays.
    pub async fn write_tombstones(
        &self,
        keep_until: Option<u32>,
        due: &[ExaminedTx],
    ) -> Result<TombstoneResult, EngineError> {
        let height = self.basis.terms.height;
        let mut result = TombstoneResult::default();
        let mut masters = Vec::new();
        for examined in due {
            let txid = examined.master.txid;
            match self.write_page_tombstones(&examined.master).await? {
                PageTombstones::Written => masters.push(txid),
                PageTombstones::Refused => result.refused.push(txid),
                PageTombstones::Changed => drop(result.uncommitted.insert(txid)),
            }
        }
        let prune = |txid: &Txid| self.row(Key::master(*txid), Sequenced::Prune { height, keep_until });
        let (outcomes, changed) = self.apply(masters.iter().map(prune).collect()).await?;
        for (txid, outcome) in masters.into_iter().zip(outcomes) {
            match outcome {
                Outcome::Applied(_) | Outcome::AlreadyApplied(_) => drop(result.done.insert(txid)),
                Outcome::Rejected(_) if changed.contains(&txid) => {}
                Outcome::Rejected(_) => result.refused.push(txid),
            }
        }
        result.uncommitted.extend(changed);
        Ok(result)
    }

    /// Writes the tombstones of the pages beside the master.
    async fn write_page_tombstones(&self, master: &Page) -> Result<PageTombstones, EngineError> {
        let height = self.basis.terms.height;
        let numbers: Vec<u32> = (1..=master.extra_pages()).collect();
        for numbers in numbers.chunks(MAX_PAGES) {
            let rows = |operation: &Sequenced| {
                let row = |number: &u32| self.row(Key::Page(master.txid, *number), operation.clone());
                numbers.iter().map(row).collect::<Vec<_>>()
            };
            if let Some(Verdict::Conflicting(reason)) = master.verdict() {
                // A node may have lost the flag of a page.
                self.apply(rows(&Sequenced::MarkConflicting { reason, height })).await?;
            }
            let (outcomes, changed) = self.apply(rows(&Sequenced::Prune { height, keep_until: None })).await?;
            if !changed.is_empty() {
                return Ok(PageTombstones::Changed);
            }
            if !outcomes.iter().all(Outcome::is_done) {
                return Ok(PageTombstones::Refused);
            }
        }
        Ok(PageTombstones::Written)
    }

    /// Shrinks expired tombstones to their names, and deletes their blobs. Returns transactions that an uncommitted
    /// event has changed.
    ///
    /// The record gives up its body before the blob is deleted, so that a block which brings the transaction back never
    /// meets a record without its blob. A kill in between leaves a blob without a record. The names stay for ever: an
    /// event that is repeated, however late, must not make a spent output spendable.
    pub async fn shrink_tombstones(&self, served: &[ExaminedTx]) -> Result<BTreeSet<Txid>, PruneError> {
        let shrink = |txid, number, height| self.row(Key::Page(txid, number), Sequenced::ForgetTombstone { height });
        let height = self.basis.terms.height;
        let mut changed = BTreeSet::new();
        for ExaminedTx { master, .. } in served {
            // A page that came back because a node lost its tombstone is pruned again.
            let PageTombstones::Written = self.write_page_tombstones(master).await? else {
                changed.insert(master.txid);
                continue;
            };
            let numbers: Vec<u32> = (1..=master.extra_pages()).collect();
            for numbers in numbers.chunks(MAX_PAGES) {
                self.apply(numbers.iter().map(|number| shrink(master.txid, *number, height)).collect()).await?;
            }
            // The master is last: the index finds the transaction by its master.
            let (outcomes, stale) = self.apply(vec![shrink(master.txid, 0, height)]).await?;
            changed.extend(stale);
            if !outcomes.iter().all(Outcome::is_done) {
                changed.insert(master.txid);
                continue;
            }
            // An event that is handled meanwhile gives the record a body again, under the same name.
            if !self.has_body(master.txid).await? {
                self.delete_blob(master).await?;
                if self.has_body(master.txid).await? {
                    self.apply(vec![shrink(master.txid, 0, u32::MAX)]).await?;
                }
            }
        }
        Ok(changed)
    }

    async fn has_body(&self, txid: Txid) -> Result<bool, EngineError> {
        let masters = self.store.masters(&[txid]).await?;
        Ok(masters.iter().flatten().any(|master| master.body().is_some()))
    }

    async fn delete_blob(&self, master: &Page) -> Result<(), PruneError> {
        let (Some(blobs), Some(Body::External(blob))) = (&self.store.blobs, master.body()) else { return Ok(()) };
        let txid = master.txid;
        let first = if master.is_partial() { BlobName::outputs(txid) } else { BlobName::tx(txid) };
        let other = matches!(blob, Blob::Other(_)).then(|| first.of_blob(*blob));
        for name in other.into_iter().chain([first]) {
            let deleting = || blobs.delete(name);
            let deleted =
                self.store.new_backoff(Some(Key::master(txid))).retry(|error| error.may_be_retried(), deleting);
            deleted.await.map_err(|why| PruneError::Blob { txid, why })?;
        }
        Ok(())
    }

    /// Applies rows of the pruner. Returns also the txids whose records have a later stamp: the event that changed them
    /// is not committed yet, or another sequencer is ahead.
    async fn apply(&self, rows: Vec<Row>) -> Result<(Vec<Outcome>, BTreeSet<Txid>), EngineError> {
        if rows.is_empty() {
            return Ok(Default::default());
        }
        let keys: Vec<Key> = rows.iter().map(|row| row.key).collect();
        let outcomes = self.store.apply(rows).await?;
        let changed = keys.iter().zip(&outcomes).filter_map(|(key, outcome)| match (key, outcome) {
            (Key::Page(txid, _), Outcome::Rejected(Rejection::StaleStamp(_))) => Some(*txid),
            _ => None,
        });
        let changed = changed.collect();
        Ok((outcomes, changed))
    }

    fn row(&self, key: Key, operation: Sequenced) -> Row {
        Row { key, operation: Operation::Sequenced(self.basis.stamp, operation) }
    }
}

impl Examination<'_> {
    /// Reads the other pages of a transaction and collects its spenders.
    async fn read_pages(&mut self, index: usize, master: &Page) -> Result<(), EngineError> {
        if !matches!(master.state(), TxState::Live | TxState::Conflicting(_)) {
            return Ok(());
        }
        let bins = master.master.as_deref();
        if bins.is_some_and(|bins| bins.unmined_since.is_none()) {
            self.facts[index].mined = bins.and_then(|bins| self.blocks.greatest_height(&bins.mined));
        }
        self.collect_spenders(index, master).await?;
        let mut pages = ExtraPages::of(self.store, master);
        while let Some((_, page)) = pages.next().await? {
            self.facts[index] = self.facts[index].with_page(page.as_deref());
            if let Some(page) = page {
                self.collect_spenders(index, &page).await?;
            }
        }
        Ok(())
    }

    async fn collect_spenders(&mut self, index: usize, page: &Page) -> Result<(), EngineError> {
        // The spenders of a transaction with an unspent output, or of a conflicting one, do not matter.
        if !self.facts[index].all_spent || self.facts[index].state != TxState::Live {
            return Ok(());
        }
        for (slot, offset) in page.utxos.iter().flatten().zip(0..) {
            if let Some(spender) = slot.spender().filter(|_| !page.pruned_spenders.contains(&offset)) {
                self.spenders.entry(spender.txid).or_default().insert(index);
            }
            if self.spenders.len() >= MAX_SPENDERS {
                self.read_spenders().await?;
            }
        }
        Ok(())
    }

    /// Reads whether the collected spenders are mined on the longest chain, and at which height.
    async fn read_spenders(&mut self) -> Result<(), EngineError> {
        let spenders = std::mem::take(&mut self.spenders);
        let txids: Vec<Txid> = spenders.keys().copied().collect();
        let masters = if txids.is_empty() { Vec::new() } else { self.store.masters(&txids).await? };
        let mined = masters.iter().flatten().filter_map(|page| page.master.as_ref()).flat_map(|bins| &bins.mined);
        self.blocks.load(self.store, mined).await?;
        for (indexes, master) in spenders.into_values().zip(masters) {
            let spender = self.spender_status(master.as_deref());
            for index in indexes {
                self.facts[index].spenders = self.facts[index].spenders.combine(spender);
            }
        }
        Ok(())
    }

    fn spender_status(&self, master: Option<&Page>) -> Spenders {
        // A partial transaction spends nothing. Its whole event, which came second, has taken slots that will be
        // settled.
        let Some(page) = master.filter(|page| !page.is_partial()) else { return Spenders::NotMined };
        match (page.state(), page.master.as_deref()) {
            (TxState::Pruned(_), _) if !page.conflicting => Spenders::Mined(None),
            (TxState::Live, Some(bins)) if bins.unmined_since.is_none() => {
                match self.blocks.greatest_height(&bins.mined) {
                    Some(height) => Spenders::Mined(Some(height)),
                    None => Spenders::NotMined,
                }
            }
            _ => Spenders::NotMined,
        }
    }
}

impl PruneBasis {
    /// Creates the basis at the committed chain offset of `terms`, in an era of the chain.
    pub fn new(terms: PruneTerms, era: u32) -> Self {
        PruneBasis { terms, stamp: Stamp::in_era(era, terms.committed.saturating_sub(1), Phase::Prune) }
    }
}
