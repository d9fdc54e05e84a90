//! Amounts and scripts in the compressed form of Bitcoin Core (`compressor.cpp`).

use std::io::Read;

use secp256k1::PublicKey;

use super::{SetFileError, input::SetInput};

const OP_DUP: u8 = 0x76;
const OP_EQUAL: u8 = 0x87;
const OP_EQUALVERIFY: u8 = 0x88;
const OP_HASH160: u8 = 0xa9;
const OP_CHECKSIG: u8 = 0xac;
/// Number of script forms with a code of their own; the code of any other script is its length plus this number.
const SPECIAL_SCRIPTS: u64 = 6;

/// Returns the amount of a compressed amount; `None`: the amount exceeds 64 bits.
///
/// The code of an amount is 0 for 0. Else the amount is `n · 10^e` with the greatest `e` up to 9: the code is
/// `1 + 10 · (9 · (n / 10) + n % 10 − 1) + e` for `e` below 9, and `1 + 10 · (n − 1) + 9` for 9.
pub(super) fn decompress_amount(code: u64) -> Option<u64> {
    let Some(code) = code.checked_sub(1) else { return Some(0) };
    let (exponent, rest) = ((code % 10) as u32, code / 10);
    let digits = match exponent {
        9 => rest.checked_add(1)?,
        _ => (rest / 9).checked_mul(10)?.checked_add(rest % 9 + 1)?,
    };
    digits.checked_mul(10_u64.pow(exponent))
}

/// Reads a compressed script.
///
/// # Errors
/// The file ends, or an uncompressed public key is not on the curve.
pub(super) fn read_script<R: Read>(input: &mut SetInput<R>) -> Result<Vec<u8>, SetFileError> {
    Ok(match input.core_varint()? {
        0 => [&[OP_DUP, OP_HASH160, 20][..], &input.array::<20>()?[..], &[OP_EQUALVERIFY, OP_CHECKSIG]].concat(),
        1 => [&[OP_HASH160, 20][..], &input.array::<20>()?[..], &[OP_EQUAL]].concat(),
        sign @ (2 | 3) => [&[33, sign as u8][..], &input.array::<32>()?[..], &[OP_CHECKSIG]].concat(),
        sign @ (4 | 5) => {
            let compressed = [&[sign as u8 - 2][..], &input.array::<32>()?[..]].concat();
            let key = PublicKey::from_slice(&compressed)
                .map_err(|_| input.damaged("the public key of a compressed script is not on the curve"))?;
            [&[65][..], &key.serialize_uncompressed()[..], &[OP_CHECKSIG]].concat()
        }
        code => input.bytes(code - SPECIAL_SCRIPTS)?,
    })
}

#[cfg(feature = "testkit")]
pub(super) use write::{compress_amount, write_script, write_varint};

/// The other direction, for files that tests make.
#[cfg(feature = "testkit")]
mod write {
    use super::*;

    /// Returns the code of an amount.
    pub fn compress_amount(satoshis: u64) -> u64 {
        if satoshis == 0 {
            return 0;
        }
        let (mut digits, mut exponent) = (satoshis, 0);
        while digits.is_multiple_of(10) && exponent < 9 {
            digits /= 10;
            exponent += 1;
        }
        match exponent {
            9 => 1 + (digits - 1) * 10 + 9,
            _ => 1 + (digits / 10 * 9 + digits % 10 - 1) * 10 + exponent,
        }
    }

    /// Appends a number as a VARINT.
    pub fn write_varint(mut value: u64, out: &mut Vec<u8>) {
        let mut bytes = vec![(value & 0x7f) as u8];
        while value > 0x7f {
            value = (value >> 7) - 1;
            bytes.push((value & 0x7f) as u8 | 0x80);
        }
        out.extend(bytes.iter().rev());
    }

    /// Appends a script in its compressed form.
    pub fn write_script(script: &[u8], out: &mut Vec<u8>) {
        match script {
            [OP_DUP, OP_HASH160, 20, hash @ .., OP_EQUALVERIFY, OP_CHECKSIG] if hash.len() == 20 => {
                out.push(0);
                out.extend(hash);
            }
            [OP_HASH160, 20, hash @ .., OP_EQUAL] if hash.len() == 20 => {
                out.push(1);
                out.extend(hash);
            }
            [33, sign @ (2 | 3), x @ .., OP_CHECKSIG] if x.len() == 32 => {
                out.push(*sign);
                out.extend(x);
            }
            [65, key @ .., OP_CHECKSIG] if key.len() == 65 && key[0] == 4 && PublicKey::from_slice(key).is_ok() => {
                out.push(4 | key[64] & 1);
                out.extend(&key[1..33]);
            }
            _ => {
                write_varint(script.len() as u64 + SPECIAL_SCRIPTS, out);
                out.extend(script);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn script_of(bytes: &[u8]) -> Result<Vec<u8>, SetFileError> {
        let mut input = SetInput::new(bytes, 0, u64::MAX);
        let script = read_script(&mut input)?;
        assert_eq!(input.at(), bytes.len() as u64, "every byte was read");
        Ok(script)
    }

    fn compressed(script: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        write_script(script, &mut out);
        out
    }

    /// Values from `serialize_tests.cpp` and `compress_tests.cpp` of Bitcoin Core, and from the comment in `coins.h`.
    #[test]
    fn published_values_are_read() {
        for (bytes, value) in [
            (&[0x00][..], 0),
            (&[0x7f], 127),
            (&[0x80, 0x00], 128),
            (&[0x80, 0x7f], 255),
            (&[0x81, 0x00], 256),
            (&[0xfe, 0x7f], 16_383),
            (&[0xff, 0x00], 16_384),
            (&[0x82, 0xfe, 0x7f], 65_535),
            (&[0x8e, 0xfe, 0xfe, 0xff, 0x00], 1 << 32),
        ] {
            assert_eq!(SetInput::new(bytes, 0, u64::MAX).core_varint().unwrap(), value);
        }
        assert!(SetInput::new(&[0xff; 12][..], 0, u64::MAX).core_varint().is_err());
        for (satoshis, code) in
            [(0, 0), (1, 1), (1_000_000, 7), (100_000_000, 9), (5_000_000_000, 50), (2_100_000_000_000_000, 21_000_000)]
        {
            assert_eq!((compress_amount(satoshis), decompress_amount(code)), (code, Some(satoshis)));
        }
        assert_eq!(
            SetInput::new(&[0x83, 0x58][..], 0, u64::MAX).core_varint().ok().and_then(decompress_amount),
            Some(60_000_000_000)
        );
        assert_eq!(decompress_amount(u64::MAX), None);
    }

    /// Output 0 of the coinbase of block 1 pays to an uncompressed public key.
    #[test]
    fn an_uncompressed_public_key_is_restored_from_its_x() {
        let key = "0496b538e853519c726a2c91e61ec11600ae1390813a627c66fb8be7947be63c52da7589379515d4e0a604f8141781e62294\
                   721166bf621e73a82cbf2342c858ee";
        let script = [&[65][..], &hex::decode(key).unwrap()[..], &[OP_CHECKSIG]].concat();
        let short = compressed(&script);
        assert_eq!((short.len(), short[0]), (33, 4));
        assert_eq!(script_of(&short).unwrap(), script);
        let mut other_y = short.clone();
        other_y[0] = 5;
        let negated = script_of(&other_y).unwrap();
        assert!(negated[..34] == script[..34] && negated != script);
        // No point of the curve has the x coordinate 5.
        let mut off = vec![4];
        off.extend([[0; 31].as_slice(), &[5]].concat());
        assert!(script_of(&off).unwrap_err().to_string().contains("not on the curve"));
        // A key that is not on the curve is no special script.
        let mut no_key = script.clone();
        no_key[40] ^= 1;
        assert_eq!(compressed(&no_key).len(), script.len() + 1);
        assert_eq!(script_of(&compressed(&no_key)).unwrap(), no_key);
    }

    #[test]
    fn special_scripts_are_short() {
        let hash = [7; 20];
        for (script, length) in [
            ([&[OP_DUP, OP_HASH160, 20][..], &hash[..], &[OP_EQUALVERIFY, OP_CHECKSIG]].concat(), 21),
            ([&[OP_HASH160, 20][..], &hash[..], &[OP_EQUAL]].concat(), 21),
            ([&[33, 3][..], &[9; 32][..], &[OP_CHECKSIG]].concat(), 33),
            (vec![], 1),
            (vec![0x51; 121], 122),
            (vec![0x51; 122], 124),
        ] {
            let short = compressed(&script);
            assert_eq!((short.len(), script_of(&short).unwrap()), (length, script));
        }
    }

    proptest! {
        #[test]
        fn amounts_come_back(satoshis in prop_oneof![any::<u64>().prop_map(|any| any >> 8), 0..2_100_000_000_u64]) {
            prop_assert_eq!(decompress_amount(compress_amount(satoshis)), Some(satoshis));
        }

        #[test]
        fn numbers_come_back_and_no_cut_is_a_number(value: u64, shift in 0..64_u32) {
            let mut bytes = Vec::new();
            write_varint(value >> shift, &mut bytes);
            prop_assert_eq!(SetInput::new(&bytes[..], 0, u64::MAX).core_varint().unwrap(), value >> shift);
            for end in 0..bytes.len() {
                let error = SetInput::new(&bytes[..end], 0, u64::MAX).core_varint();
                let is_cut = matches!(error, Err(SetFileError::Cut { .. }));
                prop_assert!(is_cut);
            }
        }

        #[test]
        fn scripts_come_back(script in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert_eq!(script_of(&compressed(&script)).unwrap(), script);
        }
    }
}
