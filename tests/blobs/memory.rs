//! How much memory a large transaction takes, by counting what is allocated.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use utxo_store::{
    blob::{BlobAccess, BlobOptions, BlobUrl, Intent, Put, Reuse, open},
    broker::Message,
    event::Validated,
    ingest::plan::{EventRef, PlanSettings, Planner},
    prepare::{PrepareSettings, Prepared, prepare},
    record::{Rules, build::Inline},
    replay::Mode,
    tx::{Network, Outpoint, Output, Transaction, TransactionBuilder, Txid},
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

/// What events like it take for each byte of payload while they wait: prepared, in memory of their own, and in the planner.
fn times_payload(tx: &TransactionBuilder) -> f64 {
    let settings = PrepareSettings { network: Network::Main, utxo_batch_size: 20_000, inline: Inline::All };
    let plan = PlanSettings { retry_min_ms: 1, retry_max_ms: 1, flag_grace_ms: 1, rules: Rules::main(288) };
    let mut planner = Planner::new(plan);
    let (mut payloads, before) = (0, NOW.load(Relaxed));
    for number in 0..200 {
        let bytes = tx.clone().lock_time(number).extended();
        let txid = Transaction::parse(&bytes).unwrap().txid();
        let payload = Bytes::from(Validated { tx: &bytes, height: 200, locked: false }.encode());
        payloads += payload.len();
        let key = Bytes::copy_from_slice(&txid.0);
        let message = Message { offset: 0, timestamp_ms: 1, key, payload, headers: Vec::new() };
        let Ok(Prepared::Validated(prepared)) = prepare(&settings, &message) else { panic!("it is sound") };
        let event = EventRef { timestamp_ms: 1, partition: 0, offset: number.into(), epoch: 1 };
        planner.submit(event, Arc::new(prepared.apart()), Mode::Normal, 0);
        while planner.next_action().is_some() {}
    }
    (NOW.load(Relaxed) - before) as f64 / payloads as f64
}

/// `ingest.unfinished_bytes` counts payloads; its help says what they take.
#[test]
fn what_waits_takes_so_many_times_its_payload() {
    let _alone = alone();
    let script = [0x76; 25];
    let previous = |script| Some(Output { satoshis: 10_000, script });
    let outpoint = |vout| Outpoint { txid: Txid([1; 32]), vout };
    let usual = TransactionBuilder::default().input(outpoint(0), &[0x51; 107], 0, previous(&script[..]));
    let usual = usual.output(1, &script).output(1, &script);
    let small = TransactionBuilder::default().input(outpoint(0), b"", 0, previous(b"\x51")).output(1, b"\x51");
    let from_many = (0..1_000).fold(TransactionBuilder::default(), |tx, vout| {
        tx.input(Outpoint { txid: Txid([vout as u8; 32]), vout }, b"", 0, previous(b"\x51"))
    });
    let from_many = from_many.output(1, b"\x51");
    let into_many = TransactionBuilder::default().input(outpoint(0), b"", 0, previous(b"\x51"));
    let into_many = (0..1_000).fold(into_many, |tx, _| tx.output(1, b"\x51"));
    for (what, tx, most) in
        [("usual", usual, 8.0), ("small", small, 20.0), ("from many", from_many, 5.0), ("into many", into_many, 10.0)]
    {
        let times = times_payload(&tx);
        eprintln!("{what}: {times:.1} times its payload");
        assert!(times < most, "{what}: {times}");
    }
}
