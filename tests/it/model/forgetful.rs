//! What holds whatever the nodes of a store have forgotten. Who is found live when something is decided hangs then on what was
//! lost, and so do the reasons of decisions, as far as they are about who is live. But what the events say does not, and the
//! last verdict on a transaction is what it is: both are looked at here.

use std::collections::BTreeSet;

use utxo_store::{
    event::{
        Action, Block, BlockMined, Command, CommandResult, ConeMember, Contest, DecidedInput, DecisionBody, Event,
        OutcomeKind, Position, Reorg,
    },
    record::{MinedIn, Reason},
    tx::Txid,
};

use super::{
    Complaint, Expected, Logged, Place,
    commands::Executed,
    facts::Tx,
    history::{Fate, Standing, Tip},
    replay::Replay,
};

impl Replay<'_> {
    /// What the last verdicts come to, or everything in the logs that the events do not justify.
    pub fn run_after_forgetting(mut self) -> Result<Expected, Vec<Complaint>> {
        self.read_decisions();
        for txid in self.history.facts.txs.keys() {
            self.history.fates.insert(*txid, Fate::new(Standing::Uncontested));
        }
        for logged in &self.logs.chain {
            self.forgetful_event(logged);
        }
        self.check_messages();
        if !self.complaints.is_empty() {
            return Err(self.complaints);
        }
        // Nothing changes any more: who is live is found out once, and not again for everybody who descends from it.
        for txid in self.history.fates.keys().copied().collect::<Vec<_>>() {
            self.history.witness(&txid);
        }
        if let Some(height) = self.history.rules.pruned_to {
            self.history.forget(height);
        }
        Ok(self.history.expected())
    }

    fn forgetful_event(&mut self, logged: &Logged) {
        (self.at, self.next) = (logged.message.offset, 0);
        match Event::decode(&logged.message.payload) {
            Ok(Event::BlockMined(mined)) => self.forgetful_block(logged, &mined),
            Ok(Event::Contest(contest)) => self.forgetful_contest(&contest),
            Ok(Event::Command(command)) => match command.action {
                Action::Reconsider { txid } => drop(self.forgetful_verdicts(txid)),
                _ => self.forgetful_command(&command),
            },
            Ok(Event::Reorg(reorg)) => self.forgetful_reorg(logged, &reorg),
            _ => drop(self.chain_poison.insert(self.at)),
        }
        let count = self.decisions.get(&self.at).map_or(0, Vec::len);
        if self.next < count {
            self.complain("has decisions that nothing asks for");
        }
    }

    fn forgetful_contest(&mut self, contest: &Contest) {
        // Whose record a node forgot is found to be a stub, for whatever reason it was called for.
        if contest.reason != Reason::Found {
            self.check_contest(contest);
        }
        let verdict = self.forgetful_verdicts(contest.txid);
        if let Some(DecisionBody::Conflicting { reason: Reason::MissingParent { parent }, .. }) = verdict {
            let Position { partition, offset, timestamp_ms, .. } = contest.position;
            self.buried.insert(Place { timestamp_ms, partition, offset });
            if !self.was_missing(&parent, &contest.position) {
                self.complain(format!("{} lost for {parent}, which was produced before it", contest.txid));
            }
        }
        if contest.reason == Reason::Seeded {
            self.given_back(contest);
        }
    }

    /// Decisions until the one on the transaction itself: a live rival may have to give way first.
    fn forgetful_verdicts(&mut self, txid: Txid) -> Option<DecisionBody> {
        loop {
            let body = self.step();
            self.touch_inputs(&txid);
            match &body {
                Some(DecisionBody::PassedOver { txid: named }) if *named == txid => {}
                Some(DecisionBody::Accepted { txid: named, height, by_block: false, inputs, losers })
                    if *named == txid =>
                {
                    self.check_height(&txid, *height, None);
                    self.forgetful_win(txid, *height, inputs, losers);
                }
                Some(DecisionBody::Conflicting { txid: loser, reason, height, live }) if *live || *loser == txid => {
                    if !self.is_true_of_events(*loser, *reason) {
                        self.complain(format!("{loser} is conflicting because of {reason:?}, which no event says"));
                    }
                    self.check_height(loser, *height, None);
                    self.forgetful_fall(*height, vec![(*loser, *reason)]);
                    if *loser != txid {
                        continue;
                    }
                }
                other => self.complain(format!("asks for a verdict on {txid}, and gets {other:?}")),
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
            self.side_block(logged, &mined.block);
        }
    }

    fn forgetful_reorg(&mut self, logged: &Logged, reorg: &Reorg<'_>) {
        if reorg.sequence != self.history.sequence + 1 {
            return;
        }
        self.history.sequence = reorg.sequence;
        for block in reorg.disconnected.iter().rev() {
            let coinbase = self.unmine(block);
            match self.step() {
                Some(DecisionBody::Conflicting { txid, reason: reason @ Reason::Disconnected, height, .. })
                    if Some(txid) == coinbase =>
                {
                    self.check_height(&txid, height, Some(block.height));
                    self.forgetful_fall(height, vec![(txid, reason)]);
                }
                other => self.complain(format!("block {} leaves, but {other:?}", block.height)),
            }
        }
        self.forgetful_connect(logged, &reorg.connected);
    }

    /// Who wins by one of these blocks, in whatever order; then all that they list is mined.
    fn forgetful_connect(&mut self, logged: &Logged, blocks: &[Block<'_>]) {
        let mut brought: Vec<(&Block<'_>, Vec<(Txid, u32)>)> = Vec::new();
        for block in blocks {
            self.history.blocks.insert(block.block_id, true);
            self.history.tip = Some(Tip { hash: block.hash, height: block.height });
            let coinbase = self.make_coinbase(logged, block, Standing::Live);
            brought.push((block, self.listed(block).into_iter().chain(coinbase.map(|txid| (txid, 0))).collect()));
        }
        while let Some(body) = self.peek() {
            self.next += 1;
            let DecisionBody::Accepted { txid, height, by_block: true, inputs, losers } = body else {
                if body != DecisionBody::Closed {
                    self.complain(format!("is a block, and decides {body:?}"));
                }
                continue;
            };
            match brought.iter().find(|(_, listed)| listed.iter().any(|(listed, _)| *listed == txid)) {
                Some((block, _)) => self.check_height(&txid, height, Some(block.height)),
                None => self.complain(format!("{txid} wins by a block that does not list it")),
            }
            self.forgetful_win(txid, height, &inputs, &losers);
        }
        for (block, listed) in brought {
            for (txid, subtree) in listed {
                match self.history.standing(&txid) {
                    // Forgotten, it was made anew, and there was nothing to decide.
                    Some(Standing::Lost(_)) if self.history.tx(&txid).is_some_and(|tx| tx.coinbase) => {
                        self.history.set(&txid, Standing::Live);
                    }
                    Some(Standing::Lost(reason)) => {
                        self.complain(format!("block {} lists {txid}, which lost: {reason:?}", block.height));
                    }
                    _ => {}
                }
                self.set_mined(&txid, MinedIn { block_id: block.block_id, height: block.height, subtree });
            }
        }
        // Perhaps more than once: a listed transaction that a node forgot has to win again where a rival came first.
        let last = self.next.checked_sub(1).and_then(|last| self.decisions.get(&self.at)?.get(last));
        if last.is_some_and(|last| *last != DecisionBody::Closed) {
            self.complain("is a block that is not closed");
        }
    }

    /// What became of a command is taken at its word, since who was live is not asked here; but only the first of an id does anything.
    fn forgetful_command(&mut self, command: &Command<'_>) {
        let (txid, id) = (command.action.subject(), command.id);
        self.touch(&command.action);
        if let Some(DecisionBody::Conflicting { txid: named, reason: Reason::Command, height, .. }) = self.peek()
            && named == txid
            && matches!(command.action, Action::SetConflicting { .. })
        {
            self.next += 1;
            self.check_height(&txid, height, None);
            self.forgetful_fall(height, vec![(txid, Reason::Command)]);
        }
        let Some(DecisionBody::CommandDone { id: named, executed_at, result }) = self.step() else {
            return self.complain(format!("{:?} has no result", command.action));
        };
        let first = self.commands.entry(id).or_insert(Executed::new(&command.action, self.at, &result)).clone();
        if named != id || !first.answers(&command.action, executed_at, &result) {
            self.complain(format!("{:?} came to {first:?}, and is {result:?} at {executed_at}", command.action));
        }
        if executed_at == self.at && result == CommandResult::Applied {
            self.carry_out(&command.action);
        }
        if let Action::Unspend { spender, .. } = command.action {
            self.mentioned.insert(spender);
        }
        self.tell(txid, OutcomeKind::Command { id, result });
        self.expect_closed();
    }

    fn forgetful_win(&mut self, txid: Txid, height: u32, inputs: &[DecidedInput], losers: &[Txid]) {
        let own = self.history.inputs(&txid);
        if inputs.iter().map(|input| input.outpoint).ne(own.iter().copied()) {
            self.complain(format!("{txid} is accepted with inputs that are not its own: {inputs:?}"));
        }
        for DecidedInput { outpoint, holder, .. } in inputs {
            if holder.is_some_and(|holder| !self.names(&holder, outpoint)) {
                self.complain(format!("{holder:?} is said to hold {outpoint}, which it does not spend so"));
            }
            if self.history.owed(outpoint).is_none() {
                self.complain(format!("{txid} is accepted, though there is no {outpoint}"));
            }
        }
        let holder = |loser: &Txid| inputs.iter().filter_map(|input| input.holder).find(|held| held.txid == *loser);
        let mut lost = Vec::new();
        for loser in losers {
            let Some(held) = holder(loser) else {
                self.complain(format!("{loser} loses to {txid}, and holds nothing of it"));
                continue;
            };
            lost.push((*loser, Reason::DoubleSpend { input: held.input, winner: txid }));
        }
        if !losers.is_empty() {
            self.forgetful_fall(height, lost);
        }
        let fate = self.history.fate(&txid);
        (fate.standing, fate.accepted) = (Standing::Live, true);
        self.touch_inputs(&txid);
        self.tell(txid, OutcomeKind::Accepted);
    }

    /// They fall at the height of their verdict, and real descendants of them.
    fn forgetful_fall(&mut self, height: u32, roots: Vec<(Txid, Reason)>) {
        let mut fallen: BTreeSet<Txid> = roots.iter().map(|(txid, _)| *txid).collect();
        roots.into_iter().for_each(|(txid, reason)| self.forgetful_loss(height, txid, reason));
        while let Some(DecisionBody::Cone { members, .. }) = self.step() {
            if members.is_empty() {
                return;
            }
            for ConeMember { txid, parent, .. } in members {
                let descends = self.history.inputs(&txid).iter().any(|input| input.txid == parent);
                if !descends || !fallen.contains(&parent) {
                    self.complain(format!("the cone names {txid} under {parent}, from which it does not descend"));
                }
                if fallen.insert(txid) {
                    self.forgetful_loss(height, txid, Reason::ConflictingParent { parent });
                }
            }
        }
        self.complain("a cone has no end");
    }

    /// What a block has listed stays, whatever was forgotten.
    fn forgetful_loss(&mut self, height: u32, txid: Txid, reason: Reason) {
        if self.history.is_mined(&txid) {
            self.complain(format!("{txid} falls because of {reason:?}, though it is mined"));
        }
        self.lose(txid, reason, height);
    }

    /// Whether what the events say bears a reason out, whoever was live.
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
            Reason::Mismatch { input } => {
                outpoint(input).and_then(|outpoint| self.history.owed(&outpoint)).is_some_and(|owed| {
                    versions.iter().any(|version| version.claims.get(input as usize).is_some_and(|it| *it != owed))
                })
            }
            Reason::NoSuchOutput { input } => {
                outpoint(input).is_some_and(|outpoint| self.history.owed(&outpoint).is_none())
            }
            Reason::Immature { input } => outpoint(input).is_some_and(|outpoint| {
                let from = self.history.tx(&outpoint.txid).and_then(Tx::spending_height);
                from.is_some_and(|from| versions.iter().any(|version| from > version.height))
            }),
            // A command touched it.
            Reason::Frozen { input } | Reason::NotYetSpendable { input } => {
                outpoint(input).is_some_and(|outpoint| self.touched.contains_key(&outpoint))
            }
            Reason::History { .. } | Reason::Found | Reason::Command | Reason::Disconnected | Reason::Seeded => false,
        }
    }
}
