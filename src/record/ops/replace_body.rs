//! `ReplaceBody`: the transaction as the event has it that is being decided on.
//!
//! A transaction id commits to the outputs that are spent, not to what an event in extended form claims of them. So two
//! events for one transaction can differ, and the contest that is decided names the one that counts.
//! What became live by its own claims keeps them. What a verdict let win may have been forgotten and stored again by another
//! event just before: it gets those that were decided on.

use std::sync::Arc;

use crate::record::{Body, ClaimedBody, Record, Rejection, Reply, TxState, Verdict};

use super::{Effect, master_of, whole_page};

pub(super) fn apply(record: &mut Option<Record>, claimed: &ClaimedBody) -> Result<Effect, Rejection> {
    let page = whole_page(record)?;
    let there = master_of(page)?;
    let state = page.state();
    let same = there.body.as_ref() == Some(&claimed.body)
        && (page.fee, page.extended_size) == (claimed.fee, claimed.extended_size);
    let by_verdict = state == TxState::Live && there.verdict == Some(Verdict::Accepted);
    if same || !(by_verdict || matches!(state, TxState::Conflicting(_))) {
        return Ok(Effect::already(Reply::State(state), false));
    }
    let page = Arc::make_mut(page);
    page.fee = claimed.fee;
    page.extended_size = claimed.extended_size;
    let slots = page.utxos.as_ref().map_or(0, Vec::len);
    if let Some(before) = page.master.as_mut().and_then(|master| master.body.replace(claimed.body.clone())) {
        match (before, &claimed.body) {
            (Body::External(_), Body::External(_)) => {}
            // The slots stay, and so does what their hashes were made of.
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
    fn what_is_contested_gets_the_body_that_counts() {
        for verdict in [Verdict::Pending, Verdict::Conflicting(Reason::Mismatch { input: 0 })] {
            let mut record = record(contested(2, verdict));
            let before = page(&record).clone();
            let state = Reply::State(TxState::Conflicting(verdict));
            assert_eq!(replace(&mut record), applied(state.clone()));
            let after = page(&record);
            assert_eq!((after.fee, after.extended_size), (77, 25));
            assert_eq!(after.master.as_ref().unwrap().body, Some(claimed().body));
            assert_eq!((&after.utxos, after.verdict()), (&before.utxos, before.verdict()));
            assert_eq!(replace(&mut record), already(state), "twice is once");
        }
    }

    #[test]
    fn a_body_that_goes_elsewhere_leaves_the_sizes_of_its_amounts() {
        let mut record = record(contested(2, Verdict::Pending));
        let external = ClaimedBody { body: Body::External(Blob::First), ..claimed() };
        let before = page(&record).body().unwrap().amount_sizes(2);
        on_master(&mut record, &sequenced(1, Sequenced::ReplaceBody(external.clone())));
        assert_eq!((page(&record).amount_sizes.len(), &page(&record).amount_sizes), (2, &before));
        on_master(&mut record, &sequenced(2, Sequenced::ReplaceBody(ClaimedBody { fee: 1, ..external })));
        assert_eq!(page(&record).amount_sizes, before, "they stay as long as it does");
        let again = Sequenced::ReplaceBody(ClaimedBody { fee: 2, ..claimed() });
        on_master(&mut record, &sequenced(3, again));
        assert!(page(&record).amount_sizes.is_empty(), "the outputs are here again");
    }

    #[test]
    fn what_is_live_by_its_own_claims_keeps_them_and_what_is_live_by_a_verdict_gets_those_that_count() {
        for (verdict, fee) in
            [(None, live(1).fee), (Some(Verdict::Pending), live(1).fee), (Some(Verdict::Accepted), 77)]
        {
            let mut there = live(1);
            master(&mut there).verdict = verdict;
            let mut record = record(there);
            assert!(replace(&mut record).is_done());
            assert_eq!((page(&record).fee, page(&record).state()), (fee, TxState::Live), "{verdict:?}");
        }
    }

    #[test]
    fn what_has_none_is_refused() {
        for (there, told) in [
            (None, Rejection::NotFound),
            (record(stub(Verdict::Pending)), Rejection::NotFound),
            (record(tombstone(5, None)), Rejection::Pruned(5)),
        ] {
            let mut record = there;
            assert_eq!(refused(on_master(&mut record, &sequenced(1, Sequenced::ReplaceBody(claimed())))), told);
        }
    }
}
