//! `utxo-store utxo-set` as a process: a `dumptxoutset` file that another program wrote, and imports that are killed.

use std::{
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use utxo_store::rng::SplitMix64;

use crate::{demo, real_kafka::json};

/// Number of kills of each import.
const KILLS: u32 = 6;

/// Returns a command of the program, for a store of the main network.
fn program(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_utxo-store"));
    command.args(args).env_clear().env("UTXO_STORE__STORE__NETWORK", "main");
    command
}

/// Writes the unspent outputs of the first 4,313 blocks with `make_txoutset.py`, and returns what the script says of
/// them; `None`, with a line on standard error, without Python.
fn write_file(to: &Path) -> Option<Value> {
    let script = format!("{}/tests/it/make_txoutset.py", env!("CARGO_MANIFEST_DIR"));
    let blocks = demo::data("mainnet-0-4312.blk");
    match Command::new("python3").args([&script, &blocks, "f9beb4d9"]).arg(to).output() {
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            Some(serde_json::from_slice(&output.stdout).unwrap())
        }
        Err(error) => {
            eprintln!("SKIPPED: a dumptxoutset file of another program: `python3`: {error}");
            None
        }
    }
}

/// Protects: the format is Bitcoin Core's, as a program reads it that shares no code with the store. The hash of the
/// set and all totals are those of the program.
#[test]
fn a_file_that_another_program_wrote_has_the_totals_that_the_program_says() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("utxos.dat");
    let Some(said) = write_file(&file) else { return };
    let (file, store) = (file.to_str().unwrap(), format!("fjall://{}", folder.path().join("store").display()));
    let hash = said["hash_serialized_3"].as_str().unwrap();
    let verified = json(program(&["utxo-set", "verify", "--from", file, "--json"]));
    let import = ["utxo-set", "import", "--from", file, "--store", &store, "--txoutset-hash", hash, "--json"];
    let imported = json(program(&import));
    for shown in [&verified, &imported] {
        assert_eq!((&shown["block"], &shown["txoutset_hash"]), (&said["bestblock"], &said["hash_serialized_3"]));
        for (ours, theirs) in [("transactions", "transactions"), ("outputs", "txouts"), ("satoshis", "total_satoshis")]
        {
            assert_eq!(shown["totals"][ours], said[theirs], "{shown}");
        }
    }
    assert_eq!(imported["height"], said["height"]);
    // The figures of the demo, which applies the same blocks (`tests/data/PROVENANCE.md`).
    assert_eq!((&said["txouts"], &said["total_satoshis"]), (&4_149.into(), &21_560_000_000_000_u64.into()));
    let stats = json(program(&["stats", "--store", &store, "--json"]));
    assert_eq!((&stats["seeded"]["unspent"], &stats["tip"]), (&said["txouts"], &said["bestblock"]));
}

/// Repeats an import until the process ends by itself, and kills the process a few times before: first early, then at
/// any moment of the time that a whole import takes.
fn import_with_kills(import: &[&str], whole: Duration, rng: &mut SplitMix64) -> (Value, u32) {
    let mut killed = 0;
    while killed < KILLS {
        let mut child = program(import).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let longest = if killed == 0 { whole / 10 } else { whole };
        thread::sleep(longest.mul_f64(rng.below(1_000) as f64 / 1_000.0));
        if child.try_wait().unwrap().is_some_and(|status| status.success()) {
            break;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        killed += 1;
    }
    (json(program(import)), killed)
}

/// Protects: an import that is killed at any moment continues with the same command, and ends with the same store.
#[test]
fn a_killed_import_is_repeated_with_success_on_each_engine() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("utxos.dat");
    if write_file(&file).is_none() {
        return;
    }
    let seed = std::env::var("SEED").map_or(11, |seed| seed.parse().unwrap());
    println!("SEED={seed}");
    let mut rng = SplitMix64::new(seed);
    let url = |scheme: &str, name: &str| format!("{scheme}://{}", folder.path().join(name).display());
    let mut pairs = vec![[url("fjall", "whole"), url("fjall", "killed")]];
    if cfg!(feature = "sql") {
        pairs.push([url("sqlite", "whole.db"), url("sqlite", "killed.db")]);
    }
    #[cfg(feature = "sql")]
    if let (Some(whole), Some(killed)) =
        (crate::postgres_server::shared_database(), crate::postgres_server::shared_database())
    {
        pairs.push([whole.url(), killed.url()]);
    }
    for [whole, killed] in pairs {
        let import = |store| ["utxo-set", "import", "--from", file.to_str().unwrap(), "--json", "--store", store];
        let begun = Instant::now();
        let expected = json(program(&import(&whole)));
        let (found, kills) = import_with_kills(&import(&killed), begun.elapsed(), &mut rng);
        println!("{killed}: {kills} kills, {found}");
        assert!(kills > 0, "{killed}: no kill hit the import");
        for field in ["digest", "totals", "height", "block"] {
            assert_eq!(found[field], expected[field], "{killed}, {field}");
        }
    }
}
