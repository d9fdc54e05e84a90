//! The keys that the latest write groups changed: a record read before one of these groups may be out of date.

use std::collections::{HashMap, VecDeque};

use foldhash::fast::FixedState;

use crate::record::Key;

/// Write groups whose keys are remembered. A call that waited longer reads its records again.
const REMEMBERED_GROUPS: usize = 8;

/// The keys that a write group changed, each with the last call that changed it: its number, and its place in the call.
pub(super) type ChangedKeys = HashMap<Key, (usize, usize), FixedState>;

/// The keys that the latest write groups changed.
#[derive(Default)]
pub(super) struct RecentChanges {
    /// Number of write groups so far.
    groups: u64,
    latest: VecDeque<ChangedKeys>,
}

impl RecentChanges {
    /// Adds a write group, which may be unwritten yet.
    pub fn push(&mut self, changed: ChangedKeys) {
        self.groups += 1;
        self.latest.push_back(changed);
        if self.latest.len() > REMEMBERED_GROUPS {
            self.latest.pop_front();
        }
    }

    /// Returns whether the last write group changes the record. That group may be unwritten yet.
    pub fn is_in_last_group(&self, key: &Key) -> bool {
        self.latest.back().is_some_and(|changed| changed.contains_key(key))
    }

    /// Returns whether a record that was read after `groups_seen` write groups can have changed since.
    pub fn may_differ(&self, key: &Key, groups_seen: u64) -> bool {
        let since = (self.groups - groups_seen) as usize;
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

    fn groups(keys: impl IntoIterator<Item = u8>) -> RecentChanges {
        let mut recent = RecentChanges::default();
        keys.into_iter().for_each(|n| recent.push(ChangedKeys::from_iter([(key(n), (0, 0))])));
        recent
    }

    #[test]
    fn a_record_may_differ_only_if_read_before_a_group_changed_it() {
        let recent = groups([1, 2, 3]);
        let differs = |n, seen| recent.may_differ(&key(n), seen);
        assert_eq!([0, 1, 2, 3].map(|seen| differs(1, seen)), [true, false, false, false]);
        assert_eq!([0, 1, 2, 3].map(|seen| differs(2, seen)), [true, true, false, false]);
        assert_eq!([0, 1, 2, 3].map(|seen| differs(3, seen)), [true, true, true, false]);
        assert_eq!([0, 1, 2, 3].map(|seen| differs(9, seen)), [false; 4], "no group changed it");
    }

    #[test]
    fn every_record_read_before_the_oldest_remembered_group_may_differ() {
        let last = REMEMBERED_GROUPS as u8 + 3;
        let recent = groups(1..=last);
        let seen = |groups_ago: usize| u64::from(last) - groups_ago as u64;
        assert!(recent.may_differ(&key(200), seen(REMEMBERED_GROUPS + 1)));
        assert!(!recent.may_differ(&key(200), seen(REMEMBERED_GROUPS)));
        assert!(!recent.may_differ(&key(3), seen(REMEMBERED_GROUPS)), "changed before the read");
        assert!(recent.may_differ(&key(4), seen(REMEMBERED_GROUPS)), "changed by the oldest remembered group");
    }
}
