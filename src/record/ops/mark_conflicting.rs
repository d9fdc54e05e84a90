//! `MarkConflicting`: a verdict makes a transaction conflicting.

use std::sync::Arc;

use crate::record::{Key, Page, Reason, Record, Rejection, Reply, Rules, TxState, Verdict};

use super::{Effect, delete_at_height, find_page, mark_contested::put_stub};

pub(super) fn apply(
    rules: &Rules,
    key: &Key,
    record: &mut Option<Record>,
    reason: Reason,
    height: u32,
) -> Result<Effect, Rejection> {
    let verdict = Verdict::Conflicting(reason);
    let Some(page) = find_page(record)? else {
        let delete_at = (rules.retention > 0).then(|| height.saturating_add(rules.retention));
        return put_stub(key, record, verdict, delete_at);
    };
    if let state @ TxState::Pruned(_) = page.state() {
        return Ok(Effect::already_applied(Reply::State(state), false));
    }
    let decided =
        page.conflicting && page.creating_at.is_none() && (page.master.is_none() || page.verdict() == Some(verdict));
    let delete_at = delete_at_height::compute_for_conflicting(rules, page, height);
    if decided && delete_at == page.delete_at_height {
        return Ok(Effect::already_applied(Reply::State(page.state()), false));
    }
    let page: &mut Page = Arc::make_mut(page);
    page.conflicting = true;
    // The verdict ends the creation. A page that stayed `creating` would be refused as creating, not as conflicting.
    page.creating_at = None;
    page.delete_at_height = delete_at;
    if let Some(master) = &mut page.master {
        master.verdict = Some(verdict);
    }
    let reply = Reply::State(page.state());
    Ok(if decided { Effect::already_applied(reply, true) } else { Effect::applied(reply) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Operation;
    use crate::record::ops::testing::*;

    const LOST: Verdict = Verdict::Conflicting(Reason::Command);

    fn mark(reason: Reason, height: u32) -> Operation {
        sequenced(1, crate::record::Sequenced::MarkConflicting { reason, height })
    }

    #[test]
    fn a_live_transaction_becomes_conflicting() {
        let mut record = record(live(1));
        let state = TxState::Conflicting(LOST);
        assert_eq!(on_master(&mut record, &mark(Reason::Command, 50)).outcome, applied(Reply::State(state)));
        assert_eq!(page(&record).delete_at_height, Some(50 + 288));
        assert_eq!(on_master(&mut record, &mark(Reason::Command, 90)).outcome, already(Reply::State(state)));
        assert_eq!(page(&record).delete_at_height, Some(90 + 288), "by the last decision");
    }

    #[test]
    fn a_transaction_stored_conflicting_becomes_due_with_its_verdict() {
        let mut record = record(contested(1, LOST));
        let effect = on_master(&mut record, &mark(Reason::Command, 50));
        assert_eq!((effect.outcome, effect.changed), (already(Reply::State(TxState::Conflicting(LOST))), true));
        assert_eq!(page(&record).delete_at_height, Some(50 + 288));
    }

    #[test]
    fn a_later_reason_replaces_an_earlier_one() {
        let mut record = record(contested(1, LOST));
        assert!(on_master(&mut record, &mark(Reason::Disconnected, 50)).changed);
        assert_eq!(page(&record).verdict(), Some(Verdict::Conflicting(Reason::Disconnected)));
    }

    #[test]
    fn an_absent_master_becomes_a_stub_with_a_delete_at_height() {
        let mut record = None;
        let outcome = on_master(&mut record, &mark(Reason::Command, 50)).outcome;
        assert_eq!(outcome, applied(Reply::State(TxState::Stub(LOST))));
        assert_eq!(page(&record).delete_at_height, Some(50 + 288));
        assert_eq!(refused(on(&Key::Page(TXID, 1), &mut None, &mark(Reason::Command, 50))), Rejection::NotFound);
    }

    #[test]
    fn a_page_other_than_the_master_is_only_flagged() {
        let key = Key::Page(TXID, 1);
        let mut record = record(second_page(1));
        assert!(on(&key, &mut record, &mark(Reason::Command, 50)).outcome.is_done());
        assert_eq!((page(&record).conflicting, page(&record).delete_at_height), (true, None));
    }

    #[test]
    fn a_creating_page_becomes_conflicting_and_not_creating() {
        let mut record = record(creating(1));
        on_master(&mut record, &mark(Reason::Command, 50));
        assert_eq!(refused(on_master(&mut record, &spend(1, &[0]))), Rejection::Conflicting(LOST));
        let key = Key::Page(TXID, 1);
        let mut other = Some(Record::Page(Page { creating_at: Some(1), ..second_page(1) }.into()));
        on(&key, &mut other, &mark(Reason::Command, 50));
        assert_eq!((page(&other).creating_at, page(&other).conflicting), (None, true));
    }

    #[test]
    fn a_tombstone_is_not_changed() {
        let outcome = on_master(&mut record(tombstone(5, None)), &mark(Reason::Command, 50)).outcome;
        assert_eq!(outcome, already(Reply::State(TxState::Pruned(5))));
    }

    #[test]
    fn a_preserved_transaction_is_due_at_preserve_until() {
        let mut page = live(1);
        master(&mut page).preserve_until = Some(1_000);
        let mut record = record(page);
        on_master(&mut record, &mark(Reason::Command, 50));
        assert_eq!(self::page(&record).delete_at_height, Some(1_000));
    }

    #[test]
    fn retention_zero_sets_no_delete_at_height() {
        let rules = Rules::main(0);
        for mut record in [None, record(live(1))] {
            crate::record::apply(&rules, &MASTER, &mut record, &mark(Reason::Command, 50));
            assert_eq!(page(&record).delete_at_height, None);
        }
    }
}
