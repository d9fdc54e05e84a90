//! The one generator of pseudo-random numbers, whose same seed gives the same numbers in every version. Ids come from
//! the operating system.

use std::{
    fs::File,
    io::{self, Read},
};

/// Returns random bytes of the operating system, for ids.
///
/// # Errors
/// `/dev/urandom` cannot be read.
pub fn random_bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// A SplitMix64 generator: small and fast, good enough to choose faults and test cases. Not for secrets.
#[derive(Debug, Clone)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// Returns a generator whose numbers depend on `seed` alone.
    pub fn new(seed: u64) -> Self {
        SplitMix64(seed)
    }

    /// Returns the next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a number below `bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns `true` with this probability: never at 0, always at 1.
    ///
    /// A probability of 0 draws no number, so that a disabled fault does not shift the numbers of all others.
    pub fn chance(&mut self, probability: f64) -> bool {
        if probability <= 0.0 {
            return false;
        }
        // A float holds 53 bits exactly.
        let unit = (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        unit < probability
    }

    /// Picks one of `items`.
    ///
    /// # Panics
    /// `items` is empty.
    #[cfg(feature = "testkit")]
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        assert!(!items.is_empty(), "nothing to pick from");
        &items[self.below(items.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_splitmix64() {
        let mut rng = SplitMix64::new(0);
        assert_eq!(rng.next_u64(), 0xE220_A839_7B1D_CDAF);
        assert_eq!(rng.next_u64(), 0x6E78_9E6A_A1B9_65F4);
    }

    #[test]
    fn numbers_stay_below_the_bound_and_reach_every_value() {
        let mut rng = SplitMix64::new(7);
        let seen: std::collections::BTreeSet<u64> = (0..200).map(|_| rng.below(5)).collect();
        assert_eq!(seen, (0..5).collect());
        assert_eq!(rng.below(0), 0);
        assert!((0..1000).all(|_| !rng.chance(0.0) && rng.chance(1.0)));
        let hits = (0..1000).filter(|_| rng.chance(0.5)).count();
        assert!((400..600).contains(&hits), "{hits}");
    }
}
