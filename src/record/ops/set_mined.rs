//! `SetMined`: a block lists the transaction. `WasMined`: a block did, before the transaction fell.

use std::sync::Arc;

use crate::record::{Master, MinedIn, Page, Record, Rejection, Reply, Rules, TxState};

use super::{Effect, delete_at_height, whole_page};

pub(super) fn apply(
    rules: &Rules,
    record: &mut Option<Record>,
    mined_in: MinedIn,
    longest_chain: bool,
) -> Result<Effect, Rejection> {
    let page = whole_page(record)?;
    if longest_chain {
        match page.state() {
            _ if page.creating_at.is_some() => return Err(Rejection::Creating),
            TxState::Conflicting(verdict) => return Err(Rejection::Conflicting(verdict)),
            _ => {}
        }
        if let Some(made_at) = page.unmined_since().filter(|made_at| rules.adds_slots(*made_at, mined_in.height)) {
            return Err(Rejection::MissingSlots(made_at));
        }
    }
    Ok(set(rules, page, mined_in, longest_chain))
}

pub(super) fn was(rules: &Rules, record: &mut Option<Record>, mined_in: MinedIn) -> Result<Effect, Rejection> {
    let page = whole_page(record)?;
    Ok(set(rules, page, mined_in, true))
}

fn set(rules: &Rules, page: &mut Arc<Page>, mined_in: MinedIn, longest_chain: bool) -> Effect {
    if is_done(rules, page, mined_in, longest_chain) {
        return Effect::already(mined_reply(page), false);
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
        delete_at_height::evaluate(rules, page);
    }
    Effect::applied(mined_reply(page))
}

fn is_done(rules: &Rules, page: &Page, mined_in: MinedIn, longest_chain: bool) -> bool {
    let listed = page.master.as_deref().is_none_or(|master| is_listed(master, mined_in));
    if !longest_chain {
        return listed;
    }
    let marked = page.master.as_deref().is_none_or(|master| master.unmined_since.is_none());
    listed && marked && !page.locked && delete_at_height::evaluated(rules, page) == page.delete_at_height
}

/// A block lists a transaction once, so its id alone tells.
fn is_listed(master: &Master, mined_in: MinedIn) -> bool {
    master.mined.iter().any(|mined| mined.block_id == mined_in.block_id)
}

/// All block ids; only the master has them.
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
    fn on_the_longest_chain_everything_is_set() {
        let mut record = record(Page { locked: true, ..live(0) });
        assert_eq!(on_master(&mut record, &set(120, true)).outcome, applied(block_ids(&[120])));
        let page = page(&record);
        assert!(!page.locked);
        assert_eq!(page.master.as_ref().unwrap().unmined_since, None);
        assert_eq!(page.delete_at_height, Some(120 + 288), "no slot is unspent");
        assert_eq!(on_master(&mut record, &set(120, true)).outcome, already(block_ids(&[120])));
    }

    #[test]
    fn on_a_side_chain_only_the_triple() {
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
    fn a_triple_that_is_there_does_not_stop_the_rest() {
        let mut record = record(Page { locked: true, ..live(1) });
        on_master(&mut record, &set(120, false));
        assert_eq!(on_master(&mut record, &set(120, true)).outcome, applied(block_ids(&[120])));
        assert!(!page(&record).locked);
        assert_eq!(on_master(&mut record, &set(130, false)).outcome, applied(block_ids(&[120, 130])));
    }

    #[test]
    fn refused_unless_live() {
        let verdict = Verdict::Pending;
        let told = |page| refused(on_master(&mut record(page), &set(120, true)));
        assert_eq!(told(creating(1)), Rejection::Creating);
        assert_eq!(told(contested(1, verdict)), Rejection::Conflicting(verdict));
        assert_eq!(told(stub(verdict)), Rejection::NotFound);
        assert_eq!(told(tombstone(5, None)), Rejection::Pruned(5));
        assert_eq!(refused(on_master(&mut None, &set(120, true))), Rejection::NotFound);
        assert_eq!(refused(on_master(&mut record(stub(verdict)), &set(120, false))), Rejection::NotFound);
    }

    #[test]
    fn a_transaction_that_lacks_slots_is_refused_on_the_longest_chain() {
        let genesis = RULES.network.genesis_activation_height();
        for (made_at, mined_at, is_refused) in [
            (genesis - 1, genesis, true),
            (genesis, genesis - 1, false),
            (genesis - 1, genesis - 1, false),
            (genesis, genesis + 9, false),
        ] {
            let mut page = live(1);
            master(&mut page).unmined_since = Some(made_at);
            let outcome = |longest_chain| on_master(&mut record(page.clone()), &set(mined_at, longest_chain)).outcome;
            let refusal = Outcome::Rejected(Rejection::MissingSlots(made_at));
            assert_eq!(outcome(true) == refusal, is_refused, "made at {made_at}, mined at {mined_at}");
            assert!(outcome(false).is_done(), "a block of a side chain decides nothing");
        }
    }

    #[test]
    fn what_has_fallen_was_mined_before() {
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
    fn other_pages_are_unlocked() {
        let key = Key::Page(TXID, 1);
        let mut record = record(Page { locked: true, ..second_page(1) });
        assert_eq!(on(&key, &mut record, &set(120, false)).outcome, already(Reply::None));
        assert_eq!(on(&key, &mut record, &set(120, true)).outcome, applied(Reply::None));
        assert!(!page(&record).locked);
    }
}
