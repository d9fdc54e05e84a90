//! The least that any consumer in this language has to do: librdkafka's own batches, one thread, no group, no commits, nothing kept.

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
    case::{Place, Sink},
    pipeline::{PREPARE, Took, Watch},
};

/// Messages taken at once.
const AT_ONCE: usize = 1_000;
const WAIT_MS: i32 = 100;
const CONNECTED_WITHIN: Duration = Duration::from_secs(30);

/// Reads all of a topic.
pub fn run(place: &Place, sink: Sink) -> Took {
    let consumer: BaseConsumer = config(place).create().expect("the properties are the program's own");
    let mut partitions = TopicPartitionList::new();
    for partition in 0..place.partitions {
        partitions.add_partition_offset(&place.topic, partition, Offset::Offset(0)).expect("an offset");
    }
    // Connected before the clock starts, as the pipeline is by then.
    consumer.fetch_metadata(Some(&place.topic), CONNECTED_WITHIN).expect("the broker is ours");
    consumer.assign(&partitions).expect("assigned");
    match sink {
        Sink::Txid => each(&consumer, place, |_, key, payload| {
            let Ok(Event::Validated(event)) = Event::decode(payload) else { panic!("the generator's event") };
            let txid = Transaction::parse(event.tx).expect("the generator's transaction").txid();
            assert_eq!(txid, Txid(key.try_into().expect("an id")));
        }),
        // Copied out of librdkafka's buffer, as whoever keeps it has to.
        _ => each(&consumer, place, |offset, key, payload| {
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

/// What decides how librdkafka fetches is as the program sets it.
fn config(place: &Place) -> ClientConfig {
    let settings = place.settings();
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", &place.brokers)
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

/// Hands over number, key and payload of each message.
fn each(consumer: &BaseConsumer, place: &Place, mut work: impl FnMut(u64, &[u8], &[u8])) -> Took {
    let mut batch: [*mut rd_kafka_message_t; AT_ONCE] = [ptr::null_mut(); AT_ONCE];
    // SAFETY: the consumer, and with it the handle, outlives the queue.
    let queue = unsafe { rd_kafka_queue_get_consumer(consumer.client().native_ptr()) };
    let (mut watch, mut took, mut read) = (Some(Watch::start()), None, 0);
    let (begins, ends) = (place.warm_up(), place.transactions - place.warm_up());
    while read < place.transactions {
        // SAFETY: the array has room for as many as are asked for. rdkafka has no safe form of this call, which is the cheapest.
        let taken = unsafe { rd_kafka_consume_batch_queue(queue, WAIT_MS, batch.as_mut_ptr(), AT_ONCE) };
        let taken = usize::try_from(taken).expect("the queue is there");
        for message in &batch[..taken] {
            // SAFETY: the call filled so many places with messages that are ours until they are destroyed, once.
            unsafe {
                let told = &**message;
                if told.err as i32 == 0 {
                    work(read, bytes(told.key, told.key_len), bytes(told.payload, told.len));
                    read += 1;
                    if read == begins {
                        watch = watch.map(Watch::warmed_up);
                    }
                    if read == ends {
                        took = watch.take().map(|watch| watch.stop(ends - begins));
                    }
                }
                rd_kafka_message_destroy(*message);
            }
        }
    }
    // SAFETY: it was made above, and nobody else has it.
    unsafe { rd_kafka_queue_destroy(queue) };
    took.expect("there are more than were to warm up")
}

/// # Safety
/// So many bytes are there for as long as the message.
unsafe fn bytes<'m>(start: *mut std::ffi::c_void, length: usize) -> &'m [u8] {
    if start.is_null() {
        return &[];
    }
    // SAFETY: as above.
    unsafe { slice::from_raw_parts(start.cast(), length) }
}
