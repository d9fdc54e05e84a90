//! Single requests to a store of objects: each within its time, each failure told by what the caller may do.
//!
//! How long one may take follows from its bytes, as nobody tells how far a write is: [`Pace`]. A read ends earlier where no byte comes.

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
    Error, GetResult, GetResultPayload, MultipartUpload, ObjectStore, ObjectStoreExt, PutMode, PutOptions, path::Path,
};

use tokio::time::Instant;

use super::{BlobError, BlobErrorKind, frame::Framed};
use crate::{
    telemetry::{Direction, Metrics},
    text::one_line,
};

/// Bytes that are handed on at once: what a read holds in memory, and how long a hash may keep a thread.
pub(super) const PIECE: usize = 1 << 20;
/// Parts of a large object that are on their way at once.
const PARTS_IN_FLIGHT: usize = 4;

/// A size is what the store says, and may be anything: a clock has an end.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// How long a request may take: who is slower is taken for a store that does not answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// Without the bytes that it moves; and how long there may be no byte of an answer.
    pub timeout: Duration,
    /// As much longer as the bytes take at this rate, a second.
    pub least_rate: u64,
}

impl Pace {
    pub fn limit(self, len: u64) -> Duration {
        self.timeout + Duration::from_secs(len / self.least_rate.max(1)).min(LONGEST)
    }
}

/// A store of objects, and how long it may take.
#[derive(Clone)]
pub(super) struct Requests {
    pub store: Arc<dyn ObjectStore>,
    pub pace: Pace,
    pub metrics: Arc<Metrics>,
}

/// An object that is being read.
pub(super) struct Reading {
    /// Its size, as the store told it.
    pub len: u64,
    pieces: BoxStream<'static, Result<Bytes, Error>>,
    path: Path,
    pace: Pace,
    /// When all of it must have been read: from the first byte that is asked for.
    deadline: Option<Instant>,
    metrics: Arc<Metrics>,
}

/// What became of a conditional write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Created {
    New,
    Exists,
}

impl Requests {
    /// Writes an object that is not there yet, all at once.
    pub async fn create(&self, path: &Path, blob: &Framed) -> Result<Created, BlobError> {
        self.metrics.blob_bytes.of(Direction::Written).inc_by(blob.len() as u64);
        let put = self.store.put_opts(path, blob.whole(), PutOptions::from(PutMode::Create));
        created(self.within("write", path, blob.len() as u64, put).await)
    }

    /// Writes an object in parts, each a request of its own, whether it is there or not. It is there once all are.
    pub async fn overwrite_in_parts(&self, path: &Path, blob: &Framed, part: usize) -> Result<(), BlobError> {
        self.metrics.blob_bytes.of(Direction::Written).inc_by(blob.len() as u64);
        let begin = self.store.put_multipart(path);
        let mut upload = self.within("write", path, 0, begin).await?;
        let sent = self.send_parts(path, blob, part, &mut *upload).await;
        let done = match sent {
            Ok(()) => self.within("write", path, blob.len() as u64, upload.complete()).await.map(drop),
            Err(error) => Err(error),
        };
        if done.is_err() {
            // What this leaves behind, and what a kill does, is for the store's own rule on unfinished uploads.
            drop(self.within("write", path, 0, upload.abort()).await);
        }
        Ok(done?)
    }

    async fn send_parts(
        &self,
        path: &Path,
        blob: &Framed,
        part: usize,
        upload: &mut dyn MultipartUpload,
    ) -> Result<(), Failure> {
        let mut on_their_way = FuturesUnordered::new();
        for sent in blob.parts(part) {
            if on_their_way.len() == PARTS_IN_FLIGHT {
                on_their_way.next().await.unwrap_or(Ok(()))?;
            }
            // They share one line.
            let len = (sent.content_length() * PARTS_IN_FLIGHT) as u64;
            on_their_way.push(self.within("write", path, len, upload.put_part(sent)));
        }
        while let Some(sent) = on_their_way.next().await {
            sent?;
        }
        Ok(())
    }

    /// Gives an object a second name, unless that is taken.
    pub async fn copy_if_absent(&self, from: &Path, to: &Path, len: u64) -> Result<Created, BlobError> {
        created(self.within("write", to, len, self.store.copy_if_not_exists(from, to)).await)
    }

    /// Deletes an object; one that is not there is deleted.
    pub async fn delete(&self, path: &Path) -> Result<(), BlobError> {
        match self.within("delete", path, 0, self.store.delete(path)).await {
            Err(Failure::Object(Error::NotFound { .. }, _)) => Ok(()),
            done => Ok(done?),
        }
    }

    /// Size of an object; `None`: there is none.
    pub async fn size(&self, path: &Path) -> Result<Option<u64>, BlobError> {
        match self.within("read", path, 0, self.store.head(path)).await {
            Ok(meta) => Ok(Some(meta.size)),
            Err(Failure::Object(Error::NotFound { .. }, _)) => Ok(None),
            Err(failure) => Err(failure.into()),
        }
    }

    /// Whether there is no object, except perhaps this one.
    pub async fn hold_nothing_but(&self, path: &Path) -> Result<bool, BlobError> {
        let mut others = self.store.list(None).try_filter(|object| ready(object.location != *path));
        Ok(self.within("read", path, 0, others.try_next()).await?.is_none())
    }

    /// Begins to read an object; `None`: there is none.
    pub async fn read(&self, path: &Path) -> Result<Option<Reading>, BlobError> {
        let found = match self.within("read", path, 0, self.store.get(path)).await {
            Ok(found) => found,
            Err(Failure::Object(Error::NotFound { .. }, _)) => return Ok(None),
            Err(failure) => return Err(failure.into()),
        };
        let len = found.meta.size;
        let (pace, metrics) = (self.pace, self.metrics.clone());
        Ok(Some(Reading { len, pieces: pieces(found), path: path.clone(), pace, deadline: None, metrics }))
    }

    async fn within<T>(
        &self,
        operation: &'static str,
        path: &Path,
        len: u64,
        request: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Failure> {
        let limit = self.pace.limit(len);
        let at = At { operation, path: path.to_string() };
        match tokio::time::timeout(limit, request).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(error)) => Err(Failure::Object(error, at)),
            Err(_) => Err(Failure::Late(limit, at)),
        }
    }
}

impl Reading {
    /// The next bytes; `None` at the end. One that ends before its size is told as a failure.
    pub async fn next(&mut self) -> Result<Option<Bytes>, BlobError> {
        let Pace { timeout, .. } = self.pace;
        let limit = self.pace.limit(self.len);
        let deadline = *self.deadline.get_or_insert_with(|| Instant::now() + limit);
        let next = tokio::time::timeout_at(deadline.min(Instant::now() + timeout), self.pieces.next()).await;
        match next {
            Ok(None) => Ok(None),
            Ok(Some(Ok(piece))) => {
                self.metrics.blob_bytes.of(Direction::Read).inc_by(piece.len() as u64);
                Ok(Some(piece))
            }
            Ok(Some(Err(error))) => Err(Failure::Object(error, self.at()).into()),
            Err(_) if Instant::now() >= deadline => Err(Failure::Late(limit, self.at()).into()),
            Err(_) => Err(Failure::Silent(timeout, self.at()).into()),
        }
    }

    fn at(&self) -> At {
        At { operation: "read", path: self.path.to_string() }
    }

    /// All bytes.
    pub async fn all(mut self) -> Result<Bytes, BlobError> {
        let Some(first) = self.next().await? else { return Ok(Bytes::new()) };
        let mut next = self.next().await?;
        if next.is_none() {
            return Ok(first);
        }
        // Room for what the store says, once: a buffer that grows by doubling is copied, and twice as large as needed. What the
        // system cannot give is refused, and what is not filled costs nothing.
        let mut all = Vec::new();
        let reserved = usize::try_from(self.len).is_ok_and(|len| all.try_reserve_exact(len).is_ok());
        if !reserved {
            return Err(Failure::Size(format!("there is no room for {} bytes", self.len), self.at()).into());
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
            return Err(Failure::Size(format!("there is more of it than {} bytes", self.len), self.at()).into());
        }
        all.extend_from_slice(piece);
        Ok(())
    }
}

/// `object_store` reads files 8 KiB at a time, a task for each.
fn pieces(found: GetResult) -> BoxStream<'static, Result<Bytes, Error>> {
    let GetResult { payload, meta, .. } = found;
    let file = match payload {
        GetResultPayload::File(file, _) => file,
        GetResultPayload::Stream(stream) => return stream,
    };
    stream::try_unfold((file, meta.size), |(file, left)| read_piece(file, left)).boxed()
}

/// The next piece of a file of which so much is left, and the rest; `None` at its end.
async fn read_piece(file: File, left: u64) -> Result<Option<(Bytes, (File, u64))>, Error> {
    let read = tokio::task::spawn_blocking(move || {
        let mut piece = Vec::with_capacity(PIECE.min(usize::try_from(left).unwrap_or(PIECE)));
        let read = (&file).take(PIECE as u64).read_to_end(&mut piece)?;
        Ok((read > 0).then(|| (piece.into(), (file, left.saturating_sub(read as u64)))))
    });
    let read = read.await.map_err(|source| Error::JoinError { source })?;
    read.map_err(|source: io::Error| Error::Generic { store: "LocalFileSystem", source: Box::new(source) })
}

fn created<T>(put: Result<T, Failure>) -> Result<Created, BlobError> {
    match put {
        Ok(_) => Ok(Created::New),
        Err(Failure::Object(Error::AlreadyExists { .. }, _)) => Ok(Created::Exists),
        Err(failure) => Err(failure.into()),
    }
}

struct At {
    operation: &'static str,
    path: String,
}

enum Failure {
    Object(Error, At),
    /// Not done by then.
    Late(Duration, At),
    /// No byte for so long.
    Silent(Duration, At),
    /// What the store says of the size cannot be.
    Size(String, At),
}

impl From<Failure> for BlobError {
    fn from(failure: Failure) -> Self {
        let undecided = |at: &At| match at.operation {
            "read" => BlobErrorKind::Retryable,
            _ => BlobErrorKind::Unknown,
        };
        let (kind, message, at) = match failure {
            Failure::Late(limit, at) => (undecided(&at), format!("not done within {limit:?}"), at),
            Failure::Silent(timeout, at) => (undecided(&at), format!("no answer for {timeout:?}"), at),
            Failure::Size(wrong, at) => (undecided(&at), wrong, at),
            Failure::Object(error, at) => {
                let kind = if is_denied(&error) { BlobErrorKind::Denied } else { undecided(&at) };
                (kind, error.to_string(), at)
            }
        };
        BlobError { kind, operation: at.operation, path: at.path, message: one_line(&message).into_owned() }
    }
}

/// Whether somebody has to change something before it can be done.
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
                    return is_denied_by_the_system(io);
                }
                source = error.source();
            }
            false
        }
    }
}

fn is_denied_by_the_system(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{NotADirectory, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem | StorageFull | QuotaExceeded | NotADirectory)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A read of so many bytes by the store's word, which then come in pieces.
    fn reading(len: u64, pieces: &[usize]) -> Reading {
        let pieces: Vec<_> = pieces.iter().map(|len| Ok(Bytes::from(vec![7; *len]))).collect();
        Reading {
            len,
            pieces: stream::iter(pieces).boxed(),
            path: Path::from("ab/blob"),
            pace: Pace { timeout: Duration::from_secs(1), least_rate: 1 },
            deadline: None,
            metrics: Arc::default(),
        }
    }

    #[tokio::test]
    async fn what_is_read_whole_is_as_long_as_the_store_says() {
        for pieces in [&[][..], &[10], &[3, 3, 4], &[9, 1]] {
            let len = pieces.iter().sum::<usize>();
            assert_eq!(reading(len as u64, pieces).all().await.unwrap(), vec![7; len]);
        }
        assert_eq!(reading(100, &[3, 3]).all().await.unwrap().len(), 6, "what is cut short is seen by its checksum");
        for (len, says) in [(9, "more of it than 9 bytes"), (u64::MAX, "no room for")] {
            let error = reading(len, &[5, 5]).all().await.unwrap_err();
            assert!(error.kind == BlobErrorKind::Retryable && error.message.contains(says), "{error}");
        }
    }
}
