//! `UnsetMined`: a block that lists the transaction leaves the longest chain.

use std::sync::Arc;

use crate::record::{Record, Rejection, Reply, Rules, TxState};

use super::{Effect, delete_at_height, optional_page, set_mined::mined_reply};

pub(super) fn apply(
    rules: &Rules,
    record: &mut Option<Record>,
    block_id: u32,
    height: u32,
) -> Result<Effect, Rejection> {
    let Some(page) = optional_page(record)? else {
        return Ok(Effect::already(Reply::None, false));
    };
    if let state @ TxState::Pruned(_) = page.state() {
        return Ok(Effect::already(Reply::State(state), false));
    }
    // The triple is what is compared: a repeat must not undo what a block connected later in the same event has set.
    let listed = page.master.as_deref().and_then(|m| m.mined.iter().position(|mined| mined.block_id == block_id));
    let Some(listed) = listed else {
        return Ok(Effect::already(mined_reply(page), false));
    };
    let page = Arc::make_mut(page);
    if let Some(master) = &mut page.master {
        master.mined.remove(listed);
        master.unmined_since = Some(master.unmined_since.map_or(height, |since| since.min(height)));
    }
    delete_at_height::evaluate(rules, page);
    Ok(Effect::applied(mined_reply(page)))
}
