//! Reads an output from a store.
//!
//! `cargo run --example read_output -- fjall:///var/lib/utxo-store TXID:VOUT`
//!
//! Without arguments the example makes a small store in a temporary folder, and reads that store.

use std::{env, error::Error, sync::Arc};

use utxo_store::{
    Broker, Config, Event, EventPublisher, Instance, MemoryBroker, Outpoint, PartialOutput, PartialTxEvent, Store,
    Txid, create_topics,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match &arguments[..] {
        [] => {
            let folder = tempfile::tempdir()?;
            let url = format!("fjall://{}", folder.path().display());
            let outpoint = Outpoint { txid: Txid([7; 32]), vout: 0 };
            make_store(&url, outpoint).await?;
            print_output(&url, outpoint).await
        }
        [url, outpoint] => print_output(url, outpoint.parse()?).await,
        _ => Err("give the URL of a store and TXID:VOUT, or nothing".into()),
    }
}

async fn print_output(url: &str, outpoint: Outpoint) -> Result<(), Box<dyn Error>> {
    let store = Store::open(url).await?;
    let meta = store.meta().await?.ok_or("the store has no meta record")?;
    println!("store of network {}, {} slots a page", meta.network, meta.utxo_batch_size);
    let output = store.output(outpoint, None).await?;
    println!("output {outpoint}: {} ({})", output.status.code(), output.status);
    if let Some(spender) = output.spender {
        println!("spent by input {} of {}", spender.input, spender.txid);
    }
    store.close().await?;
    Ok(())
}

/// Makes a store with one unspent output.
async fn make_store(url: &str, outpoint: Outpoint) -> Result<(), Box<dyn Error>> {
    let topics = Config::default().kafka.topics;
    let broker: Arc<dyn Broker> = Arc::new(MemoryBroker::default());
    create_topics(broker.as_ref(), &topics, 1).await?;
    let publisher = EventPublisher::open(broker.as_ref(), topics).await?;
    let outputs = vec![PartialOutput { vout: outpoint.vout, satoshis: 5_000, script: &[0x51] }];
    let seeded = PartialTxEvent { txid: outpoint.txid, coinbase: false, height: 100, outputs };
    publisher.publish(&Event::Seeded(seeded)).await?;
    let instance = Instance::builder().store_url(url.parse()?).broker(broker).start();
    let store = instance.store().await.ok_or("the instance has ended")?;
    while store.transaction(outpoint.txid).await?.is_none() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    instance.shut_down().await?;
    Ok(())
}
