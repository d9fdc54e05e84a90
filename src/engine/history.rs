//! An undo log: what records were before their latest changes.

use std::collections::VecDeque;

use crate::record::{Key, Record};

/// Changes of some records, oldest first.
#[derive(Default)]
pub(super) struct History {
    changes: VecDeque<Change>,
}

struct Change {
    at_ms: u64,
    key: Key,
    before: Option<Record>,
}

impl History {
    /// Notes that `key` changed at `at_ms` from `before`.
    pub(super) fn push(&mut self, at_ms: u64, key: Key, before: Option<Record>) {
        self.changes.push_back(Change { at_ms, key, before });
    }

    /// Drops what happened before `ms`: it can no longer be forgotten.
    pub(super) fn drop_before(&mut self, ms: u64) {
        while self.changes.front().is_some_and(|change| change.at_ms < ms) {
            self.changes.pop_front();
        }
    }

    /// Removes the changes since `ms` of the keys that `lost` picks and returns how to take them back, newest first.
    pub(super) fn take_since(&mut self, ms: u64, lost: impl Fn(&Key) -> bool) -> Vec<(Key, Option<Record>)> {
        let (taken, kept): (VecDeque<_>, _) =
            self.changes.drain(..).partition(|change| change.at_ms >= ms && lost(&change.key));
        self.changes = kept;
        taken.into_iter().rev().map(|change| (change.key, change.before)).collect()
    }
}
