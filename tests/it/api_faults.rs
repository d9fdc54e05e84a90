//! The API over a store and a log that fail in parts.

use std::sync::Arc;

use serde_json::{Value, json};
use utxo_store::{
    engine::{ErrorKind, fault::FaultEngine},
    store::StateStore,
    tx::Txid,
};

use crate::{
    api::{Api, split_records},
    harness::{World, WorldSettings},
};

const OCTET_STREAM: &str = "application/octet-stream";

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
