//! A job: one call of `apply`, applied ahead of the committer on the records as they are read. Calls run in parallel.
//!
//! The result is provisional, and nearly always right. The committer corrects what other calls have changed since, and
//! is left with little more than the writing.

use std::{ops::Range, sync::atomic::Ordering};

use ::fjall::{OwnedWriteBatch as WriteBatch, Slice};

use super::tables::Tables;
use crate::{
    engine::{
        EngineError, Row, RowResult,
        key::first_bytes,
        local::{IndexValues, index_values},
    },
    record::{self, Key, Outcome, Record, Rejection, Rules, codec},
};

/// A call of `apply` with its provisional results.
pub(super) struct Job {
    rows: Rows,
    /// The records that the rows name, ascending by key.
    pub touched: Vec<TouchedRecord>,
    /// Write groups that had been written whole before the first record was read.
    pub groups_seen: u64,
}

/// The rows of a call, grouped by record.
struct Rows {
    rows: Vec<Row>,
    /// Indexes of rows, ascending by key; rows on one key keep their order. Neighbouring records lie closer together in
    /// fjall's memory than records at random.
    by_key: Vec<u32>,
    /// Answers, parallel to `by_key`.
    answers: Vec<RowResult>,
}

/// A record, and the rows on it.
pub(super) struct TouchedRecord {
    pub key: Key,
    /// The result of [`first_bytes`] for `key`.
    first_bytes: u64,
    /// Range of the rows in [`Rows::by_key`].
    rows: Range<usize>,
    /// The record before the rows are applied, then after.
    state: Result<RecordState, EngineError>,
}

/// A record with the rows of a write group so far applied.
struct RecordState {
    record: Option<Record>,
    /// True where the record was stored before the write group.
    was_stored: bool,
    indexed: IndexValues,
    /// True once `record` differs from the stored record.
    has_changed: bool,
    /// The encoding of `record`, once made.
    value: Option<Slice>,
}

impl Job {
    /// Reads the records of the rows, applies the rows and encodes the results. Waits for the disk.
    pub fn prepare(tables: &Tables, rules: &Rules, rows: Vec<Row>) -> Self {
        let groups_seen = tables.groups_written.load(Ordering::Acquire);
        let mut rows = Rows::new(rows);
        let records = rows.group_by_record();
        // One loop for all keys: the processor overlaps the filter's look-ups in memory.
        let absent: Vec<bool> = records.iter().map(|(key, _)| tables.txid_filter.is_absent(key)).collect();
        let mut touched = Vec::with_capacity(records.len());
        let mut buffer = Vec::new();
        for ((key, key_rows), absent) in records.into_iter().zip(absent) {
            let state = if absent { Ok(RecordState::new(None)) } else { RecordState::read(tables, &key) };
            let mut record = TouchedRecord { key, first_bytes: first_bytes(&key), rows: key_rows, state };
            rows.apply(rules, &mut record);
            record.encode(&mut buffer);
            touched.push(record);
        }
        Job { rows, touched, groups_seen }
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.rows.rows.len()
    }

    /// Applies the rows on the record at `place` again, to the record as stored now.
    pub fn reread(&mut self, tables: &Tables, rules: &Rules, place: usize) {
        let touched = &mut self.touched[place];
        touched.state = RecordState::read(tables, &touched.key);
        self.rows.apply(rules, touched);
    }

    /// Applies the rows on the record at `place` again, to the result of an earlier call of the write group, and takes
    /// over the write of both.
    pub fn continue_from(&mut self, rules: &Rules, place: usize, from: &mut TouchedRecord) {
        let touched = &mut self.touched[place];
        std::mem::swap(&mut touched.state, &mut from.state);
        from.give_up_write();
        self.rows.apply(rules, touched);
    }

    /// Replaces every successful answer by `error`: no row of the write group is known to be stored, and an answer that
    /// changed nothing may rest on a row that is not.
    pub fn fail_all(&mut self, error: &EngineError) {
        self.rows.answers.iter_mut().filter(|answer| answer.is_ok()).for_each(|answer| *answer = Err(error.clone()));
    }

    /// Returns the answers in the order of the rows.
    pub fn into_answers(self) -> Vec<RowResult> {
        let Rows { by_key, mut answers, .. } = self.rows;
        let mut places = vec![0; by_key.len()];
        by_key.iter().zip(0..).for_each(|(number, place)| places[*number as usize] = place);
        // Each answer is taken once; the placeholder is never read.
        let take = |place: usize| std::mem::replace(&mut answers[place], Ok(Outcome::Rejected(Rejection::Unexpected)));
        places.into_iter().map(take).collect()
    }
}

impl Rows {
    fn new(rows: Vec<Row>) -> Self {
        let mut places: Vec<(u64, u32)> = rows.iter().map(|row| first_bytes(&row.key)).zip(0..).collect();
        places.sort_unstable_by(|(a, m), (b, n)| {
            let key = |number: u32| rows[number as usize].key;
            a.cmp(b).then_with(|| key(*m).cmp(&key(*n))).then(m.cmp(n))
        });
        let by_key = places.into_iter().map(|(_, number)| number).collect();
        Rows { answers: Vec::with_capacity(rows.len()), rows, by_key }
    }

    /// Returns the records that the rows name, each with the range of its rows.
    fn group_by_record(&self) -> Vec<(Key, Range<usize>)> {
        let mut records: Vec<(Key, Range<usize>)> = Vec::with_capacity(self.by_key.len());
        for (place, number) in self.by_key.iter().enumerate() {
            let key = self.rows[*number as usize].key;
            match records.last_mut() {
                Some((last, rows)) if *last == key => rows.end = place + 1,
                _ => records.push((key, place..place + 1)),
            }
        }
        records
    }

    /// Applies the rows on a record to its state. New answers replace earlier ones.
    fn apply(&mut self, rules: &Rules, touched: &mut TouchedRecord) {
        for place in touched.rows.clone() {
            let row = &self.rows[self.by_key[place] as usize];
            let answer = match &mut touched.state {
                Ok(state) => Ok(state.apply(rules, row)),
                Err(error) => Err(error.clone()),
            };
            match self.answers.get_mut(place) {
                Some(before) => *before = answer,
                None => self.answers.push(answer),
            }
        }
    }
}

impl TouchedRecord {
    /// Returns a key that sorts records as they are stored.
    pub fn sort_key(&self) -> impl Ord + use<> {
        (self.first_bytes, self.key)
    }

    /// Returns whether reading the record failed.
    pub fn is_unreadable(&self) -> bool {
        self.state.is_err()
    }

    /// Returns whether the record needs a write.
    pub fn is_changed(&self) -> bool {
        self.state.as_ref().is_ok_and(|state| state.has_changed)
    }

    /// Leaves the write to a later call.
    fn give_up_write(&mut self) {
        if let Ok(state) = &mut self.state {
            state.has_changed = false;
        }
    }

    fn encode(&mut self, buffer: &mut Vec<u8>) {
        if let Ok(state) = &mut self.state
            && state.has_changed
            && let Some(record) = &state.record
            && state.value.is_none()
        {
            buffer.clear();
            codec::encode(record, buffer);
            state.value = Some(Slice::from(&buffer[..]));
        }
    }

    /// Adds the record, or its removal, to the batch.
    pub fn write(&mut self, tables: &Tables, batch: &mut WriteBatch, buffer: &mut Vec<u8>) {
        self.encode(buffer);
        let Ok(state) = &mut self.state else { return };
        if state.has_changed && (state.record.is_some() || state.was_stored) {
            tables.put(batch, &self.key, state.value.take());
        }
    }

    /// Adds the changed index entries to the batch.
    pub fn reindex(&self, tables: &Tables, batch: &mut WriteBatch) {
        let Ok(state) = &self.state else { return };
        if state.has_changed {
            tables.reindex(batch, &self.key, state.indexed, index_values(state.record.as_ref()));
        }
    }
}

impl RecordState {
    fn read(tables: &Tables, key: &Key) -> Result<Self, EngineError> {
        tables.get(key).map(RecordState::new)
    }

    fn new(record: Option<Record>) -> Self {
        let (was_stored, indexed) = (record.is_some(), index_values(record.as_ref()));
        RecordState { record, was_stored, indexed, has_changed: false, value: None }
    }

    fn apply(&mut self, rules: &Rules, row: &Row) -> Outcome {
        let effect = record::apply(rules, &row.key, &mut self.record, &row.operation);
        if effect.changed {
            self.has_changed = true;
            self.value = None;
        }
        effect.outcome
    }
}
