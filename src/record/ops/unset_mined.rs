//! `UnsetMined`: removes a block that a reorg has disconnected from the blocks that list the transaction.

use std::sync::Arc;

use crate::record::{Record, Rejection, Reply, Rules, TxState};

use super::{Effect, delete_at_height, find_page, set_mined::mined_reply};

pub(super) fn apply(
    rules: &Rules,
    record: &mut Option<Record>,
    block_id: u32,
    height: u32,
) -> Result<Effect, Rejection> {
    let Some(page) = find_page(record)? else {
        return Ok(Effect::already_applied(Reply::None, false));
    };
    if let state @ TxState::Pruned(_) = page.state() {
        return Ok(Effect::already_applied(Reply::State(state), false));
    }
    // The block's triple is compared: a repeat must not undo a `SetMined` of a block that the same event connects.
    let listed = page.master.as_deref().and_then(|m| m.mined.iter().position(|mined| mined.block_id == block_id));
    let Some(listed) = listed else {
        return Ok(Effect::already_applied(mined_reply(page), false));
    };
    let page = Arc::make_mut(page);
    if let Some(master) = &mut page.master {
        master.mined.remove(listed);
        master.unmined_since = Some(master.unmined_since.map_or(height, |since| since.min(height)));
    }
    delete_at_height::update(rules, page);
    Ok(Effect::applied(mined_reply(page)))
}

#[cfg(test)]
mod tests {
    use crate::record::ops::testing::*;
    use crate::record::*;

    fn unset(height: u32) -> Operation {
        sequenced(1, Sequenced::UnsetMined { block_id: height, height })
    }

    fn block_ids(ids: &[u32]) -> Reply {
        Reply::Mined { block_ids: ids.to_vec(), extra_pages: 0, conflicting_children: false }
    }

    fn mined_page(heights: &[u32], unmined_since: Option<u32>) -> Page {
        let mut page = live(0);
        master(&mut page).mined = heights.iter().map(|height| mined(*height)).collect();
        master(&mut page).unmined_since = unmined_since;
        page.delete_at_height = Some(500);
        page
    }

    #[test]
    fn the_triple_is_removed_and_the_earliest_height_stays() {
        for (stored, then) in [(None, 120), (Some(90), 90), (Some(130), 120)] {
            let mut record = record(mined_page(&[110, 120], stored));
            assert_eq!(on_master(&mut record, &unset(120)).outcome, applied(block_ids(&[110])));
            let page = page(&record);
            assert_eq!(page.master.as_ref().unwrap().unmined_since, Some(then));
            assert_eq!(page.delete_at_height, None);
        }
    }

    #[test]
    fn a_repeat_does_not_undo_the_next_block() {
        let mut record = record(mined_page(&[120], None));
        on_master(&mut record, &unset(120));
        let next = sequenced(1, Sequenced::SetMined { mined_in: mined(121), longest_chain: true });
        on_master(&mut record, &next);
        assert_eq!(on_master(&mut record, &unset(120)).outcome, already(block_ids(&[121])));
        assert_eq!(page(&record).master.as_ref().unwrap().unmined_since, None);
    }

    #[test]
    fn an_absent_record_or_triple_is_no_error() {
        assert_eq!(on_master(&mut None, &unset(120)).outcome, already(Reply::None));
        let outcome = on_master(&mut record(tombstone(5, None)), &unset(120)).outcome;
        assert_eq!(outcome, already(Reply::State(TxState::Pruned(5))));
        let outcome = on_master(&mut record(stub(Verdict::Pending)), &unset(120)).outcome;
        assert_eq!(outcome, already(block_ids(&[])));
        assert_eq!(on(&Key::Page(TXID, 1), &mut record(second_page(1)), &unset(1)).outcome, already(Reply::None));
    }

    #[test]
    fn a_conflicting_transaction_stays_due() {
        let page = Page { conflicting: true, ..mined_page(&[120], None) };
        let mut record = record(page);
        on_master(&mut record, &unset(120));
        assert_eq!(self::page(&record).delete_at_height, Some(500));
    }
}
