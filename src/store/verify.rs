//! Verifies the invariants of the stored state in both directions: each slot that an input of a live transaction names
//! names that input, and each spender that a slot names spends the slot.
//!
//! Verification is one scan. A record is checked against other records in batches of bounded size. A store that changes
//! during the scan can show false violations: stop the group first.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::{
    engine::{EngineError, Set},
    record::{Key, Master, MinedIn, Page, Record, Slot, SpendingData, TxState, Verdict},
    tx::{Outpoint, Txid, amount_size, utxo_hash},
};

use super::{
    StateStore,
    body::ParsedBody,
    pages::{ExtraPages, slots_of_page},
    scan::SetScan,
};

mod cross_checks;
mod unbarred;

use cross_checks::CrossChecks;
use unbarred::UnbarredSearch;

/// A violated invariant of the stored state.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, thiserror::Error)]
#[serde(tag = "violation", rename_all = "snake_case")]
#[allow(missing_docs, reason = "the messages describe the variants and name the fields")]
pub enum Violation {
    /// The slot that an input of a live transaction names does not name this input.
    #[error(
        "input {input} of {txid}, which is live, spends {outpoint}, but the slot {}",
        holder.map_or("is free".to_owned(), |holder| format!("names {holder}"))
    )]
    InputNotTaken { txid: Txid, input: u32, outpoint: Outpoint, holder: Option<SpendingData> },
    #[error("input {input} of {txid}, which is live, spends {outpoint}, which has no slot")]
    NoSuchSlot { txid: Txid, input: u32, outpoint: Outpoint },
    #[error("{txid} is live, but its parent {parent} is conflicting")]
    ConflictingParent { txid: Txid, parent: Txid },
    #[error("{outpoint} is spent by {spender}, which has no record")]
    SpenderMissing { outpoint: Outpoint, spender: SpendingData },
    #[error("{outpoint} is spent by {spender}, which does not name it")]
    SpenderNeverNamedIt { outpoint: Outpoint, spender: SpendingData },
    #[error("{outpoint} is spent by {spender}, which is conflicting")]
    ConflictingHoldsSlot { outpoint: Outpoint, spender: SpendingData },
    /// A page is half created, though nothing bars its transaction.
    #[error("page {page} of {txid} is half created, since {since} ms after the epoch")]
    Creating { txid: Txid, page: u32, since: u64 },
    #[error("{bin} on page {page} of {txid} is {stored}, but the slots give {counted}")]
    Count { txid: Txid, page: u32, bin: &'static str, stored: u64, counted: u64 },
    /// The set of all-spent pages disagrees with a page.
    #[error(
        "page {page} of {txid} is {}",
        if *listed { "listed as all spent, but is not" } else { "all spent, but not listed so" }
    )]
    SpentPages { txid: Txid, page: u32, listed: bool },
    #[error("{bin} on page {page} of {txid} is not as on its master")]
    Flag { txid: Txid, page: u32, bin: &'static str },
    #[error("page {page} of {txid} is missing")]
    MissingPage { txid: Txid, page: u32 },
    #[error("page {page} of {txid} has no master that counts it")]
    OrphanedPage { txid: Txid, page: u32 },
    /// A body is missing, damaged, or in a place that this store cannot read.
    #[error("body of {txid}: {problem}")]
    Body { txid: Txid, problem: String },
    #[error("the slot of {outpoint} commits to another output than the stored one")]
    SlotHash { outpoint: Outpoint },
    /// A transaction is conflicting and not due to be pruned, though all of its parents are live and all of its slots
    /// are free.
    #[error(
        "{txid} is conflicting ({reason}), but its parents are live and its slots are free; \
         `utxo-store command reconsider {txid}` makes it live"
    )]
    Unbarred { txid: Txid, reason: String },
    #[error("{txid} is conflicting, but block {block_id} of the longest chain at height {height} lists it")]
    ConflictingMined { txid: Txid, block_id: u32, height: u32 },
}

/// Returns a block of the longest chain that lists the transaction of this master. A block from before the store has no
/// record and does not count.
///
/// # Errors
/// The engine answers with an error that no retry heals.
pub async fn find_connected_block(store: &StateStore, master: &Page) -> Result<Option<MinedIn>, EngineError> {
    let mined = master.master.as_deref().map_or(&[][..], |bins| &bins.mined);
    if mined.is_empty() {
        return Ok(None);
    }
    let records = store.read(mined.iter().map(|mined| Key::Block(mined.block_id)).collect()).await?;
    let is_connected = |record: &Option<Record>| matches!(record, Some(Record::Block(block)) if block.longest_chain);
    Ok(mined.iter().zip(records).find(|(_, record)| is_connected(record)).map(|(mined, _)| *mined))
}

/// Verifies the whole store and returns the number of transactions. `found` is called with each violation,
/// `progress` with the number of transactions seen so far. A contested transaction without a verdict may hold
/// slots: the transaction is between two states, and not in a wrong one.
///
/// # Errors
/// The engine answers with an error that no retry heals. `found` has been called with every violation until then.
pub async fn verify(
    store: &StateStore,
    mut progress: impl FnMut(u64),
    mut found: impl FnMut(Violation),
) -> Result<u64, EngineError> {
    let mut seen = 0;
    let mut scan = SetScan::new(store, Set::Transactions);
    let mut verifier = Verifier {
        store,
        cross_checks: CrossChecks::default(),
        unbarred_search: UnbarredSearch::default(),
        greatest_height: 0,
        found: &mut found,
    };
    while let Some(records) = scan.next().await? {
        for (_, record) in records {
            if let Record::Page(page) = record {
                seen += u64::from(page.number == 0);
                verifier.check_page(&page).await?;
            }
        }
        progress(seen);
    }
    verifier.cross_checks.run(store, verifier.found).await?;
    verifier.unbarred_search.run(store).await?;
    verifier.unbarred_search.report(verifier.greatest_height, verifier.found);
    Ok(seen)
}

struct Verifier<'a, F> {
    store: &'a StateStore,
    cross_checks: CrossChecks,
    unbarred_search: UnbarredSearch,
    /// The greatest height at which a transaction is mined.
    greatest_height: u32,
    found: &'a mut F,
}

impl<F: FnMut(Violation)> Verifier<'_, F> {
    /// Checks one page. Checks against other records are gathered and run in batches.
    async fn check_page(&mut self, page: &Page) -> Result<(), EngineError> {
        if let Some(since) = page.creating_at.filter(|_| page.number == 0) {
            (self.found)(Violation::Creating { txid: page.txid, page: page.number, since });
        }
        let Some(slots) = page.utxos.as_deref() else { return Ok(()) };
        check_slot_counts(page, slots, self.found);
        let first = page.number.saturating_mul(self.store.settings.utxo_batch_size);
        for (slot, offset) in slots.iter().zip(0..) {
            let Some(spender) = slot.spender().filter(|_| !page.pruned_spenders.contains(&offset)) else { continue };
            let outpoint = Outpoint { txid: page.txid, vout: first.saturating_add(offset) };
            self.cross_checks.add_slot(outpoint, spender);
            self.run_full_batches().await?;
        }
        match page.master.as_deref() {
            Some(bins) => self.check_master(page, bins).await,
            None => {
                self.cross_checks.add_page(page.txid, page.number, page.creating_at);
                Ok(())
            }
        }
    }

    async fn check_master(&mut self, master: &Page, bins: &Master) -> Result<(), EngineError> {
        let txid = master.txid;
        self.greatest_height = bins.mined.iter().map(|mined| mined.height).fold(self.greatest_height, u32::max);
        let body = match self.store.body(master).await {
            Ok(body) => Some(body),
            Err(error) => {
                (self.found)(Violation::Body { txid, problem: error.to_string() });
                None
            }
        };
        let parsed = body.as_deref().and_then(|body| match ParsedBody::parse(txid, body) {
            Ok(parsed) => Some(parsed),
            Err(error) => {
                (self.found)(Violation::Body { txid, problem: error.to_string() });
                None
            }
        });
        if let Some(Err(error)) = parsed.as_ref().map(|body| body.belongs_to(txid)) {
            (self.found)(Violation::Body { txid, problem: error.to_string() });
        }
        self.check_slots(master, bins, parsed.as_ref()).await?;
        if master.conflicting
            && let Some(MinedIn { block_id, height, .. }) = find_connected_block(self.store, master).await?
        {
            (self.found)(Violation::ConflictingMined { txid, block_id, height });
        }
        let transaction = parsed.as_ref().and_then(ParsedBody::transaction);
        let Some(transaction) = transaction.filter(|transaction| !transaction.is_coinbase()) else { return Ok(()) };
        if master.state() != TxState::Live {
            self.unbarred_search.add(self.store, master, transaction);
            return self.run_full_batches().await;
        }
        for (input, number) in transaction.inputs().zip(0..) {
            let slot = self.store.locate_slot(input.outpoint);
            self.cross_checks.add_input(SpendingData { txid, input: number }, input.outpoint, slot);
            self.run_full_batches().await?;
        }
        Ok(())
    }

    /// Checks the slots of all pages against the body and against the master.
    async fn check_slots(
        &mut self,
        master: &Page,
        bins: &Master,
        body: Option<&ParsedBody<'_>>,
    ) -> Result<(), EngineError> {
        let txid = master.txid;
        let batch_size = self.store.settings.utxo_batch_size;
        let mut outputs = body.into_iter().flat_map(ParsedBody::outputs);
        let mut counted = check_slot_hashes(master, 0, &mut outputs, body.is_some(), self.found);
        let mut pages = ExtraPages::of(self.store, master);
        while let Some((number, page)) = pages.next().await? {
            match page {
                Some(page) if page.utxos.is_some() => {
                    let first = number.saturating_mul(batch_size);
                    counted += check_slot_hashes(&page, first, &mut outputs, body.is_some(), self.found);
                    check_against_master(&page, master, bins, self.found);
                }
                // The pruner has begun with the pages and will write the master's tombstone. A stub of a page is a
                // violation.
                Some(page) if page.pruned.is_some() => return Ok(()),
                _ => {
                    let missing = slots_of_page(master, number, batch_size);
                    outputs.by_ref().take(missing as usize).for_each(drop);
                    counted += u64::from(missing);
                    (self.found)(Violation::MissingPage { txid, page: number });
                }
            }
        }
        check_count(master, "totalUtxos", u64::from(bins.total_utxos), counted, self.found);
        let beyond = bins.spent_pages.iter().filter(|page| **page == 0 || **page > bins.total_extra_recs);
        beyond.for_each(|page| (self.found)(Violation::SpentPages { txid, page: *page, listed: true }));
        Ok(())
    }

    async fn run_full_batches(&mut self) -> Result<(), EngineError> {
        if self.cross_checks.is_full() {
            self.cross_checks.run(self.store, self.found).await?;
        }
        if self.unbarred_search.is_full() { self.unbarred_search.run(self.store).await } else { Ok(()) }
    }
}

/// Checks the counts of a page against its slots.
fn check_slot_counts(page: &Page, slots: &[Slot], found: &mut impl FnMut(Violation)) {
    let spent = slots.iter().filter(|slot| slot.spender().is_some()).count() as u64;
    // A reassignment counts as a slot more, so that its page is never all spent.
    let used = (slots.iter().filter(|slot| **slot != Slot::Nil).count() + page.reassignments.len()) as u64;
    check_count(page, "spentUtxos", u64::from(page.spent_utxos), spent, found);
    check_count(page, "recordUtxos", u64::from(page.record_utxos), used, found);
}

fn check_count(page: &Page, bin: &'static str, stored: u64, counted: u64, found: &mut impl FnMut(Violation)) {
    if stored != counted {
        found(Violation::Count { txid: page.txid, page: page.number, bin, stored, counted });
    }
}

/// Checks the slots of a page against its stored outputs, and returns the number of slots.
fn check_slot_hashes<'a>(
    page: &Page,
    first: u32,
    outputs: &mut dyn Iterator<Item = Option<crate::tx::Output<'a>>>,
    has_body: bool,
    found: &mut impl FnMut(Violation),
) -> u64 {
    let slots = page.utxos.as_deref().unwrap_or_default();
    if !has_body {
        return slots.len() as u64;
    }
    let reassigned: BTreeSet<u32> = page.reassignments.iter().map(|entry| entry.offset).collect();
    for (slot, offset) in slots.iter().zip(0..) {
        let output = outputs.next().flatten();
        let vout = first.saturating_add(offset);
        let Some(hash) = slot.hash().filter(|_| !reassigned.contains(&offset)) else { continue };
        let expected = output.map(|output| utxo_hash(&page.txid, vout, output.script, output.satoshis));
        let size = page.amount_sizes.get(offset as usize).copied();
        let is_sized = page.amount_sizes.is_empty() || size == output.map(|output| amount_size(output.satoshis));
        if expected != Some(hash) || !is_sized {
            found(Violation::SlotHash { outpoint: Outpoint { txid: page.txid, vout } });
        }
    }
    slots.len() as u64
}

/// Checks the flags of another page, and the set of all-spent pages, against the master.
fn check_against_master(page: &Page, master: &Page, bins: &Master, found: &mut impl FnMut(Violation)) {
    let (txid, number) = (page.txid, page.number);
    // Until the verdict `creating` bars the other pages of a contested transaction.
    let barred = page.conflicting || (master.conflicting && page.creating_at.is_some());
    let flags = [
        ("conflicting", barred, master.conflicting),
        ("locked", page.locked, master.locked),
        ("frozen", page.frozen, master.frozen),
        ("isCoinbase", page.is_coinbase, master.is_coinbase),
    ];
    for (bin, here, there) in flags {
        if here != there {
            found(Violation::Flag { txid, page: number, bin });
        }
    }
    let listed = bins.spent_pages.contains(&number);
    // The report of the spend that took the last slot may arrive after the sequencer has freed the slot again. Then the
    // set lists the page too early, which does no harm: the pruner counts the slots.
    let may_be_early = listed && !page.contested.is_empty();
    if listed != page.is_all_spent() && !may_be_early {
        found(Violation::SpentPages { txid, page: number, listed });
    }
}

/// Returns whether a spender is conflicting by verdict, so that it must not hold slots.
fn is_conflicting_by_verdict(spender: &Page) -> bool {
    spender.conflicting && matches!(spender.verdict(), Some(Verdict::Conflicting(_)))
}

#[cfg(test)]
#[path = "verify_tests.rs"]
mod tests;
