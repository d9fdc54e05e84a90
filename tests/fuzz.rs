//! The fuzz targets on the stable toolchain: every committed input, and a few thousand damaged inputs made from a seed.
//!
//! `SEED=n` selects the seed, `CASES=n` the number of inputs for each target, `TARGET=name` one target. `INPUT=file`
//! runs one file through the target that its path names.

// The lint's exemption for tests does not reach the helpers beside them.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "fuzz/damage.rs"]
mod damage;
#[path = "fuzz/seeds.rs"]
mod seeds;
#[path = "../fuzz/src/lib.rs"]
mod targets;

use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::{Path, PathBuf},
};

use utxo_store::rng::SplitMix64;

use targets::{TARGETS, Target};

fn directory(kind: &str, target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz").join(kind).join(target)
}

/// Returns the files of a directory with their names, in the order of the names; none where the directory does not
/// exist.
fn files(directory: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = fs::read_dir(directory)
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
        .collect();
    files.sort();
    files
}

/// Runs one input; a failure prints how to run the input again.
fn run(target: &Target, what: &str, input: &[u8]) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| targets::run(target.name, input))) {
        let file = directory("artifacts", target.name).join("from-smoke");
        let written = fs::create_dir_all(file.parent().unwrap()).and_then(|()| fs::write(&file, input));
        eprintln!("{}: {what} fails: {}", target.name, hex::encode(input));
        eprintln!("replay with: INPUT={} cargo test --test fuzz ({written:?})", file.display());
        resume_unwind(panic);
    }
}

/// Parses a number from a variable of the environment; a failure names the variable.
fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} must be a number, not `{text}`")))
}

/// Returns the number of cases for a target: one configuration takes as long as a hundred of the others.
fn cases(target: &Target) -> u64 {
    number("CASES").unwrap_or(if target.name == "configuration" { 200 } else { 3_000 })
}

#[test]
fn targets_hold_for_committed_and_damaged_inputs() {
    if let Some(file) = std::env::var_os("INPUT") {
        let input = fs::read(&file).unwrap();
        let named = |target: &&Target| Path::new(&file).components().any(|part| part.as_os_str() == target.name);
        return TARGETS.iter().filter(named).for_each(|target| run(target, "the input", &input));
    }
    let seed = number("SEED").unwrap_or(0);
    println!("SEED={seed}");
    let only = std::env::var("TARGET").ok();
    for target in TARGETS.iter().filter(|target| only.as_ref().is_none_or(|only| only == target.name)) {
        let mut inputs = files(&directory("seeds", target.name));
        assert!(!inputs.is_empty(), "{} has no seeds", target.name);
        inputs.extend(files(&directory("regressions", target.name)));
        for (name, input) in &inputs {
            run(target, name, input);
        }
        let inputs: Vec<Vec<u8>> = inputs.into_iter().map(|(_, input)| input).collect();
        let mut random = SplitMix64::new(seed);
        for case in 0..cases(target) {
            let input = damage::damaged(&mut random, &inputs);
            run(target, &format!("case {case} of SEED={seed}"), &input);
        }
    }
}

/// A target that takes more memory than its input justifies fails.
#[test]
#[should_panic(expected = "bytes at once for 3 bytes of input")]
fn memory_beyond_the_input_is_detected() {
    Target { name: "greedy", check: |data| drop(vec![0_u8; data.len() << 20]), memory: (1_000, 10) }.run(&[1, 2, 3]);
}

/// `UPDATE_SEEDS=1` writes the seeds again.
#[test]
fn the_committed_seeds_match_the_generator() {
    let update = std::env::var_os("UPDATE_SEEDS").is_some();
    let mut bytes = 0;
    for target in &TARGETS {
        let directory = directory("seeds", target.name);
        let made = seeds::of(target.name);
        bytes += made.iter().map(|(_, input)| input.len()).sum::<usize>();
        if update {
            let _ = fs::remove_dir_all(&directory);
            fs::create_dir_all(&directory).unwrap();
            made.iter().for_each(|(name, input)| fs::write(directory.join(name), input).unwrap());
        }
        assert!(
            made == files(&directory),
            "{}: the seeds differ; run UPDATE_SEEDS=1 cargo test --test fuzz the_committed_seeds",
            target.name
        );
    }
    assert!(bytes < 500_000, "{bytes} bytes of seeds are too many for the repository");
}
