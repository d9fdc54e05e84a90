//! `SetLocked`: whether the outputs of a transaction are spendable yet.

use std::sync::Arc;

use crate::record::{Record, Rejection, Reply};

use super::{Effect, whole_page};

pub(super) fn apply(record: &mut Option<Record>, locked: bool) -> Result<Effect, Rejection> {
    let page = whole_page(record)?;
    let state = page.state();
    if page.locked == locked {
        return Ok(Effect::already(Reply::State(state), false));
    }
    Arc::make_mut(page).locked = locked;
    Ok(Effect::applied(Reply::State(state)))
}
