//! [`BlobStore`]: puts, gets and deletes blobs, and verifies their bytes.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use object_store::{ObjectStore, memory::InMemory};
use tokio::time::Instant;

use super::{
    BlobError, BlobErrorKind, BlobKind, BlobName, OpenBlobError, PartialTx,
    cache::Cache,
    check::blob_error,
    claim::{BlobLocation, BlobPlace},
    frame::HashedContent,
    requests::Requests,
    verified::VerifiedBlobs,
};
use crate::{
    engine::ErrorKind,
    record::{Blob, StoredOutput},
    telemetry::{BlobOperation, Metrics},
    tx::{FoundOutput, StreamedTransaction},
};

/// Outcome of a put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PutOutcome {
    /// The blob is stored durably by this put.
    Stored,
    /// The same bytes were stored before.
    AlreadyStored,
    /// The put stored nothing, because another blob of this transaction was stored before: a `.tx` with other claimed
    /// previous outputs (a txid does not commit to them), or a `.outputs` with other content. The caller decides which
    /// claims count.
    OtherStored,
}

/// Hint whether a body is read again soon, as it is while two or more outputs are unspent (`docs/semantics.md`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reuse {
    /// The body is not cached.
    Unlikely,
    /// The body is cached for [`BlobOptions::cache_time`].
    Likely,
}

/// Time limits, cache and part sizes of a blob store.
#[derive(Clone)]
pub struct BlobOptions {
    /// Time for a request without its bytes, and the longest time without a byte of an answer.
    pub timeout: Duration,
    /// Bytes per second, read or written: the limit of a request grows by the time that its bytes take at this rate.
    pub least_rate: u64,
    /// Size of the cache of transactions, in bytes.
    pub cache_bytes: usize,
    /// Time for which a transaction stays in the cache.
    pub cache_time: Duration,
    /// Bytes of blobs that are read whole at the same time; a larger blob is read alone.
    pub whole_read_bytes: usize,
    /// Part size in bytes: a larger blob is written in parts, so that a lost connection costs only parts. `None`: one
    /// request for each blob. S3 accepts parts from 5 MiB, and at most 10,000 parts.
    pub part_bytes: Option<usize>,
    /// Metrics that count the requests.
    pub metrics: Arc<Metrics>,
}

impl Default for BlobOptions {
    fn default() -> Self {
        BlobOptions {
            timeout: Duration::from_secs(30),
            least_rate: 64 << 10,
            cache_bytes: 256 << 20,
            cache_time: Duration::from_secs(10),
            whole_read_bytes: 256 << 20,
            part_bytes: None,
            metrics: Arc::default(),
        }
    }
}

/// Store of transaction bodies, each under its transaction's id. Cheap to clone.
///
/// # Contract
/// - A blob is visible whole or not at all. A blob that [`PutOutcome`] reports as stored survives a kill of the
///   machine.
/// - No put overwrites: the first blob stays until [`delete`](Self::delete).
/// - A read returns bytes that match the requested txid and the hash in the record ([`Blob`]): a `.tx` hashes to the
///   txid, a `.outputs` names the txid. Bytes that do not match are read a second time, because the transfer may have
///   damaged them; then the error is [`BlobErrorKind::Corrupt`]. Without a hash, damage of the claimed previous outputs
///   and of a `.outputs` is detected only in a blob with a checksum behind its content.
/// - Every request may be repeated; after [`BlobErrorKind::Unknown`] the caller must repeat it. A dropped future leaves
///   a blob stored or not stored.
/// - A blob is reported as absent only by a store whose mark names the expected owner. Without that mark the store is
///   unavailable, which is an error. A store that was opened to write has to be [claimed](Self::claim) first.
#[derive(Clone)]
pub struct BlobStore(Arc<BlobStoreInner>);

struct BlobStoreInner {
    blobs: VerifiedBlobs,
    cache: Cache,
    metrics: Arc<Metrics>,
}

impl fmt::Debug for BlobStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlobStore({})", self.blobs().place.requests.store)
    }
}

impl BlobStore {
    /// Creates an empty store in memory, which ends with its last clone.
    pub fn memory() -> Self {
        Self::new(Arc::new(InMemory::new()), BlobOptions::default())
    }

    /// Wraps an object store that can put an object on the condition that none exists. The store has no mark and counts
    /// as always available.
    pub fn new(store: Arc<dyn ObjectStore>, options: BlobOptions) -> Self {
        Self::at(store, options, BlobLocation::default())
    }

    pub(super) fn at(store: Arc<dyn ObjectStore>, options: BlobOptions, location: BlobLocation) -> Self {
        let requests = Requests::new(store, &options);
        BlobStore(Arc::new(BlobStoreInner {
            blobs: VerifiedBlobs::new(BlobPlace::new(requests, location), &options),
            cache: Cache::new(options.cache_bytes, options.cache_time),
            metrics: options.metrics,
        }))
    }

    /// Ties the blob store to the store of records with this id; required before the first write. The place must have
    /// that store's mark. The mark is written if the place is empty and `is_first` says that the store of records has
    /// never had a blob store.
    ///
    /// A claim also checks that the place refuses to overwrite, because "the first blob stays" relies on that. In a
    /// directory it removes the staged files of writers that were killed long ago. In memory a claim does nothing.
    pub async fn claim(&self, store_id: [u8; 16], is_first: bool) -> Result<(), OpenBlobError> {
        let blobs = self.blobs();
        blobs.place.claim(store_id, is_first, blobs.writes_in_parts()).await
    }

    /// Predicts the result of [`claim`](Self::claim) and writes nothing. `store_id` is `None` for a store of records
    /// that does not exist yet. Returns `false` if the place is empty and a claim would mark it. Only a claim can check
    /// that the place refuses to overwrite.
    pub async fn check_claim(&self, store_id: Option<[u8; 16]>, is_first: bool) -> Result<bool, OpenBlobError> {
        self.blobs().place.check_claim(store_id, is_first).await
    }

    /// Accepts the owner that the mark names; for a store that is opened to read.
    pub(super) async fn adopt_owner(&self) -> Result<(), OpenBlobError> {
        self.blobs().place.adopt_owner().await
    }

    /// Returns whether a blob exists; its content is not read.
    #[cfg(feature = "testkit")]
    pub async fn exists(&self, name: BlobName) -> Result<bool, BlobError> {
        self.measure(BlobOperation::Exists, self.blobs().exists(name)).await
    }

    /// Deletes a blob; succeeds if the blob does not exist.
    pub async fn delete(&self, name: BlobName) -> Result<(), BlobError> {
        self.measure(BlobOperation::Delete, async {
            let deleted = self.blobs().delete(name).await;
            if name.kind == BlobKind::Tx {
                self.0.cache.remove(&name.txid);
            }
            deleted
        })
        .await
    }

    pub(super) fn blobs(&self) -> &VerifiedBlobs {
        &self.0.blobs
    }

    /// Stores a blob and records the time of the put.
    pub(super) async fn put(&self, name: BlobName, content: &HashedContent) -> Result<PutOutcome, BlobError> {
        let started = Instant::now();
        let put = self.blobs().put(name, content).await;
        self.0.metrics.create_external.of(name.kind).observe(started.elapsed().as_secs_f64());
        put
    }

    /// Returns the whole content of a `.tx`, from the cache where the cache has the content.
    pub(super) async fn read_tx(&self, name: BlobName, reuse: Reuse) -> Result<Option<Bytes>, BlobError> {
        match (self.cached(name), reuse) {
            (Some(bytes), _) => Ok(Some(bytes)),
            (None, Reuse::Likely) => self.read_into_cache(name).await,
            (None, Reuse::Unlikely) => Ok(Box::pin(self.blobs().read(name)).await?.map(|content| content.bytes)),
        }
    }

    /// Returns the whole content of a `.tx`, if the cache has the content, or is to have it.
    pub(super) async fn read_cacheable(&self, name: BlobName, reuse: Reuse) -> Result<Option<Bytes>, BlobError> {
        match self.cached(name) {
            None if reuse == Reuse::Likely && is_cacheable(name) && self.fits_cache(name).await? => {
                self.read_into_cache(name).await
            }
            cached => Ok(cached),
        }
    }

    async fn read_into_cache(&self, name: BlobName) -> Result<Option<Bytes>, BlobError> {
        let read = || Box::pin(self.blobs().read(name));
        let found = match is_cacheable(name) {
            true => self.0.cache.get_or_read(name.txid, read()).await,
            false => read().await,
        };
        // A cached content, and the answer of a shared read, were verified by the hash of another caller.
        let found = match found {
            Ok(Some(content)) if !name.matches_hash(&content.hash) => read().await?,
            Err(error) if error.kind == BlobErrorKind::Corrupt && is_cacheable(name) => read().await?,
            found => found?,
        };
        Ok(found.map(|content| content.bytes))
    }

    async fn fits_cache(&self, name: BlobName) -> Result<bool, BlobError> {
        let size = self.blobs().size(name).await?;
        Ok(size.is_some_and(|size| self.0.cache.can_hold(size)))
    }

    fn cached(&self, name: BlobName) -> Option<Bytes> {
        if !is_cacheable(name) {
            return None;
        }
        let found = self.0.cache.get(&name.txid).filter(|content| name.matches_hash(&content.hash));
        self.0.metrics.blob_cache.of(found.is_some().into()).inc();
        found.map(|content| content.bytes)
    }

    /// Runs a request and records its time and failure in the metrics.
    pub(super) async fn measure<T>(
        &self,
        operation: BlobOperation,
        request: impl Future<Output = Result<T, BlobError>>,
    ) -> Result<T, BlobError> {
        let started = Instant::now();
        let done = request.await;
        let metrics = &self.0.metrics;
        metrics.blob_seconds.of(operation).observe(started.elapsed().as_secs_f64());
        if let Err(error) = &done {
            self.count_error(error.kind);
        }
        done
    }

    pub(super) fn count_error(&self, kind: BlobErrorKind) {
        let metrics = &self.0.metrics;
        metrics.blob_errors.of(kind).inc();
        // Invalid bytes are the caller's fault.
        if kind != BlobErrorKind::Invalid {
            metrics.store_errors.of(ErrorKind::Storage).inc();
        }
    }
}

/// Returns whether the cache may hold a blob: its key is the txid, so that the cache holds first blobs only.
fn is_cacheable(name: BlobName) -> bool {
    matches!(name.blob, Blob::First(_))
}

pub(super) fn to_stored_outputs(found: StreamedTransaction) -> BTreeMap<u32, StoredOutput> {
    to_outputs(found.outputs)
}

pub(super) fn to_outputs(found: BTreeMap<u32, FoundOutput>) -> BTreeMap<u32, StoredOutput> {
    let stored = |(vout, (satoshis, script))| (vout, StoredOutput { satoshis, script: Bytes::from(script) });
    found.into_iter().map(stored).collect()
}

/// Returns the name of a partial transaction's first blob, and the blob's content.
pub(super) fn encode_outputs(partial: &PartialTx) -> Result<(BlobName, Bytes), BlobError> {
    let name = BlobName::outputs(partial.txid);
    let encoded = partial.encode();
    Ok((name, encoded.map_err(|problem| blob_error(BlobErrorKind::Invalid, "write", name, problem))?))
}
