use std::time::Duration;

use rdkafka::types::RDKafkaApiKey;

use super::worker::{Command, Handle};
use super::*;
use crate::broker::{Polled, Produce, conformance};

/// Timeouts at which the mock cluster answers quickly.
pub(super) fn quick(bootstrap: &str) -> KafkaSettings {
    KafkaSettings {
        session_timeout: Duration::from_millis(2000),
        heartbeat_interval: Duration::from_millis(300),
        max_poll_interval: Duration::from_millis(60_000),
        fetch_wait_max: Duration::from_millis(10),
        fetch_min_bytes: 1,
        revocation_timeout: Duration::from_secs(10),
        ..KafkaSettings::new(bootstrap)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_mock_cluster_conforms() {
    let cluster = MockCluster::start(&conformance::topics("")).unwrap();
    let broker = KafkaBroker::new(quick(cluster.bootstrap_servers())).unwrap();
    conformance::run_on_mock(Arc::new(broker), "").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_mock_cluster_drops_is_noticed() {
    let topic = NewTopic { name: "topic".into(), partitions: 1, config: Vec::new() };
    let cluster = MockCluster::start(&[topic]).unwrap();
    let broker = KafkaBroker::new(quick(cluster.bootstrap_servers())).unwrap();
    let message = Produce { topic: "topic".into(), payload: vec![0; 100_000].into(), ..Produce::default() };
    let producer = broker.producer().await.unwrap();
    producer.produce_all(vec![message.clone(); 10]).await.unwrap();
    cluster.assert_kept_everything(&broker, "topic", 10).await.unwrap();
    cluster.assert_kept_everything(&broker, "topic", 11).await.unwrap_err();
    for _ in 0..10 {
        producer.produce_all(vec![message.clone(); 10]).await.unwrap();
    }
    let error = cluster.assert_kept_everything(&broker, "topic", 110).await.unwrap_err();
    assert!(error.message.contains("dropped"), "{error}");
}

/// A cluster with a topic of many partitions, and a new member of a group that gets them all.
fn joined(round_trip: Duration) -> (MockCluster, Handle) {
    let topics = vec!["topic".to_owned()];
    let cluster = MockCluster::start(&[NewTopic { name: "topic".into(), partitions: 64, config: Vec::new() }]).unwrap();
    cluster.slow_down(round_trip);
    cluster.requests();
    let settings = KafkaSettings { session_timeout: Duration::from_secs(60), ..quick(cluster.bootstrap_servers()) };
    let handle =
        start(settings.member("group", 64), settings, Source::Group { topics }, Signs::default(), "test".into())
            .unwrap();
    (cluster, handle)
}

fn count(asked: &[i16], api: RDKafkaApiKey) -> usize {
    asked.iter().filter(|key| **key == api as i16).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn start_positions_of_all_partitions_are_two_requests() {
    let (cluster, handle) = joined(Duration::ZERO);
    let Polled::Assigned(assigned) = handle.shared.next().await.unwrap() else { panic!("it is assigned first") };
    assert!(assigned.len() == 64 && assigned.iter().all(|assigned| assigned.position == 0), "{assigned:?}");
    assert_eq!(count(&cluster.requests(), RDKafkaApiKey::ListOffsets), 2, "all beginnings, and all ends");
    handle.commands.send(Command::Close { reply: None }).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_lookup_of_start_positions_holds_up_nothing() {
    // A machine that stands for as long as the lookup takes has one more chance.
    for _ in 0..5 {
        let (cluster, handle) = joined(Duration::from_millis(500));
        let (mut asked, mut before) = (Vec::new(), false);
        while count(&asked, RDKafkaApiKey::ListOffsets) == 0 {
            let partition = TopicPartition { topic: "topic".into(), partition: 0 };
            let (reply, answer) = tokio::sync::oneshot::channel();
            handle.commands.send(Command::Seek { partition, offset: 0, reply }).unwrap();
            handle.wake();
            // Nobody knows yet where it is to be read from.
            assert_eq!(answer.await.unwrap().err().unwrap().kind, BrokerErrorKind::NotAssigned);
            asked.extend(cluster.requests());
            let is_under_way = count(&asked, RDKafkaApiKey::OffsetFetch) > 0;
            if before && count(&asked, RDKafkaApiKey::ListOffsets) == 0 {
                // Asked and answered between the first request of the lookup and the second.
                handle.commands.send(Command::Close { reply: None }).unwrap();
                return;
            }
            before = is_under_way;
        }
        handle.commands.send(Command::Close { reply: None }).unwrap();
    }
    panic!("the consumer's thread answers nobody while it looks up where to start");
}
