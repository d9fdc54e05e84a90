//! Events of `utxo.validated-txs`: whole and partial transactions.

use serde::{Deserialize, Serialize};

use super::{
    codec::{BodyReader, BodyWriter, DecodeError, DecodeProblem, Wire},
    declare,
    json::values::{hex_array, hex_bytes},
};
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

/// BLAKE3 of an object's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ContentHash(#[serde(with = "hex_array")] pub [u8; 32]);

/// Most bytes of an object's key, as in S3.
const MAX_KEY_BYTES: usize = 1_024;

declare! {
    /// Reference to an object with the body of a transaction. A producer publishes the event once the object is whole.
    pub struct BodyReference {
        /// Key of the object in the object store: 1 to 1,024 bytes, no control characters.
        pub key: String,
        /// Length of the object, bytes.
        pub length: u64,
        /// BLAKE3 of the object's content.
        pub blake3: ContentHash,
    }
    check check_reference;
}

declare! {
    /// A transaction that a validator found valid, with its body in an object.
    pub struct ValidatedReference {
        /// Txid of the transaction.
        pub txid: Txid,
        /// Object with the transaction in extended format.
        pub tx: BodyReference,
        /// Height of the block that the transaction can first be in.
        pub height: u32,
        /// The outputs are not spendable until the transaction is unlocked or mined.
        pub locked: bool,
    }
}

declare! {
    /// A partial transaction with its known outputs in an object.
    pub struct PartialTxReference {
        /// Txid of the transaction; not verifiable from the event.
        pub txid: Txid,
        /// The transaction is a coinbase.
        pub coinbase: bool,
        /// Height of the transaction's block.
        pub height: u32,
        /// Object with the known outputs: the bytes of the field `outputs` of the event `seeded`.
        pub outputs: BodyReference,
    }
}

impl ValidatedReference {
    /// Returns the event as if the message had the body. `body`: content of the object.
    pub fn with_body<'a>(&self, body: &'a [u8]) -> Validated<'a> {
        Validated { tx: body, height: self.height, locked: self.locked }
    }
}

impl PartialTxReference {
    /// Returns the event as if the message had the body. `body`: content of the object.
    ///
    /// # Errors
    /// The content is no list of outputs, or breaks a rule of the list.
    pub fn with_body<'a>(&self, body: &'a [u8]) -> Result<PartialTxEvent<'a>, DecodeError> {
        let mut source = BodyReader::new(body);
        let outputs = Wire::decode(&mut source)?;
        match source.left() {
            0 => {}
            left => return Err(DecodeProblem::Trailing(left).into()),
        }
        let event = PartialTxEvent { txid: self.txid, coinbase: self.coinbase, height: self.height, outputs };
        check_outputs(&event)?;
        Ok(event)
    }
}

impl PartialTxEvent<'_> {
    /// Encodes the known outputs as the content of an object.
    pub fn encode_outputs(&self) -> Vec<u8> {
        let mut sink = BodyWriter::new(Vec::new());
        Wire::encode(&self.outputs, &mut sink);
        sink.into_bytes()
    }
}

fn check_reference(reference: &BodyReference) -> Result<(), DecodeError> {
    let broken = |rule| Err(DecodeError::broken_rule("key", rule));
    match reference.key.len() {
        1..=MAX_KEY_BYTES if reference.key.contains(char::is_control) => broken("has a control character".to_owned()),
        1..=MAX_KEY_BYTES => Ok(()),
        length => broken(format!("has {length} bytes instead of 1 to {MAX_KEY_BYTES}")),
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
