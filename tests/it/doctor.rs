//! `utxo-store doctor` on broken set-ups, on a real Apache Kafka: the first entry is the cause, with its page.

use std::{fs, path::Path, time::Duration};

use serde_json::Value;
use utxo_store::{
    broker::{Broker, OutgoingMessage, TopicPartition},
    engine::{self, OpenOptions},
    record::Rules,
};

use crate::{
    aerospike,
    aerospike_server::{self, AerospikeServer},
    harness::coinbase,
    kafka_server::KafkaServer,
    made_blocks::MadeBlock,
    preflight::consume,
    real_kafka::forget_before,
    recreated_kafka_topics::recreate,
    run::{Bench, PARTITIONS, block_on, until},
    small_disk::SmallDisk,
};

/// Answer of `doctor --json`, and its exit code.
struct Diagnosis {
    code: Option<i32>,
    answer: Value,
}

impl Diagnosis {
    #[track_caller]
    fn of(bench: &Bench, args: &[&str], variables: &[(&str, &str)]) -> Self {
        let output = bench.command(&[&["doctor", "--json"], args].concat(), variables).output().unwrap();
        let answer = serde_json::from_slice(&output.stdout);
        let mut answer: Value =
            answer.unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
        // The disk of the machine that runs the tests may be short of room, which is a warning.
        let is_of_this_machine = |entry: &Value| entry["check"] == "disk" && entry["outcome"] == "warning";
        answer["entries"].as_array_mut().unwrap().retain(|entry| !is_of_this_machine(entry));
        Diagnosis { code: output.status.code(), answer }
    }

    /// Returns the causes of the failures in their order, each once.
    fn failed_causes(&self) -> Vec<&str> {
        let entries = self.answer["entries"].as_array().unwrap();
        let failed = entries.iter().filter(|entry| entry["outcome"] == "failed");
        let mut causes: Vec<&str> = failed.map(|entry| entry["cause"].as_str().unwrap_or("none")).collect();
        causes.dedup();
        causes
    }

    /// Fails unless the first entry has this cause, these words, and a page that exists.
    #[track_caller]
    fn assert_first(&self, cause: &str, words: &str) {
        let first = &self.answer["entries"][0];
        assert_eq!(first["cause"], cause, "{:#}", self.answer);
        assert!(first["told"].as_str().unwrap().contains(words), "{first:#}");
        let page = first["page"].as_str().unwrap();
        let file = page.split('#').next().unwrap();
        assert!(Path::new(env!("CARGO_MANIFEST_DIR")).join(file).is_file(), "{page}");
        assert!(!first["first_step"].as_str().unwrap().is_empty());
    }

    /// Fails unless the first entry is a failure with this cause, and the command has failed.
    #[track_caller]
    fn assert_failed(&self, cause: &str, words: &str) {
        self.assert_first(cause, words);
        assert_eq!(self.answer["entries"][0]["outcome"], "failed", "{:#}", self.answer);
        assert_eq!(self.code, Some(1), "{:#}", self.answer);
    }

    /// Returns whether there is an entry with this check and this outcome.
    fn has(&self, check: &str, outcome: &str) -> bool {
        let entries = self.answer["entries"].as_array().unwrap();
        entries.iter().any(|entry| entry["check"] == check && entry["outcome"] == outcome)
    }
}

/// Makes a bench with topics on the shared server; `None`: no server can be had.
fn bench() -> Option<Bench> {
    let bench = Bench::on(KafkaServer::shared()?.bootstrap_servers());
    bench.create_topics();
    Some(bench)
}

fn produce(bench: &Bench, topic: &str, payload: Vec<u8>) {
    let message = OutgoingMessage {
        topic: bench.topic(topic),
        partition: Some(0),
        payload: payload.into(),
        ..OutgoingMessage::default()
    };
    block_on(async { bench.broker().producer().await.unwrap().produce_all(vec![message]).await.unwrap() });
}

fn mine(bench: &Bench, sequence: u64, number: u32) {
    let block = MadeBlock::new(number, 100 + number, &coinbase(number), &[]);
    produce(bench, "block-mined", block.mined(sequence, true));
}

/// Protects: a sound set-up has nothing that fails, while its instance runs and while none runs.
#[test]
fn a_sound_group_has_only_the_warnings_of_one_broker() {
    let Some(bench) = bench() else { return };
    bench.seed(20);
    let mut instance = bench.start();
    until("everything is committed", || bench.committed() == 20);
    let url = format!("http://{}", instance.address);
    let running = Diagnosis::of(&bench, &["--instance", &url, "--verify"], &[]);
    assert_eq!((running.code, running.failed_causes()), (Some(0), vec![]), "{:#}", running.answer);
    let skipped = running.answer["skipped"].to_string();
    assert!(skipped.contains("the running instance has the store open"), "{skipped}");
    instance.signal("TERM");
    assert_eq!(instance.wait().code(), Some(0));

    let at_rest = Diagnosis::of(&bench, &["--verify"], &[]);
    assert_eq!((at_rest.code, at_rest.failed_causes()), (Some(0), vec![]), "{:#}", at_rest.answer);
    at_rest.assert_first("topic_settings", "has one copy");
    // An instance that was named and does not answer is a failure; the store and the log are still judged.
    let gone = Diagnosis::of(&bench, &["--instance", &url], &[]);
    gone.assert_failed("instance", "does not answer");
    bench.seed(3);
    let idle = Diagnosis::of(&bench, &[], &[]);
    assert!(idle.has("members for the validated transactions", "warning"), "{:#}", idle.answer);

    let text = bench.command(&["doctor"], &[]).output().unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains(" checks: 0 failed, ") && text.contains("\n1. WARNING  "), "{text}");
    assert!(text.contains("   first: ") && text.contains("   page:  docs/operating/"), "{text}");
}

/// Protects: bodies in the blob store are no violation.
#[test]
fn a_sound_store_with_bodies_as_blobs_passes_the_verification() {
    let Some(bench) = bench() else { return };
    let blobs = format!("file://{}", bench.path("blobs").display());
    let external =
        [("UTXO_STORE__STORE__BLOBS__URL", blobs.as_str()), ("UTXO_STORE__STORE__MAX_TX_SIZE_IN_STORE", "1")];
    bench.seed(10);
    consume(&bench, &external, 10);
    assert!(bench.path("blobs").read_dir().unwrap().count() > 1, "bodies are blobs");
    let verified = Diagnosis::of(&bench, &["--verify"], &external);
    assert_eq!((verified.code, verified.failed_causes()), (Some(0), vec![]), "{:#}", verified.answer);
}

#[test]
fn a_wrong_setting_comes_first_and_exits_with_2() {
    let bench = Bench::on("127.0.0.1:1");
    let wrong = Diagnosis::of(&bench, &[], &[("UTXO_STORE__KAFKA__PROPERTIES__ACKS", "1")]);
    assert_eq!(wrong.code, Some(2));
    wrong.assert_first("configuration", "kafka.properties.acks is refused");
}

#[test]
fn brokers_that_do_not_answer_come_before_everything_else() {
    let bench = Bench::on("127.0.0.1:1");
    let away = Diagnosis::of(&bench, &[], &[]);
    away.assert_failed("brokers", "kafka.brokers");
    assert_eq!(away.failed_causes(), ["brokers"]);
}

#[test]
fn missing_topics_are_to_be_created_first() {
    let Some(server) = KafkaServer::shared() else { return };
    let bench = Bench::on(server.bootstrap_servers());
    let missing = Diagnosis::of(&bench, &[], &[]);
    missing.assert_failed("missing_topic", "does not exist");
    assert_eq!(missing.failed_causes(), ["missing_topic"]);
}

#[test]
fn a_recreated_topic_comes_before_its_offsets() {
    let Some(bench) = bench() else { return };
    bench.seed(20);
    produce(&bench, "chain", b"no event".to_vec());
    consume(&bench, &[], 20);
    recreate(&bench, "validated-txs", PARTITIONS, &[]);
    let recreated = Diagnosis::of(&bench, &[], &[]);
    recreated.assert_failed("recreated_topic", "is not the one that the store was made from");
}

#[test]
fn a_store_of_another_group_is_told_from_a_recreated_topic() {
    let (Some(ours), Some(theirs)) = (bench(), bench()) else { return };
    for bench in [&ours, &theirs] {
        bench.seed(10);
        produce(bench, "chain", b"no event".to_vec());
        consume(bench, &[], 10);
    }
    let store = ours.store_url();
    let crossed = Diagnosis::of(&theirs, &[], &[("UTXO_STORE__STORE__URL", &store)]);
    crossed.assert_failed("crossed_stores", "is not the one that the store was made from");
}

#[test]
fn an_empty_store_of_a_group_with_offsets_is_a_lost_namespace() {
    let Some(bench) = bench() else { return };
    bench.seed(10);
    consume(&bench, &[], 10);
    fs::remove_dir_all(bench.path("store")).unwrap();
    let lost = Diagnosis::of(&bench, &[], &[]);
    lost.assert_failed("lost_namespace", "the namespace was lost");
    assert!(!bench.path("store").exists(), "the command creates no store");
}

#[test]
fn offsets_that_the_topic_no_longer_holds_are_named() {
    let Some(bench) = bench() else { return };
    bench.seed(20);
    consume(&bench, &[], 20);
    bench.seed(40);
    let at = TopicPartition { topic: bench.topic("validated-txs").into(), partition: 0 };
    let (_, end) = block_on(async { bench.broker().watermarks(&at).await.unwrap() });
    forget_before(bench.brokers(), &at, end);
    let gone = Diagnosis::of(&bench, &[], &[]);
    gone.assert_failed("lost_offsets", "--reset-offsets");
}

/// Protects: a halt is shown while the instance runs, by its readiness, and afterwards, by its commit.
#[test]
fn a_halted_partition_and_its_dead_letters_are_shown() {
    let Some(bench) = bench() else { return };
    let few = ("UTXO_STORE__INGEST__DEAD_LETTER_CONSECUTIVE", "3");
    bench.seed(10);
    let mut instance = bench.start_with(&[few]);
    for number in 0..3 {
        bench.produce("validated-txs", &[7; 32], format!("no event {number}").as_bytes());
    }
    until("the partition is halted", || instance.get("/health/ready").contains("partitions_running"));
    let url = format!("http://{}", instance.address);
    let running = Diagnosis::of(&bench, &["--instance", &url], &[]);
    running.assert_failed("halted_partition", "dead letters");
    assert!(running.has("dead letters", "warning"), "{:#}", running.answer);
    instance.signal("TERM");
    assert_eq!(instance.wait().code(), Some(0));
    let at_rest = Diagnosis::of(&bench, &[], &[]);
    assert!(at_rest.has("halts", "warning"), "{:#}", at_rest.answer);
}

#[test]
fn a_halted_chain_is_shown_with_its_reason() {
    let Some(bench) = bench() else { return };
    let instance = bench.start();
    mine(&bench, 1, 1);
    // The second block does not follow the first.
    mine(&bench, 2, 7);
    until("the chain is halted", || instance.get("/health/ready").contains("chain_running"));
    let url = format!("http://{}", instance.address);
    let halted = Diagnosis::of(&bench, &["--instance", &url], &[]);
    halted.assert_failed("halted_chain", "");
    assert_eq!(halted.failed_causes(), ["halted_chain"]);
}

#[test]
fn a_disk_without_room_is_named_with_its_figures() {
    let (Some(bench), Some(disk)) = (bench(), SmallDisk::mount(64)) else { return };
    disk.fill();
    let store = format!("fjall://{}/store", disk.path().display());
    let full = Diagnosis::of(&bench, &[], &[("UTXO_STORE__STORE__URL", &store)]);
    full.assert_failed("full_device", "GB are free");
}

#[test]
fn records_that_contradict_each_other_are_found_by_verify() {
    let Some(bench) = bench() else { return };
    bench.seed(10);
    consume(&bench, &[], 10);
    block_on(async {
        let engine = engine::open_existing(&bench.store_url(), &OpenOptions::new(Rules::main(0))).await.unwrap();
        // The body of this transaction is in a blob store that does not exist.
        let row = aerospike::create(1, 2);
        engine.apply(&[row]).await.pop().unwrap().unwrap();
        engine.close().await.unwrap();
    });
    assert_eq!(Diagnosis::of(&bench, &[], &[]).code, Some(0), "without --verify no record is read");
    Diagnosis::of(&bench, &["--verify"], &[])
        .assert_failed("damaged_records", "violations in 11 transactions: 1, among them: body of ");
}

/// Protects: a server that has stopped writes is named while reads still work.
#[test]
fn a_namespace_that_refuses_writes_is_named() {
    let Some(bench) = bench() else { return };
    // The machine uses more than one percent of its memory.
    let namespace = format!("{}\n  stop-writes-sys-memory-pct 1", aerospike_server::FIT);
    let setup = aerospike_server::Setup { durable: false, namespace: &namespace };
    let Some(server) = AerospikeServer::start_own(setup) else { return };
    let (url, blobs) = (server.url(), format!("file://{}", bench.path("blobs").display()));
    let here = [("UTXO_STORE__STORE__URL", url.as_str()), ("UTXO_STORE__STORE__BLOBS__URL", blobs.as_str())];
    let look = || Diagnosis::of(&bench, &[], &here);
    until("the server has looked at its room", || {
        std::thread::sleep(Duration::from_millis(500));
        let causes = look();
        assert!(causes.failed_causes().iter().all(|cause| *cause == "full_device"), "{:#}", causes.answer);
        !causes.failed_causes().is_empty()
    });
    look().assert_failed("full_device", "refuses writes");
}
