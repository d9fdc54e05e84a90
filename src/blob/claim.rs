//! Ownership of a blob store: a mark names the one store of records to which the blobs belong.
//!
//! A directory that is not mounted is as empty as a new one. Therefore a place becomes a blob store only for a store of
//! records that has no blob store yet. The mark names that store of records, and the meta record notes that the blob
//! store exists (`MetaRecord::has_blobs`). From then on the place must have the mark.

use std::sync::OnceLock;

use object_store::{PutPayload, path::Path};

use super::{
    BlobError, BlobErrorKind, BlobName, OpenBlobError,
    check::blob_error,
    directory::BlobDirectory,
    requests::{CreateOutcome, Requests},
};

/// Name of the object that marks a place as a blob store and names its owner.
pub(super) const MARK: &str = "utxo-store.blobs";
/// First line of a mark. Another layout would have another text.
const LAYOUT: &str = "utxo-store blobs, layout 1";
/// Bytes of an unknown mark that messages quote.
const QUOTED_BYTES: usize = 80;
/// Message for a store that was opened to write and not claimed.
const NOT_CLAIMED: &str = "the blob store is not claimed by a store of records yet";

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

/// Place of a blob store: its objects, their location, and the store of records that owns the objects.
pub(super) struct BlobPlace {
    pub requests: Requests,
    pub location: BlobLocation,
    /// Id of the store of records that owns the blobs, once it is known.
    owner: OnceLock<[u8; 16]>,
}

/// Content of a mark.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Mark {
    /// The blob store belongs to the store of records with this id.
    OwnedBy([u8; 16]),
    /// Beginning of a mark that this version does not write.
    Unknown(String),
}

impl Mark {
    fn parse(text: &[u8]) -> Self {
        let store_id = || {
            let lines = std::str::from_utf8(text).ok()?.strip_prefix(LAYOUT)?;
            let digits = lines.strip_prefix("\nstore ")?.strip_suffix('\n')?;
            let mut store_id = [0; 16];
            hex::decode_to_slice(digits, &mut store_id).ok().map(|()| store_id)
        };
        let quoted = || String::from_utf8_lossy(&text[..text.len().min(QUOTED_BYTES)]).into_owned();
        store_id().map_or_else(|| Mark::Unknown(quoted()), Mark::OwnedBy)
    }

    fn path() -> Path {
        Path::from(MARK)
    }

    fn encode(store_id: [u8; 16]) -> PutPayload {
        format!("{LAYOUT}\nstore {}\n", hex::encode(store_id)).into()
    }
}

/// Returns the reason why a place with this mark is not the blob store of `owner`; `None`: the mark names `owner`.
fn find_mark_problem(found: Option<Mark>, owner: Option<&[u8; 16]>) -> Option<(BlobErrorKind, String)> {
    match (found, owner) {
        (Some(Mark::OwnedBy(found)), Some(owner)) if found == *owner => None,
        (None, _) => {
            let message = format!("blob store unavailable: `{MARK}` is missing; check that the place is mounted");
            Some((BlobErrorKind::Retryable, message))
        }
        (_, None) => Some((BlobErrorKind::Denied, NOT_CLAIMED.to_owned())),
        (Some(Mark::OwnedBy(found)), _) => {
            let found = hex::encode(found);
            let message = format!("blob store unavailable: the place now holds the blobs of the store {found}");
            Some((BlobErrorKind::Denied, message))
        }
        (Some(Mark::Unknown(found)), _) => {
            Some((BlobErrorKind::Denied, format!("blob store unavailable: `{MARK}` now reads {found:?}")))
        }
    }
}

impl BlobPlace {
    pub fn new(requests: Requests, location: BlobLocation) -> Self {
        BlobPlace { requests, location, owner: OnceLock::new() }
    }

    /// Makes the place the blob store of `store_id`, see [`BlobStore::claim`](super::BlobStore::claim).
    /// `writes_in_parts`: the place must also refuse to overwrite by a copy.
    pub async fn claim(&self, store_id: [u8; 16], is_first: bool, writes_in_parts: bool) -> Result<(), OpenBlobError> {
        let BlobLocation { url: Some(url), directory, is_read_only } = &self.location else { return Ok(()) };
        if *is_read_only {
            return Err(OpenBlobError::ReadOnly { place: url.clone() });
        }
        if is_first && self.read_mark().await?.is_none() {
            self.create_mark(url, store_id).await?;
        }
        check_owner(url, self.read_mark().await?, Some(store_id))?;
        match directory {
            // A file system refuses a second link of one name, or any link.
            Some(directory) => directory.sync_mark_and_clean().await?,
            None => self.check_conditional_requests(url, store_id, writes_in_parts).await?,
        }
        self.set_owner(store_id);
        Ok(())
    }

    /// Predicts the result of a claim and writes nothing, see
    /// [`BlobStore::check_claim`](super::BlobStore::check_claim).
    pub async fn check_claim(&self, store_id: Option<[u8; 16]>, is_first: bool) -> Result<bool, OpenBlobError> {
        let Some(url) = &self.location.url else { return Ok(true) };
        match self.read_mark().await? {
            None if is_first => {
                let is_empty = match &self.location.directory {
                    Some(directory) => directory.is_empty().await?,
                    None => self.requests.is_empty_except(&Mark::path()).await?,
                };
                if is_empty { Ok(false) } else { Err(OpenBlobError::NotEmpty { place: url.clone() }) }
            }
            found => check_owner(url, found, store_id).map(|()| true),
        }
    }

    /// Accepts the owner that the mark names; for a store that is opened to read.
    pub async fn adopt_owner(&self) -> Result<(), OpenBlobError> {
        let Some(url) = &self.location.url else { return Ok(()) };
        self.set_owner(require_owner(url, self.read_mark().await?)?);
        Ok(())
    }

    /// Fails unless blobs can be written: the place is claimed, and was not opened to read.
    pub async fn check_writable(&self, name: BlobName) -> Result<(), BlobError> {
        let BlobLocation { url, directory, is_read_only } = &self.location;
        let denied = |reason| Err(blob_error(BlobErrorKind::Denied, "write", name, reason));
        if *is_read_only {
            return denied("the blob store was opened to read");
        }
        if url.is_some() && self.owner.get().is_none() {
            return denied(NOT_CLAIMED);
        }
        // Writes to a directory that is not mounted would go into the directory below the mount point.
        if directory.is_some() { self.check_available(name).await } else { Ok(()) }
    }

    /// Fails unless the store has the owner's mark. Only then does "not found" mean that the blob is missing: a
    /// directory that is not mounted and a bucket that was deleted find no object at all.
    pub async fn check_available(&self, name: BlobName) -> Result<(), BlobError> {
        if self.location.url.is_none() {
            return Ok(());
        }
        match find_mark_problem(self.read_mark().await?, self.owner.get()) {
            Some((kind, message)) => Err(blob_error(kind, "read", name, message)),
            None => Ok(()),
        }
    }

    /// Reads the mark; `None`: the place has no mark.
    async fn read_mark(&self) -> Result<Option<Mark>, BlobError> {
        match self.requests.read(&Mark::path()).await? {
            Some(object) => Ok(Some(Mark::parse(&object.read_all().await?))),
            None => Ok(None),
        }
    }

    /// Sets the owner; the first call wins.
    fn set_owner(&self, store_id: [u8; 16]) {
        self.owner.get_or_init(|| store_id);
    }

    /// Makes an empty place the blob store of `store_id`.
    async fn create_mark(&self, url: &str, store_id: [u8; 16]) -> Result<(), OpenBlobError> {
        let is_empty = match &self.location.directory {
            Some(directory) => directory.set_up().await?,
            None => self.requests.is_empty_except(&Mark::path()).await?,
        };
        if is_empty {
            // The caller checks the owner next, so a mark that another process wrote meanwhile is found there.
            self.requests.create(&Mark::path(), &Mark::encode(store_id)).await?;
            return Ok(());
        }
        // Another process may have marked the place and stored a blob since the first look.
        match self.read_mark().await? {
            Some(_) => Ok(()),
            None => Err(OpenBlobError::NotEmpty { place: url.to_owned() }),
        }
    }

    /// Writes the mark and copies the mark onto itself, both on the condition that no such object exists. A server that
    /// ignores conditions overwrites the mark with equal bytes.
    async fn check_conditional_requests(
        &self,
        url: &str,
        store_id: [u8; 16],
        writes_in_parts: bool,
    ) -> Result<(), OpenBlobError> {
        let (path, mark) = (Mark::path(), Mark::encode(store_id));
        let overwrites = |what| OpenBlobError::Overwrites { place: url.to_owned(), what };
        if self.requests.create(&path, &mark).await? == CreateOutcome::New {
            return Err(overwrites("write"));
        }
        let len = mark.content_length() as u64;
        if writes_in_parts && self.requests.copy_if_absent(&path, &path, len).await? == CreateOutcome::New {
            return Err(overwrites("copy"));
        }
        Ok(())
    }
}

/// Refuses a mark that does not name `store_id`. `None`: the store of records does not exist yet, so no mark can name
/// it.
fn check_owner(url: &str, found: Option<Mark>, store_id: Option<[u8; 16]>) -> Result<(), OpenBlobError> {
    let found = require_owner(url, found)?;
    if Some(found) == store_id {
        return Ok(());
    }
    let store = store_id.map_or_else(|| "a new store".to_owned(), hex::encode);
    Err(OpenBlobError::OtherStore { place: url.to_owned(), found: hex::encode(found), store })
}

fn require_owner(url: &str, found: Option<Mark>) -> Result<[u8; 16], OpenBlobError> {
    let place = url.to_owned();
    match found {
        None => Err(OpenBlobError::Missing { place }),
        Some(Mark::Unknown(found)) => Err(OpenBlobError::Layout { place, found }),
        Some(Mark::OwnedBy(store_id)) => Ok(store_id),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn a_mark_is_readable_text_that_names_the_owner() {
        let text = Bytes::from(Mark::encode([0xab; 16]));
        assert_eq!(text, "utxo-store blobs, layout 1\nstore abababababababababababababababab\n");
        assert_eq!(Mark::parse(&text), Mark::OwnedBy([0xab; 16]));
        for other in [&b""[..], b"utxo-store blobs, layout 1\n", b"utxo-store blobs, layout 2\nstore ab\n", b"\xff"] {
            assert_eq!(Mark::parse(other), Mark::Unknown(String::from_utf8_lossy(other).into()));
        }
        assert_eq!(
            Mark::parse(&text[..text.len() - 2]),
            Mark::Unknown(String::from_utf8_lossy(&text[..text.len() - 2]).into())
        );
    }
}
