//! Reads and writes `chainPos`, the stamp of a record.

use std::sync::Arc;

use crate::record::{Record, Rejection, Stamp};

/// Relation of a record's stamp to the stamp of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StampMatch {
    /// The record has an earlier stamp or no stamp.
    Earlier,
    /// The same event has changed the record in the same phase, perhaps in an earlier era: the operation may be a
    /// repeat.
    SameEvent,
}

/// Compares the record's stamp with `stamp`.
///
/// # Errors
/// `StaleStamp`: the record has a later stamp.
pub(super) fn check(record: Option<&Record>, stamp: Stamp) -> Result<StampMatch, Rejection> {
    match record.and_then(stamp_of) {
        Some(stored) if stored > stamp => Err(Rejection::StaleStamp(stored)),
        Some(stored) if stored.is_of_same_event(&stamp) => Ok(StampMatch::SameEvent),
        _ => Ok(StampMatch::Earlier),
    }
}

/// Writes the stamp. Returns `true` if the record has changed.
pub(super) fn write(record: Option<&mut Record>, stamp: Stamp) -> bool {
    let Some(record) = record else { return false };
    if stamp_of(record) == Some(stamp) {
        return false;
    }
    match record {
        Record::Page(page) => Arc::make_mut(page).chain_pos = Some(stamp),
        Record::Block(block) => block.chain_pos = Some(stamp),
        Record::Command(command) => command.chain_pos = Some(stamp),
        Record::LockRecord(_) | Record::Meta(_) | Record::Sentinel(_) => return false,
    }
    true
}

pub(super) fn stamp_of(record: &Record) -> Option<Stamp> {
    match record {
        Record::Page(page) => page.chain_pos,
        Record::Block(block) => block.chain_pos,
        Record::Command(command) => command.chain_pos,
        Record::LockRecord(_) | Record::Meta(_) | Record::Sentinel(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::ops::testing::*;
    use crate::record::{Operation, Page, Phase, Sequenced};

    #[test]
    fn phases_of_one_event_are_ordered() {
        let at = |phase| Stamp { offset: 5, phase };
        let mut record = record(live(1));
        let mut lock =
            |stamp, locked| on_master(&mut record, &Operation::Sequenced(stamp, Sequenced::SetLocked(locked)));
        assert!(lock(at(Phase::Apply), true).outcome.is_done());
        assert_eq!(refused(lock(at(Phase::Evaluate), false)), Rejection::StaleStamp(at(Phase::Apply)));
        assert!(lock(at(Phase::Apply), false).outcome.is_done());
        assert!(lock(at(Phase::Prune), true).outcome.is_done());
        assert_eq!(refused(lock(at(Phase::Apply), false)), Rejection::StaleStamp(at(Phase::Prune)));
        assert!(lock(Stamp { offset: 6, phase: Phase::Evaluate }, false).outcome.is_done());
    }

    #[test]
    fn a_tombstone_keeps_its_stamp() {
        let mut record = record(Page { chain_pos: Some(stamp(5)), ..tombstone(9, None) });
        let late = sequenced(4, Sequenced::MarkContested);
        assert_eq!(refused(on_master(&mut record, &late)), Rejection::StaleStamp(stamp(5)));
    }

    #[test]
    fn the_fast_path_neither_reads_nor_writes_stamps() {
        let mut record = record(Page { chain_pos: Some(stamp(5)), ..live(1) });
        assert!(on_master(&mut record, &spend(1, &[0])).outcome.is_done());
        assert_eq!(page(&record).chain_pos, Some(stamp(5)));
    }
}
