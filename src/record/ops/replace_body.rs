//! `ReplaceBody`: replaces the body by the body of the event that a decision is about.
//!
//! A txid commits to the outpoints that are spent, not to the amounts and scripts that an event in extended format
//! claims for them. Two events of one transaction can therefore differ, and the decided contest names the event that
//! counts.
//!
//! A transaction that became live by its own claims keeps its body. A transaction that is live by a verdict gets the
//! decided body: the store may have lost the record, and another event may have stored the record again.

use std::sync::Arc;

use crate::record::{Body, ClaimedBody, Record, Rejection, Reply, TxState, Verdict};

use super::{Effect, require_master, require_whole_page};

pub(super) fn apply(record: &mut Option<Record>, claimed: &ClaimedBody) -> Result<Effect, Rejection> {
    let page = require_whole_page(record)?;
    let stored = require_master(page)?;
    let state = page.state();
    let same = stored.body.as_ref() == Some(&claimed.body)
        && (page.fee, page.extended_size) == (claimed.fee, claimed.extended_size);
    let by_verdict = state == TxState::Live && stored.verdict == Some(Verdict::Accepted);
    if same || !(by_verdict || matches!(state, TxState::Conflicting(_))) {
        return Ok(Effect::already_applied(Reply::State(state), false));
    }
    let page = Arc::make_mut(page);
    page.fee = claimed.fee;
    page.extended_size = claimed.extended_size;
    let slots = page.utxos.as_ref().map_or(0, Vec::len);
    if let Some(before) = page.master.as_mut().and_then(|master| master.body.replace(claimed.body.clone())) {
        match (before, &claimed.body) {
            (Body::External(_), Body::External(_)) => {}
            // The slots stay: their hashes need the sizes of the amounts that the inline body had.
            (inline, Body::External(_)) => page.amount_sizes = inline.amount_sizes(slots),
            _ => page.amount_sizes = Default::default(),
        }
    }
    Ok(Effect::applied(Reply::State(state)))
}

#[cfg(test)]
mod tests {
    use crate::record::ops::testing::*;
    use crate::record::*;

    fn claimed() -> ClaimedBody {
        ClaimedBody {
            body: Body::Transaction(bytes::Bytes::from_static(b"as the later event has it")),
            fee: 77,
            extended_size: 25,
        }
    }

    fn replace(record: &mut Option<Record>) -> Outcome {
        on_master(record, &sequenced(1, Sequenced::ReplaceBody(claimed()))).outcome
    }

    #[test]
    fn a_contested_transaction_gets_the_decided_body() {
        for verdict in [Verdict::Pending, Verdict::Conflicting(Reason::Mismatch { input: 0 })] {
            let mut record = record(contested(2, verdict));
            let before = page(&record).clone();
            let state = Reply::State(TxState::Conflicting(verdict));
            assert_eq!(replace(&mut record), applied(state.clone()));
            let after = page(&record);
            assert_eq!((after.fee, after.extended_size), (77, 25));
            assert_eq!(after.master.as_ref().unwrap().body, Some(claimed().body));
            assert_eq!((&after.utxos, after.verdict()), (&before.utxos, before.verdict()));
            assert_eq!(replace(&mut record), already(state), "a repeat changes nothing");
        }
    }

    #[test]
    fn an_inline_body_replaced_by_a_blob_leaves_its_amount_sizes() {
        let mut record = record(contested(2, Verdict::Pending));
        let external = ClaimedBody { body: Body::External(Blob::First(None)), ..claimed() };
        let before = page(&record).body().unwrap().amount_sizes(2);
        on_master(&mut record, &sequenced(1, Sequenced::ReplaceBody(external.clone())));
        assert_eq!((page(&record).amount_sizes.len(), &page(&record).amount_sizes), (2, &before));
        on_master(&mut record, &sequenced(2, Sequenced::ReplaceBody(ClaimedBody { fee: 1, ..external })));
        assert_eq!(page(&record).amount_sizes, before, "the sizes stay as long as the body is a blob");
        let again = Sequenced::ReplaceBody(ClaimedBody { fee: 2, ..claimed() });
        on_master(&mut record, &sequenced(3, again));
        assert!(page(&record).amount_sizes.is_empty(), "the body is inline again");
    }

    #[test]
    fn only_a_transaction_that_is_live_by_a_verdict_gets_the_decided_body() {
        for (verdict, fee) in
            [(None, live(1).fee), (Some(Verdict::Pending), live(1).fee), (Some(Verdict::Accepted), 77)]
        {
            let mut stored = live(1);
            master(&mut stored).verdict = verdict;
            let mut record = record(stored);
            assert!(replace(&mut record).is_done());
            assert_eq!((page(&record).fee, page(&record).state()), (fee, TxState::Live), "{verdict:?}");
        }
    }

    #[test]
    fn a_transaction_without_slots_is_refused() {
        for (stored, rejection) in [
            (None, Rejection::NotFound),
            (record(stub(Verdict::Pending)), Rejection::NotFound),
            (record(tombstone(5, None)), Rejection::Pruned(5)),
        ] {
            let mut record = stored;
            assert_eq!(refused(on_master(&mut record, &sequenced(1, Sequenced::ReplaceBody(claimed())))), rejection);
        }
    }
}
