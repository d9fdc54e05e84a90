//! Tests of the committer with calls that ran in parallel.

use super::*;
use crate::{
    engine::{
        Index, Row, RowResult,
        conformance::fixtures::*,
        fjall::{FjallOptions, open},
    },
    record::{Key, Outcome, Page, Record, Rejection, Sequenced},
};

const RULES: Rules = Rules::main(288);

struct Harness {
    directory: tempfile::TempDir,
    tables: Tables,
    recent: RecentChanges,
}

impl Harness {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let tables = open::open(directory.path(), FjallOptions { cache_bytes: 1 << 20 }).unwrap();
        Harness { directory, tables, recent: RecentChanges::default() }
    }

    fn prepare(&self, rows: impl Into<Vec<Row>>) -> Job {
        Job::prepare(&self.tables, &RULES, rows.into())
    }

    /// Writes the calls as one group.
    fn commit(&mut self, jobs: impl Into<Vec<Job>>) -> Vec<Vec<RowResult>> {
        let (jobs, batch) = self.reconcile(jobs, |_| ());
        self.write(jobs, batch)
    }

    /// Returns the reconciled calls and their batch; `wait` must write the previous group.
    fn reconcile(&mut self, jobs: impl Into<Vec<Job>>, mut wait: impl FnMut(&Self)) -> (Vec<Job>, WriteBatch) {
        let mut jobs = jobs.into();
        let wait = || {
            wait(self);
            Ok(())
        };
        let changed = super::reconcile(&self.tables, &RULES, &mut jobs, &self.recent, wait).unwrap();
        let batch = super::build_batch(&self.tables, &mut jobs, &mut Vec::new());
        self.recent.push(changed);
        (jobs, batch)
    }

    fn write(&self, mut jobs: Vec<Job>, batch: WriteBatch) -> Vec<Vec<RowResult>> {
        super::commit_batch(&self.tables, &mut jobs, batch);
        jobs.into_iter().map(Job::into_answers).collect()
    }

    /// Applies and writes one call with no other call in between.
    fn apply(&mut self, rows: impl Into<Vec<Row>>) -> Vec<RowResult> {
        self.commit([self.prepare(rows)]).remove(0)
    }

    fn page(&self, n: u8) -> Page {
        page_in(&self.tables, n)
    }

    fn spender(&self, n: u8, slot: usize) -> Option<u8> {
        self.page(n).utxos.unwrap()[slot].spender().map(|by| by.txid.0[0])
    }

    fn unmined(&self) -> Vec<Key> {
        self.tables.query(Index::UnminedSince, 0, u64::MAX, 10).unwrap()
    }
}

fn page_in(tables: &Tables, n: u8) -> Page {
    tables.get(&Key::master(txid(n))).unwrap().as_ref().and_then(Record::page).unwrap().clone()
}

fn is_done(answer: &RowResult) -> bool {
    answer.as_ref().unwrap().is_done()
}

/// Returns whether the answer refuses a spend because `winner` holds slot 0.
fn is_refused_for(answer: &RowResult, winner: u8) -> bool {
    matches!(answer, Ok(Outcome::Rejected(Rejection::SpentBy(0, by))) if by.txid == txid(winner))
}

#[test]
fn calls_of_one_group_act_in_sequence() {
    let mut harness = Harness::new();
    let calls = [
        harness.prepare([create(page(1, 2))]),
        harness.prepare([spend(txid(1), 7, &[0]), create(page(2, 1))]),
        harness.prepare([spend(txid(1), 8, &[0])]),
        harness.prepare([spend(txid(1), 9, &[1]), spend(txid(2), 9, &[0]), spend(txid(3), 9, &[0])]),
    ];
    let answers = harness.commit(calls);
    assert!(answers[0].iter().chain(&answers[1]).all(is_done), "{answers:?}");
    assert!(is_refused_for(&answers[2][0], 7), "{answers:?}");
    assert!(is_done(&answers[3][0]) && is_done(&answers[3][1]), "{answers:?}");
    assert!(matches!(answers[3][2], Ok(Outcome::Rejected(Rejection::NotFound))), "{answers:?}");
    assert_eq!([harness.spender(1, 0), harness.spender(1, 1), harness.spender(2, 0)], [Some(7), Some(9), Some(9)]);
    assert_eq!(harness.page(1).spent_utxos, 2);
    assert_eq!(harness.tables.records.approximate_len(), 2, "versions of two records");
    assert_eq!(harness.unmined(), [Key::master(txid(1)), Key::master(txid(2))]);
}

#[test]
fn records_changed_by_a_later_group_are_read_again() {
    let mut harness = Harness::new();
    harness.apply([create(page(1, 2)), create(page(2, 2))]);
    let (first, second) = (harness.prepare([spend(txid(1), 7, &[0])]), harness.prepare([spend(txid(1), 8, &[0])]));
    let other = harness.prepare([spend(txid(1), 9, &[1])]);
    assert!(is_done(&harness.commit([first])[0][0]));
    assert!(is_refused_for(&harness.commit([second])[0][0], 7));
    assert!(is_done(&harness.commit([other])[0][0]));
    assert_eq!([harness.spender(1, 0), harness.spender(1, 1)], [Some(7), Some(9)], "the second is on top of the first");
}

#[test]
fn records_of_the_unwritten_group_are_read_after_its_write() {
    let mut harness = Harness::new();
    harness.apply([create(page(1, 2)), create(page(2, 1))]);
    let calls = [harness.prepare([spend(txid(1), 7, &[0])]), harness.prepare([spend(txid(2), 7, &[0])])];
    let second_calls =
        [harness.prepare([create(page(3, 1)), spend(txid(1), 8, &[0])]), harness.prepare([spend(txid(1), 9, &[1])])];
    let mut first_group = Some(harness.reconcile(calls, |_| unreachable!("no group is unwritten")));
    let (second_calls, batch) = harness.reconcile(second_calls, |harness| {
        if let Some((jobs, batch)) = first_group.take() {
            assert!(harness.write(jobs, batch).iter().flatten().all(is_done));
        }
    });
    assert!(first_group.is_none(), "the second group waited for the first");
    let answers = harness.write(second_calls, batch);
    assert!(is_done(&answers[0][0]) && is_refused_for(&answers[0][1], 7) && is_done(&answers[1][0]), "{answers:?}");
    assert_eq!([harness.spender(1, 0), harness.spender(1, 1), harness.spender(2, 0)], [Some(7), Some(9), Some(7)]);
}

#[test]
fn no_call_waits_for_a_group_that_changes_other_records() {
    let mut harness = Harness::new();
    harness.apply([create(page(1, 1)), create(page(2, 1))]);
    let calls = [harness.prepare([spend(txid(1), 7, &[0])])];
    let second_calls = [harness.prepare([spend(txid(2), 8, &[0]), create(page(3, 1))])];
    let (calls, first) = harness.reconcile(calls, |_| unreachable!("no group is unwritten"));
    let (second_calls, second) = harness.reconcile(second_calls, |_| unreachable!("other records"));
    assert!(harness.write(calls, first).iter().chain(&harness.write(second_calls, second)).flatten().all(is_done));
    assert_eq!([harness.spender(1, 0), harness.spender(2, 0)], [Some(7), Some(8)]);
}

#[test]
fn calls_older_than_the_remembered_groups_are_read_again() {
    let mut harness = Harness::new();
    harness.apply([create(page(1, 1))]);
    let late_call = harness.prepare([spend(txid(1), 8, &[0])]);
    assert!(is_done(&harness.apply([spend(txid(1), 7, &[0])])[0]));
    for n in 100..120 {
        harness.apply([create(page(n, 1))]);
    }
    assert!(is_refused_for(&harness.commit([late_call])[0][0], 7));
}

#[test]
fn the_indexes_follow_the_record_stored_before_the_group() {
    let mut harness = Harness::new();
    harness.apply([create(page(1, 1))]);
    let set_mined = |n, longest_chain| Row {
        key: Key::master(txid(n)),
        operation: sequenced_at(5, Sequenced::SetMined { mined_in: mined_in(101), longest_chain }),
    };
    let calls = [
        harness.prepare([set_mined(1, false), create(page(2, 1))]),
        harness.prepare([set_mined(1, true)]),
        harness.prepare([set_mined(2, true)]),
    ];
    assert!(harness.commit(calls).iter().flatten().all(is_done));
    assert_eq!(harness.unmined(), []);
    assert_eq!(harness.tables.indexes[Index::UnminedSince as usize].iter().count(), 0);
}

#[test]
fn answers_and_rows_on_one_record_keep_the_order_of_the_call() {
    let mut harness = Harness::new();
    let rows = [
        create(page(9, 2)),
        spend(txid(5), 1, &[0]),
        spend(txid(9), 1, &[0]),
        create(page(5, 1)),
        spend(txid(9), 2, &[0]),
    ];
    let answers = harness.apply(rows);
    assert!(matches!(answers[1], Ok(Outcome::Rejected(Rejection::NotFound))), "{answers:?}");
    assert!(is_done(&answers[0]) && is_done(&answers[2]) && is_done(&answers[3]), "{answers:?}");
    assert!(is_refused_for(&answers[4], 1), "{answers:?}");
}

#[test]
fn reconciled_calls_are_stored_after_a_reopen() {
    let mut harness = Harness::new();
    let calls = [harness.prepare([create(page(1, 2))]), harness.prepare([spend(txid(1), 7, &[1])])];
    assert!(harness.commit(calls).iter().flatten().all(is_done));
    let before = harness.page(1);
    let Harness { directory, tables, .. } = harness;
    drop(tables);
    let tables = open::open(directory.path(), FjallOptions::default()).unwrap();
    assert_eq!(page_in(&tables, 1), before);
    assert_eq!(before.spent_utxos, 1);
}
