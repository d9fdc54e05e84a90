//! Bodies of transactions.

use bytes::Bytes;
use serde::Serialize;

use crate::tx::{Transaction, amount_size};

/// The body of a transaction: bins `inputs` and `outputs`, or `external`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// The transaction in extended format.
    Transaction(Bytes),
    /// A partial transaction: its outputs by index, gaps `None`.
    Outputs(Vec<Option<StoredOutput>>),
    /// The body is a blob of the blob store.
    External(Blob),
}

/// Blob of a body among the blobs of its transaction. A txid commits to the standard format, but not to the previous
/// outputs of the extended format, and not to a partial transaction. One transaction can therefore have several blobs,
/// none of which ever changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blob {
    /// The blob that was stored first.
    First,
    /// A blob with other content than the first; holds its BLAKE3.
    Other([u8; 32]),
}

impl Body {
    /// Returns the size that an inline body adds to its master, bytes: the transaction, or the outputs of a partial
    /// one.
    pub fn size(&self) -> u64 {
        let size = match self {
            Body::Transaction(bytes) => bytes.len(),
            Body::Outputs(outputs) => outputs.iter().flatten().map(|output| 16 + output.script.len()).sum(),
            Body::External(_) => 0,
        };
        size as u64
    }

    /// Returns `amountSizes` for the first `slots` outputs of the body. Empty for a body in the blob store.
    pub fn amount_sizes(&self, slots: usize) -> Bytes {
        match self {
            Body::Transaction(bytes) => Transaction::parse(bytes).map_or(Bytes::new(), |transaction| {
                transaction.outputs().take(slots).map(|output| amount_size(output.satoshis)).collect()
            }),
            Body::Outputs(outputs) => outputs.iter().take(slots).map(StoredOutput::amount_size_of).collect(),
            Body::External(_) => Bytes::new(),
        }
    }
}

/// Stored output: of a partial transaction, or of a reassignment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StoredOutput {
    /// Amount of the output, satoshis.
    pub satoshis: u64,
    /// Locking script of the output.
    #[serde(serialize_with = "hex::serde::serialize")]
    pub script: Bytes,
}

impl StoredOutput {
    /// Returns the output with the script in other memory, which `moved` returns.
    pub(crate) fn with_script(&self, moved: impl FnOnce(&Bytes) -> Bytes) -> Self {
        StoredOutput { satoshis: self.satoshis, script: moved(&self.script) }
    }

    /// Returns the amount size of an output, 0 for a gap.
    pub(crate) fn amount_size_of(output: &Option<StoredOutput>) -> u8 {
        output.as_ref().map_or(0, |output| amount_size(output.satoshis))
    }
}
