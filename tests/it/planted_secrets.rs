//! Secrets are planted, and searched for in all that the program says: its logs as finely as they go, librdkafka's own with them, errors,
//! what is printed, metrics and health.

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

/// Everything that an instance serves.
pub const PAGES: [&str; 4] = ["/metrics", "/health/live", "/health/ready", "/state"];

const WRONG: &str = "planted-wrong-password-77e0";
const AEROSPIKE: &str = "planted-aerospike-password-1f2e";
const S3: &str = "planted-s3-secret-c0de";
const PROPERTY: &str = "planted-keystore-password-8ab3";

/// All that was said; searched at its end.
#[derive(Default)]
struct Said(String);

impl Said {
    fn hears(&mut self, output: &Output) {
        self.0 += &String::from_utf8_lossy(&output.stdout);
        self.0 += &String::from_utf8_lossy(&output.stderr);
    }

    /// What is served of it.
    fn hears_pages(&mut self, instance: &Instance) {
        for path in PAGES {
            let answer = instance.get(path);
            assert!(answer.starts_with("HTTP/1.1 "), "{path}");
            self.0 += &answer;
        }
    }

    #[track_caller]
    fn holds(&self, words: &[&str]) {
        for words in words {
            assert!(self.0.contains(words), "it is not heard: {words}");
        }
    }

    #[track_caller]
    fn holds_no_secret(&self) {
        for secret in [PASSWORD, KEY_PASSWORD, WRONG, AEROSPIKE, S3, PROPERTY] {
            let initial = BASE64_STANDARD.encode(format!("\0{USER}\0{secret}"));
            for form in [secret, &BASE64_STANDARD.encode(secret), &initial, &hex::encode(secret)] {
                if let Some(line) = self.0.lines().find(|line| line.contains(form)) {
                    panic!("{secret} is told: {line}");
                }
            }
        }
    }
}

fn variable(key: &str, value: &str) -> (String, String) {
    (format!("UTXO_STORE__{key}"), value.to_owned())
}

/// Everything is said that can be, and secrets are there that this connection does not need.
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

/// The commands that ask brokers, or say what is configured.
fn asking(bench: &Bench, variables: &Variables, said: &mut Said) {
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
        said.hears(&bench.command(arguments, &borrowed(variables)).output().unwrap());
    }
}

#[test]
fn no_secret_is_told_by_who_comes_in() {
    let Some(secured) = Secured::shared() else { return };
    let (ca, certificate, key) =
        (secured.file("ca.pem"), secured.file("client.crt"), secured.file("client.encrypted.key"));
    let mutual = [
        ("CA_FILE", ca.as_str()),
        ("CERTIFICATE_FILE", &certificate),
        ("KEY_FILE", &key),
        ("KEY_PASSWORD", KEY_PASSWORD),
    ];
    let mut said = Said::default();
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
        said.hears_pages(&instance);
        instance.signal("TERM");
        assert_eq!(instance.wait().code(), Some(0));
        said.0 += &fs::read_to_string(bench.path("run.log")).unwrap();
        asking(&bench, &variables, &mut said);
        for arguments in [&["stats", "--json"][..], &["verify", "--json"], &["inspect", "unmined", "--json"]] {
            let store = bench.store_url();
            let mut command = Command::new(env!("CARGO_BIN_EXE_utxo-store"));
            command.args(arguments).args(["--store", &store]).env_clear().envs(borrowed(&variables));
            said.hears(&command.output().unwrap());
        }
    }
    // librdkafka is heard at its finest, and the pages and the commands came to something.
    said.holds(&[
        "\"high_watermark\"",
        "{\"check\":\"brokers\",\"outcome\":\"ok\"",
        "SCRAMAUTH",
        "Initializing SASL client",
        "\"DEBUG\"",
        "utxo_transactions_completed_total",
        "digest",
        "\"told\"",
    ]);
    said.holds_no_secret();
}

#[test]
fn no_secret_is_told_to_who_is_turned_away() {
    let Some(secured) = Secured::shared() else { return };
    let (ca, stranger) = (secured.file("ca.pem"), secured.file("stranger.pem"));
    let (certificate, key) = (secured.file("client.crt"), secured.file("client.encrypted.key"));
    let wrong_key =
        [("CA_FILE", ca.as_str()), ("CERTIFICATE_FILE", &certificate), ("KEY_FILE", &key), ("KEY_PASSWORD", WRONG)];
    let mut said = Said::default();
    let bench = Bench::on(secured.server.bootstrap_servers());
    bench.create_topics();
    for by in [
        secured.by(Listener::SaslSsl, "localhost", &login("PLAIN", WRONG, &ca)),
        secured.by(Listener::SaslSsl, "localhost", &login("SCRAM-SHA-512", PASSWORD, &stranger)),
        secured.by(Listener::Mutual, "localhost", &wrong_key),
    ] {
        let variables = talkative(by);
        asking(&bench, &variables, &mut said);
        said.hears(&bench.command(&["run"], &borrowed(&variables)).output().unwrap());
    }
    said.holds(&[
        "username and password",
        "kafka.security.ca_file",
        "ssl.key.location",
        "{\"check\":\"brokers\",\"outcome\":\"failed\"",
    ]);
    said.holds_no_secret();
}

/// Settings that are wrong, secrets in the wrong place, and stores that are not there or turn the login away.
#[test]
fn no_secret_is_told_by_errors() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("two-lines");
    fs::write(&file, format!("{PASSWORD}\n{WRONG}\n")).unwrap();
    let bench = Bench::new();
    let right = talkative(vec![]);
    let mut said = Said::default();
    let mut hears = |arguments: &[&str], more: &[(&str, &str)]| {
        said.hears(&bench.command(arguments, &borrowed(&with(&right, more))).output().unwrap());
    };
    for wrong in [
        &[("KAFKA__SECURITY__PASWORD", PASSWORD)][..],
        &[("KAFKA__SECURITY__PASWORD", PASSWORD)],
        &[("KAFKA__SECURITY", PASSWORD)],
        &[("KAFKA__SECURITY__PASSWORD__X", PASSWORD)],
        &[("KAFKA__SECURITY__PASSWORD", "planted-kafka-password-93ab\nand more")],
        &[("KAFKA__SECURITY__PASSWORD_FILE", PASSWORD)],
        &[("KAFKA__SECURITY__PASSWORD_FILE", file.to_str().unwrap())],
        // Secrets where the names of their files belong.
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
            hears(arguments, wrong);
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
        hears(arguments, &aerospike);
    }
    hears(&["stats", "--json", "--store", aerospike[0].1], &aerospike[1..]);
    let s3 = [("STORE__URL", "memory://")].into_iter().chain(aerospike[2..].iter().copied()).collect::<Vec<_>>();
    hears(&["run", "--check", "--json"], &s3);
    said.holds(&[
        "kafka.security.pasword is unknown",
        "must be the absolute path of a file",
        "key_file names a file that cannot be read",
        "is not one line of plain text",
        "one of them is enough",
        "librdkafka knows no property sasl.pasword",
        "no node of",
        "Generic S3 error",
    ]);
    said.holds_no_secret();
}

/// Every request to S3 is signed with it; it comes from the environment and from a file.
#[cfg(feature = "aws")]
#[test]
fn no_secret_is_told_by_who_stores_in_s3() {
    use crate::s3_server::{Conditions, S3Server};

    let Some(server) = S3Server::start(Conditions::Honoured) else { return };
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, format!("{S3}\n")).unwrap();
    let file = file.path().to_str().unwrap();
    let mut said = Said::default();
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
        said.hears_pages(&instance);
        said.holds(&["utxo_create_external_count{blob=\"outputs\"} 5"]);
        instance.signal("TERM");
        assert_eq!(instance.wait().code(), Some(0));
        said.0 += &fs::read_to_string(bench.path("run.log")).unwrap();
        let txid = "01".repeat(32);
        let looks = [&["config", "check"][..], &["inspect", "blob", "--json", &txid], &["run", "--check", "--json"]];
        for arguments in looks {
            said.hears(&bench.command(arguments, &borrowed(&variables)).output().unwrap());
        }
    }
    said.holds(&["\"outputs\":1", "{\"check\":\"blob store\",\"outcome\":\"ok\""]);
    said.holds_no_secret();

    // Away: what fails is told with what is known of the request.
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
    said.hears(&look);
    said.holds(&["cannot open the blob store", "Generic S3 error"]);
    said.holds_no_secret();
}
