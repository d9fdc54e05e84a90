//! What has been fed, by sequence: to tell a repeat from something else that has a sequence which was used before.

/// Sequences that have been fed, and of what each was. Eight bytes each: a feed lives as long as its process.
pub(super) struct Fed {
    first: u64,
    identities: Vec<u64>,
}

impl Fed {
    /// Nothing yet; `first` is the sequence to come.
    pub fn from(first: u64) -> Self {
        Fed { first, identities: Vec::new() }
    }

    /// The sequence to come.
    pub fn next(&self) -> u64 {
        self.first.saturating_add(self.identities.len() as u64)
    }

    /// What had the sequence to come has been fed.
    pub fn push(&mut self, identity: u64) {
        self.identities.push(identity);
    }

    /// Whether this is what was fed under its sequence. `None`: that was before anything that is known here.
    pub fn is_repeat(&self, sequence: u64, identity: u64) -> Option<bool> {
        let place = usize::try_from(sequence.checked_sub(self.first)?).ok()?;
        self.identities.get(place).map(|there| *there == identity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeat_is_told_from_another_of_its_sequence() {
        let mut fed = Fed::from(5);
        assert_eq!(fed.next(), 5);
        fed.push(50);
        fed.push(60);
        assert_eq!(fed.next(), 7);
        assert_eq!(
            [(4, 40), (5, 50), (6, 61), (7, 70)].map(|(sequence, of)| fed.is_repeat(sequence, of)),
            [None, Some(true), Some(false), None]
        );
    }
}
