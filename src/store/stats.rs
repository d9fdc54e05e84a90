//! What a store holds, counted.

use std::ops::AddAssign;

use serde::Serialize;

use crate::{
    record::{Page, Slot, TxState},
    tx::Output,
};

use super::body::ParsedBody;

/// Counts over a whole store. But for `seeded`, `spent_outside` and those that say otherwise, they are of *live*
/// transactions that came whole, out of the log; partial parents are counted apart.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct StoreStats {
    /// Block records on the longest chain.
    pub blocks: u64,
    /// Block records that are not on it.
    pub side_blocks: u64,
    /// Live transactions, coinbases included.
    pub transactions: u64,
    /// Coinbases among them.
    pub coinbases: u64,
    /// Their inputs; a coinbase has none.
    pub inputs: u64,
    /// Their outputs.
    pub outputs: u64,
    /// Outputs that got a slot.
    pub slots: u64,
    /// Slots that are spent.
    pub spent_inside: u64,
    /// Slots of partial transactions that are spent.
    pub spent_outside: u64,
    /// Slots that are not spent; frozen and locked ones are among them.
    pub unspent: u64,
    /// What those hold, satoshis.
    pub unspent_satoshis: u128,
    /// Slots that are frozen.
    pub frozen: u64,
    /// Transactions that are locked.
    pub locked: u64,
    /// Transactions that no block of the longest chain lists.
    pub unmined: u64,
    /// Transactions on more than one page.
    pub paged: u64,
    /// Transactions that are not live because they are conflicting, or contested and without a verdict yet.
    pub conflicting: u64,
    /// Transactions that are half created.
    pub creating: u64,
    /// All transactions that were ever contested, whatever became of them; stubs too.
    pub contested: u64,
    /// Contested transactions without a body.
    pub stubs: u64,
    /// Transactions that were pruned and left a tombstone.
    pub tombstones: u64,
    /// Partial transactions.
    pub seeded: SeededStats,
}

/// Counts of partial transactions: parents that came with only some of their outputs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct SeededStats {
    /// How many.
    pub transactions: u64,
    /// Outputs that are known.
    pub outputs: u64,
    /// Outputs that got a slot.
    pub slots: u64,
    /// Slots that are not spent.
    pub unspent: u64,
    /// What those hold, satoshis.
    pub unspent_satoshis: u128,
}

/// The slots of one transaction, counted page by page.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct SlotCounts {
    slots: u64,
    spent: u64,
    frozen: u64,
    unspent_satoshis: u128,
}

impl SlotCounts {
    /// Counts one page. `outputs` are those of its slots, and go on with those of the next page.
    pub(super) fn count<'a>(page: &Page, outputs: &mut dyn Iterator<Item = Option<Output<'a>>>) -> Self {
        let mut counts = SlotCounts::default();
        for (slot, offset) in page.utxos.iter().flatten().zip(0..) {
            // Taken in step with the slots, nil ones too.
            let output = outputs.next().flatten();
            if *slot == Slot::Nil {
                continue;
            }
            counts.slots += 1;
            counts.spent += u64::from(slot.spender().is_some());
            counts.frozen += u64::from(matches!(slot, Slot::Frozen(_)));
            if slot.spender().is_none() {
                let reassigned = page.reassignments.iter().rev().find(|entry| entry.offset == offset);
                let satoshis = match reassigned {
                    Some(entry) => entry.output.satoshis,
                    None => output.map_or(0, |output| output.satoshis),
                };
                counts.unspent_satoshis += u128::from(satoshis);
            }
        }
        counts
    }
}

impl AddAssign for SlotCounts {
    fn add_assign(&mut self, other: Self) {
        self.slots += other.slots;
        self.spent += other.spent;
        self.frozen += other.frozen;
        self.unspent_satoshis += other.unspent_satoshis;
    }
}

impl StoreStats {
    /// Counts one transaction by its master, and its slots if it has any.
    pub(super) fn add(&mut self, master: &Page, body: Option<&ParsedBody<'_>>, slots: SlotCounts) {
        self.contested += u64::from(master.verdict().is_some());
        match (master.state(), body) {
            (TxState::Pruned(_), _) => self.tombstones += 1,
            (TxState::Stub(_), _) => self.stubs += 1,
            (TxState::Conflicting(_), _) => self.conflicting += 1,
            (TxState::Creating, _) => self.creating += 1,
            (TxState::Live, Some(ParsedBody::Outputs(outputs))) => {
                self.spent_outside += slots.spent;
                self.frozen += slots.frozen;
                self.seeded.add(outputs.iter().flatten().count() as u64, slots);
            }
            (TxState::Live, body) => self.add_live(master, body, slots),
        }
    }

    fn add_live(&mut self, page: &Page, body: Option<&ParsedBody<'_>>, slots: SlotCounts) {
        self.transactions += 1;
        self.coinbases += u64::from(page.is_coinbase);
        if let Some(transaction) = body.and_then(ParsedBody::transaction) {
            self.inputs += if transaction.is_coinbase() { 0 } else { transaction.input_count() as u64 };
        }
        self.slots += slots.slots;
        self.spent_inside += slots.spent;
        self.unspent += slots.slots - slots.spent;
        self.unspent_satoshis += slots.unspent_satoshis;
        self.frozen += slots.frozen;
        self.locked += u64::from(page.locked);
        if let Some(master) = &page.master {
            self.outputs += u64::from(master.total_utxos);
            self.unmined += u64::from(master.unmined_since.is_some());
            self.paged += u64::from(master.total_extra_recs > 0);
        }
    }
}

impl SeededStats {
    fn add(&mut self, outputs: u64, slots: SlotCounts) {
        self.transactions += 1;
        self.outputs += outputs;
        self.slots += slots.slots;
        self.unspent += slots.slots - slots.spent;
        self.unspent_satoshis += slots.unspent_satoshis;
    }
}
