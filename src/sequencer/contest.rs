//! Handles `Contest` and `Reconsider`: evaluates, writes the decision ahead, applies it.

use crate::{
    event::{Contest, DecisionBody, OutcomeKind},
    record::{CommandResult, Page, Phase, Reason, RespendChecks, TxState, Verdict},
    sequencer::{
        SequencerError,
        contested_event::{
            find_differing_claims, publish_missing_parent_letter, replace_claims, restore_contestant,
            settle_slots_of_partial, store_contested_body,
        },
        context::{HandlerContext, distinct},
        decisions::DecisionLog,
        evaluate::{EvaluatedInput, SlotFinding, evaluate},
        findings::{InputFindings, collect_findings},
        holders::{contest_holder, is_mined},
        second_chances::{is_second_chance, reconsider_unless_barred},
        steps::Steps,
        verdict::{apply_verdict, decided_txid},
    },
    tx::Txid,
};

/// The event that may open a verdict again.
#[derive(Debug, Clone, Copy)]
pub enum ReopenCause<'a> {
    /// A later event of the transaction, with its contest.
    ByEvent(&'a Contest),
    /// A `Reconsider` command in the chain log.
    Reconsider,
}

/// Handles contests and second chances.
pub struct ContestHandler<'a> {
    cx: &'a HandlerContext<'a>,
}

impl<'a> ContestHandler<'a> {
    /// Makes a handler of the event of this context.
    pub fn new(cx: &'a HandlerContext<'a>) -> Self {
        ContestHandler { cx }
    }

    /// Handles a contest: decides, applies the verdict and writes `Closed`.
    pub async fn handle_contest(&self, log: &mut DecisionLog, contest: &Contest) -> Result<(), SequencerError> {
        let mut steps = Steps::new(log, self.cx.offset, self.cx.mode);
        let body = self.decide_contest(&mut steps, contest.txid, ReopenCause::ByEvent(contest)).await?;
        let missing_parent = match body {
            DecisionBody::Conflicting { reason: Reason::MissingParent { parent }, .. } => Some(parent),
            // A `Reconsider` may have decided the contestant before its contest, or the verdict is that of an earlier
            // event. Only the contest names the event.
            DecisionBody::PassedOver { txid } => self.missing_parent_by_verdict(txid).await?,
            _ => None,
        };
        if let Some(parent) = missing_parent {
            Box::pin(publish_missing_parent_letter(self.cx, contest, parent)).await?;
        }
        if contest.reason == Reason::Seeded {
            Box::pin(settle_slots_of_partial(self.cx, contest)).await?;
        }
        if let DecisionBody::PassedOver { .. } = body {
            if !self.cx.is_repeated_contest(&contest.position) {
                reconsider_unless_barred(self.cx, contest.txid).await?;
            }
            self.publish_live_contestant(contest.txid).await?;
        }
        steps.close().await
    }

    /// Returns the missing parent that a transaction is conflicting for.
    async fn missing_parent_by_verdict(&self, txid: Txid) -> Result<Option<Txid>, SequencerError> {
        Ok(match self.cx.master(txid).await?.map(|page| page.state()) {
            Some(TxState::Conflicting(Verdict::Conflicting(Reason::MissingParent { parent }))) => Some(parent),
            _ => None,
        })
    }

    /// Publishes the outcome of a contestant that is live by its own event and keeps its slots. A node can lose the
    /// slot of a live transaction before the outcome `live` is acknowledged. Its event then finds a rival in the slot,
    /// is contested and completes.
    async fn publish_live_contestant(&self, txid: Txid) -> Result<(), SequencerError> {
        if !self.cx.parts.nodes.can_lose_writes() {
            return Ok(());
        }
        match self.cx.master(txid).await?.map(|page| page.state()) {
            Some(TxState::Live) => self.cx.publish_outcomes(vec![(txid, OutcomeKind::Accepted)]).await,
            _ => Ok(()),
        }
    }

    /// Handles a `Reconsider`: decides, applies the verdict and writes `Closed`. A verdict is the answer to a client;
    /// where nothing changes, the outcome of the command is.
    pub async fn handle_reconsider(
        &self,
        log: &mut DecisionLog,
        id: [u8; 16],
        txid: Txid,
    ) -> Result<(), SequencerError> {
        let mut steps = Steps::new(log, self.cx.offset, self.cx.mode);
        let body = self.decide_contest(&mut steps, txid, ReopenCause::Reconsider).await?;
        if let DecisionBody::PassedOver { .. } = body
            && !is_second_chance(&id, &txid)
        {
            let unchanged = OutcomeKind::Command { id, result: CommandResult::AlreadyApplied };
            self.cx.publish_outcomes(vec![(txid, unchanged)]).await?;
        }
        steps.close().await
    }

    /// Decides and applies until the transaction has its own verdict. A live rival that has to lose is decided on
    /// first.
    async fn decide_contest(
        &self,
        steps: &mut Steps<'_>,
        txid: Txid,
        reopen: ReopenCause<'_>,
    ) -> Result<DecisionBody, SequencerError> {
        let mut phase = Phase::Evaluate;
        loop {
            let body = steps.decide(Box::pin(self.evaluate_contest(phase, txid, reopen))).await?;
            // Read here, before the verdict is applied: decisions on its descendants may be new.
            let cx = &self.cx.applying(steps);
            let contest = match reopen {
                ReopenCause::ByEvent(contest) if self.is_applied_verdict(&body, txid) => Some(contest),
                _ => None,
            };
            if let Some(contest) = contest.filter(|_| !was_live(&body)) {
                if cx.applied_again {
                    Box::pin(restore_contestant(cx, contest)).await?;
                } else if cx.is_replay() {
                    // The contestant may wait for a slot that this very decision gives to it. A stub makes the pipeline
                    // store it.
                    contest_holder(cx, Phase::Apply, txid).await?;
                }
                let has_won = matches!(body, DecisionBody::Accepted { .. });
                store_contested_body(cx, contest, has_won).await?;
            }
            apply_verdict(cx, steps, body.clone()).await?;
            // A live transaction keeps its body until it is conflicting.
            if let Some(contest) = contest.filter(|_| was_live(&body) || cx.applied_again) {
                store_contested_body(cx, contest, false).await?;
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
    fn is_applied_verdict(&self, body: &DecisionBody, contestant: Txid) -> bool {
        match body {
            DecisionBody::Accepted { txid, .. } => *txid == contestant,
            DecisionBody::Conflicting { txid, .. } => *txid == contestant && !self.cx.is_live_at_frontier(txid),
            _ => false,
        }
    }

    /// Evaluates a contest by the records in the store. Writes only marks, stubs and free slots, so that a repeat does
    /// no harm.
    async fn evaluate_contest(
        &self,
        phase: Phase,
        txid: Txid,
        reopen: ReopenCause<'_>,
    ) -> Result<DecisionBody, SequencerError> {
        let passed_over = DecisionBody::PassedOver { txid };
        // A contestant is stored before it is contested. An absent contestant was lost by a node: its event comes again
        // and is contested again if need be. Waiting here could last for ever, because the event may wait for a parent
        // whose contest has a later offset. A transaction that a command names may never exist.
        let page = self.cx.master(txid).await?.filter(|page| page.utxos.is_some() || page.pruned.is_some());
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
            contest_holder(self.cx, phase, txid).await?;
            if self.cx.master(txid).await?.is_none_or(|page| page.pruned.is_some()) {
                return Ok(passed_over);
            }
        }
        let height = page.unmined_since().unwrap_or(self.cx.state.height());
        let may_wait = match reopen {
            // The parents of a live transaction exist, or come again where a node lost them.
            ReopenCause::Reconsider => was_live && self.cx.parts.nodes.can_lose_writes(),
            ReopenCause::ByEvent(contest) => !matches!(contest.reason, Reason::MissingParent { .. }),
        };
        if let ReopenCause::ByEvent(contest) = reopen
            && !was_live
            && let Some(claimed) = find_differing_claims(self.cx, contest, &page).await?
        {
            replace_claims(&mut page, claimed);
        }
        // A live transaction would have its slots if no node had lost that spend: a flag of a parent that was set since
        // then does not bar it.
        let checks = if was_live { RespendChecks::Live { height } } else { RespendChecks::Spend { height } };
        let InputFindings::Inputs(inputs) = collect_findings(self.cx, phase, &page, checks, may_wait).await? else {
            return Ok(passed_over);
        };
        let has_known_parents = !was_live && !reopened && !self.cx.parts.nodes.can_lose_writes();
        let inputs = if has_known_parents { inputs } else { self.refuse_spends_of_conflicting_parents(inputs).await? };
        if was_live {
            return self.evaluate_live(&page, &inputs).await;
        }
        match evaluate(txid, false, self.cx.decision_height(&page), &inputs) {
            // The verdict that the transaction already has stays.
            DecisionBody::Conflicting { .. } if reopened => Ok(passed_over),
            body => Ok(body),
        }
    }

    /// Refuses inputs whose parent is conflicting by verdict. A slot that names the contestant proves nothing about the
    /// parent: in a store that can lose writes the parent may have been live for a while, before its verdict was
    /// applied again. A transaction that became conflicting before it had a body holds its slots until its own contest
    /// settles them, and a `Reconsider` may come before.
    async fn refuse_spends_of_conflicting_parents(
        &self,
        mut inputs: Vec<EvaluatedInput>,
    ) -> Result<Vec<EvaluatedInput>, SequencerError> {
        let parents = distinct(inputs.iter().map(|input| input.outpoint.txid));
        let masters = self.cx.masters(&parents).await?;
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
        // A parent is pruned only after all its spenders are mined.
        let is_held = |input: &EvaluatedInput| match input.found {
            SlotFinding::Refused(Reason::PrunedParent { .. }) => is_mined(page),
            found => found == SlotFinding::Held,
        };
        if inputs.iter().all(is_held) {
            return Ok(DecisionBody::PassedOver { txid });
        }
        if !is_mined(page) {
            return Ok(evaluate(txid, true, self.cx.decision_height(page), inputs));
        }
        let rival = inputs.iter().find_map(|input| match input.found {
            SlotFinding::HeldByLive(holder) => Some(holder),
            _ => None,
        });
        if let Some(rival) = rival {
            let holder = self.cx.master(rival.txid).await?;
            if holder.is_some_and(|holder| is_mined(&holder)) {
                return Err(SequencerError::Halt(format!(
                    "{txid} and {} spend the same output and are both mined",
                    rival.txid
                )));
            }
            let reason = Reason::DoubleSpend { input: rival.input, winner: txid };
            return Ok(DecisionBody::Conflicting {
                txid: rival.txid,
                reason,
                height: self.cx.decision_height(page),
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
        Ok(evaluate(txid, true, self.cx.decision_height(page), inputs))
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
