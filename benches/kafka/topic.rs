//! Topics, and what is in them.

use utxo_store::broker::{
    Broker, Message, NewTopic, Produce, Producer,
    kafka::{KafkaBroker, KafkaSettings},
};

use crate::{
    case::Place,
    generator::{Generator, Shape},
};

/// Produced at once; librdkafka's own queue takes a hundred thousand.
const AT_ONCE: usize = 50_000;
/// In batches as a producer under load sends them: what a fetch costs depends on them.
const LINGER_MS: &str = "20";

/// Transactions of one input and two outputs, no parent of which is in the topic.
pub fn generator(place: &Place) -> Generator {
    Generator::new(Shape::Apart, place.transactions)
}

/// Creates the topics that a pipeline names.
pub async fn create(place: &Place) {
    let new = |name: &str, partitions| NewTopic { name: name.into(), partitions, config: Vec::new() };
    let topics = [new(&place.topic, place.partitions), new("utxo.chain", 1), new("utxo.dead-letters", 1)];
    place.broker().create_topics(&topics).await.expect("the broker is ours");
}

/// Creates a topic with all that is generated for it.
pub async fn fill(place: &Place) {
    create(place).await;
    let pass_through = [("linger.ms".to_owned(), LINGER_MS.to_owned())].into();
    let broker = KafkaBroker::new(KafkaSettings { pass_through, ..place.settings() }).expect("settings");
    into_log(place, broker.producer().await.expect("the broker is ours").as_ref()).await;
}

/// Produces all that is generated for a topic.
pub async fn into_log(place: &Place, producer: &dyn Producer) {
    for messages in generator(place).chunks(AT_ONCE) {
        let messages = messages.into_iter().map(|message| produce(&place.topic, message)).collect();
        producer.produce_all(messages).await.expect("there is room");
    }
}

pub fn produce(topic: &str, Message { key, payload, .. }: Message) -> Produce {
    Produce { topic: topic.into(), key, payload, ..Produce::default() }
}
