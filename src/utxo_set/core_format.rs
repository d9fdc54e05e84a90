//! The `dumptxoutset` file of Bitcoin Core, version 2 (`node/utxo_snapshot.h`, `rpc/blockchain.cpp`, `coins.h`).
//!
//! | bytes | field |
//! |---|---|
//! | 5, 2 | `utxo` 0xFF, version |
//! | 4 | magic of the network |
//! | 32 | hash of the block, internal order |
//! | 8 | number of outputs |
//! | … | transactions: txid (32), number of outputs (CompactSize), outputs |
//!
//! An output is index (CompactSize), VARINT of height · 2 + coinbase, VARINT of the compressed amount, and compressed
//! script. The height of the block is not in the file.

use std::io::Read;

use super::{
    SetFileError, SetFormat, SetHeader, SetTx,
    compressor::{decompress_amount, read_script},
    input::SetInput,
    known_output,
};
use crate::tx::{Txid, block::FileNetwork};

/// First bytes of a file.
pub const MAGIC: [u8; 5] = *b"utxo\xff";
/// Version that this program reads: since Bitcoin Core 28.
pub const VERSION: u16 = 2;

/// Reads the header behind its magic.
pub(super) fn read_header<R: Read>(input: &mut SetInput<R>) -> Result<SetHeader, SetFileError> {
    let version = input.u16()?;
    if version != VERSION {
        return Err(SetFileError::OtherVersion { found: version });
    }
    let magic = input.array()?;
    let network = FileNetwork::from_magic(magic);
    let network = network.ok_or_else(|| SetFileError::UnknownNetwork { magic: hex::encode(magic) })?;
    Ok(SetHeader {
        format: SetFormat::Core,
        block: input.array()?,
        height: None,
        previous: None,
        network: Some(network),
        outputs: Some(input.u64()?),
    })
}

/// Reads the next transaction of the file.
pub(super) fn read_tx<R: Read>(input: &mut SetInput<R>) -> Result<SetTx, SetFileError> {
    let txid = Txid(input.array()?);
    let count = input.compact_size()?;
    let mut tx: Option<SetTx> = None;
    for _ in 0..count {
        let vout = input.compact_size()?;
        let vout = u32::try_from(vout).map_err(|_| input.damaged(format!("{vout} is no index of an output")))?;
        let code = input.core_varint()?;
        let code = u32::try_from(code).map_err(|_| input.damaged(format!("{} is no height", code >> 1)))?;
        let amount = decompress_amount(input.core_varint()?);
        let satoshis = amount.ok_or_else(|| input.damaged("an amount exceeds 64 bits"))?;
        let output = known_output(vout, satoshis, read_script(input)?);
        let (height, coinbase) = (code >> 1, code & 1 == 1);
        let tx = tx.get_or_insert_with(|| SetTx { txid, height, coinbase, outputs: Vec::new() });
        if (tx.height, tx.coinbase) != (height, coinbase) {
            return Err(input.damaged(format!("the outputs of {txid} have different heights")));
        }
        tx.outputs.push(output);
    }
    tx.ok_or_else(|| input.damaged(format!("transaction {txid} has no outputs")))
}

#[cfg(feature = "testkit")]
pub use write::{write_header, write_tx};

/// The other direction, for files that tests make.
#[cfg(feature = "testkit")]
mod write {
    use super::*;
    use crate::{
        record::build::KnownOutput,
        tx::varint,
        utxo_set::compressor::{compress_amount, write_script, write_varint},
    };

    /// Appends the header of a file.
    pub fn write_header(network: FileNetwork, block: [u8; 32], outputs: u64, out: &mut Vec<u8>) {
        out.extend(MAGIC);
        out.extend(VERSION.to_le_bytes());
        out.extend(network.block_file_magic());
        out.extend(block);
        out.extend(outputs.to_le_bytes());
    }

    /// Appends a transaction to the file.
    pub fn write_tx(tx: &SetTx, out: &mut Vec<u8>) {
        out.extend(tx.txid.0);
        varint::write(out, tx.outputs.len() as u64);
        for KnownOutput { vout, output } in &tx.outputs {
            varint::write(out, u64::from(*vout));
            write_varint(u64::from(tx.height) << 1 | u64::from(tx.coinbase), out);
            write_varint(compress_amount(output.satoshis), out);
            write_script(&output.script, out);
        }
    }
}
