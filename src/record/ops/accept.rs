//! `Accept`: the verdict is that a transaction is live.

use std::sync::Arc;

use crate::record::{Record, Rejection, Reply, Rules, Verdict};

use super::{Effect, delete_at_height, whole_page};

pub(super) fn apply(rules: &Rules, record: &mut Option<Record>) -> Result<Effect, Rejection> {
    let page = whole_page(record)?;
    let decided = page.master.is_none() || page.verdict() == Some(Verdict::Accepted);
    if decided && !page.conflicting && page.creating_at.is_none() {
        return Ok(Effect::already(Reply::State(page.state()), false));
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
    delete_at_height::evaluate(rules, page);
    Ok(Effect::applied(Reply::State(page.state())))
}
