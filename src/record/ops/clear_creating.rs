//! `ClearCreating`: makes a page spendable once every page of the transaction is stored.

use std::sync::Arc;

use crate::record::{Record, Rejection, Reply, TxState};

use super::{Effect, require_page};

pub(super) fn apply(record: &mut Option<Record>) -> Result<Effect, Rejection> {
    let page = require_page(record)?;
    match page.state() {
        TxState::Pruned(height) => return Err(Rejection::Pruned(height)),
        // A page other than the master without slots holds only marks: the page is not created yet.
        TxState::Stub(_) if page.master.is_none() => return Err(Rejection::NotFound),
        TxState::Stub(verdict) | TxState::Conflicting(verdict) => return Err(Rejection::Conflicting(verdict)),
        TxState::Live | TxState::Creating => {}
    }
    if page.creating_at.is_none() {
        return Ok(Effect::already_applied(Reply::State(page.state()), false));
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
    fn a_creating_transaction_becomes_live_once() {
        let mut record = record(creating(1));
        let live = Reply::State(TxState::Live);
        assert_eq!(on_master(&mut record, &Operation::ClearCreating).outcome, applied(live.clone()));
        assert_eq!(on_master(&mut record, &Operation::ClearCreating).outcome, already(live));
    }

    #[test]
    fn a_contested_transaction_is_refused() {
        for verdict in [Verdict::Pending, Verdict::Conflicting(Reason::Command)] {
            let creating = Page { creating_at: Some(1), ..contested(1, verdict) };
            for page in [creating, contested(1, verdict), stub(verdict)] {
                let rejection = refused(on_master(&mut record(page), &Operation::ClearCreating));
                assert_eq!(rejection, Rejection::Conflicting(verdict));
            }
        }
    }

    #[test]
    fn a_partial_transaction_with_a_due_contest_is_cleared() {
        let mut page = creating(1);
        master(&mut page).verdict = Some(Verdict::Pending);
        let outcome = on_master(&mut record(page), &Operation::ClearCreating).outcome;
        assert_eq!(outcome, applied(Reply::State(TxState::Live)));
    }

    #[test]
    fn a_flagged_page_and_a_page_without_slots_are_refused() {
        let key = Key::Page(TXID, 1);
        let flagged = Page { creating_at: Some(1), conflicting: true, ..second_page(1) };
        let rejection = refused(on(&key, &mut record(flagged), &Operation::ClearCreating));
        assert_eq!(rejection, Rejection::Conflicting(Verdict::Pending));
        let mut stub = None;
        on(&key, &mut stub, &sequenced(1, Sequenced::MarkContested));
        assert_eq!(refused(on(&key, &mut stub, &Operation::ClearCreating)), Rejection::NotFound);
    }

    #[test]
    fn an_accepted_transaction_is_cleared() {
        let mut page = Page { conflicting: false, ..creating(1) };
        master(&mut page).verdict = Some(Verdict::Accepted);
        assert_eq!(
            on_master(&mut record(page), &Operation::ClearCreating).outcome,
            applied(Reply::State(TxState::Live))
        );
    }

    #[test]
    fn an_absent_transaction_and_a_tombstone_are_refused() {
        assert_eq!(refused(on_master(&mut None, &Operation::ClearCreating)), Rejection::NotFound);
        let rejection = refused(on_master(&mut record(tombstone(5, None)), &Operation::ClearCreating));
        assert_eq!(rejection, Rejection::Pruned(5));
    }
}
