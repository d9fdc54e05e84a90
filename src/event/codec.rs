//! Body encoding: bincode 2, fixed-width, little-endian. No other module names the crate bincode.
//!
//! | value | bytes |
//! |---|---|
//! | integer | own width |
//! | boolean, tag of an option | 1 |
//! | tag of an enum | 4 |
//! | length of bytes, text or a list | 8 |
//! | length of an array | 0 |
//!
//! bincode would allocate a list from the length that the message claims. This module therefore reads lists itself and
//! first compares the claimed length with the bytes that are left.

use bincode::{
    BorrowDecode, Encode,
    config::{Configuration, Fixint, LittleEndian, NoLimit},
    de::{
        BorrowDecoder, DecoderImpl,
        read::{BorrowReader, Reader},
    },
    enc::{EncoderImpl, write::Writer},
    error::DecodeError as BincodeError,
};

use super::ContentHash;
use crate::tx::{Outpoint, Txid, UtxoHash};

/// The oracle of tests: bincode's own derive and functions.
#[cfg(test)]
pub(super) use bincode as oracle;

type Fixed = Configuration<LittleEndian, Fixint, NoLimit>;
const CONFIGURATION: Fixed = bincode::config::standard().with_fixed_int_encoding();

/// Error of a message or of JSON that is no event: the field and the problem, in one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}{}{problem}", if field.is_empty() { "" } else { ": " })]
pub struct DecodeError {
    /// Path of the field, from the outside in: `block.subtrees[2].count`. Empty for the envelope, and for a text that
    /// is no JSON.
    pub field: String,
    /// Problem of the field's bytes.
    pub problem: DecodeProblem,
}

/// Problem of a message or of one of its fields.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants and name the fields")]
pub enum DecodeProblem {
    #[error("{0} bytes are no event: an envelope alone has 3")]
    NoEnvelope(usize),
    /// The first byte is not `0xD7`.
    #[error("not an event: the first byte is {0:#04x} instead of {magic:#04x}", magic = super::MAGIC)]
    Magic(u8),
    /// A later release wrote the message; holds its schema version.
    #[error("schema version {0} is unknown: this release reads version {known}", known = super::SCHEMA_VERSION)]
    Version(u8),
    /// A later release or another program wrote the message; holds the number of the kind.
    #[error("event kind {0} is unknown")]
    Kind(u8),
    /// A field, or the length that a field claims, ends beyond the message.
    #[error("the message ends {missing} bytes too early")]
    Truncated { missing: u64 },
    /// A list claims more elements than the rest of the message can hold.
    #[error("{count} elements cannot be in the {left} bytes that are left")]
    Count { count: u64, left: usize },
    #[error("{0} bytes follow the last field")]
    Trailing(usize),
    #[error("{0} is no boolean: only 0 and 1 are")]
    Boolean(u8),
    #[error("{0} is no known tag")]
    Tag(u32),
    #[error("the text is not UTF-8")]
    Text,
    /// A value breaks a rule of the field; holds the rule.
    #[error("{0}")]
    Rule(String),
}

impl From<DecodeProblem> for DecodeError {
    fn from(problem: DecodeProblem) -> Self {
        DecodeError { field: String::new(), problem }
    }
}

impl DecodeError {
    /// Returns the error of a value that breaks a rule of `field`.
    pub(super) fn broken_rule(field: impl Into<String>, broken: impl Into<String>) -> Self {
        DecodeError { field: field.into(), problem: DecodeProblem::Rule(broken.into()) }
    }

    /// Adds `field` in front of the path: the error as the enclosing structure reports it.
    pub(super) fn within(mut self, field: &str) -> Self {
        let separator = if field.is_empty() || self.field.is_empty() || self.field.starts_with('[') { "" } else { "." };
        self.field = format!("{field}{separator}{}", self.field);
        self
    }
}

impl From<BincodeError> for DecodeError {
    fn from(error: BincodeError) -> Self {
        match error {
            BincodeError::UnexpectedEnd { additional } => DecodeProblem::Truncated { missing: additional as u64 },
            BincodeError::OutsideUsizeRange(length) => DecodeProblem::Truncated { missing: length },
            BincodeError::InvalidBooleanValue(found) => DecodeProblem::Boolean(found),
            BincodeError::UnexpectedVariant { found, .. } => DecodeProblem::Tag(found),
            BincodeError::Utf8 { .. } => DecodeProblem::Text,
            other => DecodeProblem::Rule(other.to_string()),
        }
        .into()
    }
}

/// Writes the body of a message.
pub(super) struct BodyWriter(EncoderImpl<Buffer, Fixed>);

struct Buffer(Vec<u8>);

impl Writer for Buffer {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> Result<(), bincode::error::EncodeError> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }
}

impl BodyWriter {
    /// Creates a writer that appends to `buffer`.
    pub fn new(buffer: Vec<u8>) -> Self {
        BodyWriter(EncoderImpl::new(Buffer(buffer), CONFIGURATION))
    }

    /// Writes a primitive, bytes, a text or an array as bincode does.
    #[inline]
    pub fn put<T: Encode>(&mut self, value: T) {
        value.encode(&mut self.0).expect("bincode fails only where its writer does, and a vector takes all bytes");
    }

    /// Writes the length of a list, in elements, or of bytes.
    pub fn put_length(&mut self, length: usize) {
        self.put(length as u64);
    }

    /// Returns the bytes in the buffer.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0.into_writer().0
    }
}

/// Reads the body of a message; the values borrow from the message.
pub(super) struct BodyReader<'a>(DecoderImpl<Unread<'a>, Fixed, ()>);

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

impl<'a> BodyReader<'a> {
    /// Creates a reader at the beginning of `body`.
    pub fn new(body: &'a [u8]) -> Self {
        BodyReader(DecoderImpl::new(Unread(body), CONFIGURATION, ()))
    }

    /// Reads a primitive, bytes, a text or an array as bincode does.
    #[inline]
    pub fn take<T: BorrowDecode<'a, ()>>(&mut self) -> Result<T, DecodeError> {
        Ok(T::borrow_decode(&mut self.0)?)
    }

    /// Reads the length of a list whose elements have at least `least` bytes each.
    fn take_count(&mut self, least: usize) -> Result<usize, DecodeError> {
        let count: u64 = self.take()?;
        let left = self.left();
        match usize::try_from(count) {
            Ok(fits) if fits <= left / least.max(1) => Ok(fits),
            _ => Err(DecodeProblem::Count { count, left }.into()),
        }
    }

    /// Reads a list whose elements have `width` bytes each, as the bytes of all elements.
    pub fn take_elements(&mut self, width: usize) -> Result<&'a [u8], DecodeError> {
        let count = self.take_count(width)?;
        Ok(self.0.borrow_reader().take_bytes(count * width)?)
    }

    /// Returns the number of bytes that are not read yet.
    pub fn left(&mut self) -> usize {
        use bincode::de::Decoder;
        self.0.reader().0.len()
    }
}

/// Binary form of a value in a body. [`declare!`](super::declare) implements the trait for structures and enums.
pub(super) trait Wire<'a>: Sized {
    /// Least number of bytes that a value takes.
    const LEAST: usize;

    /// Writes the value to a body.
    fn encode(&self, sink: &mut BodyWriter);

    /// Reads the next value of a body.
    fn decode(source: &mut BodyReader<'a>) -> Result<Self, DecodeError>;
}

/// Returns the least of `sizes`, for the variants of an enum.
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

macro_rules! wire_by_bincode {
    ($($type:ty: $least:literal),* $(,)?) => {$(
        impl<'a> Wire<'a> for $type {
            const LEAST: usize = $least;

            #[inline]
            fn encode(&self, sink: &mut BodyWriter) {
                sink.put(self);
            }

            #[inline]
            fn decode(source: &mut BodyReader<'a>) -> Result<Self, DecodeError> {
                source.take()
            }
        }
    )*};
}
wire_by_bincode! {
    bool: 1, u32: 4, i32: 4, u64: 8, i64: 8, [u8; 16]: 16, [u8; 32]: 32,
}

macro_rules! wire_by_hash {
    ($($type:ident),*) => {$(
        impl<'a> Wire<'a> for $type {
            const LEAST: usize = 32;

            #[inline]
            fn encode(&self, sink: &mut BodyWriter) {
                sink.put(self.0);
            }

            #[inline]
            fn decode(source: &mut BodyReader<'a>) -> Result<Self, DecodeError> {
                source.take().map($type)
            }
        }
    )*};
}
wire_by_hash!(Txid, UtxoHash, ContentHash);

impl<'a> Wire<'a> for Outpoint {
    const LEAST: usize = 36;

    #[inline]
    fn encode(&self, sink: &mut BodyWriter) {
        sink.put(self.txid.0);
        sink.put(self.vout);
    }

    #[inline]
    fn decode(source: &mut BodyReader<'a>) -> Result<Self, DecodeError> {
        Ok(Outpoint { txid: Wire::decode(source)?, vout: source.take()? })
    }
}

macro_rules! wire_by_reference {
    ($($type:ty),*) => {$(
        impl<'wire: 'a, 'a> Wire<'wire> for &'a $type {
            const LEAST: usize = 8;

            #[inline]
            fn encode(&self, sink: &mut BodyWriter) {
                sink.put(*self);
            }

            #[inline]
            fn decode(source: &mut BodyReader<'wire>) -> Result<Self, DecodeError> {
                source.take()
            }
        }
    )*};
}
wire_by_reference!([u8], str);

impl<'a> Wire<'a> for String {
    const LEAST: usize = 8;

    fn encode(&self, sink: &mut BodyWriter) {
        sink.put(self.as_str());
    }

    fn decode(source: &mut BodyReader<'a>) -> Result<Self, DecodeError> {
        source.take::<&str>().map(str::to_owned)
    }
}

impl<'a, T: Wire<'a>> Wire<'a> for Vec<T> {
    const LEAST: usize = 8;

    fn encode(&self, sink: &mut BodyWriter) {
        sink.put_length(self.len());
        self.iter().for_each(|element| element.encode(sink));
    }

    fn decode(source: &mut BodyReader<'a>) -> Result<Self, DecodeError> {
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

    fn encode(&self, sink: &mut BodyWriter) {
        sink.put(self.is_some());
        if let Some(value) = self {
            value.encode(sink);
        }
    }

    fn decode(source: &mut BodyReader<'a>) -> Result<Self, DecodeError> {
        match source.take::<u8>()? {
            0 => Ok(None),
            1 => T::decode(source).map(Some),
            other => Err(DecodeProblem::Tag(other.into()).into()),
        }
    }
}
