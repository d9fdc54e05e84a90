use std::time::Duration;

use super::*;
use crate::broker::{Produce, conformance};

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
    conformance::run(Arc::new(broker), "").await;
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
