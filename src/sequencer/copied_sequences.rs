//! Remembers the sequence numbers that the chain feed has copied, to tell a repeat from another event under a used
//! sequence.

/// Sequence numbers that were copied into the chain, each with the identity of its event. Eight bytes an event, for the
/// life of the process.
pub(super) struct CopiedSequences {
    first: u64,
    identities: Vec<u64>,
}

impl CopiedSequences {
    /// Creates an empty record; `first` is the next sequence.
    pub fn starting_at(first: u64) -> Self {
        CopiedSequences { first, identities: Vec::new() }
    }

    /// Returns the next sequence.
    pub fn next_sequence(&self) -> u64 {
        self.first.saturating_add(self.identities.len() as u64)
    }

    /// Records the identity of the event with the next sequence, which was copied.
    pub fn push(&mut self, identity: u64) {
        self.identities.push(identity);
    }

    /// Returns whether the event copied under `sequence` had this identity. `None`: the sequence is before the first,
    /// or not copied yet.
    pub fn is_repeat(&self, sequence: u64, identity: u64) -> Option<bool> {
        let index = usize::try_from(sequence.checked_sub(self.first)?).ok()?;
        self.identities.get(index).map(|copied| *copied == identity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeat_is_distinguished_from_another_event_of_its_sequence() {
        let mut copied = CopiedSequences::starting_at(5);
        assert_eq!(copied.next_sequence(), 5);
        copied.push(50);
        copied.push(60);
        assert_eq!(copied.next_sequence(), 7);
        assert_eq!(
            [(4, 40), (5, 50), (6, 61), (7, 70)].map(|(sequence, identity)| copied.is_repeat(sequence, identity)),
            [None, Some(true), Some(false), None]
        );
    }
}
