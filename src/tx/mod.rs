//! Transaction wire formats (standard and extended), transaction ids, UTXO hashes, fees and block files.
//!
//! [`Transaction`] and [`block::RawBlock`] are views: parsing checks the bytes once, and the view borrows the bytes.

mod builder;
mod check;
mod error;
mod fingerprints;
mod hash;
mod id;
mod parts;
mod reader;
mod slots;
mod stream;
mod transaction;
mod write;

pub mod block;
pub mod varint;

pub use builder::TransactionBuilder;
pub use check::MAX_MONEY;
pub use error::{InvalidTransaction, ParseError, ParseErrorKind};
pub use fingerprints::{FingerprintMap, FingerprintSet};
pub use hash::{amount_size, double_sha256, utxo_hash};
pub(crate) use id::read_text;
pub use id::{Outpoint, ParseIdError, Txid, TxidMap, UtxoHash};
pub use parts::{Input, Inputs, Output, Outputs, PreviousOutput, RawOutputs};
pub use slots::{Network, UnknownNetwork, has_slot};
pub use stream::{FoundOutput, StreamedTransaction, TransactionStream, WireFormat};
pub use transaction::Transaction;

#[cfg(test)]
mod tests;
