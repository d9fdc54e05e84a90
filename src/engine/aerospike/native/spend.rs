//! `Spend`: takes slots that are free and have the claimed hashes, with stored outputs as claimed and no mark against
//! it.
//!
//! Several spends of one record that take different slots are one request: all take effect, or all are left to the pure
//! function.

use aerospike::{
    BatchOperation, Key as ServerKey, Value,
    expressions::{Expression, and, bitwise::get_int, blob_bin, eq, int_bin, int_val, le, or},
    operations::{Operation as ServerOperation, lists},
};
use smallvec::SmallVec;

use super::{
    super::{
        bins::spending_data,
        layout::{Layout, flag, none_of},
        names,
        packed::Packed,
        template::{Fill, PackedConditions, Template, absent, blob_at, hole, unset},
    },
    AnswerForm, NativeRequest, delete_at_height, filtered_policy,
};
use crate::{
    record::{Marks, Operation, Outcome, Reply, Rules, Spend, SpendSlot, SpendingData},
    tx::{amount_size, varint},
};

/// Slots that one request takes, at most: the server walks the list for each.
const MAX_SLOTS: usize = 128;

pub struct SpendTemplates {
    layout: Layout,
    /// Conditions of a spend that respects marks.
    respecting_marks: PackedConditions,
    /// Conditions of a spend that ignores marks.
    ignoring_marks: PackedConditions,
    /// Template with one hole: the height.
    is_mature: Template,
    /// Template with two holes: the offset, the slot.
    is_free: Template,
    /// Condition on an output of a master. Holes: the offset, the output, the offset in bits, the size of its amount.
    stored_output_matches: Template,
    /// Condition on an output of another page. Holes: the offset in bits, the size of the output's amount.
    amount_size_matches: Template,
    due: Option<ServerOperation>,
    reply: ServerOperation,
}

impl SpendTemplates {
    pub fn new(layout: Layout, rules: &Rules) -> Self {
        let (respecting_marks, ignoring_marks) = match layout {
            Layout::Teranode => {
                let live = [unset(names::CREATING), unset(names::CONFLICTING)];
                // Cases for which the reply, or the comparison of outputs, would need more than the filter reads.
                let simple = [absent(names::DELETE_AT_HEIGHT), absent(names::REASSIGNMENTS)];
                let marks =
                    [unset(names::LOCKED), unset(names::FROZEN), absent(names::CONTESTED), absent(names::SPENDABLE_IN)];
                ([&live[..], &simple, &marks].concat(), [live, simple].concat())
            }
            // A page without `flags` has nothing that bars a spend, and no due height beside a free slot.
            Layout::Compact => {
                let bars_always =
                    flag::CREATING | flag::CONFLICTING | flag::NO_SLOTS | flag::REASSIGNED | flag::EARLY_DUE;
                (vec![absent(names::FLAGS)], vec![none_of(bars_always)])
            }
        };
        let height = names::SPENDING_HEIGHT;
        SpendTemplates {
            layout,
            respecting_marks: PackedConditions::new(&respecting_marks),
            ignoring_marks: PackedConditions::new(&ignoring_marks),
            is_mature: Template::new(&or(vec![absent(height), le(int_bin(height), hole())])),
            is_free: Template::new(&eq(blob_at(names::UTXOS), hole())),
            stored_output_matches: Template::new(&or(vec![
                eq(blob_at(names::OUTPUTS), hole()),
                amount_size_matches(),
                and(vec![absent(names::OUTPUTS), absent(names::AMOUNT_SIZES)]),
            ])),
            amount_size_matches: Template::new(&or(vec![amount_size_matches(), absent(names::AMOUNT_SIZES)])),
            due: delete_at_height::write_when_due(layout, rules.retention),
            reply: delete_at_height::read_reply(layout),
        }
    }

    /// Compiles spends; `None` where they differ in marks or signals, take a slot twice, or take too many slots.
    pub fn compile(&self, is_master: bool, key: ServerKey, operations: &[&Operation]) -> Option<NativeRequest> {
        let spends = operations.iter().map(|operation| operation.spend());
        let spends = spends.collect::<Option<SmallVec<[&Spend; 4]>>>()?;
        let first = spends.first()?;
        let is_uniform = spends
            .iter()
            .all(|spend| (spend.marks, spend.signals) == (first.marks, first.signals) && !spend.slots.is_empty());
        if !is_uniform || !are_distinct(&spends) {
            return None;
        }
        let filter = self.filter(is_master, first.marks, &spends);
        let operation = BatchOperation::write(&filtered_policy(filter), key, self.operations(is_master, &spends));
        let answer = if first.signals { AnswerForm::Spends(spends.len()) } else { AnswerForm::Silent(spends.len()) };
        Some(NativeRequest { operation: Some(Box::new(operation)), answer })
    }

    /// Packs the filter. In `compact` a slot has the size of its output's amount, and the height of a coinbase is a
    /// flag: the outputs of a coinbase are left to the pure function.
    fn filter(&self, is_master: bool, marks: Marks, spends: &[&Spend]) -> Packed {
        let slots = || spends.iter().flat_map(|spend| spend.slots.iter());
        let is_compact = self.layout == Layout::Compact;
        let (per_slot, slot_room) = if is_compact { (1, 0) } else { (2, 160) };
        let room = slots().map(|slot| 80 + slot_room + slot.script.len()).sum::<usize>() + self.is_mature.size();
        let (conditions, has_height) = match marks {
            Marks::Respect => (&self.respecting_marks, !is_compact),
            // The filter refuses a parent without a verdict: that case is left to the pure function.
            Marks::Ignore | Marks::IgnoreUndecided => (&self.ignoring_marks, false),
        };
        let mut filter = conditions.and(usize::from(has_height) + per_slot * slots().count(), room);
        if has_height {
            // Outputs that are mature at the lowest height are mature at every height.
            let height = spends.iter().map(|spend| spend.height).min().unwrap_or_default();
            self.is_mature.fill(&mut filter, &[Fill::Int(height.into())]);
        }
        for SpendSlot { offset, utxo_hash, satoshis, script, .. } in slots() {
            let (at, size) = (Fill::Int((*offset).into()), amount_size(*satoshis));
            self.is_free.fill(&mut filter, &[at, Fill::Blob(&self.layout.slot_head(&[size], &utxo_hash.0))]);
            if is_compact {
                continue;
            }
            let sized = [Fill::Int(i64::from(*offset) * 8), Fill::Int(size.into())];
            if is_master {
                let length = varint::encode(script.len() as u64);
                let output: [&[u8]; 3] = [&satoshis.to_le_bytes(), length.as_ref(), script];
                self.stored_output_matches.fill(&mut filter, &[at, Fill::Blob(&output), sized[0], sized[1]]);
            } else {
                self.amount_size_matches.fill(&mut filter, &sized);
            }
        }
        filter
    }

    fn operations(&self, is_master: bool, spends: &[&Spend]) -> Vec<ServerOperation> {
        let count: usize = spends.iter().map(|spend| spend.slots.len()).sum();
        let mut operations = Vec::with_capacity(count + 3);
        for spend in spends {
            operations.extend(spend.slots.iter().map(|slot| take_slot(self.layout, spend, slot)));
        }
        operations.push(self.layout.count_spent(count));
        if is_master {
            operations.extend(self.due.clone());
        }
        if spends.iter().any(|spend| spend.signals) {
            operations.push(self.reply.clone());
        }
        operations
    }
}

/// Tests that the stored size of the amount is the claimed one. Holes: the offset in bits, the size.
fn amount_size_matches() -> Expression {
    eq(get_int(hole(), int_val(8), false, blob_bin(names::AMOUNT_SIZES)), hole())
}

/// Returns whether a spend of a record can join the spends before it. One batch can have hundreds of spends of one wide
/// record.
pub fn has_room_for(before: &[&Operation], next: &Operation) -> bool {
    let slots = |operation: &&Operation| operation.spend().map(|spend| spend.slots.len());
    let Some(next) = slots(&next) else { return true };
    let before: Option<usize> = before.iter().map(slots).sum();
    before.is_none_or(|before| before + next <= MAX_SLOTS)
}

fn are_distinct(spends: &[&Spend]) -> bool {
    let offsets = || spends.iter().flat_map(|spend| spend.slots.iter()).map(|slot| slot.offset);
    match offsets().take(MAX_SLOTS + 1).count() {
        1 => true,
        count if count > MAX_SLOTS => false,
        _ => {
            let mut sorted: Vec<u32> = offsets().collect();
            sorted.sort_unstable();
            sorted.windows(2).all(|pair| pair[0] != pair[1])
        }
    }
}

fn take_slot(layout: Layout, spend: &Spend, slot: &SpendSlot) -> ServerOperation {
    let spender = spending_data(&SpendingData { txid: spend.spender, input: slot.input });
    let bytes = layout.slot(amount_size(slot.satoshis), &slot.utxo_hash.0, &spender);
    lists::set(names::UTXOS, slot.offset.into(), Value::Blob(bytes))
}

/// Returns the outcomes of spends that took effect one after the other: only the last can have taken the last slot.
pub fn outcomes(count: usize, results: &[Value]) -> Option<Vec<Outcome>> {
    let before = Outcome::Applied(Reply::Slots { all_spent: false, delete_at_height: None });
    let mut outcomes = vec![before; count.checked_sub(1)?];
    outcomes.push(Outcome::Applied(delete_at_height::parse_reply(results.last())?));
    Some(outcomes)
}
