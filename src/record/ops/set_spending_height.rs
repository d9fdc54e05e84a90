//! `SetSpendingHeight`: sets the least height at which the outputs of a coinbase can be spent.

use std::sync::Arc;

use crate::record::{Record, Rejection, Reply};

use super::{Effect, require_whole_page};

pub(super) fn apply(record: &mut Option<Record>, height: u32) -> Result<Effect, Rejection> {
    let page = require_whole_page(record)?;
    if !page.is_coinbase {
        return Err(Rejection::Unexpected);
    }
    let state = page.state();
    if page.spending_height == Some(height) {
        return Ok(Effect::already_applied(Reply::State(state), false));
    }
    Arc::make_mut(page).spending_height = Some(height);
    Ok(Effect::applied(Reply::State(state)))
}

#[cfg(test)]
mod tests {
    use crate::record::ops::testing::*;
    use crate::record::*;

    fn set(height: u32) -> Operation {
        sequenced(1, Sequenced::SetSpendingHeight(height))
    }

    #[test]
    fn the_height_of_a_coinbase_is_raised_and_lowered() {
        let mut record = record(Page { is_coinbase: true, spending_height: Some(101), ..live(1) });
        for height in [131, 101] {
            assert_eq!(on_master(&mut record, &set(height)).outcome, applied(Reply::State(TxState::Live)));
            assert_eq!(on_master(&mut record, &set(height)).outcome, already(Reply::State(TxState::Live)));
            assert_eq!(page(&record).spending_height, Some(height));
        }
    }

    #[test]
    fn only_a_coinbase_has_a_spending_height() {
        let rejection = |mut record| refused(on_master(&mut record, &set(131)));
        assert_eq!(rejection(record(live(1))), Rejection::Unexpected);
        assert_eq!(rejection(record(stub(Verdict::Pending))), Rejection::NotFound);
        assert_eq!(rejection(None), Rejection::NotFound);
    }
}
