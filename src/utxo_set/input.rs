//! [`SetInput`]: reads the fields of a UTXO-set file and knows the position, for errors that name a byte.

use std::io::{ErrorKind, Read};

use super::SetFileError;

/// Bytes of a file in order.
#[derive(Debug)]
pub(super) struct SetInput<R> {
    bytes: R,
    at: u64,
    /// Position behind the last byte.
    end: u64,
}

/// Greatest memory that is reserved for a field before its bytes are read.
const RESERVED: usize = 1 << 10;

impl<R: Read> SetInput<R> {
    /// Creates an input of `length` bytes whose first byte is the byte `at` of the file.
    pub(super) fn new(bytes: R, at: u64, length: u64) -> Self {
        SetInput { bytes, at, end: at.saturating_add(length) }
    }

    /// Returns the position of the next byte in the file.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// Returns the source of the bytes.
    pub(super) fn source_mut(&mut self) -> &mut R {
        &mut self.bytes
    }

    /// Returns the error of a file with a problem before the next byte.
    pub(super) fn damaged(&self, problem: impl Into<String>) -> SetFileError {
        SetFileError::Damaged { at: self.at, problem: problem.into() }
    }

    /// Reads a field of a fixed number of bytes.
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], SetFileError> {
        let mut field = [0; N];
        match self.bytes.read_exact(&mut field) {
            Ok(()) => {
                self.at += N as u64;
                Ok(field)
            }
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Err(SetFileError::Cut { at: self.at }),
            Err(error) => Err(SetFileError::Read { at: self.at, error }),
        }
    }

    /// Reads a field of `length` bytes. No more memory is reserved than the file has bytes, and a damaged length that
    /// the rest of the file does not have reads nothing.
    pub(super) fn bytes(&mut self, length: u64) -> Result<Vec<u8>, SetFileError> {
        if length > self.end.saturating_sub(self.at) {
            return Err(SetFileError::Cut { at: self.at });
        }
        let mut field = Vec::with_capacity(usize::try_from(length).unwrap_or(usize::MAX).min(RESERVED));
        let read = self.bytes.by_ref().take(length).read_to_end(&mut field);
        let read = read.map_err(|error| SetFileError::Read { at: self.at, error })? as u64;
        if read < length {
            return Err(SetFileError::Cut { at: self.at });
        }
        self.at += length;
        Ok(field)
    }

    pub(super) fn u8(&mut self) -> Result<u8, SetFileError> {
        self.array().map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self) -> Result<u16, SetFileError> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, SetFileError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, SetFileError> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reads a CompactSize, the chain's variable-length integer, in its shortest form.
    pub(super) fn compact_size(&mut self) -> Result<u64, SetFileError> {
        let (value, least) = match self.u8()? {
            0xfd => (u64::from(self.u16()?), 0xfd),
            0xfe => (u64::from(self.u32()?), 0x1_0000),
            0xff => (self.u64()?, 0x1_0000_0000),
            small => (u64::from(small), 0),
        };
        if value < least { Err(self.damaged("a CompactSize is not in its shortest form")) } else { Ok(value) }
    }

    /// Reads Bitcoin Core's VARINT (`serialize.h`): base 128, the most significant byte first, and each byte but the
    /// last stands for one more than its bits, so that each number has one form.
    pub(super) fn core_varint(&mut self) -> Result<u64, SetFileError> {
        let mut value = 0_u64;
        loop {
            let byte = self.u8()?;
            if value > u64::MAX >> 7 {
                return Err(self.damaged("a VARINT exceeds 64 bits"));
            }
            value = value << 7 | u64::from(byte & 0x7f);
            if byte & 0x80 == 0 {
                return Ok(value);
            }
            value = value.checked_add(1).ok_or_else(|| self.damaged("a VARINT exceeds 64 bits"))?;
        }
    }
}
