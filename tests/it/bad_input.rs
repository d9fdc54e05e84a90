//! Bad input of every kind, through the binary: a dead letter with reason and source, or one line and exit code 1. All
//! other input is handled.

use std::fs;

use utxo_store::{
    event::{DeadLetter, DeadLetterClass, SCHEMA_VERSION, Validated},
    tx::{Outpoint, Output, Transaction, TransactionBuilder, Txid},
};

use crate::{
    cli::{stderr, utxo_store},
    harness::{Coin, coinbase, spend},
    made_blocks::MadeBlock,
    run::{Bench, PARTITIONS, until},
};

const TXS: &str = "validated-txs";
const BLOCKS: &str = "block-mined";

/// Returns the output of a transaction that `Bench::seed` produces.
fn seeded(tag: u8) -> Coin {
    Coin { outpoint: Outpoint { txid: Txid([tag; 32]), vout: 0 }, satoshis: 1_000, script: vec![0x51] }
}

fn validated(tx: &[u8]) -> Vec<u8> {
    Validated { tx, height: 200, locked: false }.encode()
}

/// Builds a transaction that spends one seeded output of 1,000 satoshis and makes these outputs.
fn over(tag: u8, outputs: &[u64]) -> TransactionBuilder {
    let Coin { outpoint, satoshis, script } = seeded(tag);
    let builder = TransactionBuilder::default();
    let builder = builder.input(outpoint, &[], u32::MAX, Some(Output { satoshis, script: &script }));
    outputs.iter().fold(builder, |builder, satoshis| builder.output(*satoshis, &[0x51]))
}

struct Poison {
    key: Vec<u8>,
    payload: Vec<u8>,
    class: DeadLetterClass,
    reason: &'static str,
}

fn poison() -> Vec<Poison> {
    use DeadLetterClass::{Decode, Invalid};
    let whole = over(1, &[900]).extended();
    let mut newer = validated(&whole);
    newer[1] = SCHEMA_VERSION + 1;
    let of = |payload: Vec<u8>, class, reason| Poison { key: vec![7; 32], payload, class, reason };
    let at_height = |tx: Vec<u8>, height, class, reason| {
        let key = Transaction::parse(&tx).unwrap().txid().0.to_vec();
        Poison { key, payload: Validated { tx: &tx, height, locked: false }.encode(), class, reason }
    };
    let keyed = |tx, class, reason| at_height(tx, 200, class, reason);
    vec![
        of(b"dear diary".to_vec(), Decode, "not an event"),
        of(Vec::new(), Decode, ""),
        of(newer, Decode, "schema version 2 is unknown"),
        of(validated(&whole[..whole.len() - 3]), Decode, "at byte"),
        of(validated(&whole), Decode, "is not the transaction's id"),
        keyed(over(1, &[600, 401]).extended(), Invalid, "output satoshis: 1001 exceed the 1000"),
        keyed(over(1, &[]).extended(), Invalid, "outputs: the transaction has none"),
        keyed(over(1, &[900]).standard(), Invalid, "previous output of input 0: missing"),
        at_height(whole, u32::MAX, Invalid, "height: 4294967295 is not below 2147483648"),
    ]
}

#[test]
fn poison_becomes_dead_letters_with_reason_and_source() {
    let bench = Bench::new();
    bench.seed(2);
    let poison = poison();
    for Poison { key, payload, .. } in &poison {
        bench.produce(TXS, key, payload);
    }
    let good = spend(&[seeded(2)], 1, 1);
    bench.produce(TXS, &good.txid.0, &validated(&good.extended));

    let mut instance = bench.start();
    until("everything is committed", || bench.committed() == 2 + poison.len() as u64 + 1);
    assert!(instance.get("/health/ready").starts_with("HTTP/1.1 200"));
    instance.signal("TERM");
    assert_eq!(instance.wait().code(), Some(0));

    let sources: Vec<_> = (0..PARTITIONS).map(|partition| bench.messages(TXS, partition)).collect();
    let letters: Vec<_> = (0..PARTITIONS).flat_map(|partition| bench.messages("dead-letters", partition)).collect();
    assert_eq!(letters.len(), poison.len());
    for Poison { key, payload, class, reason } in &poison {
        let letter = letters.iter().find(|letter| letter.payload == payload[..] && letter.key == key[..]).unwrap();
        let details = DeadLetter::from_headers(&letter.headers).unwrap();
        assert_eq!((details.class, &details.topic), (*class, &bench.topic(TXS)), "{details:?}");
        assert!(details.message.contains(reason) && !details.message.contains('\n'), "{reason}: {details:?}");
        let source = &sources[details.partition as usize][details.offset as usize];
        assert_eq!((&source.payload, &source.key, source.offset), (&letter.payload, &letter.key, details.offset));
    }
    let log = fs::read_to_string(bench.path("run.log")).unwrap();
    assert!(!log.contains("panicked"), "{log}");
    let inspected =
        utxo_store(&["inspect", "tx", "--json", "--store", &bench.store_url(), &good.txid.to_string()], &[]);
    let shown: serde_json::Value = serde_json::from_slice(&inspected.stdout).unwrap();
    assert_eq!(shown["state"], "live", "{shown}");
}

#[test]
fn a_block_with_an_unknown_transaction_halts_only_the_chain() {
    let bench = Bench::new();
    bench.seed(1);
    let waits = [("UTXO_STORE__SEQUENCER__BLOCK_WAIT_MS", "200"), ("UTXO_STORE__INGEST__FLAG_GRACE_MS", "100")];
    let mut instance = bench.start_with(&waits);
    let late = spend(&[seeded(1)], 1, 1);
    bench.produce(BLOCKS, b"", b"no event");
    bench.produce(BLOCKS, b"", &MadeBlock::new(1, 101, &coinbase(1), &[&late]).mined(1, true));
    until("readiness names what the chain waits for", || {
        let answer = instance.get("/health/ready");
        answer.starts_with("HTTP/1.1 503")
            && answer.contains("chain_running")
            && answer.contains(&late.txid.to_string())
    });
    assert!(instance.get("/metrics").contains("utxo_chain_halted 1"));
    bench.seed(4);
    until("the validated transactions go on", || bench.committed() == 5);
    bench.produce(TXS, &late.txid.0, &validated(&late.extended));
    until("the chain goes on", || instance.get("/health/ready").starts_with("HTTP/1.1 200"));
    instance.signal("TERM");
    assert_eq!(instance.wait().code(), Some(0));

    let letters: Vec<_> = (0..PARTITIONS).flat_map(|partition| bench.messages("dead-letters", partition)).collect();
    let [letter] = letters.as_slice() else { panic!("{letters:?}") };
    let details = DeadLetter::from_headers(&letter.headers).unwrap();
    assert_eq!(
        (details.topic, details.partition, details.offset, details.class),
        (bench.topic(BLOCKS), 0, 0, DeadLetterClass::Decode)
    );
}

/// Runs a command that must fail with one line that contains these words.
#[track_caller]
fn assert_refused(args: &[&str], words: &[&str]) {
    let output = utxo_store(args, &[]);
    let text = stderr(&output);
    assert_eq!((output.status.code(), text.lines().count()), (Some(1), 1), "{args:?}: {text}");
    assert!(text.starts_with("error: ") && words.iter().all(|word| text.contains(word)), "{words:?}: {text}");
    assert!(output.stdout.is_empty(), "{args:?}");
}

/// Returns every command that only reads a store.
fn reading(store: &str) -> [Vec<&str>; 5] {
    const TXID: &str = "0e3e2357e806b6cdb1f70b54c3a3a17b6714ee1f0e68bebb44a74b1efd512098";
    const OUTPOINT: &str = "0e3e2357e806b6cdb1f70b54c3a3a17b6714ee1f0e68bebb44a74b1efd512098:0";
    [
        vec!["stats", "--store", store],
        vec!["verify", "--store", store],
        vec!["dump", "--store", store],
        vec!["inspect", "tx", TXID, "--store", store],
        vec!["inspect", "outpoint", OUTPOINT, "--store", store],
    ]
}

#[test]
fn read_commands_create_no_store_at_a_mistyped_path() {
    let directory = tempfile::tempdir().unwrap();
    let typo = directory.path().join("deep/stor");
    let url = format!("fjall://{}", typo.display());
    for args in reading(&url) {
        assert_refused(&args, &["there is no store", typo.to_str().unwrap()]);
    }
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn read_commands_report_a_damaged_store() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("version"), "nonsense").unwrap();
    let url = format!("fjall://{}", directory.path().display());
    for args in reading(&url) {
        assert_refused(&args, &[directory.path().to_str().unwrap(), "damaged"]);
    }
}

#[test]
fn a_missing_or_truncated_file_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let cut = directory.path().join("cut.block");
    let block = fs::read(format!("{}/tests/data/mainnet-277647.block", env!("CARGO_MANIFEST_DIR"))).unwrap();
    fs::write(&cut, &block[..block.len() / 2]).unwrap();
    let cut = cut.to_str().unwrap();
    let nobody = ["--brokers", "127.0.0.1:1"];
    let generate = |args: &[&'static str]| [&["generate"], args, &nobody].concat();
    assert_refused(&generate(&["--blocks", "/nowhere/a.blk"]), &["/nowhere/a.blk", "No such file"]);
    assert_refused(&generate(&["--events", "/nowhere/a.jsonl"]), &["/nowhere/a.jsonl", "No such file"]);
    assert_refused(&["generate", "--blocks", cut, "--synthesize-prevouts", nobody[0], nobody[1]], &[cut, "at byte"]);
    for direction in ["encode", "decode"] {
        assert_refused(&["events", direction, "/nowhere/a"], &["/nowhere/a", "No such file"]);
    }
}
