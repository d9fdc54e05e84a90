//! [`PartialTx`]: content of a `.outputs` blob, and its binary form.
//!
//! The binary form is `UTXOWrapper` of the reference document (`003_f428a83e5197ea21.txt`). All numbers are
//! little-endian: txid (32 bytes, internal order) ‖ height × 2 + coinbase (4) ‖ number of outputs (4) ‖ for each
//! output: index (4) ‖ satoshis (8) ‖ length of the script (4) ‖ script. Outputs ascend by index, so that equal outputs
//! have equal bytes.

use bytes::Bytes;

use crate::{
    record::{Body, PartialOutputs, StoredOutput, build::PARTIAL_OUTPUT_LIMIT},
    tx::Txid,
};

/// The known outputs of a partial transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartialTx {
    /// Id of the transaction, which cannot be computed from the outputs alone.
    pub txid: Txid,
    /// Height of the transaction's block, below 2^31.
    pub height: u32,
    /// The transaction is a coinbase.
    pub coinbase: bool,
    /// Known outputs by index: at least one, ascending, each index below [`PARTIAL_OUTPUT_LIMIT`].
    pub outputs: Vec<(u32, StoredOutput)>,
}

/// Errors of encoding and decoding a partial transaction.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants and name the fields")]
pub enum OutputsError {
    #[error("at byte {at}: the bytes end within the {field}")]
    Truncated { at: usize, field: &'static str },
    #[error("{0} bytes after the end")]
    TrailingBytes(usize),
    #[error("no outputs")]
    Empty,
    #[error("output index {0} is not greater than the index before it")]
    Order(u32),
    #[error("output index {0} is not below {PARTIAL_OUTPUT_LIMIT}")]
    Index(u32),
    #[error("the {0} is too large for the format")]
    TooLarge(&'static str),
}

const HEIGHT_LIMIT: u32 = 1 << 31;

impl PartialTx {
    /// Returns the binary form.
    ///
    /// # Errors
    /// The format cannot express the value, or decoding would refuse it.
    pub fn encode(&self) -> Result<Bytes, OutputsError> {
        if self.outputs.is_empty() {
            return Err(OutputsError::Empty);
        }
        if self.height >= HEIGHT_LIMIT {
            return Err(OutputsError::TooLarge("height"));
        }
        let mut bytes = Vec::with_capacity(self.encoded_len());
        bytes.extend_from_slice(&self.txid.0);
        bytes.extend_from_slice(&(self.height << 1 | u32::from(self.coinbase)).to_le_bytes());
        bytes.extend_from_slice(&(self.outputs.len() as u32).to_le_bytes());
        let mut order = IndexOrder::default();
        for (index, output) in &self.outputs {
            order.check(*index)?;
            let len = u32::try_from(output.script.len()).map_err(|_| OutputsError::TooLarge("script"))?;
            bytes.extend_from_slice(&index.to_le_bytes());
            bytes.extend_from_slice(&output.satoshis.to_le_bytes());
            bytes.extend_from_slice(&len.to_le_bytes());
            bytes.extend_from_slice(&output.script);
        }
        Ok(bytes.into())
    }

    fn encoded_len(&self) -> usize {
        40 + self.outputs.iter().map(|(_, output)| 16 + output.script.len()).sum::<usize>()
    }

    /// Decodes the binary form. The scripts share the memory of `bytes`.
    ///
    /// # Errors
    /// See `OutputsError`. No allocation is larger than the bytes account for.
    pub fn decode(bytes: &Bytes) -> Result<Self, OutputsError> {
        match Self::decode_until_end(bytes)? {
            (partial, end) if end == bytes.len() => Ok(partial),
            (_, end) => Err(OutputsError::TrailingBytes(bytes.len() - end)),
        }
    }

    /// Decodes the binary form at the beginning of `bytes`, and returns the number of its bytes.
    ///
    /// # Errors
    /// As of [`decode`](Self::decode).
    pub(super) fn decode_until_end(bytes: &Bytes) -> Result<(Self, usize), OutputsError> {
        let mut reader = FieldReader { bytes, at: 0 };
        let txid = Txid(reader.array("txid")?);
        let flagged_height = reader.u32("height")?;
        let count = reader.u32("number of outputs")?;
        if count == 0 {
            return Err(OutputsError::Empty);
        }
        let (mut outputs, mut order) = (Vec::new(), IndexOrder::default());
        for _ in 0..count {
            let index = reader.u32("index")?;
            order.check(index)?;
            let satoshis = u64::from_le_bytes(reader.array("satoshis")?);
            let len = reader.u32("length of the script")?;
            let script = reader.slice(len as usize, "script")?;
            outputs.push((index, StoredOutput { satoshis, script }));
        }
        let (height, coinbase) = (flagged_height >> 1, flagged_height & 1 == 1);
        Ok((PartialTx { txid, height, coinbase, outputs }, reader.at))
    }

    /// Converts the outputs to the body of a record.
    pub fn body(&self) -> Body {
        Body::Outputs(PartialOutputs::new(self.outputs.clone()))
    }
}

/// Lowest index that may come next.
#[derive(Default)]
struct IndexOrder(u32);

impl IndexOrder {
    fn check(&mut self, index: u32) -> Result<(), OutputsError> {
        if index >= PARTIAL_OUTPUT_LIMIT {
            return Err(OutputsError::Index(index));
        }
        if index < self.0 {
            return Err(OutputsError::Order(index));
        }
        self.0 = index + 1;
        Ok(())
    }
}

struct FieldReader<'a> {
    bytes: &'a Bytes,
    at: usize,
}

impl FieldReader<'_> {
    fn slice(&mut self, len: usize, field: &'static str) -> Result<Bytes, OutputsError> {
        if len > self.bytes.len() - self.at {
            return Err(OutputsError::Truncated { at: self.at, field });
        }
        self.at += len;
        Ok(self.bytes.slice(self.at - len..self.at))
    }

    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], OutputsError> {
        let array = self.bytes[self.at..].first_chunk::<N>().ok_or(OutputsError::Truncated { at: self.at, field })?;
        self.at += N;
        Ok(*array)
    }

    fn u32(&mut self, field: &'static str) -> Result<u32, OutputsError> {
        self.array(field).map(u32::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partial() -> PartialTx {
        let output = |satoshis, script: &'static [u8]| StoredOutput { satoshis, script: Bytes::from_static(script) };
        PartialTx {
            txid: Txid([7; 32]),
            height: 620_538,
            coinbase: true,
            outputs: vec![(0, output(50, b"\x51")), (3, output(0, b""))],
        }
    }

    #[test]
    fn the_bytes_match_the_reference_document() {
        let bytes = partial().encode().unwrap();
        let expected = [
            "07".repeat(32).as_str(),
            "f5ef1200", // 620,538 × 2 + 1
            "02000000",
            "00000000",
            "3200000000000000",
            "01000000",
            "51",
            "03000000",
            "0000000000000000",
            "00000000",
        ]
        .concat();
        assert_eq!(hex::encode(&bytes), expected);
        assert_eq!(PartialTx::decode(&bytes).unwrap(), partial());
    }

    #[test]
    fn unknown_outputs_are_gaps_of_the_body() {
        let Body::Outputs(outputs) = partial().body() else { panic!("no outputs") };
        assert_eq!(outputs.iter().map(|output| output.is_some()).collect::<Vec<_>>(), [true, false, false, true]);
    }

    #[test]
    fn truncated_and_damaged_bytes_are_refused() {
        let bytes = partial().encode().unwrap();
        for len in 0..bytes.len() {
            let error = PartialTx::decode(&bytes.slice(..len)).unwrap_err();
            assert!(matches!(error, OutputsError::Truncated { .. }), "{len}: {error}");
        }
        let changed = |at: usize, value: u8| {
            let mut changed = bytes.to_vec();
            changed[at] = value;
            PartialTx::decode(&changed.into()).unwrap_err()
        };
        assert_eq!(PartialTx::decode(&[&bytes[..], b"x"].concat().into()).unwrap_err(), OutputsError::TrailingBytes(1));
        assert_eq!(changed(36, 0), OutputsError::Empty);
        assert!(matches!(changed(39, 0xff), OutputsError::Truncated { .. }), "no allocation for four billion outputs");
        assert_eq!(changed(43, 1), OutputsError::Index(1 << 24));
        assert_eq!(changed(57, 0), OutputsError::Order(0));
    }

    #[test]
    fn values_that_decode_would_refuse_are_not_encoded() {
        let with = |change: fn(&mut PartialTx)| {
            let mut partial = partial();
            change(&mut partial);
            partial.encode().unwrap_err()
        };
        assert_eq!(with(|partial| partial.outputs.clear()), OutputsError::Empty);
        assert_eq!(with(|partial| partial.outputs.reverse()), OutputsError::Order(0));
        assert_eq!(
            with(|partial| partial.outputs[1].0 = PARTIAL_OUTPUT_LIMIT),
            OutputsError::Index(PARTIAL_OUTPUT_LIMIT)
        );
        assert_eq!(with(|partial| partial.height = 1 << 31), OutputsError::TooLarge("height"));
    }
}
