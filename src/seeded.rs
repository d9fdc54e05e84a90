//! The generator behind everything that is random and must repeat: the same seed gives the same numbers, for ever.

/// A SplitMix64: small, fast, and good enough to choose faults and test cases. Not for secrets.
#[derive(Debug, Clone)]
pub struct Seeded(u64);

impl Seeded {
    /// A generator of its own for each seed.
    pub fn new(seed: u64) -> Self {
        Seeded(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 where `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// True this often: never at 0, always at 1. Draws nothing at 0, so that what is switched off shifts nothing else.
    pub fn chance(&mut self, probability: f64) -> bool {
        if probability <= 0.0 {
            return false;
        }
        // 53 bits: all that a float holds exactly.
        let unit = (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        unit < probability
    }

    /// One of `items`.
    ///
    /// # Panics
    /// Where there are none.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        assert!(!items.is_empty(), "nothing to pick from");
        &items[self.below(items.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_splitmix64_for_ever() {
        let mut seeded = Seeded::new(0);
        assert_eq!(seeded.next_u64(), 0xE220_A839_7B1D_CDAF);
        assert_eq!(seeded.next_u64(), 0x6E78_9E6A_A1B9_65F4);
    }

    #[test]
    fn bounds_are_kept_and_every_value_comes() {
        let mut seeded = Seeded::new(7);
        let seen: std::collections::BTreeSet<u64> = (0..200).map(|_| seeded.below(5)).collect();
        assert_eq!(seen, (0..5).collect());
        assert_eq!(seeded.below(0), 0);
        assert!((0..1000).all(|_| !seeded.chance(0.0) && seeded.chance(1.0)));
        let hits = (0..1000).filter(|_| seeded.chance(0.5)).count();
        assert!((400..600).contains(&hits), "{hits}");
    }
}
