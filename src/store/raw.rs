//! Reads of raw transactions, in bounded memory.

use bytes::Bytes;

use crate::{
    blob::TxPieces,
    record::{Body, Key, Page, Selection},
    tx::{Transaction, Txid, WireFormat},
};

use super::{StateStore, body::BodyError, external::BlobBodies, read::ReadError};

/// Answer to a request for a raw transaction.
pub enum RawTransaction {
    /// The store has no record of the transaction.
    NotFound,
    /// The store has a record without a body: a stub, a tombstone or a partial transaction.
    NoBody,
    /// The body is inline in the master.
    Inline(Bytes),
    /// The body is in the blob store.
    External {
        /// Length of all pieces in bytes; `None`: not known before the end.
        len: Option<u64>,
        /// Reader of the pieces.
        pieces: Box<TxPieces>,
    },
}

impl StateStore {
    /// Reads a whole transaction in one of its formats. A body in the blob store is returned piece by piece. A coinbase
    /// is always returned in standard format if the coinbase came in standard format.
    ///
    /// # Errors
    /// The engine or the blob store answers with an error that no retry heals, or the body is missing or damaged.
    pub async fn read_raw(&self, txid: Txid, format: WireFormat) -> Result<RawTransaction, ReadError> {
        let master = self.read_selected(vec![(Key::master(txid), Selection::META)]).await.pop().transpose()?.flatten();
        let Some(master) = master.map(|master| master.page) else { return Ok(RawTransaction::NotFound) };
        if master.is_partial() || master.utxos.is_none() {
            return Ok(RawTransaction::NoBody);
        }
        match master.body() {
            Some(Body::External(blob)) => {
                let bodies = BlobBodies::of_reader(self, txid)?;
                let pieces = Box::new(Box::pin(bodies.open(txid, *blob, format)).await?);
                Ok(RawTransaction::External { len: len_of(&master, format), pieces })
            }
            _ => self.read_inline(txid, format).await,
        }
    }

    async fn read_inline(&self, txid: Txid, format: WireFormat) -> Result<RawTransaction, ReadError> {
        let Some(master) = self.master(txid).await? else { return Ok(RawTransaction::NotFound) };
        let body = self.body(&master).await?;
        let Body::Transaction(bytes) = &*body else { return Ok(RawTransaction::NoBody) };
        let transaction = Transaction::parse(bytes).map_err(|error| BodyError::Damaged { txid, error })?;
        match transaction.txid() {
            found if found != txid => Err(BodyError::OtherTransaction { txid, found }.into()),
            _ if format == WireFormat::Standard => {
                let mut standard = Vec::new();
                transaction.write_standard(&mut standard);
                Ok(RawTransaction::Inline(standard.into()))
            }
            _ => Ok(RawTransaction::Inline(bytes.clone())),
        }
    }
}

/// Returns the length of the transaction in this format. A coinbase in standard format has two equal lengths in its
/// record, and one that came in extended format has the extended length in the blob alone.
fn len_of(master: &Page, format: WireFormat) -> Option<u64> {
    match format {
        WireFormat::Standard => Some(master.size_in_bytes),
        WireFormat::Extended if master.is_coinbase => None,
        WireFormat::Extended => Some(master.extended_size),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{blob::BlobStore, record::Blob, store::testing::*};

    async fn read_all(store: &StateStore, txid: Txid, format: WireFormat) -> Vec<u8> {
        match store.read_raw(txid, format).await.unwrap() {
            RawTransaction::Inline(bytes) => bytes.to_vec(),
            RawTransaction::External { len, mut pieces } => {
                let mut all = Vec::new();
                while let Some(piece) = pieces.next().await.unwrap() {
                    all.extend_from_slice(&piece);
                }
                assert_eq!(len, Some(all.len() as u64));
                all
            }
            RawTransaction::NotFound | RawTransaction::NoBody => panic!("{txid} has no body"),
        }
    }

    #[tokio::test]
    async fn inline_and_external_bodies_are_the_same_bytes() {
        let bytes = transaction(&[(outpoint(Txid([1; 32]), 0), 900)], &[10, 11]);
        let inline = store(100);
        inline.plant(page(&bytes)).await;
        let blobs = BlobStore::memory();
        blobs.put_tx(txid(&bytes), bytes.clone()).await.unwrap();
        let external = store(100).with_blobs(Some(blobs));
        let mut with_reference = page(&bytes);
        master(&mut with_reference).body = Some(Body::External(Blob::First(None)));
        external.plant(with_reference).await;
        let mut standard = Vec::new();
        Transaction::parse(&bytes).unwrap().write_standard(&mut standard);
        for store in [inline, external] {
            assert_eq!(read_all(&store, txid(&bytes), WireFormat::Extended).await, bytes);
            assert_eq!(read_all(&store, txid(&bytes), WireFormat::Standard).await, standard);
        }
    }

    #[tokio::test]
    async fn a_transaction_without_a_body_is_told_from_an_absent_one() {
        let store = store(100);
        store.plant(seeded(1, 2)).await;
        let read = async |id| store.read_raw(Txid([id; 32]), WireFormat::Standard).await.unwrap();
        assert!(matches!(read(1).await, RawTransaction::NoBody));
        assert!(matches!(read(2).await, RawTransaction::NotFound));
    }
}
