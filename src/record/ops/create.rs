//! `Create`: stores a page under a key without a record.
//!
//! A partial transaction also replaces a stub: the transaction spends no output, so that no rival can bar it. A page
//! other than the master also replaces a stub: the master alone bars the transaction.

use std::sync::Arc;

use crate::record::{Key, Page, Record, Rejection, Reply, Rules, Slot, TxState, Verdict};

use super::{Effect, check_key, create_contested::copy_stub_marks, delete_at_height, find_page, slots};

pub(super) fn apply(
    rules: &Rules,
    key: &Key,
    record: &mut Option<Record>,
    new: &Arc<Page>,
) -> Result<Effect, Rejection> {
    check_key(key, new)?;
    if !matches!(new.state(), TxState::Live | TxState::Creating) {
        return Err(Rejection::Unexpected);
    }
    if let Some(page) = find_page(record)? {
        check_same_content(page, new)?;
        return match page.state() {
            TxState::Stub(_) if page.master.is_none() => {
                *page = Arc::new(copy_stub_marks(page, new));
                Ok(Effect::applied(Reply::None))
            }
            TxState::Stub(Verdict::Pending) if new.is_partial() => {
                *page = Arc::new(fill_partial_stub(page, new));
                Ok(Effect::applied(Reply::ContestDue))
            }
            // The contest is due until the transaction is accepted, whether or not all pages are cleared.
            TxState::Live | TxState::Creating if page.verdict() == Some(Verdict::Pending) => {
                Ok(Effect::already_applied(Reply::ContestDue, false))
            }
            // A block may list the transaction: `CreateContested` stores the body for that block.
            state @ TxState::Pruned(_) if page.is_conflicting_tombstone() => Err(Rejection::Exists(state)),
            state @ (TxState::Live | TxState::Pruned(_)) => Ok(Effect::already_applied(Reply::State(state), false)),
            state @ (TxState::Creating | TxState::Stub(_) | TxState::Conflicting(_)) => Err(Rejection::Exists(state)),
        };
    }
    let mut new = Arc::clone(new);
    // Only a mined page whose slots are all spent gets a value, and only then the page is copied.
    let value = delete_at_height::compute(rules, &new);
    if value != new.delete_at_height {
        Arc::make_mut(&mut new).delete_at_height = value;
    }
    *record = Some(Record::Page(new));
    Ok(Effect::applied(Reply::None))
}

/// Returns the live page of a partial transaction that replaces its stub.
///
/// The page keeps the sequencer's marks, and its verdict stays pending until the contest that is due. Spends attached
/// to the create are dropped, because a marked slot must not be taken by the fast path.
fn fill_partial_stub(stub: &Page, new: &Page) -> Page {
    let mut page = copy_stub_marks(stub, new);
    let spent = |(slot, offset): (&Slot, u32)| slot.spender().map(|_| offset);
    let attached: Vec<u32> = page.utxos.iter().flatten().zip(0..).filter_map(spent).collect();
    attached.into_iter().for_each(|offset| slots::free(&mut page, offset));
    if let (Some(master), Some(stub)) = (&mut page.master, &stub.master) {
        master.verdict = stub.verdict;
    }
    page
}

/// Checks that `new` neither contradicts the stored page nor is of another kind (partial or whole).
///
/// # Errors
/// `OtherContent` or `OtherKind`.
pub(super) fn check_same_content(stored: &Page, new: &Page) -> Result<(), Rejection> {
    if stored.contradicts(new) {
        return Err(Rejection::OtherContent);
    }
    if stored.differs_in_kind(new) {
        return Err(Rejection::OtherKind);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::record::ops::testing::*;
    use crate::record::*;

    fn with_body(mut page: Page, body: Body) -> Page {
        master(&mut page).body = Some(body);
        page
    }

    fn create(page: Page) -> Operation {
        Operation::Create(Arc::new(page))
    }

    #[test]
    fn an_absent_page_is_stored_without_a_copy() {
        let page = Arc::new(live(2));
        let mut record = None;
        assert_eq!(on_master(&mut record, &Operation::Create(Arc::clone(&page))).outcome, applied(Reply::None));
        let Some(Record::Page(stored)) = &record else { panic!() };
        assert!(Arc::ptr_eq(stored, &page));
    }

    #[test]
    fn a_contradicting_page_is_refused_and_a_nil_slot_contradicts_nothing() {
        let mut other = live(2);
        other.utxos = Some(vec![Slot::Nil, Slot::Unspent(crate::tx::UtxoHash([0xEE; 32]))]);
        assert_eq!(
            on_master(&mut record(live(2)), &create(other.clone())).outcome,
            Outcome::Rejected(Rejection::OtherContent)
        );
        other.utxos = Some(vec![Slot::Nil, Slot::Nil, Slot::Unspent(crate::tx::UtxoHash([0xEE; 32]))]);
        assert_eq!(on_master(&mut record(live(2)), &create(other)).outcome, already(Reply::State(TxState::Live)));
        let coinbase = Page { is_coinbase: true, ..live(2) };
        assert_eq!(
            on_master(&mut record(live(2)), &create(coinbase)).outcome,
            Outcome::Rejected(Rejection::OtherContent)
        );
    }

    #[test]
    fn a_partial_and_a_whole_transaction_of_one_txid_refuse_each_other() {
        let whole = |page: Page| with_body(page, Body::Transaction(transaction(2)));
        let partial = |page: Page| with_body(page, Body::Outputs([None, None].into_iter().collect()));
        for stored in [live(2), contested(2, Verdict::Pending), contested(2, Verdict::Conflicting(Reason::Command))] {
            let pairs = [(partial(stored.clone()), whole(live(2))), (whole(stored), partial(live(2)))];
            for (stored, new) in pairs {
                let contested = with_body(contested(2, Verdict::Pending), new.body().unwrap().clone());
                for operation in [create(new), Operation::CreateContested(contested.into())] {
                    assert_eq!(refused(on_master(&mut record(stored.clone()), &operation)), Rejection::OtherKind);
                }
            }
        }
        let coinbase = |page: Page| Page { is_coinbase: true, ..page };
        let outcome = on_master(&mut record(partial(coinbase(live(2)))), &create(whole(coinbase(live(2))))).outcome;
        assert_eq!(outcome, already(Reply::State(TxState::Live)));
    }

    #[test]
    fn a_partial_transaction_replaces_its_stub_and_stays_contest_due_until_accepted() {
        let mut stored = stub(Verdict::Pending);
        stored.chain_pos = Some(stamp(4));
        stored.contested = [0, 9].into();
        master(&mut stored).conflicting_children.insert(txid(3));
        let mut attached = with_body(live(2), Body::Outputs([None, None].into_iter().collect()));
        attached.utxos = Some(vec![Slot::Spent(hash(0), holder(1, 0)), Slot::Unspent(hash(1))]);
        attached.spent_utxos = 1;
        let mut record = record(stored);
        assert_eq!(on_master(&mut record, &create(attached.clone())).outcome, applied(Reply::ContestDue));
        let page = self::page(&record);
        assert_eq!((page.state(), page.chain_pos), (TxState::Live, Some(stamp(4))));
        assert_eq!((&page.contested, page.spent_utxos), (&[0].into(), 0));
        assert_eq!(page.utxos, Some(vec![Slot::Unspent(hash(0)), Slot::Unspent(hash(1))]), "no attached spend");
        assert!(page.master.as_ref().unwrap().conflicting_children.contains(&txid(3)));
        for creating_at in [Some(1), None] {
            let Some(Record::Page(page)) = &mut record else { panic!() };
            Arc::make_mut(page).creating_at = creating_at;
            assert_eq!(on_master(&mut record, &create(attached.clone())).outcome, already(Reply::ContestDue));
        }
        on_master(&mut record, &sequenced(5, Sequenced::Accept));
        assert_eq!(on_master(&mut record, &create(attached)).outcome, already(Reply::State(TxState::Live)));
    }

    #[test]
    fn a_page_other_than_the_master_replaces_its_stub_and_keeps_the_marks() {
        let key = Key::Page(TXID, 1);
        let mut record = None;
        on(&key, &mut record, &sequenced(4, Sequenced::MarkContested));
        on(&key, &mut record, &sequenced(5, Sequenced::Settle(vec![held(0, 1), held(9, 1)])));
        let new = Page { creating_at: Some(1), ..second_page(2) };
        assert_eq!(on(&key, &mut record, &create(new.clone())).outcome, applied(Reply::None));
        let page = page(&record);
        assert_eq!((page.state(), &page.contested, page.chain_pos), (TxState::Creating, &[0].into(), Some(stamp(5))));
        let rejection = refused(on(&key, &mut record, &create(new)));
        assert_eq!(rejection, Rejection::Exists(TxState::Creating));
    }

    #[test]
    fn a_whole_transaction_or_a_verdict_does_not_replace_a_stub() {
        for (verdict, body) in [
            (Verdict::Pending, Body::Transaction(transaction(2))),
            (Verdict::Accepted, Body::Outputs([None, None].into_iter().collect())),
            (Verdict::Conflicting(Reason::Command), Body::Outputs([None, None].into_iter().collect())),
        ] {
            let outcome = on_master(&mut record(stub(verdict)), &create(with_body(live(2), body))).outcome;
            assert_eq!(outcome, Outcome::Rejected(Rejection::Exists(TxState::Stub(verdict))));
        }
    }

    #[test]
    fn a_live_or_pruned_transaction_is_not_created_again() {
        for stored in [live(1), Page { locked: true, frozen: true, ..live(1) }, tombstone(5, None)] {
            let state = stored.state();
            assert_eq!(on_master(&mut record(stored), &create(live(2))).outcome, already(Reply::State(state)));
        }
    }

    #[test]
    fn any_other_state_is_refused_with_the_state() {
        let verdict = Verdict::Conflicting(Reason::Command);
        for stored in [creating(1), stub(verdict), contested(1, Verdict::Pending), contested(1, verdict)] {
            let state = stored.state();
            assert_eq!(refused(on_master(&mut record(stored), &create(live(2)))), Rejection::Exists(state));
        }
    }

    #[test]
    fn a_page_under_another_key_is_refused() {
        let other = Page { txid: txid(9), ..live(1) };
        let misnumbered = Page { number: 1, ..live(1) };
        for page in [other, second_page(1), misnumbered, stub(Verdict::Pending), contested(1, Verdict::Pending)] {
            assert_eq!(refused(on_master(&mut None, &create(page))), Rejection::Unexpected);
        }
        assert!(on(&Key::Page(TXID, 1), &mut None, &create(second_page(1))).outcome.is_done());
    }

    #[test]
    fn a_mined_page_created_with_all_slots_spent_gets_a_delete_at_height() {
        let mut page = page_with(vec![Slot::Spent(hash(0), holder(1, 0))]);
        master(&mut page).mined = vec![mined(10)];
        master(&mut page).unmined_since = None;
        let mut record = None;
        on_master(&mut record, &create(page));
        assert_eq!(self::page(&record).delete_at_height, Some(298));
    }
}
