//! Writing a transaction in either format.

use super::{Outpoint, PreviousOutput, Transaction, parts::NO_PREVIOUS, transaction::EXTENDED_MARKER};

/// The extended format was asked for, but what an input spends is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("previous output of input {input}: {outpoint} is unknown")]
pub struct UnknownPreviousOutput {
    /// The input.
    pub input: usize,
    /// What it spends.
    pub outpoint: Outpoint,
}

impl Transaction<'_> {
    /// Appends the standard format.
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

    /// Appends the extended format. `previous` is asked, with the input's index, for what an input spends where the
    /// bytes themselves do not tell; a coinbase spends nothing (0 satoshis, empty script) and is not asked about.
    ///
    /// # Errors
    /// The first outpoint that `previous` does not know; then `to` is as it was.
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
