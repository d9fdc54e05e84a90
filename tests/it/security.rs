//! Brokers over TLS and with logins, on a real Apache Kafka: accepted logins, and the errors of refused ones.

use std::{
    fs,
    path::Path,
    process::Output,
    sync::OnceLock,
    time::{Duration, Instant},
};

use utxo_store::broker::kafka::HAS_TLS;

use crate::{
    certificates::{Certificates, KEY_PASSWORD},
    demo,
    kafka_server::{KafkaServer, Setup},
    planted_secrets::PAGES,
    run::{Bench, assert_refused, last_line, until},
};

pub const USER: &str = "alice";
pub const PASSWORD: &str = "planted-kafka-password-93ab";

/// A server with listeners for logins over TLS, for logins over plaintext, and for client certificates only.
pub struct Secured {
    pub certificates: Certificates,
    pub server: KafkaServer,
}

/// A listener of the server.
#[derive(Clone, Copy)]
pub enum Listener {
    SaslSsl,
    SaslPlaintext,
    Mutual,
}

/// Names and values of environment variables.
pub type Variables = Vec<(String, String)>;

impl Secured {
    /// Returns the server that the tests of a run share; `None`, with a line on standard error, when Java, Maven,
    /// `openssl` or the feature are missing.
    pub fn shared() -> Option<&'static Self> {
        static SHARED: OnceLock<Option<Secured>> = OnceLock::new();
        SHARED.get_or_init(|| Self::with(KafkaServer::lasting)).as_ref()
    }

    /// Starts a server of a test's own, which the test may kill.
    pub fn own() -> Option<Self> {
        Self::with(KafkaServer::own_as)
    }

    fn with(start: impl FnOnce(&Setup<'_>) -> Option<KafkaServer>) -> Option<Self> {
        if !HAS_TLS {
            eprintln!("SKIPPED: tests on brokers over TLS: built without the feature tls");
            return None;
        }
        let certificates = Certificates::make()?;
        let (keys, believed) = (certificates.path("server.pem"), certificates.path("ca.pem"));
        let plain =
            format!("org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}=\"{PASSWORD}\";");
        let scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;";
        let mut lines = format!(
            "ssl.keystore.type=PEM\nssl.keystore.location={}\nssl.truststore.type=PEM\nssl.truststore.location={}\n\
             listener.name.mutual.ssl.client.auth=required\n",
            keys.display(),
            believed.display()
        );
        for listener in ["logins", "open"] {
            lines += &format!(
                "listener.name.{listener}.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512\n\
                 listener.name.{listener}.plain.sasl.jaas.config={plain}\n\
                 listener.name.{listener}.scram-sha-256.sasl.jaas.config={scram}\n\
                 listener.name.{listener}.scram-sha-512.sasl.jaas.config={scram}\n"
            );
        }
        let users = ["SCRAM-SHA-256", "SCRAM-SHA-512"].map(|it| format!("{it}=[name={USER},password={PASSWORD}]"));
        let server = start(&Setup {
            lines: &lines,
            listeners: &[("LOGINS", "SASL_SSL"), ("OPEN", "SASL_PLAINTEXT"), ("MUTUAL", "SSL")],
            users: &users.each_ref().map(String::as_str),
            ..Setup::default()
        })?;
        Some(Secured { certificates, server })
    }

    /// Returns variables by which a command connects to a listener at `host`; `settings` are of `kafka.security`.
    pub fn by(&self, listener: Listener, host: &str, settings: &[(&str, &str)]) -> Variables {
        let (number, protocol) = match listener {
            Listener::SaslSsl => (0, "sasl_ssl"),
            Listener::SaslPlaintext => (1, "sasl_plaintext"),
            Listener::Mutual => (2, "ssl"),
        };
        let brokers = format!("{host}:{}", self.server.port(number));
        let security = [("PROTOCOL", protocol)];
        let security = security.iter().chain(settings);
        let security =
            security.map(|(name, value)| (format!("UTXO_STORE__KAFKA__SECURITY__{name}"), (*value).to_owned()));
        [("UTXO_STORE__KAFKA__BROKERS".to_owned(), brokers)].into_iter().chain(security).collect()
    }

    /// Returns the path of a file among the certificates, as a setting.
    pub fn file(&self, name: &str) -> String {
        self.certificates.path(name).display().to_string()
    }
}

pub fn borrowed(variables: &Variables) -> Vec<(&str, &str)> {
    variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&[output.stdout.as_slice(), &output.stderr].concat()).into_owned()
}

#[track_caller]
fn succeeds(bench: &Bench, arguments: &[&str], variables: &Variables) {
    let output = bench.command(arguments, &borrowed(variables)).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", printed(&output));
}

/// Creates topics, produces events, consumes and commits them, and runs all checks, over this connection alone.
fn run_end_to_end(secured: &Secured, variables: &Variables) {
    let bench = Bench::on(secured.server.bootstrap_servers());
    succeeds(&bench, &["topics", "create", "--partitions", "2"], variables);
    let (block, prevouts) = (demo::data("mainnet-277647.block"), demo::data("mainnet-277647.prevouts.csv"));
    let generate = ["generate", "--partitions", "2", "--blocks", &block, "--prevouts", &prevouts];
    succeeds(&bench, &generate, variables);
    let produced: usize = (0..2).map(|partition| bench.messages("validated-txs", partition).len()).sum();
    assert!(produced > 213, "the transactions of the block and their parents");
    let mut instance = bench.start_with(&borrowed(variables));
    until("everything is committed", || bench.committed() == produced as u64);
    instance.signal("TERM");
    assert_eq!(instance.wait().code(), Some(0));
    succeeds(&bench, &["topics", "check"], variables);
    succeeds(&bench, &["run", "--check"], variables);
}

#[test]
fn a_login_over_tls_works_end_to_end() {
    let Some(secured) = Secured::shared() else { return };
    let password = tempfile::NamedTempFile::new().unwrap();
    fs::write(&password, format!("{PASSWORD}\n")).unwrap();
    let password = password.path().to_str().unwrap();
    let ca = secured.file("ca.pem");
    let settings = [("MECHANISM", "SCRAM-SHA-512"), ("USERNAME", USER), ("PASSWORD_FILE", password), ("CA_FILE", &ca)];
    run_end_to_end(secured, &secured.by(Listener::SaslSsl, "localhost", &settings));
}

#[test]
fn a_client_certificate_works_end_to_end() {
    let Some(secured) = Secured::shared() else { return };
    let (ca, certificate, key) =
        (secured.file("ca.pem"), secured.file("client.crt"), secured.file("client.encrypted.key"));
    let settings = [
        ("CA_FILE", ca.as_str()),
        ("CERTIFICATE_FILE", &certificate),
        ("KEY_FILE", &key),
        ("KEY_PASSWORD", KEY_PASSWORD),
    ];
    run_end_to_end(secured, &secured.by(Listener::Mutual, "localhost", &settings));
}

#[test]
fn every_mechanism_logs_in_and_plaintext_is_warned_of() {
    let Some(secured) = Secured::shared() else { return };
    let bench = Bench::on(secured.server.bootstrap_servers());
    bench.create_topics();
    let ca = secured.file("ca.pem");
    for mechanism in ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] {
        let login = [("MECHANISM", mechanism), ("USERNAME", USER), ("PASSWORD", PASSWORD)];
        let over_tls = [&login[..], &[("CA_FILE", &ca)]].concat();
        assert_check_succeeds(&bench, &secured.by(Listener::SaslSsl, "localhost", &over_tls), false);
        assert_check_succeeds(&bench, &secured.by(Listener::SaslPlaintext, "localhost", &login), true);
    }
    // Another host name is accepted only where the name is not checked.
    let login = [("MECHANISM", "PLAIN"), ("USERNAME", USER), ("PASSWORD", PASSWORD), ("CA_FILE", ca.as_str())];
    let allows_any_host = [&login[..], &[("ENDPOINT_IDENTIFICATION", "false")]].concat();
    assert_check_succeeds(&bench, &secured.by(Listener::SaslSsl, "127.0.0.1", &allows_any_host), true);
}

/// Fails unless `run --check` finds nothing wrong, and warns of the configuration exactly where it should.
#[track_caller]
fn assert_check_succeeds(bench: &Bench, variables: &Variables, warned: bool) {
    let output = bench.command(&["run", "--check"], &borrowed(variables)).output().unwrap();
    let printed = printed(&output);
    assert_eq!(output.status.code(), Some(0), "{variables:?}: {printed}");
    let configuration = printed.lines().find(|line| line.contains("configuration")).unwrap();
    assert_eq!(configuration.contains("WARNING"), warned, "{configuration}");
}

/// A login that was configured through librdkafka properties still works, and a warning names the new setting.
#[test]
fn deprecated_properties_still_log_in() {
    let Some(secured) = Secured::shared() else { return };
    let bench = Bench::on(secured.server.bootstrap_servers());
    bench.create_topics();
    let ca = secured.file("ca.pem");
    let properties = [
        ("SECURITY_PROTOCOL", "SASL_SSL"),
        ("SASL_MECHANISM", "SCRAM-SHA-256"),
        ("SASL_USERNAME", USER),
        ("SASL_PASSWORD", PASSWORD),
        ("SSL_CA_LOCATION", &ca),
    ];
    let named = properties.map(|(name, value)| (format!("UTXO_STORE__KAFKA__PROPERTIES__{name}"), value.to_owned()));
    let brokers = format!("localhost:{}", secured.server.port(0));
    let variables: Variables = [("UTXO_STORE__KAFKA__BROKERS".to_owned(), brokers)].into_iter().chain(named).collect();
    succeeds(&bench, &["topics", "check"], &variables);
    let check = bench.command(&["config", "check"], &borrowed(&variables)).output().unwrap();
    let printed = printed(&check);
    let words = "warning: kafka.properties.sasl.password is deprecated: set kafka.security.password instead";
    assert!(printed.contains(words), "{printed}");

    let both = [&variables[..], &[("UTXO_STORE__KAFKA__SECURITY__PROTOCOL".to_owned(), "ssl".to_owned())]].concat();
    let check = bench.command(&["config", "check"], &borrowed(&both)).output().unwrap();
    assert_eq!(check.status.code(), Some(2));
    let line = "error: kafka.properties.sasl.username is set by kafka.security.username \
                (UTXO_STORE__KAFKA__PROPERTIES__SASL_USERNAME)";
    let printed = self::printed(&check);
    assert!(printed.contains(line) && !printed.contains(PASSWORD), "{printed}");
}

#[test]
fn a_refused_login_is_explained_in_one_line() {
    let Some(secured) = Secured::shared() else { return };
    let bench = Bench::on(secured.server.bootstrap_servers());
    bench.create_topics();
    let file = |name: &str| secured.file(name);
    let (ca, stranger) = (file("ca.pem"), file("stranger.pem"));
    let login = [("MECHANISM", "SCRAM-SHA-512"), ("USERNAME", USER)];
    let with = |more: &[(&'static str, &str)]| -> Vec<(&str, String)> {
        login.iter().copied().chain(more.iter().copied()).map(|(name, value)| (name, value.to_owned())).collect()
    };
    let right = [("PASSWORD", PASSWORD), ("CA_FILE", ca.as_str())];
    let cases = [
        (
            "a wrong password",
            Listener::SaslSsl,
            "localhost",
            with(&[("PASSWORD", "planted-wrong"), ("CA_FILE", &ca)]),
            "username and password",
        ),
        (
            "a wrong password on an open line",
            Listener::SaslPlaintext,
            "localhost",
            with(&[("PASSWORD", "planted-wrong")]),
            "username and password",
        ),
        (
            "an authority that is not believed",
            Listener::SaslSsl,
            "localhost",
            with(&[("PASSWORD", PASSWORD), ("CA_FILE", &stranger)]),
            "kafka.security.ca_file",
        ),
        ("a wrong host name", Listener::SaslSsl, "127.0.0.1", with(&right), "certificate is for the host"),
        (
            "no certificate",
            Listener::Mutual,
            "localhost",
            vec![("CA_FILE", ca.clone())],
            "kafka.security.certificate_file",
        ),
        (
            "a certificate of a strange authority's",
            Listener::Mutual,
            "localhost",
            vec![("CA_FILE", ca.clone()), ("CERTIFICATE_FILE", stranger.clone()), ("KEY_FILE", file("stranger.key"))],
            "kafka.security.certificate_file",
        ),
    ];
    for (what, listener, host, settings, words) in cases {
        let settings: Vec<_> = settings.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let variables = secured.by(listener, host, &settings);
        for arguments in [&["topics", "check"][..], &["run"]] {
            let started = Instant::now();
            let output = bench.command(arguments, &borrowed(&variables)).output().unwrap();
            let line = last_line(&output);
            assert_eq!(output.status.code(), Some(1), "{what}: {}", printed(&output));
            assert!(line.starts_with("error: ") && line.contains(words), "{what}: {line}");
            assert!(!printed(&output).contains("planted-"), "{what}: {}", printed(&output));
            assert!(started.elapsed() < Duration::from_secs(20), "{what}: after {:?}", started.elapsed());
            eprintln!("{what}: {line}");
        }
        assert_refused(bench.command(&["run"], &borrowed(&variables)), &[words]);
    }
}

/// An error that librdkafka finds before it connects is a bad configuration.
#[test]
fn wrong_certificate_files_are_a_bad_configuration() {
    let Some(secured) = Secured::shared() else { return };
    let bench = Bench::on(secured.server.bootstrap_servers());
    let (ca, certificate, key) =
        (secured.file("ca.pem"), secured.file("client.crt"), secured.file("client.encrypted.key"));
    let not_one = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml").display().to_string();
    let pair = [("CA_FILE", ca.as_str()), ("CERTIFICATE_FILE", &certificate), ("KEY_FILE", &key)];
    for (settings, words) in [
        ([&pair[..], &[("KEY_PASSWORD", "planted-wrong")]].concat(), "ssl.key"),
        (pair.to_vec(), "ssl.key"),
        (vec![("CA_FILE", not_one.as_str())], "ssl.ca"),
    ] {
        let variables = secured.by(Listener::Mutual, "localhost", &settings);
        for arguments in [&["config", "check"][..], &["run"], &["topics", "check"]] {
            let output = bench.command(arguments, &borrowed(&variables)).output().unwrap();
            let printed = printed(&output);
            assert_eq!(output.status.code(), Some(2), "{arguments:?} {printed}");
            assert!(last_line(&output).contains(words) && !printed.contains("planted-"), "{printed}");
        }
    }
}

/// An instance that was accepted continues. A broker that returns with an untrusted certificate, or that no longer
/// takes the login, counts as unavailable until it is corrected. An instance that starts meanwhile is refused.
#[test]
fn a_running_instance_outlasts_brokers_that_refuse_it() {
    const OTHER: &str = "planted-other-password-2b4d";
    let Some(mut secured) = Secured::own() else { return };
    let ca = secured.file("ca.pem");
    let login = [("MECHANISM", "PLAIN"), ("USERNAME", USER), ("PASSWORD", PASSWORD), ("CA_FILE", ca.as_str())];
    let variables = secured.by(Listener::SaslSsl, "localhost", &login);
    let bench = Bench::on(secured.server.bootstrap_servers());
    bench.create_topics();
    let mut instance = bench.start_with(&borrowed(&variables));
    bench.seed(50);
    until("everything is committed", || bench.committed() == 50);
    let elsewhere = [&borrowed(&variables)[..], &[("UTXO_STORE__STORE__URL", "memory://")]].concat();
    for (authority, password, words) in
        [("stranger", PASSWORD, "kafka.security.ca_file"), ("ca", OTHER, "username and password")]
    {
        secured.server.kill();
        secured.certificates.serve_by(authority);
        let user = |password: &str| format!("user_{USER}=\"{password}\"");
        secured.server.reconfigure(|text| text.replace(&user(PASSWORD), &user(password)));
        secured.server.restart();
        until("readiness names the refusal", || {
            let answer = instance.get("/health/ready");
            answer.starts_with("HTTP/1.1 503") && answer.contains("\"broker_reachable\":") && answer.contains(words)
        });
        assert!(instance.get("/health/live").starts_with("HTTP/1.1 200"), "a restart would not help");
        for page in PAGES.map(|path| instance.get(path)) {
            assert!(!page.contains("planted-"), "{page}");
        }
        assert_refused(bench.command(&["run"], &elsewhere), &[words]);
        std::thread::sleep(Duration::from_secs(5));
        assert!(instance.child.try_wait().unwrap().is_none(), "{words}");
        secured.server.reconfigure(|text| text.replace(&user(password), &user(PASSWORD)));
    }
    secured.server.kill();
    secured.certificates.serve_by("ca");
    secured.server.restart();
    until("it is ready again", || instance.get("/health/ready").starts_with("HTTP/1.1 200"));
    bench.seed(70);
    until("what came since is committed as well", || bench.committed() == 120);
    instance.signal("TERM");
    assert_eq!(instance.wait().code(), Some(0));
    let log = fs::read_to_string(bench.path("run.log")).unwrap();
    assert!(log.contains("certificate verify failed") && !log.contains("planted-"), "{log}");
}
