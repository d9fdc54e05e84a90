//! What a blob is called.

use std::fmt;

use object_store::path::Path;

use crate::{telemetry::BlobLabel, tx::Txid};

/// The two sorts of blobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BlobKind {
    /// `.tx`: a whole transaction in extended format (a coinbase: in the format that it came in).
    Tx,
    /// `.outputs`: the known outputs of a partial transaction.
    Outputs,
}

impl From<BlobKind> for BlobLabel {
    fn from(kind: BlobKind) -> Self {
        match kind {
            BlobKind::Tx => BlobLabel::Tx,
            BlobKind::Outputs => BlobLabel::Outputs,
        }
    }
}

impl BlobKind {
    fn suffix(self) -> &'static str {
        match self {
            BlobKind::Tx => "tx",
            BlobKind::Outputs => "outputs",
        }
    }
}

/// Which blob: `ab/ab…cd.tx`, the transaction id as explorers show it, in a folder named by its first two digits (256 folders
/// with a like number of blobs each).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlobName {
    /// Whose.
    pub txid: Txid,
    /// Which of its blobs.
    pub kind: BlobKind,
    /// Of one that says otherwise than the first: the BLAKE3 of its content, which stands in the name (`ab/ab…cd.0123…cdef.tx`).
    pub other: Option<[u8; 32]>,
}

impl BlobName {
    /// The whole transaction.
    pub fn tx(txid: Txid) -> Self {
        BlobName { txid, kind: BlobKind::Tx, other: None }
    }

    /// The known outputs.
    pub fn outputs(txid: Txid) -> Self {
        BlobName { txid, kind: BlobKind::Outputs, other: None }
    }

    /// The blob of the same transaction with this content, which is not the first one.
    pub fn with_content(self, blake3: [u8; 32]) -> Self {
        BlobName { other: Some(blake3), ..self }
    }

    pub(super) fn path(self) -> Path {
        Path::from_iter(self.to_string().split('/'))
    }
}

impl fmt::Display for BlobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let txid = self.txid.to_string();
        write!(f, "{}/{txid}.", &txid[..2])?;
        if let Some(content) = self.other {
            write!(f, "{}.", hex::encode(content))?;
        }
        f.write_str(self.kind.suffix())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blob_is_named_as_explorers_name_its_transaction() {
        let txid: Txid = "4a5e1e4baab89f3a32518a88c31bc87f618f76673e2cc77ab2127b7afdeda33b".parse().unwrap();
        let name = "4a/4a5e1e4baab89f3a32518a88c31bc87f618f76673e2cc77ab2127b7afdeda33b";
        assert_eq!(BlobName::tx(txid).to_string(), format!("{name}.tx"));
        assert_eq!(BlobName::outputs(txid).path().as_ref(), format!("{name}.outputs"));
        let other = BlobName::tx(txid).with_content([0xab; 32]);
        assert_eq!(other.to_string(), format!("{name}.{}.tx", "ab".repeat(32)));
    }
}
