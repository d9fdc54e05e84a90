//! A real Aerospike for tests: one that is said to run (`AEROSPIKE_HOSTS`), else `asd` from PATH as a process of its own
//! on free loopback ports, else a container where a container engine runs.

use std::{
    fs,
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use utxo_store::engine::aerospike::AerospikeSettings;

const IMAGE: &str = "aerospike/aerospike-server:8.1.0.3";
/// Generous: two cores may be shared by many.
const START_BOUND: Duration = Duration::from_secs(120);

/// Where a namespace keeps its records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Storage {
    /// Gone with the process.
    Memory,
    /// In a file: there again after a restart, as far as it was flushed.
    File,
}

/// A server that tests may fill, each in a set of its own.
pub struct AerospikeServer {
    hosts: String,
    namespace: String,
    own: Option<Own>,
}

/// A server that belongs to this test.
enum Own {
    Process { process: Child, command: PathBuf, folder: tempfile::TempDir },
    Container(String),
}

impl AerospikeServer {
    /// A server in memory; `None`, with a loud line, when none can be had.
    pub fn start() -> Option<Self> {
        Self::start_with(Storage::Memory)
    }

    /// A server; `None`, with a loud line, when none can be had.
    pub fn start_with(storage: Storage) -> Option<Self> {
        if let (Ok(hosts), Storage::Memory) = (std::env::var("AEROSPIKE_HOSTS"), storage) {
            let namespace = std::env::var("AEROSPIKE_NAMESPACE").unwrap_or_else(|_| "test".into());
            return Some(AerospikeServer { hosts, namespace, own: None });
        }
        if let Some(command) = in_path("asd") {
            return Some(Self::process(command, storage));
        }
        if storage == Storage::Memory && engine_runs() {
            return Some(Self::container());
        }
        eprintln!("SKIPPED: tests on Aerospike: no AEROSPIKE_HOSTS, no `asd` in PATH, no container engine");
        None
    }

    /// Settings for a set that nobody else uses.
    pub fn settings(&self) -> AerospikeSettings {
        AerospikeSettings::new(self.hosts.as_str(), self.namespace.as_str(), own_set())
    }

    /// A store URL with a set that nobody else uses.
    pub fn url(&self) -> String {
        format!("aerospike://{}/{}?set={}", self.hosts, self.namespace, own_set())
    }

    /// Whether [`kill`](Self::kill) may be called: a server that was running before is never touched.
    pub fn may_be_killed(&self) -> bool {
        matches!(self.own, Some(Own::Process { .. }))
    }

    /// Ends the server as a power cut would.
    pub fn kill(&mut self) {
        let Some(Own::Process { process, .. }) = &mut self.own else { panic!("not a server of this test") };
        process.kill().unwrap();
        process.wait().unwrap();
    }

    /// Starts it again where it was.
    pub fn restart(&mut self) {
        let Some(Own::Process { process, command, folder }) = &mut self.own else {
            panic!("not a server of this test")
        };
        *process = spawn(command, folder.path());
        wait_until_it_answers(&self.hosts, || process.try_wait().unwrap().is_some(), folder.path());
    }

    fn process(command: PathBuf, storage: Storage) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let ports = free_ports();
        write_configuration(folder.path(), ports, storage);
        let mut process = spawn(&command, folder.path());
        let hosts = format!("127.0.0.1:{}", ports[0]);
        wait_until_it_answers(&hosts, || process.try_wait().unwrap().is_some(), folder.path());
        AerospikeServer { hosts, namespace: "test".into(), own: Some(Own::Process { process, command, folder }) }
    }

    fn container() -> Self {
        let [port] = free_ports();
        let folder = tempfile::tempdir().unwrap();
        fs::write(
            folder.path().join("aerospike.conf"),
            configuration(folder.path(), [3000, 3001, 3002], Storage::Memory, "any"),
        )
        .unwrap();
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
        // It holds nothing that outlives the test.
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

/// Distinct between processes as well, for a server that outlives them.
fn own_set() -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    format!("it{}n{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed))
}

fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

fn engine_runs() -> bool {
    let answer = Command::new("docker").arg("info").stdout(Stdio::null()).stderr(Stdio::null()).status();
    answer.is_ok_and(|status| status.success())
}

fn spawn(command: &Path, folder: &Path) -> Child {
    let said = fs::File::create(folder.join("said.log")).unwrap();
    Command::new(command)
        .args(["--foreground", "--config-file"])
        .arg(folder.join("aerospike.conf"))
        .stdin(Stdio::null())
        .stdout(said.try_clone().unwrap())
        .stderr(said)
        .spawn()
        .unwrap()
}

/// A port that answers is not enough: the client asks until the partitions are there.
fn wait_until_it_answers(hosts: &str, mut ended: impl FnMut() -> bool, folder: &Path) {
    let start = Instant::now();
    while TcpStream::connect(hosts).is_err() {
        let log = || fs::read_to_string(folder.join("said.log")).unwrap_or_default();
        assert!(start.elapsed() < START_BOUND, "Aerospike does not answer: {}", log());
        assert!(!ended(), "Aerospike ended: {}", log());
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Held at once, so that they differ.
fn free_ports<const N: usize>() -> [u16; N] {
    let held: [TcpListener; N] = std::array::from_fn(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    held.map(|listener| listener.local_addr().unwrap().port())
}

fn write_configuration(folder: &Path, ports: [u16; 3], storage: Storage) {
    for sub in ["smd", "usr/udf/lua"] {
        fs::create_dir_all(folder.join(sub)).unwrap();
    }
    fs::write(folder.join("aerospike.conf"), configuration(folder, ports, storage, "127.0.0.1")).unwrap();
}

fn configuration(folder: &Path, [service, fabric, heartbeat]: [u16; 3], storage: Storage, address: &str) -> String {
    let folder = folder.display();
    let storage = match storage {
        Storage::Memory => "storage-engine memory {\n    data-size 2G\n  }".to_owned(),
        Storage::File => format!("storage-engine device {{\n    file {folder}/test.dat\n    filesize 1G\n  }}"),
    };
    let own_place = match address {
        "any" => String::new(),
        _ => format!("  work-directory {folder}\n"),
    };
    let lua = match address {
        "any" => String::new(),
        _ => format!("mod-lua {{\n  user-path {folder}/usr/udf/lua\n}}\n"),
    };
    format!(
        "service {{\n  proto-fd-max 1024\n  cluster-name utxo-store-tests\n{own_place}}}\n\
         {lua}\
         logging {{\n  console {{\n    context any warning\n  }}\n}}\n\
         network {{\n\
         \x20 service {{\n    address {address}\n    port {service}\n  }}\n\
         \x20 fabric {{\n    address {address}\n    port {fabric}\n  }}\n\
         \x20 heartbeat {{\n    mode mesh\n    address {address}\n    port {heartbeat}\n    interval 150\n    timeout 10\n  }}\n\
         }}\n\
         namespace test {{\n  replication-factor 1\n  nsup-period 120\n  max-record-size 8M\n  {storage}\n}}\n"
    )
}
