//! Inputs and outputs of a transaction, as iterators over its bytes.

#[cfg(feature = "testkit")]
use std::borrow::Cow;
use std::iter::FusedIterator;

use super::{Outpoint, Txid, error::ParseError, reader::ByteReader, varint};

/// Reason why the iterators cannot fail: `Transaction::parse` has walked the same bytes.
const CHECKED: &str = "parsing has walked these bytes";

/// Previous output of an input without a known one in extended format: 0 satoshis and an empty script.
pub(super) const NO_PREVIOUS: [u8; 9] = [0; 9];

/// Serialisation of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Standard,
    Extended,
}

impl Format {
    /// Returns the size of an input whose scripts are empty, in bytes.
    pub(super) fn least_input(self) -> usize {
        match self {
            Format::Standard => 41,
            Format::Extended => 50,
        }
    }
}

/// Size of an output whose script is empty, in bytes.
pub(super) const LEAST_OUTPUT: usize = 9;

/// Output of a transaction: the amount and the locking script.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Output<'a> {
    /// Amount of the output, in satoshis.
    pub satoshis: u64,
    /// Locking script, without its length.
    pub script: &'a [u8],
}

/// Output that an input spends.
pub type PreviousOutput<'a> = Output<'a>;

impl<'a> Output<'a> {
    /// Returns the size of the serialised output, in bytes.
    pub fn encoded_len(&self) -> usize {
        8 + varint::encoded_len(self.script.len() as u64) + self.script.len()
    }

    /// Appends satoshis (8 bytes, little-endian), script length (VarInt) and script.
    pub fn write(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.satoshis.to_le_bytes());
        varint::write(to, self.script.len() as u64);
        to.extend_from_slice(self.script);
    }

    /// Reads one output that takes up all of `bytes`.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let mut reader = ByteReader::new(bytes);
        let output = Output::read(&mut reader)?;
        reader.finish()?;
        Ok(output)
    }

    /// Reads the output that starts at byte `at`. Returns the output and the byte at which the next output starts.
    pub fn read_at(bytes: &'a [u8], at: usize) -> Result<(Self, usize), ParseError> {
        let mut reader = ByteReader::starting_at(bytes, at.min(bytes.len()));
        let output = Output::read(&mut reader)?;
        Ok((output, reader.position()))
    }

    #[inline]
    pub(super) fn read(reader: &mut ByteReader<'a>) -> Result<Self, ParseError> {
        Ok(Output { satoshis: reader.u64("output satoshis")?, script: reader.script("locking script")? })
    }

    #[inline]
    fn read_previous(reader: &mut ByteReader<'a>) -> Result<Self, ParseError> {
        Ok(Output { satoshis: reader.u64("previous satoshis")?, script: reader.script("previous locking script")? })
    }
}

/// Input of a transaction: the outpoint that the input spends, and the unlocking script.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Input<'a> {
    /// Output that the input spends.
    pub outpoint: Outpoint,
    /// Unlocking script, without its length.
    pub script: &'a [u8],
    /// Sequence number of the input.
    pub sequence: u32,
    /// Previous output, present when the transaction is in extended format.
    pub previous: Option<PreviousOutput<'a>>,
    raw: &'a [u8],
    standard_len: usize,
}

impl<'a> Input<'a> {
    /// Reads one input in extended format that takes up all of `bytes`.
    #[cfg(feature = "testkit")]
    pub fn parse_extended(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let mut reader = ByteReader::new(bytes);
        let input = Input::read(&mut reader, Format::Extended)?;
        reader.finish()?;
        Ok(input)
    }

    /// Returns the input's bytes in the transaction's own format.
    pub fn raw(&self) -> &'a [u8] {
        self.raw
    }

    /// Returns the input's bytes in standard format.
    pub fn raw_standard(&self) -> &'a [u8] {
        &self.raw[..self.standard_len]
    }

    /// Returns the input's bytes in extended format. The bytes are borrowed where the transaction is in that format.
    /// Otherwise (a coinbase) 0 satoshis and an empty script take the place of the previous output.
    #[cfg(feature = "testkit")]
    pub fn raw_extended(&self) -> Cow<'a, [u8]> {
        match self.previous {
            Some(_) => Cow::Borrowed(self.raw),
            None => Cow::Owned([self.raw, &NO_PREVIOUS].concat()),
        }
    }

    #[inline]
    pub(super) fn read(reader: &mut ByteReader<'a>, format: Format) -> Result<Self, ParseError> {
        let start = reader.position();
        let outpoint = Outpoint { txid: Txid(reader.array("outpoint")?), vout: reader.u32("outpoint")? };
        let script = reader.script("unlocking script")?;
        let sequence = reader.u32("sequence")?;
        let standard_len = reader.position() - start;
        let previous = match format {
            Format::Standard => None,
            Format::Extended => Some(Output::read_previous(reader)?),
        };
        Ok(Input { outpoint, script, sequence, previous, raw: reader.since(start), standard_len })
    }
}

/// Iterator over the inputs of a transaction, in order. See [`super::Transaction::inputs`].
#[derive(Debug, Clone)]
pub struct Inputs<'a> {
    pub(super) reader: ByteReader<'a>,
    pub(super) left: usize,
    pub(super) format: Format,
}

impl<'a> Iterator for Inputs<'a> {
    type Item = Input<'a>;

    #[inline]
    fn next(&mut self) -> Option<Input<'a>> {
        self.left = self.left.checked_sub(1)?;
        Some(Input::read(&mut self.reader, self.format).expect(CHECKED))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

/// Iterator over the outputs of a transaction, in order. See [`super::Transaction::outputs`].
#[derive(Debug, Clone)]
pub struct Outputs<'a> {
    pub(super) reader: ByteReader<'a>,
    pub(super) left: usize,
}

impl Outputs<'_> {
    /// Returns the byte of the transaction at which the next output starts, for [`Output::read_at`].
    pub fn position(&self) -> usize {
        self.reader.position()
    }
}

impl<'a> Iterator for Outputs<'a> {
    type Item = Output<'a>;

    #[inline]
    fn next(&mut self) -> Option<Output<'a>> {
        self.left = self.left.checked_sub(1)?;
        Some(Output::read(&mut self.reader).expect(CHECKED))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

/// Iterator over the serialised outputs of a transaction, in order. See [`super::Transaction::raw_outputs`].
#[derive(Debug, Clone)]
pub struct RawOutputs<'a>(pub(super) Outputs<'a>);

impl<'a> Iterator for RawOutputs<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let start = self.0.reader.position();
        self.0.next()?;
        Some(self.0.reader.since(start))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl ExactSizeIterator for Inputs<'_> {}
impl ExactSizeIterator for Outputs<'_> {}
impl ExactSizeIterator for RawOutputs<'_> {}
impl FusedIterator for Inputs<'_> {}
impl FusedIterator for Outputs<'_> {}
impl FusedIterator for RawOutputs<'_> {}
