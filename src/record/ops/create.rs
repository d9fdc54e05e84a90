//! `Create`: puts a page where there is none.

use std::sync::Arc;

use crate::record::{Key, Page, Record, Rejection, Reply, Rules, TxState};

use super::{Effect, belongs, delete_at_height, optional_page};

pub(super) fn apply(
    rules: &Rules,
    key: &Key,
    record: &mut Option<Record>,
    new: &Arc<Page>,
) -> Result<Effect, Rejection> {
    belongs(key, new)?;
    if !matches!(new.state(), TxState::Live | TxState::Creating) {
        return Err(Rejection::Unexpected);
    }
    if let Some(page) = optional_page(record)? {
        return match page.state() {
            state @ (TxState::Live | TxState::Pruned(_)) => Ok(Effect::already(Reply::State(state), false)),
            state @ (TxState::Creating | TxState::Stub(_) | TxState::Conflicting(_)) => Err(Rejection::Exists(state)),
        };
    }
    let mut new = Arc::clone(new);
    // Only a mined page that is created with all its slots spent already needs a copy of its own.
    let value = delete_at_height::evaluated(rules, &new);
    if value != new.delete_at_height {
        Arc::make_mut(&mut new).delete_at_height = value;
    }
    *record = Some(Record::Page(new));
    Ok(Effect::applied(Reply::None))
}
