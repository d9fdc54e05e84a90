use std::time::Duration;

use super::*;
use crate::broker::conformance;

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
