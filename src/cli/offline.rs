//! Opens a store for the commands that read it directly.

use std::sync::Arc;

use clap::Args;

use super::{ConfigArgs, Failure, UsageError, opening};
use crate::{
    blob::{BlobUrl, Intent},
    config::Config,
    embed::reader::{open_existing, open_with_recorded_settings},
    engine::{OpenError, StoreUrl},
    record::MetaRecord,
    store::{StateStore, meta::StoreMeta},
    telemetry::Metrics,
};

/// Options that name a store and its blob store.
#[derive(Debug, Clone, Default, Args)]
pub struct StoreArgs {
    /// URL of the store, such as fjall:///var/lib/utxo-store; store.url by default
    #[arg(long, value_name = "URL")]
    pub store: Option<String>,
    /// URL of the blob store, such as file:///var/lib/utxo-store-blobs; store.blobs.url by default for the configured
    /// store. Needed where the store has a blob store that neither its URL (externalStore) nor the settings name
    #[arg(long, value_name = "URL")]
    pub blobs: Option<BlobUrl>,
    /// Settings with the default URLs, and with the logins, certificates and timeouts of the servers.
    #[command(flatten)]
    pub config: ConfigArgs,
}

impl StoreArgs {
    /// Opens the store with the network, page size and retention of its meta record.
    ///
    /// # Errors
    /// The configuration is wrong. The store cannot be opened, has no meta record, or has another layout version. The
    /// bodies are in a blob store that is not given.
    pub async fn open(&self) -> Result<(StateStore, MetaRecord), Failure> {
        let config = self.config.load_store()?;
        let url = self.url(&config)?;
        let engine = open_existing(&url, &config).await?;
        let blobs = match self.blob_url(&config, &url)? {
            Some(url) => Some(opening::open_blobs_at(&config, &url, Intent::Read, &Arc::new(Metrics::new())).await?),
            None => None,
        };
        Ok(open_with_recorded_settings(engine, blobs).await?)
    }

    /// Opens the store as [`open`](Self::open) does, and verifies that no part of the store is gone: answers about lost
    /// records would say that outputs do not exist.
    ///
    /// # Errors
    /// As `open`, or [`MetaError::PartLost`](crate::store::meta::MetaError::PartLost).
    pub async fn open_whole(&self) -> Result<(StateStore, MetaRecord), Failure> {
        let (store, meta) = self.open().await?;
        StoreMeta::of(&store).verify_whole(&meta).await?;
        Ok((store, meta))
    }

    /// Returns the URL of `--store`, or `store.url`.
    ///
    /// # Errors
    /// The text of `--store` is not the URL of a store.
    pub fn url(&self, config: &Config) -> Result<StoreUrl, OpenError> {
        self.store.as_ref().map_or_else(|| Ok(config.store.url.clone()), |url| url.parse())
    }

    fn blob_url(&self, config: &Config, store: &StoreUrl) -> Result<Option<BlobUrl>, Failure> {
        match store {
            _ if self.blobs.is_some() => Ok(self.blobs.clone()),
            store if store.external_store().is_some() => Ok(store.external_store().map(str::parse).transpose()?),
            store if *store == config.store.url => {
                config.store.blob_url().map_err(|problem| UsageError(format!("store.url {problem}")).into())
            }
            _ => Ok(None),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::{
        engine::memory::MemoryEngine,
        record::Key,
        store::{meta::MetaError, sentinels::Sentinels, testing},
        tx::{Network, Txid},
    };

    /// Opens a store with a partial parent, its child and a coinbase.
    pub(crate) async fn open_sample_store() -> (StateStore, MetaRecord) {
        let mut store = testing::store(7);
        store.settings.rules.retention = 9;
        StoreMeta::of(&store).open(false, [4; 16]).await.unwrap();
        store.plant(testing::seeded(1, 2)).await;
        store.accept(&testing::transaction(&[(testing::outpoint(Txid([1; 32]), 0), 1_000)], &[600])).await;
        store.plant(testing::page(&testing::coinbase(5_000_000))).await;
        open_with_recorded_settings(store.engine, None).await.unwrap()
    }

    pub(crate) fn text(out: Vec<u8>) -> String {
        String::from_utf8(out).unwrap()
    }

    /// Protects: `serve` and `verify` answer for no store of which a part is gone.
    #[tokio::test]
    async fn a_store_without_one_of_its_sentinels_is_not_whole() {
        let mut store = testing::store(7);
        let engine = Arc::new(MemoryEngine::new(store.settings.rules).with_losable_parts());
        store.engine = engine.clone();
        let meta = StoreMeta::of(&store).open(false, [4; 16]).await.unwrap();
        StoreMeta::of(&store).verify_whole(&meta).await.unwrap();
        Sentinels::of(&store).write(&meta).await.unwrap();
        let meta = Sentinels::of(&store).record().await.unwrap();
        StoreMeta::of(&store).verify_whole(&meta).await.unwrap();
        engine.put(Key::Sentinel(9), None);
        let refusal = StoreMeta::of(&store).verify_whole(&meta).await.unwrap_err();
        assert!(matches!(refusal, MetaError::PartLost { missing: 1, all: 256 }), "{refusal}");
    }

    #[tokio::test]
    async fn a_store_is_opened_with_the_settings_of_its_meta_record() {
        let (store, meta) = open_sample_store().await;
        let settings = store.settings;
        assert_eq!((settings.network, settings.utxo_batch_size, settings.rules.retention), (Network::Regtest, 7, 9));
        assert_eq!(meta.store_id, [4; 16]);
    }

    #[test]
    fn options_have_precedence_over_the_configured_stores() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "[store]\nurl = \"fjall:///s\"\n[store.blobs]\nurl = \"file:///b\"\n").unwrap();
        let config = Config::load_from(Some(file.path()), []).unwrap();
        let resolve = |store: Option<&str>, blobs: Option<&str>| {
            let blobs = blobs.map(|url| url.parse().unwrap());
            let args = StoreArgs { store: store.map(str::to_owned), blobs, ..StoreArgs::default() };
            let url = args.url(&config).unwrap();
            let blobs = args.blob_url(&config, &url).unwrap().map(|url| url.to_string());
            (url.to_string(), blobs.unwrap_or_default())
        };
        for (store, blobs, expected_store, expected_blobs) in [
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
            assert_eq!(
                resolve(store, blobs),
                (expected_store.to_owned(), expected_blobs.to_owned()),
                "{store:?}, {blobs:?}"
            );
        }
    }

    #[tokio::test]
    async fn urls_without_a_store_and_other_layouts_are_refused() {
        let failure = StoreArgs { store: Some("memory://".into()), ..StoreArgs::default() }
            .open()
            .await
            .err()
            .unwrap()
            .to_string();
        assert!(failure.contains("meta record is missing"), "{failure}");
        let failure = StoreArgs { store: Some("nonsense".into()), ..StoreArgs::default() }
            .open()
            .await
            .err()
            .unwrap()
            .to_string();
        assert!(failure.contains("://"), "{failure}");
        let (store, _) = open_sample_store().await;
        StoreMeta::of(&store).change(|meta| Ok(MetaRecord { layout_version: 9, ..meta })).await.unwrap();
        let failure = open_with_recorded_settings(store.engine, None).await.err().unwrap().to_string();
        assert!(failure.contains("layout 9"), "{failure}");
    }
}
