//! Conformance suite for every engine: the changes of a [`RecordEngine`] must equal those of [`crate::record::apply`].
//!
//! The checks are library code, so that the tests of each engine, and of engines with faults, run the same checks. A
//! check panics with a message that names the difference. A retryable failure is retried, so that the suite also runs
//! where replies get lost; a row that was retried may return the outcome of a repeated operation.

pub(crate) mod fixtures;
mod indexes;
mod races;
mod scans;
mod sequences;
mod states;

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use super::{EngineError, ErrorKind, RecordEngine, Row, ScanPart, Set};
use crate::{
    record::{Key, Outcome, Record, Rules, SelectedPage, Selection},
    rng::SplitMix64,
};

/// Rules with which an engine under test must be opened.
pub const RULES: Rules = Rules::main(288);

/// A named check. Each check uses keys of its own, so that all can run on one engine, which must be empty before.
#[derive(Clone, Copy)]
pub struct EngineCheck {
    /// Name of the check, which states the property.
    pub name: &'static str,
    run: fn(EngineBench) -> Pin<Box<dyn Future<Output = ()> + Send>>,
}

macro_rules! checks {
    ($($module:ident::$name:ident),* $(,)?) => {
        &[$(EngineCheck { name: stringify!($name), run: |bench| Box::pin($module::$name(bench)) }),*]
    };
}

/// All checks of the suite. The last check closes the engine.
pub const CHECKS: &[EngineCheck] = checks![
    states::every_operation_in_every_state,
    states::selected_parts_of_every_state,
    states::meta_record,
    states::command_records,
    states::sentinels,
    states::a_batch_of_a_thousand_mixed_rows,
    states::empty_batch,
    sequences::random_sequences,
    races::one_spender_wins,
    races::one_creator_wins,
    races::many_rows_on_one_key_in_one_batch,
    races::every_slot_of_a_busy_record,
    races::acknowledged_changes_are_read,
    indexes::order_range_and_limit,
    indexes::entries_follow_the_record,
    scans::each_record_exactly_once,
    scans::sets_do_not_mix,
    closing::a_closed_engine_refuses,
];

impl EngineCheck {
    /// Runs the check on an engine.
    ///
    /// # Panics
    /// If the engine does not conform.
    pub async fn run(&self, engine: Arc<dyn RecordEngine>) {
        (self.run)(EngineBench { engine, check: self.name }).await;
    }
}

/// Runs every check on one engine, and closes it.
///
/// # Panics
/// If the engine does not conform.
pub async fn run(engine: Arc<dyn RecordEngine>) {
    for check in CHECKS {
        check.run(engine.clone()).await;
    }
}

/// Draws a random operation on one of the records of a family. `number` picks the record and its kind, `step` counts
/// up. Equal numbers give equal rows to every engine.
pub fn random_row(rng: &mut SplitMix64, family: &str, number: u64, step: u64) -> Row {
    sequences::row(rng, fixtures::txid_of(family, number), number, step)
}

/// Number of attempts after which a failing engine counts as broken.
const ATTEMPTS: usize = 1_000;
const PAUSE: Duration = Duration::from_millis(1);
/// Largest number of rows or keys in one call of an engine.
const BATCH: usize = 1_000;

/// An engine under test with the name of the running check.
#[derive(Clone)]
struct EngineBench {
    engine: Arc<dyn RecordEngine>,
    check: &'static str,
}

/// An engine's answer to a row.
#[derive(Debug, Clone)]
struct RowAnswer {
    outcome: Outcome,
    /// An earlier attempt may have taken effect with its reply lost.
    is_retry: bool,
}

impl RowAnswer {
    /// Returns whether the answer is the outcome of the pure function: of the row, or after a retry of the repeated
    /// row.
    fn matches(&self, expected: &Outcome, of_repeat: &Outcome) -> bool {
        self.outcome == *expected || (self.is_retry && self.outcome == *of_repeat)
    }
}

impl EngineBench {
    /// Returns the id of a transaction that only this check uses.
    fn txid(&self, number: u64) -> crate::tx::Txid {
        fixtures::txid_of(self.check, number)
    }

    /// Applies rows until each is answered.
    async fn apply(&self, rows: &[Row]) -> Vec<RowAnswer> {
        let mut answers = Vec::with_capacity(rows.len());
        for batch in rows.chunks(BATCH) {
            answers.extend(self.apply_batch(batch).await);
        }
        answers
    }

    async fn apply_batch(&self, rows: &[Row]) -> Vec<RowAnswer> {
        let mut answers: Vec<Option<RowAnswer>> = vec![None; rows.len()];
        let mut is_retry = vec![false; rows.len()];
        for _ in 0..ATTEMPTS {
            let open: Vec<usize> = (0..rows.len()).filter(|row| answers[*row].is_none()).collect();
            if open.is_empty() {
                break;
            }
            let batch: Vec<Row> = open.iter().map(|row| rows[*row].clone()).collect();
            let results = self.engine.apply(&batch).await;
            assert_eq!(results.len(), batch.len(), "{}: one answer a row", self.check);
            for (row, result) in open.into_iter().zip(results) {
                match result {
                    Ok(outcome) => answers[row] = Some(RowAnswer { outcome, is_retry: is_retry[row] }),
                    Err(error) if error.may_be_retried() => is_retry[row] |= error.kind == ErrorKind::Unknown,
                    Err(error) => panic!("{}: {:?}: {error}", self.check, rows[row]),
                }
            }
            if answers.iter().any(Option::is_none) {
                tokio::time::sleep(PAUSE).await;
            }
        }
        let answered = |(row, answer): (usize, Option<RowAnswer>)| {
            answer.unwrap_or_else(|| panic!("{}: {:?} failed {ATTEMPTS} times", self.check, rows[row]))
        };
        answers.into_iter().enumerate().map(answered).collect()
    }

    async fn apply_one(&self, row: Row) -> RowAnswer {
        self.apply(&[row]).await.remove(0)
    }

    /// Applies rows and panics unless every outcome is `Applied` or `AlreadyApplied`.
    async fn must_apply(&self, rows: &[Row]) {
        for (row, answer) in rows.iter().zip(self.apply(rows).await) {
            assert!(answer.outcome.is_done(), "{}: {row:?} was {:?}", self.check, answer.outcome);
        }
    }

    async fn read(&self, keys: &[Key]) -> Vec<Option<Record>> {
        let mut records = Vec::with_capacity(keys.len());
        for batch in keys.chunks(BATCH) {
            let results = self.retry("read", || collect_results(self.engine.read(batch))).await;
            assert_eq!(results.len(), batch.len(), "{}: one answer a key", self.check);
            records.extend(results);
        }
        records
    }

    async fn read_selected(&self, pages: &[(Key, Selection)]) -> Vec<Option<SelectedPage>> {
        let results = self.retry("read selected", || collect_results(self.engine.read_selected(pages))).await;
        assert_eq!(results.len(), pages.len(), "{}: one answer a page", self.check);
        results
    }

    async fn read_one(&self, key: Key) -> Option<Record> {
        self.read(&[key]).await.remove(0)
    }

    /// Returns all records of a set, read page by page.
    async fn scan(&self, set: Set, limit: usize) -> Vec<(Key, Record)> {
        let (mut records, mut cursor) = (Vec::new(), None);
        loop {
            let page = self.retry("scan", || self.engine.scan(set, cursor.clone(), limit)).await;
            records.extend(page.records);
            cursor = page.next;
            if cursor.is_none() {
                return records;
            }
        }
    }

    async fn scan_part(&self, part: ScanPart, limit: usize) -> Vec<(Key, Record)> {
        let (mut records, mut cursor) = (Vec::new(), None);
        loop {
            let page = self.retry("scan", || self.engine.scan_part(part, cursor.clone(), limit)).await;
            records.extend(page.records);
            cursor = page.next;
            if cursor.is_none() {
                return records;
            }
        }
    }

    /// Returns the keys of an index in a range, read part by part.
    async fn query_parts(&self, index: super::Index, from: u64, to: u64) -> Vec<Key> {
        let (mut keys, mut cursor) = (Vec::new(), None);
        loop {
            let part = self.retry("query", || self.engine.query_part(index, (from, to), cursor.clone())).await;
            keys.extend(part.keys);
            cursor = part.next;
            if cursor.is_none() {
                return keys;
            }
        }
    }

    /// Returns the keys of an index in a range, ascending by value.
    async fn query(&self, index: super::Index, from: u64, to: u64, limit: usize) -> Vec<Key> {
        self.retry("query", || self.engine.query(index, from, to, limit)).await
    }

    async fn retry<T, F: Future<Output = Result<T, EngineError>>>(
        &self,
        what: &str,
        mut attempt: impl FnMut() -> F,
    ) -> T {
        for _ in 0..ATTEMPTS {
            match attempt().await {
                Ok(value) => return value,
                Err(error) if error.may_be_retried() => tokio::time::sleep(PAUSE).await,
                Err(error) => panic!("{}: {what}: {error}", self.check),
            }
        }
        panic!("{}: {what} failed {ATTEMPTS} times", self.check)
    }
}

async fn collect_results<T>(
    results: impl Future<Output = Vec<Result<Option<T>, EngineError>>>,
) -> Result<Vec<Option<T>>, EngineError> {
    results.await.into_iter().collect()
}

mod closing {
    use super::{
        super::{ErrorKind, Index, Set},
        EngineBench, fixtures,
    };
    use crate::record::Key;

    pub(super) async fn a_closed_engine_refuses(bench: EngineBench) {
        let row = fixtures::create(fixtures::page_of(bench.txid(0), 1));
        bench.must_apply(std::slice::from_ref(&row)).await;
        for _ in 0..2 {
            bench.engine.close().await.expect("closing an open and a closed engine");
        }
        let engine = &bench.engine;
        let errors = [
            engine.apply(&[row]).await.remove(0).map(drop),
            engine.read(&[Key::Meta]).await.remove(0).map(drop),
            engine.query(Index::UnminedSince, 0, 1, 1).await.map(drop),
            engine.scan(Set::Blocks, None, 1).await.map(drop),
        ];
        for error in errors {
            let error = error.expect_err("a closed engine answered");
            assert_eq!(error.kind, ErrorKind::Fatal, "{error}");
        }
    }
}

#[cfg(test)]
mod tests;
