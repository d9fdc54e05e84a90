//! `verify --against`: a store and its rebuild, on engines of one kind and of two kinds.

use std::process::Command;

use serde_json::Value;

use crate::{
    aerospike_server::AerospikeServer,
    real_kafka::plain,
    run::{Bench, until},
};

/// Returns the exit code and the printed lines.
fn compared(mut command: Command) -> (i32, Vec<Value>) {
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(!lines.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    (output.status.code().unwrap(), lines)
}

fn run_until(bench: &Bench, committed: u64) {
    let mut instance = bench.start();
    until("everything is committed", || bench.committed() == committed);
    instance.signal("TERM");
    assert_eq!(instance.wait().code(), Some(0));
}

fn rebuild(bench: &Bench, to: &[&str]) {
    let output = bench.command(&[&["replay", "--rebuild", "--store"], to].concat(), &[]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Compares the live store with a rebuild, before and after further events in the live store.
fn compare_rebuild(rebuilt: &[&str], against: &[&str]) {
    let bench = Bench::new();
    bench.seed(40);
    run_until(&bench, 40);
    rebuild(&bench, rebuilt);
    let store = bench.store_url();
    let verify = |more: &[&str]| {
        let args = [&["verify", "--json", "--store", &store, "--against"], against, more].concat();
        bench.command(&args, &[])
    };
    let (code, lines) = compared(verify(&[]));
    assert_eq!((code, lines.len(), &lines[0]["same"]), (0, 1, &true.into()), "{lines:?}");
    assert_eq!(lines[0]["store"], lines[0]["against"]);
    assert_eq!(lines[0]["store"]["transactions"], 40);
    let stats = plain(&["stats", "--json", "--store", &store]).output().unwrap();
    let stats: Value = serde_json::from_slice(&stats.stdout).unwrap();
    assert_eq!(lines[0]["store"]["digest"], stats["digest"]);

    bench.seed(45);
    run_until(&bench, 85);
    for (more, named) in [(&[][..], 5), (&["--limit", "2"], 2), (&["--limit", "0"], 0)] {
        let (code, lines) = compared(verify(more));
        let (last, first) = lines.split_last().unwrap();
        assert_eq!((code, first.len(), &last["named"], &last["at_least"]), (1, named, &named.into(), &5.into()));
        let printed: Vec<_> = first.iter().map(|line| (line["txid"].as_str().unwrap(), &line["only_in"])).collect();
        let ids: Vec<String> = (41..=45u8).map(|tag| hex::encode([tag; 32])).collect();
        let store = Value::from("store");
        let expected: Vec<_> = ids.iter().take(named).map(|id| (id.as_str(), &store)).collect();
        assert_eq!(printed, expected);
    }
}

#[test]
fn a_rebuild_on_fjall_is_compared_with_its_store() {
    let directory = tempfile::tempdir().unwrap();
    let rebuilt = format!("fjall://{}", directory.path().join("rebuilt").display());
    compare_rebuild(&[&rebuilt], &[&rebuilt]);
    let twice = plain(&["verify", "--store", &rebuilt, "--against", &rebuilt]).output().unwrap();
    assert_eq!(twice.status.code(), Some(2), "{}", String::from_utf8_lossy(&twice.stderr));
    let nowhere = plain(&["verify", "--store", &rebuilt, "--against", "fjall:///nonexistent"]).output().unwrap();
    let printed = String::from_utf8_lossy(&nowhere.stderr);
    assert!(nowhere.status.code() == Some(1) && printed.starts_with("error: --against: "), "{printed}");
}

#[test]
fn a_rebuild_on_aerospike_is_compared_with_a_store_on_fjall() {
    let Some(server) = AerospikeServer::start() else { return };
    let directory = tempfile::tempdir().unwrap();
    let (url, blobs) = (server.url(), format!("file://{}", directory.path().join("blobs").display()));
    std::fs::create_dir(directory.path().join("blobs")).unwrap();
    compare_rebuild(&[&url, "--blobs", &blobs], &[&url, "--against-blobs", &blobs]);
}

#[cfg(feature = "sql")]
#[test]
fn a_rebuild_on_sqlite_is_compared_with_a_store_on_fjall() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", directory.path().join("rebuilt").display());
    compare_rebuild(&[&url], &[&url]);
}

#[cfg(feature = "sql")]
#[test]
fn a_rebuild_on_postgres_is_compared_with_a_store_on_fjall() {
    let Some(database) = crate::postgres_server::shared_database() else { return };
    let url = database.url();
    compare_rebuild(&[&url], &[&url]);
}
