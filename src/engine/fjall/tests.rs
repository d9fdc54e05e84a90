use std::time::Duration;

use super::*;
use crate::{
    engine::conformance::fixtures::{create, page, sequenced_at, spend, txid},
    record::{Operation, Outcome, Page, Reason, Rejection, Sequenced},
};

const RULES: Rules = Rules::main(288);

fn open(directory: &Path) -> Result<FjallEngine, OpenFjallError> {
    FjallEngine::open(directory, RULES, FjallOptions { cache_bytes: 1 << 20 })
}

async fn page_of(engine: &FjallEngine, n: u8) -> Page {
    let key = Key::master(txid(n));
    engine.read(&[key]).await[0].as_ref().unwrap().as_ref().and_then(Record::page).unwrap().clone()
}

#[tokio::test]
async fn acknowledged_rows_are_stored_after_a_reopen() {
    let directory = tempfile::tempdir().unwrap();
    let engine = open(directory.path()).unwrap();
    let rows = [create(page(1, 3)), spend(txid(1), 9, &[0]), create(page(2, 1))];
    assert!(engine.apply(&rows).await.iter().all(|outcome| outcome.as_ref().unwrap().is_done()));
    let before = page_of(&engine, 1).await;
    assert_eq!(before.spent_utxos, 1);
    engine.close().await.unwrap();
    let engine = open(directory.path()).unwrap();
    assert_eq!(page_of(&engine, 1).await, before);
    let unmined = engine.query(Index::UnminedSince, 0, u64::MAX, 10).await.unwrap();
    assert_eq!(unmined, [Key::master(txid(1)), Key::master(txid(2))]);
}

#[tokio::test]
async fn a_dropped_call_is_applied_whole_or_not_at_all() {
    let directory = tempfile::tempdir().unwrap();
    let engine = open(directory.path()).unwrap();
    let rows: Vec<Row> = (0..200).map(|n| create(page(n, 1))).collect();
    // The timeout lets the call be sent, but not answered.
    let _ = tokio::time::timeout(Duration::ZERO, engine.apply(&rows)).await;
    engine.close().await.unwrap();
    let engine = open(directory.path()).unwrap();
    let found = engine.scan(Set::Transactions, None, 1_000).await.unwrap().records.len();
    assert!(found == 0 || found == 200, "{found} of 200");
}

#[tokio::test]
async fn a_second_opening_is_refused_and_the_first_continues() {
    let directory = tempfile::tempdir().unwrap();
    let engine = open(directory.path()).unwrap();
    let refused = open(directory.path()).err().unwrap();
    assert!(refused.to_string().ends_with("is in use by another process"), "{refused}");
    assert!(engine.apply(&[create(page(1, 1))]).await[0].is_ok());
    drop(engine);
    open(directory.path()).unwrap();
}

#[tokio::test]
async fn a_directory_with_other_files_is_refused_and_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("thesis.txt"), "years of work").unwrap();
    let refused = open(directory.path()).err().unwrap();
    assert!(matches!(refused, OpenFjallError::NotAStore(_)), "{refused}");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    let file = directory.path().join("thesis.txt");
    let refused = open(&file).err().unwrap().to_string();
    assert!(refused.contains("thesis.txt") && !refused.contains('\n'), "{refused}");
}

#[tokio::test]
async fn a_killed_first_opening_is_repeated() {
    let directory = tempfile::tempdir().unwrap();
    drop(open(directory.path()).unwrap());
    std::fs::remove_file(directory.path().join("version")).unwrap();
    std::fs::remove_dir_all(directory.path().join("keyspaces")).unwrap();
    open(directory.path()).unwrap();
}

#[tokio::test]
async fn a_store_of_another_layout_is_refused_with_both_names() {
    let directory = tempfile::tempdir().unwrap();
    let tables = open::open(directory.path(), FjallOptions::default()).unwrap();
    tables.meta.insert("layout", "utxo-store fjall 9").unwrap();
    drop(tables);
    let refused = open(directory.path()).err().unwrap().to_string();
    assert!(refused.contains("utxo-store fjall 9") && refused.contains("utxo-store fjall 2"), "{refused}");
}

#[tokio::test]
async fn a_store_without_the_index_of_verdicts_gets_the_index() {
    let directory = tempfile::tempdir().unwrap();
    let engine = open(directory.path()).unwrap();
    let mark = |n| Row {
        key: Key::master(txid(n)),
        operation: sequenced_at(n.into(), Sequenced::MarkConflicting { reason: Reason::Command, height: 7 }),
    };
    let rows: Vec<Row> = (1..=3).map(mark).collect();
    for result in engine.apply(&rows).await {
        result.unwrap();
    }
    engine.close().await.unwrap();
    drop(engine);
    let tables = open::open(directory.path(), FjallOptions::default()).unwrap();
    let entries: Vec<_> = tables.query(Index::Verdict, 0, 9, 9).unwrap();
    assert_eq!(entries.len(), 3);
    tables.indexes[Index::Verdict as usize].clear().unwrap();
    tables.meta.insert("layout", "utxo-store fjall 1").unwrap();
    drop(tables);
    let tables = open::open(directory.path(), FjallOptions::default()).unwrap();
    assert_eq!(tables.query(Index::Verdict, 2, 2, 9).unwrap(), entries);
    assert_eq!(&*tables.meta.get("layout").unwrap().unwrap(), b"utxo-store fjall 2");
}

#[tokio::test]
async fn a_damaged_directory_is_refused_in_one_line() {
    for damage in ["version", "0.jnl", "keyspaces/0/current", "keyspaces/1/current"] {
        let directory = tempfile::tempdir().unwrap();
        drop(open(directory.path()).unwrap());
        let file = directory.path().join(damage);
        assert!(file.exists(), "{damage} is not a file of fjall");
        std::fs::write(&file, [0xA5; 300]).unwrap();
        let error = match open(directory.path()) {
            Err(error) => error.to_string(),
            // Fjall checks the journal entry by entry; a broken tail counts as the end of a crash.
            Ok(_) if damage == "0.jnl" => continue,
            Ok(_) => panic!("{damage} was damaged and the open succeeded"),
        };
        assert!(error.contains("damaged") && !error.contains('\n'), "{damage}: {error}");
    }
}

#[tokio::test]
async fn a_damaged_value_fails_only_its_own_key() {
    let directory = tempfile::tempdir().unwrap();
    let tables = open::open(directory.path(), FjallOptions::default()).unwrap();
    tables.records.insert(KeyBytes::of(&Key::master(txid(1))).as_ref(), [1, 0, 7]).unwrap();
    drop(tables);
    let engine = open(directory.path()).unwrap();
    let answers = engine.apply(&[spend(txid(1), 9, &[0]), create(page(2, 1))]).await;
    let error = answers[0].as_ref().unwrap_err();
    assert_eq!(error.kind, ErrorKind::Fatal);
    assert_eq!(error.key, txid(1).to_string());
    assert!(answers[1].as_ref().unwrap().is_done());
    assert_eq!(engine.read(&[Key::master(txid(1))]).await[0].as_ref().unwrap_err().key, txid(1).to_string());
    assert!(engine.scan(Set::Transactions, None, 10).await.is_err());
}

#[tokio::test]
async fn many_spends_of_one_record_are_one_write() {
    let directory = tempfile::tempdir().unwrap();
    let engine = open(directory.path()).unwrap();
    let mut rows = vec![create(page(1, 250))];
    rows.extend((0..250).map(|slot| spend(txid(1), 9, &[slot])));
    assert!(engine.apply(&rows).await.iter().all(|outcome| outcome.as_ref().unwrap().is_done()));
    let guard = engine.open.lock().unwrap();
    let tables = &guard.as_ref().unwrap().tables;
    assert_eq!(tables.records.approximate_len(), 1, "versions of the record");
}

#[tokio::test]
async fn a_closed_engine_refuses_calls() {
    let directory = tempfile::tempdir().unwrap();
    let engine = open(directory.path()).unwrap();
    engine.close().await.unwrap();
    engine.close().await.unwrap();
    let row = Row { key: Key::master(txid(1)), operation: Operation::ClearCreating };
    assert_eq!(engine.apply(&[row]).await[0].as_ref().unwrap_err().kind, ErrorKind::Fatal);
    assert_eq!(engine.read(&[Key::Meta]).await[0].as_ref().unwrap_err().kind, ErrorKind::Fatal);
    let again = open(directory.path()).unwrap();
    let refused = again.apply(&[spend(txid(1), 9, &[0])]).await;
    assert_eq!(refused[0].as_ref().unwrap(), &Outcome::Rejected(Rejection::NotFound));
}
