//! Errors of transactions and blocks: [`ParseError`] for malformed bytes, [`InvalidTransaction`] for well-formed
//! transactions that break a rule.

use std::fmt;

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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParseErrorKind {
    /// The bytes end within a field, which needs at least `missing` more bytes.
    Truncated {
        /// Name of the incomplete field.
        field: &'static str,
        /// Least number of missing bytes.
        missing: u64,
    },
    /// A VarInt is not in its shortest encoding.
    NonMinimal {
        /// Name of the count or length.
        field: &'static str,
    },
    /// A count of elements that the remaining bytes cannot hold, even at the least size of an element.
    CountBeyondBytes {
        /// Name of the count.
        field: &'static str,
        /// Value of the count.
        count: u64,
        /// Number of bytes after the count.
        left: usize,
    },
    /// The segregated-witness marker (`00 01` in place of the input count). This chain has no witness data.
    SegwitMarker,
    /// A transaction within a block is in extended format. A block holds the standard format, which miners hashed.
    ExtendedInBlock,
    /// The transaction has no inputs.
    NoInputs,
    /// Bytes follow the end; holds their number.
    TrailingBytes(usize),
}

impl fmt::Display for ParseErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated { field, missing } => {
                write!(f, "the bytes end within the {field}, at least {missing} bytes short")
            }
            Self::NonMinimal { field } => write!(f, "the {field} is not in its shortest VarInt encoding"),
            Self::CountBeyondBytes { field, count, left } => {
                write!(f, "the {field} is {count}, which cannot fit into the {left} bytes that are left")
            }
            Self::SegwitMarker => f.write_str("segwit marker: this chain has no transactions with witness data"),
            Self::ExtendedInBlock => f.write_str("a transaction in extended format: a block holds the standard format"),
            Self::NoInputs => f.write_str("the input count is zero"),
            Self::TrailingBytes(count) => write!(f, "{count} bytes after the end"),
        }
    }
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
pub enum InvalidTransaction {
    /// The transaction has no outputs.
    #[error("outputs: the transaction has none")]
    NoOutputs,
    /// The outputs exceed the previous outputs.
    #[error("output satoshis: {outputs} exceed the {inputs} of the previous outputs")]
    Overspend {
        /// Sum of the previous outputs, satoshis.
        inputs: u64,
        /// Sum of the outputs, satoshis.
        outputs: u64,
    },
    /// The previous outputs add up to more than 2^64 − 1 satoshis.
    #[error("previous satoshis of input {input}: the sum overflows")]
    InputSumOverflow {
        /// Index of the input at which the sum overflows.
        input: usize,
    },
    /// The outputs add up to more than 2^64 − 1 satoshis.
    #[error("satoshis of output {vout}: the sum overflows")]
    OutputSumOverflow {
        /// Index of the output at which the sum overflows.
        vout: usize,
    },
    /// The sum of the outputs exceeds [`MAX_MONEY`](super::MAX_MONEY).
    #[error("output satoshis: {satoshis} exceed the limit of 2,100,000,000,000,000 (21 million coins)")]
    TooMuchMoney {
        /// Sum of the outputs, satoshis.
        satoshis: u64,
    },
    /// Two inputs spend the same output.
    #[error("outpoint of input {input}: an earlier input names {outpoint}, too")]
    DuplicateOutpoint {
        /// Index of the first input that repeats an earlier input.
        input: usize,
        /// Outpoint that both inputs name.
        outpoint: Outpoint,
    },
    /// An input has no previous output: the transaction is in standard format and no coinbase.
    #[error("previous output of input {input}: missing for {outpoint}")]
    MissingPreviousOutput {
        /// Index of the input.
        input: usize,
        /// Outpoint that the input spends.
        outpoint: Outpoint,
    },
}
