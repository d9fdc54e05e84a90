//! A server with the protocol of S3, for tests: `moto` from PyPI. The server is a child process on a free
//! loopback port and is killed on drop.

use std::{
    net::TcpStream,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use crate::{ports::free_port, python};

/// This version honours `If-None-Match: *`, also when an upload in parts is completed.
const PACKAGE: &str = "moto[server]==5.2.5";
const FOLDER: &str = ".moto/5.2.5";
/// Time for the server's start, long because many processes may share two cores.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// Python program of the server. `moto` checks for an object and then writes the object, on many threads; the lock
/// makes the two steps atomic, as in S3.
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

/// Treatment of a write with the header `If-None-Match: *`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Conditions {
    /// Refuses the write where the object exists.
    Honoured,
    /// Overwrites the object, as some servers do.
    Ignored,
}

/// A running server with one empty bucket, named `bucket`.
pub struct S3Server {
    process: Child,
    address: String,
}

impl S3Server {
    /// Starts a server. Prints a line `SKIPPED: …` and returns `None` where `moto` cannot be installed.
    pub fn start(conditions: Conditions) -> Option<Self> {
        let python = match python::install(FOLDER, &[PACKAGE]) {
            Ok(python) => python,
            Err(problem) => {
                eprintln!("SKIPPED: tests on S3: {problem}");
                return None;
            }
        };
        let conditions = if conditions == Conditions::Ignored { "ignored" } else { "honoured" };
        let port = free_port();
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
            assert!(start.elapsed() < START_TIMEOUT, "moto does not answer within {START_TIMEOUT:?}");
            let status = server.process.try_wait().unwrap();
            assert!(status.is_none(), "moto ended with {status:?}");
            std::thread::sleep(Duration::from_millis(100));
        }
        server.create_bucket();
        Some(server)
    }

    /// Returns the server's URL: `http://host:port`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Stops the server's process without closing its connections: requests get no answer.
    pub fn pause(&self) {
        self.signal("STOP");
    }

    /// Lets the stopped process go on.
    pub fn resume(&self) {
        self.signal("CONT");
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill").args([format!("-{name}"), self.process.id().to_string()]).status().unwrap();
        assert!(status.success(), "kill -{name} ended with {status}");
    }

    /// Creates the bucket by a plain HTTP request, because the client under test creates no buckets.
    fn create_bucket(&self) {
        use std::io::{Read, Write};
        let mut connection = TcpStream::connect(&self.address).unwrap();
        let host = &self.address;
        // `moto` reads only the service's name from the header and checks no signature.
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
        // Errors do not matter: the server has no state that outlives the test.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
