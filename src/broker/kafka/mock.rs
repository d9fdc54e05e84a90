//! librdkafka's own mock broker, for the demo and quick tests. A test on the mock is no evidence for Kafka: the mock
//! has no compaction, no lookup by timestamp and no administration, and silently keeps only about 5 MiB per partition.

use rdkafka::{
    ClientConfig,
    bindings::{rd_kafka_handle_mock_cluster, rd_kafka_mock_group_initial_rebalance_delay_ms},
    producer::{BaseProducer, Producer as _},
};

use super::errors::translate;
use crate::broker::{Broker, BrokerError, BrokerErrorKind, NewTopic, TopicPartition};

/// A mock cluster of one broker on a loopback port, which ends when the value is dropped. Stop the clients first: a
/// client's flush without a cluster waits for its timeout.
pub struct MockCluster {
    /// The client that owns the cluster, and ends it when dropped.
    #[cfg_attr(not(test), expect(dead_code, reason = "only unit tests ask the cluster"))]
    owner: BaseProducer,
    bootstrap_servers: String,
}

impl MockCluster {
    /// Starts a cluster with `topics`. Later topics are impossible: the cluster answers no administration.
    pub fn start(topics: &[NewTopic]) -> Result<Self, BrokerError> {
        let failed = |error| translate("start mock cluster", "test.mock.num.brokers", &error);
        let owner: BaseProducer = ClientConfig::new().set("test.mock.num.brokers", "1").create().map_err(failed)?;
        let bootstrap_servers = {
            let cluster = owner.client().mock_cluster().ok_or_else(|| {
                BrokerError::new(BrokerErrorKind::Fatal, "start mock cluster", "the client has no cluster")
            })?;
            for topic in topics {
                cluster.create_topic(&topic.name, topic.partitions, 1).map_err(failed)?;
            }
            cluster.bootstrap_servers()
        };
        // SAFETY: the owner and its cluster outlive both calls; the second call takes the cluster's own lock. rdkafka
        // has no safe wrapper. Without the call every group would wait 3 s for its first member, and for ever with a
        // session timeout below 3 s.
        unsafe {
            let cluster = rd_kafka_handle_mock_cluster(owner.client().native_ptr());
            rd_kafka_mock_group_initial_rebalance_delay_ms(cluster, 0);
        }
        Ok(MockCluster { owner, bootstrap_servers })
    }

    /// Address of the broker, `host:port`.
    pub fn bootstrap_servers(&self) -> &str {
        &self.bootstrap_servers
    }

    /// Sets the time that every answer takes from now on.
    #[cfg(test)]
    pub(super) fn set_round_trip(&self, round_trip: std::time::Duration) {
        let cluster = self.owner.client().mock_cluster().expect("it was started with one");
        cluster.broker_round_trip_time(1, round_trip).expect("it has one broker");
    }

    /// API keys of the requests since the last call. The first call starts the recording.
    #[cfg(test)]
    pub(super) fn requests(&self) -> Vec<i16> {
        use rdkafka::bindings;
        // SAFETY: the owner and its cluster outlive all calls, each of which takes the cluster's lock. The array of
        // `count` requests belongs to this function until it is destroyed.
        unsafe {
            let cluster = rd_kafka_handle_mock_cluster(self.owner.client().native_ptr());
            let mut count = 0;
            let requests = bindings::rd_kafka_mock_get_requests(cluster, &mut count);
            let keys = (0..count).map(|at| bindings::rd_kafka_mock_request_api_key(*requests.add(at))).collect();
            bindings::rd_kafka_mock_request_destroy_array(requests, count);
            bindings::rd_kafka_mock_clear_requests(cluster);
            bindings::rd_kafka_mock_start_request_tracking(cluster);
            keys
        }
    }

    /// Fails unless a topic holds all of the `sent` messages: the mock silently drops the oldest messages of a large
    /// partition.
    pub async fn check_retention(&self, broker: &dyn Broker, topic: &str, sent: u64) -> Result<(), BrokerError> {
        let partitions = broker.partitions(topic).await?;
        let partitions = partitions.ok_or_else(|| BrokerError::unknown_topic("check mock cluster", topic))?;
        let mut held = 0;
        for partition in 0..partitions {
            let at = TopicPartition { topic: topic.into(), partition };
            let (low, high) = broker.watermarks(&at).await?;
            if low > 0 {
                let message =
                    format!("{at}: the mock cluster dropped the first {low} messages: it is too small for this");
                return Err(BrokerError::new(BrokerErrorKind::Fatal, "check mock cluster", message));
            }
            held += high;
        }
        if held != sent {
            let message = format!("{topic}: the mock cluster holds {held} of {sent} messages");
            return Err(BrokerError::new(BrokerErrorKind::Fatal, "check mock cluster", message));
        }
        Ok(())
    }
}
