//! The body of a transaction: bins `inputs` and `outputs`, or `external`, with the BLAKE3 of the body in `blobHash`, or
//! in `otherBlob` where the body is not the first blob.

use aerospike::Value;
use bytes::Bytes;

use super::{
    super::{names, packed::Packed},
    Bins,
    values::{BadRecord, BinReader, blob, blob_value, packed_list},
};
use crate::{
    record::{Blob, Body, Page, PartialOutputs, StoredOutput},
    tx::{Output, Transaction, varint},
};

/// The 9 bytes that a coinbase input has in place of a previous output: 0 satoshis and an empty script.
const NO_PREVIOUS_OUTPUT: [u8; 9] = [0; 9];
const EXTENDED_MARKER: [u8; 6] = [0, 0, 0, 0, 0, 0xef];

pub fn encode(page: &Page, body: &Body, bins: &mut Bins) {
    match body {
        Body::External(blob) => {
            bins.push((names::EXTERNAL, Value::Bool(true)));
            match blob {
                Blob::First(None) => {}
                Blob::First(Some(hash)) => bins.push((names::BLOB_HASH, Value::Blob(hash.to_vec()))),
                Blob::Other(hash) => bins.push((names::OTHER_BLOB, Value::Blob(hash.to_vec()))),
            }
        }
        Body::Outputs(outputs) => {
            // The reference expects `inputs` in every record with `outputs`.
            bins.push((names::INPUTS, empty_list()));
            bins.push((names::OUTPUTS, partial_outputs(outputs)));
        }
        Body::Transaction(bytes) => encode_transaction(page, bytes, bins),
    }
}

fn encode_transaction(page: &Page, bytes: &Bytes, bins: &mut Bins) {
    match Transaction::parse(bytes) {
        Ok(transaction) if is_reproducible(page, &transaction) => {
            bins.push((names::INPUTS, inputs_of(&transaction)));
            bins.push((names::OUTPUTS, outputs_of(&transaction)));
            if transaction.is_coinbase() && transaction.is_extended() {
                bins.push((names::EXTENDED_BODY, Value::Bool(true)));
            }
        }
        // An output list without outputs makes every filter that compares a stored output refuse the spend.
        _ => {
            bins.push((names::OUTPUTS, empty_list()));
            bins.push((names::RAW_BODY, blob_value(bytes)));
        }
    }
}

fn empty_list() -> Value {
    let mut empty = Packed::default();
    empty.list(0);
    packed_list(empty)
}

/// Returns whether the bins give exactly these bytes back: version and lock time are bins of the page.
fn is_reproducible(page: &Page, transaction: &Transaction<'_>) -> bool {
    transaction.version() == page.version
        && transaction.lock_time() == page.lock_time
        && transaction.is_coinbase() == page.is_coinbase
        && (transaction.is_extended() || transaction.is_coinbase())
}

fn inputs_of(transaction: &Transaction<'_>) -> Value {
    let mut packed = Packed::with_capacity(transaction.raw().len() + 16);
    packed.list(transaction.input_count());
    for input in transaction.inputs() {
        match input.previous {
            Some(_) => packed.blob(input.raw()),
            None => packed.blob_of(&[input.raw(), &NO_PREVIOUS_OUTPUT]),
        }
    }
    packed_list(packed)
}

fn outputs_of(transaction: &Transaction<'_>) -> Value {
    let mut packed = Packed::with_capacity(transaction.raw().len() + 16);
    packed.list(transaction.output_count());
    transaction.raw_outputs().for_each(|output| packed.blob(output));
    packed_list(packed)
}

pub fn partial_outputs(outputs: &PartialOutputs) -> Value {
    let count = outputs.count() as usize;
    let mut packed = Packed::with_capacity(8 + count + 48 * outputs.known().len());
    packed.list(count);
    for output in outputs.iter() {
        match output {
            Some(output) => pack_output(&mut packed, output.satoshis, &output.script),
            None => packed.nil(),
        }
    }
    packed_list(packed)
}

/// Packs an output as stored: satoshis, script length, script.
pub fn pack_output(packed: &mut Packed, satoshis: u64, script: &[u8]) {
    packed.blob_of(&[&satoshis.to_le_bytes(), varint::encode(script.len() as u64).as_ref(), script]);
}

pub fn decode(page: &Page, bins: &mut BinReader) -> Result<Option<Body>, BadRecord> {
    if bins.flag(names::EXTERNAL)? {
        let other = bins.optional_array(names::OTHER_BLOB)?;
        let blob = match other {
            Some(hash) => Blob::Other(hash),
            None => Blob::First(bins.optional_array(names::BLOB_HASH)?),
        };
        return Ok(Some(Body::External(blob)));
    }
    if let Some(bytes) = bins.optional_blob(names::RAW_BODY)? {
        return Ok(Some(Body::Transaction(bytes.into())));
    }
    let Some(outputs) = bins.optional_list(names::OUTPUTS)? else { return Ok(None) };
    // A whole transaction has inputs. An absent bin, as earlier versions wrote, reads as an empty list.
    let inputs = bins.list(names::INPUTS)?;
    if inputs.is_empty() {
        return outputs.into_iter().map(decode_output).collect::<Result<_, _>>().map(|all| Some(Body::Outputs(all)));
    }
    let standard = page.is_coinbase && !bins.flag(names::EXTENDED_BODY)?;
    transaction(page, inputs, outputs, standard).map(|bytes| Some(Body::Transaction(bytes.into())))
}

/// Decodes a stored output; `None`: a gap of a partial transaction.
pub fn decode_output(value: Value) -> Result<Option<StoredOutput>, BadRecord> {
    if value == Value::Nil {
        return Ok(None);
    }
    let bytes = blob(names::OUTPUTS, value)?;
    let output = Output::parse(&bytes).map_err(|_| BadRecord::Bin(names::OUTPUTS))?;
    Ok(Some(StoredOutput { satoshis: output.satoshis, script: Bytes::copy_from_slice(output.script) }))
}

fn transaction(page: &Page, inputs: Vec<Value>, outputs: Vec<Value>, standard: bool) -> Result<Vec<u8>, BadRecord> {
    let mut bytes = page.version.to_le_bytes().to_vec();
    if !standard {
        bytes.extend(EXTENDED_MARKER);
    }
    varint::write(&mut bytes, inputs.len() as u64);
    for input in inputs {
        let input = blob(names::INPUTS, input)?;
        let input = match standard {
            true => input.strip_suffix(&NO_PREVIOUS_OUTPUT).ok_or(BadRecord::Bin(names::INPUTS))?,
            false => &input,
        };
        bytes.extend_from_slice(input);
    }
    varint::write(&mut bytes, outputs.len() as u64);
    for output in outputs {
        bytes.extend_from_slice(&blob(names::OUTPUTS, output)?);
    }
    bytes.extend(page.lock_time.to_le_bytes());
    Ok(bytes)
}
