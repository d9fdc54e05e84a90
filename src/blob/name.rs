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
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlobName {
    /// Id of the transaction whose body the blob holds.
    pub txid: Txid,
    /// Whole transaction or known outputs.
    pub kind: BlobKind,
    /// BLAKE3 of the content, which is part of the name (`ab/ab…cd.0123…cdef.tx`); `None` for the first blob of the
    /// transaction.
    pub content_hash: Option<[u8; 32]>,
}

impl BlobName {
    /// Names the first blob of a whole transaction.
    pub fn tx(txid: Txid) -> Self {
        BlobName { txid, kind: BlobKind::Tx, content_hash: None }
    }

    /// Names the first blob with known outputs of a partial transaction.
    pub fn outputs(txid: Txid) -> Self {
        BlobName { txid, kind: BlobKind::Outputs, content_hash: None }
    }

    /// Names the blob of the same transaction and kind that a record refers to.
    pub fn of_blob(self, blob: Blob) -> Self {
        match blob {
            Blob::First => self,
            Blob::Other(content) => self.with_content_hash(content),
        }
    }

    /// Names the blob of the same transaction and kind that is not the first, by the BLAKE3 of its content.
    pub fn with_content_hash(self, blake3: [u8; 32]) -> Self {
        BlobName { content_hash: Some(blake3), ..self }
    }

    pub(super) fn path(self) -> Path {
        Path::from_iter(self.to_string().split('/'))
    }
}

impl fmt::Display for BlobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let txid = self.txid.to_string();
        write!(f, "{}/{txid}.", &txid[..2])?;
        if let Some(content_hash) = self.content_hash {
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
        let other = BlobName::tx(txid).with_content_hash([0xab; 32]);
        assert_eq!(other.to_string(), format!("{name}.{}.tx", "ab".repeat(32)));
    }
}
