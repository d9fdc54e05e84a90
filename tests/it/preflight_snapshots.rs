//! The start checks beside snapshots on a real Apache Kafka: the topics keep the log beyond the newest snapshot.

use serde_json::Value;
use utxo_store::broker::TopicPartition;

use crate::{
    kafka_server::KafkaServer,
    preflight::{CheckReport, TOPICS, consume},
    real_kafka::forget_before,
    run::{Bench, block_on, last_line},
};

const SOURCES: [&str; 5] = ["validated-txs", "block-mined", "reorgs", "chain", "decisions"];
const WEEK: &str = "604800000";

/// Runs a command, which must succeed, and returns its last line on standard output.
fn succeeds(bench: &Bench, args: &[&str], variables: &[(&str, &str)]) -> String {
    let output = bench.command(args, variables).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).lines().last().unwrap_or_default().to_owned()
}

fn set_retention(bench: &Bench, topic: &str, ms: &str) {
    let config = [("retention.ms".to_owned(), ms.to_owned())];
    block_on(async { bench.broker().set_topic_config(&bench.topic(topic), &config).await.unwrap() });
}

#[test]
fn a_snapshot_replaces_unlimited_retention() {
    let Some(server) = KafkaServer::shared() else { return };
    let bench = Bench::on(server.bootstrap_servers());
    bench.create_topics();
    bench.seed(20);
    bench.produce("chain", b"", b"no event");
    consume(&bench, &[], 20);
    for topic in TOPICS {
        set_retention(&bench, topic, WEEK);
    }
    let named = |topic: &str| format!("topic {}", bench.topic(topic));
    let sources = SOURCES.map(named);
    let sources: Vec<&str> = sources.iter().map(String::as_str).collect();

    // Without the setting, and without a snapshot, the whole log is needed.
    let checked = CheckReport::of(&bench, &[]);
    checked.assert_failed(&sources);
    assert!(checked.finding(sources[0], "failed").contains("set retention.ms=-1"), "{:?}", checked.found);
    checked.finding("snapshots", "skipped");
    let place = format!("file://{}", bench.path("snapshots").display());
    let here = [("UTXO_STORE__SNAPSHOT__URL", place.as_str())];
    let checked = CheckReport::of(&bench, &here);
    checked.assert_failed(&sources);
    let remedy = "set retention.ms=-1, or create a snapshot (`utxo-store snapshot create`)";
    assert!(sources.iter().all(|source| checked.finding(source, "failed").contains(remedy)), "{:?}", checked.found);
    assert!(checked.finding("snapshots", "warning").contains(&format!("no complete snapshot at {place}")));
    let without = bench.command(&["snapshot", "create"], &[]).output().unwrap();
    assert_eq!(without.status.code(), Some(2));
    assert_eq!(last_line(&without), "error: --to must be given: snapshot.url is not set");

    let created: Value = serde_json::from_str(&succeeds(&bench, &["snapshot", "create", "--json"], &here)).unwrap();
    let name = created["name"].as_str().unwrap();
    assert!(succeeds(&bench, &["snapshot", "list"], &here).starts_with(name));
    let checked = CheckReport::of(&bench, &here);
    checked.assert_failed(&[]);
    assert!(checked.finding("snapshots", "ok").contains(name), "{:?}", checked.found);
    let checked = bench.command(&["topics", "check"], &here).output().unwrap();
    assert_eq!(checked.status.code(), Some(0), "{checked:?}");
    let told = String::from_utf8_lossy(&checked.stderr).into_owned();
    assert!(told.starts_with("snapshots: the newest complete snapshot is ") && told.contains(name), "{told}");

    // Another log has no use for this snapshot.
    let other = Bench::on(server.bootstrap_servers());
    other.create_topics();
    set_retention(&other, "chain", WEEK);
    let checked = CheckReport::of(&other, &here);
    checked.assert_failed(&[&format!("topic {}", other.topic("chain"))]);
    assert!(checked.finding("snapshots", "warning").contains(name), "{:?}", checked.found);

    set_retention(&bench, "decisions", "3600000");
    let checked = CheckReport::of(&bench, &here);
    checked.assert_failed(&[&named("decisions")]);
    assert!(checked.finding(&named("decisions"), "failed").contains("set retention.ms=86400000 or more"));
    set_retention(&bench, "decisions", WEEK);

    // The retention overtakes the snapshot, also where the group has read further.
    bench.seed(60);
    consume(&bench, &[], 80);
    let at = TopicPartition { topic: bench.topic("validated-txs").into(), partition: 0 };
    let needed = created["offsets"]["validated"]["0"].as_u64().unwrap();
    forget_before(server.bootstrap_servers(), &at, needed);
    CheckReport::of(&bench, &here).assert_failed(&[]);
    forget_before(server.bootstrap_servers(), &at, needed + 1);
    let checked = CheckReport::of(&bench, &here);
    checked.assert_failed(&[&named("validated-txs")]);
    let words = format!("the newest snapshot {name} needs offset {needed}: create a snapshot now");
    assert!(checked.finding(&named("validated-txs"), "failed").contains(&words), "{:?}", checked.found);
    succeeds(&bench, &["snapshot", "create"], &here);
    CheckReport::of(&bench, &here).assert_failed(&[]);
}
