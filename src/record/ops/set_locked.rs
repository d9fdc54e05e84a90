//! `SetLocked`: whether the outputs of a transaction are spendable yet.

use std::sync::Arc;

use crate::record::{Record, Rejection, Reply};

use super::{Effect, whole_page};

pub(super) fn apply(record: &mut Option<Record>, locked: bool) -> Result<Effect, Rejection> {
    let page = whole_page(record)?;
    let state = page.state();
    if page.locked == locked {
        return Ok(Effect::already(Reply::State(state), false));
    }
    Arc::make_mut(page).locked = locked;
    Ok(Effect::applied(Reply::State(state)))
}

#[cfg(test)]
mod tests {
    use crate::record::ops::testing::*;
    use crate::record::*;

    #[test]
    fn sets_and_clears() {
        let mut record = record(live(1));
        let mut set = |locked| on_master(&mut record, &sequenced(1, Sequenced::SetLocked(locked))).outcome;
        let live = Reply::State(TxState::Live);
        assert_eq!(set(true), applied(live.clone()));
        assert_eq!(set(true), already(live.clone()));
        assert_eq!(set(false), applied(live));
    }

    #[test]
    fn what_has_no_body_has_no_outputs_to_lock() {
        let told = |mut record| refused(on_master(&mut record, &sequenced(1, Sequenced::SetLocked(true))));
        assert_eq!(told(None), Rejection::NotFound);
        assert_eq!(told(record(stub(Verdict::Pending))), Rejection::NotFound);
        assert_eq!(told(record(tombstone(5, None))), Rejection::Pruned(5));
    }
}
