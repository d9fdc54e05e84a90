//! Topics and their messages.

use utxo_store::broker::{
    Broker, Message, NewTopic, OutgoingMessage, Producer,
    kafka::{KafkaBroker, KafkaSettings},
};

use crate::{
    case::BenchTopic,
    generator::{Generator, Shape},
    pipeline::OUTCOMES,
};

/// Number of partitions of the outcomes, whatever the partitions of the case.
const OUTCOME_PARTITIONS: i32 = 12;

/// Messages per produce call; librdkafka's own queue takes a hundred thousand.
const MESSAGES_PER_CALL: usize = 50_000;
/// Linger of the producer, ms: batches as under load, since the cost of a fetch depends on them.
const LINGER_MS: &str = "20";

/// Returns a generator of transactions with one input and two outputs, whose parents are not in the topic.
pub fn generator(bench_topic: &BenchTopic) -> Generator {
    Generator::new(Shape::Apart, bench_topic.transactions)
}

/// Creates the topics that a pipeline names.
pub async fn create(bench_topic: &BenchTopic) {
    let new = |name: &str, partitions| NewTopic { name: name.into(), partitions, config: Vec::new() };
    let own = [("utxo.chain", 1), ("utxo.dead-letters", 1), (OUTCOMES, OUTCOME_PARTITIONS)];
    let own = own.map(|(name, partitions)| new(name, partitions));
    let topics = [&[new(&bench_topic.topic, bench_topic.partitions)], &own[..]].concat();
    bench_topic.broker().create_topics(&topics).await.expect("the broker is ours");
}

/// Creates a topic and produces all generated messages.
pub async fn fill(bench_topic: &BenchTopic) {
    create(bench_topic).await;
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
