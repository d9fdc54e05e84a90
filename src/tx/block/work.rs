//! Work of a block.

/// Returns the expected number of hashes for a block of this compact target: 2^256 divided by the target. The work is
/// at least 1, so that a longer branch has more work than a part of the branch.
pub(super) fn block_work(bits: u32) -> u128 {
    let (size, mantissa) = (bits >> 24, u128::from(bits & 0x007f_ffff));
    let shift = i64::from(size) * 8 - 24;
    match (mantissa, 256 - shift) {
        (0, _) => 1,
        (mantissa, exponent @ 0..=127) => ((1 << exponent) / mantissa).max(1),
        // Only a very small target gets here, to which no chain has come near: the product saturates.
        (mantissa, exponent @ 128..=255) => (u128::MAX / mantissa).saturating_mul(1 << (exponent - 128).min(23)),
        (_, exponent) => {
            if exponent < 0 {
                1
            } else {
                u128::MAX
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_work_equals_the_work_in_nodes() {
        assert_eq!(block_work(0x1d00_ffff), 0x1_0001_0001, "as in Bitcoin Core, without the fraction");
        assert_eq!(block_work(0x207f_ffff), 2);
        assert!(block_work(0x1701_0000) > block_work(0x1701_ffff));
        for odd in [0, 0x0100_0000, 0xff7f_ffff, 0x0000_0001, 0x0300_0001] {
            assert!(block_work(odd) >= 1, "{odd:x}");
        }
    }
}
