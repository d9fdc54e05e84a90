//! Tens of instances on hundreds of partitions, on the memory broker: what the group asks of the log for each event
//! must not grow with the number of instances and partitions. The load grows with the group, as it would in production.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;
use utxo_store::{
    broker::{
        Broker, BrokerError, CommitFuture, CommittedOffset, Consumer, ConsumerEvent, Message, NewTopic,
        PartitionReader, Producer, TopicIdentity, TopicPartition, memory::MemoryBroker,
    },
    instance::{self, InstanceParts},
    store::StateStore,
};

use crate::harness::{World, WorldSettings, spend};

/// Counts by name.
type Counts = Arc<Mutex<BTreeMap<String, u64>>>;

fn count(counts: &Counts, name: &str, number: usize) {
    *counts.lock().unwrap().entry(name.to_owned()).or_default() += number as u64;
}

/// Counts the requests to a log, and the messages that the log delivers.
struct CountingBroker {
    broker: MemoryBroker,
    counts: Counts,
}

struct CountingConsumer {
    consumer: Box<dyn Consumer>,
    counts: Counts,
}

struct CountingReader {
    reader: Box<dyn PartitionReader>,
    topic: String,
    counts: Counts,
}

#[async_trait]
impl Broker for CountingBroker {
    async fn subscribe(&self, group: &str, topics: &[String]) -> Result<Box<dyn Consumer>, BrokerError> {
        let consumer = self.broker.subscribe(group, topics).await?;
        Ok(Box::new(CountingConsumer { consumer, counts: self.counts.clone() }))
    }

    async fn read(&self, partition: &TopicPartition, offset: u64) -> Result<Box<dyn PartitionReader>, BrokerError> {
        count(&self.counts, &format!("readers of {}", partition.topic), 1);
        let reader = self.broker.read(partition, offset).await?;
        Ok(Box::new(CountingReader { reader, topic: partition.topic.to_string(), counts: self.counts.clone() }))
    }

    async fn producer(&self) -> Result<Arc<dyn Producer>, BrokerError> {
        self.broker.producer().await
    }

    async fn partitions(&self, topic: &str) -> Result<Option<i32>, BrokerError> {
        count(&self.counts, "requests", 1);
        self.broker.partitions(topic).await
    }

    async fn identify(&self, topics: &[String]) -> Result<Vec<Option<TopicIdentity>>, BrokerError> {
        count(&self.counts, "requests", 1);
        self.broker.identify(topics).await
    }

    async fn watermarks(&self, partition: &TopicPartition) -> Result<(u64, u64), BrokerError> {
        count(&self.counts, "looks at watermarks", 1);
        self.broker.watermarks(partition).await
    }

    async fn offsets_at(&self, topic: &str, timestamp_ms: i64) -> Result<Vec<Option<u64>>, BrokerError> {
        self.broker.offsets_at(topic, timestamp_ms).await
    }

    async fn committed(
        &self,
        group: &str,
        partitions: &[TopicPartition],
    ) -> Result<Vec<Option<CommittedOffset>>, BrokerError> {
        count(&self.counts, "looks at commits", 1);
        count(&self.counts, "partitions in looks at commits", partitions.len());
        self.broker.committed(group, partitions).await
    }

    async fn set_committed(
        &self,
        group: &str,
        offsets: &[(TopicPartition, CommittedOffset)],
    ) -> Result<(), BrokerError> {
        self.broker.set_committed(group, offsets).await
    }

    async fn member_count(&self, group: &str) -> Result<usize, BrokerError> {
        self.broker.member_count(group).await
    }

    async fn create_topics(&self, topics: &[NewTopic]) -> Result<(), BrokerError> {
        self.broker.create_topics(topics).await
    }
}

#[async_trait]
impl Consumer for CountingConsumer {
    async fn poll(&mut self) -> Result<ConsumerEvent, BrokerError> {
        let event = self.consumer.poll().await;
        if let Ok(ConsumerEvent::Messages(batch)) = &event {
            count(&self.counts, "messages consumed", batch.messages.len());
        }
        event
    }

    fn commit(&mut self, offsets: &[(TopicPartition, CommittedOffset)]) -> CommitFuture {
        count(&self.counts, "commits", 1);
        self.consumer.commit(offsets)
    }

    async fn seek(&mut self, partition: &TopicPartition, offset: u64) -> Result<u64, BrokerError> {
        self.consumer.seek(partition, offset).await
    }

    fn pause(&mut self, partition: &TopicPartition) -> Result<(), BrokerError> {
        self.consumer.pause(partition)
    }

    fn resume(&mut self, partition: &TopicPartition) -> Result<(), BrokerError> {
        self.consumer.resume(partition)
    }

    fn finish_revocation(&mut self) {
        self.consumer.finish_revocation();
    }

    async fn close(&mut self) -> Result<(), BrokerError> {
        self.consumer.close().await
    }
}

#[async_trait]
impl PartitionReader for CountingReader {
    async fn next(&mut self, wait: Duration) -> Result<Vec<Message>, BrokerError> {
        let messages = self.reader.next(wait).await;
        if let Ok(messages) = &messages {
            count(&self.counts, &format!("messages read of {}", self.topic), messages.len());
        }
        messages
    }

    fn position(&self) -> u64 {
        self.reader.position()
    }

    async fn seek(&mut self, offset: u64) -> Result<(), BrokerError> {
        self.reader.seek(offset).await
    }
}

/// Runs a group with a load in proportion to its instances; returns the counts, and the number of events.
async fn run_group(instances: usize, partitions: i32) -> (BTreeMap<String, u64>, u64) {
    let world = World::with_settings(WorldSettings { partitions, ..WorldSettings::calm() }).await;
    let counts = Counts::default();
    let broker: Arc<dyn Broker> = Arc::new(CountingBroker { broker: world.broker.clone(), counts: counts.clone() });
    let shutdown = CancellationToken::new();
    let mut running = Vec::new();
    for _ in 0..instances {
        let store = StateStore { engine: world.nodes.clone(), ..world.store.clone() };
        let parts = InstanceParts { broker: broker.clone(), ..world.parts(&store) };
        running.push(tokio::spawn(instance::run(world.settings.clone(), parts, shutdown.clone())));
    }
    // A start looks at each partition once. The rest of the run is what counts.
    tokio::time::sleep(Duration::from_secs(5)).await;
    counts.lock().unwrap().clear();
    let mut events = 0;
    for number in 0..instances {
        // Payments in chains over partitions, of which some wait for a parent of another instance.
        let seed = world.seed(number as u8 + 1, 8).await;
        for vout in 0..8 {
            let mut coin = seed.coin(vout);
            for depth in 0..4 {
                let next = spend(&[coin], 1, depth);
                world.validate(&next).await;
                coin = next.coin(0);
                events += 1;
            }
        }
        world.mine(number as u64 + 1, &[]).await;
        events += 2;
    }
    world.until_consumed().await;
    // The members also wait: an idle group must not ask all the time.
    tokio::time::sleep(Duration::from_secs(10)).await;
    shutdown.cancel();
    for instance in running {
        instance.await.unwrap().unwrap();
    }
    let counts = counts.lock().unwrap().clone();
    (counts, events)
}

/// Counts that grow with the group: each instance reads all outcomes, 32 bytes for each transaction (O-142), and one
/// request of committed offsets names all partitions.
const GROWS: [&str; 2] = ["messages read of outcomes", "partitions in looks at commits"];

/// Protects: no other count for each event grows with the size of the group. A count that did would make a group of 32
/// instances spend most of its time on itself.
#[tokio::test(start_paused = true)]
async fn the_work_for_an_event_does_not_grow_with_the_group() {
    let mut table = BTreeMap::<String, Vec<f64>>::new();
    let groups = [(2, 16), (8, 64), (32, 256)];
    for (number, (instances, partitions)) in groups.into_iter().enumerate() {
        let (counts, events) = run_group(instances, partitions).await;
        for (name, count) in counts {
            table.entry(name).or_insert_with(|| vec![0.0; groups.len()])[number] = count as f64 / events as f64;
        }
    }
    let lines: Vec<String> = table.iter().map(|(name, row)| format!("{name:<32} {row:8.2?}")).collect();
    eprintln!("for each event, in groups of {groups:?} (instances, partitions):\n{}", lines.join("\n"));
    for (name, row) in table.iter().filter(|(name, _)| !GROWS.contains(&name.as_str())) {
        assert!(row[2] <= 2.0 * row[0].max(row[1]) + 0.5, "{name} grows: {row:?}\n{}", lines.join("\n"));
    }
}
