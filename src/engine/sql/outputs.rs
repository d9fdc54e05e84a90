//! The outputs of a page as rows of the table `outputs`: slots, amounts and scripts.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::{
    rows::{DamagedRows, RowReader},
    tables::{OUTPUTS, Row, TableRows, Value, bytes, int, optional_int},
};
use crate::{
    record::{Body, Page, PartialOutputs, Slot, SpendingData, StoredOutput},
    tx::{Output, Transaction, Txid, UtxoHash, varint},
};

/// Bytes of a transaction after its outputs: the lock time.
const LOCK_TIME: usize = 4;

/// Place of the slots of a page among all outputs of its transaction.
#[derive(Clone, Copy)]
pub(super) struct SlotPlace {
    first: u64,
}

impl SlotPlace {
    pub fn of(page: &Page, utxo_batch_size: u32) -> Self {
        SlotPlace { first: u64::from(page.number) * u64::from(utxo_batch_size) }
    }
}

/// Row of the table `outputs` without its key.
#[derive(Default)]
struct OutputRow {
    slot: Option<Slot>,
    output: Option<StoredOutput>,
    spendable_in: Option<u32>,
    owner: Option<StoredOutput>,
}

/// Moves the outputs of a page into rows, and returns the column `inputs`: the body without its outputs. `None`: the
/// body, if any, stays with the page.
pub(super) fn split(page: &mut Page, utxo_batch_size: u32, rows: &mut TableRows) -> Option<Bytes> {
    let first = SlotPlace::of(page, utxo_batch_size).first;
    let slots = page.utxos.take()?;
    let is_spent = |slot: &&Slot| matches!(slot, Slot::Spent(..));
    let spent = slots.iter().filter(is_spent).count() as u32;
    let usable = slots.iter().filter(|slot| **slot != Slot::Nil).count() as u32;
    page.spent_utxos = page.spent_utxos.wrapping_sub(spent);
    page.record_utxos = page.record_utxos.wrapping_sub(usable).wrapping_sub(page.reassignments.len() as u32);
    let (inputs, mut outputs) = split_body(page, slots.len());

    let mut owners = BTreeMap::new();
    for reassignment in page.reassignments.iter_mut().rev() {
        // The last owner of a slot has columns; the earlier ones stay with the page.
        if (reassignment.offset as usize) < slots.len() && !owners.contains_key(&reassignment.offset) {
            let taken = StoredOutput { satoshis: 0, script: Bytes::new() };
            owners.insert(reassignment.offset, std::mem::replace(&mut reassignment.output, taken));
        }
    }
    for (offset, slot) in (0_u32..).zip(slots) {
        let row = OutputRow {
            slot: Some(slot).filter(|slot| *slot != Slot::Nil),
            output: outputs.get_mut(offset as usize).and_then(Option::take),
            spendable_in: page.utxo_spendable_in.remove(&offset),
            owner: owners.remove(&offset),
        };
        if row.has_facts() {
            rows.0[OUTPUTS].push(row.into_row(page.txid, first + u64::from(offset)));
        }
    }
    inputs
}

impl OutputRow {
    /// A gap of a partial transaction takes no row: a small event can name an output after a million gaps.
    fn has_facts(&self) -> bool {
        self.slot.is_some() || self.output.is_some() || self.spendable_in.is_some() || self.owner.is_some()
    }

    fn into_row(self, txid: Txid, vout: u64) -> Row {
        let spender = self.slot.as_ref().and_then(Slot::spender);
        let amount = |output: &Option<StoredOutput>| optional_int(output.as_ref().map(|output| output.satoshis));
        let (satoshis, owner_satoshis) = (amount(&self.output), amount(&self.owner));
        vec![
            bytes(&txid.0),
            int(vout),
            Value::Bytes(self.slot.as_ref().and_then(Slot::hash).map(|hash| Bytes::copy_from_slice(&hash.0))),
            satoshis,
            Value::Bytes(self.output.map(|output| output.script)),
            Value::Bytes(spender.map(|spender| Bytes::copy_from_slice(&spender.txid.0))),
            optional_int(spender.map(|spender| spender.input)),
            Value::Bool(matches!(self.slot, Some(Slot::Frozen(_)))),
            optional_int(self.spendable_in),
            owner_satoshis,
            Value::Bytes(self.owner.map(|owner| owner.script)),
        ]
    }

    fn from_row(row: &Row) -> Result<Self, DamagedRows> {
        let mut r = RowReader::new(row, 2);
        let hash = r.optional_hash("utxo_hash")?.map(UtxoHash);
        let output = read_output(&mut r, "satoshis", "script")?;
        let (spender, input) = (r.optional_hash("spender")?, r.optional_u32("spender_input")?);
        let (frozen, spendable_in) = (r.bool("frozen")?, r.optional_u32("spendable_in")?);
        let slot = match (hash, spender, input, frozen) {
            (None, None, None, false) => None,
            (Some(hash), None, None, false) => Some(Slot::Unspent(hash)),
            (Some(hash), None, None, true) => Some(Slot::Frozen(hash)),
            (Some(hash), Some(txid), Some(input), false) => {
                Some(Slot::Spent(hash, SpendingData { txid: Txid(txid), input }))
            }
            _ => return Err(DamagedRows::new("columns utxo_hash, spender, spender_input and frozen")),
        };
        Ok(OutputRow { slot, output, spendable_in, owner: read_output(&mut r, "owner_satoshis", "owner_script")? })
    }
}

fn read_output(r: &mut RowReader, satoshis: &str, script: &str) -> Result<Option<StoredOutput>, DamagedRows> {
    match (r.optional_u64(satoshis)?, r.optional_bytes(script)?) {
        (None, None) => Ok(None),
        (Some(satoshis), Some(script)) => Ok(Some(StoredOutput { satoshis, script })),
        _ => Err(DamagedRows::new(format!("columns {satoshis} and {script}"))),
    }
}

/// Takes the outputs out of an inline body that has one output a slot. Any other body stays whole: a transaction over
/// several pages, or a body in the blob store.
fn split_body(page: &mut Page, slots: usize) -> (Option<Bytes>, Vec<Option<StoredOutput>>) {
    let number = page.number;
    let Some(master) = page.master.as_mut().filter(|_| number == 0) else { return (None, Vec::new()) };
    let (inputs, outputs) = match &master.body {
        Some(Body::Transaction(body)) => match Transaction::parse(body) {
            Ok(transaction) if transaction.output_count() == slots => {
                let count_at = transaction.outputs().position() - varint::encode(slots as u64).as_ref().len();
                let lock_time = &body[body.len() - LOCK_TIME..];
                let stored =
                    |Output { satoshis, script }| Some(StoredOutput { satoshis, script: body.slice_ref(script) });
                ([&body[..count_at], lock_time].concat().into(), transaction.outputs().map(stored).collect())
            }
            _ => return (None, Vec::new()),
        },
        Some(Body::Outputs(outputs)) if outputs.count() as usize == slots => {
            (Bytes::new(), outputs.iter().map(Option::<&StoredOutput>::cloned).collect())
        }
        _ => return (None, Vec::new()),
    };
    master.body = None;
    (Some(inputs), outputs)
}

/// Moves the outputs of the rows into the page. `slots`: number of slots; `inputs`: what [`split`] returned.
pub(super) fn join(
    page: &mut Page,
    place: SlotPlace,
    slots: Option<u32>,
    inputs: Option<Bytes>,
    rows: &TableRows,
) -> Result<(), DamagedRows> {
    let output_rows = &rows.0[OUTPUTS];
    let Some(count) = slots else {
        let has_none = inputs.is_none() && output_rows.is_empty();
        return if has_none { Ok(()) } else { Err(DamagedRows::new("outputs of a page without slots")) };
    };
    let mut slots = vec![Slot::Nil; count as usize];
    let mut outputs = vec![None; if inputs.is_some() { count as usize } else { 0 }];
    let mut owners = BTreeMap::new();
    for row in output_rows {
        let vout = RowReader::new(row, 1).u64("vout")?;
        let offset = vout.checked_sub(place.first).and_then(|offset| u32::try_from(offset).ok());
        let offset = offset.filter(|offset| *offset < count);
        let offset = offset.ok_or_else(|| DamagedRows::new(format!("output {vout} beyond the last slot")))?;
        let row = OutputRow::from_row(row)?;
        slots[offset as usize] = row.slot.unwrap_or(Slot::Nil);
        match outputs.get_mut(offset as usize) {
            Some(output) => *output = row.output,
            None if row.output.is_some() => return Err(DamagedRows::new("an output beside its body")),
            None => {}
        }
        page.utxo_spendable_in.extend(row.spendable_in.map(|height| (offset, height)));
        owners.extend(row.owner.map(|owner| (offset, owner)));
    }
    for reassignment in page.reassignments.iter_mut().rev() {
        if let Some(owner) = owners.remove(&reassignment.offset) {
            reassignment.output = owner;
        }
    }
    if !owners.is_empty() {
        return Err(DamagedRows::new("an owner without a reassignment"));
    }
    let spent = slots.iter().filter(|slot| matches!(slot, Slot::Spent(..))).count() as u32;
    let usable = slots.iter().filter(|slot| **slot != Slot::Nil).count() as u32;
    page.spent_utxos = page.spent_utxos.wrapping_add(spent);
    page.record_utxos = page.record_utxos.wrapping_add(usable).wrapping_add(page.reassignments.len() as u32);
    page.utxos = Some(slots);
    match (&mut page.master, inputs) {
        (_, None) => Ok(()),
        (Some(master), Some(inputs)) => {
            master.body = Some(join_body(&inputs, outputs)?);
            Ok(())
        }
        (None, Some(_)) => Err(DamagedRows::new("inputs of a page that is no master")),
    }
}

fn join_body(inputs: &Bytes, outputs: Vec<Option<StoredOutput>>) -> Result<Body, DamagedRows> {
    if inputs.is_empty() {
        return Ok(Body::Outputs(outputs.into_iter().collect::<PartialOutputs>()));
    }
    let lock_time_at = inputs.len().checked_sub(LOCK_TIME).ok_or_else(|| DamagedRows::new("column inputs"))?;
    let size = outputs.iter().flatten().map(|output| output.script.len() + 17).sum::<usize>();
    let mut body = Vec::with_capacity(inputs.len() + size + 9);
    body.extend_from_slice(&inputs[..lock_time_at]);
    varint::write(&mut body, outputs.len() as u64);
    for output in outputs {
        let output = output.ok_or_else(|| DamagedRows::new("an output of the body is absent"))?;
        Output { satoshis: output.satoshis, script: &output.script }.write(&mut body);
    }
    body.extend_from_slice(&inputs[lock_time_at..]);
    Ok(Body::Transaction(body.into()))
}
