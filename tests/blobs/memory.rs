//! How much memory a large transaction takes, by counting what is allocated.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use bytes::Bytes;
use utxo_store::{
    blob::{BlobAccess, BlobOptions, BlobUrl, Intent, Put, Reuse, open},
    tx::{Outpoint, Output, Transaction, TransactionBuilder, Txid},
};

use crate::{alone, block_on};

struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: hands everything on to the system's allocator, and counts.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(now, Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What `work` needs at most beyond what is there already.
async fn peak<T>(work: impl Future<Output = T>) -> (T, usize) {
    let before = NOW.load(Relaxed);
    PEAK.store(before, Relaxed);
    let done = work.await;
    (done, PEAK.load(Relaxed) - before)
}

const MIB: usize = 1 << 20;
/// Threads, stacks and folders of the runtime.
const SLACK: usize = MIB;

#[test]
fn a_large_transaction_is_written_and_searched_piece_by_piece() {
    let _alone = alone();
    // 4,000 outputs of 32 KiB: 125 MiB.
    let script = vec![0x51; 32 << 10];
    let previous = Output { satoshis: 1, script: b"\x51" };
    let mut builder =
        TransactionBuilder::default().input(Outpoint { txid: Txid([1; 32]), vout: 0 }, b"", 0, Some(previous));
    for vout in 0..4_000 {
        builder = builder.output(vout, &script);
    }
    let bytes = Bytes::from(builder.extended());
    drop(builder);
    assert!(bytes.len() > 100 * MIB);
    let txid = Transaction::parse(&bytes).unwrap().txid();

    let root = tempfile::tempdir().unwrap();
    let url = BlobUrl::Directory(root.path().to_owned());
    block_on(async {
        let store = open(&url, Intent::Write, &BlobAccess::default(), BlobOptions::default()).await.unwrap();
        store.claim([1; 16], true).await.unwrap();
        let (put, needed) = peak(store.put_tx(txid, bytes.clone())).await;
        eprintln!("to write {} MiB took {} KiB besides", bytes.len() / MIB, needed / 1024);
        assert!(put.unwrap() == Put::Stored && needed < 2 * MIB + SLACK, "{needed}");

        let (put, needed) = peak(store.put_tx(txid, bytes.clone())).await;
        eprintln!("to find it written already took {} KiB", needed / 1024);
        assert!(put.unwrap() == Put::AlreadyStored && needed < 4 * MIB + SLACK, "{needed}");

        let (found, needed) = peak(store.tx_outputs(txid, &[0, 3_999], Reuse::Unlikely)).await;
        eprintln!("to read two of its outputs, and check the rest, took {} KiB", needed / 1024);
        assert!(found.unwrap().unwrap().len() == 2 && needed < 4 * MIB + SLACK, "{needed}");

        let (found, needed) = peak(store.get_tx(txid, Reuse::Unlikely)).await;
        eprintln!("to read all of it took {} MiB", needed / MIB);
        assert!(found.unwrap() == Some(bytes.clone()) && needed < bytes.len() + 4 * MIB + SLACK, "{needed}");
    });
}
