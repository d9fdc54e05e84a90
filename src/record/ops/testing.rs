//! Records and operations that the tests share. Output `n` of every transaction here holds 100 + n satoshis under the
//! script `51 n`, and its slot commits to `hash(n)`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;

use super::{Effect, apply};
use crate::record::*;
use crate::tx::{Txid, UtxoHash};

pub(super) const RULES: Rules = Rules::main(288);
/// Txid of the transaction in most tests.
pub(super) const TXID: Txid = Txid([7; 32]);
pub(super) const MASTER: Key = Key::Page(TXID, 0);

pub(super) fn txid(n: u8) -> Txid {
    Txid([n; 32])
}

pub(super) fn hash(n: u32) -> UtxoHash {
    UtxoHash([n as u8; 32])
}

pub(super) fn holder(n: u8, input: u32) -> SpendingData {
    SpendingData { txid: txid(n), input }
}

pub(super) fn stamp(offset: u64) -> Stamp {
    Stamp { offset, phase: Phase::Apply }
}

pub(super) fn output(n: u32) -> StoredOutput {
    StoredOutput { satoshis: 100 + u64::from(n), script: Bytes::from(vec![0x51, n as u8]) }
}

/// Returns a transaction in extended format with this many outputs.
pub(super) fn transaction(outputs: u8) -> Bytes {
    let mut bytes = vec![1, 0, 0, 0, 0, 0, 0, 0, 0, 0xef, 1];
    bytes.extend([9; 32]);
    bytes.extend([0; 5]);
    bytes.extend([0xff; 4]);
    bytes.extend(1_000_000_u64.to_le_bytes());
    bytes.push(0);
    bytes.push(outputs);
    for n in 0..outputs {
        bytes.extend((100 + u64::from(n)).to_le_bytes());
        bytes.extend([2, 0x51, n]);
    }
    bytes.extend([0; 4]);
    bytes.into()
}

/// Returns a master without slots and with this body.
pub(super) fn page_of(body: Option<Body>) -> Page {
    let mut page = Page::stub(TXID, Verdict::Pending);
    page.conflicting = false;
    page.utxos = Some(Vec::new());
    if let Some(master) = &mut page.master {
        master.verdict = None;
        master.body = body;
        master.unmined_since = Some(100);
    }
    page
}

/// Returns a live master with these slots.
pub(super) fn page_with(slots: Vec<Slot>) -> Page {
    let mut page = page_of(Some(Body::Transaction(transaction(slots.len() as u8))));
    page.spent_utxos = slots.iter().filter(|slot| slot.spender().is_some()).count() as u32;
    page.record_utxos = slots.iter().filter(|slot| **slot != Slot::Nil).count() as u32;
    if let Some(master) = &mut page.master {
        master.total_utxos = slots.len() as u32;
    }
    page.utxos = Some(slots);
    page
}

/// Returns a live master with this many free slots.
pub(super) fn live(slots: u32) -> Page {
    page_with((0..slots).map(|n| Slot::Unspent(hash(n))).collect())
}

/// Returns page 1 of a transaction with this many free slots.
pub(super) fn second_page(slots: u32) -> Page {
    Page { number: 1, master: None, ..live(slots) }
}

/// Returns a contested transaction with its body.
pub(super) fn contested(slots: u32, verdict: Verdict) -> Page {
    let mut page = Page { conflicting: true, ..live(slots) };
    master(&mut page).verdict = Some(verdict);
    page
}

/// Returns a transaction in creation: not all of its pages are known to be stored.
pub(super) fn creating(slots: u32) -> Page {
    Page { creating_at: Some(5), ..live(slots) }
}

pub(super) fn stub(verdict: Verdict) -> Page {
    Page::stub(TXID, verdict)
}

pub(super) fn tombstone(height: u32, verdict: Option<Verdict>) -> Page {
    let conflicting = matches!(verdict, Some(Verdict::Conflicting(_)));
    let mut page = Page { pruned: Some(height), conflicting, size_in_bytes: 250, ..stub(Verdict::Pending) };
    master(&mut page).verdict = verdict;
    page
}

/// Returns the triple of a block at this height, whose block id is the height.
pub(super) fn mined(height: u32) -> MinedIn {
    MinedIn { block_id: height, height, subtree: 0 }
}

pub(super) fn master(page: &mut Page) -> &mut Master {
    page.master.as_mut().unwrap()
}

pub(super) fn record(page: Page) -> Option<Record> {
    Some(Record::Page(Arc::new(page)))
}

pub(super) fn page(record: &Option<Record>) -> &Page {
    record.as_ref().and_then(Record::page).unwrap()
}

/// Returns a true claim on output `n` by input `n`.
pub(super) fn claim(n: u32) -> SpendSlot {
    let output = output(n);
    SpendSlot { offset: n, input: n, utxo_hash: hash(n), satoshis: output.satoshis, script: output.script }
}

pub(super) fn spend(spender: u8, slots: &[u32]) -> Operation {
    spend_at(spender, slots, 200, Marks::Respect)
}

pub(super) fn spend_at(spender: u8, slots: &[u32], height: u32, marks: Marks) -> Operation {
    let slots: Vec<_> = slots.iter().map(|n| claim(*n)).collect();
    Operation::Spend(Spend { spender: txid(spender), height, slots: slots.into(), marks, signals: true })
}

pub(super) fn held(offset: u32, by: u8) -> HeldSlot {
    HeldSlot { offset, holder: holder(by, offset) }
}

pub(super) fn sequenced(at: u64, operation: Sequenced) -> Operation {
    Operation::Sequenced(stamp(at), operation)
}

pub(super) fn on_master(record: &mut Option<Record>, operation: &Operation) -> Effect {
    on(&MASTER, record, operation)
}

/// Applies an operation and checks the properties of every operation: a repeat and a refusal change nothing, counters
/// equal slots.
pub(super) fn on(key: &Key, record: &mut Option<Record>, operation: &Operation) -> Effect {
    let before = record.clone();
    let effect = apply(&RULES, key, record, operation);
    assert_eq!(effect.changed, before != *record, "`changed` of {operation:?} on {before:?}: {effect:?}");
    match &effect.outcome {
        Outcome::Applied(_) => assert!(effect.changed, "{operation:?} on {before:?}: applied without a change"),
        Outcome::Rejected(_) => assert!(!effect.changed),
        Outcome::AlreadyApplied(_) => {}
    }
    check_counts(record);
    let mut again = record.clone();
    let repeated = apply(&RULES, key, &mut again, operation);
    assert_eq!(again, *record, "a repeat of {operation:?} on {before:?} changed the record");
    assert!(!repeated.changed);
    match (&effect.outcome, &repeated.outcome) {
        (Outcome::Rejected(first), Outcome::Rejected(second)) => assert_eq!(first, second),
        (Outcome::Applied(_) | Outcome::AlreadyApplied(_), Outcome::AlreadyApplied(_)) => {}
        // One page does not show whether the other pages exist: a repeated create gets the state `Creating`.
        (Outcome::Applied(_), Outcome::Rejected(Rejection::Exists(TxState::Creating)))
            if matches!(operation, Operation::Create(_)) => {}
        (first, second) => panic!("{operation:?} on {before:?}: first {first:?}, then {second:?}"),
    }
    effect
}

/// Checks that counters equal slots, and that marks name existing slots.
pub(super) fn check_counts(record: &Option<Record>) {
    let Some(Record::Page(page)) = record else { return };
    let slots = page.utxos.as_deref().unwrap_or(&[]);
    let spent = slots.iter().filter(|slot| slot.spender().is_some()).count();
    let not_nil = slots.iter().filter(|slot| **slot != Slot::Nil).count();
    assert_eq!(page.spent_utxos as usize, spent, "spentUtxos");
    assert_eq!(page.record_utxos as usize, not_nil + page.reassignments.len(), "recordUtxos");
    for offset in &page.pruned_spenders {
        assert!(slots[*offset as usize].spender().is_some(), "a free slot whose spender was pruned");
    }
    // A stub has no slots yet; its fill drops the marks of slots that do not exist.
    for offset in page.contested.iter().filter(|_| page.utxos.is_some()) {
        assert_ne!(slots[*offset as usize], Slot::Nil, "a mark on a slot that does not exist");
    }
    if page.state() == TxState::Live {
        assert!(!page.conflicting && page.creating_at.is_none() && page.pruned.is_none());
    }
    if page.utxos.is_none() {
        let maps: (&BTreeSet<u32>, &BTreeMap<u32, u32>) = (&page.pruned_spenders, &page.utxo_spendable_in);
        assert!(maps.0.is_empty() && maps.1.is_empty() && page.creating_at.is_none());
    }
}

pub(super) fn applied(reply: Reply) -> Outcome {
    Outcome::Applied(reply)
}

pub(super) fn already(reply: Reply) -> Outcome {
    Outcome::AlreadyApplied(reply)
}

/// Returns the reply to a change of slots that does not change `deleteAtHeight`.
pub(super) fn slots_reply(all_spent: bool) -> Reply {
    Reply::Slots { all_spent, delete_at_height: None }
}

/// Returns the rejection of a refused operation; panics on any other outcome.
pub(super) fn refused(effect: Effect) -> Rejection {
    match effect.outcome {
        Outcome::Rejected(rejection) => rejection,
        outcome => panic!("not refused: {outcome:?}"),
    }
}
