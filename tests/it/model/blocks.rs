//! Blocks of the longest chain: the coinbase is made, what is listed wins and is mined.

use std::{collections::BTreeSet, sync::Arc};

use utxo_store::{
    event::{Block, BlockMined, DecisionBody, SubtreeTransactions},
    record::{MinedIn, Reason},
    tx::Txid,
};

use super::{
    Logged,
    facts::Facts,
    history::{Fate, Standing, Tip},
    replay::Replay,
};

impl Replay<'_> {
    pub fn block_mined(&mut self, logged: &Logged, mined: &BlockMined<'_>) {
        // A repeat, or one that got in before the one that its feed failed to produce: fed again in order.
        if mined.sequence != self.history.sequence + 1 {
            return;
        }
        self.history.sequence = mined.sequence;
        let block = &mined.block;
        if block.longest_chain {
            self.connect(logged, block)
        } else {
            self.side_block(logged, block)
        }
        self.close_any();
    }

    /// A block of the longest chain: its coinbase is made, what it lists wins and is mined.
    pub fn connect(&mut self, logged: &Logged, block: &Block<'_>) {
        if let Some(tip) = self.history.tip.filter(|tip| tip.hash != block.previous) {
            self.complain(format!("block {} does not follow the tip at {}", block.height, tip.height));
        }
        if let Some(tip) = self.history.tip.filter(|tip| tip.height + 1 != block.height) {
            self.complain(format!("block {} does not stand one above the tip at {}", block.height, tip.height));
        }
        self.history.tip = Some(Tip { hash: block.hash, height: block.height });
        self.history.blocks.insert(block.block_id, true);
        let coinbase = self.make_coinbase(logged, block, Standing::Live);
        if let Some(coinbase) = coinbase {
            self.mature_from(coinbase, block);
        }
        let listed = self.listed(block);
        self.decide_on_block(block, coinbase, &listed);
        for (txid, subtree) in listed.into_iter().chain(coinbase.map(|txid| (txid, 0))) {
            if !self.history.witness(&txid) {
                let standing = self.history.standing(&txid);
                self.complain(format!("block {} lists {txid}, which is not live: {standing:?}", block.height));
            }
            self.stored.insert(txid);
            self.set_mined(&txid, MinedIn { block_id: block.block_id, height: block.height, subtree });
        }
    }

    /// Verdicts on spenders of a coinbase that an earlier block of the chain has, too: they are too young now.
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
        }) = self.peek()
        {
            self.next += 1;
            self.mentioned.insert(txid);
            let own_height = self.history.unmined_since(&txid).unwrap_or(u32::MAX);
            if height != block.height || !self.history.against(&txid, own_height).contains(&reason) {
                self.complain(format!("{txid} falls at {height} because of {reason:?}, which does not bar it"));
            }
            let fell = self.fell(height, vec![(txid, reason)], None);
            self.after_verdict(None, &fell);
        }
    }

    /// Verdicts on what a block brings and what was conflicting.
    pub fn decide_on_block(&mut self, block: &Block<'_>, coinbase: Option<Txid>, listed: &[(Txid, u32)]) {
        let mut won = BTreeSet::new();
        let brought: BTreeSet<Txid> = listed.iter().map(|(txid, _)| *txid).chain(coinbase).collect();
        while let Some(DecisionBody::Accepted { txid, inputs, losers, by_block: true, height: at }) = self.peek()
            && brought.contains(&txid)
        {
            self.next += 1;
            // Two sequencers at one block: the second decides again what the first has just decided.
            let again = !won.insert(txid);
            if self.history.is_live(&txid) && !again {
                self.complain(format!("{txid} wins by a block, though it is live"));
            }
            self.mine_parents(&txid, block, listed);
            self.accepted(txid, at, &inputs, &losers, Some(block.height));
            self.touch_inputs(&txid);
        }
    }

    /// What a block lists wins only once its own parents are set mined: until then a locked one that the same block lists
    /// bars it.
    fn mine_parents(&mut self, txid: &Txid, block: &Block<'_>, listed: &[(Txid, u32)]) {
        let parents: BTreeSet<Txid> = self.history.inputs(txid).iter().map(|input| input.txid).collect();
        for (parent, subtree) in listed.iter().filter(|(listed, _)| parents.contains(listed)) {
            if self.history.witness(parent) {
                self.set_mined(parent, MinedIn { block_id: block.block_id, height: block.height, subtree: *subtree });
            }
        }
    }

    pub fn listed(&mut self, block: &Block<'_>) -> Vec<(Txid, u32)> {
        let mut listed = Vec::new();
        for (subtree, index) in block.subtrees.iter().zip(0..) {
            match &subtree.transactions {
                SubtreeTransactions::Inline(_) => {
                    listed.extend(subtree.transactions.inline().into_iter().flatten().map(|txid| (txid, index)));
                }
                SubtreeTransactions::Object { key, .. } => {
                    self.complain(format!("the object {key} is not in the logs"))
                }
            }
        }
        listed
    }

    /// The coinbase of a block, which may be known from another block.
    pub fn make_coinbase(&mut self, logged: &Logged, block: &Block<'_>, standing: Standing) -> Option<Txid> {
        let body = logged.message.payload.slice_ref(block.coinbase);
        let Some(tx) = Facts::coinbase(&body, block.height) else {
            self.complain(format!("the coinbase of block {} is no transaction", block.height));
            return None;
        };
        let txid = tx.txid;
        let rules = self.history.rules;
        if Arc::make_mut(&mut self.history.facts).add(tx, &rules).is_err() {
            self.complain(format!("the coinbase of block {} is known with other content", block.height));
        }
        self.history.fates.entry(txid).or_insert_with(|| Fate::new(standing));
        self.stored.insert(txid);
        Some(txid)
    }

    pub fn set_mined(&mut self, txid: &Txid, mined: MinedIn) {
        let was_locked = self.history.locked(txid);
        let fate = self.history.fate(txid);
        fate.mined.insert(mined.block_id, mined);
        (fate.unmined_since, fate.locked) = (Some(None), Some(false));
        if was_locked {
            self.chances_of(*txid, |_| true);
        }
    }
}
