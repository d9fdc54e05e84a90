//! Contests, `Reconsider`, and the verdicts on them: each must have its reason.

use std::collections::BTreeSet;

use utxo_store::{
    event::{Contest, DecidedInput, DecisionBody, OutcomeKind, Position},
    record::{Reason, SpendingData},
    tx::{Outpoint, Txid},
};

use super::{
    Place,
    facts::{Origin, Tx},
    history::{Standing, is_at},
    replay::{Opened, Replay},
};

impl Replay<'_> {
    pub fn contest(&mut self, contest: &Contest) {
        self.check_contest(contest);
        self.mentioned.insert(contest.txid);
        if contest.reason != Reason::Seeded {
            self.contested_bodies.entry(contest.txid).or_default().insert(contest.body);
        }
        if !matches!(contest.reason, Reason::MissingParent { .. } | Reason::Seeded) {
            self.check_parents_are_decided(&contest.txid);
        }
        // What was live before keeps the body that it was live with.
        if self.history.standing(&contest.txid) == Some(Standing::Pending) {
            let fate = self.history.fate(&contest.txid);
            fate.contest.get_or_insert_with(|| contest.position.clone());
        }
        let verdict = self.decide_on(contest.txid, Opened::ByEvent(contest.reason), Some(&contest.position));
        if let Some(DecisionBody::Conflicting { reason: Reason::MissingParent { .. }, .. }) = verdict {
            let Position { partition, offset, timestamp_ms, .. } = contest.position;
            self.buried.insert(Place { timestamp_ms, partition, offset });
        }
        if contest.reason == Reason::Seeded {
            self.given_back(contest);
        }
        self.expect_closed();
    }

    /// What an event took that came after one of a partial transaction is settled, on parents that are not there, too.
    pub fn given_back(&mut self, contest: &Contest) {
        let facts = self.history.facts.clone();
        let second = facts.second.get(&contest.txid).into_iter().flatten();
        for input in second.filter(|second| is_at(&second.version, &contest.position)).flat_map(|it| &it.inputs) {
            self.touched.entry(*input).or_insert(self.at);
            self.mentioned.insert(input.txid);
        }
    }

    /// A transaction is contested only when all its parents are live, or conflicting by verdict.
    pub fn check_parents_are_decided(&mut self, txid: &Txid) {
        let parents = self.history.tx(txid).map(Tx::parents).unwrap_or_default();
        for parent in parents {
            let decided = self.history.witness(&parent)
                || matches!(self.history.standing(&parent), Some(Standing::Lost(_) | Standing::Pruned(_)));
            if !decided {
                let standing = self.history.standing(&parent);
                self.complain(format!("{txid} is contested before its parent {parent} is decided: {standing:?}"));
            }
            self.stored.insert(parent);
        }
    }

    /// Decisions until the one on the transaction itself.
    pub fn decide_on(&mut self, txid: Txid, opened: Opened, position: Option<&Position>) -> Option<DecisionBody> {
        loop {
            let body = self.step();
            match &body {
                Some(DecisionBody::PassedOver { txid: named }) if *named == txid => {
                    // It is judged by what the contested event claims, which then comes to nothing.
                    let kept = self.history.fates.get(&txid).map(|fate| (fate.contest.clone(), fate.proven.clone()));
                    if kept.is_some() {
                        self.take_version(txid, opened, position);
                    }
                    self.check_passed_over(txid, opened);
                    if let Some(kept) = kept {
                        let fate = self.history.fate(&txid);
                        (fate.contest, fate.proven) = kept;
                    }
                    self.passed_over(txid, opened);
                }
                Some(DecisionBody::Accepted { txid: named, height, inputs, losers, by_block: false })
                    if *named == txid =>
                {
                    self.take_version(txid, opened, position);
                    self.check_open(txid, opened);
                    self.accepted(txid, *height, inputs, losers, None);
                }
                Some(DecisionBody::Conflicting { txid: named, reason, height, live }) if *named == txid => {
                    self.take_version(txid, opened, position);
                    self.conflicting(txid, *reason, *height, *live, opened);
                }
                // A node forgot a spend: a live rival has to give way first.
                Some(DecisionBody::Conflicting { txid: rival, reason, height, live: true })
                    if self.history.rules.forgetful =>
                {
                    self.conflicting(*rival, *reason, *height, true, opened);
                    continue;
                }
                other => self.complain(format!("asks for a verdict on {txid}, and gets {other:?}")),
            }
            self.touch_inputs(&txid);
            if opened != Opened::Reconsider {
                self.stored.insert(txid);
            }
            return body;
        }
    }

    /// A verdict that is given for a contest is about the event that the contest names.
    pub fn take_version(&mut self, txid: Txid, opened: Opened, position: Option<&Position>) {
        if let (Opened::ByEvent(_), Some(position)) = (opened, position) {
            let fate = self.history.fate(&txid);
            (fate.contest, fate.proven) = (Some(position.clone()), None);
        }
    }

    /// A verdict holds, unless this opens it again.
    pub fn check_open(&mut self, txid: Txid, opened: Opened) {
        let standing = self.history.standing(&txid);
        let open = match standing {
            Some(Standing::Pending) => true,
            Some(Standing::Lost(reason)) => opens(opened, reason),
            // A partial transaction that came after a child of it was decided: live, but the others are to have a chance.
            Some(Standing::Live | Standing::Uncontested) => {
                let late = self.history.is_partial(&txid) && !self.history.fate(&txid).accepted;
                self.history.rules.forgetful || late
            }
            Some(Standing::Pruned(_)) | None => false,
        };
        if !open {
            self.complain(format!("{txid} gets a verdict, though it has one that holds: {standing:?}"));
        }
    }

    pub fn check_passed_over(&mut self, txid: Txid, opened: Opened) {
        if self.history.may_be_pruned(&txid) {
            return;
        }
        // What a `Reconsider` names may not have come yet; what a contest names a node may have forgotten.
        let may_be_absent = opened == Opened::Reconsider || self.history.rules.forgetful;
        let wrong = match self.history.standing(&txid) {
            None | Some(Standing::Pending) => (!may_be_absent).then_some("it was never decided"),
            Some(Standing::Live) | Some(Standing::Pruned(_)) => None,
            Some(Standing::Uncontested) => {
                (opened != Opened::Reconsider && !self.history.witness(&txid)).then_some("it cannot be live")
            }
            Some(Standing::Lost(reason)) => {
                let all_there = self.history.inputs(&txid).iter().all(|input| self.stored.contains(&input.txid));
                let height = self.history.unmined_since(&txid).unwrap_or(self.history.height());
                let free = self.history.against(&txid, height).is_empty();
                let known = self.stored.contains(&txid);
                (opens(opened, reason) && all_there && free && known).then_some("nothing stands against it any more")
            }
        };
        if let Some(wrong) = wrong {
            self.complain(format!("{txid} is passed over, though {wrong}"));
        }
    }

    pub fn passed_over(&mut self, txid: Txid, opened: Opened) {
        if matches!(self.history.standing(&txid), Some(Standing::Lost(_))) && opened != Opened::Reconsider {
            self.note(&txid);
        }
    }

    /// Its parents hear that it is conflicting: those that are there.
    pub fn note(&mut self, txid: &Txid) {
        for input in self.history.inputs(txid).iter().filter(|input| self.stored.contains(&input.txid)) {
            self.noted.entry(input.txid).or_default().insert(*txid);
        }
    }

    /// It gets all its inputs, from whoever held them.
    pub fn accepted(&mut self, txid: Txid, height: u32, inputs: &[DecidedInput], losers: &[Txid], block: Option<u32>) {
        self.mentioned.insert(txid);
        self.check_height(&txid, height, block);
        self.check_inputs(txid, inputs, losers, block.is_some());
        if block.is_some() {
            self.history.prove(&txid);
        }
        let lost = losers.iter().map(|loser| {
            let held = inputs.iter().filter_map(|input| input.holder).find(|holder| holder.txid == *loser);
            (*loser, Reason::DoubleSpend { input: held.map_or(0, |held| held.input), winner: txid })
        });
        let fell = if losers.is_empty() { Vec::new() } else { self.fell(height, lost.collect(), Some(txid)) };
        let after = block.or(self.history.unmined_since(&txid)).unwrap_or(height);
        // No lock bars what a block lists, since the unlock may stand behind it; nor who had the slot before a command locked it.
        let by_command = |parent: &Txid| self.history.fates.get(parent).is_some_and(|fate| fate.locked == Some(true));
        let lifted =
            |reason: &Reason| matches!(reason, Reason::Locked { parent } if block.is_some() || by_command(parent));
        let barring: Vec<Reason> =
            self.history.against(&txid, after).into_iter().filter(|reason| !lifted(reason)).collect();
        for reason in barring {
            self.complain(format!("{txid} is accepted, though {reason:?}"));
        }
        for input in self.history.inputs(&txid) {
            self.history.witness(&input.txid);
            self.stored.insert(input.txid);
        }
        let fate = self.history.fate(&txid);
        (fate.standing, fate.accepted) = (Standing::Live, true);
        for input in self.history.inputs(&txid) {
            self.noted.get_mut(&input.txid).map(|children| children.remove(&txid));
        }
        self.tell(txid, OutcomeKind::Accepted);
        self.after_verdict(Some(txid), &fell);
    }

    /// Each holder really names that input; who is live loses to a block only.
    pub fn check_inputs(&mut self, txid: Txid, decided: &[DecidedInput], losers: &[Txid], by_block: bool) {
        let named: Vec<(u32, Outpoint)> = decided.iter().map(|input| (input.input, input.outpoint)).collect();
        let own: Vec<(u32, Outpoint)> = (0..).zip(self.history.inputs(&txid)).collect();
        if named != own {
            self.complain(format!("{txid} is accepted with inputs that are not its own: {named:?}"));
        }
        let mut live = BTreeSet::new();
        for DecidedInput { outpoint, holder, .. } in decided {
            if let Some(holder) = holder.filter(|holder| !self.names(holder, outpoint)) {
                self.complain(format!("{} is said to hold {outpoint}, which it does not spend so", holder.txid));
            }
            for holder in self.history.live_spenders(outpoint, &txid) {
                live.insert(holder.txid);
            }
        }
        if by_block && live != losers.iter().copied().collect() {
            self.complain(format!("{txid} takes the slots of {live:?}, but the losers are {losers:?}"));
        }
        for loser in losers {
            if self.history.is_mined(loser) {
                self.complain(format!("{loser} loses to {txid}, though it is mined"));
            }
        }
        if !by_block && (!live.is_empty() || !losers.is_empty()) {
            self.complain(format!("{txid} is accepted over {losers:?}, though {live:?} are live"));
        }
    }

    pub fn names(&self, holder: &SpendingData, outpoint: &Outpoint) -> bool {
        self.history.facts.may_hold(holder, outpoint)
    }

    pub fn check_height(&mut self, txid: &Txid, height: u32, block: Option<u32>) {
        // Before the first block the transaction's own event says how high the chain is.
        let own = self.history.unmined_since(txid).unwrap_or(0);
        let tip = self.history.tip.map_or(own, |tip| tip.height);
        let expected = block.unwrap_or(tip);
        if height != expected {
            self.complain(format!("is decided at height {height}, but the chain is at {expected}"));
        }
    }

    pub fn conflicting(&mut self, txid: Txid, reason: Reason, height: u32, live: bool, opened: Opened) {
        self.mentioned.insert(txid);
        self.check_height(&txid, height, None);
        if live != self.history.is_live(&txid) {
            self.complain(format!("{txid} is said to be live until now: {live}; it was: {}", !live));
        }
        match self.history.standing(&txid) {
            Some(Standing::Pending) => {}
            Some(Standing::Live | Standing::Uncontested) if self.history.rules.forgetful => {}
            other => {
                self.complain(format!("{txid} is found conflicting, though it has a verdict that holds: {other:?}"))
            }
        }
        if !self.is_justified(txid, reason, opened) {
            let height = self.history.unmined_since(&txid).unwrap_or(self.history.height());
            let true_ones = self.history.against(&txid, height);
            self.complain(format!(
                "{txid} is conflicting because of {reason:?}; what stands against it is {true_ones:?}"
            ));
        }
        if let Reason::DoubleSpend { winner, .. } = reason {
            self.history.witness(&winner);
            self.stored.insert(winner);
        }
        let fell = self.fell(height, vec![(txid, reason)], None);
        self.after_verdict(None, &fell);
    }

    /// Whether the history knows this reason.
    pub fn is_justified(&self, txid: Txid, reason: Reason, opened: Opened) -> bool {
        match reason {
            Reason::MissingParent { parent } => {
                let waits = !matches!(opened, Opened::Reconsider | Opened::ByEvent(Reason::MissingParent { .. }));
                let position = self.history.fates.get(&txid).and_then(|fate| fate.contest.clone());
                let names = self.history.inputs(&txid).iter().any(|input| input.txid == parent);
                !waits && names && position.is_some_and(|position| self.was_missing(&parent, &position))
            }
            Reason::PrunedParent { parent } => {
                self.history.may_be_pruned(&parent) && self.history.inputs(&txid).iter().any(|it| it.txid == parent)
            }
            _ => {
                let height = self.history.unmined_since(&txid).unwrap_or(self.history.height());
                self.history.against(&txid, height).contains(&reason)
            }
        }
    }

    /// Whether a parent was never produced before the event at this position: no event of it is older; a coinbase comes
    /// with its block.
    pub fn was_missing(&self, parent: &Txid, position: &Position) -> bool {
        let event = (position.timestamp_ms, position.partition, position.offset);
        let order = |place: &Place| (place.timestamp_ms, place.partition, place.offset);
        match self.history.tx(parent).map(|tx| &tx.origin) {
            None => true,
            Some(Origin::Validated(versions)) => versions.iter().all(|version| order(&version.place) > event),
            // It comes with its block, which may come behind its children.
            Some(Origin::Block { body, .. }) => {
                self.brought.get(body).is_none_or(|first_ms| *first_ms > position.timestamp_ms)
            }
            Some(Origin::Seeded { .. }) => self.came.get(&parent.0[..]).is_none_or(|first| order(first) > event),
        }
    }
}

/// Whether a verdict for this reason is open again.
fn opens(opened: Opened, reason: Reason) -> bool {
    match reason {
        // Only its block brings a coinbase back.
        Reason::Disconnected => false,
        Reason::MissingParent { .. } | Reason::Mismatch { .. } => true,
        _ => opened == Opened::Reconsider,
    }
}
