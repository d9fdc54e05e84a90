//! When a transaction may be forgotten, as a hint for the pruner: `semantics.md`, "deleteAtHeight".

use crate::record::{Master, Page, Reply, Rules};

/// Evaluates `deleteAtHeight` of a master again; other pages only ever get a copy. The new value, if it changed.
pub(super) fn evaluate(rules: &Rules, page: &mut Page) -> Option<Option<u32>> {
    let value = evaluated(rules, page);
    if value == page.delete_at_height {
        return None;
    }
    page.delete_at_height = value;
    Some(value)
}

/// What `deleteAtHeight` should be.
pub(super) fn evaluated(rules: &Rules, page: &Page) -> Option<u32> {
    let Some(master) = page.master.as_deref() else { return page.delete_at_height };
    if rules.retention == 0 || master.preserve_until.is_some() || page.conflicting {
        return page.delete_at_height;
    }
    if !fully_spent(page, master) || master.unmined_since.is_some() {
        return None;
    }
    let mined = master.mined.iter().map(|mined| mined.height).max()?;
    Some(mined.saturating_add(rules.retention)).max(page.delete_at_height)
}

/// A transaction that becomes conflicting at `height` gets a value unless it has one.
pub(super) fn of_conflicting(rules: &Rules, page: &Page, height: u32) -> Option<u32> {
    match page.master.as_deref() {
        Some(master) if rules.retention > 0 && master.preserve_until.is_none() => {
            page.delete_at_height.or(Some(height.saturating_add(rules.retention)))
        }
        _ => page.delete_at_height,
    }
}

/// All slots of all pages are spent.
pub(super) fn fully_spent(page: &Page, master: &Master) -> bool {
    page.all_spent() && master.spent_pages.len() == master.total_extra_recs as usize
}

/// The reply to a change of slots; `changed` is what [`evaluate`] said.
pub(super) fn slots_reply(page: &Page, changed: Option<Option<u32>>) -> Reply {
    Reply::Slots { all_spent: page.all_spent(), delete_at_height: changed }
}
