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
