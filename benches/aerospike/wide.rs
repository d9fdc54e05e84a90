//! A transaction of many pages: created by the lock-record protocol with its body in a blob store, then spent to the
//! last output.

use std::sync::Arc;

use utxo_store::{
    blob::{BlobOptions, BlobUrl, Intent, open},
    clock::Clock,
    engine::{RecordEngine, aerospike::AerospikeEngine},
    record::{Key, Outcome, Rules},
    store::{
        StateStore, StoreSettings,
        create::{Creator, CreatorIdentity, InitialState, PagedTx, ProcessVisibility},
    },
    tx::Network,
};

use super::{
    BATCH, IN_FLIGHT,
    cases::{PAGE_SIZE, claim, pages, spend},
    measure::{peak_memory, reset_peak, resident_memory},
    server::AerospikeServer,
    timed::{self, Batch},
};

/// Creates and spends the transaction; prints the time, the cost and the growth of memory.
pub async fn measure(server: &AerospikeServer, outputs: u32) {
    let rules = Rules::main(288);
    let engine = AerospikeEngine::open(&server.settings(), rules).await.expect("the server was set up for it");
    let engine = Arc::new(engine);
    let process = server.process_id().expect("the server is ours");
    let directory = tempfile::tempdir().expect("a temporary folder");
    let url = BlobUrl::Directory(directory.path().to_owned());
    let blobs = open(&url, Intent::Write, &Default::default(), BlobOptions::default()).await;
    let blobs = blobs.expect("a directory can be opened");
    blobs.claim([1; 16], true).await.expect("it is new");
    let settings = StoreSettings {
        network: Network::Regtest,
        rules,
        utxo_batch_size: PAGE_SIZE,
        batch_size: BATCH,
        concurrency: IN_FLIGHT,
        retry_pause: Default::default(),
        inline_limit: 0,
    };
    let store = StateStore::new(engine.clone(), settings).with_blobs(Some(blobs));
    let made = pages(0, outputs, outputs);
    let others = Arc::new(made.others.expect("it has several pages"));
    let (txid, last) = (made.master.txid, others.count());

    let before = resident_memory();
    reset_peak();
    let identity = CreatorIdentity {
        owner: 1,
        process_id: 1,
        hostname: "bench".to_owned(),
        process_visibility: ProcessVisibility::None,
    };
    let creator = Creator::new(store.clone(), Clock::System, identity);
    let paged = PagedTx { master: Arc::new(made.master), others, initial_state: InitialState::Live };
    let create: Batch = Box::pin(async move {
        let outcome = creator.create(&paged, |_| {}).await.expect("the server answers");
        assert!(outcome.is_done(), "{outcome:?}");
        outputs as usize
    });
    let timing = timed::run(process, [create], 1).await;
    let keys = (0..=last + 1).map(|page| Key::Page(txid, page)).collect::<Vec<_>>();
    let mut records = 0;
    for key in keys {
        records += engine.read(&[key]).await.iter().filter(|record| matches!(record, Ok(Some(_)))).count();
    }
    timing.print(&format!("create-{outputs}-outputs"), &format!("{records} records"));
    print_growth("create", before);

    let before = resident_memory();
    reset_peak();
    let rows = (0..outputs).map(move |vout| {
        let (page, offset) = (vout / PAGE_SIZE, vout % PAGE_SIZE);
        spend(Key::Page(txid, page), claim(txid, vout, offset), page > 0)
    });
    let rows: Vec<_> = rows.collect();
    let batches = rows.chunks(BATCH).map(|rows| {
        let (store, rows) = (store.clone(), rows.to_vec());
        Box::pin(async move {
            // A page executes one request after the other; a request that waits too long is sent again, as the pipeline
            // does.
            let outcomes = store.apply(rows).await.expect("the server is ours");
            assert!(outcomes.iter().all(Outcome::is_done), "{outcomes:?}");
            outcomes.len()
        }) as Batch
    });
    timed::run(process, batches, IN_FLIGHT).await.print(&format!("spend-all-{outputs}-outputs"), "engine");
    print_growth("spend", before);
}

fn print_growth(what: &str, before: u64) {
    let memory_growth = peak_memory().saturating_sub(before) >> 20;
    println!("{:<26} {:>18} {memory_growth:>12} MiB at the most, besides {} before", "", what, before >> 20);
}
