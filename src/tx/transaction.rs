//! [`Transaction`]: a view of the bytes of one transaction, in standard or in extended format.

use std::fmt;

use super::{
    Outpoint, Txid,
    error::{ParseError, ParseErrorKind},
    hash::double_sha256,
    parts::{Format, Input, Inputs, LEAST_OUTPUT, NO_PREVIOUS, Output, Outputs, RawOutputs},
    reader::Reader,
};

/// What follows the version in extended format. In standard format these bytes would mean no inputs, no outputs and a
/// lock time, which is no transaction, so that the two cannot be confused.
pub(super) const EXTENDED_MARKER: [u8; 6] = [0, 0, 0, 0, 0, 0xef];
const SEGWIT_MARKER: [u8; 2] = [0, 1];
pub(super) const VERSION_LEN: usize = 4;

impl Outpoint {
    /// What the only input of a coinbase names: no output at all.
    pub const NULL: Outpoint = Outpoint { txid: Txid([0; 32]), vout: u32::MAX };
}

/// One well-formed transaction, borrowed from its bytes. Nothing is copied or allocated: parsing walks the bytes once
/// and refuses what is malformed, so that inputs and outputs can be walked again without failing.
///
/// Well-formed is not yet valid: see [`Transaction::check`].
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
    /// What is wrong, and at which byte: truncation, trailing bytes, VarInts that are not the shortest, counts that
    /// cannot be true, no inputs, a segwit marker.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let (transaction, len) = Self::parse_prefix(bytes)?;
        Reader::starting_at(bytes, len).finish()?;
        Ok(transaction)
    }

    /// Reads the transaction at the start of `bytes`; returns its length in bytes too.
    ///
    /// # Errors
    /// As [`Transaction::parse`], but for trailing bytes.
    pub fn parse_prefix(bytes: &'a [u8]) -> Result<(Self, usize), ParseError> {
        let mut reader = Reader::new(bytes);
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

    /// Its bytes, in the format that they came in.
    pub fn raw(&self) -> &'a [u8] {
        self.raw
    }

    /// Whether the bytes are in extended format: each input with its previous output.
    pub fn is_extended(&self) -> bool {
        self.format == Format::Extended
    }

    /// Whether it is a coinbase: one input that names no output.
    pub fn is_coinbase(&self) -> bool {
        self.coinbase
    }

    /// The version number.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The lock time: a height, or from 500,000,000 on a time in seconds.
    pub fn lock_time(&self) -> u32 {
        self.lock_time
    }

    /// How many inputs: at least one.
    pub fn input_count(&self) -> usize {
        self.input_count
    }

    /// How many outputs: may be none.
    pub fn output_count(&self) -> usize {
        self.output_count
    }

    /// The inputs, in order.
    pub fn inputs(&self) -> Inputs<'a> {
        Inputs { reader: Reader::starting_at(self.raw, self.inputs_at), left: self.input_count, format: self.format }
    }

    /// The outputs, in order.
    pub fn outputs(&self) -> Outputs<'a> {
        Outputs { reader: Reader::starting_at(self.raw, self.outputs_at), left: self.output_count }
    }

    /// The outputs, in order, each as its bytes: satoshis, script length, script.
    pub fn raw_outputs(&self) -> RawOutputs<'a> {
        RawOutputs(self.outputs())
    }

    /// Size in standard format, in bytes.
    pub fn standard_len(&self) -> usize {
        self.standard_len
    }

    /// Size in extended format, in bytes. Bytes in standard format (as those of a coinbase are) count with 0 satoshis
    /// and an empty script for each previous output.
    pub fn extended_len(&self) -> usize {
        match self.format {
            Format::Extended => self.raw.len(),
            Format::Standard => self.raw.len() + EXTENDED_MARKER.len() + NO_PREVIOUS.len() * self.input_count,
        }
    }

    /// Double SHA-256 of the standard format. Computed at each call.
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

    /// What both formats share besides the inputs: version, input count, and all from the output count on.
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

fn read_format(reader: &mut Reader<'_>) -> Result<Format, ParseError> {
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

fn read_input_count(reader: &mut Reader<'_>, format: Format) -> Result<usize, ParseError> {
    let at = reader.position();
    match reader.count("input count", format.least_input())? {
        0 => Err(reader.error(at, ParseErrorKind::NoInputs)),
        count => Ok(count),
    }
}
