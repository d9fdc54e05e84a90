//! The broker conformance suite on a real Apache Kafka.

use std::{sync::Arc, time::Duration};

use utxo_store::broker::{
    conformance,
    kafka::{AssignmentStrategy, GroupProtocol, KafkaBroker, KafkaSettings},
};

use crate::kafka_server::KafkaServer;

fn settings(bootstrap: &str) -> KafkaSettings {
    KafkaSettings {
        session_timeout: Duration::from_secs(6),
        heartbeat_interval: Duration::from_millis(300),
        max_poll_interval: Duration::from_secs(60),
        fetch_min_bytes: 1,
        fetch_wait_max: Duration::from_millis(20),
        revocation_timeout: Duration::from_secs(20),
        ..KafkaSettings::new(bootstrap)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kafka_conforms() {
    let Some(server) = KafkaServer::shared() else { return };
    let broker = KafkaBroker::new(settings(server.bootstrap_servers())).unwrap();
    conformance::run(Arc::new(broker), "cooperative-").await;
    let eager = KafkaSettings { assignment: AssignmentStrategy::Range, ..settings(server.bootstrap_servers()) };
    conformance::run_eager(Arc::new(KafkaBroker::new(eager).unwrap()), "eager-").await;
    let consumer = KafkaSettings { group_protocol: GroupProtocol::Consumer, ..settings(server.bootstrap_servers()) };
    conformance::run(Arc::new(KafkaBroker::new(consumer).unwrap()), "consumer-").await;
}
