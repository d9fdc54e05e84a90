//! Blocks of the longest chain: the coinbase is created, listed transactions win and are mined.

use std::{collections::BTreeSet, sync::Arc};

use utxo_store::{
    event::{Block, BlockMined, DecisionBody, SubtreeTransactions},
    record::{MinedIn, Reason},
    tx::Txid,
};

use super::{
    Logged,
    facts::Facts,
    history::{Tip, TxEntry, TxStatus},
    replay::Replay,
    verdicts::Accepted,
};

impl Replay<'_> {
    pub fn apply_block(&mut self, logged: &Logged, mined: &BlockMined<'_>) {
        // A repeat, or a block that was fed before the one that its feed failed to produce: the feed repeats both in
        // order.
        if mined.sequence != self.history.sequence + 1 {
            return;
        }
        self.history.sequence = mined.sequence;
        let block = &mined.block;
        if block.longest_chain {
            self.lift_bars(block.height);
            self.connect_block(logged, block)
        } else {
            self.apply_side_block(logged, block)
        }
        self.expect_closed_if_decided();
    }

    /// Applies a block of the longest chain: its coinbase is created, its listed transactions win and are mined.
    pub fn connect_block(&mut self, logged: &Logged, block: &Block<'_>) {
        if let Some(tip) = self.history.tip.filter(|tip| tip.hash != block.previous) {
            self.complain(format!("block {} does not follow the tip at {}", block.height, tip.height));
        }
        if let Some(tip) = self.history.tip.filter(|tip| tip.height + 1 != block.height) {
            self.complain(format!("block {} is not at the height after the tip at {}", block.height, tip.height));
        }
        self.history.tip = Some(Tip { hash: block.hash, height: block.height });
        self.history.blocks.insert(block.block_id, true);
        let coinbase = self.make_coinbase(logged, block, TxStatus::Live);
        if let Some(coinbase) = coinbase {
            self.mature_from(coinbase, block);
        }
        let listed = self.listed_transactions(block);
        self.expect_mined(block, listed.iter().map(|(txid, _)| *txid).chain(coinbase));
        self.decide_on_block(block, coinbase, &listed);
        for (txid, subtree) in listed.into_iter().chain(coinbase.map(|txid| (txid, 0))) {
            if !self.history.require_live(&txid) {
                let status = self.history.status(&txid);
                self.complain(format!("block {} lists {txid}, which is not live: {status:?}", block.height));
            }
            self.stored.insert(txid);
            self.set_mined(&txid, MinedIn { block_id: block.block_id, height: block.height, subtree });
        }
    }

    /// Checks the verdicts on spenders of a coinbase that an earlier block of the chain also has: those spenders are
    /// immature again.
    fn mature_from(&mut self, coinbase: Txid, block: &Block<'_>) {
        if !self.history.is_mined(&coinbase) {
            return;
        }
        self.set_mined(&coinbase, MinedIn { block_id: block.block_id, height: block.height, subtree: 0 });
        while let Some(DecisionBody::Conflicting {
            txid,
            reason: reason @ Reason::Immature { .. },
            height,
            live: true,
        }) = self.peek_decision()
        {
            self.next_step += 1;
            self.mentioned.insert(txid);
            let own_height = self.history.unmined_since(&txid).unwrap_or(u32::MAX);
            if height != block.height || !self.history.reasons_against(&txid, own_height).contains(&reason) {
                self.complain(format!(
                    "{txid} becomes conflicting at {height} because of {reason:?}, which does not bar it"
                ));
            }
            let newly_conflicting = self.mark_descendants_conflicting(height, vec![(txid, reason)], &BTreeSet::new());
            self.after_verdict(&BTreeSet::new(), &newly_conflicting);
        }
    }

    /// Checks the verdicts on transactions of the block that were conflicting.
    pub fn decide_on_block(&mut self, block: &Block<'_>, coinbase: Option<Txid>, listed: &[(Txid, u32)]) {
        let mut won = BTreeSet::new();
        let connected: BTreeSet<Txid> = listed.iter().map(|(txid, _)| *txid).chain(coinbase).collect();
        while let Some(first) = self.take_accepted(&connected) {
            // Verdicts with losers and without descendants between them share the descendants behind them.
            let mut run = vec![first];
            while run.iter().all(|accepted| !accepted.losers.is_empty())
                && let Some(DecisionBody::Accepted { by_block: true, losers, .. }) = self.peek_decision()
                && !losers.is_empty()
                && let Some(next) = self.take_accepted(&connected)
            {
                run.push(next);
            }
            for Accepted { txid, .. } in &run {
                // Two sequencers may handle one block: the second repeats the decisions of the first.
                let is_repeat = !won.insert(*txid);
                if self.history.is_live(txid) && !is_repeat {
                    self.complain(format!("{txid} is accepted by a block, although it is live"));
                }
                self.mine_parents(txid, block, listed);
            }
            self.accept_run(&run, Some(block.height));
            run.iter().for_each(|accepted| self.mark_inputs_touched(&accepted.txid));
        }
    }

    /// Takes the next decision, if it accepts one of these transactions.
    fn take_accepted(&mut self, connected: &BTreeSet<Txid>) -> Option<Accepted> {
        match self.peek_decision()? {
            DecisionBody::Accepted { txid, height, inputs, losers, by_block: true } if connected.contains(&txid) => {
                self.next_step += 1;
                Some(Accepted { txid, height, inputs, losers })
            }
            _ => None,
        }
    }

    /// Sets the parents of a listed transaction mined before it wins: until then a locked parent of the same block bars
    /// it.
    fn mine_parents(&mut self, txid: &Txid, block: &Block<'_>, listed: &[(Txid, u32)]) {
        let parents: BTreeSet<Txid> = self.history.inputs(txid).iter().map(|input| input.txid).collect();
        for (parent, subtree) in listed.iter().filter(|(listed, _)| parents.contains(listed)) {
            if self.history.require_live(parent) {
                self.set_mined(parent, MinedIn { block_id: block.block_id, height: block.height, subtree: *subtree });
            }
        }
    }

    pub fn listed_transactions(&mut self, block: &Block<'_>) -> Vec<(Txid, u32)> {
        let mut listed = Vec::new();
        for (subtree, index) in block.subtrees.iter().zip(0..) {
            match &subtree.transactions {
                SubtreeTransactions::Inline(_) => {
                    listed.extend(subtree.transactions.inline().into_iter().flatten().map(|txid| (txid, index)));
                }
                SubtreeTransactions::Object { key, .. } => {
                    self.complain(format!("the listing object {key} is not in the logs"))
                }
            }
        }
        listed
    }

    /// Adds the coinbase of a block, which another block may have, too.
    pub fn make_coinbase(&mut self, logged: &Logged, block: &Block<'_>, status: TxStatus) -> Option<Txid> {
        let body = logged.message.payload.slice_ref(block.coinbase);
        let Some(tx) = Facts::coinbase(&body, block.height) else {
            self.complain(format!("the coinbase of block {} is not a transaction", block.height));
            return None;
        };
        let txid = tx.txid;
        let rules = self.history.rules;
        if Arc::make_mut(&mut self.history.facts).add(tx, &rules).is_err() {
            self.complain(format!("the coinbase of block {} contradicts the known transaction", block.height));
        }
        self.history.tx_entries.entry(txid).or_insert_with(|| TxEntry::new(status));
        self.stored.insert(txid);
        Some(txid)
    }

    pub fn set_mined(&mut self, txid: &Txid, mined: MinedIn) {
        let was_locked = self.history.is_locked(txid);
        let tx_entry = self.history.tx_entry(txid);
        tx_entry.mined.insert(mined.block_id, mined);
        (tx_entry.unmined_since, tx_entry.locked) = (Some(None), Some(false));
        if was_locked {
            self.reconsider_children(*txid, |_| true);
        }
    }
}
