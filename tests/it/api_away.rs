//! The API while the store stays silent, while the blob store is away, and the reads that a request makes.

use std::{sync::Arc, time::Duration};

use object_store::memory::InMemory;
use reqwest::Response;
use serde_json::{Value, json};
use utxo_store::{
    blob::{
        BlobOptions, BlobStore,
        fault::{BlobFault, FaultStore},
    },
    store::StateStore,
};

use crate::{
    api::Api,
    api_faults::{CountingEngine, OCTET_STREAM},
    harness::{World, WorldSettings, spend},
    health::failing_world,
};

/// Longest wait for an answer. A request that hangs fails the test.
const PATIENCE: Duration = Duration::from_secs(120);

async fn ask(api: &Api, path: &str, body: Option<(&str, Vec<u8>)>) -> Response {
    let url = format!("http://{}{path}", api.address);
    let request = match body {
        Some((media_type, body)) => api.client.post(url).header("Content-Type", media_type).body(body),
        None => api.client.get(url),
    };
    request.timeout(PATIENCE).send().await.unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn assert_unavailable(path: &str, answer: &Response) {
    let retry_after = answer.headers().get("retry-after").map(|value| value.to_str().unwrap());
    assert_eq!((answer.status().as_u16(), retry_after), (503, Some("1")), "{path}");
}

/// Protects: a store that accepts requests and answers none is a 503 within the time limit on every route that asks
/// the store, and on the pages.
#[tokio::test]
async fn a_silent_store_is_a_503_on_every_route() {
    let (world, engine) = failing_world().await;
    let running = world.start();
    let txid = world.seed(1, 1).await.txid.to_string();
    world.until_consumed().await;
    running.kill().await;
    let store = StateStore { engine: engine.clone(), ..world.store.clone() };
    let api = Api::over(store, Some(Arc::new(world.broker.clone())), &[("HTTP__TIMEOUT_MS", "300")]).await;
    let hash = "12".repeat(32);
    let gets = [
        format!("/v1/transactions/{txid}"),
        format!("/v1/transactions/{txid}?fields=*"),
        format!("/v1/transactions/{txid}/raw"),
        format!("/v1/transactions/{txid}/previous-outputs"),
        format!("/v1/transactions/{txid}/history"),
        format!("/v1/outputs/{txid}/0"),
        format!("/v1/conflicts/{txid}"),
        format!("/v1/blocks/{hash}"),
        "/v1/blocks/height:1".to_owned(),
        "/v1/chain".to_owned(),
        format!("/v1/commands/{}", "0a".repeat(16)),
        format!("/transactions/{txid}"),
        "/blocks/height:1".to_owned(),
    ];
    let posts = [
        ("/v1/outputs:batch", json!({"outpoints": [format!("{txid}:0"), format!("{hash}:1")]})),
        ("/v1/transactions:batch", json!({"txids": [txid, hash]})),
    ];
    engine.freeze(true);
    for path in &gets {
        assert_unavailable(path, &ask(&api, path, None).await);
    }
    for (path, body) in &posts {
        let answer = ask(&api, path, Some(("application/json", body.to_string().into()))).await;
        assert_unavailable(path, &answer);
    }
    engine.freeze(false);
    for path in &gets {
        assert_ne!(ask(&api, path, None).await.status(), 503, "{path}: the store is back");
    }
}

/// A world whose bodies are in a blob store that can fail, with an external transaction and an inline one.
async fn world_with_blobs() -> (World, FaultStore, [String; 2]) {
    let faults = FaultStore::new(Arc::new(InMemory::new()), 1);
    let options = BlobOptions { cache_time: Duration::ZERO, ..BlobOptions::default() };
    let mut world = World::with_settings(WorldSettings::with_blobs(3, 2_000)).await;
    world.store = world.store.with_blobs(Some(BlobStore::new(Arc::new(faults.clone()), options)));
    let running = world.start();
    let parent = world.seed(1, 2).await;
    let (inline, external) = (spend(&[parent.coin(0)], 2, 1), spend(&[parent.coin(1)], 200, 2));
    for made in [&inline, &external] {
        world.validate(made).await;
    }
    world.until_consumed().await;
    running.kill().await;
    (world, faults, [external.txid.to_string(), inline.txid.to_string()])
}

/// Protects: with the blob store away, reads of external bodies are a 503, and everything else is answered.
#[tokio::test]
async fn a_blob_store_that_is_away_is_a_503_for_its_bodies_alone() {
    let (world, faults, [external, inline]) = world_with_blobs().await;
    let api = Api::start(&world, &[("HTTP__TIMEOUT_MS", "300")]).await;
    let of_body = [
        format!("/v1/transactions/{external}/raw"),
        format!("/v1/transactions/{external}?fields=tx"),
        format!("/v1/transactions/{external}/previous-outputs"),
        format!("/v1/outputs/{external}/7"),
    ];
    let others = [
        format!("/v1/transactions/{external}"),
        format!("/v1/transactions/{external}?fields=spendingData"),
        format!("/v1/outputs/{external}/7?output=false"),
        format!("/v1/transactions/{inline}/raw"),
        format!("/v1/transactions/{inline}?fields=tx"),
    ];
    faults.fail_all(Some(BlobFault::LostRequest));
    for path in &of_body {
        assert_unavailable(path, &ask(&api, path, None).await);
    }
    for path in &others {
        assert_eq!(ask(&api, path, None).await.status(), 200, "{path}");
    }
    let body = json!({"txids": [external, inline]}).to_string();
    let batch = "/v1/transactions:batch?fields=tx";
    let answer = ask(&api, batch, Some(("application/json", body.into()))).await;
    assert_eq!(answer.status(), 200);
    let answer: Value = serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap();
    assert_eq!(answer["transactions"][0]["error"]["status"], 503, "{answer}");
    assert!(answer["transactions"][1]["tx"].is_string(), "{answer}");
    faults.fail_all(None);
    for path in &of_body {
        assert_eq!(ask(&api, path, None).await.status(), 200, "{path}: the blob store is back");
    }
}

/// Protects: the client of a raw transaction never takes a damaged body for a whole one.
#[tokio::test]
async fn a_damaged_body_is_no_whole_answer() {
    let (world, faults, [external, _]) = world_with_blobs().await;
    let api = Api::start(&world, &[("HTTP__TIMEOUT_MS", "300")]).await;
    for format in ["standard", "extended"] {
        faults.fail_all(Some(BlobFault::OtherBytes));
        let url = format!("http://{}/v1/transactions/{external}/raw?format={format}", api.address);
        // A short body ends before the head is sent, a longer one after it.
        let is_whole = match api.client.get(url).timeout(PATIENCE).send().await {
            Ok(answer) => answer.status() == 200 && answer.bytes().await.is_ok(),
            Err(error) => error.is_timeout(),
        };
        assert!(!is_whole, "{format}");
    }
}

/// Protects: the data of the master alone need one read of one record, whatever pages and body the transaction has.
#[tokio::test]
async fn only_what_is_asked_for_is_read() {
    let (world, faults, [external, _]) = world_with_blobs().await;
    let (engine, api) = CountingEngine::serve(&world).await;
    faults.fail_all(Some(BlobFault::Denied));
    let shown = api.get(&format!("/v1/transactions/{external}?fields=fee,sizeInBytes,external")).await;
    assert_eq!((shown.0, &shown.1["external"]), (200, &json!(true)));
    assert_eq!(engine.take_reads(), [1]);
    let body: Vec<u8> = hex::decode(&external).unwrap().into_iter().rev().collect();
    let (status, _) =
        api.send(reqwest::Method::POST, "/v1/transactions:batch", Some((OCTET_STREAM, body.repeat(100)))).await;
    assert_eq!((status.as_u16(), engine.take_reads().iter().sum::<usize>()), (200, 100), "no page is read");
}

/// Protects: pages of many transactions are read together, and a transaction of too many pages has an error of its own.
#[tokio::test]
async fn pages_of_a_batch_are_read_together() {
    const COUNT: usize = 40;
    let world = World::with_settings(WorldSettings::paged(2)).await;
    let running = world.start();
    let parent = world.seed(1, COUNT + 1).await;
    // Three slots are two pages, and seven are four.
    let mut made: Vec<_> = (0..COUNT as u32).map(|vout| spend(&[parent.coin(vout)], 3, 1)).collect();
    made.push(spend(&[parent.coin(COUNT as u32)], 7, 2));
    for made in &made {
        world.validate(made).await;
    }
    world.until_consumed().await;
    running.kill().await;
    let (engine, api) = CountingEngine::serve(&world).await;
    let txids: Vec<String> = made.iter().map(|made| made.txid.to_string()).collect();
    let (status, answer) = api.post_json("/v1/transactions:batch?fields=spendingData", json!({"txids": txids})).await;
    let answers = answer["transactions"].as_array().unwrap();
    assert_eq!((status, answers.len()), (200, COUNT + 1));
    assert!(answers[..COUNT].iter().all(|one| one["spendingData"] == json!([null, null, null])), "{answer}");
    assert_eq!(answers[COUNT]["error"]["status"], 413, "{answer}");
    let reads = engine.take_reads();
    assert!(reads.len() <= 4 && reads.iter().sum::<usize>() >= 3 * COUNT, "{reads:?}");
}
