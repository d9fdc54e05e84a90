//! Exits of operators, each played from the fault over the steps of its page in `docs/operating/exits` to the end.

use std::fs;

use utxo_store::event::{Event, Validated};

use crate::{
    harness::{World, coinbase, spend},
    kafka_server::KafkaServer,
    made_blocks::MadeBlock,
    real_kafka::json,
    replay_from_offsets::digest_of,
    run::{Bench, Instance, assert_refused, until},
    small_disk::SmallDisk,
};

/// Ends an instance in order.
fn stop(mut instance: Instance) {
    instance.signal("TERM");
    assert_eq!(instance.wait().code(), Some(0));
}

/// Plays `docs/operating/exits/lost-namespace.md`: the directory of the store is lost.
/// Protects: the rebuilt store has the state of the lost one, and the group goes on at its committed offsets.
#[test]
fn a_lost_namespace_is_rebuilt_and_the_group_goes_on() {
    let bench = Bench::new();
    bench.seed(20);
    let instance = bench.start();
    until("everything is committed", || bench.committed() == 20);
    stop(instance);
    let lost = digest_of(&bench.store_url());
    fs::remove_dir_all(bench.path("store")).unwrap();
    assert_refused(bench.command(&["run"], &[]), &["namespace was lost", "replay --rebuild"]);

    let url = format!("fjall://{}", bench.path("rebuilt").display());
    let rebuilt = json(bench.command(&["replay", "--rebuild", "--json", "--store", &url], &[]));
    assert_eq!((&rebuilt["digest"], &digest_of(&url)), (&lost, &lost));
    bench.produce_all(bench.partials(0..30));
    let instance = bench.start_with(&[("UTXO_STORE__STORE__URL", &url)]);
    until("the group goes on", || bench.committed() == 50);
    assert!(instance.get("/metrics").contains("utxo_transactions_completed_total{result=\"live\"} 30"));
    stop(instance);
    assert_ne!(digest_of(&url), lost);
}

/// Plays `docs/operating/exits/full-device.md` for a store in a directory.
/// Protects: a full disk ends the instance with its cause in the log, no offset of a failed write is committed, and the
/// instance goes on once there is space.
#[test]
fn an_instance_on_a_full_disk_ends_and_goes_on_once_there_is_space() {
    let Some(disk) = SmallDisk::mount(100) else { return };
    let bench = Bench::new();
    let url = format!("fjall://{}", disk.path().join("store").display());
    let variables = [("UTXO_STORE__STORE__URL", url.as_str())];
    bench.produce_all(bench.partials(0..20));
    let mut instance = bench.start_with(&variables);
    until("everything is committed", || bench.committed() == 20);
    disk.fill();
    bench.produce_all(bench.partials(20..2_000));
    assert_eq!(instance.wait().code(), Some(1));
    let log = fs::read_to_string(bench.path("run.log")).unwrap();
    assert!(log.contains("No space left on device") && log.contains("an earlier write failed"), "{log}");
    assert_refused(bench.command(&["run"], &variables), &["an earlier write failed"]);
    assert!(bench.committed() < 2_000);

    disk.free();
    let instance = bench.start_with(&variables);
    until("everything is committed", || bench.committed() == 2_000);
    stop(instance);
    let again = format!("fjall://{}", bench.path("rebuilt").display());
    let rebuilt = json(bench.command(&["replay", "--rebuild", "--json", "--store", &again], &[]));
    assert_eq!(rebuilt["digest"], digest_of(&url));
}

/// Plays `docs/operating/exits/halted-chain.md` on Apache Kafka: a block spends an output that a command has frozen.
/// Protects: the reason of the halt names the command that decides, and the chain continues once an operator runs it.
#[test]
fn a_chain_that_a_frozen_output_halts_continues_once_an_operator_decides() {
    let Some(server) = KafkaServer::shared() else { return };
    let bench = Bench::on(server.bootstrap_servers());
    bench.create_topics();
    let parent = World::partial(7, 2);
    let payment = spend(&[parent.coin(0)], 1, 1);
    let (txid, outpoint) = (payment.txid.to_string(), format!("{}:0", parent.txid));
    bench.produce("validated-txs", &parent.txid.0, &World::partial_event(&parent));
    let instance = bench.start();
    until("the parent is committed", || bench.committed() == 1);
    json(bench.command(&["command", "freeze", &outpoint, "--json"], &[]));
    let validated = Event::Validated(Validated { tx: &payment.extended, height: 100, locked: false });
    bench.produce("validated-txs", &payment.txid.0, &validated.encode());
    bench.produce("block-mined", b"", &MadeBlock::new(1, 101, &coinbase(1), &[&payment]).mined(1, true));
    let mut ready = String::new();
    until("the reason of the halt names its exit", || {
        ready = instance.get("/health/ready");
        ready.contains("`utxo-store command decide ")
    });
    stop(instance);

    let named = ready.split("`utxo-store ").nth(1).and_then(|rest| rest.split('`').next()).unwrap();
    let decide: Vec<&str> = named.split(' ').collect();
    assert_eq!((decide[..2].to_vec(), decide[3..].to_vec()), (vec!["command", "decide"], vec!["--accept", &txid]));
    let decided = bench.command(&decide, &[]).output().unwrap();
    let text = String::from_utf8(decided.stdout).unwrap();
    assert!(decided.status.success() && text.contains(&format!("{outpoint} is frozen: lifted for {txid}")), "{text}");
    let instance = bench.start();
    until("the block is handled", || instance.get("/metrics").contains("utxo_chain_tip_height 101"));
    stop(instance);
    let spent = json(bench.command(&["inspect", "outpoint", &outpoint, "--json"], &[]));
    assert!(spent.to_string().contains(&txid), "{spent}");
    assert_refused(bench.command(&decide, &[]), &["the chain is at offset"]);
}
