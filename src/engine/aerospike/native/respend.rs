//! Slots move to another transaction: each is free, or held by whom it is to be taken from.

use aerospike::{
    BatchOperation, Bin, Key as ServerKey, ListPolicy, ListWriteFlags, Value,
    expressions::{bin_exists, eq},
    operations::{self, Operation as ServerOperation, lists},
};

use super::{
    super::{
        bins::{spending_data, stamp_number},
        names,
        template::{Conditions, Fill, Template, absent, blob_at, hole, unset},
    },
    Form, Native, behind, due, not_after_a_later_stamp,
};
use crate::record::{Respend, RespendChecks, RespendSlot, Rules, SpendingData, Stamp};

pub struct Templates {
    conditions: Conditions,
    /// One hole: the stamp.
    stamp: Template,
    /// Holes: the offset, the slot's bytes.
    is: Template,
    due: Option<ServerOperation>,
    told: ServerOperation,
}

impl Templates {
    pub fn new(rules: &Rules) -> Self {
        Templates {
            conditions: Conditions::new(&[
                bin_exists(names::UTXOS),
                unset(names::FROZEN),
                unset(names::CONFLICTING),
                absent(names::PRUNED_SPENDERS),
                absent(names::DELETE_AT_HEIGHT),
            ]),
            stamp: not_after_a_later_stamp(),
            is: Template::new(&eq(blob_at(names::UTXOS), hole())),
            due: due::write(rules.retention),
            told: due::read(),
        }
    }

    /// `None`: it checks more than who holds the slots, or moves none, or one of them twice or to whom it belongs.
    pub fn compile(&self, is_master: bool, key: ServerKey, stamp: Stamp, respend: &Respend) -> Option<Native> {
        let slots = &respend.slots;
        let again = |(n, moved): (usize, &RespendSlot)| {
            slots[..n].iter().any(|before| before.slot.offset == moved.slot.offset)
                || moved.from == Some(taker(respend, moved))
        };
        if respend.checks != RespendChecks::Decided || slots.is_empty() || slots.iter().enumerate().any(again) {
            return None;
        }
        let stamp = stamp_number(&stamp);
        let mut filter = self.conditions.and(1 + slots.len(), self.stamp.size() + slots.len() * (self.is.size() + 80));
        self.stamp.fill(&mut filter, &[Fill::Int(stamp)]);
        for moved in slots {
            let hash = &moved.slot.utxo_hash.0[..];
            let at = Fill::Int(moved.slot.offset.into());
            match moved.from.as_ref().map(spending_data) {
                Some(from) => self.is.fill(&mut filter, &[at, Fill::Blob(&[hash, &from])]),
                None => self.is.fill(&mut filter, &[at, Fill::Blob(&[hash])]),
            }
        }
        let operations = self.operations(is_master, stamp, respend);
        let operation = BatchOperation::write(&behind(filter), key, operations);
        Some(Native { operation: Some(Box::new(operation)), answer: Form::Spends(1) })
    }

    fn operations(&self, is_master: bool, stamp: i64, respend: &Respend) -> Vec<ServerOperation> {
        let slots = &respend.slots;
        let unique =
            ListPolicy { flags: ListWriteFlags::ADD_UNIQUE | ListWriteFlags::NO_FAIL, ..ListPolicy::default() };
        let mut operations = Vec::with_capacity(2 * slots.len() + 4);
        for moved in slots {
            let offset = moved.slot.offset.into();
            let slot = [&moved.slot.utxo_hash.0[..], &spending_data(&taker(respend, moved))].concat();
            operations.push(lists::set(names::UTXOS, offset, Value::Blob(slot)));
            operations.push(lists::append(&unique, names::CONTESTED, Value::Int(offset)));
        }
        let free = slots.iter().filter(|moved| moved.from.is_none()).count();
        if free > 0 {
            operations.push(operations::add(&Bin::new(names::SPENT_UTXOS, Value::Int(free as i64))));
        }
        operations.push(operations::put(&Bin::new(names::CHAIN_POS, Value::Int(stamp))));
        if is_master {
            operations.extend(self.due.clone());
        }
        operations.push(self.told.clone());
        operations
    }
}

fn taker(respend: &Respend, moved: &RespendSlot) -> SpendingData {
    SpendingData { txid: respend.to, input: moved.slot.input }
}
