//! The examples: each runs and prints what its comment says, and uses nothing but the public interface.

#![allow(clippy::unwrap_used)]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Folder of the examples that cargo has built for this test.
fn built() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().and_then(Path::parent).unwrap().join("examples")
}

/// Runs an example without arguments, and returns its lines. `cargo test` builds the examples, unless it is given the
/// name of a target.
fn run(name: &str) -> Vec<String> {
    let output = Command::new(built().join(name)).output();
    let output = output.unwrap_or_else(|error| panic!("{name}: {error}; `cargo build --examples` builds the examples"));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {}: {error}", output.status);
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

fn txid() -> String {
    "07".repeat(32)
}

#[test]
fn an_embedded_instance_applies_what_is_published() {
    let lines = run("embed_instance");
    assert_eq!(lines[0], "instance: ready");
    assert!(lines[1].starts_with("published: utxo.validated-txs partition "), "{lines:?}");
    assert!(lines[2].starts_with(&format!("output {}:0: spent by input 0 of ", txid())), "{lines:?}");
    assert_eq!(lines[3..], ["instance: stopped, 2 events completed"]);
}

#[test]
fn an_output_is_read_from_a_store_on_disk() {
    let lines = run("read_output");
    assert!(lines[0].starts_with("store of network "), "{lines:?}");
    assert_eq!(lines[1..], [format!("output {}:0: UNSPENT (the output can be spent)", txid())]);
}

#[test]
fn an_event_is_published_without_knowledge_of_partitions() {
    let lines = run("publish_event");
    let [line] = &lines[..] else { panic!("{lines:?}") };
    let (partition, offset) = line
        .strip_prefix("published: utxo.validated-txs partition ")
        .and_then(|rest| rest.split_once(" offset "))
        .unwrap_or_else(|| panic!("{line}"));
    assert!((0..4).contains(&partition.parse::<i32>().unwrap()), "{line}");
    assert_eq!(offset, "0");
}

#[cfg(feature = "vault")]
#[test]
fn a_payment_from_a_vault_needs_a_vault() {
    assert_eq!(run("pay_from_vault"), ["address: mrCDrCybB6J1vRfbwM5hemdJz73FwDBC8r"]);
}

/// The crate's dev-dependency on itself turns on `testkit` for examples, too. A path through a module of the crate
/// would compile here, and not for a user.
#[test]
fn examples_name_no_module_of_the_crate() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let paths = |folder: &str| fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().path());
    let mut modules: BTreeSet<String> =
        paths("src").map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    // The vault is a public module.
    modules.remove("vault");
    assert!(modules.contains("engine") && modules.contains("tx"));
    for path in paths("examples") {
        let source = fs::read_to_string(&path).unwrap();
        let code: String = source.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
        let names = |text: &str| text.rsplit(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap().to_owned();
        let named: Vec<String> =
            code.match_indices("::").map(|(at, _)| names(&code[..at])).filter(|name| modules.contains(name)).collect();
        assert_eq!(named, Vec::<String>::new(), "{}", path.display());
    }
}
