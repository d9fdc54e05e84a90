//! The minimum of any consumer in Rust: librdkafka's own batches, one thread, no group, no commits, no state.

use std::{ptr, slice, time::Duration};

use bytes::Bytes;
use rdkafka::{
    ClientConfig, Offset, TopicPartitionList,
    bindings::{
        rd_kafka_consume_batch_queue, rd_kafka_message_destroy, rd_kafka_message_t, rd_kafka_queue_destroy,
        rd_kafka_queue_get_consumer,
    },
    consumer::{BaseConsumer, Consumer},
};
use utxo_store::{
    broker::Message,
    event::Event,
    prepare::prepare,
    tx::{Transaction, Txid},
};

use crate::{
    case::Sink,
    pipeline::{Measurement, PREPARE, Stopwatch},
    topic::BenchTopic,
};

/// Messages per call.
const MESSAGES_PER_CALL: usize = 1_000;
const WAIT_MS: i32 = 100;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Reads a whole topic.
pub fn run(bench_topic: &BenchTopic, sink: Sink) -> Measurement {
    let consumer: BaseConsumer = config(bench_topic).create().expect("the properties are the program's own");
    let mut partitions = TopicPartitionList::new();
    for partition in 0..bench_topic.partitions {
        partitions.add_partition_offset(&bench_topic.topic, partition, Offset::Offset(0)).expect("an offset");
    }
    // The connection exists before the clock starts, as in the pipeline.
    consumer.fetch_metadata(Some(&bench_topic.topic), CONNECT_TIMEOUT).expect("the broker is ours");
    consumer.assign(&partitions).expect("assigned");
    match sink {
        Sink::Txid => consume(&consumer, bench_topic, |_, key, payload| {
            let Ok(Event::Validated(event)) = Event::decode(payload) else { panic!("the generator's event") };
            let txid = Transaction::parse(event.tx).expect("the generator's transaction").txid();
            assert_eq!(txid, Txid(key.try_into().expect("an id")));
        }),
        // A message that is kept has to be copied out of librdkafka's buffer.
        _ => consume(&consumer, bench_topic, |offset, key, payload| {
            let message = Message {
                offset,
                timestamp_ms: 0,
                key: Bytes::copy_from_slice(key),
                payload: Bytes::copy_from_slice(payload),
                headers: Vec::new(),
            };
            drop(prepare(&PREPARE, &message).expect("the generator's transaction"));
        }),
    }
}

/// The fetch properties are those of the program.
fn config(bench_topic: &BenchTopic) -> ClientConfig {
    let settings = bench_topic.settings();
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", &bench_topic.brokers)
        .set("group.id", "bare")
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("fetch.queue.backoff.ms", "20")
        .set("queued.min.messages", "10000")
        .set("queued.max.messages.kbytes", (settings.fetch_budget_bytes >> 10).to_string())
        .set("fetch.min.bytes", settings.fetch_min_bytes.to_string())
        .set("fetch.wait.max.ms", settings.fetch_wait_max.as_millis().to_string())
        .set("max.partition.fetch.bytes", settings.max_partition_fetch_bytes.to_string());
    config
}

/// Calls `work` with number, key and payload of each message.
fn consume(consumer: &BaseConsumer, bench_topic: &BenchTopic, mut work: impl FnMut(u64, &[u8], &[u8])) -> Measurement {
    let mut batch: [*mut rd_kafka_message_t; MESSAGES_PER_CALL] = [ptr::null_mut(); MESSAGES_PER_CALL];
    // SAFETY: the consumer, and with it the handle, outlives the queue.
    let queue = unsafe { rd_kafka_queue_get_consumer(consumer.client().native_ptr()) };
    let (mut stopwatch, mut measurement, mut read) = (Some(Stopwatch::start()), None, 0);
    let (begins, ends) = (bench_topic.warm_up(), bench_topic.transactions - bench_topic.warm_up());
    while read < bench_topic.transactions {
        // SAFETY: the array has room for the requested messages. rdkafka has no safe form of this call, the cheapest
        // one.
        let taken = unsafe { rd_kafka_consume_batch_queue(queue, WAIT_MS, batch.as_mut_ptr(), MESSAGES_PER_CALL) };
        let taken = usize::try_from(taken).expect("the queue is there");
        for message in &batch[..taken] {
            // SAFETY: the call filled `taken` places with messages that this function owns until it destroys them, once
            // each.
            unsafe {
                let message_ref = &**message;
                if message_ref.err as i32 == 0 {
                    work(
                        read,
                        bytes(message_ref.key, message_ref.key_len),
                        bytes(message_ref.payload, message_ref.len),
                    );
                    read += 1;
                    if read == begins {
                        stopwatch = stopwatch.map(Stopwatch::warmed_up);
                    }
                    if read == ends {
                        measurement = stopwatch.take().map(|stopwatch| stopwatch.stop(ends - begins));
                    }
                }
                rd_kafka_message_destroy(*message);
            }
        }
    }
    // SAFETY: the queue was created above and has no other owner.
    unsafe { rd_kafka_queue_destroy(queue) };
    measurement.expect("the topic has more transactions than the warm-up")
}

/// # Safety
/// `length` bytes at `start` must be valid as long as the message.
unsafe fn bytes<'m>(start: *mut std::ffi::c_void, length: usize) -> &'m [u8] {
    if start.is_null() {
        return &[];
    }
    // SAFETY: as above.
    unsafe { slice::from_raw_parts(start.cast(), length) }
}
