//! The binary's exit codes and what it prints.

use std::{
    fs,
    process::{Command, Output},
};

pub fn utxo_store(args: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_utxo-store"));
    command.args(args).env_clear().envs(variables.iter().copied());
    command.output().unwrap()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn help_and_version_succeed() {
    assert_eq!(utxo_store(&["--help"], &[]).status.code(), Some(0));
    let version = utxo_store(&["--version"], &[]);
    assert_eq!(String::from_utf8(version.stdout).unwrap().trim(), concat!("utxo-store ", env!("CARGO_PKG_VERSION")));
}

#[test]
fn bad_usage_is_exit_code_2() {
    for args in [&["no-such-command"][..], &["config", "check", "--nonsense"], &[]] {
        assert_eq!(utxo_store(args, &[]).status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn the_printed_sample_passes_the_check() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("utxo-store.toml");
    let sample = utxo_store(&["config", "sample"], &[]);
    assert_eq!(sample.status.code(), Some(0));
    fs::write(&file, &sample.stdout).unwrap();
    let check = utxo_store(&["config", "check", "--config", file.to_str().unwrap()], &[]);
    assert_eq!((check.status.code(), stderr(&check)), (Some(0), String::new()));
}

#[test]
fn a_bad_configuration_is_exit_code_2_and_a_line_for_each_error() {
    let variables = [("UTXO_STORE__LOG__FORMAT", "xml"), ("UTXO_STORE__KAFKA__COLOUR", "red")];
    let check = utxo_store(&["config", "check", "--config", "/nonexistent.toml"], &variables);
    assert_eq!(check.status.code(), Some(2));
    assert_eq!(
        stderr(&check),
        "error: /nonexistent.toml: No such file or directory (os error 2)\n\
         error: kafka.colour is unknown (UTXO_STORE__KAFKA__COLOUR)\n\
         error: log.format must be one of auto, pretty, json, not \"xml\" (UTXO_STORE__LOG__FORMAT)\n"
    );
}

#[test]
fn a_blob_store_that_cannot_serve_the_store_is_a_bad_configuration() {
    for (url, says) in [("memory://", "gone with the process"), ("http://host/prefix", "can only be read")] {
        for args in [&["config", "check"][..], &["run"]] {
            let check = utxo_store(args, &[("UTXO_STORE__STORE__BLOBS__URL", url)]);
            assert_eq!(check.status.code(), Some(2), "{args:?} {url}: {}", stderr(&check));
            assert!(stderr(&check).starts_with("error: store.blobs.url is") && stderr(&check).contains(says));
        }
    }
    let good = [("UTXO_STORE__STORE__BLOBS__URL", "memory://"), ("UTXO_STORE__STORE__URL", "memory://")];
    assert_eq!(utxo_store(&["config", "check"], &good).status.code(), Some(0));
}

#[test]
fn a_rebuild_needs_a_place_of_its_own_for_blobs_where_the_store_has_one() {
    let live = [("UTXO_STORE__STORE__BLOBS__URL", "file:///var/lib/blobs")];
    let replay = ["replay", "--rebuild", "--store", "fjall:///nonexistent/rebuilt"];
    for (blobs, says) in [
        (&[][..], "--blobs must be given"),
        (&["--blobs", "file:///var/lib/blobs"], "a blob store of its own"),
        (&["--blobs", "memory://"], "--blobs is memory://"),
        (&["--blobs", "https://host/a"], "can only be read"),
    ] {
        let refused = utxo_store(&[&replay[..], blobs].concat(), &live);
        assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
        assert!(stderr(&refused).contains(says), "{}", stderr(&refused));
    }
}

#[test]
fn what_librdkafka_refuses_is_a_bad_configuration() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("utxo-store.toml");
    let tls = if cfg!(feature = "tls") { 0 } else { 2 };
    for (property, status) in [("\"security.protocol\" = \"ssl\"", tls), ("\"security.protocol\" = \"telepathy\"", 2)] {
        fs::write(&file, format!("[kafka.properties]\n{property}\n")).unwrap();
        let check = utxo_store(&["config", "check", "--config", file.to_str().unwrap()], &[]);
        assert_eq!(check.status.code(), Some(status), "{}", stderr(&check));
        assert!(status == 0 || stderr(&check).contains("security.protocol"), "{}", stderr(&check));
    }
}
