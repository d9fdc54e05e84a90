//! `CreateContested`: stores a contested transaction whole, in the place of a stub too.

use std::sync::Arc;

use crate::record::{Key, Master, Page, Reason, Record, Rejection, Reply, TxState, Verdict};

use super::{Effect, belongs, optional_page};

pub(super) fn apply(key: &Key, record: &mut Option<Record>, new: &Arc<Page>) -> Result<Effect, Rejection> {
    belongs(key, new)?;
    if !matches!(new.state(), TxState::Conflicting(_)) || (new.number == 0 && new.verdict().is_none()) {
        return Err(Rejection::Unexpected);
    }
    let Some(page) = optional_page(record)? else {
        let state = new.state();
        *record = Some(Record::Page(Arc::clone(new)));
        return Ok(Effect::applied(Reply::State(state)));
    };
    match page.state() {
        TxState::Stub(_) => *page = Arc::new(fill(page, new)),
        TxState::Pruned(height) if page.conflicting => *page = Arc::new(restore(page, new, height)),
        state @ TxState::Conflicting(verdict) => {
            return Ok(Effect::already(Reply::State(state), may_replace_body(verdict) && replace_body(page, new)));
        }
        state @ (TxState::Live | TxState::Creating | TxState::Pruned(_)) => return Err(Rejection::Exists(state)),
    }
    Ok(Effect::applied(Reply::State(page.state())))
}

/// A stub gets its body; what the sequencer wrote on it stays.
fn fill(stub: &Page, new: &Page) -> Page {
    let mut page = new.clone();
    page.chain_pos = stub.chain_pos;
    page.contested.extend(&stub.contested);
    page.delete_at_height = stub.delete_at_height;
    if let (Some(master), Some(stub)) = (&mut page.master, &stub.master) {
        master.verdict = stub.verdict;
        master.conflicting_children.clone_from(&stub.conflicting_children);
        master.preserve_until = stub.preserve_until;
    }
    page
}

/// A tombstone of a conflicting transaction becomes what it was, so that a block can still bring it. The verdict holds
/// for the txid, as it does in a rebuild that has not pruned it; and so it is due at once again.
fn restore(tombstone: &Page, new: &Page, pruned: u32) -> Page {
    let mut page = new.clone();
    page.chain_pos = tombstone.chain_pos;
    if let (Some(master), Some(old)) = (&mut page.master, &tombstone.master) {
        master.verdict = old.verdict.or(master.verdict);
        page.delete_at_height = Some(pruned);
    }
    page
}

/// The inputs of the first event may have been wrong; those of a later one can be right.
fn may_replace_body(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Conflicting(Reason::MissingParent { .. } | Reason::Mismatch { .. }))
}

/// Replaces what depends on the claimed previous outputs; whether anything differed.
fn replace_body(page: &mut Arc<Page>, new: &Page) -> bool {
    let (Some(Master { body: old_body, .. }), Some(Master { body, .. })) =
        (page.master.as_deref(), new.master.as_deref())
    else {
        return false;
    };
    if old_body == body && page.fee == new.fee && page.extended_size == new.extended_size {
        return false;
    }
    let page = Arc::make_mut(page);
    page.fee = new.fee;
    page.extended_size = new.extended_size;
    if let Some(master) = &mut page.master {
        master.body.clone_from(body);
    }
    true
}
