//! `Prune` and `MarkSpenderPruned`: forgetting a transaction without making anything spendable again.

use std::sync::Arc;

use crate::record::{HeldSlot, Page, Record, Rejection, Reply, TxState, Verdict};

use super::{Effect, delete_at_height::fully_spent, optional_page, slots};

pub(super) fn apply(record: &mut Option<Record>, height: u32) -> Result<Effect, Rejection> {
    let Some(page) = optional_page(record)? else {
        return Ok(Effect::already(Reply::None, false));
    };
    if let state @ TxState::Pruned(_) = page.state() {
        return Ok(Effect::already(Reply::State(state), false));
    }
    if !may_prune(page, height) {
        return Err(Rejection::NotPrunable);
    }
    *page = Arc::new(remains(page, height));
    Ok(Effect::applied(Reply::State(page.state())))
}

/// Whether this page, by its own bins, may go. What other pages and the spenders say is the pruner's to check.
fn may_prune(page: &Page, height: u32) -> bool {
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
fn remains(page: &Page, height: u32) -> Page {
    let mut tombstone = Page::stub(page.txid, Verdict::Pending);
    tombstone.number = page.number;
    tombstone.pruned = Some(height);
    tombstone.conflicting = page.conflicting;
    match (&mut tombstone.master, &page.master) {
        (Some(master), Some(old)) => master.verdict = old.verdict,
        (master, _) => *master = None,
    }
    tombstone
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
        sequenced(1, Sequenced::Prune { height })
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
        let mut record = record(done());
        assert_eq!(on_master(&mut record, &prune(400)).outcome, applied(Reply::State(TxState::Pruned(400))));
        let expected = Page { chain_pos: Some(stamp(1)), ..tombstone(400, None) };
        assert_eq!(page(&record), &expected);
        let outcome = on_master(&mut record, &prune(500)).outcome;
        assert_eq!(outcome, already(Reply::State(TxState::Pruned(400))));
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
