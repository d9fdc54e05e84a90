//! `Reorg`: blocks are disconnected from the longest chain, newest first, and others are connected, oldest first.
//!
//! A reorg is idempotent and is repeated from its beginning. Writes of the part that disconnects have an earlier stamp
//! than writes of the part that connects ([`HandlerContext::latest_phase`]).

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::{
    event::{Block, DecisionBody, Reorg},
    record::{BlockRecord, Key, Phase, Reason, Sequenced},
    sequencer::{
        SequencerError,
        block::{
            check_coinbase, check_follows, check_ids, connect, fall_back_to_earlier_block, parse_coinbase, put_block,
            read_block_records, read_meta, read_progress,
        },
        context::HandlerContext,
        decisions::DecisionLog,
        holders::{HolderState, contest_holder},
        listing::{self, ListedTxReader, check_objects},
        mined_outcomes::MinedOutcomes,
        state::Tip,
        steps::Steps,
        verdict::{apply_verdict, decided_txid},
    },
    text::hex_reversed,
    tx::Txid,
};

/// Handles one reorg event.
pub struct ReorgHandler<'a> {
    cx: &'a HandlerContext<'a>,
    reorg: &'a Reorg<'a>,
    /// The message of the event, which holds the coinbases.
    message: &'a Bytes,
}

impl<'a> ReorgHandler<'a> {
    /// Makes a handler of a reorg in `message`.
    pub fn new(cx: &'a HandlerContext<'a>, reorg: &'a Reorg<'a>, message: &'a Bytes) -> Self {
        ReorgHandler { cx, reorg, message }
    }

    /// Handles the reorg. Returns the tip after the reorg.
    pub async fn handle(&self, log: &mut DecisionLog) -> Result<Option<Tip>, SequencerError> {
        let ReorgHandler { cx, reorg, message } = *self;
        let tip = self.check().await?;
        let mut steps = Steps::new(log, cx.offset, cx.mode);
        for block in reorg.disconnected.iter().rev() {
            let cx = &HandlerContext { latest_phase: Phase::Evaluate, ..*cx };
            Box::pin(disconnect(cx, &mut steps, block)).await?;
        }
        Box::pin(connect(cx, &mut steps, &reorg.connected, message)).await?;
        Ok(tip)
    }

    /// Refuses a reorg that does not fit the chain, before its first write. Returns the tip after the reorg.
    async fn check(&self) -> Result<Option<Tip>, SequencerError> {
        let ReorgHandler { cx, reorg, message } = *self;
        let wrong = |why: String| SequencerError::Halt(format!("reorg with sequence {}: {why}", reorg.sequence));
        let tip = compute_tip(cx.state.tip, reorg).map_err(wrong)?;
        let Reorg { disconnected, connected, .. } = reorg;
        let records = read_block_records(cx, disconnected.iter().map(|block| block.block_id)).await?;
        // A reorg that was begun is done to its end, whatever was pruned since: its check has passed before.
        let is_of_this = |record: &BlockRecord| record.chain_pos.is_some_and(|pos| pos.chain_offset() == cx.offset);
        if !cx.is_replay() && !records.iter().flatten().any(is_of_this) {
            check_depth(cx, disconnected).await?.map_or(Ok(()), |why| Err(wrong(why)))?;
        }
        for (block, record) in disconnected.iter().zip(records) {
            if !record.is_some_and(|record| is_record_of(&record, block)) {
                return Err(match !cx.is_replay() && cx.has_node_restarted().await? {
                    true => SequencerError::NodeRestarted,
                    false => wrong(format!("block {} was never connected", hex_reversed(&block.hash))),
                });
            }
        }
        check_ids(cx, connected).await?;
        for block in disconnected.iter().chain(connected) {
            parse_coinbase(block)?;
            check_objects(cx, block).await?;
        }
        for block in connected {
            check_coinbase(cx, block, message).await?;
        }
        Ok(tip)
    }
}

/// Returns the reason why a block cannot be disconnected: its listed transactions may have been pruned, and a
/// pruned transaction cannot become unmined again.
async fn check_depth(cx: &HandlerContext<'_>, disconnected: &[Block<'_>]) -> Result<Option<String>, SequencerError> {
    let floor = read_meta(cx).await?.map_or(0, |meta| meta.reorg_floor);
    let too_deep = disconnected.iter().find(|block| block.height <= floor && floor > 0);
    Ok(too_deep.map(|block| {
        format!(
            "block {} at height {} is to leave, but transactions mined up to height {floor} may have been pruned \
             (store.block_height_retention), or came with a UTXO-set file; rebuild into an empty set without pruning, \
             or import a file of an earlier block, and continue with that set",
            hex_reversed(&block.hash),
            block.height
        )
    }))
}

/// Disconnects a block: its listed transactions become unmined; its coinbase and the descendants of the coinbase
/// become conflicting.
async fn disconnect(cx: &HandlerContext<'_>, steps: &mut Steps<'_>, block: &Block<'_>) -> Result<(), SequencerError> {
    let coinbase = parse_coinbase(block)?.txid();
    let mut done = read_progress(cx, block, false).await?;
    let mut outcomes = MinedOutcomes::of_disconnected(cx, block);
    cx.apply_decided(vec![put_block(cx, block, false, done + 1)]).await?;
    unset_mined(cx, block, &[coinbase], &mut outcomes).await?;
    let mut listing = ListedTxReader::new(block).skip(done);
    loop {
        let chunk = listing.read_next(cx).await?;
        if chunk.is_empty() {
            break;
        }
        done += chunk.len() as u64;
        let txids: Vec<Txid> = chunk.into_iter().map(|listed| listed.txid).collect();
        unset_mined(cx, block, &txids, &mut outcomes).await?;
        outcomes.publish().await?;
        if done < listing::count_transactions(block) {
            cx.apply_decided(vec![put_block(cx, block, false, done + 1)]).await?;
        }
    }
    outcomes.publish().await?;
    // Compared with the height, too: of two disconnected blocks with one coinbase only the earlier has a decision.
    let is_of_block = |body: &DecisionBody| match body {
        DecisionBody::Conflicting { txid, reason: Reason::Disconnected, height, .. } => {
            (*txid, *height) == (coinbase, block.height)
        }
        _ => false,
    };
    let body = match steps.take_existing_matching(is_of_block) {
        Some(body) => body,
        // Boxed: rare, and else a part of every future here.
        None if Box::pin(fall_back_to_earlier_block(cx, block, coinbase)).await? => return Ok(()),
        None => steps.decide(Box::pin(evaluate_disconnected(cx, coinbase, block.height))).await?,
    };
    if decided_txid(&body) != Some(coinbase) {
        let name = hex_reversed(&block.hash);
        return Err(cx.halt(format_args!("block {name} leaves, but {body:?}")));
    }
    apply_verdict(cx, steps, body).await
}

async fn unset_mined(
    cx: &HandlerContext<'_>,
    block: &Block<'_>,
    txids: &[Txid],
    outcomes: &mut MinedOutcomes<'_>,
) -> Result<(), SequencerError> {
    let unset = Sequenced::UnsetMined { block_id: block.block_id, height: block.height };
    let rows = txids.iter().map(|txid| cx.row(Phase::Apply, Key::master(*txid), unset.clone()));
    cx.apply_decided(rows.collect()).await?;
    txids.iter().for_each(|txid| outcomes.add(*txid));
    Ok(())
}

async fn evaluate_disconnected(
    cx: &HandlerContext<'_>,
    coinbase: Txid,
    height: u32,
) -> Result<DecisionBody, SequencerError> {
    let live = contest_holder(cx, Phase::Apply, coinbase).await? == HolderState::Live;
    Ok(DecisionBody::Conflicting { txid: coinbase, reason: Reason::Disconnected, height, live })
}

fn is_record_of(record: &BlockRecord, block: &Block<'_>) -> bool {
    (record.hash, record.previous, record.height) == (block.hash, block.previous, block.height)
}

/// Computes the tip after a reorg from this tip. Pure.
///
/// # Errors
/// The reason why the reorg does not fit the tip.
fn compute_tip(mut tip: Option<Tip>, reorg: &Reorg<'_>) -> Result<Option<Tip>, String> {
    let mut names = BTreeMap::new();
    for block in reorg.disconnected.iter().chain(&reorg.connected) {
        if *names.entry(block.block_id).or_insert(block.hash) != block.hash {
            return Err(format!("two blocks of the reorg have the id {}", block.block_id));
        }
    }
    for block in reorg.disconnected.iter().rev() {
        let is_tip = |tip: &Tip| (tip.hash, tip.height) == (block.hash, block.height);
        if !tip.as_ref().is_some_and(is_tip) {
            let name = hex_reversed(&block.hash);
            let current = tip.map_or("nothing".to_owned(), |tip| hex_reversed(&tip.hash));
            return Err(format!("block {name} at height {} is to leave, but the tip is {current}", block.height));
        }
        tip = Tip::below(block);
    }
    for block in &reorg.connected {
        check_follows(tip, block)?;
        tip = Some(Tip::of(block));
    }
    Ok(tip)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(id: u8, previous: u8, height: u32) -> Block<'static> {
        Block {
            block_id: id.into(),
            hash: [id; 32],
            previous: [previous; 32],
            height,
            time: 0,
            longest_chain: true,
            coinbase: &[],
            subtrees: vec![],
        }
    }

    fn after(
        tip: Option<(u8, u32)>,
        leave: &[(u8, u8, u32)],
        come: &[(u8, u8, u32)],
    ) -> Result<Option<(u8, u32)>, String> {
        let blocks =
            |all: &[(u8, u8, u32)]| all.iter().map(|(id, previous, height)| block(*id, *previous, *height)).collect();
        let tip = tip.map(|(id, height)| Tip { hash: [id; 32], height, block_id: Some(id.into()) });
        let reorg = Reorg { sequence: 1, disconnected: blocks(leave), connected: blocks(come) };
        Ok(compute_tip(tip, &reorg)?.map(|tip| (tip.hash[0], tip.height)))
    }

    #[test]
    fn a_reorg_leads_from_the_tip_to_its_last_block() {
        let tip = Some((2, 11));
        assert_eq!(after(tip, &[(2, 1, 11)], &[(3, 1, 11), (4, 3, 12)]), Ok(Some((4, 12))));
        assert_eq!(after(tip, &[(1, 9, 10), (2, 1, 11)], &[]), Ok(Some((9, 9))));
        assert_eq!(after(tip, &[], &[(3, 2, 12)]), Ok(Some((3, 12))));
        assert_eq!(after(tip, &[(2, 1, 11)], &[(2, 1, 11)]), Ok(tip));
        assert_eq!(after(Some((1, 0)), &[(1, 0, 0)], &[]), Ok(None));
        assert_eq!(after(None, &[], &[(1, 0, 100)]), Ok(Some((1, 100))));
    }

    #[test]
    fn a_reorg_that_does_not_fit_is_refused_by_name() {
        let reason_of = |tip, leave: &[_], come: &[_]| after(tip, leave, come).unwrap_err();
        let tip = Some((2, 11));
        assert!(reason_of(tip, &[(1, 0, 10)], &[]).contains("is to leave, but the tip is 0202"));
        assert!(reason_of(tip, &[(2, 1, 10)], &[]).contains("is to leave"), "another height");
        assert!(reason_of(tip, &[(7, 8, 10), (2, 1, 11)], &[]).contains("is to leave, but the tip is 0101"));
        assert!(reason_of(None, &[(2, 1, 11)], &[]).contains("the tip is nothing"));
        assert!(reason_of(tip, &[(2, 1, 11)], &[(3, 2, 11)]).contains("but the tip is 0101"));
        assert!(reason_of(tip, &[(2, 1, 11)], &[(3, 1, 12)]).contains("says that it is at height 12"));
        assert!(reason_of(tip, &[], &[(3, 2, 12), (4, 2, 13)]).contains("but the tip is 0303"));
        let mut twice = [block(3, 2, 12), block(4, 3, 13)];
        twice[1].block_id = 3;
        let reorg = Reorg { sequence: 1, disconnected: vec![], connected: twice.to_vec() };
        assert!(compute_tip(None, &reorg).unwrap_err().contains("have the id 3"));
    }
}
