//! Errors of transactions and blocks: [`ParseError`] for malformed bytes, [`InvalidTransaction`] for well-formed
//! transactions that break a rule.

use super::Outpoint;

/// Error of bytes that are no transaction or block, with the position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("at byte {at}: {kind}")]
pub struct ParseError {
    /// Position, in bytes from the start of the parsed bytes, at which the field named in `kind` starts.
    pub at: usize,
    /// Problem of the bytes at that position.
    pub kind: ParseErrorKind,
}

/// Problem of some bytes. The strings name the field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants and name the fields")]
pub enum ParseErrorKind {
    /// The bytes end within a field, which needs at least `missing` more bytes.
    #[error("the bytes end within the {field}, at least {missing} bytes short")]
    Truncated { field: &'static str, missing: u64 },
    /// A VarInt is not in its shortest encoding.
    #[error("the {field} is not in its shortest VarInt encoding")]
    NonMinimal { field: &'static str },
    /// A count of elements that the remaining bytes cannot hold, even at the least size of an element.
    #[error("the {field} is {count}, which cannot fit into the {left} bytes that are left")]
    CountBeyondBytes { field: &'static str, count: u64, left: usize },
    /// The segregated-witness marker (`00 01` in place of the input count). This chain has no witness data.
    #[error("segwit marker: this chain has no transactions with witness data")]
    SegwitMarker,
    /// A transaction within a block is in extended format. A block holds the standard format, which miners hashed.
    #[error("a transaction in extended format: a block holds the standard format")]
    ExtendedInBlock,
    /// The transaction has no inputs.
    #[error("the input count is zero")]
    NoInputs,
    #[error("{0} bytes after the end")]
    TrailingBytes(usize),
}

impl ParseError {
    /// Moves the position by `offset`: the error as seen from bytes that begin `offset` bytes earlier.
    pub(super) fn shifted(self, offset: usize) -> Self {
        ParseError { at: self.at + offset, ..self }
    }

    /// Returns whether more bytes could make the input valid: the input is cut short rather than damaged.
    pub fn is_truncation(&self) -> bool {
        matches!(self.kind, ParseErrorKind::Truncated { .. } | ParseErrorKind::CountBeyondBytes { .. })
    }
}

/// Rule that a well-formed transaction breaks, so that no store may hold the transaction.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants and name the fields")]
pub enum InvalidTransaction {
    #[error("outputs: the transaction has none")]
    NoOutputs,
    #[error("output satoshis: {outputs} exceed the {inputs} of the previous outputs")]
    Overspend { inputs: u64, outputs: u64 },
    #[error("previous satoshis of input {input}: the sum overflows")]
    InputSumOverflow { input: usize },
    #[error("satoshis of output {vout}: the sum overflows")]
    OutputSumOverflow { vout: usize },
    /// The sum of the outputs exceeds [`MAX_MONEY`](super::MAX_MONEY).
    #[error("output satoshis: {satoshis} exceed the limit of 2,100,000,000,000,000 (21 million coins)")]
    TooMuchMoney { satoshis: u64 },
    #[error("outpoint of input {input}: an earlier input names {outpoint}, too")]
    DuplicateOutpoint { input: usize, outpoint: Outpoint },
    /// An input has no previous output: the transaction is in standard format and no coinbase.
    #[error("previous output of input {input}: missing for {outpoint}")]
    MissingPreviousOutput { input: usize, outpoint: Outpoint },
}
