//! [`TransactionStream`]: checks and hashes a transaction piece by piece, without the whole transaction in memory.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use super::{
    Outpoint, Txid,
    error::{ParseError, ParseErrorKind},
    parts::{Format, LEAST_OUTPUT},
    transaction::EXTENDED_MARKER,
    varint::{self, VarIntError},
};

/// Satoshis and locking script of a wanted output.
pub type FoundOutput = (u64, Vec<u8>);

/// Result of a [`TransactionStream`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamedTransaction {
    /// Id of the transaction.
    pub txid: Txid,
    /// The bytes were in extended format.
    pub extended: bool,
    /// The transaction is a coinbase: one input that names no output.
    pub coinbase: bool,
    /// Wanted outputs by index; an output that the transaction does not have is absent.
    pub outputs: BTreeMap<u32, FoundOutput>,
}

/// Reads one transaction, in either format, from pieces of any size. The stream refuses the same bytes as
/// [`Transaction::parse`](super::Transaction::parse), and keeps only the wanted outputs.
#[derive(Debug)]
pub struct TransactionStream {
    /// Length of all bytes, as announced.
    len: u64,
    at: u64,
    step: ParseStep,
    /// Bytes of the field that is not complete yet.
    pending: Vec<u8>,
    hasher: Sha256,
    extended: bool,
    coinbase: bool,
    /// Number of inputs, then of outputs, that are not read yet.
    left: u64,
    vout: u32,
    /// Indexes of the wanted outputs, ascending.
    wanted: Vec<u32>,
    satoshis: u64,
    outputs: BTreeMap<u32, FoundOutput>,
    /// Bytes in standard format that the caller has not taken yet; `None`: not kept.
    standard: Option<Vec<u8>>,
}

/// Formats in which a transaction is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WireFormat {
    /// The format of blocks and of the txid.
    #[default]
    Standard,
    /// The standard format with the satoshis and the locking script of each previous output.
    Extended,
}

/// Field that comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ParseStep {
    Version,
    /// Extended marker, or the input count of the standard format.
    Format,
    InputCount,
    Outpoint,
    ScriptLen(ScriptKind),
    Script(ScriptKind, u64),
    Sequence,
    PreviousSatoshis,
    OutputCount,
    Satoshis,
    LockTime,
    End,
}

/// Length of a field: fixed, or that of a VarInt.
enum FieldLen {
    Bytes(usize),
    VarInt,
}

/// Scripts of a transaction in extended format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScriptKind {
    Unlocking,
    Previous,
    Locking,
}

impl ScriptKind {
    fn name(self) -> &'static str {
        match self {
            ScriptKind::Unlocking => "unlocking script",
            ScriptKind::Previous => "previous locking script",
            ScriptKind::Locking => "locking script",
        }
    }
}

const OUTPOINT_LEN: usize = 36;

impl TransactionStream {
    /// Creates a stream for `len` bytes. The stream keeps the outputs with the wanted indexes.
    pub fn new(len: u64, wanted: impl IntoIterator<Item = u32>) -> Self {
        let mut wanted: Vec<u32> = wanted.into_iter().collect();
        wanted.sort_unstable();
        wanted.dedup();
        TransactionStream {
            len,
            at: 0,
            step: ParseStep::Version,
            pending: Vec::with_capacity(OUTPOINT_LEN),
            hasher: Sha256::new(),
            extended: false,
            coinbase: false,
            left: 0,
            vout: 0,
            wanted,
            satoshis: 0,
            outputs: BTreeMap::new(),
            standard: None,
        }
    }

    /// Keeps the bytes in standard format, for [`take_standard`](Self::take_standard).
    pub fn keeping_standard(self) -> Self {
        TransactionStream { standard: Some(Vec::new()), ..self }
    }

    /// Takes the bytes in standard format of what was pushed since the last call.
    pub fn take_standard(&mut self) -> Vec<u8> {
        self.standard.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Reads the next bytes, and refuses bytes after the end as [`Transaction::parse`](super::Transaction::parse) does.
    #[cfg(test)]
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), ParseError> {
        let rest = self.push_until_end(bytes)?;
        if rest.is_empty() {
            return Ok(());
        }
        let left = usize::try_from(self.len.saturating_sub(self.at)).unwrap_or(usize::MAX);
        Err(self.error(self.at, ParseErrorKind::TrailingBytes(left.max(rest.len()))))
    }

    /// Reads the next bytes up to the end of the transaction, and returns the bytes after the end. The announced length
    /// may count bytes after the end.
    ///
    /// # Errors
    /// Fails at the first malformed field, with its byte position. After an error no more bytes may be pushed.
    pub fn push_until_end<'b>(&mut self, mut bytes: &'b [u8]) -> Result<&'b [u8], ParseError> {
        while !bytes.is_empty() && self.step != ParseStep::End {
            bytes = match self.step {
                ParseStep::Script(part, left) => self.read_script(part, left, bytes),
                _ => self.read_field(bytes)?,
            };
            self.leave_finished_script();
        }
        Ok(bytes)
    }

    /// Returns whether every wanted output was read.
    pub fn has_wanted(&self) -> bool {
        self.wanted.last().is_none_or(|last| self.vout > *last)
    }

    /// Returns the wanted outputs that were read so far. Nothing tells yet whether the bytes are those of the txid.
    pub fn into_outputs(self) -> BTreeMap<u32, FoundOutput> {
        self.outputs
    }

    /// Returns the result after the last byte.
    ///
    /// # Errors
    /// Fails where the bytes end within the transaction.
    pub fn finish(self) -> Result<StreamedTransaction, ParseError> {
        let kind = |missing| ParseErrorKind::Truncated { field: self.step.name(), missing };
        match self.step {
            ParseStep::End => Ok(StreamedTransaction {
                txid: Txid(Sha256::digest(self.hasher.finalize()).into()),
                extended: self.extended,
                coinbase: self.coinbase,
                outputs: self.outputs,
            }),
            ParseStep::Script(_, left) => Err(self.error(self.at, kind(left))),
            _ => Err(self.error(self.field_at(), kind(1))),
        }
    }

    /// Reads the missing bytes of a field, as many as there are. Returns the rest of `bytes`.
    fn read_field<'b>(&mut self, bytes: &'b [u8]) -> Result<&'b [u8], ParseError> {
        let whole = match self.step.field_len() {
            FieldLen::Bytes(len) => len,
            FieldLen::VarInt => match self.pending.first().unwrap_or(&bytes[0]) {
                0xff => 9,
                0xfe => 5,
                0xfd => 3,
                // No transaction in standard format has 0 inputs: the byte begins a marker, or is an error.
                0 if self.step == ParseStep::Format => EXTENDED_MARKER.len(),
                _ => 1,
            },
        };
        let (taken, rest) = bytes.split_at(bytes.len().min(whole - self.pending.len()));
        self.pending.extend_from_slice(taken);
        self.at += taken.len() as u64;
        if self.pending.len() == whole || self.is_segwit() {
            self.finish_field()?;
            self.pending.clear();
        }
        Ok(rest)
    }

    /// Returns whether the first two bytes are a segwit marker, so that the error comes as early as in the whole
    /// parser.
    fn is_segwit(&self) -> bool {
        self.step == ParseStep::Format && self.pending.starts_with(&[0, 1])
    }

    /// Reads the complete field in `pending` and moves to the next step.
    fn finish_field(&mut self) -> Result<(), ParseError> {
        let is_marker = self.step == ParseStep::Format && self.pending[0] == 0;
        if !is_marker
            && self.step != ParseStep::PreviousSatoshis
            && self.step != ParseStep::ScriptLen(ScriptKind::Previous)
        {
            // The txid is the hash of the standard format.
            self.hasher.update(&self.pending);
            self.standard.iter_mut().for_each(|standard| standard.extend_from_slice(&self.pending));
        }
        self.step = match self.step {
            ParseStep::Version => ParseStep::Format,
            ParseStep::Format if is_marker => self.read_marker()?,
            ParseStep::Format | ParseStep::InputCount => self.read_input_count()?,
            ParseStep::Outpoint => {
                self.coinbase &= self.pending[..32] == Outpoint::NULL.txid.0 && self.pending[32..] == [0xff; 4];
                ParseStep::ScriptLen(ScriptKind::Unlocking)
            }
            ParseStep::ScriptLen(part) => ParseStep::Script(part, self.read_script_len(part)?),
            ParseStep::Sequence if self.extended => ParseStep::PreviousSatoshis,
            ParseStep::Sequence => self.next_input(),
            ParseStep::PreviousSatoshis => ParseStep::ScriptLen(ScriptKind::Previous),
            ParseStep::OutputCount => {
                self.left = self.read_count("output count", LEAST_OUTPUT)?;
                self.first_output()
            }
            ParseStep::Satoshis => {
                self.satoshis = self.pending.first_chunk().copied().map_or(0, u64::from_le_bytes);
                ParseStep::ScriptLen(ScriptKind::Locking)
            }
            ParseStep::LockTime => ParseStep::End,
            step @ (ParseStep::Script(..) | ParseStep::End) => step,
        };
        Ok(())
    }

    fn read_marker(&mut self) -> Result<ParseStep, ParseError> {
        let at = self.field_at();
        if self.is_segwit() {
            return Err(self.error(at, ParseErrorKind::SegwitMarker));
        }
        if self.pending != EXTENDED_MARKER {
            return Err(self.error(at, ParseErrorKind::NoInputs));
        }
        self.extended = true;
        Ok(ParseStep::InputCount)
    }

    fn read_input_count(&mut self) -> Result<ParseStep, ParseError> {
        let format = if self.extended { Format::Extended } else { Format::Standard };
        let at = self.field_at();
        self.left = self.read_count("input count", format.least_input())?;
        self.coinbase = self.left == 1;
        if self.left == 0 { Err(self.error(at, ParseErrorKind::NoInputs)) } else { Ok(ParseStep::Outpoint) }
    }

    fn next_input(&mut self) -> ParseStep {
        self.left -= 1;
        if self.left == 0 { ParseStep::OutputCount } else { ParseStep::Outpoint }
    }

    fn first_output(&self) -> ParseStep {
        if self.left == 0 { ParseStep::LockTime } else { ParseStep::Satoshis }
    }

    /// Reads the missing bytes of a script, as many as there are. Returns the rest of `bytes`.
    fn read_script<'b>(&mut self, part: ScriptKind, left: u64, bytes: &'b [u8]) -> &'b [u8] {
        let (taken, rest) = bytes.split_at(bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX)));
        self.at += taken.len() as u64;
        if part != ScriptKind::Previous {
            self.hasher.update(taken);
            self.standard.iter_mut().for_each(|standard| standard.extend_from_slice(taken));
        }
        if part == ScriptKind::Locking
            && let Some((_, script)) = self.outputs.get_mut(&self.vout)
        {
            script.extend_from_slice(taken);
        }
        self.step = ParseStep::Script(part, left - taken.len() as u64);
        rest
    }

    /// Moves past a script of which no byte is left. An empty script has no byte that could end it.
    fn leave_finished_script(&mut self) {
        let ParseStep::Script(part, 0) = self.step else { return };
        self.step = match part {
            ScriptKind::Unlocking => ParseStep::Sequence,
            ScriptKind::Previous => self.next_input(),
            ScriptKind::Locking => {
                self.vout += 1;
                self.left -= 1;
                self.first_output()
            }
        };
    }

    fn read_script_len(&mut self, part: ScriptKind) -> Result<u64, ParseError> {
        let len = self.read_varint(part.name())?;
        let rest = self.len.saturating_sub(self.at);
        if len > rest {
            return Err(self.error(self.at, ParseErrorKind::Truncated { field: part.name(), missing: len - rest }));
        }
        if part == ScriptKind::Locking && self.wanted.binary_search(&self.vout).is_ok() {
            self.outputs.insert(self.vout, (self.satoshis, Vec::new()));
        }
        Ok(len)
    }

    /// Reads a count. A count that the announced bytes cannot hold is refused before a loop uses the count.
    fn read_count(&self, field: &'static str, least: usize) -> Result<u64, ParseError> {
        let (count, left) = (self.read_varint(field)?, self.len.saturating_sub(self.at));
        if count > left / least as u64 {
            let left = usize::try_from(left).unwrap_or(usize::MAX);
            let at = self.field_at();
            return Err(self.error(at, ParseErrorKind::CountBeyondBytes { field, count, left }));
        }
        Ok(count)
    }

    fn read_varint(&self, field: &'static str) -> Result<u64, ParseError> {
        let kind = match varint::read(&self.pending) {
            Ok((value, _)) => return Ok(value),
            Err(VarIntError::NonMinimal) => ParseErrorKind::NonMinimal { field },
            Err(VarIntError::Truncated { missing }) => ParseErrorKind::Truncated { field, missing: missing as u64 },
        };
        Err(self.error(self.field_at(), kind))
    }

    /// Returns the position at which the field in `pending` starts.
    fn field_at(&self) -> u64 {
        self.at - self.pending.len() as u64
    }

    fn error(&self, at: u64, kind: ParseErrorKind) -> ParseError {
        ParseError { at: usize::try_from(at).unwrap_or(usize::MAX), kind }
    }
}

impl ParseStep {
    fn field_len(self) -> FieldLen {
        match self {
            ParseStep::Version | ParseStep::Sequence | ParseStep::LockTime => FieldLen::Bytes(4),
            ParseStep::Outpoint => FieldLen::Bytes(OUTPOINT_LEN),
            ParseStep::PreviousSatoshis | ParseStep::Satoshis => FieldLen::Bytes(8),
            ParseStep::Format | ParseStep::InputCount | ParseStep::OutputCount | ParseStep::ScriptLen(_) => {
                FieldLen::VarInt
            }
            ParseStep::Script(..) | ParseStep::End => FieldLen::Bytes(0),
        }
    }

    fn name(self) -> &'static str {
        match self {
            ParseStep::Version => "version",
            ParseStep::Format | ParseStep::InputCount => "input count",
            ParseStep::Outpoint => "outpoint",
            ParseStep::ScriptLen(part) | ParseStep::Script(part, _) => part.name(),
            ParseStep::Sequence => "sequence",
            ParseStep::PreviousSatoshis => "previous satoshis",
            ParseStep::OutputCount => "output count",
            ParseStep::Satoshis => "output satoshis",
            ParseStep::LockTime | ParseStep::End => "lock time",
        }
    }
}
