//! `/state`: its content, its answer while the store hangs, and the absence of secrets in pages and log lines.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use utxo_store::{
    api::{Server, ServerSettings},
    config::Config,
    record::Key,
    status::Health,
    telemetry::Metrics,
};

use crate::{
    harness::{Running, World, spend},
    health::failing_world,
    kafka_server::KafkaServer,
    run::{Bench, until},
};

/// Returns the page of an instance as JSON.
fn page(health: &Health) -> Value {
    serde_json::to_value(health.status_registry().page(health)).unwrap()
}

/// Returns the answer of the server to a request from outside.
async fn request(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

async fn seconds(count: u64) {
    tokio::time::sleep(Duration::from_secs(count)).await;
}

/// Returns the partitions on the page, by number.
fn partitions(page: &Value) -> Vec<Value> {
    page["pipeline"]["partitions"].as_array().unwrap().clone()
}

fn sum(page: &Value, field: &str) -> u64 {
    partitions(page).iter().map(|partition| partition[field].as_u64().unwrap_or(0)).sum()
}

#[tokio::test(start_paused = true)]
async fn the_page_shows_progress_and_waits() {
    let (world, engine) = failing_world().await;
    let running: Running = world.start();
    let seed = world.seed(1, 2).await;
    let first = world.mine(1, &[]).await;
    world.until_consumed().await;
    seconds(1).await;
    let shown = page(&running.health);
    assert_eq!((&shown["ready"], &shown["store"]), (&true.into(), &"troubled".into()));
    assert_eq!(shown["conditions"]["assigned"]["met"], true);
    assert_eq!(partitions(&shown).len(), 3);
    for field in ["position", "watermark", "committed", "high_watermark"] {
        assert_eq!(sum(&shown, field), 1, "{field}: {shown}");
    }
    assert_eq!((sum(&shown, "lag_messages"), sum(&shown, "unfinished_events")), (0, 0));
    assert_eq!((&shown["chain"]["held"], &shown["chain"]["tip"]["height"]), (&true.into(), &101.into()));
    assert_eq!((&shown["chain"]["event"], &shown["chain"]["partition"]["watermark"]), (&Value::Null, &1.into()));
    assert_eq!(shown["chain"]["waits_for"], Value::Array(vec![]));

    // A block waits for an unknown transaction, a child waits for the same one, and the store does not answer about a
    // third.
    let absent = spend(&[seed.coin(0)], 1, 1);
    let child = spend(&[absent.coin(0)], 1, 2);
    world.mine(2, &[&absent]).await;
    world.validate(&child).await;
    let hangs = World::partial(9, 1);
    *engine.hangs.lock().unwrap() = Some(Key::master(hangs.txid));
    world.produce_partial(&hangs).await;
    seconds(60).await;
    let shown = page(&running.health);
    assert_eq!(sum(&shown, "position") - sum(&shown, "watermark"), 2, "{shown}");
    assert_eq!((sum(&shown, "parked"), sum(&shown, "unfinished_events")), (1, 2));
    let metrics = running.metrics.encode().unwrap();
    let parked = metrics.lines().filter(|line| line.starts_with("utxo_parked_events{") && line.ends_with(" 1")).count();
    assert_eq!(parked, 1, "{metrics}");
    let oldest: Vec<f64> = partitions(&shown)
        .iter()
        .filter_map(|partition| partition["oldest_in_flight"]["age_seconds"].as_f64())
        .collect();
    assert!(!oldest.is_empty() && oldest.iter().all(|age| (55.0..65.0).contains(age)), "{oldest:?}");
    let chain = &shown["chain"];
    assert_eq!((&chain["event"]["offset"], &chain["event"]["kind"]), (&1.into(), &"block-mined".into()), "{chain}");
    let waits = chain["waits_for"].to_string();
    assert!(waits.contains(&absent.txid.to_string()) && waits.contains("chain offset 1"), "{waits}");
    assert_eq!(shown["ready"], false);
    assert!(shown["conditions"]["chain_running"]["reason"].as_str().unwrap().contains(&absent.txid.to_string()));
    assert!(shown["pipeline"]["age_seconds"].as_f64().unwrap() < 5.0, "{shown}");
    drop(first);
    let group = |running: &Running| page(&running.health)["group"].clone();
    let before = group(&running);
    assert_eq!((&before["last_drain"], &before["rebalances"]["lost"]), (&Value::Null, &0.into()), "{before}");
    let assigned = before["rebalances"]["assigned"].as_u64().unwrap();
    assert_eq!(assigned, 2, "one assignment of three partitions, and one of the chain");
    world.broker.rebalance("g");
    seconds(10).await;
    let after = group(&running);
    assert_eq!((&after["rebalances"]["revoked"], &after["rebalances"]["assigned"]), (&1.into(), &3.into()), "{after}");
    assert_eq!(after["last_drain"]["reason"], "revocation", "{after}");
    assert!(
        after["last_drain"]["seconds"].as_f64().is_some_and(|seconds| seconds > 1.0),
        "the store does not answer: {after}"
    );
    assert_eq!(after["commit_failures"], serde_json::json!({ "broker": 0, "nodes": 0, "store": 0 }));
    running.kill().await;
}

#[tokio::test(start_paused = true)]
async fn a_halted_partition_has_a_reason_and_a_lost_one_disappears() {
    let mut world = World::new().await;
    world.settings.pipeline.dead_letter_limits.consecutive = 3;
    let running = world.start();
    for _ in 0..20 {
        world.produce("txs", b"poison", vec![9]).await;
    }
    seconds(5).await;
    let shown = page(&running.health);
    let halted: Vec<_> = partitions(&shown).into_iter().filter(|partition| !partition["halted"].is_null()).collect();
    assert_eq!((halted.len(), &halted[0]["paused"]), (1, &"the partition is halted".into()));
    assert!(halted[0]["halted"]["why"].as_str().unwrap().contains("dead letters"), "{halted:?}");
    world.broker.lose_assignments("g");
    let other = world.start();
    seconds(5).await;
    let held = [&running, &other].map(|running| partitions(&page(&running.health)).len());
    assert_eq!(held.iter().sum::<usize>(), 3, "{held:?}");
    for (running, held) in [&running, &other].into_iter().zip(held) {
        let metrics = running.metrics.encode().unwrap();
        let series =
            |name: &str| metrics.lines().filter(|line| line.starts_with(name) && line.contains("\"txs\"")).count();
        assert_eq!((series("utxo_parked_events{"), series("utxo_assignment_epoch{")), (held, held));
    }
    // An instance whose broker went away starts again within its process, so that any end removes the series.
    for running in [running, other] {
        let (health, metrics) = (running.health.clone(), running.metrics.clone());
        running.kill().await;
        let has_series = metrics.encode().unwrap().contains("topic=\"");
        assert!(!has_series, "series of partitions that the instance no longer has");
        assert_eq!((partitions(&page(&health)).len(), &page(&health)["chain"]["held"]), (0, &false.into()));
    }
}

/// The loops wait for the store; the page does not wait for the loops.
#[tokio::test]
async fn the_page_answers_while_the_store_hangs() {
    let (world, engine) = failing_world().await;
    let running = world.start();
    let free = SocketAddr::from(([127, 0, 0, 1], 0));
    let settings = ServerSettings::load(&Config::default().http).unwrap();
    let server = Server::bind(free, settings, Arc::new(Metrics::new()), running.health.clone()).await.unwrap();
    let address = server.address();
    tokio::spawn(server.serve(std::future::pending()));
    *engine.hangs.lock().unwrap() = Some(Key::master(World::partial(1, 1).txid));
    world.seed(1, 1).await;
    let mut shown = Value::Null;
    while shown["pipeline"]["in_flight"] != 1 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let answer = tokio::time::timeout(Duration::from_secs(30), request(address, "/state")).await;
        let answer = answer.expect("the page answers in time");
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("application/json"), "{answer}");
        shown = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
    }
    running.kill().await;
}

/// Secrets of the configuration are on no page and not in the log.
#[test]
fn pages_and_log_contain_no_secret() {
    const SECRETS: [&str; 4] = ["pLanted-kafka", "pLanted-user", "pLanted-aerospike", "pLanted-blobs"];
    let bench = Bench::new();
    let instance = bench.start_with(&[
        ("UTXO_STORE__LOG__LEVEL", "debug"),
        ("UTXO_STORE__KAFKA__PROPERTIES__SASL_PASSWORD", SECRETS[0]),
        ("UTXO_STORE__KAFKA__PROPERTIES__SASL_USERNAME", SECRETS[1]),
        ("UTXO_STORE__STORE__AEROSPIKE__USER", "someone"),
        ("UTXO_STORE__STORE__AEROSPIKE__PASSWORD", SECRETS[2]),
        ("UTXO_STORE__STORE__BLOBS__ACCESS_KEY_ID", "AKIA"),
        ("UTXO_STORE__STORE__BLOBS__SECRET_ACCESS_KEY", SECRETS[3]),
    ]);
    bench.seed(20);
    until("everything is committed", || bench.committed() == 20);
    let mut printed: Vec<String> =
        ["/state", "/metrics", "/health/ready", "/health/live"].map(|path| instance.get(path)).into();
    assert!(printed.iter().all(|answer| answer.starts_with("HTTP/1.1 200")), "{printed:?}");
    assert!(printed[0].contains(&bench.group()) && printed[0].contains("\"store\":\"fjall\""), "{}", printed[0]);
    printed.push(std::fs::read_to_string(bench.path("run.log")).unwrap());
    for (text, secret) in printed.iter().flat_map(|text| SECRETS.map(|secret| (text, secret))) {
        assert!(!text.contains(secret), "{secret}: {text}");
    }
}

/// Three instances on two partitions: the one without a partition stands by for the others, and is ready.
#[test]
fn an_instance_without_partitions_is_ready() {
    let benches = [(); 3].map(|()| Bench::new());
    let on_first = |bench: &Bench| {
        let brokers = benches[0].brokers().to_owned();
        bench.start_unready_with(&[("UTXO_STORE__KAFKA__BROKERS", &brokers), ("UTXO_STORE__STORE__URL", "memory://")])
    };
    let instances = benches.each_ref().map(on_first);
    until("all are ready", || {
        instances.iter().all(|instance| instance.get("/health/ready").starts_with("HTTP/1.1 200"))
    });
    let held =
        |instance: &crate::run::Instance| instance.get("/state").matches("\"topic\":\"utxo.validated-txs\"").count();
    until("one has no partition and all are ready", || {
        let mut held = instances.each_ref().map(held);
        held.sort();
        held == [0, 1, 1] && instances.iter().all(|instance| instance.get("/health/ready").starts_with("HTTP/1.1 200"))
    });
}

/// The broker belongs to this test: killed, it makes the instance unready with the reason, but not dead; started again,
/// it is found again.
#[test]
fn readiness_names_an_unreachable_broker_until_it_answers() {
    let Some(mut server) = KafkaServer::own() else { return };
    let bench = Bench::on(server.bootstrap_servers());
    bench.create_topics();
    let mut instance = bench.start();
    bench.seed(50);
    until("everything is committed", || bench.committed() == 50);
    server.kill();
    until("readiness names the broker", || {
        let answer = instance.get("/health/ready");
        answer.starts_with("HTTP/1.1 503") && answer.contains("\"broker_reachable\":")
    });
    for path in ["/health/live", "/state", "/metrics"] {
        assert!(instance.get(path).starts_with("HTTP/1.1 200"), "{path}");
    }
    assert!(instance.get("/metrics").contains("utxo_condition_met{condition=\"broker_reachable\"} 0"));
    assert!(instance.child.try_wait().unwrap().is_none());
    server.restart();
    until("it is ready again", || instance.get("/health/ready").starts_with("HTTP/1.1 200"));
    bench.seed(70);
    until("what came since is committed as well", || bench.committed() == 120);
    assert!(instance.get("/metrics").contains("utxo_condition_met{condition=\"broker_reachable\"} 1"));
    instance.signal("TERM");
    assert_eq!(instance.wait().code(), Some(0));
}
