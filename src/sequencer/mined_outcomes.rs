//! Outcomes of a block: the transactions that the block has mined, or has left unmined.

use crate::{
    broker::produce_until_acknowledged,
    event::{Block, OutcomeChange},
    group::outcomes::{GatheredTxids, PartitionTxids},
    sequencer::{SequencerError, context::HandlerContext, waiting::POLL_PAUSE},
    tx::Txid,
};

/// Gathers transactions of one block, and publishes them as mined or as unmined. Does nothing in a rebuild, and where
/// these outcomes are switched off.
pub struct MinedOutcomes<'a> {
    cx: &'a HandlerContext<'a>,
    change: OutcomeChange,
    /// Gathered transactions; `None`: nothing is published.
    gathered: Option<GatheredTxids<()>>,
    /// Gathered transactions that fill messages.
    full: Vec<PartitionTxids<()>>,
}

impl<'a> MinedOutcomes<'a> {
    /// Makes outcomes of a block that joins the longest chain.
    pub fn of_connected(cx: &'a HandlerContext<'a>, block: &Block<'_>) -> Self {
        let Block { block_id, height, hash, .. } = *block;
        Self::new(cx, OutcomeChange::Mined { chain_offset: cx.offset, block_id, height, hash })
    }

    /// Makes outcomes of a block that leaves the longest chain.
    pub fn of_disconnected(cx: &'a HandlerContext<'a>, block: &Block<'_>) -> Self {
        let Block { block_id, height, hash, .. } = *block;
        Self::new(cx, OutcomeChange::Unmined { chain_offset: cx.offset, block_id, height, hash })
    }

    fn new(cx: &'a HandlerContext<'a>, change: OutcomeChange) -> Self {
        let is_published = cx.parts.settings.mined_outcomes && !cx.is_replay();
        let gathered = is_published.then(|| GatheredTxids::new(cx.parts.outcomes.partitions));
        MinedOutcomes { cx, change, gathered, full: Vec::new() }
    }

    /// Adds a transaction whose record is written.
    pub fn add(&mut self, txid: Txid) {
        self.full.extend(self.gathered.as_mut().and_then(|gathered| gathered.add(txid, ())));
    }

    /// Publishes the added transactions and waits for the acknowledgement. Comes before the progress of the block is
    /// recorded: a repeat of the event continues after the progress.
    pub async fn publish(&mut self) -> Result<(), SequencerError> {
        let parts = self.cx.parts;
        let full = std::mem::take(&mut self.full);
        let batches: Vec<_> =
            full.into_iter().chain(self.gathered.iter_mut().flat_map(GatheredTxids::take_all)).collect();
        if batches.is_empty() {
            return Ok(());
        }
        let mut count = 0;
        let message = |batch: PartitionTxids<()>| {
            let (message, added) = batch.into_message(&parts.outcomes.name, self.change);
            count += added.len() as u64;
            message
        };
        let messages: Vec<_> = batches.into_iter().map(message).collect();
        let produced = produce_until_acknowledged(parts.producer.as_ref(), &messages, POLL_PAUSE);
        self.cx.wait_for("the log", produced).await?;
        parts.metrics.published_outcomes.of(self.change.into()).inc_by(count);
        Ok(())
    }
}
