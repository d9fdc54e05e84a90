//! `utxo-store bridge` as a process: messages of the reference's validator a second, from a broker and to the broker.

use std::{
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use prost::Message as _;
use utxo_store::{
    bridge::messages::TxValidation,
    broker::{Broker, NewTopic, OutgoingMessage, TopicPartition},
    event::Event,
};

use crate::{
    generator::{Generator, Shape},
    measure::env_number,
    process::{cpu, mib, peak},
    program::{Bench, PARTITIONS as EVENT_PARTITIONS, block_on},
};

/// Name of the case.
pub const BRIDGE: &str = "bridge";
/// Partitions of the topic of the reference, which has no keys.
const PARTITIONS: i32 = 8;
const MESSAGES_PER_CALL: usize = 20_000;
const HEIGHT: u32 = 800_000;
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Limit far above the time that a bridge needs.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Measures and prints one line.
pub fn measure(brokers: &str) {
    let count = env_number("KAFKA_BRIDGED", 200_000);
    let bench = Bench::on(brokers);
    bench.create_topics();
    let [transactions, blocks, group] = ["reference-txs", "reference-blocks", "bridge"].map(|name| bench.topic(name));
    fill(&bench, &transactions, &blocks, count);
    let subtrees = format!("file://{}", bench.directory.path().display());
    let arguments = ["bridge", "--transactions", &transactions, "--blocks", &blocks, "--subtrees", &subtrees];
    let begun = Instant::now();
    let mut process = bench.start_process(&[&arguments[..], &["--group", &group]].concat(), &[]);
    let mut published = 0;
    let mut first = None;
    while published < count {
        assert!(begun.elapsed() < TIMEOUT, "the bridge makes no progress: {published} of {count} events");
        assert_eq!(process.child.try_wait().expect("the process belongs to the bench"), None, "the bridge has ended");
        thread::sleep(POLL_INTERVAL);
        published = events(&bench);
        if published > 0 {
            first.get_or_insert_with(|| (Instant::now(), published, cpu(process.child.id())));
        }
    }
    // The start of the process, and of its group, is not part of the speed.
    let (since, before, cpu_before) = first.expect("an event was published");
    assert!(published > before, "more messages are needed: the first look found all {count} events");
    let (seconds, events) = (since.elapsed().as_secs_f64(), (published - before) as f64);
    let micros = (cpu(process.child.id()) - cpu_before).as_secs_f64() * 1e6 / events;
    let memory = mib(peak(process.child.id()));
    println!("{BRIDGE:<20} {:.0} messages/s, {micros:.1} µs of CPU each, peak {memory:.0} MiB", events / seconds);
}

/// Returns the number of events that are published.
fn events(bench: &Bench) -> u64 {
    let topic = bench.topic("validated-txs");
    block_on(async {
        let broker = bench.broker();
        let mut total = 0;
        for partition in 0..EVENT_PARTITIONS {
            let at = TopicPartition { topic: topic.as_str().into(), partition };
            total += broker.watermarks(&at).await.expect("the broker is ours").1;
        }
        total
    })
}

/// Creates the topics of the reference, and produces transactions to them.
fn fill(bench: &Bench, transactions: &str, blocks: &str, count: u64) {
    let new = |name: &str, partitions| NewTopic { name: name.into(), partitions, config: Vec::new() };
    block_on(async {
        let broker = bench.broker();
        broker.create_topics(&[new(transactions, PARTITIONS), new(blocks, 1)]).await.expect("the broker is ours");
        let producer = broker.producer().await.expect("the broker is ours");
        for chunk in Generator::new(Shape::Apart, count).chunks(MESSAGES_PER_CALL) {
            let messages = chunk.iter().zip((0..PARTITIONS).cycle()).map(|(message, partition)| {
                let Ok(Event::Validated(event)) = Event::decode(&message.payload) else {
                    panic!("the generator makes validated transactions")
                };
                let message = TxValidation { tx: Bytes::copy_from_slice(event.tx), height: HEIGHT, options: None };
                OutgoingMessage {
                    topic: transactions.into(),
                    partition: Some(partition),
                    payload: message.encode_to_vec().into(),
                    ..Default::default()
                }
            });
            producer.produce_all(messages.collect()).await.expect("acknowledged");
        }
    });
}
