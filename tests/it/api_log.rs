//! The API where it writes to the log: transactions, commands, outcomes.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};
use utxo_store::broker::{Broker, NewTopic, TopicPartition};

use crate::{
    api::Api,
    harness::{Made, Running, World, WorldSettings, spend},
};

async fn start() -> (World, Running, Api) {
    let world = World::with_settings(WorldSettings::calm()).await;
    let running = world.start();
    let api = Api::start(&world, &[]).await;
    (world, running, api)
}

async fn submit(api: &Api, made: &[&Made], query: &str) -> (u16, Value) {
    let hex: Vec<String> = made.iter().map(|made| hex::encode(&made.extended)).collect();
    api.post_json(&format!("/v1/transactions{query}"), json!({"transactions": hex})).await
}

#[tokio::test]
async fn a_submitted_transaction_is_answered_with_its_place_and_its_outcome() {
    let (world, running, api) = start().await;
    let parent = world.seed(1, 3).await;
    world.until_consumed().await;
    let first = spend(&[parent.coin(0)], 2, 1);
    let child = spend(&[first.coin(1)], 1, 2);
    let (status, shown) = submit(&api, &[&first, &child], "?wait=live").await;
    assert_eq!(status, 200, "{shown}");
    for (shown, made) in shown["transactions"].as_array().unwrap().iter().zip([&first, &child]) {
        assert_eq!((&shown["txid"], &shown["topic"]), (&json!(made.txid.to_string()), &json!("txs")));
        assert_eq!(shown["outcome"], json!({"status": "live"}));
    }
    let rival = spend(&[parent.coin(0)], 1, 3);
    let (status, shown) = submit(&api, &[&rival], "?wait=live").await;
    let outcome = &shown["transactions"][0]["outcome"];
    assert_eq!((status, &outcome["status"]), (200, &json!("conflicting")), "{shown}");
    assert!(outcome["reason"].as_str().unwrap().contains(&first.txid.to_string()), "{shown}");

    let body = [&first.extended[..], &child.extended[..]].concat();
    let (status, again) = api.send(Method::POST, "/v1/transactions", Some(("application/octet-stream", body))).await;
    let again: Value = serde_json::from_slice(&again).unwrap();
    assert_eq!((status.as_u16(), again["transactions"].as_array().unwrap().len()), (202, 2), "{again}");
    running.kill().await;
}

#[tokio::test]
async fn a_transaction_is_pending_while_no_instance_runs() {
    let (world, running, api) = start().await;
    let parent = world.seed(1, 2).await;
    world.until_consumed().await;
    running.kill().await;
    let child = spend(&[parent.coin(0)], 1, 1);
    let made = [&child];
    let (status, shown) = submit(&api, &made, "?wait=live&timeout_ms=300").await;
    assert_eq!((status, &shown["transactions"][0]["outcome"]["status"]), (202, &json!("pending")), "{shown}");
    let waiting = submit(&api, &made, "?wait=live&timeout_ms=30000");
    let starting = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        world.start()
    };
    let ((status, shown), running) = tokio::join!(waiting, starting);
    assert_eq!((status, &shown["transactions"][0]["outcome"]["status"]), (200, &json!("live")), "{shown}");
    running.kill().await;
}

#[tokio::test]
async fn a_request_that_waits_for_outcomes_leaves_its_place_to_others() {
    let (world, running, _) = start().await;
    let parent = world.seed(1, 2).await;
    world.until_consumed().await;
    running.kill().await;
    let api = Api::start(&world, &[("HTTP__MAX_REQUESTS", "1"), ("HTTP__MAX_STREAMS", "1")]).await;
    let (child, published) = (spend(&[parent.coin(0)], 1, 1), world.count("txs").await);
    let made = [&child];
    let waiting = submit(&api, &made, "?wait=live&timeout_ms=60000");
    let others = async {
        let begun = Instant::now();
        while world.count("txs").await == published || api.get("/v1/chain").await.0 == 429 {
            assert!(begun.elapsed() < Duration::from_secs(30), "the waiting request keeps its place");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let (status, problem) = submit(&api, &made, "?wait=live").await;
        assert_eq!((status, world.count("txs").await), (429, published + 1), "{problem}");
        world.start()
    };
    let ((status, shown), running) = tokio::join!(waiting, others);
    assert_eq!((status, &shown["transactions"][0]["outcome"]["status"]), (200, &json!("live")), "{shown}");
    running.kill().await;
}

#[tokio::test]
async fn a_transaction_that_alone_shows_its_fault_is_not_published() {
    let (world, running, api) = start().await;
    let parent = world.seed(1, 1).await;
    world.until_consumed().await;
    let end = world.count("txs").await;
    let mut good = spend(&[parent.coin(0)], 1, 1);
    let standard = {
        let mut bytes = Vec::new();
        utxo_store::tx::Transaction::parse(&good.extended).unwrap().write_standard(&mut bytes);
        bytes
    };
    let cases = [
        (vec![1, 2, 3], "transaction 0"),
        (standard, "transaction 0"),
        ([&good.extended[..], &[7]].concat(), "transaction 1"),
        (vec![], "no transaction"),
    ];
    for (body, words) in cases {
        let (status, problem) =
            api.send(Method::POST, "/v1/transactions", Some(("application/octet-stream", body))).await;
        let problem: Value = serde_json::from_slice(&problem).unwrap();
        assert_eq!(status, 400, "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains(words), "{problem}");
    }
    good.extended = good.extended.slice(..);
    for query in ["?wait=mined", "?wait=live&timeout_ms=60001", "?timeout_ms=10", "?hight=7"] {
        assert_eq!(submit(&api, &[&good], query).await.0, 400, "{query}");
    }
    assert_eq!(world.count("txs").await, end, "nothing was published");
    running.kill().await;
}

#[tokio::test]
async fn commands_are_executed_in_their_order_and_their_results_are_read_again() {
    let (world, running, api) = start().await;
    let parent = world.seed(1, 2).await;
    world.until_consumed().await;
    let outpoint = parent.coin(0).outpoint.to_string();
    let (id, other) = ("0a".repeat(16), "0b".repeat(16));
    let commands = json!([
        {"id": id, "action": {"freeze": {"outpoint": outpoint}}},
        {"id": other, "action": {"freeze": {"outpoint": outpoint}}},
    ]);
    let (status, shown) = api.post_json("/v1/commands", json!({"commands": commands})).await;
    assert_eq!(status, 200, "{shown}");
    assert_eq!((&shown["commands"][0]["id"], &shown["commands"][0]["result"]), (&json!(id), &json!("applied")));
    let refused = &shown["commands"][1];
    assert_eq!((&refused["result"], &refused["code"]), (&json!("refused"), &json!("ALREADY_FROZEN")), "{shown}");
    let (_, output) = api.get(&format!("/v1/outputs/{}/0", parent.txid)).await;
    assert_eq!(output["status"], "FROZEN");
    let (status, read) = api.get(&format!("/v1/commands/{id}")).await;
    assert_eq!((status, &read), (200, &shown["commands"][0]));
    let (_, history) = api.get(&format!("/v1/transactions/{}/history?cursor=earliest", parent.txid)).await;
    let lines = history["history"].as_array().unwrap();
    assert!(lines.iter().any(|line| line["what"].as_str().unwrap().starts_with("command freeze")), "{history}");
    assert_eq!(api.get(&format!("/v1/commands/{}", "0c".repeat(16))).await.0, 404);
    for (body, words) in [
        (json!({"commands": [{"action": {"freez": {"outpoint": outpoint}}}]}), "commands[0]"),
        (json!({"commands": [{"id": "zz", "action": {"lock": {"txid": parent.txid.to_string()}}}]}), "32"),
        (json!({"commands": [{"actions": 1}]}), "actions"),
        (json!({"commands": []}), "no command"),
    ] {
        let (status, problem) = api.post_json("/v1/commands", body).await;
        assert!(status == 400 && problem["detail"].as_str().unwrap().contains(words), "{problem}");
    }
    running.kill().await;
}

/// Opens a stream, and returns the first id.
async fn read_first_id(api: &Api, query: &str) -> String {
    let mut answer = api.client.get(format!("http://{}/v1/outcomes{query}", api.address)).send().await.unwrap();
    let mut text = String::new();
    while !text.contains("\n\n") {
        let piece = tokio::time::timeout(Duration::from_secs(60), answer.chunk()).await.expect("an id comes");
        text.push_str(std::str::from_utf8(&piece.unwrap().expect("the stream goes on")).unwrap());
    }
    text.lines().find_map(|line| line.strip_prefix("id:")).expect("the first event has an id").trim().to_owned()
}

/// Reads events of a stream until `count` events with data have come.
async fn read_events(api: &Api, query: &str, last_id: Option<&str>, count: usize) -> Vec<(String, Value, String)> {
    let mut request = api.client.get(format!("http://{}/v1/outcomes{query}", api.address));
    if let Some(id) = last_id {
        request = request.header("Last-Event-ID", id);
    }
    let mut answer = request.send().await.unwrap();
    assert_eq!(answer.status(), 200);
    let (mut text, mut events) = (String::new(), Vec::new());
    while events.len() < count {
        let piece = tokio::time::timeout(Duration::from_secs(60), answer.chunk()).await.expect("an event comes");
        text.push_str(std::str::from_utf8(&piece.unwrap().expect("the stream goes on")).unwrap());
        while let Some((event, rest)) = text.split_once("\n\n") {
            let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
            if let (Some(kind), Some(data), Some(id)) = (field("event:"), field("data:"), field("id:")) {
                events.push((kind.to_owned(), serde_json::from_str(data).unwrap(), id.to_owned()));
            }
            text = rest.to_owned();
        }
    }
    events
}

#[tokio::test]
async fn outcomes_are_followed_from_now_and_from_the_last_event() {
    let (world, running, api) = start().await;
    let parent = world.seed(1, 3).await;
    world.until_consumed().await;
    let winner = spend(&[parent.coin(0)], 1, 1);
    let loser = spend(&[parent.coin(0)], 1, 2);
    assert_eq!(submit(&api, &[&winner], "?wait=live").await.0, 200);
    let following = read_events(&api, "?kind=conflicting", None, 1);
    let submitting = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        submit(&api, &[&loser], "?wait=live").await
    };
    let (events, _) = tokio::join!(following, submitting);
    let (kind, data, id) = &events[0];
    assert_eq!((&kind[..], &data["txid"]), ("conflicting", &json!(loser.txid.to_string())));
    let all = read_events(&api, "?from=earliest", None, 3).await;
    assert!(all.iter().any(|(kind, ..)| kind == "live"), "{all:?}");
    let of_loser = read_events(&api, &format!("?from=earliest&txid={}", loser.txid), None, 1).await;
    assert_eq!(of_loser[0].1["txid"], loser.txid.to_string());
    world.mine(1, &[&winner]).await;
    let later = read_events(&api, "?kind=mined", Some(id), 1).await;
    let mined = later[0].1["txids"].as_array().unwrap();
    assert!(mined.contains(&json!(winner.txid.to_string())), "{mined:?}");
    for query in ["?kind=alive", "?txid=xyz", "?from=0,x", "?since=1"] {
        assert_eq!(api.get(&format!("/v1/outcomes{query}")).await.0, 400, "{query}");
    }
    running.kill().await;
}

#[tokio::test]
async fn a_quiet_stream_continues_where_its_connection_ended() {
    let (world, running, api) = start().await;
    let parent = world.seed(1, 2).await;
    world.until_consumed().await;
    let id = read_first_id(&api, "?kind=conflicting").await;
    let [winner, loser] = [1, 2].map(|tag| spend(&[parent.coin(0)], 1, tag));
    for made in [&winner, &loser] {
        assert_eq!(submit(&api, &[made], "?wait=live").await.0, 200);
    }
    let missed = read_events(&api, "?kind=conflicting", Some(&id), 1).await;
    assert_eq!(missed[0].1["txid"], loser.txid.to_string());
    running.kill().await;
}

#[tokio::test]
async fn a_stream_tells_dropped_outcomes_and_another_topic() {
    let (world, running, api) = start().await;
    let parent = world.seed(1, 2).await;
    world.until_consumed().await;
    let id = read_first_id(&api, "").await;
    assert_eq!(submit(&api, &[&spend(&[parent.coin(0)], 1, 1)], "?wait=live").await.0, 200);
    // The reader of the server has read all outcomes before they are dropped.
    read_events(&api, "", Some(&id), 1).await;
    let mut dropped = 0;
    for partition in 0.. {
        let partition = TopicPartition { topic: "outcomes".into(), partition };
        let Ok((_, end)) = world.broker.watermarks(&partition).await else { break };
        world.broker.truncate(&partition, end).unwrap();
        dropped += usize::from(end > 0);
    }
    assert!(dropped > 0);
    let gaps = read_events(&api, "", Some(&id), 1).await;
    assert_eq!((&gaps[0].0[..], &gaps[0].1["reason"]), ("gap", &json!("retention")), "{gaps:?}");
    let other = format!("{}:0", "07".repeat(16));
    let gap = read_events(&api, "", Some(&other), 1).await;
    assert_eq!((&gap[0].0[..], &gap[0].1), ("gap", &json!({"reason": "other-topic"})));
    assert_ne!(gap[0].2, other);
    running.kill().await;
}

#[tokio::test]
async fn published_commands_are_named_where_their_results_cannot_be_read() {
    const COUNT: u64 = 150;
    let (world, running, api) = start().await;
    let parent = world.seed(1, 1).await;
    world.until_consumed().await;
    for tag in [1, 2] {
        assert_eq!(submit(&api, &[&spend(&[parent.coin(0)], 1, tag)], "?wait=live").await.0, 200);
    }
    running.kill().await;
    let published = world.count("chain").await;
    let command = json!({"action": {"reconsider": {"txid": parent.txid.to_string()}}});
    let commands = json!({"commands": vec![command; COUNT as usize]});
    let waiting = api.post_json("/v1/commands?timeout_ms=60000", commands);
    let failing = async {
        while world.count("chain").await < published + COUNT {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // The topic no longer has the place of the reader.
        let topic = NewTopic { name: "decisions".into(), partitions: 1, config: vec![] };
        world.broker.recreate_topic(&topic).unwrap();
    };
    let ((status, problem), ()) = tokio::join!(waiting, failing);
    assert!(status == 503 && problem["detail"].as_str().unwrap().contains("the results cannot be read"), "{problem}");
    let offsets: Vec<Option<u64>> = problem["commands"]
        .as_array()
        .unwrap()
        .iter()
        .map(|shown| {
            assert_eq!((shown["id"].as_str().unwrap().len(), &shown["result"]), (32, &json!("unanswered")));
            shown["chainOffset"].as_u64()
        })
        .collect();
    assert_eq!(offsets, (published..published + COUNT).map(Some).collect::<Vec<_>>());
}
