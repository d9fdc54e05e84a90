//! The API over the log of a real Apache Kafka.

use std::{sync::Arc, time::Duration};

use reqwest::{Method, Response};
use serde_json::json;
use utxo_store::{
    broker::{Broker, OutgoingMessage},
    event::{Event, OutcomeEvent, OutcomeKind, OutcomeSource},
    tx::Txid,
};

use crate::{
    api::Api,
    harness::{World, spend},
    kafka_server::KafkaServer,
    recreated_kafka_topics::recreate,
    run::{Bench, until},
};

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

/// A route that needs the log, with its body and the status of its answer while the log can be reached.
type Route = (Method, String, Option<(&'static str, Vec<u8>)>, u16);

/// Protects: without a broker, submissions, commands and histories are answered with 503, and the store still answers.
/// A stream of outcomes that is opened meanwhile goes on once the broker is back, and the same server answers as
/// before.
#[test]
fn a_killed_broker_is_answered_503_and_used_again() {
    let Some(mut server) = KafkaServer::own() else { return };
    let bench = Bench::on(server.bootstrap_servers());
    bench.create_topics();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let topics = ["validated-txs", "block-mined", "reorgs", "chain", "decisions", "outcomes", "dead-letters"];
    let settings = topics
        .map(|name| (format!("KAFKA__TOPICS__{}", name.to_ascii_uppercase().replace('-', "_")), bench.topic(name)));
    let mut http: Vec<(&str, &str)> = settings.iter().map(|(key, topic)| (&key[..], &topic[..])).collect();
    http.push(("HTTP__TIMEOUT_MS", "2000"));
    let (api, parent) = runtime.block_on(async {
        let world = World::new().await;
        let running = world.start();
        let parent = world.seed(1, 2).await;
        world.until_consumed().await;
        running.kill().await;
        let broker: Arc<dyn Broker> = Arc::new(bench.broker());
        (Api::over(world.store.clone(), Some(broker), &http).await, parent)
    });
    let made = spend(&[parent.coin(0)], 1, 1);
    let command = json!({"commands": [{"action": {"lock": {"txid": parent.txid.to_string()}}}]}).to_string();
    let body = json!({"transactions": [hex::encode(&made.extended)]}).to_string();
    let routes: [Route; 5] = [
        (
            Method::POST,
            "/v1/transactions?wait=live&timeout_ms=100".to_owned(),
            Some(("application/json", body.into())),
            202,
        ),
        (Method::POST, "/v1/transactions".to_owned(), Some(("application/octet-stream", made.extended.to_vec())), 202),
        (Method::POST, "/v1/commands?timeout_ms=0".to_owned(), Some(("application/json", command.into())), 200),
        (Method::GET, format!("/v1/transactions/{}/history", parent.txid), None, 200),
        (Method::GET, format!("/v1/transactions/{}", parent.txid), None, 200),
    ];
    let send = |(method, path, content, _): &Route| runtime.block_on(api.send(method.clone(), path, content.clone()));
    for route in &routes {
        let (status, body) = send(route);
        assert_eq!(status, route.3, "{}: {body:?}", route.1);
    }
    drop(runtime.block_on(follow(&api)));

    server.kill();
    let (of_log, of_store) = routes.split_at(4);
    for (method, path, content, _) in of_log {
        let mut request = api.client.request(method.clone(), format!("http://{}{path}", api.address));
        if let Some((media_type, body)) = content {
            request = request.header("Content-Type", *media_type).body(body.clone());
        }
        // A request that hangs fails the test.
        let answer = runtime.block_on(async { request.timeout(Duration::from_secs(120)).send().await.unwrap() });
        assert_eq!((answer.status().as_u16(), answer.headers().contains_key("retry-after")), (503, true), "{path}");
    }
    assert_eq!(send(&of_store[0]).0, 200, "the store is there");
    let mut stream = runtime.block_on(follow(&api));
    // A server that starts now has never read the topic.
    let late = runtime.block_on(async {
        let broker: Arc<dyn Broker> = Arc::new(bench.broker());
        Api::over(World::new().await.store.clone(), Some(broker), &http).await
    });
    let first_stream = || {
        let request = late.client.get(format!("http://{}/v1/outcomes", late.address));
        runtime.block_on(async { request.timeout(Duration::from_secs(120)).send().await.unwrap().status().as_u16() })
    };
    assert_eq!(first_stream(), 503);

    server.restart();
    for route in &routes {
        until("the broker is used again", || send(route).0 == route.3);
    }
    until("the late server reads the topic", || first_stream() == 200);
    runtime.block_on(async {
        publish(&bench, 0, 7).await;
        read_until(&mut stream, &Txid([7; 32]).to_string()).await;
        let mut another = follow(&api).await;
        publish(&bench, 1, 8).await;
        read_until(&mut another, &Txid([8; 32]).to_string()).await;
    });
}
