//! What the commands that read a store by themselves share: opening it, and showing how far they are.

use std::{sync::Arc, time::Duration};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use super::{ConfigArgs, Failure, UsageError, opening, wiring};
use crate::{
    blob::{BlobStore, BlobUrl, Intent},
    config::Config,
    engine::{self, OpenError, OpenOptions, StoreUrl, aerospike::AerospikeSettings},
    record::{MetaRecord, Rules},
    store::{Store, StoreSettings, meta::LAYOUT_VERSION},
    telemetry::Metrics,
};

/// Rows a batch, and batches on their way at once: these commands only read, and are alone.
const BATCH: usize = 256;
const CONCURRENCY: usize = 32;

/// Names a store and the way to reach it.
#[derive(Debug, Clone, Default, Args)]
pub struct StoreArgs {
    /// The store, such as fjall:///var/lib/utxo-store; otherwise the configured one (store.url)
    #[arg(long, value_name = "URL")]
    pub store: Option<String>,
    /// Its blob store, such as file:///var/lib/utxo-store-blobs, where it has one and its URL does not name it
    /// (externalStore); of the configured store otherwise the configured one (store.blobs.url)
    #[arg(long, value_name = "URL")]
    pub blobs: Option<BlobUrl>,
    /// Which they are, and what else it takes to reach them: logins, certificates, timeouts.
    #[command(flatten)]
    pub config: ConfigArgs,
}

impl StoreArgs {
    /// Opens the store, set up as its meta record says.
    ///
    /// # Errors
    /// The configuration is wrong. It cannot be opened, is no store yet, or is another version's; its bodies are in a blob store that is not given.
    pub async fn open(&self) -> Result<(Store, MetaRecord), Failure> {
        let config = self.config.load()?;
        // Nothing is written, so that retention decides nothing.
        let options = OpenOptions { rules: Rules::main(0), access: wiring::cluster(&config) };
        let url = self.url(&config)?;
        let engine = engine::open_existing(&url.to_string(), &options).await?;
        let blobs = match self.blob_url(&config, &url)? {
            Some(url) => Some(opening::blobs_at(&config, &url, Intent::Read, &Arc::new(Metrics::new())).await?),
            None => None,
        };
        open_as_it_is(engine, blobs).await
    }

    /// The store that is meant.
    ///
    /// # Errors
    /// The text that was given names none.
    pub fn url(&self, config: &Config) -> Result<StoreUrl, OpenError> {
        self.store.as_ref().map_or_else(|| Ok(config.store.url.clone()), |url| url.parse())
    }

    fn blob_url(&self, config: &Config, store: &StoreUrl) -> Result<Option<BlobUrl>, Failure> {
        match store {
            _ if self.blobs.is_some() => Ok(self.blobs.clone()),
            StoreUrl::Aerospike(AerospikeSettings { external_store: Some(url), .. }) => Ok(Some(url.parse()?)),
            store if *store == config.store.url => {
                config.store.blob_url().map_err(|problem| UsageError(format!("store.url {problem}")).into())
            }
            _ => Ok(None),
        }
    }
}

/// See [`StoreArgs::open`].
pub(super) async fn open_as_it_is(
    engine: Arc<dyn engine::RecordEngine>,
    blobs: Option<BlobStore>,
) -> Result<(Store, MetaRecord), Failure> {
    let mut settings = StoreSettings {
        network: crate::tx::Network::Main,
        rules: Rules::main(0),
        utxo_batch_size: 1,
        batch_size: BATCH,
        concurrency: CONCURRENCY,
        retry_pause: (Duration::from_millis(10), Duration::from_secs(1)),
        inline_limit: u64::MAX,
    };
    let meta = Store::new(engine.clone(), settings).meta().await?;
    let meta = meta.ok_or_else(|| Failure::new("there is no store at this URL: it has no meta record"))?;
    if meta.layout_version != LAYOUT_VERSION {
        return Err(crate::store::meta::MetaError::OtherLayout { store: meta.layout_version }.into());
    }
    settings.network = meta.network.parse()?;
    settings.rules.network = settings.network;
    settings.utxo_batch_size = meta.utxo_batch_size;
    settings.rules.retention = meta.retention;
    let store = Store::new(engine, settings).with_blobs(blobs);
    store.check_blobs(&meta)?;
    Ok((store, meta))
}

/// Shows on standard error how many transactions were seen; nothing where that is no terminal.
pub(super) struct Progress(ProgressBar);

impl Progress {
    /// Starts showing; `what` says what is being done.
    pub(super) fn start(what: &'static str) -> Self {
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}: {human_pos} transactions, {per_sec}") {
            bar.set_style(style);
        }
        bar.set_message(what);
        Progress(bar)
    }

    /// So many were seen by now.
    pub(super) fn seen(&self, transactions: u64) {
        self.0.set_position(transactions);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::{
        store::{meta::MetaExpectations, testing},
        tx::{Network, Txid},
    };

    /// A store of a seeded parent, its child and a coinbase.
    pub(crate) async fn opened() -> (Store, MetaRecord) {
        let store = testing::store(7);
        let expected = MetaExpectations { network: Network::Regtest, utxo_batch_size: 7, retention: 9 };
        store.open_meta(expected, false, [4; 16]).await.unwrap();
        store.plant(testing::seeded(1, 2)).await;
        store.accept(&testing::transaction(&[(testing::outpoint(Txid([1; 32]), 0), 1_000)], &[600])).await;
        store.plant(testing::page(&testing::coinbase(5_000_000))).await;
        open_as_it_is(store.engine, None).await.unwrap()
    }

    pub(crate) fn text(out: Vec<u8>) -> String {
        String::from_utf8(out).unwrap()
    }

    #[tokio::test]
    async fn a_store_is_set_up_as_it_says_itself() {
        let (store, meta) = opened().await;
        let settings = store.settings;
        assert_eq!((settings.network, settings.utxo_batch_size, settings.rules.retention), (Network::Regtest, 7, 9));
        assert_eq!(meta.store_id, [4; 16]);
    }

    #[test]
    fn store_and_blobs_are_the_given_ones_or_else_the_configured_ones() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "[store]\nurl = \"fjall:///s\"\n[store.blobs]\nurl = \"file:///b\"\n").unwrap();
        let config = Config::load_from(Some(file.path()), []).unwrap();
        let meant = |store: Option<&str>, blobs: Option<&str>| {
            let blobs = blobs.map(|url| url.parse().unwrap());
            let args = StoreArgs { store: store.map(str::to_owned), blobs, ..StoreArgs::default() };
            let url = args.url(&config).unwrap();
            let blobs = args.blob_url(&config, &url).unwrap().map(|url| url.to_string());
            (url.to_string(), blobs.unwrap_or_default())
        };
        for (store, blobs, meant_store, meant_blobs) in [
            (None, None, "fjall:///s", "file:///b"),
            (None, Some("file:///c"), "fjall:///s", "file:///c"),
            (Some("fjall:///s"), None, "fjall:///s", "file:///b"),
            (Some("fjall:///t"), None, "fjall:///t", ""),
            (Some("fjall:///t"), Some("file:///c"), "fjall:///t", "file:///c"),
            (
                Some("aerospike://a/n?externalStore=file:///d"),
                None,
                "aerospike://a:3000/n?set=txmeta&externalStore=file:///d",
                "file:///d",
            ),
        ] {
            assert_eq!(meant(store, blobs), (meant_store.to_owned(), meant_blobs.to_owned()), "{store:?}, {blobs:?}");
        }
    }

    #[tokio::test]
    async fn what_is_no_store_or_another_versions_is_refused_in_a_line() {
        let failure = StoreArgs { store: Some("memory://".into()), ..StoreArgs::default() }
            .open()
            .await
            .err()
            .unwrap()
            .to_string();
        assert!(failure.contains("no meta record"), "{failure}");
        let failure = StoreArgs { store: Some("nonsense".into()), ..StoreArgs::default() }
            .open()
            .await
            .err()
            .unwrap()
            .to_string();
        assert!(failure.contains("://"), "{failure}");
        let (store, _) = opened().await;
        store.change_meta(|meta| Ok(MetaRecord { layout_version: 9, ..meta })).await.unwrap();
        let failure = open_as_it_is(store.engine, None).await.err().unwrap().to_string();
        assert!(failure.contains("layout 9"), "{failure}");
    }
}
