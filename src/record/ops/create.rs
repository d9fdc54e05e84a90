//! `Create`: puts a page where there is none.

use std::sync::Arc;

use crate::record::{Key, Page, Record, Rejection, Reply, Rules, TxState};

use super::{Effect, belongs, delete_at_height, optional_page};

pub(super) fn apply(
    rules: &Rules,
    key: &Key,
    record: &mut Option<Record>,
    new: &Arc<Page>,
) -> Result<Effect, Rejection> {
    belongs(key, new)?;
    if !matches!(new.state(), TxState::Live | TxState::Creating) {
        return Err(Rejection::Unexpected);
    }
    if let Some(page) = optional_page(record)? {
        is_said_of(page, new)?;
        return match page.state() {
            state @ (TxState::Live | TxState::Pruned(_)) => Ok(Effect::already(Reply::State(state), false)),
            state @ (TxState::Creating | TxState::Stub(_) | TxState::Conflicting(_)) => Err(Rejection::Exists(state)),
        };
    }
    let mut new = Arc::clone(new);
    // Only a mined page that is created with all its slots spent already needs a copy of its own.
    let value = delete_at_height::evaluated(rules, &new);
    if value != new.delete_at_height {
        Arc::make_mut(&mut new).delete_at_height = value;
    }
    *record = Some(Record::Page(new));
    Ok(Effect::applied(Reply::None))
}

/// Whether what is there is said by `new`, too: neither contradicted, nor of another kind.
pub(super) fn is_said_of(there: &Page, new: &Page) -> Result<(), Rejection> {
    if there.contradicts(new) {
        return Err(Rejection::OtherContent);
    }
    if there.is_other_kind_than(new) {
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
    fn puts_the_page_as_it_is_without_a_copy() {
        let page = Arc::new(live(2));
        let mut record = None;
        assert_eq!(on_master(&mut record, &Operation::Create(Arc::clone(&page))).outcome, applied(Reply::None));
        let Some(Record::Page(there)) = &record else { panic!() };
        assert!(Arc::ptr_eq(there, &page));
    }

    #[test]
    fn what_says_otherwise_is_refused_and_gaps_say_nothing() {
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
    fn a_partial_transaction_is_not_taken_for_a_whole_one_nor_the_other_way_round() {
        let whole = |page: Page| with_body(page, Body::Transaction(transaction(2)));
        let partial = |page: Page| with_body(page, Body::Outputs(vec![None, None]));
        for there in [live(2), contested(2, Verdict::Pending), contested(2, Verdict::Conflicting(Reason::Command))] {
            for (there, new) in [(partial(there.clone()), whole(live(2))), (whole(there.clone()), partial(live(2)))] {
                let contested = with_body(contested(2, Verdict::Pending), new.body().unwrap().clone());
                for operation in [create(new), Operation::CreateContested(contested.into())] {
                    assert_eq!(refused(on_master(&mut record(there.clone()), &operation)), Rejection::OtherKind);
                }
            }
        }
        let coinbase = |page: Page| Page { is_coinbase: true, ..page };
        let outcome = on_master(&mut record(partial(coinbase(live(2)))), &create(whole(coinbase(live(2))))).outcome;
        assert_eq!(outcome, already(Reply::State(TxState::Live)));
    }

    #[test]
    fn what_is_live_or_pruned_is_not_made_again() {
        for there in [live(1), Page { locked: true, frozen: true, ..live(1) }, tombstone(5, None)] {
            let state = there.state();
            assert_eq!(on_master(&mut record(there), &create(live(2))).outcome, already(Reply::State(state)));
        }
    }

    #[test]
    fn everything_else_is_told() {
        let verdict = Verdict::Conflicting(Reason::Command);
        for there in [creating(1), stub(verdict), contested(1, Verdict::Pending), contested(1, verdict)] {
            let state = there.state();
            assert_eq!(refused(on_master(&mut record(there), &create(live(2)))), Rejection::Exists(state));
        }
    }

    #[test]
    fn a_page_that_does_not_belong_there_is_refused() {
        let other = Page { txid: txid(9), ..live(1) };
        let not_alone = Page { number: 1, ..live(1) };
        for page in [other, second_page(1), not_alone, stub(Verdict::Pending), contested(1, Verdict::Pending)] {
            assert_eq!(refused(on_master(&mut None, &create(page))), Rejection::Unexpected);
        }
        assert!(on(&Key::Page(TXID, 1), &mut None, &create(second_page(1))).outcome.is_done());
    }

    #[test]
    fn a_mined_page_whose_slots_are_all_spent_at_once_can_be_found_by_the_pruner() {
        let mut page = page_with(vec![Slot::Spent(hash(0), holder(1, 0))]);
        master(&mut page).mined = vec![mined(10)];
        master(&mut page).unmined_since = None;
        let mut record = None;
        on_master(&mut record, &create(page));
        assert_eq!(self::page(&record).delete_at_height, Some(298));
    }
}
