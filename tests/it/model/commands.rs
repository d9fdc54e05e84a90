//! Side chains, reorgs and commands: what they mean. Commands (but for `Reconsider`) have no counterpart in the store yet, so the
//! order of their decisions is a proposal: what a command makes conflicting first, then what became of it, then `Closed`.

use utxo_store::{
    event::{Action, Block, Command, CommandResult, DecisionBody, OutcomeKind, Reorg},
    record::{MinedIn, Reason, Reassignment, StoredOutput},
    tx::{Outpoint, Transaction, Txid, utxo_hash},
};

use super::{
    Logged,
    history::{Standing, Tip},
    replay::Replay,
};

/// What must become of a command: as a code where it is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Done,
    Nothing,
    Refused(&'static str),
}

use Answer::{Done, Nothing, Refused};

impl Replay<'_> {
    /// A block on a side chain decides nothing: its coinbase is there, conflicting, and its triples are written.
    pub fn side_block(&mut self, logged: &Logged, block: &Block<'_>) {
        self.history.blocks.insert(block.block_id, false);
        let lost = Standing::Lost(Reason::Disconnected);
        let coinbase = self.make_coinbase(logged, block, lost);
        if let Some(txid) = coinbase
            && self.history.standing(&txid) == Some(lost)
        {
            let fate = self.history.fate(&txid);
            (fate.unmined_since, fate.lost_at) = (Some(Some(block.height)), block.height);
            self.ever_lost.insert(txid);
        }
        let listed = self.listed(block).into_iter().chain(coinbase.map(|txid| (txid, 0)));
        for (txid, subtree) in listed.collect::<Vec<_>>() {
            if let Some(fate) = self.history.fates.get_mut(&txid) {
                fate.mined.insert(block.block_id, MinedIn { block_id: block.block_id, height: block.height, subtree });
            }
        }
    }

    /// The longest chain changed: its blocks leave newest first, and come oldest first.
    pub fn reorg(&mut self, logged: &Logged, reorg: &Reorg<'_>) {
        if reorg.sequence != self.history.sequence + 1 {
            return;
        }
        self.history.sequence = reorg.sequence;
        for block in reorg.disconnected.iter().rev() {
            self.disconnect(block);
        }
        for block in &reorg.connected {
            self.connect(logged, block);
        }
        self.close_any();
    }

    fn disconnect(&mut self, block: &Block<'_>) {
        let Some(coinbase) = self.unmine(block) else { return };
        match self.step() {
            Some(DecisionBody::Conflicting { txid, reason: Reason::Disconnected, height, live })
                if txid == coinbase =>
            {
                if height != block.height || live != self.history.is_live(&coinbase) {
                    self.complain(format!("the coinbase of block {} leaves at {height}, live: {live}", block.height));
                }
                let fell = self.fell(height, vec![(txid, Reason::Disconnected)], None);
                self.after_verdict(None, &fell);
            }
            other => self.complain(format!("the coinbase of block {} leaves with it, but {other:?}", block.height)),
        }
    }

    /// A block leaves the longest chain, whose tip it is: what it lists is unmined. Answers its coinbase.
    pub fn unmine(&mut self, block: &Block<'_>) -> Option<Txid> {
        if self.history.tip.is_none_or(|tip| tip.hash != block.hash) {
            self.complain(format!("block {} leaves the chain, and is not its tip", block.height));
        }
        self.history.tip = Some(Tip { hash: block.previous, height: block.height.saturating_sub(1) });
        self.history.blocks.insert(block.block_id, false);
        let coinbase = Transaction::parse(block.coinbase).map(|tx| tx.txid()).ok();
        for txid in self.listed(block).into_iter().map(|(txid, _)| txid).chain(coinbase) {
            let since = self.history.unmined_since(&txid);
            if let Some(fate) = self.history.fates.get_mut(&txid)
                && fate.mined.remove(&block.block_id).is_some()
            {
                fate.unmined_since = Some(Some(since.map_or(block.height, |since| since.min(block.height))));
            }
        }
        coinbase
    }

    /// What became of a command is what must become of it, and is told.
    pub fn command(&mut self, command: &Command<'_>) {
        let (subject, expected) = match self.commands.insert(command.id) {
            true => (self.named(&command.action), Some(self.execute(&command.action))),
            false => (self.named(&command.action), None),
        };
        match self.step() {
            Some(DecisionBody::CommandDone { id, result }) if id == command.id => {
                let answer = match &result {
                    CommandResult::Applied => Done,
                    CommandResult::AlreadyApplied => Nothing,
                    CommandResult::Refused { .. } => Refused(""),
                };
                let agrees = match (expected, &result) {
                    (Some(Refused(code)), CommandResult::Refused { code: given, .. }) => code == given,
                    (Some(expected), _) => expected == answer,
                    // A repeat: whatever is said, nothing is done.
                    (None, _) => true,
                };
                if !agrees {
                    self.complain(format!("{:?} must be {expected:?}, and is {result:?}", command.action));
                }
                self.told.push((subject, self.at, OutcomeKind::Command { id, result }));
            }
            other => self.complain(format!("{:?} leads to {other:?}", command.action)),
        }
        self.expect_closed();
    }

    fn named(&self, action: &Action<'_>) -> Txid {
        match action {
            Action::Unlock { txid }
            | Action::Lock { txid }
            | Action::SetConflicting { txid }
            | Action::Reconsider { txid }
            | Action::Preserve { txid, .. }
            | Action::Delete { txid } => *txid,
            Action::Freeze { outpoint }
            | Action::Unfreeze { outpoint }
            | Action::FreezeUntil { outpoint, .. }
            | Action::Reassign { outpoint, .. }
            | Action::Unspend { outpoint, .. } => outpoint.txid,
        }
    }

    fn execute(&mut self, action: &Action<'_>) -> Answer {
        let txid = self.named(action);
        let standing = self.history.standing(&txid);
        if standing.is_none() || self.history.is_pruned(&txid) {
            return Refused("TX_NOT_FOUND");
        }
        match *action {
            Action::Lock { txid } => self.set_locked(&txid, true),
            Action::Unlock { txid } => self.set_locked(&txid, false),
            Action::Freeze { outpoint } => self.freeze(outpoint),
            Action::Unfreeze { outpoint } => self.unfreeze(outpoint),
            Action::FreezeUntil { outpoint, height } => self.freeze_until(outpoint, height),
            Action::Reassign { outpoint, .. } => self.reassign(outpoint, action),
            Action::Unspend { outpoint, spender, .. } => self.unspend(outpoint, spender),
            Action::SetConflicting { txid } => self.set_conflicting(txid),
            Action::Preserve { txid, until } => {
                let fate = self.history.fate(&txid);
                let raised = fate.preserve_until < Some(until);
                fate.preserve_until = fate.preserve_until.max(Some(until));
                if raised { Done } else { Nothing }
            }
            Action::Delete { txid } if matches!(standing, Some(Standing::Lost(_))) => {
                let height = self.history.height();
                self.history.set(&txid, Standing::Pruned(height));
                Done
            }
            Action::Delete { .. } => Refused("INVALID_SPEND"),
            Action::Reconsider { .. } => Nothing,
        }
    }

    fn set_locked(&mut self, txid: &Txid, locked: bool) -> Answer {
        if self.history.locked(txid) == locked {
            return Nothing;
        }
        self.history.fate(txid).locked = Some(locked);
        if !locked {
            self.chances_for(|reason| reason == Reason::Locked { parent: *txid });
        }
        Done
    }

    /// Who was barred by what is lifted now gets a second chance.
    pub fn chances_for(&mut self, barred: impl Fn(Reason) -> bool) {
        for (txid, fate) in &self.history.fates {
            if matches!(fate.standing, Standing::Lost(reason) if barred(reason)) {
                self.chances.push((*txid, self.at));
            }
        }
    }

    /// Why an output cannot be barred, if it cannot.
    fn spendable(&self, outpoint: &Outpoint) -> Option<Answer> {
        if self.history.owed(outpoint).is_none() {
            return Some(Refused("UTXO_NOT_FOUND"));
        }
        let spent = !self.history.live_spenders(outpoint, &outpoint.txid).is_empty();
        (spent || self.history.bars.spender_pruned.contains_key(outpoint)).then_some(Refused("SPENT"))
    }

    fn freeze(&mut self, outpoint: Outpoint) -> Answer {
        if let Some(refused) = self.spendable(&outpoint) {
            return refused;
        }
        self.touched.entry(outpoint).or_insert(self.at);
        if self.history.bars.frozen.insert(outpoint) { Done } else { Refused("ALREADY_FROZEN") }
    }

    fn unfreeze(&mut self, outpoint: Outpoint) -> Answer {
        if self.history.owed(&outpoint).is_none() {
            return Refused("UTXO_NOT_FOUND");
        }
        if !self.history.bars.frozen.remove(&outpoint) {
            return Refused("NOT_FROZEN");
        }
        let spenders = self.history.facts.spenders.get(&outpoint).cloned().unwrap_or_default();
        for spender in spenders {
            let lost = self.history.standing(&spender.txid);
            if lost == Some(Standing::Lost(Reason::Frozen { input: spender.input })) {
                self.chances.push((spender.txid, self.at));
            }
        }
        Done
    }

    fn freeze_until(&mut self, outpoint: Outpoint, height: u32) -> Answer {
        if let Some(refused) = self.spendable(&outpoint) {
            return refused;
        }
        if self.history.bars.frozen.contains(&outpoint) {
            return Refused("FROZEN");
        }
        self.touched.entry(outpoint).or_insert(self.at);
        let before = self.history.bars.spendable_from.insert(outpoint, height);
        if before == Some(height) { Nothing } else { Done }
    }

    fn reassign(&mut self, outpoint: Outpoint, action: &Action<'_>) -> Answer {
        let Action::Reassign { utxo_hash: claimed, new_script, satoshis, height, spendable_after, .. } = *action else {
            return Nothing;
        };
        if let Some(refused) = self.spendable(&outpoint) {
            return refused;
        }
        if !self.history.bars.frozen.contains(&outpoint) {
            return Refused("NOT_FROZEN");
        }
        let hash_of = |script: &[u8], satoshis| utxo_hash(&outpoint.txid, outpoint.vout, script, satoshis);
        let before = self.history.owed(&outpoint).map(|coin| hash_of(&coin.script, coin.satoshis));
        if before != Some(claimed) {
            return Refused("UTXO_HASH_MISMATCH");
        }
        let entry = Reassignment {
            offset: outpoint.vout % self.history.rules.utxo_batch_size,
            utxo_hash: claimed,
            new_utxo_hash: hash_of(new_script, satoshis),
            block_height: height,
            output: StoredOutput { satoshis, script: bytes::Bytes::copy_from_slice(new_script) },
        };
        self.history.bars.frozen.remove(&outpoint);
        self.history.bars.reassigned.entry(outpoint).or_default().push(entry);
        self.history.bars.spendable_from.insert(outpoint, height.saturating_add(spendable_after));
        self.touched.entry(outpoint).or_insert(self.at);
        Done
    }

    /// Only who is not live gives a slot back; and who is not live holds none here.
    fn unspend(&mut self, outpoint: Outpoint, spender: Txid) -> Answer {
        self.touched.entry(outpoint).or_insert(self.at);
        if self.history.is_live(&spender) { Refused("INVALID_SPEND") } else { Nothing }
    }

    fn set_conflicting(&mut self, txid: Txid) -> Answer {
        if self.history.is_mined(&txid) {
            return Refused("INVALID_SPEND");
        }
        if matches!(self.history.standing(&txid), Some(Standing::Lost(_))) {
            return Nothing;
        }
        match self.step() {
            Some(DecisionBody::Conflicting { txid: named, reason: Reason::Command, height, .. }) if named == txid => {
                let fell = self.fell(height, vec![(txid, Reason::Command)], None);
                self.after_verdict(None, &fell);
            }
            other => self.complain(format!("{txid} is to become conflicting, but {other:?}")),
        }
        Done
    }
}
