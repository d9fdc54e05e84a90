//! Instances that another program embeds through the public interface.

use std::{sync::Arc, time::Duration};

use utxo_store::{
    Broker, Config, ControlAnswer, Event, EventPublisher, Instance, MemoryBroker, Outpoint, PartialOutput,
    PartialTxEvent, SpendStatus, Txid, create_topics,
};

const PATIENCE: Duration = Duration::from_secs(60);

async fn start() -> (Instance, Arc<dyn Broker>) {
    let broker: Arc<dyn Broker> = Arc::new(MemoryBroker::default());
    create_topics(broker.as_ref(), &Config::default().kafka.topics, 2).await.unwrap();
    let instance = Instance::builder().store_url("memory://".parse().unwrap()).broker(broker.clone()).start();
    (instance, broker)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_has_ended_is_neither_ready_nor_live() {
    let (instance, _broker) = start().await;
    assert!(instance.wait_until_ready().await);
    assert!(instance.liveness().ok && instance.metrics().unwrap().contains("# HELP"));
    instance.check_store(PATIENCE).await.unwrap();
    let meta = instance.store().await.unwrap().meta().await.unwrap().unwrap();
    assert_eq!(meta.health_checks, 1);
    instance.stopper().stop();
    let ended = async {
        while !instance.liveness().reasons.contains_key("ended") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, ended).await.unwrap();
    assert!(!instance.liveness().ok);
    assert!(!instance.readiness().ok, "{:?}", instance.readiness());
    assert!(!instance.wait_until_ready().await);
    let error = instance.check_store(PATIENCE).await.unwrap_err().to_string();
    assert!(error.starts_with("cannot write the meta record of the store: "), "{error}");
    instance.join().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_stops_the_instance_that_another_task_joins() {
    let (instance, broker) = start().await;
    let publisher = EventPublisher::open(broker.as_ref(), Config::default().kafka.topics).await.unwrap();
    let txid = Txid([7; 32]);
    let outputs = vec![PartialOutput { vout: 0, satoshis: 5_000, script: &[0x51] }];
    let seeded = Event::Seeded(PartialTxEvent { txid, coinbase: false, height: 100, outputs });
    publisher.publish(&seeded).await.unwrap();
    let store = instance.store().await.unwrap();
    let stopper = instance.stopper();
    let stopping = tokio::spawn(async move {
        while store.output(Outpoint { txid, vout: 0 }, None).await.unwrap().status != SpendStatus::Unspent {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // The store of a running instance stays open.
        store.clone().close().await.unwrap();
        assert_eq!(store.output(Outpoint { txid, vout: 0 }, None).await.unwrap().status, SpendStatus::Unspent);
        stopper.stop();
    });
    let report = tokio::time::timeout(PATIENCE, instance.join()).await.unwrap().unwrap();
    stopping.await.unwrap();
    assert_eq!(report.completed, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_configuration_that_a_program_has_changed_is_checked_before_the_start() {
    let mut config = Config::default();
    config.store.url = "aerospike://127.0.0.1:1/test".parse().unwrap();
    config.kafka.group.clear();
    let instance = Instance::builder().config(config).broker(Arc::new(MemoryBroker::default())).start();
    let error = tokio::time::timeout(PATIENCE, instance.join()).await.unwrap().unwrap_err().to_string();
    let lines: Vec<&str> = error.lines().collect();
    assert_eq!(lines[0], "kafka.group must not be empty (set by the program)");
    assert!(lines[1].starts_with("store.url is a store that bounds its records"), "{error}");
    assert_eq!(lines.len(), 2, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_pauses_and_resumes_a_partition() {
    let (instance, broker) = start().await;
    assert!(instance.wait_until_ready().await);
    for partition in 0..2 {
        assert!(matches!(instance.pause(partition).await, ControlAnswer::Done(_)));
        assert!(matches!(instance.retry(partition).await, ControlAnswer::Refused(_)), "nothing is halted");
    }
    assert!(matches!(instance.pause(2).await, ControlAnswer::NotHeld(_)));
    // A ready instance may not have the chain yet.
    let refused = async {
        loop {
            match instance.retry_chain().await {
                ControlAnswer::NotHeld(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                answer => break answer,
            }
        }
    };
    let refused = tokio::time::timeout(PATIENCE, refused).await.unwrap();
    assert!(matches!(refused, ControlAnswer::Refused(_)), "{refused:?}");
    let publisher = EventPublisher::open(broker.as_ref(), Config::default().kafka.topics).await.unwrap();
    let outputs = vec![PartialOutput { vout: 0, satoshis: 5_000, script: &[0x51] }];
    let txid = Txid([8; 32]);
    publisher.publish(&Event::Seeded(PartialTxEvent { txid, coinbase: false, height: 100, outputs })).await.unwrap();
    let store = instance.store().await.unwrap();
    let status = async || store.output(Outpoint { txid, vout: 0 }, None).await.unwrap().status;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_ne!(status().await, SpendStatus::Unspent);
    for partition in 0..2 {
        assert!(matches!(instance.resume(partition).await, ControlAnswer::Done(_)));
    }
    let stored = async {
        while status().await != SpendStatus::Unspent {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, stored).await.unwrap();
    instance.shut_down().await.unwrap();
}
