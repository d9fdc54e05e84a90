//! [`TransactionBuilder`]: makes transactions from their parts.

use super::{
    Outpoint, PreviousOutput,
    parts::{NO_PREVIOUS, Output},
    transaction::EXTENDED_MARKER,
    varint,
};

/// Puts a transaction together, in either format, for those that invent transactions: generators, benches, tests.
/// What it writes parses as long as there is at least one input; it refuses nothing, so that invalid ones can be made.
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
    /// Version 1, lock time 0, nothing in it.
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

    /// Adds an input: what it spends, the unlocking script, the sequence number, and the output that it spends
    /// (`None`: 0 satoshis and an empty script in extended format, as in a coinbase).
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
        self.inputs.push(InputParts { standard, previous: previous.map(encoded) });
        self
    }

    /// Adds an output.
    #[must_use]
    pub fn output(mut self, satoshis: u64, script: &[u8]) -> Self {
        Output { satoshis, script }.write(&mut self.outputs);
        self.output_count += 1;
        self
    }

    /// Its bytes in standard format.
    pub fn standard(&self) -> Vec<u8> {
        self.encode(&[], |_| &[])
    }

    /// Its bytes in extended format.
    pub fn extended(&self) -> Vec<u8> {
        self.encode(&EXTENDED_MARKER, |input| input.previous.as_deref().unwrap_or(&NO_PREVIOUS))
    }

    fn encode(&self, marker: &[u8], behind: fn(&InputParts) -> &[u8]) -> Vec<u8> {
        let mut bytes = self.version.to_le_bytes().to_vec();
        bytes.extend_from_slice(marker);
        varint::write(&mut bytes, self.inputs.len() as u64);
        for input in &self.inputs {
            bytes.extend_from_slice(&input.standard);
            bytes.extend_from_slice(behind(input));
        }
        varint::write(&mut bytes, self.output_count);
        bytes.extend_from_slice(&self.outputs);
        bytes.extend_from_slice(&self.lock_time.to_le_bytes());
        bytes
    }
}

fn encoded(output: PreviousOutput<'_>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(output.encoded_len());
    output.write(&mut bytes);
    bytes
}
