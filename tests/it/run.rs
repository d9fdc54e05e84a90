//! `utxo-store run` as a process of its own, against a mock cluster in this process (or a real one).

use std::{
    fs::{self, File},
    net::TcpListener,
    ops::Range,
    path::PathBuf,
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use tempfile::TempDir;
use utxo_store::{
    broker::{
        Broker, BrokerError, Message, NewTopic, OutgoingMessage, TopicPartition,
        kafka::{KafkaBroker, KafkaSettings, MockCluster},
    },
    event::{PartialOutput, PartialTxEvent},
    tx::Txid,
};

pub const PARTITIONS: i32 = 2;
/// Time limit that only ends a test which would never end.
const PATIENCE: Duration = Duration::from_secs(300);

/// Topics of the store, with their numbers of partitions.
pub const TOPICS: [(&str, i32); 7] = [
    ("block-mined", 1),
    ("reorgs", 1),
    ("chain", 1),
    ("decisions", 1),
    ("validated-txs", PARTITIONS),
    ("outcomes", PARTITIONS),
    ("dead-letters", PARTITIONS),
];

/// Returns every topic, with this suffix of its name.
fn topics(suffix: &str) -> Vec<NewTopic> {
    let new = |(name, partitions)| NewTopic { name: format!("utxo.{name}{suffix}"), partitions, config: Vec::new() };
    TOPICS.map(new).to_vec()
}

/// A cluster, and a directory with a configuration and a store.
pub struct Bench {
    brokers: String,
    /// Suffix of the names of the topics and of the group.
    suffix: String,
    session_timeout_ms: u32,
    /// One client for all looks of a test: a client of its own for each look costs the cluster more than the test.
    broker: KafkaBroker,
    _mock: Option<MockCluster>,
    pub directory: TempDir,
}

impl Bench {
    pub fn new() -> Self {
        let cluster = MockCluster::start(&topics("")).unwrap();
        let bench = Bench::on(cluster.bootstrap_servers());
        // The mock allows a shorter session.
        Bench { suffix: String::new(), session_timeout_ms: 2_000, _mock: Some(cluster), ..bench }
    }

    /// A bench on a cluster that others use as well.
    pub fn on(brokers: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let name = directory.path().file_name().unwrap().to_str().unwrap();
        let suffix = format!(".{}", name.trim_start_matches('.'));
        let settings = KafkaSettings { fetch_wait_max: Duration::from_millis(10), ..KafkaSettings::new(brokers) };
        let broker = KafkaBroker::new(settings).unwrap();
        Bench { brokers: brokers.to_owned(), suffix, session_timeout_ms: 6_000, broker, _mock: None, directory }
    }

    /// Returns the address `host:port` of the cluster.
    pub fn brokers(&self) -> &str {
        &self.brokers
    }

    /// Returns the whole name of a topic.
    pub fn topic(&self, name: &str) -> String {
        format!("utxo.{name}{}", self.suffix)
    }

    /// Returns the group of the validated transactions.
    pub fn group(&self) -> String {
        format!("utxo-store{}", self.suffix)
    }

    /// Creates all topics on a real cluster; the mock creates its own.
    pub fn create_topics(&self) {
        block_on(async { self.broker().create_topics(&topics(&self.suffix)).await.unwrap() });
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn store_url(&self) -> String {
        format!("fjall://{}", self.path("store").display())
    }

    /// Returns the binary as a command with this bench's configuration and these environment variables.
    pub fn command(&self, args: &[&str], variables: &[(&str, &str)]) -> Command {
        let file = self.path("utxo-store.toml");
        let names: String = topics("")
            .iter()
            .map(|topic| topic.name.trim_start_matches("utxo."))
            .map(|name| format!("{} = \"{}\"\n", name.replace('-', "_"), self.topic(name)))
            .collect();
        let text = format!(
            "[kafka]\nbrokers = \"{}\"\ngroup = \"{}\"\nsession_timeout_ms = {}\nheartbeat_interval_ms = 300\n\
             max_poll_interval_ms = 10000\nfetch_wait_max_ms = 50\nfetch_min_bytes = 1\n[kafka.topics]\n{names}\
             [store]\nurl = \"{}\"\n[ingest]\ncommit_interval_ms = 100\n[http]\nlisten = \"127.0.0.1:0\"\n",
            self.brokers,
            self.group(),
            self.session_timeout_ms,
            self.store_url(),
        );
        // A starting instance may be reading the file: the rename keeps it from reading a part of it.
        let new = file.with_extension("new");
        fs::write(&new, text).unwrap();
        fs::rename(new, &file).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_utxo-store"));
        command.args(args).arg("--config").arg(file).env_clear().envs(variables.iter().copied());
        command
    }

    /// Starts `run`, and waits until it is ready.
    pub fn start(&self) -> Instance {
        self.start_with(&[])
    }

    /// Starts `run` with environment variables, and waits until it is ready.
    pub fn start_with(&self, variables: &[(&str, &str)]) -> Instance {
        let instance = self.start_unready_with(variables);
        until("it is ready", || instance.get("/health/ready").starts_with("HTTP/1.1 200"));
        instance
    }

    /// Starts `run` with environment variables, ready or not.
    pub fn start_unready_with(&self, variables: &[(&str, &str)]) -> Instance {
        self.start_process(&["run", "--exit-with-stdin"], variables)
    }

    /// Starts `run` or `serve` with arguments and environment variables. Returns once the process listens.
    pub fn start_process(&self, args: &[&str], variables: &[(&str, &str)]) -> Instance {
        static SERVERS: AtomicU64 = AtomicU64::new(0);
        // Each server has a log of its own; the log of `run` is that of the last start.
        let name = match args[0] {
            "run" => "run".to_owned(),
            other => format!("{other}-{}", SERVERS.fetch_add(1, Ordering::Relaxed)),
        };
        let [file, log] = ["http-address", "log"].map(|end| self.path(&format!("{name}.{end}")));
        fs::remove_file(&file).ok();
        let mut command = self.command(&[args, &["--http-address-file", file.to_str().unwrap()]].concat(), variables);
        let child = command.stdin(Stdio::piped()).stderr(File::create(&log).unwrap()).spawn().unwrap();
        let mut instance = Instance { child, address: String::new() };
        until("the address is known", || {
            let has_ended = instance.child.try_wait().unwrap().is_some();
            assert!(!has_ended, "{args:?} ended: {}", fs::read_to_string(&log).unwrap());
            file.exists()
        });
        instance.address = fs::read_to_string(&file).unwrap().trim().to_owned();
        instance
    }

    pub fn broker(&self) -> KafkaBroker {
        self.broker.clone()
    }

    /// Produces `count` partial transactions.
    pub fn seed(&self, count: u8) {
        self.produce_all((1..=count).map(|tag| self.partial(Txid([tag; 32]))).collect());
    }

    /// Builds the event of a partial transaction.
    pub fn partial(&self, txid: Txid) -> OutgoingMessage {
        let outputs = vec![PartialOutput { vout: 0, satoshis: 1_000, script: &[0x51] }];
        let event = PartialTxEvent { txid, coinbase: false, height: 1, outputs };
        OutgoingMessage {
            topic: self.topic("validated-txs"),
            key: txid.0.to_vec().into(),
            payload: event.encode().into(),
            ..OutgoingMessage::default()
        }
    }

    /// Builds one such event for each number.
    pub fn partials(&self, numbers: Range<u64>) -> Vec<OutgoingMessage> {
        numbers.map(|number| self.partial(Txid(*blake3::hash(&number.to_le_bytes()).as_bytes()))).collect()
    }

    /// Produces these messages.
    pub fn produce_all(&self, messages: Vec<OutgoingMessage>) {
        block_on(async { self.broker().producer().await.unwrap().produce_all(messages).await.unwrap() });
    }

    /// Produces a message as it is, to the topic of that short name.
    pub fn produce(&self, topic: &str, key: &[u8], payload: &[u8]) {
        let message = OutgoingMessage {
            topic: self.topic(topic),
            key: key.to_vec().into(),
            payload: payload.to_vec().into(),
            ..OutgoingMessage::default()
        };
        block_on(async { self.broker().producer().await.unwrap().produce(message).await.unwrap() });
    }

    /// Returns all messages of one partition of a topic.
    pub fn messages(&self, topic: &str, partition: i32) -> Vec<Message> {
        let partition = TopicPartition { topic: self.topic(topic).into(), partition };
        block_on(async {
            let broker = self.broker();
            let (low, end) = broker.watermarks(&partition).await.unwrap();
            let mut reader = broker.read(&partition, low).await.unwrap();
            let mut messages = Vec::new();
            while reader.position() < end {
                messages.extend(reader.next(Duration::from_millis(100)).await.unwrap());
            }
            messages
        })
    }

    /// Returns the sum of the group's committed offsets of validated transactions.
    pub fn committed(&self) -> u64 {
        self.try_committed(&self.broker()).unwrap()
    }

    /// Returns the same sum as read by this client; an error while the group has no coordinator.
    pub fn try_committed(&self, broker: &KafkaBroker) -> Result<u64, BrokerError> {
        let partition = |partition| TopicPartition { topic: self.topic("validated-txs").into(), partition };
        let partitions: Vec<_> = (0..PARTITIONS).map(partition).collect();
        let committed = block_on(async { broker.committed(&self.group(), &partitions).await })?;
        Ok(committed.into_iter().flatten().map(|committed| committed.offset).sum())
    }
}

/// Returns the whole answer of an address to a request; empty when there is none.
pub fn get(address: &str, path: &str) -> String {
    use std::io::{Read, Write};
    let Ok(mut stream) = std::net::TcpStream::connect(address) else { return String::new() };
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    let mut answer = String::new();
    stream.write_all(request.as_bytes()).and_then(|()| stream.read_to_string(&mut answer)).ok();
    answer
}

/// A running `run` or `serve`.
pub struct Instance {
    pub child: Child,
    pub address: String,
}

impl Instance {
    /// Returns the whole answer to a request; empty when there is none.
    pub fn get(&self, path: &str) -> String {
        get(&self.address, path)
    }

    pub fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("/bin/kill").args([format!("-{name}"), pid]).status().unwrap().success());
    }

    pub fn wait(&mut self) -> ExitStatus {
        let started = Instant::now();
        loop {
            match self.child.try_wait().unwrap() {
                Some(status) => return status,
                None if started.elapsed() > PATIENCE => panic!("the instance does not end in time"),
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < PATIENCE, "timed out waiting until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap().block_on(future)
}

/// Returns the last line of standard error; the lines before are log records.
pub fn last_line(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or_default().to_owned()
}

/// Runs `run` where it must fail by itself; checks that its error is one line with these words.
pub fn assert_refused(mut command: Command, words: &[&str]) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let line = last_line(&output);
    assert_eq!(output.status.code(), Some(1), "{line}");
    assert!(line.starts_with("error: ") && words.iter().all(|word| line.contains(word)), "{words:?}: {line}");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let foreign: Vec<_> = text.lines().filter(|line| !line.starts_with('{')).collect();
    assert_eq!(foreign, [line], "log records and one line");
}

#[test]
fn sigterm_drains_commits_and_exits_with_0() {
    let bench = Bench::new();
    bench.seed(50);
    let mut instance = bench.start();
    until("everything is committed", || bench.committed() == 50);
    until("the lag of both logs is shown", || {
        let metrics = instance.get("/metrics");
        ["{partition=\"1\",topic=\"utxo.validated-txs\"} 0", "{partition=\"0\",topic=\"utxo.chain\"} 0"]
            .iter()
            .all(|labels| metrics.contains(&format!("utxo_lag_messages{labels}")))
    });
    instance.signal("TERM");
    assert_eq!(instance.wait().code(), Some(0));

    bench.seed(60);
    let mut instance = bench.start_with(&[("UTXO_STORE__INGEST__COMMIT_INTERVAL_MS", "600000")]);
    until("the rest is completed", || {
        instance.get("/metrics").contains("utxo_transactions_completed_total{result=\"live\"} 60")
    });
    assert!(instance.get("/metrics").contains("utxo_events_total{kind=\"seeded\"} 60"));
    // No commit tick has come: the shutdown commits.
    assert_eq!(bench.committed(), 50);
    instance.signal("INT");
    assert_eq!(instance.wait().code(), Some(0));
    assert_eq!(bench.committed(), 110);
}

#[test]
fn a_second_signal_stops_at_once_and_loses_nothing() {
    let bench = Bench::new();
    bench.seed(20);
    let never = [("UTXO_STORE__INGEST__COMMIT_INTERVAL_MS", "600000")];
    let mut instance = bench.start_with(&never);
    until("everything is completed", || {
        instance.get("/metrics").contains("utxo_transactions_completed_total{result=\"live\"} 20")
    });
    // Both signals are pending when the process continues: the second comes before the commit of the first is answered.
    for signal in ["STOP", "TERM", "INT", "CONT"] {
        instance.signal(signal);
    }
    assert_eq!(instance.wait().code(), Some(3));
    let log = fs::read_to_string(bench.path("run.log")).unwrap();
    assert!(log.contains("signals: second signal, exiting at once"), "{log}");

    let mut instance = bench.start();
    until("everything is committed", || bench.committed() == 20);
    instance.signal("TERM");
    assert_eq!(instance.wait().code(), Some(0));
}

#[test]
fn a_child_process_stops_when_its_standard_input_ends() {
    let bench = Bench::new();
    let mut instance = bench.start();
    drop(instance.child.stdin.take());
    assert_eq!(instance.wait().code(), Some(3));
}

#[test]
fn a_missing_topic_is_named() {
    let bench = Bench::new();
    let command = bench.command(&["run"], &[("UTXO_STORE__KAFKA__TOPICS__DECISIONS", "no.such-topic")]);
    assert_refused(command, &["topic `no.such-topic` does not exist"]);
}

#[test]
fn an_occupied_port_is_named() {
    let bench = Bench::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let command = bench.command(&["run"], &[("UTXO_STORE__HTTP__LISTEN", &address)]);
    assert_refused(command, &[&address, "http.listen", "in use"]);
}

#[test]
fn a_store_in_use_is_named() {
    let bench = Bench::new();
    let instance = bench.start();
    assert_refused(bench.command(&["run"], &[]), &["store.url", bench.path("store").to_str().unwrap(), "is in use"]);
    drop(instance);
}

#[test]
fn a_foreign_directory_and_a_damaged_store_are_named() {
    let bench = Bench::new();
    let store = bench.path("store");
    fs::create_dir(&store).unwrap();
    fs::write(store.join("letter.txt"), "dear diary").unwrap();
    let named = store.to_str().unwrap().to_owned();
    assert_refused(bench.command(&["run"], &[]), &["store.url", &named, "neither empty nor a store"]);
    assert_eq!(fs::read(store.join("letter.txt")).unwrap(), b"dear diary");

    fs::remove_dir_all(&store).unwrap();
    bench.seed(20);
    let mut instance = bench.start();
    instance.signal("TERM");
    instance.wait();
    fs::write(store.join("version"), b"nonsense").unwrap();
    assert_refused(bench.command(&["run"], &[]), &["store.url", &named, "damaged"]);
}

#[test]
fn a_store_of_another_network_is_refused() {
    let bench = Bench::new();
    let mut instance = bench.start();
    instance.signal("TERM");
    instance.wait();
    let command = bench.command(&["run"], &[("UTXO_STORE__STORE__NETWORK", "regtest")]);
    assert_refused(command, &["network `main`", "`regtest`"]);
}

#[test]
fn an_instance_without_a_broker_waits_unready() {
    let bench = Bench::new();
    let file = bench.path("http-address");
    let args = ["run", "--http-address-file", file.to_str().unwrap()];
    let mut command = bench.command(&args, &[("UTXO_STORE__KAFKA__BROKERS", "127.0.0.1:1")]);
    let child = command.stderr(Stdio::null()).spawn().unwrap();
    let mut instance = Instance { child, address: String::new() };
    until("the address is known", || file.exists());
    instance.address = fs::read_to_string(&file).unwrap().trim().to_owned();
    until("readiness names the broker", || {
        let answer = instance.get("/health/ready");
        answer.starts_with("HTTP/1.1 503") && answer.contains("the broker does not answer")
    });
    assert!(instance.get("/health/live").starts_with("HTTP/1.1 200"));
    instance.signal("TERM");
    assert_eq!(instance.wait().code(), Some(0));
}

#[test]
fn a_lost_namespace_is_refused() {
    let bench = Bench::new();
    bench.seed(20);
    let mut instance = bench.start();
    until("everything is committed", || bench.committed() == 20);
    instance.signal("TERM");
    instance.wait();
    fs::remove_dir_all(bench.path("store")).unwrap();
    assert_refused(bench.command(&["run"], &[]), &["namespace was lost", "replay --rebuild"]);
}

/// Runs a command that must succeed; returns its output as JSON.
fn json(mut command: Command) -> serde_json::Value {
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_rebuild_has_the_live_digest_and_groups_are_at_the_end() {
    let bench = Bench::new();
    bench.seed(40);
    let mut instance = bench.start();
    until("everything is committed", || bench.committed() == 40);
    instance.signal("TERM");
    assert_eq!(instance.wait().code(), Some(0));

    let rebuilt_url = format!("fjall://{}", bench.path("rebuilt").display());
    let replay = || bench.command(&["replay", "--rebuild", "--json", "--store", &rebuilt_url], &[]);
    let rebuilt = json(replay());
    let mut stats = Command::new(env!("CARGO_BIN_EXE_utxo-store"));
    stats.args(["stats", "--json", "--store", &bench.store_url()]);
    let live = json(stats);
    assert_eq!(rebuilt["digest"], live["digest"]);
    assert_eq!((&rebuilt["events"], &rebuilt["seeded"]["transactions"]), (&40.into(), &40.into()));
    assert_refused(replay(), &[&rebuilt_url, "not empty"]);

    let offsets = json(bench.command(&["inspect", "offsets", "--json"], &[]));
    let [txs, chain] = [0, 1].map(|group| &offsets["groups"][group]);
    assert_eq!((&txs["group"], &txs["lag"]), (&"utxo-store".into(), &0.into()));
    assert_eq!((&chain["group"], &chain["topic"]), (&"utxo-store.chain".into(), &"utxo.chain".into()));
    let places = txs["partitions"].as_array().unwrap();
    assert_eq!(places.iter().map(|place| place["committed"].as_u64().unwrap()).sum::<u64>(), 40);
    assert!(places.iter().all(|place| place["metadata"]["pos"] == place["end"]), "{places:?}");

    let decisions = json(bench.command(&["inspect", "decisions", "--json"], &[]));
    assert_eq!(decisions, serde_json::json!({ "decisions": [], "left_out": 0, "open": [] }));
}

#[test]
fn a_missing_or_bad_configuration_exits_with_2() {
    for command in ["run", "replay"] {
        let mut args = vec![command, "--config", "/nonexistent.toml"];
        if command == "replay" {
            args.extend(["--rebuild", "--store", "memory://"]);
        }
        let mut run = Command::new(env!("CARGO_BIN_EXE_utxo-store"));
        run.args(args).env_clear().env("UTXO_STORE__LOG__FORMAT", "xml").env("UTXO_STORE__KAFKA__COLOUR", "red");
        let output = run.output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(text.lines().count(), 3, "{text}");
        for word in ["/nonexistent.toml", "log.format", "kafka.colour"] {
            assert!(text.contains(word), "{word}: {text}");
        }
    }
    let bench = Bench::new();
    let variables = [("UTXO_STORE__KAFKA__PROPERTIES__NO_SUCH_PROPERTY", "1")];
    let output = bench.command(&["run"], &variables).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(last_line(&output).starts_with("error: kafka: "), "{}", last_line(&output));
}
