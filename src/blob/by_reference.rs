//! Blobs as records refer to them: the first blob of a transaction by the txid alone, any other blob by its content
//! hash, too.
//!
//! A txid commits neither to the previous outputs that extended format claims nor to any field of a partial
//! transaction. One transaction can therefore have several bodies, one after the other (a verdict replaces a body, a
//! restarted node loses a record). No body overwrites another: the blob that a record refers to never changes.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::{
    BlobError, BlobErrorKind, BlobName, BlobStore, PartialTx, PutOutcome, Reuse,
    check::{self, check_tx},
    frame::HashedContent,
    store::{encode_outputs, to_outputs, to_stored_outputs},
};
use crate::{
    record::{Blob, StoredOutput},
    telemetry::BlobOperation,
    tx::{Txid, UtxoHash, utxo_hash},
};

impl BlobStore {
    /// Stores a transaction unless the same bytes are stored, and returns the reference to its blob. Idempotent: the
    /// same bytes always give the same reference.
    ///
    /// # Errors
    /// See [`BlobErrorKind`]: `Invalid` if the bytes are not that transaction in extended format (a coinbase may be in
    /// standard format).
    pub async fn store_tx(&self, txid: Txid, bytes: Bytes) -> Result<Blob, BlobError> {
        self.measure(BlobOperation::PutTx, async {
            let name = BlobName::tx(txid);
            check_tx(name, &bytes).await?;
            Box::pin(self.store(name, HashedContent::new(bytes).await)).await
        })
        .await
    }

    /// Returns the bytes of a transaction in the blob that `blob` refers to; `None`: no such blob exists. The whole
    /// blob is in memory; [`load_tx_outputs`](Self::load_tx_outputs) reads single outputs with less.
    pub async fn load_tx(&self, txid: Txid, blob: Blob, reuse: Reuse) -> Result<Option<Bytes>, BlobError> {
        self.measure(BlobOperation::GetTx, self.read_tx(BlobName::tx(txid).of_blob(blob), reuse)).await
    }

    /// Returns those of the outputs `vouts` that the transaction has in the blob that `blob` refers to; `None`: no such
    /// blob exists. The whole blob is read and verified. One mebibyte is in memory at a time, unless reuse is likely
    /// and the blob fits into the cache.
    pub async fn load_tx_outputs(
        &self,
        txid: Txid,
        blob: Blob,
        vouts: &[u32],
        reuse: Reuse,
    ) -> Result<Option<BTreeMap<u32, StoredOutput>>, BlobError> {
        self.measure(BlobOperation::GetTx, async {
            let name = BlobName::tx(txid).of_blob(blob);
            match self.read_cacheable(name, reuse).await? {
                Some(bytes) => {
                    let found = check::parse_transaction(&bytes, vouts).await;
                    Ok(Some(to_stored_outputs(found.map_err(|damage| damage.into_error(name))?)))
                }
                None => Ok(Box::pin(self.blobs().stream_tx(name, vouts)).await?.map(to_stored_outputs)),
            }
        })
        .await
    }

    /// Stores the known outputs of a partial transaction unless the same outputs are stored, and returns the reference
    /// to their blob.
    ///
    /// # Errors
    /// See [`BlobErrorKind`]: `Invalid` if the outputs cannot be encoded.
    pub async fn store_outputs(&self, partial: &PartialTx) -> Result<Blob, BlobError> {
        self.measure(BlobOperation::PutOutputs, async {
            let (name, bytes) = encode_outputs(partial)?;
            Box::pin(self.store(name, HashedContent::new(bytes).await)).await
        })
        .await
    }

    /// Returns the known outputs of a partial transaction in the blob that `blob` refers to; `None`: no such blob
    /// exists.
    pub async fn load_outputs(&self, txid: Txid, blob: Blob) -> Result<Option<PartialTx>, BlobError> {
        let read = Box::pin(self.blobs().read_outputs(BlobName::outputs(txid).of_blob(blob)));
        self.measure(BlobOperation::GetOutputs, read).await
    }

    /// Stores a content as the first blob of its transaction, or by its hash where the first blob has other content.
    async fn store(&self, name: BlobName, content: HashedContent) -> Result<Blob, BlobError> {
        if self.is_first(self.put(name, &content).await)? {
            return Ok(Blob::First(Some(content.hash)));
        }
        let other = Blob::Other(content.hash);
        // Other content under this name is damage, which the put has reported.
        self.put(name.of_blob(other), &content).await?;
        Ok(other)
    }

    /// Returns whether a put blob is the first blob of its transaction. A damaged first blob is not: a good copy is
    /// stored next to it under its content hash, and a reader of the damaged blob gets an error.
    fn is_first(&self, put: Result<PutOutcome, BlobError>) -> Result<bool, BlobError> {
        match put {
            Ok(put) => Ok(put != PutOutcome::OtherStored),
            Err(error) if error.kind == BlobErrorKind::Corrupt => {
                self.count_error(error.kind);
                tracing::warn!(%error, "blob: first blob is damaged; storing a copy under its content hash");
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

/// Returns outputs of a transaction by the hashes of their slots; `None`: no such blob exists. The blob is read up to
/// the last of the outputs. Outputs that match their hashes need no other check; otherwise the whole blob is read and
/// verified. For readers only: a blob that was made to collide ([`utxo_hash`]) passes.
pub(crate) async fn find_outputs_by_hash(
    store: &BlobStore,
    txid: Txid,
    blob: Blob,
    hashes: &BTreeMap<u32, UtxoHash>,
) -> Result<Option<BTreeMap<u32, StoredOutput>>, BlobError> {
    let vouts: Vec<u32> = hashes.keys().copied().collect();
    let peeked = store.blobs().peek_outputs(BlobName::tx(txid).of_blob(blob), &vouts);
    let found = to_outputs(store.measure(BlobOperation::GetTx, peeked).await?.unwrap_or_default());
    let is_right = |(vout, hash): (&u32, &UtxoHash)| {
        let output = found.get(vout);
        output.is_some_and(|output| utxo_hash(&txid, *vout, &output.script, output.satoshis) == *hash)
    };
    if hashes.iter().all(is_right) {
        return Ok(Some(found));
    }
    store.load_tx_outputs(txid, blob, &vouts, Reuse::Unlikely).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blob::{
        conformance::{hash_of, transaction},
        fault::{BlobFault, FaultStore},
    };

    /// Builds the same transaction with another claimed amount.
    fn tx_claiming(satoshis: u64) -> (Txid, Bytes) {
        transaction(1, 5, 30, satoshis)
    }

    #[tokio::test]
    async fn every_stored_version_of_a_transaction_stays() {
        let store = BlobStore::memory();
        let (txid, first) = tx_claiming(1);
        let others = [tx_claiming(77).1, tx_claiming(78).1];
        let blob = store.store_tx(txid, first.clone()).await.unwrap();
        assert_eq!(blob, Blob::First(Some(hash_of(&first))));
        let mut stored = vec![(blob, first)];
        for other in others {
            let blob = store.store_tx(txid, other.clone()).await.unwrap();
            assert!(matches!(blob, Blob::Other(_)));
            stored.push((blob, other));
        }
        for (blob, bytes) in &stored {
            assert_eq!(store.store_tx(txid, bytes.clone()).await.unwrap(), *blob, "storing again is idempotent");
            assert_eq!(store.load_tx(txid, *blob, Reuse::Likely).await.unwrap().as_ref(), Some(bytes));
        }
        assert_eq!(store.load_tx(txid, Blob::Other([9; 32]), Reuse::Unlikely).await.unwrap(), None);
    }

    #[tokio::test]
    async fn every_stored_version_of_outputs_stays() {
        let store = BlobStore::memory();
        let partial = |satoshis| PartialTx {
            txid: Txid([7; 32]),
            height: 9,
            coinbase: false,
            outputs: vec![(2, StoredOutput { satoshis, script: Bytes::from_static(b"\x51") })],
        };
        let (first, other) = (partial(1), partial(2));
        let stored = store.store_outputs(&first).await.unwrap();
        assert_eq!(stored, Blob::First(Some(hash_of(&first.encode().unwrap()))));
        let blob = store.store_outputs(&other).await.unwrap();
        assert_eq!(store.store_outputs(&other).await.unwrap(), blob);
        assert_eq!(store.load_outputs(first.txid, stored).await.unwrap(), Some(first));
        assert_eq!(store.load_outputs(other.txid, blob).await.unwrap(), Some(other));
    }

    #[tokio::test]
    async fn a_good_copy_is_stored_next_to_a_damaged_first_blob() {
        let objects = std::sync::Arc::new(object_store::memory::InMemory::new());
        let store = BlobStore::new(objects.clone(), Default::default());
        let (txid, bytes) = tx_claiming(1);
        store.store_tx(txid, bytes.clone()).await.unwrap();
        let damaged = object_store::PutPayload::from_static(b"rotten");
        object_store::ObjectStoreExt::put(objects.as_ref(), &BlobName::tx(txid).path(), damaged).await.unwrap();
        let blob = store.store_tx(txid, bytes.clone()).await.unwrap();
        assert!(matches!(blob, Blob::Other(_)));
        assert_eq!(store.store_tx(txid, bytes.clone()).await.unwrap(), blob, "storing again is idempotent");
        assert_eq!(store.load_tx(txid, blob, Reuse::Unlikely).await.unwrap(), Some(bytes));
        let outputs = store.load_tx_outputs(txid, blob, &[2, 9], Reuse::Likely).await.unwrap().unwrap();
        assert_eq!(outputs.keys().copied().collect::<Vec<_>>(), [2], "the transaction has five outputs");
    }

    #[tokio::test]
    async fn a_blob_that_is_damaged_before_the_put_is_not_the_first() {
        let objects = FaultStore::new(std::sync::Arc::new(object_store::memory::InMemory::new()), 1);
        let store = BlobStore::new(std::sync::Arc::new(objects.clone()), Default::default());
        let (txid, bytes) = tx_claiming(1);
        objects.fail_all(Some(BlobFault::DamagedBefore));
        for _ in 0..2 {
            let blob = store.store_tx(txid, bytes.clone()).await.unwrap();
            assert!(matches!(blob, Blob::Other(_)));
            assert_eq!(store.load_tx(txid, blob, Reuse::Unlikely).await.unwrap().as_ref(), Some(&bytes));
        }
        assert_eq!(
            store.load_tx(txid, Blob::First(None), Reuse::Unlikely).await.unwrap_err().kind,
            BlobErrorKind::Corrupt
        );
    }

    #[tokio::test]
    async fn a_blob_under_the_name_of_another_is_corrupt() {
        let objects = std::sync::Arc::new(object_store::memory::InMemory::new());
        let store = BlobStore::new(objects.clone(), Default::default());
        let ((txid, first), (_, other)) = (tx_claiming(1), tx_claiming(77));
        store.store_tx(txid, first.clone()).await.unwrap();
        let Blob::Other(content) = store.store_tx(txid, other.clone()).await.unwrap() else {
            panic!("stored as the first blob")
        };
        let name = BlobName::tx(txid).of_blob(Blob::Other(content));
        object_store::ObjectStoreExt::put(objects.as_ref(), &name.path(), first.into()).await.unwrap();
        let read = store.load_tx(txid, Blob::Other(content), Reuse::Unlikely).await.unwrap_err();
        let written = store.store_tx(txid, other).await.unwrap_err();
        assert_eq!([read.kind, written.kind], [BlobErrorKind::Corrupt; 2]);
    }
}
