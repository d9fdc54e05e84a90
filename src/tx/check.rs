//! What a transaction pays, and whether it can be held at all.

use super::{InvalidTransaction, Outpoint, Transaction};

/// The most satoshis that there can be: 21 million coins.
pub const MAX_MONEY: u64 = 21_000_000 * 100_000_000;

/// Up to this many inputs comparing each with each is quicker than sorting, and allocates nothing.
const PAIRWISE: usize = 16;

impl Transaction<'_> {
    /// What it leaves to the miner, in satoshis: previous outputs minus outputs; 0 for a coinbase, whose inputs bring
    /// nothing.
    ///
    /// # Errors
    /// An input without previous output, an overspend, a sum that overflows.
    pub fn fee(&self) -> Result<u64, InvalidTransaction> {
        if self.is_coinbase() {
            return Ok(0);
        }
        let inputs = self.previous_satoshis()?;
        let outputs = self.output_satoshis()?;
        inputs.checked_sub(outputs).ok_or(InvalidTransaction::Overspend { inputs, outputs })
    }

    /// Refuses what no store may hold; returns the fee, in satoshis.
    ///
    /// # Errors
    /// As [`Transaction::fee`]; and no outputs, an outpoint that two inputs name, outputs of more than [`MAX_MONEY`]
    /// together.
    pub fn check(&self) -> Result<u64, InvalidTransaction> {
        if self.output_count() == 0 {
            return Err(InvalidTransaction::NoOutputs);
        }
        if let Some((input, outpoint)) = self.repeated_outpoint() {
            return Err(InvalidTransaction::DuplicateOutpoint { input, outpoint });
        }
        let fee = self.fee()?;
        let satoshis = self.output_satoshis()?;
        if satoshis > MAX_MONEY {
            return Err(InvalidTransaction::TooMuchMoney { satoshis });
        }
        Ok(fee)
    }

    fn previous_satoshis(&self) -> Result<u64, InvalidTransaction> {
        self.inputs().enumerate().try_fold(0_u64, |sum, (input, found)| {
            let Some(previous) = found.previous else {
                return Err(InvalidTransaction::MissingPreviousOutput { input, outpoint: found.outpoint });
            };
            sum.checked_add(previous.satoshis).ok_or(InvalidTransaction::InputSumOverflow { input })
        })
    }

    fn output_satoshis(&self) -> Result<u64, InvalidTransaction> {
        self.outputs().enumerate().try_fold(0_u64, |sum, (vout, output)| {
            sum.checked_add(output.satoshis).ok_or(InvalidTransaction::OutputSumOverflow { vout })
        })
    }

    /// The first input that names what an earlier one names.
    fn repeated_outpoint(&self) -> Option<(usize, Outpoint)> {
        if self.input_count() <= PAIRWISE { self.repeated_by_pairs() } else { self.repeated_by_sorting() }
    }

    fn repeated_by_pairs(&self) -> Option<(usize, Outpoint)> {
        let mut inputs = self.inputs().map(|input| input.outpoint).enumerate();
        inputs.find(|(index, outpoint)| self.inputs().take(*index).any(|earlier| earlier.outpoint == *outpoint))
    }

    /// Sorting, because whoever chooses the outpoints cannot make it slow, as they could a hash table.
    fn repeated_by_sorting(&self) -> Option<(usize, Outpoint)> {
        let mut named: Vec<(Outpoint, usize)> = self.inputs().map(|input| input.outpoint).zip(0..).collect();
        named.sort_unstable();
        let repeats = named.windows(2).filter(|pair| pair[0].0 == pair[1].0);
        repeats.map(|pair| (pair[1].1, pair[1].0)).min()
    }
}
