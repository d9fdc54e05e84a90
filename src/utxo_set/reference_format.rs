//! The UTXO-set file of the reference (`services/utxopersister`). Numbers are little-endian, hashes in internal order.
//!
//! | bytes | field |
//! |---|---|
//! | 8 | `U-S-1.0 ` |
//! | 32, 4, 32 | hash and height of the block, hash of the block before |
//! | … | transactions: txid (32), height · 2 + coinbase (4), number of outputs (4), outputs |
//! | 32 | zeros, only in files of earlier versions of the reference |
//! | 8, 8 | number of transactions, number of outputs |
//!
//! An output is index (4), satoshis (8), length of the script (4), script.

use std::io::Read;

use super::{SetFileError, SetFormat, SetHeader, SetTx, input::SetInput, known_output};
use crate::{record::build::KnownOutput, tx::Txid};

/// First bytes of a file.
pub const MAGIC: [u8; 8] = *b"U-S-1.0 ";
/// Bytes of the counts at the end of a file.
pub(super) const FOOTER_BYTES: u64 = 16;
/// Bytes of the zeros that earlier versions of the reference wrote before the counts.
pub(super) const END_MARK_BYTES: u64 = 32;
/// Outputs for which memory is reserved before they are read.
const RESERVED_OUTPUTS: usize = 16;

/// Reads the header behind its magic.
pub(super) fn read_header<R: Read>(input: &mut SetInput<R>) -> Result<SetHeader, SetFileError> {
    Ok(SetHeader {
        format: SetFormat::Reference,
        block: input.array()?,
        height: Some(input.u32()?),
        previous: Some(input.array()?),
        network: None,
        outputs: None,
    })
}

/// Reads the next transaction of the file.
pub(super) fn read_tx<R: Read>(input: &mut SetInput<R>) -> Result<SetTx, SetFileError> {
    let txid = Txid(input.array()?);
    let code = input.u32()?;
    let count = input.u32()?;
    let mut outputs = Vec::with_capacity((count as usize).min(RESERVED_OUTPUTS));
    for _ in 0..count {
        let (vout, satoshis) = (input.u32()?, input.u64()?);
        let length = input.u32()?;
        outputs.push(known_output(vout, satoshis, input.bytes(u64::from(length))?));
    }
    Ok(SetTx { txid, height: code >> 1, coinbase: code & 1 == 1, outputs })
}

/// Reads the number of transactions and the number of outputs.
pub(super) fn read_footer<R: Read>(input: &mut SetInput<R>) -> Result<(u64, u64), SetFileError> {
    Ok((input.u64()?, input.u64()?))
}

/// Appends the header of a file.
pub fn write_header(block: [u8; 32], height: u32, previous: [u8; 32], out: &mut Vec<u8>) {
    out.extend(MAGIC);
    out.extend(block);
    out.extend(height.to_le_bytes());
    out.extend(previous);
}

/// Appends a transaction to the file.
pub fn write_tx(tx: &SetTx, out: &mut Vec<u8>) {
    out.extend(tx.txid.0);
    out.extend((tx.height << 1 | u32::from(tx.coinbase)).to_le_bytes());
    out.extend((tx.outputs.len() as u32).to_le_bytes());
    for KnownOutput { vout, output } in &tx.outputs {
        out.extend(vout.to_le_bytes());
        out.extend(output.satoshis.to_le_bytes());
        out.extend((output.script.len() as u32).to_le_bytes());
        out.extend(&output.script);
    }
}

/// Appends the counts at the end of a file.
pub fn write_footer(transactions: u64, outputs: u64, out: &mut Vec<u8>) {
    out.extend(transactions.to_le_bytes());
    out.extend(outputs.to_le_bytes());
}
