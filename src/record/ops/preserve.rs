//! `Preserve`: keeps a transaction from being pruned.

use std::sync::Arc;

use crate::record::{Record, Rejection, Reply};

use super::{Effect, whole_page};

pub(super) fn apply(record: &mut Option<Record>, until: u32) -> Result<Effect, Rejection> {
    let page = whole_page(record)?;
    let raised = page.master.as_deref().is_some_and(|master| master.preserve_until < Some(until));
    if !raised && page.delete_at_height.is_none() {
        return Ok(Effect::already(Reply::None, false));
    }
    let page = Arc::make_mut(page);
    page.delete_at_height = None;
    if let Some(master) = &mut page.master {
        master.preserve_until = master.preserve_until.max(Some(until));
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
    fn only_ever_raised() {
        let mut record = record(Page { delete_at_height: Some(9), ..live(1) });
        assert_eq!(on_master(&mut record, &preserve(50)).outcome, applied(Reply::None));
        assert_eq!(page(&record).delete_at_height, None);
        assert_eq!(on_master(&mut record, &preserve(40)).outcome, already(Reply::None));
        assert_eq!(on_master(&mut record, &preserve(60)).outcome, applied(Reply::None));
        assert_eq!(page(&record).master.as_ref().unwrap().preserve_until, Some(60));
    }

    #[test]
    fn nothing_is_due_while_it_is_preserved() {
        let mut record = record(live(1));
        on_master(&mut record, &preserve(50));
        on_master(&mut record, &sequenced(2, Sequenced::SetMined { mined_in: mined(9), longest_chain: true }));
        assert_eq!(on_master(&mut record, &spend(1, &[0])).outcome, applied(slots_reply(true)));
        assert_eq!(page(&record).delete_at_height, None);
    }

    #[test]
    fn what_is_preserved_longer_stays_so() {
        let mut page = Page { delete_at_height: Some(9), ..live(1) };
        master(&mut page).preserve_until = Some(50);
        let mut record = record(page);
        on_master(&mut record, &preserve(40));
        assert_eq!(self::page(&record).master.as_ref().unwrap().preserve_until, Some(50));
        assert_eq!(self::page(&record).delete_at_height, None);
    }

    #[test]
    fn another_page_is_only_no_longer_due() {
        let mut record = record(Page { delete_at_height: Some(9), ..second_page(1) });
        let key = Key::Page(TXID, 1);
        assert_eq!(on(&key, &mut record, &preserve(50)).outcome, applied(Reply::None));
        assert_eq!(page(&record).delete_at_height, None);
        assert_eq!(on(&key, &mut record, &preserve(60)).outcome, already(Reply::None));
    }
}
