//! A block that joins the longest chain, by `BlockMined` or by a `Reorg`: create the coinbase, set every listed
//! transaction mined, never skip one. A block of a side chain decides nothing and waits for nothing.

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
        SequencerError,
        claims::ClaimCheck,
        contest::InputFindings,
        contested_event::replace_claims,
        decisions::DecisionLog,
        descendants::Descendants,
        evaluate::evaluate_listed,
        handler::{BODIES_AT_ONCE, EventContext, Handler},
        listing::{self, ListedTx, ListedTxReader},
        pages::extra_pages,
        state::Tip,
        steps::{DecisionMode, Steps},
        waiting::format_missing_listed,
    },
    store::create::{InitialState, PagedTx},
    text::hex_reversed,
    tx::{Transaction, Txid},
};

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

impl Handler {
    /// Handles a block. Returns `false` when the block was passed over because its sequence is not the next.
    pub async fn handle_block_mined(
        &mut self,
        ctx: EventContext,
        log: &mut DecisionLog,
        mined: &BlockMined<'_>,
        message: &Bytes,
    ) -> Result<bool, SequencerError> {
        let block = &mined.block;
        if !self.is_next(mined.sequence)? {
            return Ok(false);
        }
        if block.longest_chain {
            check_follows(self.state.tip, block).map_err(SequencerError::Halt)?;
            self.check_ids(slice::from_ref(block)).await?;
            self.check_coinbase(block, message).await?;
            self.check_objects(ctx, block).await?;
            Box::pin(self.connect(ctx, &mut Steps::new(log, ctx.offset, ctx.mode), slice::from_ref(block), message))
                .await?;
            self.move_tip(Some(Tip::of(block)), 0, slice::from_ref(block));
        } else {
            self.apply_side_block(ctx, block, message).await?;
        }
        self.state.sequence = mined.sequence;
        Ok(true)
    }

    /// Connects blocks to the longest chain, oldest first, and closes the decisions on the event. Idempotent: an
    /// interrupted event is connected again from its beginning.
    pub(super) async fn connect(
        &self,
        ctx: EventContext,
        steps: &mut Steps<'_>,
        blocks: &[Block<'_>],
        message: &Bytes,
    ) -> Result<(), SequencerError> {
        loop {
            let mut begun = Vec::with_capacity(blocks.len());
            for block in blocks {
                begun.push(Box::pin(self.begin_block(ctx, block, message)).await?);
            }
            // After all blocks have begun: the decisions of an earlier attempt can be in another order than the blocks.
            while let Some(body) = steps.take_existing_matching(is_verdict_of_block) {
                Box::pin(self.apply_verdict(ctx, steps, body)).await?;
            }
            let mut may_decide = false;
            for (block, begun) in blocks.iter().zip(begun) {
                may_decide |= Box::pin(self.connect_block(ctx, steps, block, begun)).await?;
            }
            // Another sequencer may handle the same event: its decisions are carried out before the next event.
            if (!may_decide && !steps.has_decisions()) || self.close_decisions(ctx, steps).await? {
                return Ok(());
            }
        }
    }

    /// Connects one block. Returns whether the block could need a decision; a new coinbase alone needs none.
    async fn connect_block(
        &self,
        ctx: EventContext,
        steps: &mut Steps<'_>,
        block: &Block<'_>,
        begun: BegunBlock,
    ) -> Result<bool, SequencerError> {
        let BegunBlock { done, txid, coinbase } = begun;
        if coinbase != CoinbaseStatus::Created {
            self.set_all_mined(ctx, steps, block, vec![ListedTx { txid, subtree: 0 }]).await?;
            // Boxed: rare, and else a part of every future here.
            Box::pin(self.update_maturity(ctx, steps, block, txid)).await?;
            self.parts.tx_notifier.notify_created(txid);
        }
        if coinbase == CoinbaseStatus::Live {
            self.publish_second_chances(ctx, &BTreeSet::new(), Some(txid), &Descendants::default()).await?;
        }
        self.set_listed_mined(ctx, steps, block, done).await?;
        Ok(coinbase != CoinbaseStatus::Created || listing::count_transactions(block) > 0)
    }

    /// Sets the listed transactions of a block mined, from the first after `done` on, a chunk at a time. The block
    /// record has the progress.
    async fn set_listed_mined(
        &self,
        ctx: EventContext,
        steps: &mut Steps<'_>,
        block: &Block<'_>,
        mut done: u64,
    ) -> Result<(), SequencerError> {
        let count = listing::count_transactions(block);
        let mut listing = ListedTxReader::new(block).skip(done);
        let mut left = Vec::new();
        loop {
            let chunk = self.read_next_listed(ctx, &mut listing).await?;
            if chunk.is_empty() {
                break;
            }
            done += chunk.len() as u64;
            left.extend(self.set_mined_now(ctx, steps, block, chunk).await?);
            if left.len() > MAX_OPEN_IN_MEMORY {
                self.set_all_mined(ctx, steps, block, std::mem::take(&mut left)).await?;
            }
            if left.is_empty() && done < count {
                self.apply_decided(ctx, vec![put_block(ctx, block, true, done + 1)]).await?;
            }
        }
        self.set_all_mined(ctx, steps, block, left).await?;
        if count > 0 {
            self.apply_decided(ctx, vec![put_block(ctx, block, true, count + 1)]).await?;
        }
        Ok(())
    }

    /// Returns the number of listed transactions that an earlier attempt at this event has finished, for a block of
    /// more than one chunk; 0 for a smaller block. Progress of another connection of the block, or of an earlier era,
    /// does not count.
    pub(super) async fn read_progress(
        &self,
        ctx: EventContext,
        block: &Block<'_>,
        longest_chain: bool,
    ) -> Result<u64, SequencerError> {
        if listing::count_transactions(block) <= listing::CHUNK as u64 {
            return Ok(0);
        }
        let stored = self.read_block_records(slice::from_ref(block)).await?.pop().flatten();
        let is_of_event = |stored: &BlockRecord| {
            (stored.chain_pos, stored.longest_chain) == (Some(ctx.stamp(Phase::Apply)), longest_chain)
        };
        Ok(stored.filter(is_of_event).map_or(0, |stored| stored.progress.saturating_sub(1)))
    }

    /// Closes the decisions on an event that connects blocks, if there are any. Returns `false` when the log has more
    /// decisions.
    ///
    /// An event without decisions is not closed in the log. A listed transaction that another sequencer's decision has
    /// accepted becomes live only after that decision is in the log, so reading the log once more finds the decision.
    async fn close_decisions(&self, ctx: EventContext, steps: &mut Steps<'_>) -> Result<bool, SequencerError> {
        if !steps.has_decisions() {
            steps.catch_up().await?;
            return Ok(!steps.has_existing());
        }
        match steps.decide(async { Ok(DecisionBody::Closed) }).await? {
            DecisionBody::Closed => Ok(true),
            body => {
                Box::pin(self.apply_verdict(ctx, steps, body)).await?;
                Ok(false)
            }
        }
    }

    /// Returns whether a fed event has the next sequence. An event with an earlier sequence is a repeat. An event with
    /// a later sequence was produced although the produce of the next sequence failed; the feed appends both again in
    /// order. Both kinds are passed over.
    ///
    /// # Errors
    /// `Halt` for the greatest possible sequence: no event could follow.
    pub fn is_next(&self, sequence: u64) -> Result<bool, SequencerError> {
        let expected = self.state.sequence + 1;
        if sequence < expected {
            tracing::debug!(sequence, expected, "sequencer: repeated block or reorg passed over");
        } else if sequence > expected {
            tracing::warn!(
                sequence,
                expected,
                "sequencer: block or reorg out of sequence passed over, to be fed again"
            );
        }
        if sequence == expected && sequence == u64::MAX {
            let why = format!("a block or reorg has the sequence {sequence}: nothing could follow it");
            return Err(SequencerError::Halt(why));
        }
        Ok(sequence == expected)
    }

    /// Halts when a block has the id of another block: a triple names its block by the id alone.
    pub(super) async fn check_ids(&self, blocks: &[Block<'_>]) -> Result<(), SequencerError> {
        for (block, stored) in blocks.iter().zip(self.read_block_records(blocks).await?) {
            if let Some(stored) = stored.filter(|stored| stored.hash != block.hash) {
                return Err(SequencerError::Halt(format!(
                    "block {} has the id {} of block {} at height {}",
                    hex_reversed(&block.hash),
                    block.block_id,
                    hex_reversed(&stored.hash),
                    stored.height
                )));
            }
        }
        Ok(())
    }

    /// Halts when the coinbase of a block is stored with other content, as far as its master shows.
    pub(super) async fn check_coinbase(&self, block: &Block<'_>, message: &Bytes) -> Result<(), SequencerError> {
        let (txid, pages) = self.build_coinbase_pages(block, message, true)?;
        let is_other = |stored: &Page| stored.contradicts(&pages.master) || stored.differs_in_kind(&pages.master);
        match self.master(txid).await? {
            Some(stored) if is_other(&stored) => Err(cannot_be_stored(block, txid, &Rejection::OtherContent)),
            _ => Ok(()),
        }
    }

    /// Reads the block records under the ids of these blocks.
    pub(super) async fn read_block_records(
        &self,
        blocks: &[Block<'_>],
    ) -> Result<Vec<Option<BlockRecord>>, SequencerError> {
        let keys = blocks.iter().map(|block| Key::Block(block.block_id)).collect();
        let stored = self.wait_for("the store", self.parts.store.read(keys)).await?;
        let block = |record| match record {
            Some(Record::Block(block)) => Some(block),
            _ => None,
        };
        Ok(stored.into_iter().map(block).collect())
    }

    /// Creates the coinbase, mined, and the block record. Both are rows of one request, the only one of an empty block.
    async fn begin_block(
        &self,
        ctx: EventContext,
        block: &Block<'_>,
        message: &Bytes,
    ) -> Result<BegunBlock, SequencerError> {
        let done = self.read_progress(ctx, block, true).await?;
        let (txid, pages) = self.build_coinbase_pages(block, message, true)?;
        let put_block = put_block(ctx, block, true, done + 1);
        let outcomes = match pages.clone() {
            Pages { master, others: None } => {
                let create = ctx.row(Phase::Apply, Key::master(txid), Sequenced::CreateCoinbase(master.into()));
                self.apply(vec![create, put_block]).await?
            }
            Pages { master, others: Some(others) } => {
                let initial_state = InitialState::Coinbase(ctx.stamp(Phase::Apply));
                let created =
                    self.create_paged(&PagedTx { master: master.into(), others: others.into(), initial_state }).await?;
                [vec![created], self.apply(vec![put_block]).await?].concat()
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
                self.publish_second_chances(ctx, &BTreeSet::new(), Some(txid), &Descendants::default()).await?;
                CoinbaseStatus::Created
            }
            // A later event of the chain has changed the coinbase: this event was done before.
            Outcome::Rejected(Rejection::StaleStamp(_)) => CoinbaseStatus::Created,
            // Stored before, by this block or by another block with the same coinbase.
            Outcome::AlreadyApplied(_) => CoinbaseStatus::Live,
            Outcome::Rejected(Rejection::Exists(TxState::Conflicting(_))) => CoinbaseStatus::Conflicting,
            // A verdict made the coinbase conflicting after a node had lost its record.
            Outcome::Rejected(Rejection::Exists(TxState::Stub(_))) => {
                self.create_contested(pages).await?;
                CoinbaseStatus::Conflicting
            }
            Outcome::Rejected(rejection) => return Err(cannot_be_stored(block, txid, rejection)),
        };
        if coinbase == CoinbaseStatus::Created && !matches!(outcomes[0], Outcome::Rejected(_)) {
            self.parts.tx_notifier.notify_created(txid);
        }
        Ok(BegunBlock { done, txid, coinbase })
    }

    /// Stores a transaction as contested, of one page or several.
    async fn create_contested(&self, pages: Pages) -> Result<Outcome, SequencerError> {
        let master = pages.master.contested();
        match pages.others {
            Some(others) => {
                let work =
                    PagedTx { master: master.into(), others: others.into(), initial_state: InitialState::Contested };
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

    /// Handles a block of a side chain: stores the coinbase as conflicting, and writes the triple where a listed
    /// transaction exists.
    async fn apply_side_block(
        &self,
        ctx: EventContext,
        block: &Block<'_>,
        message: &Bytes,
    ) -> Result<(), SequencerError> {
        check_height(block).map_err(SequencerError::Halt)?;
        let (txid, pages) = self.build_coinbase_pages(block, message, false)?;
        self.check_ids(slice::from_ref(block)).await?;
        self.check_not_connected(ctx, block).await?;
        self.check_coinbase(block, message).await?;
        self.check_objects(ctx, block).await?;
        let mut done = self.read_progress(ctx, block, false).await?;
        // Before the triples: a triple counts unless the block record says that the block is on a side chain.
        self.apply_decided(ctx, vec![put_block(ctx, block, false, done + 1)]).await?;
        match self.create_contested(pages).await? {
            Outcome::Applied(Reply::State(state)) | Outcome::AlreadyApplied(Reply::State(state)) => {
                let lost = Verdict::Conflicting(Reason::Disconnected);
                if [Verdict::Pending, lost].map(TxState::Conflicting).contains(&state) {
                    self.flag_coinbase(ctx, txid, block.height).await?;
                }
            }
            // Another block has the same coinbase, which is live.
            Outcome::Rejected(Rejection::Exists(_)) => {}
            Outcome::Rejected(rejection) => return Err(cannot_be_stored(block, txid, &rejection)),
            Outcome::Applied(_) | Outcome::AlreadyApplied(_) => {}
        }
        let mut listing = ListedTxReader::new(block).skip(done);
        let mut listed = vec![ListedTx { txid, subtree: 0 }];
        while !listed.is_empty() {
            let set_mined = |mined_in| Sequenced::SetMined { mined_in, longest_chain: false };
            self.apply(listed.iter().map(|listed| listed.row(ctx, block, set_mined)).collect()).await?;
            listed = self.read_next_listed(ctx, &mut listing).await?;
            // Progress counts only the chunks before this one, which are written.
            self.apply_decided(ctx, vec![put_block(ctx, block, false, done + 1)]).await?;
            done += listed.len() as u64;
        }
        Ok(())
    }

    async fn flag_coinbase(&self, ctx: EventContext, txid: Txid, height: u32) -> Result<(), SequencerError> {
        let lost = Sequenced::MarkConflicting { reason: Reason::Disconnected, height };
        self.apply_decided(ctx, vec![ctx.row(Phase::Apply, Key::master(txid), lost)]).await?;
        match self.master(txid).await? {
            Some(master) => self.flag_extra_pages(ctx, &master).await,
            None => Ok(()),
        }
    }

    /// Halts when a block of the longest chain arrives as a block of a side chain: only a reorg disconnects a block.
    async fn check_not_connected(&self, ctx: EventContext, block: &Block<'_>) -> Result<(), SequencerError> {
        let stored = self.read_block_records(slice::from_ref(block)).await?.pop().flatten();
        match stored.filter(|stored| stored.longest_chain) {
            Some(BlockRecord { chain_pos: Some(stamp), .. }) if stamp.chain_offset() < ctx.offset => {
                let name = hex_reversed(&block.hash);
                let why = format!("block {name} came as a side chain block, but is on the longest chain");
                Err(SequencerError::Halt(why))
            }
            _ => Ok(()),
        }
    }

    /// Builds the pages of a block's coinbase: mined on the longest chain, or listed on a side chain.
    pub(super) fn build_coinbase_pages(
        &self,
        block: &Block<'_>,
        message: &Bytes,
        longest_chain: bool,
    ) -> Result<(Txid, Pages), SequencerError> {
        let tx = parse_coinbase(block)?;
        // A block of a side chain is not checked: its coinbase must not halt the chain.
        if longest_chain {
            tx.check().map_err(|error| wrong_coinbase(block, error.to_string()))?;
        }
        let txid = tx.txid();
        let settings = &self.parts.store.settings;
        let setting = build::PageParams {
            network: settings.network,
            height: block.height,
            batch_size: settings.utxo_batch_size,
            created_at: u64::from(block.time) * 1_000,
        };
        let mined_in = MinedIn { block_id: block.block_id, height: block.height, subtree: 0 };
        let listed = match longest_chain {
            true => build::BlockListing::LongestChain(mined_in),
            false => build::BlockListing::SideChain(mined_in),
        };
        let start = build::NewTxState { listed, ..build::NewTxState::default() };
        let body = message.slice_ref(block.coinbase);
        let pages = build::build_pages(&tx, body, txid, &setting, &start)
            .map_err(|error| wrong_coinbase(block, error.to_string()))?;
        Ok((txid, pages.place_body(self.parts.store.inline(), &setting)))
    }

    /// Sets the listed transactions mined, accepts conflicting ones as soon as their parents are live, and waits for
    /// the absent ones.
    async fn set_all_mined(
        &self,
        ctx: EventContext,
        steps: &mut Steps<'_>,
        block: &Block<'_>,
        listed: Vec<ListedTx>,
    ) -> Result<(), SequencerError> {
        let mut open = listed;
        let about = format!("block {} at height {}", hex_reversed(&block.hash), block.height);
        loop {
            let left = self.set_mined_now(ctx, steps, block, open).await?;
            if left.is_empty() {
                return Ok(());
            }
            self.wait_until(ctx, &about, || async {
                self.parts.metrics.sequencer_waiting.set(left.len() as i64);
                Ok(match self.can_any_be_mined(block, &left).await? {
                    true => Ok(()),
                    false => Err(format_missing_listed(&left.iter().map(|listed| listed.txid).collect::<Vec<_>>())),
                })
            })
            .await?;
            self.parts.metrics.sequencer_waiting.set(0);
            open = left;
        }
    }

    /// Sets mined what can be set mined now. Returns the transactions that have to be waited for.
    async fn set_mined_now(
        &self,
        ctx: EventContext,
        steps: &mut Steps<'_>,
        block: &Block<'_>,
        listed: Vec<ListedTx>,
    ) -> Result<Vec<ListedTx>, SequencerError> {
        let (conflicting, mut open): (Vec<ListedTx>, Vec<ListedTx>) =
            listed.into_iter().partition(|listed| self.is_conflicting_at_frontier(ctx, &listed.txid));
        self.set_conflicting_mined(ctx, block, &conflicting).await?;
        loop {
            let mut left = Vec::new();
            let mut changed = false;
            let statuses = self.set_mined(ctx, block, &open).await?;
            for (listed, mined_status) in open.iter().zip(statuses) {
                match mined_status {
                    MinedStatus::Mined => continue,
                    MinedStatus::Missing => {}
                    MinedStatus::Conflicting => {
                        changed |= self.accept_listed(ctx, steps, block, listed.txid, &open).await?
                    }
                    MinedStatus::Pruned => {
                        // Boxed: rare, and else a part of every future here.
                        Box::pin(self.revive(ctx, block, listed.txid)).await?;
                        changed = true;
                    }
                }
                left.push(*listed);
            }
            if !changed {
                return Ok(left);
            }
            open = left;
        }
    }

    /// Sets mined, in a rebuild, the listed transactions that are conflicting at the frontier, without waiting until
    /// they are live. Their block has been disconnected before the frontier, and the marks of a disconnected block need
    /// only the body.
    async fn set_conflicting_mined(
        &self,
        ctx: EventContext,
        block: &Block<'_>,
        conflicting: &[ListedTx],
    ) -> Result<(), SequencerError> {
        for batch in conflicting.chunks(BODIES_AT_ONCE) {
            let txids: Vec<Txid> = batch.iter().map(|listed| listed.txid).collect();
            let masters = self.wait_for_bodies(ctx, false, &txids).await?;
            for tombstone in masters.iter().filter(|page| page.pruned.is_some()) {
                Box::pin(self.revive(ctx, block, tombstone.txid)).await?;
            }
            for master in &masters {
                Box::pin(self.add_slots(ctx, master, block.height)).await?;
            }
            let rows: Vec<Row> = batch.iter().map(|listed| listed.row(ctx, block, Sequenced::WasMined)).collect();
            self.apply_decided(ctx, rows).await?;
            for (listed, master) in batch.iter().zip(masters) {
                if extra_pages(&master) > 0 {
                    let was_mined = Sequenced::WasMined(listed.mined_in(block));
                    self.set_extra_pages_mined(ctx, listed.txid, &was_mined).await?;
                }
            }
        }
        Ok(())
    }

    /// Returns whether a waiting transaction can be set mined or accepted now.
    async fn can_any_be_mined(&self, block: &Block<'_>, waiting: &[ListedTx]) -> Result<bool, SequencerError> {
        let txids: Vec<Txid> = waiting.iter().map(|listed| listed.txid).collect();
        for page in self.masters(&txids).await?.into_iter().flatten() {
            match page.state() {
                TxState::Live => return Ok(true),
                // The attempt that revived the tombstone ended before it restored the slots.
                TxState::Stub(_) if Box::pin(self.restore_stub_slots(block.height, &page)).await? => return Ok(true),
                TxState::Conflicting(_) if self.are_parents_ready(block.height, &page, waiting).await? => {
                    return Ok(true);
                }
                _ => {}
            }
        }
        Ok(false)
    }

    async fn set_mined(
        &self,
        ctx: EventContext,
        block: &Block<'_>,
        open: &[ListedTx],
    ) -> Result<Vec<MinedStatus>, SequencerError> {
        let mut statuses = Vec::with_capacity(open.len());
        let set_mined = |mined_in| Sequenced::SetMined { mined_in, longest_chain: true };
        let row = |listed: &ListedTx| listed.row(ctx, block, set_mined);
        for batch in open.chunks(listing::CHUNK) {
            let mut outcomes = self.apply(batch.iter().map(row).collect()).await?;
            for (listed, outcome) in batch.iter().zip(&mut outcomes) {
                if *outcome == Outcome::Rejected(Rejection::Creating) {
                    *outcome = self.complete_and_apply(row(listed)).await?;
                }
                if matches!(outcome, Outcome::Rejected(Rejection::MissingSlots(_))) {
                    // Boxed: rare, and else a part of every future here.
                    Box::pin(self.read_and_add_slots(ctx, listed.txid, block.height)).await?;
                    *outcome = self.apply_row(row(listed)).await?;
                }
                if has_extra_pages(outcome) {
                    self.set_extra_pages_mined(ctx, listed.txid, &set_mined(listed.mined_in(block))).await?;
                }
            }
            let mut parents = Vec::new();
            for (outcome, listed) in outcomes.into_iter().zip(batch) {
                if has_conflicting_children(&outcome) {
                    parents.push(listed.txid);
                }
                statuses.push(mined_status(outcome, listed)?);
            }
            self.publish_chances_after_lifting(ctx, &parents, None).await?;
        }
        Ok(statuses)
    }

    /// Completes a half-created transaction and applies the row again.
    async fn complete_and_apply(&self, row: Row) -> Result<Outcome, SequencerError> {
        if let Key::Page(txid, _) = row.key {
            self.complete(&[txid]).await?;
        }
        self.apply_row(row).await
    }

    async fn apply_row(&self, row: Row) -> Result<Outcome, SequencerError> {
        let mut outcomes = self.apply(vec![row]).await?;
        Ok(outcomes.pop().unwrap_or_else(|| unreachable!("an outcome a row")))
    }

    /// Returns whether all parents are live and, where this block lists them too, unlocked and with the slots of the
    /// block's height: a parent that was accepted just now has yet to be set mined. The lock of any other parent does
    /// not bar a listed transaction, since the unlock can have a later offset than the block.
    async fn are_parents_ready(&self, height: u32, page: &Page, open: &[ListedTx]) -> Result<bool, SequencerError> {
        let masters = self.masters(&self.read_parents(page).await?).await?;
        Ok(masters.iter().all(|master| {
            master.as_ref().is_some_and(|page| match page.state() {
                TxState::Live => {
                    let is_mined = open.iter().all(|listed| listed.txid != page.txid);
                    is_mined || !(page.locked || self.needs_slots(page, height))
                }
                // A pruned conflicting parent is revived first, if this block lists the parent.
                TxState::Pruned(_) => !page.conflicting,
                _ => false,
            })
        }))
    }

    /// Accepts a listed transaction that is conflicting: its rivals and their descendants become conflicting. Returns
    /// `false` while its own parents are not ready.
    async fn accept_listed(
        &self,
        ctx: EventContext,
        steps: &mut Steps<'_>,
        block: &Block<'_>,
        txid: Txid,
        open: &[ListedTx],
    ) -> Result<bool, SequencerError> {
        let Some(mut page) = self.master(txid).await? else { return Ok(false) };
        if !self.are_parents_ready(block.height, &page, open).await? {
            return Ok(false);
        }
        // A rebuild of a history in which a node lost the coinbase: the block created it anew, without a decision.
        if page.is_coinbase && ctx.mode == DecisionMode::Replay {
            self.accept_extra_pages(ctx, &page).await?;
            self.apply_decided(ctx, vec![ctx.row(Phase::Apply, Key::master(txid), Sequenced::Accept)]).await?;
            return Ok(true);
        }
        // After a node lost a listed transaction the closed event is open again: a rival can have taken its slots.
        steps.skip_closed();
        // Stamped with the phase of applying: the event has applied rows before, and a listed transaction is accepted
        // whichever sequencer takes the free slots.
        let body = steps
            .decide(Box::pin(async {
                if let ClaimCheck::Differs(proven) = self.check_claims(&page).await? {
                    replace_claims(&mut page, proven);
                }
                let checks = RespendChecks::Listed { height: block.height };
                let InputFindings::Inputs(inputs) =
                    self.collect_findings(ctx, Phase::Apply, &page, checks, true).await?
                else {
                    return Err(SequencerError::Halt(format!(
                        "block {} lists {txid}, which was spent completely and pruned",
                        hex_reversed(&block.hash)
                    )));
                };
                let body = evaluate_listed(txid, block.height, &inputs)
                    .map_err(|reason| cannot_accept(block, txid, &reason))?;
                self.check_rivals(block, &body).await?;
                Ok(body)
            }))
            .await?;
        if body != DecisionBody::Closed {
            Box::pin(self.apply_verdict(ctx, steps, body)).await?;
        }
        Ok(true)
    }

    /// Revives the tombstone of a conflicting transaction that a block lists: the tombstone becomes a stub and gets the
    /// slots of the body that it kept. A tombstone without a body is waited for, like an absent transaction.
    async fn revive(&self, ctx: EventContext, block: &Block<'_>, txid: Txid) -> Result<(), SequencerError> {
        let Some(tombstone) = self.master(txid).await?.filter(|page| page.pruned.is_some()) else { return Ok(()) };
        let name = hex_reversed(&block.hash);
        if !tombstone.conflicting {
            return Err(SequencerError::Halt(format!(
                "block {name} lists {txid}, which was spent completely and pruned"
            )));
        }
        tracing::warn!(%txid, block = name, "sequencer: conflicting transaction revived, a block lists its tombstone");
        let row = |number| ctx.row(Phase::Apply, Key::Page(txid, number), Sequenced::Revive);
        // The other pages first: a repeat judges by the master.
        self.apply((1..=extra_pages(&tombstone)).map(row).collect()).await?;
        self.apply_decided(ctx, vec![row(0)]).await?;
        match self.master(txid).await? {
            Some(stub) => self.restore_stub_slots(block.height, &stub).await.map(drop),
            None => Ok(()),
        }
    }

    /// Gives a stub the slots of the body that it kept. Returns `false` for a page that is no stub or has no body.
    async fn restore_stub_slots(&self, height: u32, stub: &Page) -> Result<bool, SequencerError> {
        if !matches!(stub.state(), TxState::Stub(_)) {
            return Ok(false);
        }
        let Some(body) = self.read_body(stub).await? else { return Ok(false) };
        let (txid, settings) = (stub.txid, &self.parts.store.settings);
        let damaged = |why: String| SequencerError::Halt(format!("the stored body of {txid} is damaged: {why}"));
        let created_at = stub.master.as_ref().map_or(0, |master| master.created_at);
        let (network, batch_size) = (settings.network, settings.utxo_batch_size);
        let setting = build::PageParams { network, height, batch_size, created_at };
        let tx = Transaction::parse(&body).map_err(|error| damaged(error.to_string()))?;
        let pages = build::build_pages(&tx, body.clone(), txid, &setting, &build::NewTxState::default());
        let pages = pages.map_err(|error| damaged(error.to_string()))?;
        self.create_contested(pages.place_body(self.parts.store.inline(), &setting)).await?;
        Ok(true)
    }

    /// Halts when a rival is mined on the longest chain, too: such a block is impossible.
    async fn check_rivals(&self, block: &Block<'_>, body: &DecisionBody) -> Result<(), SequencerError> {
        let DecisionBody::Accepted { txid, losers, .. } = body else { return Ok(()) };
        for rival in self.masters(losers).await?.into_iter().flatten() {
            if rival.master.as_ref().is_some_and(|master| master.unmined_since.is_none()) {
                let name = hex_reversed(&block.hash);
                let why = format!("block {name} lists {txid}, whose rival {} is mined", rival.txid);
                return Err(SequencerError::Halt(why));
            }
        }
        Ok(())
    }
}

impl ListedTx {
    fn mined_in(&self, block: &Block<'_>) -> MinedIn {
        MinedIn { block_id: block.block_id, height: block.height, subtree: self.subtree }
    }

    fn row(&self, ctx: EventContext, block: &Block<'_>, operation: impl Fn(MinedIn) -> Sequenced) -> Row {
        ctx.row(Phase::Apply, Key::master(self.txid), operation(self.mined_in(block)))
    }
}

/// Checks that a block can follow this tip of the longest chain.
///
/// # Errors
/// The reason why the block cannot follow.
pub(super) fn check_follows(tip: Option<Tip>, block: &Block<'_>) -> Result<(), String> {
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
        _ => check_height(block),
    }
}

/// Checks that the height of a block is below the limit of heights.
fn check_height(block: &Block<'_>) -> Result<(), String> {
    if block.height < HEIGHT_LIMIT {
        return Ok(());
    }
    let (name, height) = (hex_reversed(&block.hash), block.height);
    Err(format!("block {name} says that it is at height {height}, and heights are below {HEIGHT_LIMIT}"))
}

/// Returns the row that writes the record of a block.
pub(super) fn put_block(ctx: EventContext, block: &Block<'_>, longest_chain: bool, progress: u64) -> Row {
    let record = BlockRecord {
        block_id: block.block_id,
        hash: block.hash,
        previous: block.previous,
        height: block.height,
        time: block.time,
        longest_chain,
        progress,
        chain_pos: Some(ctx.stamp(Phase::Apply)),
    };
    ctx.row(Phase::Apply, Key::Block(block.block_id), Sequenced::PutBlock(record))
}

/// Parses the coinbase of a block.
pub(super) fn parse_coinbase<'a>(block: &Block<'a>) -> Result<Transaction<'a>, SequencerError> {
    let tx = Transaction::parse(block.coinbase).map_err(|error| wrong_coinbase(block, error.to_string()))?;
    if tx.is_coinbase() { Ok(tx) } else { Err(wrong_coinbase(block, "it is no coinbase".to_owned())) }
}

fn wrong_coinbase(block: &Block<'_>, why: String) -> SequencerError {
    SequencerError::Halt(format!("the coinbase of block {}: {why}", hex_reversed(&block.hash)))
}

fn cannot_be_stored(block: &Block<'_>, txid: Txid, rejection: &Rejection) -> SequencerError {
    wrong_coinbase(
        block,
        match rejection {
            Rejection::OtherContent => format!("{txid} is stored with other content"),
            rejection => format!("{txid} cannot be stored: {} ({rejection:?})", rejection.code()),
        },
    )
}

fn cannot_accept(block: &Block<'_>, txid: Txid, reason: &Reason) -> SequencerError {
    SequencerError::Halt(format!("block {} lists {txid}, which cannot be live: {reason:?}", hex_reversed(&block.hash)))
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
