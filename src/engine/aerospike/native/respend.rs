//! `Respend`: moves slots to another transaction. Each slot is free, or held by the spender that it is taken from.

use aerospike::{
    BatchOperation, Bin, Key as ServerKey, ListPolicy, ListWriteFlags, Value,
    expressions::{bin_exists, eq},
    operations::{self, Operation as ServerOperation, lists},
};

use super::{
    super::{
        bins::{spending_data, stamp_number},
        layout::{Layout, PageMark, flag, set_flag},
        names,
        template::{Fill, PackedConditions, Template, absent, blob_at, hole},
    },
    AnswerForm, NativeRequest, delete_at_height, filtered_policy, stamp_template,
};
use crate::{
    record::{Respend, RespendChecks, RespendSlot, Rules, SpendingData, Stamp},
    tx::amount_size,
};

pub struct RespendTemplates {
    layout: Layout,
    conditions: PackedConditions,
    /// Template with one hole: the stamp.
    stamp: Template,
    /// Template with two holes: the offset, the slot's bytes.
    slot_equals: Template,
    due: Option<ServerOperation>,
    reply: ServerOperation,
}

impl RespendTemplates {
    pub fn new(layout: Layout, rules: &Rules) -> Self {
        RespendTemplates {
            layout,
            conditions: PackedConditions::new(&[
                bin_exists(names::UTXOS),
                layout.unset(PageMark::Frozen),
                layout.unset(PageMark::Conflicting),
                absent(names::PRUNED_SPENDERS),
                absent(names::DELETE_AT_HEIGHT),
            ]),
            stamp: stamp_template(),
            slot_equals: Template::new(&eq(blob_at(names::UTXOS), hole())),
            due: delete_at_height::write_when_due(layout, rules.retention),
            reply: delete_at_height::read_reply(layout),
        }
    }

    /// Compiles a respend. `None` where the respend checks more than the holders, names no slot, names a slot twice, or
    /// gives a slot to its holder.
    pub fn compile(&self, is_master: bool, key: ServerKey, stamp: Stamp, respend: &Respend) -> Option<NativeRequest> {
        let slots = &respend.slots;
        let is_invalid = |(n, moved): (usize, &RespendSlot)| {
            slots[..n].iter().any(|before| before.slot.offset == moved.slot.offset)
                || moved.from == Some(new_spender(respend, moved))
        };
        if respend.checks != RespendChecks::Decided || slots.is_empty() || slots.iter().enumerate().any(is_invalid) {
            return None;
        }
        let stamp = stamp_number(&stamp);
        let room = self.stamp.size() + slots.len() * (self.slot_equals.size() + 80);
        let mut filter = self.conditions.and(1 + slots.len(), room);
        self.stamp.fill(&mut filter, &[Fill::Int(stamp)]);
        for moved in slots {
            let size = [amount_size(moved.slot.satoshis)];
            let [size, hash] = self.layout.slot_head(&size, &moved.slot.utxo_hash.0);
            let at = Fill::Int(moved.slot.offset.into());
            match moved.from.as_ref().map(spending_data) {
                Some(from) => self.slot_equals.fill(&mut filter, &[at, Fill::Blob(&[size, hash, &from])]),
                None => self.slot_equals.fill(&mut filter, &[at, Fill::Blob(&[size, hash])]),
            }
        }
        let operations = self.operations(is_master, stamp, respend);
        let operation = BatchOperation::write(&filtered_policy(filter), key, operations);
        Some(NativeRequest { operation: Some(Box::new(operation)), answer: AnswerForm::Spends(1) })
    }

    fn operations(&self, is_master: bool, stamp: i64, respend: &Respend) -> Vec<ServerOperation> {
        let slots = &respend.slots;
        let append_once =
            ListPolicy { flags: ListWriteFlags::ADD_UNIQUE | ListWriteFlags::NO_FAIL, ..ListPolicy::default() };
        let mut operations = Vec::with_capacity(2 * slots.len() + 4);
        for moved in slots {
            let offset = moved.slot.offset.into();
            let spender = spending_data(&new_spender(respend, moved));
            let slot = self.layout.slot(amount_size(moved.slot.satoshis), &moved.slot.utxo_hash.0, &spender);
            operations.push(lists::set(names::UTXOS, offset, Value::Blob(slot)));
            operations.push(lists::append(&append_once, names::CONTESTED, Value::Int(offset)));
        }
        let taken_free = slots.iter().filter(|moved| moved.from.is_none()).count();
        if taken_free > 0 {
            operations.push(self.layout.count_spent(taken_free));
        }
        if self.layout == Layout::Compact {
            operations.push(set_flag(flag::CONTESTED));
        }
        operations.push(operations::put(&Bin::new(names::CHAIN_POS, Value::Int(stamp))));
        if is_master {
            operations.extend(self.due.clone());
        }
        operations.push(self.reply.clone());
        operations
    }
}

fn new_spender(respend: &Respend, moved: &RespendSlot) -> SpendingData {
    SpendingData { txid: respend.to, input: moved.slot.input }
}
