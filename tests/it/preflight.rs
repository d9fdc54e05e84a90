//! `run --check` on a real Apache Kafka: its findings, and that it changes nothing.

use std::{
    collections::BTreeMap,
    ffi::{CString, c_char},
    ptr,
};

use rdkafka::{
    ClientConfig, bindings as rd,
    consumer::{BaseConsumer, Consumer as _},
};
use serde_json::Value;
use utxo_store::{
    broker::{Broker, NewTopic, TopicPartition},
    engine::{self, Index, OpenOptions},
    record::{Key, MetaRecord, Record, Rules},
};

use crate::{
    aerospike_server::AerospikeServer,
    kafka_server::KafkaServer,
    real_kafka::{forget_before, plain, reset_offsets},
    run::{Bench, block_on, until},
};

pub const TOPICS: [&str; 7] =
    ["validated-txs", "block-mined", "reorgs", "chain", "decisions", "outcomes", "dead-letters"];

/// Findings of `run --check`, by check: outcome and text; and its exit code.
pub struct CheckReport {
    code: Option<i32>,
    pub found: BTreeMap<String, (String, String)>,
    err: String,
}

impl CheckReport {
    pub fn of(bench: &Bench, variables: &[(&str, &str)]) -> Self {
        let output = bench.command(&["run", "--check", "--json"], variables).output().unwrap();
        let found = String::from_utf8_lossy(&output.stdout)
            .lines()
            .map(|line| {
                let line: Value = serde_json::from_str(line).unwrap();
                let text = |name: &str| line[name].as_str().unwrap().to_owned();
                (text("check"), (text("outcome"), text("told")))
            })
            .collect();
        CheckReport { code: output.status.code(), found, err: String::from_utf8_lossy(&output.stderr).into_owned() }
    }

    /// Returns the text of a check, which must have this outcome.
    #[track_caller]
    pub fn finding(&self, check: &str, outcome: &str) -> &str {
        let (came, printed) = self.found.get(check).unwrap_or_else(|| panic!("no {check}: {:?}", self.found));
        assert_eq!(came, outcome, "{check}: {printed}");
        printed
    }

    /// Fails unless exactly these checks failed.
    #[track_caller]
    pub fn assert_failed(&self, checks: &[&str]) {
        let failed = self.found.iter().filter(|(_, (outcome, _))| outcome == "failed").map(|(check, _)| check.as_str());
        let mut checks = checks.to_vec();
        checks.sort_unstable();
        assert_eq!(failed.collect::<Vec<_>>(), checks, "{:#?}", self.found);
        assert_eq!(self.code, Some(i32::from(!checks.is_empty())), "{}", self.err);
        if !checks.is_empty() {
            assert!(self.err.starts_with(&format!("error: {} of ", checks.len())), "{}", self.err);
        }
    }
}

/// All state that a check could change.
#[derive(Debug, PartialEq)]
struct ObservedState {
    /// Topics of the bench, and the end offset of each partition.
    topics: Vec<(String, Vec<u64>)>,
    /// Groups of the bench, with the number of their members.
    groups: Vec<(String, usize)>,
    committed: Vec<Option<(u64, String)>>,
    /// Digest and meta record; `None`: there is no store.
    store: Option<(String, MetaRecord)>,
}

/// Returns the end offset of a partition, once a new topic has a leader.
fn end(client: &BaseConsumer, topic: &str, partition: i32) -> u64 {
    let mut found = None;
    until("a leader answers", || {
        found = client.fetch_watermarks(topic, partition, std::time::Duration::from_secs(30)).ok();
        found.is_some()
    });
    found.unwrap().1 as u64
}

impl ObservedState {
    fn of(bench: &Bench, brokers: &str) -> Self {
        let suffix = bench.topic("").trim_start_matches("utxo.").to_owned();
        let client: BaseConsumer = ClientConfig::new().set("bootstrap.servers", brokers).create().unwrap();
        let bound = std::time::Duration::from_secs(30);
        let metadata = client.fetch_metadata(None, bound).unwrap();
        let topics = metadata.topics().iter().filter(|topic| topic.name().ends_with(&suffix)).map(|topic| {
            let ends = topic.partitions().iter().map(|it| end(&client, topic.name(), it.id()));
            (topic.name().to_owned(), ends.collect())
        });
        let mut topics: Vec<(String, Vec<u64>)> = topics.collect();
        topics.sort();
        let listed = client.fetch_group_list(None, bound).unwrap();
        let groups = listed.groups().iter().filter(|group| group.name().contains(suffix.trim_start_matches('.')));
        let mut groups: Vec<_> = groups.map(|group| (group.name().to_owned(), group.members().len())).collect();
        groups.sort();
        let there = !topics.is_empty();
        let committed = block_on(async {
            let (broker, mut all) = (bench.broker(), Vec::new());
            let chain_group = format!("{}.chain", bench.group());
            for (group, topic, count) in [(bench.group(), "validated-txs", 2), (chain_group, "chain", 1)] {
                let at = |partition| TopicPartition { topic: bench.topic(topic).into(), partition };
                let partitions: Vec<_> = (0..count).map(at).filter(|_| there).collect();
                all.extend(broker.committed(&group, &partitions).await.unwrap());
            }
            all.into_iter().map(|it| it.map(|it| (it.offset, it.metadata))).collect()
        });
        ObservedState { topics, groups, committed, store: store_of(bench) }
    }
}

fn store_of(bench: &Bench) -> Option<(String, MetaRecord)> {
    if !bench.path("store").exists() {
        return None;
    }
    let mut stats = plain(&["stats", "--store", &bench.store_url(), "--json"]);
    if bench.path("blobs").exists() {
        stats.args(["--blobs", &format!("file://{}", bench.path("blobs").display())]);
    }
    let stats = stats.output().unwrap();
    let stats: Value = serde_json::from_slice(&stats.stdout).unwrap();
    let meta = block_on(async {
        let options = OpenOptions::new(Rules::main(0));
        let engine = engine::open_existing(&bench.store_url(), &options).await.unwrap();
        let read = engine.read(&[Key::Meta]).await.pop().unwrap().unwrap();
        engine.close().await.unwrap();
        read
    });
    let Some(Record::Meta(meta)) = meta else { panic!("{meta:?}") };
    Some((stats["digest"].as_str().unwrap().to_owned(), *meta))
}

/// Consumes all events, and stops.
pub fn consume(bench: &Bench, variables: &[(&str, &str)], committed: u64) {
    let mut instance = bench.start_with(variables);
    until("everything is committed", || bench.committed() == committed);
    instance.signal("TERM");
    assert_eq!(instance.wait().code(), Some(0));
}

#[test]
fn a_check_before_the_first_start_changes_nothing() {
    let Some(server) = KafkaServer::shared() else { return };
    let bench = Bench::on(server.bootstrap_servers());
    bench.create_topics();
    let everything = || ObservedState::of(&bench, server.bootstrap_servers());
    let before = everything();
    assert_eq!((before.topics.len(), before.groups.len(), &before.store), (7, 0, &None), "{before:?}");
    let checked = CheckReport::of(&bench, &[]);
    checked.assert_failed(&[]);
    assert_eq!(everything(), before);
    assert!(!bench.path("store").exists());
    checked.finding("configuration", "ok");
    assert!(checked.finding("brokers", "ok").contains(server.bootstrap_servers()));
    for topic in TOPICS {
        let (outcome, words) = match topic {
            // Outcomes are read soon, so that one copy is enough.
            "outcomes" => ("ok", "2 partitions, 1 of 1 copy in sync, min.insync.replicas=1"),
            _ => ("warning", "has one copy"),
        };
        let printed = checked.finding(&format!("topic {}", bench.topic(topic)), outcome);
        assert!(printed.contains(words), "{topic}: {printed}");
    }
    assert!(checked.finding("store", "ok").contains("the first start creates the store"));
}

/// A check while an instance runs, and after: the state is the same as before, and the instance is not disturbed.
#[test]
fn a_running_group_is_checked_without_joining() {
    let Some(server) = KafkaServer::shared() else { return };
    let bench = Bench::on(server.bootstrap_servers());
    bench.create_topics();
    bench.seed(20);
    bench.produce("chain", b"", b"no event");
    let mut instance = bench.start();
    until("everything is committed", || bench.committed() == 20);
    let rebalances = || {
        let metrics = instance.get("/metrics");
        let lines = metrics.lines().filter(|line| line.starts_with("utxo_rebalances_total")).map(str::to_owned);
        lines.collect::<Vec<_>>()
    };
    let before = rebalances();
    assert!(!before.is_empty());
    let checked = CheckReport::of(&bench, &[]);
    checked.assert_failed(&["store"]);
    let store = checked.finding("store", "failed");
    assert!(store.contains("is in use by another process (store.url); read /health/ready"), "{store}");
    assert!(checked.finding(&format!("group {}", bench.group()), "ok").starts_with("members: 1; of "));
    assert_eq!(rebalances(), before);
    instance.signal("TERM");
    assert_eq!(instance.wait().code(), Some(0));

    bench.seed(3);
    let before = ObservedState::of(&bench, server.bootstrap_servers());
    let (_, meta) = before.store.clone().unwrap();
    assert_eq!((meta.partitions, meta.chain_id.is_some()), (Some(2), true));
    let checked = CheckReport::of(&bench, &[("UTXO_STORE__STORE__BLOCK_HEIGHT_RETENTION", "289")]);
    checked.assert_failed(&[]);
    assert_eq!(ObservedState::of(&bench, server.bootstrap_servers()), before);
    let store = checked.finding("store", "warning");
    assert!(store.contains("block_height_retention = 288, and a start changes that to 289"), "{store}");
    checked.finding("store and log", "ok");
    checked.finding("decisions", "ok");
    let printed = checked.finding("offsets of the validated transactions", "ok");
    assert_eq!(printed, "2 partitions, 3 messages to read");
    assert!(checked.finding(&format!("group {}", bench.group()), "ok").starts_with("members: 0; of "));
    checked.finding("permissions", "ok");

    let other = CheckReport::of(&bench, &[("UTXO_STORE__STORE__NETWORK", "regtest")]);
    other.assert_failed(&["store"]);
    assert!(other.finding("store", "failed").contains("network `main`"));
    let away = CheckReport::of(&bench, &[("UTXO_STORE__KAFKA__BROKERS", "127.0.0.1:1")]);
    away.assert_failed(&["brokers"]);
    away.finding("store", "ok");
    away.finding("store and log", "skipped");
    let lost = CheckReport::of(&bench, &[("UTXO_STORE__STORE__URL", "fjall:///nonexistent/store")]);
    lost.assert_failed(&["store"]);
    assert!(lost.finding("store", "failed").contains("the namespace was lost"));
}

#[test]
fn missing_and_wrong_topics_are_named_and_none_is_created() {
    let Some(server) = KafkaServer::shared() else { return };
    let bench = Bench::on(server.bootstrap_servers());
    let everything = || ObservedState::of(&bench, server.bootstrap_servers());
    let none = everything();
    let checked = CheckReport::of(&bench, &[]);
    let names: Vec<String> = TOPICS.iter().map(|topic| format!("topic {}", bench.topic(topic))).collect();
    checked.assert_failed(&names.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(names.iter().all(|name| checked.finding(name, "failed") == "does not exist"));
    checked.finding("offsets", "skipped");
    assert_eq!(everything(), none);

    let forgets = |property: &str, value: &str| vec![(property.to_owned(), value.to_owned())];
    let unlike = [
        ("chain", 2, vec![]),
        ("decisions", 1, forgets("retention.ms", "3600000")),
        ("validated-txs", 2, forgets("cleanup.policy", "compact")),
        ("dead-letters", 2, forgets("cleanup.policy", "compact")),
    ];
    let topics = unlike.map(|(name, partitions, config)| NewTopic { name: bench.topic(name), partitions, config });
    block_on(async { bench.broker().create_topics(&topics).await.unwrap() });
    let before = everything();
    let checked = CheckReport::of(&bench, &[]);
    assert_eq!(everything(), before);
    let printed = |topic: &str| checked.finding(&format!("topic {}", bench.topic(topic)), "failed").to_owned();
    assert!(printed("chain").starts_with("has 2 partitions: it is one order"));
    assert!(printed("decisions").contains("set retention.ms=-1"));
    assert!(printed("validated-txs").contains("set cleanup.policy=delete"));
    let forgets = printed("dead-letters");
    assert!(forgets.contains("cleanup.policy=compact") && forgets.contains("set cleanup.policy=delete"), "{forgets}");
    assert_eq!(printed("reorgs"), "does not exist");
    assert_eq!((checked.code, checked.err.starts_with("error: 7 of ")), (Some(1), true), "{}", checked.err);
}

#[test]
fn offsets_outside_the_topic_are_named_with_its_range() {
    let Some(server) = KafkaServer::shared() else { return };
    let brokers = server.bootstrap_servers();
    let bench = Bench::on(brokers);
    bench.create_topics();
    bench.seed(20);
    consume(&bench, &[], 20);
    bench.seed(40);
    let at = TopicPartition { topic: bench.topic("validated-txs").into(), partition: 0 };
    let before = ObservedState::of(&bench, brokers);
    let next = before.committed[0].as_ref().unwrap().0;
    let end = before.topics.iter().find(|(name, _)| *name == *at.topic).unwrap().1[0];
    assert!(next + 1 < end, "{before:?}");
    forget_before(brokers, &at, end - 1);
    let before = ObservedState::of(&bench, brokers);
    let checked = CheckReport::of(&bench, &[]);
    checked.assert_failed(&["offsets of the validated transactions"]);
    let printed = checked.finding("offsets of the validated transactions", "failed");
    let range = format!("{at}: offset {next} is next, but the topic holds {} to {end}", end - 1);
    assert!(printed.contains(&range), "{printed}");
    let reset = format!("--group {} --topic {}:0 --reset-offsets", bench.group(), at.topic);
    assert!(printed.contains(&reset), "{printed}");
    assert_eq!(ObservedState::of(&bench, brokers), before);

    // A group that has never read the topic has the same gap, over a store that another group filled.
    let group = format!("{}-other", bench.group());
    let checked = CheckReport::of(&bench, &[("UTXO_STORE__KAFKA__GROUP", &group)]);
    checked.assert_failed(&["offsets of the validated transactions"]);
    let printed = checked.finding("offsets of the validated transactions", "failed");
    assert!(printed.contains(&format!("no longer holds offsets 0 to {}", end - 1)), "{printed}");

    // The offset is beyond the end: another topic of that name, or one that lost its end.
    reset_offsets(brokers, &bench.group(), &at, end + 5);
    let checked = CheckReport::of(&bench, &[]);
    let printed = checked.finding("offsets of the validated transactions", "failed");
    assert!(printed.contains(&format!("offset {} is next", end + 5)), "{printed}");
    assert!(printed.contains("restore the topic"), "{printed}");
}

#[test]
fn a_store_of_another_log_and_a_foreign_blob_store_are_named() {
    let Some(server) = KafkaServer::shared() else { return };
    let [ours, theirs] = [(); 2].map(|()| Bench::on(server.bootstrap_servers()));
    let blobs = |bench: &Bench| format!("file://{}", bench.path("blobs").display());
    for (bench, count) in [(&ours, 10), (&theirs, 30)] {
        bench.create_topics();
        bench.seed(count);
        bench.produce("chain", b"", b"no event");
        consume(bench, &[("UTXO_STORE__STORE__BLOBS__URL", &blobs(bench))], count.into());
    }
    let (own, foreign) = (blobs(&ours), blobs(&theirs));
    let checked = CheckReport::of(&ours, &[("UTXO_STORE__STORE__BLOBS__URL", &own)]);
    checked.assert_failed(&[]);
    assert_eq!(checked.finding("blob store", "ok"), "the blob store belongs to this store");
    let without = CheckReport::of(&ours, &[]);
    without.assert_failed(&["store"]);
    assert!(without.finding("store", "failed").contains("set `store.blobs.url`"));
    let checked = CheckReport::of(&ours, &[("UTXO_STORE__STORE__BLOBS__URL", &foreign)]);
    checked.assert_failed(&["blob store"]);
    assert!(checked.finding("blob store", "failed").contains("belongs to the store"));
    let missing_blobs = format!("file://{}", ours.path("unmounted").display());
    let checked = CheckReport::of(&ours, &[("UTXO_STORE__STORE__BLOBS__URL", &missing_blobs)]);
    checked.assert_failed(&["blob store"]);
    assert!(checked.finding("blob store", "failed").contains("check that the place is mounted"));
    assert!(!ours.path("unmounted").exists());

    let before = ObservedState::of(&theirs, server.bootstrap_servers());
    let their_group = theirs.group();
    let store = ours.store_url();
    let swapped = [("UTXO_STORE__STORE__URL", store.as_str()), ("UTXO_STORE__STORE__BLOBS__URL", own.as_str())];
    let checked = CheckReport::of(&theirs, &swapped);
    checked.assert_failed(&["store and log"]);
    let printed = checked.finding("store and log", "failed");
    for words in ["the chain topic was recreated", "is not the one that the store was made from"] {
        assert!(printed.contains(words), "{printed}");
    }
    assert_eq!(ObservedState::of(&theirs, server.bootstrap_servers()), before, "{their_group}");

    // The number of partitions must stay.
    let wider = NewTopic { name: theirs.topic("validated-wider"), partitions: 3, config: vec![] };
    block_on(async { theirs.broker().create_topics(&[wider]).await.unwrap() });
    let name = theirs.topic("validated-wider");
    let variables =
        [("UTXO_STORE__KAFKA__TOPICS__VALIDATED_TXS", name.as_str()), ("UTXO_STORE__STORE__BLOBS__URL", &foreign)];
    let checked = CheckReport::of(&theirs, &variables);
    checked.assert_failed(&["store and log"]);
    assert!(checked.finding("store and log", "failed").contains("has 3 partitions, the store was made from 2"));
}

#[test]
fn a_wrong_configuration_exits_with_2() {
    let bench = Bench::new();
    let checked = CheckReport::of(&bench, &[("UTXO_STORE__KAFKA__PROPERTIES__ACKS", "1")]);
    assert_eq!(checked.code, Some(2));
    assert!(checked.finding("configuration", "failed").contains("kafka.properties.acks is refused"));
    assert_eq!(checked.found.len(), 1);
}

/// Protects: the check describes the running cluster, and creates no index and no record to do so.
#[test]
fn an_aerospike_cluster_is_checked_without_a_write() {
    let (Some(server), Some(cluster)) = (KafkaServer::shared(), AerospikeServer::start()) else { return };
    let bench = Bench::on(server.bootstrap_servers());
    bench.create_topics();
    let (url, blobs) = (cluster.url(), format!("file://{}", bench.path("blobs").display()));
    let here = [("UTXO_STORE__STORE__URL", url.as_str()), ("UTXO_STORE__STORE__BLOBS__URL", blobs.as_str())];
    let small = ("UTXO_STORE__STORE__UTXO_BATCH_SIZE", "1000");
    let checked = CheckReport::of(&bench, &[here[0], here[1], small]);
    checked.assert_failed(&[]);
    assert!(checked.finding("store", "ok").contains("the first start creates the store"));
    assert!(checked.finding("durability", "ok").starts_with("offsets are committed "), "{:?}", checked.found);
    assert!(checked.finding("blob store", "ok").contains("the first start creates "));
    assert!(!bench.path("blobs").exists());
    let read = block_on(async {
        let engine = engine::open_existing(&url, &OpenOptions::new(Rules::main(0))).await.unwrap();
        let read = engine.read(&[Key::Meta]).await.pop().unwrap().unwrap();
        // A query fails where no index exists.
        let found = engine.query(Index::UnminedSince, 0, 1, 1).await;
        engine.close().await.unwrap();
        (read, found.is_err())
    });
    assert_eq!(read, (None, true));

    let short = ("UTXO_STORE__INGEST__DURABILITY_LAG_MS", "1");
    let checked = CheckReport::of(&bench, &[here[0], here[1], small, short]);
    checked.assert_failed(&["durability"]);
    assert!(checked.finding("durability", "failed").contains("the durability lag is too short"));
    let wide = ("UTXO_STORE__STORE__UTXO_BATCH_SIZE", "1000000");
    let checked = CheckReport::of(&bench, &[here[0], here[1], wide]);
    checked.assert_failed(&["store"]);
    assert!(checked.finding("store", "failed").contains("raise `max-record-size`"));
    checked.finding("blob store", "skipped");
}

/// Allows a user to read a topic, and forbids everything else.
fn allow_only_reads(brokers: &str, topic: &str, who: &str) {
    let client: BaseConsumer = ClientConfig::new().set("bootstrap.servers", brokers).create().unwrap();
    let [topic, who, everywhere] = [topic, who, "*"].map(|text| CString::new(text).unwrap());
    let mut error = [0 as c_char; 512];
    // SAFETY: all values live until the answer is there, and each is freed once.
    unsafe {
        let native = client.client().native_ptr();
        let mut acl = rd::rd_kafka_AclBinding_new(
            rd::rd_kafka_ResourceType_t::RD_KAFKA_RESOURCE_TOPIC,
            topic.as_ptr(),
            rd::rd_kafka_ResourcePatternType_t::RD_KAFKA_RESOURCE_PATTERN_LITERAL,
            who.as_ptr(),
            everywhere.as_ptr(),
            rd::rd_kafka_AclOperation_t::RD_KAFKA_ACL_OPERATION_READ,
            rd::rd_kafka_AclPermissionType_t::RD_KAFKA_ACL_PERMISSION_TYPE_ALLOW,
            error.as_mut_ptr(),
            error.len(),
        );
        let queue = rd::rd_kafka_queue_new(native);
        rd::rd_kafka_CreateAcls(native, &mut acl, 1, ptr::null(), queue);
        let event = rd::rd_kafka_queue_poll(queue, 30_000);
        assert!(!event.is_null());
        assert_eq!(rd::rd_kafka_event_error(event), rd::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR);
        rd::rd_kafka_event_destroy(event);
        rd::rd_kafka_queue_destroy(queue);
        rd::rd_kafka_AclBinding_destroy(acl);
    }
}

#[test]
fn missing_permissions_are_named() {
    let authorizer = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n\
                      allow.everyone.if.no.acl.found=true\n";
    let Some(server) = KafkaServer::own_with(authorizer) else { return };
    let brokers = server.bootstrap_servers();
    let bench = Bench::on(brokers);
    bench.create_topics();
    CheckReport::of(&bench, &[]).assert_failed(&[]);
    assert!(CheckReport::of(&bench, &[]).finding("permissions", "ok").contains("7 topics"));
    let named = |topic: &str| format!("topic {}", bench.topic(topic));
    allow_only_reads(brokers, &bench.topic("outcomes"), "User:somebody");
    allow_only_reads(brokers, &bench.topic("chain"), "User:ANONYMOUS");
    until("the access is refused", || {
        let found = CheckReport::of(&bench, &[]).found;
        found[&named("outcomes")].0 == "failed" && found["permissions"].0 == "failed"
    });
    let checked = CheckReport::of(&bench, &[]);
    checked.assert_failed(&[&named("outcomes"), "permissions"]);
    let printed = checked.finding(&named("outcomes"), "failed");
    assert!(printed.to_lowercase().contains("authorization failed"), "{printed}");
    let printed = checked.finding("permissions", "failed");
    assert!(printed.starts_with(&format!("Write on topic {} is not allowed", bench.topic("chain"))), "{printed}");
    let printed = checked.finding(&named("chain"), "warning");
    assert!(printed.contains("whether the topic keeps every message is unknown"), "{printed}");
    assert!(printed.contains("DescribeConfigs"), "{printed}");
}
