//! [`FaultStore`]: an object store that fails as networks, disks and servers do, by chance or by script. The same seed
//! gives the same faults; all faults are off by default. A [`BlobStore`](super::BlobStore) runs on top, so that the
//! faults test its contract.

use std::{
    collections::BTreeMap,
    fmt,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt, stream, stream::BoxStream};
use object_store::{
    CopyMode, CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
    path::Path,
};

use crate::rng::SplitMix64;

/// Fault that strikes one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlobFault {
    /// The request never arrives: nothing is changed, and the request fails.
    LostRequest,
    /// The request takes effect, but its reply is lost, so that the request fails.
    LostReply,
    /// The request is delayed by this time of tokio's clock, then takes effect unless its future was dropped.
    Slow(Duration),
    /// A read returns bytes of which one is changed.
    OtherBytes,
    /// A read returns the first half of the bytes and then fails.
    CutShort,
    /// A read returns a few bytes at a time, with this pause of tokio's clock before each piece.
    Dripping(Duration),
    /// A first blob that is put exists already with one changed byte, as after damage. Blobs with a content hash in
    /// their name are spared, because otherwise nothing could ever be stored.
    DamagedBefore,
    /// The condition of a request is ignored: a conditional put overwrites.
    Unconditional,
    /// The store denies the request.
    Denied,
    /// The request finds no object, whatever the store holds.
    NotFound,
}

impl BlobFault {
    /// Returns the name of the fault in [`FaultStore::injected_by_kind`].
    pub fn name(self) -> &'static str {
        match self {
            BlobFault::LostRequest => "blob: lost request",
            BlobFault::LostReply => "blob: lost reply",
            BlobFault::Slow(_) => "blob: slow",
            BlobFault::OtherBytes => "blob: other bytes",
            BlobFault::CutShort => "blob: cut short",
            BlobFault::Dripping(_) => "blob: dripping",
            BlobFault::DamagedBefore => "blob: damaged before",
            BlobFault::Unconditional => "blob: unconditional",
            BlobFault::Denied => "blob: denied",
            BlobFault::NotFound => "blob: not found",
        }
    }
}

/// Probability of each fault per request, drawn in the order of the fields; at most one fault strikes a request.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct BlobFaults {
    /// Probability of [`BlobFault::LostRequest`] per request.
    pub lost_request: f64,
    /// Probability of [`BlobFault::LostReply`] per request.
    pub lost_reply: f64,
    /// Probability of [`BlobFault::Slow`] per request.
    pub slow: f64,
    /// Longest delay of [`BlobFault::Slow`].
    pub slow_within: Duration,
    /// Probability of [`BlobFault::OtherBytes`] per request.
    pub other_bytes: f64,
    /// Probability of [`BlobFault::CutShort`] per request.
    pub cut_short: f64,
    /// Probability of [`BlobFault::Denied`] per request.
    pub denied: f64,
    /// Probability of [`BlobFault::DamagedBefore`] per request.
    pub damaged_before: f64,
}

/// A decorator that injects faults into any object store.
#[derive(Debug, Clone)]
pub struct FaultStore {
    inner: Arc<dyn ObjectStore>,
    state: Arc<Mutex<BlobFaultState>>,
}

#[derive(Debug)]
struct BlobFaultState {
    rng: SplitMix64,
    faults: BlobFaults,
    script: BTreeMap<u64, BlobFault>,
    /// Fault of every request from now on.
    constant_fault: Option<BlobFault>,
    requests: u64,
    injected: BTreeMap<&'static str, u64>,
}

impl FaultStore {
    /// Wraps `inner` without any faults yet.
    pub fn new(inner: Arc<dyn ObjectStore>, seed: u64) -> Self {
        let state = BlobFaultState {
            rng: SplitMix64::new(seed),
            faults: BlobFaults::default(),
            script: BTreeMap::new(),
            constant_fault: None,
            requests: 0,
            injected: BTreeMap::new(),
        };
        FaultStore { inner, state: Arc::new(Mutex::new(state)) }
    }

    /// Sets the probabilities of faults from now on; the default value ends random faults.
    pub fn set(&self, faults: BlobFaults) {
        self.state().faults = faults;
    }

    /// Strikes every request from now on with this fault; `None` ends that.
    pub fn fail_all(&self, fault: Option<BlobFault>) {
        self.state().constant_fault = fault;
    }

    /// Strikes the `k`-th request from now on (1 is the next) with this fault, instead of a random one.
    pub fn fail_at(&self, k: u64, fault: BlobFault) {
        let mut state = self.state();
        let request = state.requests + k;
        state.script.insert(request, fault);
    }

    /// Removes the faults of [`fail_at`](Self::fail_at) that have not struck yet.
    pub fn clear_script(&self) {
        self.state().script.clear();
    }

    /// Returns the number of requests so far; each part of a large object is one request.
    pub fn requests(&self) -> u64 {
        self.state().requests
    }

    /// Returns how often each fault has struck, by [`BlobFault::name`].
    pub fn injected_by_kind(&self) -> BTreeMap<&'static str, u64> {
        self.state().injected.clone()
    }

    fn state(&self) -> MutexGuard<'_, BlobFaultState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_fault(&self) -> Option<BlobFault> {
        self.state().next_fault()
    }

    /// Changes one byte at a random place, unless the slice is empty.
    fn damage(&self, bytes: &mut [u8]) {
        let mut state = self.state();
        if let Some(byte) = bytes.get_mut(state.rng.below(bytes.len() as u64) as usize) {
            *byte = byte.wrapping_add(1 + state.rng.below(255) as u8);
        }
    }
}

impl BlobFaultState {
    fn next_fault(&mut self) -> Option<BlobFault> {
        self.requests += 1;
        let drawn = self.draw_fault();
        let fault = self.script.remove(&self.requests).or(self.constant_fault).or(drawn)?;
        *self.injected.entry(fault.name()).or_default() += 1;
        Some(fault)
    }

    fn draw_fault(&mut self) -> Option<BlobFault> {
        let BlobFaults { lost_request, lost_reply, slow, slow_within, other_bytes, cut_short, denied, damaged_before } =
            self.faults;
        if self.rng.chance(lost_request) {
            Some(BlobFault::LostRequest)
        } else if self.rng.chance(lost_reply) {
            Some(BlobFault::LostReply)
        } else if self.rng.chance(slow) {
            // Microseconds, because a simulated clock resolves milliseconds and rounds up.
            let micros = 1 + self.rng.below(slow_within.as_micros() as u64);
            Some(BlobFault::Slow(Duration::from_micros(micros)))
        } else if self.rng.chance(other_bytes) {
            Some(BlobFault::OtherBytes)
        } else if self.rng.chance(cut_short) {
            Some(BlobFault::CutShort)
        } else if self.rng.chance(denied) {
            Some(BlobFault::Denied)
        } else if self.rng.chance(damaged_before) {
            Some(BlobFault::DamagedBefore)
        } else {
            None
        }
    }
}

/// Runs a request other than a read of bytes, with its fault.
async fn run_with_fault<T>(
    fault: Option<BlobFault>,
    path: &Path,
    request: impl Future<Output = Result<T>>,
) -> Result<T> {
    match fault {
        None
        | Some(
            BlobFault::OtherBytes
            | BlobFault::CutShort
            | BlobFault::Dripping(_)
            | BlobFault::DamagedBefore
            | BlobFault::Unconditional,
        ) => request.await,
        Some(BlobFault::LostRequest) => Err(lost("request")),
        Some(BlobFault::LostReply) => {
            drop(request.await);
            Err(lost("reply"))
        }
        Some(BlobFault::Slow(time)) => {
            tokio::time::sleep(time).await;
            request.await
        }
        Some(BlobFault::Denied) => {
            Err(Error::PermissionDenied { path: path.to_string(), source: injected("denied").into() })
        }
        Some(BlobFault::NotFound) => {
            Err(Error::NotFound { path: path.to_string(), source: injected("not found").into() })
        }
    }
}

fn drip(bytes: Bytes, pause: Duration) -> BoxStream<'static, Result<Bytes>> {
    let next = move |mut left: Bytes| async move {
        if left.is_empty() {
            return None;
        }
        tokio::time::sleep(pause).await;
        let piece = left.split_to(left.len().min(DRIP_BYTES));
        Some((Ok(piece), left))
    };
    stream::unfold(bytes, next).boxed()
}

/// Bytes of one piece of a dripping read.
const DRIP_BYTES: usize = 4 << 10;

fn injected(what: &str) -> String {
    format!("injected fault: {what}")
}

fn lost(what: &str) -> Error {
    Error::Generic { store: "FaultStore", source: injected(&format!("{what} lost")).into() }
}

impl fmt::Display for FaultStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FaultStore({})", self.inner)
    }
}

#[async_trait]
impl ObjectStore for FaultStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, mut opts: PutOptions) -> Result<PutResult> {
        let fault = self.next_fault();
        if fault == Some(BlobFault::Unconditional) {
            opts.mode = PutMode::Overwrite;
        }
        let is_first = location.filename().is_some_and(|name| name.matches('.').count() == 1);
        if fault == Some(BlobFault::DamagedBefore) && opts.mode == PutMode::Create && is_first {
            let mut bytes = Bytes::from(payload.clone()).to_vec();
            self.damage(&mut bytes);
            // A blob that exists stays, so its error is ignored.
            drop(self.inner.put_opts(location, bytes.into(), PutMode::Create.into()).await);
        }
        run_with_fault(fault, location, self.inner.put_opts(location, payload, opts)).await
    }

    async fn put_multipart_opts(&self, location: &Path, opts: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        let upload = run_with_fault(self.next_fault(), location, self.inner.put_multipart_opts(location, opts)).await?;
        Ok(Box::new(FaultUpload { upload, store: self.clone(), path: location.clone() }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let fault = self.next_fault();
        let found = run_with_fault(fault, location, self.inner.get_opts(location, options)).await?;
        let changed = matches!(fault, Some(BlobFault::OtherBytes | BlobFault::CutShort | BlobFault::Dripping(_)));
        if !changed || found.range.is_empty() {
            return Ok(found);
        }
        let (meta, range, attributes, extensions) =
            (found.meta.clone(), found.range.clone(), found.attributes.clone(), found.extensions.clone());
        let mut bytes = found.bytes().await?.to_vec();
        let pieces: BoxStream<'static, Result<Bytes>> = match fault {
            Some(BlobFault::CutShort) => {
                bytes.truncate(bytes.len() / 2);
                stream::iter([Ok(bytes.into()), Err(lost("rest"))]).boxed()
            }
            Some(BlobFault::Dripping(pause)) => drip(bytes.into(), pause),
            _ => {
                self.damage(&mut bytes);
                stream::iter([Ok(bytes.into())]).boxed()
            }
        };
        let payload = GetResultPayload::Stream(pieces);
        Ok(GetResult { payload, meta, range, attributes, extensions })
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        run_with_fault(self.next_fault(), location, self.inner.get_ranges(location, ranges)).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let store = self.clone();
        let delete = move |location: Result<Path>| {
            let store = store.clone();
            async move {
                let location = location?;
                let fault = store.next_fault();
                run_with_fault(fault, &location, store.inner.delete(&location)).await.map(|()| location)
            }
        };
        locations.then(delete).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        match self.next_fault() {
            Some(BlobFault::LostRequest | BlobFault::LostReply | BlobFault::Denied | BlobFault::NotFound) => {
                stream::once(async { Err(lost("request")) }).boxed()
            }
            _ => self.inner.list(prefix),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        run_with_fault(self.next_fault(), &Path::default(), self.inner.list_with_delimiter(prefix)).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, mut options: CopyOptions) -> Result<()> {
        let fault = self.next_fault();
        if fault == Some(BlobFault::Unconditional) {
            options.mode = CopyMode::Overwrite;
        }
        run_with_fault(fault, to, self.inner.copy_opts(from, to, options)).await
    }
}

#[derive(Debug)]
struct FaultUpload {
    upload: Box<dyn MultipartUpload>,
    store: FaultStore,
    path: Path,
}

#[async_trait]
impl MultipartUpload for FaultUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (fault, path, sent) = (self.store.next_fault(), self.path.clone(), self.upload.put_part(data));
        Box::pin(async move { run_with_fault(fault, &path, sent).await })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        run_with_fault(self.store.next_fault(), &self.path, self.upload.complete()).await
    }

    async fn abort(&mut self) -> Result<()> {
        run_with_fault(self.store.next_fault(), &self.path, self.upload.abort()).await
    }
}
