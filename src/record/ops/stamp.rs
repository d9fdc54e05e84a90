//! Reading and writing of `chainPos`.

use std::sync::Arc;

use crate::record::{Record, Rejection, Stamp};

/// Whether the record bears the stamp of the operation at hand, if of an earlier era: then it may be a repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    /// The record's stamp is earlier, or there is none.
    Never,
    /// This event has changed the record before, in this phase.
    Perhaps,
}

/// Refuses an operation that comes after a later one.
pub(super) fn check(record: Option<&Record>, stamp: Stamp) -> Result<Seen, Rejection> {
    match record.and_then(stamp_of) {
        Some(there) if there > stamp => Err(Rejection::StaleStamp(there)),
        Some(there) if there.is_of_same_event(&stamp) => Ok(Seen::Perhaps),
        _ => Ok(Seen::Never),
    }
}

/// Writes the stamp; whether that changed the record.
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

fn stamp_of(record: &Record) -> Option<Stamp> {
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
    fn phases_of_one_event_are_in_order() {
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
    fn a_tombstone_remembers_its_stamp() {
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
