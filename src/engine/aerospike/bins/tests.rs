use std::sync::Arc;

use aerospike::{IndexMap, Value};

use super::{
    super::{names, packed::LIST},
    *,
};
use crate::{
    engine::conformance::fixtures::*,
    record::{
        Body, CommandRecord, CommandResult, Operation, Page, Reason, Reassignment, Sequenced, SpendingData, Verdict,
        apply,
    },
    tx::{Transaction, Txid},
};

/// Decodes a packed list as the server would return it: a MessagePack reader for the output of
/// [`super::super::packed`].
fn decode_packed(bytes: &mut &[u8]) -> Value {
    fn take<const N: usize>(bytes: &mut &[u8]) -> [u8; N] {
        let (head, rest) = bytes.split_first_chunk::<N>().unwrap();
        *bytes = rest;
        *head
    }
    fn blob(bytes: &mut &[u8], length: usize) -> Value {
        let (blob, rest) = bytes.split_at(length);
        *bytes = rest;
        assert_eq!(blob[0], 4, "a blob");
        Value::Blob(blob[1..].to_vec())
    }
    let [marker] = take(bytes);
    let list = |bytes: &mut &[u8], length: usize| Value::List((0..length).map(|_| decode_packed(bytes)).collect());
    match marker {
        0x00..0x80 => Value::Int(marker.into()),
        0x90..0xa0 => list(bytes, (marker & 15).into()),
        0xa0..0xc0 => blob(bytes, (marker & 31).into()),
        0xc0 => Value::Nil,
        0xcc => Value::Int(take::<1>(bytes)[0].into()),
        0xcd => Value::Int(u16::from_be_bytes(take(bytes)).into()),
        0xce => Value::Int(u32::from_be_bytes(take(bytes)).into()),
        0xd9 => {
            let [length] = take(bytes);
            blob(bytes, length.into())
        }
        0xda => {
            let length = u16::from_be_bytes(take(bytes));
            blob(bytes, length.into())
        }
        0xdc => {
            let length = u16::from_be_bytes(take(bytes));
            list(bytes, length.into())
        }
        other => panic!("{other:#x} is not written here"),
    }
}

fn encode(key: &Key, record: &Record) -> Bins {
    super::encode(Layout::Teranode, key, record)
}

fn decode(key: &Key, bins: IndexMap<String, Value>) -> Result<Record, BadRecord> {
    super::decode(Layout::Teranode, key, bins)
}

fn as_read(bins: Bins) -> IndexMap<String, Value> {
    let value = |value| match value {
        Value::Unknown(LIST, bytes) => {
            let mut rest = bytes.as_slice();
            let list = decode_packed(&mut rest);
            assert!(rest.is_empty());
            list
        }
        other => other,
    };
    bins.into_iter().map(|(name, bin)| (name.to_owned(), value(bin))).collect()
}

fn assert_round_trip(key: Key, record: &Record) {
    for layout in [Layout::Compact, Layout::Teranode] {
        let bins = super::encode(layout, &key, record);
        assert!(bins.iter().all(|(name, _)| name.len() <= 15), "{bins:?}");
        assert_eq!(super::decode(layout, &key, as_read(bins)).as_ref(), Ok(record), "{layout}");
    }
}

/// Returns a page with every bin that a page can have.
fn page_with_every_bin(txid: Txid) -> Page {
    let spender = SpendingData { txid: Txid([5; 32]), input: 300 };
    let mut page = page_with_transaction(txid, 70);
    let slots = page.utxos.as_mut().unwrap();
    slots[1] = crate::record::Slot::Spent(hash(1), spender);
    slots[2] = crate::record::Slot::Frozen(hash(2));
    slots[3] = crate::record::Slot::Nil;
    (page.fee, page.size_in_bytes, page.extended_size) = (u64::MAX, 1 << 40, 70_000);
    (page.spent_utxos, page.record_utxos) = (1, 70);
    (page.locked, page.conflicting, page.frozen) = (true, true, true);
    (page.creating_at, page.spending_height) = (Some(1_700_000_000_000), Some(u32::MAX));
    page.amount_sizes = vec![9; 70].into();
    page.contested.extend([0, 69]);
    page.pruned_spenders.extend([0, 1, 7, 8, 69]);
    page.utxo_spendable_in.extend([(2, 900), (4, u32::MAX)]);
    let (utxo_hash, new_utxo_hash) = (hash(2), hash(52));
    page.reassignments.push(Reassignment { offset: 2, utxo_hash, new_utxo_hash, block_height: 9, output: output(52) });
    page.chain_pos = Some(crate::record::Stamp { offset: 1 << 50, phase: crate::record::Phase::Prune });
    page.delete_at_height = Some(0);
    let master = page.master.as_mut().unwrap();
    master.mined = vec![mined_in(0), mined_in(u32::MAX)];
    master.conflicting_children.extend([Txid([1; 32]), Txid([2; 32])]);
    master.spent_pages.extend([1, 300]);
    master.verdict = Some(Verdict::Conflicting(Reason::DoubleSpend { input: 7, winner: Txid([9; 32]) }));
    master.preserve_until = Some(12);
    page
}

#[test]
fn pages_round_trip() {
    let txid = txid(7);
    let external = Page { spending_height: Some(5), ..creating_page(txid, 3, 9) };
    for page in
        [page_of(txid, 0), page_of(txid, 3), page_with_transaction(txid, 252), page_with_every_bin(txid), external]
    {
        assert_round_trip(Key::master(txid), &Record::Page(Arc::new(page)));
    }
    assert_round_trip(Key::Page(txid, 1), &Record::Page(Arc::new(second_page(txid, 20))));
    for verdict in [Verdict::Pending, Verdict::Accepted, Verdict::Conflicting(Reason::Found)] {
        assert_round_trip(Key::master(txid), &Record::Page(Arc::new(Page::stub(txid, verdict))));
    }
}

#[test]
fn a_tombstone_has_four_bins() {
    let txid = txid(7);
    let mut record = Some(Record::Page(Arc::new(page_of(txid, 1))));
    let rules = crate::engine::conformance::RULES;
    for operation in [
        sequenced_at(1, Sequenced::SetMined { mined_in: mined_in(5), longest_chain: true }),
        Operation::Spend(match spend_operation(Txid([3; 32]), &[0]) {
            Operation::Spend(spend) => spend,
            other => panic!("{other:?}"),
        }),
        sequenced_at(2, Sequenced::Prune { height: 400, keep_until: Some(500) }),
    ] {
        assert!(apply(&rules, &Key::master(txid), &mut record, &operation).outcome.is_done());
    }
    let record = record.unwrap();
    let names: Vec<&str> = encode(&Key::master(txid), &record).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["txID", "deleteAtHeight", "pruned", "chainPos"]);
    assert_round_trip(Key::master(txid), &record);
}

#[test]
fn other_records_round_trip() {
    assert_round_trip(Key::LockRecord(txid(1)), &Record::LockRecord(lock_record(u64::MAX, 9_000)));
    assert_round_trip(Key::Block(7), &Record::Block(block(7, 3)));
    let marked = crate::record::BlockRecord {
        longest_chain: false,
        chain_pos: Some(crate::record::Stamp { offset: 4, phase: crate::record::Phase::Evaluate }),
        ..block(7, 3)
    };
    assert_round_trip(Key::Block(7), &Record::Block(marked));
    assert_round_trip(Key::Meta, &Record::Meta(Box::new(meta(8))));
    let consumed = crate::record::ConsumedOffsets { chain: 7, validated: [(0, 12), (63, 1 << 40)].into(), height: 0 };
    let rebuilding = crate::record::Rebuilding {
        frontier: 9,
        log: crate::record::LogEnds { committed: consumed.clone(), ends: consumed.clone(), decisions: 3 },
        nodes: "a:1".into(),
        reached: consumed.clone(),
        chain_state: "{}".into(),
    };
    let later = crate::record::MetaRecord {
        chain_id: Some([4; 32]),
        rebuilding: Some(Box::new(rebuilding)),
        rebuilder: Some(u64::MAX >> 1),
        partitions: Some(64),
        has_blobs: true,
        has_sentinels: true,
        consumed: crate::record::ConsumedOffsets { height: 800_001, ..consumed },
        tip: Some(crate::record::ChainTip { chain_offset: 9, height: 0, hash: [8; 32], median_time: u32::MAX }),
        health_checks: 3,
        snapshot_hold: Some(crate::record::SnapshotHold { snapshot: [3; 16], until_ms: 9 }),
        chain_era: 3,
        migration: Some(crate::record::MigrationPart::Source([2; 16])),
        restored: Some(Box::new(crate::record::Restored { is_loading: true, chunks: 4, ..Default::default() })),
        topics: [
            ("utxo.chain".to_owned(), crate::record::BoundTopic { id: Some([5; 16]), first: Default::default() }),
            ("utxo.reorgs".to_owned(), crate::record::BoundTopic { id: None, first: [(7, [6; 8])].into() }),
        ]
        .into(),
        ..meta(8)
    };
    assert_round_trip(Key::Meta, &Record::Meta(Box::new(later)));
    assert_round_trip(Key::Sentinel(255), &Record::Sentinel([7; 16]));
    let refused = CommandResult::Refused { code: "FROZEN".into(), message: "slot 0".into() };
    for result in [CommandResult::Applied, CommandResult::AlreadyApplied, refused] {
        let chain_pos = Some(crate::record::Stamp { offset: 4, phase: crate::record::Phase::Apply });
        let command = CommandRecord { id: [5; 16], event_digest: [6; 32], chain_offset: 1 << 40, result, chain_pos };
        assert_round_trip(Key::Command([5; 16]), &Record::Command(command));
    }
}

/// Bodies in every format, and bytes that are no transaction, are returned byte for byte.
#[test]
fn bodies_round_trip_byte_for_byte() {
    let txid = txid(7);
    let coinbase = include_bytes!("../../../../tests/data/tx-65cbf318.bin");
    let extended = include_bytes!("../../../../tests/data/tx-65cbf318.extended.bin");
    for (bytes, raw) in [(&extended[..], false), (&coinbase[..], true), (&b"no transaction"[..], true)] {
        let mut page = page_of(txid, 1);
        if let Ok(transaction) = Transaction::parse(bytes) {
            (page.version, page.lock_time) = (transaction.version(), transaction.lock_time());
            page.is_coinbase = transaction.is_coinbase();
        }
        page.master.as_mut().unwrap().body = Some(Body::Transaction(bytes::Bytes::copy_from_slice(bytes)));
        let record = Record::Page(Arc::new(page));
        let names: Vec<&str> = encode(&Key::master(txid), &record).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names.contains(&"rawBody"), raw, "{names:?}");
        assert_round_trip(Key::master(txid), &record);
    }
}

#[test]
fn a_coinbase_keeps_the_format_in_which_it_arrived() {
    let standard = hex::decode(
        "01000000010000000000000000000000000000000000000000000000000000000000000000ffffffff0603e903000102ffffffff0100f2\
         052a010000001976a914000102030405060708090a0b0c0d0e0f1011121388ac00000000",
    )
    .unwrap();
    let (version, rest) = standard.split_at(4);
    let (input, outputs) = rest.split_at(48);
    let extended = [version, &[0, 0, 0, 0, 0, 0xef], input, &[0; 9], outputs].concat();
    for bytes in [standard.clone(), extended] {
        assert!(Transaction::parse(&bytes).unwrap().is_coinbase());
        let mut page = Page { version: 1, is_coinbase: true, ..page_of(txid(7), 1) };
        page.master.as_mut().unwrap().body = Some(Body::Transaction(bytes.into()));
        assert_round_trip(Key::master(page.txid), &Record::Page(Arc::new(page)));
    }
}

/// The reference system writes booleans that are false, and leaves counts out.
#[test]
fn forms_of_the_reference_system_are_read() {
    let txid = txid(7);
    let page = page_of(txid, 2);
    let mut bins = as_read(encode(&Key::master(txid), &Record::Page(Arc::new(page.clone()))));
    for name in ["locked", "conflicting", "isCoinbase", "creating"] {
        bins.insert(name.into(), Value::Bool(false));
    }
    assert_eq!(bins.swap_remove(names::LOCK_TIME), Some(Value::Int(0)));
    assert_eq!(decode(&Key::master(txid), bins), Ok(Record::Page(Arc::new(page))));
}

/// The reference writes an empty list of inputs for a partial transaction, an earlier version of this store no list.
#[test]
fn a_partial_transaction_has_an_empty_list_of_inputs() {
    let txid = txid(7);
    let outputs = [None, Some(crate::record::StoredOutput { satoshis: 5, script: bytes::Bytes::from_static(b"\x51") })];
    let mut page = page_of(txid, 2);
    page.master.as_mut().unwrap().body = Some(Body::Outputs(outputs.into_iter().collect()));
    let record = Record::Page(Arc::new(page));
    let mut bins = as_read(encode(&Key::master(txid), &record));
    assert_eq!(bins.get(names::INPUTS), Some(&Value::List(vec![])));
    assert_eq!(decode(&Key::master(txid), bins.clone()), Ok(record.clone()));
    bins.swap_remove(names::INPUTS);
    assert_eq!(decode(&Key::master(txid), bins), Ok(record));
}

#[test]
fn the_record_of_a_health_check_of_the_reference_is_no_transaction() {
    let bins = |names: &[&str]| names.iter().map(|name| ((*name).to_owned(), Value::Int(1))).collect();
    assert!(is_reference_health_check(&bins(&["bin"])));
    assert!(!is_reference_health_check(&bins(&["bin", "txID"])));
    assert!(!is_reference_health_check(&bins(&[])));
}

#[test]
fn errors_name_the_damaged_bin() {
    let txid = txid(7);
    let good = as_read(encode(&Key::master(txid), &Record::Page(Arc::new(page_with_every_bin(txid)))));
    for (name, value) in [
        ("txID", Value::Blob(vec![8; 32])),
        ("txID", Value::Nil),
        ("utxos", Value::List(vec![Value::Blob(vec![1; 33])])),
        ("blockIDs", Value::List(vec![])),
        ("fee", Value::String("1".into())),
        ("version", Value::Int(1 << 40)),
        ("chainPos", Value::Int(3)),
        ("verdict", Value::Int(3)),
        ("reason", Value::Blob(vec![99])),
    ] {
        let mut bins = good.clone();
        bins.insert(name.into(), value);
        assert_eq!(decode(&Key::master(txid), bins), Err(BadRecord::Bin(name)));
    }
}

/// Bins that differ when a record of the reference system is read and written again.
const DIFFERENCES: [(&str, &str); 4] = [
    ("pageNumber", "added: a scan returns only digests"),
    ("lastSpentState", "only of the reference system; stays in the record, unread"),
    ("reassignments", "an entry also has the new owner's output, which its spend is compared with"),
    ("spentExtraRecs", "added: the length of `spentPages`, which the reference system does not have"),
];

/// Reads every record of `reference-records.json`, step by step, with the types and contents of the reference system.
#[test]
fn reference_records_are_written_as_they_were_read() {
    let text = include_str!("../../../../tests/data/reference-records.json");
    let all: serde_json::Value = serde_json::from_str(text).unwrap();
    let mut differences = std::collections::BTreeSet::new();
    let mut count = 0;
    for step in all["steps"].as_array().unwrap() {
        // One step is a blob and has no record.
        let records = step["records"].as_array().into_iter().flatten();
        for record in records.filter(|record| record["absent"] != true) {
            let bins = reference_bins(&record["bins"]);
            let Value::Blob(txid) = &bins["txID"] else { panic!("{record}") };
            let number = record["record"].as_u64().unwrap() as u32;
            let key = Key::Page(Txid(txid.as_slice().try_into().unwrap()), number);
            let decoded = decode(&key, bins.clone()).unwrap_or_else(|error| panic!("{}: {error}", step["title"]));
            let rewritten = as_read(encode(&key, &decoded));
            let names: std::collections::BTreeSet<&String> = bins.keys().chain(rewritten.keys()).collect();
            let differs = |name: &&&String| {
                // A flag that is false may be absent.
                let [was, is] = [&bins, &rewritten].map(|bins| bins.get(**name));
                let is_true = |value: &&Value| **value != Value::Bool(false);
                is != was && is.filter(is_true) != was.filter(is_true)
            };
            differences.extend(names.iter().filter(differs).map(|name| (*name).clone()));
            count += 1;
        }
    }
    assert!(count > 20, "{count}");
    let documented: std::collections::BTreeSet<String> = DIFFERENCES.iter().map(|(name, _)| (*name).into()).collect();
    assert_eq!(differences, documented);
}

fn reference_bins(bins: &serde_json::Value) -> IndexMap<String, Value> {
    let bins = bins.as_object().unwrap();
    bins.iter().map(|(name, value)| (name.clone(), reference_value(value))).collect()
}

fn reference_value(value: &serde_json::Value) -> Value {
    let Some((kind, value)) = value.as_object().and_then(|object| object.iter().next()) else { return Value::Nil };
    match (kind.as_str(), value) {
        ("bool", value) => Value::Bool(value.as_bool().unwrap()),
        // The file contains no times.
        ("int", value) => Value::Int(value.as_i64().unwrap_or(1)),
        ("string", value) => Value::String(value.as_str().unwrap().into()),
        ("blob", value) => Value::Blob(hex::decode(value.as_str().unwrap()).unwrap()),
        ("list", value) => Value::List(value.as_array().unwrap().iter().map(reference_value).collect()),
        ("map", value) => {
            let pairs = value.as_array().unwrap().iter();
            let pairs = pairs.map(|pair| (reference_value(&pair["key"]), reference_value(&pair["value"])));
            Value::SortedMap(pairs.collect())
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_compact_transaction_has_five_bins() {
    let txid = Txid([4; 32]);
    let mut page = page_with_transaction(txid, 2);
    page.locked = false;
    if let Some(master) = &mut page.master {
        master.unmined_since = Some(7);
    }
    let names = |page: &Page| -> Vec<&str> {
        let record = Record::Page(Arc::new(page.clone()));
        super::encode(Layout::Compact, &Key::master(txid), &record).into_iter().map(|(name, _)| name).collect()
    };
    assert_eq!(names(&page), [names::TX, names::UTXOS, names::UNSPENT, names::BODY, names::UNMINED_SINCE]);
    page.frozen = true;
    assert!(names(&page).contains(&names::FLAGS));
}

#[test]
fn damaged_compact_pages_are_refused_with_the_name_of_the_bin() {
    let txid = Txid([4; 32]);
    let record = Record::Page(Arc::new(page_with_every_bin(txid)));
    let good = as_read(super::encode(Layout::Compact, &Key::master(txid), &record));
    let without_hash = Value::List(vec![Value::Blob(vec![9; 32])]);
    let bad = [
        (names::TX, Value::Blob(vec![4; 35])),
        (names::TX, Value::Nil),
        (names::FLAGS, Value::Int(0)),
        (names::UNSPENT, Value::Int(-1)),
        (names::UTXOS, without_hash),
        (names::BLOCKS, Value::List(vec![Value::Blob(vec![0; 11])])),
    ];
    for (name, value) in bad {
        let mut bins = good.clone();
        bins.insert(name.to_owned(), value);
        assert_eq!(super::decode(Layout::Compact, &Key::master(txid), bins), Err(BadRecord::Bin(name)));
    }
}

#[test]
fn pages_of_the_other_layout_and_of_later_versions_are_named_in_the_error() {
    let key = Key::master(Txid([4; 32]));
    let record = Record::Page(Arc::new(page_with_every_bin(Txid([4; 32]))));
    let good = as_read(super::encode(Layout::Compact, &key, &record));
    for flags in [1 << 11, 1 << 16, -1] {
        let mut bins = good.clone();
        bins.insert(names::FLAGS.to_owned(), Value::Int(flags));
        assert_eq!(super::decode(Layout::Compact, &key, bins), Err(BadRecord::LaterVersion(names::FLAGS)));
    }
    let mut bins = good.clone();
    let Some(Value::Blob(tx)) = bins.get_mut(names::TX) else { panic!("no `tx`") };
    tx[36] += 2;
    assert_eq!(super::decode(Layout::Compact, &key, bins), Err(BadRecord::LaterVersion(names::TX)));
    let mut bins = good.clone();
    bins.insert("wide".to_owned(), Value::Int(1));
    let unknown = BadRecord::UnknownBin("wide".to_owned(), Layout::Compact);
    assert_eq!(super::decode(Layout::Compact, &key, bins), Err(unknown));

    let as_compact = BadRecord::OtherLayout { stored: Layout::Teranode, opened: Layout::Compact };
    let as_teranode = BadRecord::OtherLayout { stored: Layout::Compact, opened: Layout::Teranode };
    let other = as_read(encode(&key, &record));
    assert_eq!(super::decode(Layout::Compact, &key, other), Err(as_compact.clone()));
    assert_eq!(decode(&key, good), Err(as_teranode.clone()));
    let meta = Record::Meta(Box::new(meta(8)));
    let compact = as_read(super::encode(Layout::Compact, &Key::Meta, &meta));
    // A program from before this layout knows no bin `layout`.
    assert_eq!(compact[names::meta::LAYOUT_VERSION], Value::Int(2));
    assert_eq!(decode(&Key::Meta, compact), Err(as_teranode));
    let teranode = as_read(encode(&Key::Meta, &meta));
    assert_eq!(super::decode(Layout::Compact, &Key::Meta, teranode), Err(as_compact));
}
