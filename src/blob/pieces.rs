//! [`TxPieces`]: the body of a transaction, piece by piece, for a reader that passes the pieces on.

use bytes::Bytes;

use super::{BlobError, BlobName, BlobStore, frame::TxBlobReader, requests::ObjectStream};
use crate::{
    record::Blob,
    telemetry::BlobOperation,
    tx::{TransactionStream, Txid, WireFormat},
};

/// The body of a transaction in pieces of at most one mebibyte. The bytes are verified on the way: damage is an error
/// instead of the last piece, so that a reader never gets a whole body that is damaged.
pub struct TxPieces {
    name: BlobName,
    object: ObjectStream,
    /// `None`: the last piece was read.
    reader: Option<TxBlobReader>,
    format: WireFormat,
    /// Piece that waits until the next bytes are known to be intact.
    held: Option<Bytes>,
}

impl BlobStore {
    /// Opens the body of a whole transaction in the blob that `blob` refers to, in this format; `None`: no such blob
    /// exists. A coinbase has the format in which the coinbase was stored.
    ///
    /// # Errors
    /// The blob store answers with an error.
    pub async fn open_tx(&self, txid: Txid, blob: Blob, format: WireFormat) -> Result<Option<TxPieces>, BlobError> {
        let name = BlobName::tx(txid).of_blob(blob);
        let open = async {
            let Some(object) = self.blobs().open_object(name).await? else { return Ok(None) };
            let stream = TransactionStream::new(object.len, []);
            let reader = Some(TxBlobReader::new(match format {
                WireFormat::Standard => stream.keeping_standard(),
                WireFormat::Extended => stream,
            }));
            Ok(Some(TxPieces { name, object, reader, format, held: None }))
        };
        self.measure(BlobOperation::GetTx, open).await
    }
}

impl TxPieces {
    /// Returns the next piece; `None`: the body is complete and intact.
    ///
    /// # Errors
    /// The blob store stops answering, or the bytes are not those of the transaction.
    pub async fn next(&mut self) -> Result<Option<Bytes>, BlobError> {
        while let Some(reader) = &mut self.reader {
            let Some(piece) = self.object.next().await? else {
                self.finish()?;
                break;
            };
            let content = reader.push(&piece).map_err(|damage| damage.into_error(self.name))?;
            let next = match self.format {
                WireFormat::Standard => Bytes::from(reader.take_standard()),
                WireFormat::Extended => content,
            };
            if next.is_empty() {
                continue;
            }
            if let Some(ready) = self.held.replace(next) {
                return Ok(Some(ready));
            }
        }
        Ok(self.held.take())
    }

    fn finish(&mut self) -> Result<(), BlobError> {
        let Some(reader) = self.reader.take() else { return Ok(()) };
        reader.finish(self.name).map(drop).map_err(|damage| damage.into_error(self.name))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use object_store::memory::InMemory;

    use super::*;
    use crate::{
        blob::{
            BlobOptions,
            conformance::transaction,
            fault::{BlobFault, FaultStore},
        },
        tx::Transaction,
    };

    async fn read(store: &BlobStore, txid: Txid, format: WireFormat) -> Vec<u8> {
        let mut pieces = store.open_tx(txid, Blob::First(None), format).await.unwrap().unwrap();
        let mut all = Vec::new();
        while let Some(piece) = pieces.next().await.unwrap() {
            all.extend_from_slice(&piece);
        }
        all
    }

    #[tokio::test]
    async fn the_pieces_are_the_body_in_either_format() {
        let (txid, bytes) = transaction(1, 40_000, 100, 7);
        let store = BlobStore::memory();
        store.put_tx(txid, bytes.clone()).await.unwrap();
        assert_eq!(read(&store, txid, WireFormat::Extended).await, bytes);
        let mut standard = Vec::new();
        Transaction::parse(&bytes).unwrap().write_standard(&mut standard);
        assert_eq!(read(&store, txid, WireFormat::Standard).await, standard);
        assert!(store.open_tx(Txid([9; 32]), Blob::First(None), WireFormat::Standard).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn a_damaged_or_cut_body_ends_before_its_last_byte() {
        let faults = FaultStore::new(Arc::new(InMemory::new()), 1);
        let store = BlobStore::new(Arc::new(faults.clone()), BlobOptions::default());
        let (txid, bytes) = transaction(1, 40_000, 100, 7);
        store.put_tx(txid, bytes.clone()).await.unwrap();
        for (fault, format) in [
            (BlobFault::OtherBytes, WireFormat::Extended),
            (BlobFault::OtherBytes, WireFormat::Standard),
            (BlobFault::CutShort, WireFormat::Extended),
        ] {
            faults.fail_all(Some(fault));
            let mut pieces = store.open_tx(txid, Blob::First(None), format).await.unwrap().unwrap();
            let mut read = 0;
            let error = loop {
                match pieces.next().await {
                    Ok(Some(piece)) => read += piece.len(),
                    Ok(None) => panic!("{fault:?}: the body passes for whole"),
                    Err(error) => break error,
                }
            };
            assert!(read < bytes.len(), "{fault:?}: {read} bytes, {error}");
        }
    }
}
