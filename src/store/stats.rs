//! Counts over the transactions and blocks of a store.

use std::ops::AddAssign;

use serde::Serialize;

use crate::{
    record::{Page, Slot, TxState},
    tx::Output,
};

use super::body::ParsedBody;

/// Counts over a whole store. A count is over *live* whole transactions unless its description says otherwise; partial
/// transactions are counted in `seeded` and `spent_outside`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct StoreStats {
    /// Number of block records on the longest chain.
    pub blocks: u64,
    /// Number of block records that are not on the longest chain.
    pub side_blocks: u64,
    /// Number of live whole transactions, coinbases included.
    pub transactions: u64,
    /// Number of coinbases among these transactions.
    pub coinbases: u64,
    /// Number of inputs; a coinbase has none.
    pub inputs: u64,
    /// Number of outputs, with and without a slot.
    pub outputs: u64,
    /// Number of outputs with a slot.
    pub slots: u64,
    /// Number of spent slots.
    pub spent_inside: u64,
    /// Number of spent slots of partial transactions.
    pub spent_outside: u64,
    /// Number of slots that are not spent, frozen and locked ones included.
    pub unspent: u64,
    /// Satoshis of all unspent slots.
    pub unspent_satoshis: u128,
    /// Number of frozen slots, those of partial transactions included.
    pub frozen: u64,
    /// Number of locked transactions.
    pub locked: u64,
    /// Number of transactions that no block of the longest chain lists.
    pub unmined: u64,
    /// Number of transactions on more than one page.
    pub paged: u64,
    /// Number of transactions that are conflicting, or contested without a verdict.
    pub conflicting: u64,
    /// Number of half-created transactions.
    pub creating: u64,
    /// Number of all transactions that were ever contested, stubs included.
    pub contested: u64,
    /// Number of contested transactions without a body.
    pub stubs: u64,
    /// Number of tombstones of pruned transactions.
    pub tombstones: u64,
    /// Counts of partial transactions.
    pub seeded: SeededStats,
}

/// Counts of partial transactions: transactions of which only some outputs are known.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct SeededStats {
    /// Number of partial transactions.
    pub transactions: u64,
    /// Number of known outputs.
    pub outputs: u64,
    /// Number of outputs with a slot.
    pub slots: u64,
    /// Number of slots that are not spent.
    pub unspent: u64,
    /// Satoshis of all unspent slots.
    pub unspent_satoshis: u128,
}

/// Counts of the slots of one transaction, added up page by page.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct SlotCounts {
    slots: u64,
    spent: u64,
    frozen: u64,
    unspent_satoshis: u128,
}

impl SlotCounts {
    /// Counts the slots of one page. `outputs` begins with the outputs of this page and continues with the next page.
    pub(super) fn count<'a>(page: &Page, outputs: &mut dyn Iterator<Item = Option<Output<'a>>>) -> Self {
        let mut counts = SlotCounts::default();
        for (slot, offset) in page.utxos.iter().flatten().zip(0..) {
            // Each slot has an output, nil slots too.
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
    /// Counts one transaction by its master and slots.
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
                self.seeded.add(outputs.known().len() as u64, slots);
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
