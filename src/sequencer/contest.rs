//! Handles `Contest` and `Reconsider`: evaluates, writes the decision ahead, applies it.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    event::{Contest, DecisionBody},
    record::{
        Key, Outcome, Page, Phase, Reason, Rejection, Reply, Respend, RespendChecks, RespendSlot, Sequenced, SpendSlot,
        SpendingData, TxState, Verdict,
    },
    sequencer::{
        SequencerError,
        contested_event::replace_claims,
        decisions::DecisionLog,
        evaluate::{EvaluatedInput, RespendRefusal, SlotFinding, classify_refusal, evaluate},
        handler::{EventContext, Handler, RestartGrace, decided_txid, distinct},
        steps::{DecisionMode, Steps},
        waiting::{ReportedWait, format_missing},
    },
    tx::{Outpoint, Txid},
};

/// The event that may open a verdict again.
#[derive(Debug, Clone, Copy)]
pub enum ReopenCause<'a> {
    /// A later event of the transaction, with its contest.
    ByEvent(&'a Contest),
    /// A `Reconsider` command in the chain log.
    Reconsider,
}

/// The state of the transaction that a slot names as its spender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HolderState {
    /// The holder is live, so the slot stays with the holder.
    Live,
    /// The holder is not live, and is contested now if it was not before.
    NotLive,
    /// The holder is a partial transaction, which spends nothing. A later event of the transaction took the slot before
    /// that event found the partial record; the sequencer frees the slot.
    Partial,
}

/// The findings for all inputs of a contestant.
pub enum InputFindings {
    /// The finding for each input, in the order of the inputs.
    Inputs(Vec<EvaluatedInput>),
    /// The transaction was live, mined and pruned.
    Pruned,
}

/// Returns the holders that are live.
pub fn filter_live(holders: BTreeMap<Txid, HolderState>) -> Vec<Txid> {
    holders.into_iter().filter(|(_, state)| *state == HolderState::Live).map(|(txid, _)| txid).collect()
}

impl Handler {
    /// Handles a contest: decides, applies the verdict and writes `Closed`.
    pub async fn handle_contest(
        &self,
        ctx: EventContext,
        log: &mut DecisionLog,
        contest: &Contest,
    ) -> Result<(), SequencerError> {
        let mut steps = Steps::new(log, ctx.offset, ctx.mode);
        let body = self.decide_contest(ctx, &mut steps, contest.txid, ReopenCause::ByEvent(contest)).await?;
        if let DecisionBody::Conflicting { reason: Reason::MissingParent { parent }, .. } = body {
            self.publish_missing_parent_letter(ctx, contest, parent).await?;
        }
        if contest.reason == Reason::Seeded {
            self.settle_slots_of_partial(ctx, contest).await?;
        }
        if let DecisionBody::PassedOver { .. } = body {
            self.reconsider_unless_barred(ctx, contest.txid).await?;
        }
        steps.close().await
    }

    /// Handles a `Reconsider`: decides, applies the verdict and writes `Closed`.
    pub async fn handle_reconsider(
        &self,
        ctx: EventContext,
        log: &mut DecisionLog,
        txid: Txid,
    ) -> Result<(), SequencerError> {
        let mut steps = Steps::new(log, ctx.offset, ctx.mode);
        self.decide_contest(ctx, &mut steps, txid, ReopenCause::Reconsider).await?;
        steps.close().await
    }

    /// Decides and applies until the transaction has its own verdict. A live rival that has to lose is decided on
    /// first.
    async fn decide_contest(
        &self,
        ctx: EventContext,
        steps: &mut Steps<'_>,
        txid: Txid,
        reopen: ReopenCause<'_>,
    ) -> Result<DecisionBody, SequencerError> {
        let mut phase = Phase::Evaluate;
        loop {
            let body = steps.decide(Box::pin(self.evaluate_contest(ctx, phase, txid, reopen))).await?;
            // Read here, before the verdict is applied: decisions on its descendants may be new.
            let applied_again = steps.is_applied_again();
            let contest = match reopen {
                ReopenCause::ByEvent(contest) if self.is_applied_verdict(ctx, &body, txid) => Some(contest),
                _ => None,
            };
            if let Some(contest) = contest.filter(|_| !was_live(&body)) {
                if applied_again {
                    self.restore_contestant(ctx, contest).await?;
                } else if ctx.mode == DecisionMode::Replay {
                    // The contestant may wait for a slot that this very decision gives to it. A stub makes the pipeline
                    // store it.
                    self.contest_holders(ctx, Phase::Apply, vec![txid]).await?;
                }
                let has_won = matches!(body, DecisionBody::Accepted { .. });
                self.store_contested_body(ctx, applied_again, contest, has_won).await?;
            }
            Box::pin(self.apply_verdict(ctx, steps, body.clone())).await?;
            // A live transaction keeps its body until it is conflicting.
            if let Some(contest) = contest.filter(|_| was_live(&body) || applied_again) {
                self.store_contested_body(ctx, applied_again, contest, false).await?;
            }
            // Records that were applied with this stamp would refuse an evaluation with an earlier stamp.
            phase = Phase::Apply;
            if decided_txid(&body) == Some(txid) {
                return Ok(body);
            }
        }
    }

    /// Returns whether a decision is a verdict on the contestant that is applied. A rebuild does not apply a verdict
    /// against a transaction that is live at its frontier.
    fn is_applied_verdict(&self, ctx: EventContext, body: &DecisionBody, contestant: Txid) -> bool {
        match body {
            DecisionBody::Accepted { txid, .. } => *txid == contestant,
            DecisionBody::Conflicting { txid, .. } => *txid == contestant && !self.is_live_at_frontier(ctx, txid),
            _ => false,
        }
    }

    /// Evaluates a contest by the records in the store. Writes only marks, stubs and free slots, so that a repeat does
    /// no harm.
    async fn evaluate_contest(
        &self,
        ctx: EventContext,
        phase: Phase,
        txid: Txid,
        reopen: ReopenCause<'_>,
    ) -> Result<DecisionBody, SequencerError> {
        let passed_over = DecisionBody::PassedOver { txid };
        // A contestant is stored before it is contested. An absent contestant was lost by a node: its event comes again
        // and is contested again if need be. Waiting here could last for ever, because the event may wait for a parent
        // whose contest has a later offset. A transaction that a command names may never exist.
        let page = self.master(txid).await?.filter(|page| page.utxos.is_some() || page.pruned.is_some());
        let Some(mut page) = page else { return Ok(passed_over) };
        let (was_live, reopened) = match page.state() {
            // A partial transaction that replaced its stub has no verdict yet.
            TxState::Live if page.verdict() == Some(Verdict::Pending) => (false, false),
            TxState::Live => (true, false),
            TxState::Conflicting(Verdict::Pending) => (false, false),
            TxState::Conflicting(Verdict::Conflicting(reason)) if reopen.can_open(reason) => (false, true),
            _ => return Ok(passed_over),
        };
        if reopened {
            // The decision goes by the records as they are now: the mark keeps a late pruner from removing them.
            self.contest_holders(ctx, phase, vec![txid]).await?;
            if self.master(txid).await?.is_none_or(|page| page.pruned.is_some()) {
                return Ok(passed_over);
            }
        }
        let height = page.unmined_since().unwrap_or(self.height());
        let may_wait = match reopen {
            // The parents of a live transaction exist, or come again where a node lost them.
            ReopenCause::Reconsider => was_live && self.parts.nodes.can_lose_writes(),
            ReopenCause::ByEvent(contest) => !matches!(contest.reason, Reason::MissingParent { .. }),
        };
        if let ReopenCause::ByEvent(contest) = reopen
            && !was_live
            && let Some(claimed) = self.find_differing_claims(contest, &page).await?
        {
            replace_claims(&mut page, claimed);
        }
        // A live transaction would have its slots if no node had lost that spend: a lock set since then does not bar
        // it.
        let checks = if was_live { RespendChecks::Listed { height } } else { RespendChecks::Spend { height } };
        let InputFindings::Inputs(inputs) = self.collect_findings(ctx, phase, &page, checks, may_wait).await? else {
            return Ok(passed_over);
        };
        let has_known_parents = !was_live && !self.parts.nodes.can_lose_writes();
        let inputs = if has_known_parents { inputs } else { self.refuse_spends_of_conflicting_parents(inputs).await? };
        if was_live {
            return self.evaluate_live(&page, &inputs).await;
        }
        match evaluate(txid, false, self.decision_height(&page), &inputs) {
            // The verdict that the transaction already has stays.
            DecisionBody::Conflicting { .. } if reopened => Ok(passed_over),
            body => Ok(body),
        }
    }

    /// Refuses inputs whose parent is conflicting by verdict. A slot that names the contestant proves nothing about the
    /// parent: in a store that can lose writes the parent may have been live for a while, before its verdict was
    /// applied again.
    async fn refuse_spends_of_conflicting_parents(
        &self,
        mut inputs: Vec<EvaluatedInput>,
    ) -> Result<Vec<EvaluatedInput>, SequencerError> {
        let parents = distinct(inputs.iter().map(|input| input.outpoint.txid));
        let masters = self.masters(&parents).await?;
        let is_conflicting = |page: &Page| matches!(page.state(), TxState::Conflicting(Verdict::Conflicting(_)));
        for (parent, _) in
            parents.iter().zip(masters).filter(|(_, master)| master.as_deref().is_some_and(is_conflicting))
        {
            let reason = Reason::ConflictingParent { parent: *parent };
            let spends = inputs.iter_mut().filter(|input| input.outpoint.txid == *parent);
            spends.for_each(|input| input.found = SlotFinding::Refused(reason));
        }
        Ok(inputs)
    }

    /// Evaluates a live transaction of which some slots do not name it, because a node lost a spend. Of two live rivals
    /// the mined one stays; if neither is mined, the present holder stays.
    async fn evaluate_live(&self, page: &Page, inputs: &[EvaluatedInput]) -> Result<DecisionBody, SequencerError> {
        let txid = page.txid;
        let mined = |page: &Page| page.master.as_ref().is_some_and(|master| master.unmined_since.is_none());
        // A parent is pruned only after all its spenders are mined.
        let is_held = |input: &EvaluatedInput| match input.found {
            SlotFinding::Refused(Reason::PrunedParent { .. }) => mined(page),
            found => found == SlotFinding::Held,
        };
        if inputs.iter().all(is_held) {
            return Ok(DecisionBody::PassedOver { txid });
        }
        if !mined(page) {
            return Ok(evaluate(txid, true, self.decision_height(page), inputs));
        }
        let rival = inputs.iter().find_map(|input| match input.found {
            SlotFinding::HeldByLive(holder) => Some(holder),
            _ => None,
        });
        if let Some(rival) = rival {
            let holder = self.master(rival.txid).await?;
            if holder.is_some_and(|holder| mined(&holder)) {
                return Err(SequencerError::Halt(format!(
                    "{txid} and {} spend the same output and are both mined",
                    rival.txid
                )));
            }
            let reason = Reason::DoubleSpend { input: rival.input, winner: txid };
            return Ok(DecisionBody::Conflicting {
                txid: rival.txid,
                reason,
                height: self.decision_height(page),
                live: true,
            });
        }
        if let Some(SlotFinding::Refused(reason)) =
            inputs.iter().map(|input| input.found).find(|found| matches!(found, SlotFinding::Refused(_)))
        {
            return Err(SequencerError::Halt(format!(
                "{txid} is mined, but one of its inputs cannot be spent: {reason:?}"
            )));
        }
        Ok(evaluate(txid, true, self.decision_height(page), inputs))
    }

    /// Takes free slots for the contestant, contests holders that are not live, and reads again until each input has a
    /// finding.
    pub async fn collect_findings(
        &self,
        ctx: EventContext,
        phase: Phase,
        page: &Page,
        checks: RespendChecks,
        may_wait: bool,
    ) -> Result<InputFindings, SequencerError> {
        let txid = page.txid;
        let slots = self.read_inputs(page).await?;
        let mut found: BTreeMap<u32, EvaluatedInput> = BTreeMap::new();
        let mut holder_states: BTreeMap<Txid, HolderState> = BTreeMap::new();
        let mut completed = BTreeSet::new();
        let mut open: Vec<(Outpoint, SpendSlot)> = slots;
        let grace = RestartGrace::new(self.parts.nodes.can_lose_writes());
        let mut waiting = ReportedWait::new(&self.parts, format!("chain offset {}: {txid}", ctx.offset));
        while !open.is_empty() {
            let outcomes = self
                .apply_to_slots(
                    open.iter()
                        .map(|(outpoint, slot)| self.build_respend_row(ctx, phase, txid, *outpoint, slot, checks))
                        .collect(),
                )
                .await?;
            let mut again = Vec::new();
            let mut holders = Vec::new();
            let mut awaited = Vec::new();
            let mut half_created = Vec::new();
            for ((outpoint, slot), outcome) in open.into_iter().zip(outcomes) {
                let index = slot.input;
                let verdict = match outcome {
                    Outcome::Applied(_) | Outcome::AlreadyApplied(_) => SlotFinding::Held,
                    Outcome::Rejected(rejection) => match classify_refusal(&rejection, index, outpoint.txid) {
                        RespendRefusal::Pruned => return Ok(InputFindings::Pruned),
                        RespendRefusal::Stale => return Err(SequencerError::Behind(ctx.offset)),
                        RespendRefusal::Unexpected(code) => {
                            return Err(SequencerError::Halt(format!(
                                "input {index} of {txid} is refused with {code}"
                            )));
                        }
                        RespendRefusal::Reason(reason) => SlotFinding::Refused(reason),
                        RespendRefusal::Absent if !may_wait => {
                            SlotFinding::Refused(Reason::MissingParent { parent: outpoint.txid })
                        }
                        RespendRefusal::Wait if rejection == Rejection::Creating => {
                            // Completed once only: a parent that is still creating afterwards is waited for like any
                            // other.
                            if completed.contains(&outpoint.txid) {
                                awaited.push(outpoint.txid);
                            } else {
                                half_created.push(outpoint.txid);
                            }
                            again.push((outpoint, slot));
                            continue;
                        }
                        // The parent's own contest has a later offset. If the parent wins, the child gets a second
                        // chance.
                        RespendRefusal::Wait if !may_wait => {
                            SlotFinding::Refused(Reason::ConflictingParent { parent: outpoint.txid })
                        }
                        // A parent that a node lost may wait for a contest at a later offset before it comes again.
                        RespendRefusal::Absent | RespendRefusal::Wait if grace.has_expired() => {
                            SlotFinding::Refused(Reason::ConflictingParent { parent: outpoint.txid })
                        }
                        // The parent existed when the contestant was contested, so it comes again.
                        RespendRefusal::Absent | RespendRefusal::Wait => {
                            awaited.push(outpoint.txid);
                            again.push((outpoint, slot));
                            continue;
                        }
                        RespendRefusal::Holder(holder) => {
                            match self.classify_known_holder(txid, holder, &holder_states) {
                                Some(found) => found,
                                None => {
                                    holders.push(holder.txid);
                                    again.push((outpoint, slot));
                                    continue;
                                }
                            }
                        }
                    },
                };
                found.insert(index, EvaluatedInput { index, outpoint, found: verdict });
            }
            holder_states.extend(self.contest_holders(ctx, phase, holders).await?);
            self.complete(&distinct(half_created.iter().copied())).await?;
            completed.extend(half_created);
            open = again;
            if !awaited.is_empty() {
                waiting.pause_for(&format_missing(distinct(awaited))).await;
            }
        }
        Ok(InputFindings::Inputs(found.into_values().collect()))
    }

    /// Returns the finding for a slot with a known holder; `None`: the state of the holder is not known yet. The
    /// contestant itself under another input is no rival.
    fn classify_known_holder(
        &self,
        txid: Txid,
        holder: SpendingData,
        holder_states: &BTreeMap<Txid, HolderState>,
    ) -> Option<SlotFinding> {
        if holder.txid == txid {
            return Some(SlotFinding::HeldByUndecided(holder));
        }
        Some(match holder_states.get(&holder.txid)? {
            HolderState::Live => SlotFinding::HeldByLive(holder),
            HolderState::NotLive | HolderState::Partial => SlotFinding::HeldByUndecided(holder),
        })
    }

    fn build_respend_row(
        &self,
        ctx: EventContext,
        phase: Phase,
        to: Txid,
        outpoint: Outpoint,
        slot: &SpendSlot,
        checks: RespendChecks,
    ) -> crate::engine::Row {
        let respend = Respend { to, slots: vec![RespendSlot { slot: slot.clone(), from: None }], checks };
        ctx.row(phase, self.locate(outpoint).0, Sequenced::Respend(respend))
    }

    /// Contests holders that are not live, and returns the state of each. An absent holder becomes a stub, so that it
    /// cannot become live unnoticed. A tombstone of a transaction that was not conflicting counts as live: its slots
    /// were its own when it was pruned.
    pub async fn contest_holders(
        &self,
        ctx: EventContext,
        phase: Phase,
        holders: Vec<Txid>,
    ) -> Result<BTreeMap<Txid, HolderState>, SequencerError> {
        let holders = distinct(holders);
        let rows = holders.iter().map(|txid| ctx.row(phase, Key::master(*txid), Sequenced::MarkContested)).collect();
        let outcomes = self.apply(rows).await?;
        let mut holder_states = BTreeMap::new();
        let mut unknown = Vec::new();
        for (txid, outcome) in holders.into_iter().zip(outcomes) {
            match outcome {
                // The reply does not distinguish a whole transaction from a partial one. A rejection means a later
                // stamp of this very event, whose verdict was applied. The master has the state in both cases.
                Outcome::AlreadyApplied(Reply::State(TxState::Live | TxState::Creating | TxState::Pruned(_)))
                | Outcome::Rejected(_) => {
                    unknown.push(txid);
                }
                Outcome::Applied(_) | Outcome::AlreadyApplied(_) => {
                    holder_states.insert(txid, HolderState::NotLive);
                }
            }
        }
        let masters = self.masters(&unknown).await?;
        holder_states
            .extend(unknown.into_iter().zip(masters).map(|(txid, master)| (txid, classify_holder(master.as_deref()))));
        Ok(holder_states)
    }
}

fn classify_holder(master: Option<&Page>) -> HolderState {
    match master.map(|page| (page.state(), page.is_partial())) {
        Some((TxState::Live, true)) => HolderState::Partial,
        Some((TxState::Pruned(_), true)) if master.is_some_and(|page| !page.conflicting) => HolderState::Partial,
        Some((TxState::Live, _)) => HolderState::Live,
        Some((TxState::Pruned(_), _)) if master.is_some_and(|page| !page.conflicting) => HolderState::Live,
        _ => HolderState::NotLive,
    }
}

/// Returns whether a decision makes a live transaction conflicting.
fn was_live(body: &DecisionBody) -> bool {
    matches!(body, DecisionBody::Conflicting { live: true, .. })
}

impl ReopenCause<'_> {
    fn can_open(self, reason: Reason) -> bool {
        match self {
            // No input bars a coinbase: only its block restores it.
            ReopenCause::Reconsider => reason != Reason::Disconnected,
            ReopenCause::ByEvent(_) => reason.is_reopened_by_own_event(),
        }
    }
}
