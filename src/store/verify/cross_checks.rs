//! Checks of one record against another record, gathered into batches and run with one read per batch.

use std::collections::BTreeMap;

use crate::{
    engine::EngineError,
    record::{Key, Page, Slot, SpendingData, TxState},
    store::{
        StateStore,
        body::{BodyError, ParsedBody},
        into_page,
    },
    tx::{Outpoint, Txid},
};

use super::{Violation, is_conflicting_by_verdict};

/// Number of records read at once. A page can have a megabyte.
const MAX_RECORDS: usize = 256;
/// Greatest number of gathered checks: many checks may be about one record.
const MAX_CHECKS: usize = 100_000;

/// Gathered checks, by the record that each is checked against.
#[derive(Default)]
pub(super) struct CrossChecks {
    by_key: BTreeMap<Key, Vec<CrossCheck>>,
    count: usize,
}

enum CrossCheck {
    /// Against a page: the slot that an input of a live transaction spends must name this input.
    Input { spender: SpendingData, outpoint: Outpoint, offset: u32 },
    /// Against a master: the input that a slot names must spend the slot.
    Slot { outpoint: Outpoint, input: u32 },
    /// Against a master: the page (number, `creatingAt`) must be one of the transaction's pages.
    Page(u32, Option<u64>),
}

impl CrossChecks {
    pub(super) fn add_input(&mut self, spender: SpendingData, outpoint: Outpoint, (page, offset): (u32, u32)) {
        self.add(Key::Page(outpoint.txid, page), CrossCheck::Input { spender, outpoint, offset });
    }

    pub(super) fn add_slot(&mut self, outpoint: Outpoint, spender: SpendingData) {
        self.add(Key::master(spender.txid), CrossCheck::Slot { outpoint, input: spender.input });
    }

    pub(super) fn add_page(&mut self, txid: Txid, number: u32, creating_at: Option<u64>) {
        self.add(Key::master(txid), CrossCheck::Page(number, creating_at));
    }

    pub(super) fn is_full(&self) -> bool {
        self.by_key.len() >= MAX_RECORDS || self.count >= MAX_CHECKS
    }

    fn add(&mut self, key: Key, check: CrossCheck) {
        self.by_key.entry(key).or_default().push(check);
        self.count += 1;
    }

    /// Runs all gathered checks and empties the batch.
    pub(super) async fn run(
        &mut self,
        store: &StateStore,
        found: &mut impl FnMut(Violation),
    ) -> Result<(), EngineError> {
        self.count = 0;
        let by_key = std::mem::take(&mut self.by_key);
        let records = store.read(by_key.keys().copied().collect()).await?;
        for ((key, checks), record) in by_key.into_iter().zip(records) {
            let Key::Page(txid, _) = key else { continue };
            let page = into_page(record);
            let inputs = read_inputs(store, txid, page.as_deref(), &checks).await;
            for check in checks {
                match check {
                    CrossCheck::Input { spender, outpoint, offset } => {
                        check_input(page.as_deref(), spender, outpoint, offset).into_iter().for_each(&mut *found);
                    }
                    CrossCheck::Slot { outpoint, input } => {
                        let spender = SpendingData { txid, input };
                        check_slot(page.as_deref(), &inputs, outpoint, spender).into_iter().for_each(&mut *found);
                    }
                    CrossCheck::Page(number, creating_at) => {
                        if !has_page(page.as_deref(), number) {
                            found(Violation::OrphanedPage { txid, page: number });
                        }
                        // The master of a contested transaction bars the page.
                        let barred = page.as_ref().is_some_and(|master| master.conflicting);
                        if let Some(since) = creating_at.filter(|_| !barred) {
                            found(Violation::Creating { txid, page: number, since });
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

/// Outpoints that a transaction spends.
enum KnownInputs {
    /// The outpoint of each input.
    Known(Vec<Outpoint>),
    /// The body is missing, damaged or not in this store: a violation that is reported by itself.
    Unknown,
}

async fn read_inputs(store: &StateStore, txid: Txid, master: Option<&Page>, checks: &[CrossCheck]) -> KnownInputs {
    let is_needed = checks.iter().any(|check| matches!(check, CrossCheck::Slot { .. }));
    let Some(master) = master.filter(|_| is_needed) else { return KnownInputs::Unknown };
    let known = async {
        let body = store.body(master).await?;
        let body = ParsedBody::parse(txid, &body)?;
        Ok::<_, BodyError>(
            body.transaction().map(|transaction| transaction.inputs().map(|input| input.outpoint).collect()),
        )
    };
    match known.await {
        Ok(outpoints) => KnownInputs::Known(outpoints.unwrap_or_default()),
        Err(_) => KnownInputs::Unknown,
    }
}

fn check_input(page: Option<&Page>, spender: SpendingData, outpoint: Outpoint, offset: u32) -> Option<Violation> {
    let page = page?;
    let SpendingData { txid, input } = spender;
    // A stub or a tombstone has no slots to check.
    let slots = page.utxos.as_deref()?;
    if page.conflicting {
        return Some(Violation::ConflictingParent { txid, parent: page.txid });
    }
    match slots.get(offset as usize) {
        None | Some(Slot::Nil) => Some(Violation::NoSuchSlot { txid, input, outpoint }),
        Some(slot) => {
            let holder = slot.spender();
            (holder != Some(spender)).then_some(Violation::InputNotTaken { txid, input, outpoint, holder })
        }
    }
}

fn check_slot(
    master: Option<&Page>,
    inputs: &KnownInputs,
    outpoint: Outpoint,
    spender: SpendingData,
) -> Option<Violation> {
    let Some(master) = master else { return Some(Violation::SpenderMissing { outpoint, spender }) };
    if is_conflicting_by_verdict(master) {
        return Some(Violation::ConflictingHoldsSlot { outpoint, spender });
    }
    if matches!(master.state(), TxState::Stub(_) | TxState::Pruned(_)) {
        return None;
    }
    match inputs {
        KnownInputs::Known(outpoints) if outpoints.get(spender.input as usize) != Some(&outpoint) => {
            Some(Violation::SpenderNeverNamedIt { outpoint, spender })
        }
        KnownInputs::Known(_) | KnownInputs::Unknown => None,
    }
}

/// Returns whether a master allows a page of this number. A stub may still be filled; the pages of a tombstone were
/// pruned first.
fn has_page(master: Option<&Page>, number: u32) -> bool {
    let Some(master) = master else { return false };
    match master.state() {
        TxState::Stub(_) => true,
        TxState::Pruned(_) => false,
        _ => master.master.as_ref().is_some_and(|bins| number <= bins.total_extra_recs),
    }
}
