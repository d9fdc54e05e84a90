//! Objects of snapshots: whole objects that are written, listed, read and deleted by their names.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload, path::Path};

use super::{BlobError, BlobErrorKind, BlobOptions, requests::Requests};
use crate::backoff::Backoff;

/// A place for snapshots in an object store. Cheap to clone.
#[derive(Clone)]
pub struct SnapshotPlace {
    requests: Requests,
    attempts: u32,
}

/// Attempts of one request, and the first and longest pause between two attempts.
const ATTEMPTS: u32 = 8;
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

impl SnapshotPlace {
    /// Keeps snapshots in `store`, with the time limits of `options`.
    pub fn new(store: Arc<dyn ObjectStore>, options: &BlobOptions) -> Self {
        SnapshotPlace { requests: Requests::new(store, options), attempts: ATTEMPTS }
    }

    /// Keeps snapshots in the memory of this process.
    #[cfg(feature = "testkit")]
    pub fn memory() -> Self {
        Self::new(Arc::new(object_store::memory::InMemory::new()), &BlobOptions::default())
    }

    /// Writes an object whole, in place of an object of the same name.
    ///
    /// # Errors
    /// The place refuses the object, or did not answer several times.
    pub async fn put(&self, name: &str, content: Bytes) -> Result<(), BlobError> {
        let path = Path::from(name);
        self.repeat(name, || {
            let payload = PutPayload::from(content.clone());
            let put = self.requests.store.put(&path, payload);
            self.requests.run("write", &path, content.len() as u64, put)
        })
        .await
        .map(drop)
    }

    /// Reads an object; `None`: the object does not exist.
    ///
    /// # Errors
    /// The place refuses the request, or did not answer several times.
    pub async fn get(&self, name: &str) -> Result<Option<Bytes>, BlobError> {
        let path = Path::from(name);
        self.repeat(name, || async {
            match self.requests.read(&path).await? {
                Some(found) => found.read_all().await.map(Some),
                None => Ok(None),
            }
        })
        .await
    }

    /// Lists the names of all objects below a folder (`""`: all objects), ascending.
    ///
    /// # Errors
    /// The place refuses the request, or did not answer several times.
    pub async fn list(&self, folder: &str) -> Result<Vec<String>, BlobError> {
        let path = Path::from(folder);
        let found = self.repeat(folder, || {
            let prefix = (!folder.is_empty()).then_some(&path);
            let listed = self.requests.store.list(prefix).map_ok(|object| object.location.to_string()).try_collect();
            self.requests.run::<Vec<String>>("read", &path, 0, listed)
        });
        let mut names = found.await?;
        names.sort_unstable();
        Ok(names)
    }

    /// Deletes an object; succeeds if the object does not exist.
    ///
    /// # Errors
    /// The place refuses the request, or did not answer several times.
    pub async fn delete(&self, name: &str) -> Result<(), BlobError> {
        let path = Path::from(name);
        self.repeat(name, || self.requests.delete(&path)).await
    }

    async fn repeat<T, F: Future<Output = Result<T, BlobError>>>(
        &self,
        name: &str,
        request: impl Fn() -> F,
    ) -> Result<T, BlobError> {
        let mut pauses = Backoff::from_key(PAUSE, name.as_bytes());
        for _ in 1..self.attempts {
            match request().await {
                // A place that denies a request goes on denying it until a person acts.
                Err(error) if error.may_be_retried() && error.kind != BlobErrorKind::Denied => {
                    tracing::warn!(%error, "snapshot: request to the object store failed; retrying");
                    pauses.pause().await;
                }
                answer => return answer,
            }
        }
        request().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn objects_are_listed_in_order_replaced_and_deleted() {
        let place = SnapshotPlace::memory();
        assert_eq!(place.get("a/x").await.unwrap(), None);
        for (name, content) in [("b/x", "1"), ("a/y", "2"), ("a/x", "3"), ("a/x", "4")] {
            place.put(name, Bytes::from(content)).await.unwrap();
        }
        assert_eq!(place.list("").await.unwrap(), ["a/x", "a/y", "b/x"]);
        assert_eq!(place.list("a").await.unwrap(), ["a/x", "a/y"]);
        assert_eq!(place.get("a/x").await.unwrap().unwrap(), "4");
        place.delete("a/x").await.unwrap();
        place.delete("a/x").await.unwrap();
        assert_eq!(place.list("a").await.unwrap(), ["a/y"]);
    }
}
