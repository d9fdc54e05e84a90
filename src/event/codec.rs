//! The body encoding: bincode 2, fixed-width, little-endian. The only place that names bincode's readers and writers.
//!
//! Integers take their own width, a boolean or the tag of an option one byte, the tag of an enum four, the length of
//! bytes, text and lists eight; arrays have no length. bincode allocates a list from the length that the message
//! claims, so lists are read here: the claim is first held against the bytes that are left.

use std::fmt;

use bincode::{
    BorrowDecode, Encode,
    config::{Configuration, Fixint, LittleEndian, NoLimit},
    de::{
        DecoderImpl,
        read::{BorrowReader, Reader},
    },
    enc::{EncoderImpl, write::Writer},
    error::DecodeError as BincodeError,
};

use crate::tx::{Outpoint, Txid, UtxoHash};

type Fixed = Configuration<LittleEndian, Fixint, NoLimit>;
const CONFIGURATION: Fixed = bincode::config::standard().with_fixed_int_encoding();

/// A message that is no event: where and why. One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodeError {
    /// The field, from the outside in: `block.subtrees[2].count`. Empty when it is the envelope.
    pub field: String,
    /// What is wrong there.
    pub problem: Problem,
}

/// What can be wrong with a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// Fewer bytes than an envelope.
    #[error("{0} bytes are no event: an envelope alone has 3")]
    NoEnvelope(usize),
    /// Another first byte.
    #[error("not an event: the first byte is {0:#04x} instead of {magic:#04x}", magic = super::MAGIC)]
    Magic(u8),
    /// Written by a later release.
    #[error("schema version {0} is unknown: this release reads version {known}", known = super::SCHEMA_VERSION)]
    Version(u8),
    /// Written by a later release, or by somebody else.
    #[error("event kind {0} is unknown")]
    Kind(u8),
    /// A field, or the length that a field claims, goes beyond the message.
    #[error("the message ends {missing} bytes too early")]
    Truncated {
        /// How many more bytes the field needs.
        missing: u64,
    },
    /// A list claims more elements than can follow.
    #[error("{count} elements cannot be in the {left} bytes that are left")]
    Count {
        /// What the list claims.
        count: u64,
        /// What is left of the message.
        left: usize,
    },
    /// Bytes behind the last field.
    #[error("{0} bytes follow the last field")]
    Trailing(usize),
    /// A boolean that is neither 0 nor 1.
    #[error("{0} is no boolean: only 0 and 1 are")]
    Boolean(u8),
    /// The tag of an option or an enum.
    #[error("{0} is no known tag")]
    Tag(u32),
    /// Text that is not UTF-8.
    #[error("the text is not UTF-8")]
    Text,
    /// A value that the field must not have.
    #[error("{0}")]
    Rule(String),
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.field.as_str() {
            "" => write!(f, "{}", self.problem),
            field => write!(f, "{field}: {}", self.problem),
        }
    }
}

impl std::error::Error for DecodeError {}

impl From<Problem> for DecodeError {
    fn from(problem: Problem) -> Self {
        DecodeError { field: String::new(), problem }
    }
}

impl DecodeError {
    /// A value that `field` must not have.
    pub(super) fn rule(field: impl Into<String>, broken: impl Into<String>) -> Self {
        DecodeError { field: field.into(), problem: Problem::Rule(broken.into()) }
    }

    /// The same error, seen from the structure that holds it in `field`.
    pub(super) fn within(mut self, field: &str) -> Self {
        let joint = if self.field.is_empty() || self.field.starts_with('[') { "" } else { "." };
        self.field = format!("{field}{joint}{}", self.field);
        self
    }
}

impl From<BincodeError> for DecodeError {
    fn from(error: BincodeError) -> Self {
        match error {
            BincodeError::UnexpectedEnd { additional } => Problem::Truncated { missing: additional as u64 },
            BincodeError::OutsideUsizeRange(length) => Problem::Truncated { missing: length },
            BincodeError::InvalidBooleanValue(found) => Problem::Boolean(found),
            BincodeError::UnexpectedVariant { found, .. } => Problem::Tag(found),
            BincodeError::Utf8 { .. } => Problem::Text,
            other => Problem::Rule(other.to_string()),
        }
        .into()
    }
}

/// Where a body is written.
pub(super) struct Sink(EncoderImpl<Buffer, Fixed>);

struct Buffer(Vec<u8>);

impl Writer for Buffer {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> Result<(), bincode::error::EncodeError> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }
}

impl Sink {
    /// Writes behind what `buffer` holds.
    pub fn new(buffer: Vec<u8>) -> Self {
        Sink(EncoderImpl::new(Buffer(buffer), CONFIGURATION))
    }

    /// Writes what bincode writes for a primitive, bytes, text or an array.
    #[inline]
    pub fn put<T: Encode>(&mut self, value: T) {
        value.encode(&mut self.0).expect("bincode fails only where its writer does, and a vector takes all bytes");
    }

    /// Writes the number of elements of a list, or of bytes.
    pub fn put_length(&mut self, length: usize) {
        self.put(length as u64);
    }

    /// Everything written.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0.into_writer().0
    }
}

/// Where a body is read from; what it hands out borrows from the message.
pub(super) struct Source<'a>(DecoderImpl<Unread<'a>, Fixed, ()>);

struct Unread<'a>(&'a [u8]);

impl Reader for Unread<'_> {
    #[inline]
    fn read(&mut self, into: &mut [u8]) -> Result<(), BincodeError> {
        into.copy_from_slice(self.take_bytes(into.len())?);
        Ok(())
    }

    #[inline]
    fn peek_read(&mut self, count: usize) -> Option<&[u8]> {
        self.0.get(..count)
    }

    #[inline]
    fn consume(&mut self, count: usize) {
        self.0 = self.0.get(count..).unwrap_or_default();
    }
}

impl<'a> BorrowReader<'a> for Unread<'a> {
    #[inline]
    fn take_bytes(&mut self, count: usize) -> Result<&'a [u8], BincodeError> {
        let (taken, left) = self
            .0
            .split_at_checked(count)
            .ok_or_else(|| BincodeError::UnexpectedEnd { additional: count - self.0.len() })?;
        self.0 = left;
        Ok(taken)
    }
}

impl<'a> Source<'a> {
    /// Reads `body` from its beginning.
    pub fn new(body: &'a [u8]) -> Self {
        Source(DecoderImpl::new(Unread(body), CONFIGURATION, ()))
    }

    /// Reads what bincode reads for a primitive, bytes, text or an array.
    #[inline]
    pub fn take<T: BorrowDecode<'a, ()>>(&mut self) -> Result<T, DecodeError> {
        Ok(T::borrow_decode(&mut self.0)?)
    }

    /// Reads the number of elements of a list whose elements have at least `least` bytes each.
    fn take_count(&mut self, least: usize) -> Result<usize, DecodeError> {
        let count: u64 = self.take()?;
        let left = self.left();
        match usize::try_from(count) {
            Ok(fits) if fits <= left / least.max(1) => Ok(fits),
            _ => Err(Problem::Count { count, left }.into()),
        }
    }

    /// How many bytes have not been read.
    pub fn left(&mut self) -> usize {
        use bincode::de::Decoder;
        self.0.reader().0.len()
    }
}

/// What has a place in a body. Structures and enums get this from [`declare!`](super::declare).
pub(super) trait Wire<'a>: Sized {
    /// The least number of bytes that a value takes.
    const LEAST: usize;

    /// Writes the value.
    fn encode(&self, sink: &mut Sink);

    /// Reads a value.
    fn decode(source: &mut Source<'a>) -> Result<Self, DecodeError>;
}

/// The least of `sizes`, for the variants of an enum.
pub(super) const fn least(sizes: &[usize]) -> usize {
    let mut least = usize::MAX;
    let mut at = 0;
    while at < sizes.len() {
        if sizes[at] < least {
            least = sizes[at];
        }
        at += 1;
    }
    least
}

macro_rules! as_bincode_does {
    ($($type:ty: $least:literal),* $(,)?) => {$(
        impl<'a> Wire<'a> for $type {
            const LEAST: usize = $least;

            #[inline]
            fn encode(&self, sink: &mut Sink) {
                sink.put(self);
            }

            #[inline]
            fn decode(source: &mut Source<'a>) -> Result<Self, DecodeError> {
                source.take()
            }
        }
    )*};
}
as_bincode_does! {
    bool: 1, u32: 4, i32: 4, u64: 8, i64: 8, [u8; 16]: 16, [u8; 32]: 32,
    Txid: 32, UtxoHash: 32, Outpoint: 36,
}

macro_rules! borrowed {
    ($($type:ty),*) => {$(
        impl<'wire: 'a, 'a> Wire<'wire> for &'a $type {
            const LEAST: usize = 8;

            #[inline]
            fn encode(&self, sink: &mut Sink) {
                sink.put(*self);
            }

            #[inline]
            fn decode(source: &mut Source<'wire>) -> Result<Self, DecodeError> {
                source.take()
            }
        }
    )*};
}
borrowed!([u8], str);

impl<'a> Wire<'a> for String {
    const LEAST: usize = 8;

    fn encode(&self, sink: &mut Sink) {
        sink.put(self.as_str());
    }

    fn decode(source: &mut Source<'a>) -> Result<Self, DecodeError> {
        source.take::<&str>().map(str::to_owned)
    }
}

impl<'a, T: Wire<'a>> Wire<'a> for Vec<T> {
    const LEAST: usize = 8;

    fn encode(&self, sink: &mut Sink) {
        sink.put_length(self.len());
        self.iter().for_each(|element| element.encode(sink));
    }

    fn decode(source: &mut Source<'a>) -> Result<Self, DecodeError> {
        let count = source.take_count(T::LEAST)?;
        let mut elements = Vec::with_capacity(count);
        for index in 0..count {
            elements.push(T::decode(source).map_err(|error| error.within(&format!("[{index}]")))?);
        }
        Ok(elements)
    }
}

impl<'a, T: Wire<'a>> Wire<'a> for Option<T> {
    const LEAST: usize = 1;

    fn encode(&self, sink: &mut Sink) {
        sink.put(self.is_some());
        if let Some(value) = self {
            value.encode(sink);
        }
    }

    fn decode(source: &mut Source<'a>) -> Result<Self, DecodeError> {
        match source.take::<u8>()? {
            0 => Ok(None),
            1 => T::decode(source).map(Some),
            other => Err(Problem::Tag(other.into()).into()),
        }
    }
}
