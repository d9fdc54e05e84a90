//! `Create`: puts a page where there is none. A partial transaction takes the place of a stub, too: it spends nothing, so nothing
//! can stand against it. So does a page that is not the master: what bars its transaction is the master's.

use std::sync::Arc;

use crate::record::{Key, Page, Record, Rejection, Reply, Rules, Slot, TxState, Verdict};

use super::{Effect, belongs, create_contested::with_marks_of, delete_at_height, optional_page, slots};

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
            TxState::Stub(_) if page.master.is_none() => {
                *page = Arc::new(with_marks_of(page, new));
                Ok(Effect::applied(Reply::None))
            }
            TxState::Stub(Verdict::Pending) if new.is_partial() => {
                *page = Arc::new(undecided(page, new));
                Ok(Effect::applied(Reply::ContestDue))
            }
            // Contests of it are due until it is accepted, whether or not all its pages are cleared.
            TxState::Live | TxState::Creating if page.verdict() == Some(Verdict::Pending) => {
                Ok(Effect::already(Reply::ContestDue, false))
            }
            // Its body is kept for a block that may list it, by `CreateContested`.
            state @ TxState::Pruned(_) if page.is_fallen_remains() => Err(Rejection::Exists(state)),
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

/// A partial transaction in the place of its stub: live, with what the sequencer wrote there. Its verdict stays pending until
/// the contest that is due. Spends that ride on the create do not, since a slot may be marked.
fn undecided(stub: &Page, new: &Page) -> Page {
    let mut page = with_marks_of(stub, new);
    let spent = |(slot, offset): (&Slot, u32)| slot.spender().map(|_| offset);
    let riding: Vec<u32> = page.utxos.iter().flatten().zip(0..).filter_map(spent).collect();
    riding.into_iter().for_each(|offset| slots::free(&mut page, offset));
    if let (Some(master), Some(stub)) = (&mut page.master, &stub.master) {
        master.verdict = stub.verdict;
    }
    page
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
    fn a_partial_transaction_is_live_in_the_place_of_its_stub_and_its_contest_is_due_until_it_is_accepted() {
        let mut there = stub(Verdict::Pending);
        there.chain_pos = Some(stamp(4));
        there.contested = [0, 9].into();
        master(&mut there).conflicting_children.insert(txid(3));
        let mut riding = with_body(live(2), Body::Outputs(vec![None, None]));
        riding.utxos = Some(vec![Slot::Spent(hash(0), holder(1, 0)), Slot::Unspent(hash(1))]);
        riding.spent_utxos = 1;
        let mut record = record(there);
        assert_eq!(on_master(&mut record, &create(riding.clone())).outcome, applied(Reply::ContestDue));
        let page = self::page(&record);
        assert_eq!((page.state(), page.chain_pos), (TxState::Live, Some(stamp(4))));
        assert_eq!((&page.contested, page.spent_utxos), (&[0].into(), 0));
        assert_eq!(page.utxos, Some(vec![Slot::Unspent(hash(0)), Slot::Unspent(hash(1))]), "a marked slot is not free");
        assert!(page.master.as_ref().unwrap().conflicting_children.contains(&txid(3)));
        for creating_at in [Some(1), None] {
            let Some(Record::Page(page)) = &mut record else { panic!() };
            Arc::make_mut(page).creating_at = creating_at;
            assert_eq!(on_master(&mut record, &create(riding.clone())).outcome, already(Reply::ContestDue));
        }
        on_master(&mut record, &sequenced(5, Sequenced::Accept));
        assert_eq!(on_master(&mut record, &create(riding)).outcome, already(Reply::State(TxState::Live)));
    }

    #[test]
    fn another_page_takes_the_place_of_its_stub_and_keeps_the_marks() {
        let key = Key::Page(TXID, 1);
        let mut record = None;
        on(&key, &mut record, &sequenced(4, Sequenced::MarkContested));
        on(&key, &mut record, &sequenced(5, Sequenced::Settle(vec![held(0, 1), held(9, 1)])));
        let new = Page { creating_at: Some(1), ..second_page(2) };
        assert_eq!(on(&key, &mut record, &create(new.clone())).outcome, applied(Reply::None));
        let page = page(&record);
        assert_eq!((page.state(), &page.contested, page.chain_pos), (TxState::Creating, &[0].into(), Some(stamp(5))));
        let told = refused(on(&key, &mut record, &create(new)));
        assert_eq!(told, Rejection::Exists(TxState::Creating));
    }

    #[test]
    fn a_whole_transaction_is_not_nor_one_with_a_verdict() {
        for (verdict, body) in [
            (Verdict::Pending, Body::Transaction(transaction(2))),
            (Verdict::Accepted, Body::Outputs(vec![None, None])),
            (Verdict::Conflicting(Reason::Command), Body::Outputs(vec![None, None])),
        ] {
            let outcome = on_master(&mut record(stub(verdict)), &create(with_body(live(2), body))).outcome;
            assert_eq!(outcome, Outcome::Rejected(Rejection::Exists(TxState::Stub(verdict))));
        }
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
