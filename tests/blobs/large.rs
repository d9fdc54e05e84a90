//! A transaction of very many outputs through the log: published by reference, created in pages, spent from, mined and
//! read back.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use utxo_store::{
    Block, BlockMined, Broker, Config, Event, EventPublisher, Instance, MemoryBroker, Outpoint, Output, PartialOutput,
    PartialTxEvent, SpendStatus, Store, Subtree, SubtreeTransactions, Transaction, TransactionBuilder, Txid, Validated,
    create_topics, open_event_bodies,
};

use crate::{acquire_serial_guard, aerospike_server::AerospikeServer, block_on, memory::measure_peak};

const SCRIPT: [u8; 25] = [0x76; 25];
const SATOSHIS: u64 = 10;
const HEIGHT: u32 = 200;
const MIB: usize = 1 << 20;

/// Builds a transaction in extended format with its txid.
fn finish(builder: &TransactionBuilder) -> (Txid, Vec<u8>) {
    let extended = builder.extended();
    (Transaction::parse(&extended).unwrap().txid(), extended)
}

/// Waits until the store has this state of the output.
async fn until(store: &Store, outpoint: Outpoint, is_so: impl Fn(&SpendStatus) -> bool) {
    while !is_so(&store.output(outpoint, Some(HEIGHT)).await.unwrap().status) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn is_unspent(status: &SpendStatus) -> bool {
    *status == SpendStatus::Unspent
}

fn is_spent(status: &SpendStatus) -> bool {
    matches!(status, SpendStatus::Spent(_))
}

/// Publishes a transaction of this many outputs, a child of its first and last output, and a block with both.
async fn run(name: &str, store_url: &str, folder: &Path, outputs: u32) {
    let mut config = Config::default();
    config.store.url = store_url.parse().unwrap();
    config.store.blobs.url = Some(format!("file://{}", folder.join("blobs").display()).parse().unwrap());
    config.objects.url = Some(format!("file://{}", folder.join("objects").display()).parse().unwrap());
    let topics = config.kafka.topics.clone();
    let broker: Arc<dyn Broker> = Arc::new(MemoryBroker::default());
    create_topics(broker.as_ref(), &topics, 4).await.unwrap();
    let bodies = open_event_bodies(&config).await.unwrap().unwrap();
    let publisher = EventPublisher::open(broker.as_ref(), topics).await.unwrap().with_bodies(bodies);

    let seed = Txid([7; 32]);
    let spent = |satoshis| Some(Output { satoshis, script: &SCRIPT });
    let total = u64::from(outputs) * SATOSHIS;
    let partial = PartialOutput { vout: 0, satoshis: total, script: &SCRIPT };
    let seeded = PartialTxEvent { txid: seed, coinbase: false, height: 1, outputs: vec![partial] };
    let input = Outpoint { txid: seed, vout: 0 };
    let builder = TransactionBuilder::default().input(input, b"", 0, spent(total));
    let (txid, large) = finish(&(0..outputs).fold(builder, |builder, _| builder.output(SATOSHIS, &SCRIPT)));
    let slot = |vout| Outpoint { txid, vout };
    let child = TransactionBuilder::default().input(slot(0), b"", 0, spent(SATOSHIS)).input(
        slot(outputs - 1),
        b"",
        0,
        spent(SATOSHIS),
    );
    let (child_txid, child) = finish(&child.output(1, &SCRIPT));

    let instance = Instance::builder().config(config).broker(broker).start();
    let store = instance.store().await.unwrap();
    publisher.publish(&Event::Seeded(seeded)).await.unwrap();
    until(&store, input, is_unspent).await;
    let began = Instant::now();
    let created = async {
        publisher.publish(&Event::Validated(Validated { tx: &large, height: HEIGHT, locked: false })).await.unwrap();
        let published = began.elapsed();
        until(&store, slot(outputs - 1), is_unspent).await;
        (published, began.elapsed())
    };
    let ((published, live), peak) = measure_peak(created).await;
    publisher.publish(&Event::Validated(Validated { tx: &child, height: HEIGHT, locked: false })).await.unwrap();
    until(&store, slot(0), is_spent).await;
    until(&store, Outpoint { txid: child_txid, vout: 0 }, is_unspent).await;
    let spent_at = began.elapsed();

    let coinbase =
        TransactionBuilder::default().input(Outpoint { txid: Txid([0; 32]), vout: u32::MAX }, &[1, 1], 0, None);
    let coinbase = coinbase.output(5_000, &SCRIPT).standard();
    let listed = [txid.0, child_txid.0].concat();
    let subtree = Subtree { count: 2, transactions: SubtreeTransactions::Inline(&listed) };
    let block = Block {
        block_id: 1,
        hash: [1; 32],
        previous: [0; 32],
        height: HEIGHT,
        time: 0,
        longest_chain: true,
        coinbase: &coinbase,
        subtrees: vec![subtree],
    };
    publisher.publish(&Event::BlockMined(BlockMined { sequence: 1, block })).await.unwrap();
    while store.transaction(txid).await.unwrap().unwrap().block_ids != [1] {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mined = began.elapsed();
    let meta = store.transaction(txid).await.unwrap().unwrap();
    assert!(meta.tx.as_deref() == Some(&large[..]), "{name}: another body of {} bytes", meta.extended_size);
    for (vout, spent) in [(0, true), (1, false), (outputs / 2, false), (outputs - 2, false), (outputs - 1, true)] {
        let status = store.output(slot(vout), None).await.unwrap().status;
        assert!(if spent { is_spent(&status) } else { is_unspent(&status) }, "{name}: output {vout} is {status:?}");
    }
    let report = instance.shut_down().await.unwrap();
    assert_eq!((report.completed, report.dead_letters, report.contests), (3, 0, 0), "{name}");
    eprintln!(
        "{name}: {outputs} outputs, {:.1} MB: object and event {published:.1?}, live {live:.1?}, spent from \
         {spent_at:.1?}, mined {mined:.1?}; peak {} MiB beside the producer's transaction",
        large.len() as f64 / 1e6,
        peak / MIB,
    );
}

#[test]
fn a_transaction_of_very_many_outputs_passes_by_reference() {
    let _serial = acquire_serial_guard();
    let folder = tempfile::tempdir().unwrap();
    block_on(async {
        run("memory", "memory://", &folder.path().join("memory"), 100_000).await;
        let fjall = folder.path().join("fjall");
        run("fjall", &format!("fjall://{}", fjall.join("store").display()), &fjall, 100_000).await;
        if let Some(server) = AerospikeServer::start() {
            run("Aerospike", &server.url(), &folder.path().join("aerospike"), 1_000_000).await;
        }
    });
}
