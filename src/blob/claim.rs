//! Whose blob store it is: the mark, made once for one store of records, and looked at ever after.
//!
//! A directory that is not mounted is as empty as a new one. So a place becomes a blob store only for a store of records that
//! has none yet, by a mark that names that store; the store remembers that it has one (`MetaRecord::has_blobs`), and from then on
//! the place must show the mark.

use bytes::Bytes;
use object_store::path::Path;

use super::{
    BlobError, BlobErrorKind, BlobStore, OpenBlobError,
    frame::Framed,
    requests::{Created, Requests},
    store::Place,
};

/// The object that says: this is a blob store, and whose.
pub(super) const MARK: &str = "utxo-store.blobs";
/// The first line of a mark. Another layout would be another text.
const LAYOUT: &str = "utxo-store blobs, layout 1";
/// More of a mark is not shown.
const SHOWN: usize = 80;
/// Of a store that was opened to write.
pub(super) const NOT_CLAIMED: &str = "nobody has said yet whose blobs these are";

/// What a mark says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Mark {
    /// It is the blob store of the store with this id.
    Of([u8; 16]),
    /// Nothing that this program writes: its beginning.
    Unknown(String),
}

impl Mark {
    fn read(text: &[u8]) -> Self {
        let store_id = || {
            let lines = std::str::from_utf8(text).ok()?.strip_prefix(LAYOUT)?;
            let digits = lines.strip_prefix("\nstore ")?.strip_suffix('\n')?;
            let mut store_id = [0; 16];
            hex::decode_to_slice(digits, &mut store_id).ok().map(|()| store_id)
        };
        let shown = || String::from_utf8_lossy(&text[..text.len().min(SHOWN)]).into_owned();
        store_id().map_or_else(|| Mark::Unknown(shown()), Mark::Of)
    }

    fn path() -> Path {
        Path::from(MARK)
    }

    fn of(store_id: [u8; 16]) -> Framed {
        let text = format!("{LAYOUT}\nstore {}\n", hex::encode(store_id));
        Framed { content: Bytes::from(text), checksum: Bytes::new() }
    }
}

/// What the mark says now; `None`: there is none.
pub(super) async fn mark(requests: &Requests) -> Result<Option<Mark>, BlobError> {
    match requests.read(&Mark::path()).await? {
        Some(reading) => Ok(Some(Mark::read(&reading.all().await?))),
        None => Ok(None),
    }
}

/// Why nothing is written, and nothing said to be missing, where the mark is this one; `None`: it is `owner`'s.
pub(super) fn problem(found: Option<Mark>, owner: Option<&[u8; 16]>) -> Option<(BlobErrorKind, String)> {
    match (found, owner) {
        (Some(Mark::Of(found)), Some(owner)) if found == *owner => None,
        (None, _) => Some((BlobErrorKind::Retryable, format!("the store is away: `{MARK}` is gone"))),
        (_, None) => Some((BlobErrorKind::Denied, NOT_CLAIMED.to_owned())),
        (Some(Mark::Of(found)), _) => {
            let found = hex::encode(found);
            Some((BlobErrorKind::Denied, format!("the store is away: in its place is that of the store {found}")))
        }
        (Some(Mark::Unknown(found)), _) => {
            Some((BlobErrorKind::Denied, format!("the store is away: in its place `{MARK}` says {found:?}")))
        }
    }
}

impl BlobStore {
    /// Ties it to the store of records with this id, before anything is written: it must have that store's mark. It gets one where
    /// `is_first` says that the store has had no blob store so far, and the place is empty.
    ///
    /// Then tries whether the place keeps what came first, on which everything here relies; and removes what writers that were
    /// killed long ago have left in a directory. In memory there is nothing to do.
    ///
    /// # Errors
    /// See [`OpenBlobError`].
    pub async fn claim(&self, store_id: [u8; 16], is_first: bool) -> Result<(), OpenBlobError> {
        let Place { url: Some(url), directory, read_only } = self.place() else { return Ok(()) };
        if *read_only {
            return Err(OpenBlobError::ReadOnly { place: url.clone() });
        }
        if is_first && mark(self.requests()).await?.is_none() {
            self.make(url, store_id).await?;
        }
        is_of(url, mark(self.requests()).await?, Some(store_id))?;
        match directory {
            // A second link of one name is refused by the system, or links are.
            Some(directory) => directory.tidy().await?,
            None => self.try_conditions(url, store_id).await?,
        }
        self.set_owner(store_id);
        Ok(())
    }

    /// What [`claim`](Self::claim) would find, with nothing written; `store_id`: `None` for a store of records that is not made yet. `false`: it
    /// is empty, and would be made this store's. Whether it heeds conditions only a claim can try.
    ///
    /// # Errors
    /// As `claim`.
    pub async fn look(&self, store_id: Option<[u8; 16]>, is_first: bool) -> Result<bool, OpenBlobError> {
        let Place { url: Some(url), directory, .. } = self.place() else { return Ok(true) };
        match mark(self.requests()).await? {
            None if is_first => {
                let is_empty = match directory {
                    Some(directory) => directory.is_empty().await?,
                    None => self.requests().hold_nothing_but(&Mark::path()).await?,
                };
                if is_empty { Ok(false) } else { Err(OpenBlobError::NotEmpty { place: url.clone() }) }
            }
            found => is_of(url, found, store_id).map(|()| true),
        }
    }

    /// Takes it for the store of whoever has marked it: for those who only read.
    pub(super) async fn adopt(&self) -> Result<(), OpenBlobError> {
        let Some(url) = &self.place().url else { return Ok(()) };
        self.set_owner(accepted(url, mark(self.requests()).await?)?);
        Ok(())
    }

    /// Makes a blob store of an empty place.
    async fn make(&self, url: &str, store_id: [u8; 16]) -> Result<(), OpenBlobError> {
        let is_empty = match &self.place().directory {
            Some(directory) => directory.set_up().await?,
            None => self.requests().hold_nothing_but(&Mark::path()).await?,
        };
        if is_empty {
            // Where there is one by now, what it says is looked at next.
            self.requests().create(&Mark::path(), &Mark::of(store_id)).await?;
            return Ok(());
        }
        // Somebody else may have made it, and stored a blob in it, since we looked.
        match mark(self.requests()).await? {
            Some(_) => Ok(()),
            None => Err(OpenBlobError::NotEmpty { place: url.to_owned() }),
        }
    }

    /// Writes the mark again, and copies it onto itself, on condition that there is none. Who does not look at conditions overwrites
    /// it with what it was.
    async fn try_conditions(&self, url: &str, store_id: [u8; 16]) -> Result<(), OpenBlobError> {
        let (path, mark) = (Mark::path(), Mark::of(store_id));
        let overwrites = |what| OpenBlobError::Overwrites { place: url.to_owned(), what };
        if self.requests().create(&path, &mark).await? == Created::New {
            return Err(overwrites("write"));
        }
        let len = mark.len() as u64;
        if self.writes_in_parts() && self.requests().copy_if_absent(&path, &path, len).await? == Created::New {
            return Err(overwrites("copy"));
        }
        Ok(())
    }
}

/// Whether a mark is that of the store of records with this id; `None`: of one that is not made yet, whose no mark can be.
fn is_of(url: &str, found: Option<Mark>, store_id: Option<[u8; 16]>) -> Result<(), OpenBlobError> {
    let found = accepted(url, found)?;
    if Some(found) == store_id {
        return Ok(());
    }
    let store = store_id.map_or_else(|| "a new one".to_owned(), hex::encode);
    Err(OpenBlobError::OtherStore { place: url.to_owned(), found: hex::encode(found), store })
}

fn accepted(url: &str, found: Option<Mark>) -> Result<[u8; 16], OpenBlobError> {
    let place = url.to_owned();
    match found {
        None => Err(OpenBlobError::Missing { place }),
        Some(Mark::Unknown(found)) => Err(OpenBlobError::Layout { place, found }),
        Some(Mark::Of(store_id)) => Ok(store_id),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_says_whose_it_is_in_words_that_people_can_read() {
        let text = Bytes::from(Mark::of([0xab; 16]).whole());
        assert_eq!(text, "utxo-store blobs, layout 1\nstore abababababababababababababababab\n");
        assert_eq!(Mark::read(&text), Mark::Of([0xab; 16]));
        for other in [&b""[..], b"utxo-store blobs, layout 1\n", b"utxo-store blobs, layout 2\nstore ab\n", b"\xff"] {
            assert_eq!(Mark::read(other), Mark::Unknown(String::from_utf8_lossy(other).into()));
        }
        assert_eq!(
            Mark::read(&text[..text.len() - 2]),
            Mark::Unknown(String::from_utf8_lossy(&text[..text.len() - 2]).into())
        );
    }
}
