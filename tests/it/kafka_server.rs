//! A real Apache Kafka for tests: its artifacts from Maven Central, one process, on free loopback ports, in a temporary
//! directory, killed when it is dropped.

use std::{
    fs::{self, File},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

const VERSION: &str = "4.1.1";
/// Generous: two cores may be shared by many.
const START_BOUND: Duration = Duration::from_secs(120);

/// A running server.
pub struct KafkaServer {
    process: Child,
    bootstrap_servers: String,
    /// Keeps the data until the process is gone.
    _data: tempfile::TempDir,
}

impl KafkaServer {
    /// Starts a server; `None`, with a loud line, when Java or Maven are missing.
    pub fn start() -> Option<Self> {
        for (tool, argument) in [("java", "-version"), ("mvn", "-version")] {
            let found = Command::new(tool).arg(argument).stdout(Stdio::null()).stderr(Stdio::null()).status();
            if !found.is_ok_and(|status| status.success()) {
                eprintln!("SKIPPED: tests on Apache Kafka: `{tool}` is not installed");
                return None;
            }
        }
        let libraries = libraries();
        let data = tempfile::tempdir().unwrap();
        let [port, controller] = free_ports();
        let properties = write_properties(data.path(), port, controller);
        let formatted = java(&libraries, "256m")
            .args(["kafka.tools.StorageTool", "format", "-t", "AAAAAAAAAAAAAAAAAAAAAQ", "-c"])
            .arg(&properties)
            .output()
            .unwrap();
        assert!(formatted.status.success(), "{}", String::from_utf8_lossy(&formatted.stderr));
        let log = File::create(data.path().join("server.log")).unwrap();
        let process = java(&libraries, "512m")
            .arg("kafka.Kafka")
            .arg(&properties)
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut server = KafkaServer { process, bootstrap_servers: format!("127.0.0.1:{port}"), _data: data };
        server.wait_until_it_answers();
        Some(server)
    }

    /// `host:port` to connect to.
    pub fn bootstrap_servers(&self) -> &str {
        &self.bootstrap_servers
    }

    fn wait_until_it_answers(&mut self) {
        let start = Instant::now();
        while TcpStream::connect(&self.bootstrap_servers).is_err() {
            assert!(start.elapsed() < START_BOUND, "Kafka does not answer");
            let ended = self.process.try_wait().unwrap();
            assert!(ended.is_none(), "Kafka ended with {ended:?}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for KafkaServer {
    fn drop(&mut self) {
        // It holds nothing that outlives the test.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The folder of Kafka's jars, fetched on first use.
fn libraries() -> PathBuf {
    // Two tests that fetch into one folder at once spoil it for each other.
    static FETCHING: Mutex<()> = Mutex::new(());
    let _alone = FETCHING.lock().unwrap_or_else(PoisonError::into_inner);
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

fn java(libraries: &Path, memory: &str) -> Command {
    let mut command = Command::new("java");
    command.arg(format!("-Xmx{memory}")).arg("-cp").arg(libraries.join("*")).stdin(Stdio::null());
    command
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
