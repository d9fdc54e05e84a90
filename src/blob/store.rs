//! [`BlobStore`].

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
    check::{self, Damage, check_tx, error, is_same},
    claim,
    directory::Directory,
    frame::Framed,
    requests::{Created, Pace, Reading, Requests},
};
use crate::{
    record::{Body, StoredOutput},
    telemetry::{BlobOperation, Metrics},
    tx::{StreamedTransaction, Txid},
};

/// What became of a blob that was to be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// It is stored now, for good.
    Stored,
    /// These very bytes were stored already.
    AlreadyStored,
    /// Another blob of this transaction was stored first, and stays. A `.tx` that claims other previous outputs (a txid does not
    /// commit to them), or a `.outputs` that says otherwise. Whose claims count is not for this store to say.
    OtherStored,
}

/// Whether what is read will be asked for again soon: where two outputs or more are still unspent (`semantics.md`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reuse {
    /// No: it is handed out and forgotten.
    Unlikely,
    /// Yes: it is kept for [`BlobOptions::keep`].
    Likely,
}

/// How a store is used.
#[derive(Clone)]
pub struct BlobOptions {
    /// How long a request may take besides its bytes, and how long there may be no byte of an answer.
    pub timeout: Duration,
    /// Bytes a second: as much longer a request may take as its bytes do at this rate, be they written or read.
    pub least_rate: u64,
    /// Transactions that were read are kept up to so many bytes in all …
    pub cache_bytes: usize,
    /// … for so long.
    pub keep: Duration,
    /// Blobs are read whole only as long as so many bytes of them are on their way at once; a larger one is read alone.
    pub whole_read_bytes: usize,
    /// Blobs of more bytes are written in parts of so many, so that one lost connection does not cost all of it. `None`: always
    /// in one request. S3 takes no parts below 5 MiB, and 10,000 of them at most.
    pub part_bytes: Option<usize>,
    /// Where requests are counted.
    pub metrics: Arc<Metrics>,
}

impl Default for BlobOptions {
    fn default() -> Self {
        BlobOptions {
            timeout: Duration::from_secs(30),
            least_rate: 64 << 10,
            cache_bytes: 256 << 20,
            keep: Duration::from_secs(10),
            whole_read_bytes: 256 << 20,
            part_bytes: None,
            metrics: Arc::default(),
        }
    }
}

/// A place where bodies of transactions are kept, each under its transaction's id. Cheap to clone.
///
/// # Contract
/// - A blob is seen whole or not at all, and what [`Put`] says has been stored survives a kill of the machine.
/// - Nobody overwrites: the first one put stays, until [`delete`](Self::delete).
/// - What is handed out is what was put, by its checksum, and belongs to the id that was asked for: a `.tx` hashes to it, a `.outputs`
///   names it. What does not is read once more, in case it was damaged on its way; then it is [`BlobErrorKind::Corrupt`].
/// - Every request may be repeated; after [`BlobErrorKind::Unknown`] it must be. A dropped future leaves a blob stored or not
///   stored.
/// - "There is none" is only said of a store that is there: one that shows no mark, or another's, is away, and says so. One that was
///   opened to write first has to be [claimed](Self::claim).
#[derive(Clone)]
pub struct BlobStore(Arc<Inner>);

struct Inner {
    requests: Requests,
    place: Place,
    /// Whose it is, once that is known.
    owner: OnceLock<[u8; 16]>,
    part_bytes: Option<usize>,
    cache: Cache,
    whole_reads: WholeReads,
    metrics: Arc<Metrics>,
}

/// What is known of where the objects are.
#[derive(Debug, Default)]
pub(super) struct Place {
    /// Where, for people. `None`: in memory, where nothing is marked.
    pub url: Option<String>,
    /// They are files in this directory.
    pub directory: Option<Directory>,
    /// Nothing is written.
    pub read_only: bool,
}

/// How much is read whole at once, in kibibytes.
struct WholeReads {
    room: Semaphore,
    all: u32,
}

impl WholeReads {
    fn new(bytes: usize) -> Self {
        let all = u32::try_from(bytes >> 10).unwrap_or(u32::MAX).max(1);
        WholeReads { room: Semaphore::new(all as usize), all }
    }

    async fn room_for(&self, bytes: u64) -> Option<SemaphorePermit<'_>> {
        let needed = u32::try_from(bytes >> 10).unwrap_or(u32::MAX).clamp(1, self.all);
        // Closed never: it is ours alone.
        self.room.acquire_many(needed).await.ok()
    }
}

/// Where a blob lies before it gets its name.
const STAGING: &str = "staging";
/// What is damaged is read once more: it may have been damaged on its way.
const READS: usize = 2;

impl fmt::Debug for BlobStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlobStore({})", self.0.requests.store)
    }
}

impl BlobStore {
    /// In memory; gone with the last clone.
    pub fn memory() -> Self {
        Self::new(Arc::new(InMemory::new()), BlobOptions::default())
    }

    /// On any store of objects that can put an object if there is none. It is taken to be there always.
    pub fn new(store: Arc<dyn ObjectStore>, options: BlobOptions) -> Self {
        Self::at(store, options, Place::default())
    }

    pub(super) fn at(store: Arc<dyn ObjectStore>, options: BlobOptions, place: Place) -> Self {
        let pace = Pace { timeout: options.timeout, least_rate: options.least_rate };
        BlobStore(Arc::new(Inner {
            requests: Requests { store, pace, metrics: options.metrics.clone() },
            place,
            owner: OnceLock::new(),
            part_bytes: options.part_bytes,
            cache: Cache::new(options.cache_bytes, options.keep),
            whole_reads: WholeReads::new(options.whole_read_bytes),
            metrics: options.metrics,
        }))
    }

    /// Stores a transaction, unless one is stored under its id: in extended format, a coinbase in either.
    ///
    /// # Errors
    /// See [`BlobErrorKind`]: `Invalid` where the bytes are not that transaction, `Corrupt` where what is stored is not.
    pub async fn put_tx(&self, txid: Txid, bytes: Bytes) -> Result<Put, BlobError> {
        self.watched(BlobOperation::PutTx, async {
            let name = BlobName::tx(txid);
            check_tx(name, &bytes).await?;
            Box::pin(self.put(name, bytes)).await
        })
        .await
    }

    /// The bytes of a transaction, as they were put; `None`: there is none. Whole in memory: for some of its outputs ask
    /// [`tx_outputs`](Self::tx_outputs).
    ///
    /// # Errors
    /// See [`BlobErrorKind`].
    pub async fn get_tx(&self, txid: Txid, reuse: Reuse) -> Result<Option<Bytes>, BlobError> {
        self.watched(BlobOperation::GetTx, async {
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

    /// These outputs of a transaction (those that it has); `None`: there is no such blob. All of it is read, and hashes to the id: a
    /// mebibyte at a time, unless it is likely to be asked for again and small enough to be kept.
    ///
    /// # Errors
    /// See [`BlobErrorKind`].
    pub async fn tx_outputs(
        &self,
        txid: Txid,
        vouts: &[u32],
        reuse: Reuse,
    ) -> Result<Option<BTreeMap<u32, StoredOutput>>, BlobError> {
        self.watched(BlobOperation::GetTx, async {
            let name = BlobName::tx(txid);
            let whole = match self.cached(txid) {
                None if reuse == Reuse::Likely && self.fits_cache(name).await? => {
                    self.0.cache.get_or_read(txid, Box::pin(self.read(name))).await?
                }
                cached => cached,
            };
            match whole {
                Some(bytes) => {
                    let found = check::transaction(&bytes, vouts).await.map_err(|damage| damage.of(name))?;
                    Ok(Some(outputs_of(found)))
                }
                None => Box::pin(self.streamed_outputs(name, vouts)).await,
            }
        })
        .await
    }

    /// These outputs of the transaction in a blob, with a mebibyte of it in memory at a time.
    pub(super) async fn streamed_outputs(
        &self,
        name: BlobName,
        vouts: &[u32],
    ) -> Result<Option<BTreeMap<u32, StoredOutput>>, BlobError> {
        Ok(self.stream(name, vouts).await?.map(outputs_of))
    }

    /// Stores the known outputs of a partial transaction, unless some are stored under its id.
    ///
    /// # Errors
    /// See [`BlobErrorKind`]: `Invalid` where they cannot be written, `Corrupt` where what is stored is no such thing.
    pub async fn put_outputs(&self, partial: &PartialTx) -> Result<Put, BlobError> {
        self.watched(BlobOperation::PutOutputs, async {
            let name = BlobName::outputs(partial.txid);
            let bytes = partial.encode().map_err(|wrong| error(BlobErrorKind::Invalid, "write", name, wrong))?;
            Box::pin(self.put(name, bytes)).await
        })
        .await
    }

    /// The known outputs of a partial transaction; `None`: there are none.
    ///
    /// # Errors
    /// See [`BlobErrorKind`].
    pub async fn get_outputs(&self, txid: Txid) -> Result<Option<PartialTx>, BlobError> {
        self.watched(BlobOperation::GetOutputs, async {
            let name = BlobName::outputs(txid);
            let Some(bytes) = Box::pin(self.read(name)).await? else { return Ok(None) };
            check::outputs(name, &bytes).map(Some).map_err(|damage| damage.of(name))
        })
        .await
    }

    /// The body of a transaction, whole or partial, as a record would have it inline; `None`: there is none. The seed's order:
    /// `.tx`, then `.outputs`.
    ///
    /// # Errors
    /// See [`BlobErrorKind`].
    pub async fn body(&self, txid: Txid, reuse: Reuse) -> Result<Option<Body>, BlobError> {
        match self.get_tx(txid, reuse).await? {
            Some(bytes) => Ok(Some(Body::Transaction(bytes))),
            None => Ok(self.get_outputs(txid).await?.map(|partial| partial.body())),
        }
    }

    /// Whether there is such a blob; what it holds is not looked at.
    ///
    /// # Errors
    /// See [`BlobErrorKind`].
    pub async fn exists(&self, name: BlobName) -> Result<bool, BlobError> {
        self.watched(BlobOperation::Exists, async {
            match self.0.requests.size(&name.path()).await? {
                Some(_) => Ok(true),
                None => self.must_be_there(name).await.map(|()| false),
            }
        })
        .await
    }

    /// Deletes a blob; one that is not there is deleted.
    ///
    /// # Errors
    /// See [`BlobErrorKind`].
    pub async fn delete(&self, name: BlobName) -> Result<(), BlobError> {
        self.watched(BlobOperation::Delete, async {
            self.must_take_writes(name).await?;
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

    pub(super) fn place(&self) -> &Place {
        &self.0.place
    }

    /// Once told, it stays.
    pub(super) fn set_owner(&self, store_id: [u8; 16]) {
        self.0.owner.get_or_init(|| store_id);
    }

    pub(super) fn writes_in_parts(&self) -> bool {
        self.0.part_bytes.is_some()
    }

    pub(super) async fn put(&self, name: BlobName, content: Bytes) -> Result<Put, BlobError> {
        let started = Instant::now();
        let blob = Framed::new(content).await;
        let put = self.put_framed(name, &blob).await;
        self.0.metrics.create_external.of(name.kind.into()).observe(started.elapsed().as_secs_f64());
        put
    }

    async fn put_framed(&self, name: BlobName, blob: &Framed) -> Result<Put, BlobError> {
        self.must_take_writes(name).await?;
        let put = match self.create(name, blob).await? {
            Created::New => Put::Stored,
            Created::Exists => self.compare(name, blob).await?,
        };
        self.settle(name, blob).await?;
        Ok(put)
    }

    async fn create(&self, name: BlobName, blob: &Framed) -> Result<Created, BlobError> {
        let (requests, path) = (&self.0.requests, name.path());
        // A server takes all of it before it says so: what is read again from the log is there.
        if requests.size(&path).await?.is_some() {
            return Ok(Created::Exists);
        }
        match self.part_of(blob) {
            Some(part) => self.create_in_parts(name, blob, part).await,
            None => requests.create(&path, blob).await,
        }
    }

    /// The size of its parts, where it is written in parts.
    fn part_of(&self, blob: &Framed) -> Option<usize> {
        self.0.part_bytes.filter(|part| blob.len() > *part)
    }

    async fn settle(&self, name: BlobName, blob: &Framed) -> Result<(), BlobError> {
        let Some(directory) = &self.0.place.directory else { return Ok(()) };
        let limit = self.0.requests.pace.limit(blob.len() as u64);
        let settled = tokio::time::timeout(limit, directory.settle(name)).await;
        let settled = settled.map_err(|_| error(BlobErrorKind::Unknown, "write", name, "the disk does not answer"))?;
        settled.map_err(|wrong| error(BlobErrorKind::Unknown, "write", name, wrong))
    }

    /// No store takes parts on the condition that there is no such object. So they become an object of another name, which
    /// is then copied on that condition, by the store itself.
    async fn create_in_parts(&self, name: BlobName, blob: &Framed, part: usize) -> Result<Created, BlobError> {
        let (requests, path) = (&self.0.requests, name.path());
        // Named by its content: two who write the same write the same object.
        let file = name.to_string().replace('/', "-");
        let staged = Path::from_iter([STAGING, &format!("{file}.{}", hex::encode(&blob.checksum))]);
        requests.overwrite_in_parts(&staged, blob, part).await?;
        let created = requests.copy_if_absent(&staged, &path, blob.len() as u64).await;
        if created.is_ok() {
            // It does no harm where it stays, until the bucket's rule on what is old deletes it.
            drop(requests.delete(&staged).await);
        }
        created
    }

    /// Whether what is there is what was to be written.
    async fn compare(&self, name: BlobName, blob: &Framed) -> Result<Put, BlobError> {
        let gone = || error(BlobErrorKind::Retryable, "write", name, "it was there, and then it was not");
        let mut same = Err(Damage::UNREAD);
        for _ in 0..READS {
            // Deleted meanwhile; or a store that says so while another write is under way.
            let Some(stored) = self.0.requests.read(&name.path()).await? else { return Err(gone()) };
            same = is_same(stored, blob).await?;
            if same.is_ok() {
                break;
            }
        }
        if same.map_err(|damage| damage.of(name))? {
            return Ok(Put::AlreadyStored);
        }
        // Whoever stored it may have claimed otherwise; what is not even this transaction is damage.
        let other = match name.kind {
            BlobKind::Tx => self.stream(name, &[]).await?.is_some(),
            BlobKind::Outputs => self.read(name).await?.is_some(),
        };
        if other { Ok(Put::OtherStored) } else { Err(gone()) }
    }

    async fn fits_cache(&self, name: BlobName) -> Result<bool, BlobError> {
        let size = self.0.requests.size(&name.path()).await?;
        Ok(size.is_some_and(|size| self.0.cache.takes(size)))
    }

    fn cached(&self, txid: Txid) -> Option<Bytes> {
        let found = self.0.cache.get(&txid);
        self.0.metrics.blob_cache.of(found.is_some().into()).inc();
        found
    }

    /// The content of a blob, which is what its name says.
    pub(super) async fn read(&self, name: BlobName) -> Result<Option<Bytes>, BlobError> {
        let mut found = Err(Damage::UNREAD);
        for _ in 0..READS {
            let Some(reading) = self.reading(name).await? else { return Ok(None) };
            let _room = self.0.whole_reads.room_for(reading.len).await;
            found = check::content(name, reading.all().await?).await;
            if found.is_ok() {
                break;
            }
        }
        found.map(Some).map_err(|damage| damage.of(name))
    }

    /// All of a `.tx`, piece by piece: it is what its name says, and has these outputs.
    async fn stream(&self, name: BlobName, vouts: &[u32]) -> Result<Option<StreamedTransaction>, BlobError> {
        let mut found = Err(Damage::UNREAD);
        for _ in 0..READS {
            let Some(reading) = self.reading(name).await? else { return Ok(None) };
            found = check::streamed(name, reading, vouts).await?;
            if found.is_ok() {
                break;
            }
        }
        found.map(Some).map_err(|damage| damage.of(name))
    }

    async fn reading(&self, name: BlobName) -> Result<Option<Reading>, BlobError> {
        match self.0.requests.read(&name.path()).await? {
            Some(reading) => Ok(Some(reading)),
            None => self.must_be_there(name).await.map(|()| None),
        }
    }

    async fn must_take_writes(&self, name: BlobName) -> Result<(), BlobError> {
        let Place { url, directory, read_only } = &self.0.place;
        let denied = |why| Err(error(BlobErrorKind::Denied, "write", name, why));
        if *read_only {
            return denied("the store was opened to read");
        }
        if url.is_some() && self.0.owner.get().is_none() {
            return denied(claim::NOT_CLAIMED);
        }
        // A directory that is not mounted would take them, into the one below.
        if directory.is_some() { self.must_be_there(name).await } else { Ok(()) }
    }

    /// What is not found is missing only where the store itself is there: a directory that is not mounted, or a bucket that was
    /// deleted, finds nothing.
    async fn must_be_there(&self, name: BlobName) -> Result<(), BlobError> {
        if self.0.place.url.is_none() {
            return Ok(());
        }
        let found = claim::mark(&self.0.requests).await?;
        match claim::problem(found, self.0.owner.get()) {
            Some((kind, message)) => Err(error(kind, "read", name, message)),
            None => Ok(()),
        }
    }

    pub(super) async fn watched<T>(
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

/// As records have them.
fn outputs_of(found: StreamedTransaction) -> BTreeMap<u32, StoredOutput> {
    let stored = |(vout, (satoshis, script))| (vout, StoredOutput { satoshis, script: Bytes::from(script) });
    found.outputs.into_iter().map(stored).collect()
}
