//! [`Store`]: reads a store, and cannot write.

use std::{sync::Arc, time::Duration};

use super::{OpeningError, opening, wiring};
use crate::{
    blob::{BlobStore, BlobUrl, Intent},
    config::Config,
    engine::{self, EngineError, OpenOptions, RecordEngine, StoreUrl},
    record::{MetaRecord, Rules},
    store::{
        StateStore, StoreSettings,
        chain::ChainInfo,
        health_check::CheckError,
        meta::{LAYOUT_VERSION, MetaError, check_blobs},
        outputs::{OutputOptions, OutputQuery, OutputReader, OutputState},
        read::{ReadError, TxMeta, TxReader},
    },
    telemetry::Metrics,
    tx::{Network, Outpoint, Txid},
};

/// Number of rows per batch. A reader does not write, and reads few records at once.
const BATCH: usize = 256;
/// Number of batches in flight.
const CONCURRENCY: usize = 32;

/// A store that is read: transactions, outputs, the meta record. Cheap to clone.
///
/// A read waits while the store does not answer: bound a read with [`tokio::time::timeout`].
///
/// A store in a directory has one process: the reader opens such a store only while no instance has the store open.
#[derive(Clone)]
pub struct Store {
    store: StateStore,
    /// The reader has opened the engine. A running instance closes its engine itself.
    owns_engine: bool,
}

impl Store {
    /// Opens the existing store at `url` with its blob store, if the URL names one (`externalStore`).
    ///
    /// # Errors
    /// The URL names no store, the store cannot be opened, or its bodies are in a blob store that the URL does not name
    /// ([`open_with`](Self::open_with)).
    pub async fn open(url: &str) -> Result<Self, OpeningError> {
        let url: StoreUrl = url.parse()?;
        let external = url.external_store().map(str::parse).transpose()?;
        Self::open_with(&url, external.as_ref(), &Config::default()).await
    }

    /// Opens the existing store at `url` with this blob store. The configuration has the logins, certificates and
    /// timeouts of the servers.
    ///
    /// # Errors
    /// The URL names no store, the store or its blob store cannot be opened, or the bodies are in a blob store that is
    /// not given.
    pub async fn open_with(url: &StoreUrl, blobs: Option<&BlobUrl>, config: &Config) -> Result<Self, OpeningError> {
        let engine = open_existing(url, config).await?;
        let blobs = match blobs {
            Some(url) => Some(opening::open_blobs_at(config, url, Intent::Read, &Arc::new(Metrics::new())).await?),
            None => None,
        };
        Ok(Store { store: open_with_recorded_settings(engine, blobs).await?.0, owns_engine: true })
    }

    /// Makes the reader of a store that another part of the process has opened and closes.
    pub(crate) fn of(store: StateStore) -> Self {
        Store { store, owns_engine: false }
    }

    /// Makes the reader of a store, which the reader closes.
    #[cfg(feature = "vault")]
    pub(crate) fn owning(store: StateStore) -> Self {
        Store { store, owns_engine: true }
    }

    /// Makes the reader of the store of a test.
    #[cfg(feature = "testkit")]
    pub fn of_state_store(store: StateStore) -> Self {
        Self::of(store)
    }

    /// Returns the store with all its reads.
    pub(crate) fn state_store(&self) -> &StateStore {
        &self.store
    }

    /// Reads a transaction; `None`: the store has no such transaction.
    ///
    /// # Errors
    /// The store or its blob store does not answer, or a record is damaged.
    pub async fn transaction(&self, txid: Txid) -> Result<Option<TxMeta>, ReadError> {
        TxReader::of(&self.store).get_meta(txid).await
    }

    /// Reads the state of an output, with its amount and locking script. `height`: height of the block that would list
    /// the spender; without a height neither maturity nor freezes until a height are checked.
    ///
    /// # Errors
    /// The store does not answer, or a record is damaged.
    pub async fn output(&self, outpoint: Outpoint, height: Option<u32>) -> Result<OutputState, ReadError> {
        let options = OutputOptions { height, output: true, ..OutputOptions::default() };
        OutputReader::of(&self.store).read_one(OutputQuery { outpoint, hash: None }, options).await
    }

    /// Reads the state of the chain: height, hash and median time of the tip, retention, prune horizon.
    ///
    /// # Errors
    /// The store does not answer, or an instance is making the store.
    pub async fn chain(&self) -> Result<ChainInfo, MetaError> {
        self.store.chain().await
    }

    /// Reads the meta record: network, page size, retention, replay floor, topic ids. `None`: an instance is making the
    /// store.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn meta(&self) -> Result<Option<MetaRecord>, MetaError> {
        self.store.meta().await
    }

    /// Checks that the store of a running instance takes a write and gives it back.
    ///
    /// # Errors
    /// See [`StateStore::check_deep`].
    pub(crate) async fn check_deep(&self, limit: Duration) -> Result<(), CheckError> {
        self.store.check_deep(limit).await
    }

    /// Closes the store, for this reader and its clones. The store of a running instance
    /// ([`Instance::store`](super::Instance::store)) stays open until the instance ends.
    ///
    /// # Errors
    /// The store cannot be closed.
    pub async fn close(self) -> Result<(), EngineError> {
        if self.owns_engine { self.store.engine.close().await } else { Ok(()) }
    }
}

/// Opens the engine of an existing store, for a reader.
pub(crate) async fn open_existing(url: &StoreUrl, config: &Config) -> Result<Arc<dyn RecordEngine>, OpeningError> {
    // The retention matters only for writes.
    let options =
        OpenOptions { rules: Rules::main(0), access: wiring::cluster_access(config), sql: wiring::sql_access(config) };
    Ok(engine::open_existing_url(url.clone(), &options).await?)
}

/// Opens a store with the network, page size and retention of its meta record.
///
/// # Errors
/// The store does not answer, has no meta record, or has another layout version. The bodies are in a blob store that is
/// not given.
pub(crate) async fn open_with_recorded_settings(
    engine: Arc<dyn RecordEngine>,
    blobs: Option<BlobStore>,
) -> Result<(StateStore, MetaRecord), OpeningError> {
    let mut settings = StoreSettings {
        network: Network::Main,
        rules: Rules::main(0),
        utxo_batch_size: 1,
        batch_size: BATCH,
        concurrency: CONCURRENCY,
        retry_pause: (Duration::from_millis(10), Duration::from_secs(1)),
        inline_limit: u64::MAX,
    };
    let meta = StateStore::new(engine.clone(), settings).meta().await?.ok_or(OpeningError::NoStore)?;
    if meta.layout_version != LAYOUT_VERSION {
        return Err(MetaError::OtherLayout { store: meta.layout_version }.into());
    }
    settings.network = meta.network.parse()?;
    settings.rules.network = settings.network;
    settings.utxo_batch_size = meta.utxo_batch_size;
    settings.rules.retention = meta.retention;
    let store = StateStore::new(engine, settings).with_blobs(blobs);
    check_blobs(&meta, &store)?;
    Ok((store, meta))
}
