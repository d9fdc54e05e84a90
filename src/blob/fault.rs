//! [`FaultStore`]: a store of objects that fails as networks, disks and servers do, by chance or by script, the same way for the
//! same seed. All faults are off by default. It lies *below* a [`BlobStore`](super::BlobStore), whose rules it is to try.

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

use crate::seeded::Seeded;

/// What can happen to one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It never arrives: nothing is done, and it fails.
    LostRequest,
    /// It is done, and fails all the same: the answer gets lost.
    LostReply,
    /// It takes so long, on tokio's clock; then it is done, where somebody still waits.
    Slow(Duration),
    /// A read answers other bytes: one of them is changed.
    OtherBytes,
    /// A read answers the first half, and then fails.
    CutShort,
    /// A read answers a few bytes at a time, each so long after the ones before, on tokio's clock.
    Dripping(Duration),
    /// A first blob that is to be made is there already, but for one byte, as damage leaves it. (Were those beside it damaged, too,
    /// nothing could ever be stored.)
    DamagedBefore,
    /// A condition is not looked at: what is to be made only where there is none overwrites what there is.
    Unconditional,
    /// The store does not allow it.
    Denied,
    /// It finds nothing, whatever there is.
    NotFound,
}

impl Fault {
    /// What counts call it.
    pub fn name(self) -> &'static str {
        match self {
            Fault::LostRequest => "blob: lost request",
            Fault::LostReply => "blob: lost reply",
            Fault::Slow(_) => "blob: slow",
            Fault::OtherBytes => "blob: other bytes",
            Fault::CutShort => "blob: cut short",
            Fault::Dripping(_) => "blob: dripping",
            Fault::DamagedBefore => "blob: damaged before",
            Fault::Unconditional => "blob: unconditional",
            Fault::Denied => "blob: denied",
            Fault::NotFound => "blob: not found",
        }
    }
}

/// How often each fault happens by itself: probabilities a request, tried in this order, at most one a request.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Faults {
    /// See [`Fault::LostRequest`].
    pub lost_request: f64,
    /// See [`Fault::LostReply`].
    pub lost_reply: f64,
    /// See [`Fault::Slow`].
    pub slow: f64,
    /// How slow at most.
    pub slow_within: Duration,
    /// See [`Fault::OtherBytes`].
    pub other_bytes: f64,
    /// See [`Fault::CutShort`].
    pub cut_short: f64,
    /// See [`Fault::Denied`].
    pub denied: f64,
    /// See [`Fault::DamagedBefore`].
    pub damaged_before: f64,
}

/// A decorator around any store of objects.
#[derive(Debug, Clone)]
pub struct FaultStore {
    inner: Arc<dyn ObjectStore>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    seeded: Seeded,
    faults: Faults,
    script: BTreeMap<u64, Fault>,
    /// Of every request from now on.
    lasting: Option<Fault>,
    requests: u64,
    injected: BTreeMap<&'static str, u64>,
}

impl FaultStore {
    /// `inner` with no faults yet.
    pub fn new(inner: Arc<dyn ObjectStore>, seed: u64) -> Self {
        let state = State {
            seeded: Seeded::new(seed),
            faults: Faults::default(),
            script: BTreeMap::new(),
            lasting: None,
            requests: 0,
            injected: BTreeMap::new(),
        };
        FaultStore { inner, state: Arc::new(Mutex::new(state)) }
    }

    /// Faults by chance from now on; `Faults::default()` ends them.
    pub fn set(&self, faults: Faults) {
        self.state().faults = faults;
    }

    /// Every request from now on meets this fault; `None` heals the store.
    pub fn fail_all(&self, fault: Option<Fault>) {
        self.state().lasting = fault;
    }

    /// The `k`-th request from now on (1 is the next) meets this fault, whatever chance says.
    pub fn fail_at(&self, k: u64, fault: Fault) {
        let mut state = self.state();
        let request = state.requests + k;
        state.script.insert(request, fault);
    }

    /// Forgets what [`fail_at`](Self::fail_at) asked for and has not come to pass.
    pub fn unscript(&self) {
        self.state().script.clear();
    }

    /// Requests so far; each part of a large object is one.
    pub fn requests(&self) -> u64 {
        self.state().requests
    }

    /// How often each fault has struck.
    pub fn injected_by_kind(&self) -> BTreeMap<&'static str, u64> {
        self.state().injected.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> Option<Fault> {
        self.state().next()
    }

    /// Changes one of these bytes, if there are any.
    fn damage(&self, bytes: &mut [u8]) {
        let mut state = self.state();
        if let Some(byte) = bytes.get_mut(state.seeded.below(bytes.len() as u64) as usize) {
            *byte = byte.wrapping_add(1 + state.seeded.below(255) as u8);
        }
    }
}

impl State {
    fn next(&mut self) -> Option<Fault> {
        self.requests += 1;
        let by_chance = self.by_chance();
        let fault = self.script.remove(&self.requests).or(self.lasting).or(by_chance)?;
        *self.injected.entry(fault.name()).or_default() += 1;
        Some(fault)
    }

    fn by_chance(&mut self) -> Option<Fault> {
        let Faults { lost_request, lost_reply, slow, slow_within, other_bytes, cut_short, denied, damaged_before } =
            self.faults;
        if self.seeded.chance(lost_request) {
            Some(Fault::LostRequest)
        } else if self.seeded.chance(lost_reply) {
            Some(Fault::LostReply)
        } else if self.seeded.chance(slow) {
            // Microseconds: a simulated clock resolves milliseconds, and rounds up.
            let micros = 1 + self.seeded.below(slow_within.as_micros() as u64);
            Some(Fault::Slow(Duration::from_micros(micros)))
        } else if self.seeded.chance(other_bytes) {
            Some(Fault::OtherBytes)
        } else if self.seeded.chance(cut_short) {
            Some(Fault::CutShort)
        } else if self.seeded.chance(denied) {
            Some(Fault::Denied)
        } else if self.seeded.chance(damaged_before) {
            Some(Fault::DamagedBefore)
        } else {
            None
        }
    }
}

/// A request that changes something, or asks without reading, with what happens to it.
async fn tried<T>(fault: Option<Fault>, path: &Path, request: impl Future<Output = Result<T>>) -> Result<T> {
    match fault {
        None
        | Some(
            Fault::OtherBytes | Fault::CutShort | Fault::Dripping(_) | Fault::DamagedBefore | Fault::Unconditional,
        ) => request.await,
        Some(Fault::LostRequest) => Err(lost("request")),
        Some(Fault::LostReply) => {
            drop(request.await);
            Err(lost("reply"))
        }
        Some(Fault::Slow(time)) => {
            tokio::time::sleep(time).await;
            request.await
        }
        Some(Fault::Denied) => {
            Err(Error::PermissionDenied { path: path.to_string(), source: injected("denied").into() })
        }
        Some(Fault::NotFound) => Err(Error::NotFound { path: path.to_string(), source: injected("not found").into() }),
    }
}

fn dripping(bytes: Bytes, pause: Duration) -> BoxStream<'static, Result<Bytes>> {
    let next = move |mut left: Bytes| async move {
        if left.is_empty() {
            return None;
        }
        tokio::time::sleep(pause).await;
        let drop = left.split_to(left.len().min(DROP));
        Some((Ok(drop), left))
    };
    stream::unfold(bytes, next).boxed()
}

/// Bytes that come at once of a read that is dripping.
const DROP: usize = 4 << 10;

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
        let fault = self.next();
        if fault == Some(Fault::Unconditional) {
            opts.mode = PutMode::Overwrite;
        }
        let is_first = location.filename().is_some_and(|name| name.matches('.').count() == 1);
        if fault == Some(Fault::DamagedBefore) && opts.mode == PutMode::Create && is_first {
            let mut bytes = Bytes::from(payload.clone()).to_vec();
            self.damage(&mut bytes);
            // What is there already stays.
            drop(self.inner.put_opts(location, bytes.into(), PutMode::Create.into()).await);
        }
        tried(fault, location, self.inner.put_opts(location, payload, opts)).await
    }

    async fn put_multipart_opts(&self, location: &Path, opts: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        let upload = tried(self.next(), location, self.inner.put_multipart_opts(location, opts)).await?;
        Ok(Box::new(FaultUpload { upload, store: self.clone(), path: location.clone() }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let fault = self.next();
        let found = tried(fault, location, self.inner.get_opts(location, options)).await?;
        let changed = matches!(fault, Some(Fault::OtherBytes | Fault::CutShort | Fault::Dripping(_)));
        if !changed || found.range.is_empty() {
            return Ok(found);
        }
        let (meta, range, attributes, extensions) =
            (found.meta.clone(), found.range.clone(), found.attributes.clone(), found.extensions.clone());
        let mut bytes = found.bytes().await?.to_vec();
        let pieces: BoxStream<'static, Result<Bytes>> = match fault {
            Some(Fault::CutShort) => {
                bytes.truncate(bytes.len() / 2);
                stream::iter([Ok(bytes.into()), Err(lost("rest"))]).boxed()
            }
            Some(Fault::Dripping(pause)) => dripping(bytes.into(), pause),
            _ => {
                self.damage(&mut bytes);
                stream::iter([Ok(bytes.into())]).boxed()
            }
        };
        let payload = GetResultPayload::Stream(pieces);
        Ok(GetResult { payload, meta, range, attributes, extensions })
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        tried(self.next(), location, self.inner.get_ranges(location, ranges)).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let store = self.clone();
        let delete = move |location: Result<Path>| {
            let store = store.clone();
            async move {
                let location = location?;
                let fault = store.next();
                tried(fault, &location, store.inner.delete(&location)).await.map(|()| location)
            }
        };
        locations.then(delete).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        match self.next() {
            Some(Fault::LostRequest | Fault::LostReply | Fault::Denied | Fault::NotFound) => {
                stream::once(async { Err(lost("request")) }).boxed()
            }
            _ => self.inner.list(prefix),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        tried(self.next(), &Path::default(), self.inner.list_with_delimiter(prefix)).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, mut options: CopyOptions) -> Result<()> {
        let fault = self.next();
        if fault == Some(Fault::Unconditional) {
            options.mode = CopyMode::Overwrite;
        }
        tried(fault, to, self.inner.copy_opts(from, to, options)).await
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
        let (fault, path, sent) = (self.store.next(), self.path.clone(), self.upload.put_part(data));
        Box::pin(async move { tried(fault, &path, sent).await })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        tried(self.store.next(), &self.path, self.upload.complete()).await
    }

    async fn abort(&mut self) -> Result<()> {
        tried(self.store.next(), &self.path, self.upload.abort()).await
    }
}
