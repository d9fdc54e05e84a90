//! Undo log of an engine in memory: the records before their latest changes.

use std::collections::VecDeque;

use crate::record::{Key, Record};

/// Recent changes of records, oldest first.
#[derive(Default)]
pub(super) struct UndoLog {
    changes: VecDeque<UndoEntry>,
}

struct UndoEntry {
    at_ms: u64,
    key: Key,
    before: Option<Record>,
}

impl UndoLog {
    /// Records that `key` changed at `at_ms` (ms since the epoch) and held `before` until then.
    pub(super) fn push(&mut self, at_ms: u64, key: Key, before: Option<Record>) {
        self.changes.push_back(UndoEntry { at_ms, key, before });
    }

    /// Drops changes before `ms`, which can no longer be lost.
    pub(super) fn drop_before(&mut self, ms: u64) {
        while self.changes.front().is_some_and(|change| change.at_ms < ms) {
            self.changes.pop_front();
        }
    }

    /// Removes the changes since `ms` of the keys that `lost` picks, and returns the earlier records, newest first.
    pub(super) fn take_since(&mut self, ms: u64, lost: impl Fn(&Key) -> bool) -> Vec<(Key, Option<Record>)> {
        let (undone, remaining): (VecDeque<_>, _) =
            self.changes.drain(..).partition(|change| change.at_ms >= ms && lost(&change.key));
        self.changes = remaining;
        undone.into_iter().rev().map(|change| (change.key, change.before)).collect()
    }
}
