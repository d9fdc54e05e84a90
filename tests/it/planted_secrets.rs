//! Secrets are planted, and searched for in all output of the program: the finest logs including librdkafka's, errors,
//! standard output, metrics and health pages.

use std::{
    fs,
    process::{Command, Output},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use utxo_store::broker::kafka::HAS_TLS;

use crate::{
    certificates::KEY_PASSWORD,
    run::{Bench, Instance, until},
    security::{Listener, PASSWORD, Secured, USER, Variables, borrowed},
};

/// Every page that an instance serves.
pub const PAGES: [&str; 4] = ["/metrics", "/health/live", "/health/ready", "/state"];

const WRONG: &str = "planted-wrong-password-77e0";
const AEROSPIKE: &str = "planted-aerospike-password-1f2e";
const S3: &str = "planted-s3-secret-c0de";
const PROPERTY: &str = "planted-keystore-password-8ab3";

/// All output collected; searched at the end.
#[derive(Default)]
struct CollectedOutput(String);

impl CollectedOutput {
    fn collect(&mut self, output: &Output) {
        self.0 += &String::from_utf8_lossy(&output.stdout);
        self.0 += &String::from_utf8_lossy(&output.stderr);
    }

    /// Collects the pages of a running instance.
    fn collect_pages(&mut self, instance: &Instance) {
        for path in PAGES {
            let answer = instance.get(path);
            assert!(answer.starts_with("HTTP/1.1 "), "{path}");
            self.0 += &answer;
        }
    }

    #[track_caller]
    fn assert_contains(&self, words: &[&str]) {
        for words in words {
            assert!(self.0.contains(words), "the output does not contain: {words}");
        }
    }

    #[track_caller]
    fn assert_no_secret(&self) {
        for secret in [PASSWORD, KEY_PASSWORD, WRONG, AEROSPIKE, S3, PROPERTY] {
            let initial = BASE64_STANDARD.encode(format!("\0{USER}\0{secret}"));
            for form in [secret, &BASE64_STANDARD.encode(secret), &initial, &hex::encode(secret)] {
                if let Some(line) = self.0.lines().find(|line| line.contains(form)) {
                    panic!("{secret} is printed: {line}");
                }
            }
        }
    }
}

fn variable(key: &str, value: &str) -> (String, String) {
    (format!("UTXO_STORE__{key}"), value.to_owned())
}

/// Returns variables with all logs at their finest, and with secrets that the connection does not need.
fn talkative(by: Variables) -> Variables {
    let all = [
        variable("LOG__LEVEL", "trace"),
        ("RUST_LOG".to_owned(), "trace".to_owned()),
        variable("KAFKA__PROPERTIES__DEBUG", "all"),
        variable("STORE__AEROSPIKE__USER", "bob"),
        variable("STORE__AEROSPIKE__PASSWORD", AEROSPIKE),
        variable("STORE__BLOBS__ACCESS_KEY_ID", "carol"),
        variable("STORE__BLOBS__SECRET_ACCESS_KEY", S3),
    ];
    let keystore = HAS_TLS.then(|| variable("KAFKA__PROPERTIES__SSL_KEYSTORE_PASSWORD", PROPERTY));
    [all.to_vec(), keystore.into_iter().collect(), by].concat()
}

fn with(variables: &Variables, more: &[(&str, &str)]) -> Variables {
    let more = more.iter().map(|(key, value)| variable(key, value));
    variables.iter().cloned().chain(more).collect()
}

fn login<'a>(mechanism: &'a str, password: &'a str, ca: &'a str) -> [(&'a str, &'a str); 4] {
    [("MECHANISM", mechanism), ("USERNAME", USER), ("PASSWORD", password), ("CA_FILE", ca)]
}

/// Runs the commands that connect to brokers or print the configuration.
fn run_connecting_commands(bench: &Bench, variables: &Variables, collected: &mut CollectedOutput) {
    for arguments in [
        &["config", "check"][..],
        &["run", "--check"],
        &["run", "--check", "--json"],
        &["topics", "check", "--json"],
        &["topics", "create", "--dry-run"],
        &["inspect", "offsets"],
        &["dead-letters", "list", "--json"],
        &["command", "list"],
    ] {
        collected.collect(&bench.command(arguments, &borrowed(variables)).output().unwrap());
    }
}

#[test]
fn logs_of_accepted_logins_contain_no_secret() {
    let Some(secured) = Secured::shared() else { return };
    let (ca, certificate, key) =
        (secured.file("ca.pem"), secured.file("client.crt"), secured.file("client.encrypted.key"));
    let mutual = [
        ("CA_FILE", ca.as_str()),
        ("CERTIFICATE_FILE", &certificate),
        ("KEY_FILE", &key),
        ("KEY_PASSWORD", KEY_PASSWORD),
    ];
    let mut collected = CollectedOutput::default();
    for by in [
        secured.by(Listener::SaslSsl, "localhost", &login("SCRAM-SHA-256", PASSWORD, &ca)),
        secured.by(Listener::SaslSsl, "localhost", &login("PLAIN", PASSWORD, &ca)),
        secured.by(Listener::SaslPlaintext, "localhost", &login("PLAIN", PASSWORD, &ca)[..3]),
        secured.by(Listener::Mutual, "localhost", &mutual),
    ] {
        let variables = talkative(by);
        let bench = Bench::on(secured.server.bootstrap_servers());
        bench.create_topics();
        bench.seed(5);
        let mut instance = bench.start_with(&borrowed(&variables));
        until("everything is committed", || bench.committed() == 5);
        collected.collect_pages(&instance);
        instance.signal("TERM");
        assert_eq!(instance.wait().code(), Some(0));
        collected.0 += &fs::read_to_string(bench.path("run.log")).unwrap();
        run_connecting_commands(&bench, &variables, &mut collected);
        for arguments in [&["stats", "--json"][..], &["verify", "--json"], &["inspect", "unmined", "--json"]] {
            let store = bench.store_url();
            let mut command = Command::new(env!("CARGO_BIN_EXE_utxo-store"));
            command.args(arguments).args(["--store", &store]).env_clear().envs(borrowed(&variables));
            collected.collect(&command.output().unwrap());
        }
    }
    // librdkafka logs at its finest, and the pages and the commands had content.
    collected.assert_contains(&[
        "\"high_watermark\"",
        "{\"check\":\"brokers\",\"outcome\":\"ok\"",
        "SCRAMAUTH",
        "Initializing SASL client",
        "\"DEBUG\"",
        "utxo_transactions_completed_total",
        "digest",
        "\"told\"",
    ]);
    collected.assert_no_secret();
}

#[test]
fn logs_of_refused_logins_contain_no_secret() {
    let Some(secured) = Secured::shared() else { return };
    let (ca, stranger) = (secured.file("ca.pem"), secured.file("stranger.pem"));
    let (certificate, key) = (secured.file("client.crt"), secured.file("client.encrypted.key"));
    let wrong_key =
        [("CA_FILE", ca.as_str()), ("CERTIFICATE_FILE", &certificate), ("KEY_FILE", &key), ("KEY_PASSWORD", WRONG)];
    let mut collected = CollectedOutput::default();
    let bench = Bench::on(secured.server.bootstrap_servers());
    bench.create_topics();
    for by in [
        secured.by(Listener::SaslSsl, "localhost", &login("PLAIN", WRONG, &ca)),
        secured.by(Listener::SaslSsl, "localhost", &login("SCRAM-SHA-512", PASSWORD, &stranger)),
        secured.by(Listener::Mutual, "localhost", &wrong_key),
    ] {
        let variables = talkative(by);
        run_connecting_commands(&bench, &variables, &mut collected);
        collected.collect(&bench.command(&["run"], &borrowed(&variables)).output().unwrap());
    }
    collected.assert_contains(&[
        "username and password",
        "kafka.security.ca_file",
        "ssl.key.location",
        "{\"check\":\"brokers\",\"outcome\":\"failed\"",
    ]);
    collected.assert_no_secret();
}

/// Wrong settings, secrets in the wrong place, and stores that are missing or refuse the login.
#[test]
fn errors_contain_no_secret() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("two-lines");
    fs::write(&file, format!("{PASSWORD}\n{WRONG}\n")).unwrap();
    let bench = Bench::new();
    let right = talkative(vec![]);
    let mut collected = CollectedOutput::default();
    let mut run_and_collect = |arguments: &[&str], more: &[(&str, &str)]| {
        collected.collect(&bench.command(arguments, &borrowed(&with(&right, more))).output().unwrap());
    };
    for wrong in [
        &[("KAFKA__SECURITY__PASWORD", PASSWORD)][..],
        &[("KAFKA__SECURITY__PASWORD", PASSWORD)],
        &[("KAFKA__SECURITY", PASSWORD)],
        &[("KAFKA__SECURITY__PASSWORD__X", PASSWORD)],
        &[("KAFKA__SECURITY__PASSWORD", "planted-kafka-password-93ab\nand more")],
        &[("KAFKA__SECURITY__PASSWORD_FILE", PASSWORD)],
        &[("KAFKA__SECURITY__PASSWORD_FILE", file.to_str().unwrap())],
        // Secrets are set where file names belong.
        &[("KAFKA__SECURITY__PASSWORD_FILE", concat!("/", "planted-kafka-password-93ab"))],
        &[("KAFKA__SECURITY__PROTOCOL", "ssl"), ("KAFKA__SECURITY__KEY_FILE", PASSWORD)],
        &[("KAFKA__SECURITY__PASSWORD", PASSWORD), ("KAFKA__SECURITY__PASSWORD_FILE", file.to_str().unwrap())],
        &[("KAFKA__SECURITY__KEY_PASSWORD", KEY_PASSWORD)],
        &[("KAFKA__PROPERTIES__SASL_PASWORD", PASSWORD)],
        &[("KAFKA__PROPERTIES__SASL_PASSWORD", PASSWORD), ("KAFKA__SECURITY__PROTOCOL", "ssl")],
        &[("KAFKA__PROPERTIES__SSL_KEY_PEM", PASSWORD), ("KAFKA__PROPERTIES__SECURITY_PROTOCOL", "ssl")],
        &[("KAFKA__PROPERTIES__SOCKET_TIMEOUT_MS", PASSWORD)],
        &[("STORE__URL", "aerospike://root:planted-aerospike-password-1f2e@127.0.0.1:1/test")],
        &[("STORE__BLOBS__URL", "s3://root:planted-s3-secret-c0de@bucket/a")],
        &[("STORE__BLOBS__URL", "https://root:planted-s3-secret-c0de@host/a")],
    ] {
        for arguments in [&["config", "check"][..], &["run", "--check", "--json"], &["run"]] {
            run_and_collect(arguments, wrong);
        }
    }
    let aerospike = [
        ("STORE__URL", "aerospike://127.0.0.1:1/test?set=planted"),
        ("STORE__AEROSPIKE__TIMEOUT_MS", "500"),
        ("STORE__BLOBS__URL", "s3://bucket/planted?region=eu-1&endpoint=http://127.0.0.1:1"),
        ("STORE__BLOBS__TIMEOUT_MS", "500"),
        ("STORE__BLOBS__RETRIES", "0"),
    ];
    for arguments in [&["run"][..], &["run", "--check", "--json"], &["config", "check"]] {
        run_and_collect(arguments, &aerospike);
    }
    run_and_collect(&["stats", "--json", "--store", aerospike[0].1], &aerospike[1..]);
    let s3 = [("STORE__URL", "memory://")].into_iter().chain(aerospike[2..].iter().copied()).collect::<Vec<_>>();
    run_and_collect(&["run", "--check", "--json"], &s3);
    collected.assert_contains(&[
        "kafka.security.pasword is unknown",
        "must be the absolute path of a file",
        "key_file names a file that cannot be read",
        "is not one line of plain text",
        "one of them is enough",
        "librdkafka knows no property sasl.pasword",
        "cannot connect to any node of",
        "Generic S3 error",
    ]);
    collected.assert_no_secret();
}

/// The secret signs every request to S3; it comes from the environment and from a file.
#[cfg(feature = "aws")]
#[test]
fn logs_of_an_s3_blob_store_contain_no_secret() {
    use crate::s3_server::{Conditions, S3Server};

    let Some(server) = S3Server::start(Conditions::Honoured) else { return };
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, format!("{S3}\n")).unwrap();
    let file = file.path().to_str().unwrap();
    let mut collected = CollectedOutput::default();
    for (place, key, value) in [("variable", "SECRET_ACCESS_KEY", S3), ("file", "SECRET_ACCESS_KEY_FILE", file)] {
        let url = format!("s3://bucket/{place}?region=us-east-1&endpoint={}", server.endpoint());
        let variables: Variables = [
            variable("LOG__LEVEL", "trace"),
            variable("STORE__EXTERNALIZE_ALL_TRANSACTIONS", "true"),
            variable("STORE__BLOBS__URL", &url),
            variable("STORE__BLOBS__ACCESS_KEY_ID", "carol"),
            variable(&format!("STORE__BLOBS__{key}"), value),
        ]
        .into();
        let bench = Bench::new();
        bench.seed(5);
        let mut instance = bench.start_with(&borrowed(&variables));
        until("everything is committed", || bench.committed() == 5);
        collected.collect_pages(&instance);
        collected.assert_contains(&["utxo_create_external_count{blob=\"outputs\"} 5"]);
        instance.signal("TERM");
        assert_eq!(instance.wait().code(), Some(0));
        collected.0 += &fs::read_to_string(bench.path("run.log")).unwrap();
        let txid = "01".repeat(32);
        let looks = [&["config", "check"][..], &["inspect", "blob", "--json", &txid], &["run", "--check", "--json"]];
        for arguments in looks {
            collected.collect(&bench.command(arguments, &borrowed(&variables)).output().unwrap());
        }
    }
    collected.assert_contains(&["\"outputs\":1", "{\"check\":\"blob store\",\"outcome\":\"ok\""]);
    collected.assert_no_secret();

    // The server is away: the error has the details of the request.
    let url = format!("s3://bucket/variable?region=us-east-1&endpoint={}", server.endpoint());
    drop(server);
    let variables: Variables = [
        variable("STORE__BLOBS__URL", &url),
        variable("STORE__BLOBS__ACCESS_KEY_ID", "carol"),
        variable("STORE__BLOBS__SECRET_ACCESS_KEY", S3),
        variable("STORE__BLOBS__RETRIES", "0"),
    ]
    .into();
    let txid = "01".repeat(32);
    let look = Bench::new().command(&["inspect", "blob", &txid], &borrowed(&variables)).output().unwrap();
    assert_eq!(look.status.code(), Some(1));
    collected.collect(&look);
    collected.assert_contains(&["cannot open the blob store", "Generic S3 error"]);
    collected.assert_no_secret();
}
