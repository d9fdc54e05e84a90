//! The binary's exit codes and what it prints.

use std::{
    fs,
    process::{Command, Output},
};

pub fn utxo_store(args: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_utxo-store"));
    command.args(args).env_clear().envs(variables.iter().copied());
    command.output().unwrap()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn help_and_version_succeed() {
    assert_eq!(utxo_store(&["--help"], &[]).status.code(), Some(0));
    let version = utxo_store(&["--version"], &[]);
    assert_eq!(String::from_utf8(version.stdout).unwrap().trim(), concat!("utxo-store ", env!("CARGO_PKG_VERSION")));
}

#[test]
fn bad_usage_is_exit_code_2() {
    for args in [&["no-such-command"][..], &["config", "check", "--nonsense"], &[]] {
        assert_eq!(utxo_store(args, &[]).status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn the_printed_sample_passes_the_check() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("utxo-store.toml");
    let sample = utxo_store(&["config", "sample"], &[]);
    assert_eq!(sample.status.code(), Some(0));
    fs::write(&file, &sample.stdout).unwrap();
    let check = utxo_store(&["config", "check", "--config", file.to_str().unwrap()], &[]);
    assert_eq!((check.status.code(), stderr(&check)), (Some(0), String::new()));
}

#[test]
fn a_bad_configuration_prints_each_error_and_exits_with_2() {
    let variables = [("UTXO_STORE__LOG__FORMAT", "xml"), ("UTXO_STORE__KAFKA__COLOUR", "red")];
    let check = utxo_store(&["config", "check", "--config", "/nonexistent.toml"], &variables);
    assert_eq!(check.status.code(), Some(2));
    assert_eq!(
        stderr(&check),
        "error: /nonexistent.toml: No such file or directory (os error 2)\n\
         error: kafka.colour is unknown (UTXO_STORE__KAFKA__COLOUR)\n\
         error: log.format must be one of auto, pretty, json, not \"xml\" (UTXO_STORE__LOG__FORMAT)\n"
    );
}

#[test]
fn a_blob_store_that_cannot_serve_the_store_is_a_bad_configuration() {
    for (url, says) in [("memory://", "gone with the process"), ("http://host/prefix", "can only be read")] {
        for args in [&["config", "check"][..], &["run"]] {
            let check = utxo_store(args, &[("UTXO_STORE__STORE__BLOBS__URL", url)]);
            assert_eq!(check.status.code(), Some(2), "{args:?} {url}: {}", stderr(&check));
            assert!(stderr(&check).starts_with("error: store.blobs.url is") && stderr(&check).contains(says));
        }
    }
    let good = [("UTXO_STORE__STORE__BLOBS__URL", "memory://"), ("UTXO_STORE__STORE__URL", "memory://")];
    assert_eq!(utxo_store(&["config", "check"], &good).status.code(), Some(0));
}

#[test]
fn a_rebuild_of_a_store_with_blobs_needs_its_own_blob_url() {
    let live = [("UTXO_STORE__STORE__BLOBS__URL", "file:///var/lib/blobs")];
    let replay = ["replay", "--rebuild", "--store", "fjall:///nonexistent/rebuilt"];
    for (blobs, says) in [
        (&[][..], "--blobs must be given"),
        (&["--blobs", "file:///var/lib/blobs"], "a blob store of its own"),
        (&["--blobs", "memory://"], "--blobs is memory://"),
        (&["--blobs", "https://host/a"], "can only be read"),
    ] {
        let refused = utxo_store(&[&replay[..], blobs].concat(), &live);
        assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
        assert!(stderr(&refused).contains(says), "{}", stderr(&refused));
    }
}

#[test]
fn a_property_refused_by_librdkafka_is_a_bad_configuration() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("utxo-store.toml");
    let tls = if cfg!(feature = "tls") { 0 } else { 2 };
    for (property, status) in [("\"security.protocol\" = \"ssl\"", tls), ("\"security.protocol\" = \"telepathy\"", 2)] {
        fs::write(&file, format!("[kafka.properties]\n{property}\n")).unwrap();
        let check = utxo_store(&["config", "check", "--config", file.to_str().unwrap()], &[]);
        assert_eq!(check.status.code(), Some(status), "{}", stderr(&check));
        assert!(status == 0 || stderr(&check).contains("security.protocol"), "{}", stderr(&check));
    }
}

#[test]
fn an_unusable_setting_is_refused_with_the_value_to_write() {
    let aerospike = |nodes: &str| format!("aerospike://{nodes}/ns?externalStore=file:///b");
    for (variable, value, write) in [
        ("KAFKA__BROKERS", "::1:9092".to_owned(), "write [::1]:9092"),
        ("KAFKA__BROKERS", "SSL://host:9092".to_owned(), "write host:9092, and set kafka.security.protocol to ssl"),
        ("KAFKA__BROKERS", "kafka://host:9092".to_owned(), "write host:9092"),
        ("KAFKA__BROKERS", "http://host".to_owned(), "write host:9092"),
        ("KAFKA__BROKERS", "h:1;h2:2".to_owned(), "write h:1,h2:2"),
        ("KAFKA__BROKERS", "h:70000".to_owned(), "write h:9092"),
        ("KAFKA__BROKERS", "h:1,".to_owned(), "write host:9092"),
        ("STORE__URL", aerospike("127.0.0.1:70000"), "write 127.0.0.1:3000"),
        ("STORE__URL", aerospike("::1"), "write [::1]:3000"),
        ("HTTP__LISTEN", "localhost:9464".to_owned(), "write 127.0.0.1:9464"),
        ("HTTP__LISTEN", "::1:9464".to_owned(), "write [::1]:9464"),
        ("STORE__BLOBS__URL", "s3://bucket?endpoint=http://::1:9000".to_owned(), "`http://[::1]:port`"),
        ("SEQUENCER__OBJECTS_URL", "https://host:70000/a".to_owned(), "`http://host:port`"),
    ] {
        let variable = format!("UTXO_STORE__{variable}");
        for args in [&["config", "check"][..], &["run"]] {
            let check = utxo_store(args, &[(&variable, &value)]);
            let printed = stderr(&check);
            assert_eq!(check.status.code(), Some(2), "{args:?} {value}: {printed}");
            assert_eq!(printed.lines().count(), 1, "{value}: {printed}");
            assert!(printed.contains(write) && printed.contains(&variable), "{value}: {printed}");
        }
    }
    for (variable, value, built) in [
        ("UTXO_STORE__STORE__BLOBS__URL", "s3://bucket/prefix", cfg!(feature = "aws")),
        ("UTXO_STORE__SEQUENCER__OBJECTS_URL", "https://host/prefix", cfg!(feature = "http")),
    ] {
        let check = utxo_store(&["config", "check"], &[(variable, value)]);
        assert_eq!(check.status.code(), Some(if built { 0 } else { 2 }), "{}", stderr(&check));
        assert!(built || stderr(&check).contains("--features"), "{}", stderr(&check));
    }
}

#[test]
fn variables_of_the_reference_are_named_in_a_warning() {
    let variables =
        [("TERANODE_KAFKA_HOSTS", "secret"), ("TERANODE_UTXO_STORE_VERBOSE_DEBUG", "secret"), ("PATH", "/bin")];
    let check = utxo_store(&["config", "check"], &variables);
    let printed = stderr(&check);
    assert_eq!(check.status.code(), Some(0), "{printed}");
    assert!(
        printed.lines().count() == 1
            && printed.contains("not read: TERANODE_KAFKA_HOSTS, TERANODE_UTXO_STORE_VERBOSE_DEBUG;"),
        "{printed}"
    );
    assert!(!printed.contains("secret"), "{printed}");
}

/// Protects: transactions and commands of anybody who reaches the port.
#[test]
fn the_api_beyond_loopback_needs_tokens() {
    let variables = [("UTXO_STORE__HTTP__API", "true"), ("UTXO_STORE__HTTP__LISTEN", "0.0.0.0:0")];
    for args in [&["config", "check"][..], &["run"], &["serve"]] {
        let refused = utxo_store(args, &variables);
        let words = stderr(&refused);
        assert_eq!(refused.status.code(), Some(2), "{args:?}: {words}");
        assert!(words.contains("http.tokens_file") && words.contains("0.0.0.0:0"), "{args:?}: {words}");
    }
}
