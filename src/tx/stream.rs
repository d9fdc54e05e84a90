//! [`TransactionStream`]: a transaction that comes piece by piece, checked and hashed without ever being held whole.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use super::{
    Outpoint, Txid,
    error::{ParseError, ParseErrorKind},
    parts::{Format, LEAST_OUTPUT},
    transaction::EXTENDED_MARKER,
    varint::{self, VarIntError},
};

/// Satoshis and locking script of an output that was asked for.
pub type FoundOutput = (u64, Vec<u8>);

/// What a stream of bytes was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamedTransaction {
    /// Its id.
    pub txid: Txid,
    /// Whether it came in extended format.
    pub extended: bool,
    /// Whether it is a coinbase: one input that names no output.
    pub coinbase: bool,
    /// The outputs that were asked for, by index; those that it does not have are absent.
    pub outputs: BTreeMap<u32, FoundOutput>,
}

/// Reads one transaction, in either format, from pieces of any size. It refuses what [`Transaction::parse`] refuses, and keeps
/// no more than the outputs that it was asked for.
///
/// [`Transaction::parse`]: super::Transaction::parse
#[derive(Debug)]
pub struct TransactionStream {
    /// Of all bytes.
    len: u64,
    at: u64,
    step: Step,
    /// The start of a field that is not yet whole.
    pending: Vec<u8>,
    hasher: Sha256,
    extended: bool,
    coinbase: bool,
    /// Inputs, then outputs, that are still to come.
    left: u64,
    vout: u32,
    /// Ascending.
    wanted: Vec<u32>,
    satoshis: u64,
    outputs: BTreeMap<u32, FoundOutput>,
}

/// What comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Version,
    /// The extended marker, or the input count of the standard format.
    Format,
    InputCount,
    Outpoint,
    ScriptLen(Part),
    Script(Part, u64),
    Sequence,
    PreviousSatoshis,
    OutputCount,
    Satoshis,
    LockTime,
    End,
}

/// How the bytes of a field are told.
enum Field {
    Bytes(usize),
    VarInt,
}

/// The three scripts there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Unlocking,
    Previous,
    Locking,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Part::Unlocking => "unlocking script",
            Part::Previous => "previous locking script",
            Part::Locking => "locking script",
        }
    }
}

const OUTPOINT_LEN: usize = 36;

impl TransactionStream {
    /// For `len` bytes that are to come; keeps the outputs of these indexes.
    pub fn new(len: u64, wanted: impl IntoIterator<Item = u32>) -> Self {
        let mut wanted: Vec<u32> = wanted.into_iter().collect();
        wanted.sort_unstable();
        TransactionStream {
            len,
            at: 0,
            step: Step::Version,
            pending: Vec::with_capacity(OUTPOINT_LEN),
            hasher: Sha256::new(),
            extended: false,
            coinbase: false,
            left: 0,
            vout: 0,
            wanted,
            satoshis: 0,
            outputs: BTreeMap::new(),
        }
    }

    /// Takes the next bytes.
    ///
    /// # Errors
    /// What is wrong, and at which byte. After an error nothing more may be pushed.
    pub fn push(&mut self, mut bytes: &[u8]) -> Result<(), ParseError> {
        while !bytes.is_empty() {
            bytes = match self.step {
                Step::Script(part, left) => self.script(part, left, bytes),
                Step::End => {
                    let left = usize::try_from(self.len.saturating_sub(self.at)).unwrap_or(usize::MAX);
                    return Err(self.error(self.at, ParseErrorKind::TrailingBytes(left.max(bytes.len()))));
                }
                _ => self.field(bytes)?,
            };
            self.pass_empty_scripts();
        }
        Ok(())
    }

    /// What it was, once all has been pushed.
    ///
    /// # Errors
    /// The bytes ended too early.
    pub fn finish(self) -> Result<StreamedTransaction, ParseError> {
        let kind = |missing| ParseErrorKind::Truncated { field: self.step.name(), missing };
        match self.step {
            Step::End => Ok(StreamedTransaction {
                txid: Txid(Sha256::digest(self.hasher.finalize()).into()),
                extended: self.extended,
                coinbase: self.coinbase,
                outputs: self.outputs,
            }),
            Step::Script(_, left) => Err(self.error(self.at, kind(left))),
            _ => Err(self.error(self.field_at(), kind(1))),
        }
    }

    /// Takes some of a field, or all that is missing of it; answers what is left of `bytes`.
    fn field<'b>(&mut self, bytes: &'b [u8]) -> Result<&'b [u8], ParseError> {
        let whole = match self.step.field() {
            Field::Bytes(len) => len,
            Field::VarInt => match self.pending.first().unwrap_or(&bytes[0]) {
                0xff => 9,
                0xfe => 5,
                0xfd => 3,
                // Standard format has no transaction without inputs: this is a marker, or nothing.
                0 if self.step == Step::Format => EXTENDED_MARKER.len(),
                _ => 1,
            },
        };
        let (taken, rest) = bytes.split_at(bytes.len().min(whole - self.pending.len()));
        self.pending.extend_from_slice(taken);
        self.at += taken.len() as u64;
        if self.pending.len() == whole || self.is_segwit() {
            self.take_field()?;
            self.pending.clear();
        }
        Ok(rest)
    }

    /// Told as soon as two bytes show it, as the whole parser does.
    fn is_segwit(&self) -> bool {
        self.step == Step::Format && self.pending.starts_with(&[0, 1])
    }

    /// The field in `pending` is whole.
    fn take_field(&mut self) -> Result<(), ParseError> {
        let is_marker = self.step == Step::Format && self.pending[0] == 0;
        if !is_marker && self.step != Step::PreviousSatoshis && self.step != Step::ScriptLen(Part::Previous) {
            self.hasher.update(&self.pending);
        }
        self.step = match self.step {
            Step::Version => Step::Format,
            Step::Format if is_marker => self.marker()?,
            Step::Format | Step::InputCount => self.input_count()?,
            Step::Outpoint => {
                self.coinbase &= self.pending[..32] == Outpoint::NULL.txid.0 && self.pending[32..] == [0xff; 4];
                Step::ScriptLen(Part::Unlocking)
            }
            Step::ScriptLen(part) => Step::Script(part, self.script_len(part)?),
            Step::Sequence if self.extended => Step::PreviousSatoshis,
            Step::Sequence => self.next_input(),
            Step::PreviousSatoshis => Step::ScriptLen(Part::Previous),
            Step::OutputCount => {
                self.left = self.count("output count", LEAST_OUTPUT)?;
                self.first_output()
            }
            Step::Satoshis => {
                self.satoshis = self.pending.first_chunk().copied().map_or(0, u64::from_le_bytes);
                Step::ScriptLen(Part::Locking)
            }
            Step::LockTime => Step::End,
            step @ (Step::Script(..) | Step::End) => step,
        };
        Ok(())
    }

    fn marker(&mut self) -> Result<Step, ParseError> {
        let at = self.field_at();
        if self.is_segwit() {
            return Err(self.error(at, ParseErrorKind::SegwitMarker));
        }
        if self.pending != EXTENDED_MARKER {
            return Err(self.error(at, ParseErrorKind::NoInputs));
        }
        self.extended = true;
        Ok(Step::InputCount)
    }

    fn input_count(&mut self) -> Result<Step, ParseError> {
        let format = if self.extended { Format::Extended } else { Format::Standard };
        let at = self.field_at();
        self.left = self.count("input count", format.least_input())?;
        self.coinbase = self.left == 1;
        if self.left == 0 { Err(self.error(at, ParseErrorKind::NoInputs)) } else { Ok(Step::Outpoint) }
    }

    fn next_input(&mut self) -> Step {
        self.left -= 1;
        if self.left == 0 { Step::OutputCount } else { Step::Outpoint }
    }

    fn first_output(&self) -> Step {
        if self.left == 0 { Step::LockTime } else { Step::Satoshis }
    }

    /// Takes some of a script, or all that is missing of it; answers what is left of `bytes`.
    fn script<'b>(&mut self, part: Part, left: u64, bytes: &'b [u8]) -> &'b [u8] {
        let (taken, rest) = bytes.split_at(bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX)));
        self.at += taken.len() as u64;
        if part != Part::Previous {
            self.hasher.update(taken);
        }
        if part == Part::Locking
            && let Some((_, script)) = self.outputs.get_mut(&self.vout)
        {
            script.extend_from_slice(taken);
        }
        self.step = Step::Script(part, left - taken.len() as u64);
        rest
    }

    /// A script of which nothing is left takes no bytes to end.
    fn pass_empty_scripts(&mut self) {
        let Step::Script(part, 0) = self.step else { return };
        self.step = match part {
            Part::Unlocking => Step::Sequence,
            Part::Previous => self.next_input(),
            Part::Locking => {
                self.vout += 1;
                self.left -= 1;
                self.first_output()
            }
        };
    }

    fn script_len(&mut self, part: Part) -> Result<u64, ParseError> {
        let len = self.varint(part.name())?;
        let rest = self.len.saturating_sub(self.at);
        if len > rest {
            return Err(self.error(self.at, ParseErrorKind::Truncated { field: part.name(), missing: len - rest }));
        }
        if part == Part::Locking && self.wanted.binary_search(&self.vout).is_ok() {
            self.outputs.insert(self.vout, (self.satoshis, Vec::new()));
        }
        Ok(len)
    }

    /// One that cannot be true is refused before anything is walked on its word.
    fn count(&self, field: &'static str, least: usize) -> Result<u64, ParseError> {
        let (count, left) = (self.varint(field)?, self.len.saturating_sub(self.at));
        if count > left / least as u64 {
            let left = usize::try_from(left).unwrap_or(usize::MAX);
            let at = self.field_at();
            return Err(self.error(at, ParseErrorKind::CountBeyondBytes { field, count, left }));
        }
        Ok(count)
    }

    fn varint(&self, field: &'static str) -> Result<u64, ParseError> {
        let kind = match varint::read(&self.pending) {
            Ok((value, _)) => return Ok(value),
            Err(VarIntError::NonMinimal) => ParseErrorKind::NonMinimal { field },
            Err(VarIntError::Truncated { missing }) => ParseErrorKind::Truncated { field, missing: missing as u64 },
        };
        Err(self.error(self.field_at(), kind))
    }

    /// Where the field in `pending` starts.
    fn field_at(&self) -> u64 {
        self.at - self.pending.len() as u64
    }

    fn error(&self, at: u64, kind: ParseErrorKind) -> ParseError {
        ParseError { at: usize::try_from(at).unwrap_or(usize::MAX), kind }
    }
}

impl Step {
    fn field(self) -> Field {
        match self {
            Step::Version | Step::Sequence | Step::LockTime => Field::Bytes(4),
            Step::Outpoint => Field::Bytes(OUTPOINT_LEN),
            Step::PreviousSatoshis | Step::Satoshis => Field::Bytes(8),
            Step::Format | Step::InputCount | Step::OutputCount | Step::ScriptLen(_) => Field::VarInt,
            Step::Script(..) | Step::End => Field::Bytes(0),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Step::Version => "version",
            Step::Format | Step::InputCount => "input count",
            Step::Outpoint => "outpoint",
            Step::ScriptLen(part) | Step::Script(part, _) => part.name(),
            Step::Sequence => "sequence",
            Step::PreviousSatoshis => "previous satoshis",
            Step::OutputCount => "output count",
            Step::Satoshis => "output satoshis",
            Step::LockTime | Step::End => "lock time",
        }
    }
}
