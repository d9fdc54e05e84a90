//! `SetLocked`: sets or clears the flag `locked` of a transaction, whose outputs are not spendable while it is set.

use std::sync::Arc;

use crate::record::{Record, Rejection, Reply};

use super::{Effect, require_whole_page};

pub(super) fn apply(record: &mut Option<Record>, locked: bool) -> Result<Effect, Rejection> {
    let page = require_whole_page(record)?;
    let state = page.state();
    if page.locked == locked {
        return Ok(Effect::already_applied(Reply::State(state), false));
    }
    Arc::make_mut(page).locked = locked;
    Ok(Effect::applied(Reply::State(state)))
}

#[cfg(test)]
mod tests {
    use crate::record::ops::testing::*;
    use crate::record::*;

    #[test]
    fn the_flag_is_set_and_cleared() {
        let mut record = record(live(1));
        let mut set = |locked| on_master(&mut record, &sequenced(1, Sequenced::SetLocked(locked))).outcome;
        let live = Reply::State(TxState::Live);
        assert_eq!(set(true), applied(live.clone()));
        assert_eq!(set(true), already(live.clone()));
        assert_eq!(set(false), applied(live));
    }

    #[test]
    fn a_transaction_without_slots_is_refused() {
        let rejection = |mut record| refused(on_master(&mut record, &sequenced(1, Sequenced::SetLocked(true))));
        assert_eq!(rejection(None), Rejection::NotFound);
        assert_eq!(rejection(record(stub(Verdict::Pending))), Rejection::NotFound);
        assert_eq!(rejection(record(tombstone(5, None))), Rejection::Pruned(5));
    }
}
