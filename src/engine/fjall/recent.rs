//! What the latest groups changed: whether a record that was read a while ago may be another by now.

use std::collections::{HashMap, VecDeque};

use foldhash::fast::FixedState;

use crate::record::Key;

/// Groups whose keys are remembered. A call that waited for longer has its records read again.
const REMEMBERED: usize = 8;

/// The records that a group changed, and which place of which of its calls has each at last.
pub(super) type Changed = HashMap<Key, (usize, usize), FixedState>;

/// The keys that the latest groups changed.
#[derive(Default)]
pub(super) struct Recent {
    /// How many groups there were.
    groups: u64,
    latest: VecDeque<Changed>,
}

impl Recent {
    /// Another group is on its way.
    pub fn push(&mut self, changed: Changed) {
        self.groups += 1;
        self.latest.push_back(changed);
        if self.latest.len() > REMEMBERED {
            self.latest.pop_front();
        }
    }

    /// Whether the last group changed it, which may be on its way still.
    pub fn is_last(&self, key: &Key) -> bool {
        self.latest.back().is_some_and(|changed| changed.contains_key(key))
    }

    /// Whether a record that was read when there were `seen` groups may be another now.
    pub fn may_differ(&self, key: &Key, seen: u64) -> bool {
        let since = (self.groups - seen) as usize;
        since > self.latest.len() || self.latest.iter().rev().take(since).any(|changed| changed.contains_key(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tx::Txid;

    fn key(n: u8) -> Key {
        Key::master(Txid([n; 32]))
    }

    fn groups(keys: impl IntoIterator<Item = u8>) -> Recent {
        let mut recent = Recent::default();
        keys.into_iter().for_each(|n| recent.push(Changed::from_iter([(key(n), (0, 0))])));
        recent
    }

    #[test]
    fn what_was_read_before_a_group_changed_it_may_differ_and_after_it_does_not() {
        let recent = groups([1, 2, 3]);
        let differs = |n, seen| recent.may_differ(&key(n), seen);
        assert_eq!([0, 1, 2, 3].map(|seen| differs(1, seen)), [true, false, false, false]);
        assert_eq!([0, 1, 2, 3].map(|seen| differs(2, seen)), [true, true, false, false]);
        assert_eq!([0, 1, 2, 3].map(|seen| differs(3, seen)), [true, true, true, false]);
        assert_eq!([0, 1, 2, 3].map(|seen| differs(9, seen)), [false; 4], "nobody changed it");
    }

    #[test]
    fn what_was_read_before_the_oldest_group_that_is_remembered_may_differ_whatever_it_is() {
        let last = REMEMBERED as u8 + 3;
        let recent = groups(1..=last);
        let seen = |behind: usize| u64::from(last) - behind as u64;
        assert!(recent.may_differ(&key(200), seen(REMEMBERED + 1)));
        assert!(!recent.may_differ(&key(200), seen(REMEMBERED)));
        assert!(!recent.may_differ(&key(3), seen(REMEMBERED)), "changed before it was read");
        assert!(recent.may_differ(&key(4), seen(REMEMBERED)), "the oldest that is remembered");
    }
}
