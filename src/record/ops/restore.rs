//! `Restore`: writes a record of a snapshot.

use crate::record::{Key, Record, Rejection, Reply};

use super::{Effect, check_key};

pub(super) fn apply(key: &Key, record: &mut Option<Record>, restored: &Record) -> Result<Effect, Rejection> {
    match restored {
        Record::Page(page) => check_key(key, page)?,
        Record::Block(block) if *key == Key::Block(block.block_id) => {}
        Record::Command(command) if *key == Key::Command(command.id) => {}
        // Lock records are temporary, and meta record and sentinels belong to one store.
        _ => return Err(Rejection::Unexpected),
    }
    match record {
        None => {
            *record = Some(restored.clone());
            Ok(Effect::applied(Reply::None))
        }
        Some(stored) if stored == restored => Ok(Effect::already_applied(Reply::None, false)),
        Some(_) => Err(Rejection::Unexpected),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Operation, ops::testing::*};

    #[test]
    fn a_record_is_restored_as_it_is_and_only_over_an_equal_one() {
        let mut spent = live(2);
        spent.chain_pos = Some(crate::record::Stamp::in_era(3, 7, crate::record::Phase::Apply));
        let restore = |page| Operation::Restore(Box::new(Record::Page(std::sync::Arc::new(page))));
        let mut stored = None;
        assert_eq!(on_master(&mut stored, &restore(spent.clone())).outcome, applied(Reply::None));
        assert_eq!(stored, record(spent.clone()));
        assert_eq!(on_master(&mut stored, &restore(spent.clone())).outcome, already(Reply::None));
        assert_eq!(refused(on_master(&mut stored, &restore(live(2)))), Rejection::Unexpected);
        assert_eq!(stored, record(spent.clone()));
        assert_eq!(refused(on(&Key::Block(1), &mut None, &restore(spent))), Rejection::Unexpected);
        let sentinel = Operation::Restore(Box::new(Record::Sentinel([1; 16])));
        assert_eq!(refused(on(&Key::Sentinel(0), &mut None, &sentinel)), Rejection::Unexpected);
    }
}
