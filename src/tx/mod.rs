//! Transaction wire formats (standard and extended), transaction ids, UTXO hashes, fees and block files.

mod id;

pub use id::{Outpoint, ParseIdError, Txid, UtxoHash};
