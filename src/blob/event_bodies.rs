//! Bodies of transactions to which events refer: objects that producers write and instances read. A body is part of the
//! log: no instance writes or deletes one.

use std::{path::PathBuf, sync::Arc};

use bytes::Bytes;
use object_store::{ObjectStore, PutPayload, path::Path};

use super::{
    BlobError, BlobErrorKind, BlobOptions,
    directory::sync_file_and_folders,
    frame::checksum_of,
    objects::ObjectError,
    requests::{CreateOutcome, Requests},
};
use crate::event::{BodyReference, ContentHash};

/// Folder of the bodies that this crate writes.
const FOLDER: &str = "bodies";

/// Limits of events by reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventBodyLimits {
    /// Largest event in bytes that a producer publishes as one message; the body of a larger event becomes an object.
    pub inline_event_bytes: usize,
    /// Largest body in bytes that an instance reads.
    pub max_body_bytes: u64,
}

impl Default for EventBodyLimits {
    fn default() -> Self {
        EventBodyLimits { inline_event_bytes: 512 << 10, max_body_bytes: 256 << 20 }
    }
}

/// The object store of event bodies. Cheap to clone.
#[derive(Clone)]
pub struct EventBodies {
    requests: Requests,
    limits: EventBodyLimits,
    /// Part size of larger bodies; `None`: one request for each body.
    part_bytes: Option<usize>,
    writes: BodyWrites,
}

/// Way in which bodies are written.
#[derive(Debug, Clone)]
pub(super) enum BodyWrites {
    /// A web server, which takes no bodies.
    ReadOnly,
    /// An object store, which confirms durable objects.
    Objects,
    /// A directory, in which each body is synced to the disk.
    Directory(PathBuf),
}

impl EventBodies {
    /// Uses the objects in `store`, with the time limits and the part size of `options`.
    #[cfg(feature = "testkit")]
    pub fn new(store: Arc<dyn ObjectStore>, options: &BlobOptions, limits: EventBodyLimits) -> Self {
        Self::with_writes(store, options, limits, BodyWrites::Objects)
    }

    pub(super) fn with_writes(
        store: Arc<dyn ObjectStore>,
        options: &BlobOptions,
        limits: EventBodyLimits,
        writes: BodyWrites,
    ) -> Self {
        let part_bytes = options.part_bytes.filter(|_| matches!(writes, BodyWrites::Objects));
        EventBodies { requests: Requests::new(store, options), limits, part_bytes, writes }
    }

    /// Returns the limits of events by reference.
    pub fn limits(&self) -> EventBodyLimits {
        self.limits
    }

    /// Reads a body whole, with exactly the announced length and BLAKE3. A body that differs is read once more, because
    /// the transfer can have damaged the bytes.
    ///
    /// # Errors
    /// The object does not exist or differs from the reference, or the object store does not answer.
    pub async fn read(&self, reference: &BodyReference) -> Result<Bytes, ObjectError> {
        match self.read_once(reference).await {
            Err(ObjectError::Wrong { .. }) => self.read_once(reference).await,
            read => read,
        }
    }

    async fn read_once(&self, BodyReference { key, length, blake3 }: &BodyReference) -> Result<Bytes, ObjectError> {
        let failed = |error| ObjectError::Failed(key.clone(), error);
        let wrong = |problem| ObjectError::Wrong { key: key.clone(), problem };
        let path = Path::from(key.as_str());
        let reader = self.requests.read(&path).await.map_err(failed)?;
        let mut reader = reader.ok_or_else(|| ObjectError::Missing(key.clone()))?;
        if reader.len != *length {
            return Err(wrong(format!("the object has {} bytes instead of {length}", reader.len)));
        }
        // One allocation of the announced size, which the object itself has.
        let mut body = Vec::new();
        if !usize::try_from(*length).is_ok_and(|length| body.try_reserve_exact(length).is_ok()) {
            let message = format!("cannot allocate {length} bytes");
            return Err(failed(body_error(BlobErrorKind::Retryable, "read", key, message)));
        }
        let mut hasher = blake3::Hasher::new();
        while let Some(piece) = reader.next().await.map_err(failed)? {
            if (body.len() + piece.len()) as u64 > *length {
                return Err(wrong(format!("the object has more than {length} bytes")));
            }
            hasher.update(&piece);
            body.extend_from_slice(&piece);
        }
        if body.len() as u64 != *length {
            return Err(wrong(format!("the object ends after {} of {length} bytes", body.len())));
        }
        match hasher.finalize() {
            hash if *hash.as_bytes() == blake3.0 => Ok(body.into()),
            hash => Err(wrong(format!("its BLAKE3 is {hash}"))),
        }
    }

    /// Stores a body under the BLAKE3 of its content, unless the body is stored already, and returns the reference. The
    /// object is durable and whole once the reference is returned.
    ///
    /// # Errors
    /// The body is larger than an instance reads. The object store does not answer, refuses the object, or holds other
    /// bytes under that key.
    pub async fn put(&self, body: Bytes) -> Result<BodyReference, BlobError> {
        if body.len() as u64 > self.limits.max_body_bytes {
            let EventBodyLimits { max_body_bytes, .. } = self.limits;
            let message =
                format!("{} bytes; instances read at most {max_body_bytes} (objects.max_body_bytes)", body.len());
            return Err(body_error(BlobErrorKind::Invalid, "write", FOLDER, message));
        }
        let hash = checksum_of(&body).await;
        let digits = hex::encode(hash);
        let key = format!("{FOLDER}/{}/{digits}", &digits[..2]);
        if matches!(self.writes, BodyWrites::ReadOnly) {
            let message = "a web server takes no bodies: set objects.url to s3:// or file://".to_owned();
            return Err(body_error(BlobErrorKind::Denied, "write", &key, message));
        }
        let reference = BodyReference { key, length: body.len() as u64, blake3: ContentHash(hash) };
        // A repeat finds its body stored. The comparison comes first, because a server receives the whole body before
        // the server refuses a conditional write.
        if !self.is_stored(&reference).await? {
            let object = PutPayload::from(body);
            let path = Path::from(reference.key.as_str());
            match self.part_bytes.filter(|part| object.content_length() > *part) {
                Some(part) => self.requests.overwrite_in_parts(&path, &object, part).await?,
                None => {
                    let created = self.requests.create(&path, &object).await?;
                    if created == CreateOutcome::Exists && !self.is_stored(&reference).await? {
                        let message = "the stored object vanished during the write".to_owned();
                        return Err(body_error(BlobErrorKind::Retryable, "write", &reference.key, message));
                    }
                }
            }
        }
        self.sync_to_disk(&reference).await?;
        Ok(reference)
    }

    async fn is_stored(&self, reference: &BodyReference) -> Result<bool, BlobError> {
        match self.read(reference).await {
            Ok(_) => Ok(true),
            Err(ObjectError::Missing(_)) => Ok(false),
            Err(ObjectError::Failed(_, error)) => Err(error),
            Err(ObjectError::Wrong { key, problem }) => {
                let message = format!("the object has other bytes than its name says ({problem}); remove the object");
                Err(body_error(BlobErrorKind::Corrupt, "write", &key, message))
            }
        }
    }

    async fn sync_to_disk(&self, reference: &BodyReference) -> Result<(), BlobError> {
        let BodyWrites::Directory(root) = &self.writes else { return Ok(()) };
        let synced = sync_file_and_folders(root.clone(), reference.key.clone().into()).await;
        synced.map_err(|error| body_error(BlobErrorKind::Unknown, "write", &reference.key, error.to_string()))
    }
}

fn body_error(kind: BlobErrorKind, operation: &'static str, key: &str, message: String) -> BlobError {
    BlobError { kind, operation, path: key.to_owned(), message }
}

#[cfg(test)]
mod tests {
    use object_store::{ObjectStoreExt, memory::InMemory};

    use super::*;
    use crate::blob::fault::{BlobFault, FaultStore};

    fn bodies(store: Arc<dyn ObjectStore>) -> EventBodies {
        EventBodies::new(store, &BlobOptions::default(), EventBodyLimits::default())
    }

    #[tokio::test]
    async fn a_body_is_read_only_if_it_matches_its_reference() {
        let store = Arc::new(InMemory::new());
        let bodies = bodies(store.clone());
        let content = Bytes::from(vec![7; 3_000_000]);
        let reference = bodies.put(content.clone()).await.unwrap();
        let digits = blake3::hash(&content).to_string();
        assert_eq!(reference.key, format!("bodies/{}/{digits}", &digits[..2]));
        assert_eq!(bodies.read(&reference).await.unwrap(), content);
        let problem = async |reference: BodyReference| bodies.read(&reference).await.unwrap_err().to_string();
        let key = reference.key.clone();
        assert_eq!(
            problem(BodyReference { length: 2_999_999, ..reference.clone() }).await,
            format!("object `{key}` does not match its event: the object has 3000000 bytes instead of 2999999")
        );
        assert_eq!(
            problem(BodyReference { blake3: ContentHash([0; 32]), ..reference.clone() }).await,
            format!("object `{key}` does not match its event: its BLAKE3 is {digits}")
        );
        assert_eq!(problem(BodyReference { key: "x".into(), ..reference.clone() }).await, "object `x` does not exist");
        let mut damaged = content.to_vec();
        damaged[1] ^= 1;
        store.put(&Path::from(key.as_str()), damaged.into()).await.unwrap();
        assert!(problem(reference).await.contains("its BLAKE3 is "));
        let error = bodies.put(content).await.unwrap_err();
        assert_eq!(error.kind, BlobErrorKind::Corrupt, "{error}");
        let empty = bodies.put(Bytes::new()).await.unwrap();
        assert_eq!(bodies.read(&empty).await.unwrap(), Bytes::new());
    }

    #[tokio::test]
    async fn a_repeated_put_writes_nothing_and_damage_in_transfer_is_read_again() {
        let faults = FaultStore::new(Arc::new(InMemory::new()), 1);
        let bodies = bodies(Arc::new(faults.clone()));
        let first = bodies.put(Bytes::from_static(b"body")).await.unwrap();
        let before = faults.requests();
        assert_eq!(bodies.put(Bytes::from_static(b"body")).await.unwrap(), first);
        assert_eq!(faults.requests() - before, 1, "one read and no write");
        faults.fail_at(1, BlobFault::OtherBytes);
        assert_eq!(bodies.read(&first).await.unwrap(), "body");
        faults.fail_at(1, BlobFault::CutShort);
        let error = bodies.read(&first).await.unwrap_err();
        assert!(matches!(&error, ObjectError::Failed(_, error) if error.may_be_retried()), "{error}");
    }

    #[tokio::test]
    async fn a_large_body_is_written_in_parts() {
        let faults = FaultStore::new(Arc::new(InMemory::new()), 1);
        let options = BlobOptions { part_bytes: Some(1_000), ..BlobOptions::default() };
        let bodies = EventBodies::new(Arc::new(faults.clone()), &options, EventBodyLimits::default());
        let content = Bytes::from((0..2_500_u32).map(|n| n as u8).collect::<Vec<_>>());
        let reference = bodies.put(content.clone()).await.unwrap();
        assert_eq!(faults.requests(), 6, "a read, the begin, three parts and the end");
        assert_eq!(bodies.read(&reference).await.unwrap(), content);
    }
}
