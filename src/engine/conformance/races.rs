//! Concurrent tasks, and several rows of one batch, on one record.

use std::collections::BTreeSet;

use super::{EngineBench, RowAnswer, fixtures::*, states::rival};
use crate::{
    engine::Row,
    record::{Key, Operation, Outcome, Page, Record, Rejection},
    tx::Txid,
};

const TASKS: u64 = 16;

impl EngineBench {
    /// Applies each row in a task of its own.
    async fn race(&self, rows: Vec<Row>) -> Vec<RowAnswer> {
        let run = |row| {
            let bench = self.clone();
            tokio::spawn(async move { bench.apply_one(row).await })
        };
        let tasks: Vec<_> = rows.into_iter().map(run).collect();
        let mut answers = Vec::new();
        for task in tasks {
            answers.push(task.await.expect("a task of the check"));
        }
        answers
    }

    async fn page(&self, txid: Txid) -> Page {
        let record = self.read_one(Key::master(txid)).await;
        record.as_ref().and_then(Record::page).unwrap_or_else(|| panic!("{}: no page", self.check)).clone()
    }
}

/// Builds rows of which each spends slot 0 of a transaction for another spender.
fn rivals(txid: Txid) -> Vec<Row> {
    (0..TASKS).map(|n| Row { key: Key::master(txid), operation: spend_operation(rival(n), &[0]) }).collect()
}

/// Checks that exactly one row was applied, that each other answer names its spender, and that the record agrees.
async fn one_winner(bench: &EngineBench, txid: Txid, answers: &[RowAnswer]) {
    let winners: Vec<usize> = (0..answers.len()).filter(|n| answers[*n].outcome.is_done()).collect();
    let [winner] = winners[..] else { panic!("{}: {} winners", bench.check, winners.len()) };
    let holder = held_slot(0, rival(winner as u64)).holder;
    for (n, answer) in answers.iter().enumerate().filter(|(n, _)| *n != winner) {
        let refused = Outcome::Rejected(Rejection::SpentBy(0, holder));
        assert_eq!(answer.outcome, refused, "{}: loser {n}", bench.check);
    }
    let page = bench.page(txid).await;
    assert_eq!(page.utxos.as_deref().and_then(|slots| slots[0].spender()), Some(holder), "{}", bench.check);
    assert_eq!(page.spent_utxos, 1, "{}", bench.check);
}

pub(super) async fn one_spender_wins(bench: EngineBench) {
    for round in 0..8 {
        let txid = bench.txid(round);
        bench.must_apply(&[create(page_of(txid, 2))]).await;
        let answers = bench.race(rivals(txid)).await;
        one_winner(&bench, txid, &answers).await;
    }
}

/// Checks that one creator wins: each creator sets the fee to its own number, and the record has the winner's fee.
pub(super) async fn one_creator_wins(bench: EngineBench) {
    for round in 0..8 {
        let txid = bench.txid(round);
        let rows = (0..TASKS).map(|n| create(Page { fee: n, ..page_of(txid, 2) })).collect();
        let answers = bench.race(rows).await;
        let applied: Vec<usize> =
            (0..answers.len()).filter(|n| matches!(answers[*n].outcome, Outcome::Applied(_))).collect();
        assert!(answers.iter().all(|answer| answer.outcome.is_done()), "{}: {answers:?}", bench.check);
        let page = bench.page(txid).await;
        match applied[..] {
            [winner] => assert_eq!(page.fee, winner as u64, "{}", bench.check),
            // The winner's reply was lost, and its repeat found its own record.
            [] => assert!(answers[page.fee as usize].is_retry, "{}: no creator won", bench.check),
            _ => panic!("{}: {} creators", bench.check, applied.len()),
        }
    }
}

/// Checks batches whose rows share a key, in any order of effect: rivals for one slot, spenders of different slots, and
/// a create with spends of the created slots.
pub(super) async fn many_rows_on_one_key_in_one_batch(bench: EngineBench) {
    let (contested, shared, fresh) = (bench.txid(0), bench.txid(1), bench.txid(2));
    bench.must_apply(&[create(page_of(contested, 2)), create(page_of(shared, 200))]).await;
    one_winner(&bench, contested, &bench.apply(&rivals(contested)).await).await;

    let row = |n| Row { key: Key::master(shared), operation: spend_operation(rival(n), &[n as u32]) };
    bench.must_apply(&(0..200).map(row).collect::<Vec<_>>()).await;
    all_taken(&bench.page(shared).await);

    let mut rows = vec![create(page_of(fresh, 4))];
    rows.extend((0..4).map(|n| Row { key: Key::master(fresh), operation: spend_operation(rival(n), &[n as u32]) }));
    let answers = bench.apply(&rows).await;
    let spent = answers[1..].iter().filter(|answer| answer.outcome.is_done()).count();
    assert_eq!(bench.page(fresh).await.spent_utxos as usize, spent, "{}: {answers:?}", bench.check);
}

fn all_taken(page: &Page) {
    let slots = page.utxos.as_deref().unwrap_or_default();
    for (n, slot) in slots.iter().enumerate() {
        assert_eq!(slot.spender(), Some(held_slot(n as u32, rival(n as u64)).holder), "slot {n}");
    }
    assert_eq!(page.spent_utxos as usize, slots.len());
}

/// Checks that no change is lost when many tasks spend different slots of one record.
pub(super) async fn every_slot_of_a_busy_record(bench: EngineBench) {
    let txid = bench.txid(0);
    bench.must_apply(&[create(page_of(txid, 64))]).await;
    let row = |n| Row { key: Key::master(txid), operation: spend_operation(rival(n), &[n as u32]) };
    for answer in bench.race((0..64).map(row).collect()).await {
        assert!(answer.outcome.is_done(), "{}: {answer:?}", bench.check);
    }
    all_taken(&bench.page(txid).await);
}

/// Checks that each task reads its own acknowledged changes while others write.
pub(super) async fn acknowledged_changes_are_read(bench: EngineBench) {
    let write_and_read = |task: u64| {
        let bench = bench.clone();
        tokio::spawn(async move {
            for n in 0..20 {
                let txid = bench.txid(1_000 * task + n);
                bench.must_apply(&[create(page_of(txid, 1))]).await;
                assert_eq!(bench.page(txid).await.spent_utxos, 0);
                bench.must_apply(&[Row { key: Key::master(txid), operation: spend_operation(rival(n), &[0]) }]).await;
                assert_eq!(bench.page(txid).await.spent_utxos, 1, "{}: read an old version", bench.check);
                let owner = 1 + task;
                let acquire = Operation::AcquireLockRecord { lock_record: lock_record(owner, 9_000), now_ms: 1 };
                let key = Key::LockRecord(txid);
                bench.must_apply(&[Row { key, operation: acquire }]).await;
                assert!(bench.read_one(key).await.is_some(), "{}", bench.check);
                bench.must_apply(&[Row { key, operation: Operation::ReleaseLockRecord { owner } }]).await;
                assert_eq!(bench.read_one(key).await, None, "{}: a released lock record exists", bench.check);
            }
            bench.txid(1_000 * task)
        })
    };
    let tasks: Vec<_> = (0..8).map(write_and_read).collect();
    let mut first = BTreeSet::new();
    for task in tasks {
        first.insert(task.await.expect("a task of the check"));
    }
    assert_eq!(first.len(), 8);
}
