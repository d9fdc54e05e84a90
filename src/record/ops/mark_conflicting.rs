//! `MarkConflicting`: the verdict is that a transaction lost.

use std::sync::Arc;

use crate::record::{Key, Page, Reason, Record, Rejection, Reply, Rules, TxState, Verdict};

use super::{Effect, delete_at_height, mark_contested::put_stub, optional_page};

pub(super) fn apply(
    rules: &Rules,
    key: &Key,
    record: &mut Option<Record>,
    reason: Reason,
    height: u32,
) -> Result<Effect, Rejection> {
    let verdict = Verdict::Conflicting(reason);
    let Some(page) = optional_page(record)? else {
        let delete_at = (rules.retention > 0).then(|| height.saturating_add(rules.retention));
        return put_stub(key, record, verdict, delete_at);
    };
    if let state @ TxState::Pruned(_) = page.state() {
        return Ok(Effect::already(Reply::State(state), false));
    }
    let decided = page.conflicting && (page.master.is_none() || page.verdict() == Some(verdict));
    let delete_at = delete_at_height::of_conflicting(rules, page, height);
    if decided && delete_at == page.delete_at_height {
        return Ok(Effect::already(Reply::State(page.state()), false));
    }
    let page: &mut Page = Arc::make_mut(page);
    page.conflicting = true;
    page.delete_at_height = delete_at;
    if let Some(master) = &mut page.master {
        master.verdict = Some(verdict);
    }
    let reply = Reply::State(page.state());
    Ok(if decided { Effect::already(reply, true) } else { Effect::applied(reply) })
}
