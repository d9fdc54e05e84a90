//! `BlockMined` on the longest chain: create the coinbase, set every listed transaction mined, never skip one.

use bytes::Bytes;

use std::collections::BTreeSet;

use crate::{
    engine::Row,
    event::{Block, BlockMined, DecisionBody, SubtreeTransactions},
    record::{
        BlockRecord, Key, MinedIn, Operation, Outcome, Page, Phase, Record, Rejection, Reply, Sequenced, TxState,
        Verdict,
        build::{self, Pages},
    },
    sequencer::{
        Stop,
        contest::Findings,
        decisions::DecisionLog,
        evaluate::evaluate_listed,
        handler::{At, Handler},
        proven::Proof,
        source::with_claims,
        state::Tip,
        steps::Steps,
        waiting::names,
    },
    store::create::{Paged, Starts},
    tx::{Transaction, Txid},
};

/// A listed transaction that is not set mined yet.
#[derive(Debug, Clone, Copy)]
struct Listed {
    txid: Txid,
    subtree: u32,
}

/// How a listed transaction stood when it was to be set mined.
enum Standing {
    Mined,
    Missing,
    Conflicting,
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
        self.check_follows(block)?;
        self.check_id(block).await?;
        let listed = listed(block)?;
        let mut steps = Steps::new(log, at.offset, at.making);
        self.begin_block(at, block, message, &listed).await?;
        let mut closed = false;
        while !closed {
            while let Some(body) = steps.existing() {
                if body != DecisionBody::Closed {
                    self.carry_out(at, &mut steps, body).await?;
                }
            }
            self.set_all_mined(at, &mut steps, block, &listed).await?;
            // Another sequencer may be at the same block: what it has decided is carried out before anybody goes on.
            // On a coinbase alone there is nothing to decide. What was closed is open again where a listed transaction
            // had to win once more, because a node forgot it and a rival came first.
            closed =
                listed.is_empty() || (steps.is_closed() && !steps.has_existing()) || self.close(at, &mut steps).await?;
        }
        if !listed.is_empty() {
            self.apply_decided(at, vec![put_block(at, block, listed.len() as u64 + 1)]).await?;
        }
        self.state.sequence = mined.sequence;
        self.state.tip = Some(Tip { hash: block.hash, height: block.height, block_id: block.block_id });
        self.parts.metrics.chain_tip_height.set(i64::from(block.height));
        Ok(true)
    }

    /// Closes the decisions on a block, if there are any. `false`: there are more.
    ///
    /// A block on which nothing was decided is not closed in the log: a listed transaction that somebody else's decision
    /// has let win was seen live only after that decision was written, so reading the log once more finds it.
    async fn close(&self, at: At, steps: &mut Steps<'_>) -> Result<bool, Stop> {
        if !steps.any() {
            steps.catch_up().await?;
            return Ok(!steps.has_existing());
        }
        match steps.decide(async { Ok(DecisionBody::Closed) }).await? {
            DecisionBody::Closed => Ok(true),
            body => {
                self.carry_out(at, steps, body).await?;
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

    fn check_follows(&self, block: &Block<'_>) -> Result<(), Stop> {
        let name = hex_reversed(&block.hash);
        if !block.longest_chain {
            return Err(Stop::Halt(format!("block {name} is on a side chain: side chains are not built yet")));
        }
        match self.state.tip {
            Some(tip) if tip.hash != block.previous => Err(Stop::Halt(format!(
                "block {name} at height {} follows {}, but the tip is {} at height {}",
                block.height,
                hex_reversed(&block.previous),
                hex_reversed(&tip.hash),
                tip.height
            ))),
            Some(tip) if tip.height.checked_add(1) != Some(block.height) => Err(Stop::Halt(format!(
                "block {name} says that it is at height {}, but it follows the tip {}, which is at height {}",
                block.height,
                hex_reversed(&tip.hash),
                tip.height
            ))),
            _ => Ok(()),
        }
    }

    /// Every triple names its block by this id alone: two blocks under one id could never be told apart again.
    async fn check_id(&self, block: &Block<'_>) -> Result<(), Stop> {
        let there = self.answer("the store", self.parts.store.read(vec![Key::Block(block.block_id)])).await?;
        match there.first() {
            Some(Some(Record::Block(there))) if there.hash != block.hash => Err(Stop::Halt(format!(
                "block {} has the id {}, which is that of block {} at height {}",
                hex_reversed(&block.hash),
                block.block_id,
                hex_reversed(&there.hash),
                there.height
            ))),
            _ => Ok(()),
        }
    }

    /// Creates the coinbase, mined, and the block's record: one write, so that an empty block costs no more.
    async fn begin_block(&self, at: At, block: &Block<'_>, message: &Bytes, listed: &[Listed]) -> Result<(), Stop> {
        let (txid, pages) = self.coinbase_pages(block, message)?;
        let put_block = put_block(at, block, if listed.is_empty() { 1 } else { 0 });
        let outcomes = match pages {
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
        let wrong = |why: String| Stop::Halt(format!("the coinbase of block {}: {why}", hex_reversed(&block.hash)));
        if !matches!(outcomes[0], Outcome::Rejected(_)) {
            self.parts.arrivals.came(txid);
        }
        match &outcomes[0] {
            Outcome::Applied(Reply::None) => Ok(()),
            // A stub: a child of it was read, and found without its parent, before the block.
            Outcome::Applied(_) => self.second_chances(at, &BTreeSet::new(), Some(txid), &[]).await,
            // A later event of the chain has seen this one done.
            Outcome::Rejected(Rejection::StaleStamp(_)) => Ok(()),
            // Stored before, by this very block or by another one that has the same coinbase.
            Outcome::AlreadyApplied(_) => {
                let coinbase = Listed { txid, subtree: 0 };
                match self.set_mined(at, block, &[coinbase]).await?[..] {
                    [Standing::Mined] => self.second_chances(at, &BTreeSet::new(), Some(txid), &[]).await,
                    _ => Err(wrong(format!("{txid} is stored, but cannot be set mined"))),
                }
            }
            Outcome::Rejected(Rejection::OtherContent) => Err(wrong(format!("{txid} is stored with other content"))),
            Outcome::Rejected(rejection) => {
                Err(wrong(format!("{txid} cannot be stored: {} ({rejection:?})", rejection.code())))
            }
        }
    }

    fn coinbase_pages(&self, block: &Block<'_>, message: &Bytes) -> Result<(Txid, Pages), Stop> {
        let name = hex_reversed(&block.hash);
        let wrong = |why: String| Stop::Halt(format!("the coinbase of block {name}: {why}"));
        let tx = Transaction::parse(block.coinbase).map_err(|error| wrong(error.to_string()))?;
        if !tx.is_coinbase() {
            return Err(wrong("it is no coinbase".to_owned()));
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
        let start = build::Start { listed: build::Listed::LongestChain(mined_in), ..build::Start::default() };
        let body = message.slice_ref(block.coinbase);
        let pages = build::pages_of(&tx, body, txid, &setting, &start).map_err(|error| wrong(error.to_string()))?;
        Ok((txid, pages.keeping(self.parts.store.inline(), &setting)))
    }

    /// Sets mined what is there, lets listed transactions that are conflicting win as soon as their parents are live, and
    /// waits for the rest.
    async fn set_all_mined(
        &self,
        at: At,
        steps: &mut Steps<'_>,
        block: &Block<'_>,
        listed: &[Listed],
    ) -> Result<(), Stop> {
        let mut open = listed.to_vec();
        let name = hex_reversed(&block.hash);
        loop {
            let mut left = Vec::new();
            let mut won = false;
            let standings = self.set_mined(at, block, &open).await?;
            for (listed, standing) in open.iter().zip(standings) {
                match standing {
                    Standing::Mined => continue,
                    Standing::Missing => {}
                    Standing::Conflicting => won |= self.let_win(at, steps, block, listed.txid).await?,
                }
                left.push(*listed);
            }
            if left.is_empty() {
                return Ok(());
            }
            if won {
                open = left;
                continue;
            }
            let what = format!("block {name} at height {}", block.height);
            open = self
                .wait_until(at, &what, || async {
                    self.parts.metrics.sequencer_waiting.set(left.len() as i64);
                    if self.any_arrived(&left).await? {
                        Ok(Ok(left.clone()))
                    } else {
                        Ok(Err(names(left.iter().map(|listed| listed.txid))))
                    }
                })
                .await?;
            self.parts.metrics.sequencer_waiting.set(0);
        }
    }

    /// Whether anything can be set mined, or can win, that could not before.
    async fn any_arrived(&self, waiting: &[Listed]) -> Result<bool, Stop> {
        let txids: Vec<Txid> = waiting.iter().map(|listed| listed.txid).collect();
        for page in self.masters(&txids).await?.into_iter().flatten() {
            match page.state() {
                TxState::Live => return Ok(true),
                TxState::Conflicting(_) if self.parents_are_ready(&page).await? => return Ok(true),
                _ => {}
            }
        }
        Ok(false)
    }

    async fn set_mined(&self, at: At, block: &Block<'_>, open: &[Listed]) -> Result<Vec<Standing>, Stop> {
        let mut standings = Vec::with_capacity(open.len());
        for batch in
            open.chunks(self.parts.settings.mined_batch_size.max(1) * self.parts.store.settings.concurrency.max(1))
        {
            let rows = batch.iter().map(|listed| {
                let mined_in = MinedIn { block_id: block.block_id, height: block.height, subtree: listed.subtree };
                at.row(Phase::Apply, Key::master(listed.txid), Sequenced::SetMined { mined_in, longest_chain: true })
            });
            let mut parents = Vec::new();
            let rows: Vec<Row> = rows.collect();
            let mut outcomes = self.apply(rows.clone()).await?;
            self.complete_and_again(&rows, &mut outcomes).await?;
            for (row, outcome) in rows.iter().zip(&outcomes) {
                if let (true, Operation::Sequenced(_, set_mined), Key::Page(txid, _)) =
                    (has_others(outcome), &row.operation, row.key)
                {
                    self.set_others_mined(at, txid, set_mined).await?;
                }
            }
            for (outcome, listed) in outcomes.into_iter().zip(batch) {
                if has_conflicting_children(&outcome) {
                    parents.push(listed.txid);
                }
                standings.push(standing(outcome, listed)?);
            }
            self.chances_after_unlock(at, &parents).await?;
        }
        Ok(standings)
    }

    /// What refused because it is half created is completed, and asked again.
    async fn complete_and_again(&self, rows: &[Row], outcomes: &mut [Outcome]) -> Result<(), Stop> {
        let half = Outcome::Rejected(Rejection::Creating);
        for (row, outcome) in rows.iter().zip(outcomes).filter(|(_, outcome)| **outcome == half) {
            if let Key::Page(txid, _) = row.key {
                self.complete(&[txid]).await?;
            }
            if let Some(again) = self.apply(vec![row.clone()]).await?.pop() {
                *outcome = again;
            }
        }
        Ok(())
    }

    /// Whether all parents are live and unlocked: one that this block lists too may have won only now, and is locked until it
    /// is set mined.
    async fn parents_are_ready(&self, page: &Page) -> Result<bool, Stop> {
        let masters = self.masters(&self.parents_of(page).await?).await?;
        Ok(masters.iter().all(|master| {
            master.as_ref().is_some_and(|page| match page.state() {
                TxState::Live => !page.locked,
                TxState::Pruned(_) => true,
                _ => false,
            })
        }))
    }

    /// A listed transaction that is conflicting wins: its rivals and their cones become conflicting. `false`: its own
    /// parents have to become live first.
    async fn let_win(&self, at: At, steps: &mut Steps<'_>, block: &Block<'_>, txid: Txid) -> Result<bool, Stop> {
        let Some(mut page) = self.master(txid).await? else { return Ok(false) };
        if !self.parents_are_ready(&page).await? {
            return Ok(false);
        }
        // Stamped like what is applied: the event has already applied something, and a listed transaction wins whoever
        // takes its free slots for it.
        let body = steps
            .decide(async {
                if let Proof::Otherwise(proven) = self.prove_claims(&page).await? {
                    with_claims(&mut page, proven);
                }
                let Findings::Inputs(inputs) = self.findings(at, Phase::Apply, &page, block.height, true).await? else {
                    return Err(Stop::Halt(format!(
                        "block {} lists {txid}, which was pruned",
                        hex_reversed(&block.hash)
                    )));
                };
                let body = evaluate_listed(txid, block.height, &inputs).map_err(|reason| {
                    Stop::Halt(format!(
                        "block {} lists {txid}, which cannot be live: {reason:?}",
                        hex_reversed(&block.hash)
                    ))
                })?;
                self.check_rivals(block, &body).await?;
                Ok(body)
            })
            .await?;
        self.carry_out(at, steps, body).await?;
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

fn put_block(at: At, block: &Block<'_>, progress: u64) -> Row {
    let record = BlockRecord {
        block_id: block.block_id,
        hash: block.hash,
        previous: block.previous,
        height: block.height,
        time: block.time,
        longest_chain: block.longest_chain,
        progress,
        chain_pos: Some(at.stamp(Phase::Apply)),
    };
    at.row(Phase::Apply, Key::Block(block.block_id), Sequenced::PutBlock(record))
}

/// Listed transactions in the order of the block, the coinbase left out.
fn listed(block: &Block<'_>) -> Result<Vec<Listed>, Stop> {
    let mut listed = Vec::new();
    for (subtree, transactions) in (0..).zip(&block.subtrees) {
        match &transactions.transactions {
            SubtreeTransactions::Inline(_) => {
                let txids = transactions.transactions.inline().into_iter().flatten();
                listed.extend(txids.map(|txid| Listed { txid, subtree }));
            }
            SubtreeTransactions::Object { key, .. } => {
                return Err(Stop::Halt(format!(
                    "block {} refers to the object `{key}`: subtrees by reference are not built yet",
                    hex_reversed(&block.hash)
                )));
            }
        }
    }
    Ok(listed)
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
        Outcome::Rejected(rejection) => Err(Stop::Halt(format!("{} cannot be set mined: {rejection:?}", listed.txid))),
    }
}

/// A block hash as explorers show it.
pub fn hex_reversed(hash: &[u8; 32]) -> String {
    Txid(*hash).to_string()
}
