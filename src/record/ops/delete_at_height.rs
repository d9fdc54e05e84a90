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
    if rules.retention == 0 || page.conflicting {
        return page.delete_at_height;
    }
    if !fully_spent(page, master) || master.unmined_since.is_some() {
        return None;
    }
    // Which of several blocks is on the longest chain is not known here: the hint is never late.
    let mined = master.mined.iter().map(|mined| mined.height).min()?;
    Some(mined.saturating_add(rules.retention)).max(master.preserve_until).max(page.delete_at_height)
}

/// Of a transaction that becomes conflicting by a decision at `height`: the last one counts.
pub(super) fn of_conflicting(rules: &Rules, page: &Page, height: u32) -> Option<u32> {
    match page.master.as_deref() {
        Some(master) if rules.retention > 0 => Some(height.saturating_add(rules.retention)).max(master.preserve_until),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Verdict;
    use crate::record::ops::testing::*;

    /// A transaction without slots, mined at these heights on the longest chain.
    fn done(heights: &[u32]) -> Page {
        let mut page = live(0);
        master(&mut page).mined = heights.iter().map(|height| mined(*height)).collect();
        master(&mut page).unmined_since = None;
        page
    }

    #[test]
    fn retention_after_the_least_mined_height_since_any_of_them_may_be_of_a_side_chain() {
        assert_eq!(evaluated(&RULES, &done(&[20, 10, 30])), Some(10 + 288));
    }

    #[test]
    fn not_before_it_is_preserved_no_longer() {
        for (until, due) in [(100, 298), (1_000, 1_000)] {
            let mut page = done(&[10]);
            master(&mut page).preserve_until = Some(until);
            assert_eq!(evaluated(&RULES, &page), Some(due));
            page.record_utxos = 1;
            assert_eq!(evaluated(&RULES, &page), None);
            let mut page = contested(1, Verdict::Pending);
            master(&mut page).preserve_until = Some(until);
            assert_eq!(of_conflicting(&RULES, &page, 10), Some(due));
        }
    }

    #[test]
    fn only_raised() {
        let page = |there| Page { delete_at_height: Some(there), ..done(&[10]) };
        assert_eq!(evaluated(&RULES, &page(900)), Some(900));
        assert_eq!(evaluated(&RULES, &page(9)), Some(298));
    }

    #[test]
    fn cleared_when_the_rule_no_longer_holds() {
        let no_longer = |change: &dyn Fn(&mut Page)| {
            let mut page = Page { delete_at_height: Some(298), ..done(&[10]) };
            change(&mut page);
            assert_eq!(evaluate(&RULES, &mut page), Some(None));
            assert_eq!(evaluate(&RULES, &mut page), None, "it has not changed again");
        };
        no_longer(&|page| page.record_utxos = 1);
        no_longer(&|page| master(page).mined.clear());
        no_longer(&|page| master(page).unmined_since = Some(0));
        no_longer(&|page| master(page).total_extra_recs = 1);
    }

    #[test]
    fn untouched_where_the_rule_does_not_apply() {
        for there in [None, Some(7)] {
            let page = Page { delete_at_height: there, ..done(&[10]) };
            assert_eq!(evaluated(&Rules::main(0), &page), there);
            assert_eq!(evaluated(&RULES, &Page { master: None, ..page.clone() }), there);
            assert_eq!(evaluated(&RULES, &Page { conflicting: true, ..page }), there);
        }
    }

    #[test]
    fn a_conflicting_transaction_is_due_by_its_last_decision() {
        let mut page = contested(1, Verdict::Pending);
        for there in [None, Some(100), Some(900)] {
            page.delete_at_height = there;
            assert_eq!(of_conflicting(&RULES, &page, 50), Some(338));
            assert_eq!(of_conflicting(&RULES, &page, u32::MAX), Some(u32::MAX));
            assert_eq!(of_conflicting(&Rules::main(0), &page, 50), there);
        }
    }
}
