//! Pruning of a transaction, which makes no output spendable again: `Prune`, `MarkSpenderPruned`, `PostponePruning`,
//! `ForgetTombstone` and `Revive`.

use std::sync::Arc;

use crate::record::{Body, HeldSlot, Page, Record, Rejection, Reply, Rules, TxState, Verdict};

use super::{
    Effect,
    delete_at_height::{is_fully_spent, slots_reply},
    find_page, require_page, slots,
};

pub(super) fn apply(record: &mut Option<Record>, height: u32, keep_until: Option<u32>) -> Result<Effect, Rejection> {
    let Some(page) = find_page(record)? else {
        return Ok(Effect::already_applied(Reply::None, false));
    };
    if let state @ TxState::Pruned(_) = page.state() {
        return Ok(Effect::already_applied(Reply::State(state), false));
    }
    if !can_prune(page, height) {
        return Err(Rejection::NotPrunable);
    }
    *page = Arc::new(build_tombstone(page, height, keep_until));
    Ok(Effect::applied(Reply::State(page.state())))
}

/// Returns `true` if the page's own bins allow pruning. The pruner checks the other pages and the spenders.
fn can_prune(page: &Page, height: u32) -> bool {
    if !page.reassignments.is_empty() || page.conflicting && page.is_barred() {
        return false;
    }
    let Some(master) = page.master.as_deref() else {
        return page.conflicting || (page.creating_at.is_none() && page.is_all_spent());
    };
    if master.preserve_until.is_some_and(|until| until > height) {
        return false;
    }
    if page.conflicting {
        return matches!(master.verdict, Some(Verdict::Conflicting(_)));
    }
    let is_mined = !master.mined.is_empty() && master.unmined_since.is_none();
    is_mined && page.creating_at.is_none() && is_fully_spent(page, master)
}

/// Returns the tombstone of a page: key, height of the pruning, and the flag `conflicting`, because only a conflicting
/// transaction can be revived. The stamp rule writes the stamp, which refuses late operations.
fn build_tombstone(page: &Page, height: u32, keep_until: Option<u32>) -> Page {
    let mut tombstone = Page::stub(page.txid, Verdict::Pending);
    tombstone.number = page.number;
    tombstone.pruned = Some(height);
    tombstone.conflicting = page.conflicting;
    if page.conflicting {
        // A block may revive the transaction, and late spends must then meet these marks.
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
        // A block may revive the transaction, and a rebuild, which prunes nothing, keeps the height.
        master.preserve_until = old.preserve_until;
    }
    if master.body.is_some() {
        (tombstone.version, tombstone.lock_time) = (page.version, page.lock_time);
    }
    // Coinbase flag and size distinguish a repeated event from an event of the other kind (partial or whole).
    (tombstone.is_coinbase, tombstone.size_in_bytes) = (page.is_coinbase, page.size_in_bytes);
    tombstone.delete_at_height = keep_until;
    tombstone
}

/// Returns a conflicting tombstone with the body of a repeated event, for another retention; `None`: the tombstone
/// stays as it is.
///
/// Validators send the transactions of a block before the block: a block may need the body soon.
pub(super) fn extend_tombstone(rules: &Rules, tombstone: &Page, new: &Page) -> Option<Page> {
    let mut page = tombstone.clone();
    let (Some(master), Some(new_master)) = (&mut page.master, &new.master) else { return None };
    let until = new_master.unmined_since.unwrap_or(0).saturating_add(rules.retention);
    page.delete_at_height = page.delete_at_height.map(|stored| stored.max(until));
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
    let Some(page) = find_page(record)? else {
        return Ok(Effect::already_applied(Reply::None, false));
    };
    if page.delete_at_height.is_none_or(|stored| stored >= until) {
        return Ok(Effect::already_applied(Reply::None, false));
    }
    Arc::make_mut(page).delete_at_height = Some(until);
    Ok(Effect::applied(Reply::None))
}

pub(super) fn forget_tombstone(record: &mut Option<Record>, height: u32) -> Result<Effect, Rejection> {
    let Some(page) = find_page(record)? else {
        return Ok(Effect::already_applied(Reply::None, false));
    };
    if page.pruned.is_none() || page.delete_at_height.is_some_and(|until| until > height) {
        return Err(Rejection::NotPrunable);
    }
    let stripped = Page {
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
            master.preserve_until = old.preserve_until;
            // A block that revives the transaction revives every page.
            master.total_extra_recs = old.total_extra_recs;
            master
        }),
        ..Page::empty(page.txid)
    };
    if **page == stripped {
        return Ok(Effect::already_applied(Reply::None, false));
    }
    *page = Arc::new(stripped);
    Ok(Effect::applied(Reply::None))
}

pub(super) fn revive(record: &mut Option<Record>) -> Result<Effect, Rejection> {
    let page = require_page(record)?;
    let state = page.state();
    let TxState::Pruned(height) = state else {
        return Ok(Effect::already_applied(Reply::State(state), false));
    };
    if !page.conflicting {
        return Err(Rejection::Pruned(height));
    }
    if page.master.is_none() {
        let (number, chain_pos, contested) = (page.number, page.chain_pos, page.contested.clone());
        *page = Arc::new(Page { number, chain_pos, contested, ..Page::empty(page.txid) });
    } else {
        // The body stays for the fill that follows: after a crash in between the tombstone still holds what a fill
        // needs.
        let page = Arc::make_mut(page);
        page.pruned = None;
        page.delete_at_height = None;
    }
    Ok(Effect::applied(Reply::State(page.state())))
}

/// Marks the slots of a spender that is about to be pruned, so that a replay of the spender is recognised.
pub(super) fn mark_spender_pruned(record: &mut Option<Record>, held: &[HeldSlot]) -> Result<Effect, Rejection> {
    let Some(page) = find_page(record)? else {
        return Ok(Effect::already_applied(Reply::None, false));
    };
    let marks: Vec<u32> = held
        .iter()
        .filter(|held| slots::slot(page, held.offset).and_then(|slot| slot.spender()) == Some(held.holder))
        .map(|held| held.offset)
        .filter(|offset| !page.pruned_spenders.contains(offset))
        .collect();
    if marks.is_empty() {
        return Ok(Effect::already_applied(slots_reply(page, None), false));
    }
    let page = Arc::make_mut(page);
    page.pruned_spenders.extend(marks);
    Ok(Effect::applied(slots_reply(page, None)))
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

    fn prunable() -> Page {
        let mut page = page_with(vec![Slot::Spent(hash(0), holder(1, 0))]);
        master(&mut page).mined = vec![mined(9)];
        master(&mut page).unmined_since = None;
        page.contested.insert(0);
        page.pruned_spenders.insert(0);
        page
    }

    #[test]
    fn a_pruned_page_leaves_a_tombstone() {
        let mut record = record(Page { size_in_bytes: 250, ..prunable() });
        assert_eq!(on_master(&mut record, &prune(400)).outcome, applied(Reply::State(TxState::Pruned(400))));
        let expected = Page { chain_pos: Some(stamp(1)), delete_at_height: Some(544), ..tombstone(400, None) };
        assert_eq!(page(&record), &expected);
        let outcome = on_master(&mut record, &prune(500)).outcome;
        assert_eq!(outcome, already(Reply::State(TxState::Pruned(400))));
    }

    #[test]
    fn a_tombstone_keeps_the_kind_of_its_transaction() {
        let partial = || {
            let mut page = prunable();
            master(&mut page).body = Some(Body::Outputs([None].into_iter().collect()));
            page
        };
        let whole = Page { size_in_bytes: 250, ..live(1) };
        for page in [partial(), Page { size_in_bytes: 250, ..prunable() }, Page { is_coinbase: true, ..prunable() }] {
            let (is_partial, is_coinbase) = (page.is_partial(), page.is_coinbase);
            let mut record = record(page);
            for operation in [prune(400), Operation::Sequenced(stamp(1), Sequenced::ForgetTombstone { height: 544 })] {
                assert!(on_master(&mut record, &operation).outcome.is_done());
                let Some(Record::Page(tombstone)) = &record else { panic!("{record:?}") };
                assert_eq!(tombstone.differs_in_kind(&whole), is_partial && !is_coinbase, "{tombstone:?}");
            }
        }
    }

    #[test]
    fn a_conflicting_tombstone_keeps_its_verdict() {
        for stored in [contested(2, LOST), stub(LOST)] {
            let mut record = record(stored);
            assert!(on_master(&mut record, &prune(400)).outcome.is_done());
            assert_eq!((page(&record).verdict(), page(&record).conflicting), (Some(LOST), true));
        }
    }

    #[test]
    fn a_conflicting_tombstone_keeps_its_body_and_any_tombstone_its_blob() {
        let bodies = [Body::Transaction(transaction(2)), Body::External(crate::record::Blob::First(None))];
        for body in bodies {
            let pruned = |mut stored: Page| {
                master(&mut stored).body = Some(body.clone());
                master(&mut stored).total_extra_recs = 3;
                stored.size_in_bytes = 77;
                if !stored.conflicting {
                    master(&mut stored).spent_pages = (1..=3).collect();
                }
                let mut record = record(stored);
                assert!(on_master(&mut record, &prune(400)).outcome.is_done());
                page(&record).clone()
            };
            let lost = pruned(contested(2, LOST));
            assert_eq!((lost.body(), lost.size_in_bytes), (Some(&body), 77));
            let live = pruned(prunable());
            assert_eq!(live.body().is_some(), matches!(body, Body::External(_)));
            assert_eq!([lost, live].map(|page| page.master.unwrap().total_extra_recs), [3, 3]);
        }
    }

    #[test]
    fn a_due_tombstone_is_stripped() {
        for mut stored in [contested(2, LOST), prunable()] {
            master(&mut stored).total_extra_recs = 3;
            master(&mut stored).spent_pages = (1..=3).collect();
            let mut record = record(stored);
            let forget = sequenced(2, Sequenced::ForgetTombstone { height: 544 });
            assert_eq!(refused(on_master(&mut record, &forget)), Rejection::NotPrunable);
            on_master(&mut record, &prune(400));
            assert_eq!(on_master(&mut record, &forget).outcome, applied(Reply::None));
            assert_eq!(on_master(&mut record, &forget).outcome, already(Reply::None));
            let page = page(&record);
            assert_eq!((page.state(), page.delete_at_height, page.body()), (TxState::Pruned(400), None, None));
            assert_eq!(page.extra_pages(), 3);
        }
    }

    #[test]
    fn only_a_conflicting_tombstone_can_be_revived() {
        let revive = |n| sequenced(n, Sequenced::Revive);
        let mut lost = record(contested(2, LOST));
        assert_eq!(on_master(&mut lost, &revive(1)).outcome, already(Reply::State(TxState::Conflicting(LOST))));
        on_master(&mut lost, &prune(400));
        assert_eq!(on_master(&mut lost, &revive(2)).outcome, applied(Reply::State(TxState::Stub(LOST))));
        assert_eq!((page(&lost).pruned, page(&lost).body().is_some()), (None, true));
        assert!(on_master(&mut lost, &Operation::CreateContested(contested(2, LOST).into())).outcome.is_done());
        assert_eq!(page(&lost).state(), TxState::Conflicting(LOST));
        let mut live = record(prunable());
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
    fn a_postponement_only_raises_delete_at_height() {
        let postpone = |until| sequenced(1, Sequenced::PostponePruning { until });
        let mut stored = record(Page { delete_at_height: Some(50), ..prunable() });
        for (until, expected) in [(60, 60), (55, 60)] {
            assert!(on_master(&mut stored, &postpone(until)).outcome.is_done());
            assert_eq!(page(&stored).delete_at_height, Some(expected));
        }
        let mut without = record(prunable());
        on_master(&mut without, &postpone(60));
        assert_eq!(page(&without).delete_at_height, None);
        assert_eq!(on_master(&mut None, &postpone(60)).outcome, already(Reply::None));
    }

    #[test]
    fn each_condition_alone_refuses_the_pruning() {
        let assert_refused = |change: &dyn Fn(&mut Page)| {
            let mut page = prunable();
            change(&mut page);
            assert_eq!(refused(on_master(&mut record(page), &prune(400))), Rejection::NotPrunable);
        };
        assert_refused(&|page| {
            page.pruned_spenders.clear();
            slots::free(page, 0);
        });
        let reassigned =
            |page: Page| Page { record_utxos: page.record_utxos + 1, reassignments: vec![reassignment()], ..page };
        assert_refused(&|page| *page = reassigned(page.clone()));
        assert_refused(&|page| *page = reassigned(contested(1, LOST)));
        assert_refused(&|page| master(page).mined.clear());
        assert_refused(&|page| master(page).unmined_since = Some(1));
        assert_refused(&|page| master(page).total_extra_recs = 1);
        assert_refused(&|page| master(page).preserve_until = Some(401));
        assert_refused(&|page| page.creating_at = Some(1));
        assert_refused(&|page| *page = contested(1, Verdict::Pending));
        assert_refused(&|page| *page = stub(Verdict::Pending));
        let mut page = prunable();
        master(&mut page).preserve_until = Some(400);
        assert!(on_master(&mut record(page), &prune(400)).outcome.is_done());
    }

    #[test]
    fn pages_other_than_the_master_are_pruned_by_their_own_counts() {
        let key = Key::Page(TXID, 1);
        let page = |slot| Page { number: 1, master: None, ..page_with(vec![slot]) };
        let rejection = refused(on(&key, &mut record(page(Slot::Unspent(hash(0)))), &prune(400)));
        assert_eq!(rejection, Rejection::NotPrunable);
        let mut spent = record(page(Slot::Spent(hash(0), holder(1, 0))));
        assert!(on(&key, &mut spent, &prune(400)).outcome.is_done());
        assert_eq!(self::page(&spent).master, None);
        let conflicting = Page { conflicting: true, ..page(Slot::Unspent(hash(0))) };
        assert!(on(&key, &mut record(conflicting), &prune(400)).outcome.is_done());
    }

    #[test]
    fn an_absent_record_stays_absent() {
        let mut absent = None;
        assert_eq!(on_master(&mut absent, &prune(400)).outcome, already(Reply::None));
        assert_eq!(absent, None);
    }

    #[test]
    fn only_slots_of_the_pruned_spender_are_marked() {
        let mut record = record(page_with(vec![Slot::Spent(hash(0), holder(1, 0)), Slot::Unspent(hash(1))]));
        let mark = |held| sequenced(1, Sequenced::MarkSpenderPruned(held));
        let reply = |all_spent| Reply::Slots { all_spent, delete_at_height: None };
        assert_eq!(on_master(&mut record, &mark(vec![held(0, 2), held(1, 2)])).outcome, already(reply(false)));
        let outcome = on_master(&mut record, &mark(vec![held(0, 1), held(1, 1), held(7, 1)])).outcome;
        assert_eq!(outcome, applied(reply(false)));
        assert_eq!(page(&record).pruned_spenders, [0].into());
        let mut spent = super::super::testing::record(page_with(vec![Slot::Spent(hash(0), holder(1, 0))]));
        assert_eq!(
            on_master(&mut spent, &mark(vec![held(0, 1)])).outcome,
            applied(reply(true)),
            "the page is all spent"
        );
        assert_eq!(on_master(&mut None, &mark(vec![held(0, 1)])).outcome, already(Reply::None));
    }
}
