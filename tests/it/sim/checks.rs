//! What must hold of every single change of a record. Pure.

use std::fmt;

use utxo_store::{
    engine::Row,
    record::{Body, Operation, Outcome, Page, Record, Sequenced, Slot, SpendingData, Stamp, TxState, Verdict},
    tx::{Outpoint, Transaction, Txid},
};

/// A slot that no longer names who it named.
#[derive(Debug)]
pub struct Change {
    pub offset: usize,
    pub from: SpendingData,
    pub to: Option<SpendingData>,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let to = self.to.map_or("nobody".to_owned(), |to| to.txid.to_string());
        write!(f, "slot {} went from {} to {to}", self.offset, self.from.txid)
    }
}

/// What breaks a rule, if anything does.
pub fn row(row: &Row, before: Option<&Record>, outcome: &Outcome, after: Option<&Record>) -> Option<String> {
    if matches!(outcome, Outcome::Rejected(_)) {
        return (before != after).then(|| "refused, and yet the record changed".to_owned());
    }
    let (before, after) = match (before, after) {
        (Some(Record::Page(before)), Some(Record::Page(after))) => (Some(&**before), &**after),
        (None, Some(Record::Page(after))) => (None, &**after),
        (Some(Record::Page(_)), _) => return Some("the page is gone".to_owned()),
        _ => return None,
    };
    let found = [
        stamps(row, before, after),
        counts(after),
        slots(row, before, after),
        marks(row, after),
        tombstones(row, before, after),
        fast_path(row, before, after),
    ];
    found.into_iter().flatten().next()
}

fn stamp_of(operation: &Operation) -> Option<Stamp> {
    match operation {
        Operation::Sequenced(stamp, _) => Some(*stamp),
        _ => None,
    }
}

/// Stamps never go back, and only the sequencer writes them.
fn stamps(row: &Row, before: Option<&Page>, after: &Page) -> Option<String> {
    let there = before.and_then(|page| page.chain_pos);
    if after.chain_pos < there {
        return Some(format!("the stamp went back from {there:?} to {:?}", after.chain_pos));
    }
    match stamp_of(&row.operation) {
        Some(stamp) if after.chain_pos != Some(stamp) => Some(format!("the stamp {stamp:?} was not written")),
        None if after.chain_pos != there && before.is_some() => Some("the fast path wrote a stamp".to_owned()),
        _ => None,
    }
}

/// Nothing is counted twice.
fn counts(after: &Page) -> Option<String> {
    let slots = after.utxos.as_ref()?;
    let spent = slots.iter().filter(|slot| matches!(slot, Slot::Spent(..))).count();
    (spent != after.spent_utxos as usize).then(|| format!("{spent} slots are spent, {} are counted", after.spent_utxos))
}

/// Slots that name another, or nobody, now.
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

fn slots(row: &Row, before: Option<&Page>, after: &Page) -> Option<String> {
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
        // Whoever was live when they were freed is complained of with what surrounds the row. Whose slots may go at all is looked at there, too.
        Operation::Sequenced(_, Sequenced::Settle(_) | Sequenced::Respend(_) | Sequenced::Prune { .. }) => None,
        _ => Some(change.to_string()),
    }
}

/// Whatever slot the sequencer has touched has a history from then on.
fn marks(row: &Row, after: &Page) -> Option<String> {
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

/// What was forgotten stays forgotten, but for what was conflicting: a block brings that back.
fn tombstones(row: &Row, before: Option<&Page>, after: &Page) -> Option<String> {
    let before = before.filter(|page| page.pruned.is_some() && after.pruned.is_none())?;
    let revived = matches!(&row.operation, Operation::Sequenced(_, Sequenced::Revive));
    (!revived || !before.conflicting).then(|| "what was pruned is there again".to_owned())
}

/// The fast path only adds.
fn fast_path(row: &Row, before: Option<&Page>, after: &Page) -> Option<String> {
    let before = before.filter(|_| stamp_of(&row.operation).is_none())?;
    let taken = |page: &Page| page.utxos.iter().flatten().filter(|slot| slot.spender().is_some()).count();
    if taken(before) < taken(after) && before.utxos.is_some() && before.state() != TxState::Live {
        return Some(format!("a slot was taken of a transaction that is {:?}", before.state()));
    }
    if taken(before) < taken(after) && before.locked {
        return Some("a slot was taken of a locked transaction".to_owned());
    }
    if before.state() != after.state() {
        let adds = matches!(
            (before.state(), &row.operation),
            (TxState::Creating, Operation::ClearCreating) | (TxState::Stub(_), Operation::CreateContested(_))
        ) || takes_the_place_of_its_stub(before, after, &row.operation)
            || becomes_one_of_several(before, after, &row.operation);
        if !adds {
            return Some(format!("the fast path made {:?} of {:?}", after.state(), before.state()));
        }
    }
    let mined = |page: &Page| page.master.as_ref().map(|master| (master.mined.clone(), master.verdict));
    if before.utxos.is_some() && (mined(before) != mined(after) || before.locked != after.locked) {
        return Some("the fast path changed what only the sequencer changes".to_owned());
    }
    (!before.contested.is_subset(&after.contested)).then(|| "a mark is gone".to_owned())
}

/// A page besides the master that only had marks has its slots now; its master bars it.
fn becomes_one_of_several(before: &Page, after: &Page, operation: &Operation) -> bool {
    let created = matches!(operation, Operation::Create(_)) && after.master.is_none();
    created && matches!(before.state(), TxState::Stub(_)) && after.state() == TxState::Creating
}

/// Whether a page of several can be spent now, and could not before.
pub fn was_opened(before: Option<&Page>, after: &Page) -> bool {
    let is_open = |page: &Page| page.state() == TxState::Live;
    is_open(after) && !before.is_some_and(is_open)
}

/// A partial transaction spends nothing, so it is live where its stub was; its contest is due.
fn takes_the_place_of_its_stub(before: &Page, after: &Page, operation: &Operation) -> bool {
    let partial = matches!(operation, Operation::Create(_)) && after.is_partial();
    // Which it is at once, or once all its pages are cleared.
    partial && before.state() == TxState::Stub(Verdict::Pending) && after.verdict() == Some(Verdict::Pending)
}

/// What a stored transaction spends, by which input.
pub fn inputs_of(body: &Body) -> Vec<(Outpoint, u32)> {
    let Body::Transaction(body) = body else { return Vec::new() };
    match Transaction::parse(body) {
        Ok(tx) if !tx.is_coinbase() => tx.inputs().zip(0..).map(|(input, index)| (input.outpoint, index)).collect(),
        _ => Vec::new(),
    }
}

/// Whether that slot of the page names that input of that transaction.
pub fn names(parent: Option<&Page>, offset: u32, txid: Txid, input: u32) -> bool {
    let Some(page) = parent else { return false };
    let slot = page.utxos.as_ref().and_then(|slots| slots.get(offset as usize));
    page.pruned.is_some() || slot.and_then(Slot::spender) == Some(SpendingData { txid, input })
}

/// The name of an operation, for people.
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
        Operation::Create(_) => "Create",
        Operation::CreateContested(_) => "CreateContested",
        Operation::ClearCreating => "ClearCreating",
        _ => "Other",
    };
    debug.to_owned()
}
