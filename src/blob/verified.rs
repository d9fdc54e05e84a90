//! [`VerifiedBlobs`]: writes each blob once, and verifies the bytes of a blob at each read.

use std::collections::BTreeMap;

use object_store::{PutPayload, path::Path};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::{
    BlobError, BlobErrorKind, BlobKind, BlobName, BlobOptions, PartialTx, PutOutcome,
    check::{self, Damage, blob_error},
    claim::BlobPlace,
    frame::{HashedContent, TxBlobReader},
    requests::{CreateOutcome, ObjectStream},
};
use crate::{
    record::Blob,
    tx::{FoundOutput, StreamedTransaction, TransactionStream},
};

/// The blobs of a place, without cache and metrics.
pub(super) struct VerifiedBlobs {
    pub place: BlobPlace,
    /// Part size of larger blobs; `None`: one request for each blob.
    part_bytes: Option<usize>,
    whole_reads: ReadBudget,
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
/// Number of reads of a blob whose bytes are not the expected ones.
const READ_ATTEMPTS: usize = 2;

impl VerifiedBlobs {
    pub fn new(place: BlobPlace, options: &BlobOptions) -> Self {
        let whole_reads = ReadBudget::new(options.whole_read_bytes);
        VerifiedBlobs { place, part_bytes: options.part_bytes, whole_reads }
    }

    /// Returns whether a large blob is written in parts.
    pub fn writes_in_parts(&self) -> bool {
        self.part_bytes.is_some()
    }

    /// Returns whether a blob exists; its content is not read.
    #[cfg(feature = "testkit")]
    pub async fn exists(&self, name: BlobName) -> Result<bool, BlobError> {
        match self.size(name).await? {
            Some(_) => Ok(true),
            None => self.place.check_available(name).await.map(|()| false),
        }
    }

    /// Returns the size of a blob in bytes; `None`: the blob was not found.
    pub async fn size(&self, name: BlobName) -> Result<Option<u64>, BlobError> {
        self.place.requests.size(&name.path()).await
    }

    /// Deletes a blob; succeeds if the blob does not exist.
    pub async fn delete(&self, name: BlobName) -> Result<(), BlobError> {
        self.place.check_writable(name).await?;
        self.place.requests.delete(&name.path()).await
    }

    /// Stores a blob unless a blob of this name exists.
    pub async fn put(&self, name: BlobName, content: &HashedContent) -> Result<PutOutcome, BlobError> {
        self.place.check_writable(name).await?;
        let blob = content.blob(name.kind);
        let put = match self.create(name, content, &blob).await? {
            CreateOutcome::New => PutOutcome::Stored,
            CreateOutcome::Exists => self.compare_stored(name, content).await?,
        };
        self.sync_to_disk(name, blob.content_length()).await?;
        Ok(put)
    }

    async fn create(
        &self,
        name: BlobName,
        content: &HashedContent,
        blob: &PutPayload,
    ) -> Result<CreateOutcome, BlobError> {
        let (requests, path) = (&self.place.requests, name.path());
        // A server receives the whole body before it refuses a conditional put. Events that are read again from the log
        // find their blobs stored, so the size is asked for first.
        if requests.size(&path).await?.is_some() {
            return Ok(CreateOutcome::Exists);
        }
        match self.part_bytes.filter(|part| blob.content_length() > *part) {
            Some(part) => {
                // The staged name contains the hash of the content, so that two writers of equal bytes write the same
                // object.
                let file = name.to_string().replace('/', "-");
                let staged = Path::from_iter([STAGING, &format!("{file}.{}", hex::encode(content.hash))]);
                self.create_in_parts(&path, &staged, blob, part).await
            }
            None => requests.create(&path, blob).await,
        }
    }

    async fn sync_to_disk(&self, name: BlobName, bytes: usize) -> Result<(), BlobError> {
        let Some(directory) = &self.place.location.directory else { return Ok(()) };
        let limit = self.place.requests.limits.time_limit(bytes as u64);
        let failed = |message: String| blob_error(BlobErrorKind::Unknown, "write", name, message);
        let synced = tokio::time::timeout(limit, directory.sync_blob(name)).await;
        let synced = synced.map_err(|_| failed("the disk does not answer".to_owned()))?;
        synced.map_err(|error| failed(error.to_string()))
    }

    /// Writes a blob in parts. No store accepts parts on the condition that the object does not exist. The parts
    /// therefore form a staged object of another name, and the store copies that object on the condition.
    async fn create_in_parts(
        &self,
        path: &Path,
        staged: &Path,
        blob: &PutPayload,
        part: usize,
    ) -> Result<CreateOutcome, BlobError> {
        let requests = &self.place.requests;
        requests.overwrite_in_parts(staged, blob, part).await?;
        let created = requests.copy_if_absent(staged, path, blob.content_length() as u64).await;
        if created.is_ok() {
            // A staged object that stays does no harm; the bucket's own rule for old objects deletes it.
            drop(requests.delete(staged).await);
        }
        created
    }

    /// Compares the stored blob, in whatever form, with the content that was to be written.
    async fn compare_stored(&self, name: BlobName, content: &HashedContent) -> Result<PutOutcome, BlobError> {
        let outcome = |is_there: bool, outcome: PutOutcome| match is_there {
            true => Ok(outcome),
            // The blob was deleted meanwhile, or the store reported a blob while another write was under way.
            false => {
                Err(blob_error(BlobErrorKind::Retryable, "write", name, "the stored blob vanished during the put"))
            }
        };
        let same = match name.blob {
            Blob::First(_) => name.of_blob(Blob::First(Some(content.hash))),
            Blob::Other(_) => name,
        };
        match self.verify(same).await {
            // The first blob may have other claims; stored bytes of another transaction are damage.
            Err(error) if error.kind == BlobErrorKind::Corrupt && same != name => {
                outcome(self.verify(name).await?, PutOutcome::OtherStored)
            }
            verified => outcome(verified?, PutOutcome::AlreadyStored),
        }
    }

    /// Reads a blob, and verifies the content against the blob's name. Returns `false` if the blob does not exist.
    async fn verify(&self, name: BlobName) -> Result<bool, BlobError> {
        match name.kind {
            BlobKind::Tx => Ok(self.stream_tx(name, &[]).await?.is_some()),
            BlobKind::Outputs => Ok(self.read(name).await?.is_some()),
        }
    }

    /// Reads the whole content of a blob, verified against the blob's name.
    pub async fn read(&self, name: BlobName) -> Result<Option<HashedContent>, BlobError> {
        let read = || async {
            let Some(object) = self.open_object(name).await? else { return Ok(None) };
            let _permit = self.whole_reads.acquire(object.len).await;
            Ok(Some(check::verify_content(name, object.read_all().await?).await))
        };
        retry_damaged(name, read).await
    }

    /// Reads the known outputs of a partial transaction, verified against the blob's name.
    pub async fn read_outputs(&self, name: BlobName) -> Result<Option<PartialTx>, BlobError> {
        let Some(content) = self.read(name).await? else { return Ok(None) };
        check::decode_outputs(name, &content.bytes).map(Some).map_err(|damage| damage.into_error(name))
    }

    /// Reads a `.tx` piece by piece, verified against the blob's name, and returns its outputs `vouts`.
    pub async fn stream_tx(&self, name: BlobName, vouts: &[u32]) -> Result<Option<StreamedTransaction>, BlobError> {
        let read = || async {
            match self.open_object(name).await? {
                Some(object) => check::verify_stream(name, object, vouts).await.map(Some),
                None => Ok(None),
            }
        };
        retry_damaged(name, read).await
    }

    /// Reads a `.tx` up to the last of the outputs `vouts`. The bytes are **not** verified: the caller compares the
    /// outputs with hashes of its own. `None`: the blob does not exist, or is no transaction so far.
    pub async fn peek_outputs(
        &self,
        name: BlobName,
        vouts: &[u32],
    ) -> Result<Option<BTreeMap<u32, FoundOutput>>, BlobError> {
        let Some(mut object) = self.open_object(name).await? else { return Ok(None) };
        let mut reader = TxBlobReader::new(TransactionStream::new(object.len, vouts.iter().copied()));
        while !reader.has_wanted() {
            let Some(piece) = object.next().await? else { break };
            if reader.push(&piece).is_err() {
                return Ok(None);
            }
        }
        Ok(Some(reader.into_outputs()))
    }

    /// Opens the object of a blob; `None`: the blob does not exist.
    pub async fn open_object(&self, name: BlobName) -> Result<Option<ObjectStream>, BlobError> {
        match self.place.requests.read(&name.path()).await? {
            Some(object) => Ok(Some(object)),
            None => self.place.check_available(name).await.map(|()| None),
        }
    }
}

/// Repeats a read whose bytes are damaged: the transfer may have damaged them.
async fn retry_damaged<T, F>(name: BlobName, read: impl Fn() -> F) -> Result<Option<T>, BlobError>
where
    F: Future<Output = Result<Option<Result<T, Damage>>, BlobError>>,
{
    let mut attempts = 1;
    loop {
        match read().await? {
            Some(Err(_)) if attempts < READ_ATTEMPTS => attempts += 1,
            Some(read) => return read.map(Some).map_err(|damage| damage.into_error(name)),
            None => return Ok(None),
        }
    }
}
