//! Holds the state to its invariants, in both directions: every live transaction's inputs name it, and every slot that
//! names a spender is named by that spender (`DESIGN.md`, section 9).
//!
//! One scan; what a record says of other records is asked of them in batches of bounded size. A store that changes
//! meanwhile can show violations that are none: verify one that is at rest.

use std::{collections::BTreeSet, fmt};

use serde::Serialize;

use crate::{
    engine::{EngineError, Set},
    record::{Master, Page, Record, Slot, TxState, Verdict},
    tx::{Outpoint, Txid, amount_size, utxo_hash},
};

use super::{
    Store,
    body::ParsedBody,
    digest::{PAGES_AT_A_TIME, slots_of_page},
    scan::Scan,
};

mod questions;
mod unbarred;

use questions::Questions;
use unbarred::Losers;

/// One thing that must not be.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "violation", rename_all = "snake_case")]
pub enum Violation {
    /// A live transaction's input: the slot does not name it.
    InputNotTaken {
        /// The live transaction.
        txid: Txid,
        /// Its input.
        input: u32,
        /// The slot that the input names.
        outpoint: Outpoint,
        /// The transaction and input that the slot names instead, if any.
        holder: Option<Holder>,
    },
    /// A live transaction's input: the parent, whole, has no such slot.
    NoSuchSlot {
        /// The live transaction.
        txid: Txid,
        /// Its input.
        input: u32,
        /// What it names.
        outpoint: Outpoint,
    },
    /// A live transaction spends an output of one that is not.
    ConflictingParent {
        /// The live transaction.
        txid: Txid,
        /// The conflicting one.
        parent: Txid,
    },
    /// A slot names a spender that has no record.
    SpenderMissing {
        /// The slot.
        outpoint: Outpoint,
        /// Whom it names.
        spender: Holder,
    },
    /// A slot names a transaction that does not spend it.
    SpenderNeverNamedIt {
        /// The slot.
        outpoint: Outpoint,
        /// Whom it names.
        spender: Holder,
    },
    /// A slot names a transaction that is conflicting by verdict.
    ConflictingHoldsSlot {
        /// The slot.
        outpoint: Outpoint,
        /// Whom it names.
        spender: Holder,
    },
    /// A page is half created, though nothing bars its transaction.
    Creating {
        /// Of which transaction.
        txid: Txid,
        /// Which page.
        page: u32,
        /// Since when, ms since the epoch.
        since: u64,
    },
    /// A count disagrees with the slots.
    Count {
        /// Of which transaction.
        txid: Txid,
        /// On which page.
        page: u32,
        /// The bin.
        bin: &'static str,
        /// What it says.
        stored: u64,
        /// What the slots say.
        counted: u64,
    },
    /// The set of all-spent pages disagrees with a page.
    SpentPages {
        /// Of which transaction.
        txid: Txid,
        /// The page.
        page: u32,
        /// Whether the set lists it.
        listed: bool,
    },
    /// A page has another flag than its master.
    Flag {
        /// Of which transaction.
        txid: Txid,
        /// The page.
        page: u32,
        /// The bin.
        bin: &'static str,
    },
    /// The master tells of a page that is not there.
    MissingPage {
        /// Of which transaction.
        txid: Txid,
        /// Which.
        page: u32,
    },
    /// A page whose master is not there, or does not tell of it.
    OrphanedPage {
        /// Of which transaction.
        txid: Txid,
        /// Which.
        page: u32,
    },
    /// A body is missing or damaged, or where this store cannot read it.
    Body {
        /// Of which transaction.
        txid: Txid,
        /// What is wrong.
        problem: String,
    },
    /// A slot commits to another output than the one stored.
    SlotHash {
        /// The slot.
        outpoint: Outpoint,
    },
    /// A transaction is conflicting and not due to be pruned, though all of its parents are live and all of its slots
    /// are free.
    Unbarred {
        /// The conflicting transaction.
        txid: Txid,
        /// The reason of its verdict, which no longer holds.
        reason: String,
    },
}

/// A transaction and its input: who spends a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Holder {
    /// The transaction.
    pub txid: Txid,
    /// Its input.
    pub input: u32,
}

impl From<crate::record::SpendingData> for Holder {
    fn from(data: crate::record::SpendingData) -> Self {
        Holder { txid: data.txid, input: data.input }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "input {} of {}", self.input, self.txid)
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use Violation::*;
        match self {
            InputNotTaken { txid, input, outpoint, holder: None } => {
                write!(f, "input {input} of {txid}, which is live, spends {outpoint}, but the slot is free")
            }
            InputNotTaken { txid, input, outpoint, holder: Some(holder) } => {
                write!(f, "input {input} of {txid}, which is live, spends {outpoint}, but the slot names {holder}")
            }
            NoSuchSlot { txid, input, outpoint } => {
                write!(f, "input {input} of {txid}, which is live, spends {outpoint}, which has no slot")
            }
            ConflictingParent { txid, parent } => write!(f, "{txid} is live, but its parent {parent} is conflicting"),
            SpenderMissing { outpoint, spender } => {
                write!(f, "{outpoint} is spent by {spender}, which has no record")
            }
            SpenderNeverNamedIt { outpoint, spender } => {
                write!(f, "{outpoint} is spent by {spender}, which does not name it")
            }
            ConflictingHoldsSlot { outpoint, spender } => {
                write!(f, "{outpoint} is spent by {spender}, which is conflicting")
            }
            Creating { txid, page, since } => {
                write!(f, "page {page} of {txid} is half created, since {since} ms after the epoch")
            }
            Count { txid, page, bin, stored, counted } => {
                write!(f, "{bin} on page {page} of {txid} is {stored}, but the slots give {counted}")
            }
            SpentPages { txid, page, listed: true } => {
                write!(f, "page {page} of {txid} is listed as all spent, but is not")
            }
            SpentPages { txid, page, listed: false } => {
                write!(f, "page {page} of {txid} is all spent, but not listed so")
            }
            Flag { txid, page, bin } => write!(f, "{bin} on page {page} of {txid} is not as on its master"),
            MissingPage { txid, page } => write!(f, "page {page} of {txid} is missing"),
            OrphanedPage { txid, page } => write!(f, "page {page} of {txid} has no master that tells of it"),
            Body { txid, problem } => write!(f, "body of {txid}: {problem}"),
            SlotHash { outpoint } => write!(f, "the slot of {outpoint} commits to another output than the stored one"),
            Unbarred { txid, reason } => write!(
                f,
                "{txid} is conflicting ({reason}), but its parents are live and its slots are free; \
                 `utxo-store command reconsider {txid}` makes it live"
            ),
        }
    }
}

impl Store {
    /// Verifies the whole store: `found` is told each violation, `progress` how many transactions were seen so far.
    /// Answers how many there were. A transaction that is contested and without a verdict may hold slots: it is
    /// between two states, not in a wrong one.
    ///
    /// # Errors
    /// The engine failed for good; what was found until then was told.
    pub async fn verify(
        &self,
        mut progress: impl FnMut(u64),
        mut found: impl FnMut(Violation),
    ) -> Result<u64, EngineError> {
        let mut seen = 0;
        let mut scan = Scan::new(self, Set::Transactions);
        let mut verifier = Verifier {
            store: self,
            questions: Questions::default(),
            losers: Losers::default(),
            highest: 0,
            found: &mut found,
        };
        while let Some(records) = scan.next().await? {
            for (_, record) in records {
                if let Record::Page(page) = record {
                    seen += u64::from(page.number == 0);
                    verifier.page(&page).await?;
                }
            }
            progress(seen);
        }
        verifier.questions.ask(self, verifier.found).await?;
        verifier.losers.ask(self).await?;
        verifier.losers.tell(verifier.highest, verifier.found);
        Ok(seen)
    }
}

struct Verifier<'a, F> {
    store: &'a Store,
    questions: Questions,
    losers: Losers,
    /// The greatest height at which a transaction is mined.
    highest: u32,
    found: &'a mut F,
}

impl<F: FnMut(Violation)> Verifier<'_, F> {
    /// Looks at one record; what others have to say is asked as soon as there are enough questions.
    async fn page(&mut self, page: &Page) -> Result<(), EngineError> {
        if let Some(since) = page.creating_at.filter(|_| page.number == 0) {
            (self.found)(Violation::Creating { txid: page.txid, page: page.number, since });
        }
        let Some(slots) = page.utxos.as_deref() else { return Ok(()) };
        own_counts(page, slots, self.found);
        let first = page.number.saturating_mul(self.store.settings.utxo_batch_size);
        for (slot, offset) in slots.iter().zip(0..) {
            let Some(spender) = slot.spender().filter(|_| !page.pruned_spenders.contains(&offset)) else { continue };
            let outpoint = Outpoint { txid: page.txid, vout: first.saturating_add(offset) };
            self.questions.slot(outpoint, spender.into());
            self.ask_if_many().await?;
        }
        match page.master.as_deref() {
            Some(bins) => self.master(page, bins).await,
            None => {
                self.questions.page(page.txid, page.number, page.creating_at);
                Ok(())
            }
        }
    }

    async fn master(&mut self, master: &Page, bins: &Master) -> Result<(), EngineError> {
        let txid = master.txid;
        self.highest = bins.mined.iter().map(|mined| mined.height).fold(self.highest, u32::max);
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
        self.slots(master, bins, parsed.as_ref()).await?;
        let transaction = parsed.as_ref().and_then(ParsedBody::transaction);
        let Some(transaction) = transaction.filter(|transaction| !transaction.is_coinbase()) else { return Ok(()) };
        if master.state() != TxState::Live {
            self.losers.add(self.store, master, transaction);
            return self.ask_if_many().await;
        }
        for (input, number) in transaction.inputs().zip(0..) {
            let place = self.store.place(input.outpoint);
            self.questions.input(Holder { txid, input: number }, input.outpoint, place);
            self.ask_if_many().await?;
        }
        Ok(())
    }

    /// The slots of all pages against the body and against what the master says of them.
    async fn slots(&mut self, master: &Page, bins: &Master, body: Option<&ParsedBody<'_>>) -> Result<(), EngineError> {
        let txid = master.txid;
        let batch_size = self.store.settings.utxo_batch_size;
        let mut outputs = body.into_iter().flat_map(ParsedBody::outputs);
        let mut counted = own_slots(master, 0, &mut outputs, body.is_some(), self.found);
        let end = bins.total_extra_recs.saturating_add(1);
        let mut next = 1;
        while next < end {
            let to = end.min(next.saturating_add(PAGES_AT_A_TIME));
            for (page, number) in self.store.pages(txid, next, to).await?.into_iter().zip(next..) {
                match page {
                    Some(page) if page.utxos.is_some() => {
                        let first = number.saturating_mul(batch_size);
                        counted += own_slots(&page, first, &mut outputs, body.is_some(), self.found);
                        against_master(&page, master, bins, self.found);
                    }
                    // A tombstone: the pruner has begun, and will come back for the master. A stub of a page: damage.
                    Some(page) if page.pruned.is_some() => return Ok(()),
                    _ => {
                        let missing = slots_of_page(master, number, batch_size);
                        outputs.by_ref().take(missing as usize).for_each(drop);
                        counted += u64::from(missing);
                        (self.found)(Violation::MissingPage { txid, page: number });
                    }
                }
            }
            next = to;
        }
        check_count(master, "totalUtxos", u64::from(bins.total_utxos), counted, self.found);
        let beyond = bins.spent_pages.iter().filter(|page| **page == 0 || **page >= end);
        beyond.for_each(|page| (self.found)(Violation::SpentPages { txid, page: *page, listed: true }));
        Ok(())
    }

    async fn ask_if_many(&mut self) -> Result<(), EngineError> {
        if self.questions.are_many() {
            self.questions.ask(self.store, self.found).await?;
        }
        if self.losers.are_many() { self.losers.ask(self.store).await } else { Ok(()) }
    }
}

/// The counts of a page against its slots.
fn own_counts(page: &Page, slots: &[Slot], found: &mut impl FnMut(Violation)) {
    let spent = slots.iter().filter(|slot| slot.spender().is_some()).count() as u64;
    // A reassignment counts as one more, so that its page is never all-spent.
    let used = (slots.iter().filter(|slot| **slot != Slot::Nil).count() + page.reassignments.len()) as u64;
    check_count(page, "spentUtxos", u64::from(page.spent_utxos), spent, found);
    check_count(page, "recordUtxos", u64::from(page.record_utxos), used, found);
}

fn check_count(page: &Page, bin: &'static str, stored: u64, counted: u64, found: &mut impl FnMut(Violation)) {
    if stored != counted {
        found(Violation::Count { txid: page.txid, page: page.number, bin, stored, counted });
    }
}

/// The slots of a page against its stored outputs; how many there are.
fn own_slots<'a>(
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

/// Another page against what its master says of it.
fn against_master(page: &Page, master: &Page, bins: &Master, found: &mut impl FnMut(Violation)) {
    let (txid, number) = (page.txid, page.number);
    // Until the verdict it is `creating` that bars the other pages of who is contested.
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
    // Who spent the last slot may have said so behind the sequencer that freed it again: then the set is early, and the pruner, who
    // counts for himself, waits.
    let may_be_early = listed && !page.contested.is_empty();
    if listed != page.all_spent() && !may_be_early {
        found(Violation::SpentPages { txid, page: number, listed });
    }
}

/// Whether a spender may not hold slots: it is conflicting by verdict.
fn lost(spender: &Page) -> bool {
    spender.conflicting && matches!(spender.verdict(), Some(Verdict::Conflicting(_)))
}

#[cfg(test)]
#[path = "verify_tests.rs"]
mod tests;
