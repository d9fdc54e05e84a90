//! Topics of a real Apache Kafka that are deleted and created again, and topics that reject messages.

use std::time::Duration;

use rdkafka::{
    ClientConfig,
    admin::{AdminClient, AdminOptions},
    client::DefaultClientContext,
};
use utxo_store::{
    broker::{Broker, NewTopic, OutgoingMessage, TopicPartition},
    tx::Txid,
};

use crate::{
    harness::coinbase,
    kafka_server::KafkaServer,
    made_blocks::{MadeBlock, block_hash},
    run::{Bench, Instance, PARTITIONS, assert_refused, block_on, until},
};

const NOT_THE_STORES: &str = "is not the one that the store was made from";

/// Deletes a topic of the bench, and creates it again once it is gone.
pub fn recreate(bench: &Bench, name: &str, partitions: i32, config: &[(&str, &str)]) {
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", bench.brokers()).create().unwrap();
    let topic = bench.topic(name);
    block_on(async { admin.delete_topics(&[&topic], &AdminOptions::new()).await.unwrap() });
    let broker = bench.broker();
    until("the topic is deleted", || block_on(async { broker.partitions(&topic).await.unwrap() }).is_none());
    create(bench, name, partitions, config);
}

fn create(bench: &Bench, name: &str, partitions: i32, config: &[(&str, &str)]) {
    let config = config.iter().map(|(property, value)| ((*property).to_owned(), (*value).to_owned())).collect();
    let new = NewTopic { name: bench.topic(name), partitions, config };
    block_on(async { bench.broker().create_topics(&[new]).await.unwrap() });
}

fn id(bench: &Bench, name: &str) -> [u8; 16] {
    let found = block_on(async { bench.broker().identify(&[bench.topic(name)]).await.unwrap() });
    found[0].unwrap().id.unwrap()
}

fn live(instance: &Instance) -> u64 {
    let metrics = instance.get("/metrics");
    let line =
        metrics.lines().find_map(|line| line.strip_prefix("utxo_transactions_completed_total{result=\"live\"} "));
    line.map_or(0, |count| count.parse().unwrap())
}

fn tip(instance: &Instance) -> String {
    let metrics = instance.get("/metrics");
    metrics.lines().find(|line| line.starts_with("utxo_chain_tip_height ")).unwrap_or_default().to_owned()
}

fn produce_all(bench: &Bench, messages: Vec<OutgoingMessage>) {
    block_on(async { bench.broker().producer().await.unwrap().produce_all(messages).await.unwrap() });
}

/// Produces a block of the longest chain without a key, with this time in ms since the epoch.
fn mine(bench: &Bench, sequence: u64, timestamp_ms: Option<i64>) {
    let block = MadeBlock::new(sequence as u32, 100 + sequence as u32, &coinbase(sequence as u32), &[]);
    assert_eq!(block.hash, block_hash(sequence));
    let message = OutgoingMessage {
        topic: bench.topic("block-mined"),
        partition: Some(0),
        payload: block.mined(sequence, true).into(),
        timestamp_ms,
        ..OutgoingMessage::default()
    };
    produce_all(bench, vec![message]);
}

#[track_caller]
fn unready(instance: &Instance, topic: &str) {
    let says = format!("`{topic}` {NOT_THE_STORES}");
    until("readiness names the topic", || {
        let answer = instance.get("/health/ready");
        answer.starts_with("HTTP/1.1 503") && answer.contains(&says)
    });
}

fn check(bench: &Bench, args: &[&str]) -> (Option<i32>, String) {
    let output = bench.command(args, &[]).output().unwrap();
    let text = String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned();
    (output.status.code(), text)
}

/// Fails unless a start refuses the topic by name and both checking commands name it.
#[track_caller]
fn assert_refused_and_reported(bench: &Bench, topic: &str) {
    let says = format!("`{topic}` {NOT_THE_STORES}");
    assert_refused(bench.command(&["run"], &[]), &[&says]);
    for look in [["run", "--check"], ["topics", "check"]] {
        let (code, printed) = check(bench, &look);
        assert!(code == Some(1) && printed.contains(&says), "{look:?}: {printed}");
        assert!(!printed.contains("was pruned"), "{printed}");
    }
}

fn committed(bench: &Bench, group: &str, name: &str) -> u64 {
    let at = TopicPartition { topic: bench.topic(name).into(), partition: 0 };
    let committed = block_on(async { bench.broker().committed(group, &[at]).await.unwrap() });
    committed.into_iter().flatten().map(|committed| committed.offset).sum()
}

/// The first events of the new topic lie below the group's position: librdkafka continues behind them silently.
#[test]
fn a_running_instance_applies_no_event_of_a_recreated_topic() {
    let Some(server) = KafkaServer::shared() else { return };
    let bench = Bench::on(server.bootstrap_servers());
    bench.create_topics();
    bench.seed(20);
    let mut instance = bench.start();
    until("everything is committed", || bench.committed() == 20);
    let before = id(&bench, "validated-txs");
    recreate(&bench, "validated-txs", PARTITIONS, &[]);
    assert_ne!(id(&bench, "validated-txs"), before);
    produce_all(&bench, bench.partials(0..200));
    unready(&instance, &bench.topic("validated-txs"));
    assert!(instance.get("/state").contains(NOT_THE_STORES));
    assert_eq!(live(&instance), 20, "nothing of the new topic is applied");
    instance.signal("TERM");
    assert_eq!(instance.wait().code(), Some(0));
    assert_eq!(bench.committed(), 0, "the coordinator dropped the offsets, and the new topic has none");
    assert_refused_and_reported(&bench, &bench.topic("validated-txs"));
}

/// No instance runs while the topic is created again, also with fewer partitions than before.
#[test]
fn a_topic_recreated_while_no_instance_ran_is_refused() {
    let Some(server) = KafkaServer::shared() else { return };
    for partitions in [PARTITIONS, 1] {
        let bench = Bench::on(server.bootstrap_servers());
        bench.create_topics();
        bench.seed(20);
        let mut instance = bench.start();
        until("everything is committed", || bench.committed() == 20);
        instance.signal("TERM");
        assert_eq!(instance.wait().code(), Some(0));
        let (code, printed) = check(&bench, &["topics", "check"]);
        assert!(code == Some(0) && !printed.contains("store:"), "{printed}");
        recreate(&bench, "validated-txs", partitions, &[]);
        assert_refused_and_reported(&bench, &bench.topic("validated-txs"));
        produce_all(&bench, vec![bench.partial(Txid([200; 32]))]);
        assert_refused_and_reported(&bench, &bench.topic("validated-txs"));
    }
}

#[test]
fn a_chain_recreated_before_the_first_restart_halts_and_is_refused() {
    let Some(server) = KafkaServer::shared() else { return };
    let bench = Bench::on(server.bootstrap_servers());
    bench.create_topics();
    let group = format!("{}.chain", bench.group());
    let mut instance = bench.start();
    mine(&bench, 1, None);
    mine(&bench, 2, None);
    until("two blocks are handled", || committed(&bench, &group, "chain") == 2);
    recreate(&bench, "chain", 1, &[]);
    (3..=5).for_each(|sequence| mine(&bench, sequence, None));
    unready(&instance, &bench.topic("chain"));
    assert_eq!(tip(&instance), "utxo_chain_tip_height 102");
    instance.signal("TERM");
    assert_eq!(instance.wait().code(), Some(0));
    mine(&bench, 6, None);
    assert_refused_and_reported(&bench, &bench.topic("chain"));
    assert_eq!(committed(&bench, &group, "chain"), 0);
}

/// A block two hours old, and a chain topic that takes no message older than an hour.
#[test]
fn a_chain_topic_with_a_time_limit_takes_an_old_block() {
    let Some(server) = KafkaServer::shared() else { return };
    let bench = Bench::on(server.bootstrap_servers());
    let limit = [("message.timestamp.before.max.ms", "3600000"), ("message.timestamp.after.max.ms", "3600000")];
    create(&bench, "chain", 1, &limit);
    bench.create_topics();
    let now_ms = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as i64;
    mine(&bench, 1, Some(now_ms - 2 * 3_600_000));
    let mut instance = bench.start();
    let group = format!("{}.chain", bench.group());
    until("the block is handled", || committed(&bench, &group, "chain") == 1);
    let fed = bench.messages("chain", 0).remove(0);
    assert!(fed.timestamp_ms >= now_ms - 60_000, "{}", fed.timestamp_ms);
    assert_eq!(utxo_store::sequencer::chain_feed::produced_at_ms(&fed), now_ms - 2 * 3_600_000);
    instance.signal("TERM");
    assert_eq!(instance.wait().code(), Some(0));
}

/// A compacted topic takes no message without a key, and a block has none.
#[test]
fn a_chain_topic_that_rejects_a_block_halts_the_chain() {
    let Some(server) = KafkaServer::shared() else { return };
    let bench = Bench::on(server.bootstrap_servers());
    create(&bench, "chain", 1, &[("cleanup.policy", "compact")]);
    bench.create_topics();
    let mut instance = bench.start();
    mine(&bench, 1, None);
    until("readiness names the rejected record", || {
        let answer = instance.get("/health/ready");
        answer.contains("chain_running") && answer.contains("InvalidRecord") && answer.contains(&bench.topic("chain"))
    });
    assert!(instance.get("/state").contains("InvalidRecord"));
    std::thread::sleep(Duration::from_secs(2));
    let log = std::fs::read_to_string(bench.path("run.log")).unwrap();
    assert!(log.matches("InvalidRecord").count() <= 3, "no flood: {log}");
    let keeps = [("cleanup.policy".to_owned(), "delete".to_owned())];
    block_on(async { bench.broker().set_topic_config(&bench.topic("chain"), &keeps).await.unwrap() });
    instance.signal("TERM");
    assert_eq!(instance.wait().code(), Some(0));
    let mut instance = bench.start();
    let group = format!("{}.chain", bench.group());
    until("the block is handled", || committed(&bench, &group, "chain") == 1);
    instance.signal("TERM");
    assert_eq!(instance.wait().code(), Some(0));
}

/// New topics are created without time limits, and time limits of existing topics are reported.
#[test]
fn topics_are_created_without_time_limits_and_limits_are_reported() {
    let Some(server) = KafkaServer::shared() else { return };
    let bench = Bench::on(server.bootstrap_servers());
    create(&bench, "decisions", 1, &[("retention.ms", "-1"), ("message.timestamp.after.max.ms", "1000")]);
    create(&bench, "block-mined", 1, &[("retention.ms", "-1"), ("message.timestamp.before.max.ms", "3600000")]);
    let (code, printed) = check(&bench, &["topics", "create", "--partitions", "2"]);
    assert_eq!((code, printed.matches(": created with ").count()), (Some(1), 5), "{printed}");
    let (code, printed) = check(&bench, &["topics", "check"]);
    assert_eq!(code, Some(1), "{printed}");
    assert!(printed.contains("has message.timestamp.after.max.ms=1000: a delayed message"), "{printed}");
    let limit = "but it has message.timestamp.before.max.ms=3600000: an event with an older";
    assert!(printed.contains(limit), "{printed}");
    let chain = bench.topic("chain");
    let configs = block_on(async { bench.broker().topic_configs(&[&chain]).await.unwrap() });
    let config = configs[0].as_ref().unwrap();
    for property in ["message.timestamp.before.max.ms", "message.timestamp.after.max.ms"] {
        assert_eq!(config[property], i64::MAX.to_string(), "{property}");
    }
}

/// A message of a foreign producer has the headers of this program, and those of a settled letter.
#[test]
fn foreign_headers_hide_no_dead_letter() {
    let Some(server) = KafkaServer::shared() else { return };
    let bench = Bench::on(server.bootstrap_servers());
    bench.create_topics();
    let headers = [
        ("utxo-dead-letter-topic", "x"),
        ("utxo-dead-letter-offset", "-1"),
        ("utxo-dead-letter-settled", "discarded"),
        ("utxo-dead-letter-stage", "none"),
        ("utxo-source-offset", "18446744073709551615"),
        ("utxo-source-next-offset", "18446744073709551615"),
        ("utxo-source-timestamp-ms", "0"),
    ];
    let stranger = |count: usize, topic: &str, key: &[u8]| OutgoingMessage {
        topic: bench.topic(topic),
        partition: Some(0),
        key: key.to_vec().into(),
        payload: b"no event".to_vec().into(),
        headers: headers[..count].iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect(),
        ..OutgoingMessage::default()
    };
    let mut messages: Vec<_> = (0..=headers.len()).map(|count| stranger(count, "validated-txs", &[9; 32])).collect();
    messages.push(stranger(headers.len(), "block-mined", &[9; 32]));
    let all = messages.len();
    produce_all(&bench, messages);
    let mut instance = bench.start();
    mine(&bench, 1, None);
    let listed = || check(&bench, &["dead-letters", "list", "--json"]).1.lines().map(str::to_owned).collect::<Vec<_>>();
    until("all are listed", || listed().len() == all);
    let of_the_feed = listed().into_iter().find(|line| line.contains("block-mined")).unwrap();
    assert!(!of_the_feed.contains("txid"), "{of_the_feed}");
    let group = format!("{}.chain", bench.group());
    until("the block is handled", || committed(&bench, &group, "chain") == 1);
    instance.signal("TERM");
    assert_eq!(instance.wait().code(), Some(0));
}
