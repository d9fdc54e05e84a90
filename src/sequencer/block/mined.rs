//! Sets the listed transactions of a block mined, and never skips one.

use std::{collections::BTreeSet, slice};

use crate::{
    engine::Row,
    event::Block,
    record::{Outcome, Rejection, Reply, Sequenced, TxState, Verdict},
    sequencer::{
        SequencerError,
        added_slots::{add_slots, read_and_add_slots},
        block::{
            accept::{accept_listed, are_parents_ready, restore_stub_slots, revive},
            accept_together::{MAX_RUN, accept_together},
            losers::ListedLosers,
            record::put_block,
        },
        context::{BODIES_AT_ONCE, HandlerContext},
        listing::{self, ListedTx, ListedTxReader},
        lost_records::wait_for_bodies,
        mined_outcomes::MinedOutcomes,
        pages::{complete, set_extra_pages_mined},
        second_chances::publish_chances_after_lifting,
        steps::Steps,
        waiting::format_missing_listed,
    },
    text::hex_reversed,
    tx::Txid,
};

/// Bound of the absent transactions of a block that are in memory. Above the bound they are waited for before the next
/// chunk is read.
const MAX_OPEN_IN_MEMORY: usize = 16 * listing::CHUNK;

/// The answer of a listed transaction to `SetMined`.
enum MinedStatus {
    Mined,
    Missing,
    Conflicting,
    Pruned,
}

/// Sets the transactions of one block of the longest chain mined.
pub struct MinedMarker<'a> {
    cx: &'a HandlerContext<'a>,
    block: &'a Block<'a>,
    /// Transactions that are set mined and not published yet.
    outcomes: MinedOutcomes<'a>,
}

impl<'a> MinedMarker<'a> {
    /// Makes a marker for one block.
    pub fn new(cx: &'a HandlerContext<'a>, block: &'a Block<'a>) -> Self {
        MinedMarker { cx, block, outcomes: MinedOutcomes::of_connected(cx, block) }
    }

    /// Adds the coinbase, which was created mined. The coinbase is published with the first listed transactions.
    pub fn add_created_coinbase(&mut self, txid: Txid) {
        self.outcomes.add(txid);
    }

    /// Sets the listed transactions of a block mined, from the first after `done` on, a chunk at a time. The block
    /// record has the progress.
    pub async fn set_listed_mined(&mut self, steps: &mut Steps<'_>, mut done: u64) -> Result<(), SequencerError> {
        let (cx, block) = (self.cx, self.block);
        let count = listing::count_transactions(block);
        let mut listing = ListedTxReader::new(block).skip(done);
        let mut left = Vec::new();
        loop {
            let chunk = listing.read_next(cx).await?;
            if chunk.is_empty() {
                break;
            }
            done += chunk.len() as u64;
            left.extend(self.set_mined_now(steps, chunk).await?);
            if left.len() > MAX_OPEN_IN_MEMORY {
                self.set_all_mined(steps, std::mem::take(&mut left)).await?;
            }
            if left.is_empty() && done < count {
                cx.apply_decided(vec![put_block(cx, block, true, done + 1)]).await?;
            }
        }
        self.set_all_mined(steps, left).await?;
        if count > 0 {
            cx.apply_decided(vec![put_block(cx, block, true, count + 1)]).await?;
        }
        Ok(())
    }

    /// Sets the listed transactions mined, accepts conflicting ones as soon as their parents are live, and waits for
    /// the absent ones.
    pub async fn set_all_mined(&mut self, steps: &mut Steps<'_>, listed: Vec<ListedTx>) -> Result<(), SequencerError> {
        let (cx, block) = (self.cx, self.block);
        let mut open = listed;
        let about = format!("block {} at height {}", hex_reversed(&block.hash), block.height);
        loop {
            let left = self.set_mined_now(steps, open).await?;
            if left.is_empty() {
                return Ok(());
            }
            let marker = &*self;
            cx.wait_until(&about, || async {
                cx.parts.metrics.sequencer_waiting.set(left.len() as i64);
                Ok(match marker.can_any_be_mined(&left).await? {
                    true => Ok(()),
                    false => Err(format_missing_listed(&left.iter().map(|listed| listed.txid).collect::<Vec<_>>())),
                })
            })
            .await?;
            cx.parts.metrics.sequencer_waiting.set(0);
            open = left;
        }
    }

    /// Sets mined what can be set mined now, and publishes these transactions. Returns the transactions that have to be
    /// waited for.
    async fn set_mined_now(
        &mut self,
        steps: &mut Steps<'_>,
        listed: Vec<ListedTx>,
    ) -> Result<Vec<ListedTx>, SequencerError> {
        let (cx, block) = (self.cx, self.block);
        let (conflicting, mut open): (Vec<ListedTx>, Vec<ListedTx>) =
            listed.into_iter().partition(|listed| cx.is_conflicting_at_frontier(&listed.txid));
        self.set_conflicting_mined(&conflicting).await?;
        loop {
            let mut left = Vec::new();
            let mut changed = false;
            let mut statuses = self.set_mined(&open).await?;
            self.set_accepted_later_mined(&open, &mut statuses).await?;
            let has_lost = |(_, status): &(&ListedTx, &MinedStatus)| matches!(status, MinedStatus::Conflicting);
            let lost: Vec<Txid> = open.iter().zip(&statuses).filter(has_lost).map(|(listed, _)| listed.txid).collect();
            let accepted = self.accept_runs(steps, lost.clone(), &open).await?;
            changed |= !accepted.is_empty();
            let alone = lost.into_iter().filter(|txid| !accepted.contains(txid));
            let mut losers = ListedLosers::new(cx, alone);
            for (listed, mined_status) in open.iter().zip(statuses) {
                match mined_status {
                    MinedStatus::Mined => continue,
                    MinedStatus::Missing => {}
                    MinedStatus::Conflicting if accepted.contains(&listed.txid) => {}
                    MinedStatus::Conflicting => {
                        let cx = &losers.next_context(1).await?;
                        changed |= accept_listed(cx, steps, block, listed.txid, &open).await?;
                    }
                    MinedStatus::Pruned => {
                        // Boxed: rare, and else a part of every future here.
                        revive(cx, block, listed.txid).await?;
                        changed = true;
                    }
                }
                left.push(*listed);
            }
            if !changed {
                self.outcomes.publish().await?;
                return Ok(left);
            }
            open = left;
        }
    }

    /// Accepts listed transactions that have lost, many together, while a pass accepts a good part of them: children
    /// follow their parents in the next pass. Returns those that are accepted. A rebuild makes no decision.
    async fn accept_runs(
        &self,
        steps: &mut Steps<'_>,
        mut lost: Vec<Txid>,
        open: &[ListedTx],
    ) -> Result<BTreeSet<Txid>, SequencerError> {
        let mut accepted = BTreeSet::new();
        // The records of one loser alone would be read ahead twice.
        while lost.len() > 1 && !self.cx.is_replay() {
            let (before, wanted) = (accepted.len(), lost.len().div_ceil(4).max(2));
            let mut losers = ListedLosers::new(self.cx, lost.iter().copied());
            for run in lost.chunks(MAX_RUN) {
                let cx = &losers.next_context(run.len()).await?;
                accepted.extend(accept_together(cx, steps, self.block, run, open).await?);
            }
            lost.retain(|txid| !accepted.contains(txid));
            if accepted.len() - before < wanted {
                break;
            }
        }
        Ok(accepted)
    }

    /// Sets mined, in a rebuild, the listed transactions that are conflicting at the frontier, without waiting until
    /// they are live. Their block has been disconnected before the frontier, and the marks of a disconnected block need
    /// only the body.
    async fn set_conflicting_mined(&self, conflicting: &[ListedTx]) -> Result<(), SequencerError> {
        let (cx, block) = (self.cx, self.block);
        for batch in conflicting.chunks(BODIES_AT_ONCE) {
            let txids: Vec<Txid> = batch.iter().map(|listed| listed.txid).collect();
            let masters = wait_for_bodies(cx, &txids).await?;
            for tombstone in masters.iter().filter(|page| page.pruned.is_some()) {
                revive(cx, block, tombstone.txid).await?;
            }
            for master in &masters {
                Box::pin(add_slots(cx, master, block.height)).await?;
            }
            let rows: Vec<Row> = batch.iter().map(|listed| listed.row(cx, block, Sequenced::WasMined)).collect();
            cx.apply_decided(rows).await?;
            for (listed, master) in batch.iter().zip(masters) {
                if master.extra_pages() > 0 {
                    let was_mined = Sequenced::WasMined(listed.mined_in(block));
                    set_extra_pages_mined(cx, listed.txid, &was_mined, block.height).await?;
                }
            }
        }
        Ok(())
    }

    /// Sets mined, in a rebuild, the transactions that a verdict at a later offset accepts. The verdicts of this event
    /// are applied already: such a transaction was live at this event, and is contested in the rebuild because another
    /// event has needed it before its own event was read.
    async fn set_accepted_later_mined(
        &self,
        listed: &[ListedTx],
        statuses: &mut [MinedStatus],
    ) -> Result<(), SequencerError> {
        for (listed, status) in listed.iter().zip(statuses) {
            if matches!(status, MinedStatus::Conflicting)
                && self.cx.is_live_at_frontier(&listed.txid)
                && self.cx.master(listed.txid).await?.is_some_and(|page| !page.is_coinbase)
            {
                self.set_conflicting_mined(slice::from_ref(listed)).await?;
                *status = MinedStatus::Mined;
            }
        }
        Ok(())
    }

    /// Returns whether a waiting transaction can be set mined or accepted now.
    async fn can_any_be_mined(&self, waiting: &[ListedTx]) -> Result<bool, SequencerError> {
        let (cx, block) = (self.cx, self.block);
        let txids: Vec<Txid> = waiting.iter().map(|listed| listed.txid).collect();
        for page in cx.masters(&txids).await?.into_iter().flatten() {
            match page.state() {
                TxState::Live => return Ok(true),
                // The attempt that revived the tombstone ended before it restored the slots.
                TxState::Stub(_) if Box::pin(restore_stub_slots(cx, block.height, &page)).await? => return Ok(true),
                TxState::Conflicting(_) if cx.is_live_at_frontier(&page.txid) && !page.is_coinbase => return Ok(true),
                TxState::Conflicting(_) if are_parents_ready(cx, block.height, &page, waiting).await? => {
                    return Ok(true);
                }
                _ => {}
            }
        }
        Ok(false)
    }

    async fn set_mined(&mut self, open: &[ListedTx]) -> Result<Vec<MinedStatus>, SequencerError> {
        let (cx, block) = (self.cx, self.block);
        let mut statuses = Vec::with_capacity(open.len());
        let set_mined = |mined_in| Sequenced::SetMined { mined_in, longest_chain: true };
        let row = |listed: &ListedTx| listed.row(cx, block, set_mined);
        for batch in open.chunks(listing::CHUNK) {
            let mut outcomes = cx.apply(batch.iter().map(row).collect()).await?;
            for (listed, outcome) in batch.iter().zip(&mut outcomes) {
                if *outcome == Outcome::Rejected(Rejection::Creating) {
                    complete(cx, &[listed.txid]).await?;
                    *outcome = cx.apply_row(row(listed)).await?;
                }
                if matches!(outcome, Outcome::Rejected(Rejection::MissingSlots(_))) {
                    // Boxed: rare, and else a part of every future here.
                    Box::pin(read_and_add_slots(cx, listed.txid, block.height)).await?;
                    *outcome = cx.apply_row(row(listed)).await?;
                }
                if has_extra_pages(outcome) {
                    set_extra_pages_mined(cx, listed.txid, &set_mined(listed.mined_in(block)), block.height).await?;
                }
            }
            let mut parents = Vec::new();
            for (outcome, listed) in outcomes.into_iter().zip(batch) {
                if has_conflicting_children(&outcome) {
                    parents.push(listed.txid);
                }
                let status = mined_status(outcome, listed)?;
                if let MinedStatus::Mined = status {
                    self.outcomes.add(listed.txid);
                }
                statuses.push(status);
            }
            publish_chances_after_lifting(cx, &parents, None).await?;
        }
        Ok(statuses)
    }
}

fn has_extra_pages(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Applied(Reply::Mined { extra_pages, .. })
        | Outcome::AlreadyApplied(Reply::Mined { extra_pages, .. }) => *extra_pages > 0,
        _ => false,
    }
}

fn has_conflicting_children(outcome: &Outcome) -> bool {
    matches!(
        outcome,
        Outcome::Applied(Reply::Mined { conflicting_children: true, .. })
            | Outcome::AlreadyApplied(Reply::Mined { conflicting_children: true, .. })
    )
}

fn mined_status(outcome: Outcome, listed: &ListedTx) -> Result<MinedStatus, SequencerError> {
    match outcome {
        Outcome::Applied(_) | Outcome::AlreadyApplied(_) | Outcome::Rejected(Rejection::StaleStamp(_)) => {
            Ok(MinedStatus::Mined)
        }
        Outcome::Rejected(Rejection::Conflicting(Verdict::Pending | Verdict::Conflicting(_))) => {
            Ok(MinedStatus::Conflicting)
        }
        Outcome::Rejected(Rejection::NotFound | Rejection::Creating | Rejection::Conflicting(Verdict::Accepted)) => {
            Ok(MinedStatus::Missing)
        }
        Outcome::Rejected(Rejection::Pruned(_)) => Ok(MinedStatus::Pruned),
        Outcome::Rejected(rejection) => {
            Err(SequencerError::Halt(format!("{} cannot be set mined: {rejection:?}", listed.txid)))
        }
    }
}
