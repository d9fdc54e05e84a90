//! Real blocks, read by this crate and by the crate `bitcoin`, which is the oracle.

use std::collections::BTreeMap;

use bitcoin::{consensus, hashes::Hash};

use super::data;
use crate::tx::{
    Network, Outpoint, Output, Transaction, Txid,
    block::{BlockFile, FileNetwork, MerkleError, RawBlock},
    has_slot,
};

const FILES: [&str; 4] = ["mainnet-0-4312.blk", "mainnet-277647.block", "mainnet-384188.block", "mainnet-384189.block"];

fn blocks(bytes: &[u8]) -> impl Iterator<Item = RawBlock<'_>> {
    BlockFile::new(bytes).unwrap().blocks().map(|block| block.unwrap())
}

#[test]
fn blocks_equal_those_of_the_oracle() {
    for file in FILES {
        for block in blocks(&data(file)) {
            let oracle: bitcoin::Block = consensus::deserialize(block.raw()).unwrap();
            assert_eq!(block.hash(), oracle.block_hash().to_byte_array());
            let header = block.header();
            assert_eq!(header.version, oracle.header.version.to_consensus() as u32);
            assert_eq!(header.previous, oracle.header.prev_blockhash.to_byte_array());
            assert_eq!(header.merkle_root, oracle.header.merkle_root.to_byte_array());
            assert_eq!(header.time, oracle.header.time);
            assert_eq!(header.bits, oracle.header.bits.to_consensus());
            assert_eq!(header.nonce, oracle.header.nonce);

            let txids = block.check_merkle_root().unwrap();
            let expected: Vec<Txid> =
                oracle.txdata.iter().map(|transaction| Txid(transaction.compute_txid().to_byte_array())).collect();
            assert_eq!(txids, expected);
            assert_eq!(block.transaction_count(), oracle.txdata.len());
            for (transaction, oracle) in block.transactions().zip(&oracle.txdata) {
                assert_same(&transaction, oracle);
            }
        }
    }
}

fn assert_same(transaction: &Transaction<'_>, oracle: &bitcoin::Transaction) {
    assert_eq!(transaction.raw(), consensus::serialize(oracle));
    assert_eq!(transaction.version(), oracle.version.0 as u32);
    assert_eq!(transaction.lock_time(), oracle.lock_time.to_consensus_u32());
    assert_eq!(transaction.is_coinbase(), oracle.is_coinbase());
    assert_eq!(transaction.input_count(), oracle.input.len());
    assert_eq!(transaction.output_count(), oracle.output.len());
    for (input, oracle) in transaction.inputs().zip(&oracle.input) {
        assert_eq!(input.outpoint.txid.0, oracle.previous_output.txid.to_byte_array());
        assert_eq!(input.outpoint.vout, oracle.previous_output.vout);
        assert_eq!(input.script, oracle.script_sig.as_bytes());
        assert_eq!(input.sequence, oracle.sequence.0);
        assert_eq!(input.previous, None);
    }
    for (output, oracle) in transaction.outputs().zip(&oracle.output) {
        assert_eq!(output.satoshis, oracle.value.to_sat());
        assert_eq!(output.script, oracle.script_pubkey.as_bytes());
    }
}

/// Row of the table in `tests/data/PROVENANCE.md`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    blocks: usize,
    transactions: usize,
    inputs: usize,
    outputs: usize,
    slots: usize,
    spent_inside: usize,
    spent_outside: usize,
    unspent: usize,
    unspent_satoshis: u64,
}

fn count(files: &[&str], first_height: u32) -> Counts {
    let mut counts = Counts::default();
    let mut unspent: BTreeMap<Outpoint, u64> = BTreeMap::new();
    let mut height = first_height;
    for file in files {
        for block in blocks(&data(file)) {
            counts.blocks += 1;
            for transaction in block.transactions() {
                count_transaction(&transaction, height, &mut counts, &mut unspent);
            }
            height += 1;
        }
    }
    counts.unspent = unspent.len();
    counts.unspent_satoshis = unspent.values().sum();
    counts
}

fn count_transaction(
    transaction: &Transaction<'_>,
    height: u32,
    counts: &mut Counts,
    unspent: &mut BTreeMap<Outpoint, u64>,
) {
    counts.transactions += 1;
    for input in transaction.inputs().filter(|_| !transaction.is_coinbase()) {
        counts.inputs += 1;
        match unspent.remove(&input.outpoint) {
            Some(_) => counts.spent_inside += 1,
            None => counts.spent_outside += 1,
        }
    }
    let txid = transaction.txid();
    for (vout, output) in transaction.outputs().enumerate() {
        counts.outputs += 1;
        if has_slot(&txid, output.script, height, Network::Main) {
            counts.slots += 1;
            unspent.insert(Outpoint { txid, vout: vout as u32 }, output.satoshis);
        }
    }
}

#[test]
fn counts_are_those_of_the_provenance_table() {
    let table = data("PROVENANCE.md");
    let table = std::str::from_utf8(&table).unwrap();
    let rows: [(&str, &[&str], u32); 5] = [
        ("mainnet-0-4312.blk", &FILES[..1], 0),
        ("mainnet-277647.block", &FILES[1..2], 277_647),
        ("mainnet-384188.block", &FILES[2..3], 384_188),
        ("mainnet-384189.block", &FILES[3..4], 384_189),
        ("384188 then 384189", &FILES[2..], 384_188),
    ];
    for (name, files, height) in rows {
        let row = table.lines().find(|line| line.starts_with(&format!("| {name} |"))).unwrap();
        let cells: Vec<u64> =
            row.split('|').skip(2).filter_map(|cell| cell.trim().replace(',', "").parse().ok()).collect();
        let found = count(files, height);
        let found_cells: Vec<u64> = [
            found.blocks,
            found.transactions,
            found.inputs,
            found.outputs,
            found.slots,
            found.spent_inside,
            found.spent_outside,
            found.unspent,
        ]
        .map(|number| number as u64)
        .into_iter()
        .chain([found.unspent_satoshis])
        .collect();
        assert_eq!(found_cells, cells, "{name}: {found:?}");
    }
}

#[test]
fn blocks_of_one_file_form_a_chain() {
    let bytes = data(FILES[0]);
    assert_eq!(BlockFile::new(&bytes).unwrap().network(), Some(FileNetwork::Main));
    let chain: Vec<RawBlock<'_>> = blocks(&bytes).collect();
    assert!(chain.windows(2).all(|pair| pair[1].header().previous == pair[0].hash()));
}

#[test]
fn another_transaction_breaks_the_merkle_root() {
    let mut bytes = data("mainnet-277647.block");
    let lock_time_at = bytes.len() - 1;
    bytes[lock_time_at] ^= 1;
    assert!(matches!(RawBlock::parse(&bytes).unwrap().check_merkle_root(), Err(MerkleError::Mismatch { .. })));
}

/// The previous outputs of a whole block come from the CSV file beside the block file.
#[test]
fn extended_form_from_known_previous_outputs() {
    let csv = data("mainnet-277647.prevouts.csv");
    let mut known: BTreeMap<Outpoint, (u64, Vec<u8>)> = BTreeMap::new();
    for row in csv::Reader::from_reader(&csv[..]).records() {
        let row = row.unwrap();
        let outpoint = Outpoint { txid: row[0].parse().unwrap(), vout: row[1].parse().unwrap() };
        known.insert(outpoint, (row[2].parse().unwrap(), hex::decode(&row[5]).unwrap()));
    }
    let bytes = data("mainnet-277647.block");
    let block = blocks(&bytes).next().unwrap();
    let mut fees = 0;
    for transaction in block.transactions() {
        let mut extended = Vec::new();
        let previous = |_, outpoint: Outpoint| {
            known.get(&outpoint).map(|(satoshis, script)| Output { satoshis: *satoshis, script })
        };
        transaction.write_extended(&mut extended, previous).unwrap();
        let extended = Transaction::parse(&extended).unwrap();
        assert_eq!(extended.txid(), transaction.txid());
        assert_eq!(extended.is_coinbase(), transaction.is_coinbase());
        fees += extended.check().unwrap();
    }
    let coinbase = block.transactions().next().unwrap();
    let paid: u64 = coinbase.outputs().map(|output| output.satoshis).sum();
    assert_eq!(paid, 2_500_000_000 + fees, "the miner takes the subsidy and all fees");

    let second = block.transactions().nth(1).unwrap();
    let mut untouched = vec![1];
    let error = second.write_extended(&mut untouched, |_, _| None).unwrap_err();
    assert_eq!(error.outpoint, second.inputs().next().unwrap().outpoint);
    assert!(error.to_string().contains(&error.outpoint.to_string()));
    assert_eq!(untouched, [1]);
}
