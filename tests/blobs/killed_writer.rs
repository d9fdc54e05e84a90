//! A writer that is killed at any moment leaves a blob whole or leaves no blob.

use std::{
    process::{Command, Stdio},
    time::Duration,
};

use utxo_store::{
    blob::{BlobAccess, BlobOptions, BlobStore, BlobUrl, Intent, PutOutcome, Reuse, conformance::transaction, open},
    record::Blob,
    rng::SplitMix64,
};

use crate::{acquire_serial_guard, block_on};

/// Environment variable with the directory that the child process writes to.
const ROOT_VARIABLE: &str = "UTXO_STORE_TEST_BLOBS";
const BLOBS: u64 = 400;
const KILLS: u64 = 12;

async fn open_store(root: &str) -> BlobStore {
    let url = BlobUrl::Directory(root.into());
    let store = open(&url, Intent::Write, &BlobAccess::default(), BlobOptions::default()).await.unwrap();
    store.claim([1; 16], true).await.unwrap();
    store
}

/// Builds the transaction with this number, of 200 kB.
fn build_blob(number: u64) -> (utxo_store::tx::Txid, bytes::Bytes) {
    transaction(number, 100, 2_000, 1)
}

/// Writes every blob, as the child process. Without the environment variable the test does nothing.
#[test]
fn child_process_writes_every_blob() {
    let Ok(root) = std::env::var(ROOT_VARIABLE) else { return };
    block_on(async {
        let store = open_store(&root).await;
        for number in 0..BLOBS {
            let (txid, bytes) = build_blob(number);
            store.put_tx(txid, bytes).await.unwrap();
            // The file records the acknowledgement. The file is empty, so that few kills fall between the two steps.
            std::fs::write(format!("{root}.{number}"), "").unwrap();
        }
    });
}

#[test]
fn a_killed_writer_leaves_whole_blobs_and_every_acknowledged_blob() {
    let _serial = acquire_serial_guard();
    let parent = tempfile::tempdir().unwrap();
    let root = parent.path().join("blobs").display().to_string();
    let mut rng = SplitMix64::new(1);
    for _ in 0..KILLS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "killed_writer::child_process_writes_every_blob"])
            .env(ROOT_VARIABLE, &root)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(50 + rng.below(500)));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    block_on(async {
        let store = open_store(&root).await;
        let (mut whole, mut acknowledged) = (0, 0);
        for number in 0..BLOBS {
            let (txid, bytes) = build_blob(number);
            let found = store.load_tx(txid, Blob::First(None), Reuse::Unlikely).await.unwrap();
            assert!(found.is_none() || found.as_ref() == Some(&bytes), "blob {number} is not whole");
            let was_acknowledged = std::path::Path::new(&format!("{root}.{number}")).exists();
            assert!(!was_acknowledged || found.is_some(), "blob {number} was acknowledged and is missing");
            whole += u64::from(found.is_some());
            acknowledged += u64::from(was_acknowledged);
            assert_ne!(store.put_tx(txid, bytes).await.unwrap(), PutOutcome::OtherStored);
        }
        eprintln!("after {KILLS} kills: {whole} blobs, {acknowledged} acknowledged");
    });
}
