//! `MarkContested`: the sequencer will say what becomes of a transaction that is not live.

use std::sync::Arc;

use crate::record::{Key, Page, Record, Rejection, Reply, TxState, Verdict};

use super::{Effect, master_of, optional_page};

pub(super) fn apply(key: &Key, record: &mut Option<Record>) -> Result<Effect, Rejection> {
    let Some(page) = optional_page(record)? else {
        return put_stub(key, record, Verdict::Pending, None);
    };
    master_of(page)?;
    let state = page.state();
    if state != TxState::Creating {
        return Ok(Effect::already(Reply::State(state), false));
    }
    let page = Arc::make_mut(page);
    page.conflicting = true;
    if let Some(master) = &mut page.master {
        master.verdict = Some(Verdict::Pending);
    }
    Ok(Effect::applied(Reply::State(page.state())))
}

/// Puts a stub where there is no master; another page that is absent stays so.
pub(super) fn put_stub(
    key: &Key,
    record: &mut Option<Record>,
    verdict: Verdict,
    delete_at_height: Option<u32>,
) -> Result<Effect, Rejection> {
    let txid = match key {
        Key::Page(txid, 0) => *txid,
        Key::Page(..) => return Err(Rejection::NotFound),
        Key::LockRecord(_) | Key::Block(_) | Key::Meta => return Err(Rejection::Unexpected),
    };
    let stub = Page { delete_at_height, ..Page::stub(txid, verdict) };
    let state = stub.state();
    *record = Some(Record::Page(Arc::new(stub)));
    Ok(Effect::applied(Reply::State(state)))
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
    fn a_half_created_one_can_no_longer_become_live_by_itself() {
        let mut record = record(creating(1));
        let state = TxState::Conflicting(Verdict::Pending);
        assert_eq!(on_master(&mut record, &mark()).outcome, applied(Reply::State(state)));
        let told = refused(on_master(&mut record, &Operation::ClearCreating));
        assert_eq!(told, Rejection::Conflicting(Verdict::Pending));
    }

    #[test]
    fn everything_else_is_told_and_stamped() {
        let lost = Verdict::Conflicting(Reason::Command);
        for there in [live(1), stub(lost), contested(1, Verdict::Pending), contested(1, lost), tombstone(5, None)] {
            let state = there.state();
            let mut record = record(there);
            let effect = on_master(&mut record, &mark());
            assert_eq!((effect.outcome, effect.changed), (already(Reply::State(state)), true));
            assert_eq!(page(&record).chain_pos, Some(stamp(1)));
        }
    }

    #[test]
    fn only_masters() {
        let key = Key::Page(TXID, 1);
        assert_eq!(refused(on(&key, &mut None, &mark())), Rejection::NotFound);
        assert_eq!(refused(on(&key, &mut record(second_page(1)), &mark())), Rejection::Unexpected);
    }
}
