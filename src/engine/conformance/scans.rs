//! Scans return each record of the set once, for every page size.

use std::collections::BTreeMap;

use super::{EngineBench, fixtures::*, states::Model};
use crate::{
    engine::{Row, ScanPart, Set},
    record::{CommandRecord, CommandResult, Key, Operation, Record, Sequenced},
};

/// Scans a set and returns the records that the model knows.
async fn scan_model_records(bench: &EngineBench, model: &Model, set: Set, limit: usize) -> BTreeMap<Key, Record> {
    let mut found = BTreeMap::new();
    for (key, record) in bench.scan(set, limit).await {
        if model.records.contains_key(&key) {
            assert!(found.insert(key, record).is_none(), "{}: {key} came twice", bench.check);
        }
    }
    found
}

fn acquire(txid: crate::tx::Txid) -> Row {
    let operation = Operation::AcquireLockRecord { lock_record: lock_record(1, 9_000), now_ms: 1_000 };
    Row { key: Key::LockRecord(txid), operation }
}

pub(super) async fn each_record_exactly_once(bench: EngineBench) {
    let mut model = Model::default();
    let masters = (0..300).map(|n| create(page_of(bench.txid(n), 1)));
    let pages = (0..20).map(|n| create(second_page(bench.txid(n), 1)));
    let rows: Vec<Row> = masters.chain(pages).chain((0..30).map(|n| acquire(bench.txid(n)))).collect();
    bench.apply_as(&mut model, &rows).await;
    let release = Row { key: Key::LockRecord(bench.txid(0)), operation: Operation::ReleaseLockRecord { owner: 1 } };
    bench.apply_as(&mut model, &[release]).await;
    let expected: BTreeMap<Key, Record> =
        model.records.iter().filter_map(|(key, record)| Some((*key, record.clone()?))).collect();
    assert_eq!(expected.len(), 349);
    for limit in [1, 7, 350, 100_000] {
        assert_eq!(
            scan_model_records(&bench, &model, Set::Transactions, limit).await,
            expected,
            "{} pages of {limit}",
            bench.check
        );
    }
    for (count, limit) in [(1, 40), (3, 7), (16, 100), (256, 5)] {
        let mut found = BTreeMap::new();
        for number in 0..count {
            for (key, record) in bench.scan_part(ScanPart { number, count }, limit).await {
                if model.records.contains_key(&key) {
                    let part = format!("{}: part {number} of {count}", bench.check);
                    assert!(found.insert(key, record).is_none(), "{part}: {key} came twice");
                }
            }
        }
        assert_eq!(found, expected, "{}: {count} parts by {limit}", bench.check);
    }
    let empty_pages = scan_model_records(&bench, &model, Set::Transactions, 0).await;
    assert_eq!(empty_pages, expected, "{}: a scan with limit 0 still advances", bench.check);
}

pub(super) async fn sets_do_not_mix(bench: EngineBench) {
    let mut model = Model::default();
    let put = |id: u32| Row { key: Key::Block(id), operation: sequenced_at(1, Sequenced::PutBlock(block(id, 0))) };
    let mut rows: Vec<Row> = (3_000_000..3_000_025).map(put).collect();
    rows.push(create(page_of(bench.txid(0), 1)));
    let command = |number: u8| {
        let id = [number; 16];
        let result = CommandResult::Applied;
        let record = CommandRecord { id, event_digest: [7; 32], chain_offset: 1, result, chain_pos: None };
        Row { key: Key::Command(id), operation: sequenced_at(1, Sequenced::PutCommand(record)) }
    };
    rows.extend((0x30..0x30 + 25).map(command));
    bench.apply_as(&mut model, &rows).await;
    for limit in [4, 1_000] {
        let blocks = scan_model_records(&bench, &model, Set::Blocks, limit).await;
        assert_eq!(blocks.len(), 25, "{}", bench.check);
        assert!(blocks.keys().all(|key| matches!(key, Key::Block(_))), "{}", bench.check);
        let commands = scan_model_records(&bench, &model, Set::Commands, limit).await;
        assert_eq!(commands.len(), 25, "{}", bench.check);
        assert!(commands.keys().all(|key| matches!(key, Key::Command(_))), "{}", bench.check);
        let transactions = scan_model_records(&bench, &model, Set::Transactions, limit).await;
        assert_eq!(transactions.into_keys().collect::<Vec<_>>(), [Key::master(bench.txid(0))], "{}", bench.check);
    }
}
