//! `ClearCreating`: every page has been sent or checked.

use std::sync::Arc;

use crate::record::{Record, Rejection, Reply, Verdict};

use super::{Effect, any_page};

pub(super) fn apply(record: &mut Option<Record>) -> Result<Effect, Rejection> {
    let page = any_page(record)?;
    if let Some(height) = page.pruned {
        return Err(Rejection::Pruned(height));
    }
    if let Some(verdict @ (Verdict::Pending | Verdict::Conflicting(_))) = page.verdict() {
        return Err(Rejection::Conflicting(verdict));
    }
    if page.creating_at.is_none() {
        return Ok(Effect::already(Reply::State(page.state()), false));
    }
    let page = Arc::make_mut(page);
    page.creating_at = None;
    Ok(Effect::applied(Reply::State(page.state())))
}
