//! A real Apache Kafka for tests: its artifacts from Maven Central, on free loopback ports, in a temporary directory.
//! The server ends with the process that started it, however that process ends.

use std::{
    fs::{self, File},
    net::TcpStream,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

use crate::ports::free_port;

const VERSION: &str = "4.1.1";
/// Artifacts of Maven Central; scripts/stack.sh fetches the same ones. The version is [`VERSION`].
const POM: &str = include_str!("kafka_server.pom.xml");
const OLDEST_JAVA: u32 = 17;
const PROPERTIES: &str = "server.properties";
/// Time limit of a start; two cores may be shared by many.
const START_BOUND: Duration = Duration::from_secs(120);

const LOG: &str = "server.log";
/// File with the process id of the server.
const PID: &str = "server.pid";
/// Heap of a server that is the whole cluster, and of one of several.
const HEAP: &[&str] = &["-Xmx768m"];
/// Several servers share two cores: their start is faster with the first compiler alone.
const SMALL_HEAP: &[&str] = &["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"];

/// Runs a program until the program ends or its own standard input ends, which happens when the holder of the other end
/// ends. Then it removes a directory, if one is given. The first argument is the file for the program's process id.
const KEEPER: &str = r#"
pid=$1; remove=$2; shift 2
exec 3<&0
"$@" & server=$!
echo $server >"$pid"
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
    /// Role in the cluster.
    pub role: Role,
    /// Directory for messages besides the server's own, which has the metadata.
    pub second_log_directory: Option<&'a Path>,
}

/// Role of a server in its cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Role {
    /// A broker that is a controller, too.
    #[default]
    Both,
    /// A broker that is no controller.
    Broker,
    /// A controller that is no broker.
    Controller,
}

/// A running server.
pub struct KafkaServer {
    keeper: Child,
    bootstrap_servers: String,
    /// Ports of the further listeners.
    ports: Vec<u16>,
    data: PathBuf,
    /// Arguments of the virtual machine.
    java: &'static [&'static str],
    /// Removes the files of a server that belongs to one test.
    _own: Option<tempfile::TempDir>,
}

/// Brokers of one cluster. Every topic has a copy on each broker and needs two in sync, and a dead broker is soon
/// detected.
#[derive(Debug, Clone, Copy, Default)]
pub struct ClusterSetup<'a> {
    /// Number of brokers.
    pub brokers: usize,
    /// Lines appended to the properties of each broker.
    pub lines: &'a str,
    /// Whether a server of its own is the controller. Otherwise each broker is a controller, too, so that the loss of
    /// most brokers takes the controllers away.
    pub has_own_controller: bool,
    /// Directory for half of the messages of the last broker.
    pub last_log_directory: Option<&'a Path>,
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
        let data = data.keep();
        let keeper = spawn(&data, HEAP, Some(&data));
        let (bootstrap_servers, ports) = (address(ports[0]), ports[1..].to_vec());
        KafkaServer { keeper, bootstrap_servers, ports, data, java: HEAP, _own: None }
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
                Self::start_in(own, address(ports[0]), ports[1..].to_vec(), HEAP)
            })
            .inspect(|server| server.wait_until_it_answers())
    }

    /// Starts a server in a formatted directory.
    fn start_in(
        own: tempfile::TempDir,
        bootstrap_servers: String,
        ports: Vec<u16>,
        java: &'static [&'static str],
    ) -> Self {
        let (keeper, data) = (spawn(own.path(), java, None), own.path().to_owned());
        KafkaServer { keeper, bootstrap_servers, ports, data, java, _own: Some(own) }
    }

    /// Starts the brokers of a cluster of a test's own; the controller, where there is one, is the last server. `None`
    /// as for [`shared`](Self::shared).
    pub fn cluster(setup: &ClusterSetup<'_>) -> Option<Vec<Self>> {
        if !is_available() {
            return None;
        }
        let ClusterSetup { brokers, has_own_controller, .. } = *setup;
        let servers = brokers + usize::from(has_own_controller);
        let all_ports = free_ports(2 * servers);
        let (ports, controllers) = all_ports.split_at(servers);
        let voters = if has_own_controller { brokers + 1..=brokers + 1 } else { 1..=brokers };
        let voters: Vec<_> = voters.map(|id| format!("{id}@{}", address(controllers[id - 1]))).collect();
        let prepare = |index: usize| {
            let role = match (has_own_controller, index == brokers) {
                (false, _) => Role::Both,
                (true, false) => Role::Broker,
                (true, true) => Role::Controller,
            };
            let lines = format!(
                "node.id={}\ncontroller.quorum.voters={}\n\
                 default.replication.factor={brokers}\nmin.insync.replicas=2\n\
                 offsets.topic.replication.factor={brokers}\noffsets.topic.num.partitions=1\n\
                 transaction.state.log.replication.factor={brokers}\ntransaction.state.log.min.isr=2\n\
                 transaction.state.log.num.partitions=1\n\
                 broker.session.timeout.ms=4000\nbroker.heartbeat.interval.ms=500\n\
                 replica.lag.time.max.ms=5000\nnum.io.threads=2\nnum.network.threads=1\n{}",
                index + 1,
                voters.join(","),
                setup.lines
            );
            let second_log_directory = setup.last_log_directory.filter(|_| index + 1 == brokers);
            let setup = Setup { lines: &lines, role, second_log_directory, ..Setup::default() };
            prepare_at(&ports[index..=index], controllers[index], &setup)
        };
        // Each is formatted by a virtual machine of its own, which takes a second.
        let prepared: Vec<_> = thread::scope(|scope| {
            let prepare = &prepare;
            let formatting: Vec<_> = (0..servers).map(|index| scope.spawn(move || prepare(index))).collect();
            formatting.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let started = prepared.into_iter().enumerate().map(|(index, own)| {
            let port = if index == brokers { controllers[index] } else { ports[index] };
            Self::start_in(own, address(port), Vec::new(), SMALL_HEAP)
        });
        let servers: Vec<_> = started.collect();
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
        self.start_again();
        self.wait_until_it_answers();
    }

    /// Starts the server again, and does not wait until it answers.
    pub fn start_again(&mut self) {
        self.keeper = spawn(&self.data, self.java, None);
    }

    /// Starts the killed server again with its number and an empty directory for messages. Its metadata comes from the
    /// controller.
    pub fn replace_disk(&mut self) {
        fs::remove_dir_all(self.data.join("log")).unwrap();
        format_directory(&self.data.join(PROPERTIES), &[]);
        self.start_again();
    }

    /// Stops the process of the server with SIGSTOP, or lets it continue.
    pub fn freeze(&self, is_frozen: bool) {
        let signal = if is_frozen { "-STOP" } else { "-CONT" };
        assert!(Command::new("/bin/kill").args([signal, &self.process_id().to_string()]).status().unwrap().success());
    }

    /// Returns the id of the server's process.
    pub fn process_id(&self) -> u32 {
        fs::read_to_string(self.data.join(PID)).unwrap().trim().parse().unwrap()
    }

    /// Returns the output of the server, of all its starts.
    pub fn log(&self) -> String {
        fs::read_to_string(self.data.join(LOG)).unwrap_or_default()
    }

    fn wait_until_it_answers(&self) {
        let start = Instant::now();
        let log = || self.log();
        while TcpStream::connect(&self.bootstrap_servers).is_err() {
            assert!(start.elapsed() < START_BOUND, "Kafka does not answer: {}", log());
            // The keeper of a server that ended by itself is a zombie.
            let status = fs::read_to_string(format!("/proc/{}/stat", self.keeper.id())).unwrap_or_default();
            assert!(!status.contains(") Z "), "Kafka ended: {}", log());
            thread::sleep(Duration::from_millis(100));
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

/// Returns the addresses of the brokers of a cluster, `host:port,…`.
pub fn addresses(servers: &[KafkaServer]) -> String {
    servers.iter().map(KafkaServer::bootstrap_servers).collect::<Vec<_>>().join(",")
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
    format_directory(&write_properties(data.path(), ports, controller, setup), setup.users);
    data
}

/// Formats the directories that the properties name, unless they are formatted.
fn format_directory(properties: &Path, users: &[&str]) {
    let formatted = Command::new("java")
        .args(java(&["-Xmx256m"]))
        .args(["kafka.tools.StorageTool", "format", "--ignore-formatted", "-t", "AAAAAAAAAAAAAAAAAAAAAQ", "-c"])
        .arg(properties)
        .args(users.iter().flat_map(|user| ["--add-scram", user]))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(formatted.status.success(), "{}", String::from_utf8_lossy(&formatted.stderr));
}

/// Starts a server in a process group of its own, so that nothing but the end of its standard input ends it.
fn spawn(data: &Path, options: &[&str], remove: Option<&Path>) -> Child {
    let log = File::options().create(true).append(true).open(data.join(LOG)).unwrap();
    fs::remove_file(data.join(PID)).ok();
    Command::new("sh")
        .args(["-c", KEEPER, "sh"])
        .arg(data.join(PID))
        .arg(remove.unwrap_or(Path::new("")))
        .arg("java")
        .args(java(options))
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

fn java(options: &[&str]) -> Vec<String> {
    let path = libraries().join("*").display().to_string();
    options.iter().map(|option| option.to_string()).chain(["-cp".to_owned(), path]).collect()
}

fn free_ports(count: usize) -> Vec<u16> {
    (0..count).map(|_| free_port()).collect()
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
    let of_clients = format!("PLAINTEXT://127.0.0.1:{port}{listeners}");
    let of_controllers = format!("CONTROLLER://127.0.0.1:{controller}");
    let advertised = format!("advertised.listeners=PLAINTEXT://127.0.0.1:{port}{advertised}\n");
    let roles = match setup.role {
        Role::Both => {
            format!("process.roles=broker,controller\nlisteners={of_clients},{of_controllers}\n{advertised}")
        }
        Role::Broker => format!("process.roles=broker\nlisteners={of_clients}\n{advertised}"),
        Role::Controller => format!("process.roles=controller\nlisteners={of_controllers}\n"),
    };
    let own = data.join("log").display().to_string();
    let second = setup.second_log_directory.map_or_else(String::new, |path| format!(",{}", path.display()));
    let text = format!(
        "{roles}\
         node.id=1\n\
         controller.quorum.voters=1@127.0.0.1:{controller}\n\
         controller.listener.names=CONTROLLER\n\
         listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT{protocols}\n\
         log.dirs={own}{second}\n\
         metadata.log.dir={own}\n\
         log.retention.ms=-1\n\
         offsets.topic.replication.factor=1\n\
         offsets.topic.num.partitions=4\n\
         transaction.state.log.replication.factor=1\n\
         transaction.state.log.min.isr=1\n\
         group.initial.rebalance.delay.ms=0\n\
         group.consumer.min.session.timeout.ms=6000\n\
         group.consumer.session.timeout.ms=6000\n\
         group.consumer.min.heartbeat.interval.ms=300\n\
         group.consumer.heartbeat.interval.ms=300\n{lines}"
    );
    fs::write(&properties, text).unwrap();
    properties
}
