//! Events of `utxo.validated-txs`.

use super::{codec::DecodeError, declare};
use crate::tx::Txid;

/// Outputs of a [`Seeded`] transaction have an index below this: the store makes a slot for every index up to the
/// greatest, so a short message must not be able to ask for billions.
pub const SEEDED_OUTPUT_LIMIT: u32 = 1 << 20;

declare! {
    /// A transaction that a validator found valid.
    pub struct Validated<'a> {
        /// The transaction in extended format.
        pub tx: &'a [u8],
        /// Height of the block that the transaction can first be in.
        pub height: u32,
        /// Its outputs are not spendable until it is unlocked or mined.
        pub locked: bool,
    }
}

declare! {
    /// A partial transaction: some outputs of one that is known to be mined on the longest chain.
    pub struct Seeded<'a> {
        /// Its id.
        pub txid: Txid,
        /// It is a coinbase.
        pub coinbase: bool,
        /// Height of its block.
        pub height: u32,
        /// Its known outputs, at least one, ascending by `vout`; between them nothing can be spent.
        pub outputs: Vec<SeededOutput<'a>>,
    }
    check in_order;
}

declare! {
    /// One output of a [`Seeded`] transaction.
    pub struct SeededOutput<'a> {
        /// Its index, below 1,048,576.
        pub vout: u32,
        /// Its amount.
        pub satoshis: u64,
        /// Its locking script.
        pub script: &'a [u8],
    }
}

fn in_order(seeded: &Seeded<'_>) -> Result<(), DecodeError> {
    if seeded.outputs.is_empty() {
        return Err(DecodeError::rule("outputs", "there is none"));
    }
    let mut least = 0;
    for (index, output) in seeded.outputs.iter().enumerate() {
        let broken = |rule| Err(DecodeError::rule(format!("outputs[{index}].vout"), rule));
        if output.vout >= SEEDED_OUTPUT_LIMIT {
            return broken(format!("{} is not below {SEEDED_OUTPUT_LIMIT}", output.vout));
        }
        if output.vout < least {
            return broken(format!("{} is not above the one before it", output.vout));
        }
        least = output.vout + 1;
    }
    Ok(())
}
