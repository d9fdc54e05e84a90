//! The rule of `deleteAtHeight`, the height from which the pruner considers a transaction: `semantics.md`,
//! "deleteAtHeight".

use crate::record::{Master, Page, Reply, Rules};

/// Updates `deleteAtHeight` of a master and returns the new value if the value changed. Other pages get copies only.
pub(super) fn update(rules: &Rules, page: &mut Page) -> Option<Option<u32>> {
    let value = compute(rules, page);
    if value == page.delete_at_height {
        return None;
    }
    page.delete_at_height = value;
    Some(value)
}

/// Computes the value of `deleteAtHeight` by the rule.
pub(super) fn compute(rules: &Rules, page: &Page) -> Option<u32> {
    let Some(master) = page.master.as_deref() else { return page.delete_at_height };
    if rules.retention == 0 || page.conflicting {
        return page.delete_at_height;
    }
    if !is_fully_spent(page, master) || master.unmined_since.is_some() {
        return None;
    }
    // The record does not say which block is on the longest chain. The least height makes the value never too late.
    let mined = master.mined.iter().map(|mined| mined.height).min()?;
    Some(mined.saturating_add(rules.retention)).max(master.preserve_until).max(page.delete_at_height)
}

/// Computes `deleteAtHeight` of a transaction that becomes conflicting by a decision at `height`; the last decision
/// counts.
pub(super) fn compute_for_conflicting(rules: &Rules, page: &Page, height: u32) -> Option<u32> {
    match page.master.as_deref() {
        Some(master) if rules.retention > 0 => Some(height.saturating_add(rules.retention)).max(master.preserve_until),
        _ => page.delete_at_height,
    }
}

/// Returns `true` if all slots of all pages are spent.
pub(super) fn is_fully_spent(page: &Page, master: &Master) -> bool {
    page.is_all_spent() && master.spent_pages.len() == master.total_extra_recs as usize
}

/// Returns the reply to a change of slots; `changed` is the result of [`update`].
pub(super) fn slots_reply(page: &Page, changed: Option<Option<u32>>) -> Reply {
    Reply::Slots { all_spent: page.is_all_spent(), delete_at_height: changed }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Verdict;
    use crate::record::ops::testing::*;

    /// Returns a transaction without slots, mined at these heights on the longest chain.
    fn fully_spent(heights: &[u32]) -> Page {
        let mut page = live(0);
        master(&mut page).mined = heights.iter().map(|height| mined(*height)).collect();
        master(&mut page).unmined_since = None;
        page
    }

    #[test]
    fn the_retention_counts_from_the_least_mined_height() {
        assert_eq!(compute(&RULES, &fully_spent(&[20, 10, 30])), Some(10 + 288));
    }

    #[test]
    fn delete_at_height_is_at_least_preserve_until() {
        for (until, due) in [(100, 298), (1_000, 1_000)] {
            let mut page = fully_spent(&[10]);
            master(&mut page).preserve_until = Some(until);
            assert_eq!(compute(&RULES, &page), Some(due));
            page.record_utxos = 1;
            assert_eq!(compute(&RULES, &page), None);
            let mut page = contested(1, Verdict::Pending);
            master(&mut page).preserve_until = Some(until);
            assert_eq!(compute_for_conflicting(&RULES, &page, 10), Some(due));
        }
    }

    #[test]
    fn the_value_is_only_raised() {
        let page = |stored| Page { delete_at_height: Some(stored), ..fully_spent(&[10]) };
        assert_eq!(compute(&RULES, &page(900)), Some(900));
        assert_eq!(compute(&RULES, &page(9)), Some(298));
    }

    #[test]
    fn the_value_is_cleared_when_the_rule_no_longer_holds() {
        let assert_cleared = |change: &dyn Fn(&mut Page)| {
            let mut page = Page { delete_at_height: Some(298), ..fully_spent(&[10]) };
            change(&mut page);
            assert_eq!(update(&RULES, &mut page), Some(None));
            assert_eq!(update(&RULES, &mut page), None, "a repeat changes nothing");
        };
        assert_cleared(&|page| page.record_utxos = 1);
        assert_cleared(&|page| master(page).mined.clear());
        assert_cleared(&|page| master(page).unmined_since = Some(0));
        assert_cleared(&|page| master(page).total_extra_recs = 1);
    }

    #[test]
    fn the_value_stays_where_the_rule_does_not_apply() {
        for stored in [None, Some(7)] {
            let page = Page { delete_at_height: stored, ..fully_spent(&[10]) };
            assert_eq!(compute(&Rules::main(0), &page), stored);
            assert_eq!(compute(&RULES, &Page { master: None, ..page.clone() }), stored);
            assert_eq!(compute(&RULES, &Page { conflicting: true, ..page }), stored);
        }
    }

    #[test]
    fn a_conflicting_transaction_is_due_by_its_last_decision() {
        let mut page = contested(1, Verdict::Pending);
        for stored in [None, Some(100), Some(900)] {
            page.delete_at_height = stored;
            assert_eq!(compute_for_conflicting(&RULES, &page, 50), Some(338));
            assert_eq!(compute_for_conflicting(&RULES, &page, u32::MAX), Some(u32::MAX));
            assert_eq!(compute_for_conflicting(&Rules::main(0), &page, 50), stored);
        }
    }
}
