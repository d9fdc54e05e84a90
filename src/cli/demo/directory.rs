//! The directory of a demo: stores, configuration, logs of the processes.

use std::{
    fs,
    path::{Path, PathBuf},
};

use tempfile::TempDir;

use crate::{
    blob::BlobUrl,
    cli::Failure,
    config::Config,
    engine::{StoreUrl, encoded_path},
    event::Topic,
    tx::Network,
};

/// What differs from demo to demo.
pub struct Settings<'a> {
    /// The log.
    pub brokers: &'a str,
    /// Makes names of topics and of the group unique on a cluster that others use.
    pub suffix: Option<&'a str>,
    /// Another store.
    pub store: Option<&'a StoreUrl>,
    /// Whose blocks they are.
    pub network: Network,
    /// Output slots a record, where not the default.
    pub utxo_batch_size: Option<u32>,
    /// Every body goes to the blob store.
    pub externalize_all: bool,
}

/// A directory that is gone afterwards, unless it was asked for or something went wrong.
pub struct Directory {
    path: PathBuf,
    temporary: Option<TempDir>,
}

impl Directory {
    /// The directory given, or a temporary one.
    ///
    /// # Errors
    /// It cannot be created.
    pub fn new(given: Option<&Path>) -> Result<Self, Failure> {
        let named = |path: &Path, error| Failure::new(format!("cannot use the directory {}: {error}", path.display()));
        match given {
            Some(path) => {
                fs::create_dir_all(path).map_err(|error| named(path, error))?;
                let path = fs::canonicalize(path).map_err(|error| named(path, error))?;
                Ok(Directory { path, temporary: None })
            }
            None => {
                let temporary = tempfile::Builder::new()
                    .prefix("utxo-store-demo-")
                    .tempdir()
                    .map_err(|error| named(&std::env::temp_dir(), error))?;
                Ok(Directory { path: temporary.path().to_owned(), temporary: Some(temporary) })
            }
        }
    }

    /// Writes the configuration that all processes share, and reads it as they do.
    ///
    /// # Errors
    /// The file cannot be written, or what it says is refused.
    pub fn configure(&self, settings: &Settings<'_>) -> Result<Config, Failure> {
        let file = self.config_file();
        fs::write(&file, self.toml(settings))
            .map_err(|error| Failure::new(format!("cannot write {}: {error}", file.display())))?;
        Ok(Config::load_from(Some(&file), [])?)
    }

    /// Short timeouts: a killed process's partitions go to its successor when its session has ended. A mock cluster
    /// takes sessions of 2 s, a real one grants 6 s at the least.
    fn toml(&self, settings: &Settings<'_>) -> String {
        // What JSON escapes TOML reads as the same.
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        let session = if settings.suffix.is_some() { 6_000 } else { 2_000 };
        let store = settings.store.cloned().unwrap_or_else(|| StoreUrl::fjall(self.path.join("live")));
        // A little longer than a server may forget that flushes as it does by default; a longer one would only be waited for.
        let lag = if matches!(store, StoreUrl::Aerospike(_)) { "durability_lag_ms = 2100\n" } else { "" };
        // The rebuild that it is compared with keeps everything.
        let mut text = format!(
            "[kafka]\nbrokers = {}\ngroup = {}\nsession_timeout_ms = {session}\nheartbeat_interval_ms = 300\n\
             max_poll_interval_ms = 30000\nfetch_wait_max_ms = 10\nfetch_min_bytes = 1\n[kafka.topics]\n",
            quoted(settings.brokers),
            quoted(&format!("utxo-store{}", settings.suffix.unwrap_or_default())),
        );
        for topic in Topic::ALL {
            let name = topic.default_name();
            let key = name.trim_start_matches("utxo.").replace('-', "_");
            text += &format!("{key} = {}\n", quoted(&format!("{name}{}", settings.suffix.unwrap_or_default())));
        }
        let names_blobs = matches!(&store, StoreUrl::Aerospike(settings) if settings.external_store.is_some());
        let mut more = settings.utxo_batch_size.map_or(String::new(), |slots| format!("utxo_batch_size = {slots}\n"));
        more += &format!("externalize_all_transactions = {}\n", settings.externalize_all);
        more += &if names_blobs { String::new() } else { self.blobs() };
        text += &format!(
            "[store]\nurl = {}\nnetwork = {}\n{more}[ingest]\n{lag}commit_interval_ms = 100\nmissing_parent_grace_ms = 2000\n\
             flag_grace_ms = 2000\n[sequencer]\nblock_wait_ms = 20000\n[prune]\nenabled = false\n[http]\nlisten = \"127.0.0.1:0\"\n\
             [log]\nformat = \"json\"\n",
            quoted(&store.to_string()),
            quoted(&settings.network.to_string()),
        );
        text
    }

    fn blobs(&self) -> String {
        let url = BlobUrl::Directory(self.path.join("blobs"));
        format!("[store.blobs]\nurl = {}\n", serde_json::Value::from(url.to_string()))
    }

    /// The configuration.
    pub fn config_file(&self) -> PathBuf {
        self.path.join("utxo-store.toml")
    }

    /// Where a process writes its address.
    pub fn address_file(&self, number: u32) -> PathBuf {
        self.path.join(format!("run-{number}.address"))
    }

    /// Where a process's log goes.
    pub fn log_file(&self, number: u32) -> PathBuf {
        self.path.join(format!("run-{number}.log"))
    }

    /// The store to compare with.
    pub fn rebuilt(&self) -> StoreUrl {
        StoreUrl::fjall(self.path.join("rebuilt"))
    }

    /// Its blob store.
    pub fn rebuilt_blobs(&self) -> BlobUrl {
        BlobUrl::Directory(self.path.join("rebuilt-blobs"))
    }

    /// Where the log of the demo's own broker is kept.
    pub fn kept_log(&self) -> PathBuf {
        self.path.join("log.jsonl")
    }

    /// The path of the log as `kafka.brokers` names it.
    pub fn kept_log_url(&self) -> String {
        format!("file://{}", encoded_path(&self.kept_log()))
    }

    /// Whether it is there when the demo has ended.
    pub fn stays(&self) -> bool {
        self.temporary.is_none()
    }

    /// Leaves everything where it is.
    pub fn keep(&mut self) {
        if let Some(temporary) = self.temporary.take() {
            self.path = temporary.keep();
        }
    }

    /// The failure, with where to look.
    pub fn named(&self, failure: Failure) -> Failure {
        if failure.exit_code() != 1 {
            return failure;
        }
        let text = failure.to_string();
        let told = text.strip_prefix("error: ").unwrap_or(&text);
        Failure::new(format!("{told} (logs and stores are in {})", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_a_configuration() {
        let directory = Directory::new(None).unwrap();
        let settings = |suffix| Settings {
            brokers: "h:1",
            suffix,
            store: None,
            network: Network::Test,
            utxo_batch_size: Some(7),
            externalize_all: true,
        };
        let config = directory.configure(&settings(None)).unwrap();
        assert_eq!((config.kafka.brokers.as_str(), config.store.network), ("h:1", Network::Test));
        assert_eq!(config.kafka.topics.validated_txs.as_str(), "utxo.validated-txs");
        assert_eq!(config.store.url, StoreUrl::fjall(directory.path.join("live")));
        assert_eq!((config.store.utxo_batch_size, config.store.externalize_all_transactions), (7, true));
        assert_eq!(config.store.blob_url(), Ok(Some(BlobUrl::Directory(directory.path.join("blobs")))));
        let config = directory.configure(&settings(Some(".demo-7"))).unwrap();
        assert_eq!(config.kafka.topics.dead_letters.as_str(), "utxo.dead-letters.demo-7");
        assert_eq!((config.kafka.group.as_str(), config.kafka.session_timeout_ms), ("utxo-store.demo-7", 6_000));
    }

    #[test]
    fn a_directory_is_used_by_the_name_that_it_has() {
        use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
        let parent = tempfile::tempdir().unwrap();
        for name in [&b"a\xffb"[..], "a\u{200b}\u{7f}\n\"\\%b".as_bytes()] {
            let given = parent.path().join(OsStr::from_bytes(name));
            let directory = Directory::new(Some(&given)).unwrap();
            let settings = Settings {
                brokers: "h:1",
                suffix: None,
                store: None,
                network: Network::Main,
                utxo_batch_size: None,
                externalize_all: false,
            };
            let config = directory.configure(&settings).unwrap();
            let there = fs::canonicalize(&given).unwrap();
            assert_eq!(config.store.url, StoreUrl::fjall(there.join("live")));
            assert_eq!(config.store.blob_url(), Ok(Some(BlobUrl::Directory(there.join("blobs")))));
        }
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_temporary_directory_goes_unless_it_is_kept() {
        let directory = Directory::new(None).unwrap();
        let path = directory.path.clone();
        drop(directory);
        assert!(!path.exists());
        let mut directory = Directory::new(None).unwrap();
        directory.keep();
        let path = directory.path.clone();
        let told = directory.named(Failure::new("it broke")).to_string();
        drop(directory);
        assert!(path.exists() && told.contains(path.to_str().unwrap()), "{told}");
        fs::remove_dir_all(path).unwrap();
    }
}
