//! `Accept`: a verdict makes a transaction live.

use std::sync::Arc;

use crate::record::{Record, Rejection, Reply, Rules, Verdict};

use super::{Effect, delete_at_height, require_whole_page};

pub(super) fn apply(rules: &Rules, record: &mut Option<Record>) -> Result<Effect, Rejection> {
    let page = require_whole_page(record)?;
    let decided = page.master.is_none() || page.verdict() == Some(Verdict::Accepted);
    if decided && !page.conflicting && page.creating_at.is_none() {
        return Ok(Effect::already_applied(Reply::State(page.state()), false));
    }
    let page = Arc::make_mut(page);
    let was_conflicting = std::mem::take(&mut page.conflicting);
    page.creating_at = None;
    if let Some(master) = &mut page.master {
        master.verdict = Some(Verdict::Accepted);
        if was_conflicting {
            page.delete_at_height = None;
        }
    }
    delete_at_height::update(rules, page);
    Ok(Effect::applied(Reply::State(page.state())))
}

#[cfg(test)]
mod tests {
    use crate::record::ops::testing::*;
    use crate::record::*;

    fn accept() -> Operation {
        sequenced(1, Sequenced::Accept)
    }

    const LOST: Verdict = Verdict::Conflicting(Reason::Command);

    #[test]
    fn a_contested_transaction_becomes_live_and_keeps_its_marks() {
        for verdict in [Verdict::Pending, LOST] {
            let mut page = contested(2, verdict);
            page.creating_at = Some(1);
            page.delete_at_height = Some(400);
            page.contested.insert(1);
            let mut record = record(page);
            assert_eq!(on_master(&mut record, &accept()).outcome, applied(Reply::State(TxState::Live)));
            let page = self::page(&record);
            assert_eq!((page.verdict(), page.delete_at_height), (Some(Verdict::Accepted), None));
            assert_eq!(page.contested, [1].into());
        }
    }

    #[test]
    fn an_accepted_transaction_gets_the_delete_at_height_of_a_live_one() {
        let mut page = contested(0, LOST);
        page.delete_at_height = Some(999);
        master(&mut page).mined = vec![mined(20)];
        master(&mut page).unmined_since = None;
        let mut record = record(page);
        on_master(&mut record, &accept());
        assert_eq!(self::page(&record).delete_at_height, Some(20 + 288));
    }

    #[test]
    fn pages_other_than_the_master_lose_their_flags() {
        let page = Page { conflicting: true, creating_at: Some(1), delete_at_height: Some(9), ..second_page(1) };
        let mut record = record(page);
        assert!(on(&Key::Page(TXID, 1), &mut record, &accept()).outcome.is_done());
        let page = self::page(&record);
        assert_eq!((page.conflicting, page.creating_at, page.delete_at_height), (false, None, Some(9)));
    }

    #[test]
    fn an_absent_transaction_is_refused() {
        assert_eq!(refused(on_master(&mut None, &accept())), Rejection::NotFound);
        assert_eq!(refused(on_master(&mut record(stub(LOST)), &accept())), Rejection::NotFound);
        assert_eq!(refused(on_master(&mut record(tombstone(5, Some(LOST))), &accept())), Rejection::Pruned(5));
    }
}
