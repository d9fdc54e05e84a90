//! A real Apache Kafka for tests: its artifacts from Maven Central, on free loopback ports, in a temporary directory. It ends with
//! whoever started it, however that ends.

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
/// Generous: two cores may be shared by many.
const START_BOUND: Duration = Duration::from_secs(120);

/// Runs a program until its own standard input ends, which it does with whoever holds the other end, or until the program ends by itself;
/// then it removes a directory, if it is told one.
const KEEPER: &str = r#"
remove=$1; shift
exec 3<&0
"$@" & server=$!
{ cat; kill -9 $server; } <&3 & end=$!
wait $server
kill $end 2>&-
if [ -n "$remove" ]; then rm -rf "$remove"; fi
"#;

/// What a server has besides the plain listener.
#[derive(Default)]
pub struct Setup<'a> {
    /// Lines behind its properties.
    pub lines: &'a str,
    /// Listeners by name, with their protocols; clients come to them by `localhost`.
    pub listeners: &'a [(&'a str, &'a str)],
    /// Users for SCRAM, as `StorageTool format --add-scram` takes them.
    pub users: &'a [&'a str],
}

/// A running server.
pub struct KafkaServer {
    keeper: Child,
    bootstrap_servers: String,
    /// Ports of the listeners besides.
    ports: Vec<u16>,
    data: PathBuf,
    /// Removes what a server of a test's own has.
    _own: Option<tempfile::TempDir>,
}

impl KafkaServer {
    /// The one that the tests of a run share, each with topics and groups of names of its own; `None`, with a loud line, when Java or Maven
    /// are missing.
    pub fn shared() -> Option<&'static Self> {
        static SHARED: OnceLock<KafkaServer> = OnceLock::new();
        can_be_had()
            .then(|| SHARED.get_or_init(|| Self::for_all(&Setup::default())))
            .inspect(|server| server.wait_until_it_answers())
    }

    /// One that stays for as long as the process, for its only caller to keep; `None` as by [`shared`](Self::shared).
    pub fn lasting(setup: &Setup<'_>) -> Option<Self> {
        can_be_had().then(|| Self::for_all(setup)).inspect(|server| server.wait_until_it_answers())
    }

    /// Its directory goes with the process, by the keeper: statics are not dropped.
    fn for_all(setup: &Setup<'_>) -> Self {
        let (data, ports) = prepare(setup);
        let (data, bootstrap_servers) = (data.keep(), address(ports[0]));
        let ports = ports[1..].to_vec();
        KafkaServer { keeper: spawn(&data, Some(&data)), bootstrap_servers, ports, data, _own: None }
    }

    /// One of a test's own, which it may kill.
    pub fn own() -> Option<Self> {
        Self::own_with("")
    }

    /// The same, with these lines behind its properties.
    pub fn own_with(lines: &str) -> Option<Self> {
        Self::own_as(&Setup { lines, ..Setup::default() })
    }

    /// The same, set up otherwise.
    pub fn own_as(setup: &Setup<'_>) -> Option<Self> {
        can_be_had()
            .then(|| {
                let (own, ports) = prepare(setup);
                let (data, bootstrap_servers) = (own.path().to_owned(), address(ports[0]));
                let ports = ports[1..].to_vec();
                KafkaServer { keeper: spawn(&data, None), bootstrap_servers, ports, data, _own: Some(own) }
            })
            .inspect(|server| server.wait_until_it_answers())
    }

    /// Brokers that are one cluster, in which everything has a copy on each and has to be on two, and which soon notices one that is gone.
    pub fn cluster<const N: usize>() -> Option<[Self; N]> {
        Self::cluster_with("")
    }

    /// The same, with these lines behind the properties of each.
    pub fn cluster_with<const N: usize>(also: &str) -> Option<[Self; N]> {
        if !can_be_had() {
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

    /// `host:port` to connect to.
    pub fn bootstrap_servers(&self) -> &str {
        &self.bootstrap_servers
    }

    /// Port of a listener besides the plain one, as they were asked for.
    pub fn port(&self, listener: usize) -> u16 {
        self.ports[listener]
    }

    /// Kills it without a warning.
    pub fn kill(&mut self) {
        drop(self.keeper.stdin.take());
        self.keeper.wait().unwrap();
    }

    /// Changes its properties, for its next start.
    pub fn reconfigure(&self, change: impl FnOnce(String) -> String) {
        let properties = self.data.join(PROPERTIES);
        fs::write(&properties, change(fs::read_to_string(&properties).unwrap())).unwrap();
    }

    /// Starts it again where it was, with what it has.
    pub fn start_again(&mut self) {
        self.keeper = spawn(&self.data, None);
        self.wait_until_it_answers();
    }

    fn wait_until_it_answers(&self) {
        let start = Instant::now();
        let log = || fs::read_to_string(self.data.join("server.log")).unwrap_or_default();
        while TcpStream::connect(&self.bootstrap_servers).is_err() {
            assert!(start.elapsed() < START_BOUND, "Kafka does not answer: {}", log());
            // The keeper of one that ended by itself is a zombie.
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

/// Whether Maven is there, and a Java that Kafka runs on; if not, says so, loudly.
fn can_be_had() -> bool {
    let version = |tool: &str| {
        let told = Command::new(tool).arg("-version").stdin(Stdio::null()).output().ok()?;
        told.status.success().then(|| String::from_utf8_lossy(&[told.stdout, told.stderr].concat()).into_owned())
    };
    let java = version("java").and_then(|told| told.split('"').nth(1)?.split('.').next()?.parse::<u32>().ok());
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

/// A directory that is formatted for a server, and the server's ports: the plain one first.
fn prepare(setup: &Setup<'_>) -> (tempfile::TempDir, Vec<u16>) {
    let mut ports = free_ports(2 + setup.listeners.len());
    let controller = ports.pop().unwrap();
    (prepare_at(&ports, controller, setup), ports)
}

/// The same, on these ports.
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

/// The folder of Kafka's jars, fetched on first use. Two tests that fetch into one folder at once would spoil it for each other.
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

/// Held at once, so that they differ.
fn free_ports(count: usize) -> Vec<u16> {
    let held: Vec<_> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    held.iter().map(|listener| listener.local_addr().unwrap().port()).collect()
}

/// Nothing is ever deleted: messages of tests bear old timestamps, which retention goes by, half a minute after the start.
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
