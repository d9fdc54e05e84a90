//! Configuration: the only reader of settings files and of the environment.
//!
//! Configuration has two stages. The *raw* stage (`layers`) merges the defaults, a TOML file and the environment, and
//! refuses unknown keys. The *checked* stage (`check`) reads every setting by its type and range, and checks the
//! relations between settings. Both stages collect errors: [`Config::load`] returns every error at once, each with its
//! key and its source. The settings themselves are one list, in `settings`.

mod check;
mod declare;
mod layers;
mod reference;
mod sample;
mod section;
mod settings;
mod types;

use std::{ffi::OsString, path::Path};

use crate::{blob::BlobUrl, engine::StoreUrl, event::Topic};
pub use check::{ConfigError, ConfigErrors};
use layers::{Merged, Sections};
pub use sample::sample;
pub use settings::{
    BackgroundRecovery, Blobs, EventObjects, Http, Ingest, Kafka, Log, Outcomes, Prune, Run, Security, Sequencer,
    Snapshots, Store, Topics, Vault,
};

pub use types::{Brokers, LogFilter, Properties, Ratio, Secret, TopicName, listen_address};

/// Every setting of a process, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Settings of the broker connection, the groups and the topics.
    pub kafka: Kafka,
    /// Settings of the objects to which events refer.
    pub objects: EventObjects,
    /// Settings of the record engine and the blob store.
    pub store: Store,
    /// Settings of the pipeline.
    pub ingest: Ingest,
    /// Settings of the consumer of the chain log.
    pub sequencer: Sequencer,
    /// Settings of the outcomes for validators and clients.
    pub outcomes: Outcomes,
    /// Settings of the pruning of transactions.
    pub prune: Prune,
    /// Settings of the recovery of half-created transactions.
    pub recovery: BackgroundRecovery,
    /// Settings of the snapshots.
    pub snapshot: Snapshots,
    /// Settings of the vault.
    pub vault: Vault,
    /// Settings of the watchdog of a process.
    pub run: Run,
    /// Settings of the HTTP server: metrics, health, state page, control.
    pub http: Http,
    /// Settings of the log records.
    pub log: Log,
    /// Names of environment variables, and of settings of the reference document in the file, that are not read.
    pub ignored_names: Vec<String>,
    /// Names of the reference document that stand for a setting: each sets the setting, or is ignored because another
    /// source sets the setting.
    pub aliases: Vec<String>,
}

impl Config {
    /// Reads `file` (if any) and the environment of the process; the environment overrides the file.
    ///
    /// # Errors
    /// Every error: unknown keys, wrong types, values out of range, contradicting values, an unreadable file.
    pub fn load(file: Option<&Path>) -> Result<Self, ConfigErrors> {
        Self::load_from(file, std::env::vars_os())
    }

    /// Reads the section `store` of `file` (if any) and of the environment, as [`load`](Self::load) does. Every other
    /// section has its defaults, and no error in such a section counts.
    pub(crate) fn load_store(file: Option<&Path>) -> Result<Self, ConfigErrors> {
        Self::load_sections(file, std::env::vars_os(), Sections::Store)
    }

    /// Reads the sections `store` and `snapshot`, as [`load_store`](Self::load_store) reads the section of the store.
    pub(crate) fn load_snapshots(file: Option<&Path>) -> Result<Self, ConfigErrors> {
        Self::load_sections(file, std::env::vars_os(), Sections::Snapshots)
    }

    /// Reads `file` (if any) and the given environment, as [`load`](Self::load) does.
    ///
    /// # Errors
    /// Every error, as for [`load`](Self::load).
    pub fn load_from(
        file: Option<&Path>,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Self, ConfigErrors> {
        Self::load_sections(file, environment, Sections::All)
    }

    fn load_sections(
        file: Option<&Path>,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
        sections: Sections,
    ) -> Result<Self, ConfigErrors> {
        let mut errors = Vec::new();
        let environment: Vec<(OsString, OsString)> = environment.into_iter().collect();
        let Merged { figment, ignored, aliases } = layers::merge(file, &environment, sections, &mut errors);
        let config = check::check(&mut check::Checker::new(&figment, &mut errors));
        match config {
            Some(config) if errors.is_empty() => Ok(Config { ignored_names: ignored, aliases, ..config }),
            _ => Err(ConfigErrors(errors)),
        }
    }

    /// Checks a configuration that a program has made or changed: the range of each value, and every relation that
    /// [`load`](Self::load) checks. An instance checks its configuration before its start.
    ///
    /// # Errors
    /// Every error: values out of range, contradicting values, a file of a secret that was not read.
    pub fn validate(&self) -> Result<(), ConfigErrors> {
        let mut errors = Vec::new();
        check::check_finished(self, &mut errors);
        if errors.is_empty() { Ok(()) } else { Err(ConfigErrors(errors)) }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::load_from(None, []).expect("the defaults are constants, and a test loads them")
    }
}

impl Topics {
    /// Returns the configured name of a topic.
    pub fn name(&self, topic: Topic) -> &str {
        let name = match topic {
            Topic::ValidatedTxs => &self.validated_txs,
            Topic::BlockMined => &self.block_mined,
            Topic::Reorgs => &self.reorgs,
            Topic::Chain => &self.chain,
            Topic::Decisions => &self.decisions,
            Topic::Outcomes => &self.outcomes,
            Topic::DeadLetters => &self.dead_letters,
        };
        name.as_str()
    }
}

impl Http {
    /// Checks that an API on an address which other machines reach has tokens.
    ///
    /// # Errors
    /// The error completes the sentence "`http.api` …".
    pub fn check_access(&self) -> Result<(), String> {
        if !self.api || self.tokens_file.is_some() || self.listen.ip().is_loopback() {
            return Ok(());
        }
        let listen = self.listen;
        Err(format!(
            "is true, and http.listen is {listen}: without http.tokens_file the API is served on loopback only"
        ))
    }
}

impl Store {
    /// Returns the URL of the blob store: `store.blobs.url`, or the parameter `externalStore` of the store URL (the
    /// name in the reference document). `None`: the store has no blob store.
    ///
    /// # Errors
    /// The two URLs differ, or `externalStore` is no URL of a blob store. The configuration refuses both.
    pub fn blob_url(&self) -> Result<Option<BlobUrl>, String> {
        let Some(external) = self.url.external_store() else {
            return Ok(self.blobs.url.clone());
        };
        let external: BlobUrl =
            external.parse().map_err(|error| format!("has an externalStore that names no blob store: {error}"))?;
        match &self.blobs.url {
            Some(url) if *url != external => {
                Err("has an externalStore that differs from store.blobs.url: give one of them".to_owned())
            }
            _ => Ok(Some(external)),
        }
    }
}

/// Checks that the bodies of the transactions in `store` can be written to `blobs`.
///
/// # Errors
/// The blob store is read-only, or is lost with the process while the records are not. The error completes the sentence
/// "`key` …".
pub fn writable_blobs(blobs: &BlobUrl, store: &StoreUrl) -> Result<(), String> {
    match (blobs, store) {
        (BlobUrl::Web(_), _) => {
            Err("is a blob store behind a web server, which can only be read: name a directory or S3".to_owned())
        }
        (BlobUrl::Memory, store) if !store.is_volatile() => {
            let problem = "is memory://, which is gone with the process, while the records that need it stay: name a \
                           directory or S3";
            Err(problem.to_owned())
        }
        (BlobUrl::Memory | BlobUrl::Directory(_) | BlobUrl::S3(_), _) => Ok(()),
    }
}

#[cfg(test)]
mod security_tests;
#[cfg(test)]
mod tests;
