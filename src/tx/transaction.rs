//! [`Transaction`]: view of the bytes of one transaction, in standard or in extended format.

use std::fmt;

use super::{
    Outpoint, Txid,
    error::{ParseError, ParseErrorKind},
    hash::double_sha256,
    parts::{Format, Input, Inputs, LEAST_OUTPUT, NO_PREVIOUS, Output, Outputs, RawOutputs},
    reader::ByteReader,
};

/// Marker after the version in extended format. In standard format the same bytes would mean no inputs, no outputs and
/// a lock time. No transaction is like that, so that the formats cannot be confused.
pub(super) const EXTENDED_MARKER: [u8; 6] = [0, 0, 0, 0, 0, 0xef];
const SEGWIT_MARKER: [u8; 2] = [0, 1];
pub(super) const VERSION_LEN: usize = 4;

impl Outpoint {
    /// Outpoint of the only input of a coinbase, which names no output.
    pub const NULL: Outpoint = Outpoint { txid: Txid([0; 32]), vout: u32::MAX };
}

/// View of one well-formed transaction. Parsing copies and allocates nothing: it walks the bytes once and refuses
/// malformed bytes, so that later walks over inputs and outputs cannot fail.
///
/// A well-formed transaction may still be invalid: see [`Transaction::check`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Transaction<'a> {
    raw: &'a [u8],
    format: Format,
    coinbase: bool,
    version: u32,
    lock_time: u32,
    input_count: usize,
    output_count: usize,
    inputs_at: usize,
    output_count_at: usize,
    outputs_at: usize,
    standard_len: usize,
}

impl<'a> Transaction<'a> {
    /// Reads one transaction, in either format, that takes up all of `bytes`.
    ///
    /// # Errors
    /// Fails at truncation, trailing bytes, a VarInt that is not the shortest, a count that the bytes cannot hold, a
    /// transaction without inputs, and a segwit marker. The error has the byte position.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let (transaction, len) = Self::parse_prefix(bytes)?;
        ByteReader::starting_at(bytes, len).finish()?;
        Ok(transaction)
    }

    /// Reads the transaction at the start of `bytes`. Returns the transaction and its length in bytes.
    ///
    /// # Errors
    /// Fails as [`Transaction::parse`], except for trailing bytes.
    pub fn parse_prefix(bytes: &'a [u8]) -> Result<(Self, usize), ParseError> {
        let mut reader = ByteReader::new(bytes);
        let version = reader.u32("version")?;
        let format = read_format(&mut reader)?;

        let input_count = read_input_count(&mut reader, format)?;
        let inputs_at = reader.position();
        let mut standard_inputs_len = 0;
        let mut names_null = false;
        for _ in 0..input_count {
            let input = Input::read(&mut reader, format)?;
            standard_inputs_len += input.raw_standard().len();
            names_null = input.outpoint == Outpoint::NULL;
        }

        let output_count_at = reader.position();
        let output_count = reader.count("output count", LEAST_OUTPUT)?;
        let outputs_at = reader.position();
        for _ in 0..output_count {
            Output::read(&mut reader)?;
        }
        let lock_time = reader.u32("lock time")?;

        let len = reader.position();
        let added = match format {
            Format::Standard => 0,
            Format::Extended => EXTENDED_MARKER.len() + (output_count_at - inputs_at) - standard_inputs_len,
        };
        let transaction = Transaction {
            raw: &bytes[..len],
            format,
            coinbase: input_count == 1 && names_null,
            version,
            lock_time,
            input_count,
            output_count,
            inputs_at,
            output_count_at,
            outputs_at,
            standard_len: len - added,
        };
        Ok((transaction, len))
    }

    /// Returns the bytes in the format that was parsed.
    pub fn raw(&self) -> &'a [u8] {
        self.raw
    }

    /// Returns whether the bytes are in extended format: each input with its previous output.
    pub fn is_extended(&self) -> bool {
        self.format == Format::Extended
    }

    /// Returns whether the transaction is a coinbase: one input that names no output.
    pub fn is_coinbase(&self) -> bool {
        self.coinbase
    }

    /// Returns the version number of the transaction.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Returns the lock time: a height below 500,000,000, otherwise a time in seconds since the epoch.
    pub fn lock_time(&self) -> u32 {
        self.lock_time
    }

    /// Returns the number of inputs, at least one.
    pub fn input_count(&self) -> usize {
        self.input_count
    }

    /// Returns the number of outputs, possibly none.
    pub fn output_count(&self) -> usize {
        self.output_count
    }

    /// Returns the inputs, in order.
    pub fn inputs(&self) -> Inputs<'a> {
        Inputs {
            reader: ByteReader::starting_at(self.raw, self.inputs_at),
            left: self.input_count,
            format: self.format,
        }
    }

    /// Returns the outputs, in order.
    pub fn outputs(&self) -> Outputs<'a> {
        Outputs { reader: ByteReader::starting_at(self.raw, self.outputs_at), left: self.output_count }
    }

    /// Returns the bytes of each output, in order: satoshis, script length, script.
    pub fn raw_outputs(&self) -> RawOutputs<'a> {
        RawOutputs(self.outputs())
    }

    /// Returns the size in standard format, in bytes.
    pub fn standard_len(&self) -> usize {
        self.standard_len
    }

    /// Returns the size in extended format, in bytes. Bytes in standard format (as those of a coinbase) count with
    /// 0 satoshis and an empty script for each previous output.
    pub fn extended_len(&self) -> usize {
        match self.format {
            Format::Extended => self.raw.len(),
            Format::Standard => self.raw.len() + EXTENDED_MARKER.len() + NO_PREVIOUS.len() * self.input_count,
        }
    }

    /// Returns the double SHA-256 of the standard format. Every call computes the hash.
    pub fn txid(&self) -> Txid {
        Txid(match self.format {
            Format::Standard => double_sha256([self.raw]),
            Format::Extended => {
                let [version, input_count, outputs] = self.standard_parts();
                let inputs = self.inputs().map(|input| input.raw_standard());
                double_sha256([version, input_count].into_iter().chain(inputs).chain([outputs]))
            }
        })
    }

    /// Returns the bytes that both formats share besides the inputs: version, input count, and all from the output
    /// count on.
    pub(super) fn standard_parts(&self) -> [&'a [u8]; 3] {
        let input_count_at = match self.format {
            Format::Standard => VERSION_LEN,
            Format::Extended => VERSION_LEN + EXTENDED_MARKER.len(),
        };
        [&self.raw[..VERSION_LEN], &self.raw[input_count_at..self.inputs_at], &self.raw[self.output_count_at..]]
    }
}

impl fmt::Debug for Transaction<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction")
            .field("txid", &self.txid())
            .field("format", &self.format)
            .field("version", &self.version)
            .field("inputs", &self.input_count)
            .field("outputs", &self.output_count)
            .field("lock_time", &self.lock_time)
            .finish()
    }
}

fn read_format(reader: &mut ByteReader<'_>) -> Result<Format, ParseError> {
    let at = reader.position();
    let rest = reader.rest();
    if rest.starts_with(&EXTENDED_MARKER) {
        reader.take(EXTENDED_MARKER.len() as u64, "extended marker")?;
        Ok(Format::Extended)
    } else if rest.starts_with(&SEGWIT_MARKER) {
        Err(reader.error(at, ParseErrorKind::SegwitMarker))
    } else if !rest.is_empty() && EXTENDED_MARKER.starts_with(rest) {
        let missing = (EXTENDED_MARKER.len() - rest.len()) as u64;
        Err(reader.error(at, ParseErrorKind::Truncated { field: "extended marker", missing }))
    } else {
        Ok(Format::Standard)
    }
}

fn read_input_count(reader: &mut ByteReader<'_>, format: Format) -> Result<usize, ParseError> {
    let at = reader.position();
    match reader.count("input count", format.least_input())? {
        0 => Err(reader.error(at, ParseErrorKind::NoInputs)),
        count => Ok(count),
    }
}
