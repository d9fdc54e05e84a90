//! The outcomes over HTTP, from a real Apache Kafka.

use std::{sync::Arc, time::Duration};

use reqwest::Response;
use utxo_store::{
    broker::{Broker, OutgoingMessage},
    event::{Event, OutcomeEvent, OutcomeKind, OutcomeSource},
    tx::Txid,
};

use crate::{api::Api, harness::World, kafka_server::KafkaServer, recreated_kafka_topics::recreate, run::Bench};

async fn publish(bench: &Bench, partition: i32, tag: u8) {
    let kind = OutcomeKind::Accepted;
    let outcome = OutcomeEvent { txid: Txid([tag; 32]), source: OutcomeSource::Chain { offset: 0 }, kind };
    let payload = Event::Outcome(outcome).encode().into();
    let message =
        OutgoingMessage { topic: bench.topic("outcomes"), partition: Some(partition), payload, ..Default::default() };
    bench.broker().producer().await.unwrap().produce(message).await.unwrap();
}

async fn follow(api: &Api) -> Response {
    let answer = api.client.get(format!("http://{}/v1/outcomes", api.address)).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    answer
}

/// Reads a stream until the stream has this text.
async fn read_until(stream: &mut Response, text: &str) {
    let mut read = String::new();
    while !read.contains(text) {
        let piece = tokio::time::timeout(Duration::from_secs(60), stream.chunk()).await;
        let piece = piece.unwrap_or_else(|_| panic!("no {text} within a minute: {read}")).unwrap();
        read += std::str::from_utf8(&piece.unwrap_or_else(|| panic!("no {text}: {read}"))).unwrap();
    }
}

/// The topic is created again with other partitions, and with as many as before.
#[test]
fn a_recreated_topic_of_outcomes_ends_its_streams_and_is_followed_anew() {
    let Some(server) = KafkaServer::shared() else { return };
    let bench = Bench::on(server.bootstrap_servers());
    bench.create_topics();
    let topic = bench.topic("outcomes");
    // The server runs on, while topics are created again.
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let api = runtime.block_on(async {
        let broker: Arc<dyn Broker> = Arc::new(bench.broker());
        Api::over(World::new().await.store.clone(), Some(broker), &[("KAFKA__TOPICS__OUTCOMES", topic.as_str())]).await
    });
    for (round, partitions) in [(1, 3), (2, 3)] {
        let mut stream = runtime.block_on(async {
            let mut stream = follow(&api).await;
            publish(&bench, 0, round).await;
            read_until(&mut stream, &Txid([round; 32]).to_string()).await;
            stream
        });
        recreate(&bench, "outcomes", partitions, &[]);
        runtime.block_on(read_until(&mut stream, "event: end"));
    }
    runtime.block_on(async {
        let mut again = follow(&api).await;
        publish(&bench, 2, 9).await;
        read_until(&mut again, &Txid([9; 32]).to_string()).await;
    });
}
