//! Rules for every single change of a record. Pure.

use std::fmt;

use utxo_store::{
    engine::Row,
    record::{Body, Operation, Outcome, Page, Record, Sequenced, Slot, SpendingData, Stamp, TxState, Verdict},
    tx::{Outpoint, Transaction, Txid},
};

/// A slot whose spender has changed.
#[derive(Debug)]
pub struct Change {
    pub offset: usize,
    pub from: SpendingData,
    pub to: Option<SpendingData>,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let to = self.to.map_or("no spender".to_owned(), |to| to.txid.to_string());
        write!(f, "slot {} changed its spender from {} to {to}", self.offset, self.from.txid)
    }
}

/// Returns the first rule that the change of one record breaks.
pub fn check_row(row: &Row, before: Option<&Record>, outcome: &Outcome, after: Option<&Record>) -> Option<String> {
    if matches!(outcome, Outcome::Rejected(_)) {
        return (before != after).then(|| "the row was refused, but the record changed".to_owned());
    }
    let (before, after) = match (before, after) {
        (Some(Record::Page(before)), Some(Record::Page(after))) => (Some(&**before), &**after),
        (None, Some(Record::Page(after))) => (None, &**after),
        (Some(Record::Page(_)), _) => return Some("the page was removed".to_owned()),
        _ => return None,
    };
    let found = [
        check_stamps(row, before, after),
        check_counts(after),
        check_slots(row, before, after),
        check_marks(row, after),
        check_tombstones(row, before, after),
        check_fast_path(row, before, after),
    ];
    found.into_iter().flatten().next()
}

fn stamp_of(operation: &Operation) -> Option<Stamp> {
    match operation {
        Operation::Sequenced(stamp, _) => Some(*stamp),
        _ => None,
    }
}

/// A stamp never decreases, and only the sequencer writes stamps.
fn check_stamps(row: &Row, before: Option<&Page>, after: &Page) -> Option<String> {
    let there = before.and_then(|page| page.chain_pos);
    if after.chain_pos < there {
        return Some(format!("the stamp decreased from {there:?} to {:?}", after.chain_pos));
    }
    match stamp_of(&row.operation) {
        Some(stamp) if after.chain_pos != Some(stamp) => Some(format!("the stamp {stamp:?} was not written")),
        None if after.chain_pos != there && before.is_some() => Some("the fast path wrote a stamp".to_owned()),
        _ => None,
    }
}

/// The counter of spent slots equals the spent slots.
fn check_counts(after: &Page) -> Option<String> {
    let slots = after.utxos.as_ref()?;
    let spent = slots.iter().filter(|slot| matches!(slot, Slot::Spent(..))).count();
    (spent != after.spent_utxos as usize)
        .then(|| format!("{spent} slots are spent, but the counter says {}", after.spent_utxos))
}

/// Returns the slots that name another spender, or none, after the change.
pub fn changed_holders(before: Option<&Page>, after: &Page) -> Vec<Change> {
    let Some(slots) = before.and_then(|page| page.utxos.as_ref()) else { return Vec::new() };
    let now = |offset: usize| after.utxos.as_ref().and_then(|slots| slots.get(offset)?.spender());
    slots
        .iter()
        .enumerate()
        .filter_map(|(offset, slot)| Some(Change { offset, from: slot.spender()?, to: now(offset) }))
        .filter(|change| change.to != Some(change.from))
        .collect()
}

fn check_slots(row: &Row, before: Option<&Page>, after: &Page) -> Option<String> {
    let hashes = |page: &Page| page.utxos.as_ref().map(|slots| slots.iter().map(Slot::hash).collect::<Vec<_>>());
    let renewed =
        matches!(&row.operation, Operation::Sequenced(_, Sequenced::Reassign { .. } | Sequenced::Prune { .. }));
    if let Some(before) = before.filter(|page| page.utxos.is_some() && !renewed)
        && hashes(before) != hashes(after)
    {
        return Some("a slot's hash changed".to_owned());
    }
    let change = changed_holders(before, after).into_iter().next()?;
    match &row.operation {
        // `CheckedEngine` checks these with the records around the row: a live spender must not lose a slot.
        Operation::Sequenced(_, Sequenced::Settle(_) | Sequenced::Respend(_) | Sequenced::Prune { .. }) => None,
        _ => Some(change.to_string()),
    }
}

/// A slot that the sequencer has changed is marked from then on.
fn check_marks(row: &Row, after: &Page) -> Option<String> {
    let touched: Vec<u32> = match &row.operation {
        Operation::Sequenced(_, Sequenced::Settle(held)) => held.iter().map(|held| held.offset).collect(),
        Operation::Sequenced(_, Sequenced::Respend(respend)) => {
            respend.slots.iter().map(|moved| moved.slot.offset).collect()
        }
        _ => return None,
    };
    let is_there = |offset: &u32| match &after.utxos {
        Some(slots) => slots.get(*offset as usize).is_some_and(|slot| *slot != Slot::Nil),
        None => after.pruned.is_none(),
    };
    let bare = touched.into_iter().find(|offset| is_there(offset) && !after.contested.contains(offset))?;
    Some(format!("slot {bare} is not marked"))
}

/// A pruned page stays pruned, unless a block revives a conflicting one.
fn check_tombstones(row: &Row, before: Option<&Page>, after: &Page) -> Option<String> {
    let before = before.filter(|page| page.pruned.is_some() && after.pruned.is_none())?;
    let revived = matches!(&row.operation, Operation::Sequenced(_, Sequenced::Revive));
    (!revived || !before.conflicting).then(|| "a pruned page exists again".to_owned())
}

/// The fast path only adds: slots, records, marks; other changes belong to the sequencer.
fn check_fast_path(row: &Row, before: Option<&Page>, after: &Page) -> Option<String> {
    let before = before.filter(|_| stamp_of(&row.operation).is_none())?;
    let taken = |page: &Page| page.utxos.iter().flatten().filter(|slot| slot.spender().is_some()).count();
    if taken(before) < taken(after) && before.utxos.is_some() && before.state() != TxState::Live {
        return Some(format!("the fast path spent a slot of a transaction that is {:?}", before.state()));
    }
    if taken(before) < taken(after) && before.locked {
        return Some("the fast path spent a slot of a locked transaction".to_owned());
    }
    if before.state() != after.state() {
        let adds = matches!(
            (before.state(), &row.operation),
            (TxState::Creating, Operation::ClearCreating) | (TxState::Stub(_), Operation::CreateContested(_))
        ) || replaces_its_stub(before, after, &row.operation)
            || becomes_page_of_paged(before, after, &row.operation);
        if !adds {
            return Some(format!("the fast path made {:?} of {:?}", after.state(), before.state()));
        }
    }
    let mined = |page: &Page| page.master.as_ref().map(|master| (master.mined.clone(), master.verdict));
    if before.utxos.is_some() && (mined(before) != mined(after) || before.locked != after.locked) {
        return Some("the fast path changed a field that only the sequencer may change".to_owned());
    }
    (!before.contested.is_subset(&after.contested)).then(|| "the fast path removed a mark".to_owned())
}

/// Whether a page other than the master, which had only marks, has its slots now; its master bars spends.
fn becomes_page_of_paged(before: &Page, after: &Page, operation: &Operation) -> bool {
    let created = matches!(operation, Operation::Create(_)) && after.master.is_none();
    created && matches!(before.state(), TxState::Stub(_)) && after.state() == TxState::Creating
}

/// Whether the outputs of a page have become spendable by this change.
pub fn was_opened(before: Option<&Page>, after: &Page) -> bool {
    let is_open = |page: &Page| page.state() == TxState::Live;
    is_open(after) && !before.is_some_and(is_open)
}

/// Whether a partial transaction has replaced its stub: the transaction is live, as it spends nothing, and its contest
/// is due.
fn replaces_its_stub(before: &Page, after: &Page, operation: &Operation) -> bool {
    let partial = matches!(operation, Operation::Create(_)) && after.is_partial();
    // Live at once, or as soon as all pages are cleared.
    partial && before.state() == TxState::Stub(Verdict::Pending) && after.verdict() == Some(Verdict::Pending)
}

/// Returns the outpoints that a stored transaction spends, each with its input index.
pub fn inputs_of(body: &Body) -> Vec<(Outpoint, u32)> {
    let Body::Transaction(body) = body else { return Vec::new() };
    match Transaction::parse(body) {
        Ok(tx) if !tx.is_coinbase() => tx.inputs().zip(0..).map(|(input, index)| (input.outpoint, index)).collect(),
        _ => Vec::new(),
    }
}

/// Whether the slot of the page names the input of the transaction; a pruned page counts as naming it.
pub fn names(parent: Option<&Page>, offset: u32, txid: Txid, input: u32) -> bool {
    let Some(page) = parent else { return false };
    let slot = page.utxos.as_ref().and_then(|slots| slots.get(offset as usize));
    page.pruned.is_some() || slot.and_then(Slot::spender) == Some(SpendingData { txid, input })
}

/// Short name of an operation for messages.
pub fn name_of(operation: &Operation) -> String {
    let debug = match operation {
        Operation::Spend(spend) => return format!("Spend by {} {:?}", spend.spender, spend.marks),
        Operation::Sequenced(stamp, Sequenced::Respend(respend)) => {
            return format!("Respend@{}.{} to {}", stamp.offset, stamp.phase as u8, respend.to);
        }
        Operation::Sequenced(stamp, operation) => {
            let debug = format!("{operation:?}");
            let name = debug.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
            return format!("{name}@{}.{}", stamp.offset, stamp.phase as u8);
        }
        Operation::SequencedAll(operations) => {
            let single =
                |(stamp, operation): &(Stamp, Sequenced)| name_of(&Operation::Sequenced(*stamp, operation.clone()));
            return operations.iter().map(single).collect::<Vec<_>>().join(" + ");
        }
        Operation::Create(_) => "Create",
        Operation::CreateContested(_) => "CreateContested",
        Operation::ClearCreating => "ClearCreating",
        _ => "Other",
    };
    debug.to_owned()
}
