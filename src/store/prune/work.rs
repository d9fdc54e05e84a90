//! The reads and writes of a pass, each for a handful of transactions.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    blob::BlobName,
    engine::{EngineError, Row},
    record::{
        Blob, Body, HeldSlot, Key, Operation, Outcome, Page, Phase, Rejection, Reply, Sequenced, SpendingData, Stamp,
        TxState, Verdict,
    },
    store::{
        Store,
        body::{BodyError, ParsedBody},
        digest::PAGES_AT_A_TIME,
    },
    tx::Txid,
};

use super::{Facts, PruneError, Ruling, Spenders, Terms, Under, blocks::Blocks, rule};

/// Spenders that are asked for at once.
const SPENDERS_AT_ONCE: usize = 4_096;
/// Pages of one transaction that are changed at once: rows of a few bytes.
const PAGES_AT_ONCE: usize = 1_024;

/// A transaction that was looked at.
#[derive(Debug, Clone)]
pub struct Examined {
    pub master: Arc<Page>,
    pub ruling: Ruling,
}

impl Examined {
    fn is_conflicting(&self) -> bool {
        self.master.conflicting
    }
}

/// What the first half came to, of those that are not ready for the second.
#[derive(Debug, Default)]
pub struct LetGo {
    /// What is not committed has changed a parent.
    pub unsafe_yet: BTreeSet<Txid>,
    /// What they spend is not known.
    pub damaged: BTreeSet<Txid>,
}

/// What the second half came to.
#[derive(Debug, Default)]
pub struct Buried {
    pub done: BTreeSet<Txid>,
    /// What is not committed has changed them since.
    pub unsafe_yet: BTreeSet<Txid>,
    /// A record says that it may not go.
    pub refused: Vec<Txid>,
}

enum Others {
    Buried,
    Refused,
    Changed,
}

/// The facts of several transactions, and who spends which of them.
struct Examination<'a> {
    store: &'a Store,
    blocks: Blocks,
    facts: Vec<Facts>,
    spenders: BTreeMap<Txid, BTreeSet<usize>>,
}

impl Store {
    /// Looks at these transactions; those that are not there are left out.
    pub(super) async fn examine(&self, under: &Under, txids: &[Txid]) -> Result<Vec<Examined>, EngineError> {
        let masters: Vec<Arc<Page>> = self.masters(txids).await?.into_iter().flatten().collect();
        let facts = masters.iter().map(|master| Facts::of_master(master)).collect();
        let mut examination = Examination { store: self, blocks: Blocks::default(), facts, spenders: BTreeMap::new() };
        let mined = masters.iter().filter_map(|master| master.master.as_ref()).flat_map(|bins| &bins.mined);
        examination.blocks.ask(self, mined).await?;
        for (place, master) in masters.iter().enumerate() {
            examination.look_at(place, master).await?;
        }
        examination.ask_spenders().await?;
        let rulings = examination.facts.iter().map(|facts| rule(&under.terms, facts));
        Ok(masters.into_iter().zip(rulings).map(|(master, ruling)| Examined { master, ruling }).collect())
    }

    /// Puts off what is not due; answers those that were changed since by what is not committed.
    pub(super) async fn postpone(&self, under: &Under, put_off: &[(Key, u32)]) -> Result<BTreeSet<Txid>, EngineError> {
        let row = |(key, until): &(Key, u32)| under.row(*key, Sequenced::PostponePruning { until: *until });
        Ok(self.prune_rows(put_off.iter().map(row).collect()).await?.1)
    }

    /// The first half: slots that conflicting ones may hold are settled, those that others spend are marked.
    pub(super) async fn let_go_of_parents(&self, under: &Under, due: &[Examined]) -> Result<LetGo, EngineError> {
        let (mut rows, mut whose, mut let_go) = (Vec::new(), Vec::new(), LetGo::default());
        for examined in due {
            let txid = examined.master.txid;
            let spent = match self.spent_by(&examined.master).await {
                Ok(spent) => spent,
                Err(error) => {
                    tracing::error!(%txid, %error, "not pruned: what it spends is not known");
                    let_go.damaged.insert(txid);
                    continue;
                }
            };
            for (key, held) in spent {
                if examined.is_conflicting() {
                    let settle = |held| under.row(key, Sequenced::Settle(vec![held]));
                    rows.extend(held.into_iter().map(settle));
                } else {
                    rows.push(under.row(key, Sequenced::MarkSpenderPruned(held)));
                }
                whose.resize(rows.len(), txid);
            }
        }
        let (outcomes, changed) = self.prune_rows(rows.clone()).await?;
        let of_changed = |(key, _): &(Key, Txid)| matches!(key, Key::Page(parent, _) if changed.contains(parent));
        let asked = rows.iter().map(|row| row.key).zip(whose);
        let_go.unsafe_yet = asked.filter(of_changed).map(|(_, txid)| txid).collect();
        // Who frees a slot of another page says that it is not all spent any more.
        let freed = rows.iter().zip(outcomes).filter_map(|(row, outcome)| match (row.key, &row.operation, outcome) {
            (
                Key::Page(txid, page @ 1..),
                Operation::Sequenced(_, Sequenced::Settle(_)),
                Outcome::Applied(Reply::Slots { all_spent: false, .. }),
            ) => Some(under.row(Key::master(txid), Sequenced::SetPageSpent { page, spent: false })),
            _ => None,
        });
        self.prune_rows(freed.collect()).await?;
        Ok(let_go)
    }

    /// What a transaction spends: by page of its parents, the slots with its name.
    async fn spent_by(&self, master: &Page) -> Result<BTreeMap<Key, Vec<HeldSlot>>, BodyError> {
        let mut spent: BTreeMap<Key, Vec<HeldSlot>> = BTreeMap::new();
        if master.body().is_none() || master.is_coinbase || master.is_partial() {
            return Ok(spent);
        }
        let body = self.body(master).await?;
        let parsed = ParsedBody::parse(master.txid, &body)?;
        let inputs = parsed.transaction().into_iter().flat_map(|transaction| transaction.inputs());
        for (input, number) in inputs.zip(0..) {
            let (page, offset) = self.place(input.outpoint);
            let holder = SpendingData { txid: master.txid, input: number };
            spent.entry(Key::Page(input.outpoint.txid, page)).or_default().push(HeldSlot { offset, holder });
        }
        Ok(spent)
    }

    /// The second half: the other pages and then the masters become tombstones. What was changed since it was looked at bears a later
    /// stamp, and stays.
    pub(super) async fn bury(
        &self,
        under: &Under,
        keep_until: Option<u32>,
        due: &[Examined],
    ) -> Result<Buried, EngineError> {
        let height = under.terms.height;
        let mut buried = Buried::default();
        let mut masters = Vec::new();
        for examined in due {
            let txid = examined.master.txid;
            match self.bury_others(under, &examined.master).await? {
                Others::Buried => masters.push(txid),
                Others::Refused => buried.refused.push(txid),
                Others::Changed => drop(buried.unsafe_yet.insert(txid)),
            }
        }
        let prune = |txid: &Txid| under.row(Key::master(*txid), Sequenced::Prune { height, keep_until });
        let (outcomes, changed) = self.prune_rows(masters.iter().map(prune).collect()).await?;
        for (txid, outcome) in masters.into_iter().zip(outcomes) {
            match outcome {
                Outcome::Applied(_) | Outcome::AlreadyApplied(_) => drop(buried.done.insert(txid)),
                Outcome::Rejected(_) if changed.contains(&txid) => {}
                Outcome::Rejected(_) => buried.refused.push(txid),
            }
        }
        buried.unsafe_yet.extend(changed);
        Ok(buried)
    }

    /// The pages besides the master.
    async fn bury_others(&self, under: &Under, master: &Page) -> Result<Others, EngineError> {
        let height = under.terms.height;
        let numbers: Vec<u32> = (1..=others(master)).collect();
        for numbers in numbers.chunks(PAGES_AT_ONCE) {
            let rows = |operation: &Sequenced| {
                let row = |number: &u32| under.row(Key::Page(master.txid, *number), operation.clone());
                numbers.iter().map(row).collect::<Vec<_>>()
            };
            if let Some(Verdict::Conflicting(reason)) = master.verdict() {
                // One that a node forgot to flag.
                self.prune_rows(rows(&Sequenced::MarkConflicting { reason, height })).await?;
            }
            let (outcomes, changed) = self.prune_rows(rows(&Sequenced::Prune { height, keep_until: None })).await?;
            if !changed.is_empty() {
                return Ok(Others::Changed);
            }
            if !outcomes.iter().all(Outcome::is_done) {
                return Ok(Others::Refused);
            }
        }
        Ok(Others::Buried)
    }

    /// What tombstones that have served had kept goes: a blob after its record has let go of it, so that a block which brings the
    /// transaction back never meets a record without its blob (a kill in between leaves one that nobody wants). Their names stay for good: an event that comes again, however late,
    /// must not make spendable what was spent. Answers those that were changed since by what is not committed.
    pub(super) async fn forget_tombstones(
        &self,
        under: &Under,
        served: &[Examined],
    ) -> Result<BTreeSet<Txid>, PruneError> {
        let forget = |txid, number, height| under.row(Key::Page(txid, number), Sequenced::ForgetTombstone { height });
        let height = under.terms.height;
        let mut changed = BTreeSet::new();
        for Examined { master, .. } in served {
            // One that came back where a node had forgotten that it was pruned goes with the master.
            let Others::Buried = self.bury_others(under, master).await? else {
                changed.insert(master.txid);
                continue;
            };
            let numbers: Vec<u32> = (1..=others(master)).collect();
            for numbers in numbers.chunks(PAGES_AT_ONCE) {
                self.prune_rows(numbers.iter().map(|number| forget(master.txid, *number, height)).collect()).await?;
            }
            // The master last, since what finds it finds the rest.
            let (outcomes, stale) = self.prune_rows(vec![forget(master.txid, 0, height)]).await?;
            changed.extend(stale);
            if !outcomes.iter().all(Outcome::is_done) {
                changed.insert(master.txid);
                continue;
            }
            // An event that comes now gives it a body again, of the same name.
            if !self.has_body(master.txid).await? {
                self.delete_blob(master).await?;
                if self.has_body(master.txid).await? {
                    self.prune_rows(vec![forget(master.txid, 0, u32::MAX)]).await?;
                }
            }
        }
        Ok(changed)
    }

    async fn has_body(&self, txid: Txid) -> Result<bool, EngineError> {
        let masters = self.masters(&[txid]).await?;
        Ok(masters.iter().flatten().any(|master| master.body().is_some()))
    }

    async fn delete_blob(&self, master: &Page) -> Result<(), PruneError> {
        let (Some(blobs), Some(Body::External(blob))) = (&self.blobs, master.body()) else { return Ok(()) };
        let txid = master.txid;
        let first = if master.is_partial() { BlobName::outputs(txid) } else { BlobName::tx(txid) };
        let other = match blob {
            Blob::First => None,
            Blob::Other(content) => Some(first.with_content(*content)),
        };
        for name in other.into_iter().chain([first]) {
            let deleting = || blobs.delete(name);
            let deleted =
                self.pauses(Some(Key::master(txid))).until_answered(|error| error.may_be_repeated(), deleting);
            deleted.await.map_err(|why| PruneError::Blob { txid, why })?;
        }
        Ok(())
    }

    /// Applies rows of the pruner. Also answers whose records bear a later stamp: what changed them is not committed yet (or
    /// another sequencer is ahead).
    async fn prune_rows(&self, rows: Vec<Row>) -> Result<(Vec<Outcome>, BTreeSet<Txid>), EngineError> {
        if rows.is_empty() {
            return Ok(Default::default());
        }
        let keys: Vec<Key> = rows.iter().map(|row| row.key).collect();
        let outcomes = self.apply(rows).await?;
        let changed = keys.iter().zip(&outcomes).filter_map(|(key, outcome)| match (key, outcome) {
            (Key::Page(txid, _), Outcome::Rejected(Rejection::StaleStamp(_))) => Some(*txid),
            _ => None,
        });
        let changed = changed.collect();
        Ok((outcomes, changed))
    }
}

impl Examination<'_> {
    /// Reads the other pages of a transaction, and notes who spends it.
    async fn look_at(&mut self, place: usize, master: &Page) -> Result<(), EngineError> {
        if !matches!(master.state(), TxState::Live | TxState::Conflicting(_)) {
            return Ok(());
        }
        let bins = master.master.as_deref();
        if bins.is_some_and(|bins| bins.unmined_since.is_none()) {
            self.facts[place].mined = bins.and_then(|bins| self.blocks.greatest(&bins.mined));
        }
        self.note(place, master).await?;
        let end = others(master).saturating_add(1);
        let mut next = 1;
        while next < end {
            let to = end.min(next.saturating_add(PAGES_AT_A_TIME));
            for page in self.store.pages(master.txid, next, to).await? {
                self.facts[place] = self.facts[place].with_page(page.as_deref());
                if let Some(page) = page {
                    self.note(place, &page).await?;
                }
            }
            next = to;
        }
        Ok(())
    }

    async fn note(&mut self, place: usize, page: &Page) -> Result<(), EngineError> {
        // What has an unspent output, or has fallen, is not asked about.
        if !self.facts[place].all_spent || self.facts[place].state != TxState::Live {
            return Ok(());
        }
        for (slot, offset) in page.utxos.iter().flatten().zip(0..) {
            if let Some(spender) = slot.spender().filter(|_| !page.pruned_spenders.contains(&offset)) {
                self.spenders.entry(spender.txid).or_default().insert(place);
            }
            if self.spenders.len() >= SPENDERS_AT_ONCE {
                self.ask_spenders().await?;
            }
        }
        Ok(())
    }

    /// Whether those noted are mined on the longest chain, and at what height.
    async fn ask_spenders(&mut self) -> Result<(), EngineError> {
        let spenders = std::mem::take(&mut self.spenders);
        let txids: Vec<Txid> = spenders.keys().copied().collect();
        let masters = if txids.is_empty() { Vec::new() } else { self.store.masters(&txids).await? };
        let mined = masters.iter().flatten().filter_map(|page| page.master.as_ref()).flat_map(|bins| &bins.mined);
        self.blocks.ask(self.store, mined).await?;
        for (places, master) in spenders.into_values().zip(masters) {
            let spender = self.spender(master.as_deref());
            for place in places {
                self.facts[place].spenders = self.facts[place].spenders.and(spender);
            }
        }
        Ok(())
    }

    fn spender(&self, master: Option<&Page>) -> Spenders {
        // A partial one spends nothing: its whole event, which came second, has taken what is about to be settled.
        let Some(page) = master.filter(|page| !page.is_partial()) else { return Spenders::NotMined };
        match (page.state(), page.master.as_deref()) {
            (TxState::Pruned(_), _) if !page.conflicting => Spenders::Mined(None),
            (TxState::Live, Some(bins)) if bins.unmined_since.is_none() => match self.blocks.greatest(&bins.mined) {
                Some(height) => Spenders::Mined(Some(height)),
                None => Spenders::NotMined,
            },
            _ => Spenders::NotMined,
        }
    }
}

impl Under {
    /// As of a committed chain offset, next to read, in an era.
    pub fn new(terms: Terms, era: u32) -> Self {
        Under { terms, stamp: Stamp::in_era(era, terms.safe.saturating_sub(1), Phase::Prune) }
    }

    fn row(&self, key: Key, operation: Sequenced) -> Row {
        Row { key, operation: Operation::Sequenced(self.stamp, operation) }
    }
}

fn others(master: &Page) -> u32 {
    master.master.as_ref().map_or(0, |bins| bins.total_extra_recs)
}
