//! Names of the reference document: settings and environment variables that stand for settings of this store.
//!
//! Capitals and underscores do not count, and the prefix of the store may be left out: `BlockHeightRetention`,
//! `utxo_store_block_height_retention` and the variable `TERANODE_UTXO_STORE_BLOCK_HEIGHT_RETENTION` are one name.

use std::ffi::{OsStr, OsString};

use figment::value::{Dict, Value};

use crate::text::duration::parse_duration;

use super::types::Properties;

/// Prefix of the environment variables of the reference document.
pub(super) const VARIABLE_PREFIX: &str = "TERANODE_";

/// Settings of the reference document that have a setting here, by the form of their names that [`plain`] gives.
const ALIASES: &[(&[&str], Meaning)] = &[
    (&["utxostore"], Meaning::Same("store.url")),
    (&["utxobatchsize", "utxostorebatchsize"], Meaning::Same("store.utxo_batch_size")),
    (&["blockheightretention"], Meaning::Same("store.block_height_retention")),
    (&["maxtxsizeinstore", "maxtxsizeinstoreinbytes"], Meaning::Same("store.max_tx_size_in_store")),
    (&["externalizealltransactions"], Meaning::Same("store.externalize_all_transactions")),
    (&["useexternaltxcache"], Meaning::Cache),
    (&["dbtimeout"], Meaning::Timeout),
    (&["postgresmaxopenconns"], Meaning::Same("store.sql.max_open_connections")),
    (&["postgresmaxidleconns"], Meaning::Same("store.sql.max_idle_connections")),
    (&["storebatchersize"], Meaning::Same("ingest.batch_size")),
    (&["storebatcherdurationmillis"], Meaning::Same("ingest.batch_age_ms")),
    (&["storebatcherconcurrency"], Meaning::Same("ingest.in_flight_batches")),
    (&["maxminedbatchsize"], Meaning::Same("sequencer.mined_batch_size")),
    (&["maxminedroutines"], Meaning::Same("sequencer.concurrency")),
];

/// Settings of the reference document that have none here (`docs/operating/configure.md` has the reasons).
const WITHOUT_SETTING: &[&str] = &[
    "spendbatchersize",
    "spendbatcherdurationmillis",
    "spendbatcherconcurrency",
    "outpointbatchersize",
    "outpointbatcherdurationmillis",
    "incrementbatchersize",
    "incrementbatcherdurationmillis",
    "setdahbatchersize",
    "setdahbatcherdurationmillis",
    "unspendablebatchersize",
    "unspendablebatcherdurationmillis",
    "getbatchersize",
    "getbatcherdurationmillis",
    "verbosedebug",
    "updatetxminedstatus",
    "unminedtxretention",
    "parentpreservationblocks",
];

/// Setting that a name of the reference stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meaning {
    /// The setting with this key takes the value as it is.
    Same(&'static str),
    /// `true` or `false`: the size of the cache of bodies; `false` is 0.
    Cache,
    /// A duration: the timeouts of the databases.
    Timeout,
}

/// Meaning of a name of the reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    Alias(Meaning),
    WithoutSetting,
}

/// A value for a setting, given under a name of the reference.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Given {
    /// Name under which the value is given.
    pub name: String,
    /// Key of the setting.
    pub key: &'static str,
    /// The value as text; an error completes the sentence "`key` …".
    pub text: Result<String, String>,
}

/// Settings that a source gives under names of the reference.
#[derive(Debug, Default, PartialEq)]
pub(super) struct References {
    /// Values for settings, in the order of the names.
    pub given: Vec<Given>,
    /// Names that no setting stands for.
    pub ignored: Vec<String>,
}

impl References {
    /// Takes the settings at the top of a file that have a name of the reference out of its tree.
    pub fn take_from(tree: &mut Dict) -> Self {
        let mut found = References::default();
        tree.retain(|name, value| {
            // A section is a table, and no setting of the reference is one.
            let (Some(known), Some(text)) = (find(name), Properties::value_text(value)) else { return true };
            found.add(name, known, &text);
            false
        });
        found
    }

    /// Reads the variables of the reference. A variable whose name is not known is ignored; so is one that is not UTF-8
    /// text, where its name stands for no setting.
    pub fn of_variables<'a>(variables: impl IntoIterator<Item = &'a (OsString, OsString)>) -> Self {
        let mut variables: Vec<(&str, &OsStr)> = variables
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_str()?, value.as_os_str())))
            .filter(|(name, _)| name.starts_with(VARIABLE_PREFIX))
            .collect();
        variables.sort_unstable();
        let mut found = References::default();
        for (name, value) in variables {
            match (find(&name[VARIABLE_PREFIX.len()..]), value.to_str()) {
                (Some(known), Some(text)) => found.add(name, known, text),
                (Some(Known::Alias(meaning)), None) => found.refuse(name, meaning, "must be UTF-8 text"),
                _ => found.ignored.push(name.to_owned()),
            }
        }
        found
    }

    fn add(&mut self, name: &str, known: Known, text: &str) {
        match known {
            Known::WithoutSetting => self.ignored.push(name.to_owned()),
            Known::Alias(Meaning::Same(key)) => self.push(name, key, Ok(text.to_owned())),
            Known::Alias(Meaning::Cache) => match text.parse() {
                Ok(true) => {}
                Ok(false) => self.push(name, CACHE, Ok("0".to_owned())),
                Err(_) => self.refuse(name, Meaning::Cache, "must be true or false"),
            },
            Known::Alias(Meaning::Timeout) => match parse_duration(text) {
                Some(time) => {
                    TIMEOUTS.iter().for_each(|key| self.push(name, key, Ok(time.as_millis().to_string())));
                }
                None => self.refuse(name, Meaning::Timeout, "must be a duration such as 5s"),
            },
        }
    }

    fn push(&mut self, name: &str, key: &'static str, text: Result<String, String>) {
        self.given.push(Given { name: name.to_owned(), key, text });
    }

    fn refuse(&mut self, name: &str, meaning: Meaning, problem: &str) {
        let key = match meaning {
            Meaning::Same(key) => key,
            Meaning::Cache => CACHE,
            Meaning::Timeout => TIMEOUTS[0],
        };
        self.push(name, key, Err(problem.to_owned()));
    }
}

const CACHE: &str = "store.blobs.cache_bytes";
const TIMEOUTS: [&str; 2] = ["store.aerospike.timeout_ms", "store.sql.timeout_ms"];

/// Returns the name in lower case and without underscores.
fn plain(name: &str) -> String {
    name.chars().filter(|character| *character != '_').map(|character| character.to_ascii_lowercase()).collect()
}

/// Finds what a name means; `None`: the name is not one of the reference.
fn find(name: &str) -> Option<Known> {
    let plain = plain(name);
    let find = |plain: &str| {
        let alias = ALIASES.iter().find(|(names, _)| names.contains(&plain));
        let unknown = WITHOUT_SETTING.contains(&plain).then_some(Known::WithoutSetting);
        alias.map(|(_, meaning)| Known::Alias(*meaning)).or(unknown)
    };
    find(&plain).or_else(|| find(plain.strip_prefix("utxostore")?))
}

/// Returns whether the tree has a value for the key.
pub(super) fn is_given(tree: &Dict, key: &str) -> bool {
    let mut parts = key.split('.');
    let Some(first) = parts.next() else { return false };
    let value = parts.try_fold(tree.get(first), |value, part| match value {
        Some(Value::Dict(_, table)) => Some(table.get(part)),
        _ => None,
    });
    value.flatten().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::settings::{self, SECTIONS};

    #[test]
    fn each_alias_names_a_setting_whose_help_names_the_reference() {
        for (names, meaning) in ALIASES {
            let keys = match meaning {
                Meaning::Same(key) => vec![*key],
                Meaning::Cache => vec![CACHE],
                Meaning::Timeout => TIMEOUTS.to_vec(),
            };
            for key in keys {
                let reference = settings::find(key).unwrap().reference.map(plain).unwrap_or_default();
                assert!(names.iter().any(|name| reference.contains(name)), "{key}: {reference}");
            }
        }
    }

    #[test]
    fn each_setting_with_a_name_in_the_reference_has_an_alias() {
        let keys = SECTIONS.iter().flat_map(|section| section.settings).filter(|setting| setting.reference.is_some());
        // A parameter of the store URL, and no setting.
        for setting in keys.filter(|setting| setting.reference != Some("externalStore")) {
            let is_named = |meaning: &Meaning| match meaning {
                Meaning::Same(key) => *key == setting.key,
                Meaning::Cache => setting.key == CACHE,
                Meaning::Timeout => TIMEOUTS.contains(&setting.key),
            };
            assert!(ALIASES.iter().any(|(_, meaning)| is_named(meaning)), "{}", setting.key);
        }
    }

    #[test]
    fn capitals_underscores_and_the_prefix_do_not_count() {
        let retention = Some(Known::Alias(Meaning::Same("store.block_height_retention")));
        for name in ["BlockHeightRetention", "blockHeightRetention", "UTXO_STORE_BLOCK_HEIGHT_RETENTION"] {
            assert_eq!(find(name), retention, "{name}");
        }
        for name in ["utxostore", "UTXO_STORE", "UtxoStore"] {
            assert_eq!(find(name), Some(Known::Alias(Meaning::Same("store.url"))), "{name}");
        }
        assert_eq!(find("utxo_store_batch_size"), Some(Known::Alias(Meaning::Same("store.utxo_batch_size"))));
        for name in ["SPEND_BATCHER_SIZE", "UnminedTxRetention", "ParentPreservationBlocks"] {
            assert_eq!(find(name), Some(Known::WithoutSetting), "{name}");
        }
        for name in ["batch_size", "store", "kafka", "KAFKA_HOSTS", ""] {
            assert_eq!(find(name), None, "{name}");
        }
    }

    #[test]
    fn values_are_converted_or_refused() {
        let variables = [
            ("TERANODE_UTXO_STORE_DB_TIMEOUT", "1m30s"),
            ("TERANODE_UTXO_STORE_USE_EXTERNAL_TX_CACHE", "false"),
            ("TERANODE_UTXO_STORE_STORE_BATCHER_SIZE", "many"),
            ("TERANODE_DBTIMEOUT", "soon"),
            ("TERANODE_KAFKA_HOSTS", "h"),
        ];
        let variables = variables.map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let References { given, ignored } = References::of_variables(&variables);
        let given: Vec<_> = given.iter().map(|given| (given.key, given.text.as_deref())).collect();
        let expected = [
            ("store.aerospike.timeout_ms", Err(&"must be a duration such as 5s".to_owned())),
            ("store.aerospike.timeout_ms", Ok("90000")),
            ("store.sql.timeout_ms", Ok("90000")),
            ("ingest.batch_size", Ok("many")),
            ("store.blobs.cache_bytes", Ok("0")),
        ];
        assert_eq!(given, expected);
        assert_eq!(ignored, ["TERANODE_KAFKA_HOSTS"]);
    }
}
