//! Binary form of the batches: `schemas/api-batches.md` has the layout. Numbers are little-endian, txids in internal
//! byte order, as in the log.
//!
//! ```text
//! request of outputs       n × 36: txid (32) ‖ vout (4)
//! request of transactions  n × 32: txid (32)
//! answer                   n × record: length (4) ‖ that many bytes
//! ```

use crate::{
    api::problem::Problem,
    record::{Body, StoredOutput},
    store::{
        body::ParsedBody,
        outputs::OutputState,
        read::{ReadError, StoredTransaction, inpoints_of},
        spend_status::SpendStatus,
    },
    tx::{Outpoint, Txid},
};

/// Bytes of an outpoint.
const OUTPOINT_LEN: usize = 36;
/// Bytes of a txid.
const TXID_LEN: usize = 32;

/// First byte of the record of a key that could not be read; the status of the problem and its text follow.
const FAILED: u8 = 255;

/// Reason why a binary batch is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the body has {len} bytes, which is not a multiple of {key_len}: each key has {key_len} bytes")]
pub struct KeyLengthError {
    len: usize,
    key_len: usize,
}

/// Decodes the keys of a batch of outputs.
///
/// # Errors
/// The body ends within a key.
pub fn decode_outpoints(body: &[u8]) -> Result<Vec<Outpoint>, KeyLengthError> {
    let (keys, rest) = body.as_chunks::<OUTPOINT_LEN>();
    if !rest.is_empty() {
        return Err(KeyLengthError { len: body.len(), key_len: OUTPOINT_LEN });
    }
    let outpoint = |key: &[u8; OUTPOINT_LEN]| {
        let (mut txid, mut vout) = ([0; TXID_LEN], [0; 4]);
        txid.copy_from_slice(&key[..TXID_LEN]);
        vout.copy_from_slice(&key[TXID_LEN..]);
        Outpoint { txid: Txid(txid), vout: u32::from_le_bytes(vout) }
    };
    Ok(keys.iter().map(outpoint).collect())
}

/// Decodes the keys of a batch of transactions.
///
/// # Errors
/// The body ends within a key.
pub fn decode_txids(body: &[u8]) -> Result<Vec<Txid>, KeyLengthError> {
    let (keys, rest) = body.as_chunks::<TXID_LEN>();
    if rest.is_empty() {
        Ok(keys.iter().map(|key| Txid(*key)).collect())
    } else {
        Err(KeyLengthError { len: body.len(), key_len: TXID_LEN })
    }
}

/// Appends the record of an output.
pub fn encode_output(state: &Result<OutputState, Problem>, to: &mut Vec<u8>) {
    append_record(to, |to| match state {
        Ok(state) => write_output(state, to),
        Err(problem) => write_failure(problem, to),
    });
}

/// Appends the record of a transaction; `None`: the store has no record of it. `has_inpoints` and `has_tx` select the
/// parts of the body.
pub fn encode_transaction(
    stored: Result<Option<&StoredTransaction>, &Problem>,
    has_inpoints: bool,
    has_tx: bool,
    to: &mut Vec<u8>,
) {
    append_record(to, |to| match stored {
        Ok(None) => to.push(0),
        Ok(Some(stored)) => write_transaction(stored, has_inpoints, has_tx, to),
        Err(problem) => write_failure(problem, to),
    });
}

/// Appends a record with its length in front.
fn append_record(to: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let start = to.len();
    to.extend([0; 4]);
    write(to);
    // A record is smaller than the bodies of one read, and these are smaller than 4 GiB.
    let len = u32::try_from(to.len() - start - 4).unwrap_or(u32::MAX);
    to[start..start + 4].copy_from_slice(&len.to_le_bytes());
}

fn write_failure(problem: &Problem, to: &mut Vec<u8>) {
    to.push(FAILED);
    to.extend(problem.status.to_le_bytes());
    to.extend_from_slice(problem.detail.as_bytes());
}

/// Returns the status byte of an output.
fn status_byte(status: &SpendStatus) -> u8 {
    match status {
        SpendStatus::NotFound | SpendStatus::NoSuchOutput | SpendStatus::HashMismatch(_) => 0,
        SpendStatus::Unspent => 1,
        SpendStatus::Spent(_) => 2,
        SpendStatus::Frozen => 3,
        SpendStatus::NotYetSpendable(_) => 4,
        SpendStatus::Locked => 5,
        SpendStatus::Immature(_) => 6,
        SpendStatus::Conflicting(_) => 7,
        SpendStatus::Creating => 8,
        SpendStatus::Pruned(_) => 9,
    }
}

/// Flags of an output record: which parts follow.
mod output_flags {
    pub const HEIGHT: u8 = 1;
    pub const SPENDER: u8 = 2;
    pub const HASH: u8 = 4;
    pub const OUTPUT: u8 = 8;
}

fn write_output(state: &OutputState, to: &mut Vec<u8>) {
    let height = super::model::status_height(&state.status);
    let flags = [
        (output_flags::HEIGHT, height.is_some()),
        (output_flags::SPENDER, state.spender.is_some()),
        (output_flags::HASH, state.utxo_hash.is_some()),
        (output_flags::OUTPUT, state.output.is_some()),
    ];
    let flags = flags.into_iter().filter(|(_, is_set)| *is_set).fold(0, |flags, (flag, _)| flags | flag);
    to.extend([status_byte(&state.status), flags]);
    if let Some(height) = height {
        to.extend(height.to_le_bytes());
    }
    if let Some(spender) = state.spender {
        to.extend(spender.txid.0);
        to.extend(spender.input.to_le_bytes());
    }
    if let Some(hash) = state.utxo_hash {
        to.extend(hash.0);
    }
    if let Some(StoredOutput { satoshis, script }) = &state.output {
        to.extend(satoshis.to_le_bytes());
        write_bytes(script, to);
    }
}

/// Flags of a transaction record.
mod transaction_flags {
    pub const COINBASE: u16 = 1;
    pub const LOCKED: u16 = 2;
    pub const FROZEN: u16 = 4;
    pub const CREATING: u16 = 8;
    pub const CONFLICTING: u16 = 16;
    pub const UNMINED: u16 = 32;
    pub const INPOINTS: u16 = 64;
    pub const TX: u16 = 128;
}

/// Returns the state byte of a found transaction.
fn state_byte(stored: &StoredTransaction) -> u8 {
    use crate::record::TxState;
    match stored.master.state() {
        TxState::Live => 1,
        TxState::Creating => 2,
        TxState::Conflicting(_) => 3,
        TxState::Stub(_) => 4,
        TxState::Pruned(_) => 5,
    }
}

fn write_transaction(stored: &StoredTransaction, has_inpoints: bool, has_tx: bool, to: &mut Vec<u8>) {
    let page = &*stored.master;
    let bins = page.master.as_deref();
    let unmined = page.unmined_since();
    let tx = match &stored.body {
        Some(Body::Transaction(bytes)) if has_tx => Some(bytes),
        _ => None,
    };
    let parsed = stored.body.as_ref().filter(|_| has_inpoints).map(|body| ParsedBody::parse(page.txid, body));
    let inpoints = match parsed {
        Some(Err(error)) => return write_failure(&ReadError::from(error).into(), to),
        Some(Ok(parsed)) => parsed.transaction().map(inpoints_of),
        None => None,
    };
    let flags = [
        (transaction_flags::COINBASE, page.is_coinbase),
        (transaction_flags::LOCKED, page.locked),
        (transaction_flags::FROZEN, page.frozen),
        (transaction_flags::CREATING, page.creating_at.is_some()),
        (transaction_flags::CONFLICTING, page.conflicting),
        (transaction_flags::UNMINED, unmined.is_some()),
        (transaction_flags::INPOINTS, inpoints.is_some()),
        (transaction_flags::TX, tx.is_some()),
    ];
    let flags = flags.into_iter().filter(|(_, is_set)| *is_set).fold(0, |flags: u16, (flag, _)| flags | flag);
    to.push(state_byte(stored));
    to.extend(flags.to_le_bytes());
    to.extend(page.version.to_le_bytes());
    to.extend(page.lock_time.to_le_bytes());
    for number in [page.fee, page.size_in_bytes, page.extended_size, bins.map_or(0, |bins| bins.created_at)] {
        to.extend(number.to_le_bytes());
    }
    to.extend(bins.map_or(0, |bins| bins.total_utxos).to_le_bytes());
    to.extend(unmined.unwrap_or(0).to_le_bytes());
    let mined = bins.map(|bins| &*bins.mined).unwrap_or_default();
    write_count(mined.len(), to);
    for block in mined {
        [block.block_id, block.height, block.subtree].iter().for_each(|number| to.extend(number.to_le_bytes()));
    }
    let children = bins.map(|bins| &bins.conflicting_children);
    write_count(children.map_or(0, |children| children.len()), to);
    children.into_iter().flatten().for_each(|child| to.extend(child.0));
    if let Some(inpoints) = inpoints {
        write_count(inpoints.parent_txids.len(), to);
        for (parent, indexes) in inpoints.parent_txids.iter().zip(&inpoints.indexes) {
            to.extend(parent.0);
            write_count(indexes.len(), to);
            indexes.iter().for_each(|index| to.extend(index.to_le_bytes()));
        }
    }
    if let Some(tx) = tx {
        write_bytes(tx, to);
    }
}

fn write_count(count: usize, to: &mut Vec<u8>) {
    to.extend(u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes());
}

fn write_bytes(bytes: &[u8], to: &mut Vec<u8>) {
    write_count(bytes.len(), to);
    to.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{record::SpendingData, tx::UtxoHash};

    #[test]
    fn keys_are_decoded_and_a_cut_key_is_refused() {
        let mut body = vec![7; 32];
        body.extend([1, 0, 0, 0]);
        assert_eq!(decode_outpoints(&body).unwrap(), [Outpoint { txid: Txid([7; 32]), vout: 1 }]);
        assert_eq!(decode_outpoints(&[]).unwrap(), []);
        assert!(decode_outpoints(&body[..35]).is_err());
        assert_eq!(decode_txids(&body[..32]).unwrap(), [Txid([7; 32])]);
        assert!(decode_txids(&body).is_err());
    }

    #[test]
    fn an_output_record_has_the_parts_that_its_flags_announce() {
        let spender = SpendingData { txid: Txid([8; 32]), input: 3 };
        let output = StoredOutput { satoshis: 5, script: vec![0x51].into() };
        let state = OutputState {
            outpoint: Outpoint { txid: Txid([7; 32]), vout: 0 },
            status: SpendStatus::Spent(spender),
            spender: Some(spender),
            utxo_hash: Some(UtxoHash([9; 32])),
            output: Some(output),
            mined_height: None,
        };
        let mut record = Vec::new();
        encode_output(&Ok(state), &mut record);
        let mut expected = vec![83, 0, 0, 0, 2, 14];
        expected.extend([8; 32]);
        expected.extend([3, 0, 0, 0]);
        expected.extend([9; 32]);
        expected.extend([5, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0x51]);
        assert_eq!(record, expected);
        let mut failed = Vec::new();
        encode_output(&Err(ReadError::MissingPage { txid: Txid([7; 32]), page: 2 }.into()), &mut failed);
        assert_eq!((failed[4], &failed[5..7], &failed[7..14]), (FAILED, &500_u16.to_le_bytes()[..], &b"page 2 "[..]));
    }
}
