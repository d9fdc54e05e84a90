//! Objects of other programs, read as streams: the transaction ids of blocks that are too large for a message.

use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};
use object_store::{ObjectStore, path::Path};
use sha2::{Digest, Sha256};

use super::{
    BlobError, BlobOptions,
    requests::{ObjectStream, Requests},
};
use crate::tx::Txid;

/// Reads the objects of a place that other programs write. Writes nothing and needs no mark. Cheap to clone.
#[derive(Clone)]
pub struct Objects(Requests);

/// Reasons why the reading of an object ends early.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants and name the fields")]
pub enum ObjectError {
    /// The object does not exist: it is not written yet, or in another place.
    #[error("object `{0}` does not exist")]
    Missing(String),
    /// The place does not answer. After a retryable error the reading starts again at the first byte.
    #[error("cannot read object `{0}`: {1}")]
    Failed(String, BlobError),
    /// The object differs from the announcement in its event.
    #[error("object `{key}` does not match its event: {problem}")]
    Wrong { key: String, problem: String },
}

/// Announcement of an object in a block: a plain concatenation of transaction ids in internal byte order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnnouncedObject<'a> {
    /// Key of the object.
    pub key: &'a str,
    /// Number of transaction ids.
    pub count: u64,
    /// SHA-256 of the whole object.
    pub sha256: [u8; 32],
}

/// Streams transaction ids from an object. The ids are verified only once the stream has ended without an error.
pub struct TxidStream<'a> {
    announced: AnnouncedObject<'a>,
    reader: ObjectStream,
    hash: Sha256,
    /// Bytes read and not returned yet; the first bytes may be the end of an id.
    buffer: BytesMut,
    /// Number of bytes read.
    received: u64,
}

impl Objects {
    /// Reads the objects in `store`, with the time limits of `options`.
    pub fn new(store: Arc<dyn ObjectStore>, options: &BlobOptions) -> Self {
        Objects(Requests::new(store, options))
    }

    /// Begins to stream the ids of an announced object.
    ///
    /// # Errors
    /// The object does not exist or has another size, or the place does not answer.
    pub async fn txids<'a>(&self, announced: AnnouncedObject<'a>) -> Result<TxidStream<'a>, ObjectError> {
        let AnnouncedObject { key, count, .. } = announced;
        let reader = self.open(key).await?;
        if Some(reader.len) != count.checked_mul(32) {
            return Err(announced.mismatch(format!("{} bytes are not {count} transaction ids", reader.len)));
        }
        Ok(TxidStream { announced, reader, hash: Sha256::new(), buffer: BytesMut::new(), received: 0 })
    }

    /// Reads an object in pieces, in their order, as long as `each` returns `true`.
    ///
    /// # Errors
    /// The object does not exist, or the place does not answer.
    pub async fn read_pieces(&self, key: &str, mut each: impl FnMut(&[u8]) -> bool) -> Result<(), ObjectError> {
        let mut reader = self.open(key).await?;
        while let Some(piece) = reader.next().await.map_err(|error| to_object_error(key, error))? {
            if !each(&piece) {
                break;
            }
        }
        Ok(())
    }

    async fn open(&self, key: &str) -> Result<ObjectStream, ObjectError> {
        let opened = self.0.read(&Path::from(key)).await.map_err(|error| to_object_error(key, error))?;
        opened.ok_or_else(|| ObjectError::Missing(key.to_owned()))
    }
}

impl TxidStream<'_> {
    /// Returns the next ids, as many as arrived together. No ids: the stream has ended and matches the announcement.
    ///
    /// # Errors
    /// The object does not match the announcement, or the place does not answer.
    pub async fn next(&mut self) -> Result<Vec<Txid>, ObjectError> {
        let whole = loop {
            let whole = self.buffer.len() / 32 * 32;
            if whole > 0 {
                break whole;
            }
            match self.reader.next().await.map_err(|error| to_object_error(self.announced.key, error))? {
                Some(piece) => self.append(&piece)?,
                None => return self.verify_end().map(|()| Vec::new()),
            }
        };
        let txids = self.buffer[..whole].as_chunks().0.iter().map(|txid| Txid(*txid)).collect();
        self.buffer.advance(whole);
        Ok(txids)
    }

    fn append(&mut self, piece: &Bytes) -> Result<(), ObjectError> {
        self.received += piece.len() as u64;
        if self.received > self.reader.len {
            return Err(self.announced.mismatch(format!("the object has more than {} bytes", self.reader.len)));
        }
        self.hash.update(piece);
        self.buffer.extend_from_slice(piece);
        Ok(())
    }

    fn verify_end(&self) -> Result<(), ObjectError> {
        let sha256: [u8; 32] = self.hash.clone().finalize().into();
        match (self.received == self.reader.len, sha256 == self.announced.sha256) {
            (true, true) => Ok(()),
            (false, _) => {
                let problem = format!("the object ends after {} of {} bytes", self.received, self.reader.len);
                Err(self.announced.mismatch(problem))
            }
            (true, false) => Err(self.announced.mismatch(format!("its SHA-256 is {}", hex::encode(sha256)))),
        }
    }
}

impl AnnouncedObject<'_> {
    fn mismatch(&self, problem: String) -> ObjectError {
        ObjectError::Wrong { key: self.key.to_owned(), problem }
    }
}

fn to_object_error(key: &str, error: BlobError) -> ObjectError {
    ObjectError::Failed(key.to_owned(), error)
}

#[cfg(test)]
mod tests {
    use object_store::{ObjectStoreExt, memory::InMemory};

    use super::*;

    const KEY: &str = "blocks/1/0.subtree";

    async fn objects(content: &[u8]) -> Objects {
        let store = InMemory::new();
        store.put(&Path::from(KEY), content.to_vec().into()).await.unwrap();
        Objects::new(Arc::new(store), &BlobOptions::default())
    }

    async fn read(objects: &Objects, announced: AnnouncedObject<'_>) -> Result<Vec<Txid>, ObjectError> {
        let (mut all, mut reading) = (Vec::new(), objects.txids(announced).await?);
        loop {
            let next = reading.next().await?;
            if next.is_empty() {
                return Ok(all);
            }
            all.extend(next);
        }
    }

    #[tokio::test]
    async fn an_object_is_read_only_if_it_matches_its_announcement() {
        let content: Vec<u8> = (0..3).flat_map(|n| [n; 32]).collect();
        let announced = AnnouncedObject { key: KEY, count: 3, sha256: Sha256::digest(&content).into() };
        let stored = objects(&content).await;
        assert_eq!(read(&stored, announced).await.unwrap(), [0, 1, 2].map(|n| Txid([n; 32])));
        let read_error = async |objects: &Objects, announced| read(objects, announced).await.unwrap_err().to_string();
        let other = AnnouncedObject { key: "other", ..announced };
        assert_eq!(read_error(&stored, other).await, "object `other` does not exist");
        let message = read_error(&stored, AnnouncedObject { count: 4, ..announced }).await;
        assert!(message.contains(KEY) && message.contains("96 bytes are not 4 transaction ids"), "{message}");
        let message = read_error(&stored, AnnouncedObject { sha256: [0; 32], ..announced }).await;
        assert!(message.contains("its SHA-256 is "), "{message}");
        let mut damaged = content.clone();
        damaged[95] ^= 1;
        assert!(read_error(&objects(&damaged).await, announced).await.contains("its SHA-256 is "));
        let empty = AnnouncedObject { count: 0, sha256: Sha256::digest([]).into(), ..announced };
        assert_eq!(read(&objects(&[]).await, empty).await, Ok(vec![]));
    }
}
