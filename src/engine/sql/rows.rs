//! The rows of a record: [`split`] makes the rows, [`join`] makes the record again.
//!
//! Each fact has one place. A fact with a column is absent from the column `rest`, which is the binary form of the
//! page that is left ([`crate::record::codec`]). `spentUtxos` and `recordUtxos` follow from the outputs, so that `rest`
//! has only their difference from the count of the rows: 0, unless the reference wrote the record.

use bytes::Bytes;

use super::{
    outputs::{self, SlotPlace},
    tables::{BLOCKS, MINED_IN, OTHER_RECORDS, OUTPUTS, Row, TRANSACTIONS, TableRows, Value, bytes, int, optional_int},
};
use crate::{
    engine::key::KeyBytes,
    event,
    record::{BlockRecord, Key, Master, MinedIn, Page, Phase, Record, Stamp, Verdict, codec},
};

/// Largest record, bytes of its variable parts. PostgreSQL takes one gibibyte a message.
const MAX_RECORD_BYTES: usize = 256 << 20;

/// A record that has no rows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum SplitError {
    #[error("the page has {slots} slots, and the database has {utxo_batch_size} a page (utxo_batch_size)")]
    TooManySlots { slots: usize, utxo_batch_size: u32 },
    #[error("the record has {0} bytes, of at most {MAX_RECORD_BYTES}")]
    TooBig(usize),
}

/// Rows that are no record: a process other than utxo-store changed them, or the disk is damaged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the rows of the record are damaged: {0}")]
pub(super) struct DamagedRows(pub String);

impl DamagedRows {
    pub fn new(problem: impl Into<String>) -> Self {
        DamagedRows(problem.into())
    }
}

/// Makes the rows of a record.
pub(super) fn split(key: &Key, record: &Record, utxo_batch_size: u32) -> Result<TableRows, SplitError> {
    let mut rows = TableRows::default();
    match record {
        Record::Page(page) => split_page(page, utxo_batch_size, &mut rows)?,
        Record::Block(block) => rows.0[BLOCKS].push(split_block(block)),
        other => rows.0[OTHER_RECORDS].push(vec![bytes(KeyBytes::of(key).as_ref()), encode(other)?]),
    }
    Ok(rows)
}

fn encode(record: &Record) -> Result<Value, SplitError> {
    let mut encoded = Vec::new();
    codec::encode(record, &mut encoded);
    if encoded.len() > MAX_RECORD_BYTES {
        return Err(SplitError::TooBig(encoded.len()));
    }
    Ok(Value::Bytes(Some(encoded.into())))
}

fn split_page(page: &Page, utxo_batch_size: u32, rows: &mut TableRows) -> Result<(), SplitError> {
    let slots = page.utxos.as_ref().map(Vec::len);
    if let Some(slots) = slots.filter(|slots| *slots > utxo_batch_size as usize) {
        return Err(SplitError::TooManySlots { slots, utxo_batch_size });
    }
    let mut rest = page.clone();
    let inputs = outputs::split(&mut rest, utxo_batch_size, rows);
    if let Some(bytes) = inputs.as_ref().map(Bytes::len).filter(|bytes| *bytes > MAX_RECORD_BYTES) {
        return Err(SplitError::TooBig(bytes));
    }
    let (mut created_at, mut unmined_since, mut preserve_until, mut verdict) = (None, None, None, None);
    if let Some(master) = &mut rest.master {
        created_at = Some(std::mem::take(&mut master.created_at));
        unmined_since = master.unmined_since.take();
        preserve_until = master.preserve_until.take();
        verdict = master.verdict.take();
        // Only page 0 is a master; the table has no column for the page.
        if page.number == 0 {
            let mined = std::mem::take(&mut master.mined);
            rows.0[MINED_IN] =
                mined.iter().zip(0_u64..).map(|(triple, place)| mined_row(page, triple, place)).collect();
        }
    }
    let reason = match verdict {
        Some(Verdict::Conflicting(reason)) => Some(Bytes::from(event::encode_reason(&reason))),
        _ => None,
    };
    let row = vec![
        bytes(&page.txid.0),
        int(page.number),
        int(std::mem::take(&mut rest.version)),
        int(std::mem::take(&mut rest.lock_time)),
        int(std::mem::take(&mut rest.fee)),
        int(std::mem::take(&mut rest.size_in_bytes)),
        int(std::mem::take(&mut rest.extended_size)),
        Value::Bool(std::mem::take(&mut rest.is_coinbase)),
        Value::Bool(std::mem::take(&mut rest.locked)),
        Value::Bool(std::mem::take(&mut rest.conflicting)),
        Value::Bool(std::mem::take(&mut rest.frozen)),
        optional_int(rest.creating_at.take()),
        optional_int(rest.spending_height.take()),
        optional_int(rest.delete_at_height.take()),
        optional_int(rest.pruned.take()),
        optional_int(slots.map(|slots| slots as u64)),
        optional_int(slots.map(|_| rows.0[OUTPUTS].len() as u64)),
        optional_int(created_at),
        optional_int(unmined_since),
        optional_int(preserve_until),
        optional_int(verdict.map(Verdict::number)),
        Value::Bytes(reason),
        Value::Bytes(inputs),
        encode(&Record::Page(rest.into()))?,
    ];
    rows.0[TRANSACTIONS].push(row);
    Ok(())
}

fn mined_row(page: &Page, triple: &MinedIn, place: u64) -> Row {
    vec![bytes(&page.txid.0), int(place), int(triple.block_id), int(triple.height), int(triple.subtree)]
}

fn split_block(block: &BlockRecord) -> Row {
    let BlockRecord { block_id, hash, previous, height, time, longest_chain, progress, chain_pos } = block;
    vec![
        int(*block_id),
        bytes(hash),
        bytes(previous),
        int(*height),
        int(*time),
        Value::Bool(*longest_chain),
        int(*progress),
        optional_int(chain_pos.map(|stamp| stamp.offset)),
        optional_int(chain_pos.map(|stamp| stamp.phase as u8)),
    ]
}

/// Makes the record of its rows; `None`: there is no record.
pub(super) fn join(key: &Key, rows: &TableRows, utxo_batch_size: u32) -> Result<Option<Record>, DamagedRows> {
    match key {
        Key::Page(..) => match &rows.0[TRANSACTIONS][..] {
            [] => Ok(None),
            [row] => join_page(key, row, rows, utxo_batch_size).map(|page| Some(Record::Page(page.into()))),
            _ => Err(DamagedRows::new("two rows of one page")),
        },
        Key::Block(id) => rows.0[BLOCKS].first().map(|row| join_block(*id, row)).transpose(),
        Key::LockRecord(_) | Key::Meta | Key::Command(_) | Key::Sentinel(_) => {
            let Some(row) = rows.0[OTHER_RECORDS].first() else { return Ok(None) };
            let record = RowReader::new(row, 1).bytes("record")?;
            codec::decode(key, record).map(Some).map_err(|error| DamagedRows::new(error.to_string()))
        }
    }
}

fn join_page(key: &Key, row: &Row, rows: &TableRows, utxo_batch_size: u32) -> Result<Page, DamagedRows> {
    // `rest` is the last column.
    let rest = RowReader::new(row, row.len().saturating_sub(1)).bytes("rest")?;
    let rest = codec::decode(key, rest).map_err(|error| DamagedRows::new(format!("column rest: {error}")))?;
    let Record::Page(rest) = rest else { return Err(DamagedRows::new("column rest: no page")) };
    let mut page = std::sync::Arc::unwrap_or_clone(rest);
    let mut r = RowReader::new(row, 2);
    page.version = r.u32("version")?;
    page.lock_time = r.u32("lock_time")?;
    page.fee = r.u64("fee")?;
    page.size_in_bytes = r.u64("size_in_bytes")?;
    page.extended_size = r.u64("extended_size")?;
    page.is_coinbase = r.bool("coinbase")?;
    page.locked = r.bool("locked")?;
    page.conflicting = r.bool("conflicting")?;
    page.frozen = r.bool("frozen")?;
    page.creating_at = r.optional_u64("creating_at")?;
    page.spending_height = r.optional_u32("spending_height")?;
    page.delete_at_height = r.optional_u32("delete_at_height")?;
    page.pruned = r.optional_u32("pruned")?;
    let slots = r.optional_u32("slots")?;
    check_output_rows(slots, r.optional_u64("output_rows")?, rows.0[OUTPUTS].len())?;
    let (created_at, unmined_since) = (r.optional_u64("created_at")?, r.optional_u32("unmined_since")?);
    let (preserve_until, verdict) = (r.optional_u32("preserve_until")?, r.optional_u64("verdict")?);
    let (reason, inputs) = (r.optional_bytes("reason")?, r.optional_bytes("inputs")?);
    let verdict = match (verdict, reason) {
        (None, None) => None,
        (Some(0), None) => Some(Verdict::Pending),
        (Some(1), None) => Some(Verdict::Accepted),
        (Some(2), Some(reason)) => {
            let reason = event::decode_reason(&reason).map_err(|error| DamagedRows::new(format!("reason: {error}")))?;
            Some(Verdict::Conflicting(reason))
        }
        _ => return Err(DamagedRows::new("columns verdict and reason")),
    };
    if let Some(master) = &mut page.master {
        let created_at = created_at.ok_or_else(|| DamagedRows::new("column created_at: absent"))?;
        let mined = if page.number == 0 { join_mined(rows)? } else { std::mem::take(&mut master.mined) };
        **master =
            Master { created_at, unmined_since, preserve_until, verdict, mined, ..std::mem::take(&mut **master) };
    }
    let place = SlotPlace::of(&page, utxo_batch_size);
    outputs::join(&mut page, place, slots, inputs, rows)?;
    Ok(page)
}

/// Compares the rows of `outputs` with the number that was stored with the page. A table that was emptied or restored
/// without the others would read as a page whose outputs never were.
fn check_output_rows(slots: Option<u32>, stored: Option<u64>, found: usize) -> Result<(), DamagedRows> {
    if slots.is_none() || stored == Some(found as u64) {
        return Ok(());
    }
    let stored = stored.map_or_else(|| "an unknown number".to_owned(), |stored| stored.to_string());
    Err(DamagedRows::new(format!("the page has {found} rows of outputs instead of {stored}; rebuild the store")))
}

fn join_mined(rows: &TableRows) -> Result<Vec<MinedIn>, DamagedRows> {
    let triple = |row: &Row| {
        let mut r = RowReader::new(row, 2);
        Ok(MinedIn { block_id: r.u32("block_id")?, height: r.u32("height")?, subtree: r.u32("subtree")? })
    };
    rows.0[MINED_IN].iter().map(triple).collect()
}

fn join_block(block_id: u32, row: &Row) -> Result<Record, DamagedRows> {
    let mut r = RowReader::new(row, 1);
    let (hash, previous) = (r.hash("hash")?, r.hash("previous")?);
    let (height, time) = (r.u32("height")?, r.u32("time")?);
    let (longest_chain, progress) = (r.bool("longest_chain")?, r.u64("progress")?);
    let phase = |number: u64| match number {
        0 => Ok(Phase::Evaluate),
        1 => Ok(Phase::Apply),
        2 => Ok(Phase::Prune),
        _ => Err(DamagedRows::new("column chain_phase")),
    };
    let chain_pos = match (r.optional_u64("chain_offset")?, r.optional_u64("chain_phase")?) {
        (None, None) => None,
        (Some(offset), Some(number)) => Some(Stamp { offset, phase: phase(number)? }),
        _ => return Err(DamagedRows::new("columns chain_offset and chain_phase")),
    };
    Ok(Record::Block(BlockRecord { block_id, hash, previous, height, time, longest_chain, progress, chain_pos }))
}

/// Reads the columns of a row one after the other.
pub(super) struct RowReader<'a> {
    values: std::slice::Iter<'a, Value>,
}

impl<'a> RowReader<'a> {
    /// Starts at column `first`.
    pub fn new(row: &'a [Value], first: usize) -> Self {
        RowReader { values: row.get(first..).unwrap_or_default().iter() }
    }

    pub fn optional_u64(&mut self, column: &str) -> Result<Option<u64>, DamagedRows> {
        match self.values.next() {
            Some(Value::Int(number)) => Ok(number.map(|number| number as u64)),
            _ => Err(damaged(column)),
        }
    }

    pub fn optional_u32(&mut self, column: &str) -> Result<Option<u32>, DamagedRows> {
        let number = self.optional_u64(column)?;
        number.map(|number| u32::try_from(number).map_err(|_| damaged(column))).transpose()
    }

    pub fn u64(&mut self, column: &str) -> Result<u64, DamagedRows> {
        self.optional_u64(column)?.ok_or_else(|| damaged(column))
    }

    pub fn u32(&mut self, column: &str) -> Result<u32, DamagedRows> {
        self.optional_u32(column)?.ok_or_else(|| damaged(column))
    }

    pub fn optional_bytes(&mut self, column: &str) -> Result<Option<Bytes>, DamagedRows> {
        match self.values.next() {
            Some(Value::Bytes(bytes)) => Ok(bytes.clone()),
            _ => Err(damaged(column)),
        }
    }

    pub fn bytes(&mut self, column: &str) -> Result<Bytes, DamagedRows> {
        self.optional_bytes(column)?.ok_or_else(|| damaged(column))
    }

    pub fn optional_hash(&mut self, column: &str) -> Result<Option<[u8; 32]>, DamagedRows> {
        let bytes = self.optional_bytes(column)?;
        bytes.map(|bytes| bytes[..].try_into().map_err(|_| damaged(column))).transpose()
    }

    pub fn hash(&mut self, column: &str) -> Result<[u8; 32], DamagedRows> {
        self.optional_hash(column)?.ok_or_else(|| damaged(column))
    }

    pub fn bool(&mut self, column: &str) -> Result<bool, DamagedRows> {
        match self.values.next() {
            Some(Value::Bool(value)) => Ok(*value),
            _ => Err(damaged(column)),
        }
    }
}

fn damaged(column: &str) -> DamagedRows {
    DamagedRows::new(format!("column {column}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        engine::conformance::fixtures,
        record::{Body, Reassignment, Slot, SpendingData, StoredOutput, codec::tests::stored},
        tx::{Txid, UtxoHash},
    };

    const BATCH: u32 = 20_000;

    fn assert_round_trip(key: &Key, record: &Record) -> TableRows {
        let rows = split(key, record, BATCH).unwrap();
        assert_eq!(join(key, &rows, BATCH).unwrap().as_ref(), Some(record));
        rows
    }

    proptest! {
        #[test]
        fn every_record_is_made_again_of_its_rows((key, record) in stored(), is_first in any::<bool>()) {
            match record {
                // Page 0 has rows of blocks and of its body's outputs.
                Record::Page(page) if is_first => {
                    let page = Page { number: 0, ..std::sync::Arc::unwrap_or_clone(page) };
                    assert_round_trip(&Key::master(page.txid), &Record::Page(page.into()));
                }
                record => drop(assert_round_trip(&key, &record)),
            }
        }
    }

    /// A whole transaction, a partial one, an external body; each with slots of every kind.
    #[test]
    fn the_outputs_of_an_inline_body_are_rows_and_nowhere_else() {
        let txid = Txid([7; 32]);
        for (mut page, has_outputs) in [
            (fixtures::page_with_transaction(txid, 4), true),
            (fixtures::page_of(txid, 4), true),
            (fixtures::page_with_external_body(txid, 4), false),
        ] {
            let slots = page.utxos.as_mut().unwrap();
            slots[1] = Slot::Spent(fixtures::hash(1), SpendingData { txid: Txid([9; 32]), input: 3 });
            slots[2] = Slot::Frozen(fixtures::hash(2));
            slots[3] = Slot::Nil;
            page.spent_utxos = 1;
            page.utxo_spendable_in.insert(0, 900);
            let owner = StoredOutput { satoshis: 5, script: Bytes::from_static(b"owner") };
            let (utxo_hash, new_utxo_hash) = (UtxoHash([1; 32]), fixtures::hash(0));
            page.reassignments =
                vec![Reassignment { offset: 0, utxo_hash, new_utxo_hash, block_height: 8, output: owner }];
            let rows = assert_round_trip(&Key::master(txid), &Record::Page(page.clone().into()));
            let outputs = &rows.0[OUTPUTS];
            // A slot that is nil has a row for its output only.
            assert_eq!(outputs.len(), if has_outputs { 4 } else { 3 });
            let transaction = &rows.0[TRANSACTIONS][0];
            let Value::Bytes(Some(rest)) = transaction.last().unwrap() else { panic!("no rest") };
            // The audit entry of the reassignment takes 70 bytes.
            assert!(rest.len() < 100, "{} bytes", rest.len());
            if let Some(Body::Transaction(body)) = page.body() {
                let Value::Bytes(Some(inputs)) = &transaction[22] else { panic!("no inputs") };
                assert_eq!(inputs.len(), body.len() - 4 * 10 - 1, "everything but the outputs and their number");
            }
        }
    }

    #[test]
    fn a_spend_changes_one_row() {
        let page = fixtures::page_with_transaction(Txid([7; 32]), 4);
        let mut spent = page.clone();
        let spender = SpendingData { txid: Txid([9; 32]), input: 3 };
        spent.utxos.as_mut().unwrap()[1] = Slot::Spent(fixtures::hash(1), spender);
        spent.spent_utxos += 1;
        let split = |page: Page| split(&Key::master(page.txid), &Record::Page(page.into()), BATCH).unwrap();
        let mut changes = super::super::tables::Changes::default();
        changes.add(&split(page), split(spent));
        let counts: Vec<_> =
            changes.0.iter().map(|table| (table.inserted.len(), table.updated.len(), table.deleted.len())).collect();
        assert_eq!(counts, [(0, 0, 0), (0, 1, 0), (0, 0, 0), (0, 0, 0), (0, 0, 0)]);
    }

    /// A table that was restored or emptied without the others.
    #[test]
    fn a_page_with_another_number_of_outputs_is_damaged() {
        let page = fixtures::page_of(Txid([7; 32]), 4);
        let key = Key::master(page.txid);
        let rows = split(&key, &Record::Page(page.into()), BATCH).unwrap();
        for kept in 0..4 {
            let mut lost = rows.clone();
            lost.0[OUTPUTS].truncate(kept);
            let error = join(&key, &lost, BATCH).unwrap_err().to_string();
            assert!(error.contains(&format!("{kept} rows of outputs instead of 4")), "{error}");
        }
        let mut older = rows;
        older.0[TRANSACTIONS][0][16] = Value::Int(None);
        assert!(join(&key, &older, BATCH).unwrap_err().to_string().contains("instead of an unknown number"));
    }

    #[test]
    fn more_slots_than_a_page_has_are_refused() {
        let page = fixtures::page_of(Txid([7; 32]), 4);
        let error = split(&Key::master(page.txid), &Record::Page(page.into()), 3).unwrap_err();
        assert_eq!(error, SplitError::TooManySlots { slots: 4, utxo_batch_size: 3 });
    }
}
