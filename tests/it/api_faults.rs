//! The API over a store and a log that fail in parts, and the requests of batches to the store.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use reqwest::Method;
use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt, net::TcpStream};
use utxo_store::{
    broker::{Broker, Message, TopicPartition, memory::MemoryFaults},
    engine::{EngineDecorator, EngineError, ErrorKind, RecordEngine, fault::FaultEngine},
    event::Event,
    record::{Key, Record},
    store::StateStore,
    tx::Txid,
};

use crate::{
    api::{Api, split_records},
    harness::{Made, World, WorldSettings, spend, spend_to},
};

pub const OCTET_STREAM: &str = "application/octet-stream";

#[tokio::test]
async fn a_key_of_a_batch_that_cannot_be_read_has_an_error_of_its_own() {
    let world = World::with_settings(WorldSettings::calm()).await;
    let running = world.start();
    let mut txids = Vec::new();
    for tag in 1..=3 {
        txids.push(world.seed(tag, 1).await.txid);
    }
    world.until_consumed().await;
    let [good, damaged, away]: [Txid; 3] = txids.try_into().unwrap();
    let engine = Arc::new(FaultEngine::new(world.store.engine.clone(), 1));
    engine.fail_reads(move |key| match key.txid() {
        Some(txid) if txid == damaged => Some(ErrorKind::Fatal),
        Some(txid) if txid == away => Some(ErrorKind::Retryable),
        _ => None,
    });
    let api = Api::over(StateStore { engine, ..world.store.clone() }, None, &[("HTTP__TIMEOUT_MS", "300")]).await;

    let keys = [away, good, damaged, good];
    let statuses = [Some(503), None, Some(500), None];
    let of_json = |answers: &Value| -> Vec<Option<u64>> {
        answers.as_array().unwrap().iter().map(|answer| answer["error"]["status"].as_u64()).collect()
    };
    let of_binary = |bytes: &[u8]| -> Vec<Option<u64>> {
        let status = |record: Vec<u8>| {
            let status = u64::from(u16::from_le_bytes([record[1], record[2]]));
            (record[0] == 255).then_some(status)
        };
        split_records(bytes).into_iter().map(status).collect()
    };
    for query in ["", "?output=true"] {
        let outpoints: Vec<String> = keys.iter().map(|txid| format!("{txid}:0")).collect();
        let path = format!("/v1/outputs:batch{query}");
        let (status, answer) = api.post_json(&path, json!({"outpoints": outpoints})).await;
        assert_eq!((status, of_json(&answer["outputs"])), (200, statuses.to_vec()), "{answer}");
        assert_eq!(answer["outputs"][0]["outpoint"], json!(outpoints[0]));
        let body: Vec<u8> = keys.iter().flat_map(|txid| [&txid.0[..], &[0; 4]].concat()).collect();
        let (status, answer) = api.send(reqwest::Method::POST, &path, Some((OCTET_STREAM, body))).await;
        assert_eq!((status.as_u16(), of_binary(&answer)), (200, statuses.to_vec()));
    }
    for query in ["", "?fields=spendingData,fee"] {
        let txids: Vec<String> = keys.iter().map(Txid::to_string).collect();
        let path = format!("/v1/transactions:batch{query}");
        let (status, answer) = api.post_json(&path, json!({"txids": txids})).await;
        assert_eq!((status, of_json(&answer["transactions"])), (200, statuses.to_vec()), "{answer}");
        let body: Vec<u8> = keys.iter().flat_map(|txid| txid.0).collect();
        let (status, answer) = api.send(reqwest::Method::POST, &path, Some((OCTET_STREAM, body))).await;
        assert_eq!((status.as_u16(), of_binary(&answer)), (200, statuses.to_vec()));
    }
    let all_away = json!({"txids": [away.to_string(), away.to_string()]});
    assert_eq!(api.post_json("/v1/transactions:batch", all_away).await.0, 503, "no key was read");
    running.kill().await;
}

/// An engine that notes how many records each read asks for.
pub struct CountingEngine {
    inner: Arc<dyn RecordEngine>,
    reads: Mutex<Vec<usize>>,
}

impl CountingEngine {
    /// Starts a server of the API that counts its reads of the store of a world, in batches of up to 1,024 records.
    pub async fn serve(world: &World) -> (Arc<Self>, Api) {
        let engine = Arc::new(CountingEngine { inner: world.store.engine.clone(), reads: Mutex::default() });
        let mut store = StateStore { engine: engine.clone(), ..world.store.clone() };
        store.settings.batch_size = 1_024;
        (engine, Api::over(store, None, &[]).await)
    }

    /// Returns the number of records of each read since the last call.
    pub fn take_reads(&self) -> Vec<usize> {
        std::mem::take(&mut self.reads.lock().unwrap())
    }
}

impl EngineDecorator for CountingEngine {
    fn inner(&self) -> &dyn RecordEngine {
        &*self.inner
    }

    async fn read(&self, keys: &[Key]) -> Vec<Result<Option<Record>, EngineError>> {
        self.reads.lock().unwrap().push(keys.len());
        self.inner.read(keys).await
    }
}

/// Protects: a batch reads its masters in requests of many records, and no record alone.
#[tokio::test]
async fn ten_thousand_keys_are_ten_reads_of_the_store() {
    let world = World::new().await;
    let running = world.start();
    let known = world.seed(1, 2).await.txid;
    world.until_consumed().await;
    running.kill().await;
    let (engine, api) = CountingEngine::serve(&world).await;
    let unknown = (1..10_000_u32).map(|number| Txid(*blake3::hash(&number.to_le_bytes()).as_bytes()));
    let many: Vec<Txid> = std::iter::once(known).chain(unknown).collect();
    let transactions: Vec<u8> = many.iter().flat_map(|txid| txid.0).collect();
    let outputs: Vec<u8> = many.iter().flat_map(|txid| [&txid.0[..], &[1, 0, 0, 0]].concat()).collect();
    for (path, body) in [("/v1/transactions:batch", transactions), ("/v1/outputs:batch", outputs)] {
        engine.take_reads();
        let (status, answer) = api.send(Method::POST, path, Some((OCTET_STREAM, body))).await;
        assert_eq!((status.as_u16(), split_records(&answer).len()), (200, 10_000));
        let mut reads = engine.take_reads();
        reads.sort_unstable();
        // A batch of outputs also reads the meta record, for the height of the tip.
        let alone = reads.iter().filter(|count| **count == 1).count();
        let expected: Vec<usize> = std::iter::once(784).chain([1_024; 9]).collect();
        assert_eq!((alone <= 1, &reads[alone..]), (true, &expected[..]), "{path}");
    }
}

/// Returns all messages of a partition.
async fn read_log(world: &World, topic: &str, partition: i32) -> Vec<Message> {
    let partition = TopicPartition { topic: topic.into(), partition };
    let (_, end) = world.broker.watermarks(&partition).await.unwrap();
    let mut reader = world.broker.read(&partition, 0).await.unwrap();
    let mut log = Vec::new();
    while reader.position() < end {
        log.extend(reader.next(Duration::from_secs(1)).await.unwrap());
    }
    log
}

#[tokio::test]
async fn ten_thousand_commands_of_one_request_are_answered_in_their_order() {
    const COUNT: usize = 10_000;
    let world = World::with_settings(WorldSettings::calm()).await;
    let running = world.start();
    let parent = world.seed(1, COUNT).await;
    world.until_consumed().await;
    let api = Api::start(&world, &[]).await;
    let command = |vout| json!({"action": {"freeze": {"outpoint": parent.coin(vout).outpoint.to_string()}}});
    let commands: Vec<Value> = (0..COUNT as u32).map(command).collect();
    let (status, answer) = api.post_json("/v1/commands?timeout_ms=300000", json!({"commands": commands})).await;
    let answers = answer["commands"].as_array().unwrap_or_else(|| panic!("{answer}"));
    assert_eq!((status, answers.len()), (200, COUNT));
    assert!(answers.iter().all(|answer| answer["result"] == "applied"));
    let offsets: Vec<u64> = answers.iter().map(|answer| answer["chainOffset"].as_u64().unwrap()).collect();
    assert!(offsets.is_sorted(), "the order of the request");
    running.kill().await;
}

#[tokio::test]
async fn the_answer_says_which_commands_a_failing_log_has_acknowledged() {
    let world = World::with_settings(WorldSettings::calm()).await;
    let api = Api::start(&world, &[]).await;
    let commands: Vec<Value> =
        (0..200).map(|n| json!({"id": format!("{n:032x}"), "action": {"lock": {"txid": "11".repeat(32)}}})).collect();
    let faults = MemoryFaults { seed: 3, produce_refused: 0.2, produce_unacknowledged: 0.1, ..MemoryFaults::default() };
    world.broker.set_faults(faults);
    let (status, answer) = api.post_json("/v1/commands?timeout_ms=0", json!({"commands": commands})).await;
    world.broker.set_faults(MemoryFaults::default());
    assert_eq!((status, &answer["title"]), (503, &json!("Service Unavailable")), "{answer}");
    let chain = read_log(&world, "chain", 0).await;
    let (mut published, mut failed) = (Vec::new(), 0);
    for (answer, command) in answer["commands"].as_array().unwrap().iter().zip(&commands) {
        assert_eq!(answer["id"], command["id"]);
        let Some(offset) = answer["chainOffset"].as_u64() else {
            assert_eq!(answer["result"], "unacknowledged");
            failed += 1;
            continue;
        };
        assert_eq!(answer["result"], "unanswered", "no instance runs");
        let Ok(Event::Command(found)) = Event::decode(&chain[offset as usize].payload) else { panic!("{offset}") };
        assert_eq!(hex::encode(found.id), answer["id"]);
        published.push(offset);
    }
    assert!(published.len() > 100 && failed > 20 && published.is_sorted(), "{published:?}, {failed}");
}

#[tokio::test]
async fn the_answer_says_which_transactions_the_log_has_acknowledged() {
    let world = World::with_settings(WorldSettings::calm()).await;
    let running = world.start();
    let parent = world.seed(1, 100).await;
    world.until_consumed().await;
    let api = Api::start(&world, &[("HTTP__TIMEOUT_MS", "1000")]).await;
    let made: Vec<Made> = (0..100).map(|vout| spend(&[parent.coin(vout)], 1, 1)).collect();
    let hex: Vec<String> = made.iter().map(|made| hex::encode(&made.extended)).collect();
    let body = json!({"transactions": hex});
    let faults = |refused| MemoryFaults { seed: 3, produce_refused: refused, ..MemoryFaults::default() };

    world.broker.set_faults(faults(1.0));
    let (status, answer) = api.post_json("/v1/transactions", body.clone()).await;
    assert!(status == 503 && answer["detail"].as_str().unwrap().contains("0 of 100"), "{answer}");
    let errors = answer["transactions"].as_array().unwrap();
    assert!(
        errors
            .iter()
            .zip(&made)
            .all(|(answer, made)| answer["txid"] == made.txid.to_string() && answer["error"]["status"] == 503)
    );

    world.broker.set_faults(faults(0.3));
    let (status, answer) = api.post_json("/v1/transactions", body.clone()).await;
    world.broker.set_faults(MemoryFaults::default());
    assert_eq!(status, 202, "what failed was sent again: {answer}");
    for (answer, made) in answer["transactions"].as_array().unwrap().iter().zip(&made) {
        let log = read_log(&world, "txs", i32::try_from(answer["partition"].as_i64().unwrap()).unwrap()).await;
        let message = &log[answer["offset"].as_u64().unwrap() as usize];
        assert_eq!(message.key, made.txid.0[..], "the place is that of the event");
    }
    let (status, _) = api.post_json("/v1/transactions?wait=live&timeout_ms=60000", body).await;
    assert_eq!(status, 200, "a repeat changes nothing, and all are live");
    running.kill().await;
}

/// A log that acknowledges nothing: the wait for results, of a minute here, does not begin.
#[tokio::test]
async fn a_publication_ends_with_the_limit_of_the_request() {
    let world = World::with_settings(WorldSettings::calm()).await;
    let running = world.start();
    let parent = world.seed(1, 1).await;
    world.until_consumed().await;
    running.kill().await;
    let api = Api::start(&world, &[("HTTP__TIMEOUT_MS", "300")]).await;
    let child = spend(&[parent.coin(0)], 1, 1);
    world.broker.set_faults(MemoryFaults { seed: 3, produce_refused: 1.0, ..MemoryFaults::default() });
    let command = json!({"action": {"lock": {"txid": "11".repeat(32)}}});
    for (path, body, words) in [
        ("/v1/commands", json!({"commands": [command]}), "0 of 1 commands within 300ms"),
        ("/v1/transactions?wait=live", json!({"transactions": [hex::encode(&child.extended)]}), "0 of 1 transactions"),
    ] {
        let begun = Instant::now();
        let request =
            api.client.post(format!("http://{}{path}", api.address)).header("Content-Type", "application/json");
        let answer = request.body(body.to_string()).send().await.unwrap();
        assert!(begun.elapsed() < Duration::from_secs(10), "{path}: {:?}", begun.elapsed());
        assert_eq!((answer.status().as_u16(), &answer.headers()["retry-after"]), (503, &"1".parse().unwrap()));
        let problem: Value = serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap();
        assert!(problem["detail"].as_str().unwrap().contains(words), "{problem}");
    }
}

#[tokio::test]
async fn requests_beyond_the_bytes_in_flight_are_refused() {
    let world = World::with_settings(WorldSettings::calm()).await;
    let running = world.start();
    let parent = world.seed(1, 1_000).await;
    let large = world.seed(2, 8_000).await;
    world.until_consumed().await;
    let limits =
        [("HTTP__MAX_BODY_BYTES", "600000"), ("HTTP__MAX_BYTES_IN_FLIGHT", "2000000"), ("HTTP__TIMEOUT_MS", "60000")];
    let api = Api::start(&world, &limits).await;
    let path = "/v1/outputs:batch";
    let batch = |keys: usize| api.send(Method::POST, path, Some((OCTET_STREAM, vec![7; keys * 36])));
    assert_eq!(batch(1_000).await.0, 200);

    // A client that sends half of a body, and waits.
    let mut slow = TcpStream::connect(api.address).await.unwrap();
    let head =
        format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {OCTET_STREAM}\r\nContent-Length: 540000\r\n\r\n");
    slow.write_all(head.as_bytes()).await.unwrap();
    assert_eq!(batch(10_000).await.0, 413, "10,000 answers of a kibibyte need more than all requests have");
    slow.write_all(&[7; 500_000]).await.unwrap();
    until("the body arrives", async || bytes_in_flight(&api).await >= 1_500_000).await;
    let (status, _) = batch(5_000).await;
    assert_eq!(status, 429, "the body alone has no room");
    let history = format!("/v1/transactions/{}/history", parent.txid);
    for path in ["/v1/transactions?unmined=true", "/unmined", "/", &history] {
        assert_eq!(api.send(Method::GET, path, None).await.0, 429, "{path}");
    }
    assert_eq!(batch(10).await.0, 200, "a small one has");
    drop(slow);
    until("the bytes come back", async || bytes_in_flight(&api).await == 0).await;

    let (status, problem) = api.get(&format!("/v1/transactions/{}?fields=spendingData", large.txid)).await;
    assert!(status == 413 && problem["detail"].as_str().unwrap().contains("max_bytes_in_flight"), "{problem}");
    assert_eq!(api.get(&format!("/v1/transactions/{}", large.txid)).await.0, 200);
    // 300 kB each, in several parts.
    let keys: Vec<String> = (0..40).map(|_| parent.txid.to_string()).collect();
    let fields = "/v1/transactions:batch?fields=txid,spendingData";
    let (status, answer) = api.post_json(fields, json!({"txids": keys})).await;
    let found = answer["transactions"].as_array().unwrap();
    assert_eq!((status, found.len()), (200, 40));
    assert!(found.iter().all(|found| found["spendingData"].as_array().unwrap().len() == 1_000));
    until("the bytes come back", async || bytes_in_flight(&api).await == 0).await;
    running.kill().await;
}

/// Scripts and actions need many times the memory of their text.
#[tokio::test]
async fn scripts_and_actions_count_before_they_are_read() {
    let world = World::with_settings(WorldSettings::calm()).await;
    let running = world.start();
    let parent = world.seed(1, 2).await;
    let coins = [parent.coin(0), parent.coin(1)];
    let each = (coins[0].satoshis + coins[1].satoshis) / 100;
    // Longer scripts can never be spent.
    let large = spend_to(&coins, vec![(each, vec![0x51; 9_000]); 100], 1);
    world.validate(&large).await;
    world.until_consumed().await;
    let limits = [("HTTP__MAX_BODY_BYTES", "300000"), ("HTTP__MAX_BYTES_IN_FLIGHT", "1048576")];
    let api = Api::start(&world, &limits).await;
    let output = format!("/v1/outputs/{}/1", large.txid);
    assert_eq!(api.get(&output).await.0, 200, "a small script of a large transaction");
    let keys: Vec<String> = (0..30).map(|vout| format!("{}:{vout}", large.txid)).collect();
    let (status, problem) = api.post_json("/v1/outputs:batch?output=true", json!({"outpoints": keys})).await;
    assert!(status == 413 && problem["detail"].as_str().unwrap().contains("max_bytes_in_flight"), "{problem}");
    until("the bytes come back", async || bytes_in_flight(&api).await == 0).await;
    // Another request holds the memory that the script would need.
    let mut slow = TcpStream::connect(api.address).await.unwrap();
    let head = format!(
        "POST /v1/outputs:batch HTTP/1.1\r\nHost: x\r\nContent-Type: {OCTET_STREAM}\r\nContent-Length: 299988\r\n\r\n"
    );
    slow.write_all(head.as_bytes()).await.unwrap();
    slow.write_all(&[7; 299_000]).await.unwrap();
    until("the body arrives", async || bytes_in_flight(&api).await >= 890_000).await;
    assert_eq!(api.get(&output).await.0, 429, "the script may be as long as the body");
    assert_eq!(api.get(&format!("{output}?output=false")).await.0, 200);
    drop(slow);
    until("the bytes come back", async || bytes_in_flight(&api).await == 0).await;

    let lists = format!(r#"{{"commands":[{{"action":[{}0]}}]}}"#, "[0],".repeat(4_000));
    let commands = |body: String| api.send(Method::POST, "/v1/commands", Some(("application/json", body.into())));
    assert_eq!(commands(lists).await.0, 413, "the lists take a hundred times the memory of their text");
    assert_eq!(commands(r#"{"commands":[{"action":[[0],0]}]}"#.into()).await.0, 400);
    running.kill().await;
}

/// Reads the gauge of the bytes that requests hold.
async fn bytes_in_flight(api: &Api) -> u64 {
    let (_, metrics) = api.send(Method::GET, "/metrics", None).await;
    let metrics = String::from_utf8(metrics.to_vec()).unwrap();
    let gauge = metrics.lines().find_map(|line| line.strip_prefix("utxo_http_bytes_in_flight "));
    gauge.unwrap().parse().unwrap()
}

async fn until(what: &str, mut is_met: impl AsyncFnMut() -> bool) {
    for _ in 0..600 {
        if is_met().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{what}: not within 30 s");
}
