//! `Preserve`: keeps a transaction from being pruned, and raises `deleteAtHeight` accordingly.

use std::sync::Arc;

use crate::record::{Record, Rejection, Reply};

use super::{Effect, require_whole_page};

pub(super) fn apply(record: &mut Option<Record>, until: u32) -> Result<Effect, Rejection> {
    let page = require_whole_page(record)?;
    let preserved = page.master.as_deref().map(|master| master.preserve_until.max(Some(until)));
    let raised = page.master.as_deref().is_some_and(|master| master.preserve_until < Some(until));
    // The pruner finds the transaction again when the preservation ends.
    let delete_at =
        preserved.and_then(|until| page.delete_at_height.max(until).filter(|_| page.delete_at_height.is_some()));
    if !raised && page.delete_at_height == delete_at {
        return Ok(Effect::already_applied(Reply::None, false));
    }
    let page = Arc::make_mut(page);
    page.delete_at_height = delete_at;
    if let (Some(master), Some(preserved)) = (&mut page.master, preserved) {
        master.preserve_until = preserved;
    }
    Ok(Effect::applied(Reply::None))
}

#[cfg(test)]
mod tests {
    use crate::record::ops::testing::*;
    use crate::record::*;

    fn preserve(until: u32) -> Operation {
        sequenced(1, Sequenced::Preserve { until })
    }

    #[test]
    fn preserve_until_is_only_raised() {
        let mut record = record(Page { delete_at_height: Some(9), ..live(1) });
        assert_eq!(on_master(&mut record, &preserve(50)).outcome, applied(Reply::None));
        assert_eq!(page(&record).delete_at_height, Some(50));
        assert_eq!(on_master(&mut record, &preserve(40)).outcome, already(Reply::None));
        assert_eq!(on_master(&mut record, &preserve(60)).outcome, applied(Reply::None));
        assert_eq!(page(&record).master.as_ref().unwrap().preserve_until, Some(60));
        assert_eq!(page(&record).delete_at_height, Some(60), "due when the preservation ends");
    }

    #[test]
    fn a_spent_transaction_is_due_when_its_preservation_ends() {
        let mut record = record(live(1));
        on_master(&mut record, &preserve(500));
        assert_eq!(page(&record).delete_at_height, None);
        on_master(&mut record, &sequenced(2, Sequenced::SetMined { mined_in: mined(9), longest_chain: true }));
        let due = Reply::Slots { all_spent: true, delete_at_height: Some(Some(500)) };
        assert_eq!(on_master(&mut record, &spend(1, &[0])).outcome, applied(due));
    }

    #[test]
    fn a_longer_preservation_stays() {
        let mut page = Page { delete_at_height: Some(9), ..live(1) };
        master(&mut page).preserve_until = Some(50);
        let mut record = record(page);
        on_master(&mut record, &preserve(40));
        assert_eq!(self::page(&record).master.as_ref().unwrap().preserve_until, Some(50));
        assert_eq!(self::page(&record).delete_at_height, Some(50));
    }

    #[test]
    fn a_page_other_than_the_master_only_loses_its_delete_at_height() {
        let mut record = record(Page { delete_at_height: Some(9), ..second_page(1) });
        let key = Key::Page(TXID, 1);
        assert_eq!(on(&key, &mut record, &preserve(50)).outcome, applied(Reply::None));
        assert_eq!(page(&record).delete_at_height, None);
        assert_eq!(on(&key, &mut record, &preserve(60)).outcome, already(Reply::None));
    }
}
