//! `run --check` on a real Apache Kafka: what it finds, and that it only looks.

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

const TOPICS: [&str; 7] = ["validated-txs", "block-mined", "reorgs", "chain", "decisions", "outcomes", "dead-letters"];

/// What `run --check` found, by check: outcome and words; and its exit code.
struct Checked {
    code: Option<i32>,
    found: BTreeMap<String, (String, String)>,
    err: String,
}

impl Checked {
    fn of(bench: &Bench, variables: &[(&str, &str)]) -> Self {
        let output = bench.command(&["run", "--check", "--json"], variables).output().unwrap();
        let found = String::from_utf8_lossy(&output.stdout)
            .lines()
            .map(|line| {
                let line: Value = serde_json::from_str(line).unwrap();
                let text = |name: &str| line[name].as_str().unwrap().to_owned();
                (text("check"), (text("outcome"), text("told")))
            })
            .collect();
        Checked { code: output.status.code(), found, err: String::from_utf8_lossy(&output.stderr).into_owned() }
    }

    /// The words of a check, which came out so.
    #[track_caller]
    fn told(&self, check: &str, outcome: &str) -> &str {
        let (came, told) = self.found.get(check).unwrap_or_else(|| panic!("no {check}: {:?}", self.found));
        assert_eq!(came, outcome, "{check}: {told}");
        told
    }

    /// These failed, and nothing else.
    #[track_caller]
    fn failed(&self, checks: &[&str]) {
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

/// All that a look could have changed.
#[derive(Debug, PartialEq)]
struct Everything {
    /// Topics of the bench, and where each of their partitions ends.
    topics: Vec<(String, Vec<u64>)>,
    /// Groups of the bench, with their members and what is committed of validated transactions and chain.
    groups: Vec<(String, usize)>,
    committed: Vec<Option<(u64, String)>>,
    /// Digest and meta record; `None`: there is no store.
    store: Option<(String, MetaRecord)>,
}

/// A topic that was made just now has no leader yet.
fn end(client: &BaseConsumer, topic: &str, partition: i32) -> u64 {
    let mut found = None;
    until("a leader answers", || {
        found = client.fetch_watermarks(topic, partition, std::time::Duration::from_secs(30)).ok();
        found.is_some()
    });
    found.unwrap().1 as u64
}

impl Everything {
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
        Everything { topics, groups, committed, store: store_of(bench) }
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
    Some((stats["digest"].as_str().unwrap().to_owned(), meta))
}

/// Consumes what is there, and stops.
fn consume(bench: &Bench, variables: &[(&str, &str)], committed: u64) {
    let mut instance = bench.start_with(variables);
    until("everything is committed", || bench.committed() == committed);
    instance.signal("TERM");
    assert_eq!(instance.wait().code(), Some(0));
}

#[test]
fn all_is_well_before_the_first_start_and_after_and_nothing_is_changed_by_looking() {
    let Some(server) = KafkaServer::shared() else { return };
    let bench = Bench::on(server.bootstrap_servers());
    bench.create_topics();
    let everything = || Everything::of(&bench, server.bootstrap_servers());
    let before = everything();
    assert_eq!((before.topics.len(), before.groups.len(), &before.store), (7, 0, &None), "{before:?}");
    let checked = Checked::of(&bench, &[]);
    checked.failed(&[]);
    assert_eq!(everything(), before);
    assert!(!bench.path("store").exists());
    checked.told("configuration", "ok");
    assert!(checked.told("brokers", "ok").contains(server.bootstrap_servers()));
    for topic in TOPICS {
        let (outcome, words) = match topic {
            // Nobody needs them for longer than it takes to read them.
            "outcomes" => ("ok", "2 partitions, 1 of 1 copy in sync, min.insync.replicas=1"),
            _ => ("warning", "has one copy"),
        };
        let told = checked.told(&format!("topic {}", bench.topic(topic)), outcome);
        assert!(told.contains(words), "{topic}: {told}");
    }
    assert!(checked.told("store", "ok").contains("the first start makes it"));
}

/// What is looked at while somebody works, and after: the same as before, and whoever works is not disturbed.
#[test]
fn a_group_at_work_is_looked_at_without_being_joined() {
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
    let checked = Checked::of(&bench, &[]);
    checked.failed(&["store"]);
    assert!(checked.told("store", "failed").contains("is in use by another process (store.url); ask that one"));
    assert!(checked.told(&format!("group {}", bench.group()), "ok").starts_with("members: 1; of "));
    assert_eq!(rebalances(), before);
    instance.signal("TERM");
    assert_eq!(instance.wait().code(), Some(0));

    bench.seed(3);
    let before = Everything::of(&bench, server.bootstrap_servers());
    let (_, meta) = before.store.clone().unwrap();
    assert_eq!((meta.partitions, meta.chain_id.is_some()), (Some(2), true));
    let checked = Checked::of(&bench, &[("UTXO_STORE__STORE__BLOCK_HEIGHT_RETENTION", "289")]);
    checked.failed(&[]);
    assert_eq!(Everything::of(&bench, server.bootstrap_servers()), before);
    assert!(checked.told("store", "warning").contains("block_height_retention = 288, and a start makes that 289"));
    checked.told("store and log", "ok");
    checked.told("decisions", "ok");
    let told = checked.told("offsets of the validated transactions", "ok");
    assert_eq!(told, "2 partitions, 3 messages are to be read");
    assert!(checked.told(&format!("group {}", bench.group()), "ok").starts_with("members: 0; of "));
    checked.told("permissions", "ok");

    let other = Checked::of(&bench, &[("UTXO_STORE__STORE__NETWORK", "regtest")]);
    other.failed(&["store"]);
    assert!(other.told("store", "failed").contains("network `main`"));
    let away = Checked::of(&bench, &[("UTXO_STORE__KAFKA__BROKERS", "127.0.0.1:1")]);
    away.failed(&["brokers"]);
    away.told("store", "ok");
    away.told("store and log", "skipped");
    let lost = Checked::of(&bench, &[("UTXO_STORE__STORE__URL", "fjall:///nonexistent/store")]);
    lost.failed(&["store"]);
    assert!(lost.told("store", "failed").contains("the namespace was lost"));
}

#[test]
fn topics_that_are_missing_wrong_or_forgetful_are_named_and_none_is_made() {
    let Some(server) = KafkaServer::shared() else { return };
    let bench = Bench::on(server.bootstrap_servers());
    let everything = || Everything::of(&bench, server.bootstrap_servers());
    let none = everything();
    let checked = Checked::of(&bench, &[]);
    let names: Vec<String> = TOPICS.iter().map(|topic| format!("topic {}", bench.topic(topic))).collect();
    checked.failed(&names.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(names.iter().all(|name| checked.told(name, "failed") == "does not exist"));
    checked.told("offsets", "skipped");
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
    let checked = Checked::of(&bench, &[]);
    assert_eq!(everything(), before);
    let told = |topic: &str| checked.told(&format!("topic {}", bench.topic(topic)), "failed").to_owned();
    assert!(told("chain").starts_with("has 2 partitions: it is one order"));
    assert!(told("decisions").contains("set retention.ms=-1"));
    assert!(told("validated-txs").contains("set cleanup.policy=delete"));
    let forgets = told("dead-letters");
    assert!(forgets.contains("cleanup.policy=compact") && forgets.contains("set cleanup.policy=delete"), "{forgets}");
    assert_eq!(told("reorgs"), "does not exist");
    assert_eq!((checked.code, checked.err.starts_with("error: 7 of ")), (Some(1), true), "{}", checked.err);
}

#[test]
fn offsets_that_the_topic_does_not_hold_are_named_with_both_ends() {
    let Some(server) = KafkaServer::shared() else { return };
    let brokers = server.bootstrap_servers();
    let bench = Bench::on(brokers);
    bench.create_topics();
    bench.seed(20);
    consume(&bench, &[], 20);
    bench.seed(40);
    let at = TopicPartition { topic: bench.topic("validated-txs").into(), partition: 0 };
    let before = Everything::of(&bench, brokers);
    let next = before.committed[0].as_ref().unwrap().0;
    let end = before.topics.iter().find(|(name, _)| *name == *at.topic).unwrap().1[0];
    assert!(next + 1 < end, "{before:?}");
    forget_before(brokers, &at, end - 1);
    let before = Everything::of(&bench, brokers);
    let checked = Checked::of(&bench, &[]);
    checked.failed(&["offsets of the validated transactions"]);
    let told = checked.told("offsets of the validated transactions", "failed");
    assert!(told.contains(&format!("{at}: offset {next} is next, but the topic holds {} to {end}", end - 1)), "{told}");
    assert!(told.contains(&format!("--group {} --topic {}:0 --reset-offsets", bench.group(), at.topic)), "{told}");
    assert_eq!(Everything::of(&bench, brokers), before);

    // A group that has never read it stands before the same gap, over a store that another has filled.
    let group = format!("{}-other", bench.group());
    let checked = Checked::of(&bench, &[("UTXO_STORE__KAFKA__GROUP", &group)]);
    checked.failed(&["offsets of the validated transactions"]);
    let told = checked.told("offsets of the validated transactions", "failed");
    assert!(told.contains(&format!("no longer holds offsets 0 to {}", end - 1)), "{told}");

    // Beyond the end: another topic of that name, or one that has lost its end.
    reset_offsets(brokers, &bench.group(), &at, end + 5);
    let checked = Checked::of(&bench, &[]);
    let told = checked.told("offsets of the validated transactions", "failed");
    assert!(told.contains(&format!("offset {} is next", end + 5)) && told.contains("restore the topic"), "{told}");
}

#[test]
fn a_store_of_another_log_and_the_blob_store_of_another_store_are_named() {
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
    let checked = Checked::of(&ours, &[("UTXO_STORE__STORE__BLOBS__URL", &own)]);
    checked.failed(&[]);
    assert_eq!(checked.told("blob store", "ok"), "it is that of this store");
    let without = Checked::of(&ours, &[]);
    without.failed(&["store"]);
    assert!(without.told("store", "failed").contains("set `store.blobs.url`"));
    let checked = Checked::of(&ours, &[("UTXO_STORE__STORE__BLOBS__URL", &foreign)]);
    checked.failed(&["blob store"]);
    assert!(checked.told("blob store", "failed").contains("is that of the store"));
    let gone = format!("file://{}", ours.path("unmounted").display());
    let checked = Checked::of(&ours, &[("UTXO_STORE__STORE__BLOBS__URL", &gone)]);
    checked.failed(&["blob store"]);
    assert!(checked.told("blob store", "failed").contains("is the place mounted"));
    assert!(!ours.path("unmounted").exists());

    let before = Everything::of(&theirs, server.bootstrap_servers());
    let their_group = theirs.group();
    let store = ours.store_url();
    let swapped = [("UTXO_STORE__STORE__URL", store.as_str()), ("UTXO_STORE__STORE__BLOBS__URL", own.as_str())];
    let checked = Checked::of(&theirs, &swapped);
    checked.failed(&["store and log"]);
    let told = checked.told("store and log", "failed");
    for words in ["the chain topic was recreated", "is not the one that the store was made from"] {
        assert!(told.contains(words), "{told}");
    }
    assert_eq!(Everything::of(&theirs, server.bootstrap_servers()), before, "{their_group}");

    // The same number of partitions as ever.
    let wider = NewTopic { name: theirs.topic("validated-wider"), partitions: 3, config: vec![] };
    block_on(async { theirs.broker().create_topics(&[wider]).await.unwrap() });
    let name = theirs.topic("validated-wider");
    let variables =
        [("UTXO_STORE__KAFKA__TOPICS__VALIDATED_TXS", name.as_str()), ("UTXO_STORE__STORE__BLOBS__URL", &foreign)];
    let checked = Checked::of(&theirs, &variables);
    checked.failed(&["store and log"]);
    assert!(checked.told("store and log", "failed").contains("has 3 partitions, the store was made from 2"));
}

#[test]
fn a_configuration_that_is_wrong_ends_it_with_2() {
    let bench = Bench::new();
    let checked = Checked::of(&bench, &[("UTXO_STORE__KAFKA__PROPERTIES__ACKS", "1")]);
    assert_eq!(checked.code, Some(2));
    assert!(checked.told("configuration", "failed").contains("kafka.properties.acks is refused"));
    assert_eq!(checked.found.len(), 1);
}

/// Protects: what a server must be is said of the one that is there, and no index and no record is made to find out.
#[test]
fn a_cluster_is_looked_at_with_its_durability_and_nothing_is_made_in_it() {
    let (Some(server), Some(cluster)) = (KafkaServer::shared(), AerospikeServer::start()) else { return };
    let bench = Bench::on(server.bootstrap_servers());
    bench.create_topics();
    let (url, blobs) = (cluster.url(), format!("file://{}", bench.path("blobs").display()));
    let here = [("UTXO_STORE__STORE__URL", url.as_str()), ("UTXO_STORE__STORE__BLOBS__URL", blobs.as_str())];
    let small = ("UTXO_STORE__STORE__UTXO_BATCH_SIZE", "1000");
    let checked = Checked::of(&bench, &[here[0], here[1], small]);
    checked.failed(&[]);
    assert!(checked.told("store", "ok").contains("the first start makes it"));
    assert!(checked.told("durability", "ok").starts_with("offsets are committed "), "{:?}", checked.found);
    assert!(checked.told("blob store", "ok").contains("the first start makes "));
    assert!(!bench.path("blobs").exists());
    let read = block_on(async {
        let engine = engine::open_existing(&url, &OpenOptions::new(Rules::main(0))).await.unwrap();
        let read = engine.read(&[Key::Meta]).await.pop().unwrap().unwrap();
        // Where there is no index, nobody can be found by one.
        let found = engine.query(Index::UnminedSince, 0, 1, 1).await;
        engine.close().await.unwrap();
        (read, found.is_err())
    });
    assert_eq!(read, (None, true));

    let short = ("UTXO_STORE__INGEST__DURABILITY_LAG_MS", "1");
    let checked = Checked::of(&bench, &[here[0], here[1], small, short]);
    checked.failed(&["durability"]);
    assert!(checked.told("durability", "failed").contains("the durability lag is too short"));
    let wide = ("UTXO_STORE__STORE__UTXO_BATCH_SIZE", "1000000");
    let checked = Checked::of(&bench, &[here[0], here[1], wide]);
    checked.failed(&["store"]);
    assert!(checked.told("store", "failed").contains("raise `max-record-size`"));
    checked.told("blob store", "skipped");
}

/// Lets somebody read a topic, and nobody do anything else with it.
fn let_read_alone(brokers: &str, topic: &str, who: &str) {
    let client: BaseConsumer = ClientConfig::new().set("bootstrap.servers", brokers).create().unwrap();
    let [topic, who, everywhere] = [topic, who, "*"].map(|text| CString::new(text).unwrap());
    let mut error = [0 as c_char; 512];
    // SAFETY: everything lives until the answer is there, and is given back once.
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
fn what_this_login_may_not_do_is_named() {
    let authorizer = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n\
                      allow.everyone.if.no.acl.found=true\n";
    let Some(server) = KafkaServer::own_with(authorizer) else { return };
    let brokers = server.bootstrap_servers();
    let bench = Bench::on(brokers);
    bench.create_topics();
    Checked::of(&bench, &[]).failed(&[]);
    assert!(Checked::of(&bench, &[]).told("permissions", "ok").contains("7 topics"));
    let named = |topic: &str| format!("topic {}", bench.topic(topic));
    let_read_alone(brokers, &bench.topic("outcomes"), "User:somebody");
    let_read_alone(brokers, &bench.topic("chain"), "User:ANONYMOUS");
    until("the access is refused", || {
        let found = Checked::of(&bench, &[]).found;
        found[&named("outcomes")].0 == "failed" && found["permissions"].0 == "failed"
    });
    let checked = Checked::of(&bench, &[]);
    checked.failed(&[&named("outcomes"), "permissions"]);
    let told = checked.told(&named("outcomes"), "failed");
    assert!(told.to_lowercase().contains("authorization failed"), "{told}");
    let told = checked.told("permissions", "failed");
    assert!(told.starts_with(&format!("Write on topic {} is not allowed", bench.topic("chain"))), "{told}");
    let told = checked.told(&named("chain"), "warning");
    assert!(told.contains("whether it keeps everything is not known") && told.contains("DescribeConfigs"), "{told}");
}
