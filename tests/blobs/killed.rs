//! Writers that are killed at any moment leave whole blobs, or none.

use std::{
    process::{Command, Stdio},
    time::Duration,
};

use utxo_store::{
    blob::{BlobAccess, BlobOptions, BlobStore, BlobUrl, Intent, Put, Reuse, conformance::transaction, open},
    seeded::Seeded,
};

use crate::{alone, block_on};

const ROOT: &str = "UTXO_STORE_TEST_BLOBS";
const BLOBS: u64 = 400;
const KILLS: u64 = 12;

async fn opened(root: &str) -> BlobStore {
    let url = BlobUrl::Directory(root.into());
    let store = open(&url, Intent::Write, &BlobAccess::default(), BlobOptions::default()).await.unwrap();
    store.claim([1; 16], true).await.unwrap();
    store
}

/// 200 KB each.
fn blob(number: u64) -> (utxo_store::tx::Txid, bytes::Bytes) {
    transaction(number, 100, 2_000, 1)
}

/// What the child does; as a test of its own it has nothing to do.
#[test]
fn the_writer() {
    let Ok(root) = std::env::var(ROOT) else { return };
    block_on(async {
        let store = opened(&root).await;
        for number in 0..BLOBS {
            let (txid, bytes) = blob(number);
            store.put_tx(txid, bytes).await.unwrap();
            // An empty file is quick to make: it says that this one was acknowledged.
            std::fs::write(format!("{root}.{number}"), "").unwrap();
        }
    });
}

#[test]
fn a_writer_that_is_killed_leaves_whole_blobs_and_all_it_acknowledged() {
    let _alone = alone();
    let parent = tempfile::tempdir().unwrap();
    let root = parent.path().join("blobs").display().to_string();
    let mut seeded = Seeded::new(1);
    for _ in 0..KILLS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "killed::the_writer"])
            .env(ROOT, &root)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(50 + seeded.below(500)));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    block_on(async {
        let store = opened(&root).await;
        let (mut whole, mut acknowledged) = (0, 0);
        for number in 0..BLOBS {
            let (txid, bytes) = blob(number);
            let found = store.get_tx(txid, Reuse::Unlikely).await.unwrap();
            assert!(found.is_none() || found.as_ref() == Some(&bytes), "blob {number}");
            let said = std::path::Path::new(&format!("{root}.{number}")).exists();
            assert!(!said || found.is_some(), "blob {number} was acknowledged and is gone");
            whole += u64::from(found.is_some());
            acknowledged += u64::from(said);
            assert_ne!(store.put_tx(txid, bytes).await.unwrap(), Put::OtherStored);
        }
        eprintln!("after {KILLS} kills: {whole} blobs, {acknowledged} acknowledged, all whole");
    });
}
