//! Events of `utxo.validated-txs`: whole and partial transactions.

use super::{codec::DecodeError, declare, json::values::hex_bytes};
use crate::tx::Txid;

/// Limit of the output index in a [`PartialTxEvent`]. The store makes a slot for every index up to the greatest, so
/// that a short message could otherwise ask for billions of slots.
pub const PARTIAL_OUTPUT_LIMIT: u32 = 1 << 20;

declare! {
    /// A transaction that a validator found valid.
    pub struct Validated<'a> {
        /// The transaction in extended format.
        pub tx: &'a [u8] as "hex_bytes",
        /// Height of the block that the transaction can first be in.
        pub height: u32,
        /// The outputs are not spendable until the transaction is unlocked or mined.
        pub locked: bool,
    }
}

declare! {
    /// A partial transaction (event kind `seeded`): known outputs of a transaction that is mined on the longest chain.
    #[serde(bound(deserialize = "'de: 'a"))]
    pub struct PartialTxEvent<'a> {
        /// Txid of the transaction; not verifiable from the event.
        pub txid: Txid,
        /// The transaction is a coinbase.
        pub coinbase: bool,
        /// Height of the transaction's block.
        pub height: u32,
        /// Known outputs, at least one, ascending by `vout`; an output that the list omits cannot be spent.
        pub outputs: Vec<PartialOutput<'a>>,
    }
    check check_outputs;
}

declare! {
    /// Known output of a [`PartialTxEvent`].
    pub struct PartialOutput<'a> {
        /// Index of the output, below 1,048,576.
        pub vout: u32,
        /// Amount of the output, satoshis.
        pub satoshis: u64,
        /// Locking script of the output.
        pub script: &'a [u8] as "hex_bytes",
    }
}

fn check_outputs(event: &PartialTxEvent<'_>) -> Result<(), DecodeError> {
    if event.outputs.is_empty() {
        return Err(DecodeError::broken_rule("outputs", "there is none"));
    }
    let mut least = 0;
    for (index, output) in event.outputs.iter().enumerate() {
        let broken = |rule| Err(DecodeError::broken_rule(format!("outputs[{index}].vout"), rule));
        if output.vout >= PARTIAL_OUTPUT_LIMIT {
            return broken(format!("{} is not below {PARTIAL_OUTPUT_LIMIT}", output.vout));
        }
        if output.vout < least {
            return broken(format!("{} is not above the one before it", output.vout));
        }
        least = output.vout + 1;
    }
    Ok(())
}
