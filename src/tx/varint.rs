//! VarInt, the chain's variable-length integer: one byte up to 252, else a tag byte and 2, 4 or 8 bytes little-endian.

/// Error of bytes that are no VarInt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants and name the fields")]
pub enum VarIntError {
    #[error("VarInt cut short, {missing} bytes missing")]
    Truncated { missing: usize },
    /// The value has a shorter encoding. Longer encodings would give one transaction several ids.
    #[error("VarInt not in its shortest encoding")]
    NonMinimal,
}

/// Encoded VarInt, held on the stack.
#[derive(Debug, Clone, Copy)]
pub struct Encoded {
    bytes: [u8; 9],
    len: u8,
}

impl AsRef<[u8]> for Encoded {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// Reads the VarInt at the start of `bytes`. Returns the value and the length of the VarInt in bytes.
#[inline]
pub fn read(bytes: &[u8]) -> Result<(u64, usize), VarIntError> {
    match bytes.first() {
        None => Err(VarIntError::Truncated { missing: 1 }),
        Some(&small @ ..=0xfc) => Ok((u64::from(small), 1)),
        Some(&tag) => read_tagged(tag, &bytes[1..]),
    }
}

fn read_tagged(tag: u8, rest: &[u8]) -> Result<(u64, usize), VarIntError> {
    let (width, least) = match tag {
        0xfd => (2, 0xfd),
        0xfe => (4, 0x1_0000),
        _ => (8, 0x1_0000_0000),
    };
    let Some(tail) = rest.get(..width) else {
        return Err(VarIntError::Truncated { missing: width - rest.len() });
    };
    let mut value = [0; 8];
    value[..width].copy_from_slice(tail);
    let value = u64::from_le_bytes(value);
    if value < least { Err(VarIntError::NonMinimal) } else { Ok((value, 1 + width)) }
}

/// Returns the number of bytes that `value` takes: 1, 3, 5 or 9.
#[inline]
pub const fn encoded_len(value: u64) -> usize {
    match value {
        ..=0xfc => 1,
        0xfd..=0xffff => 3,
        0x1_0000..=0xffff_ffff => 5,
        _ => 9,
    }
}

/// Returns the shortest encoding of `value`.
#[inline]
pub fn encode(value: u64) -> Encoded {
    let len = encoded_len(value);
    let mut bytes = [0; 9];
    if len == 1 {
        bytes[0] = value as u8;
    } else {
        bytes[0] = match len {
            3 => 0xfd,
            5 => 0xfe,
            _ => 0xff,
        };
        bytes[1..].copy_from_slice(&value.to_le_bytes());
    }
    Encoded { bytes, len: len as u8 }
}

/// Appends the shortest encoding of `value`.
#[inline]
pub fn write(to: &mut Vec<u8>, value: u64) {
    to.extend_from_slice(encode(value).as_ref());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_width_at_its_bounds() {
        let bounds: [(u64, &[u8]); 8] = [
            (0, &[0]),
            (0xfc, &[0xfc]),
            (0xfd, &[0xfd, 0xfd, 0]),
            (0xffff, &[0xfd, 0xff, 0xff]),
            (0x1_0000, &[0xfe, 0, 0, 1, 0]),
            (0xffff_ffff, &[0xfe, 0xff, 0xff, 0xff, 0xff]),
            (0x1_0000_0000, &[0xff, 0, 0, 0, 0, 1, 0, 0, 0]),
            (u64::MAX, &[0xff; 9]),
        ];
        for (value, bytes) in bounds {
            assert_eq!(encode(value).as_ref(), bytes);
            assert_eq!(read(bytes), Ok((value, bytes.len())));
        }
    }

    #[test]
    fn longer_than_needed_is_refused() {
        for bytes in [&[0xfd, 0xfc, 0][..], &[0xfe, 0xff, 0xff, 0, 0], &[0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]] {
            assert_eq!(read(bytes), Err(VarIntError::NonMinimal));
        }
    }

    proptest! {
        #[test]
        fn round_trip_and_truncation(value in any::<u64>(), shift in 0_u32..64, tail in any::<[u8; 3]>()) {
            let mut bytes = Vec::new();
            write(&mut bytes, value >> shift);
            prop_assert_eq!(bytes.len(), encoded_len(value >> shift));
            for cut in 0..bytes.len() {
                let truncated = matches!(read(&bytes[..cut]), Err(VarIntError::Truncated { .. }));
                prop_assert!(truncated);
            }
            let len = bytes.len();
            bytes.extend_from_slice(&tail);
            prop_assert_eq!(read(&bytes), Ok((value >> shift, len)));
        }
    }
}
