//! `AddConflictingChild`, `RemoveConflictingChild`: who may get a second chance when this transaction's fate changes.

use std::sync::Arc;

use crate::record::{MAX_CONFLICTING_CHILDREN, Record, Rejection, Reply};
use crate::tx::Txid;

use super::{Effect, any_page, master_of, optional_page};

pub(super) fn add(record: &mut Option<Record>, child: Txid) -> Result<Effect, Rejection> {
    let page = any_page(record)?;
    if let Some(height) = page.pruned {
        return Err(Rejection::Pruned(height));
    }
    let children = &master_of(page)?.conflicting_children;
    if children.len() >= MAX_CONFLICTING_CHILDREN || children.contains(&child) {
        return Ok(Effect::already(Reply::None, false));
    }
    if let Some(master) = &mut Arc::make_mut(page).master {
        master.conflicting_children.insert(child);
    }
    Ok(Effect::applied(Reply::None))
}

pub(super) fn remove(record: &mut Option<Record>, child: &Txid) -> Result<Effect, Rejection> {
    let Some(page) = optional_page(record)? else {
        return Ok(Effect::already(Reply::None, false));
    };
    if !master_of(page)?.conflicting_children.contains(child) {
        return Ok(Effect::already(Reply::None, false));
    }
    if let Some(master) = &mut Arc::make_mut(page).master {
        master.conflicting_children.remove(child);
    }
    Ok(Effect::applied(Reply::None))
}
