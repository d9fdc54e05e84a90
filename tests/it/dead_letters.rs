//! `dead-letters replay` on a real Apache Kafka: its effect, many letters at a time, and a kill on the way.

use std::{
    io::{BufRead, BufReader},
    process::Stdio,
    time::{Duration, Instant},
};

use serde_json::Value;
use utxo_store::{
    broker::{Broker, OutgoingMessage, TopicPartition, partitioner::partition_of},
    event::Validated,
};

use crate::{
    harness::{Made, spend},
    kafka_server::KafkaServer,
    real_kafka::{json, plain},
    run::{Bench, Instance, PARTITIONS, block_on, until},
    transactional::seeded,
};

/// Runs `dead-letters` with these arguments; returns exit code, lines, standard error.
fn dead_letters(bench: &Bench, args: &[&str]) -> (Option<i32>, Vec<Value>, String) {
    let output = bench.command(&[&["dead-letters"], args, &["--json"]].concat(), &[]).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let lines = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (output.status.code(), lines, err.into_owned())
}

fn list(bench: &Bench) -> Vec<Value> {
    dead_letters(bench, &["list"]).1
}

fn results(printed: &[Value]) -> Vec<&str> {
    printed.iter().map(|line| line["result"].as_str().unwrap()).collect()
}

fn validated(made: &Made, locked: bool) -> Vec<u8> {
    Validated { tx: &made.extended, height: 200, locked }.encode()
}

/// Returns the committed offset and the end offset of the chain.
fn chain(bench: &Bench) -> (u64, u64) {
    let chain = TopicPartition { topic: bench.topic("chain").into(), partition: 0 };
    block_on(async {
        let broker = bench.broker();
        let committed =
            broker.committed(&format!("{}.chain", bench.group()), std::slice::from_ref(&chain)).await.unwrap();
        let committed = committed.into_iter().flatten().next().map_or(0, |committed| committed.offset);
        (committed, broker.watermarks(&chain).await.unwrap().1)
    })
}

fn stop(mut instance: Instance) {
    instance.signal("TERM");
    assert_eq!(instance.wait().code(), Some(0));
}

fn state_of(bench: &Bench, made: &Made) -> Value {
    let txid = made.txid.to_string();
    json(plain(&["inspect", "tx", &txid, "--store", &bench.store_url(), "--json"]))["state"].clone()
}

#[test]
fn a_misplaced_event_is_replayed_into_the_partition_of_its_key() {
    let Some(server) = KafkaServer::shared() else { return };
    let bench = Bench::on(server.bootstrap_servers());
    bench.create_topics();
    let instance = bench.start();
    let (coin, (_, parent, event)) = seeded(1);
    bench.produce("validated-txs", &parent, &event);
    let child = spend(&[coin], 1, 2);
    let own = partition_of(&child.txid.0, PARTITIONS).unwrap();
    let misplaced = OutgoingMessage {
        topic: bench.topic("validated-txs"),
        partition: Some(1 - own),
        key: child.txid.0.to_vec().into(),
        payload: validated(&child, false).into(),
        ..OutgoingMessage::default()
    };
    block_on(async { bench.broker().producer().await.unwrap().produce(misplaced).await.unwrap() });
    until("the misplaced event is a dead letter", || list(&bench).len() == 1);
    let [letter] = &list(&bench)[..] else { panic!() };
    assert!(letter["message"].as_str().unwrap().contains(&format!("its key belongs to partition {own}")), "{letter}");

    let (code, printed, err) = dead_letters(&bench, &["replay", "--class", "decode"]);
    assert_eq!((code, results(&printed)), (Some(0), vec!["published again"]), "{err}");
    until("what was published again is committed", || bench.committed() == 3);
    assert_eq!(list(&bench), [] as [Value; 0]);
    stop(instance);
    assert_eq!(state_of(&bench, &child), "live");
}

/// Children were given up before their parent came, and the parent comes locked: the second chance that the parent
/// gives them finds the lock. A replay finds the lock too, until the chain has the unlock.
#[test]
fn children_of_a_late_parent_are_replayed_together_and_after_a_kill() {
    const CHILDREN: usize = 40;
    let Some(server) = KafkaServer::shared() else { return };
    let bench = Bench::on(server.bootstrap_servers());
    bench.create_topics();
    let instance = bench.start();
    let (coin, (_, coins, event)) = seeded(1);
    let parent = spend(&[coin], CHILDREN, 2);
    let children: Vec<Made> = (0..CHILDREN).map(|vout| spend(&[parent.coin(vout as u32)], 1, 3)).collect();
    for child in &children {
        bench.produce("validated-txs", &child.txid.0, &validated(child, false));
    }
    until("all of them are dead letters", || list(&bench).len() == CHILDREN);
    bench.produce("validated-txs", &coins, &event);
    bench.produce("validated-txs", &parent.txid.0, &validated(&parent, true));
    // The chain has a contest of each child and of the parent, and the second chances.
    until("the second chances are handled", || chain(&bench) == (2 * CHILDREN as u64 + 1, 2 * CHILDREN as u64 + 1));
    let missing = ["replay", "--class", "missing-parent"];
    let dry_run = [&missing[..], &["--dry-run"]].concat();
    let (code, printed, err) = dead_letters(&bench, &missing);
    assert_eq!((code, printed.len()), (Some(1), CHILDREN), "{err}");
    assert!(results(&printed).iter().all(|result| result.contains("the verdict is unchanged")), "{printed:?}");

    stop(instance);
    assert!(children.iter().all(|child| state_of(&bench, child) == "conflicting"));
    let before = chain(&bench).1;
    let mut unlock = bench.command(&["command", "--timeout-s", "5"], &[]);
    unlock.args(["unlock", &parent.txid.to_string()]);
    assert!(!unlock.output().unwrap().status.success(), "no instance is running to answer");
    assert_eq!(chain(&bench).1, before + 1);
    let (_, printed, _) = dead_letters(&bench, &dry_run);
    assert!(results(&printed).iter().all(|result| *result == "would be reconsidered"), "{printed:?}");

    // No instance answers: all commands are published, and waited for, at the same time.
    let (end_before_replay, began) = (chain(&bench).1, Instant::now());
    let (code, printed, err) = dead_letters(&bench, &[&missing[..], &["--timeout-s", "1"]].concat());
    assert!(began.elapsed() < Duration::from_secs(CHILDREN as u64 / 2), "{:?}", began.elapsed());
    assert_eq!((code, printed.len()), (Some(1), CHILDREN), "{err}");
    assert!(results(&printed).iter().all(|result| result.starts_with("no answer in time")), "{printed:?}");
    assert_eq!(chain(&bench).1, end_before_replay + CHILDREN as u64);
    assert_eq!(list(&bench).len(), CHILDREN);

    // The replay is killed after it has settled some letters; the next replay settles the rest. Commands of the killed
    // replay are done first and leave nothing to do.
    let mut replaying = bench.command(&[&["dead-letters"], &missing[..], &["--json"]].concat(), &[]);
    let mut replaying = replaying.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    until("all of them are asked for", || chain(&bench).1 == end_before_replay + 2 * CHILDREN as u64);
    let instance = bench.start();
    let mut first = String::new();
    BufReader::new(replaying.stdout.take().unwrap()).read_line(&mut first).unwrap();
    replaying.kill().unwrap();
    replaying.wait().unwrap();
    assert!(first.contains("reconsidered: the transaction is live"), "{first}");
    assert!(list(&bench).len() < CHILDREN);
    until("the chain is handled", || chain(&bench).0 == chain(&bench).1);
    let (code, printed, err) = dead_letters(&bench, &missing);
    assert_eq!(code, Some(0), "{printed:?} {err}");
    assert_eq!(list(&bench), [] as [Value; 0]);
    stop(instance);
    assert!(children.iter().all(|child| state_of(&bench, child) == "live"));
    let verified = json(plain(&["verify", "--store", &bench.store_url(), "--json"]));
    assert_eq!(verified["violations"], 0, "{verified}");
}
