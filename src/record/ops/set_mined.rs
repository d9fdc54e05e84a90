//! `SetMined`: a block lists the transaction.

use std::sync::Arc;

use crate::record::{Master, MinedIn, Page, Record, Rejection, Reply, Rules, TxState};

use super::{Effect, delete_at_height, whole_page};

pub(super) fn apply(
    rules: &Rules,
    record: &mut Option<Record>,
    mined_in: MinedIn,
    longest_chain: bool,
) -> Result<Effect, Rejection> {
    let page = whole_page(record)?;
    if longest_chain {
        match page.state() {
            _ if page.creating_at.is_some() => return Err(Rejection::Creating),
            TxState::Conflicting(verdict) => return Err(Rejection::Conflicting(verdict)),
            _ => {}
        }
    }
    if is_done(rules, page, mined_in, longest_chain) {
        return Ok(Effect::already(mined_reply(page), false));
    }
    let page = Arc::make_mut(page);
    if let Some(master) = &mut page.master {
        if !is_listed(master, mined_in) {
            master.mined.push(mined_in);
        }
        if longest_chain {
            master.unmined_since = None;
        }
    }
    if longest_chain {
        page.locked = false;
        delete_at_height::evaluate(rules, page);
    }
    Ok(Effect::applied(mined_reply(page)))
}

fn is_done(rules: &Rules, page: &Page, mined_in: MinedIn, longest_chain: bool) -> bool {
    let listed = page.master.as_deref().is_none_or(|master| is_listed(master, mined_in));
    if !longest_chain {
        return listed;
    }
    let marked = page.master.as_deref().is_none_or(|master| master.unmined_since.is_none());
    listed && marked && !page.locked && delete_at_height::evaluated(rules, page) == page.delete_at_height
}

/// A block lists a transaction once, so its id alone tells.
fn is_listed(master: &Master, mined_in: MinedIn) -> bool {
    master.mined.iter().any(|mined| mined.block_id == mined_in.block_id)
}

/// All block ids; only the master has them.
pub(super) fn mined_reply(page: &Page) -> Reply {
    match page.master.as_deref() {
        Some(master) => Reply::Mined {
            block_ids: master.mined.iter().map(|mined| mined.block_id).collect(),
            extra_pages: master.total_extra_recs,
        },
        None => Reply::None,
    }
}
