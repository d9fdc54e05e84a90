//! Checks that hold even if nodes lose writes. The transactions found live at a decision then depend on the lost
//! writes, and so do reasons about live transactions. The facts of the events and the last verdict on each transaction
//! stay fixed: these checks cover both.

use std::collections::BTreeSet;

use utxo_store::{
    event::{
        Block, BlockMined, Command, CommandAction, CommandResult, Contest, DecidedInput, DecisionBody, Descendant,
        Event, EventPosition, OutcomeKind, Reorg,
    },
    record::{MinedIn, Reason},
    tx::Txid,
};

use super::{
    Complaint, Expected, LogPosition, Logged,
    commands::ExecutedCommand,
    facts::Tx,
    history::{Tip, TxEntry, TxStatus},
    replay::Replay,
};

impl Replay<'_> {
    /// Returns the state by the last verdicts, or every finding that the events do not justify.
    pub fn run_after_forgetting(mut self) -> Result<Expected, Vec<Complaint>> {
        self.read_decisions();
        for txid in self.history.facts.txs.keys() {
            self.history.tx_entries.insert(*txid, TxEntry::new(TxStatus::Uncontested));
        }
        for logged in &self.logs.chain {
            self.apply_forgetful_event(logged);
        }
        self.check_messages();
        if !self.complaints.is_empty() {
            return Err(self.complaints);
        }
        // The state is final: each transaction is resolved once, not again for every descendant.
        for txid in self.history.tx_entries.keys().copied().collect::<Vec<_>>() {
            self.history.require_live(&txid);
        }
        if let Some(height) = self.history.rules.pruned_to {
            self.history.prune_due(height);
        }
        Ok(self.history.expected())
    }

    fn apply_forgetful_event(&mut self, logged: &Logged) {
        (self.offset, self.next_step) = (logged.message.offset, 0);
        match Event::decode(&logged.message.payload) {
            Ok(Event::BlockMined(mined)) => self.forgetful_block(logged, &mined),
            Ok(Event::Contest(contest)) => self.forgetful_contest(&contest),
            Ok(Event::Command(command)) => match command.action {
                CommandAction::Reconsider { txid } => {
                    let decided = self.forgetful_verdicts(txid);
                    self.expect_unchanged(command.id, txid, decided.as_ref());
                }
                _ => self.forgetful_command(&command),
            },
            Ok(Event::Reorg(reorg)) => self.forgetful_reorg(logged, &reorg),
            _ => drop(self.chain_poison.insert(self.offset)),
        }
        let count = self.decisions.get(&self.offset).map_or(0, Vec::len);
        if self.next_step < count {
            self.complain("has decisions that no event asks for");
        }
    }

    fn forgetful_contest(&mut self, contest: &Contest) {
        // A contestant whose record a node lost is found as a stub, whatever the original reason.
        if contest.reason != Reason::Found {
            self.check_contest(contest);
        }
        let verdict = self.forgetful_verdicts(contest.txid);
        if let Some(DecisionBody::PassedOver { .. }) = verdict {
            self.passed_over.insert((self.offset, contest.txid));
            // The verdict that the transaction has may name a missing parent.
            let EventPosition { partition, offset, timestamp_ms, .. } = contest.position;
            self.possible_dead_letters.insert(LogPosition { timestamp_ms, partition, offset });
        }
        if let Some(DecisionBody::Conflicting { reason: Reason::MissingParent { parent }, .. }) = verdict {
            let EventPosition { partition, offset, timestamp_ms, .. } = contest.position;
            self.expected_dead_letters.insert(LogPosition { timestamp_ms, partition, offset });
            if !self.was_missing(&parent, &contest.position) {
                self.complain(format!("{} lost for the parent {parent}, which was produced earlier", contest.txid));
            }
        }
        if contest.reason == Reason::Seeded {
            self.settle_later_event(contest);
        }
    }

    /// Reads decisions up to the one on the transaction itself: a live rival may have to become conflicting first.
    fn forgetful_verdicts(&mut self, txid: Txid) -> Option<DecisionBody> {
        loop {
            let body = self.next_decision();
            self.mark_inputs_touched(&txid);
            match &body {
                Some(DecisionBody::PassedOver { txid: named }) if *named == txid => {}
                Some(DecisionBody::Accepted { txid: named, height, by_block: false, inputs, losers })
                    if *named == txid =>
                {
                    self.check_height(&txid, *height, None);
                    let lost = self.forgetful_losers(txid, inputs, losers);
                    if !losers.is_empty() {
                        self.forgetful_fall(*height, lost);
                    }
                    self.forgetful_win(txid);
                }
                Some(DecisionBody::Conflicting { txid: loser, reason, height, live }) if *live || *loser == txid => {
                    if !self.is_true_of_events(*loser, *reason) {
                        self.complain(format!("{loser} is conflicting because of {reason:?}, which no event supports"));
                    }
                    self.check_height(loser, *height, None);
                    self.forgetful_fall(*height, vec![(*loser, *reason)]);
                    if *loser != txid {
                        continue;
                    }
                }
                other => self.complain(format!("asks for a verdict on {txid}, but gets {other:?}")),
            }
            self.expect_closed();
            return body;
        }
    }

    fn forgetful_block(&mut self, logged: &Logged, mined: &BlockMined<'_>) {
        if mined.sequence != self.history.sequence + 1 {
            return;
        }
        self.history.sequence = mined.sequence;
        if mined.block.longest_chain {
            self.forgetful_connect(logged, std::slice::from_ref(&mined.block));
        } else {
            self.apply_side_block(logged, &mined.block);
        }
    }

    fn forgetful_reorg(&mut self, logged: &Logged, reorg: &Reorg<'_>) {
        if reorg.sequence != self.history.sequence + 1 {
            return;
        }
        self.history.sequence = reorg.sequence;
        for block in reorg.disconnected.iter().rev() {
            let coinbase = self.disconnect_block(block);
            match self.next_decision() {
                Some(DecisionBody::Conflicting { txid, reason: reason @ Reason::Disconnected, height, .. })
                    if Some(txid) == coinbase =>
                {
                    self.check_height(&txid, height, Some(block.height));
                    self.forgetful_fall(height, vec![(txid, reason)]);
                }
                other => {
                    self.complain(format!("block {} is disconnected, but the decision is {other:?}", block.height))
                }
            }
        }
        self.forgetful_connect(logged, &reorg.connected);
    }

    /// Accepts the transactions that win by these blocks, in any order; then every listed one is mined.
    fn forgetful_connect(&mut self, logged: &Logged, blocks: &[Block<'_>]) {
        self.lift_bars(blocks.last().map_or(0, |block| block.height));
        let mut connected: Vec<(&Block<'_>, Vec<(Txid, u32)>)> = Vec::new();
        for block in blocks {
            self.history.blocks.insert(block.block_id, true);
            self.history.tip = Some(Tip { hash: block.hash, height: block.height });
            let coinbase = self.make_coinbase(logged, block, TxStatus::Live);
            connected.push((
                block,
                self.listed_transactions(block).into_iter().chain(coinbase.map(|txid| (txid, 0))).collect(),
            ));
        }
        let (mut due, mut won) = (Vec::new(), Vec::new());
        while let Some(body) = self.peek_decision() {
            self.next_step += 1;
            let DecisionBody::Accepted { txid, height, by_block: true, inputs, losers } = body else {
                if body != DecisionBody::Closed {
                    self.complain(format!("is a block, but decides {body:?}"));
                }
                continue;
            };
            match connected.iter().find(|(_, listed)| listed.iter().any(|(listed, _)| *listed == txid)) {
                Some((block, _)) => self.check_height(&txid, height, Some(block.height)),
                None => self.complain(format!("{txid} is accepted by a block that does not list it")),
            }
            let lost = self.forgetful_losers(txid, &inputs, &losers);
            due.extend(lost);
            won.push(txid);
            let is_run = |body: &DecisionBody| match body {
                DecisionBody::Accepted { by_block, losers, .. } => *by_block && !losers.is_empty(),
                _ => false,
            };
            // The losers of a run share the decisions on descendants behind it.
            if !losers.is_empty() && self.peek_decision().as_ref().is_some_and(is_run) {
                continue;
            }
            if !due.is_empty() {
                self.forgetful_fall(height, std::mem::take(&mut due));
            }
            won.drain(..).for_each(|txid| self.forgetful_win(txid));
        }
        for (block, listed) in connected {
            self.expect_mined(block, listed.iter().map(|(txid, _)| *txid));
            for (txid, subtree) in listed {
                match self.history.status(&txid) {
                    // A lost coinbase was created anew without a decision.
                    Some(TxStatus::Conflicting(_)) if self.history.tx(&txid).is_some_and(|tx| tx.coinbase) => {
                        self.history.set_status(&txid, TxStatus::Live);
                    }
                    Some(TxStatus::Conflicting(reason)) => {
                        self.complain(format!("block {} lists {txid}, which lost: {reason:?}", block.height));
                    }
                    _ => {}
                }
                self.set_mined(&txid, MinedIn { block_id: block.block_id, height: block.height, subtree });
            }
        }
        // A block may be closed more than once: a lost listed transaction has to win again if a rival was stored first.
        let last = self.next_step.checked_sub(1).and_then(|last| self.decisions.get(&self.offset)?.get(last));
        if last.is_some_and(|last| *last != DecisionBody::Closed) {
            self.complain("is a block that is not closed");
        }
    }

    /// Takes the result of a command as given, since live transactions are unknown here; only the first command of an
    /// id has an effect.
    fn forgetful_command(&mut self, command: &Command<'_>) {
        let (txid, id) = (command.action.subject(), command.id);
        self.mark_touched(&command.action);
        if let Some(DecisionBody::Conflicting { txid: named, reason: Reason::Command, height, .. }) =
            self.peek_decision()
            && named == txid
            && matches!(command.action, CommandAction::SetConflicting { .. })
        {
            self.next_step += 1;
            self.check_height(&txid, height, None);
            self.forgetful_fall(height, vec![(txid, Reason::Command)]);
        }
        let Some(DecisionBody::CommandDone { id: named, executed_at, result }) = self.next_decision() else {
            return self.complain(format!("{:?} has no result", command.action));
        };
        let first =
            self.commands.entry(id).or_insert(ExecutedCommand::new(&command.action, self.offset, &result)).clone();
        if named != id || !first.matches_repeat(&command.action, executed_at, &result) {
            self.complain(format!(
                "{:?} had the result {first:?}, but has {result:?} at {executed_at}",
                command.action
            ));
        }
        if executed_at == self.offset && result == CommandResult::Applied {
            self.apply_restrictions(&command.action);
        }
        if let CommandAction::Unspend { spender, .. } = command.action {
            self.mentioned.insert(spender);
        }
        self.expect_outcome(txid, OutcomeKind::Command { id, result });
        self.expect_closed();
    }

    /// Checks an accepted transaction, and returns its losers with their reasons.
    fn forgetful_losers(&mut self, txid: Txid, inputs: &[DecidedInput], losers: &[Txid]) -> Vec<(Txid, Reason)> {
        let own = self.history.inputs(&txid);
        if inputs.iter().map(|input| input.outpoint).ne(own.iter().copied()) {
            self.complain(format!("{txid} is accepted with inputs that are not its own: {inputs:?}"));
        }
        for DecidedInput { outpoint, holder, .. } in inputs {
            if holder.is_some_and(|holder| !self.names(&holder, outpoint)) {
                self.complain(format!("{holder:?} is decided as holder of {outpoint}, which it does not spend"));
            }
            if self.history.current_output(outpoint).is_none() {
                self.complain(format!("{txid} is accepted, although {outpoint} does not exist"));
            }
        }
        let holder = |loser: &Txid| inputs.iter().filter_map(|input| input.holder).find(|held| held.txid == *loser);
        let mut lost = Vec::new();
        for loser in losers {
            let Some(held) = holder(loser) else {
                self.complain(format!("{loser} loses to {txid}, but holds no slot of its inputs"));
                continue;
            };
            lost.push((*loser, Reason::DoubleSpend { input: held.input, winner: txid }));
        }
        lost
    }

    fn forgetful_win(&mut self, txid: Txid) {
        let tx_entry = self.history.tx_entry(&txid);
        (tx_entry.status, tx_entry.accepted) = (TxStatus::Live, true);
        self.mark_inputs_touched(&txid);
        self.expect_outcome(txid, OutcomeKind::Accepted);
    }

    /// Makes the roots and their real descendants conflicting at the height of the verdict.
    fn forgetful_fall(&mut self, height: u32, roots: Vec<(Txid, Reason)>) {
        let mut affected: BTreeSet<Txid> = roots.iter().map(|(txid, _)| *txid).collect();
        roots.into_iter().for_each(|(txid, reason)| self.forgetful_loss(height, txid, reason));
        while let Some(DecisionBody::Cone { members, .. }) = self.next_decision() {
            if members.is_empty() {
                return;
            }
            for Descendant { txid, parent, .. } in members {
                let descends = self.history.inputs(&txid).iter().any(|input| input.txid == parent);
                if !descends || !affected.contains(&parent) {
                    self.complain(format!(
                        "the descendants name {txid} under {parent}, from which it does not descend"
                    ));
                }
                if affected.insert(txid) {
                    self.forgetful_loss(height, txid, Reason::ConflictingParent { parent });
                }
            }
        }
        self.complain("a list of descendants has no end");
    }

    /// Makes a transaction conflicting; a mined one never is, whatever was lost.
    fn forgetful_loss(&mut self, height: u32, txid: Txid, reason: Reason) {
        if self.history.is_mined(&txid) {
            self.complain(format!("{txid} becomes conflicting because of {reason:?}, although it is mined"));
        }
        self.mark_conflicting(txid, reason, height);
    }

    /// Whether the events support a reason, whichever transactions were live.
    fn is_true_of_events(&self, txid: Txid, reason: Reason) -> bool {
        let inputs = self.history.inputs(&txid);
        let outpoint = |input: u32| inputs.get(input as usize).copied();
        let versions = self.history.tx(&txid).map(Tx::versions).unwrap_or_default();
        match reason {
            Reason::DoubleSpend { input, winner } => outpoint(input)
                .is_some_and(|outpoint| winner != txid && self.history.facts.may_be_named(&winner, &outpoint)),
            Reason::ConflictingParent { parent }
            | Reason::MissingParent { parent }
            | Reason::PrunedParent { parent }
            | Reason::Locked { parent } => inputs.iter().any(|input| input.txid == parent),
            Reason::Mismatch { input } => outpoint(input)
                .and_then(|outpoint| self.history.current_output(&outpoint))
                .is_some_and(|current_output| {
                    versions
                        .iter()
                        .any(|version| version.claims.get(input as usize).is_some_and(|it| *it != current_output))
                }),
            Reason::NoSuchOutput { input } => {
                outpoint(input).is_some_and(|outpoint| self.history.current_output(&outpoint).is_none())
            }
            Reason::Immature { input } => outpoint(input).is_some_and(|outpoint| {
                let from = self.history.tx(&outpoint.txid).and_then(Tx::spending_height);
                from.is_some_and(|from| versions.iter().any(|version| from > version.height))
            }),
            // A command changed the output.
            Reason::Frozen { input } | Reason::NotYetSpendable { input } => outpoint(input)
                .is_some_and(|outpoint| self.touched.contains_key(&outpoint) || self.ever_frozen(&outpoint.txid)),
            Reason::History { .. } | Reason::Found | Reason::Command | Reason::Disconnected | Reason::Seeded => false,
        }
    }
}
