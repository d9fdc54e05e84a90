//! Calls that were done side by side, and what the committer makes of them.

use super::*;
use crate::{
    engine::{
        Index, Row,
        conformance::fixtures::*,
        fjall::{FjallOptions, job::Answer, open},
        local::place,
    },
    record::{Key, Outcome, Page, Record, Rejection, Sequenced},
};

const RULES: Rules = Rules::main(288);

struct Bench {
    directory: tempfile::TempDir,
    tables: Tables,
    recent: Recent,
}

impl Bench {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let tables = open::open(directory.path(), FjallOptions { cache_bytes: 1 << 20 }).unwrap();
        Bench { directory, tables, recent: Recent::default() }
    }

    fn prepare(&self, rows: impl Into<Vec<Row>>) -> Job {
        Job::prepare(&self.tables, &RULES, rows.into())
    }

    /// Writes the calls as one group.
    fn commit(&mut self, jobs: impl Into<Vec<Job>>) -> Vec<Vec<Answer>> {
        let (jobs, batch) = self.reconcile(jobs, |_| ());
        self.write(jobs, batch)
    }

    /// What is to be written for the calls; `rest` is asked to end what is on its way.
    fn reconcile(&mut self, jobs: impl Into<Vec<Job>>, mut rest: impl FnMut(&Self)) -> (Vec<Job>, WriteBatch) {
        let mut jobs = jobs.into();
        let rest = || {
            rest(self);
            Ok(())
        };
        let changed = super::reconcile(&self.tables, &RULES, &mut jobs, &self.recent, rest).unwrap();
        let batch = super::batch(&self.tables, &mut jobs, &mut Vec::new());
        self.recent.push(changed);
        (jobs, batch)
    }

    fn write(&self, mut jobs: Vec<Job>, batch: WriteBatch) -> Vec<Vec<Answer>> {
        super::write(&self.tables, &mut jobs, batch);
        jobs.into_iter().map(Job::answers).collect()
    }

    /// A call that nothing came between.
    fn apply(&mut self, rows: impl Into<Vec<Row>>) -> Vec<Answer> {
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

fn is_done(answer: &Answer) -> bool {
    answer.as_ref().unwrap().is_done()
}

/// Who came second, by what it was told.
fn refused_for(answer: &Answer, winner: u8) -> bool {
    matches!(answer, Ok(Outcome::Rejected(Rejection::SpentBy(0, by))) if by.txid == txid(winner))
}

#[test]
fn calls_of_one_group_are_as_one_after_the_other() {
    let mut bench = Bench::new();
    let calls = [
        bench.prepare([create(page(1, 2))]),
        bench.prepare([spend(txid(1), 7, &[0]), create(page(2, 1))]),
        bench.prepare([spend(txid(1), 8, &[0])]),
        bench.prepare([spend(txid(1), 9, &[1]), spend(txid(2), 9, &[0]), spend(txid(3), 9, &[0])]),
    ];
    let answers = bench.commit(calls);
    assert!(answers[0].iter().chain(&answers[1]).all(is_done), "{answers:?}");
    assert!(refused_for(&answers[2][0], 7), "{answers:?}");
    assert!(is_done(&answers[3][0]) && is_done(&answers[3][1]), "{answers:?}");
    assert!(matches!(answers[3][2], Ok(Outcome::Rejected(Rejection::NotFound))), "{answers:?}");
    assert_eq!([bench.spender(1, 0), bench.spender(1, 1), bench.spender(2, 0)], [Some(7), Some(9), Some(9)]);
    assert_eq!(bench.page(1).spent_utxos, 2);
    assert_eq!(bench.tables.records.approximate_len(), 2, "versions of two records");
    assert_eq!(bench.unmined(), [Key::master(txid(1)), Key::master(txid(2))]);
}

#[test]
fn what_a_call_found_and_another_group_changed_since_is_found_again() {
    let mut bench = Bench::new();
    bench.apply([create(page(1, 2)), create(page(2, 2))]);
    let (first, second) = (bench.prepare([spend(txid(1), 7, &[0])]), bench.prepare([spend(txid(1), 8, &[0])]));
    let other = bench.prepare([spend(txid(1), 9, &[1])]);
    assert!(is_done(&bench.commit([first])[0][0]));
    assert!(refused_for(&bench.commit([second])[0][0], 7));
    assert!(is_done(&bench.commit([other])[0][0]));
    assert_eq!([bench.spender(1, 0), bench.spender(1, 1)], [Some(7), Some(9)], "the second is on top of the first");
}

#[test]
fn what_the_group_on_its_way_changes_is_found_once_it_is_written() {
    let mut bench = Bench::new();
    bench.apply([create(page(1, 2)), create(page(2, 1))]);
    let calls = [bench.prepare([spend(txid(1), 7, &[0])]), bench.prepare([spend(txid(2), 7, &[0])])];
    let behind =
        [bench.prepare([create(page(3, 1)), spend(txid(1), 8, &[0])]), bench.prepare([spend(txid(1), 9, &[1])])];
    let mut on_its_way = Some(bench.reconcile(calls, |_| unreachable!("nothing is on its way")));
    let (behind, batch) = bench.reconcile(behind, |bench| {
        if let Some((jobs, batch)) = on_its_way.take() {
            assert!(bench.write(jobs, batch).iter().flatten().all(is_done));
        }
    });
    assert!(on_its_way.is_none(), "the second group waited for the first");
    let answers = bench.write(behind, batch);
    assert!(is_done(&answers[0][0]) && refused_for(&answers[0][1], 7) && is_done(&answers[1][0]), "{answers:?}");
    assert_eq!([bench.spender(1, 0), bench.spender(1, 1), bench.spender(2, 0)], [Some(7), Some(9), Some(7)]);
}

#[test]
fn nobody_waits_for_a_group_that_changes_other_records() {
    let mut bench = Bench::new();
    bench.apply([create(page(1, 1)), create(page(2, 1))]);
    let calls = [bench.prepare([spend(txid(1), 7, &[0])])];
    let behind = [bench.prepare([spend(txid(2), 8, &[0]), create(page(3, 1))])];
    let (calls, first) = bench.reconcile(calls, |_| unreachable!("nothing is on its way"));
    let (behind, second) = bench.reconcile(behind, |_| unreachable!("other records"));
    assert!(bench.write(calls, first).iter().chain(&bench.write(behind, second)).flatten().all(is_done));
    assert_eq!([bench.spender(1, 0), bench.spender(2, 0)], [Some(7), Some(8)]);
}

#[test]
fn what_waited_for_longer_than_is_remembered_is_found_again() {
    let mut bench = Bench::new();
    bench.apply([create(page(1, 1))]);
    let late = bench.prepare([spend(txid(1), 8, &[0])]);
    assert!(is_done(&bench.apply([spend(txid(1), 7, &[0])])[0]));
    for n in 100..120 {
        bench.apply([create(page(n, 1))]);
    }
    assert!(refused_for(&bench.commit([late])[0][0], 7));
}

#[test]
fn the_indexes_follow_what_was_stored_before_the_group() {
    let mut bench = Bench::new();
    bench.apply([create(page(1, 1))]);
    let set_mined = |n, longest_chain| Row {
        key: Key::master(txid(n)),
        operation: at(5, Sequenced::SetMined { mined_in: mined_in(101), longest_chain }),
    };
    let calls = [
        bench.prepare([set_mined(1, false), create(page(2, 1))]),
        bench.prepare([set_mined(1, true)]),
        bench.prepare([set_mined(2, true)]),
    ];
    assert!(bench.commit(calls).iter().flatten().all(is_done));
    assert_eq!(bench.unmined(), []);
    assert_eq!(bench.tables.indexes[place(Index::UnminedSince)].iter().count(), 0);
}

#[test]
fn answers_are_in_the_order_of_the_rows_and_rows_on_one_record_keep_theirs() {
    let mut bench = Bench::new();
    let rows = [
        create(page(9, 2)),
        spend(txid(5), 1, &[0]),
        spend(txid(9), 1, &[0]),
        create(page(5, 1)),
        spend(txid(9), 2, &[0]),
    ];
    let answers = bench.apply(rows);
    assert!(matches!(answers[1], Ok(Outcome::Rejected(Rejection::NotFound))), "{answers:?}");
    assert!(is_done(&answers[0]) && is_done(&answers[2]) && is_done(&answers[3]), "{answers:?}");
    assert!(refused_for(&answers[4], 1), "{answers:?}");
}

#[test]
fn what_was_put_right_is_there_after_a_reopen() {
    let mut bench = Bench::new();
    let calls = [bench.prepare([create(page(1, 2))]), bench.prepare([spend(txid(1), 7, &[1])])];
    assert!(bench.commit(calls).iter().flatten().all(is_done));
    let before = bench.page(1);
    let Bench { directory, tables, .. } = bench;
    drop(tables);
    let tables = open::open(directory.path(), FjallOptions::default()).unwrap();
    assert_eq!(page_in(&tables, 1), before);
    assert_eq!(before.spent_utxos, 1);
}
