//! One call of `apply`, done ahead of its turn: on the records as they are found, by as many threads as there are calls.
//!
//! What comes of it is a guess, and nearly always right. The committer puts right what others have changed meanwhile, and
//! is left with little more than the writing.

use std::{ops::Range, sync::atomic::Ordering};

use ::fjall::{OwnedWriteBatch as WriteBatch, Slice};

use super::tables::Tables;
use crate::{
    engine::{
        EngineError, Row,
        key::first_bytes,
        local::{IndexValues, index_values},
    },
    record::{self, Key, Outcome, Record, Rejection, Rules, codec},
};

pub(super) type Answer = Result<Outcome, EngineError>;

/// One call, and what it has come to so far.
pub(super) struct Job {
    rows: Rows,
    /// One for each record that the rows are about, ascending by key.
    pub touched: Vec<Touched>,
    /// Groups that had been written, whole, before the first record was read.
    pub seen: u64,
}

/// The rows of a call, by record.
struct Rows {
    rows: Vec<Row>,
    /// Numbers of rows, ascending by key, those of one key as they came: records that follow each other lie closer
    /// together in fjall's memory than records at random.
    by_key: Vec<u32>,
    /// Parallel to `by_key`.
    answers: Vec<Answer>,
}

/// A record, and the rows on it.
pub(super) struct Touched {
    pub key: Key,
    /// See [`first_bytes`].
    first_bytes: u64,
    /// Their places in [`Rows::by_key`].
    rows: Range<usize>,
    /// Before the rows; then as they leave it.
    state: Result<State, EngineError>,
}

/// A record, as the rows of a group so far have left it.
struct State {
    record: Option<Record>,
    /// What is stored, from before the group.
    was_there: bool,
    indexed: IndexValues,
    /// Whether `record` is another by now.
    changed: bool,
    /// `record` as it is written, once it is encoded.
    value: Option<Slice>,
}

impl Job {
    /// Reads what the rows are about, applies them and encodes what comes of it. Waits for the disk.
    pub fn prepare(tables: &Tables, rules: &Rules, rows: Vec<Row>) -> Self {
        let seen = tables.groups.load(Ordering::Acquire);
        let mut rows = Rows::new(rows);
        let records = rows.records();
        // All at once: none of these looks into memory has to wait for another.
        let absent: Vec<bool> = records.iter().map(|(key, _)| tables.known.is_absent(key)).collect();
        let mut touched = Vec::with_capacity(records.len());
        let mut buffer = Vec::new();
        for ((key, same), absent) in records.into_iter().zip(absent) {
            let state = if absent { Ok(State::of(None)) } else { State::stored(tables, &key) };
            let mut next = Touched { key, first_bytes: first_bytes(&key), rows: same, state };
            rows.apply(rules, &mut next);
            next.encode(&mut buffer);
            touched.push(next);
        }
        Job { rows, touched, seen }
    }

    /// How many rows.
    pub fn len(&self) -> usize {
        self.rows.rows.len()
    }

    /// Does the rows on the record at `place` again, on what is stored now.
    pub fn read_again(&mut self, tables: &Tables, rules: &Rules, place: usize) {
        let touched = &mut self.touched[place];
        touched.state = State::stored(tables, &touched.key);
        self.rows.apply(rules, touched);
    }

    /// Does the rows on the record at `place` again, on what another call of the group has made of it, and takes over
    /// the writing of both.
    pub fn go_on(&mut self, rules: &Rules, place: usize, from: &mut Touched) {
        let touched = &mut self.touched[place];
        std::mem::swap(&mut touched.state, &mut from.state);
        from.keep();
        self.rows.apply(rules, touched);
    }

    /// Nothing of the group is known to be there: neither may rest on it what changed nothing.
    pub fn fail(&mut self, error: &EngineError) {
        self.rows.answers.iter_mut().filter(|answer| answer.is_ok()).for_each(|answer| *answer = Err(error.clone()));
    }

    /// In the order of the rows.
    pub fn answers(self) -> Vec<Answer> {
        let Rows { by_key, mut answers, .. } = self.rows;
        let mut places = vec![0; by_key.len()];
        by_key.iter().zip(0..).for_each(|(number, place)| places[*number as usize] = place);
        // Each is taken once: what is left in its place is never seen.
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

    /// The records that the rows are about, each with the places of its rows.
    fn records(&self) -> Vec<(Key, Range<usize>)> {
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

    /// Applies the rows on a record to its state; their answers take the place of earlier ones.
    fn apply(&mut self, rules: &Rules, touched: &mut Touched) {
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

impl Touched {
    /// Sorts records as their keys are stored.
    pub fn order(&self) -> impl Ord + use<> {
        (self.first_bytes, self.key)
    }

    /// Whether the record could not be read.
    pub fn is_unread(&self) -> bool {
        self.state.is_err()
    }

    /// Whether there is something to write.
    pub fn is_changed(&self) -> bool {
        self.state.as_ref().is_ok_and(|state| state.changed)
    }

    /// Leaves the writing to another.
    fn keep(&mut self) {
        if let Ok(state) = &mut self.state {
            state.changed = false;
        }
    }

    fn encode(&mut self, buffer: &mut Vec<u8>) {
        if let Ok(state) = &mut self.state
            && state.changed
            && let Some(record) = &state.record
            && state.value.is_none()
        {
            buffer.clear();
            codec::encode(record, buffer);
            state.value = Some(Slice::from(&buffer[..]));
        }
    }

    /// Adds what there is to write to the batch: the record, or its absence.
    pub fn write(&mut self, tables: &Tables, batch: &mut WriteBatch, buffer: &mut Vec<u8>) {
        self.encode(buffer);
        let Ok(state) = &mut self.state else { return };
        if state.changed && (state.record.is_some() || state.was_there) {
            tables.put(batch, &self.key, state.value.take());
        }
    }

    /// Adds what changes in the indexes to the batch.
    pub fn reindex(&self, tables: &Tables, batch: &mut WriteBatch) {
        let Ok(state) = &self.state else { return };
        if state.changed {
            tables.reindex(batch, &self.key, state.indexed, index_values(state.record.as_ref()));
        }
    }
}

impl State {
    fn stored(tables: &Tables, key: &Key) -> Result<Self, EngineError> {
        tables.get(key).map(State::of)
    }

    fn of(record: Option<Record>) -> Self {
        let (was_there, indexed) = (record.is_some(), index_values(record.as_ref()));
        State { record, was_there, indexed, changed: false, value: None }
    }

    fn apply(&mut self, rules: &Rules, row: &Row) -> Outcome {
        let effect = record::apply(rules, &row.key, &mut self.record, &row.operation);
        if effect.changed {
            self.changed = true;
            self.value = None;
        }
        effect.outcome
    }
}
