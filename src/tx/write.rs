//! Writes a transaction in standard or in extended format.

use super::{Outpoint, PreviousOutput, Transaction, parts::NO_PREVIOUS, transaction::EXTENDED_MARKER};

/// Error of a conversion to the extended format: the previous output of an input is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("previous output of input {input}: {outpoint} is unknown")]
pub struct UnknownPreviousOutput {
    /// Index of the input.
    pub input: usize,
    /// Outpoint that the input spends.
    pub outpoint: Outpoint,
}

impl Transaction<'_> {
    /// Appends the transaction in standard format.
    pub fn write_standard(&self, to: &mut Vec<u8>) {
        to.reserve(self.standard_len());
        let [version, input_count, outputs] = self.standard_parts();
        to.extend_from_slice(version);
        to.extend_from_slice(input_count);
        for input in self.inputs() {
            to.extend_from_slice(input.raw_standard());
        }
        to.extend_from_slice(outputs);
    }

    /// Appends the transaction in extended format. Where the bytes are in standard format, `previous` returns the
    /// output that an input spends, from the input's index and outpoint. The input of a coinbase spends no output: it
    /// gets 0 satoshis and an empty script without a call of `previous`.
    ///
    /// # Errors
    /// Fails at the first outpoint that `previous` does not know. `to` is then unchanged.
    pub fn write_extended<'p>(
        &self,
        to: &mut Vec<u8>,
        mut previous: impl FnMut(usize, Outpoint) -> Option<PreviousOutput<'p>>,
    ) -> Result<(), UnknownPreviousOutput> {
        let start = to.len();
        to.reserve(self.extended_len());
        let [version, input_count, outputs] = self.standard_parts();
        to.extend_from_slice(version);
        to.extend_from_slice(&EXTENDED_MARKER);
        to.extend_from_slice(input_count);
        for (index, input) in self.inputs().enumerate() {
            to.extend_from_slice(input.raw());
            if self.is_extended() {
                continue;
            }
            if self.is_coinbase() {
                to.extend_from_slice(&NO_PREVIOUS);
            } else if let Some(output) = previous(index, input.outpoint) {
                output.write(to);
            } else {
                to.truncate(start);
                return Err(UnknownPreviousOutput { input: index, outpoint: input.outpoint });
            }
        }
        to.extend_from_slice(outputs);
        Ok(())
    }
}
