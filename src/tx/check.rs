//! The fee of a transaction, and the rules that a stored transaction must keep.

use super::{InvalidTransaction, Outpoint, Transaction};

/// Greatest sum of satoshis: 21 million coins.
pub const MAX_MONEY: u64 = 21_000_000 * 100_000_000;

/// Up to this many inputs, comparing all pairs is faster than sorting and allocates nothing.
const MAX_PAIRWISE_INPUTS: usize = 16;

impl Transaction<'_> {
    /// Returns the fee in satoshis: previous outputs minus outputs. The fee of a coinbase is 0, because its input
    /// spends no output.
    ///
    /// # Errors
    /// Fails at an input without previous output, at an overspend, and at a sum that overflows.
    pub fn fee(&self) -> Result<u64, InvalidTransaction> {
        if self.is_coinbase() {
            return Ok(0);
        }
        let inputs = self.sum_previous_outputs()?;
        let outputs = self.sum_outputs()?;
        inputs.checked_sub(outputs).ok_or(InvalidTransaction::Overspend { inputs, outputs })
    }

    /// Refuses a transaction that no store may hold. Returns the fee in satoshis.
    ///
    /// # Errors
    /// Fails as [`Transaction::fee`], and for a transaction without outputs, for an outpoint that two inputs name, and
    /// for outputs of more than [`MAX_MONEY`] in sum.
    pub fn check(&self) -> Result<u64, InvalidTransaction> {
        if self.output_count() == 0 {
            return Err(InvalidTransaction::NoOutputs);
        }
        if let Some((input, outpoint)) = self.find_repeated_outpoint() {
            return Err(InvalidTransaction::DuplicateOutpoint { input, outpoint });
        }
        let fee = self.fee()?;
        let satoshis = self.sum_outputs()?;
        if satoshis > MAX_MONEY {
            return Err(InvalidTransaction::TooMuchMoney { satoshis });
        }
        Ok(fee)
    }

    fn sum_previous_outputs(&self) -> Result<u64, InvalidTransaction> {
        self.inputs().enumerate().try_fold(0_u64, |sum, (index, input)| {
            let Some(previous) = input.previous else {
                return Err(InvalidTransaction::MissingPreviousOutput { input: index, outpoint: input.outpoint });
            };
            sum.checked_add(previous.satoshis).ok_or(InvalidTransaction::InputSumOverflow { input: index })
        })
    }

    fn sum_outputs(&self) -> Result<u64, InvalidTransaction> {
        self.outputs().enumerate().try_fold(0_u64, |sum, (vout, output)| {
            sum.checked_add(output.satoshis).ok_or(InvalidTransaction::OutputSumOverflow { vout })
        })
    }

    /// Returns the first input whose outpoint an earlier input names.
    fn find_repeated_outpoint(&self) -> Option<(usize, Outpoint)> {
        if self.input_count() <= MAX_PAIRWISE_INPUTS {
            self.find_repeated_by_pairs()
        } else {
            self.find_repeated_by_sorting()
        }
    }

    fn find_repeated_by_pairs(&self) -> Option<(usize, Outpoint)> {
        let mut inputs = self.inputs().map(|input| input.outpoint).enumerate();
        inputs.find(|(index, outpoint)| self.inputs().take(*index).any(|earlier| earlier.outpoint == *outpoint))
    }

    /// Sorts, because the sender chooses the outpoints and could make a hash table slow.
    fn find_repeated_by_sorting(&self) -> Option<(usize, Outpoint)> {
        let mut named: Vec<(Outpoint, usize)> = self.inputs().map(|input| input.outpoint).zip(0..).collect();
        named.sort_unstable();
        let repeats = named.windows(2).filter(|pair| pair[0].0 == pair[1].0);
        repeats.map(|pair| (pair[1].1, pair[1].0)).min()
    }
}
