//! The directory of a demo: stores, configuration, saved log, logs of the processes.

use std::{
    fs,
    path::{Path, PathBuf},
};

use tempfile::TempDir;

use crate::{
    blob::BlobUrl, cli::Failure, config::Config, engine::StoreUrl, event::Topic, text::percent::percent_encode_path,
    tx::Network,
};

/// Settings of the configuration that differ from demo to demo.
pub struct DemoSettings<'a> {
    /// Bootstrap brokers, or the URL of a saved log.
    pub brokers: &'a str,
    /// Suffix that makes the names of topics and of the group unique on a shared cluster.
    pub suffix: Option<&'a str>,
    /// Store to fill; `None`: a store in the directory.
    pub store: Option<&'a StoreUrl>,
    /// Network of the blocks.
    pub network: Network,
    /// Output slots per record; `None`: the default.
    pub utxo_batch_size: Option<u32>,
    /// True if every body goes to the blob store.
    pub externalize_all: bool,
}

/// A directory that is deleted at the end, unless the caller named it or the demo failed.
pub struct DemoDirectory {
    path: PathBuf,
    temporary: Option<TempDir>,
}

impl DemoDirectory {
    /// Creates the given directory, or a temporary one.
    ///
    /// # Errors
    /// The directory cannot be created.
    pub fn new(given: Option<&Path>) -> Result<Self, Failure> {
        let failed = |path: &Path, error| Failure::new(format!("cannot use the directory {}: {error}", path.display()));
        match given {
            Some(path) => {
                fs::create_dir_all(path).map_err(|error| failed(path, error))?;
                let path = fs::canonicalize(path).map_err(|error| failed(path, error))?;
                Ok(DemoDirectory { path, temporary: None })
            }
            None => {
                let temporary = tempfile::Builder::new()
                    .prefix("utxo-store-demo-")
                    .tempdir()
                    .map_err(|error| failed(&std::env::temp_dir(), error))?;
                Ok(DemoDirectory { path: temporary.path().to_owned(), temporary: Some(temporary) })
            }
        }
    }

    /// Writes the configuration that all processes share, and loads it as the processes do.
    ///
    /// # Errors
    /// The file cannot be written, or a setting is refused.
    pub fn configure(&self, settings: &DemoSettings<'_>) -> Result<Config, Failure> {
        let file = self.config_file();
        fs::write(&file, self.toml(settings))
            .map_err(|error| Failure::new(format!("cannot write {}: {error}", file.display())))?;
        Ok(Config::load_from(Some(&file), [])?)
    }

    /// Formats the configuration, with short timeouts: the partitions of a killed process go to its successor when its
    /// session ends. A mock cluster accepts sessions of 2 s, a real cluster of at least 6 s.
    fn toml(&self, settings: &DemoSettings<'_>) -> String {
        // TOML reads the escapes of JSON strings alike.
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        let session = if settings.suffix.is_some() { 6_000 } else { 2_000 };
        let store = settings.store.cloned().unwrap_or_else(|| StoreUrl::fjall(self.path.join("live")));
        // A little longer than the loss window of a server with default flushes: a longer lag only delays the demo.
        let lag = if matches!(store, StoreUrl::Aerospike(_)) { "durability_lag_ms = 2100\n" } else { "" };
        // Pruning is off: the rebuild prunes nothing, and both stores are compared.
        let mut text = format!(
            "[kafka]\nbrokers = {}\ngroup = {}\nsession_timeout_ms = {session}\nheartbeat_interval_ms = 300\n\
             max_poll_interval_ms = 30000\nfetch_wait_max_ms = 10\nfetch_min_bytes = 1\n[kafka.topics]\n",
            quoted(settings.brokers),
            quoted(&format!("utxo-store{}", settings.suffix.unwrap_or_default())),
        );
        for topic in Topic::all() {
            let name = topic.default_name();
            let key = name.trim_start_matches("utxo.").replace('-', "_");
            text += &format!("{key} = {}\n", quoted(&format!("{name}{}", settings.suffix.unwrap_or_default())));
        }
        let names_blobs = store.external_store().is_some();
        let mut more = settings.utxo_batch_size.map_or(String::new(), |slots| format!("utxo_batch_size = {slots}\n"));
        more += &format!("externalize_all_transactions = {}\n", settings.externalize_all);
        more += &if names_blobs { String::new() } else { self.blobs() };
        text += &format!(
            "[store]\nurl = {}\nnetwork = {}\n{more}[ingest]\n{lag}commit_interval_ms = 100\n\
             missing_parent_grace_ms = 2000\nflag_grace_ms = 2000\n[sequencer]\nblock_wait_ms = 20000\n\
             [prune]\nenabled = false\n[http]\nlisten = \"127.0.0.1:0\"\n[log]\nformat = \"json\"\n",
            quoted(&store.reveal()),
            quoted(&settings.network.to_string()),
        );
        text
    }

    fn blobs(&self) -> String {
        let url = BlobUrl::Directory(self.path.join("blobs"));
        format!("[store.blobs]\nurl = {}\n", serde_json::Value::from(url.to_string()))
    }

    /// Returns the URL of the vault's database in the directory.
    #[cfg(feature = "vault")]
    pub fn vault_url(&self) -> String {
        format!("sqlite://{}", self.path.join("vault.sqlite").display())
    }

    /// Returns the path of the configuration.
    pub fn config_file(&self) -> PathBuf {
        self.path.join("utxo-store.toml")
    }

    /// Returns the file into which a process writes its HTTP address.
    pub fn address_file(&self, name: &str) -> PathBuf {
        self.path.join(format!("{name}.address"))
    }

    /// Returns the file for the log records of a process.
    pub fn log_file(&self, name: &str) -> PathBuf {
        self.path.join(format!("{name}.log"))
    }

    /// Returns the URL of the rebuilt store, which is compared.
    pub fn rebuilt(&self) -> StoreUrl {
        StoreUrl::fjall(self.path.join("rebuilt"))
    }

    /// Returns the URL of the blob store of the rebuilt store.
    pub fn rebuilt_blobs(&self) -> BlobUrl {
        BlobUrl::Directory(self.path.join("rebuilt-blobs"))
    }

    /// Returns the file for the saved log of the mock broker.
    pub fn saved_log(&self) -> PathBuf {
        self.path.join("log.jsonl")
    }

    /// Returns the URL of the saved log for `kafka.brokers`.
    pub fn saved_log_url(&self) -> String {
        format!("file://{}", percent_encode_path(&self.saved_log()))
    }

    /// Returns true if the directory stays after the demo.
    pub fn is_kept(&self) -> bool {
        self.temporary.is_none()
    }

    /// Keeps the directory after the demo.
    pub fn keep(&mut self) {
        if let Some(temporary) = self.temporary.take() {
            self.path = temporary.keep();
        }
    }

    /// Adds the path of the directory to a failure.
    pub fn with_path(&self, failure: Failure) -> Failure {
        if failure.exit_code() != 1 {
            return failure;
        }
        let text = failure.to_string();
        let message = text.strip_prefix("error: ").unwrap_or(&text);
        Failure::new(format!("{message} (logs and stores are in {})", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_written_file_is_a_valid_configuration() {
        let directory = DemoDirectory::new(None).unwrap();
        let settings = |suffix| DemoSettings {
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
    fn a_directory_with_unusual_characters_is_used() {
        use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
        let parent = tempfile::tempdir().unwrap();
        for name in [&b"a\xffb"[..], "a\u{200b}\u{7f}\n\"\\%b".as_bytes()] {
            let given = parent.path().join(OsStr::from_bytes(name));
            let directory = DemoDirectory::new(Some(&given)).unwrap();
            let settings = DemoSettings {
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
    fn a_temporary_directory_is_deleted_unless_kept() {
        let directory = DemoDirectory::new(None).unwrap();
        let path = directory.path.clone();
        drop(directory);
        assert!(!path.exists());
        let mut directory = DemoDirectory::new(None).unwrap();
        directory.keep();
        let path = directory.path.clone();
        let failure = directory.with_path(Failure::new("broken")).to_string();
        drop(directory);
        assert!(path.exists() && failure.contains(path.to_str().unwrap()), "{failure}");
        fs::remove_dir_all(path).unwrap();
    }
}
