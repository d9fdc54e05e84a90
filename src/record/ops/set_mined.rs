//! `SetMined`: records a block that lists the transaction. `WasMined`: records a block that listed the transaction
//! before the transaction became conflicting.

use std::sync::Arc;

use crate::record::{Master, MinedIn, Page, Record, Rejection, Reply, Rules, TxState};

use super::{Effect, delete_at_height, require_whole_page};

pub(super) fn apply(
    rules: &Rules,
    record: &mut Option<Record>,
    mined_in: MinedIn,
    longest_chain: bool,
) -> Result<Effect, Rejection> {
    let page = require_whole_page(record)?;
    if longest_chain {
        match page.state() {
            _ if page.creating_at.is_some() => return Err(Rejection::Creating),
            TxState::Conflicting(verdict) => return Err(Rejection::Conflicting(verdict)),
            _ => {}
        }
        // Another page has no `unminedSince`: a node can have lost its added slots, and not those of the master.
        let slot_height = page.unmined_since().or(page.slot_height.filter(|_| page.master.is_none()));
        if let Some(slot_height) = slot_height.filter(|at| rules.crosses_genesis(*at, mined_in.height)) {
            return Err(Rejection::MissingSlots(slot_height));
        }
    }
    Ok(set(rules, page, mined_in, longest_chain))
}

pub(super) fn apply_was_mined(
    rules: &Rules,
    record: &mut Option<Record>,
    mined_in: MinedIn,
) -> Result<Effect, Rejection> {
    let page = require_whole_page(record)?;
    Ok(set(rules, page, mined_in, true))
}

fn set(rules: &Rules, page: &mut Arc<Page>, mined_in: MinedIn, longest_chain: bool) -> Effect {
    if is_already_set(rules, page, mined_in, longest_chain) {
        return Effect::already_applied(mined_reply(page), false);
    }
    let page = Arc::make_mut(page);
    if let Some(master) = &mut page.master {
        if !is_listed(master, mined_in) {
            master.mined.push(mined_in);
        }
        if longest_chain {
            master.unmined_since = None;
        }
    }
    if longest_chain {
        page.locked = false;
        delete_at_height::update(rules, page);
    }
    Effect::applied(mined_reply(page))
}

fn is_already_set(rules: &Rules, page: &Page, mined_in: MinedIn, longest_chain: bool) -> bool {
    let listed = page.master.as_deref().is_none_or(|master| is_listed(master, mined_in));
    if !longest_chain {
        return listed;
    }
    let marked = page.master.as_deref().is_none_or(|master| master.unmined_since.is_none());
    listed && marked && !page.locked && delete_at_height::compute(rules, page) == page.delete_at_height
}

/// Compares block ids alone, because a block lists a transaction once.
fn is_listed(master: &Master, mined_in: MinedIn) -> bool {
    master.mined.iter().any(|mined| mined.block_id == mined_in.block_id)
}

/// Returns the reply with all block ids of the master; `Reply::None` for another page.
pub(super) fn mined_reply(page: &Page) -> Reply {
    match page.master.as_deref() {
        Some(master) => Reply::Mined {
            block_ids: master.mined.iter().map(|mined| mined.block_id).collect(),
            extra_pages: master.total_extra_recs,
            conflicting_children: !master.conflicting_children.is_empty(),
        },
        None => Reply::None,
    }
}

#[cfg(test)]
mod tests {
    use crate::record::ops::testing::*;
    use crate::record::*;

    fn set(height: u32, longest_chain: bool) -> Operation {
        sequenced(1, Sequenced::SetMined { mined_in: mined(height), longest_chain })
    }

    fn block_ids(ids: &[u32]) -> Reply {
        Reply::Mined { block_ids: ids.to_vec(), extra_pages: 0, conflicting_children: false }
    }

    #[test]
    fn a_block_of_the_longest_chain_sets_mined_and_unlocks() {
        let mut record = record(Page { locked: true, ..live(0) });
        assert_eq!(on_master(&mut record, &set(120, true)).outcome, applied(block_ids(&[120])));
        let page = page(&record);
        assert!(!page.locked);
        assert_eq!(page.master.as_ref().unwrap().unmined_since, None);
        assert_eq!(page.delete_at_height, Some(120 + 288), "no slot is unspent");
        assert_eq!(on_master(&mut record, &set(120, true)).outcome, already(block_ids(&[120])));
    }

    #[test]
    fn a_block_of_a_side_chain_only_adds_its_triple() {
        for page in [live(0), contested(0, Verdict::Pending), creating(0)] {
            let mut record = record(Page { locked: true, ..page });
            assert_eq!(on_master(&mut record, &set(120, false)).outcome, applied(block_ids(&[120])));
            let page = self::page(&record);
            assert!(page.locked);
            assert_eq!(page.master.as_ref().unwrap().unmined_since, Some(100));
            assert_eq!(page.delete_at_height, None);
        }
    }

    #[test]
    fn a_stored_triple_does_not_skip_the_other_changes() {
        let mut record = record(Page { locked: true, ..live(1) });
        on_master(&mut record, &set(120, false));
        assert_eq!(on_master(&mut record, &set(120, true)).outcome, applied(block_ids(&[120])));
        assert!(!page(&record).locked);
        assert_eq!(on_master(&mut record, &set(130, false)).outcome, applied(block_ids(&[120, 130])));
    }

    #[test]
    fn only_a_live_transaction_is_set_mined() {
        let verdict = Verdict::Pending;
        let rejection = |page| refused(on_master(&mut record(page), &set(120, true)));
        assert_eq!(rejection(creating(1)), Rejection::Creating);
        assert_eq!(rejection(contested(1, verdict)), Rejection::Conflicting(verdict));
        assert_eq!(rejection(stub(verdict)), Rejection::NotFound);
        assert_eq!(rejection(tombstone(5, None)), Rejection::Pruned(5));
        assert_eq!(refused(on_master(&mut None, &set(120, true))), Rejection::NotFound);
        assert_eq!(refused(on_master(&mut record(stub(verdict)), &set(120, false))), Rejection::NotFound);
    }

    #[test]
    fn a_transaction_that_lacks_slots_is_refused_on_the_longest_chain() {
        let genesis = RULES.network.genesis_activation_height();
        for (created_at, mined_at, is_refused) in [
            (genesis - 1, genesis, true),
            (genesis, genesis - 1, false),
            (genesis - 1, genesis - 1, false),
            (genesis, genesis + 9, false),
        ] {
            let mut page = live(1);
            master(&mut page).unmined_since = Some(created_at);
            let outcome = |longest_chain| on_master(&mut record(page.clone()), &set(mined_at, longest_chain)).outcome;
            let refusal = Outcome::Rejected(Rejection::MissingSlots(created_at));
            assert_eq!(outcome(true) == refusal, is_refused, "created at {created_at}, mined at {mined_at}");
            assert!(outcome(false).is_done(), "a block of a side chain decides nothing");
        }
    }

    #[test]
    fn another_page_that_lacks_slots_is_refused() {
        let genesis = RULES.network.genesis_activation_height();
        for (slot_height, mined_at, is_refused) in
            [(Some(genesis - 1), genesis, true), (Some(genesis), genesis - 1, false), (None, genesis, false)]
        {
            let mut record = record(Page { slot_height, ..second_page(1) });
            let outcome = on(&Key::Page(TXID, 1), &mut record, &set(mined_at, true)).outcome;
            assert_eq!(matches!(outcome, Outcome::Rejected(Rejection::MissingSlots(_))), is_refused, "{slot_height:?}");
        }
    }

    #[test]
    fn a_conflicting_transaction_can_be_set_mined_before_its_verdict() {
        let was = sequenced(1, Sequenced::WasMined(mined(120)));
        for page in [contested(1, Verdict::Pending), creating(1), live(1)] {
            let state = page.state();
            let mut record = record(Page { locked: true, ..page });
            assert_eq!(on_master(&mut record, &was).outcome, applied(block_ids(&[120])));
            let page = self::page(&record);
            assert_eq!((page.locked, page.state()), (false, state));
            assert_eq!(page.master.as_ref().unwrap().unmined_since, None);
            assert_eq!(on_master(&mut record, &was).outcome, already(block_ids(&[120])));
        }
        assert_eq!(refused(on_master(&mut record(stub(Verdict::Pending)), &was)), Rejection::NotFound);
        let mut other = record(Page { locked: true, ..second_page(1) });
        assert!(on(&Key::Page(TXID, 1), &mut other, &was).outcome.is_done());
        assert!(!page(&other).locked);
    }

    #[test]
    fn pages_other_than_the_master_are_unlocked() {
        let key = Key::Page(TXID, 1);
        let mut record = record(Page { locked: true, ..second_page(1) });
        assert_eq!(on(&key, &mut record, &set(120, false)).outcome, already(Reply::None));
        assert_eq!(on(&key, &mut record, &set(120, true)).outcome, applied(Reply::None));
        assert!(!page(&record).locked);
    }
}
