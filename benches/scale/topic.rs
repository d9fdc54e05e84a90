//! The topics of the bench.

use serde::{Deserialize, Serialize};
use utxo_store::{
    broker::{
        Broker, Message, NewTopic, OutgoingMessage,
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
/// Linger of the producer that fills a topic, ms: the cost of a fetch depends on the size of the batches.
const LINGER_MS: &str = "20";

/// A topic of transactions, and its outcomes in as many partitions.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BenchTopic {
    pub brokers: String,
    pub topic: String,
    pub partitions: i32,
    pub transactions: u64,
}

impl BenchTopic {
    fn settings(&self) -> KafkaSettings {
        KafkaSettings { brokers: self.brokers.clone(), ..wiring::kafka_settings(&Config::default()) }
    }

    pub fn broker(&self) -> KafkaBroker {
        KafkaBroker::new(self.settings()).expect("the defaults are settings")
    }

    /// Returns the generator of the transactions: one input and two outputs, without parents in the topic.
    pub fn generator(&self) -> Generator {
        Generator::new(Shape::Apart, self.transactions)
    }

    /// Creates the topic of transactions.
    pub async fn create(&self) {
        let topic = NewTopic { name: self.topic.clone(), partitions: self.partitions, config: Vec::new() };
        self.broker().create_topics(&[topic]).await.expect("the broker is ours");
    }

    /// Creates the topics that all members share.
    pub async fn create_shared(&self) {
        let new = |name: &str, partitions| NewTopic { name: name.into(), partitions, config: Vec::new() };
        let topics = [new("utxo.chain", 1), new("utxo.dead-letters", 1), new(OUTCOMES, self.partitions)];
        self.broker().create_topics(&topics).await.expect("the broker is ours");
    }

    /// Creates the topic and produces all transactions.
    pub async fn fill(&self) {
        self.create().await;
        let pass_through = [("linger.ms".to_owned(), LINGER_MS.to_owned())].into();
        let broker = KafkaBroker::new(KafkaSettings { pass_through, ..self.settings() }).expect("settings");
        let producer = broker.producer().await.expect("the broker is ours");
        for messages in self.generator().chunks(MESSAGES_PER_CALL) {
            let messages = messages.into_iter().map(|message| self.outgoing(message)).collect();
            producer.produce_all(messages).await.expect("there is room");
        }
    }

    pub fn outgoing(&self, Message { key, payload, .. }: Message) -> OutgoingMessage {
        OutgoingMessage { topic: self.topic.clone(), key, payload, ..OutgoingMessage::default() }
    }
}
