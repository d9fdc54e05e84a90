//! `SetLocked` and `SetFrozen`: set or clear a flag of a transaction, whose outputs are not spendable while it is set.

use std::sync::Arc;

use crate::record::{Page, Record, Rejection, Reply};

use super::{Effect, require_whole_page};

pub(super) fn set_locked(record: &mut Option<Record>, locked: bool) -> Result<Effect, Rejection> {
    set_flag(record, |page| &mut page.locked, locked)
}

pub(super) fn set_frozen(record: &mut Option<Record>, frozen: bool) -> Result<Effect, Rejection> {
    set_flag(record, |page| &mut page.frozen, frozen)
}

fn set_flag(record: &mut Option<Record>, flag: fn(&mut Page) -> &mut bool, value: bool) -> Result<Effect, Rejection> {
    let page = require_whole_page(record)?;
    let state = page.state();
    let flag = flag(Arc::make_mut(page));
    if *flag == value {
        return Ok(Effect::already_applied(Reply::State(state), false));
    }
    *flag = value;
    Ok(Effect::applied(Reply::State(state)))
}

#[cfg(test)]
mod tests {
    use crate::record::ops::testing::*;
    use crate::record::*;

    const FLAGS: [fn(bool) -> Sequenced; 2] = [Sequenced::SetLocked, Sequenced::SetFrozen];

    #[test]
    fn each_flag_is_set_and_cleared() {
        for operation in FLAGS {
            let mut record = record(live(1));
            let mut set = |value| on_master(&mut record, &sequenced(1, operation(value))).outcome;
            let live = Reply::State(TxState::Live);
            assert_eq!(set(true), applied(live.clone()));
            assert_eq!(set(true), already(live.clone()));
            assert_eq!(set(false), applied(live));
        }
    }

    #[test]
    fn the_flags_are_independent() {
        let mut record = record(live(1));
        on_master(&mut record, &sequenced(1, Sequenced::SetFrozen(true)));
        let flags = |record: &Option<Record>| match record {
            Some(Record::Page(page)) => (page.locked, page.frozen),
            _ => panic!("no page"),
        };
        assert_eq!(flags(&record), (false, true));
        on_master(&mut record, &sequenced(2, Sequenced::SetLocked(true)));
        on_master(&mut record, &sequenced(3, Sequenced::SetFrozen(false)));
        assert_eq!(flags(&record), (true, false));
    }

    #[test]
    fn a_transaction_without_slots_is_refused() {
        for operation in FLAGS {
            let rejection = |mut record| refused(on_master(&mut record, &sequenced(1, operation(true))));
            assert_eq!(rejection(None), Rejection::NotFound);
            assert_eq!(rejection(record(stub(Verdict::Pending))), Rejection::NotFound);
            assert_eq!(rejection(record(tombstone(5, None))), Rejection::Pruned(5));
        }
    }
}
