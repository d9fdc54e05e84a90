//! Configuration: the only reader of settings files and of the environment.
//!
//! Two stages. The *raw* one (`layers`) lays the defaults, a TOML file and the environment over each other and refuses
//! what is not known. The *checked* one (`check`) reads every setting by its type and range and holds them against each
//! other. Both collect: [`Config::load`] answers with every error at once, each with its key and its source. The settings
//! themselves are one list, in `settings`.

mod check;
mod layers;
mod sample;
mod settings;
mod types;

use std::{ffi::OsString, path::Path};

use crate::{
    blob::BlobUrl,
    engine::{StoreUrl, aerospike::AerospikeSettings},
    event::Topic,
};
pub use check::{ConfigError, ConfigErrors};
pub use sample::sample;
pub use settings::{
    Blobs, Http, Ingest, Kafka, Log, Prune, Run, SECTIONS, Section, Security, Sequencer, Setting, Store, Topics,
};

pub use types::{Brokers, Kind, LogFilter, Properties, Ratio, Secret, TopicName, listen_address};

/// All settings, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The log.
    pub kafka: Kafka,
    /// The state.
    pub store: Store,
    /// The pipeline.
    pub ingest: Ingest,
    /// The consumer of the chain topic.
    pub sequencer: Sequencer,
    /// Forgetting.
    pub prune: Prune,
    /// How a process looks after itself.
    pub run: Run,
    /// Metrics, health and state.
    pub http: Http,
    /// Logging.
    pub log: Log,
    /// Names of environment variables that look like settings and are not read.
    pub ignored_variables: Vec<String>,
}

impl Config {
    /// Reads `file` (if any) and the process's environment, which goes before it.
    ///
    /// # Errors
    /// All that is wrong: unknown keys, wrong types, values out of range or at odds with each other, an unreadable file.
    pub fn load(file: Option<&Path>) -> Result<Self, ConfigErrors> {
        Self::load_from(file, std::env::vars_os())
    }

    /// The same with an environment of the caller's making.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_from(
        file: Option<&Path>,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Self, ConfigErrors> {
        let mut errors = Vec::new();
        let environment: Vec<(OsString, OsString)> = environment.into_iter().collect();
        let ignored_variables = layers::ignored_variables(environment.iter().map(|(name, _)| name.as_os_str()));
        let raw = layers::merge(file, environment, &mut errors);
        let config = check::check(&mut check::Checker::new(&raw, &mut errors));
        match config {
            Some(config) if errors.is_empty() => Ok(Config { ignored_variables, ..config }),
            _ => Err(ConfigErrors(errors)),
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::load_from(None, []).expect("the defaults are constants, and a test loads them")
    }
}

impl Topics {
    /// The configured name of a topic.
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

impl Store {
    /// Where bodies of large transactions are kept: `store.blobs.url`, or what the store URL calls `externalStore` (the seed's
    /// name for it); `None`: nowhere.
    ///
    /// # Errors
    /// The two differ, or `externalStore` names no blob store. The configuration was refused then.
    pub fn blob_url(&self) -> Result<Option<BlobUrl>, String> {
        let StoreUrl::Aerospike(AerospikeSettings { external_store: Some(external), .. }) = &self.url else {
            return Ok(self.blobs.url.clone());
        };
        let external: BlobUrl =
            external.parse().map_err(|error| format!("has an externalStore that names no blob store: {error}"))?;
        match &self.blobs.url {
            Some(url) if *url != external => {
                Err("has an externalStore that is another than store.blobs.url; one of them is enough".to_owned())
            }
            _ => Ok(Some(external)),
        }
    }
}

/// Whether bodies of the transactions in `store` can be kept at `blobs`; the error completes the sentence "`key` …".
///
/// # Errors
/// It can only be read, or is gone with the process while the records are not.
pub fn writable_blobs(blobs: &BlobUrl, store: &StoreUrl) -> Result<(), String> {
    match (blobs, store) {
        (BlobUrl::Web(_), _) => Err("is a blob store behind a web server, which can only be read".to_owned()),
        (BlobUrl::Memory, StoreUrl::Fjall(..) | StoreUrl::Aerospike(_)) => {
            Err("is memory://, which is gone with the process, while the records that need it are not".to_owned())
        }
        (BlobUrl::Memory, StoreUrl::Memory | StoreUrl::Null) | (BlobUrl::Directory(_) | BlobUrl::S3(_), _) => Ok(()),
    }
}

#[cfg(test)]
mod security_tests;
#[cfg(test)]
mod tests;
