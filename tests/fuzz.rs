//! The fuzz targets on the stable toolchain: every committed input, and a few thousand damaged ones made from a seed.
//!
//! `SEED=n` replays a run or takes another one; `CASES=n` runs so many of each target, `TARGET=name` only that one;
//! `INPUT=file` runs one file, through the target that its path names.

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

use utxo_store::seeded::Seeded;

use targets::{TARGETS, Target};

fn directory(kind: &str, target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz").join(kind).join(target)
}

/// The files of a directory with their names, in the order of these; none where there is none.
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

/// Runs one input, and says how to run it again where it fails.
fn run(target: &Target, what: &str, input: &[u8]) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| targets::run(target.name, input))) {
        let file = directory("artifacts", target.name).join("from-smoke");
        let written = fs::create_dir_all(file.parent().unwrap()).and_then(|()| fs::write(&file, input));
        eprintln!("{}: {what} fails: {}", target.name, hex::encode(input));
        eprintln!("replay with: INPUT={} cargo test --test fuzz ({written:?})", file.display());
        resume_unwind(panic);
    }
}

/// Parsing, with the variable's name where that fails.
fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is `{text}`, which is no number")))
}

/// Cases of a target: reading a configuration takes as long as a hundred of the others.
fn cases(target: &Target) -> u64 {
    number("CASES").unwrap_or(if target.name == "configuration" { 200 } else { 3_000 })
}

#[test]
fn targets_hold_for_every_committed_input_and_thousands_damaged_ones() {
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
        let mut random = Seeded::new(seed);
        for case in 0..cases(target) {
            let input = damage::damaged(&mut random, &inputs);
            run(target, &format!("case {case} of SEED={seed}"), &input);
        }
    }
}

/// What takes more memory than its input justifies, and what panics, does not pass.
#[test]
#[should_panic(expected = "bytes were held at once for 3 of input")]
fn memory_beyond_the_input_is_noticed() {
    Target { name: "greedy", check: |data| drop(vec![0_u8; data.len() << 20]), memory: (1_000, 10) }.run(&[1, 2, 3]);
}

/// `UPDATE_SEEDS=1` writes them anew.
#[test]
fn the_seeds_are_what_the_generator_makes() {
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
            "{}: write them anew: UPDATE_SEEDS=1 cargo test --test fuzz the_seeds",
            target.name
        );
    }
    assert!(bytes < 500_000, "{bytes} bytes of seeds are too many for a repository");
}
