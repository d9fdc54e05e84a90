//! `SetPageSpent`: records in the master which other pages are all spent.

use std::sync::Arc;

use crate::record::{Record, Rejection, Rules};

use super::{Effect, delete_at_height, require_master, require_whole_page};

pub(super) fn set_page_spent(
    rules: &Rules,
    record: &mut Option<Record>,
    number: u32,
    spent: bool,
) -> Result<Effect, Rejection> {
    let page = require_whole_page(record)?;
    let master = require_master(page)?;
    if number == 0 || number > master.total_extra_recs {
        return Err(Rejection::Unexpected);
    }
    let is_set = master.spent_pages.contains(&number) == spent;
    if is_set && delete_at_height::compute(rules, page) == page.delete_at_height {
        return Ok(Effect::already_applied(delete_at_height::slots_reply(page, None), false));
    }
    let page = Arc::make_mut(page);
    if let Some(master) = &mut page.master {
        if spent {
            master.spent_pages.insert(number);
        } else {
            master.spent_pages.remove(&number);
        }
    }
    let changed = delete_at_height::update(rules, page);
    let reply = delete_at_height::slots_reply(page, changed);
    Ok(if is_set { Effect::already_applied(reply, true) } else { Effect::applied(reply) })
}

#[cfg(test)]
mod tests {
    use crate::record::ops::testing::*;
    use crate::record::*;

    fn set(page: u32, spent: bool) -> Operation {
        Operation::SetPageSpent { page, spent }
    }

    fn reply(delete_at_height: Option<Option<u32>>) -> Reply {
        Reply::Slots { all_spent: true, delete_at_height }
    }

    #[test]
    fn a_mined_transaction_is_due_when_all_its_pages_are_spent() {
        let mut page = live(0);
        master(&mut page).total_extra_recs = 2;
        master(&mut page).mined = vec![mined(10)];
        master(&mut page).unmined_since = None;
        let mut record = record(page);
        assert_eq!(on_master(&mut record, &set(1, true)).outcome, applied(reply(None)));
        assert_eq!(on_master(&mut record, &set(1, true)).outcome, already(reply(None)));
        assert_eq!(on_master(&mut record, &set(2, true)).outcome, applied(reply(Some(Some(298)))));
        assert_eq!(on_master(&mut record, &set(1, false)).outcome, applied(reply(Some(None))));
    }

    #[test]
    fn only_existing_pages_other_than_the_master_are_accepted() {
        let mut page = live(0);
        master(&mut page).total_extra_recs = 2;
        let mut record = record(page);
        for number in [0, 3] {
            assert_eq!(refused(on_master(&mut record, &set(number, true))), Rejection::Unexpected);
        }
        assert_eq!(refused(on_master(&mut None, &set(1, true))), Rejection::NotFound);
    }
}
