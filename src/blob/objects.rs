//! Objects that others have put somewhere, read as streams: the transaction ids of blocks that are too large for a message.

use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};
use object_store::{ObjectStore, path::Path};
use sha2::{Digest, Sha256};

use super::{
    BlobError, BlobOptions,
    requests::{Pace, Reading, Requests},
};
use crate::tx::Txid;

/// A place that others write to: nothing is written, and no mark is looked for. Cheap to clone.
#[derive(Clone)]
pub struct Objects(Requests);

/// Why an object is not read on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ObjectError {
    /// It has not come yet, or is elsewhere.
    #[error("object `{0}` is not there")]
    Missing(String),
    /// The place does not answer. What may be repeated may be begun anew.
    #[error("object `{0}`: {1}")]
    Failed(String, BlobError),
    /// It is not what was announced.
    #[error("object `{key}` is not what its block announces: {what}")]
    Wrong {
        /// Its key.
        key: String,
        /// What is wrong, in a line.
        what: String,
    },
}

/// What is announced of an object: a plain concatenation of ids in internal order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Announced<'a> {
    /// Its key.
    pub key: &'a str,
    /// How many ids.
    pub count: u64,
    /// SHA-256 of all of it.
    pub sha256: [u8; 32],
}

/// Ids that are being read. What is handed out is only known to be right once the end was reached.
pub struct Txids<'a> {
    announced: Announced<'a>,
    reading: Reading,
    hash: Sha256,
    /// Read and not handed out; its first bytes may be the end of an id.
    rest: BytesMut,
    seen: u64,
}

impl Objects {
    /// What is in `store`, read at the pace of `options`.
    pub fn new(store: Arc<dyn ObjectStore>, options: &BlobOptions) -> Self {
        let pace = Pace { timeout: options.timeout, least_rate: options.least_rate };
        Objects(Requests { store, pace, metrics: options.metrics.clone() })
    }

    /// Begins to read ids.
    ///
    /// # Errors
    /// There is no such object, or it has another size, or the place does not answer.
    pub async fn txids<'a>(&self, announced: Announced<'a>) -> Result<Txids<'a>, ObjectError> {
        let Announced { key, count, .. } = announced;
        let reading = self.0.read(&Path::from(key)).await.map_err(|error| failed(key, error))?;
        let reading = reading.ok_or_else(|| ObjectError::Missing(key.to_owned()))?;
        if Some(reading.len) != count.checked_mul(32) {
            return Err(announced.wrong(format!("{} bytes are not {count} transaction ids", reading.len)));
        }
        Ok(Txids { announced, reading, hash: Sha256::new(), rest: BytesMut::new(), seen: 0 })
    }
}

impl Txids<'_> {
    /// The next ids, as many as came at once; none: that was all, and it is what was announced.
    ///
    /// # Errors
    /// It is not; or the place does not answer.
    pub async fn next(&mut self) -> Result<Vec<Txid>, ObjectError> {
        let whole = loop {
            let whole = self.rest.len() / 32 * 32;
            if whole > 0 {
                break whole;
            }
            match self.reading.next().await.map_err(|error| failed(self.announced.key, error))? {
                Some(piece) => self.take(&piece)?,
                None => return self.end().map(|()| Vec::new()),
            }
        };
        let txids = self.rest[..whole].as_chunks().0.iter().map(|txid| Txid(*txid)).collect();
        self.rest.advance(whole);
        Ok(txids)
    }

    fn take(&mut self, piece: &Bytes) -> Result<(), ObjectError> {
        self.seen += piece.len() as u64;
        if self.seen > self.reading.len {
            return Err(self.announced.wrong(format!("there is more of it than {} bytes", self.reading.len)));
        }
        self.hash.update(piece);
        self.rest.extend_from_slice(piece);
        Ok(())
    }

    fn end(&self) -> Result<(), ObjectError> {
        let sha256: [u8; 32] = self.hash.clone().finalize().into();
        match (self.seen == self.reading.len, sha256 == self.announced.sha256) {
            (true, true) => Ok(()),
            (false, _) => {
                Err(self.announced.wrong(format!("it ends after {} of {} bytes", self.seen, self.reading.len)))
            }
            (true, false) => Err(self.announced.wrong(format!("its SHA-256 is {}", hex::encode(sha256)))),
        }
    }
}

impl Announced<'_> {
    fn wrong(&self, what: String) -> ObjectError {
        ObjectError::Wrong { key: self.key.to_owned(), what }
    }
}

fn failed(key: &str, error: BlobError) -> ObjectError {
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

    async fn read(objects: &Objects, announced: Announced<'_>) -> Result<Vec<Txid>, ObjectError> {
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
    async fn what_is_announced_is_read_and_anything_else_is_refused_by_name() {
        let content: Vec<u8> = (0..3).flat_map(|n| [n; 32]).collect();
        let announced = Announced { key: KEY, count: 3, sha256: Sha256::digest(&content).into() };
        let there = objects(&content).await;
        assert_eq!(read(&there, announced).await.unwrap(), [0, 1, 2].map(|n| Txid([n; 32])));
        let told = async |objects: &Objects, announced| read(objects, announced).await.unwrap_err().to_string();
        let other = Announced { key: "other", ..announced };
        assert_eq!(told(&there, other).await, "object `other` is not there");
        let said = told(&there, Announced { count: 4, ..announced }).await;
        assert!(said.contains(KEY) && said.contains("96 bytes are not 4 transaction ids"), "{said}");
        let said = told(&there, Announced { sha256: [0; 32], ..announced }).await;
        assert!(said.contains("its SHA-256 is "), "{said}");
        let mut damaged = content.clone();
        damaged[95] ^= 1;
        assert!(told(&objects(&damaged).await, announced).await.contains("its SHA-256 is "));
        let empty = Announced { count: 0, sha256: Sha256::digest([]).into(), ..announced };
        assert_eq!(read(&objects(&[]).await, empty).await, Ok(vec![]));
    }
}
