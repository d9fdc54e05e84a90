//! `utxo-store utxo-set` as a process: a `dumptxoutset` file of an independent writer in Python, and killed imports.

use std::{
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use utxo_store::rng::SplitMix64;

use crate::{demo, real_kafka::json};

/// Most kills of an import.
const KILLS: u32 = 6;
/// Most stores of an engine that are filled until a kill has left an unfinished import.
const STORES: u32 = 20;

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
            eprintln!("SKIPPED: a dumptxoutset file of an independent writer: `python3`: {error}");
            None
        }
    }
}

/// Protects: a second reading of Bitcoin Core's format, which shares no code with the store, has the same bytes, totals
/// and hash.
#[test]
fn a_file_of_an_independent_writer_has_the_totals_that_the_writer_says() {
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

/// Repeats an import until the process ends by itself, and kills the process a few times before, at moments of the time
/// that a whole import takes. Returns the report of the last process, and the number of kills.
fn import_with_kills(import: &[String], whole: Duration, rng: &mut SplitMix64) -> (Value, u32) {
    let words: Vec<&str> = import.iter().map(String::as_str).collect();
    let mut killed = 0;
    while killed < KILLS {
        let mut child = program(&words).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        thread::sleep(whole.mul_f64(rng.below(1_000) as f64 / 1_000.0));
        child.kill().unwrap();
        let ended = child.wait_with_output().unwrap();
        match ended.status.signal() {
            Some(_) => killed += 1,
            None => {
                assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
                break;
            }
        }
    }
    (json(program(&words)), killed)
}

/// Returns the URL of an empty store.
type NewStore<'a> = Box<dyn FnMut() -> String + 'a>;

/// Protects: an import that is killed at any moment continues with the same command, and ends with the same store.
#[test]
fn a_killed_import_continues_on_fjall_and_on_sql_engines() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("utxos.dat");
    if write_file(&file).is_none() {
        return;
    }
    let seed = std::env::var("SEED").map_or(11, |seed| seed.parse().unwrap());
    println!("SEED={seed}");
    let (mut rng, mut fjalls, mut sqlites) = (SplitMix64::new(seed), 0, 0);
    let url = |scheme: &str, number: u32| {
        format!("{scheme}://{}", folder.path().join(format!("{scheme}-{number}")).display())
    };
    let mut engines: Vec<NewStore<'_>> = vec![Box::new(|| {
        fjalls += 1;
        url("fjall", fjalls)
    })];
    if cfg!(feature = "sql") {
        engines.push(Box::new(|| {
            sqlites += 1;
            url("sqlite", sqlites)
        }));
    }
    #[cfg(feature = "sql")]
    if crate::postgres_server::shared_database().is_some() {
        engines.push(Box::new(|| crate::postgres_server::shared_database().expect("the server runs").url()));
    }
    for mut new_store in engines {
        let import = |store: &str| -> Vec<String> {
            let file = file.to_str().unwrap();
            let words = ["utxo-set", "import", "--from", file, "--store", store, "--chunk-bytes", "8192", "--json"];
            words.map(str::to_owned).to_vec()
        };
        let (whole, begun) = (new_store(), Instant::now());
        let expected = json(program(&import(&whole).iter().map(String::as_str).collect::<Vec<_>>()));
        let length = begun.elapsed();
        // An import can end before its first kill: another store is tried.
        let is_resumed = (0..STORES).any(|_| {
            let store = new_store();
            let (found, kills) = import_with_kills(&import(&store), length, &mut rng);
            println!("{store}: {kills} kills, resumed: {}", found["resumed"]);
            for field in ["digest", "totals", "height", "block"] {
                assert_eq!(found[field], expected[field], "{store}, {field}");
            }
            kills > 0 && found["resumed"] == true
        });
        assert!(is_resumed, "no kill of {STORES} imports left an unfinished one: {whole}");
    }
}
