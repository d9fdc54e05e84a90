//! A real Apache Kafka for tests: its artifacts from Maven Central, on free loopback ports, in a temporary directory. It ends with
//! whoever started it, however that ends.

use std::{
    fs::{self, File},
    io::Write,
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::OnceLock,
    time::{Duration, Instant},
};

const VERSION: &str = "4.1.1";
/// Generous: two cores may be shared by many.
const START_BOUND: Duration = Duration::from_secs(120);

/// Runs a program, kills and starts it as it is told, and ends with its own standard input, as which it does with whoever holds the other end;
/// then it removes the directory.
const KEEPER: &str = r#"
directory=$1; shift
trap '' INT
start() { "$@" & server=$!; }
start "$@"
while read -r order; do
    case $order in
        kill) kill -9 $server; wait $server ;;
        start) start "$@" ;;
    esac
done
kill -9 $server; wait $server
rm -rf "$directory"
"#;

/// A running server.
pub struct KafkaServer {
    keeper: Child,
    bootstrap_servers: String,
    data: PathBuf,
}

impl KafkaServer {
    /// The one that the tests of a run share, each with topics and groups of names of its own; `None`, with a loud line, when Java or Maven
    /// are missing.
    pub fn shared() -> Option<&'static Self> {
        static SHARED: OnceLock<Option<KafkaServer>> = OnceLock::new();
        let server = SHARED.get_or_init(|| can_be_had().then(KafkaServer::new)).as_ref();
        told(server)
    }

    /// One of a test's own, which it may kill.
    pub fn own() -> Option<Self> {
        told(can_be_had().then(KafkaServer::new))
    }

    fn new() -> Self {
        let data = tempfile::tempdir().unwrap().keep();
        let [port, controller] = free_ports();
        let properties = write_properties(&data, port, controller);
        let libraries = libraries();
        let formatted = Command::new("java")
            .args(java(&libraries, "256m"))
            .args(["kafka.tools.StorageTool", "format", "-t", "AAAAAAAAAAAAAAAAAAAAAQ", "-c"])
            .arg(&properties)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(formatted.status.success(), "{}", String::from_utf8_lossy(&formatted.stderr));
        let log = File::create(data.join("server.log")).unwrap();
        let keeper = Command::new("sh")
            .args(["-c", KEEPER, "sh"])
            .arg(&data)
            .arg("java")
            .args(java(&libraries, "768m"))
            .arg("kafka.Kafka")
            .arg(&properties)
            .stdin(Stdio::piped())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let server = KafkaServer { keeper, bootstrap_servers: format!("127.0.0.1:{port}"), data };
        server.wait_until_it_answers();
        server
    }

    /// `host:port` to connect to.
    pub fn bootstrap_servers(&self) -> &str {
        &self.bootstrap_servers
    }

    /// Kills it without a warning.
    pub fn kill(&mut self) {
        self.order("kill");
        let gone = || TcpStream::connect(&self.bootstrap_servers).is_err();
        while !gone() {
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Starts it again where it was, with what it has.
    pub fn start_again(&mut self) {
        self.order("start");
        self.wait_until_it_answers();
    }

    fn order(&mut self, order: &str) {
        writeln!(self.keeper.stdin.as_ref().unwrap(), "{order}").unwrap();
    }

    fn wait_until_it_answers(&self) {
        let start = Instant::now();
        while TcpStream::connect(&self.bootstrap_servers).is_err() {
            let log = || fs::read_to_string(self.data.join("server.log")).unwrap_or_default();
            assert!(start.elapsed() < START_BOUND, "Kafka does not answer: {}", log());
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for KafkaServer {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

fn told<T>(server: Option<T>) -> Option<T> {
    if server.is_none() {
        eprintln!("SKIPPED: tests on Apache Kafka: `java` or `mvn` is not installed");
    }
    server
}

fn can_be_had() -> bool {
    ["java", "mvn"].iter().all(|tool| {
        let found = Command::new(tool).arg("-version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        found.is_ok_and(|status| status.success())
    })
}

/// The folder of Kafka's jars, fetched on first use.
fn libraries() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(".kafka").join(VERSION);
    if folder.join("complete").exists() {
        return folder;
    }
    fs::create_dir_all(&folder).unwrap();
    let pom = folder.join("pom.xml");
    fs::write(&pom, POM).unwrap();
    let fetched = Command::new("mvn")
        .args(["-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory=."])
        .arg("-f")
        .arg(&pom)
        .current_dir(&folder)
        .output()
        .unwrap();
    assert!(fetched.status.success(), "fetching Kafka: {}", String::from_utf8_lossy(&fetched.stdout));
    fs::write(folder.join("complete"), "").unwrap();
    folder
}

fn java(libraries: &Path, memory: &str) -> [String; 3] {
    [format!("-Xmx{memory}"), "-cp".to_owned(), libraries.join("*").display().to_string()]
}

/// Held at once, so that they differ.
fn free_ports<const N: usize>() -> [u16; N] {
    let held: [TcpListener; N] = std::array::from_fn(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    held.map(|listener| listener.local_addr().unwrap().port())
}

/// Nothing is ever deleted: messages of tests bear old timestamps, which retention goes by, half a minute after the start.
fn write_properties(data: &Path, port: u16, controller: u16) -> PathBuf {
    let properties = data.join("server.properties");
    let text = format!(
        "process.roles=broker,controller\n\
         node.id=1\n\
         controller.quorum.voters=1@127.0.0.1:{controller}\n\
         listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}\n\
         advertised.listeners=PLAINTEXT://127.0.0.1:{port}\n\
         controller.listener.names=CONTROLLER\n\
         listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT\n\
         log.dirs={}\n\
         log.retention.ms=-1\n\
         offsets.topic.replication.factor=1\n\
         offsets.topic.num.partitions=4\n\
         transaction.state.log.replication.factor=1\n\
         transaction.state.log.min.isr=1\n\
         group.initial.rebalance.delay.ms=0\n",
        data.join("log").display()
    );
    fs::write(&properties, text).unwrap();
    properties
}

const POM: &str = r#"<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>utxo-store</groupId>
  <artifactId>kafka-for-tests</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_2.13</artifactId>
      <version>4.1.1</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId>
      <artifactId>slf4j-nop</artifactId>
      <version>1.7.36</version>
    </dependency>
  </dependencies>
</project>
"#;
