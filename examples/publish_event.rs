//! Publishes an event: the topic, the key and the partition follow from the event.
//!
//! `cargo run --example publish_event -- HOST:PORT EVENT.json` publishes one event in the JSON form of `schemas/`.
//!
//! Without arguments the example publishes a transaction to a log in memory.

use std::{env, error::Error, fs, sync::Arc};

use utxo_store::{
    Broker, Config, Event, EventPublisher, MemoryBroker, PartialOutput, PartialTxEvent, Txid, create_topics, from_json,
    open_broker,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut config = Config::default();
    let arguments: Vec<String> = env::args().skip(1).collect();
    match &arguments[..] {
        [] => {
            let broker: Arc<dyn Broker> = Arc::new(MemoryBroker::default());
            create_topics(broker.as_ref(), &config.kafka.topics, 4).await?;
            let outputs = vec![PartialOutput { vout: 0, satoshis: 5_000, script: &[0x51] }];
            let event = PartialTxEvent { txid: Txid([7; 32]), coinbase: false, height: 100, outputs };
            publish(broker.as_ref(), &config, &Event::Seeded(event)).await
        }
        [brokers, file] => {
            config.kafka.brokers = brokers.parse()?;
            let encoded = from_json(fs::read_to_string(file)?.trim())?;
            publish(open_broker(&config).await?.as_ref(), &config, &Event::decode(&encoded)?).await
        }
        _ => Err("give HOST:PORT and a file, or nothing".into()),
    }
}

async fn publish(broker: &dyn Broker, config: &Config, event: &Event<'_>) -> Result<(), Box<dyn Error>> {
    let publisher = EventPublisher::open(broker, config.kafka.topics.clone()).await?;
    let published = publisher.publish(event).await?;
    println!("published: {} partition {} offset {}", published.topic, published.partition, published.offset);
    Ok(())
}
