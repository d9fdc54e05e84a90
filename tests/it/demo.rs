//! `utxo-store demo`, as a new user runs it. The figures are those of `tests/data/PROVENANCE.md`.

use std::{
    fs,
    process::{Command, Output},
};

use serde_json::Value;

fn demo(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_utxo-store"));
    // A configuration in the environment belongs to another instance.
    command.arg("demo").args(args).env("UTXO_STORE__STORE__NETWORK", "regtest").output().unwrap()
}

pub fn data(name: &str) -> String {
    format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR"))
}

pub fn shown(args: &[&str]) -> Value {
    let output = demo(&[args, &["--json"]].concat());
    let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(0), "{err}{out}");
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(report["digest_live"], report["digest_rebuilt"]);
    assert_eq!(report["violations"], 0);
    assert_eq!(report["dead_letters"], 0);
    report
}

#[track_caller]
pub fn assert_counts(report: &Value, counts: &[(&str, u64)]) {
    for (name, count) in counts {
        assert_eq!(report[name], *count, "{name}: {report}");
    }
}

#[track_caller]
fn assert_refused(args: &[&str], code: i32, words: &[&str]) {
    let output = demo(args);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert!(text.lines().count() == 1 || code == 2, "{text}");
    assert!(words.iter().all(|word| text.contains(word)), "{words:?}: {text}");
}

pub const FIRST_BLOCKS: [(&str, u64); 9] = [
    ("blocks", 4_313),
    ("transactions", 4_371),
    ("inputs", 247),
    ("outputs", 4_397),
    ("slots", 4_396),
    ("spent_inside", 247),
    ("spent_outside", 0),
    ("unspent", 4_149),
    ("unspent_satoshis", 21_560_000_000_000),
];

#[test]
fn the_first_blocks_survive_a_kill() {
    let report = shown(&["--kills", "1"]);
    assert_counts(&report, &FIRST_BLOCKS);
    assert_counts(&report, &[("kills", 1), ("kills_midway", 1), ("contests", 0), ("unmined", 0), ("conflicting", 0)]);
    assert_eq!(report["seeded"]["transactions"], 0);
    assert_eq!(report["digest_without_conflicting"], STANDING);
    for name in ["replayed_events", "parked_max", "seconds", "transactions_per_second"] {
        assert!(report[name].is_number(), "{name}: {report}");
    }
}

/// Digest of the live transactions after the first blocks, whatever became conflicting meanwhile.
pub const STANDING: &str = "e8ca32d3933ef5ce3b514176f62cea2250968de97043afe43e492786981823dc";

/// The first blocks with reorgs of one to twenty blocks at random heights: the final digest is the one without reorgs.
pub fn assert_reorgs_change_nothing_live(store: &[&str]) {
    let reorganised = shown(&[&["--reorgs", "20", "--seed", "5"], store].concat());
    assert!(reorganised["conflicting"].as_u64().unwrap() >= 20, "coinbases that have left: {reorganised}");
    assert_eq!(reorganised["digest_without_conflicting"], STANDING);
}

#[test]
fn the_first_blocks_end_alike_with_and_without_reorgs() {
    assert_reorgs_change_nothing_live(&[]);
}

pub const SCENARIOS: [&str; 4] = ["double-spend", "reorg", "coinbase-reorg", "freeze"];

/// Returns the printed story without its duration.
pub fn run_story(args: &[&str]) -> String {
    let output = demo(args);
    let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(0), "{err}{out}");
    assert!(out.contains("A rebuild from the log has the same digest"), "{out}");
    out.trim_end().rsplit_once(". ").unwrap().0.to_owned()
}

/// Each story ends with a rebuild of the same digest, and last shows the state of every transaction.
#[test]
fn stories_are_told_with_the_state_after_each_chapter() {
    let endings: [(&str, &[&str]); 4] = [
        (
            "double-spend",
            &[
                "* to-bob       conflicting (the output that input 0 spends is spent by to-mallory)",
                "* to-mallory   live, mined",
            ],
        ),
        (
            "reorg",
            &["* second       live, mined at height 800001", "old-reward   conflicting (a coinbase whose block left"],
        ),
        ("coinbase-reorg", &["* passed-on    live, unmined", "* their-reward conflicting"]),
        (
            "freeze",
            &[
                "too-early    conflicting (the output that input 0 spends is not spendable yet)",
                "output 0 is spent by new-owner",
            ],
        ),
    ];
    assert_eq!(endings.map(|(scenario, _)| scenario), SCENARIOS);
    for (scenario, ending) in endings {
        let out = run_story(&["--scenario", scenario]);
        let last = out.rsplit("\n\n").nth(1).unwrap_or_default();
        assert!(ending.iter().all(|line| last.contains(line)), "{scenario}: {last}");
    }
    assert_refused(&["--scenario", "tragedy"], 2, &["tragedy", "double-spend"]);
    assert_refused(&["--inspect"], 2, &["--scenario"]);
}

/// A changed transaction is shown as `inspect tx --history` would show it.
#[test]
fn a_story_shows_the_history_of_each_changed_transaction() {
    let out = run_story(&["--scenario", "freeze", "--inspect"]);
    assert!(out.contains("conflicting at height 800000: the output that input 0 spends is frozen"), "{out}");
    assert!(out.contains(": command reassign ") && out.contains("given to a new owner at height 800000"), "{out}");
    assert!(out.lines().filter(|line| line.starts_with("transaction ")).count() >= 6, "{out}");
}

/// The kills are so many that a process may die before it has joined its group, or just after: another seed has other
/// kills.
#[test]
fn a_block_survives_ten_kills() {
    let (block, prevouts) = (data("mainnet-277647.block"), data("mainnet-277647.prevouts.csv"));
    let has_kill_midway = (7..12).any(|seed: u64| {
        let seed = seed.to_string();
        let report = shown(&["--blocks", &block, "--prevouts", &prevouts, "--kills", "10", "--seed", &seed]);
        assert_counts(&report, &[("transactions", 213), ("unspent", 707), ("kills", 10), ("unmined", 0)]);
        report["kills_midway"].as_u64().unwrap() > 0
    });
    assert!(has_kill_midway, "no kill of fifty came while events were handled");
}

/// Transactions over as many as twenty records with their bodies in a blob store, and their rivals; the rebuild has a
/// blob store of its own.
#[test]
fn blob_store_bodies_survive_four_kills() {
    let (block, prevouts) = (data("mainnet-277647.block"), data("mainnet-277647.prevouts.csv"));
    let args = ["--blocks", &block, "--prevouts", &prevouts, "--kills", "4", "--seed", "9", "--contended"];
    let report = shown(&[&args[..], &["--externalize-all", "--utxo-batch-size", "1"]].concat());
    assert_counts(&report, &[("kills", 4)]);
    assert!(report["kills_midway"].as_u64().unwrap() > 0, "{report}");
    assert_eq!(report["rivalry"]["rivals_won"], 0);
}

#[test]
fn a_block_with_listed_previous_outputs_has_its_counts() {
    let block = data("mainnet-277647.block");
    let report = shown(&["--blocks", &block, "--prevouts", &data("mainnet-277647.prevouts.csv"), "--kills", "1"]);
    let counts = [
        ("blocks", 1),
        ("transactions", 213),
        ("inputs", 732),
        ("outputs", 769),
        ("slots", 769),
        ("spent_inside", 62),
        ("spent_outside", 670),
        ("unspent", 707),
        ("unspent_satoshis", 172_129_169_749),
        ("kills", 1),
    ];
    assert_counts(&report, &counts);
    assert_eq!(report["seeded"]["outputs"], 670);
    assert_eq!(report["seeded"]["unspent"], 0);
}

#[test]
fn two_blocks_with_synthesized_previous_outputs_have_their_counts() {
    let blocks = [data("mainnet-384188.block"), data("mainnet-384189.block")];
    let report = shown(&["--blocks", &blocks[0], &blocks[1], "--synthesize-prevouts"]);
    let counts = [
        ("blocks", 2),
        ("transactions", 1_920),
        ("inputs", 7_348),
        ("outputs", 4_984),
        ("slots", 4_972),
        ("spent_inside", 1_026),
        ("spent_outside", 6_322),
        ("unspent", 3_946),
        ("unspent_satoshis", 1_107_962_672_096),
    ];
    assert_counts(&report, &counts);
    assert_eq!(report["seeded"]["outputs"], 6_322);
}

#[test]
fn transactions_of_a_block_win_against_rivals() {
    let block = data("mainnet-277647.block");
    let csv = data("mainnet-277647.prevouts.csv");
    let report = shown(&["--blocks", &block, "--prevouts", &csv, "--contended", "--seed", "3"]);
    let rivalry = &report["rivalry"];
    let pairs = rivalry["pairs"].as_u64().unwrap();
    assert!(pairs > 30, "{report}");
    assert_eq!((&rivalry["own_won"], &rivalry["rivals_won"]), (&Value::from(pairs), &Value::from(0)));
    assert_eq!(rivalry["rivals_children_conflicting"], pairs);
    assert!(rivalry["shown"].as_array().unwrap().iter().any(|pair| pair["rival_first"] == true));
    assert!(report["contests"].as_u64().unwrap() >= pairs, "{report}");
    // The children of the block's own transactions are live and in no block.
    let transactions = report["transactions"].as_u64().unwrap();
    assert_eq!(transactions - report["unmined"].as_u64().unwrap(), 213);
    assert_eq!(report["unmined"], rivalry["own_children_live"]);
}

#[test]
fn an_events_file_is_fed_and_the_directory_stays() {
    let directory = tempfile::tempdir().unwrap();
    let events = directory.path().join("events.jsonl");
    let golden = |name| fs::read_to_string(format!("{}/schemas/golden/{name}.jsonl", env!("CARGO_MANIFEST_DIR")));
    // The sample of the format has amounts above the supply.
    let seeded = golden("seeded").unwrap().replace(&u64::MAX.to_string(), "1");
    fs::write(&events, seeded + &golden("validated").unwrap()).unwrap();
    let kept = directory.path().join("data");
    let args = ["--events", events.to_str().unwrap(), "--data-dir", kept.to_str().unwrap()];
    let report = shown(&args);
    assert_counts(&report, &[("blocks", 0), ("transactions", 1), ("spent_outside", 1), ("unspent", 2), ("unmined", 1)]);
    assert!(kept.join("live").is_dir() && kept.join("rebuilt").is_dir() && kept.join("run-0.log").is_file());
    assert_refused(&args, 1, &["the store is not empty"]);
}

#[test]
fn bad_demo_input_is_refused_in_one_line() {
    let directory = tempfile::tempdir().unwrap();
    let (cut, other) = (directory.path().join("cut.blk"), directory.path().join("other.blk"));
    fs::write(&cut, &fs::read(data("mainnet-0-4312.blk")).unwrap()[..200]).unwrap();
    fs::write(&other, b"\xde\xad\xbe\xef, and no block behind it").unwrap();
    let (cut, other) = (cut.to_str().unwrap(), other.to_str().unwrap());
    let block = data("mainnet-277647.block");
    assert_refused(&["--blocks", "/nowhere/a.blk"], 1, &["/nowhere/a.blk", "No such file"]);
    assert_refused(&["--blocks", cut], 1, &[cut, "cut in half at byte 200"]);
    assert_refused(&["--blocks", other], 1, &[other, "unknown magic deadbeef at byte 0", "xor.dat"]);
    assert_refused(&["--blocks", directory.path().to_str().unwrap()], 1, &["no block file (blk*.dat)"]);
    assert_refused(&["--blocks", &block], 1, &["--prevouts", "--synthesize-prevouts"]);
    assert_refused(&["--blocks", &block, "--prevouts", &block], 1, &["line 1"]);
    assert_refused(&["--store", "memory://"], 2, &["--store memory://", "outlives"]);
    assert_refused(&["--data-dir", "/dev/null/x"], 1, &["/dev/null/x"]);
    assert_refused(&["--kills", "many"], 2, &["--kills"]);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken_address = taken.local_addr().unwrap().to_string();
    assert_refused(&["--keep", "here"], 2, &["--keep"]);
    assert_refused(&["--keep", "0.0.0.0:0"], 2, &["--keep 0.0.0.0:0", "http.tokens_file"]);
    assert_refused(&["--keep", &taken_address], 1, &[&taken_address, "Address already in use"]);
}

/// Two files of a node of Bitcoin Core 28 or later, as a kill leaves them: obfuscated, with reserved space, blocks in
/// the order in which they came, and half a block at the end.
#[test]
fn a_bitcoin_core_directory_is_fed_and_left_out_bytes_are_counted() {
    let blocks = fs::read(data("mainnet-0-4312.blk")).unwrap();
    let mut frames = Vec::new();
    let mut rest = &blocks[..];
    while !rest.is_empty() {
        let length = 8 + u32::from_le_bytes(rest[4..8].try_into().unwrap()) as usize;
        frames.push(&rest[..length]);
        rest = &rest[length..];
    }
    let key = [0x3c, 0xa5, 0x00, 0xff, 0x17, 0x80, 0x01, 0xd9];
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, frames: &[&[u8]]| {
        let mut bytes = Vec::new();
        for (number, frame) in frames.iter().enumerate() {
            bytes.extend((bytes.len()..).zip(*frame).map(|(place, byte)| byte ^ key[place % 8]).collect::<Vec<_>>());
            bytes.resize(bytes.len() + if number % 500 == 1 { 1_000 } else { 0 }, 0);
        }
        fs::write(directory.path().join(name), bytes).unwrap();
    };
    let (low, high) = frames.split_at(2_000);
    let swapped: Vec<&[u8]> = high.chunks(2).flat_map(|pair| pair.iter().rev().copied()).collect();
    write("blk00000.dat", &swapped);
    write("blk00001.dat", &[low, &[&frames[1][..94]]].concat());
    fs::write(directory.path().join("xor.dat"), key).unwrap();
    let report = shown(&["--blocks", directory.path().to_str().unwrap(), "--kills", "0"]);
    assert_counts(&report, &[("blocks", 4_313), ("live_transactions", 4_371), ("inputs", 247), ("unmined", 0)]);
    assert_eq!(report["digest_without_conflicting"], STANDING, "the same as from the ordered file");
    let left_out = &report["left_out"];
    assert_eq!((&left_out["pieces"], &left_out["bytes"]), (&Value::from(1), &Value::from(94)), "{left_out}");
    let first = left_out["first_piece"].as_str().unwrap();
    assert!(first.contains("blk00001.dat") && first.contains("cut in half"), "{first}");
}
