//! Forgetting a transaction without making anything spendable again: `Prune` and `MarkSpenderPruned`, when to look again, what
//! becomes of tombstones.

use std::sync::Arc;

use crate::record::{Body, HeldSlot, Page, Record, Rejection, Reply, Rules, TxState, Verdict};

use super::{Effect, any_page, delete_at_height::fully_spent, optional_page, slots};

pub(super) fn apply(record: &mut Option<Record>, height: u32, keep_until: Option<u32>) -> Result<Effect, Rejection> {
    let Some(page) = optional_page(record)? else {
        return Ok(Effect::already(Reply::None, false));
    };
    if let state @ TxState::Pruned(_) = page.state() {
        return Ok(Effect::already(Reply::State(state), false));
    }
    if !may_prune(page, height) {
        return Err(Rejection::NotPrunable);
    }
    *page = Arc::new(remains(page, height, keep_until));
    Ok(Effect::applied(Reply::State(page.state())))
}

/// Whether this page, by its own bins, may go. What other pages and the spenders say is the pruner's to check.
fn may_prune(page: &Page, height: u32) -> bool {
    if !page.reassignments.is_empty() || page.conflicting && page.is_barred() {
        return false;
    }
    let Some(master) = page.master.as_deref() else {
        return page.conflicting || (page.creating_at.is_none() && page.all_spent());
    };
    if master.preserve_until.is_some_and(|until| until > height) {
        return false;
    }
    if page.conflicting {
        return matches!(master.verdict, Some(Verdict::Conflicting(_)));
    }
    let mined = !master.mined.is_empty() && master.unmined_since.is_none();
    mined && page.creating_at.is_none() && fully_spent(page, master)
}

/// What is left: who it was, when it went and, so that only a conflicting transaction can come back, that it was one.
/// The stamp that keeps late operations out is written as ever.
fn remains(page: &Page, height: u32, keep_until: Option<u32>) -> Page {
    let mut tombstone = Page::stub(page.txid, Verdict::Pending);
    tombstone.number = page.number;
    tombstone.pruned = Some(height);
    tombstone.conflicting = page.conflicting;
    if page.conflicting {
        // Should a block bring it back, a spend that is still on its way meets them.
        tombstone.contested = page.contested.clone();
    }
    let (Some(master), Some(old)) = (&mut tombstone.master, &page.master) else {
        tombstone.master = None;
        return tombstone;
    };
    master.verdict = old.verdict;
    master.total_extra_recs = old.total_extra_recs;
    master.body = old.body.clone().filter(|body| page.conflicting || matches!(body, Body::External(_)));
    if page.conflicting {
        master.created_at = old.created_at;
    }
    if master.body.is_some() {
        (tombstone.version, tombstone.lock_time) = (page.version, page.lock_time);
    }
    // By these an event of the other kind is told from a repeat, which need not give back what it takes.
    (tombstone.is_coinbase, tombstone.size_in_bytes) = (page.is_coinbase, page.size_in_bytes);
    tombstone.delete_at_height = keep_until;
    tombstone
}

/// What is left of a conflicting transaction whose event comes again: with its body, for as long as if it had come now, since whoever
/// validates a block's transactions sends them before the block. `None`: it stays as it is.
pub(super) fn kept_for_longer(rules: &Rules, tombstone: &Page, new: &Page) -> Option<Page> {
    let mut page = tombstone.clone();
    let (Some(master), Some(new_master)) = (&mut page.master, &new.master) else { return None };
    let until = new_master.unmined_since.unwrap_or(0).saturating_add(rules.retention);
    page.delete_at_height = page.delete_at_height.map(|there| there.max(until));
    if master.body.is_none() {
        page.delete_at_height = Some(until);
        master.body.clone_from(&new_master.body);
        master.total_extra_recs = new_master.total_extra_recs;
        master.created_at = new_master.created_at;
        (page.version, page.lock_time) = (new.version, new.lock_time);
    }
    (page != *tombstone).then_some(page)
}

pub(super) fn postpone(record: &mut Option<Record>, until: u32) -> Result<Effect, Rejection> {
    let Some(page) = optional_page(record)? else {
        return Ok(Effect::already(Reply::None, false));
    };
    if page.delete_at_height.is_none_or(|there| there >= until) {
        return Ok(Effect::already(Reply::None, false));
    }
    Arc::make_mut(page).delete_at_height = Some(until);
    Ok(Effect::applied(Reply::None))
}

pub(super) fn forget_tombstone(record: &mut Option<Record>, height: u32) -> Result<Effect, Rejection> {
    let Some(page) = optional_page(record)? else {
        return Ok(Effect::already(Reply::None, false));
    };
    if page.pruned.is_none() || page.delete_at_height.is_some_and(|until| until > height) {
        return Err(Rejection::NotPrunable);
    }
    let name = Page {
        pruned: page.pruned,
        number: page.number,
        conflicting: page.conflicting,
        contested: page.contested.clone(),
        chain_pos: page.chain_pos,
        is_coinbase: page.is_coinbase,
        size_in_bytes: page.size_in_bytes,
        master: page.master.as_ref().map(|old| {
            let mut master = Box::<crate::record::Master>::default();
            master.verdict = old.verdict;
            master
        }),
        ..Page::empty(page.txid)
    };
    if **page == name {
        return Ok(Effect::already(Reply::None, false));
    }
    *page = Arc::new(name);
    Ok(Effect::applied(Reply::None))
}

pub(super) fn revive(record: &mut Option<Record>) -> Result<Effect, Rejection> {
    let page = any_page(record)?;
    let state = page.state();
    let TxState::Pruned(height) = state else {
        return Ok(Effect::already(Reply::State(state), false));
    };
    if !page.conflicting {
        return Err(Rejection::Pruned(height));
    }
    if page.master.is_none() {
        let (number, chain_pos, contested) = (page.number, page.chain_pos, page.contested.clone());
        *page = Arc::new(Page { number, chain_pos, contested, ..Page::empty(page.txid) });
    } else {
        // The body stays until it is filled with it: whoever dies in between left all that it takes.
        let page = Arc::make_mut(page);
        page.pruned = None;
        page.delete_at_height = None;
    }
    Ok(Effect::applied(Reply::State(page.state())))
}

/// Marks the slots that name a spender which is about to be pruned, so that its replay is recognised.
pub(super) fn mark_spender_pruned(record: &mut Option<Record>, held: &[HeldSlot]) -> Result<Effect, Rejection> {
    let Some(page) = optional_page(record)? else {
        return Ok(Effect::already(Reply::None, false));
    };
    let marks: Vec<u32> = held
        .iter()
        .filter(|held| slots::slot(page, held.offset).and_then(|slot| slot.spender()) == Some(held.holder))
        .map(|held| held.offset)
        .filter(|offset| !page.pruned_spenders.contains(offset))
        .collect();
    if marks.is_empty() {
        return Ok(Effect::already(Reply::None, false));
    }
    Arc::make_mut(page).pruned_spenders.extend(marks);
    Ok(Effect::applied(Reply::None))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Operation;
    use crate::record::ops::testing::*;
    use crate::record::{Key, Reason, Sequenced, Slot};

    const LOST: Verdict = Verdict::Conflicting(Reason::Command);

    fn prune(height: u32) -> Operation {
        sequenced(1, Sequenced::Prune { height, keep_until: Some(height + 144) })
    }

    fn done() -> Page {
        let mut page = page_with(vec![Slot::Spent(hash(0), holder(1, 0))]);
        master(&mut page).mined = vec![mined(9)];
        master(&mut page).unmined_since = None;
        page.contested.insert(0);
        page.pruned_spenders.insert(0);
        page
    }

    #[test]
    fn leaves_a_few_bytes() {
        let mut record = record(Page { size_in_bytes: 250, ..done() });
        assert_eq!(on_master(&mut record, &prune(400)).outcome, applied(Reply::State(TxState::Pruned(400))));
        let expected = Page { chain_pos: Some(stamp(1)), delete_at_height: Some(544), ..tombstone(400, None) };
        assert_eq!(page(&record), &expected);
        let outcome = on_master(&mut record, &prune(500)).outcome;
        assert_eq!(outcome, already(Reply::State(TxState::Pruned(400))));
    }

    #[test]
    fn its_kind_is_told_to_the_end() {
        let partial = || {
            let mut page = done();
            master(&mut page).body = Some(Body::Outputs(vec![None]));
            page
        };
        let whole = Page { size_in_bytes: 250, ..live(1) };
        for page in [partial(), Page { size_in_bytes: 250, ..done() }, Page { is_coinbase: true, ..done() }] {
            let (is_partial, is_coinbase) = (page.is_partial(), page.is_coinbase);
            let mut record = record(page);
            for operation in [prune(400), Operation::Sequenced(stamp(1), Sequenced::ForgetTombstone { height: 544 })] {
                assert!(on_master(&mut record, &operation).outcome.is_done());
                let Some(Record::Page(left)) = &record else { panic!("{record:?}") };
                assert_eq!(left.is_other_kind_than(&whole), is_partial && !is_coinbase, "{left:?}");
            }
        }
    }

    #[test]
    fn a_conflicting_one_goes_with_its_verdict() {
        for there in [contested(2, LOST), stub(LOST)] {
            let mut record = record(there);
            assert!(on_master(&mut record, &prune(400)).outcome.is_done());
            assert_eq!((page(&record).verdict(), page(&record).conflicting), (Some(LOST), true));
        }
    }

    #[test]
    fn it_keeps_what_its_fall_is_done_again_by_and_where_a_blob_is() {
        let bodies = [Body::Transaction(transaction(2)), Body::External(crate::record::Blob::First)];
        for body in bodies {
            let kept = |mut there: Page| {
                master(&mut there).body = Some(body.clone());
                master(&mut there).total_extra_recs = 3;
                there.size_in_bytes = 77;
                if !there.conflicting {
                    master(&mut there).spent_pages = (1..=3).collect();
                }
                let mut record = record(there);
                assert!(on_master(&mut record, &prune(400)).outcome.is_done());
                page(&record).clone()
            };
            let lost = kept(contested(2, LOST));
            assert_eq!((lost.body(), lost.size_in_bytes), (Some(&body), 77));
            let live = kept(done());
            assert_eq!(live.body().is_some(), matches!(body, Body::External(_)));
            assert_eq!([lost, live].map(|page| page.master.unwrap().total_extra_recs), [3, 3]);
        }
    }

    #[test]
    fn a_tombstone_goes_when_it_has_served() {
        for there in [contested(2, LOST), done()] {
            let mut record = record(there);
            let forget = sequenced(2, Sequenced::ForgetTombstone { height: 544 });
            assert_eq!(refused(on_master(&mut record, &forget)), Rejection::NotPrunable);
            on_master(&mut record, &prune(400));
            assert_eq!(on_master(&mut record, &forget).outcome, applied(Reply::None));
            assert_eq!(on_master(&mut record, &forget).outcome, already(Reply::None));
            let page = page(&record);
            assert_eq!((page.state(), page.delete_at_height, page.body()), (TxState::Pruned(400), None, None));
        }
    }

    #[test]
    fn a_block_can_bring_back_what_was_conflicting_and_nothing_else() {
        let revive = |n| sequenced(n, Sequenced::Revive);
        let mut lost = record(contested(2, LOST));
        assert_eq!(on_master(&mut lost, &revive(1)).outcome, already(Reply::State(TxState::Conflicting(LOST))));
        on_master(&mut lost, &prune(400));
        assert_eq!(on_master(&mut lost, &revive(2)).outcome, applied(Reply::State(TxState::Stub(LOST))));
        assert_eq!((page(&lost).pruned, page(&lost).body().is_some()), (None, true));
        assert!(on_master(&mut lost, &Operation::CreateContested(contested(2, LOST).into())).outcome.is_done());
        assert_eq!(page(&lost).state(), TxState::Conflicting(LOST));
        let mut live = record(done());
        on_master(&mut live, &prune(400));
        assert_eq!(refused(on_master(&mut live, &revive(2))), Rejection::Pruned(400));
        assert_eq!(refused(on_master(&mut None, &revive(2))), Rejection::NotFound);
        let key = Key::Page(TXID, 1);
        let mut other = record(Page { number: 1, master: None, conflicting: true, ..live_page() });
        on(&key, &mut other, &prune(400));
        assert!(on(&key, &mut other, &revive(2)).outcome.is_done());
        assert_eq!(page(&other).utxos, None);
        assert!(on(&key, &mut other, &Operation::Create(Arc::new(second_page(1)))).outcome.is_done());
    }

    fn reassignment() -> crate::record::Reassignment {
        crate::record::Reassignment {
            offset: 0,
            utxo_hash: hash(0),
            new_utxo_hash: hash(5),
            block_height: 9,
            output: crate::record::StoredOutput { satoshis: 1, script: bytes::Bytes::new() },
        }
    }

    fn live_page() -> Page {
        page_with(vec![Slot::Unspent(hash(0))])
    }

    #[test]
    fn looking_again_is_only_ever_later() {
        let postpone = |until| sequenced(1, Sequenced::PostponePruning { until });
        let mut there = record(Page { delete_at_height: Some(50), ..done() });
        for (until, left) in [(60, 60), (55, 60)] {
            assert!(on_master(&mut there, &postpone(until)).outcome.is_done());
            assert_eq!(page(&there).delete_at_height, Some(left));
        }
        let mut without = record(done());
        on_master(&mut without, &postpone(60));
        assert_eq!(page(&without).delete_at_height, None);
        assert_eq!(on_master(&mut None, &postpone(60)).outcome, already(Reply::None));
    }

    #[test]
    fn refused_while_anything_keeps_it() {
        let refuse = |change: &dyn Fn(&mut Page)| {
            let mut page = done();
            change(&mut page);
            assert_eq!(refused(on_master(&mut record(page), &prune(400))), Rejection::NotPrunable);
        };
        refuse(&|page| {
            page.pruned_spenders.clear();
            slots::free(page, 0);
        });
        let given_away =
            |page: Page| Page { record_utxos: page.record_utxos + 1, reassignments: vec![reassignment()], ..page };
        refuse(&|page| *page = given_away(page.clone()));
        refuse(&|page| *page = given_away(contested(1, LOST)));
        refuse(&|page| master(page).mined.clear());
        refuse(&|page| master(page).unmined_since = Some(1));
        refuse(&|page| master(page).total_extra_recs = 1);
        refuse(&|page| master(page).preserve_until = Some(401));
        refuse(&|page| page.creating_at = Some(1));
        refuse(&|page| *page = contested(1, Verdict::Pending));
        refuse(&|page| *page = stub(Verdict::Pending));
        let mut page = done();
        master(&mut page).preserve_until = Some(400);
        assert!(on_master(&mut record(page), &prune(400)).outcome.is_done());
    }

    #[test]
    fn other_pages_go_by_their_own_counts() {
        let key = Key::Page(TXID, 1);
        let page = |slot| Page { number: 1, master: None, ..page_with(vec![slot]) };
        let told = refused(on(&key, &mut record(page(Slot::Unspent(hash(0)))), &prune(400)));
        assert_eq!(told, Rejection::NotPrunable);
        let mut spent = record(page(Slot::Spent(hash(0), holder(1, 0))));
        assert!(on(&key, &mut spent, &prune(400)).outcome.is_done());
        assert_eq!(self::page(&spent).master, None);
        let conflicting = Page { conflicting: true, ..page(Slot::Unspent(hash(0))) };
        assert!(on(&key, &mut record(conflicting), &prune(400)).outcome.is_done());
    }

    #[test]
    fn nothing_is_made_of_nothing() {
        let mut absent = None;
        assert_eq!(on_master(&mut absent, &prune(400)).outcome, already(Reply::None));
        assert_eq!(absent, None);
    }

    #[test]
    fn a_pruned_spender_is_marked_only_where_it_is_named() {
        let mut record = record(page_with(vec![Slot::Spent(hash(0), holder(1, 0)), Slot::Unspent(hash(1))]));
        let mark = |held| sequenced(1, Sequenced::MarkSpenderPruned(held));
        assert_eq!(on_master(&mut record, &mark(vec![held(0, 2), held(1, 2)])).outcome, already(Reply::None));
        let outcome = on_master(&mut record, &mark(vec![held(0, 1), held(1, 1), held(7, 1)])).outcome;
        assert_eq!(outcome, applied(Reply::None));
        assert_eq!(page(&record).pruned_spenders, [0].into());
        assert_eq!(on_master(&mut None, &mark(vec![held(0, 1)])).outcome, already(Reply::None));
    }
}
