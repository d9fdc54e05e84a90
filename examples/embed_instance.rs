//! Runs an instance in this process, on a log and a store in memory, until a transaction and its spender are applied.
//!
//! `cargo run --example embed_instance`

use std::{error::Error, sync::Arc, time::Duration};

use utxo_store::{
    Broker, Config, Event, EventPublisher, Instance, MemoryBroker, Outpoint, PartialOutput, PartialTxEvent,
    PreviousOutput, SpendStatus, Store, TransactionBuilder, Txid, Validated, create_topics,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let topics = Config::default().kafka.topics;
    let broker: Arc<dyn Broker> = Arc::new(MemoryBroker::default());
    create_topics(broker.as_ref(), &topics, 4).await?;

    let instance = Instance::builder()
        .store_url("memory://".parse()?)
        .broker(broker.clone())
        .group("example")
        .topics(topics.clone())
        .start();
    if !instance.wait_until_ready().await {
        instance.join().await?;
        return Err("the instance has ended".into());
    }
    println!("instance: ready");

    // Outputs of a transaction whose inputs nobody knows, such as one of before the log began.
    let publisher = EventPublisher::open(broker.as_ref(), topics).await?;
    let parent = Outpoint { txid: Txid([7; 32]), vout: 0 };
    let (satoshis, script) = (5_000, [0x51]);
    let outputs = vec![PartialOutput { vout: parent.vout, satoshis, script: &script }];
    let seeded = PartialTxEvent { txid: parent.txid, coinbase: false, height: 100, outputs };
    publisher.publish(&Event::Seeded(seeded)).await?;

    // A transaction in extended format: each input carries its previous output.
    let previous = PreviousOutput { satoshis, script: &script };
    let tx = TransactionBuilder::default().input(parent, b"", 0, Some(previous)).output(4_900, &[0x52]).extended();
    let published = publisher.publish(&Event::Validated(Validated { tx: &tx, height: 101, locked: false })).await?;
    println!("published: {} partition {} offset {}", published.topic, published.partition, published.offset);

    let store = instance.store().await.ok_or("the instance has ended")?;
    println!("output {parent}: {}", wait_until_spent(&store, parent).await?);
    let report = instance.shut_down().await?;
    println!("instance: stopped, {} events completed", report.completed);
    Ok(())
}

/// Reads the output until a transaction spends it.
async fn wait_until_spent(store: &Store, outpoint: Outpoint) -> Result<SpendStatus, Box<dyn Error>> {
    loop {
        let status = store.output(outpoint, None).await?.status;
        if matches!(status, SpendStatus::Spent(_)) {
            return Ok(status);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
