//! Ownership of a blob store: a mark names the one store of records to which the blobs belong.
//!
//! A directory that is not mounted is as empty as a new one. Therefore a place becomes a blob store only for a store of
//! records that has no blob store yet. The mark names that store of records, and the meta record notes that the blob
//! store exists (`MetaRecord::has_blobs`). From then on the place must have the mark.

use bytes::Bytes;
use object_store::path::Path;

use super::{
    BlobError, BlobErrorKind, BlobStore, OpenBlobError,
    frame::Framed,
    requests::{CreateOutcome, Requests},
    store::BlobLocation,
};

/// Name of the object that marks a place as a blob store and names its owner.
pub(super) const MARK: &str = "utxo-store.blobs";
/// First line of a mark. Another layout would have another text.
const LAYOUT: &str = "utxo-store blobs, layout 1";
/// Bytes of an unknown mark that messages quote.
const QUOTED_BYTES: usize = 80;
/// Message for a store that was opened to write and not claimed.
pub(super) const NOT_CLAIMED: &str = "the blob store is not claimed by a store of records yet";

/// Content of a mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Mark {
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

    fn encode(store_id: [u8; 16]) -> Framed {
        let text = format!("{LAYOUT}\nstore {}\n", hex::encode(store_id));
        Framed { content: Bytes::from(text), checksum: Bytes::new() }
    }
}

/// Reads the mark; `None`: the place has no mark.
pub(super) async fn read_mark(requests: &Requests) -> Result<Option<Mark>, BlobError> {
    match requests.read(&Mark::path()).await? {
        Some(object) => Ok(Some(Mark::parse(&object.read_all().await?))),
        None => Ok(None),
    }
}

/// Returns the reason why a place with this mark is not the blob store of `owner`; `None`: the mark names `owner`.
pub(super) fn find_mark_problem(found: Option<Mark>, owner: Option<&[u8; 16]>) -> Option<(BlobErrorKind, String)> {
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

impl BlobStore {
    /// Ties the blob store to the store of records with this id; required before the first write. The place must have
    /// that store's mark. The mark is written if the place is empty and `is_first` says that the store of records has
    /// never had a blob store.
    ///
    /// A claim also checks that the place refuses to overwrite, because "the first blob stays" relies on that. In a
    /// directory it removes the staged files of writers that were killed long ago. In memory a claim does nothing.
    ///
    /// # Errors
    /// See [`OpenBlobError`].
    pub async fn claim(&self, store_id: [u8; 16], is_first: bool) -> Result<(), OpenBlobError> {
        let BlobLocation { url: Some(url), directory, is_read_only } = self.location() else { return Ok(()) };
        if *is_read_only {
            return Err(OpenBlobError::ReadOnly { place: url.clone() });
        }
        if is_first && read_mark(self.requests()).await?.is_none() {
            self.create_mark(url, store_id).await?;
        }
        check_owner(url, read_mark(self.requests()).await?, Some(store_id))?;
        match directory {
            // A file system refuses a second link of one name, or any link.
            Some(directory) => directory.sync_mark_and_clean().await?,
            None => self.check_conditional_requests(url, store_id).await?,
        }
        self.set_owner(store_id);
        Ok(())
    }

    /// Predicts the result of [`claim`](Self::claim) and writes nothing. `store_id` is `None` for a store of records
    /// that does not exist yet. Returns `false` if the place is empty and a claim would mark it. Only a claim can check
    /// that the place refuses to overwrite.
    ///
    /// # Errors
    /// As [`claim`](Self::claim).
    pub async fn check_claim(&self, store_id: Option<[u8; 16]>, is_first: bool) -> Result<bool, OpenBlobError> {
        let BlobLocation { url: Some(url), directory, .. } = self.location() else { return Ok(true) };
        match read_mark(self.requests()).await? {
            None if is_first => {
                let is_empty = match directory {
                    Some(directory) => directory.is_empty().await?,
                    None => self.requests().is_empty_except(&Mark::path()).await?,
                };
                if is_empty { Ok(false) } else { Err(OpenBlobError::NotEmpty { place: url.clone() }) }
            }
            found => check_owner(url, found, store_id).map(|()| true),
        }
    }

    /// Accepts the owner that the mark names; for a store that is opened to read.
    pub(super) async fn adopt_owner(&self) -> Result<(), OpenBlobError> {
        let Some(url) = &self.location().url else { return Ok(()) };
        self.set_owner(require_owner(url, read_mark(self.requests()).await?)?);
        Ok(())
    }

    /// Makes an empty place the blob store of `store_id`.
    async fn create_mark(&self, url: &str, store_id: [u8; 16]) -> Result<(), OpenBlobError> {
        let is_empty = match &self.location().directory {
            Some(directory) => directory.set_up().await?,
            None => self.requests().is_empty_except(&Mark::path()).await?,
        };
        if is_empty {
            // The caller checks the owner next, so a mark that another process wrote meanwhile is found there.
            self.requests().create(&Mark::path(), &Mark::encode(store_id)).await?;
            return Ok(());
        }
        // Another process may have marked the place and stored a blob since the first look.
        match read_mark(self.requests()).await? {
            Some(_) => Ok(()),
            None => Err(OpenBlobError::NotEmpty { place: url.to_owned() }),
        }
    }

    /// Writes the mark and copies the mark onto itself, both on the condition that no such object exists. A server that
    /// ignores conditions overwrites the mark with equal bytes.
    async fn check_conditional_requests(&self, url: &str, store_id: [u8; 16]) -> Result<(), OpenBlobError> {
        let (path, mark) = (Mark::path(), Mark::encode(store_id));
        let overwrites = |what| OpenBlobError::Overwrites { place: url.to_owned(), what };
        if self.requests().create(&path, &mark).await? == CreateOutcome::New {
            return Err(overwrites("write"));
        }
        let len = mark.len() as u64;
        if self.writes_in_parts() && self.requests().copy_if_absent(&path, &path, len).await? == CreateOutcome::New {
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
    use super::*;

    #[test]
    fn a_mark_is_readable_text_that_names_the_owner() {
        let text = Bytes::from(Mark::encode([0xab; 16]).whole());
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
