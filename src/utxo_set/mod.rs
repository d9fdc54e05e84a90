//! UTXO-set files: all unspent outputs of the chain as of one block, each with its height.
//!
//! | format | import | export |
//! |---|---|---|
//! | the reference's (`U-S-1.0 `, [`reference_format`]) | yes | yes |
//! | Bitcoin Core's `dumptxoutset`, version 2 ([`core_format`]) | yes | no |
//!
//! An import reads a file twice. The first time nothing is written: the file is read to its end, counted and summed,
//! and compared with its own totals ([`CheckedFile`]). The second time its transactions become records of an empty
//! store, as the event `Seeded` makes them ([`import`]). The store then stands at the block of the file.

mod check;
mod compressor;
pub mod core_format;
mod error;
mod export;
mod import;
mod input;
mod reader;
pub mod reference_format;

use bytes::Bytes;

pub use check::{CHUNK_BYTES, CheckedFile, FileChunk, check_file};
pub use error::{SetFileError, UtxoSetError};
#[cfg(feature = "testkit")]
pub use export::ExportReport;
pub use export::export;
pub use import::{ImportOptions, ImportReport, import};
pub use reader::SetReader;

use crate::{
    record::{
        StoredOutput,
        build::{HEIGHT_LIMIT, KnownOutput, KnownOutputs, PARTIAL_OUTPUT_LIMIT},
    },
    tx::{MAX_MONEY, Network, Txid, block::FileNetwork, has_slot},
};

/// Format of a UTXO-set file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetFormat {
    /// Format of the reference.
    Reference,
    /// Format of `dumptxoutset` of Bitcoin Core, version 2.
    Core,
}

impl SetFormat {
    /// Returns the name of the format for people.
    pub const fn name(self) -> &'static str {
        match self {
            SetFormat::Reference => "UTXO-set file of the reference",
            SetFormat::Core => "dumptxoutset file of Bitcoin Core",
        }
    }
}

/// Start of a UTXO-set file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetHeader {
    /// Format of the file.
    pub format: SetFormat,
    /// Hash of the last block whose transactions are in the set, internal order.
    pub block: [u8; 32],
    /// Height of that block; `None`: the format does not have it.
    pub height: Option<u32>,
    /// Hash of the block before, internal order; `None`: the format does not have it.
    pub previous: Option<[u8; 32]>,
    /// Network of the file; `None`: the format does not have it.
    pub network: Option<FileNetwork>,
    /// Number of outputs that the header announces; `None`: the format has its counts at the end.
    pub outputs: Option<u64>,
}

/// Transaction of a UTXO-set file with its unspent outputs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetTx {
    /// Id of the transaction.
    pub txid: Txid,
    /// Height of the block that lists the transaction.
    pub height: u32,
    /// The transaction is a coinbase.
    pub coinbase: bool,
    /// Unspent outputs, in the order of the file.
    pub outputs: Vec<KnownOutput>,
}

impl SetTx {
    /// Describes why no record can hold the transaction; `None`: a record can.
    fn find_problem(&self) -> Option<String> {
        let mut indexes: Vec<u32> = self.outputs.iter().map(|output| output.vout).collect();
        indexes.sort_unstable();
        let sum = self.outputs.iter().try_fold(0_u64, |sum, output| sum.checked_add(output.output.satoshis));
        let txid = self.txid;
        let repeated = indexes.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
        match (indexes.last(), repeated) {
            (None, _) => Some(format!("transaction {txid} has no outputs")),
            (Some(last), _) if *last >= PARTIAL_OUTPUT_LIMIT => {
                Some(format!("output {last} of {txid} is not below {PARTIAL_OUTPUT_LIMIT}, the limit of an import"))
            }
            (_, Some(index)) => Some(format!("output {index} of {txid} is in the list twice")),
            _ if self.height >= HEIGHT_LIMIT => Some(format!("the height of {txid} is not below {HEIGHT_LIMIT}")),
            _ if sum.is_none_or(|sum| sum > MAX_MONEY) => {
                Some(format!("the outputs of {txid} are more than 21 million coins"))
            }
            _ => None,
        }
    }

    /// Returns the transaction as a partial transaction.
    fn into_known_outputs(self) -> KnownOutputs {
        KnownOutputs { txid: self.txid, coinbase: self.coinbase, outputs: self.outputs }
    }
}

/// Step of an import, and its progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetProgress {
    /// Step that is in progress.
    pub step: SetStep,
    /// Transactions that the step has done.
    pub transactions: u64,
    /// Amount of work that the step has done: bytes of the file, or transactions of the store.
    pub done: u64,
    /// Amount of all work of the step.
    pub all: u64,
}

/// Steps of an import and of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetStep {
    /// The file is read to its end, and nothing is written.
    Check,
    /// The transactions of the file are written into the store.
    Load,
    /// The store is read and compared with the file.
    Compare,
    /// The store is read and written into a file; the amount of all work is not known.
    Export,
}

/// Receives the progress of an import or an export.
pub type OnSetProgress<'a> = &'a (dyn Fn(SetProgress) + Send + Sync);

/// Returns an output with its index.
fn known_output(vout: u32, satoshis: u64, script: Vec<u8>) -> KnownOutput {
    KnownOutput { vout, output: StoredOutput { satoshis, script: Bytes::from(script) } }
}

/// Counts and sums of a UTXO-set file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct SetTotals {
    /// Transactions with an unspent output.
    pub transactions: u64,
    /// Number of unspent outputs.
    pub outputs: u64,
    /// Sum of these outputs, satoshis.
    pub satoshis: u64,
    /// Outputs that the rules of the network make unspendable: a record has no slot for them.
    pub outputs_without_slot: u64,
    /// Sum of the outputs without a slot, satoshis.
    pub satoshis_without_slot: u64,
    /// Coinbases among the transactions.
    pub coinbases: u64,
    /// Greatest height of a transaction.
    pub greatest_height: u32,
}

impl SetTotals {
    /// Adds a transaction under the rules of a network. The sums saturate.
    fn add(&mut self, tx: &SetTx, network: Network) {
        self.transactions += 1;
        self.coinbases += u64::from(tx.coinbase);
        self.greatest_height = self.greatest_height.max(tx.height);
        for KnownOutput { output: StoredOutput { satoshis, script }, .. } in &tx.outputs {
            self.outputs += 1;
            self.satoshis = self.satoshis.saturating_add(*satoshis);
            if !has_slot(&tx.txid, script, tx.height, network) {
                self.outputs_without_slot += 1;
                self.satoshis_without_slot = self.satoshis_without_slot.saturating_add(*satoshis);
            }
        }
    }
}
