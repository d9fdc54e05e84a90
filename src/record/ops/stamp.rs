//! Reading and writing of `chainPos`.

use std::sync::Arc;

use crate::record::{Record, Rejection, Stamp};

/// Whether the record bears exactly the stamp of the operation at hand: then it may be a repeat.
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
        Some(there) if there == stamp => Ok(Seen::Perhaps),
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
        Record::LockRecord(_) | Record::Meta(_) => return false,
    }
    true
}

fn stamp_of(record: &Record) -> Option<Stamp> {
    match record {
        Record::Page(page) => page.chain_pos,
        Record::Block(block) => block.chain_pos,
        Record::LockRecord(_) | Record::Meta(_) => None,
    }
}
