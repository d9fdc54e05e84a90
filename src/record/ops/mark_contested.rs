//! `MarkContested`: the sequencer will say what becomes of a transaction that is not live.

use std::sync::Arc;

use crate::record::{Key, Page, Record, Rejection, Reply, TxState, Verdict};

use super::{Effect, master_of, optional_page};

pub(super) fn apply(key: &Key, record: &mut Option<Record>) -> Result<Effect, Rejection> {
    let Some(page) = optional_page(record)? else {
        return put_stub(key, record, Verdict::Pending, None);
    };
    master_of(page)?;
    let state = page.state();
    if state != TxState::Creating {
        return Ok(Effect::already(Reply::State(state), false));
    }
    let page = Arc::make_mut(page);
    page.conflicting = true;
    if let Some(master) = &mut page.master {
        master.verdict = Some(Verdict::Pending);
    }
    Ok(Effect::applied(Reply::State(page.state())))
}

/// Puts a stub where there is no master; another page that is absent stays so.
pub(super) fn put_stub(
    key: &Key,
    record: &mut Option<Record>,
    verdict: Verdict,
    delete_at_height: Option<u32>,
) -> Result<Effect, Rejection> {
    let txid = match key {
        Key::Page(txid, 0) => *txid,
        Key::Page(..) => return Err(Rejection::NotFound),
        Key::LockRecord(_) | Key::Block(_) | Key::Meta => return Err(Rejection::Unexpected),
    };
    let stub = Page { delete_at_height, ..Page::stub(txid, verdict) };
    let state = stub.state();
    *record = Some(Record::Page(Arc::new(stub)));
    Ok(Effect::applied(Reply::State(state)))
}
