//! Conformance suite of [`Broker`]: checks that run against every implementation and panic on a violation.
//!
//! Every wait has a bound, so that a broken broker fails instead of hanging. No check depends on a duration, except the
//! checks that *nothing* happens: they wait for [`QUIET`].

#![allow(clippy::unwrap_used)]

mod members;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::timeout;

use self::members::Member;
use super::{
    Broker, BrokerErrorKind, CommittedOffset, ConsumerEvent, NewTopic, OutgoingMessage, PartitionEnd, TopicPartition,
    partitioner::partition_of,
};

/// Time without an event that counts as silence.
pub const QUIET: Duration = Duration::from_millis(400);
/// Longest wait for an event that must happen.
const MAX_WAIT: Duration = Duration::from_secs(40);

/// Topics that [`run`] needs, for a broker that cannot create topics itself.
pub fn topics(prefix: &str) -> Vec<NewTopic> {
    [
        "order",
        "resume",
        "seek",
        "rebalance",
        "refused",
        "reader",
        "range",
        "produce",
        "pause",
        "drop",
        "set",
        "times",
        "all",
    ]
    .map(|name| NewTopic {
        name: format!("{prefix}{name}"),
        partitions: match name {
            "rebalance" | "produce" => 4,
            "times" | "all" => 3,
            _ => 1,
        },
        config: Vec::new(),
    })
    .to_vec()
}

/// Runs every check on a broker whose groups rebalance cooperatively and whose topics are empty. Creates missing
/// topics.
pub async fn run(broker: Arc<dyn Broker>, prefix: &str) {
    run_expecting(broker, prefix, 2, false).await;
}

/// Runs every check on a broker whose groups revoke every partition at every rebalance.
pub async fn run_eager(broker: Arc<dyn Broker>, prefix: &str) {
    run_expecting(broker, prefix, 4, false).await;
}

/// Runs every check that librdkafka's mock cluster passes: the mock looks up no timestamps, and sets no offsets of a
/// group that ever had a member.
pub async fn run_on_mock(broker: Arc<dyn Broker>, prefix: &str) {
    run_expecting(broker, prefix, 2, true).await;
}

/// `revoked`: number of one member's four partitions that are revoked when a second member joins. `mock`: see
/// [`run_on_mock`].
async fn run_expecting(broker: Arc<dyn Broker>, prefix: &str, revoked: usize, mock: bool) {
    let suite = Suite { broker, prefix: prefix.to_owned(), revoked, mock };
    suite.broker.create_topics(&topics(prefix)).await.unwrap();
    suite.topics_exist_as_created().await;
    suite.messages_arrive_complete_and_in_order().await;
    suite.a_new_member_resumes_at_the_commit_with_its_metadata().await;
    suite.a_seek_reads_under_a_new_epoch().await;
    suite.a_revocation_waits_for_the_member_and_fences_it().await;
    suite.unassigned_partitions_are_refused().await;
    suite.a_reader_knows_its_position_and_seeks().await;
    suite.one_reader_reads_all_partitions().await;
    suite.a_position_out_of_range_is_an_error().await;
    suite.messages_go_to_the_partition_of_key_or_caller().await;
    suite.a_paused_partition_is_silent().await;
    suite.a_dropped_member_loses_its_partitions().await;
    suite.offsets_of_a_group_without_members_can_be_set().await;
    suite.offsets_are_found_by_timestamp().await;
}

struct Suite {
    broker: Arc<dyn Broker>,
    prefix: String,
    revoked: usize,
    mock: bool,
}

impl Suite {
    fn topic(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn at(&self, name: &str, partition: i32) -> TopicPartition {
        TopicPartition { topic: self.topic(name).into(), partition }
    }

    async fn join(&self, name: &str) -> Member {
        let group = format!("{}{name}-group", self.prefix);
        let consumer = self.broker.subscribe(&group, &[self.topic(name)]).await.unwrap();
        Member { consumer, assigned: BTreeMap::new() }
    }

    async fn fill(&self, name: &str, partition: i32, count: usize) {
        let messages = (0..count).map(|i| numbered(&self.topic(name), partition, i)).collect();
        let delivered = self.broker.producer().await.unwrap().produce_all(messages).await.unwrap();
        assert_eq!(delivered.len(), count);
        assert!(delivered.windows(2).all(|pair| pair[0].offset < pair[1].offset), "offsets follow the order of calls");
    }

    async fn topics_exist_as_created(&self) {
        assert_eq!(self.broker.partitions(&self.topic("rebalance")).await.unwrap(), Some(4));
        assert_eq!(self.broker.partitions(&self.topic("unheard-of")).await.unwrap(), None);
        let mut topics = topics(&self.prefix);
        self.broker.create_topics(&topics).await.unwrap();
        topics[0].partitions += 1;
        assert_eq!(self.broker.create_topics(&topics).await.unwrap_err().kind, BrokerErrorKind::Refused);
        let missing = self.broker.subscribe("group", &[self.topic("unheard-of")]).await;
        assert_eq!(missing.err().unwrap().kind, BrokerErrorKind::Refused);
    }

    async fn messages_arrive_complete_and_in_order(&self) {
        const COUNT: usize = 3000;
        self.fill("order", 0, COUNT).await;
        let mut member = self.join("order").await;
        member.wait_for_assignment(1).await;
        let assigned = member.assigned.values().next().unwrap().clone();
        assert_eq!((assigned.position, assigned.committed, assigned.high_watermark), (0, None, COUNT as u64));
        let mut messages = Vec::new();
        loop {
            // `poll` is cancel safe: a dropped future loses no event.
            let Ok(polled) = timeout(Duration::from_micros(200), member.consumer.poll()).await else { continue };
            match polled.unwrap() {
                ConsumerEvent::Messages(batch) => {
                    assert_eq!(batch.epoch, assigned.epoch);
                    assert!(batch.high_watermark > batch.messages.last().unwrap().offset);
                    messages.extend(batch.messages);
                }
                ConsumerEvent::End(PartitionEnd { partition, epoch, position }) => {
                    break assert_eq!((partition, epoch, position), (assigned.partition, assigned.epoch, COUNT as u64));
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(messages.len(), COUNT);
        for (i, message) in messages.iter().enumerate() {
            let sent = numbered("", 0, i);
            assert_eq!((message.offset, Some(message.timestamp_ms)), (i as u64, sent.timestamp_ms));
            assert_eq!((&message.key, &message.payload, &message.headers), (&sent.key, &sent.payload, &sent.headers));
        }
        assert!(member.is_quiet().await, "an end is reported once");
        self.fill("order", 0, 2).await;
        assert_eq!(member.read_to_end().await.len(), 2, "an end that is reached again is reported again");
        member.consumer.close().await.unwrap();
        assert_eq!(
            member.consumer.commit(&[(self.at("order", 0), offset(1))]).await.unwrap_err().kind,
            BrokerErrorKind::Fatal
        );
    }

    async fn a_seek_reads_under_a_new_epoch(&self) {
        let at = self.at("seek", 0);
        self.fill("seek", 0, 50).await;
        let mut member = self.join("seek").await;
        assert_eq!(member.read_to_end().await.len(), 50);
        for target in [10, 0, 49] {
            let epoch = member.consumer.seek(&at, target).await.unwrap();
            assert_ne!(epoch, member.assigned[&at].epoch);
            let batch = loop {
                let batch = member.batch().await;
                if batch.epoch == epoch {
                    break batch;
                }
            };
            assert_eq!(batch.messages[0].offset, target);
            member.assigned.get_mut(&at).unwrap().epoch = epoch;
        }
        let error = member.consumer.seek(&at, 51).await.unwrap_err();
        assert_eq!(error.kind, BrokerErrorKind::OutOfRange, "{error}");
        assert!(error.message.contains("51") && error.message.contains(&at.to_string()), "{error}");
        member.consumer.close().await.unwrap();
    }

    async fn a_reader_knows_its_position_and_seeks(&self) {
        let at = self.at("reader", 0);
        self.fill("reader", 0, 30).await;
        assert_eq!(self.broker.watermarks(&at).await.unwrap(), (0, 30));
        let mut reader = self.broker.read(&at, 4).await.unwrap();
        assert_eq!(reader.position(), 4);
        let mut offsets = Vec::new();
        while reader.position() < 30 {
            let messages = reader.next(MAX_WAIT).await.unwrap();
            offsets.extend(messages.iter().map(|message| message.offset));
            assert_eq!(reader.position(), offsets.last().unwrap() + 1);
        }
        assert_eq!(offsets, (4..30).collect::<Vec<_>>());
        assert!(reader.next(QUIET).await.unwrap().is_empty());
        self.fill("reader", 0, 1).await;
        assert_eq!(reader.next(MAX_WAIT).await.unwrap()[0].offset, 30);
        for offset in [7, 3, 29, 30, 0, 31] {
            reader.seek(offset).await.unwrap();
            assert_eq!(reader.position(), offset);
            let next = reader.next(if offset < 31 { MAX_WAIT } else { QUIET }).await.unwrap();
            assert_eq!(next.first().map(|message| message.offset), Some(offset).filter(|offset| *offset < 31));
        }
        assert_eq!(reader.seek(32).await.unwrap_err().kind, BrokerErrorKind::OutOfRange);
        reader.seek(30).await.unwrap();
        assert_eq!(reader.next(MAX_WAIT).await.unwrap()[0].offset, 30);
        let error = self.broker.read(&at, 32).await.err().unwrap();
        assert_eq!(error.kind, BrokerErrorKind::OutOfRange, "{error}");
        assert!(error.message.contains("0..31"), "{error}");
        let nowhere = TopicPartition { topic: at.topic, partition: 99 };
        assert_eq!(self.broker.read(&nowhere, 0).await.err().unwrap().kind, BrokerErrorKind::Refused);
    }

    async fn one_reader_reads_all_partitions(&self) {
        for partition in 0..3 {
            self.fill("all", partition, 4).await;
        }
        let starts: Vec<_> = (0..3).map(|partition| (self.at("all", partition), 1 + partition as u64)).collect();
        let mut reader = self.broker.read_all(&starts).await.unwrap();
        let mut found = [const { Vec::new() }; 3];
        let mut read = async |count: usize| {
            while found.iter().map(Vec::len).sum::<usize>() < count {
                let batch = timeout(MAX_WAIT, reader.next()).await.unwrap().unwrap();
                found[batch.partition.partition as usize].extend(batch.messages.iter().map(|message| message.offset));
            }
        };
        read(6).await;
        self.fill("all", 1, 1).await;
        read(7).await;
        assert_eq!(found, [vec![1, 2, 3], vec![2, 3, 4], vec![3]]);
    }

    async fn a_position_out_of_range_is_an_error(&self) {
        let at = self.at("range", 0);
        self.fill("range", 0, 10).await;
        let mut member = self.join("range").await;
        member.wait_for_assignment(1).await;
        member.consumer.commit(&[(at.clone(), offset(1000))]).await.unwrap();
        member.consumer.close().await.unwrap();

        let mut member = self.join("range").await;
        let error = loop {
            match member.poll_event().await {
                Err(error) => break error,
                Ok(polled) => assert!(matches!(polled, ConsumerEvent::Assigned(_)), "{polled:?}"),
            }
        };
        assert_eq!(error.kind, BrokerErrorKind::OutOfRange, "{error}");
        for part in [at.to_string().as_str(), "1000", "0..10"] {
            assert!(error.message.contains(part), "{error}");
        }
        assert!(member.is_quiet().await, "no message is skipped, and none is repeated");
        // A seek on a loaded broker may need a repeat.
        while let Err(error) = member.consumer.seek(&at, 8).await {
            assert_eq!(error.kind, BrokerErrorKind::Retryable, "{error}");
        }
        assert_eq!(member.batch().await.messages[0].offset, 8);
        member.consumer.close().await.unwrap();
    }

    async fn messages_go_to_the_partition_of_key_or_caller(&self) {
        let topic = self.topic("produce");
        let producer = self.broker.producer().await.unwrap();
        for i in 0..20u8 {
            let key = Bytes::from(vec![i; 32]);
            let place = partition_of(&key, 4).unwrap();
            let message = OutgoingMessage {
                topic: topic.clone(),
                key,
                payload: Bytes::from_static(b"x"),
                ..OutgoingMessage::default()
            };
            assert_eq!(producer.produce(message.clone()).await.unwrap().partition, place, "by the key");
            let explicit = OutgoingMessage { partition: Some((place + 1) % 4), ..message };
            assert_eq!(producer.produce(explicit).await.unwrap().partition, (place + 1) % 4, "explicit partition");
        }
        let message = numbered(&topic, 0, 0);
        let without_key = OutgoingMessage { key: Bytes::new(), partition: None, timestamp_ms: None, ..message.clone() };
        producer.produce(without_key).await.unwrap();
        for misplaced in [
            OutgoingMessage { topic: self.topic("unheard-of"), ..message.clone() },
            OutgoingMessage { partition: Some(4), ..message.clone() },
        ] {
            assert_eq!(producer.produce(misplaced.clone()).await.unwrap_err().kind, BrokerErrorKind::Refused);
            let mixed = vec![message.clone(), misplaced, message.clone()];
            assert_eq!(producer.produce_all(mixed).await.unwrap_err().kind, BrokerErrorKind::Refused);
        }
    }

    async fn a_paused_partition_is_silent(&self) {
        let at = self.at("pause", 0);
        let mut member = self.join("pause").await;
        assert!(member.read_to_end().await.is_empty());
        member.consumer.pause(&at).unwrap();
        self.fill("pause", 0, 5).await;
        assert!(member.is_quiet().await);
        member.consumer.resume(&at).unwrap();
        assert_eq!(member.read_to_end().await.iter().map(|m| m.offset).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        member.consumer.close().await.unwrap();
    }

    async fn offsets_are_found_by_timestamp(&self) {
        const FIRST: i64 = 1_600_000_000_000;
        let topic = self.topic("times");
        let producer = self.broker.producer().await.unwrap();
        // Timestamps of the second partition are not ascending; the third partition is empty.
        for (partition, after_ms) in [(0, 0), (0, 10), (0, 10), (0, 20), (1, 30), (1, 5), (1, 40)] {
            let message = numbered(&topic, partition, 0);
            producer.produce(OutgoingMessage { timestamp_ms: Some(FIRST + after_ms), ..message }).await.unwrap();
        }
        for (after_ms, expected) in [
            (-1, [Some(0), Some(0), None]),
            (0, [Some(0), Some(0), None]),
            (1, [Some(1), Some(0), None]),
            (10, [Some(1), Some(0), None]),
            (11, [Some(3), Some(0), None]),
            (31, [None, Some(2), None]),
            (41, [None, None, None]),
        ] {
            let found = self.broker.offsets_at(&topic, FIRST + after_ms).await.unwrap();
            assert_eq!(found, if self.mock { [None; 3] } else { expected }, "{after_ms}");
        }
        assert_eq!(self.broker.offsets_at(&topic, -5).await.unwrap()[0], Some(0).filter(|_| !self.mock));
        let missing = self.broker.offsets_at(&self.topic("unheard-of"), 0).await.unwrap_err();
        assert_eq!(missing.kind, BrokerErrorKind::Refused);
    }
}

fn offset(offset: u64) -> CommittedOffset {
    CommittedOffset { offset, metadata: String::new() }
}

fn numbered(topic: &str, partition: i32, i: usize) -> OutgoingMessage {
    OutgoingMessage {
        topic: topic.to_owned(),
        partition: Some(partition),
        key: Bytes::from(format!("key {i}")),
        payload: Bytes::from(format!("payload {i} {}", "-".repeat(i % 300))),
        headers: vec![
            ("number".into(), Bytes::from(i.to_string())),
            ("number".into(), Bytes::from_static(b"the same name again")),
            ("empty".into(), Bytes::new()),
        ],
        timestamp_ms: Some(1_600_000_000_000 + i as i64),
    }
}
