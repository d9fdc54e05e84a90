//! A real Aerospike for tests: a running one that `AEROSPIKE_HOSTS` names, else a process of `asd` from PATH on free
//! loopback ports, else a container where a container engine runs.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use utxo_store::engine::aerospike::AerospikeSettings;

use crate::ports::free_port;

const IMAGE: &str = "aerospike/aerospike-server:8.1.0.3";
/// Time limit of a start; two cores may be shared by many.
const START_BOUND: Duration = Duration::from_secs(120);

/// The configuration of a server that belongs to one test.
#[derive(Debug, Clone, Copy)]
pub struct Setup<'a> {
    /// Keeps the records in a file that survives a restart as far as it was flushed; otherwise the records are in
    /// memory.
    pub durable: bool,
    /// Further lines of the namespace.
    pub namespace: &'a str,
}

/// A namespace that passes the start checks of the store.
pub const FIT: &str = "replication-factor 1\n  nsup-period 120\n  max-record-size 8M";

/// A server that tests share, each with its own set.
pub struct AerospikeServer {
    hosts: String,
    namespace: String,
    own: Option<Own>,
}

/// A server that belongs to one test.
enum Own {
    Process { process: Child, command: PathBuf, folder: tempfile::TempDir },
    Container(String),
}

impl AerospikeServer {
    /// Starts a server in memory; `None`, with a line on standard error, when no server is available.
    pub fn start() -> Option<Self> {
        if let Ok(hosts) = std::env::var("AEROSPIKE_HOSTS") {
            let namespace = std::env::var("AEROSPIKE_NAMESPACE").unwrap_or_else(|_| "test".into());
            return Some(AerospikeServer { hosts, namespace, own: None });
        }
        let setup = Setup { durable: false, namespace: FIT };
        if let Some(command) = in_path("asd") {
            return Some(
                Self::start_at(command, &configuration(setup), server_ports(), "127.0.0.1").once_initialized(),
            );
        }
        if engine_runs() {
            return Some(Self::container(setup));
        }
        eprintln!("SKIPPED: tests on Aerospike: no AEROSPIKE_HOSTS, no `asd` in PATH, no container engine");
        None
    }

    /// Starts a server of this test's own, which the test may kill.
    pub fn start_own(setup: Setup<'_>) -> Option<Self> {
        Self::start_configured(&configuration(setup))
    }

    /// Starts a server of this test's own with that configuration, whose namespace is `test`. `{FOLDER}`, `{SERVICE}`,
    /// `{FABRIC}` and `{HEARTBEAT}` stand for a folder and ports.
    pub fn start_configured(configuration: &str) -> Option<Self> {
        Some(Self::start_on(configuration, server_ports())?.once_initialized())
    }

    /// Waits until the server knows its partitions: before, it refuses clients. A node of a cluster may wait for the
    /// other nodes.
    fn once_initialized(self) -> Self {
        let start = Instant::now();
        while partition_generation(&self.hosts).is_none_or(|generation| generation < 0) {
            assert!(start.elapsed() < START_BOUND, "Aerospike at {} does not know its partitions", self.hosts);
            std::thread::sleep(Duration::from_millis(50));
        }
        self
    }

    /// As [`start_configured`](Self::start_configured), with these ports for `{SERVICE}`, `{FABRIC}` and `{HEARTBEAT}`.
    pub fn start_on(configuration: &str, ports: [u16; 3]) -> Option<Self> {
        Some(Self::start_at(program()?, configuration, ports, "127.0.0.1"))
    }

    /// Returns settings with a set that no other test uses.
    pub fn settings(&self) -> AerospikeSettings {
        AerospikeSettings::new(self.hosts.as_str(), self.namespace.as_str(), own_set())
    }

    /// Returns a store URL with a set that no other test uses.
    pub fn url(&self) -> String {
        format!("aerospike://{}/{}?set={}", self.hosts, self.namespace, own_set())
    }

    /// Returns the id of the process, where the server is this test's own.
    #[allow(dead_code, reason = "the bench, which shares this file, measures it")]
    pub fn process_id(&self) -> Option<u32> {
        match &self.own {
            Some(Own::Process { process, .. }) => Some(process.id()),
            _ => None,
        }
    }

    /// Stops the process without ending it, or lets it go on: its connections stay open, and no request is answered.
    #[allow(dead_code, reason = "the bench, which shares this file, measures it")]
    pub fn freeze(&self, is_frozen: bool) {
        let id = self.process_id().expect("the server belongs to this test").to_string();
        let signal = if is_frozen { "-STOP" } else { "-CONT" };
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    }

    /// Ends the server as a power cut would.
    pub fn kill(&mut self) {
        let Some(Own::Process { process, .. }) = &mut self.own else {
            panic!("the server does not belong to this test")
        };
        process.kill().unwrap();
        process.wait().unwrap();
    }

    /// Deletes the file `test.dat` of a server that does not run: the server starts again without records.
    #[allow(dead_code, reason = "the bench, which shares this file, does not delete records")]
    pub fn wipe(&self) {
        let Some(Own::Process { folder, .. }) = &self.own else { panic!("the server does not belong to this test") };
        fs::remove_file(folder.path().join("test.dat")).unwrap();
    }

    /// Host and port.
    #[allow(dead_code, reason = "the bench, which shares this file, uses URLs")]
    pub fn hosts(&self) -> &str {
        &self.hosts
    }

    /// Starts the server again with its folder and ports.
    pub fn restart(&mut self) {
        let Some(Own::Process { process, command, folder }) = &mut self.own else {
            panic!("the server does not belong to this test")
        };
        *process = spawn(command, folder.path());
        wait_until_it_answers(&self.hosts, || process.try_wait().unwrap().is_some(), folder.path());
    }

    /// As [`start_on`](Self::start_on), by this command, with a configuration that names this address.
    pub fn start_at(command: PathBuf, configuration: &str, ports: [u16; 3], address: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for sub in ["smd", "usr/udf/lua"] {
            fs::create_dir_all(folder.path().join(sub)).unwrap();
        }
        let text = filled(configuration, &folder.path().display().to_string(), ports);
        fs::write(folder.path().join("aerospike.conf"), text).unwrap();
        let mut process = spawn(&command, folder.path());
        let hosts = format!("{address}:{}", ports[0]);
        wait_until_it_answers(&hosts, || process.try_wait().unwrap().is_some(), folder.path());
        AerospikeServer { hosts, namespace: "test".into(), own: Some(Own::Process { process, command, folder }) }
    }

    fn container(setup: Setup<'_>) -> Self {
        let port = free_port();
        let folder = tempfile::tempdir().unwrap();
        let text = filled(&configuration(setup), "/opt/aerospike", [3000, 3001, 3002]).replace("127.0.0.1", "any");
        fs::write(folder.path().join("aerospike.conf"), text).unwrap();
        let started = Command::new("docker")
            .args(["run", "--detach", "--rm", "--publish", &format!("127.0.0.1:{port}:3000"), "--volume"])
            .arg(format!("{}:/opt/aerospike/etc:ro", folder.path().display()))
            .args([IMAGE, "--config-file", "/opt/aerospike/etc/aerospike.conf"])
            .output()
            .unwrap();
        assert!(started.status.success(), "{}", String::from_utf8_lossy(&started.stderr));
        let id = String::from_utf8(started.stdout).unwrap().trim().to_owned();
        let hosts = format!("127.0.0.1:{port}");
        wait_until_it_answers(&hosts, || false, folder.path());
        AerospikeServer { hosts, namespace: "test".into(), own: Some(Own::Container(id)) }
    }
}

impl Drop for AerospikeServer {
    fn drop(&mut self) {
        // Only this test uses the server.
        match &mut self.own {
            Some(Own::Process { process, .. }) => {
                let _ = process.kill();
                let _ = process.wait();
            }
            Some(Own::Container(id)) => {
                let _ = Command::new("docker").args(["kill", id]).stdout(Stdio::null()).status();
            }
            None => {}
        }
    }
}

/// Returns a name that is distinct between processes too, for a server that outlives them.
fn own_set() -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    format!("it{}n{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// Returns the path of `asd`; `None`, with a line on standard error, when there is none.
pub fn program() -> Option<PathBuf> {
    let program = in_path("asd");
    if program.is_none() {
        eprintln!("SKIPPED: tests on an Aerospike of their own: no `asd` in PATH");
    }
    program
}

/// Returns the path of a program in `PATH`.
pub fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

fn engine_runs() -> bool {
    let answer = Command::new("docker").arg("info").stdout(Stdio::null()).stderr(Stdio::null()).status();
    answer.is_ok_and(|status| status.success())
}

fn spawn(command: &Path, folder: &Path) -> Child {
    let output = fs::File::create(folder.join("server.log")).unwrap();
    Command::new(command)
        .args(["--foreground", "--config-file"])
        .arg(folder.join("aerospike.conf"))
        .stdin(Stdio::null())
        .stdout(output.try_clone().unwrap())
        .stderr(output)
        .spawn()
        .unwrap()
}

/// Waits until the port accepts connections; the client then waits for the partitions.
fn wait_until_it_answers(hosts: &str, mut ended: impl FnMut() -> bool, folder: &Path) {
    let start = Instant::now();
    while TcpStream::connect(hosts).is_err() {
        let log = || fs::read_to_string(folder.join("server.log")).unwrap_or_default();
        assert!(start.elapsed() < START_BOUND, "Aerospike does not answer: {}", log());
        assert!(!ended(), "Aerospike ended: {}", log());
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Asks a server for the number of changes of its partitions; -1: the server does not know its partitions yet.
fn partition_generation(hosts: &str) -> Option<i64> {
    const REQUEST: &[u8] = b"partition-generation\n";
    // Version 2 and type 1 (information) of the protocol, and the length of the request in 6 bytes.
    let header = (2_u64 << 56) | (1 << 48) | REQUEST.len() as u64;
    let mut server = TcpStream::connect(hosts).ok()?;
    server.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
    server.write_all(&[&header.to_be_bytes(), REQUEST].concat()).ok()?;
    let mut header = [0; 8];
    server.read_exact(&mut header).ok()?;
    let mut answer = vec![0; (u64::from_be_bytes(header) & 0xffff_ffff_ffff) as usize];
    server.read_exact(&mut answer).ok()?;
    String::from_utf8(answer).ok()?.trim().rsplit('\t').next()?.parse().ok()
}

/// Returns the ports of a server: for clients, for the other nodes, and for heartbeats.
pub fn server_ports() -> [u16; 3] {
    std::array::from_fn(|_| free_port())
}

fn filled(configuration: &str, folder: &str, [service, fabric, heartbeat]: [u16; 3]) -> String {
    configuration
        .replace("{FOLDER}", folder)
        .replace("{SERVICE}", &service.to_string())
        .replace("{FABRIC}", &fabric.to_string())
        .replace("{HEARTBEAT}", &heartbeat.to_string())
}

pub fn configuration(setup: Setup<'_>) -> String {
    let storage = match setup.durable {
        false => "storage-engine memory {\n    data-size 4G\n    flush-max-ms 100\n  }",
        true => "storage-engine device {\n    file {FOLDER}/test.dat\n    filesize 1G\n  }",
    };
    format!(
        "service {{\n  proto-fd-max 1024\n  cluster-name utxo-store-tests\n  work-directory {{FOLDER}}\n}}\n\
         mod-lua {{\n  user-path {{FOLDER}}/usr/udf/lua\n}}\n\
         logging {{\n  console {{\n    context any warning\n  }}\n}}\n\
         network {{\n\
         \x20 service {{\n    address 127.0.0.1\n    port {{SERVICE}}\n  }}\n\
         \x20 fabric {{\n    address 127.0.0.1\n    port {{FABRIC}}\n  }}\n\
         \x20 heartbeat {{\n    mode mesh\n    address 127.0.0.1\n    port {{HEARTBEAT}}\n    interval 150\n\
             timeout 10\n  }}\n\
         }}\n\
         namespace test {{\n  {}\n  {storage}\n}}\n",
        setup.namespace
    )
}
