//! [`TransactionBuilder`]: builds the bytes of a transaction from inputs and outputs.

use super::{
    Outpoint, PreviousOutput,
    parts::{NO_PREVIOUS, Output},
    transaction::EXTENDED_MARKER,
    varint,
};

/// Builds a transaction in either format, for generators, benches and tests. The bytes parse as long as the transaction
/// has an input. The builder refuses nothing, so that invalid transactions can be built.
#[derive(Debug, Clone)]
pub struct TransactionBuilder {
    version: u32,
    lock_time: u32,
    inputs: Vec<InputParts>,
    output_count: u64,
    outputs: Vec<u8>,
}

#[derive(Debug, Clone)]
struct InputParts {
    standard: Vec<u8>,
    previous: Option<Vec<u8>>,
}

impl Default for TransactionBuilder {
    /// Returns a builder with version 1, lock time 0, no input and no output.
    fn default() -> Self {
        TransactionBuilder { version: 1, lock_time: 0, inputs: Vec::new(), output_count: 0, outputs: Vec::new() }
    }
}

impl TransactionBuilder {
    /// Sets the version number.
    #[must_use]
    pub fn version(mut self, version: u32) -> Self {
        self.version = version;
        self
    }

    /// Sets the lock time.
    #[must_use]
    pub fn lock_time(mut self, lock_time: u32) -> Self {
        self.lock_time = lock_time;
        self
    }

    /// Adds an input: the outpoint, the unlocking script, the sequence number and the previous output. Without a
    /// previous output the extended format gets 0 satoshis and an empty script, as in a coinbase.
    #[must_use]
    pub fn input(
        mut self,
        outpoint: Outpoint,
        script: &[u8],
        sequence: u32,
        previous: Option<PreviousOutput<'_>>,
    ) -> Self {
        let mut standard = Vec::with_capacity(49 + script.len());
        standard.extend_from_slice(&outpoint.txid.0);
        standard.extend_from_slice(&outpoint.vout.to_le_bytes());
        varint::write(&mut standard, script.len() as u64);
        standard.extend_from_slice(script);
        standard.extend_from_slice(&sequence.to_le_bytes());
        self.inputs.push(InputParts { standard, previous: previous.map(encode_output) });
        self
    }

    /// Adds an output of so many satoshis behind a locking script.
    #[must_use]
    pub fn output(mut self, satoshis: u64, script: &[u8]) -> Self {
        Output { satoshis, script }.write(&mut self.outputs);
        self.output_count += 1;
        self
    }

    /// Returns the transaction's bytes in standard format.
    pub fn standard(&self) -> Vec<u8> {
        self.encode(&[], |_| &[])
    }

    /// Returns the transaction's bytes in extended format.
    pub fn extended(&self) -> Vec<u8> {
        self.encode(&EXTENDED_MARKER, |input| input.previous.as_deref().unwrap_or(&NO_PREVIOUS))
    }

    fn encode(&self, marker: &[u8], input_suffix: fn(&InputParts) -> &[u8]) -> Vec<u8> {
        let mut bytes = self.version.to_le_bytes().to_vec();
        bytes.extend_from_slice(marker);
        varint::write(&mut bytes, self.inputs.len() as u64);
        for input in &self.inputs {
            bytes.extend_from_slice(&input.standard);
            bytes.extend_from_slice(input_suffix(input));
        }
        varint::write(&mut bytes, self.output_count);
        bytes.extend_from_slice(&self.outputs);
        bytes.extend_from_slice(&self.lock_time.to_le_bytes());
        bytes
    }
}

fn encode_output(output: PreviousOutput<'_>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(output.encoded_len());
    output.write(&mut bytes);
    bytes
}
