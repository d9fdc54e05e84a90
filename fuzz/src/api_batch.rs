//! Binary batches of the API: keys of requests, and records of outputs and transactions read back by a reader that was
//! written from `schemas/api-batches.md` alone.

use std::sync::Arc;

use bytes::Bytes;
use utxo_store::{
    api::v1::binary::{decode_outpoints, decode_txids, encode_output, encode_transaction},
    record::{Body, Master, MinedIn, Page, SpendingData, StoredOutput, Verdict},
    store::{
        outputs::OutputState,
        read::{ReadError, StoredTransaction},
        spend_status::SpendStatus,
    },
    tx::{Outpoint, Output, TransactionBuilder, Txid, UtxoHash},
};

use super::assert_one_line;

/// Runs the target `api_batch`.
pub fn check(data: &[u8]) {
    keys(data);
    records(data);
    transactions(data);
}

/// Checks that a body is accepted exactly where the body consists of whole keys, and that no byte is lost.
fn keys(data: &[u8]) {
    match decode_outpoints(data) {
        Ok(outpoints) => {
            let key = |outpoint: &Outpoint| [&outpoint.txid.0[..], &outpoint.vout.to_le_bytes()].concat();
            assert!(outpoints.iter().flat_map(key).eq(data.iter().copied()));
        }
        Err(error) => {
            assert_ne!(data.len() % 36, 0);
            assert_one_line(&error);
        }
    }
    match decode_txids(data) {
        Ok(txids) => assert!(txids.iter().flat_map(|txid| txid.0).eq(data.iter().copied())),
        Err(error) => {
            assert_ne!(data.len() % 32, 0);
            assert_one_line(&error);
        }
    }
}

/// Fields of a record, read as the document describes the record.
#[derive(Debug, Default, PartialEq, Eq)]
struct ReadRecord {
    status: u8,
    height: Option<u32>,
    spender: Option<SpendingData>,
    hash: Option<UtxoHash>,
    output: Option<StoredOutput>,
}

/// Checks the records of a few outputs, made from the input, and of a key that failed between them.
fn records(data: &[u8]) {
    let (mut encoded, mut expected) = (Vec::new(), Vec::new());
    for made in data.chunks(96).take(4) {
        let (state, record) = make_output(made);
        encode_output(&Ok(state), &mut encoded);
        let failed = ReadError::MissingPage { txid: Txid([made[0]; 32]), page: 3 };
        encode_output(&Err(failed.into()), &mut encoded);
        expected.push(record);
    }
    let mut rest = &encoded[..];
    for expected in expected {
        assert_eq!(read_output(take_record(&mut rest)), expected);
        let [255, low, high, text @ ..] = take_record(&mut rest) else { panic!("the record of a failure") };
        assert_eq!(u16::from_le_bytes([*low, *high]), 500);
        assert_one_line(&std::str::from_utf8(text).unwrap());
    }
    assert!(rest.is_empty());
}

/// Makes an output from some bytes, with the record that its encoding has.
fn make_output(made: &[u8]) -> (OutputState, ReadRecord) {
    let byte = |at: usize| made.get(at).copied().unwrap_or(0);
    let height = u32::from_le_bytes([byte(2), byte(3), byte(4), byte(5)]);
    let spender = SpendingData { txid: Txid([byte(6); 32]), input: u32::from(byte(7)) };
    let (status, code, names_height) = match byte(0) % 10 {
        0 => (SpendStatus::NotFound, 0, false),
        1 => (SpendStatus::Unspent, 1, false),
        2 => (SpendStatus::Spent(spender), 2, false),
        3 => (SpendStatus::Frozen, 3, false),
        4 => (SpendStatus::NotYetSpendable(height), 4, true),
        5 => (SpendStatus::Locked, 5, false),
        6 => (SpendStatus::Immature(height), 6, true),
        7 => (SpendStatus::Conflicting(Verdict::Pending), 7, false),
        8 => (SpendStatus::Creating, 8, false),
        _ => (SpendStatus::Pruned(height), 9, true),
    };
    let parts = byte(1);
    let script = Bytes::copy_from_slice(made.get(8..).unwrap_or_default());
    let record = ReadRecord {
        status: code,
        height: names_height.then_some(height),
        spender: (parts & 1 > 0).then_some(spender),
        hash: (parts & 2 > 0).then_some(UtxoHash([byte(8); 32])),
        output: (parts & 4 > 0).then_some(StoredOutput { satoshis: u64::from(height) << 9, script }),
    };
    let state = OutputState {
        mined_height: None,
        outpoint: Outpoint { txid: Txid([byte(6); 32]), vout: height },
        status,
        spender: record.spender,
        utxo_hash: record.hash,
        output: record.output.clone(),
    };
    (state, record)
}

fn take<'a>(from: &mut &'a [u8], len: usize) -> &'a [u8] {
    let (taken, rest) = from.split_at(len);
    *from = rest;
    taken
}

fn take_u32(from: &mut &[u8]) -> u32 {
    u32::from_le_bytes(take(from, 4).try_into().unwrap())
}

fn take_record<'a>(from: &mut &'a [u8]) -> &'a [u8] {
    let len = take_u32(from);
    take(from, len as usize)
}

fn read_output(mut record: &[u8]) -> ReadRecord {
    let head = take(&mut record, 2);
    let mut read = ReadRecord { status: head[0], ..ReadRecord::default() };
    let has = |flag| head[1] & flag > 0;
    if has(1) {
        read.height = Some(take_u32(&mut record));
    }
    if has(2) {
        let txid = Txid(take(&mut record, 32).try_into().unwrap());
        read.spender = Some(SpendingData { txid, input: take_u32(&mut record) });
    }
    if has(4) {
        read.hash = Some(UtxoHash(take(&mut record, 32).try_into().unwrap()));
    }
    if has(8) {
        let satoshis = u64::from_le_bytes(take(&mut record, 8).try_into().unwrap());
        let script = Bytes::copy_from_slice(take_record(&mut record));
        read.output = Some(StoredOutput { satoshis, script });
    }
    assert!(record.is_empty() && head[1] < 16, "bytes beyond the parts that the flags announce");
    read
}

/// Fields of the record of a transaction, read as the document describes the record.
#[derive(Debug, Default, PartialEq, Eq)]
struct ReadTransaction {
    state: u8,
    flags: u16,
    numbers: [u32; 4],
    sizes: [u64; 4],
    mined: Vec<[u32; 3]>,
    children: Vec<Txid>,
    inpoints: Option<Vec<(Txid, Vec<u32>)>>,
    tx: Option<Vec<u8>>,
}

/// Checks the records of a few transactions, made from the input, and of a key without a transaction between them.
fn transactions(data: &[u8]) {
    let (mut encoded, mut expected) = (Vec::new(), Vec::new());
    for made in data.chunks(96).take(4) {
        let (stored, record) = make_transaction(made);
        let (has_inpoints, has_tx) = (record.inpoints.is_some(), record.tx.is_some());
        encode_transaction(Ok(Some(&stored)), has_inpoints, has_tx, &mut encoded);
        encode_transaction(Ok(None), has_inpoints, has_tx, &mut encoded);
        expected.push(record);
    }
    let mut rest = &encoded[..];
    for expected in expected {
        assert_eq!(read_transaction(take_record(&mut rest)), expected);
        assert_eq!(take_record(&mut rest), [0]);
    }
    assert!(rest.is_empty());
}

/// Makes a transaction from some bytes, with the record that its encoding has.
fn make_transaction(made: &[u8]) -> (StoredTransaction, ReadTransaction) {
    let byte = |at: usize| made.get(at).copied().unwrap_or(0);
    let word = |at: usize| u32::from_le_bytes([byte(at), byte(at + 1), byte(at + 2), byte(at + 3)]);
    let has = |bit: u8| byte(0) & bit > 0;
    let (parents, parts) = (usize::from(byte(1) % 4), byte(2));
    let inputs = (0..=parents).map(|index| Outpoint { txid: Txid([byte(3 + index) | 1; 32]), vout: word(3 + index) });
    let inputs: Vec<Outpoint> = inputs.collect();
    let previous = Output { satoshis: 1, script: &[0x51] };
    let mut builder = TransactionBuilder::default();
    for outpoint in &inputs {
        builder = builder.input(*outpoint, made, u32::MAX, Some(previous));
    }
    let tx = builder.output(1, &[0x51]).extended();
    let mined: Vec<[u32; 3]> = (0..parents).map(|index| [word(index), word(index + 8), word(index + 16)]).collect();
    let children: Vec<Txid> = (0..parents).map(|index| Txid([byte(index); 32])).collect();
    let children: std::collections::BTreeSet<Txid> = children.into_iter().collect();
    let (numbers, sizes) = ([1, 5, 9, 13].map(word), [2, 6, 10, 14].map(|at| u64::from(word(at)) << 7));
    let master = Master {
        total_utxos: numbers[2],
        mined: mined
            .iter()
            .map(|[block_id, height, subtree]| MinedIn { block_id: *block_id, height: *height, subtree: *subtree })
            .collect(),
        created_at: sizes[3],
        unmined_since: has(32).then_some(numbers[3]),
        conflicting_children: children.clone(),
        ..Master::default()
    };
    let page = Page {
        version: numbers[0],
        lock_time: numbers[1],
        fee: sizes[0],
        size_in_bytes: sizes[1],
        extended_size: sizes[2],
        is_coinbase: has(1),
        locked: has(2),
        frozen: has(4),
        creating_at: has(8).then_some(7),
        conflicting: has(16),
        utxos: (parts & 4 == 0).then(Vec::new),
        pruned: (parts & 8 > 0).then_some(numbers[3]),
        master: Some(Box::new(master)),
        ..Page::empty(Txid([byte(3); 32]))
    };
    let state = match (parts & 8 > 0, parts & 4 > 0) {
        (true, _) => 5,
        (false, true) => 4,
        _ if has(16) => 3,
        _ if has(8) => 2,
        _ => 1,
    };
    let (has_inpoints, has_tx) = (parts & 1 > 0, parts & 2 > 0);
    let mut inpoints: Vec<(Txid, Vec<u32>)> = Vec::new();
    for Outpoint { txid, vout } in &inputs {
        match inpoints.iter_mut().find(|(parent, _)| parent == txid) {
            Some((_, indexes)) => indexes.push(*vout),
            None => inpoints.push((*txid, vec![*vout])),
        }
    }
    let record = ReadTransaction {
        state,
        flags: u16::from(byte(0) & 63) | u16::from(has_inpoints) << 6 | u16::from(has_tx) << 7,
        numbers: [numbers[0], numbers[1], numbers[2], if has(32) { numbers[3] } else { 0 }],
        sizes,
        mined,
        children: children.into_iter().collect(),
        inpoints: has_inpoints.then_some(inpoints),
        tx: has_tx.then(|| tx.clone()),
    };
    let body = (has_inpoints || has_tx).then(|| Body::Transaction(tx.into()));
    (StoredTransaction { master: Arc::new(page), slots: Vec::new(), body }, record)
}

fn take_u64(from: &mut &[u8]) -> u64 {
    u64::from_le_bytes(take(from, 8).try_into().unwrap())
}

fn take_txid(from: &mut &[u8]) -> Txid {
    Txid(take(from, 32).try_into().unwrap())
}

fn read_transaction(mut record: &[u8]) -> ReadTransaction {
    let from = &mut record;
    let state = take(from, 1)[0];
    let flags = u16::from_le_bytes(take(from, 2).try_into().unwrap());
    let (version, lock_time) = (take_u32(from), take_u32(from));
    let sizes = [(); 4].map(|()| take_u64(from));
    let numbers = [version, lock_time, take_u32(from), take_u32(from)];
    let mined = (0..take_u32(from)).map(|_| [(); 3].map(|()| take_u32(from))).collect();
    let children = (0..take_u32(from)).map(|_| take_txid(from)).collect();
    let inpoints = (flags & 64 > 0).then(|| {
        let count = take_u32(from);
        let mut parent = || (take_txid(from), (0..take_u32(from)).map(|_| take_u32(from)).collect());
        (0..count).map(|_| parent()).collect()
    });
    let tx = (flags & 128 > 0).then(|| take_record(from).to_vec());
    assert!(from.is_empty() && flags < 256, "bytes beyond the parts that the flags announce");
    ReadTransaction { state, flags, numbers, sizes, mined, children, inpoints, tx }
}
