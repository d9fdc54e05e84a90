use std::{ffi::OsString, fs, path::PathBuf};

use super::{
    settings::SECTIONS,
    types::{Ratio, Secret, ValueKind},
    *,
};
use crate::tx::Network;

/// Loads a file with these contents, with these environment variables.
pub(super) fn load(toml: &str, variables: &[(&str, &str)]) -> Result<Config, Vec<String>> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("settings.toml");
    fs::write(&path, toml).unwrap();
    let environment = variables.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
    let shown = path.display().to_string();
    Config::load_from(Some(&path), environment)
        .map_err(|errors| errors.to_string().lines().map(|line| line.replace(&shown, "FILE")).collect())
}

fn sample_file() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("deploy/utxo-store.toml")
}

#[test]
fn the_sample_file_equals_the_printed_sample() {
    let file = fs::read_to_string(sample_file()).unwrap();
    assert!(file == sample(), "write the sample again: cargo run -- config sample > deploy/utxo-store.toml");
}

#[test]
fn the_sample_has_exactly_the_settings_of_the_list_with_their_defaults() {
    let file = fs::read_to_string(sample_file()).unwrap();
    assert_eq!(load(&file, &[]), Ok(Config::default()));

    // Read with the TOML parser alone: uncommented, the sample has exactly the keys of the list.
    let uncommented: String = file
        .lines()
        .map(|line| match line.strip_prefix("# ") {
            Some(rest) if rest.starts_with(['[', '"']) || rest.contains(" = ") => rest,
            _ => line,
        })
        .fold(String::new(), |text, line| text + line + "\n");
    let tree: figment::value::Dict =
        figment::Figment::from(<figment::providers::Toml as figment::providers::Format>::string(&uncommented))
            .extract()
            .unwrap();
    let tree = figment::value::Value::from(tree);
    let mut keys = Vec::new();
    collect_keys("", &tree, &mut keys);
    let mut expected: Vec<_> = SECTIONS.iter().flat_map(|s| s.settings).map(|s| s.key.to_owned()).collect();
    keys.sort();
    expected.sort();
    assert_eq!(keys, expected);
    for setting in SECTIONS.iter().flat_map(|section| section.settings) {
        assert!(
            setting.default.is_some() || setting.example.is_some() || setting.kind == ValueKind::Table,
            "{setting:?}"
        );
        if let Some(reference) = setting.reference {
            assert!(file.contains(&format!("Reference: {reference}.")), "{reference}");
        }
    }
}

fn collect_keys(prefix: &str, value: &figment::value::Value, keys: &mut Vec<String>) {
    match value.as_dict() {
        Some(table) if !matches!(prefix, "kafka.properties") => {
            for (name, value) in table {
                let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
                collect_keys(&key, value, keys);
            }
        }
        _ => keys.push(prefix.to_owned()),
    }
}

#[test]
fn defaults_are_those_of_the_documents() {
    let config = Config::default();
    assert_eq!(config.store.utxo_batch_size, 1_000);
    assert_eq!(config.store.block_height_retention, 288);
    assert_eq!(config.store.network, Network::Main);
    assert_eq!(config.kafka.topics.dead_letters.as_str(), "utxo.dead-letters");
    assert_eq!((config.ingest.batch_size, config.ingest.batch_age_ms, config.ingest.in_flight_batches), (256, 10, 32));
    assert_eq!(config.ingest.dead_letter_ratio, Ratio(0.05));
    assert_eq!(config.http.listen.to_string(), "127.0.0.1:9464");
    assert_eq!(config.kafka.instance_id, None);
}

#[test]
fn the_environment_overrides_the_file_and_the_file_the_defaults() {
    let config = load(
        "[kafka]\nbrokers = \"file:1\"\ngroup = \"file\"\n[log]\nformat = \"json\"\n",
        &[
            ("UTXO_STORE__KAFKA__BROKERS", "a:1,b:2"),
            ("UTXO_STORE__KAFKA__TOPICS__CHAIN", "mine"),
            ("UTXO_STORE__KAFKA__CLIENT_ID", "17"),
            ("UTXO_STORE__INGEST__BATCH_SIZE", "17"),
            ("UTXO_STORE__INGEST__DEAD_LETTER_RATIO", "1"),
            ("UTXO_STORE__SEQUENCER__ENABLED", "false"),
            ("UTXO_STORE_PORT", "tcp://10.0.0.1:80"),
            ("PATH", "/bin"),
        ],
    )
    .unwrap();
    assert_eq!(config.kafka.brokers.as_str(), "a:1,b:2");
    assert_eq!(config.kafka.topics.chain.as_str(), "mine");
    assert_eq!(config.kafka.client_id, "17");
    assert_eq!(config.kafka.group, "file");
    assert_eq!(config.ingest.batch_size, 17);
    assert_eq!(config.ingest.dead_letter_ratio, Ratio(1.0));
    assert!(!config.sequencer.enabled);
    assert_eq!(config.log.format, crate::telemetry::LogFormat::Json);
}

#[test]
fn every_error_is_reported_at_once_with_its_key_and_source() {
    let errors = load(
        "colour = 1\nlog = 3\n[kafka]\nbrokers = \"nowhere\"\nbatch_size = 5\n[kafka.topics]\nchian = \"x\"\n\
         [ingest]\nbatch_size = \"256\"\nbatch_age_ms = -1\ndead_letter_ratio = 1.5\n[paint]\nred = true\n",
        &[
            ("UTXO_STORE__STORE__NETWORK", "mars"),
            ("UTXO_STORE__STORE__PLANET", "mars"),
            ("UTXO_STORE__KAFKA__COLOUR", "red"),
            ("UTXO_STORE__INGEST__COMMIT_INTERVAL_MS", "soon"),
            ("UTXO_STORE__HTTP", "off"),
        ],
    )
    .unwrap_err();
    let mut errors: Vec<_> = errors.iter().map(String::as_str).collect();
    errors.sort_unstable();
    assert_eq!(
        errors,
        [
            "colour is unknown (FILE)",
            "http is a section, not a setting (UTXO_STORE__HTTP)",
            "ingest.batch_age_ms must be a whole number from 0 to 10000, not -1 (FILE)",
            "ingest.batch_size must be a whole number from 1 to 65536, not \"256\" (FILE)",
            "ingest.commit_interval_ms must be a whole number from 10 to 600000, not \"soon\" \
             (UTXO_STORE__INGEST__COMMIT_INTERVAL_MS)",
            "ingest.dead_letter_ratio must be a number from 0 to 1, not 1.5 (FILE)",
            "kafka.batch_size is unknown (there is ingest.batch_size, prune.batch_size, recovery.batch_size) \
             (FILE)",
            "kafka.brokers has \"nowhere\", which has no port: write nowhere:9092 (FILE)",
            "kafka.colour is unknown (UTXO_STORE__KAFKA__COLOUR)",
            "kafka.topics.chian is unknown (FILE)",
            "log is a section, not a setting (FILE)",
            "paint is unknown (FILE)",
            "store.network must be one of main, test, regtest, not \"mars\" (UTXO_STORE__STORE__NETWORK)",
            "store.planet is unknown (UTXO_STORE__STORE__PLANET)",
        ]
    );
}

#[test]
fn the_old_name_of_a_setting_is_refused_with_the_new_name() {
    let text = "[ingest]\nunfinished_bytes = 1\n[store.blobs]\ncache_ms = 1";
    let variables = [("UTXO_STORE__SEQUENCER__CONE_CHUNK", "1")];
    let mut errors = load(text, &variables).unwrap_err();
    errors.sort_unstable();
    assert_eq!(
        errors,
        [
            "ingest.unfinished_bytes is renamed: set ingest.unfinished_bytes_per_partition instead (FILE)",
            "sequencer.cone_chunk is renamed: set sequencer.descendants_per_decision instead \
             (UTXO_STORE__SEQUENCER__CONE_CHUNK)",
            "store.blobs.cache_ms is renamed: set store.blobs.cache_ttl_ms instead (FILE)",
        ]
    );
}

#[test]
fn an_error_stays_on_one_line_whatever_the_key() {
    let errors = load("\"a\\nb\" = 1\n[kafka.properties]\n\"c\\nd\" = []\n", &[]).unwrap_err();
    assert_eq!(
        errors,
        ["a\\nb is unknown (FILE)", "kafka.properties.c\\nd must be text, a number or true or false (FILE)"]
    );
}

#[test]
fn contradicting_settings_are_refused() {
    let errors = load(
        "[kafka]\nsession_timeout_ms = 6000\nmax_poll_interval_ms = 5000\nheartbeat_interval_ms = 2001\n\
         fetch_budget_bytes = 2_000_000\nbatch_bytes = 2_000_001\ninstance_id = \"a\"\n\
         assignment = \"cooperative-sticky\"\n\
         [kafka.topics]\nchain = \"utxo.reorgs\"\n[ingest]\nretry_pause_ms = 6000\nflag_grace_ms = 600_000\n",
        &[],
    )
    .unwrap_err();
    assert_eq!(
        errors,
        [
            "kafka.heartbeat_interval_ms is 2001, but must be at most a third of kafka.session_timeout_ms (FILE)",
            "kafka.session_timeout_ms is 6000, but must be at most kafka.max_poll_interval_ms, which is 5000 (FILE)",
            "kafka.assignment must not be cooperative-sticky where kafka.instance_id is set: a partition that moves \
             could be left without an owner (FILE)",
            "kafka.max_partition_fetch_bytes is 4194304, but must be at most kafka.fetch_budget_bytes, which is \
             2000000 (its default)",
            "kafka.batch_bytes is 2000001, but must be at most kafka.fetch_budget_bytes, which is 2000000 (FILE)",
            "kafka.topics.chain is \"utxo.reorgs\", as kafka.topics.reorgs is; each topic needs its own name (FILE)",
            "ingest.retry_pause_ms is 6000, but must be at most ingest.retry_pause_max_ms, which is 5000 (FILE)",
            "ingest.flag_grace_ms is 600000, but must be below sequencer.block_wait_ms, which is 600000 (FILE)",
        ]
    );
}

#[test]
fn the_memory_of_all_requests_holds_the_largest_body_three_times() {
    let load_body = |bytes: u64| load(&format!("[http]\nmax_body_bytes = {bytes}\n"), &[]);
    let third = Config::default().http.max_bytes_in_flight / 3;
    assert!(load_body(third).is_ok());
    let errors = load_body(third + 1).unwrap_err();
    let expected = "http.max_bytes_in_flight is less than three times http.max_body_bytes";
    assert!(errors.len() == 1 && errors[0].starts_with(expected), "{errors:?}");
}

#[test]
fn settings_of_the_classic_protocol_are_refused_with_the_consumer_protocol() {
    let file = "[kafka]\ngroup_protocol = \"consumer\"\n";
    assert!(load(file, &[]).is_ok());
    let classic = [("UTXO_STORE__KAFKA__ASSIGNMENT", "range"), ("UTXO_STORE__KAFKA__INSTANCE_ID", "a")];
    let errors = load(file, &classic).unwrap_err();
    let [assignment, instance_id] = errors.try_into().unwrap();
    assert!(assignment.starts_with("kafka.assignment must not be set where kafka.group_protocol is consumer: "));
    assert!(instance_id.starts_with("kafka.instance_id must not be set where kafka.group_protocol is consumer: "));
    let errors = load("[kafka]\ngroup_protocol = \"new\"\n", &[]).unwrap_err();
    assert_eq!(errors, ["kafka.group_protocol must be one of classic, consumer, not \"new\" (FILE)"]);
}

#[test]
fn a_section_given_as_a_setting_is_refused_beside_its_settings() {
    let errors = load(
        "",
        &[
            ("UTXO_STORE__HTTP", "off"),
            ("UTXO_STORE__HTTP__LISTEN", "127.0.0.1:0"),
            ("UTXO_STORE__KAFKA__PROPERTIES", "none"),
        ],
    )
    .unwrap_err();
    assert_eq!(
        errors,
        [
            "http is a section, not a setting (UTXO_STORE__HTTP)",
            "kafka.properties must be a table of text by name (UTXO_STORE__KAFKA__PROPERTIES)",
        ]
    );
}

#[test]
fn a_variable_that_is_not_utf8_is_refused() {
    use std::os::unix::ffi::OsStringExt;
    let variable = (OsString::from("UTXO_STORE__KAFKA__GROUP"), OsString::from_vec(vec![0xff]));
    let error = Config::load_from(None, [variable]).unwrap_err().to_string();
    assert_eq!(error, "kafka.group must be UTF-8 text (UTXO_STORE__KAFKA__GROUP)");
}

#[test]
fn an_error_names_a_contradicting_default_as_the_default() {
    let errors = load("[kafka]\nmax_poll_interval_ms = 5000\n", &[]).unwrap_err();
    assert_eq!(
        errors,
        ["kafka.session_timeout_ms is 45000, but must be at most kafka.max_poll_interval_ms, which is 5000 (its \
             default)"]
    );
}

#[test]
fn properties_are_passed_through_by_their_dotted_names() {
    let config = load(
        "[kafka.properties]\n\"sasl.username\" = \"me\"\nsasl.password = \"file\"\nsocket.timeout.ms = 1000\n",
        &[
            ("UTXO_STORE__KAFKA__PROPERTIES__SASL_PASSWORD", "0123"),
            ("UTXO_STORE__KAFKA__PROPERTIES__SASL.MECHANISM", "PLAIN"),
        ],
    )
    .unwrap();
    let properties: Vec<_> = config.kafka.properties.iter().collect();
    assert_eq!(
        properties,
        [
            ("sasl.mechanism", "PLAIN"),
            ("sasl.password", "0123"),
            ("sasl.username", "me"),
            ("socket.timeout.ms", "1000")
        ]
    );
    let shown = format!("{config:?}");
    assert!(!shown.contains("0123") && shown.contains("(redacted)"), "{shown}");
}

#[test]
fn properties_on_which_a_guarantee_rests_are_refused() {
    let errors = load(
        "[kafka.properties]\nenable.auto.commit = true\n\"group.id\" = \"x\"\nssl = [1]\n",
        &[("UTXO_STORE__KAFKA__PROPERTIES__AUTO_OFFSET_RESET", "latest")],
    )
    .unwrap_err();
    assert_eq!(errors.len(), 4, "{errors:?}");
    assert!(errors[0].starts_with("kafka.properties.enable.auto.commit is refused"), "{errors:?}");
    assert!(errors[1].starts_with("kafka.properties.group.id is set by kafka.group"), "{errors:?}");
    assert!(errors[2].starts_with("kafka.properties.ssl must be text"), "{errors:?}");
    assert!(errors[3].ends_with("(UTXO_STORE__KAFKA__PROPERTIES__AUTO_OFFSET_RESET)"), "{errors:?}");
}

#[test]
fn the_setting_named_for_a_refused_property_exists() {
    for (names, refusal) in crate::broker::kafka::REFUSED_PROPERTIES {
        let crate::broker::kafka::PropertyRefusal::SetBy(setting) = refusal else { continue };
        let exists = setting.starts_with("kafka.properties.") || settings::find(setting).is_some();
        assert!(exists, "{names:?} is set by {setting}");
    }
}

#[test]
fn an_unreadable_or_broken_file_is_one_line_without_its_contents() {
    let missing = Config::load_from(Some(Path::new("/nonexistent/x.toml")), []).unwrap_err().to_string();
    assert!(missing.starts_with("/nonexistent/x.toml: No such file"), "{missing}");
    assert_eq!(missing.lines().count(), 1);
    let broken = load("[kafka.properties]\n\"sasl.password\" = \"hunter2\n", &[]).unwrap_err();
    assert_eq!(broken.len(), 1, "{broken:?}");
    assert!(broken[0].contains("line 2") && !broken[0].contains("hunter2"), "{broken:?}");
}

#[test]
fn the_blob_store_is_named_by_either_setting() {
    let url = |toml: &str| load(toml, &[]).map(|config| config.store.blob_url().unwrap().map(|url| url.to_string()));
    let aerospike = "url = \"aerospike://a/ns?externalStore=s3://bucket/p\"\n";
    let blobs = |url: &str| format!("[store.blobs]\nurl = \"{url}\"\n");
    assert_eq!(url(""), Ok(None));
    let gone = format!("[store]\nurl = \"null:///\"\n{}", blobs("memory://"));
    assert_eq!(url(&gone), Ok(Some("memory://".into())));
    assert_eq!(url(&blobs("file:///b")), Ok(Some("file:///b".into())));
    if cfg!(feature = "aws") {
        assert_eq!(url(&format!("[store]\n{aerospike}")), Ok(Some("s3://bucket/p".into())));
        assert_eq!(url(&format!("[store]\n{aerospike}{}", blobs("s3://bucket/p/"))), Ok(Some("s3://bucket/p".into())));
    }
    for (toml, says) in [
        (format!("[store]\n{aerospike}{}", blobs("file:///b")), "store.url has an externalStore that differs from"),
        ("[store]\nurl = \"aerospike://a/ns?externalStore=blob://b:8080/utxo\"".into(), "name an object store"),
        (
            "[store]\nurl = \"aerospike://a/ns\"".into(),
            "store.url is a store that bounds its records, so large bodies need a",
        ),
        (blobs("/b"), "store.blobs.url names no blob store"),
        (blobs("memory://"), "store.blobs.url is memory://, which is gone with the process"),
        ("[objects]\nurl = \"memory://\"".into(), "objects.url is memory://, where no other process writes"),
        ("[snapshot]\nurl = \"memory://\"".into(), "snapshot.url is memory://, which is gone with the process"),
        ("[snapshot]\nurl = \"http://host/a\"".into(), "snapshot.url is a web server, which lists no objects"),
        (blobs("http://host/a"), "store.blobs.url is a blob store behind a web server"),
        (
            "[store]\nurl = \"aerospike://a/ns?externalStore=memory://\"".into(),
            "store.url has an externalStore that is memory://",
        ),
        (format!("[store]\nurl = \"memory://\"\n{}", blobs("https://host")), "which can only be read"),
        ("[store.blobs]\naccess_key_id = \"me\"".into(), "store.blobs.access_key_id is given without"),
        ("[store.blobs]\nsecret_access_key = \"word\"".into(), "store.blobs.secret_access_key is given without"),
    ] {
        let errors = url(&toml).unwrap_err();
        assert!(errors.len() == 1 && errors[0].contains(says) && !errors[0].contains("word"), "{errors:?}");
    }
}

#[test]
fn a_blob_store_without_its_feature_is_refused_with_the_feature() {
    let refused = |toml: String| load(&toml, &[]).map(drop);
    for (url, feature, is_built) in
        [("s3://bucket/p", "aws", cfg!(feature = "aws")), ("https://host/p", "http", cfg!(feature = "http"))]
    {
        for (section, name) in [("sequencer", "objects_url"), ("objects", "url")] {
            let objects = refused(format!("[{section}]\n{name} = \"{url}\"\n"));
            assert_eq!(objects.is_ok(), is_built, "{objects:?}");
            if let Err(errors) = objects {
                let (begin, says) = (format!("{section}.{name} "), format!("--features {feature}"));
                assert!(errors[0].starts_with(&begin) && errors[0].contains(&says), "{errors:?}");
            }
        }
    }
    for toml in ["[store.blobs]\nurl = \"s3://b\"", "[store]\nurl = \"aerospike://a/ns?externalStore=s3://b\""] {
        let blobs = refused(toml.to_owned());
        assert_eq!(blobs.is_ok(), cfg!(feature = "aws"), "{blobs:?}");
        if let Err(errors) = blobs {
            assert!(errors[0].starts_with("store.") && errors[0].contains("--features aws"), "{errors:?}");
        }
    }
}

#[test]
fn the_protocol_of_a_broker_entry_equals_the_configured_protocol() {
    let load = |toml: &str| load(toml, &[]).map(|config| config.kafka.brokers.as_str().to_owned());
    let brokers = "[kafka]\nbrokers = \"SASL_PLAINTEXT://host:9092\"\n";
    let errors = load(brokers).unwrap_err();
    assert!(errors.len() == 1 && errors[0].contains("write host:9092"), "{errors:?}");
    let moved = format!("{brokers}[kafka.properties]\n\"security.protocol\" = \"SASL_PLAINTEXT\"\n");
    assert_eq!(load(&moved).as_deref(), Ok("host:9092"));
    assert_eq!(load("[kafka]\nbrokers = \"PLAINTEXT://host:9092\"\n").as_deref(), Ok("host:9092"));
}

#[test]
fn a_warning_names_variables_that_look_like_settings_without_values() {
    let environment = [
        ("TERANODE_KAFKA_HOSTS", "hunter2:1"),
        ("TERANODE_UTXO_STORE_SPEND_BATCHER_SIZE", "100"),
        ("UTXO_STORE_KAFKA_BROKERS", "h:1"),
        ("UTXO_STORE_PORT", "tcp://10.0.0.1:80"),
        ("UTXO_STORE__KAFKA__GROUP", "g"),
        ("HOME", "/root"),
    ];
    let warnings = load("utxo_store_get_batcher_size = 1", &environment).unwrap().warnings();
    let named = "TERANODE_KAFKA_HOSTS, TERANODE_UTXO_STORE_SPEND_BATCHER_SIZE, UTXO_STORE_KAFKA_BROKERS, \
                 utxo_store_get_batcher_size;";
    assert!(warnings.len() == 1 && warnings[0].contains(named), "{warnings:?}");
    assert!(!warnings[0].contains("hunter2") && !warnings[0].contains("UTXO_STORE_PORT"), "{warnings:?}");
    assert_eq!(Config::load_from(None, []).unwrap().warnings(), [""; 0]);
}

#[test]
fn names_of_the_reference_stand_for_settings() {
    let file = "utxostore = \"sqlite:///data/utxo.sqlite\"\nutxo_store_batch_size = 128\n\
                DBTimeout = \"7s\"\nUseExternalTxCache = false\n[ingest]\nbatch_age_ms = 3\n";
    let environment = [
        ("TERANODE_UTXO_STORE_BLOCK_HEIGHT_RETENTION", "100"),
        ("TERANODE_UTXO_STORE_STORE_BATCHER_SIZE", "64"),
        ("TERANODE_UTXO_STORE_STORE_BATCHER_DURATION_MILLIS", "5"),
        ("UTXO_STORE__INGEST__BATCH_SIZE", "32"),
        ("TERANODE_UTXO_STORE_UTXO_BATCH_SIZE", "64"),
    ];
    let config = load(file, &environment).unwrap();
    let store = &config.store;
    assert_eq!(store.url.to_string(), "sqlite:///data/utxo.sqlite");
    assert_eq!((store.utxo_batch_size, store.block_height_retention), (64, 100));
    assert_eq!((store.aerospike.timeout_ms, store.sql.timeout_ms, store.blobs.cache_bytes), (7_000, 7_000, 0));
    assert_eq!(
        config.ingest.batch_age_ms, 3,
        "a name of this store in the file comes after a variable of the reference"
    );
    assert_eq!(config.ingest.batch_size, 32, "a variable of this store comes after one of the reference");
    let used = [
        "names of the reference: DBTimeout sets store.aerospike.timeout_ms, DBTimeout sets store.sql.timeout_ms, \
         UseExternalTxCache sets store.blobs.cache_bytes, utxo_store_batch_size is ignored because \
         store.utxo_batch_size is set in TERANODE_UTXO_STORE_UTXO_BATCH_SIZE, utxostore sets store.url, \
         TERANODE_UTXO_STORE_BLOCK_HEIGHT_RETENTION sets store.block_height_retention, \
         TERANODE_UTXO_STORE_STORE_BATCHER_DURATION_MILLIS is ignored because ingest.batch_age_ms is set in /",
        ", TERANODE_UTXO_STORE_STORE_BATCHER_SIZE is ignored because ingest.batch_size is set in \
         UTXO_STORE__INGEST__BATCH_SIZE, TERANODE_UTXO_STORE_UTXO_BATCH_SIZE sets store.utxo_batch_size;",
    ];
    let warnings = config.warnings();
    assert!(warnings.len() == 1 && used.iter().all(|part| warnings[0].contains(part)), "{warnings:?}");
}

#[test]
fn bad_values_under_names_of_the_reference_are_refused_with_the_name() {
    let environment = [
        ("TERANODE_UTXO_STORE_BLOCK_HEIGHT_RETENTION", "-1"),
        ("TERANODE_UTXO_STORE_DB_TIMEOUT", "soon"),
        ("TERANODE_UTXO_STORE_USE_EXTERNAL_TX_CACHE", "perhaps"),
        ("TERANODE_UTXOSTORE", "cassandra://root:hunter2@host/ns"),
        ("TERANODE_UTXO_STORE", "null:///"),
    ];
    let file = "utxo_store_batch_size = 128\n[store]\nutxo_batch_size = 128\n";
    let error = load(file, &environment).unwrap_err().join("\n");
    for part in [
        "TERANODE_UTXO_STORE_BLOCK_HEIGHT_RETENTION",
        "TERANODE_UTXO_STORE_DB_TIMEOUT",
        "must be a duration such as 5s",
        "TERANODE_UTXO_STORE_USE_EXTERNAL_TX_CACHE",
        "is given twice, also as TERANODE_UTXO_STORE:",
        "is given twice, also as utxo_store_batch_size",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert!(!error.contains("hunter2"), "{error}");
    let error = load("", &environment[3..4]).unwrap_err().join("\n");
    assert!(error.contains("TERANODE_UTXOSTORE") && !error.contains("hunter2"), "{error}");
}

#[test]
fn a_finished_configuration_is_checked_like_a_loaded_one() {
    let mut config = Config::default();
    config.validate().unwrap();
    config.kafka.topics.chain = config.kafka.topics.decisions.clone();
    config.kafka.security.password_file = Some("/run/secrets/password".to_owned());
    config.kafka.security.username = Some(String::new());
    config.store.utxo_batch_size = 0;
    config.ingest.dead_letter_ratio = Ratio(1.5);
    config.ingest.durability_lag_ms = Some(0);
    config.run.watchdog_ms = 1;
    let errors = config.validate().unwrap_err();
    let lines: Vec<String> = errors.0.iter().map(ToString::to_string).collect();
    for line in [
        "kafka.security.username must not be empty (set by the program)",
        "kafka.security.password_file is read with a settings file or the environment only: set \
         kafka.security.password (set by the program)",
        "store.utxo_batch_size must be a whole number from 1 to 1000000, not 0 (set by the program)",
        "ingest.dead_letter_ratio must be a number from 0 to 1, not 1.5 (set by the program)",
        "ingest.durability_lag_ms must be a whole number from 1 to 3600000, not 0 (set by the program)",
        "run.watchdog_ms is 1, but must be 0 (never) or at least 1000 (set by the program)",
    ] {
        assert!(lines.iter().any(|found| found == line), "{line} is not in {lines:#?}");
    }
    assert!(lines.iter().any(|line| line.starts_with("kafka.topics.decisions is \"utxo.decisions\"")), "{lines:#?}");
    // A loaded secret stays beside the name of its file.
    let mut config = Config::default();
    let aerospike = &mut config.store.aerospike;
    aerospike.user = Some("user".to_owned());
    aerospike.password = Some(Secret::new("password").unwrap());
    aerospike.password_file = Some("/run/secrets/password".to_owned());
    config.validate().unwrap();
}

#[test]
fn errors_of_other_sections_do_not_count_where_only_the_store_is_used() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("settings.toml");
    let text = "kafka = 1\n[ingest]\nretry_pause_ms = \"soon\"\n[http]\napi = true\nlisten = \"0.0.0.0:1\"\n\
                [store]\nnetwork = \"regtest\"\n";
    fs::write(&path, text).unwrap();
    let variable = |(name, value): (&str, &str)| (OsString::from(name), OsString::from(value));
    let load = |variables: &[(&str, &str)]| {
        Config::load_sections(Some(&path), variables.iter().copied().map(variable), Sections::Store)
    };
    let config = load(&[("UTXO_STORE__RUN", "x"), ("UTXO_STORE__STORE__UTXO_BATCH_SIZE", "7")]).unwrap();
    assert_eq!((config.store.network, config.store.utxo_batch_size), (Network::Regtest, 7));
    assert_eq!(config, Config { store: config.store.clone(), ..Config::default() });
    let errors = load(&[("UTXO_STORE__STORE__UTXO_BATCH_SIZE", "0"), ("UTXO_STORE__STROE__URL", "x")]).unwrap_err();
    let keys: Vec<&str> = errors.0.iter().map(|error| error.key.as_str()).collect();
    assert_eq!(keys, ["stroe", "store.utxo_batch_size"]);
    // The commands that need only the place of the snapshots read its section, too.
    let place = variable(("UTXO_STORE__SNAPSHOT__URL", "file:///snapshots"));
    let config = Config::load_sections(Some(&path), [place], Sections::Snapshots).unwrap();
    assert_eq!(config.snapshot.url.unwrap().to_string(), "file:///snapshots");
    assert!(
        Config::load_sections(Some(&path), [variable(("UTXO_STORE__STORE__URL", "x"))], Sections::Snapshots).is_err()
    );
    assert!(Config::load_from(Some(&path), []).is_err());
}
