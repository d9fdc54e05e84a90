//! `AddConflictingChild`, `RemoveConflictingChild`: maintain the list of children that may get a second chance when the
//! state of this transaction changes.

use std::sync::Arc;

use crate::record::{MAX_CONFLICTING_CHILDREN, Record, Rejection, Reply};
use crate::tx::Txid;

use super::{Effect, find_page, require_master, require_page};

pub(super) fn add(record: &mut Option<Record>, child: Txid) -> Result<Effect, Rejection> {
    let page = require_page(record)?;
    if let Some(height) = page.pruned {
        return Err(Rejection::Pruned(height));
    }
    let children = &require_master(page)?.conflicting_children;
    if children.len() >= MAX_CONFLICTING_CHILDREN || children.contains(&child) {
        return Ok(Effect::already_applied(Reply::None, false));
    }
    if let Some(master) = &mut Arc::make_mut(page).master {
        master.conflicting_children.insert(child);
    }
    Ok(Effect::applied(Reply::None))
}

pub(super) fn remove(record: &mut Option<Record>, child: &Txid) -> Result<Effect, Rejection> {
    let Some(page) = find_page(record)? else {
        return Ok(Effect::already_applied(Reply::None, false));
    };
    if !require_master(page)?.conflicting_children.contains(child) {
        return Ok(Effect::already_applied(Reply::None, false));
    }
    if let Some(master) = &mut Arc::make_mut(page).master {
        master.conflicting_children.remove(child);
    }
    Ok(Effect::applied(Reply::None))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::ops::testing::*;
    use crate::record::{Operation, Sequenced, Verdict};

    fn add_child(n: u8) -> Operation {
        sequenced(1, Sequenced::AddConflictingChild(txid(n)))
    }

    fn remove_child(n: u8) -> Operation {
        sequenced(1, Sequenced::RemoveConflictingChild(txid(n)))
    }

    #[test]
    fn a_child_is_added_once_and_removed_once_also_on_a_stub() {
        for page in [live(1), stub(Verdict::Pending)] {
            let mut record = record(page);
            assert_eq!(on_master(&mut record, &add_child(2)).outcome, applied(Reply::None));
            assert_eq!(on_master(&mut record, &add_child(2)).outcome, already(Reply::None));
            assert_eq!(on_master(&mut record, &remove_child(3)).outcome, already(Reply::None));
            assert_eq!(on_master(&mut record, &remove_child(2)).outcome, applied(Reply::None));
            assert!(self::page(&record).master.as_ref().unwrap().conflicting_children.is_empty());
        }
    }

    #[test]
    fn a_full_list_takes_no_further_child() {
        let mut full = live(1);
        let number = |n: usize| {
            let mut bytes = [0; 32];
            bytes[..8].copy_from_slice(&(n as u64).to_le_bytes());
            Txid(bytes)
        };
        master(&mut full).conflicting_children = (0..MAX_CONFLICTING_CHILDREN - 1).map(number).collect();
        let mut record = record(full);
        assert_eq!(on_master(&mut record, &add_child(2)).outcome, applied(Reply::None));
        assert_eq!(on_master(&mut record, &add_child(3)).outcome, already(Reply::None));
        assert_eq!(page(&record).master.as_ref().unwrap().conflicting_children.len(), MAX_CONFLICTING_CHILDREN);
    }

    #[test]
    fn a_child_is_added_only_to_a_master() {
        assert_eq!(refused(on_master(&mut None, &add_child(2))), Rejection::NotFound);
        assert_eq!(refused(on_master(&mut record(tombstone(5, None)), &add_child(2))), Rejection::Pruned(5));
        assert_eq!(on_master(&mut None, &remove_child(2)).outcome, already(Reply::None));
        let key = crate::record::Key::Page(TXID, 1);
        assert_eq!(refused(on(&key, &mut record(second_page(1)), &add_child(2))), Rejection::Unexpected);
    }
}
