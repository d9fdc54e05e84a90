//! Transactions that become conflicting before their events have stored a body, and the second chances that make them
//! live.

use std::{process::Command, slice::from_ref, time::Duration};

use serde_json::Value;
use utxo_store::{event::CommandAction, record::TxState};

use crate::{
    harness::{Made, World, coinbase, spend},
    made_blocks::MadeBlock,
    regressions::holding_engine::{HoldingEngine, is_spend},
};

async fn state(world: &World, made: &Made) -> Option<TxState> {
    world.page(made).await.map(|page| page.state())
}

/// The way in which a transaction becomes conflicting and live again.
#[derive(Debug, Clone, Copy)]
enum Fall {
    /// The block of its coinbase is disconnected and connected again.
    Coinbase,
    /// A block lists its rival and is disconnected; the next block lists the transaction.
    Rival,
    /// An operator makes the transaction conflicting and has it reconsidered.
    Command,
}

/// A child holds a slot of its first parent and waits for its second when the first parent becomes conflicting. The
/// second is in flight and waits for a lock: a parent that is not in flight would be missing within a commit interval.
/// Protects: a contest that is passed over publishes a `Reconsider` once the reason of its verdict no longer holds.
#[tokio::test(start_paused = true)]
async fn a_child_without_a_body_is_live_once_its_parents_are() {
    for fall in [Fall::Coinbase, Fall::Rival, Fall::Command] {
        for is_late in [false, true] {
            play_child_without_body(fall, is_late).await;
        }
    }
}

/// Plays one history; `is_late`: the second parent comes while the first is still conflicting.
async fn play_child_without_body(fall: Fall, is_late: bool) {
    let world = World::new().await;
    let seed = world.seed(1, 3).await;
    let block = MadeBlock::new(1, 101, &coinbase(1), &[]);
    let coin = if let Fall::Coinbase = fall { block.coinbase.coin(0) } else { seed.coin(0) };
    let parent = spend(from_ref(&coin), 1, 1);
    let locked = spend(&[seed.coin(1)], 1, 6);
    let second = spend(&[locked.coin(0)], 1, 2);
    let child = spend(&[parent.coin(0), second.coin(0)], 1, 3);
    let grandchild = spend(&[child.coin(0)], 1, 4);
    let rival = spend(&[seed.coin(0)], 1, 5);
    let (slot_of, spender) = (second.txid, child.txid);
    let holding = HoldingEngine::hold_first(&world, move |row| is_spend(row, slot_of, spender));
    let running = holding.in_front_of(&world).start();
    let settled = || tokio::time::sleep(Duration::from_millis(800));
    world.bring(1, &block).await;
    world.validate_locked(&locked).await;
    world.validate_at(&parent, 300).await;
    settled().await;
    world.validate_at(&child, 300).await;
    holding.wait_for_held(1).await;
    for made in [&second, &grandchild] {
        world.validate_at(made, 300).await;
    }
    settled().await;
    holding.release().await;
    settled().await;
    match fall {
        Fall::Coinbase => world.reorganise(2, from_ref(&block), &[]).await,
        Fall::Rival => {
            world.validate(&rival).await;
            world.bring(2, &block.followed_by(2, &coinbase(2), &[&rival])).await;
        }
        Fall::Command => world.command(1, CommandAction::SetConflicting { txid: parent.txid }).await,
    }
    settled().await;
    let is_stub = world.page(&child).await.is_some_and(|page| page.utxos.is_none());
    assert!(is_stub, "{fall:?}, late: {is_late}: the child has no body when its first parent falls");
    let unlock = || world.command(3, CommandAction::Unlock { txid: locked.txid });
    if is_late {
        unlock().await;
        settled().await;
    }
    match fall {
        Fall::Coinbase => world.reorganise(3, &[], from_ref(&block)).await,
        Fall::Rival => {
            let left = block.followed_by(2, &coinbase(2), &[&rival]);
            let other = block.followed_by(3, &coinbase(3), &[&parent]);
            world.reorganise(3, &[left], &[other]).await;
        }
        Fall::Command => world.command(2, CommandAction::Reconsider { txid: parent.txid }).await,
    }
    settled().await;
    if !is_late {
        unlock().await;
    }
    world.until_consumed().await;
    running.stop().await;
    for made in [&parent, &second, &child, &grandchild] {
        assert_eq!(state(&world, made).await, Some(TxState::Live), "{fall:?}, late: {is_late}");
    }
    world.check(&format!("{fall:?}, late: {is_late}")).await;
}

fn run(args: &[&str]) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_utxo-store")).args(args).output().unwrap()
}

/// Runs a history and its rebuild; returns the report, once digests are equal and `verify` finds nothing.
fn demo(case: &str, data: &str) -> Value {
    let events = format!("{}/tests/data/cases/{case}.jsonl", env!("CARGO_MANIFEST_DIR"));
    let demo = run(&["demo", "--events", &events, "--kills", "0", "--data-dir", data, "--json"]);
    assert!(demo.status.success(), "{case}: {}", String::from_utf8_lossy(&demo.stderr));
    let report: Value = serde_json::from_slice(&demo.stdout).unwrap();
    assert_eq!(report["violations"], 0, "{case}: {report}");
    assert_eq!(report["digest_live"], report["digest_rebuilt"], "{case}: {report}");
    report
}

/// Nine events without a double spend or a kill, and a reorg of depth one, found by an independent model.
#[test]
fn histories_of_an_independent_model_end_live() {
    for (case, child) in [("lost-chance-coinbase", Some("5555c757053b")), ("lost-chance-double", None)] {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().to_str().unwrap();
        demo(case, data);
        let Some(child) = child else { continue };
        let store = format!("fjall://{data}/live");
        let blobs = format!("file://{data}/blobs");
        let dump = run(&["dump", "--store", &store, "--blobs", &blobs]);
        assert!(dump.status.success(), "{case}: {}", String::from_utf8_lossy(&dump.stderr));
        let lines = String::from_utf8(dump.stdout).unwrap();
        let of_child = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let of_child =
            of_child.into_iter().find(|line| line["txid"].as_str().is_some_and(|txid| txid.starts_with(child)));
        let of_child = of_child.unwrap_or_else(|| panic!("{case}: {child} is not in {lines}"));
        assert_ne!(of_child["conflicting"], true, "{case}: {of_child}");
        let named = lines.matches(of_child["txid"].as_str().unwrap()).count();
        assert!(named >= 3, "{case}: the child holds both slots: {lines}");
    }
}

/// Histories that a review found on paper: two outputs that get their slots late, spent by one transaction; a rival
/// that has to become conflicting first; one coinbase in two blocks, also in neighbours that are disconnected together;
/// a transaction that was immature and then lost to a rival.
#[test]
fn histories_across_genesis_and_of_one_coinbase_rebuild_to_the_same_state() {
    for case in [
        "two-late-slots",
        "rival-across-genesis",
        "one-coinbase-twice",
        "neighbours-with-one-coinbase",
        "immature-passes",
    ] {
        let directory = tempfile::tempdir().unwrap();
        demo(case, directory.path().to_str().unwrap());
    }
}
