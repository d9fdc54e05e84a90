//! Blobs as records refer to them: the first one of its transaction by the id alone, any other by its content too.
//!
//! An id does not commit to the previous outputs that extended format claims, and to nothing that a partial transaction says. So one
//! transaction can have several bodies, whose records come and go (a verdict replaces a body; a node forgets a record). None of
//! them overwrites another: what a record refers to stays what it was, whoever comes late.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::{
    BlobError, BlobErrorKind, BlobName, BlobStore, PartialTx, Put, Reuse,
    check::{self, check_tx, error},
    frame::Framed,
};
use crate::{
    record::{Blob, StoredOutput},
    telemetry::BlobOperation,
    tx::Txid,
};

impl BlobStore {
    /// Stores a transaction, unless it is stored, and answers which blob it is. Repeated, it answers the same.
    ///
    /// # Errors
    /// As [`put_tx`](Self::put_tx).
    pub async fn keep_tx(&self, txid: Txid, bytes: Bytes) -> Result<Blob, BlobError> {
        if is_first(self.put_tx(txid, bytes.clone()).await)? {
            return Ok(Blob::First);
        }
        self.watched(BlobOperation::PutTx, async {
            let content = content_hash(&bytes).await;
            let name = BlobName::tx(txid).with_content(content);
            check_tx(name, &bytes).await?;
            self.keep_other(name, bytes).await.map(|()| Blob::Other(content))
        })
        .await
    }

    /// The bytes of a transaction as they were kept; `None`: there is no such blob.
    ///
    /// # Errors
    /// See [`BlobErrorKind`].
    pub async fn kept_tx(&self, txid: Txid, blob: Blob, reuse: Reuse) -> Result<Option<Bytes>, BlobError> {
        match blob {
            Blob::First => self.get_tx(txid, reuse).await,
            Blob::Other(content) => {
                self.watched(BlobOperation::GetTx, self.read(BlobName::tx(txid).with_content(content))).await
            }
        }
    }

    /// These outputs of a transaction as it was kept, as [`tx_outputs`](Self::tx_outputs) reads them; `None`: there is no such blob.
    ///
    /// # Errors
    /// See [`BlobErrorKind`].
    pub async fn kept_tx_outputs(
        &self,
        txid: Txid,
        blob: Blob,
        vouts: &[u32],
        reuse: Reuse,
    ) -> Result<Option<BTreeMap<u32, StoredOutput>>, BlobError> {
        match blob {
            Blob::First => self.tx_outputs(txid, vouts, reuse).await,
            Blob::Other(content) => {
                let name = BlobName::tx(txid).with_content(content);
                self.watched(BlobOperation::GetTx, self.streamed_outputs(name, vouts)).await
            }
        }
    }

    /// Stores the known outputs of a partial transaction, unless they are stored, and answers which blob they are.
    ///
    /// # Errors
    /// As [`put_outputs`](Self::put_outputs).
    pub async fn keep_outputs(&self, partial: &PartialTx) -> Result<Blob, BlobError> {
        if is_first(self.put_outputs(partial).await)? {
            return Ok(Blob::First);
        }
        self.watched(BlobOperation::PutOutputs, async {
            let name = BlobName::outputs(partial.txid);
            let bytes = partial.encode().map_err(|wrong| error(BlobErrorKind::Invalid, "write", name, wrong))?;
            let content = content_hash(&bytes).await;
            self.keep_other(name.with_content(content), bytes).await.map(|()| Blob::Other(content))
        })
        .await
    }

    /// The known outputs of a partial transaction as they were kept; `None`: there is no such blob.
    ///
    /// # Errors
    /// See [`BlobErrorKind`].
    pub async fn kept_outputs(&self, txid: Txid, blob: Blob) -> Result<Option<PartialTx>, BlobError> {
        let Blob::Other(content) = blob else { return self.get_outputs(txid).await };
        let name = BlobName::outputs(txid).with_content(content);
        self.watched(BlobOperation::GetOutputs, async {
            let Some(bytes) = self.read(name).await? else { return Ok(None) };
            check::outputs(name, &bytes).map(Some).map_err(|damage| damage.of(name))
        })
        .await
    }

    async fn keep_other(&self, name: BlobName, bytes: Bytes) -> Result<(), BlobError> {
        match self.put(name, bytes).await? {
            Put::Stored | Put::AlreadyStored => Ok(()),
            Put::OtherStored => {
                Err(error(BlobErrorKind::Corrupt, "write", name, "what is stored is not what its name says"))
            }
        }
    }
}

/// Whether what was put is the first blob of its transaction. One that is there and damaged is not: a good one is kept beside it, and who
/// refers to the damaged one hears of it when it is read.
fn is_first(put: Result<Put, BlobError>) -> Result<bool, BlobError> {
    match put {
        Ok(put) => Ok(put != Put::OtherStored),
        Err(error) if error.kind == BlobErrorKind::Corrupt => {
            tracing::warn!(%error, "a good one is kept beside it");
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

async fn content_hash(bytes: &Bytes) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(&Framed::new(bytes.clone()).await.checksum);
    hash
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blob::{
        conformance::transaction,
        fault::{Fault, FaultStore},
    };

    /// One transaction, by what it claims.
    fn claiming(satoshis: u64) -> (Txid, Bytes) {
        transaction(1, 5, 30, satoshis)
    }

    #[tokio::test]
    async fn whatever_is_kept_of_one_transaction_stays() {
        let store = BlobStore::memory();
        let (txid, first) = claiming(1);
        let others = [claiming(77).1, claiming(78).1];
        let blob = store.keep_tx(txid, first.clone()).await.unwrap();
        assert_eq!(blob, Blob::First);
        let mut kept = vec![(blob, first)];
        for other in others {
            let blob = store.keep_tx(txid, other.clone()).await.unwrap();
            assert!(matches!(blob, Blob::Other(_)));
            kept.push((blob, other));
        }
        for (blob, bytes) in &kept {
            assert_eq!(store.keep_tx(txid, bytes.clone()).await.unwrap(), *blob, "twice is once");
            assert_eq!(store.kept_tx(txid, *blob, Reuse::Likely).await.unwrap().as_ref(), Some(bytes));
        }
        assert_eq!(store.kept_tx(txid, Blob::Other([9; 32]), Reuse::Unlikely).await.unwrap(), None);
    }

    #[tokio::test]
    async fn so_do_outputs_that_say_otherwise() {
        let store = BlobStore::memory();
        let partial = |satoshis| PartialTx {
            txid: Txid([7; 32]),
            height: 9,
            coinbase: false,
            outputs: vec![(2, StoredOutput { satoshis, script: Bytes::from_static(b"\x51") })],
        };
        let (first, other) = (partial(1), partial(2));
        assert_eq!(store.keep_outputs(&first).await.unwrap(), Blob::First);
        let blob = store.keep_outputs(&other).await.unwrap();
        assert_eq!(store.keep_outputs(&other).await.unwrap(), blob);
        assert_eq!(store.kept_outputs(first.txid, Blob::First).await.unwrap(), Some(first));
        assert_eq!(store.kept_outputs(other.txid, blob).await.unwrap(), Some(other));
    }

    #[tokio::test]
    async fn a_good_one_is_kept_beside_a_damaged_one() {
        let objects = std::sync::Arc::new(object_store::memory::InMemory::new());
        let store = BlobStore::new(objects.clone(), Default::default());
        let (txid, bytes) = claiming(1);
        store.keep_tx(txid, bytes.clone()).await.unwrap();
        let damaged = object_store::PutPayload::from_static(b"rotten");
        object_store::ObjectStoreExt::put(objects.as_ref(), &BlobName::tx(txid).path(), damaged).await.unwrap();
        let blob = store.keep_tx(txid, bytes.clone()).await.unwrap();
        assert!(matches!(blob, Blob::Other(_)));
        assert_eq!(store.keep_tx(txid, bytes.clone()).await.unwrap(), blob, "twice is once");
        assert_eq!(store.kept_tx(txid, blob, Reuse::Unlikely).await.unwrap(), Some(bytes));
        let outputs = store.kept_tx_outputs(txid, blob, &[2, 9], Reuse::Likely).await.unwrap().unwrap();
        assert_eq!(outputs.keys().copied().collect::<Vec<_>>(), [2], "it has five");
    }

    #[tokio::test]
    async fn one_that_was_damaged_before_it_is_put_is_no_first_one() {
        let objects = FaultStore::new(std::sync::Arc::new(object_store::memory::InMemory::new()), 1);
        let store = BlobStore::new(std::sync::Arc::new(objects.clone()), Default::default());
        let (txid, bytes) = claiming(1);
        objects.fail_all(Some(Fault::DamagedBefore));
        for _ in 0..2 {
            let blob = store.keep_tx(txid, bytes.clone()).await.unwrap();
            assert!(matches!(blob, Blob::Other(_)));
            assert_eq!(store.kept_tx(txid, blob, Reuse::Unlikely).await.unwrap().as_ref(), Some(&bytes));
        }
        assert_eq!(store.get_tx(txid, Reuse::Unlikely).await.unwrap_err().kind, BlobErrorKind::Corrupt);
    }

    #[tokio::test]
    async fn what_lies_under_the_name_of_another_is_corrupt() {
        let objects = std::sync::Arc::new(object_store::memory::InMemory::new());
        let store = BlobStore::new(objects.clone(), Default::default());
        let ((txid, first), (_, other)) = (claiming(1), claiming(77));
        store.keep_tx(txid, first.clone()).await.unwrap();
        let Blob::Other(content) = store.keep_tx(txid, other.clone()).await.unwrap() else { panic!("it is the first") };
        let name = BlobName::tx(txid).with_content(content);
        let moved = Framed::new(first).await.whole();
        object_store::ObjectStoreExt::put(objects.as_ref(), &name.path(), moved).await.unwrap();
        let read = store.kept_tx(txid, Blob::Other(content), Reuse::Unlikely).await.unwrap_err();
        let written = store.keep_tx(txid, other).await.unwrap_err();
        assert_eq!([read.kind, written.kind], [BlobErrorKind::Corrupt; 2]);
    }
}
