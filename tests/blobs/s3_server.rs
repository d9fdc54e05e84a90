//! A server that speaks S3's protocol, for tests: `moto` from PyPI, in a virtual environment that is made on first use, as a process
//! of its own on a free loopback port, killed when it is dropped.

use std::{
    fs,
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// Honours `If-None-Match: *`, also when an upload in parts is completed.
const PACKAGE: &str = "moto[server]==5.2.5";
const VERSION: &str = "5.2.5";
/// Generous: two cores may be shared by many.
const START_BOUND: Duration = Duration::from_secs(120);

/// It looks whether there is an object and then puts one, on many threads: a lock makes that one step, as it is in S3.
const SERVER: &str = r#"
import sys, threading
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple
app = DomainDispatcherApplication(create_backend_app)
lock = threading.Lock()
def one_at_a_time(environ, start_response):
    if sys.argv[2] == "ignored":
        environ.pop("HTTP_IF_NONE_MATCH", None)
    with lock:
        return app(environ, start_response)
run_simple("127.0.0.1", int(sys.argv[1]), one_at_a_time, threaded=True)
"#;

/// What the server does where a request says `If-None-Match: *`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Conditions {
    /// Refuses it where there is such an object.
    Honoured,
    /// Overwrites what there is, as some servers do.
    Ignored,
}

/// A running server with one empty bucket, named `bucket`.
pub struct S3Server {
    process: Child,
    address: String,
}

impl S3Server {
    /// Starts a server; `None`, with a loud line, when it cannot be had.
    pub fn start(conditions: Conditions) -> Option<Self> {
        let python = match python() {
            Ok(python) => python,
            Err(problem) => {
                eprintln!("SKIPPED: tests on S3: {problem}");
                return None;
            }
        };
        let conditions = if conditions == Conditions::Ignored { "ignored" } else { "honoured" };
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let process = Command::new(python)
            .args(["-c", SERVER, &port.to_string(), conditions])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut server = S3Server { process, address: format!("127.0.0.1:{port}") };
        let start = Instant::now();
        while TcpStream::connect(&server.address).is_err() {
            assert!(start.elapsed() < START_BOUND, "moto does not answer");
            let ended = server.process.try_wait().unwrap();
            assert!(ended.is_none(), "moto ended with {ended:?}");
            std::thread::sleep(Duration::from_millis(100));
        }
        server.create_bucket();
        Some(server)
    }

    /// `http://host:port`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Stops it from answering, without closing its connections.
    pub fn pause(&self) {
        self.signal("STOP");
    }

    /// Has it answer again.
    pub fn resume(&self) {
        self.signal("CONT");
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([format!("-{name}"), self.process.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// By hand: the client under test makes none.
    fn create_bucket(&self) {
        use std::io::{Read, Write};
        let mut connection = TcpStream::connect(&self.address).unwrap();
        let host = &self.address;
        // It looks at who asks only for the service's name.
        let authorization =
            "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0";
        let request = format!(
            "PUT /bucket HTTP/1.0\r\nHost: {host}\r\nAuthorization: {authorization}\r\nContent-Length: 0\r\n\r\n"
        );
        connection.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        assert!(answer.lines().next().unwrap_or_default().contains("200"), "{answer}");
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        // It holds nothing that outlives the test.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The interpreter of an environment that has the server; the error says what is missing.
fn python() -> Result<PathBuf, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(".moto").join(VERSION);
    let python = folder.join("bin/python");
    if folder.join("complete").exists() {
        return Ok(python);
    }
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder))?;
    run(Command::new(&python).args(["-m", "pip", "install", "-q", "--disable-pip-version-check", PACKAGE]))?;
    fs::write(folder.join("complete"), "").map_err(|error| error.to_string())?;
    Ok(python)
}

fn run(command: &mut Command) -> Result<(), String> {
    let shown = format!("{command:?}");
    match command.stdin(Stdio::null()).output() {
        Err(error) => Err(format!("{shown}: {error}")),
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let told = String::from_utf8_lossy(&output.stderr);
            Err(format!("{shown}: {}", told.lines().last().unwrap_or("failed without a word")))
        }
    }
}
