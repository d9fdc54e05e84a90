//! [`ByteReader`]: reads foreign bytes. Every read is bounded by the remaining bytes, and an error has the position and
//! the field.

use super::{
    error::{ParseError, ParseErrorKind},
    varint::{self, VarIntError},
};

#[derive(Debug, Clone, Copy)]
pub(super) struct ByteReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> ByteReader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        ByteReader { bytes, at: 0 }
    }

    /// Creates a reader that starts at byte `at`, which must not exceed the length.
    pub(super) fn starting_at(bytes: &'a [u8], at: usize) -> Self {
        debug_assert!(at <= bytes.len());
        ByteReader { bytes, at }
    }

    pub(super) fn position(&self) -> usize {
        self.at
    }

    pub(super) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// Returns the remaining bytes without consuming them.
    pub(super) fn rest(&self) -> &'a [u8] {
        &self.bytes[self.at..]
    }

    /// Returns the bytes from `start` to the position.
    pub(super) fn since(&self, start: usize) -> &'a [u8] {
        &self.bytes[start..self.at]
    }

    #[inline]
    pub(super) fn take(&mut self, len: u64, field: &'static str) -> Result<&'a [u8], ParseError> {
        let left = self.left() as u64;
        if len > left {
            return Err(self.truncated(field, len - left));
        }
        let start = self.at;
        self.at += len as usize;
        Ok(&self.bytes[start..self.at])
    }

    #[inline]
    pub(super) fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], ParseError> {
        let Some(bytes) = self.rest().first_chunk::<N>() else {
            return Err(self.truncated(field, (N - self.left()) as u64));
        };
        self.at += N;
        Ok(*bytes)
    }

    #[inline]
    pub(super) fn u32(&mut self, field: &'static str) -> Result<u32, ParseError> {
        self.array(field).map(u32::from_le_bytes)
    }

    #[inline]
    pub(super) fn u64(&mut self, field: &'static str) -> Result<u64, ParseError> {
        self.array(field).map(u64::from_le_bytes)
    }

    #[inline]
    fn varint(&mut self, field: &'static str) -> Result<u64, ParseError> {
        match varint::read(self.rest()) {
            Ok((value, len)) => {
                self.at += len;
                Ok(value)
            }
            Err(VarIntError::Truncated { missing }) => Err(self.truncated(field, missing as u64)),
            Err(VarIntError::NonMinimal) => Err(self.error(self.at, ParseErrorKind::NonMinimal { field })),
        }
    }

    /// Reads a VarInt length and as many bytes.
    #[inline]
    pub(super) fn script(&mut self, field: &'static str) -> Result<&'a [u8], ParseError> {
        let len = self.varint(field)?;
        self.take(len, field)
    }

    /// Reads a count of elements of at least `least` bytes each. A count that the remaining bytes cannot hold is
    /// refused before a loop or an allocation uses the count.
    pub(super) fn count(&mut self, field: &'static str, least: usize) -> Result<usize, ParseError> {
        let at = self.at;
        let count = self.varint(field)?;
        if count > (self.left() / least) as u64 {
            return Err(self.error(at, ParseErrorKind::CountBeyondBytes { field, count, left: self.left() }));
        }
        Ok(count as usize)
    }

    /// Refuses bytes after the last field.
    pub(super) fn finish(self) -> Result<(), ParseError> {
        match self.left() {
            0 => Ok(()),
            left => Err(self.error(self.at, ParseErrorKind::TrailingBytes(left))),
        }
    }

    pub(super) fn error(&self, at: usize, kind: ParseErrorKind) -> ParseError {
        ParseError { at, kind }
    }

    #[cold]
    fn truncated(&self, field: &'static str, missing: u64) -> ParseError {
        self.error(self.at, ParseErrorKind::Truncated { field, missing })
    }
}
