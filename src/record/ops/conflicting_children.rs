//! `AddConflictingChild`, `RemoveConflictingChild`: who may get a second chance when this transaction's fate changes.

use std::sync::Arc;

use crate::record::{MAX_CONFLICTING_CHILDREN, Record, Rejection, Reply};
use crate::tx::Txid;

use super::{Effect, any_page, master_of, optional_page};

pub(super) fn add(record: &mut Option<Record>, child: Txid) -> Result<Effect, Rejection> {
    let page = any_page(record)?;
    if let Some(height) = page.pruned {
        return Err(Rejection::Pruned(height));
    }
    let children = &master_of(page)?.conflicting_children;
    if children.len() >= MAX_CONFLICTING_CHILDREN || children.contains(&child) {
        return Ok(Effect::already(Reply::None, false));
    }
    if let Some(master) = &mut Arc::make_mut(page).master {
        master.conflicting_children.insert(child);
    }
    Ok(Effect::applied(Reply::None))
}

pub(super) fn remove(record: &mut Option<Record>, child: &Txid) -> Result<Effect, Rejection> {
    let Some(page) = optional_page(record)? else {
        return Ok(Effect::already(Reply::None, false));
    };
    if !master_of(page)?.conflicting_children.contains(child) {
        return Ok(Effect::already(Reply::None, false));
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
    fn added_once_and_removed_once_on_a_stub_too() {
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
    fn beyond_the_cap_nothing_is_added() {
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
    fn where_there_is_no_master() {
        assert_eq!(refused(on_master(&mut None, &add_child(2))), Rejection::NotFound);
        assert_eq!(refused(on_master(&mut record(tombstone(5, None)), &add_child(2))), Rejection::Pruned(5));
        assert_eq!(on_master(&mut None, &remove_child(2)).outcome, already(Reply::None));
        let key = crate::record::Key::Page(TXID, 1);
        assert_eq!(refused(on(&key, &mut record(second_page(1)), &add_child(2))), Rejection::Unexpected);
    }
}
