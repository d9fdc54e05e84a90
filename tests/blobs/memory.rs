//! Tests of the memory that transactions take, with an allocator that counts the allocated bytes.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use utxo_store::{
    blob::{BlobAccess, BlobOptions, BlobUrl, Intent, PutOutcome, Reuse, open},
    broker::Message,
    event::Validated,
    ingest::plan::{EventRef, PlanSettings, Planner},
    prepare::{PrepareSettings, PreparedEvent, prepare},
    record::{Blob, Rules, build::InlineBodies},
    replay::Mode,
    tx::{Network, Outpoint, Output, Transaction, TransactionBuilder, Txid, WireFormat},
};

use crate::{acquire_serial_guard, block_on};

/// The system's allocator with two counters of bytes.
struct CountingAllocator;

/// Bytes that are allocated now.
static ALLOCATED: AtomicUsize = AtomicUsize::new(0);
/// Greatest value of [`ALLOCATED`] since the last call of [`measure_peak`].
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: the system's allocator serves every call, with unchanged arguments; the counters touch no allocated memory.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let allocated = ALLOCATED.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(allocated, Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Relaxed);
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Returns the result of `work`, and the most bytes that were allocated during `work` beyond those allocated before.
pub async fn measure_peak<T>(work: impl Future<Output = T>) -> (T, usize) {
    let before = ALLOCATED.load(Relaxed);
    PEAK.store(before, Relaxed);
    let result = work.await;
    (result, PEAK.load(Relaxed) - before)
}

const MIB: usize = 1 << 20;
/// Allowance for the runtime's threads, stacks and directory handles, in bytes.
const SLACK: usize = MIB;

#[test]
fn a_large_transaction_is_written_and_searched_in_pieces() {
    let _serial = acquire_serial_guard();
    // 4,000 outputs of 32 KiB take 125 MiB.
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
        let (put, needed) = measure_peak(store.put_tx(txid, bytes.clone())).await;
        eprintln!("writing {} MiB took {} KiB besides the event", bytes.len() / MIB, needed / 1024);
        assert!(put.unwrap() == PutOutcome::Stored && needed < 2 * MIB + SLACK, "took {needed} bytes");

        let (put, needed) = measure_peak(store.put_tx(txid, bytes.clone())).await;
        eprintln!("finding the blob already stored took {} KiB", needed / 1024);
        assert!(put.unwrap() == PutOutcome::AlreadyStored && needed < 4 * MIB + SLACK, "took {needed} bytes");

        let (found, needed) =
            measure_peak(store.load_tx_outputs(txid, Blob::First(None), &[0, 3_999], Reuse::Unlikely)).await;
        eprintln!("reading two outputs, and checking the other bytes, took {} KiB", needed / 1024);
        assert!(found.unwrap().unwrap().len() == 2 && needed < 4 * MIB + SLACK, "took {needed} bytes");

        let (found, needed) = measure_peak(store.load_tx(txid, Blob::First(None), Reuse::Unlikely)).await;
        eprintln!("reading the whole transaction took {} MiB", needed / MIB);
        assert!(found.unwrap() == Some(bytes.clone()) && needed < bytes.len() + 4 * MIB + SLACK, "took {needed} bytes");

        for format in [WireFormat::Standard, WireFormat::Extended] {
            let streaming = async {
                let mut pieces = store.open_tx(txid, Blob::First(None), format).await.unwrap().unwrap();
                let mut read = 0;
                while let Some(piece) = pieces.next().await.unwrap() {
                    read += piece.len();
                }
                read
            };
            let (read, needed) = measure_peak(streaming).await;
            eprintln!("streaming {} MiB took {} KiB", read / MIB, needed / 1024);
            assert!(read > 100 * MIB && needed < 8 * MIB + SLACK, "took {needed} bytes");
        }
    });
}

/// Returns the bytes of memory for each payload byte of events that wait with transactions like `tx`: each event is
/// prepared, detached from its batch, and in the planner.
fn measure_memory_per_payload_byte(tx: &TransactionBuilder) -> f64 {
    let settings = PrepareSettings { network: Network::Main, utxo_batch_size: 20_000, inline: InlineBodies::All };
    let plan = PlanSettings { retry_min_ms: 1, retry_max_ms: 1, flag_grace_ms: 1, rules: Rules::main(288) };
    let mut planner = Planner::new(plan);
    let (mut payloads, before) = (0, ALLOCATED.load(Relaxed));
    for number in 0..200 {
        let bytes = tx.clone().lock_time(number).extended();
        let txid = Transaction::parse(&bytes).unwrap().txid();
        let payload = Bytes::from(Validated { tx: &bytes, height: 200, locked: false }.encode());
        payloads += payload.len();
        let key = Bytes::copy_from_slice(&txid.0);
        let message = Message { offset: 0, timestamp_ms: 1, key, payload, headers: Vec::new() };
        let Ok(PreparedEvent::Validated(prepared)) = prepare(&settings, &message) else {
            panic!("the transaction is valid")
        };
        let event = EventRef { timestamp_ms: 1, partition: 0, offset: number.into(), epoch: 1 };
        planner.submit(event, Arc::new(prepared.detach_from_batch()), Mode::Normal, 0);
        while planner.next_action().is_some() {}
    }
    (ALLOCATED.load(Relaxed) - before) as f64 / payloads as f64
}

/// `ingest.unfinished_bytes_per_partition` counts payload bytes. The help of `ingest.unfinished_bytes_total` states the
/// memory for each payload byte.
#[test]
fn a_waiting_transaction_takes_a_bounded_multiple_of_its_payload() {
    let _serial = acquire_serial_guard();
    let script = [0x76; 25];
    let previous = |script| Some(Output { satoshis: 10_000, script });
    let outpoint = |vout| Outpoint { txid: Txid([1; 32]), vout };
    let usual = TransactionBuilder::default().input(outpoint(0), &[0x51; 107], 0, previous(&script[..]));
    let usual = usual.output(1, &script).output(1, &script);
    let small = TransactionBuilder::default().input(outpoint(0), b"", 0, previous(b"\x51")).output(1, b"\x51");
    let many_inputs = (0..1_000).fold(TransactionBuilder::default(), |tx, vout| {
        tx.input(Outpoint { txid: Txid([vout as u8; 32]), vout }, b"", 0, previous(b"\x51"))
    });
    let many_inputs = many_inputs.output(1, b"\x51");
    let many_outputs = TransactionBuilder::default().input(outpoint(0), b"", 0, previous(b"\x51"));
    let many_outputs = (0..1_000).fold(many_outputs, |tx, _| tx.output(1, b"\x51"));
    for (shape, tx, limit) in [
        ("usual", usual, 8.0),
        ("small", small, 20.0),
        ("many inputs", many_inputs, 5.0),
        ("many outputs", many_outputs, 10.0),
    ] {
        let times = measure_memory_per_payload_byte(&tx);
        eprintln!("{shape}: {times:.1} times the payload");
        assert!(times < limit, "{shape}: {times} times the payload");
    }
}
