//! [`BlobStore`]: puts, gets and deletes blobs, and verifies their bytes.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use object_store::{ObjectStore, memory::InMemory, path::Path};
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::Instant,
};

use super::{
    BlobError, BlobErrorKind, BlobKind, BlobName, PartialTx,
    cache::Cache,
    check::{self, Damage, blob_error, check_tx, is_same},
    claim,
    directory::BlobDirectory,
    frame::Framed,
    requests::{CreateOutcome, ObjectStream, RequestLimits, Requests},
};
use crate::{
    record::{Body, StoredOutput},
    telemetry::{BlobOperation, Metrics},
    tx::{StreamedTransaction, Txid},
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
/// - A get returns bytes that match their checksum and the requested txid: a `.tx` hashes to the txid, a `.outputs`
///   names the txid. Bytes that do not match are read a second time, because the transfer may have damaged them; then
///   the error is [`BlobErrorKind::Corrupt`].
/// - Every request may be repeated; after [`BlobErrorKind::Unknown`] the caller must repeat it. A dropped future leaves
///   a blob stored or not stored.
/// - A blob is reported as absent only by a store whose mark names the expected owner. Without that mark the store is
///   unavailable, which is an error. A store that was opened to write has to be [claimed](Self::claim) first.
#[derive(Clone)]
pub struct BlobStore(Arc<BlobStoreInner>);

struct BlobStoreInner {
    requests: Requests,
    location: BlobLocation,
    /// Id of the store of records that owns the blobs, once it is known.
    owner: OnceLock<[u8; 16]>,
    part_bytes: Option<usize>,
    cache: Cache,
    whole_reads: ReadBudget,
    metrics: Arc<Metrics>,
}

/// Location of the objects.
#[derive(Debug, Default)]
pub(super) struct BlobLocation {
    /// URL or directory for messages. `None`: in memory, without a mark.
    pub url: Option<String>,
    /// Directory, if the objects are files.
    pub directory: Option<BlobDirectory>,
    /// Every write is refused.
    pub is_read_only: bool,
}

/// Limit on the bytes of blobs that are read whole at the same time, in kibibytes.
struct ReadBudget {
    permits: Semaphore,
    capacity: u32,
}

impl ReadBudget {
    fn new(bytes: usize) -> Self {
        let capacity = u32::try_from(bytes >> 10).unwrap_or(u32::MAX).max(1);
        ReadBudget { permits: Semaphore::new(capacity as usize), capacity }
    }

    async fn acquire(&self, bytes: u64) -> Option<SemaphorePermit<'_>> {
        let needed = u32::try_from(bytes >> 10).unwrap_or(u32::MAX).clamp(1, self.capacity);
        // Acquiring fails only on a closed semaphore, and this one is never closed.
        self.permits.acquire_many(needed).await.ok()
    }
}

/// Folder of objects that are written in parts, before they are copied to the blob's name.
const STAGING: &str = "staging";
/// Number of reads of a damaged blob: the transfer may have damaged the first.
const READ_ATTEMPTS: usize = 2;

impl fmt::Debug for BlobStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlobStore({})", self.0.requests.store)
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
        let limits = RequestLimits { timeout: options.timeout, least_rate: options.least_rate };
        BlobStore(Arc::new(BlobStoreInner {
            requests: Requests { store, limits, metrics: options.metrics.clone() },
            location,
            owner: OnceLock::new(),
            part_bytes: options.part_bytes,
            cache: Cache::new(options.cache_bytes, options.cache_time),
            whole_reads: ReadBudget::new(options.whole_read_bytes),
            metrics: options.metrics,
        }))
    }

    /// Stores a transaction as the first blob of its txid, unless one exists. The format is extended; a coinbase may be
    /// in standard format.
    ///
    /// # Errors
    /// See [`BlobErrorKind`]: `Invalid` if the bytes are not that transaction, `Corrupt` if the stored bytes are not.
    pub async fn put_tx(&self, txid: Txid, bytes: Bytes) -> Result<PutOutcome, BlobError> {
        self.measure(BlobOperation::PutTx, async {
            let name = BlobName::tx(txid);
            check_tx(name, &bytes).await?;
            Box::pin(self.put(name, bytes)).await
        })
        .await
    }

    /// Returns the bytes of a transaction's first blob; `None`: no blob exists. The whole blob is in memory;
    /// [`tx_outputs`](Self::tx_outputs) reads single outputs with less.
    ///
    /// # Errors
    /// See [`BlobErrorKind`].
    pub async fn get_tx(&self, txid: Txid, reuse: Reuse) -> Result<Option<Bytes>, BlobError> {
        self.measure(BlobOperation::GetTx, async {
            if let Some(bytes) = self.cached(txid) {
                return Ok(Some(bytes));
            }
            if reuse == Reuse::Unlikely {
                return Box::pin(self.read(BlobName::tx(txid))).await;
            }
            self.0.cache.get_or_read(txid, Box::pin(self.read(BlobName::tx(txid)))).await
        })
        .await
    }

    /// Returns those of the outputs `vouts` that the transaction has; `None`: no blob exists. The whole blob is read
    /// and verified against the txid. One mebibyte is in memory at a time, unless reuse is likely and the blob fits
    /// into the cache.
    ///
    /// # Errors
    /// See [`BlobErrorKind`].
    pub async fn tx_outputs(
        &self,
        txid: Txid,
        vouts: &[u32],
        reuse: Reuse,
    ) -> Result<Option<BTreeMap<u32, StoredOutput>>, BlobError> {
        self.measure(BlobOperation::GetTx, async {
            let name = BlobName::tx(txid);
            let whole = match self.cached(txid) {
                None if reuse == Reuse::Likely && self.fits_cache(name).await? => {
                    self.0.cache.get_or_read(txid, Box::pin(self.read(name))).await?
                }
                cached => cached,
            };
            match whole {
                Some(bytes) => {
                    let found = check::parse_transaction(&bytes, vouts).await;
                    Ok(Some(to_stored_outputs(found.map_err(|damage| damage.into_error(name))?)))
                }
                None => Box::pin(self.streamed_outputs(name, vouts)).await,
            }
        })
        .await
    }

    /// Returns the outputs `vouts` of the transaction in a blob, with one mebibyte of the blob in memory at a time.
    pub(super) async fn streamed_outputs(
        &self,
        name: BlobName,
        vouts: &[u32],
    ) -> Result<Option<BTreeMap<u32, StoredOutput>>, BlobError> {
        Ok(self.stream_tx(name, vouts).await?.map(to_stored_outputs))
    }

    /// Stores the known outputs of a partial transaction as the first blob of its txid, unless one exists.
    ///
    /// # Errors
    /// See [`BlobErrorKind`]: `Invalid` if the outputs cannot be encoded, `Corrupt` if the stored bytes are no outputs.
    pub async fn put_outputs(&self, partial: &PartialTx) -> Result<PutOutcome, BlobError> {
        self.measure(BlobOperation::PutOutputs, async {
            let name = BlobName::outputs(partial.txid);
            let bytes =
                partial.encode().map_err(|problem| blob_error(BlobErrorKind::Invalid, "write", name, problem))?;
            Box::pin(self.put(name, bytes)).await
        })
        .await
    }

    /// Returns the known outputs of a partial transaction's first blob; `None`: no blob exists.
    ///
    /// # Errors
    /// See [`BlobErrorKind`].
    pub async fn get_outputs(&self, txid: Txid) -> Result<Option<PartialTx>, BlobError> {
        self.measure(BlobOperation::GetOutputs, async {
            let name = BlobName::outputs(txid);
            let Some(bytes) = Box::pin(self.read(name)).await? else { return Ok(None) };
            check::decode_outputs(name, &bytes).map(Some).map_err(|damage| damage.into_error(name))
        })
        .await
    }

    /// Returns the body of a transaction, whole or partial, in the form that a record has inline; `None`: no blob
    /// exists. Looks for `.tx` first and for `.outputs` second, as the reference document does.
    ///
    /// # Errors
    /// See [`BlobErrorKind`].
    pub async fn body(&self, txid: Txid, reuse: Reuse) -> Result<Option<Body>, BlobError> {
        match self.get_tx(txid, reuse).await? {
            Some(bytes) => Ok(Some(Body::Transaction(bytes))),
            None => Ok(self.get_outputs(txid).await?.map(|partial| partial.body())),
        }
    }

    /// Returns whether a blob exists; its content is not read.
    ///
    /// # Errors
    /// See [`BlobErrorKind`].
    pub async fn exists(&self, name: BlobName) -> Result<bool, BlobError> {
        self.measure(BlobOperation::Exists, async {
            match self.0.requests.size(&name.path()).await? {
                Some(_) => Ok(true),
                None => self.check_available(name).await.map(|()| false),
            }
        })
        .await
    }

    /// Deletes a blob; succeeds if the blob does not exist.
    ///
    /// # Errors
    /// See [`BlobErrorKind`].
    pub async fn delete(&self, name: BlobName) -> Result<(), BlobError> {
        self.measure(BlobOperation::Delete, async {
            self.check_writable(name).await?;
            let deleted = self.0.requests.delete(&name.path()).await;
            if name.kind == BlobKind::Tx {
                self.0.cache.remove(&name.txid);
            }
            deleted
        })
        .await
    }

    pub(super) fn requests(&self) -> &Requests {
        &self.0.requests
    }

    pub(super) fn location(&self) -> &BlobLocation {
        &self.0.location
    }

    /// Sets the owner; the first call wins.
    pub(super) fn set_owner(&self, store_id: [u8; 16]) {
        self.0.owner.get_or_init(|| store_id);
    }

    pub(super) fn writes_in_parts(&self) -> bool {
        self.0.part_bytes.is_some()
    }

    pub(super) async fn put(&self, name: BlobName, content: Bytes) -> Result<PutOutcome, BlobError> {
        let started = Instant::now();
        let blob = Framed::new(content).await;
        let put = self.put_framed(name, &blob).await;
        self.0.metrics.create_external.of(name.kind.into()).observe(started.elapsed().as_secs_f64());
        put
    }

    async fn put_framed(&self, name: BlobName, blob: &Framed) -> Result<PutOutcome, BlobError> {
        self.check_writable(name).await?;
        let put = match self.create(name, blob).await? {
            CreateOutcome::New => PutOutcome::Stored,
            CreateOutcome::Exists => self.compare_stored(name, blob).await?,
        };
        self.sync_to_disk(name, blob).await?;
        Ok(put)
    }

    async fn create(&self, name: BlobName, blob: &Framed) -> Result<CreateOutcome, BlobError> {
        let (requests, path) = (&self.0.requests, name.path());
        // A server receives the whole body before it refuses a conditional put. Events that are read again from the log
        // find their blobs stored, so the size is asked for first.
        if requests.size(&path).await?.is_some() {
            return Ok(CreateOutcome::Exists);
        }
        match self.part_size(blob) {
            Some(part) => self.create_in_parts(name, blob, part).await,
            None => requests.create(&path, blob).await,
        }
    }

    /// Returns the part size in bytes if the blob is written in parts.
    fn part_size(&self, blob: &Framed) -> Option<usize> {
        self.0.part_bytes.filter(|part| blob.len() > *part)
    }

    async fn sync_to_disk(&self, name: BlobName, blob: &Framed) -> Result<(), BlobError> {
        let Some(directory) = &self.0.location.directory else { return Ok(()) };
        let limit = self.0.requests.limits.time_limit(blob.len() as u64);
        let failed = |message: String| blob_error(BlobErrorKind::Unknown, "write", name, message);
        let synced = tokio::time::timeout(limit, directory.sync_blob(name)).await;
        let synced = synced.map_err(|_| failed("the disk does not answer".to_owned()))?;
        synced.map_err(|error| failed(error.to_string()))
    }

    /// Writes a blob in parts. No store accepts parts on the condition that the object does not exist. The parts
    /// therefore form a staged object of another name, and the store copies that object on the condition.
    async fn create_in_parts(&self, name: BlobName, blob: &Framed, part: usize) -> Result<CreateOutcome, BlobError> {
        let (requests, path) = (&self.0.requests, name.path());
        // The staged name contains the content's checksum, so that two writers of equal bytes write the same object.
        let file = name.to_string().replace('/', "-");
        let staged = Path::from_iter([STAGING, &format!("{file}.{}", hex::encode(&blob.checksum))]);
        requests.overwrite_in_parts(&staged, blob, part).await?;
        let created = requests.copy_if_absent(&staged, &path, blob.len() as u64).await;
        if created.is_ok() {
            // A staged object that stays does no harm; the bucket's own rule for old objects deletes it.
            drop(requests.delete(&staged).await);
        }
        created
    }

    /// Compares the stored blob with the blob that was to be written.
    async fn compare_stored(&self, name: BlobName, blob: &Framed) -> Result<PutOutcome, BlobError> {
        let vanished =
            || blob_error(BlobErrorKind::Retryable, "write", name, "the stored blob vanished during the put");
        let mut same = Err(Damage::UNREAD);
        for _ in 0..READ_ATTEMPTS {
            // The blob was deleted meanwhile, or the store reported it while another write was under way.
            let Some(stored) = self.0.requests.read(&name.path()).await? else { return Err(vanished()) };
            same = is_same(stored, blob).await?;
            if same.is_ok() {
                break;
            }
        }
        if same.map_err(|damage| damage.into_error(name))? {
            return Ok(PutOutcome::AlreadyStored);
        }
        // The stored transaction may have other claims; stored bytes of another transaction are damage.
        let is_other = match name.kind {
            BlobKind::Tx => self.stream_tx(name, &[]).await?.is_some(),
            BlobKind::Outputs => self.read(name).await?.is_some(),
        };
        if is_other { Ok(PutOutcome::OtherStored) } else { Err(vanished()) }
    }

    async fn fits_cache(&self, name: BlobName) -> Result<bool, BlobError> {
        let size = self.0.requests.size(&name.path()).await?;
        Ok(size.is_some_and(|size| self.0.cache.can_hold(size)))
    }

    fn cached(&self, txid: Txid) -> Option<Bytes> {
        let found = self.0.cache.get(&txid);
        self.0.metrics.blob_cache.of(found.is_some().into()).inc();
        found
    }

    /// Reads the whole content of a blob, verified against the blob's name.
    pub(super) async fn read(&self, name: BlobName) -> Result<Option<Bytes>, BlobError> {
        let mut found = Err(Damage::UNREAD);
        for _ in 0..READ_ATTEMPTS {
            let Some(object) = self.open_object(name).await? else { return Ok(None) };
            let _permit = self.0.whole_reads.acquire(object.len).await;
            found = check::verify_content(name, object.read_all().await?).await;
            if found.is_ok() {
                break;
            }
        }
        found.map(Some).map_err(|damage| damage.into_error(name))
    }

    /// Reads a `.tx` piece by piece, verified against the blob's name, and returns its outputs `vouts`.
    async fn stream_tx(&self, name: BlobName, vouts: &[u32]) -> Result<Option<StreamedTransaction>, BlobError> {
        let mut found = Err(Damage::UNREAD);
        for _ in 0..READ_ATTEMPTS {
            let Some(object) = self.open_object(name).await? else { return Ok(None) };
            found = check::verify_stream(name, object, vouts).await?;
            if found.is_ok() {
                break;
            }
        }
        found.map(Some).map_err(|damage| damage.into_error(name))
    }

    async fn open_object(&self, name: BlobName) -> Result<Option<ObjectStream>, BlobError> {
        match self.0.requests.read(&name.path()).await? {
            Some(object) => Ok(Some(object)),
            None => self.check_available(name).await.map(|()| None),
        }
    }

    async fn check_writable(&self, name: BlobName) -> Result<(), BlobError> {
        let BlobLocation { url, directory, is_read_only } = &self.0.location;
        let denied = |reason| Err(blob_error(BlobErrorKind::Denied, "write", name, reason));
        if *is_read_only {
            return denied("the blob store was opened to read");
        }
        if url.is_some() && self.0.owner.get().is_none() {
            return denied(claim::NOT_CLAIMED);
        }
        // Writes to a directory that is not mounted would go into the directory below the mount point.
        if directory.is_some() { self.check_available(name).await } else { Ok(()) }
    }

    /// Fails unless the store has the owner's mark. Only then does "not found" mean that the blob is missing: a
    /// directory that is not mounted and a bucket that was deleted find no object at all.
    async fn check_available(&self, name: BlobName) -> Result<(), BlobError> {
        if self.0.location.url.is_none() {
            return Ok(());
        }
        let found = claim::read_mark(&self.0.requests).await?;
        match claim::find_mark_problem(found, self.0.owner.get()) {
            Some((kind, message)) => Err(blob_error(kind, "read", name, message)),
            None => Ok(()),
        }
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
            metrics.blob_errors.of(error.kind.into()).inc();
        }
        done
    }
}

fn to_stored_outputs(found: StreamedTransaction) -> BTreeMap<u32, StoredOutput> {
    let stored = |(vout, (satoshis, script))| (vout, StoredOutput { satoshis, script: Bytes::from(script) });
    found.outputs.into_iter().map(stored).collect()
}
