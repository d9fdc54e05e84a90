//! `MarkContested`: hands an absent transaction to the sequencer, as a stub.
//!
//! A transaction with a creating master has all its pages and counts as live: the caller gets the state and completes
//! the creation.

use std::sync::Arc;

use crate::record::{Key, Page, Record, Rejection, Reply, Verdict};

use super::{Effect, find_page};

pub(super) fn apply(key: &Key, record: &mut Option<Record>) -> Result<Effect, Rejection> {
    if let Some(page) = find_page(record)? {
        return Ok(Effect::already_applied(Reply::State(page.state()), false));
    }
    match key {
        Key::Page(_, 0) => put_stub(key, record, Verdict::Pending, None),
        Key::Page(txid, number) => Ok(put(record, Page { number: *number, ..Page::empty(*txid) })),
        Key::LockRecord(_) | Key::Block(_) | Key::Meta | Key::Command(_) | Key::Sentinel(_) => {
            Err(Rejection::Unexpected)
        }
    }
}

/// Stores a stub in the place of an absent master. An absent page other than the master is refused.
pub(super) fn put_stub(
    key: &Key,
    record: &mut Option<Record>,
    verdict: Verdict,
    delete_at_height: Option<u32>,
) -> Result<Effect, Rejection> {
    let txid = match key {
        Key::Page(txid, 0) => *txid,
        Key::Page(..) => return Err(Rejection::NotFound),
        Key::LockRecord(_) | Key::Block(_) | Key::Meta | Key::Command(_) | Key::Sentinel(_) => {
            return Err(Rejection::Unexpected);
        }
    };
    Ok(put(record, Page { delete_at_height, ..Page::stub(txid, verdict) }))
}

fn put(record: &mut Option<Record>, stub: Page) -> Effect {
    let state = stub.state();
    *record = Some(Record::Page(Arc::new(stub)));
    Effect::applied(Reply::State(state))
}

#[cfg(test)]
mod tests {
    use crate::record::ops::testing::*;
    use crate::record::*;

    fn mark() -> Operation {
        sequenced(1, Sequenced::MarkContested)
    }

    #[test]
    fn an_absent_master_becomes_a_stub() {
        let mut record = None;
        let state = TxState::Stub(Verdict::Pending);
        assert_eq!(on_master(&mut record, &mark()).outcome, applied(Reply::State(state)));
        assert_eq!((page(&record).txid, page(&record).chain_pos), (TXID, Some(stamp(1))));
    }

    #[test]
    fn an_existing_record_is_only_stamped_and_its_state_returned() {
        let lost = Verdict::Conflicting(Reason::Command);
        for stored in
            [live(1), creating(1), stub(lost), contested(1, Verdict::Pending), contested(1, lost), tombstone(5, None)]
        {
            let state = stored.state();
            let mut record = record(stored);
            let effect = on_master(&mut record, &mark());
            assert_eq!((effect.outcome, effect.changed), (already(Reply::State(state)), true));
            assert_eq!(page(&record).chain_pos, Some(stamp(1)));
        }
    }

    #[test]
    fn an_absent_page_other_than_the_master_becomes_a_record_for_marks() {
        let key = Key::Page(TXID, 1);
        let mut absent = None;
        assert!(on(&key, &mut absent, &mark()).outcome.is_done());
        assert_eq!((page(&absent).number, page(&absent).verdict()), (1, None));
        assert_eq!(refused(on(&key, &mut absent, &spend(1, &[0]))), Rejection::NotFound, "the page has no slots yet");
        for stored in [second_page(1), Page { creating_at: Some(1), ..second_page(1) }] {
            let expected = already(Reply::State(stored.state()));
            let mut record = record(stored.clone());
            assert_eq!(on(&key, &mut record, &mark()).outcome, expected);
            assert_eq!(page(&record), &Page { chain_pos: Some(stamp(1)), ..stored });
        }
    }
}
