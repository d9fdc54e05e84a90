//! Topics and their messages.

use serde::{Deserialize, Serialize};
use utxo_store::{
    broker::{
        Broker, Message, NewTopic, OutgoingMessage, Producer,
        kafka::{KafkaBroker, KafkaSettings},
    },
    config::Config,
    embed::wiring,
};

use crate::{
    generator::{Generator, Shape},
    pipeline::OUTCOMES,
};

/// Messages per produce call; librdkafka's own queue takes a hundred thousand.
const MESSAGES_PER_CALL: usize = 50_000;
/// Linger of the producer, ms: batches as under load, since the cost of a fetch depends on them.
const LINGER_MS: &str = "20";

/// A topic with its transactions, as described to a child process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BenchTopic {
    pub brokers: String,
    pub topic: String,
    pub partitions: i32,
    pub transactions: u64,
}

impl BenchTopic {
    /// Returns the arguments of the child; [`parse`](Self::parse) reads them.
    pub fn arguments(&self) -> [String; 4] {
        [self.brokers.clone(), self.topic.clone(), self.partitions.to_string(), self.transactions.to_string()]
    }

    pub fn parse(arguments: &[String]) -> Option<BenchTopic> {
        let [brokers, topic, partitions, transactions] = arguments else { return None };
        Some(BenchTopic {
            brokers: brokers.clone(),
            topic: topic.clone(),
            partitions: partitions.parse().ok()?,
            transactions: transactions.parse().ok()?,
        })
    }

    /// Number of transactions before the clock starts. Memory that a long-running process would have touched already
    /// (transactions in flight, librdkafka's buffers) is touched by then. The same number is left when the clock stops.
    pub fn warm_up(&self) -> u64 {
        self.transactions / 4
    }

    /// Returns the default settings of the configuration.
    pub fn settings(&self) -> KafkaSettings {
        KafkaSettings { brokers: self.brokers.clone(), ..wiring::kafka_settings(&Config::default()) }
    }

    pub fn broker(&self) -> KafkaBroker {
        KafkaBroker::new(self.settings()).expect("the defaults are settings")
    }
}

/// Returns a generator of transactions with one input and two outputs, whose parents are not in the topic.
pub fn generator(bench_topic: &BenchTopic) -> Generator {
    Generator::new(Shape::Apart, bench_topic.transactions)
}

/// Creates the topics that a pipeline names; those that exist already stay.
pub async fn create(bench_topic: &BenchTopic, outcome_partitions: i32) {
    let new = |name: &str, partitions| NewTopic { name: name.into(), partitions, config: Vec::new() };
    let own = [("utxo.chain", 1), ("utxo.dead-letters", 1), (OUTCOMES, outcome_partitions)];
    let own = own.map(|(name, partitions)| new(name, partitions));
    let topics = [&[new(&bench_topic.topic, bench_topic.partitions)], &own[..]].concat();
    bench_topic.broker().create_topics(&topics).await.expect("the broker is ours");
}

/// Creates the topics and produces all generated messages.
pub async fn fill(bench_topic: &BenchTopic, outcome_partitions: i32) {
    create(bench_topic, outcome_partitions).await;
    let pass_through = [("linger.ms".to_owned(), LINGER_MS.to_owned())].into();
    let broker = KafkaBroker::new(KafkaSettings { pass_through, ..bench_topic.settings() }).expect("settings");
    produce_generated(bench_topic, broker.producer().await.expect("the broker is ours").as_ref()).await;
}

/// Produces all generated messages of a topic.
pub async fn produce_generated(bench_topic: &BenchTopic, producer: &dyn Producer) {
    for messages in generator(bench_topic).chunks(MESSAGES_PER_CALL) {
        let messages = messages.into_iter().map(|message| produce(&bench_topic.topic, message)).collect();
        producer.produce_all(messages).await.expect("there is room");
    }
}

pub fn produce(topic: &str, Message { key, payload, .. }: Message) -> OutgoingMessage {
    OutgoingMessage { topic: topic.into(), key, payload, ..OutgoingMessage::default() }
}
