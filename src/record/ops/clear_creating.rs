//! `ClearCreating`: every page has been sent or checked.

use std::sync::Arc;

use crate::record::{Record, Rejection, Reply, Verdict};

use super::{Effect, any_page};

pub(super) fn apply(record: &mut Option<Record>) -> Result<Effect, Rejection> {
    let page = any_page(record)?;
    if let Some(height) = page.pruned {
        return Err(Rejection::Pruned(height));
    }
    if let Some(verdict @ (Verdict::Pending | Verdict::Conflicting(_))) = page.verdict() {
        return Err(Rejection::Conflicting(verdict));
    }
    if page.creating_at.is_none() {
        return Ok(Effect::already(Reply::State(page.state()), false));
    }
    let page = Arc::make_mut(page);
    page.creating_at = None;
    Ok(Effect::applied(Reply::State(page.state())))
}

#[cfg(test)]
mod tests {
    use crate::record::ops::testing::*;
    use crate::record::*;

    #[test]
    fn makes_a_transaction_live_once() {
        let mut record = record(creating(1));
        let live = Reply::State(TxState::Live);
        assert_eq!(on_master(&mut record, &Operation::ClearCreating).outcome, applied(live.clone()));
        assert_eq!(on_master(&mut record, &Operation::ClearCreating).outcome, already(live));
    }

    #[test]
    fn never_what_is_contested() {
        for verdict in [Verdict::Pending, Verdict::Conflicting(Reason::Command)] {
            let begun = Page { creating_at: Some(1), ..contested(1, verdict) };
            for page in [begun, contested(1, verdict), stub(verdict)] {
                let told = refused(on_master(&mut record(page), &Operation::ClearCreating));
                assert_eq!(told, Rejection::Conflicting(verdict));
            }
        }
    }

    #[test]
    fn an_accepted_one_is_like_any_other() {
        let mut page = Page { conflicting: false, ..creating(1) };
        master(&mut page).verdict = Some(Verdict::Accepted);
        assert_eq!(
            on_master(&mut record(page), &Operation::ClearCreating).outcome,
            applied(Reply::State(TxState::Live))
        );
    }

    #[test]
    fn there_must_be_something_to_clear() {
        assert_eq!(refused(on_master(&mut None, &Operation::ClearCreating)), Rejection::NotFound);
        let told = refused(on_master(&mut record(tombstone(5, None)), &Operation::ClearCreating));
        assert_eq!(told, Rejection::Pruned(5));
    }
}
