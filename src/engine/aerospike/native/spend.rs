//! Spends: every slot is free and has the claimed hash, the stored outputs are as claimed, and nothing bars the way.
//!
//! Several spends of one record that take different slots are one request: all of them land, or all are looked at anew.

use aerospike::{
    BatchOperation, Bin, Key as ServerKey, Value,
    expressions::{Expression, and, bitwise::get_int, blob_bin, eq, int_bin, int_val, le, or},
    operations::{self, Operation as ServerOperation, lists},
};

use super::{
    super::{
        bins::spending_data,
        names,
        packed::Packed,
        template::{Conditions, Fill, Template, absent, blob_at, hole, unset},
    },
    Form, Native, behind, due,
};
use crate::{
    record::{Marks, Operation, Outcome, Reply, Rules, Spend, SpendSlot, SpendingData},
    tx::{amount_size, varint},
};

/// More slots than this are not taken by one request: the list is walked for each.
const MOST_SLOTS: usize = 128;

pub struct Templates {
    /// What bars a spend that respects marks …
    respectful: Conditions,
    /// … and one that does not.
    regardless: Conditions,
    /// One hole: the height.
    mature: Template,
    /// Holes: the offset, the hash.
    free: Template,
    /// Of a master. Holes: the offset, the output, the offset in bits, the size of its amount.
    as_stored: Template,
    /// Of another page. Holes: the offset in bits, the size of the output's amount.
    as_sized: Template,
    due: Option<ServerOperation>,
    told: ServerOperation,
}

impl Templates {
    pub fn new(rules: &Rules) -> Self {
        let live = [unset(names::CREATING), unset(names::CONFLICTING)];
        // What the reply or the comparison of outputs would need more for.
        let simple = [absent(names::DELETE_AT_HEIGHT), absent(names::REASSIGNMENTS)];
        let marks = [unset(names::LOCKED), unset(names::FROZEN), absent(names::CONTESTED), absent(names::SPENDABLE_IN)];
        let regardless = [live, simple].concat();
        let height = names::SPENDING_HEIGHT;
        Templates {
            respectful: Conditions::new(&[&regardless[..], &marks].concat()),
            regardless: Conditions::new(&regardless),
            mature: Template::new(&or(vec![absent(height), le(int_bin(height), hole())])),
            free: Template::new(&eq(blob_at(names::UTXOS), hole())),
            as_stored: Template::new(&or(vec![
                eq(blob_at(names::OUTPUTS), hole()),
                as_sized(),
                and(vec![absent(names::OUTPUTS), absent(names::AMOUNT_SIZES)]),
            ])),
            as_sized: Template::new(&or(vec![as_sized(), absent(names::AMOUNT_SIZES)])),
            due: due::write(rules.retention),
            told: due::read(),
        }
    }

    /// `None`: the spends do not go together, or are too many.
    pub fn compile(&self, is_master: bool, key: ServerKey, operations: &[&Operation]) -> Option<Native> {
        let spends: Vec<&Spend> = operations.iter().map(|operation| as_spend(operation)).collect::<Option<_>>()?;
        let first = spends.first()?;
        let alike = spends
            .iter()
            .all(|spend| (spend.marks, spend.signals) == (first.marks, first.signals) && !spend.slots.is_empty());
        if !alike || !are_distinct(&spends) {
            return None;
        }
        let filter = self.filter(is_master, first.marks, &spends);
        let operation = BatchOperation::write(&behind(filter), key, self.operations(is_master, &spends));
        let answer = if first.signals { Form::Spends(spends.len()) } else { Form::Silent(spends.len()) };
        Some(Native { operation: Some(Box::new(operation)), answer })
    }

    fn filter(&self, is_master: bool, marks: Marks, spends: &[&Spend]) -> Packed {
        let slots = || spends.iter().flat_map(|spend| spend.slots.iter());
        let room = slots().map(|slot| 240 + slot.script.len()).sum::<usize>() + self.mature.size();
        let mut filter = match marks {
            Marks::Respect => {
                let mut filter = self.respectful.and(1 + 2 * slots().count(), room);
                // Mature for the lowest is mature for all.
                let height = spends.iter().map(|spend| spend.height).min().unwrap_or_default();
                self.mature.fill(&mut filter, &[Fill::Int(height.into())]);
                filter
            }
            Marks::Ignore => self.regardless.and(2 * slots().count(), room),
        };
        for SpendSlot { offset, utxo_hash, satoshis, script, .. } in slots() {
            let at = Fill::Int((*offset).into());
            self.free.fill(&mut filter, &[at, Fill::Blob(&[&utxo_hash.0])]);
            let sized = [Fill::Int(i64::from(*offset) * 8), Fill::Int(amount_size(*satoshis).into())];
            if is_master {
                let length = varint::encode(script.len() as u64);
                let output: [&[u8]; 3] = [&satoshis.to_le_bytes(), length.as_ref(), script];
                self.as_stored.fill(&mut filter, &[at, Fill::Blob(&output), sized[0], sized[1]]);
            } else {
                self.as_sized.fill(&mut filter, &sized);
            }
        }
        filter
    }

    fn operations(&self, is_master: bool, spends: &[&Spend]) -> Vec<ServerOperation> {
        let count: usize = spends.iter().map(|spend| spend.slots.len()).sum();
        let mut operations = Vec::with_capacity(count + 3);
        for spend in spends {
            operations.extend(spend.slots.iter().map(|slot| take(spend, slot)));
        }
        operations.push(operations::add(&Bin::new(names::SPENT_UTXOS, Value::Int(count as i64))));
        if is_master {
            operations.extend(self.due.clone());
        }
        if spends.iter().any(|spend| spend.signals) {
            operations.push(self.told.clone());
        }
        operations
    }
}

/// The amount is noted to be as large as claimed. Holes: the offset in bits, the size.
fn as_sized() -> Expression {
    eq(get_int(hole(), int_val(8), false, blob_bin(names::AMOUNT_SIZES)), hole())
}

fn as_spend<'a>(operation: &&'a Operation) -> Option<&'a Spend> {
    match operation {
        Operation::Spend(spend) => Some(spend),
        _ => None,
    }
}

/// Whether a spend of a record can still join those before it. Wide records are spent by hundreds of rows of one batch.
pub fn leave_room(before: &[&Operation], next: &Operation) -> bool {
    let slots = |operation: &&Operation| as_spend(operation).map(|spend| spend.slots.len());
    let Some(next) = slots(&next) else { return true };
    let before: Option<usize> = before.iter().map(slots).sum();
    before.is_none_or(|before| before + next <= MOST_SLOTS)
}

fn are_distinct(spends: &[&Spend]) -> bool {
    let offsets = || spends.iter().flat_map(|spend| spend.slots.iter()).map(|slot| slot.offset);
    match offsets().take(MOST_SLOTS + 1).count() {
        1 => true,
        count if count > MOST_SLOTS => false,
        _ => {
            let mut sorted: Vec<u32> = offsets().collect();
            sorted.sort_unstable();
            sorted.windows(2).all(|pair| pair[0] != pair[1])
        }
    }
}

fn take(spend: &Spend, slot: &SpendSlot) -> ServerOperation {
    let spender = spending_data(&SpendingData { txid: spend.spender, input: slot.input });
    lists::set(names::UTXOS, slot.offset.into(), Value::Blob([&slot.utxo_hash.0[..], &spender].concat()))
}

/// The spends took effect one after the other: only the last can have taken the last slot.
pub fn outcomes(count: usize, results: &[Value]) -> Option<Vec<Outcome>> {
    let before = Outcome::Applied(Reply::Slots { all_spent: false, delete_at_height: None });
    let mut outcomes = vec![before; count.checked_sub(1)?];
    outcomes.push(Outcome::Applied(due::reply(results.last())?));
    Some(outcomes)
}
