//! Single requests to an object store: each request has a time limit, each failure says what the caller may do.
//!
//! The time limit grows with the number of bytes ([`RequestLimits`]), because a client cannot see the progress of a
//! write. A read also ends when no byte arrives for `timeout`.

use std::{
    fs::File,
    io::{self, Read},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures_util::{
    StreamExt, TryStreamExt,
    future::ready,
    stream::{self, BoxStream, FuturesUnordered},
};
use object_store::{
    Error, GetResult, GetResultPayload, MultipartUpload, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
    path::Path,
};

use tokio::time::Instant;

use super::{BlobError, BlobErrorKind, BlobOptions};
use crate::{
    telemetry::{Metrics, TransferDirection},
    text::one_line,
};

/// Bytes per piece: a streaming read holds one piece in memory, and a hash yields the thread after each.
pub(super) const PIECE_BYTES: usize = 1 << 20;
/// Parts of a large object that are uploaded at the same time.
const PARTS_IN_FLIGHT: usize = 4;

/// Bound on the time for the bytes of a request: the size comes from the store and may be any number, and adding it to
/// an instant must not overflow.
const MAX_TRANSFER_TIME: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Time limits of a request; a slower store counts as a store that does not answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestLimits {
    /// Time for a request without its bytes, and the longest time without a byte of an answer.
    pub timeout: Duration,
    /// Bytes per second: the limit grows by the time that the bytes take at this rate.
    pub least_rate: u64,
}

impl RequestLimits {
    pub fn time_limit(self, len: u64) -> Duration {
        self.timeout + Duration::from_secs(len / self.least_rate.max(1)).min(MAX_TRANSFER_TIME)
    }
}

/// An object store with time limits for its requests.
#[derive(Clone)]
pub(super) struct Requests {
    pub store: Arc<dyn ObjectStore>,
    pub limits: RequestLimits,
    pub metrics: Arc<Metrics>,
}

/// Reads one object, piece by piece.
pub(super) struct ObjectStream {
    /// Size of the object in bytes, as reported by the store.
    pub len: u64,
    pieces: BoxStream<'static, Result<Bytes, Error>>,
    path: Path,
    limits: RequestLimits,
    /// Instant by which the whole object must be read; set at the first call of `next`.
    deadline: Option<Instant>,
    metrics: Arc<Metrics>,
}

/// Outcome of a conditional write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CreateOutcome {
    New,
    Exists,
}

impl Requests {
    pub fn new(store: Arc<dyn ObjectStore>, options: &BlobOptions) -> Self {
        let limits = RequestLimits { timeout: options.timeout, least_rate: options.least_rate };
        Requests { store, limits, metrics: options.metrics.clone() }
    }

    /// Writes an object in one request unless the object exists.
    pub async fn create(&self, path: &Path, object: &PutPayload) -> Result<CreateOutcome, BlobError> {
        self.metrics.blob_bytes.of(TransferDirection::Written).inc_by(object.content_length() as u64);
        let put = self.store.put_opts(path, object.clone(), PutOptions::from(PutMode::Create));
        to_create_outcome(self.run_request("write", path, object.content_length() as u64, put).await)
    }

    /// Writes an object in parts, one request each, and replaces an existing object. The object appears once all parts
    /// are written.
    pub async fn overwrite_in_parts(&self, path: &Path, object: &PutPayload, part: usize) -> Result<(), BlobError> {
        self.metrics.blob_bytes.of(TransferDirection::Written).inc_by(object.content_length() as u64);
        let begin = self.store.put_multipart(path);
        let mut upload = self.run_request("write", path, 0, begin).await?;
        let sent = self.send_parts(path, object, part, &mut *upload).await;
        let done = match sent {
            Ok(()) => {
                self.run_request("write", path, object.content_length() as u64, upload.complete()).await.map(drop)
            }
            Err(error) => Err(error),
        };
        if done.is_err() {
            // A failed abort or a kill leaves parts behind; the bucket's own rule for unfinished uploads removes them.
            drop(self.run_request("write", path, 0, upload.abort()).await);
        }
        Ok(done?)
    }

    async fn send_parts(
        &self,
        path: &Path,
        object: &PutPayload,
        part: usize,
        upload: &mut dyn MultipartUpload,
    ) -> Result<(), RequestFailure> {
        let mut uploads = FuturesUnordered::new();
        for sent in split(object, part.max(1)) {
            if uploads.len() == PARTS_IN_FLIGHT {
                uploads.next().await.unwrap_or(Ok(()))?;
            }
            // The parts in flight share one connection's bandwidth, so that each gets the time of all.
            let len = (sent.content_length() * PARTS_IN_FLIGHT) as u64;
            uploads.push(self.run_request("write", path, len, upload.put_part(sent)));
        }
        while let Some(sent) = uploads.next().await {
            sent?;
        }
        Ok(())
    }

    /// Copies an object to the name `to` unless an object of that name exists.
    pub async fn copy_if_absent(&self, from: &Path, to: &Path, len: u64) -> Result<CreateOutcome, BlobError> {
        to_create_outcome(self.run_request("write", to, len, self.store.copy_if_not_exists(from, to)).await)
    }

    /// Deletes an object; succeeds if the object does not exist.
    pub async fn delete(&self, path: &Path) -> Result<(), BlobError> {
        match self.run_request("delete", path, 0, self.store.delete(path)).await {
            Err(RequestFailure::Object(Error::NotFound { .. }, _)) => Ok(()),
            done => Ok(done?),
        }
    }

    /// Returns the size of an object in bytes; `None`: the object does not exist.
    pub async fn size(&self, path: &Path) -> Result<Option<u64>, BlobError> {
        match self.run_request("read", path, 0, self.store.head(path)).await {
            Ok(meta) => Ok(Some(meta.size)),
            Err(RequestFailure::Object(Error::NotFound { .. }, _)) => Ok(None),
            Err(failure) => Err(failure.into()),
        }
    }

    /// Returns whether the store has no object except perhaps `path`.
    pub async fn is_empty_except(&self, path: &Path) -> Result<bool, BlobError> {
        let mut others = self.store.list(None).try_filter(|object| ready(object.location != *path));
        Ok(self.run_request("read", path, 0, others.try_next()).await?.is_none())
    }

    /// Begins to read an object; `None`: the object does not exist.
    pub async fn read(&self, path: &Path) -> Result<Option<ObjectStream>, BlobError> {
        let found = match self.run_request("read", path, 0, self.store.get(path)).await {
            Ok(found) => found,
            Err(RequestFailure::Object(Error::NotFound { .. }, _)) => return Ok(None),
            Err(failure) => return Err(failure.into()),
        };
        let len = found.meta.size;
        let (limits, metrics) = (self.limits, self.metrics.clone());
        Ok(Some(ObjectStream {
            len,
            pieces: stream_pieces(found),
            path: path.clone(),
            limits,
            deadline: None,
            metrics,
        }))
    }

    /// Runs a request of a caller that names it.
    pub async fn run<T>(
        &self,
        operation: &'static str,
        path: &Path,
        len: u64,
        request: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, BlobError> {
        Ok(self.run_request(operation, path, len, request).await?)
    }

    /// Runs a request with the time limit for `len` bytes.
    async fn run_request<T>(
        &self,
        operation: &'static str,
        path: &Path,
        len: u64,
        request: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, RequestFailure> {
        let limit = self.limits.time_limit(len);
        let context = RequestContext { operation, path: path.to_string() };
        match tokio::time::timeout(limit, request).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(error)) => Err(RequestFailure::Object(error, context)),
            Err(_) => Err(RequestFailure::TimedOut(limit, context)),
        }
    }
}

impl ObjectStream {
    /// Returns the next bytes; `None` at the end. Some stores report an object that ends before its size as a failure.
    pub async fn next(&mut self) -> Result<Option<Bytes>, BlobError> {
        let RequestLimits { timeout, .. } = self.limits;
        let limit = self.limits.time_limit(self.len);
        let deadline = *self.deadline.get_or_insert_with(|| Instant::now() + limit);
        let next = tokio::time::timeout_at(deadline.min(Instant::now() + timeout), self.pieces.next()).await;
        match next {
            Ok(None) => Ok(None),
            Ok(Some(Ok(piece))) => {
                self.metrics.blob_bytes.of(TransferDirection::Read).inc_by(piece.len() as u64);
                Ok(Some(piece))
            }
            Ok(Some(Err(error))) => Err(RequestFailure::Object(error, self.context()).into()),
            Err(_) if Instant::now() >= deadline => Err(RequestFailure::TimedOut(limit, self.context()).into()),
            Err(_) => Err(RequestFailure::Stalled(timeout, self.context()).into()),
        }
    }

    fn context(&self) -> RequestContext {
        RequestContext { operation: "read", path: self.path.to_string() }
    }

    /// Reads all bytes of the object.
    pub async fn read_all(mut self) -> Result<Bytes, BlobError> {
        let Some(first) = self.next().await? else { return Ok(Bytes::new()) };
        let mut next = self.next().await?;
        if next.is_none() {
            return Ok(first);
        }
        // One allocation of the reported size: a buffer that grows by doubling is copied and up to twice as large as
        // needed. A size that the allocator refuses is an error, and untouched pages cost no memory.
        let mut all = Vec::new();
        let reserved = usize::try_from(self.len).is_ok_and(|len| all.try_reserve_exact(len).is_ok());
        if !reserved {
            return Err(RequestFailure::Size(format!("cannot allocate {} bytes", self.len), self.context()).into());
        }
        self.append(&mut all, &first)?;
        while let Some(piece) = next {
            self.append(&mut all, &piece)?;
            next = self.next().await?;
        }
        Ok(all.into())
    }

    fn append(&self, all: &mut Vec<u8>, piece: &[u8]) -> Result<(), BlobError> {
        if (all.len() + piece.len()) as u64 > self.len {
            return Err(
                RequestFailure::Size(format!("the object has more than {} bytes", self.len), self.context()).into()
            );
        }
        all.extend_from_slice(piece);
        Ok(())
    }
}

/// Streams the pieces of an object. Files are read here, because `object_store` reads 8 KiB per task.
fn stream_pieces(found: GetResult) -> BoxStream<'static, Result<Bytes, Error>> {
    let GetResult { payload, meta, .. } = found;
    let file = match payload {
        GetResultPayload::File(file, _) => file,
        GetResultPayload::Stream(stream) => return stream,
    };
    stream::try_unfold((file, meta.size), |(file, left)| read_piece(file, left)).boxed()
}

/// Reads the next piece of a file with `left` bytes left, and returns the file for the next call; `None` at the end.
async fn read_piece(file: File, left: u64) -> Result<Option<(Bytes, (File, u64))>, Error> {
    let read = tokio::task::spawn_blocking(move || {
        let mut piece = Vec::with_capacity(PIECE_BYTES.min(usize::try_from(left).unwrap_or(PIECE_BYTES)));
        let read = (&file).take(PIECE_BYTES as u64).read_to_end(&mut piece)?;
        Ok((read > 0).then(|| (piece.into(), (file, left.saturating_sub(read as u64)))))
    });
    let read = read.await.map_err(|source| Error::JoinError { source })?;
    read.map_err(|source: io::Error| Error::Generic { store: "LocalFileSystem", source: Box::new(source) })
}

/// Splits an object into parts of `len` bytes without copying; only the last part may be shorter.
fn split(object: &PutPayload, len: usize) -> impl Iterator<Item = PutPayload> {
    let total = object.content_length();
    (0..total).step_by(len).map(move |from| slice(object, from, total.min(from.saturating_add(len))))
}

fn slice(object: &PutPayload, from: usize, to: usize) -> PutPayload {
    let mut end = 0;
    let chunks = object.iter().filter_map(|chunk| {
        let begin = end;
        end += chunk.len();
        let (from, to) = (from.max(begin), to.min(end));
        (from < to).then(|| chunk.slice(from - begin..to - begin))
    });
    chunks.collect()
}

fn to_create_outcome<T>(put: Result<T, RequestFailure>) -> Result<CreateOutcome, BlobError> {
    match put {
        Ok(_) => Ok(CreateOutcome::New),
        Err(RequestFailure::Object(Error::AlreadyExists { .. }, _)) => Ok(CreateOutcome::Exists),
        Err(failure) => Err(failure.into()),
    }
}

struct RequestContext {
    operation: &'static str,
    path: String,
}

enum RequestFailure {
    Object(Error, RequestContext),
    /// The request exceeded its time limit.
    TimedOut(Duration, RequestContext),
    /// No byte arrived for this time.
    Stalled(Duration, RequestContext),
    /// The reported size is wrong, or too large to allocate.
    Size(String, RequestContext),
}

impl From<RequestFailure> for BlobError {
    fn from(failure: RequestFailure) -> Self {
        let default_kind = |context: &RequestContext| match context.operation {
            "read" => BlobErrorKind::Retryable,
            _ => BlobErrorKind::Unknown,
        };
        let (kind, message, context) = match failure {
            RequestFailure::TimedOut(limit, context) => {
                (default_kind(&context), format!("not finished within {limit:?}"), context)
            }
            RequestFailure::Stalled(timeout, context) => {
                (default_kind(&context), format!("no answer for {timeout:?}"), context)
            }
            RequestFailure::Size(problem, context) => (default_kind(&context), problem, context),
            RequestFailure::Object(error, context) => {
                let kind = if is_denied(&error) { BlobErrorKind::Denied } else { default_kind(&context) };
                (kind, error.to_string(), context)
            }
        };
        BlobError { kind, operation: context.operation, path: context.path, message: one_line(&message).into_owned() }
    }
}

/// Returns whether the request fails until a person changes a permission, a setting or the disk.
fn is_denied(error: &Error) -> bool {
    match error {
        Error::PermissionDenied { .. }
        | Error::Unauthenticated { .. }
        | Error::NotSupported { .. }
        | Error::NotImplemented { .. } => true,
        error => {
            let mut source = Some(error as &(dyn std::error::Error + 'static));
            while let Some(error) = source {
                if let Some(io) = error.downcast_ref::<std::io::Error>() {
                    return is_denied_io_error(io);
                }
                source = error.source();
            }
            false
        }
    }
}

fn is_denied_io_error(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{NotADirectory, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem | StorageFull | QuotaExceeded | NotADirectory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_an_object_are_the_object() {
        let object: PutPayload = [&b"header  "[..], b"", b"content"].map(Bytes::from_static).into_iter().collect();
        for len in 1..=object.content_length() + 1 {
            let parts: Vec<Bytes> = split(&object, len).map(Bytes::from).collect();
            assert_eq!(parts.concat(), b"header  content");
            let (last, others) = parts.split_last().unwrap();
            assert!(last.len() <= len && others.iter().all(|part| part.len() == len), "parts of {len} bytes");
        }
    }

    /// Builds a reader of an object of reported size `len` that arrives in pieces of the given sizes.
    fn reader_of(len: u64, pieces: &[usize]) -> ObjectStream {
        let pieces: Vec<_> = pieces.iter().map(|len| Ok(Bytes::from(vec![7; *len]))).collect();
        ObjectStream {
            len,
            pieces: stream::iter(pieces).boxed(),
            path: Path::from("ab/blob"),
            limits: RequestLimits { timeout: Duration::from_secs(1), least_rate: 1 },
            deadline: None,
            metrics: Arc::default(),
        }
    }

    #[tokio::test]
    async fn an_object_longer_than_its_reported_size_is_refused() {
        for pieces in [&[][..], &[10], &[3, 3, 4], &[9, 1]] {
            let len = pieces.iter().sum::<usize>();
            assert_eq!(reader_of(len as u64, pieces).read_all().await.unwrap(), vec![7; len]);
        }
        let short = reader_of(100, &[3, 3]).read_all().await.unwrap();
        assert_eq!(short.len(), 6, "the hash in the record detects a truncated blob");
        for (len, says) in [(9, "more than 9 bytes"), (u64::MAX, "cannot allocate")] {
            let error = reader_of(len, &[5, 5]).read_all().await.unwrap_err();
            assert!(error.kind == BlobErrorKind::Retryable && error.message.contains(says), "{error}");
        }
    }
}
