//! Oracle: the crate `bitcoin` as a second implementation of the wire formats.

use bitcoin::{
    Block, Transaction, TxIn, TxOut, VarInt,
    consensus::{self, Decodable, encode::Error},
    hashes::Hash,
};
use utxo_store::tx::{self, InvalidTransaction, Outpoint, Txid};

use super::budget;

/// Bytes after the version in extended format.
const EXTENDED_MARKER: [u8; 6] = [0, 0, 0, 0, 0, 0xef];

/// Returns the standard transaction at the start of the bytes, and its length; `None` with witness data, which this
/// chain does not have.
pub fn standard(data: &[u8]) -> Option<(Transaction, usize)> {
    let (transaction, len) = budget::uncounted(|| consensus::deserialize_partial::<Transaction>(data)).ok()?;
    is_of_this_chain(&transaction).then_some((transaction, len))
}

/// Returns the block that fills the bytes; `None` if a transaction has witness data.
pub fn block(data: &[u8]) -> Option<Block> {
    let block = budget::uncounted(|| consensus::deserialize::<Block>(data)).ok()?;
    block.txdata.iter().all(is_of_this_chain).then_some(block)
}

/// Whether the transaction was written without a witness marker.
fn is_of_this_chain(transaction: &Transaction) -> bool {
    !transaction.input.is_empty() && transaction.input.iter().all(|input| input.witness.is_empty())
}

/// A transaction in extended format, read with the oracle's readers of its parts.
pub struct Extended {
    /// The transaction without its previous outputs.
    pub transaction: Transaction,
    /// Previous outputs, one for each input.
    pub previous: Vec<TxOut>,
    /// Length of the transaction, in bytes.
    pub len: usize,
}

/// Returns the extended transaction at the start of the bytes.
pub fn extended(data: &[u8]) -> Option<Extended> {
    budget::uncounted(|| read_extended(data)).ok().flatten()
}

fn read_extended(data: &[u8]) -> Result<Option<Extended>, Error> {
    let mut rest = data;
    let version = Decodable::consensus_decode(&mut rest)?;
    let marker: [u8; 6] = Decodable::consensus_decode(&mut rest)?;
    if marker != EXTENDED_MARKER {
        return Ok(None);
    }
    let (mut input, mut previous) = (Vec::new(), Vec::new());
    for _ in 0..VarInt::consensus_decode(&mut rest)?.0 {
        input.push(TxIn::consensus_decode(&mut rest)?);
        previous.push(TxOut::consensus_decode(&mut rest)?);
    }
    let output = Decodable::consensus_decode(&mut rest)?;
    let lock_time = Decodable::consensus_decode(&mut rest)?;
    let transaction = Transaction { version, lock_time, input, output };
    Ok((!previous.is_empty()).then_some(Extended { transaction, previous, len: data.len() - rest.len() }))
}

impl Extended {
    /// Encodes the transaction in extended format.
    pub fn encode(&self) -> Vec<u8> {
        let Transaction { version, lock_time, input, output } = &self.transaction;
        let mut bytes = consensus::serialize(version);
        bytes.extend_from_slice(&EXTENDED_MARKER);
        bytes.extend(consensus::serialize(&VarInt::from(input.len())));
        for (input, previous) in input.iter().zip(&self.previous) {
            bytes.extend(consensus::serialize(input));
            bytes.extend(consensus::serialize(previous));
        }
        bytes.extend(consensus::serialize(output));
        bytes.extend(consensus::serialize(lock_time));
        bytes
    }
}

/// Compares every field that both formats share with the oracle's.
pub fn assert_same(ours: &tx::Transaction<'_>, oracle: &Transaction) {
    assert_eq!(ours.txid(), Txid(oracle.compute_txid().to_byte_array()));
    assert_eq!(ours.version(), oracle.version.0 as u32);
    assert_eq!(ours.lock_time(), oracle.lock_time.to_consensus_u32());
    assert_eq!(ours.is_coinbase(), oracle.is_coinbase());
    assert_eq!(ours.standard_len(), oracle.total_size());
    assert_eq!((ours.input_count(), ours.inputs().len()), (oracle.input.len(), oracle.input.len()));
    assert_eq!((ours.output_count(), ours.outputs().len()), (oracle.output.len(), oracle.output.len()));
    for (input, oracle) in ours.inputs().zip(&oracle.input) {
        assert_eq!(input.outpoint, outpoint(oracle));
        assert_eq!(input.script, oracle.script_sig.as_bytes());
        assert_eq!(input.sequence, oracle.sequence.0);
        assert_eq!(input.raw_standard(), consensus::serialize(oracle));
    }
    for ((output, raw), oracle) in ours.outputs().zip(ours.raw_outputs()).zip(&oracle.output) {
        assert_eq!((output.satoshis, output.script), (oracle.value.to_sat(), oracle.script_pubkey.as_bytes()));
        assert_eq!(raw, consensus::serialize(oracle));
        assert_eq!(tx::Output::parse(raw), Ok(output));
        assert_eq!(output.encoded_len(), raw.len());
    }
    let mut standard = Vec::new();
    ours.write_standard(&mut standard);
    assert_eq!(standard, consensus::serialize(oracle));
}

fn outpoint(input: &TxIn) -> Outpoint {
    Outpoint { txid: Txid(input.previous_output.txid.to_byte_array()), vout: input.previous_output.vout }
}

/// Computes the expected result of [`tx::Transaction::check`] in a simple, slow way.
pub fn check(oracle: &Transaction, previous: Option<&[TxOut]>) -> Result<u64, InvalidTransaction> {
    if oracle.output.is_empty() {
        return Err(InvalidTransaction::NoOutputs);
    }
    let outpoints: Vec<Outpoint> = oracle.input.iter().map(outpoint).collect();
    if let Some(input) = (0..outpoints.len()).find(|index| outpoints[..*index].contains(&outpoints[*index])) {
        return Err(InvalidTransaction::DuplicateOutpoint { input, outpoint: outpoints[input] });
    }
    let paid = || sum(&oracle.output).map_err(|vout| InvalidTransaction::OutputSumOverflow { vout });
    let at_most_all_coins = |satoshis: u64, fee: u64| match satoshis > bitcoin::Amount::MAX_MONEY.to_sat() {
        true => Err(InvalidTransaction::TooMuchMoney { satoshis }),
        false => Ok(fee),
    };
    if oracle.is_coinbase() {
        return paid().and_then(|outputs| at_most_all_coins(outputs, 0));
    }
    let previous = previous.ok_or(InvalidTransaction::MissingPreviousOutput { input: 0, outpoint: outpoints[0] })?;
    let inputs = sum(previous).map_err(|input| InvalidTransaction::InputSumOverflow { input })?;
    let outputs = paid()?;
    if outputs > inputs {
        return Err(InvalidTransaction::Overspend { inputs, outputs });
    }
    at_most_all_coins(outputs, inputs - outputs)
}

/// Returns the sum, or the index at which the sum no longer fits into 64 bits.
fn sum(outputs: &[TxOut]) -> Result<u64, usize> {
    let mut sum = 0_u128;
    for (index, output) in outputs.iter().enumerate() {
        sum += u128::from(output.value.to_sat());
        if sum > u128::from(u64::MAX) {
            return Err(index);
        }
    }
    Ok(sum as u64)
}
