//! The program on a real Apache Kafka: producing, running, killing, and truncated topics.

use std::{
    process::{Command, Output},
    sync::Arc,
};

use rdkafka::{
    ClientConfig, Offset, TopicPartitionList,
    admin::{AdminClient, AdminOptions},
    client::DefaultClientContext,
    consumer::{BaseConsumer, CommitMode, Consumer as _},
};
use serde_json::Value;
use utxo_store::{
    broker::{
        Broker, BrokerErrorKind, NewTopic, OutgoingMessage, TopicPartition,
        kafka::{KafkaBroker, KafkaSettings},
    },
    event::{DecidedInput, DecisionBody, Validated},
    generate::Scenario,
    sequencer::decisions::DecisionLog,
    tx::{Outpoint, Txid},
};

use crate::{
    demo,
    harness::spend,
    kafka_server::{ClusterSetup, KafkaServer, addresses},
    replay_from_offsets::digest_of,
    run::{Bench, assert_refused, block_on, until},
    transactional::seeded,
};

pub fn plain(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_utxo-store"));
    command.args(args);
    command
}

fn output(mut command: Command) -> Output {
    command.output().unwrap()
}

#[track_caller]
pub fn json(command: Command) -> Value {
    let output = output(command);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{err}{out}");
    serde_json::from_str(out.lines().last().unwrap()).unwrap()
}

/// Returns the group's committed offset of each validated partition, and the first and the end offset of the partition.
fn positions(bench: &Bench) -> Vec<(u64, (u64, u64))> {
    let partitions: Vec<_> = (0..2).map(|partition| validated(bench, partition)).collect();
    block_on(async {
        let broker = bench.broker();
        let committed = broker.committed(&bench.group(), &partitions).await.unwrap();
        let mut positions = Vec::new();
        for (partition, committed) in partitions.iter().zip(committed) {
            let offset = committed.map_or(0, |committed| committed.offset);
            positions.push((offset, broker.watermarks(partition).await.unwrap()));
        }
        positions
    })
}

fn validated(bench: &Bench, partition: i32) -> TopicPartition {
    TopicPartition { topic: bench.topic("validated-txs").into(), partition }
}

fn chain(bench: &Bench) -> TopicPartition {
    TopicPartition { topic: bench.topic("chain").into(), partition: 0 }
}

/// Returns the committed offset of the sequencer's group.
fn chain_offset(bench: &Bench) -> u64 {
    let group = format!("{}.chain", bench.group());
    let committed = block_on(async { bench.broker().committed(&group, &[chain(bench)]).await.unwrap() });
    committed.into_iter().flatten().next().map_or(0, |committed| committed.offset)
}

/// Deletes the messages of a partition before `offset`, as retention does.
pub fn forget_before(brokers: &str, at: &TopicPartition, offset: u64) {
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", brokers).create().unwrap();
    let mut before = TopicPartitionList::new();
    before.add_partition_offset(&at.topic, at.partition, Offset::Offset(offset as i64)).unwrap();
    block_on(async { admin.delete_records(&before, &AdminOptions::new()).await.unwrap() });
}

/// Commits an offset for a group without members, as `kafka-consumer-groups --reset-offsets` does.
pub fn reset_offsets(brokers: &str, group: &str, at: &TopicPartition, offset: u64) {
    let consumer: BaseConsumer =
        ClientConfig::new().set("bootstrap.servers", brokers).set("group.id", group).create().unwrap();
    let mut from = TopicPartitionList::new();
    from.add_partition_offset(&at.topic, at.partition, Offset::Offset(offset as i64)).unwrap();
    consumer.commit(&from, CommitMode::Sync).unwrap();
}

/// Protects: `generate` puts large bodies into objects, and the store is the one of bodies in messages.
#[test]
fn a_generated_block_comes_in_by_reference() {
    let Some(server) = KafkaServer::shared() else { return };
    let (block, prevouts) = (demo::data("mainnet-277647.block"), demo::data("mainnet-277647.prevouts.csv"));
    let generate = ["generate", "--partitions", "2", "--json", "--blocks", &block, "--prevouts", &prevouts];
    let stats_of = |variables: &[(&str, &str)], has_objects: bool| {
        let bench = Bench::on(server.bootstrap_servers());
        let produced = json(bench.command(&generate, variables));
        assert_eq!(produced["transactions"], 213, "{produced}");
        let by_reference = produced["by_reference"].as_u64().unwrap();
        assert_eq!(by_reference, if has_objects { 35 } else { 0 }, "{produced}");
        let mut instance = bench.start_with(variables);
        until("the block is handled", || chain_offset(&bench) == 1);
        until("everything is committed", || positions(&bench).iter().all(|(next, (_, end))| next == end));
        instance.signal("TERM");
        assert_eq!(instance.wait().code(), Some(0));
        json(plain(&["stats", "--store", &bench.store_url(), "--json"]))
    };
    let objects = tempfile::tempdir().unwrap();
    let url = format!("file://{}", objects.path().display());
    let settings = [("UTXO_STORE__OBJECTS__URL", &url[..]), ("UTXO_STORE__OBJECTS__INLINE_EVENT_BYTES", "1024")];
    let by_reference = stats_of(&settings, true);
    demo::assert_counts(&by_reference, &[("transactions", 213), ("outputs", 769), ("unspent", 707)]);
    assert_eq!(by_reference["digest"], stats_of(&[], false)["digest"]);
}

#[test]
fn a_generated_block_is_verified_and_a_truncated_partition_halts() {
    let Some(server) = KafkaServer::shared() else { return };
    let bench = Bench::on(server.bootstrap_servers());
    let (block, prevouts) = (demo::data("mainnet-277647.block"), demo::data("mainnet-277647.prevouts.csv"));
    let generate = ["generate", "--partitions", "2", "--json", "--blocks", &block, "--prevouts", &prevouts];
    let produced = json(bench.command(&generate, &[]));
    assert_eq!((&produced["blocks"], &produced["transactions"]), (&1.into(), &213.into()), "{produced}");

    // Another group may read from the beginning into a store that was not pruned.
    let keep = ("UTXO_STORE__PRUNE__ENABLED", "false");
    let mut instance = bench.start_with(&[keep]);
    until("everything is committed", || positions(&bench).iter().all(|(next, (_, end))| next == end));
    until("the block is handled", || chain_offset(&bench) == 1);
    instance.signal("TERM");
    assert_eq!(instance.wait().code(), Some(0));
    let log = std::fs::read_to_string(bench.path("run.log")).unwrap();
    assert!(!log.contains("\"ERROR\""), "{log}");

    let store = bench.store_url();
    let verified = json(plain(&["verify", "--store", &store, "--json"]));
    assert_eq!(verified["violations"], 0, "{verified}");
    let stats = json(plain(&["stats", "--store", &store, "--json"]));
    assert_eq!(stats["digest"], verified["digest"]);
    demo::assert_counts(&stats, &[("transactions", 213), ("outputs", 769), ("unspent", 707)]);

    // More messages come while no instance runs, and are deleted before they were read.
    bench.seed(40);
    let before = positions(&bench);
    let (next, (_, end)) = before[0];
    assert!(next + 1 < end && before[1].0 < before[1].1.1, "{before:?}");
    forget_before(server.bootstrap_servers(), &validated(&bench, 0), end - 1);
    let mut instance = bench.start_unready_with(&[keep]);
    let named = format!("partition 0: offset {next} is next, but the topic holds {} to {end}", end - 1);
    until("readiness names the gap", || instance.get("/health/ready").contains(&named));
    until("the other partition goes on", || positions(&bench)[1].0 == before[1].1.1);
    assert_eq!(positions(&bench)[0].0, next, "no message is skipped");
    instance.signal("TERM");
    assert_eq!(instance.wait().code(), Some(0));

    // A group without commits has the same gap, until an operator sets an offset to begin at.
    let group = format!("{}-other", bench.group());
    let other = [("UTXO_STORE__KAFKA__GROUP", group.as_str()), keep];
    let mut instance = bench.start_unready_with(&other);
    let named = format!("partition 0: the topic no longer holds offsets 0 to {}, and the group has committed", end - 1);
    until("readiness names the gap", || instance.get("/health/ready").contains(&named));
    instance.signal("TERM");
    assert_eq!(instance.wait().code(), Some(0));
    reset_offsets(server.bootstrap_servers(), &group, &validated(&bench, 0), end - 1);
    let mut instance = bench.start_with(&other);
    instance.signal("TERM");
    assert_eq!(instance.wait().code(), Some(0));
}

/// Plays `docs/operating/exits/lost-offsets.md`: both groups lose their commits, over a store that was never pruned.
/// Protects: the group reads its log again from the beginning, and the state stays.
#[test]
fn a_group_without_commits_reads_its_log_again() {
    let Some(server) = KafkaServer::shared() else { return };
    let bench = Bench::on(server.bootstrap_servers());
    bench.create_topics();
    bench.seed(20);
    bench.produce("chain", b"", b"no event");
    let keep = [("UTXO_STORE__PRUNE__ENABLED", "false")];
    let consume_all = || {
        let mut instance = bench.start_with(&keep);
        until("everything is committed", || (bench.committed(), chain_offset(&bench)) == (20, 1));
        instance.signal("TERM");
        assert_eq!(instance.wait().code(), Some(0));
    };
    consume_all();
    let before = digest_of(&bench.store_url());
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", server.bootstrap_servers()).create().unwrap();
    let (group, chain_group) = (bench.group(), format!("{}.chain", bench.group()));
    until("both groups are deleted", || {
        block_on(async { admin.delete_groups(&[&group, &chain_group], &AdminOptions::new()).await.unwrap() });
        (bench.committed(), chain_offset(&bench)) == (0, 0)
    });
    consume_all();
    assert_eq!(digest_of(&bench.store_url()), before);
}

#[test]
fn a_stopped_group_changes_its_protocol_and_continues() {
    let Some(server) = KafkaServer::shared() else { return };
    let bench = Bench::on(server.bootstrap_servers());
    bench.create_topics();
    for (protocol, committed) in [("classic", 10), ("consumer", 20), ("classic", 30)] {
        let mut instance = bench.start_with(&[("UTXO_STORE__KAFKA__GROUP_PROTOCOL", protocol)]);
        bench.seed(10);
        until("what came is committed", || bench.committed() == committed);
        // Members of both protocols are counted, whatever protocol the command is configured for.
        assert_refused(bench.command(&["prune", "--height", "1"], &[]), &["1 of the instances of this store run"]);
        instance.signal("TERM");
        assert_eq!(instance.wait().code(), Some(0));
    }
}

#[test]
fn prune_removes_spent_records_while_no_instance_runs() {
    let Some(server) = KafkaServer::shared() else { return };
    let bench = Bench::on(server.bootstrap_servers());
    let blocks = demo::data("mainnet-0-4312.blk");
    json(bench.command(&["generate", "--partitions", "2", "--json", "--blocks", &blocks], &[]));
    let keep = [("UTXO_STORE__PRUNE__ENABLED", "false")];
    let prune =
        |height: &str, also: &[&str]| bench.command(&[&["prune", "--json", "--height", height], also].concat(), &keep);
    let end = || block_on(async { bench.broker().watermarks(&chain(&bench)).await.unwrap().1 });
    let mut instance = bench.start_with(&keep);
    until("the blocks are handled", || end() >= 4_313 && chain_offset(&bench) == end());
    until("everything is committed", || positions(&bench).iter().all(|(next, (_, end))| next == end));
    assert_refused(prune("4312", &[]), &["instances of this store run"]);
    instance.signal("TERM");
    assert_eq!(instance.wait().code(), Some(0));

    assert_refused(prune("4313", &[]), &["--height is 4313", "4312"]);
    let url = bench.store_url();
    let stats = || json(plain(&["stats", "--store", &url, "--json"]));
    let before = stats();
    let would = json(prune("4312", &["--dry-run"]));
    assert_eq!(stats(), before);
    let spent = would["spent"].as_u64().unwrap();
    assert!(spent > 50 && would["complete"] == true, "{would}");
    let did = json(prune("4312", &[]));
    assert_eq!((&did["spent"], &did["complete"]), (&would["spent"], &true.into()), "{did}");
    assert_eq!(json(prune("4312", &[]))["spent"], 0);
    assert_eq!(json(plain(&["verify", "--store", &url, "--json"]))["violations"], 0);
    assert_eq!((&stats()["unspent"], &stats()["unspent_satoshis"]), (&before["unspent"], &before["unspent_satoshis"]));

    // An event that is not handled may be half done and decided on.
    bench.produce("chain", b"", b"no event");
    assert_refused(prune("4312", &[]), &["committed the chain up to", "run an instance"]);
    let mut instance = bench.start_with(&keep);
    until("it is a dead letter", || chain_offset(&bench) == end());
    instance.signal("TERM");
    assert_eq!(instance.wait().code(), Some(0));
    assert_eq!(json(prune("4312", &[]))["spent"], 0);

    // A replay below the replay floor is refused.
    let offsets = bench.path("offsets");
    std::fs::write(&offsets, "1 0\n").unwrap();
    let again = ["replay", "--from-offsets", offsets.to_str().unwrap()];
    let before = positions(&bench);
    let floor = format!("a replay may begin from {} on;", before[1].0);
    assert_refused(bench.command(&again, &keep), &["partition 1", "from offset 0", "was pruned", &floor]);
    let would = output(bench.command(&[&again[..], &["--dry-run"]].concat(), &keep));
    assert!(would.status.code() == Some(1) && String::from_utf8_lossy(&would.stderr).contains(&floor), "{would:?}");
    assert_eq!(positions(&bench), before);
}

/// An operator's day: a story comes in, a coin of it is frozen and reassigned, and all commands are listed and shown.
#[test]
fn commands_are_answered_on_the_command_line_and_listed() {
    let Some(server) = KafkaServer::shared() else { return };
    let bench = Bench::on(server.bootstrap_servers());
    let story = Scenario::DoubleSpend.story();
    let produced = json(bench.command(&["generate", "--scenario", "double-spend", "--partitions", "2", "--json"], &[]));
    assert_eq!(produced["events"], story.messages().count(), "{produced}");
    let mut instance = bench.start();
    let end = || block_on(async { bench.broker().watermarks(&chain(&bench)).await.unwrap().1 });
    until("the story is consumed", || {
        end() > 0 && chain_offset(&bench) == end() && positions(&bench).iter().all(|(next, (_, end))| next == end)
    });
    let mallory = story.transactions.iter().find(|(name, _)| *name == "to-mallory").unwrap().1;
    let coin = format!("{mallory}:0");
    let ask = |args: &[&str]| {
        let mut command = bench.command(&["command", "--json"], &[]);
        command.args(args);
        let output = output(command);
        let (out, err) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr).into_owned());
        let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        (output.status.code(), lines, err)
    };
    let (code, printed, err) = ask(&["freeze", &coin]);
    assert_eq!((code, printed[0]["result"].as_str()), (Some(0), Some("applied")), "{printed:?} {err}");
    let (code, printed, err) = ask(&["freeze", &coin]);
    assert_eq!((code, printed[0]["code"].as_str()), (Some(1), Some("ALREADY_FROZEN")), "{printed:?}");
    assert!(err.contains("1 of 1 commands not done"), "{err}");
    let store = bench.store_url();
    instance.signal("TERM");
    assert_eq!(instance.wait().code(), Some(0));
    let frozen = json(plain(&["inspect", "outpoint", &coin, "--store", &store, "--json"]));
    assert_eq!(frozen["status"], "FROZEN", "{frozen}");
    let hash = frozen["utxo_hash"].as_str().unwrap().to_owned();

    let mut instance = bench.start();
    let reassign =
        ["reassign", &coin, "--utxo-hash", &hash, "--script", "5399", "--satoshis", "900", "--height", "100"];
    let (code, printed, err) = ask(&reassign);
    assert_eq!((code, printed[0]["result"].as_str()), (Some(0), Some("applied")), "{printed:?} {err}");
    let nobody = "9".repeat(64);
    let (code, printed, _) = ask(&["lock", &nobody]);
    assert_eq!((code, printed[0]["code"].as_str()), (Some(1), Some("TX_NOT_FOUND")), "{printed:?}");
    let bob = story.transactions.iter().find(|(name, _)| *name == "to-bob").unwrap().1.to_string();
    let (code, printed, _) = ask(&["reconsider", &bob]);
    assert_eq!((code, printed[0]["result"].as_str()), (Some(0), Some("unchanged")), "{printed:?}");
    let (code, listed, _) = ask(&["list"]);
    let results: Vec<_> =
        listed.iter().map(|entry| entry["became"]["result"].as_str().unwrap_or("?").to_owned()).collect();
    assert_eq!((code, results), (Some(0), ["applied", "refused", "applied"].map(String::from).to_vec()), "{listed:?}");
    instance.signal("TERM");
    assert_eq!(instance.wait().code(), Some(0));

    let shown = output(bench.command(&["inspect", "tx", &mallory.to_string(), "--history", "--store", &store], &[]));
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("given to a new owner at height 100: 900 satoshis under script 5399"), "{shown}");
    assert!(shown.contains("command freeze") && shown.contains("command reassign"), "{shown}");
    let verified = json(plain(&["verify", "--store", &store, "--json"]));
    assert_eq!(verified["violations"], 0, "{verified}");
}

#[test]
fn topics_are_created_once_and_problems_are_named() {
    let Some(server) = KafkaServer::shared() else { return };
    let bench = Bench::on(server.bootstrap_servers());
    let topics = |args: &[&str]| output(bench.command(&[&["topics"], args].concat(), &[]));
    let text =
        |output: &Output| String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned();
    let checked = topics(&["check"]);
    assert_eq!((checked.status.code(), text(&checked).matches("does not exist").count()), (Some(1), 7));
    let create = ["create", "--partitions", "3", "--outcomes-hours", "2"];
    let would = topics(&[&create[..], &["--dry-run"]].concat());
    assert_eq!(
        (would.status.code(), text(&would).matches("would be created").count()),
        (Some(0), 7),
        "{}",
        text(&would)
    );
    assert_eq!(block_on(async { bench.broker().partitions(&bench.topic("chain")).await.unwrap() }), None);

    let copied = ("UTXO_STORE__KAFKA__REPLICATION_FACTOR", "2");
    let too_many = output(bench.command(&["topics", "create", "--partitions", "3"], &[copied]));
    assert!(text(&too_many).contains("InvalidReplicationFactor"), "there is one broker: {}", text(&too_many));
    assert_eq!(block_on(async { bench.broker().partitions(&bench.topic("chain")).await.unwrap() }), None);

    // One topic exists already and has a retention.
    let forgets = ("retention.ms".to_owned(), "3600000".to_owned());
    let decisions = NewTopic { name: bench.topic("decisions"), partitions: 2, config: vec![forgets] };
    block_on(async { bench.broker().create_topics(&[decisions]).await.unwrap() });
    let created = topics(&create);
    let printed = text(&created);
    assert_eq!((created.status.code(), printed.matches(": created with ").count()), (Some(1), 6), "{printed}");
    for named in ["has 2 partitions: it is one order", "set retention.ms=-1", "1 of 7 topics"] {
        assert!(printed.contains(named), "{printed}");
    }
    let other = topics(&["create", "--partitions", "4"]);
    assert_eq!(text(&other).matches("has 3 partitions, and 4 were asked for").count(), 3, "{}", text(&other));
    let again = topics(&[&create[..], &["--json"]].concat());
    let lines: Vec<Value> =
        String::from_utf8_lossy(&again.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |name: &str| lines.iter().find(|line| line["topic"] == bench.topic(name)).unwrap().clone();
    assert_eq!((&of("validated-txs")["partitions"], &of("chain")["partitions"]), (&3.into(), &1.into()));
    assert_eq!(of("decisions")["problems"].as_array().unwrap().len(), 2, "{lines:?}");
    let chain = of("chain");
    assert_eq!([&chain["copies"], &chain["in_sync"], &chain["min_in_sync"]], [&Value::from(1); 3], "{chain}");
    assert_eq!(chain["cautions"].as_array().unwrap().len(), 1, "{chain}");
    assert!(text(&topics(&["check"])).contains("; but it has one copy: it goes with its broker's disk"));
    let outcomes = bench.topic("outcomes");
    let configs = block_on(async { bench.broker().topic_configs(&[&outcomes]).await.unwrap() });
    let config = configs[0].as_ref().unwrap();
    assert_eq!((config["retention.ms"].as_str(), config["cleanup.policy"].as_str()), ("7200000", "delete"));
    assert_eq!(config["max.message.bytes"], "16777216", "the broker's default is a mebibyte");
}

/// Three brokers with Kafka's own defaults and an unclean election: one copy, of which one has to be in sync.
#[test]
fn created_topics_need_all_copies_but_one_in_sync() {
    let lines = "default.replication.factor=1\nmin.insync.replicas=1\nunclean.leader.election.enable=true\n";
    let setup = ClusterSetup { brokers: 3, lines, ..ClusterSetup::default() };
    let Some(servers) = KafkaServer::cluster(&setup) else { return };
    let (bench, weak) = (Bench::on(&addresses(&servers)), Bench::on(&addresses(&servers)));
    let topics = |bench: &Bench, args: &[&str], variables: &[(&str, &str)]| {
        let output = output(bench.command(&[&["topics"], args, &["--json"]].concat(), variables));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 7, "{}", String::from_utf8_lossy(&output.stderr));
        (output.status.code(), lines)
    };
    let (code, created) = topics(&bench, &["create", "--partitions", "2"], &[]);
    assert!(created.iter().all(|line| line["outcome"] == "created" && line["cautions"] == Value::Array(vec![])));
    let (checked, lines) = topics(&bench, &["check"], &[]);
    assert_eq!((code, checked), (Some(0), Some(0)), "{lines:?}");
    for line in lines {
        assert_eq!((&line["copies"], &line["min_in_sync"]), (&3.into(), &2.into()), "{line}");
        assert_eq!(line["cautions"], Value::Array(vec![]), "{line}");
    }
    let config = block_on(async { bench.broker().topic_configs(&[&bench.topic("chain")]).await.unwrap() });
    let config = config[0].as_ref().unwrap();
    assert_eq!((config["retention.ms"].as_str(), config["cleanup.policy"].as_str()), ("-1", "delete"));
    assert_eq!(config["unclean.leader.election.enable"], "false");

    // Topics that another program created: each of the seven needs copies, unless the settings accept one.
    let kept = [("retention.ms".to_owned(), "-1".to_owned())];
    block_on(async {
        for (name, partitions) in crate::run::TOPICS {
            let topic = NewTopic { name: weak.topic(name), partitions, config: kept.to_vec() };
            weak.broker().create_topics(&[topic]).await.unwrap();
        }
    });
    let (code, lines) = topics(&weak, &["check"], &[]);
    let problem = "has 1 copy in a cluster of 3 brokers: the loss of a broker stops its partitions, add copies up to 3 \
                   (kafka-reassign-partitions), or set kafka.replication_factor=1";
    assert!(code == Some(1) && lines.iter().all(|line| line["problems"][0] == problem), "{lines:?}");
    let (code, lines) = topics(&weak, &["check"], &[("UTXO_STORE__KAFKA__REPLICATION_FACTOR", "1")]);
    assert_eq!(code, Some(0), "{lines:?}");
    let accepted = Value::from("has one copy: it goes with its broker's disk");
    let cautioned = lines.iter().filter(|line| line["cautions"].as_array().unwrap().contains(&accepted));
    assert_eq!(cautioned.count(), 6, "all but the outcomes");
}

/// A parent that comes after its child was given up; and poison, which fails again.
#[test]
fn dead_letters_are_listed_replayed_and_discarded() {
    let Some(server) = KafkaServer::shared() else { return };
    let bench = Bench::on(server.bootstrap_servers());
    bench.create_topics();
    let dead_letters = |args: &[&str]| {
        let output = output(bench.command(&[&["dead-letters"], args, &["--json"]].concat(), &[]));
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        (output.status.code(), lines, err.into_owned())
    };
    let list = |args: &[&str]| dead_letters(&[&["list"], args].concat()).1;
    let mut instance = bench.start();
    let (coin, (_, parent, event)) = seeded(1);
    let child = spend(&[coin], 1, 2);
    bench.produce(
        "validated-txs",
        &child.txid.0,
        &Validated { tx: &child.extended, height: 200, locked: false }.encode(),
    );
    bench.produce("validated-txs", &[9; 32], b"no event");
    until("both are dead letters", || list(&[]).len() == 2);
    let of = |class: &str| list(&["--class", class]);
    assert_eq!(of("missing-parent")[0]["txid"], child.txid.to_string());
    let poison = of("decode")[0]["offset"].clone();
    assert!(of("decode")[0]["message"].as_str().unwrap().len() > 5);
    let (code, _, err) = dead_letters(&["replay"]);
    assert!(code == Some(2) && err.contains("--all"), "{err}");

    // The cause still exists: the replay changes nothing.
    let missing = ["replay", "--class", "missing-parent"];
    let (code, printed, _) = dead_letters(&missing);
    assert_eq!((code, list(&[]).len()), (Some(1), 2), "{printed:?}");
    assert!(printed[0]["result"].as_str().unwrap().contains("the verdict is unchanged"), "{printed:?}");

    // The parent comes, and its child has a second chance.
    bench.produce("validated-txs", &parent, &event);
    until("it is decided on", || {
        dead_letters(&[&missing[..], &["--dry-run"]].concat()).1[0]["result"] != "would be reconsidered"
    });
    // A dry run settles nothing; a letter whose transaction is live is shown with the settled ones only.
    assert_eq!((list(&[]).len(), list(&["--settled"]).len()), (1, 2));
    let (code, printed, err) = dead_letters(&missing);
    let live = Some("the parent has arrived: the transaction is live");
    assert_eq!((code, printed[0]["result"].as_str()), (Some(0), live), "{printed:?} {err}");
    assert_eq!((of("missing-parent"), list(&["--settled"]).len()), (vec![], 2));

    let (code, printed, err) = dead_letters(&["replay", "--all"]);
    assert_eq!((code, printed[0]["result"].as_str()), (Some(0), Some("published again")), "{printed:?} {err}");
    until("it has failed again, under its new offset", || of("decode").iter().any(|letter| letter["offset"] != poison));
    let (code, printed, err) = dead_letters(&["discard", "--class", "decode", "--contains", "e"]);
    let result = printed[0]["result"].as_str();
    assert_eq!((code, printed.len(), result), (Some(0), 1, Some("discarded")), "{printed:?} {err}");
    let settled: Vec<_> = list(&["--settled"]).iter().map(|line| line["settled"].clone()).collect();
    assert_eq!(
        (list(&[]), settled.iter().filter(|settled| *settled == "replayed").count()),
        (vec![], 2),
        "{settled:?}"
    );
    instance.signal("TERM");
    assert_eq!(instance.wait().code(), Some(0));
    let shown = json(plain(&["inspect", "tx", &child.txid.to_string(), "--store", &bench.store_url(), "--json"]));
    assert_eq!(shown["state"], "live", "{shown}");
}

#[test]
fn an_instance_outlasts_a_killed_broker() {
    let Some(mut server) = KafkaServer::own() else { return };
    let bench = Bench::on(server.bootstrap_servers());
    bench.create_topics();
    let mut instance = bench.start();
    bench.seed(100);
    until("some of it is done", || instance.get("/metrics").contains("utxo_transactions_completed_total"));
    server.kill();
    // The outage is longer than the session timeout: the group removed the member before the broker returned.
    std::thread::sleep(std::time::Duration::from_secs(8));
    assert!(instance.child.try_wait().unwrap().is_none(), "the instance waits for the broker");
    server.restart();
    bench.seed(200);
    until("what came since is committed as well", || bench.committed() == 300);
    instance.signal("TERM");
    assert_eq!(instance.wait().code(), Some(0));
    let verified = json(plain(&["verify", "--store", &bench.store_url(), "--json"]));
    assert_eq!((&verified["transactions"], &verified["violations"]), (&200.into(), &0.into()));
    let rebuilt = format!("fjall://{}", bench.path("rebuilt").display());
    let again = json(bench.command(&["replay", "--rebuild", "--json", "--store", &rebuilt], &[]));
    assert_eq!(again["digest"], verified["digest"]);
}

#[test]
fn the_demo_with_default_blocks_survives_a_kill() {
    let Some(server) = KafkaServer::shared() else { return };
    let report = demo::shown(&["--brokers", server.bootstrap_servers(), "--kills", "1"]);
    demo::assert_counts(&report, &demo::FIRST_BLOCKS);
    demo::assert_counts(&report, &[("kills", 1), ("contests", 0), ("unmined", 0), ("conflicting", 0)]);
}

fn accepted(inputs: u32) -> DecisionBody {
    let holder = Some(utxo_store::record::SpendingData { txid: Txid([1; 32]), input: 0 });
    let input = |input| DecidedInput { input, outpoint: Outpoint { txid: Txid([9; 32]), vout: input }, holder };
    DecisionBody::Accepted {
        txid: Txid([1; 32]),
        height: 5,
        inputs: (0..inputs).map(input).collect(),
        losers: vec![],
        by_block: false,
    }
}

#[test]
fn a_message_too_large_for_its_topic_is_split_or_named() {
    let Some(server) = KafkaServer::shared() else { return };
    let bench = Bench::on(server.bootstrap_servers());
    let (txs, decisions) = (bench.topic("validated-txs"), bench.topic("decisions"));
    block_on(async {
        let broker: Arc<dyn Broker> =
            Arc::new(KafkaBroker::new(KafkaSettings::new(server.bootstrap_servers())).unwrap());
        let topic = |name: &str, config| NewTopic { name: name.into(), partitions: 1, config };
        broker.create_topics(&[topic(&decisions, vec![])]).await.unwrap();
        let small = vec![("max.message.bytes".to_owned(), "10000".to_owned())];
        broker.create_topics(&[topic(&txs, small)]).await.unwrap();
        let producer = broker.producer().await.unwrap();
        let open = || DecisionLog::open(broker.clone(), producer.clone(), &decisions, 0, 0);

        let mut log = open().await.unwrap();
        for (offset, inputs) in [(0, 40_000), (1, 10), (2, 20_000)] {
            log.publish(offset, accepted(inputs)).await.unwrap();
        }
        let again = open().await.unwrap();
        for log in [&log, &again] {
            for (offset, inputs) in [(0, 40_000), (1, 10), (2, 20_000)] {
                let (body, parts) = log.table().next_joined(offset, 0).unwrap();
                assert!(body == accepted(inputs) && (parts > 1) == (inputs > 10), "{inputs} inputs in {parts} records");
            }
        }
        let large =
            OutgoingMessage { topic: txs.clone(), payload: vec![0; 30_000].into(), ..OutgoingMessage::default() };
        assert_eq!(producer.produce(large.clone()).await.unwrap_err().kind, BrokerErrorKind::TooLarge);

        // The limit applies to a batch, and librdkafka makes one batch of several small messages.
        let small = |n: u16| OutgoingMessage {
            payload: [n.to_be_bytes().as_slice(), &[7; 1_000]].concat().into(),
            ..large.clone()
        };
        let messages: Vec<OutgoingMessage> = (0..200).map(small).collect();
        for _ in 0..2 {
            let delivered = producer.produce_all(messages.clone()).await.unwrap();
            assert!(delivered.windows(2).all(|pair| pair[0].offset < pair[1].offset), "in order");
        }
        let together = futures_util::future::join_all(messages.into_iter().map(|it| producer.produce(it))).await;
        assert!(together.iter().all(Result::is_ok), "{together:?}");
        assert_eq!(producer.produce(large).await.unwrap_err().kind, BrokerErrorKind::TooLarge);
    });

    let block = demo::data("mainnet-277647.block");
    let output =
        output(bench.command(&["generate", "--partitions", "1", "--blocks", &block, "--synthesize-prevouts"], &[]));
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    let named = format!("more than topic {txs}");
    assert!(text.contains("error: produce: transaction ") && text.contains(&named), "{text}");
}
