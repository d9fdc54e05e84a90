//! States of outputs and outcomes of transactions that only some histories have, asked over HTTP.

use std::{fs, path::PathBuf, time::Duration};

use serde_json::{Value, json};
use utxo_store::{
    embed::opening::open_event_bodies,
    record::{Key, Page, Record},
    tx::Txid,
};

use crate::{
    api::{Api, config},
    harness::{Made, Running, World, WorldSettings, spend},
};

/// Replaces the master of a transaction.
async fn plant(world: &World, made: &Made, change: impl FnOnce(&mut Page)) {
    let mut page = Page::clone(&world.page(made).await.unwrap());
    change(&mut page);
    world.memory.put(Key::master(made.txid), Some(Record::Page(page.into())));
}

#[tokio::test]
async fn each_obstacle_of_a_spend_has_its_status_and_its_height() {
    let world = World::with_settings(WorldSettings::calm()).await;
    let running = world.start();
    let parent = world.seed(1, 6).await;
    let [locked, half, pruned] = [0, 1, 2].map(|vout| spend(&[parent.coin(vout)], 1, 1));
    world.validate_locked(&locked).await;
    world.validate(&half).await;
    world.validate(&pruned).await;
    world.until_consumed().await;
    let coinbase = world.mine(1, &[]).await;
    world.until_consumed().await;
    let api = Api::start(&world, &[]).await;
    let until = json!({"freeze-until": {"outpoint": parent.coin(3).outpoint.to_string(), "height": 500}});
    let (status, answer) = api.post_json("/v1/commands", json!({"commands": [{"action": until}]})).await;
    assert_eq!((status, &answer["commands"][0]["result"]), (200, &json!("applied")), "{answer}");
    plant(&world, &half, |page| page.creating_at = Some(world.clock.now_ms())).await;
    plant(&world, &pruned, |page| page.pruned = Some(77)).await;

    let shown = async |txid: Txid, vout: u32, query: &str| {
        let (status, shown) = api.get(&format!("/v1/outputs/{txid}/{vout}{query}")).await;
        assert_eq!(status, 200, "{shown}");
        (shown["status"].as_str().unwrap().to_owned(), shown["height"].clone())
    };
    for (txid, vout, query, status, height) in [
        (locked.txid, 0, "", "LOCKED", Value::Null),
        (half.txid, 0, "", "CREATING", Value::Null),
        (pruned.txid, 0, "", "PRUNED", json!(77)),
        (coinbase.txid, 0, "", "IMMATURE", json!(201)),
        (coinbase.txid, 0, "?height=200", "IMMATURE", json!(201)),
        (coinbase.txid, 0, "?height=201", "OK", Value::Null),
        (parent.txid, 3, "", "FROZEN_UNTIL", json!(500)),
        (parent.txid, 3, "?height=499", "FROZEN_UNTIL", json!(500)),
        (parent.txid, 3, "?height=500", "OK", Value::Null),
        (parent.txid, 4, "", "OK", Value::Null),
    ] {
        assert_eq!(shown(txid, vout, query).await, (status.to_owned(), height), "{txid}:{vout}{query}");
    }
    running.kill().await;
}

/// Returns the only file below a folder.
fn only_file(folder: &std::path::Path) -> PathBuf {
    let mut folders = vec![folder.to_owned()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    assert_eq!(files.len(), 1, "{files:?}");
    files.remove(0)
}

/// Starts an instance that reads bodies of events from the objects of these settings, with a partial transaction of one
/// output.
async fn start_with_objects(settings: &[(&str, &str)]) -> (World, Running, Made) {
    let mut world = World::with_settings(WorldSettings::calm()).await;
    world.store = world.store.with_event_bodies(open_event_bodies(&config(settings)).await.unwrap());
    let running = world.start();
    let parent = world.seed(1, 1).await;
    world.until_consumed().await;
    (world, running, parent)
}

/// The body of the submitted transaction is an object, and is damaged before an instance reads the object.
#[tokio::test]
async fn a_transaction_whose_object_was_damaged_is_answered_as_refused() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("file://{}", directory.path().display());
    let settings = [("OBJECTS__URL", &url[..]), ("OBJECTS__INLINE_EVENT_BYTES", "1024")];
    let (world, running, parent) = start_with_objects(&settings).await;
    running.kill().await;
    let api = Api::start(&world, &settings).await;
    let (large, published) = (spend(&[parent.coin(0)], 200, 1), world.count("txs").await);
    let body = json!({"transactions": [hex::encode(&large.extended)]});
    let waiting = api.post_json("/v1/transactions?wait=live&timeout_ms=60000", body);
    let damaging = async {
        while world.count("txs").await == published {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let object = only_file(directory.path());
        let len = fs::metadata(&object).unwrap().len();
        fs::write(&object, vec![0; usize::try_from(len).unwrap()]).unwrap();
        world.start()
    };
    let ((status, answer), running) = tokio::join!(waiting, damaging);
    let outcome = &answer["transactions"][0]["outcome"];
    assert_eq!((status, &outcome["status"], &outcome["code"]), (200, &json!("refused"), &json!("INVALID")), "{answer}");
    assert!(!outcome["message"].as_str().unwrap().is_empty(), "{answer}");
    assert_eq!(api.get(&format!("/v1/transactions/{}", large.txid)).await.0, 404, "nothing was changed");
    running.kill().await;
}

/// Protects: a submitted transaction that is too large for a message goes by reference, becomes live, and is read back.
#[tokio::test]
async fn a_large_transaction_is_submitted_by_reference_and_becomes_live() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("file://{}", directory.path().display());
    let settings = [("OBJECTS__URL", &url[..]), ("OBJECTS__INLINE_EVENT_BYTES", "1024")];
    let (world, running, parent) = start_with_objects(&settings).await;
    let api = Api::start(&world, &settings).await;
    let large = spend(&[parent.coin(0)], 200, 1);
    let body = json!({"transactions": [hex::encode(&large.extended)]});
    let (status, answer) = api.post_json("/v1/transactions?wait=live&timeout_ms=60000", body).await;
    assert_eq!((status, &answer["transactions"][0]["outcome"]), (200, &json!({"status": "live"})), "{answer}");
    only_file(directory.path());
    let raw = format!("/v1/transactions/{}/raw?format=extended", large.txid);
    assert_eq!(api.send(reqwest::Method::GET, &raw, None).await.1, large.extended);
    running.kill().await;
}
