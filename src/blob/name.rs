//! Names of blobs in their store.

use std::fmt;

use object_store::path::Path;

use crate::{
    record::Blob,
    telemetry::{BlobKind, Label},
    tx::Txid,
};

/// Name of a blob: `ab/ab…cd.tx`, the transaction id as block explorers print it, in a folder named by its first two
/// digits. Txids are uniform, so the 256 folders have about equally many blobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlobName {
    /// Id of the transaction whose body the blob holds.
    pub txid: Txid,
    /// Whole transaction or known outputs.
    pub kind: BlobKind,
    /// The first blob of the transaction, or another, whose name has the BLAKE3 of its content
    /// (`ab/ab…cd.0123…cdef.tx`). A read verifies the content by the hash of either.
    pub blob: Blob,
}

impl BlobName {
    /// Names the first blob of a whole transaction.
    pub fn tx(txid: Txid) -> Self {
        BlobName { txid, kind: BlobKind::Tx, blob: Blob::First(None) }
    }

    /// Names the first blob with known outputs of a partial transaction.
    pub fn outputs(txid: Txid) -> Self {
        BlobName { txid, kind: BlobKind::Outputs, blob: Blob::First(None) }
    }

    /// Names the blob of the same transaction and kind that a record refers to.
    pub fn of_blob(self, blob: Blob) -> Self {
        BlobName { blob, ..self }
    }

    /// Returns whether a content with this BLAKE3 is the content that the record refers to.
    pub(super) fn matches_hash(self, blake3: &[u8; 32]) -> bool {
        self.blob.content_hash().is_none_or(|hash| hash == *blake3)
    }

    pub(super) fn path(self) -> Path {
        Path::from_iter(self.to_string().split('/'))
    }
}

impl fmt::Display for BlobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let txid = self.txid.to_string();
        write!(f, "{}/{txid}.", &txid[..2])?;
        if let Blob::Other(content_hash) = self.blob {
            write!(f, "{}.", hex::encode(content_hash))?;
        }
        f.write_str(BlobKind::VALUES[self.kind.index()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blob_name_has_the_txid_in_display_order() {
        let txid: Txid = "4a5e1e4baab89f3a32518a88c31bc87f618f76673e2cc77ab2127b7afdeda33b".parse().unwrap();
        let name = "4a/4a5e1e4baab89f3a32518a88c31bc87f618f76673e2cc77ab2127b7afdeda33b";
        assert_eq!(BlobName::tx(txid).to_string(), format!("{name}.tx"));
        assert_eq!(BlobName::outputs(txid).path().as_ref(), format!("{name}.outputs"));
        let other = BlobName::tx(txid).of_blob(Blob::Other([0xab; 32]));
        assert_eq!(other.to_string(), format!("{name}.{}.tx", "ab".repeat(32)));
        let first = BlobName::tx(txid).of_blob(Blob::First(Some([0xab; 32])));
        assert_eq!(first.to_string(), format!("{name}.tx"));
    }
}
