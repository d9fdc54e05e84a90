//! [`SetReader`]: reads a UTXO-set file of either format from its start to its end, and compares its counts with its
//! own.

use std::io::Read;

use super::{
    SetFileError, SetFormat, SetHeader, SetTotals, SetTx, core_format,
    input::SetInput,
    reference_format::{self, END_MARK_BYTES, FOOTER_BYTES},
};
use crate::{
    record::build::HEIGHT_LIMIT,
    tx::{MAX_MONEY, Network},
};

/// Reader of a UTXO-set file. [`next_tx`](Self::next_tx) returns `None` only at the end of a whole file.
#[derive(Debug)]
pub struct SetReader<R> {
    input: SetInput<R>,
    header: SetHeader,
    /// Bytes of the file.
    length: u64,
    network: Network,
    totals: SetTotals,
}

impl<R: Read> SetReader<R> {
    /// Reads the header of a file of `length` bytes. `network`: the rules by which outputs get a slot.
    ///
    /// # Errors
    /// The file is no UTXO-set file, or ends within its header.
    pub fn open(file: R, length: u64, network: Network) -> Result<Self, SetFileError> {
        let mut input = SetInput::new(file, 0, length);
        let magic: [u8; 5] = input.array()?;
        let header = if magic == core_format::MAGIC {
            core_format::read_header(&mut input)?
        } else {
            let rest: [u8; 3] = input.array()?;
            let found = [&magic[..], &rest[..]].concat();
            if found != reference_format::MAGIC {
                return Err(SetFileError::UnknownFormat { found: hex::encode(found) });
            }
            reference_format::read_header(&mut input)?
        };
        if let Some(height) = header.height.filter(|height| *height >= HEIGHT_LIMIT) {
            return Err(input.damaged(format!("the height {height} of its block is not below {HEIGHT_LIMIT}")));
        }
        Ok(SetReader { input, header, length, network, totals: SetTotals::default() })
    }

    /// Returns the header of the file.
    pub fn header(&self) -> &SetHeader {
        &self.header
    }

    /// Returns the counts of the transactions that were read so far.
    pub fn totals(&self) -> &SetTotals {
        &self.totals
    }

    /// Returns the position of the next byte in the file.
    pub fn position(&self) -> u64 {
        self.input.at()
    }

    /// Returns the source of the bytes.
    pub(super) fn source_mut(&mut self) -> &mut R {
        self.input.source_mut()
    }

    /// Reads the next transaction; `None`: the file has ended, and its own counts are those of its transactions.
    ///
    /// # Errors
    /// The file ends too early or too late, is damaged, or has a transaction that no record can hold.
    pub fn next_tx(&mut self) -> Result<Option<SetTx>, SetFileError> {
        let tx = match self.header.format {
            SetFormat::Reference => self.next_of_reference()?,
            SetFormat::Core => self.next_of_core()?,
        };
        let Some(tx) = tx else { return Ok(None) };
        if let Some(problem) = tx.find_problem() {
            return Err(self.input.damaged(problem));
        }
        if self.header.height.is_some_and(|height| tx.height > height) {
            let problem = format!("transaction {} is at height {}, above that of the file's block", tx.txid, tx.height);
            return Err(self.input.damaged(problem));
        }
        self.totals.add(&tx, self.network);
        if self.totals.satoshis > MAX_MONEY {
            return Err(self.input.damaged("its outputs are more than 21 million coins"));
        }
        Ok(Some(tx))
    }

    fn next_of_reference(&mut self) -> Result<Option<SetTx>, SetFileError> {
        // Nothing marks the last transaction: only the counts are left behind it.
        let cut = SetFileError::Cut { at: self.length };
        let Some(end) = self.length.checked_sub(FOOTER_BYTES).filter(|end| *end >= self.input.at()) else {
            return Err(cut);
        };
        let left = end - self.input.at();
        if left > END_MARK_BYTES {
            let tx = reference_format::read_tx(&mut self.input)?;
            return if self.input.at() > end { Err(cut) } else { Ok(Some(tx)) };
        }
        // No transaction is as short as the mark.
        if left != 0 && (left != END_MARK_BYTES || self.input.array::<{ END_MARK_BYTES as usize }>()? != [0; 32]) {
            return Err(cut);
        }
        let said = reference_format::read_footer(&mut self.input)?;
        let found = (self.totals.transactions, self.totals.outputs);
        let describe = |(transactions, outputs)| format!("{transactions} transactions with {outputs} outputs");
        match found == said {
            true => Ok(None),
            false => Err(SetFileError::OtherCounts { found: describe(found), said: describe(said) }),
        }
    }

    fn next_of_core(&mut self) -> Result<Option<SetTx>, SetFileError> {
        let said = self.header.outputs.unwrap_or(0);
        if self.totals.outputs < said {
            return core_format::read_tx(&mut self.input).map(Some);
        }
        if self.totals.outputs > said {
            let found = format!("{} outputs or more", self.totals.outputs);
            return Err(SetFileError::OtherCounts { found, said: format!("{said} outputs") });
        }
        match self.length.checked_sub(self.input.at()) {
            Some(0) => Ok(None),
            Some(more) => {
                Err(self.input.damaged(format!("{more} bytes follow the last output that its header counts")))
            }
            None => Err(SetFileError::Cut { at: self.length }),
        }
    }
}

/// Returns the first `count` transactions of a part of a file, whose first byte is the byte `at` of the file.
pub(super) fn read_part(
    format: SetFormat,
    part: &[u8],
    at: u64,
    count: u64,
) -> impl Iterator<Item = Result<SetTx, SetFileError>> {
    let mut input = SetInput::new(part, at, part.len() as u64);
    (0..count).map(move |_| match format {
        SetFormat::Reference => reference_format::read_tx(&mut input),
        SetFormat::Core => core_format::read_tx(&mut input),
    })
}

#[cfg(test)]
#[path = "reader_tests.rs"]
mod tests;
