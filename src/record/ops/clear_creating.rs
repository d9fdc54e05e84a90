//! `ClearCreating`: every page has been sent or checked.

use std::sync::Arc;

use crate::record::{Record, Rejection, Reply, TxState};

use super::{Effect, any_page};

pub(super) fn apply(record: &mut Option<Record>) -> Result<Effect, Rejection> {
    let page = any_page(record)?;
    match page.state() {
        TxState::Pruned(height) => return Err(Rejection::Pruned(height)),
        // A page besides the master that was flagged fell with its transaction, or has its marks before it has slots.
        TxState::Stub(_) if page.master.is_none() => return Err(Rejection::NotFound),
        TxState::Stub(verdict) | TxState::Conflicting(verdict) => return Err(Rejection::Conflicting(verdict)),
        TxState::Live | TxState::Creating => {}
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
    fn a_partial_one_whose_contest_is_due_is_like_any_other() {
        let mut page = creating(1);
        master(&mut page).verdict = Some(Verdict::Pending);
        let outcome = on_master(&mut record(page), &Operation::ClearCreating).outcome;
        assert_eq!(outcome, applied(Reply::State(TxState::Live)));
    }

    #[test]
    fn another_page_only_if_nobody_flagged_it() {
        let key = Key::Page(TXID, 1);
        let flagged = Page { creating_at: Some(1), conflicting: true, ..second_page(1) };
        let told = refused(on(&key, &mut record(flagged), &Operation::ClearCreating));
        assert_eq!(told, Rejection::Conflicting(Verdict::Pending));
        let mut stub = None;
        on(&key, &mut stub, &sequenced(1, Sequenced::MarkContested));
        assert_eq!(refused(on(&key, &mut stub, &Operation::ClearCreating)), Rejection::NotFound);
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
