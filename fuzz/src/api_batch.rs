//! Binary batches of the API: keys of requests, and records of outputs read back by a reader that was written from
//! `schemas/api-batches.md` alone.

use bytes::Bytes;
use utxo_store::{
    api::v1::binary::{decode_outpoints, decode_txids, encode_output},
    record::{SpendingData, StoredOutput},
    store::{outputs::OutputState, read::ReadError, spend_status::SpendStatus},
    tx::{Outpoint, Txid, UtxoHash},
};

use super::assert_one_line;

/// Runs the target `api_batch`.
pub fn check(data: &[u8]) {
    keys(data);
    records(data);
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
    let (status, code, names_height) = match byte(0) % 8 {
        0 => (SpendStatus::NotFound, 0, false),
        1 => (SpendStatus::Unspent, 1, false),
        2 => (SpendStatus::Spent(spender), 2, false),
        3 => (SpendStatus::Frozen, 3, false),
        4 => (SpendStatus::NotYetSpendable(height), 4, true),
        5 => (SpendStatus::Locked, 5, false),
        6 => (SpendStatus::Immature(height), 6, true),
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
