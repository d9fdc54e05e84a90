//! Leaders and copies of partitions, as a cluster describes them.

use std::time::Duration;

use rdkafka::{
    ClientConfig,
    consumer::{BaseConsumer, Consumer as _},
};

/// Topic of committed offsets: the leader of its one partition coordinates all groups.
pub const OFFSETS: &str = "__consumer_offsets";
/// Topic of Kafka's transactions: the leader of its one partition coordinates all transactions.
pub const TRANSACTIONS: &str = "__transaction_state";
const TIMEOUT: Duration = Duration::from_secs(2);

/// A partition with its copies. Brokers have the numbers of their `node.id`.
#[derive(Debug, Clone)]
pub struct PartitionView {
    /// Name of the topic and number of the partition.
    pub partition: (String, i32),
    /// Broker that leads the partition; `None`: the partition can be neither read nor written.
    pub leader: Option<usize>,
    /// Brokers that have a copy.
    pub replicas: Vec<usize>,
    /// Brokers whose copy is in sync.
    pub in_sync: Vec<usize>,
}

/// A client that looks at a cluster and joins no group.
pub struct ClusterView(BaseConsumer);

impl ClusterView {
    /// Creates a client of the cluster at these addresses.
    pub fn new(brokers: &str) -> Self {
        ClusterView(ClientConfig::new().set("bootstrap.servers", brokers).create().unwrap())
    }

    /// Returns the partitions of a topic, or of all topics; none while no broker answers.
    pub fn partitions(&self, topic: Option<&str>) -> Vec<PartitionView> {
        let Ok(metadata) = self.0.fetch_metadata(topic, TIMEOUT) else { return Vec::new() };
        let numbers = |ids: &[i32]| ids.iter().map(|id| *id as usize).collect();
        let of_topic = metadata.topics().iter().flat_map(|topic| {
            topic.partitions().iter().map(|partition| PartitionView {
                partition: (topic.name().to_owned(), partition.id()),
                leader: usize::try_from(partition.leader()).ok(),
                replicas: numbers(partition.replicas()),
                in_sync: numbers(partition.isr()),
            })
        });
        of_topic.collect()
    }

    /// Returns the broker that leads a partition.
    pub fn leader(&self, topic: &str, partition: i32) -> Option<usize> {
        let mut partitions = self.partitions(Some(topic)).into_iter();
        partitions.find(|view| view.partition.1 == partition)?.leader
    }

    /// Returns whether every copy of every partition is in sync.
    pub fn is_whole(&self) -> bool {
        let partitions = self.partitions(None);
        !partitions.is_empty() && partitions.iter().all(|view| view.in_sync.len() == view.replicas.len())
    }
}
