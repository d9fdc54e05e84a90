//! Settings file and environment: accepted as a whole, or refused with one line for each error.
//!
//! The input is TOML; after a line `---` come environment variables, one `NAME=value` a line.

use std::{ffi::OsString, io::Write};

use utxo_store::config::{Config, ConfigErrors};

use super::assert_one_line;

type Variables = Vec<(OsString, OsString)>;

const GROUP: &str = "UTXO_STORE__KAFKA__GROUP";

/// Runs the target `configuration`.
pub fn check(data: &[u8]) {
    let (toml, mut environment) = split(data);
    // The environment has each variable once.
    environment.sort();
    environment.dedup_by_key(|(name, _)| name.to_ascii_lowercase());
    let loaded = load(toml, &environment);
    assert_eq!(loaded, load(toml, &environment), "the same settings must give the same configuration");
    match loaded {
        Ok(config) => {
            assert_relations(&config);
            assert_secrets_are_hidden(&config);
            assert_environment_goes_first(&config, toml, environment);
        }
        Err(ConfigErrors(errors)) => {
            assert!(!errors.is_empty());
            errors.iter().for_each(assert_one_line);
        }
    }
}

fn split(data: &[u8]) -> (&[u8], Variables) {
    const RULE: &[u8] = b"\n---\n";
    let Some(at) = data.windows(RULE.len()).position(|window| window == RULE) else { return (data, Vec::new()) };
    let variables = String::from_utf8_lossy(&data[at + RULE.len()..]);
    let pairs = variables.lines().filter_map(|line| line.split_once('='));
    (&data[..at], pairs.map(|(name, value)| (name.into(), value.into())).collect())
}

fn load(toml: &[u8], environment: &Variables) -> Result<Config, ConfigErrors> {
    let mut file = tempfile::NamedTempFile::new().expect("the temporary directory is writable");
    file.write_all(toml).expect("the disk has room");
    Config::load_from(Some(file.path()), environment.iter().cloned()).map_err(|ConfigErrors(mut errors)| {
        // The temporary file has another name each time.
        let path = file.path().display().to_string();
        errors.iter_mut().for_each(|error| error.source = error.source.replace(&path, "FILE"));
        ConfigErrors(errors)
    })
}

/// Checks the documented relations between settings.
fn assert_relations(config: &Config) {
    let (kafka, ingest) = (&config.kafka, &config.ingest);
    assert!(kafka.heartbeat_interval_ms * 3 <= kafka.session_timeout_ms);
    assert!(kafka.session_timeout_ms <= kafka.max_poll_interval_ms);
    assert!(ingest.retry_pause_ms <= ingest.retry_pause_max_ms);
    assert!(ingest.flag_grace_ms < config.sequencer.block_wait_ms);
    assert!(config.http.max_body_bytes <= config.http.max_bytes_in_flight / 3);
    assert!((0.0..=1.0).contains(&ingest.dead_letter_ratio.0));
    assert!((1..=1_000_000).contains(&config.store.utxo_batch_size));
    let topics = &kafka.topics;
    let mut names = [
        &topics.validated_txs,
        &topics.block_mined,
        &topics.reorgs,
        &topics.chain,
        &topics.decisions,
        &topics.outcomes,
        &topics.dead_letters,
    ];
    names.sort();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "each topic has its own name");
    let url = config.store.url.to_string();
    assert_eq!(url.parse().ok().as_ref(), Some(&config.store.url), "{url}");
    for reserved in ["enable.auto.commit", "group.id", "acks", "auto.offset.reset", "bootstrap.servers"] {
        assert_eq!(kafka.properties.get(reserved), None);
    }
}

/// Checks that the debug output shows no value of a property named like a password.
fn assert_secrets_are_hidden(config: &Config) {
    let properties = &config.kafka.properties;
    let shown = format!("{properties:?}");
    let (secret, open): (Vec<_>, Vec<_>) = properties.iter().partition(|(name, _)| name.ends_with("password"));
    for (_, value) in secret.into_iter().filter(|(_, value)| value.len() > "(redacted)".len()) {
        let elsewhere = open.iter().any(|(name, text)| name.contains(value) || text.contains(value))
            || properties.iter().any(|(name, _)| name.contains(value));
        assert!(elsewhere || !shown.contains(value), "{shown}");
    }
}

/// Checks that a variable changes its own setting and no other.
fn assert_environment_goes_first(config: &Config, toml: &[u8], mut environment: Variables) {
    environment.retain(|(name, _)| !name.eq_ignore_ascii_case(GROUP));
    environment.push((GROUP.into(), "from the environment".into()));
    let mut expected = config.clone();
    expected.kafka.group = "from the environment".to_owned();
    assert_eq!(load(toml, &environment), Ok(expected));
}
