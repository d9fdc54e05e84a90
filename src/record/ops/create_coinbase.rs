//! `CreateCoinbase`: the coinbase of a block, in the place of a stub too.
//!
//! A child that was read before the block, and whose coinbase was proven missing, leaves a stub: what its contest wrote there
//! must hold, but nobody decides on a coinbase that its block brings, so it has no verdict.

use std::sync::Arc;

use crate::record::{Key, Page, Record, Rejection, Reply, Rules, TxState, Verdict};

use super::{Effect, create, create_contested::with_marks_of, optional_page};

pub(super) fn apply(
    rules: &Rules,
    key: &Key,
    record: &mut Option<Record>,
    new: &Arc<Page>,
) -> Result<Effect, Rejection> {
    let Some(stub) = optional_page(record)?.filter(|page| page.state() == TxState::Stub(Verdict::Pending)) else {
        return create::apply(rules, key, record, new);
    };
    let filled = with_marks_of(stub, new);
    let mut made = None;
    create::apply(rules, key, &mut made, &Arc::new(filled))?;
    *record = made;
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
    fn a_stub_becomes_live_without_a_verdict_and_keeps_what_is_written_on_it() {
        let mut there = stub(Verdict::Pending);
        there.contested = [0, 9].into();
        master(&mut there).conflicting_children.insert(txid(3));
        let mut record = record(there);
        assert_eq!(on_master(&mut record, &coinbase()).outcome, applied(Reply::State(TxState::Live)));
        let page = page(&record);
        assert_eq!((page.state(), page.verdict()), (TxState::Live, None));
        assert_eq!((&page.contested, page.chain_pos), (&[0].into(), Some(stamp(5))));
        assert!(page.master.as_ref().unwrap().conflicting_children.contains(&txid(3)));
        assert_eq!(on_master(&mut record, &coinbase()).outcome, already(Reply::State(TxState::Live)), "twice is once");
    }

    #[test]
    fn elsewhere_it_is_a_create() {
        assert_eq!(on_master(&mut None, &coinbase()).outcome, applied(Reply::None));
        let lost = stub(Verdict::Conflicting(Reason::Command));
        let state = lost.state();
        assert_eq!(refused(on_master(&mut record(lost), &coinbase())), Rejection::Exists(state));
    }
}
