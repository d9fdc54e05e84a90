use std::time::Duration;

use rdkafka::types::RDKafkaApiKey;

use super::worker::{Handle, WorkerCommand};
use super::*;
use crate::broker::{ConsumerEvent, OutgoingMessage, conformance};

/// Settings with short timeouts for the mock cluster.
pub(super) fn quick_settings(bootstrap: &str) -> KafkaSettings {
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
    let broker = KafkaBroker::new(quick_settings(cluster.bootstrap_servers())).unwrap();
    conformance::run_on_mock(Arc::new(broker), "").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_the_mock_cluster_drops_are_noticed() {
    let topic = NewTopic { name: "topic".into(), partitions: 1, config: Vec::new() };
    let cluster = MockCluster::start(&[topic]).unwrap();
    let broker = KafkaBroker::new(quick_settings(cluster.bootstrap_servers())).unwrap();
    let message =
        OutgoingMessage { topic: "topic".into(), payload: vec![0; 100_000].into(), ..OutgoingMessage::default() };
    let producer = broker.producer().await.unwrap();
    producer.produce_all(vec![message.clone(); 10]).await.unwrap();
    cluster.check_retention(&broker, "topic", 10).await.unwrap();
    cluster.check_retention(&broker, "topic", 11).await.unwrap_err();
    for _ in 0..10 {
        producer.produce_all(vec![message.clone(); 10]).await.unwrap();
    }
    let error = cluster.check_retention(&broker, "topic", 110).await.unwrap_err();
    assert!(error.message.contains("dropped"), "{error}");
}

/// Starts a cluster with a topic of many partitions, and a group member that gets all partitions.
fn join_group(round_trip: Duration) -> (MockCluster, Handle) {
    let topics = vec!["topic".to_owned()];
    let cluster = MockCluster::start(&[NewTopic { name: "topic".into(), partitions: 64, config: Vec::new() }]).unwrap();
    cluster.set_round_trip(round_trip);
    cluster.requests();
    let settings =
        KafkaSettings { session_timeout: Duration::from_secs(60), ..quick_settings(cluster.bootstrap_servers()) };
    let handle = start(
        settings.member_config("group", 64),
        settings,
        ConsumerSource::Group { topics },
        ConsumerSignals::default(),
        "test".into(),
    )
    .unwrap();
    (cluster, handle)
}

fn count_requests(requests: &[i16], api: RDKafkaApiKey) -> usize {
    requests.iter().filter(|key| **key == api as i16).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn start_positions_of_all_partitions_are_two_requests() {
    let (cluster, handle) = join_group(Duration::ZERO);
    let ConsumerEvent::Assigned(assigned) = handle.shared.next().await.unwrap() else { panic!("it is assigned first") };
    assert!(assigned.len() == 64 && assigned.iter().all(|assigned| assigned.position == 0), "{assigned:?}");
    assert_eq!(count_requests(&cluster.requests(), RDKafkaApiKey::ListOffsets), 2, "all beginnings, and all ends");
    handle.commands.send(WorkerCommand::Close { reply: None }).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_lookup_of_start_positions_holds_up_nothing() {
    // Repeated, since a machine that stops for the time of the lookup spoils one attempt.
    for _ in 0..5 {
        let (cluster, handle) = join_group(Duration::from_millis(500));
        let (mut requests, mut was_under_way) = (Vec::new(), false);
        while count_requests(&requests, RDKafkaApiKey::ListOffsets) == 0 {
            let partition = TopicPartition { topic: "topic".into(), partition: 0 };
            let (reply, answer) = tokio::sync::oneshot::channel();
            handle.commands.send(WorkerCommand::Seek { partition, offset: 0, reply }).unwrap();
            handle.wake();
            // The start position is not known yet.
            assert_eq!(answer.await.unwrap().err().unwrap().kind, BrokerErrorKind::NotAssigned);
            requests.extend(cluster.requests());
            let is_under_way = count_requests(&requests, RDKafkaApiKey::OffsetFetch) > 0;
            if was_under_way && count_requests(&requests, RDKafkaApiKey::ListOffsets) == 0 {
                // The seek was answered between the first and the second request of the lookup.
                handle.commands.send(WorkerCommand::Close { reply: None }).unwrap();
                return;
            }
            was_under_way = is_under_way;
        }
        handle.commands.send(WorkerCommand::Close { reply: None }).unwrap();
    }
    panic!("the consumer's thread answers no request while it looks up start positions");
}
