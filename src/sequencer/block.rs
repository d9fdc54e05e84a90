//! A block comes to the longest chain (by `BlockMined`, or by a `Reorg`): create the coinbase, set every listed transaction
//! mined, never skip one. Or it is on a side chain: nothing is decided, and nothing waited for.

use bytes::Bytes;

use std::{collections::BTreeSet, slice};

use crate::{
    engine::Row,
    event::{Block, BlockMined, DecisionBody},
    record::{
        BlockRecord, Key, MinedIn, Operation, Outcome, Page, Phase, Reason, Record, Rejection, Reply, RespendChecks,
        Sequenced, TxState, Verdict,
        build::{self, HEIGHT_LIMIT, Pages},
    },
    sequencer::{
        Stop,
        cone::Cone,
        contest::Findings,
        decisions::DecisionLog,
        evaluate::evaluate_listed,
        handler::{At, BODIES_AT_ONCE, Handler},
        listing::{self, Listed, Listing},
        pages::others,
        proven::Proof,
        source::with_claims,
        state::Tip,
        steps::{Making, Steps},
        waiting::names_of_listed,
    },
    store::create::{Paged, Starts},
    text::hex_reversed,
    tx::{Transaction, Txid},
};

/// How the coinbase of a block was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Coinbase {
    /// Made by this event, mined; or seen to by a later one.
    Made,
    /// Live already.
    Live,
    /// On a side chain until now, or of a block that had left.
    Fallen,
}

/// A block of which all is there but what it lists.
struct Begun {
    /// How many of those that it lists have been dealt with before.
    done: u64,
    /// Of its coinbase.
    txid: Txid,
    coinbase: Coinbase,
}

/// Of the transactions that a block waits for so many are kept in memory: before more is looked at, these have to come.
const MOST_LEFT: usize = 16 * listing::CHUNK;

/// How a listed transaction stood when it was to be set mined.
enum Standing {
    Mined,
    Missing,
    Conflicting,
    Pruned,
}

impl Handler {
    /// Handles a block; `false`: it was passed over, because its sequence is not the next.
    pub async fn block_mined(
        &mut self,
        at: At,
        log: &mut DecisionLog,
        mined: &BlockMined<'_>,
        message: &Bytes,
    ) -> Result<bool, Stop> {
        let block = &mined.block;
        if !self.is_next(mined.sequence)? {
            return Ok(false);
        }
        if block.longest_chain {
            follows(self.state.tip, block).map_err(Stop::Halt)?;
            self.check_ids(slice::from_ref(block)).await?;
            self.check_coinbase(block, message).await?;
            self.check_objects(at, block).await?;
            Box::pin(self.connect(at, &mut Steps::new(log, at.offset, at.making), slice::from_ref(block), message))
                .await?;
            self.move_tip(Some(Tip::of(block)), 0, slice::from_ref(block));
        } else {
            self.side_block(at, block, message).await?;
        }
        self.state.sequence = mined.sequence;
        Ok(true)
    }

    /// Brings blocks to the longest chain, oldest first, and closes the decisions on the event that does. All of it can be
    /// done again from its beginning.
    pub(super) async fn connect(
        &self,
        at: At,
        steps: &mut Steps<'_>,
        blocks: &[Block<'_>],
        message: &Bytes,
    ) -> Result<(), Stop> {
        loop {
            let mut begun = Vec::with_capacity(blocks.len());
            for block in blocks {
                begun.push(Box::pin(self.begin_block(at, block, message)).await?);
            }
            // Only then: one that is done again may have been decided on in another order than that of its blocks.
            while let Some(body) = steps.existing_that(is_verdict_of_block) {
                Box::pin(self.carry_out(at, steps, body)).await?;
            }
            let mut may_decide = false;
            for (block, begun) in blocks.iter().zip(begun) {
                may_decide |= Box::pin(self.connect_one(at, steps, block, begun)).await?;
            }
            // Another sequencer may be at the same event: what it has decided is carried out before anybody goes on.
            if (!may_decide && !steps.any()) || self.close(at, steps).await? {
                return Ok(());
            }
        }
    }

    /// Answers whether there was anything to decide on: there is not on a coinbase alone that is new.
    async fn connect_one(&self, at: At, steps: &mut Steps<'_>, block: &Block<'_>, begun: Begun) -> Result<bool, Stop> {
        let Begun { done, txid, coinbase } = begun;
        if coinbase != Coinbase::Made {
            self.set_all_mined(at, steps, block, vec![Listed { txid, subtree: 0 }]).await?;
            // Rare, and a part of every future here: boxed.
            Box::pin(self.mature_from(at, steps, block, txid)).await?;
            self.parts.tx_notifier.notify_created(txid);
        }
        if coinbase == Coinbase::Live {
            self.second_chances(at, &BTreeSet::new(), Some(txid), &Cone::default()).await?;
        }
        self.set_listed_mined(at, steps, block, done).await?;
        Ok(coinbase != Coinbase::Made || listing::count(block) > 0)
    }

    /// Sets all that a block lists mined, but for the first so many, which have been. A chunk at a time; how far it is stands in
    /// the record of the block.
    async fn set_listed_mined(
        &self,
        at: At,
        steps: &mut Steps<'_>,
        block: &Block<'_>,
        mut done: u64,
    ) -> Result<(), Stop> {
        let count = listing::count(block);
        let mut listing = Listing::of(block).pass_over(done);
        let mut left = Vec::new();
        loop {
            let chunk = self.next_listed(at, &mut listing).await?;
            if chunk.is_empty() {
                break;
            }
            done += chunk.len() as u64;
            left.extend(self.set_mined_now(at, steps, block, chunk).await?);
            if left.len() > MOST_LEFT {
                self.set_all_mined(at, steps, block, std::mem::take(&mut left)).await?;
            }
            if left.is_empty() && done < count {
                self.apply_decided(at, vec![put_block(at, block, true, done + 1)]).await?;
            }
        }
        self.set_all_mined(at, steps, block, left).await?;
        if count > 0 {
            self.apply_decided(at, vec![put_block(at, block, true, count + 1)]).await?;
        }
        Ok(())
    }

    /// How many of the transactions that a large block lists this very event has dealt with before a restart. Another connection of
    /// the block says nothing of this one, nor what was stamped before a node forgot.
    pub(super) async fn done_before(&self, at: At, block: &Block<'_>, longest_chain: bool) -> Result<u64, Stop> {
        if listing::count(block) <= listing::CHUNK as u64 {
            return Ok(0);
        }
        let there = self.records_of(slice::from_ref(block)).await?.pop().flatten();
        let ours = |there: &BlockRecord| {
            (there.chain_pos, there.longest_chain) == (Some(at.stamp(Phase::Apply)), longest_chain)
        };
        Ok(there.filter(ours).map_or(0, |there| there.progress.saturating_sub(1)))
    }

    /// Closes the decisions on an event that brings blocks, if there are any. `false`: there are more.
    ///
    /// An event on which nothing was decided is not closed in the log: a listed transaction that somebody else's decision
    /// has let win was seen live only after that decision was written, so reading the log once more finds it.
    async fn close(&self, at: At, steps: &mut Steps<'_>) -> Result<bool, Stop> {
        if !steps.any() {
            steps.catch_up().await?;
            return Ok(!steps.has_existing());
        }
        match steps.decide(async { Ok(DecisionBody::Closed) }).await? {
            DecisionBody::Closed => Ok(true),
            body => {
                Box::pin(self.carry_out(at, steps, body)).await?;
                Ok(false)
            }
        }
    }

    /// Whether a fed event is the next one. An earlier one is a repeat. A later one got into the chain before the one that
    /// its feed failed to produce; that feed, or its successor, feeds both again in order. So both are passed over.
    ///
    /// # Errors
    /// The next one is the last that there can be: it halts, since nothing could follow it.
    pub fn is_next(&self, sequence: u64) -> Result<bool, Stop> {
        let expected = self.state.sequence + 1;
        if sequence < expected {
            tracing::debug!(sequence, expected, "a repeated block or reorg is passed over");
        } else if sequence > expected {
            tracing::warn!(sequence, expected, "a block or reorg out of sequence is passed over; it is fed again");
        }
        if sequence == expected && sequence == u64::MAX {
            return Err(Stop::Halt(format!("a block or reorg has the sequence {sequence}: nothing could follow it")));
        }
        Ok(sequence == expected)
    }

    /// Every triple names its block by this id alone: two blocks under one id could never be told apart again.
    pub(super) async fn check_ids(&self, blocks: &[Block<'_>]) -> Result<(), Stop> {
        for (block, there) in blocks.iter().zip(self.records_of(blocks).await?) {
            if let Some(there) = there.filter(|there| there.hash != block.hash) {
                return Err(Stop::Halt(format!(
                    "block {} has the id {}, which is that of block {} at height {}",
                    hex_reversed(&block.hash),
                    block.block_id,
                    hex_reversed(&there.hash),
                    there.height
                )));
            }
        }
        Ok(())
    }

    /// Nothing of a block is stored whose coinbase is there with other content, as far as its master says.
    pub(super) async fn check_coinbase(&self, block: &Block<'_>, message: &Bytes) -> Result<(), Stop> {
        let (txid, pages) = self.coinbase_pages(block, message, true)?;
        let is_other = |there: &Page| there.contradicts(&pages.master) || there.is_other_kind_than(&pages.master);
        match self.master(txid).await? {
            Some(there) if is_other(&there) => Err(cannot_be_stored(block, txid, &Rejection::OtherContent)),
            _ => Ok(()),
        }
    }

    /// What is recorded under the ids of these blocks.
    pub(super) async fn records_of(&self, blocks: &[Block<'_>]) -> Result<Vec<Option<BlockRecord>>, Stop> {
        let keys = blocks.iter().map(|block| Key::Block(block.block_id)).collect();
        let there = self.answer("the store", self.parts.store.read(keys)).await?;
        let block = |record| match record {
            Some(Record::Block(block)) => Some(block),
            _ => None,
        };
        Ok(there.into_iter().map(block).collect())
    }

    /// Creates the coinbase, mined, and the block's record: one write, so that an empty block costs no more.
    async fn begin_block(&self, at: At, block: &Block<'_>, message: &Bytes) -> Result<Begun, Stop> {
        let done = self.done_before(at, block, true).await?;
        let (txid, pages) = self.coinbase_pages(block, message, true)?;
        let put_block = put_block(at, block, true, done + 1);
        let outcomes = match pages.clone() {
            Pages { master, others: None } => {
                let create = at.row(Phase::Apply, Key::master(txid), Sequenced::CreateCoinbase(master.into()));
                self.apply(vec![create, put_block]).await?
            }
            Pages { master, others: Some(others) } => {
                let starts = Starts::Coinbase(at.stamp(Phase::Apply));
                let created =
                    self.create_paged(&Paged { master: master.into(), others: others.into(), starts }).await?;
                [vec![created], self.apply(vec![put_block]).await?].concat()
            }
        };
        if let Outcome::Rejected(rejection) = &outcomes[1]
            && !matches!(rejection, Rejection::StaleStamp(_))
        {
            return Err(Stop::Halt(format!(
                "block {} cannot be stored under its id {}: {}",
                hex_reversed(&block.hash),
                block.block_id,
                rejection.code()
            )));
        }
        let found = match &outcomes[0] {
            Outcome::Applied(Reply::None) => Coinbase::Made,
            // A stub: a child of it was read, and found without its parent, before the block.
            Outcome::Applied(_) => {
                self.second_chances(at, &BTreeSet::new(), Some(txid), &Cone::default()).await?;
                Coinbase::Made
            }
            // A later event of the chain has seen this one done.
            Outcome::Rejected(Rejection::StaleStamp(_)) => Coinbase::Made,
            // Stored before, by this very block or by another one that has the same coinbase.
            Outcome::AlreadyApplied(_) => Coinbase::Live,
            Outcome::Rejected(Rejection::Exists(TxState::Conflicting(_))) => Coinbase::Fallen,
            // It fell where a node had forgotten it.
            Outcome::Rejected(Rejection::Exists(TxState::Stub(_))) => {
                self.create_contested(pages).await?;
                Coinbase::Fallen
            }
            Outcome::Rejected(rejection) => return Err(cannot_be_stored(block, txid, rejection)),
        };
        if found == Coinbase::Made && !matches!(outcomes[0], Outcome::Rejected(_)) {
            self.parts.tx_notifier.notify_created(txid);
        }
        Ok(Begun { done, txid, coinbase: found })
    }

    /// Stores a coinbase that is not live, of one page or several.
    async fn create_contested(&self, pages: Pages) -> Result<Outcome, Stop> {
        let master = pages.master.contested();
        match pages.others {
            Some(others) => {
                let work = Paged { master: master.into(), others: others.into(), starts: Starts::Contested };
                self.create_paged(&work).await
            }
            None => {
                let key = Key::master(master.txid);
                let row = Row { key, operation: Operation::CreateContested(master.into()) };
                let mut outcomes = self.apply(vec![row]).await?;
                Ok(outcomes.pop().unwrap_or_else(|| unreachable!("an outcome a row")))
            }
        }
    }

    /// A block of a side chain: its coinbase is there, conflicting, and its triple is written where a listed transaction is.
    async fn side_block(&self, at: At, block: &Block<'_>, message: &Bytes) -> Result<(), Stop> {
        has_a_height(block).map_err(Stop::Halt)?;
        let (txid, pages) = self.coinbase_pages(block, message, false)?;
        self.check_ids(slice::from_ref(block)).await?;
        self.check_not_connected(at, block).await?;
        self.check_coinbase(block, message).await?;
        self.check_objects(at, block).await?;
        let mut done = self.done_before(at, block, false).await?;
        // First, since a triple counts unless its block is known to be elsewhere.
        self.apply_decided(at, vec![put_block(at, block, false, done + 1)]).await?;
        match self.create_contested(pages).await? {
            Outcome::Applied(Reply::State(state)) | Outcome::AlreadyApplied(Reply::State(state)) => {
                let lost = Verdict::Conflicting(Reason::Disconnected);
                if [Verdict::Pending, lost].map(TxState::Conflicting).contains(&state) {
                    self.flag_coinbase(at, txid, block.height).await?;
                }
            }
            // Another block has the same coinbase.
            Outcome::Rejected(Rejection::Exists(_)) => {}
            Outcome::Rejected(rejection) => return Err(cannot_be_stored(block, txid, &rejection)),
            Outcome::Applied(_) | Outcome::AlreadyApplied(_) => {}
        }
        let mut listing = Listing::of(block).pass_over(done);
        let mut listed = vec![Listed { txid, subtree: 0 }];
        while !listed.is_empty() {
            let set_mined = |mined_in| Sequenced::SetMined { mined_in, longest_chain: false };
            self.apply(listed.iter().map(|listed| listed.row(at, block, set_mined)).collect()).await?;
            listed = self.next_listed(at, &mut listing).await?;
            // What was handed out before these is done.
            self.apply_decided(at, vec![put_block(at, block, false, done + 1)]).await?;
            done += listed.len() as u64;
        }
        Ok(())
    }

    async fn flag_coinbase(&self, at: At, txid: Txid, height: u32) -> Result<(), Stop> {
        let lost = Sequenced::MarkConflicting { reason: Reason::Disconnected, height };
        self.apply_decided(at, vec![at.row(Phase::Apply, Key::master(txid), lost)]).await?;
        match self.master(txid).await? {
            Some(master) => self.flag_others(at, &master).await,
            None => Ok(()),
        }
    }

    /// Only a reorg takes a block off the longest chain.
    async fn check_not_connected(&self, at: At, block: &Block<'_>) -> Result<(), Stop> {
        let there = self.records_of(slice::from_ref(block)).await?.pop().flatten();
        match there.filter(|there| there.longest_chain) {
            Some(BlockRecord { chain_pos: Some(stamp), .. }) if stamp.chain_offset() < at.offset => Err(Stop::Halt(
                format!("block {} is said to be on a side chain, and is on the longest one", hex_reversed(&block.hash)),
            )),
            _ => Ok(()),
        }
    }

    /// The coinbase of a block as it is to be stored: mined on the longest chain, or on a side chain.
    pub(super) fn coinbase_pages(
        &self,
        block: &Block<'_>,
        message: &Bytes,
        longest_chain: bool,
    ) -> Result<(Txid, Pages), Stop> {
        let tx = coinbase_of(block)?;
        // A block of a side chain decides nothing, and stops nothing.
        if longest_chain {
            tx.check().map_err(|error| wrong_coinbase(block, error.to_string()))?;
        }
        let txid = tx.txid();
        let settings = &self.parts.store.settings;
        let setting = build::Setting {
            network: settings.network,
            height: block.height,
            batch_size: settings.utxo_batch_size,
            created_at: u64::from(block.time) * 1_000,
        };
        let mined_in = MinedIn { block_id: block.block_id, height: block.height, subtree: 0 };
        let listed = match longest_chain {
            true => build::Listed::LongestChain(mined_in),
            false => build::Listed::SideChain(mined_in),
        };
        let start = build::Start { listed, ..build::Start::default() };
        let body = message.slice_ref(block.coinbase);
        let pages = build::pages_of(&tx, body, txid, &setting, &start)
            .map_err(|error| wrong_coinbase(block, error.to_string()))?;
        Ok((txid, pages.keeping(self.parts.store.inline(), &setting)))
    }

    /// Sets mined what is there, lets listed transactions that are conflicting win as soon as their parents are live, and
    /// waits for the rest.
    async fn set_all_mined(
        &self,
        at: At,
        steps: &mut Steps<'_>,
        block: &Block<'_>,
        listed: Vec<Listed>,
    ) -> Result<(), Stop> {
        let mut open = listed;
        let what = format!("block {} at height {}", hex_reversed(&block.hash), block.height);
        loop {
            let left = self.set_mined_now(at, steps, block, open).await?;
            if left.is_empty() {
                return Ok(());
            }
            self.wait_until(at, &what, || async {
                self.parts.metrics.sequencer_waiting.set(left.len() as i64);
                Ok(match self.any_arrived(block, &left).await? {
                    true => Ok(()),
                    false => Err(names_of_listed(&left.iter().map(|listed| listed.txid).collect::<Vec<_>>())),
                })
            })
            .await?;
            self.parts.metrics.sequencer_waiting.set(0);
            open = left;
        }
    }

    /// The same without waiting; answers the rest.
    async fn set_mined_now(
        &self,
        at: At,
        steps: &mut Steps<'_>,
        block: &Block<'_>,
        listed: Vec<Listed>,
    ) -> Result<Vec<Listed>, Stop> {
        let (fallen, mut open): (Vec<Listed>, Vec<Listed>) =
            listed.into_iter().partition(|listed| self.ends_fallen(at, &listed.txid));
        self.set_fallen_mined(at, block, &fallen).await?;
        loop {
            let mut left = Vec::new();
            let mut won = false;
            let standings = self.set_mined(at, block, &open).await?;
            for (listed, standing) in open.iter().zip(standings) {
                match standing {
                    Standing::Mined => continue,
                    Standing::Missing => {}
                    Standing::Conflicting => won |= self.let_win(at, steps, block, listed.txid, &open).await?,
                    Standing::Pruned => {
                        // Rare, and a part of every future here: boxed.
                        Box::pin(self.revive(at, block, listed.txid)).await?;
                        won = true;
                    }
                }
                left.push(*listed);
            }
            if !won {
                return Ok(left);
            }
            open = left;
        }
    }

    /// A rebuild goes to where the history ends: it does not wait until somebody is live who has fallen there. Such a block has
    /// left the chain since, and what it leaves of who it listed needs no more than the body.
    async fn set_fallen_mined(&self, at: At, block: &Block<'_>, fallen: &[Listed]) -> Result<(), Stop> {
        for batch in fallen.chunks(BODIES_AT_ONCE) {
            let txids: Vec<Txid> = batch.iter().map(|listed| listed.txid).collect();
            let masters = self.wait_for_bodies(at, false, &txids).await?;
            for tombstone in masters.iter().filter(|page| page.pruned.is_some()) {
                Box::pin(self.revive(at, block, tombstone.txid)).await?;
            }
            for master in &masters {
                Box::pin(self.add_slots(at, master, block.height)).await?;
            }
            let rows: Vec<Row> = batch.iter().map(|listed| listed.row(at, block, Sequenced::WasMined)).collect();
            self.apply_decided(at, rows).await?;
            for (listed, master) in batch.iter().zip(masters) {
                if others(&master) > 0 {
                    let was_mined = Sequenced::WasMined(listed.mined_in(block));
                    self.set_others_mined(at, listed.txid, &was_mined).await?;
                }
            }
        }
        Ok(())
    }

    /// Whether anything can be set mined, or can win, that could not before.
    async fn any_arrived(&self, block: &Block<'_>, waiting: &[Listed]) -> Result<bool, Stop> {
        let txids: Vec<Txid> = waiting.iter().map(|listed| listed.txid).collect();
        for page in self.masters(&txids).await?.into_iter().flatten() {
            match page.state() {
                TxState::Live => return Ok(true),
                // Who was bringing it back has died.
                TxState::Stub(_) if Box::pin(self.refill(block.height, &page)).await? => return Ok(true),
                TxState::Conflicting(_) if self.parents_are_ready(block.height, &page, waiting).await? => {
                    return Ok(true);
                }
                _ => {}
            }
        }
        Ok(false)
    }

    async fn set_mined(&self, at: At, block: &Block<'_>, open: &[Listed]) -> Result<Vec<Standing>, Stop> {
        let mut standings = Vec::with_capacity(open.len());
        let set_mined = |mined_in| Sequenced::SetMined { mined_in, longest_chain: true };
        let row = |listed: &Listed| listed.row(at, block, set_mined);
        for batch in open.chunks(listing::CHUNK) {
            let mut outcomes = self.apply(batch.iter().map(row).collect()).await?;
            for (listed, outcome) in batch.iter().zip(&mut outcomes) {
                if *outcome == Outcome::Rejected(Rejection::Creating) {
                    *outcome = self.complete_and_again(row(listed)).await?;
                }
                if matches!(outcome, Outcome::Rejected(Rejection::MissingSlots(_))) {
                    // Rare, and a part of every future here: boxed.
                    Box::pin(self.add_slots_of(at, listed.txid, block.height)).await?;
                    *outcome = self.once_again(row(listed)).await?;
                }
                if has_others(outcome) {
                    self.set_others_mined(at, listed.txid, &set_mined(listed.mined_in(block))).await?;
                }
            }
            let mut parents = Vec::new();
            for (outcome, listed) in outcomes.into_iter().zip(batch) {
                if has_conflicting_children(&outcome) {
                    parents.push(listed.txid);
                }
                standings.push(standing(outcome, listed)?);
            }
            self.chances_after_lifting(at, &parents, None).await?;
        }
        Ok(standings)
    }

    /// What refused because it is half created is completed, and asked again.
    async fn complete_and_again(&self, row: Row) -> Result<Outcome, Stop> {
        if let Key::Page(txid, _) = row.key {
            self.complete(&[txid]).await?;
        }
        self.once_again(row).await
    }

    async fn once_again(&self, row: Row) -> Result<Outcome, Stop> {
        let mut outcomes = self.apply(vec![row]).await?;
        Ok(outcomes.pop().unwrap_or_else(|| unreachable!("an outcome a row")))
    }

    /// Whether all parents are live; and, where this block of this height lists them, unlocked and with the slots of
    /// its height: a parent may have won only now, and has yet to be set mined. No other lock bars a listed
    /// transaction: the unlock may stand behind the block.
    async fn parents_are_ready(&self, height: u32, page: &Page, open: &[Listed]) -> Result<bool, Stop> {
        let masters = self.masters(&self.parents_of(page).await?).await?;
        Ok(masters.iter().all(|master| {
            master.as_ref().is_some_and(|page| match page.state() {
                TxState::Live => {
                    let is_mined = open.iter().all(|listed| listed.txid != page.txid);
                    is_mined || !(page.locked || self.needs_slots(page, height))
                }
                // One that fell comes back first, should this block list it.
                TxState::Pruned(_) => !page.conflicting,
                _ => false,
            })
        }))
    }

    /// A listed transaction that is conflicting wins: its rivals and their cones become conflicting. `false`: its own
    /// parents have to become live first.
    async fn let_win(
        &self,
        at: At,
        steps: &mut Steps<'_>,
        block: &Block<'_>,
        txid: Txid,
        open: &[Listed],
    ) -> Result<bool, Stop> {
        let Some(mut page) = self.master(txid).await? else { return Ok(false) };
        if !self.parents_are_ready(block.height, &page, open).await? {
            return Ok(false);
        }
        // Where a node had forgotten it, the block made it anew, and there was nothing to decide.
        if page.is_coinbase && at.making == Making::Replaying {
            self.accept_others(at, &page).await?;
            self.apply_decided(at, vec![at.row(Phase::Apply, Key::master(txid), Sequenced::Accept)]).await?;
            return Ok(true);
        }
        // Where a node forgot a listed transaction, what was closed is open again: a rival may have come first.
        steps.pass_over_closed();
        // Stamped like what is applied: the event has already applied something, and a listed transaction wins whoever
        // takes its free slots for it.
        let body = steps
            .decide(Box::pin(async {
                if let Proof::Otherwise(proven) = self.prove_claims(&page).await? {
                    with_claims(&mut page, proven);
                }
                let checks = RespendChecks::Listed { height: block.height };
                let Findings::Inputs(inputs) = self.findings(at, Phase::Apply, &page, checks, true).await? else {
                    return Err(Stop::Halt(format!(
                        "block {} lists {txid}, which was pruned",
                        hex_reversed(&block.hash)
                    )));
                };
                let body =
                    evaluate_listed(txid, block.height, &inputs).map_err(|reason| cannot_win(block, txid, &reason))?;
                self.check_rivals(block, &body).await?;
                Ok(body)
            }))
            .await?;
        if body != DecisionBody::Closed {
            Box::pin(self.carry_out(at, steps, body)).await?;
        }
        Ok(true)
    }

    /// A block lists what was conflicting and is pruned, or deleted: its tombstone becomes a stub, and is given the body that it kept.
    /// Without one it is waited for, as for any transaction that is not there.
    async fn revive(&self, at: At, block: &Block<'_>, txid: Txid) -> Result<(), Stop> {
        let Some(tombstone) = self.master(txid).await?.filter(|page| page.pruned.is_some()) else { return Ok(()) };
        let name = hex_reversed(&block.hash);
        if !tombstone.conflicting {
            let why = "all of whose outputs were spent long ago, and which was pruned";
            return Err(Stop::Halt(format!("block {name} lists {txid}, {why}")));
        }
        tracing::warn!(%txid, block = name, "a block brings back what was conflicting, and pruned");
        let row = |number| at.row(Phase::Apply, Key::Page(txid, number), Sequenced::Revive);
        // The other pages first: the master is what a repeat goes by.
        self.apply((1..=others(&tombstone)).map(row).collect()).await?;
        self.apply_decided(at, vec![row(0)]).await?;
        match self.master(txid).await? {
            Some(stub) => self.refill(block.height, &stub).await.map(drop),
            None => Ok(()),
        }
    }

    /// Gives a stub the slots of the body that it kept. `false`: it is none, or has kept none.
    async fn refill(&self, height: u32, stub: &Page) -> Result<bool, Stop> {
        if !matches!(stub.state(), TxState::Stub(_)) {
            return Ok(false);
        }
        let Some(body) = self.transaction_of(stub).await? else { return Ok(false) };
        let (txid, settings) = (stub.txid, &self.parts.store.settings);
        let damaged = |why: String| Stop::Halt(format!("the stored body of {txid} is damaged: {why}"));
        let created_at = stub.master.as_ref().map_or(0, |master| master.created_at);
        let (network, batch_size) = (settings.network, settings.utxo_batch_size);
        let setting = build::Setting { network, height, batch_size, created_at };
        let tx = Transaction::parse(&body).map_err(|error| damaged(error.to_string()))?;
        let pages = build::pages_of(&tx, body.clone(), txid, &setting, &build::Start::default());
        let pages = pages.map_err(|error| damaged(error.to_string()))?;
        self.create_contested(pages.keeping(self.parts.store.inline(), &setting)).await?;
        Ok(true)
    }

    /// A rival that is mined on this chain too makes the block impossible.
    async fn check_rivals(&self, block: &Block<'_>, body: &DecisionBody) -> Result<(), Stop> {
        let DecisionBody::Accepted { txid, losers, .. } = body else { return Ok(()) };
        for rival in self.masters(losers).await?.into_iter().flatten() {
            if rival.master.as_ref().is_some_and(|master| master.unmined_since.is_none()) {
                let name = hex_reversed(&block.hash);
                return Err(Stop::Halt(format!("block {name} lists {txid}, whose rival {} is mined", rival.txid)));
            }
        }
        Ok(())
    }
}

impl Listed {
    fn mined_in(&self, block: &Block<'_>) -> MinedIn {
        MinedIn { block_id: block.block_id, height: block.height, subtree: self.subtree }
    }

    fn row(&self, at: At, block: &Block<'_>, operation: impl Fn(MinedIn) -> Sequenced) -> Row {
        at.row(Phase::Apply, Key::master(self.txid), operation(self.mined_in(block)))
    }
}

/// Whether a block can stand on this tip of the longest chain: why not.
pub(super) fn follows(tip: Option<Tip>, block: &Block<'_>) -> Result<(), String> {
    let name = hex_reversed(&block.hash);
    match tip {
        Some(tip) if tip.hash != block.previous => Err(format!(
            "block {name} at height {} follows {}, but the tip is {} at height {}",
            block.height,
            hex_reversed(&block.previous),
            hex_reversed(&tip.hash),
            tip.height
        )),
        Some(tip) if tip.height.checked_add(1) != Some(block.height) => Err(format!(
            "block {name} says that it is at height {}, but it follows the tip {}, which is at height {}",
            block.height,
            hex_reversed(&tip.hash),
            tip.height
        )),
        _ => has_a_height(block),
    }
}

/// Whether anything can follow a block, and be counted from its height: why not.
fn has_a_height(block: &Block<'_>) -> Result<(), String> {
    if block.height < HEIGHT_LIMIT {
        return Ok(());
    }
    let (name, height) = (hex_reversed(&block.hash), block.height);
    Err(format!("block {name} says that it is at height {height}, and heights are below {HEIGHT_LIMIT}"))
}

/// The record of a block, wherever it is now.
pub(super) fn put_block(at: At, block: &Block<'_>, longest_chain: bool, progress: u64) -> Row {
    let record = BlockRecord {
        block_id: block.block_id,
        hash: block.hash,
        previous: block.previous,
        height: block.height,
        time: block.time,
        longest_chain,
        progress,
        chain_pos: Some(at.stamp(Phase::Apply)),
    };
    at.row(Phase::Apply, Key::Block(block.block_id), Sequenced::PutBlock(record))
}

/// The coinbase that a block brings.
pub(super) fn coinbase_of<'a>(block: &Block<'a>) -> Result<Transaction<'a>, Stop> {
    let tx = Transaction::parse(block.coinbase).map_err(|error| wrong_coinbase(block, error.to_string()))?;
    if tx.is_coinbase() { Ok(tx) } else { Err(wrong_coinbase(block, "it is no coinbase".to_owned())) }
}

fn wrong_coinbase(block: &Block<'_>, why: String) -> Stop {
    Stop::Halt(format!("the coinbase of block {}: {why}", hex_reversed(&block.hash)))
}

fn cannot_be_stored(block: &Block<'_>, txid: Txid, rejection: &Rejection) -> Stop {
    wrong_coinbase(
        block,
        match rejection {
            Rejection::OtherContent => format!("{txid} is stored with other content"),
            rejection => format!("{txid} cannot be stored: {} ({rejection:?})", rejection.code()),
        },
    )
}

fn cannot_win(block: &Block<'_>, txid: Txid, reason: &Reason) -> Stop {
    Stop::Halt(format!("block {} lists {txid}, which cannot be live: {reason:?}", hex_reversed(&block.hash)))
}

/// A verdict that an event takes which brings blocks: a listed transaction wins, or a spender of a coinbase that a
/// second block has is too young.
fn is_verdict_of_block(body: &DecisionBody) -> bool {
    match body {
        DecisionBody::Accepted { .. } => true,
        DecisionBody::Conflicting { reason, .. } => matches!(reason, Reason::Immature { .. }),
        _ => false,
    }
}

fn has_others(outcome: &Outcome) -> bool {
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

fn standing(outcome: Outcome, listed: &Listed) -> Result<Standing, Stop> {
    match outcome {
        Outcome::Applied(_) | Outcome::AlreadyApplied(_) | Outcome::Rejected(Rejection::StaleStamp(_)) => {
            Ok(Standing::Mined)
        }
        Outcome::Rejected(Rejection::Conflicting(Verdict::Pending | Verdict::Conflicting(_))) => {
            Ok(Standing::Conflicting)
        }
        Outcome::Rejected(Rejection::NotFound | Rejection::Creating | Rejection::Conflicting(Verdict::Accepted)) => {
            Ok(Standing::Missing)
        }
        Outcome::Rejected(Rejection::Pruned(_)) => Ok(Standing::Pruned),
        Outcome::Rejected(rejection) => Err(Stop::Halt(format!("{} cannot be set mined: {rejection:?}", listed.txid))),
    }
}
