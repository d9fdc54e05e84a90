//! What single steps cost, one function per group. Run one group with `cargo bench --bench micro -- <group>`.

use std::{fs, hint::black_box, path::Path};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use utxo_store::tx::{Outpoint, Output, Transaction, TransactionBuilder, Txid, block::BlockFile, utxo_hash};

criterion_group!(micro, transactions, utxo_hashes, blocks);
criterion_main!(micro);

/// A payment with one input and two outputs: about 250 bytes in extended format.
fn payment(number: u32) -> Vec<u8> {
    let lock = [0x76; 25];
    let previous = Output { satoshis: 5_000, script: &lock };
    TransactionBuilder::default()
        .input(Outpoint { txid: Txid([7; 32]), vout: number }, &[0x30; 107], u32::MAX, Some(previous))
        .output(3_000, &lock)
        .output(1_900, &lock)
        .extended()
}

/// Many transactions one behind the other, so that they do not all sit in the first-level cache.
fn payments() -> Vec<u8> {
    (0..4_000).flat_map(payment).collect()
}

fn each_transaction<'a>(bytes: &'a [u8], mut act: impl FnMut(Transaction<'a>)) {
    let mut rest = bytes;
    while !rest.is_empty() {
        let (transaction, len) = Transaction::parse_prefix(rest).expect("made by the builder");
        act(transaction);
        rest = &rest[len..];
    }
}

fn transactions(criterion: &mut Criterion) {
    let payments = payments();
    let large = data("tx-65cbf318.extended.bin");
    for (name, bytes) in [("small", &payments), ("large", &large)] {
        let mut group = criterion.benchmark_group(format!("tx/{name}"));
        group.throughput(Throughput::Bytes(bytes.len() as u64));
        group.bench_function("parse", |bencher| {
            bencher.iter(|| each_transaction(black_box(bytes), keep));
        });
        let mut parsed = Vec::new();
        each_transaction(bytes, |transaction| parsed.push(transaction));
        group.bench_function("txid", |bencher| {
            bencher.iter(|| parsed.iter().for_each(|transaction| keep(transaction.txid())));
        });
        group.bench_function("parse+txid", |bencher| {
            bencher.iter(|| each_transaction(black_box(bytes), |transaction| keep(transaction.txid())));
        });
        group.bench_function("check", |bencher| {
            bencher.iter(|| parsed.iter().for_each(|transaction| keep(transaction.check())));
        });
        group.finish();
    }
}

fn utxo_hashes(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("utxo_hash");
    group.throughput(Throughput::Elements(1));
    let (txid, lock) = (Txid([7; 32]), [0x76; 25]);
    group.bench_function("p2pkh", |bencher| {
        bencher.iter(|| utxo_hash(black_box(&txid), black_box(1), black_box(&lock), black_box(5_000)));
    });
    group.finish();
}

fn blocks(criterion: &mut Criterion) {
    let bytes = data("mainnet-384188.block");
    let file = BlockFile::new(&bytes).expect("a real block");
    let mut group = criterion.benchmark_group("block");
    group.throughput(Throughput::Bytes(bytes.len() as u64));
    group.bench_function("parse+merkle_root", |bencher| {
        bencher.iter(|| {
            let block = file.blocks().next().expect("one block").expect("a real block");
            block.check_merkle_root().expect("a real block")
        });
    });
    group.finish();
}

/// Makes the compiler believe that the value is used.
fn keep<T>(value: T) {
    black_box(value);
}

fn data(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
