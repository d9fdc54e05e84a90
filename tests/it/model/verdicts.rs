//! Contests, `Reconsider` commands and their verdicts: each must have a reason in the history.

use std::collections::BTreeSet;

use utxo_store::{
    event::{Contest, DecidedInput, DecisionBody, EventPosition, OutcomeKind},
    record::{Reason, SpendingData},
    tx::{Outpoint, Txid},
};

use super::{
    LogPosition,
    facts::{Origin, Tx},
    history::{TxStatus, is_at},
    replay::{Replay, VerdictTrigger},
};

/// A decision that accepts a transaction.
pub struct Accepted {
    pub txid: Txid,
    pub height: u32,
    pub inputs: Vec<DecidedInput>,
    pub losers: Vec<Txid>,
}

impl Replay<'_> {
    pub fn apply_contest(&mut self, contest: &Contest) {
        self.check_contest(contest);
        self.mentioned.insert(contest.txid);
        if contest.reason != Reason::Seeded {
            self.contested_bodies.entry(contest.txid).or_default().insert(contest.body);
        }
        if !matches!(contest.reason, Reason::MissingParent { .. } | Reason::Seeded) {
            self.check_parents_are_decided(&contest.txid);
        }
        // A transaction that was live keeps its body.
        if self.history.status(&contest.txid) == Some(TxStatus::Pending) {
            let tx_entry = self.history.tx_entry(&contest.txid);
            tx_entry.contest.get_or_insert_with(|| contest.position.clone());
        }
        let verdict = self.decide_on(contest.txid, VerdictTrigger::Contest(contest.reason), Some(&contest.position));
        let EventPosition { partition, offset, timestamp_ms, .. } = contest.position;
        let position = LogPosition { timestamp_ms, partition, offset };
        // Each event of a transaction whose parent is missing has a dead letter, whatever has decided the transaction.
        let is_missing = self.history.status(&contest.txid).is_some_and(names_missing_parent);
        match verdict {
            Some(DecisionBody::Conflicting { reason: Reason::MissingParent { .. }, .. }) => {
                self.expected_dead_letters.insert(position);
            }
            Some(DecisionBody::PassedOver { .. }) if self.history.may_be_pruned(&contest.txid) => {
                self.possible_dead_letters.insert(position);
            }
            Some(DecisionBody::PassedOver { .. }) if is_missing => drop(self.expected_dead_letters.insert(position)),
            _ => {}
        }
        if contest.reason == Reason::Seeded {
            self.settle_later_event(contest);
        }
        self.expect_closed();
    }

    /// Settles the slots of a whole event that came after a partial one, on absent parents, too.
    pub fn settle_later_event(&mut self, contest: &Contest) {
        let facts = self.history.facts.clone();
        let later = facts.later_events.get(&contest.txid).into_iter().flatten();
        for input in later.filter(|later| is_at(&later.version, &contest.position)).flat_map(|it| &it.inputs) {
            self.touched.entry(*input).or_insert(self.offset);
            self.mentioned.insert(input.txid);
        }
    }

    /// Checks that every parent of a contested transaction is live or conflicting by verdict.
    pub fn check_parents_are_decided(&mut self, txid: &Txid) {
        let parents = self.history.tx(txid).map(Tx::parents).unwrap_or_default();
        for parent in parents {
            let decided = self.history.require_live(&parent)
                || matches!(self.history.status(&parent), Some(TxStatus::Conflicting(_) | TxStatus::Pruned(_)));
            if !decided {
                let status = self.history.status(&parent);
                self.complain(format!("{txid} is contested before its parent {parent} is decided: {status:?}"));
            }
            self.stored.insert(parent);
        }
    }

    /// Reads decisions up to the one on the transaction itself.
    pub fn decide_on(
        &mut self,
        txid: Txid,
        trigger: VerdictTrigger,
        position: Option<&EventPosition>,
    ) -> Option<DecisionBody> {
        loop {
            let body = self.next_decision();
            match &body {
                Some(DecisionBody::PassedOver { txid: named }) if *named == txid => {
                    // The claims of the contested event decide, and are then dropped.
                    let saved = self
                        .history
                        .tx_entries
                        .get(&txid)
                        .map(|tx_entry| (tx_entry.contest.clone(), tx_entry.proven.clone()));
                    if saved.is_some() {
                        self.take_version(txid, trigger, position);
                    }
                    self.check_passed_over(txid, trigger);
                    if let Some(saved) = saved {
                        let tx_entry = self.history.tx_entry(&txid);
                        (tx_entry.contest, tx_entry.proven) = saved;
                    }
                    self.apply_passed_over(txid, trigger);
                }
                Some(DecisionBody::Accepted { txid: named, height, inputs, losers, by_block: false })
                    if *named == txid =>
                {
                    self.take_version(txid, trigger, position);
                    self.check_open(txid, trigger);
                    self.accept(txid, *height, inputs, losers, None);
                }
                Some(DecisionBody::Conflicting { txid: named, reason, height, live }) if *named == txid => {
                    self.take_version(txid, trigger, position);
                    self.apply_conflicting(txid, *reason, *height, *live, trigger);
                }
                // A node lost a spend: a live rival has to become conflicting first.
                Some(DecisionBody::Conflicting { txid: rival, reason, height, live: true })
                    if self.history.rules.forgetful =>
                {
                    self.apply_conflicting(*rival, *reason, *height, true, trigger);
                    continue;
                }
                other => self.complain(format!("asks for a verdict on {txid}, but gets {other:?}")),
            }
            self.mark_inputs_touched(&txid);
            if trigger != VerdictTrigger::Reconsider {
                self.stored.insert(txid);
            }
            return body;
        }
    }

    /// Takes the event that the contest names as the one that counts.
    pub fn take_version(&mut self, txid: Txid, trigger: VerdictTrigger, position: Option<&EventPosition>) {
        if let (VerdictTrigger::Contest(_), Some(position)) = (trigger, position) {
            let tx_entry = self.history.tx_entry(&txid);
            (tx_entry.contest, tx_entry.proven) = (Some(position.clone()), None);
        }
    }

    /// Checks that the transaction has no final verdict, unless this trigger reopens it.
    pub fn check_open(&mut self, txid: Txid, trigger: VerdictTrigger) {
        let status = self.history.status(&txid);
        let open = match status {
            Some(TxStatus::Pending) => true,
            Some(TxStatus::Conflicting(reason)) => opens(trigger, reason),
            // A late partial transaction is live, and a verdict on it gives its children second chances.
            Some(TxStatus::Live | TxStatus::Uncontested) => {
                let late = self.history.is_partial(&txid) && !self.history.tx_entry(&txid).accepted;
                self.history.rules.forgetful || late
            }
            Some(TxStatus::Pruned(_)) | None => false,
        };
        if !open {
            self.complain(format!("{txid} gets a verdict, although it has a final one: {status:?}"));
        }
    }

    pub fn check_passed_over(&mut self, txid: Txid, trigger: VerdictTrigger) {
        if self.history.may_be_pruned(&txid) {
            return;
        }
        // The subject of a `Reconsider` may not be stored yet, and a node may have lost the subject of a contest.
        let may_be_absent = trigger == VerdictTrigger::Reconsider || self.history.rules.forgetful;
        let fault = match self.history.status(&txid) {
            None | Some(TxStatus::Pending) => (!may_be_absent).then_some("it was never decided"),
            Some(TxStatus::Live) | Some(TxStatus::Pruned(_)) => None,
            Some(TxStatus::Uncontested) => (trigger != VerdictTrigger::Reconsider && !self.history.require_live(&txid))
                .then_some("it cannot be live"),
            Some(TxStatus::Conflicting(reason)) => {
                let all_there = self.history.inputs(&txid).iter().all(|input| self.stored.contains(&input.txid));
                let height = self.history.unmined_since(&txid).unwrap_or(self.history.height());
                let free = self.history.reasons_against(&txid, height).is_empty();
                let known = self.stored.contains(&txid);
                (opens(trigger, reason) && all_there && free && known).then_some("no reason bars it any more")
            }
        };
        if let Some(fault) = fault {
            self.complain(format!("{txid} is passed over, although {fault}"));
        }
    }

    pub fn apply_passed_over(&mut self, txid: Txid, trigger: VerdictTrigger) {
        match self.history.status(&txid) {
            _ if trigger == VerdictTrigger::Reconsider => {}
            Some(TxStatus::Conflicting(_)) => {
                self.passed_over_conflicting.insert((self.offset, txid));
                self.record_with_parents(&txid);
            }
            Some(TxStatus::Live | TxStatus::Uncontested) => drop(self.passed_over.insert((self.offset, txid))),
            _ => {}
        }
    }

    /// Records the transaction as a conflicting child of its stored parents.
    pub fn record_with_parents(&mut self, txid: &Txid) {
        for input in self.history.inputs(txid).iter().filter(|input| self.stored.contains(&input.txid)) {
            self.known_children.entry(input.txid).or_default().insert(*txid);
        }
    }

    /// Accepts a transaction: it gets all its inputs from their holders.
    pub fn accept(&mut self, txid: Txid, height: u32, inputs: &[DecidedInput], losers: &[Txid], block: Option<u32>) {
        let verdict = Accepted { txid, height, inputs: inputs.to_vec(), losers: losers.to_vec() };
        self.accept_run(&[verdict], block);
    }

    /// Accepts the transactions of a run: each gets all its inputs from their holders. The descendants of all losers
    /// are named together.
    pub fn accept_run(&mut self, run: &[Accepted], block: Option<u32>) {
        let mut lost = Vec::new();
        for Accepted { txid, height, inputs, losers } in run {
            self.mentioned.insert(*txid);
            self.check_height(txid, *height, block);
            self.check_inputs(*txid, inputs, losers, block.is_some());
            if block.is_some() {
                self.history.correct_claims(txid);
            }
            lost.extend(losers.iter().map(|loser| {
                let held = inputs.iter().filter_map(|input| input.holder).find(|holder| holder.txid == *loser);
                (*loser, Reason::DoubleSpend { input: held.map_or(0, |held| held.input), winner: *txid })
            }));
        }
        let winners: BTreeSet<Txid> = run.iter().map(|accepted| accepted.txid).collect();
        let height = run.first().map_or(0, |accepted| accepted.height);
        let newly_conflicting =
            if lost.is_empty() { Vec::new() } else { self.mark_descendants_conflicting(height, lost, &winners) };
        for accepted in run {
            self.make_live(accepted.txid, accepted.height, block);
        }
        self.after_verdict(&winners, &newly_conflicting);
    }

    fn make_live(&mut self, txid: Txid, height: u32, block: Option<u32>) {
        let after = block.or(self.history.unmined_since(&txid)).unwrap_or(height);
        // No lock bars a listed transaction, since the unlock may come after the block, nor a transaction that had the
        // slot before a command locked or froze the parent.
        let by_command =
            |parent: &Txid| self.history.tx_entries.get(parent).is_some_and(|tx_entry| tx_entry.locked == Some(true));
        let inputs_of = self.history.inputs(&txid);
        let is_frozen_alone = |input: u32| self.history.restrictions.frozen.contains(&inputs_of[input as usize]);
        let lifted = |reason: &Reason| match reason {
            Reason::Locked { parent } => block.is_some() || by_command(parent),
            Reason::Frozen { input } => !is_frozen_alone(*input),
            _ => false,
        };
        let barring: Vec<Reason> =
            self.history.reasons_against(&txid, after).into_iter().filter(|reason| !lifted(reason)).collect();
        for reason in barring {
            self.complain(format!("{txid} is accepted, although {reason:?}"));
        }
        for input in self.history.inputs(&txid) {
            self.history.require_live(&input.txid);
            self.stored.insert(input.txid);
        }
        let tx_entry = self.history.tx_entry(&txid);
        (tx_entry.status, tx_entry.accepted) = (TxStatus::Live, true);
        for input in self.history.inputs(&txid) {
            self.known_children.get_mut(&input.txid).map(|children| children.remove(&txid));
        }
        self.expect_outcome(txid, OutcomeKind::Accepted);
    }

    /// Checks that each holder spends the input, and that a live holder loses to a block only.
    pub fn check_inputs(&mut self, txid: Txid, decided: &[DecidedInput], losers: &[Txid], by_block: bool) {
        let named: Vec<(u32, Outpoint)> = decided.iter().map(|input| (input.input, input.outpoint)).collect();
        let own: Vec<(u32, Outpoint)> = (0..).zip(self.history.inputs(&txid)).collect();
        if named != own {
            self.complain(format!("{txid} is accepted with inputs that are not its own: {named:?}"));
        }
        let mut live = BTreeSet::new();
        for DecidedInput { outpoint, holder, .. } in decided {
            if let Some(holder) = holder.filter(|holder| !self.names(holder, outpoint)) {
                self.complain(format!("{} is decided as holder of {outpoint}, which it does not spend", holder.txid));
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
                self.complain(format!("{loser} loses to {txid}, although it is mined"));
            }
        }
        if !by_block && (!live.is_empty() || !losers.is_empty()) {
            self.complain(format!("{txid} is accepted over {losers:?}, although {live:?} are live"));
        }
    }

    pub fn names(&self, holder: &SpendingData, outpoint: &Outpoint) -> bool {
        self.history.facts.may_hold(holder, outpoint)
    }

    pub fn check_height(&mut self, txid: &Txid, height: u32, block: Option<u32>) {
        let expected = block.unwrap_or(self.history.decision_height(txid));
        if height != expected {
            self.complain(format!("is decided at height {height}, but the chain is at {expected}"));
        }
    }

    pub fn apply_conflicting(&mut self, txid: Txid, reason: Reason, height: u32, live: bool, trigger: VerdictTrigger) {
        self.mentioned.insert(txid);
        self.check_height(&txid, height, None);
        if live != self.history.is_live(&txid) {
            self.complain(format!("{txid} is decided as live before: {live}; the history says: {}", !live));
        }
        match self.history.status(&txid) {
            Some(TxStatus::Pending) => {}
            Some(TxStatus::Live | TxStatus::Uncontested) if self.history.rules.forgetful => {}
            other => {
                self.complain(format!("{txid} is decided conflicting, although it has a final verdict: {other:?}"))
            }
        }
        if !self.is_justified(txid, reason, trigger) {
            let height = self.history.unmined_since(&txid).unwrap_or(self.history.height());
            let reasons = self.history.reasons_against(&txid, height);
            self.complain(format!("{txid} is conflicting because of {reason:?}; the history has {reasons:?}"));
        }
        if let Reason::DoubleSpend { winner, .. } = reason {
            self.history.require_live(&winner);
            self.stored.insert(winner);
        }
        let newly_conflicting = self.mark_descendants_conflicting(height, vec![(txid, reason)], &BTreeSet::new());
        self.after_verdict(&BTreeSet::new(), &newly_conflicting);
    }

    /// Whether the history knows this reason.
    pub fn is_justified(&self, txid: Txid, reason: Reason, trigger: VerdictTrigger) -> bool {
        match reason {
            Reason::MissingParent { parent } => {
                let waits = !matches!(
                    trigger,
                    VerdictTrigger::Reconsider | VerdictTrigger::Contest(Reason::MissingParent { .. })
                );
                let contested = self.history.tx_entries.get(&txid).and_then(|tx_entry| tx_entry.contest.clone());
                // A `Reconsider` can come after a contestant is stored and before its contest (simulator, seed 6963).
                let position = contested.or_else(|| self.first_version(&txid));
                let names = self.history.inputs(&txid).iter().any(|input| input.txid == parent);
                !waits && names && position.is_some_and(|position| self.was_missing(&parent, &position))
            }
            Reason::PrunedParent { parent } => {
                self.history.may_be_pruned(&parent) && self.history.inputs(&txid).iter().any(|it| it.txid == parent)
            }
            _ => {
                let height = self.history.unmined_since(&txid).unwrap_or(self.history.height());
                self.history.reasons_against(&txid, height).contains(&reason)
            }
        }
    }

    /// Returns the position of the first event of a transaction.
    fn first_version(&self, txid: &Txid) -> Option<EventPosition> {
        let Origin::Validated(versions) = &self.history.tx(txid)?.origin else { return None };
        let order = |place: &LogPosition| (place.timestamp_ms, place.partition, place.offset);
        let (timestamp_ms, partition, offset) = versions.iter().map(|version| order(&version.place)).min()?;
        Some(EventPosition { topic: self.logs.validated_topic.clone(), partition, offset, timestamp_ms })
    }

    /// Whether a parent was missing: none of its events precedes the event at this position. A coinbase comes with its
    /// block.
    pub fn was_missing(&self, parent: &Txid, position: &EventPosition) -> bool {
        let event = (position.timestamp_ms, position.partition, position.offset);
        let order = |place: &LogPosition| (place.timestamp_ms, place.partition, place.offset);
        match self.history.tx(parent).map(|tx| &tx.origin) {
            None => true,
            Some(Origin::Validated(versions)) => versions.iter().all(|version| order(&version.place) > event),
            // A coinbase comes with its block, possibly after its children.
            Some(Origin::Block { body, .. }) => {
                self.coinbase_first_ms.get(body).is_none_or(|first_ms| *first_ms > position.timestamp_ms)
            }
            Some(Origin::Seeded { .. }) => {
                self.first_events.get(&parent.0[..]).is_none_or(|first| order(first) > event)
            }
        }
    }
}

/// Whether the trigger reopens a verdict with this reason.
fn opens(trigger: VerdictTrigger, reason: Reason) -> bool {
    match reason {
        // Only its block restores a coinbase.
        Reason::Disconnected => false,
        Reason::MissingParent { .. } | Reason::Mismatch { .. } => true,
        _ => trigger == VerdictTrigger::Reconsider,
    }
}

fn names_missing_parent(status: TxStatus) -> bool {
    matches!(status, TxStatus::Conflicting(Reason::MissingParent { .. }))
}
