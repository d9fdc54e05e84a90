//! What can be wrong with a transaction or a block: with its bytes ([`ParseError`]), or with what they say
//! ([`InvalidTransaction`]).

use std::fmt;

use super::Outpoint;

/// Bytes that are no transaction or block, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("at byte {at}: {kind}")]
pub struct ParseError {
    /// Byte position, from the start of what was parsed, at which the thing named in `kind` starts.
    pub at: usize,
    /// What is wrong there.
    pub kind: ParseErrorKind,
}

/// What is wrong with some bytes; the strings name the field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParseErrorKind {
    /// The bytes end within a field: at least `missing` more are needed.
    Truncated {
        /// The field that is incomplete.
        field: &'static str,
        /// How many bytes it lacks.
        missing: u64,
    },
    /// A VarInt that has a shorter encoding.
    NonMinimal {
        /// The count or length that is written so.
        field: &'static str,
    },
    /// A count of things that cannot fit into the bytes that are left, however small each of them is.
    CountBeyondBytes {
        /// The count.
        field: &'static str,
        /// Its value.
        count: u64,
        /// How many bytes are left behind it.
        left: usize,
    },
    /// The segregated-witness marker (`00 01` in place of the input count): there is no witness data on this chain.
    SegwitMarker,
    /// A transaction in extended format within a block: a block holds what miners hashed.
    ExtendedInBlock,
    /// A transaction without inputs.
    NoInputs,
    /// Bytes behind the end; holds how many.
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
            Self::SegwitMarker => f.write_str("segwit marker: a transaction with witness data is not of this chain"),
            Self::ExtendedInBlock => f.write_str("a transaction in extended format: a block holds the standard one"),
            Self::NoInputs => f.write_str("the input count is zero"),
            Self::TrailingBytes(count) => write!(f, "{count} bytes behind the end"),
        }
    }
}

impl ParseError {
    /// The same error, told from the start of something that begins `offset` bytes earlier.
    pub(super) fn shifted(self, offset: usize) -> Self {
        ParseError { at: self.at + offset, ..self }
    }

    /// Whether more bytes could make it right: the input is cut short rather than damaged.
    pub fn is_truncation(&self) -> bool {
        matches!(self.kind, ParseErrorKind::Truncated { .. } | ParseErrorKind::CountBeyondBytes { .. })
    }
}

/// A well-formed transaction that no store may hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTransaction {
    /// It creates nothing.
    #[error("outputs: there are none")]
    NoOutputs,
    /// The outputs hold more than the inputs bring.
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
        /// The input at which it happens.
        input: usize,
    },
    /// The outputs add up to more than 2^64 − 1 satoshis.
    #[error("satoshis of output {vout}: the sum overflows")]
    OutputSumOverflow {
        /// The output at which it happens.
        vout: usize,
    },
    /// The outputs add up to more satoshis than there can be.
    #[error("output satoshis: {satoshis} are more than the 2,100,000,000,000,000 that there can be")]
    TooMuchMoney {
        /// Sum of the outputs, satoshis.
        satoshis: u64,
    },
    /// Two inputs spend the same output.
    #[error("outpoint of input {input}: {outpoint} is named by an earlier input too")]
    DuplicateOutpoint {
        /// The first input that repeats an earlier one.
        input: usize,
        /// What both name.
        outpoint: Outpoint,
    },
    /// An input of a transaction in standard format that is no coinbase.
    #[error("previous output of input {input}: missing for {outpoint}")]
    MissingPreviousOutput {
        /// The input.
        input: usize,
        /// What it spends.
        outpoint: Outpoint,
    },
}
