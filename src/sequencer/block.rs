//! A block that joins the longest chain, by `BlockMined` or by a `Reorg`: create the coinbase, set every listed
//! transaction mined, never skip one. A block of a side chain decides nothing and waits for nothing.

mod accept;
mod accept_together;
mod coinbase;
mod lift;
mod losers;
mod mined;
mod record;
mod repeated_coinbase;
mod side_chain;

use std::{collections::BTreeSet, slice, sync::Arc};

use bytes::Bytes;

use crate::{
    event::{Block, DecisionBody},
    record::{Key, Outcome, Phase, Reason, Rejection, Reply, Sequenced, TxState, build::Pages},
    sequencer::{
        SequencerError,
        context::HandlerContext,
        decisions::DecisionLog,
        descendants::Descendants,
        listing::{self, ListedTx, check_objects},
        pages::{create_contested, create_paged},
        second_chances::publish_second_chances,
        steps::Steps,
        verdict::apply_verdict,
    },
    store::create::{InitialState, PagedTx},
    text::hex_reversed,
    tx::Txid,
};

use coinbase::{build_coinbase_pages, cannot_be_stored};
use lift::lift_bars;
use mined::MinedMarker;
use record::check_follows_import;
use repeated_coinbase::update_maturity;
use side_chain::apply_side_block;

pub use coinbase::{check_coinbase, parse_coinbase};
pub use record::{check_follows, check_ids, put_block, read_block_records, read_meta, read_progress};
pub use repeated_coinbase::fall_back_to_earlier_block;

/// The state in which a block finds its coinbase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CoinbaseStatus {
    /// Created by this event, mined; or changed by a later event.
    Created,
    /// Live before this event.
    Live,
    /// Conflicting: the block was on a side chain, or its coinbase belongs to a block that was disconnected.
    Conflicting,
}

/// A block with its record and its coinbase stored, before its listed transactions.
struct BegunBlock {
    /// Listed transactions that an earlier attempt at this event has finished.
    done: u64,
    /// The txid of the coinbase.
    txid: Txid,
    coinbase: CoinbaseStatus,
}

/// Handles one block-mined event.
pub struct BlockHandler<'a> {
    cx: &'a HandlerContext<'a>,
    block: &'a Block<'a>,
    /// The message of the event, which holds the coinbase.
    message: &'a Bytes,
}

impl<'a> BlockHandler<'a> {
    /// Makes a handler of a block in `message`.
    pub fn new(cx: &'a HandlerContext<'a>, block: &'a Block<'a>, message: &'a Bytes) -> Self {
        BlockHandler { cx, block, message }
    }

    /// Handles the block of a `BlockMined`.
    pub async fn handle(&self, log: &mut DecisionLog) -> Result<(), SequencerError> {
        let BlockHandler { cx, block, message } = *self;
        if !block.longest_chain {
            return apply_side_block(cx, block, message).await;
        }
        check_follows(cx.state.tip, block).map_err(SequencerError::Halt)?;
        check_follows_import(cx, block).await?;
        check_ids(cx, slice::from_ref(block)).await?;
        check_coinbase(cx, block, message).await?;
        check_objects(cx, block).await?;
        Box::pin(connect(cx, &mut Steps::new(log, cx.offset, cx.mode), slice::from_ref(block), message)).await
    }

    /// Creates the coinbase, mined, and the block record. Both are rows of one request, the only one of an empty block.
    async fn begin(&self) -> Result<BegunBlock, SequencerError> {
        let BlockHandler { cx, block, message } = *self;
        let done = read_progress(cx, block, true).await?;
        let (txid, pages) = build_coinbase_pages(cx, block, message, true)?;
        let put_block = put_block(cx, block, true, done + 1);
        let outcomes = match pages.clone() {
            Pages { master, others: None } => {
                let create = cx.row(Phase::Apply, Key::master(txid), Sequenced::CreateCoinbase(master.into()));
                cx.apply(vec![create, put_block]).await?
            }
            Pages { master, others: Some(others) } => {
                let initial_state = InitialState::Coinbase(cx.stamp(Phase::Apply));
                let created =
                    create_paged(cx, &PagedTx { master: master.into(), others: others.into(), initial_state }).await?;
                [vec![created], cx.apply(vec![put_block]).await?].concat()
            }
        };
        if let Outcome::Rejected(rejection) = &outcomes[1]
            && !matches!(rejection, Rejection::StaleStamp(_))
        {
            return Err(SequencerError::Halt(format!(
                "block {} cannot be stored under its id {}: {}",
                hex_reversed(&block.hash),
                block.block_id,
                rejection.code()
            )));
        }
        let coinbase = match &outcomes[0] {
            Outcome::Applied(Reply::None) => CoinbaseStatus::Created,
            // The create filled a stub: a child was contested as without its parent before the block.
            Outcome::Applied(_) => {
                self.publish_chances_of_children(txid).await?;
                CoinbaseStatus::Created
            }
            // A later event of the chain has changed the coinbase: this event was done before.
            Outcome::Rejected(Rejection::StaleStamp(_)) => CoinbaseStatus::Created,
            // Stored before, by this block or by another block with the same coinbase.
            Outcome::AlreadyApplied(_) => CoinbaseStatus::Live,
            Outcome::Rejected(Rejection::Exists(TxState::Conflicting(_))) => CoinbaseStatus::Conflicting,
            // A verdict made the coinbase conflicting after a node had lost its record.
            Outcome::Rejected(Rejection::Exists(TxState::Stub(_))) => {
                create_contested(cx, pages.master.into(), pages.others.map(Arc::new)).await?;
                CoinbaseStatus::Conflicting
            }
            Outcome::Rejected(rejection) => return Err(cannot_be_stored(block, txid, rejection)),
        };
        if coinbase == CoinbaseStatus::Created && !matches!(outcomes[0], Outcome::Rejected(_)) {
            cx.parts.tx_notifier.notify_created(txid);
        }
        Ok(BegunBlock { done, txid, coinbase })
    }

    /// Connects the block. Returns whether the block could need a decision; a new coinbase alone needs none.
    async fn connect_begun(&self, steps: &mut Steps<'_>, begun: BegunBlock) -> Result<bool, SequencerError> {
        let BlockHandler { cx, block, .. } = *self;
        let BegunBlock { done, txid, coinbase } = begun;
        let mut marker = MinedMarker::new(cx, block);
        if coinbase == CoinbaseStatus::Created {
            marker.add_created_coinbase(txid);
        } else {
            marker.set_all_mined(steps, vec![ListedTx { txid, subtree: 0 }]).await?;
            // Boxed: rare, and else a part of every future here.
            Box::pin(update_maturity(cx, steps, block, txid)).await?;
            cx.parts.tx_notifier.notify_created(txid);
        }
        if coinbase == CoinbaseStatus::Live {
            self.publish_chances_of_children(txid).await?;
        }
        marker.set_listed_mined(steps, done).await?;
        Ok(coinbase != CoinbaseStatus::Created || listing::count_transactions(block) > 0)
    }

    /// Publishes second chances for the children of the coinbase.
    async fn publish_chances_of_children(&self, coinbase: Txid) -> Result<(), SequencerError> {
        publish_second_chances(self.cx, &BTreeSet::new(), &[coinbase], &Descendants::default()).await
    }
}

/// Connects blocks to the longest chain, oldest first, and closes the decisions on the event. Idempotent: an
/// interrupted event is connected again from its beginning.
pub async fn connect(
    cx: &HandlerContext<'_>,
    steps: &mut Steps<'_>,
    blocks: &[Block<'_>],
    message: &Bytes,
) -> Result<(), SequencerError> {
    loop {
        lift_bars(cx, steps.lifted_outputs(), blocks).await?;
        let mut begun = Vec::with_capacity(blocks.len());
        for block in blocks {
            begun.push(Box::pin(BlockHandler::new(cx, block, message).begin()).await?);
        }
        // After all blocks have begun: the decisions of an earlier attempt can be in another order than the blocks.
        while let Some(body) = steps.take_existing_matching(is_verdict_of_block) {
            apply_verdict(cx, steps, body).await?;
        }
        let mut may_decide = false;
        for (block, begun) in blocks.iter().zip(begun) {
            may_decide |= Box::pin(BlockHandler::new(cx, block, message).connect_begun(steps, begun)).await?;
        }
        // Another sequencer may handle the same event: its decisions are carried out before the next event.
        if (!may_decide && !steps.has_decisions()) || close_decisions(cx, steps).await? {
            return Ok(());
        }
    }
}

/// Closes the decisions on an event that connects blocks, if there are any. Returns `false` when the log has more
/// decisions.
///
/// An event without decisions is not closed in the log. A listed transaction that another sequencer's decision has
/// accepted becomes live only after that decision is in the log, so reading the log once more finds the decision.
async fn close_decisions(cx: &HandlerContext<'_>, steps: &mut Steps<'_>) -> Result<bool, SequencerError> {
    if !steps.has_decisions() {
        steps.catch_up().await?;
        return Ok(!steps.has_existing());
    }
    match steps.decide(async { Ok(DecisionBody::Closed) }).await? {
        DecisionBody::Closed => Ok(true),
        body => {
            apply_verdict(cx, steps, body).await?;
            Ok(false)
        }
    }
}

/// Returns whether a decision is a verdict of an event that connects blocks: a listed transaction is accepted, or a
/// spender of a coinbase that comes twice is too young.
fn is_verdict_of_block(body: &DecisionBody) -> bool {
    match body {
        DecisionBody::Accepted { .. } => true,
        DecisionBody::Conflicting { reason, .. } => matches!(reason, Reason::Immature { .. }),
        _ => false,
    }
}
