//! Connections, headers and probes of the API: what a client sees that is gone, slow, one too many, or revoked.

use std::{
    fs,
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use reqwest::{Method, Response};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use utxo_store::store::StateStore;

use crate::{
    api::{Api, plant_undecided},
    harness::World,
};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const OTHER: &str = "fedcba9876543210fedcba9876543210";

/// Lets an instance handle an event, so that the store has its meta record.
async fn bind(world: &World) {
    let running = world.start();
    world.seed(1, 1).await;
    world.until_consumed().await;
    running.kill().await;
}

async fn ask(api: &Api, path: &str) -> Response {
    api.client.get(format!("http://{}{path}", api.address)).send().await.unwrap()
}

/// Sends a request on a connection of its own, and returns the whole answer.
async fn ask_alone(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    let read = tokio::time::timeout(Duration::from_secs(30), stream.read_to_string(&mut answer)).await;
    read.expect("the server closes a connection of the reserve").unwrap();
    answer
}

#[tokio::test]
async fn connections_that_say_nothing_keep_no_probe_out() {
    let world = World::new().await;
    bind(&world).await;
    let api = Api::start(&world, &[("HTTP__MAX_CONNECTIONS", "2")]).await;
    let mut silent = Vec::new();
    for _ in 0..2 {
        silent.push(TcpStream::connect(api.address).await.unwrap());
    }
    // The listener has accepted both before a third.
    for path in ["/health/live", "/metrics"] {
        let answer = ask_alone(api.address, path).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    }
    let begun = Instant::now();
    let refused = ask_alone(api.address, "/v1/chain").await;
    assert!(refused.starts_with("HTTP/1.1 429") && refused.contains("http.max_connections"), "{refused}");
    assert!(refused.contains("retry-after: 1\r\n") && begun.elapsed() < Duration::from_secs(5), "{refused}");
    // A client opens one connection after the other, far more than 32 a second, and says nothing.
    let mut reserved = Vec::new();
    for _ in 0..400 {
        reserved.push(TcpStream::connect(api.address).await.unwrap());
    }
    let begun = Instant::now();
    assert!(ask_alone(api.address, "/health/live").await.starts_with("HTTP/1.1 200"));
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}: the places of silent connections", begun.elapsed());
    drop((silent, reserved));
    let begun = Instant::now();
    while !ask_alone_until_closed(api.address).await {
        assert!(begun.elapsed() < Duration::from_secs(30), "the places come back");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Returns whether a connection has a usual place: its request of the API is answered.
async fn ask_alone_until_closed(address: SocketAddr) -> bool {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /v1/chain HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer.starts_with("HTTP/1.1 200")
}

/// A client that is gone without a word, and one that sends half of a head: the server closes both.
#[tokio::test]
async fn half_open_connections_are_closed() {
    let world = World::new().await;
    let api = Api::start(&world, &[]).await;
    let mut silent = TcpStream::connect(api.address).await.unwrap();
    let mut half = TcpStream::connect(api.address).await.unwrap();
    half.write_all(b"GET /v1/chain HTTP/1.1\r\nHost:").await.unwrap();
    let mut idle = TcpStream::connect(api.address).await.unwrap();
    idle.write_all(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    for stream in [&mut silent, &mut half, &mut idle] {
        let mut rest = Vec::new();
        let closed = tokio::time::timeout(Duration::from_secs(30), stream.read_to_end(&mut rest)).await;
        closed.expect("the server closes the connection").ok();
    }
}

#[tokio::test]
async fn the_head_of_a_request_has_a_limit() {
    let world = World::new().await;
    let api = Api::start(&world, &[]).await;
    for (padding, status) in [(30_000, "200"), (100_000, "431")] {
        let mut stream = TcpStream::connect(api.address).await.unwrap();
        let head = format!(
            "GET /health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Pad: {}\r\n\r\n",
            "x".repeat(padding)
        );
        // The server closes the connection while the rest of the head is sent.
        stream.write_all(head.as_bytes()).await.ok();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(std::str::from_utf8(&answer).unwrap(), format!("HTTP/1.1 {status}"));
    }
}

#[tokio::test]
async fn each_answer_has_a_request_id_and_a_busy_server_says_when_to_ask_again() {
    let (world, engine) = crate::health::failing_world().await;
    bind(&world).await;
    let hanging = StateStore { engine: engine.clone(), ..world.store.clone() };
    let api = Api::over(hanging, None, &[("HTTP__TIMEOUT_MS", "200")]).await;
    let random = ask(&api, "/v1/chain").await;
    let id = random.headers()["x-request-id"].to_str().unwrap().to_owned();
    assert_eq!((random.status().as_u16(), id.len()), (200, 16));
    assert!(random.headers().get("retry-after").is_none());
    assert_ne!(ask(&api, "/v1/chain").await.headers()["x-request-id"], id);
    let own = api.client.get(format!("http://{}/v1/nothing", api.address)).header("X-Request-Id", "mine-7");
    let own = own.send().await.unwrap();
    assert_eq!((own.status().as_u16(), &own.headers()["x-request-id"]), (404, &"mine-7".parse().unwrap()));
    let long = api.client.get(format!("http://{}/v1/chain", api.address)).header("X-Request-Id", "x".repeat(65));
    assert_eq!(long.send().await.unwrap().headers()["x-request-id"].len(), 16, "too long for the log");

    engine.fail_reads(|_| true);
    let away = ask(&api, &format!("/v1/transactions/{}", World::partial(1, 1).txid)).await;
    assert_eq!((away.status().as_u16(), &away.headers()["retry-after"]), (503, &"1".parse().unwrap()));
    assert_eq!(away.headers()["x-request-id"].len(), 16);
}

#[tokio::test]
async fn a_deep_probe_writes_and_reads_the_store() {
    let (world, engine) = crate::health::failing_world().await;
    bind(&world).await;
    let store = StateStore { engine: engine.clone(), ..world.store.clone() };
    let api = Api::with_deep_check(store, &[("HTTP__TIMEOUT_MS", "200")]).await;
    for condition in [utxo_store::status::Condition::Assigned, utxo_store::status::Condition::StoreReachable] {
        api.health.set(condition, None);
    }
    let until_answered = async |expected: u16| {
        let begun = Instant::now();
        loop {
            let answer = ask(&api, "/health/ready?deep=true").await;
            let status = answer.status().as_u16();
            let report: Value = serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap();
            if status == expected {
                return report;
            }
            assert!(begun.elapsed() < Duration::from_secs(30), "{report}");
            // An earlier result still answers.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    until_answered(200).await;
    engine.fail_applies(|_| true);
    let report = until_answered(503).await;
    let why = report["reasons"]["store_check"].as_str().unwrap();
    assert!(report["ok"] == false && why.contains("cannot write the meta record of the store: "), "{report}");
    engine.fail_applies(|_| false);
    until_answered(200).await;
    // The write reads the record first: only the read after the write fails.
    let has_written = Arc::new(AtomicBool::new(false));
    let (writing, reading) = (has_written.clone(), has_written);
    engine.fail_applies(move |_| {
        writing.store(true, Ordering::Relaxed);
        false
    });
    engine.fail_reads(move |_| reading.load(Ordering::Relaxed));
    let report = until_answered(503).await;
    let why = report["reasons"]["store_check"].as_str().unwrap();
    assert!(why.contains("cannot read the meta record of the store: "), "{report}");
    assert_eq!(ask(&api, "/health/ready").await.status(), 200, "the probe of every second asks no store");
}

#[tokio::test]
async fn unknown_parameters_are_refused_by_name_outside_of_the_api_too() {
    let world = World::new().await;
    let api = Api::start(&world, &[]).await;
    let paths = ["/metrics", "/health/live", "/health/ready", "/state", "/openapi.json", "/docs", "/", "/unmined"];
    for path in paths {
        let (status, body) = api.send(Method::GET, &format!("{path}?depth=1"), None).await;
        let text = String::from_utf8_lossy(&body);
        assert!(status == 400 && text.contains("depth"), "{path}: {status} {text}");
    }
    let (status, problem) = api.get("/v1/blocks/+5").await;
    assert!(status == 400 && problem["detail"].as_str().unwrap().contains("+5"), "{problem}");
    assert_eq!(api.send(Method::GET, "/blocks/height:+5", None).await.0, 400);
}

/// Opens a stream with a token, and returns the answer.
async fn open_stream(api: &Api, path: &str, token: &str) -> Response {
    let request =
        api.client.get(format!("http://{}{path}", api.address)).header("Authorization", format!("Bearer {token}"));
    let answer = request.send().await.unwrap();
    assert_eq!(answer.status(), 200);
    answer
}

fn write_tokens(path: &Path, tokens: &[&str]) {
    let lines: String = tokens.iter().map(|token| format!("read {token}\n")).collect();
    fs::write(path, lines).unwrap();
}

/// The stream is quiet: only the change of the file ends the stream.
#[tokio::test]
async fn the_streams_of_a_revoked_token_end_and_others_go_on() {
    let world = World::new().await;
    plant_undecided(&world.store, World::partial(7, 1).txid).await;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens");
    write_tokens(&path, &[TOKEN, OTHER]);
    let api = Api::start(&world, &[("HTTP__TOKENS_FILE", path.to_str().unwrap())]).await;
    let revoked = open_stream(&api, "/v1/outcomes", TOKEN).await;
    let mut kept = open_stream(&api, "/v1/outcomes", OTHER).await;
    let position = kept.chunk().await.unwrap().expect("the stream begins with its position");
    assert!(position.starts_with(b"id: "), "{position:?}");
    write_tokens(&path, &[OTHER]);
    let rest = tokio::time::timeout(Duration::from_secs(30), revoked.bytes()).await;
    let rest = rest.expect("the stream ends").unwrap();
    let rest = std::str::from_utf8(&rest).unwrap();
    assert!(rest.contains("event: end") && rest.contains("the token was revoked"), "{rest}");
    assert_eq!(rest.matches("event:").count(), 1, "{rest}");
    assert!(tokio::time::timeout(Duration::from_millis(300), kept.chunk()).await.is_err(), "the other goes on");
    let request = api.client.get(format!("http://{}/v1/chain", api.address));
    let answer = request.header("Authorization", format!("Bearer {TOKEN}")).send().await.unwrap();
    assert_eq!(answer.status(), 401);
}
