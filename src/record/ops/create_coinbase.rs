//! `CreateCoinbase`: stores the coinbase of a block, also in the place of a stub.
//!
//! A child that is read before the block can prove the coinbase missing, and its contest leaves a stub. The marks on
//! the stub stay. The verdict is dropped, because a coinbase is live by its block and not by a verdict.

use std::sync::Arc;

use crate::record::{Key, Page, Record, Rejection, Reply, Rules, TxState, Verdict};

use super::{Effect, create, create_contested::copy_stub_marks, find_page};

pub(super) fn apply(
    rules: &Rules,
    key: &Key,
    record: &mut Option<Record>,
    new: &Arc<Page>,
) -> Result<Effect, Rejection> {
    let Some(stub) = find_page(record)?.filter(|page| page.state() == TxState::Stub(Verdict::Pending)) else {
        return create::apply(rules, key, record, new);
    };
    let filled = copy_stub_marks(stub, new);
    let mut created = None;
    create::apply(rules, key, &mut created, &Arc::new(filled))?;
    *record = created;
    let state = if new.creating_at.is_some() { TxState::Creating } else { TxState::Live };
    Ok(Effect::applied(Reply::State(state)))
}

#[cfg(test)]
mod tests {
    use crate::record::ops::testing::*;
    use crate::record::*;

    fn coinbase() -> Operation {
        let page = Page { is_coinbase: true, ..live(2) };
        sequenced(5, Sequenced::CreateCoinbase(page.into()))
    }

    #[test]
    fn a_stub_becomes_live_without_a_verdict_and_keeps_its_marks() {
        let mut stored = stub(Verdict::Pending);
        stored.contested = [0, 9].into();
        master(&mut stored).conflicting_children.insert(txid(3));
        let mut record = record(stored);
        assert_eq!(on_master(&mut record, &coinbase()).outcome, applied(Reply::State(TxState::Live)));
        let page = page(&record);
        assert_eq!((page.state(), page.verdict()), (TxState::Live, None));
        assert_eq!((&page.contested, page.chain_pos), (&[0].into(), Some(stamp(5))));
        assert!(page.master.as_ref().unwrap().conflicting_children.contains(&txid(3)));
        assert_eq!(on_master(&mut record, &coinbase()).outcome, already(Reply::State(TxState::Live)), "a repeat");
    }

    #[test]
    fn without_a_pending_stub_the_operation_is_a_create() {
        assert_eq!(on_master(&mut None, &coinbase()).outcome, applied(Reply::None));
        let lost = stub(Verdict::Conflicting(Reason::Command));
        let state = lost.state();
        assert_eq!(refused(on_master(&mut record(lost), &coinbase())), Rejection::Exists(state));
    }
}
