//! A real Apache Kafka for tests: its artifacts from Maven Central, on free loopback ports, in a temporary directory.
//! The server ends with the process that started it, however that process ends.

use std::{
    fs::{self, File},
    net::{TcpListener, TcpStream},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::OnceLock,
    time::{Duration, Instant},
};

const VERSION: &str = "4.1.1";
const OLDEST_JAVA: u32 = 17;
const PROPERTIES: &str = "server.properties";
/// Time limit of a start; two cores may be shared by many.
const START_BOUND: Duration = Duration::from_secs(120);

/// Runs a program until the program ends or its own standard input ends, which happens when the holder of the other end
/// ends. Then it removes a directory, if one is given.
const KEEPER: &str = r#"
remove=$1; shift
exec 3<&0
"$@" & server=$!
{ cat; kill -9 $server; } <&3 & end=$!
wait $server
kill $end 2>&-
if [ -n "$remove" ]; then rm -rf "$remove"; fi
"#;

/// The configuration of a server besides the plain listener.
#[derive(Default)]
pub struct Setup<'a> {
    /// Lines appended to the properties.
    pub lines: &'a str,
    /// Listeners by name, with their protocols; clients connect to them by `localhost`.
    pub listeners: &'a [(&'a str, &'a str)],
    /// Users for SCRAM, as `StorageTool format --add-scram` takes them.
    pub users: &'a [&'a str],
}

/// A running server.
pub struct KafkaServer {
    keeper: Child,
    bootstrap_servers: String,
    /// Ports of the further listeners.
    ports: Vec<u16>,
    data: PathBuf,
    /// Removes the files of a server that belongs to one test.
    _own: Option<tempfile::TempDir>,
}

impl KafkaServer {
    /// Returns the server that the tests of a run share, each with its own names of topics and groups; `None`, with a
    /// line on standard error, when Java or Maven are missing.
    pub fn shared() -> Option<&'static Self> {
        static SHARED: OnceLock<KafkaServer> = OnceLock::new();
        is_available()
            .then(|| SHARED.get_or_init(|| Self::for_all(&Setup::default())))
            .inspect(|server| server.wait_until_it_answers())
    }

    /// Starts a server that stays as long as the process; `None` as for [`shared`](Self::shared).
    pub fn lasting(setup: &Setup<'_>) -> Option<Self> {
        is_available().then(|| Self::for_all(setup)).inspect(|server| server.wait_until_it_answers())
    }

    /// The keeper removes the directory when the process ends: statics are not dropped.
    fn for_all(setup: &Setup<'_>) -> Self {
        let (data, ports) = prepare(setup);
        let (data, bootstrap_servers) = (data.keep(), address(ports[0]));
        let ports = ports[1..].to_vec();
        KafkaServer { keeper: spawn(&data, Some(&data)), bootstrap_servers, ports, data, _own: None }
    }

    /// Starts a server of a test's own, which the test may kill.
    pub fn own() -> Option<Self> {
        Self::own_with("")
    }

    /// Starts a server of a test's own, with these lines appended to the properties.
    pub fn own_with(lines: &str) -> Option<Self> {
        Self::own_as(&Setup { lines, ..Setup::default() })
    }

    /// Starts a server of a test's own with this setup.
    pub fn own_as(setup: &Setup<'_>) -> Option<Self> {
        is_available()
            .then(|| {
                let (own, ports) = prepare(setup);
                let (data, bootstrap_servers) = (own.path().to_owned(), address(ports[0]));
                let ports = ports[1..].to_vec();
                KafkaServer { keeper: spawn(&data, None), bootstrap_servers, ports, data, _own: Some(own) }
            })
            .inspect(|server| server.wait_until_it_answers())
    }

    /// Starts brokers of one cluster, in which every topic has a copy on each broker and needs two in sync, and which
    /// soon detects a dead broker.
    pub fn cluster<const N: usize>() -> Option<[Self; N]> {
        Self::cluster_with("")
    }

    /// Starts such a cluster with these lines appended to the properties of each broker.
    pub fn cluster_with<const N: usize>(also: &str) -> Option<[Self; N]> {
        if !is_available() {
            return None;
        }
        let (ports, controllers) = (free_ports(2 * N), N..2 * N);
        let voters: Vec<_> = (1..=N).zip(controllers).map(|(id, at)| format!("{id}@{}", address(ports[at]))).collect();
        let servers = std::array::from_fn(|n| {
            let lines = format!(
                "node.id={}\ncontroller.quorum.voters={}\n\
                 default.replication.factor={N}\nmin.insync.replicas=2\n\
                 offsets.topic.replication.factor={N}\noffsets.topic.num.partitions=1\n\
                 broker.session.timeout.ms=4000\nbroker.heartbeat.interval.ms=500\n\
                 replica.lag.time.max.ms=5000\nnum.io.threads=2\nnum.network.threads=1\n{also}",
                n + 1,
                voters.join(",")
            );
            let own = prepare_at(&ports[n..=n], ports[N + n], &Setup { lines: &lines, ..Setup::default() });
            let (data, bootstrap_servers) = (own.path().to_owned(), address(ports[n]));
            KafkaServer { keeper: spawn(&data, None), bootstrap_servers, ports: Vec::new(), data, _own: Some(own) }
        });
        servers.iter().for_each(Self::wait_until_it_answers);
        Some(servers)
    }

    /// Returns the address `host:port` to connect to.
    pub fn bootstrap_servers(&self) -> &str {
        &self.bootstrap_servers
    }

    /// Returns the port of a further listener, by its index in the setup.
    pub fn port(&self, listener: usize) -> u16 {
        self.ports[listener]
    }

    /// Kills the server without a warning.
    pub fn kill(&mut self) {
        drop(self.keeper.stdin.take());
        self.keeper.wait().unwrap();
    }

    /// Changes the properties for the next start.
    pub fn reconfigure(&self, change: impl FnOnce(String) -> String) {
        let properties = self.data.join(PROPERTIES);
        fs::write(&properties, change(fs::read_to_string(&properties).unwrap())).unwrap();
    }

    /// Starts the server again with its ports and data.
    pub fn restart(&mut self) {
        self.keeper = spawn(&self.data, None);
        self.wait_until_it_answers();
    }

    fn wait_until_it_answers(&self) {
        let start = Instant::now();
        let log = || fs::read_to_string(self.data.join("server.log")).unwrap_or_default();
        while TcpStream::connect(&self.bootstrap_servers).is_err() {
            assert!(start.elapsed() < START_BOUND, "Kafka does not answer: {}", log());
            // The keeper of a server that ended by itself is a zombie.
            let status = fs::read_to_string(format!("/proc/{}/stat", self.keeper.id())).unwrap_or_default();
            assert!(!status.contains(") Z "), "Kafka ended: {}", log());
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

/// Returns whether Maven and a Java for Kafka are installed; otherwise prints the reason.
fn is_available() -> bool {
    let version = |tool: &str| {
        let output = Command::new(tool).arg("-version").stdin(Stdio::null()).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    let java = version("java").and_then(|output| output.split('"').nth(1)?.split('.').next()?.parse::<u32>().ok());
    let missing = match (java, version("mvn")) {
        (None, _) => "`java` is not installed".to_owned(),
        (Some(java), _) if java < OLDEST_JAVA => format!("`java` is {java}, below {OLDEST_JAVA}"),
        (_, None) => "`mvn` is not installed".to_owned(),
        _ => return true,
    };
    eprintln!("SKIPPED: tests on Apache Kafka: {missing}");
    false
}

fn address(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

/// Returns a directory that is formatted for a server, and the server's ports, the plain one first.
fn prepare(setup: &Setup<'_>) -> (tempfile::TempDir, Vec<u16>) {
    let mut ports = free_ports(2 + setup.listeners.len());
    let controller = ports.pop().unwrap();
    (prepare_at(&ports, controller, setup), ports)
}

/// Returns a directory that is formatted for a server on these ports.
fn prepare_at(ports: &[u16], controller: u16, setup: &Setup<'_>) -> tempfile::TempDir {
    let data = tempfile::tempdir().unwrap();
    let properties = write_properties(data.path(), ports, controller, setup);
    let formatted = Command::new("java")
        .args(java("256m"))
        .args(["kafka.tools.StorageTool", "format", "-t", "AAAAAAAAAAAAAAAAAAAAAQ", "-c"])
        .arg(&properties)
        .args(setup.users.iter().flat_map(|user| ["--add-scram", user]))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(formatted.status.success(), "{}", String::from_utf8_lossy(&formatted.stderr));
    data
}

/// Starts a server in a process group of its own, so that nothing but the end of its standard input ends it.
fn spawn(data: &Path, remove: Option<&Path>) -> Child {
    let log = File::options().create(true).append(true).open(data.join("server.log")).unwrap();
    Command::new("sh")
        .args(["-c", KEEPER, "sh"])
        .arg(remove.unwrap_or(Path::new("")))
        .arg("java")
        .args(java("768m"))
        .arg("kafka.Kafka")
        .arg(data.join(PROPERTIES))
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap()
}

/// Returns the folder of Kafka's jars, fetched on first use. The lock keeps two tests from fetching into one folder at
/// once.
fn libraries() -> &'static Path {
    static LIBRARIES: OnceLock<PathBuf> = OnceLock::new();
    LIBRARIES.get_or_init(fetch)
}

fn fetch() -> PathBuf {
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

fn java(memory: &str) -> [String; 3] {
    [format!("-Xmx{memory}"), "-cp".to_owned(), libraries().join("*").display().to_string()]
}

/// Binds all ports at once, so that they differ.
fn free_ports(count: usize) -> Vec<u16> {
    let held: Vec<_> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    held.iter().map(|listener| listener.local_addr().unwrap().port()).collect()
}

/// Writes properties without any retention: messages of tests have old timestamps, which retention would delete half a
/// minute after the start.
fn write_properties(data: &Path, ports: &[u16], controller: u16, setup: &Setup<'_>) -> PathBuf {
    let properties = data.join(PROPERTIES);
    let (port, lines) = (ports[0], setup.lines);
    let besides = |line: fn(&str, &str, u16) -> String| {
        let listeners = setup.listeners.iter().zip(&ports[1..]);
        listeners.map(|((name, protocol), port)| format!(",{}", line(name, protocol, *port))).collect::<String>()
    };
    let listeners = besides(|name, _, port| format!("{name}://127.0.0.1:{port}"));
    let advertised = besides(|name, _, port| format!("{name}://localhost:{port}"));
    let protocols = besides(|name, protocol, _| format!("{name}:{protocol}"));
    let text = format!(
        "process.roles=broker,controller\n\
         node.id=1\n\
         controller.quorum.voters=1@127.0.0.1:{controller}\n\
         listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}{listeners}\n\
         advertised.listeners=PLAINTEXT://127.0.0.1:{port}{advertised}\n\
         controller.listener.names=CONTROLLER\n\
         listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT{protocols}\n\
         log.dirs={}\n\
         log.retention.ms=-1\n\
         offsets.topic.replication.factor=1\n\
         offsets.topic.num.partitions=4\n\
         transaction.state.log.replication.factor=1\n\
         transaction.state.log.min.isr=1\n\
         group.initial.rebalance.delay.ms=0\n\
         group.consumer.min.session.timeout.ms=6000\n\
         group.consumer.session.timeout.ms=6000\n\
         group.consumer.min.heartbeat.interval.ms=300\n\
         group.consumer.heartbeat.interval.ms=300\n{lines}",
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
