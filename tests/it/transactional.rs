//! Producers that write in transactions, on a real Apache Kafka: the marker that ends a transaction has an offset and
//! is no message.

use std::time::Duration;

use rdkafka::{
    ClientConfig,
    producer::{BaseProducer, BaseRecord, Producer as _},
};
use utxo_store::{
    broker::{
        Broker, NewTopic, PartitionReader, TopicPartition,
        kafka::{KafkaBroker, KafkaSettings},
        partitioner::partition_of,
    },
    event::{Event, PartialOutput, PartialTxEvent, Validated},
    tx::Txid,
};

use crate::{
    harness::{Coin, Made, spend},
    kafka_server::KafkaServer,
    real_kafka::plain,
    run::{Bench, PARTITIONS, block_on, until},
};

const WAIT: Duration = Duration::from_secs(30);

fn producer(brokers: &str, id: &str) -> BaseProducer {
    let producer: BaseProducer =
        ClientConfig::new().set("bootstrap.servers", brokers).set("transactional.id", id).create().unwrap();
    producer.init_transactions(WAIT).unwrap();
    producer
}

/// Produces messages, (partition, key, payload), in one transaction that is committed or aborted.
fn produce_in_one_transaction(
    producer: &BaseProducer,
    topic: &str,
    messages: &[(i32, Vec<u8>, Vec<u8>)],
    commit: bool,
) {
    producer.begin_transaction().unwrap();
    for (partition, key, payload) in messages {
        producer.send(BaseRecord::to(topic).partition(*partition).key(key).payload(payload)).unwrap();
    }
    if commit {
        producer.commit_transaction(WAIT).unwrap();
    } else {
        producer.flush(WAIT).unwrap();
        producer.abort_transaction(WAIT).unwrap();
    }
}

fn ends(broker: &KafkaBroker, topic: &str, partitions: i32) -> Vec<u64> {
    let at = |partition| TopicPartition { topic: topic.into(), partition };
    block_on(async {
        let mut ends = Vec::new();
        for partition in 0..partitions {
            ends.push(broker.watermarks(&at(partition)).await.unwrap().1);
        }
        ends
    })
}

/// Returns the number of messages before `end` and the reader's position then, within a time limit.
async fn read_up_to(reader: &mut dyn PartitionReader, end: u64) -> (usize, u64) {
    let mut messages = 0;
    for _ in 0..100 {
        messages += reader.next(Duration::from_millis(200)).await.unwrap().len();
        if reader.position() >= end {
            break;
        }
    }
    (messages, reader.position())
}

/// A reader that reads "to the end" must reach the end.
#[test]
fn a_reader_passes_a_transaction_marker_at_the_end() {
    let Some(server) = KafkaServer::shared() else { return };
    let broker = KafkaBroker::new(KafkaSettings::new(server.bootstrap_servers())).unwrap();
    let topic = NewTopic { name: "transactional".into(), partitions: 1, config: Vec::new() };
    block_on(async { broker.create_topics(&[topic]).await.unwrap() });
    let producer = producer(server.bootstrap_servers(), "marks");
    let message = (0, b"k".to_vec(), b"v".to_vec());
    produce_in_one_transaction(&producer, "transactional", std::slice::from_ref(&message), true);

    // The partition holds the message and the marker, which the broker writes asynchronously.
    until("the mark is there", || ends(&broker, "transactional", 1) == [2]);
    let partition = TopicPartition { topic: "transactional".into(), partition: 0 };
    block_on(async {
        let mut readers = Vec::new();
        for start in [0, 1] {
            let mut reader = broker.read(&partition, start).await.unwrap();
            assert_eq!(read_up_to(reader.as_mut(), 2).await, (1 - start as usize, 2));
            readers.push(reader);
        }
        // The second of two more transactions is aborted: its message does not count.
        produce_in_one_transaction(&producer, "transactional", std::slice::from_ref(&message), true);
        produce_in_one_transaction(&producer, "transactional", &[message], false);
        for mut reader in readers {
            assert_eq!(read_up_to(reader.as_mut(), 6).await, (1, 6), "a reader that was opened before");
        }
    });
}

pub fn seeded(tag: u8) -> (Coin, (i32, Vec<u8>, Vec<u8>)) {
    let txid = Txid([tag; 32]);
    let outputs = vec![PartialOutput { vout: 0, satoshis: 1_000, script: &[0x51] }];
    let payload = Event::Seeded(PartialTxEvent { txid, coinbase: false, height: 1, outputs }).encode();
    let outpoint = utxo_store::tx::Outpoint { txid, vout: 0 };
    (Coin { outpoint, satoshis: 1_000, script: vec![0x51] }, keyed(txid, payload))
}

fn keyed(txid: Txid, payload: Vec<u8>) -> (i32, Vec<u8>, Vec<u8>) {
    (partition_of(&txid.0, PARTITIONS).unwrap(), txid.0.to_vec(), payload)
}

fn validated(made: &Made) -> (i32, Vec<u8>, Vec<u8>) {
    keyed(made.txid, Validated { tx: &made.extended, height: 200, locked: false }.encode())
}

/// The lag becomes 0, a parent is proven missing, and a rebuild ends, though every partition ends in a marker.
#[test]
fn partitions_that_end_in_a_marker_are_read_to_their_end() {
    let Some(server) = KafkaServer::shared() else { return };
    let bench = Bench::on(server.bootstrap_servers());
    bench.create_topics();
    let txs = bench.topic("validated-txs");
    let broker = bench.broker();
    let producer = producer(server.bootstrap_servers(), "validator");
    let (coins, seeds): (Vec<_>, Vec<_>) = (1..=20).map(seeded).unzip();
    produce_in_one_transaction(&producer, &txs, &seeds, true);
    until("both marks are there", || ends(&broker, &txs, PARTITIONS).iter().sum::<u64>() == 22);

    let mut instance = bench.start();
    let no_lag = |metrics: &str| {
        (0..PARTITIONS).all(|partition| {
            metrics.contains(&format!("utxo_lag_messages{{partition=\"{partition}\",topic=\"{txs}\"}} 0"))
        })
    };
    until("everything is committed, the marks too", || bench.committed() == 22);
    until("there is no lag", || no_lag(&instance.get("/metrics")));

    // The parent of the child was never produced; in both partitions only markers follow, also one of an aborted
    // transaction.
    let child = spend(&[spend(&coins[..1], 1, 1).coin(0)], 1, 2);
    produce_in_one_transaction(&producer, &txs, &[validated(&child)], true);
    produce_in_one_transaction(&producer, &txs, &[validated(&spend(&coins[1..2], 1, 1))], false);
    let all = || ends(&broker, &txs, PARTITIONS).iter().sum::<u64>();
    until("all marks are there", || all() == 26);
    until("its parent is proven missing", || {
        (0..PARTITIONS).map(|partition| bench.messages("dead-letters", partition).len()).sum::<usize>() == 1
    });
    until("everything is committed again", || bench.committed() == all() && no_lag(&instance.get("/metrics")));
    instance.signal("TERM");
    assert_eq!(instance.wait().code(), Some(0));

    // The restarted instance begins at a marker, or behind it.
    let mut instance = bench.start();
    until("there is no lag at once", || no_lag(&instance.get("/metrics")));
    produce_in_one_transaction(&producer, &txs, &[validated(&spend(&coins[2..3], 1, 1))], true);
    until("it goes on", || bench.committed() == 28);
    instance.signal("TERM");
    assert_eq!(instance.wait().code(), Some(0));

    let digest = |mut command: std::process::Command| {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let printed: serde_json::Value =
            serde_json::from_str(String::from_utf8_lossy(&output.stdout).lines().last().unwrap()).unwrap();
        printed["digest"].clone()
    };
    let rebuilt = format!("fjall://{}", bench.path("rebuilt").display());
    let again = digest(bench.command(&["replay", "--rebuild", "--json", "--store", &rebuilt], &[]));
    assert_eq!(again, digest(plain(&["verify", "--store", &bench.store_url(), "--json"])));
}
