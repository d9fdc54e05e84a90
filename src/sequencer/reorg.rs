//! `Reorg`: the longest chain changed. Its blocks leave newest first, and others come oldest first.
//!
//! All of it can be done again from its beginning. What is done while blocks leave bears an earlier stamp than what is done
//! while others come ([`At::leaving`]).

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::{
    event::{Block, DecisionBody, Reorg},
    record::{BlockRecord, Key, Phase, Reason, Sequenced},
    sequencer::{
        Stop,
        block::{coinbase_of, follows, put_block},
        contest::Named,
        decisions::DecisionLog,
        handler::{At, Handler, subject},
        listing::{self, Listing},
        state::Tip,
        steps::{Making, Steps},
    },
    store::meta::MetaError,
    text::hex_reversed,
    tx::Txid,
};

impl Handler {
    /// Handles a reorg; `false`: it was passed over, because its sequence is not the next.
    pub async fn reorg(
        &mut self,
        at: At,
        log: &mut DecisionLog,
        reorg: &Reorg<'_>,
        message: &Bytes,
    ) -> Result<bool, Stop> {
        if !self.is_next(reorg.sequence)? {
            return Ok(false);
        }
        let tip = self.check_reorg(at, reorg, message).await?;
        let mut steps = Steps::new(log, at.offset, at.making);
        for block in reorg.disconnected.iter().rev() {
            Box::pin(self.disconnect(At { leaving: true, ..at }, &mut steps, block)).await?;
        }
        Box::pin(self.connect(at, &mut steps, &reorg.connected, message)).await?;
        self.state.sequence = reorg.sequence;
        self.move_tip(tip, reorg.disconnected.len(), &reorg.connected);
        Ok(true)
    }

    /// Refuses, before anything of it is done, a reorg that does not fit the chain. Answers the tip that it leads to.
    async fn check_reorg(&self, at: At, reorg: &Reorg<'_>, message: &Bytes) -> Result<Option<Tip>, Stop> {
        let wrong = |why: String| Stop::Halt(format!("reorg with sequence {}: {why}", reorg.sequence));
        let tip = tip_after(self.state.tip, reorg).map_err(wrong)?;
        let Reorg { disconnected, connected, .. } = reorg;
        let records = self.records_of(disconnected).await?;
        // One that was begun is done to its end, whatever was pruned since: what it takes back was there.
        let is_of_this = |there: &BlockRecord| there.chain_pos.is_some_and(|pos| pos.chain_offset() == at.offset);
        if at.making == Making::Allowed && !records.iter().flatten().any(is_of_this) {
            self.check_depth(disconnected).await?.map_or(Ok(()), |why| Err(wrong(why)))?;
        }
        for (block, there) in disconnected.iter().zip(records) {
            if !there.is_some_and(|there| is_of(&there, block)) {
                return Err(match self.may_have_been_forgotten(at).await? {
                    true => Stop::NodeRestarted,
                    false => wrong(format!("block {} was never connected", hex_reversed(&block.hash))),
                });
            }
        }
        self.check_ids(connected).await?;
        for block in disconnected.iter().chain(connected) {
            coinbase_of(block)?;
            self.check_objects(at, block).await?;
        }
        for block in connected {
            self.check_coinbase(block, message).await?;
        }
        Ok(tip)
    }

    /// Why a block may not leave: what it lists may have been pruned, and could not become unmined again.
    async fn check_depth(&self, disconnected: &[Block<'_>]) -> Result<Option<String>, Stop> {
        let meta = self.answer("the meta record", self.parts.store.meta()).await;
        let meta = meta.map_err(|error| match error {
            MetaError::Engine(error) => error.into(),
            error => Stop::Damaged(error.to_string()),
        })?;
        let floor = meta.map_or(0, |meta| meta.reorg_floor);
        let too_deep = disconnected.iter().find(|block| block.height <= floor && floor > 0);
        Ok(too_deep.map(|block| {
            format!(
                "block {} at height {} is to leave, but what was mined up to height {floor} may have been pruned \
                 (store.block_height_retention): rebuild into an empty set without pruning, and go on with that",
                hex_reversed(&block.hash),
                block.height
            )
        }))
    }

    async fn may_have_been_forgotten(&self, at: At) -> Result<bool, Stop> {
        match at.making {
            Making::Allowed => Ok(self.answer("the nodes of the store", self.parts.nodes.have_restarted()).await?),
            Making::Replaying => Ok(false),
        }
    }

    /// A block leaves the longest chain: what it lists returns to unmined, its coinbase falls, and all that descends from it.
    async fn disconnect(&self, at: At, steps: &mut Steps<'_>, block: &Block<'_>) -> Result<(), Stop> {
        let coinbase = coinbase_of(block)?.txid();
        let mut done = self.done_before(at, block, false).await?;
        self.apply_decided(at, vec![put_block(at, block, false, done + 1)]).await?;
        self.unset_mined(at, block, &[coinbase]).await?;
        let mut listing = Listing::of(block).pass_over(done);
        loop {
            let chunk = self.next_listed(at, &mut listing).await?;
            if chunk.is_empty() {
                break;
            }
            done += chunk.len() as u64;
            let txids: Vec<Txid> = chunk.into_iter().map(|listed| listed.txid).collect();
            self.unset_mined(at, block, &txids).await?;
            if done < listing::count(block) {
                self.apply_decided(at, vec![put_block(at, block, false, done + 1)]).await?;
            }
        }
        // By its height, too: of two blocks with one coinbase that leave at once only the earlier one has a decision.
        let is_of_block = |body: &DecisionBody| match body {
            DecisionBody::Conflicting { txid, reason: Reason::Disconnected, height, .. } => {
                (*txid, *height) == (coinbase, block.height)
            }
            _ => false,
        };
        let body = match steps.existing_that(is_of_block) {
            Some(body) => body,
            // Rare, and a part of every future here: boxed.
            None if Box::pin(self.counts_by_earlier(at, block, coinbase)).await? => return Ok(()),
            None => steps.decide(Box::pin(self.judge_disconnected(at, coinbase, block.height))).await?,
        };
        if subject(&body) != Some(coinbase) {
            let name = hex_reversed(&block.hash);
            return Err(Stop::Halt(format!("chain offset {}: block {name} leaves, but {body:?}", at.offset)));
        }
        Box::pin(self.carry_out(at, steps, body)).await
    }

    async fn unset_mined(&self, at: At, block: &Block<'_>, txids: &[Txid]) -> Result<(), Stop> {
        let unset = Sequenced::UnsetMined { block_id: block.block_id, height: block.height };
        let rows = txids.iter().map(|txid| at.row(Phase::Apply, Key::master(*txid), unset.clone()));
        self.apply_decided(at, rows.collect()).await
    }

    async fn judge_disconnected(&self, at: At, coinbase: Txid, height: u32) -> Result<DecisionBody, Stop> {
        let named = self.contest_holders(at, Phase::Apply, vec![coinbase]).await?;
        let live = named.get(&coinbase) == Some(&Named::Live);
        Ok(DecisionBody::Conflicting { txid: coinbase, reason: Reason::Disconnected, height, live })
    }
}

fn is_of(record: &BlockRecord, block: &Block<'_>) -> bool {
    (record.hash, record.previous, record.height) == (block.hash, block.previous, block.height)
}

/// Where a reorg leads from this tip, or why it does not fit. Pure.
fn tip_after(mut tip: Option<Tip>, reorg: &Reorg<'_>) -> Result<Option<Tip>, String> {
    let mut names = BTreeMap::new();
    for block in reorg.disconnected.iter().chain(&reorg.connected) {
        if *names.entry(block.block_id).or_insert(block.hash) != block.hash {
            return Err(format!("two blocks of it have the id {}", block.block_id));
        }
    }
    for block in reorg.disconnected.iter().rev() {
        let is_tip = |tip: &Tip| (tip.hash, tip.height) == (block.hash, block.height);
        if !tip.as_ref().is_some_and(is_tip) {
            let name = hex_reversed(&block.hash);
            let there = tip.map_or("nothing".to_owned(), |tip| hex_reversed(&tip.hash));
            return Err(format!("block {name} at height {} is to leave, but the tip is {there}", block.height));
        }
        tip = Tip::below(block);
    }
    for block in &reorg.connected {
        follows(tip, block)?;
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
        Ok(tip_after(tip, &reorg)?.map(|tip| (tip.hash[0], tip.height)))
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
    fn what_does_not_fit_is_refused_by_name() {
        let told = |tip, leave: &[_], come: &[_]| after(tip, leave, come).unwrap_err();
        let tip = Some((2, 11));
        assert!(told(tip, &[(1, 0, 10)], &[]).contains("is to leave, but the tip is 0202"));
        assert!(told(tip, &[(2, 1, 10)], &[]).contains("is to leave"), "another height");
        assert!(told(tip, &[(7, 8, 10), (2, 1, 11)], &[]).contains("is to leave, but the tip is 0101"));
        assert!(told(None, &[(2, 1, 11)], &[]).contains("the tip is nothing"));
        assert!(told(tip, &[(2, 1, 11)], &[(3, 2, 11)]).contains("but the tip is 0101"));
        assert!(told(tip, &[(2, 1, 11)], &[(3, 1, 12)]).contains("says that it is at height 12"));
        assert!(told(tip, &[], &[(3, 2, 12), (4, 2, 13)]).contains("but the tip is 0303"));
        let mut twice = [block(3, 2, 12), block(4, 3, 13)];
        twice[1].block_id = 3;
        let reorg = Reorg { sequence: 1, disconnected: vec![], connected: twice.to_vec() };
        assert!(tip_after(None, &reorg).unwrap_err().contains("have the id 3"));
    }
}
