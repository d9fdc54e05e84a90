//! `SetPageSpent` and `SetDeleteAtHeight`: what the master and the other pages tell each other.

use std::sync::Arc;

use crate::record::{Record, Rejection, Reply, Rules};

use super::{Effect, delete_at_height, master_of, whole_page};

pub(super) fn set_page_spent(
    rules: &Rules,
    record: &mut Option<Record>,
    number: u32,
    spent: bool,
) -> Result<Effect, Rejection> {
    let page = whole_page(record)?;
    let master = master_of(page)?;
    if number == 0 || number > master.total_extra_recs {
        return Err(Rejection::Unexpected);
    }
    let already = master.spent_pages.contains(&number) == spent;
    if already && delete_at_height::evaluated(rules, page) == page.delete_at_height {
        return Ok(Effect::already(delete_at_height::slots_reply(page, None), false));
    }
    let page = Arc::make_mut(page);
    if let Some(master) = &mut page.master {
        if spent {
            master.spent_pages.insert(number);
        } else {
            master.spent_pages.remove(&number);
        }
    }
    let changed = delete_at_height::evaluate(rules, page);
    let reply = delete_at_height::slots_reply(page, changed);
    Ok(if already { Effect::already(reply, true) } else { Effect::applied(reply) })
}

pub(super) fn set_delete_at_height(record: &mut Option<Record>, height: Option<u32>) -> Result<Effect, Rejection> {
    let page = whole_page(record)?;
    if page.master.is_some() {
        return Err(Rejection::Unexpected);
    }
    if page.delete_at_height == height {
        return Ok(Effect::already(Reply::None, false));
    }
    Arc::make_mut(page).delete_at_height = height;
    Ok(Effect::applied(Reply::None))
}
