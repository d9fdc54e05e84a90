//! The API under `/v1`, asked over HTTP.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use reqwest::{Client, Method, StatusCode};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use utxo_store::{
    api::{
        Server, ServerSettings,
        v1::{ApiContext, StoreSource},
    },
    broker::Broker,
    clock::Clock,
    config::Config,
    engine::Row,
    record::{Key, Operation, Phase, Sequenced, Stamp},
    status::Health,
    store::StateStore,
    telemetry::Metrics,
    tx::{Outpoint, Transaction, Txid},
};

use crate::{
    harness::{Made, Running, World, WorldSettings, spend},
    openapi,
};

/// A server of the API over the store of a world.
pub struct Api {
    pub address: SocketAddr,
    pub client: Client,
    pub health: Arc<Health>,
    pub metrics: Arc<Metrics>,
}

/// Returns a configuration with the topics of a world and these settings.
pub fn config(http: &[(&str, &str)]) -> Config {
    let topics = [
        ("KAFKA__TOPICS__VALIDATED_TXS", "txs"),
        ("KAFKA__TOPICS__BLOCK_MINED", "block-mined"),
        ("KAFKA__TOPICS__REORGS", "reorgs"),
        ("KAFKA__TOPICS__CHAIN", "chain"),
        ("KAFKA__TOPICS__DECISIONS", "decisions"),
        ("KAFKA__TOPICS__OUTCOMES", "outcomes"),
        ("KAFKA__TOPICS__DEAD_LETTERS", "dead-letters"),
    ];
    let topics = topics.iter().filter(|(topic, _)| http.iter().all(|(key, _)| key != topic));
    let variables = topics.chain(http).map(|(key, value)| (format!("UTXO_STORE__{key}").into(), (*value).into()));
    Config::load_from(None, variables).unwrap()
}

impl Api {
    pub async fn start(world: &World, http: &[(&str, &str)]) -> Self {
        let broker: Arc<dyn Broker> = Arc::new(world.broker.clone());
        Api::over(world.store.clone(), Some(broker), http).await
    }

    pub async fn over(store: StateStore, broker: Option<Arc<dyn Broker>>, http: &[(&str, &str)]) -> Self {
        Api::serve(store, broker, http, false).await
    }

    /// Starts a server without a log whose deep probe checks the store.
    pub async fn with_deep_check(store: StateStore, http: &[(&str, &str)]) -> Self {
        Api::serve(store, None, http, true).await
    }

    async fn serve(
        store: StateStore,
        broker: Option<Arc<dyn Broker>>,
        http: &[(&str, &str)],
        checks_store: bool,
    ) -> Self {
        let config = config(http);
        let metrics = Arc::new(Metrics::new());
        let health = Arc::new(Health::new(Clock::System, Duration::from_secs(60)));
        let settings = ServerSettings::load(&config.http).unwrap();
        let (limits, access) = (settings.limits.clone(), settings.access.clone());
        let free = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = Server::bind(free, settings, metrics.clone(), health.clone()).await.unwrap();
        let source = StoreSource::Reader(Box::new(store));
        let server = if checks_store { server.with_store(source.clone()) } else { server };
        let context = ApiContext::new(&config, limits, access, source, broker);
        let (address, server) = (server.address(), server.with_api(context));
        tokio::spawn(server.serve(std::future::pending()));
        // The second server of a test finds a provider.
        drop(rustls::crypto::ring::default_provider().install_default());
        Api { address, client: Client::new(), health, metrics }
    }

    /// Sends a request; the description of the API must have the status of the answer.
    pub async fn send(&self, method: Method, path: &str, content: Option<(&str, Vec<u8>)>) -> (StatusCode, Bytes) {
        let mut request = self.client.request(method.clone(), format!("http://{}{path}", self.address));
        if let Some((media_type, body)) = content {
            request = request.header("Content-Type", media_type).body(body);
        }
        let answer = request.send().await.unwrap();
        openapi::assert_described(&method, path, answer.status());
        (answer.status(), answer.bytes().await.unwrap())
    }

    /// Returns the status and the JSON of an answer.
    pub async fn get(&self, path: &str) -> (u16, Value) {
        let (status, body) = self.send(Method::GET, path, None).await;
        let text = String::from_utf8_lossy(&body).into_owned();
        (status.as_u16(), serde_json::from_slice(&body).unwrap_or_else(|_| panic!("{path}: {text}")))
    }

    pub async fn post_json(&self, path: &str, body: Value) -> (u16, Value) {
        let (status, body) = self.send(Method::POST, path, Some(("application/json", body.to_string().into()))).await;
        (status.as_u16(), serde_json::from_slice(&body).unwrap())
    }
}

/// A world with a partial transaction, two live transactions, a rival that lost, and a block with the first.
pub struct Scene {
    pub world: World,
    pub running: Running,
    pub parent: Made,
    pub mined: Made,
    pub child: Made,
    pub loser: Made,
}

pub async fn scene() -> Scene {
    let world = World::with_settings(WorldSettings::with_blobs(3, 2_000)).await;
    let running = world.start();
    let parent = world.seed(1, 4).await;
    let mined = spend(&[parent.coin(0)], 2, 1);
    let child = spend(&[mined.coin(0)], 7, 2);
    let loser = spend(&[parent.coin(0)], 1, 3);
    world.validate(&mined).await;
    world.until_consumed().await;
    world.validate(&child).await;
    world.validate(&loser).await;
    world.until_consumed().await;
    world.mine(1, &[&mined]).await;
    world.until_consumed().await;
    Scene { world, running, parent, mined, child, loser }
}

/// Stores a contested transaction without an event and without a verdict.
pub async fn plant_undecided(store: &StateStore, txid: Txid) {
    let contested = Operation::Sequenced(Stamp::in_era(0, 1_000, Phase::Evaluate), Sequenced::MarkContested);
    store.apply(vec![Row { key: Key::master(txid), operation: contested }]).await.unwrap();
}

#[tokio::test]
async fn a_transaction_is_read_by_its_fields() {
    let Scene { world, running, parent, mined, child, loser } = scene().await;
    let api = Api::start(&world, &[]).await;
    let (status, shown) = api.get(&format!("/v1/transactions/{}", mined.txid)).await;
    assert_eq!(status, 200, "{shown}");
    assert_eq!(
        (&shown["state"], &shown["isCoinbase"], &shown["unminedSince"]),
        (&json!("live"), &json!(false), &Value::Null)
    );
    assert_eq!(shown["blockHeights"].as_array().unwrap().len(), 1);
    assert!(shown.get("tx").is_none() && shown.get("spendingData").is_none(), "{shown}");
    let (_, fields) = api.get(&format!("/v1/transactions/{}?fields=fee,txInpoints,spendingData", mined.txid)).await;
    let expected = json!({
        "fee": 0,
        "txInpoints": {"parentTxHashes": [parent.txid.to_string()], "idxs": [[0]]},
        "spendingData": [format!("{}:0", child.txid), null],
    });
    assert_eq!(fields, expected);
    let (_, all) = api.get(&format!("/v1/transactions/{}?fields=*", child.txid)).await;
    assert_eq!(all["tx"], hex::encode(&child.extended));
    assert_eq!((all["spendingData"].as_array().unwrap().len(), &all["external"]), (7, &json!(true)));
    let (_, lost) = api.get(&format!("/v1/transactions/{}", loser.txid)).await;
    assert_eq!((&lost["state"], &lost["conflicting"]), (&json!("conflicting"), &json!(true)));
    assert!(lost["reason"].as_str().unwrap().contains("spent by"), "{lost}");
    running.kill().await;
}

#[tokio::test]
async fn a_raw_transaction_is_sent_in_either_format() {
    let Scene { world, running, parent, mined, child, .. } = scene().await;
    let api = Api::start(&world, &[]).await;
    for made in [&mined, &child] {
        let mut standard = Vec::new();
        Transaction::parse(&made.extended).unwrap().write_standard(&mut standard);
        let path = format!("/v1/transactions/{}/raw", made.txid);
        assert_eq!(api.send(Method::GET, &path, None).await, (StatusCode::OK, standard.into()));
        let extended = api.send(Method::GET, &format!("{path}?format=extended"), None).await;
        assert_eq!(extended, (StatusCode::OK, made.extended.clone()));
    }
    let (status, problem) = api.get(&format!("/v1/transactions/{}/raw", parent.txid)).await;
    assert_eq!((status, problem["status"].as_u64()), (404, Some(404)), "a partial transaction has no body");
    let (_, previous) = api.get(&format!("/v1/transactions/{}/previous-outputs", child.txid)).await;
    let coin = mined.coin(0);
    let expected = json!([{"satoshis": coin.satoshis, "script": hex::encode(&coin.script)}]);
    assert_eq!(previous["previousOutputs"], expected);
    running.kill().await;
}

#[tokio::test]
async fn an_output_answers_what_a_spend_would_be_told() {
    let Scene { world, running, parent, mined, child, loser } = scene().await;
    let api = Api::start(&world, &[]).await;
    let status = async |made: &Made, vout: u32| {
        let (status, shown) = api.get(&format!("/v1/outputs/{}/{vout}", made.txid)).await;
        assert_eq!(status, 200, "{shown}");
        shown
    };
    let spent = status(&parent, 0).await;
    assert_eq!((&spent["status"], &spent["spender"]["txid"]), (&json!("SPENT"), &json!(mined.txid.to_string())));
    assert_eq!(spent["satoshis"], parent.coin(0).satoshis);
    let free = status(&child, 6).await;
    assert_eq!((&free["status"], &free["script"]), (&json!("OK"), &json!(hex::encode(child.coin(6).script))));
    assert_eq!(free["utxoHash"], child.coin(6).utxo_hash().to_string());
    assert_eq!(status(&parent, 1).await["status"], "OK");
    assert_eq!(status(&parent, 9).await["status"], "NOT_FOUND");
    assert_eq!(status(&loser, 0).await["status"], "CONFLICTING");
    let (_, plain) = api.get(&format!("/v1/outputs/{}/6?output=false&height=7", child.txid)).await;
    assert_eq!((&plain["status"], &plain["satoshis"]), (&json!("OK"), &Value::Null));
    running.kill().await;
}

#[tokio::test]
async fn a_batch_answers_in_the_order_of_its_keys() {
    let Scene { world, running, parent, mined, child, .. } = scene().await;
    let api = Api::start(&world, &[]).await;
    let keys =
        json!([format!("{}:0", parent.txid), "junk", format!("{}:6", child.txid), format!("{}:0", "00".repeat(32))]);
    let (status, shown) = api.post_json("/v1/outputs:batch", json!({"outpoints": keys})).await;
    assert_eq!(status, 200, "{shown}");
    let statuses: Vec<&Value> = shown["outputs"].as_array().unwrap().iter().map(|output| &output["status"]).collect();
    assert_eq!(statuses, [&json!("SPENT"), &Value::Null, &json!("OK"), &json!("NOT_FOUND")]);
    assert_eq!(shown["outputs"][1]["error"]["status"], 400, "{shown}");

    let key = |outpoint: Outpoint| [&outpoint.txid.0[..], &outpoint.vout.to_le_bytes()].concat();
    let body = [key(parent.coin(0).outpoint), key(child.coin(6).outpoint)].concat();
    let (status, records) =
        api.send(Method::POST, "/v1/outputs:batch?output=true", Some(("application/octet-stream", body))).await;
    assert_eq!(status, 200);
    let records = split_records(&records);
    assert_eq!((records[0][0], &records[0][2..34]), (2, &mined.txid.0[..]), "spent by the mined transaction");
    assert_eq!((records.len(), records[1][0], records[1][1]), (2, 1, 12), "unspent, with hash and output");

    let txids = json!([mined.txid.to_string(), "11".repeat(32), "junk", child.txid.to_string()]);
    let (_, shown) = api.post_json("/v1/transactions:batch?fields=txid,tx", json!({"txids": txids})).await;
    let expected = json!({"txid": mined.txid.to_string(), "tx": hex::encode(&mined.extended)});
    assert_eq!((&shown["transactions"][0], &shown["transactions"][1]), (&expected, &Value::Null));
    assert_eq!(shown["transactions"][2]["error"]["status"], 400);
    assert_eq!(shown["transactions"][3]["tx"], hex::encode(&child.extended));
    let many: Vec<String> = (0..3_000).map(|n| [parent.txid, child.txid, mined.txid][n % 3].to_string()).collect();
    let (_, shown) = api.post_json("/v1/transactions:batch", json!({"txids": many})).await;
    let found: Vec<&Value> = shown["transactions"].as_array().unwrap().iter().map(|found| &found["txid"]).collect();
    assert_eq!(found, many.iter().collect::<Vec<_>>(), "a batch of several parts");

    let body = [mined.txid.0, [9; 32], child.txid.0].concat();
    let path = "/v1/transactions:batch?fields=tx";
    let (_, records) = api.send(Method::POST, path, Some(("application/octet-stream", body))).await;
    let records = split_records(&records);
    assert_eq!((records.len(), records[0][0], &records[1][..]), (3, 1, &[0][..]));
    assert!(records[2].ends_with(&child.extended));
    running.kill().await;
}

pub fn split_records(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut records = Vec::new();
    while let Some((len, rest)) = bytes.split_first_chunk() {
        let (record, rest) = rest.split_at(u32::from_le_bytes(*len) as usize);
        records.push(record.to_vec());
        bytes = rest;
    }
    assert!(bytes.is_empty());
    records
}

#[tokio::test]
async fn conflicts_history_and_blocks_are_read() {
    let Scene { world, running, mined, child, loser, .. } = scene().await;
    let api = Api::start(&world, &[]).await;
    let (_, conflicts) = api.get(&format!("/v1/conflicts/{}", loser.txid)).await;
    let rivals = json!([mined.txid.to_string(), child.txid.to_string()]);
    assert_eq!(conflicts["counterConflicting"], json!({"txids": rivals, "more": false}));
    let (_, bounded) = api.get(&format!("/v1/conflicts/{}?limit=1", loser.txid)).await;
    assert_eq!(bounded["counterConflicting"]["more"], true);
    let (_, history) = api.get(&format!("/v1/transactions/{}/history", loser.txid)).await;
    let lines = history["history"].as_array().unwrap();
    assert!(lines.iter().any(|line| line["what"].as_str().unwrap().starts_with("contested by")), "{history}");
    assert!(lines.iter().any(|line| line["what"].as_str().unwrap().starts_with("conflicting")), "{history}");
    assert_eq!(history["cursor"], Value::Null, "the logs were read to their ends");
    let (_, whole) = api.get(&format!("/v1/transactions/{}/history?cursor=earliest", loser.txid)).await;
    assert_eq!(whole, history);
    let (_, rest) = api.get(&format!("/v1/transactions/{}/history?cursor=1000,1000", loser.txid)).await;
    assert_eq!(rest, json!({"history": [], "cursor": null}));
    let (_, shown) = api.get(&format!("/v1/transactions/{}?fields=blockIDs,blockHeights", mined.txid)).await;
    let (status, by_id) = api.get(&format!("/v1/blocks/{}", shown["blockIDs"][0])).await;
    let block = &by_id["blocks"][0];
    assert_eq!((status, &block["height"], &block["longestChain"]), (200, &shown["blockHeights"][0], &json!(true)));
    assert_eq!(api.get(&format!("/v1/blocks/{}", block["hash"].as_str().unwrap())).await.1, by_id);
    assert_eq!(api.get(&format!("/v1/blocks/height:{}", block["height"])).await.1, by_id);

    let of_loser = spend(&[loser.coin(0)], 1, 4);
    world.validate(&of_loser).await;
    let coinbase = world.mine(2, &[]).await;
    world.until_consumed().await;
    let (_, conflicts) = api.get(&format!("/v1/conflicts/{}", loser.txid)).await;
    let descendants = json!({"txids": [of_loser.txid.to_string()], "more": false});
    assert_eq!(conflicts["conflictingDescendants"], descendants, "{conflicts}");
    let (_, chain) = api.get("/v1/chain").await;
    let (_, latest) = api.get(&format!("/v1/blocks/height:{}", chain["height"])).await;
    assert_eq!((&latest["blocks"][0]["hash"], &latest["blocks"][0]["time"]), (&chain["hash"], &chain["medianTime"]));
    assert_eq!(chain["retention"], world.store.settings.rules.retention, "{chain}");
    let (status, none) = api.get(&format!("/v1/transactions/{}/previous-outputs", coinbase.txid)).await;
    assert_eq!((status, none), (200, json!({"previousOutputs": []})));
    running.kill().await;
}

#[tokio::test]
async fn unmined_and_conflicting_transactions_are_listed_line_by_line() {
    let Scene { world, running, mined, child, loser, .. } = scene().await;
    let api = Api::start(&world, &[]).await;
    let list = async |query: &str| -> Vec<Value> {
        let (status, lines) = api.send(Method::GET, &format!("/v1/transactions?{query}"), None).await;
        assert_eq!(status, 200);
        String::from_utf8(lines.to_vec()).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let unmined = list("unmined=true").await;
    assert_eq!((unmined.len(), &unmined[0]["txid"]), (1, &json!(child.txid.to_string())));
    assert_eq!(
        list(&format!("unmined=true&cursor={}", unmined[0]["cursor"].as_str().unwrap())).await,
        [Value::Null; 0]
    );

    let of_loser = spend(&[loser.coin(0)], 1, 4);
    let undecided = Txid([7; 32]);
    world.validate(&of_loser).await;
    world.until_consumed().await;
    plant_undecided(&world.store, undecided).await;
    let conflicting = list("conflicting=true").await;
    let shown: Vec<(&str, &Value)> =
        conflicting.iter().map(|line| (line["txid"].as_str().unwrap(), &line["winner"])).collect();
    let (mined, none) = (json!(mined.txid.to_string()), Value::Null);
    let (undecided, loser, of_loser) = (undecided.to_string(), loser.txid.to_string(), of_loser.txid.to_string());
    assert_eq!(shown[0], (undecided.as_str(), &none), "{conflicting:?}");
    for expected in [(loser.as_str(), &mined), (of_loser.as_str(), &none)] {
        assert!(shown[1..].contains(&expected), "{expected:?}: {conflicting:?}");
    }
    assert_eq!((shown.len(), &conflicting[0]["reason"]), (3, &none), "{conflicting:?}");
    for (index, line) in conflicting.iter().enumerate() {
        let rest = list(&format!("conflicting=true&cursor={}", line["cursor"].as_str().unwrap())).await;
        assert_eq!(rest, conflicting[index + 1..]);
        let next = list(&format!("conflicting=true&limit=1&cursor={}", line["cursor"].as_str().unwrap())).await;
        assert_eq!(next, conflicting[index + 1..].iter().take(1).cloned().collect::<Vec<_>>());
    }
    for query in [
        "conflicting=true&unmined=true".to_owned(),
        "conflicting=true&until=7".to_owned(),
        format!("conflicting=true&cursor={}", unmined[0]["cursor"].as_str().unwrap()),
        format!("unmined=true&cursor={}", conflicting[0]["cursor"].as_str().unwrap()),
    ] {
        assert_eq!(api.get(&format!("/v1/transactions?{query}")).await.0, 400, "{query}");
    }
    running.kill().await;
}

#[tokio::test]
async fn bad_requests_are_answered_with_problems_that_name_the_fault() {
    let Scene { world, running, mined, .. } = scene().await;
    let api = Api::start(&world, &[("HTTP__MAX_BATCH", "2"), ("HTTP__MAX_BODY_BYTES", "1024")]).await;
    let unknown = "12".repeat(32);
    for (path, status, words) in [
        ("/v1/transactions/xyz".to_owned(), 400, "`xyz`"),
        ("/v1/transactions/%FF".to_owned(), 400, "UTF-8"),
        ("/v1/outputs/%FF/0".to_owned(), 400, "UTF-8"),
        (format!("/v1/transactions/{unknown}"), 404, &unknown[..]),
        (format!("/v1/transactions/{}?fields=fees", mined.txid), 400, "`fees`"),
        (format!("/v1/transactions/{}?field=fee", mined.txid), 400, "`field`"),
        (format!("/v1/transactions/{}/raw?format=hex", mined.txid), 400, "hex"),
        (format!("/v1/outputs/{}/4294967296", mined.txid), 400, "4294967296"),
        (format!("/v1/outputs/{}/-1", mined.txid), 400, "`-1`"),
        (format!("/v1/outputs/{}/0?height=x", mined.txid), 400, "height"),
        (format!("/v1/conflicts/{}?limit=0", mined.txid), 400, "limit"),
        (format!("/v1/transactions/{}/history?cursor=late", mined.txid), 400, "earliest"),
        ("/v1/blocks/height:x".to_owned(), 400, "`x`"),
        ("/v1/blocks/height:77".to_owned(), 404, "77"),
        ("/v1/blocks/77".to_owned(), 404, "77"),
        ("/v1/transactions".to_owned(), 400, "unmined"),
        ("/v1/transactions?unmined=true&cursor=zz".to_owned(), 400, "zz"),
        ("/v1/nothing".to_owned(), 404, "path"),
        ("/v1/outputs:batch".to_owned(), 405, "method"),
    ] {
        let (found, problem) = api.get(&path).await;
        assert_eq!((found, problem["status"].as_u64()), (status, Some(status.into())), "{path}: {problem}");
        assert!(problem["detail"].as_str().unwrap().contains(words), "{path}: {problem}");
    }
    let path = "/v1/outputs:batch";
    let key = format!("{}:0", mined.txid);
    let too_many = api.post_json(path, json!({"outpoints": [key, key, key]})).await;
    assert_eq!(too_many.0, 413, "{too_many:?}");
    let other_field = api.post_json(path, json!({"outpoints": [], "more": 1})).await;
    assert!(other_field.0 == 400 && other_field.1["detail"].as_str().unwrap().contains("more"), "{other_field:?}");
    let large = api.send(Method::POST, path, Some(("application/octet-stream", vec![0; 1_025]))).await;
    assert_eq!(large.0, 413);
    let cut = api.send(Method::POST, path, Some(("application/octet-stream", vec![0; 35]))).await;
    assert_eq!(cut.0, 400);
    let other_type = api.send(Method::POST, path, Some(("text/plain", vec![0; 36]))).await;
    assert_eq!(other_type.0, 415);
    running.kill().await;
}

#[tokio::test]
async fn a_request_needs_the_token_of_its_role() {
    let world = World::new().await;
    let directory = tempfile::tempdir().unwrap();
    let tokens = directory.path().join("tokens");
    std::fs::write(&tokens, "read 0123456789abcdef0123456789abcdef\n").unwrap();
    let api = Api::start(&world, &[("HTTP__TOKENS_FILE", tokens.to_str().unwrap())]).await;
    let path = format!("/v1/transactions/{}", "12".repeat(32));
    assert_eq!(api.get(&path).await.0, 401, "an absent transaction is not told from a present one");
    assert_eq!(api.get("/v1/chain").await.0, 401);
    let request = api.client.get(format!("http://{}{path}", api.address));
    let answer = request.header("Authorization", "Bearer 0123456789abcdef0123456789abcdef").send().await.unwrap();
    assert_eq!(answer.status(), 404);
    let live = api.send(Method::GET, "/health/live", None).await;
    assert_eq!(live.0, 200, "probes need no token");
    assert_eq!(api.get("/state").await.0, 401, "the state page names transactions");
    let request = api.client.get(format!("http://{}/state", api.address));
    let answer = request.header("Authorization", "Bearer 0123456789abcdef0123456789abcdef").send().await.unwrap();
    assert_eq!(answer.status(), 200);
}

/// A store that does not answer.
#[tokio::test]
async fn a_store_that_does_not_answer_is_a_503_within_the_time_limit() {
    let (world, engine) = crate::health::failing_world().await;
    engine.fail_reads(|_| true);
    let hanging = StateStore { engine, ..world.store.clone() };
    let api = Api::over(hanging, None, &[("HTTP__TIMEOUT_MS", "200")]).await;
    let txid = World::partial(1, 1).txid;
    let (status, problem) = api.get(&format!("/v1/transactions/{txid}?fields=*")).await;
    assert!(status == 503 && problem["detail"].as_str().unwrap().contains("the store"), "{problem}");
    let (status, _) = api.get(&format!("/v1/transactions/{txid}/history")).await;
    assert_eq!(status, 503, "this server has no log");
    let metrics = api.metrics.encode().unwrap();
    let line = "utxo_http_requests_total{method=\"GET\",route=\"/v1/transactions/{txid}\",status=\"503\"} 1";
    assert!(metrics.lines().any(|found| found == line), "{metrics}");
}

#[tokio::test]
async fn a_slow_sender_gets_a_408_and_delays_nobody() {
    let world = World::new().await;
    let api = Api::start(&world, &[("HTTP__TIMEOUT_MS", "200")]).await;
    let mut slow = TcpStream::connect(api.address).await.unwrap();
    let head = "POST /v1/outputs:batch HTTP/1.1\r\nHost: x\r\nContent-Type: application/octet-stream\r\n\
                Content-Length: 36\r\nConnection: close\r\n\r\n";
    slow.write_all(head.as_bytes()).await.unwrap();
    slow.write_all(&[0; 7]).await.unwrap();
    assert_eq!(api.get("/v1/nothing").await.0, 404);
    let mut answer = String::new();
    slow.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
}
