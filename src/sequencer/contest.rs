//! `Contest` and `Reconsider`: evaluate, write the decision ahead, apply.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    event::{Contest, DecisionBody},
    record::{
        Key, Outcome, Page, Phase, Reason, Rejection, Reply, Respend, RespendChecks, RespendSlot, Sequenced, SpendSlot,
        SpendingData, TxState, Verdict,
    },
    sequencer::{
        Stop,
        decisions::DecisionLog,
        evaluate::{Found, Input, Refusal, evaluate, refusal},
        handler::{At, Handler, Patience, distinct, subject},
        source::with_claims,
        steps::{Making, Steps},
        waiting::{Waiting, names},
    },
    tx::{Outpoint, Txid},
};

/// What may open a verdict again.
#[derive(Debug, Clone, Copy)]
pub enum Reopen<'a> {
    /// An event of the transaction itself.
    ByEvent(&'a Contest),
    /// A `Reconsider`.
    Reconsider,
}

/// What a transaction is whose name a slot holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Named {
    /// Live: the slot is its own.
    Live,
    /// Not live, and contested now if it was not yet.
    NotLive,
    /// A partial one, which spends nothing: a later event of it took the slot before it found that, and will give it back.
    Partial,
}

/// What was found of all inputs.
pub enum Findings {
    /// Input by input.
    Inputs(Vec<Input>),
    /// The transaction was live, mined and pruned.
    Pruned,
}

/// Those of them that are live.
pub fn only_live(named: BTreeMap<Txid, Named>) -> Vec<Txid> {
    named.into_iter().filter(|(_, what)| *what == Named::Live).map(|(txid, _)| txid).collect()
}

impl Handler {
    /// Handles a contest.
    pub async fn contest(&self, at: At, log: &mut DecisionLog, contest: &Contest) -> Result<(), Stop> {
        let mut steps = Steps::new(log, at.offset, at.making);
        let body = self.decide_on(at, &mut steps, contest.txid, Reopen::ByEvent(contest)).await?;
        if let DecisionBody::Conflicting { reason: Reason::MissingParent { parent }, .. } = body {
            self.bury(at, contest, parent).await?;
        }
        if contest.reason == Reason::Seeded {
            self.give_back(at, contest).await?;
        }
        if let DecisionBody::PassedOver { .. } = body {
            self.reconsider_unless_barred(at, contest.txid).await?;
        }
        steps.close().await
    }

    /// Handles a `Reconsider`.
    pub async fn reconsider(&self, at: At, log: &mut DecisionLog, txid: Txid) -> Result<(), Stop> {
        let mut steps = Steps::new(log, at.offset, at.making);
        self.decide_on(at, &mut steps, txid, Reopen::Reconsider).await?;
        steps.close().await
    }

    /// Decides until the transaction itself has its verdict: a live rival that has to give way comes first.
    async fn decide_on(
        &self,
        at: At,
        steps: &mut Steps<'_>,
        txid: Txid,
        reopen: Reopen<'_>,
    ) -> Result<DecisionBody, Stop> {
        let mut phase = Phase::Evaluate;
        loop {
            let body = steps.decide(Box::pin(self.judge(at, phase, txid, reopen))).await?;
            // What is decided behind it may be new.
            let applied_again = steps.is_applied_again();
            let contest = match reopen {
                Reopen::ByEvent(contest) if self.is_carried_out(at, &body, txid) => Some(contest),
                _ => None,
            };
            if let Some(contest) = contest.filter(|_| !was_live(&body)) {
                if applied_again {
                    self.restore_contestant(at, contest).await?;
                } else if at.making == Making::Replaying {
                    // Should it wait for what this very decision gives it: a stub makes it come.
                    self.contest_holders(at, Phase::Apply, vec![txid]).await?;
                }
                let has_won = matches!(body, DecisionBody::Accepted { .. });
                self.adopt_body(at, applied_again, contest, has_won).await?;
            }
            Box::pin(self.carry_out(at, steps, body.clone())).await?;
            // What was live keeps its body until it has fallen.
            if let Some(contest) = contest.filter(|_| was_live(&body) || applied_again) {
                self.adopt_body(at, applied_again, contest, false).await?;
            }
            // What was applied would refuse an evaluation that is stamped before it.
            phase = Phase::Apply;
            if subject(&body) == Some(txid) {
                return Ok(body);
            }
        }
    }

    /// Whether a decision is a verdict on the contestant that is carried out: on the way of a rebuild none is against who is live
    /// in the end.
    fn is_carried_out(&self, at: At, body: &DecisionBody, contestant: Txid) -> bool {
        match body {
            DecisionBody::Accepted { txid, .. } => *txid == contestant,
            DecisionBody::Conflicting { txid, .. } => *txid == contestant && !self.ends_live(at, txid),
            _ => false,
        }
    }

    /// What a contest means, by what the store shows. Does only what is harmless.
    async fn judge(&self, at: At, phase: Phase, txid: Txid, reopen: Reopen<'_>) -> Result<DecisionBody, Stop> {
        let passed_over = DecisionBody::PassedOver { txid };
        // A contestant was stored before it was contested: where it is not there, a node forgot it, its event comes again, and
        // is contested again if need be. To wait for it might be for ever: it may wait for a parent whose contest stands
        // behind this one. What a command names may never come.
        let page = self.master(txid).await?.filter(|page| page.utxos.is_some() || page.pruned.is_some());
        let Some(mut page) = page else { return Ok(passed_over) };
        let (was_live, reopened) = match page.state() {
            // A partial transaction that took the place of its stub.
            TxState::Live if page.verdict() == Some(Verdict::Pending) => (false, false),
            TxState::Live => (true, false),
            TxState::Conflicting(Verdict::Pending) => (false, false),
            TxState::Conflicting(Verdict::Conflicting(reason)) if reopen.opens(reason) => (false, true),
            _ => return Ok(passed_over),
        };
        if reopened {
            // What it takes is decided on by what is stored now: whoever prunes and is behind must not take that away.
            self.contest_holders(at, phase, vec![txid]).await?;
            if self.master(txid).await?.is_none_or(|page| page.pruned.is_some()) {
                return Ok(passed_over);
            }
        }
        let height = page.unmined_since().unwrap_or(self.height());
        let may_wait = match reopen {
            // The parents of what is live are there, or come again where a node forgot them.
            Reopen::Reconsider => was_live && self.parts.nodes.may_forget(),
            Reopen::ByEvent(contest) => !matches!(contest.reason, Reason::MissingParent { .. }),
        };
        if let Reopen::ByEvent(contest) = reopen
            && !was_live
            && let Some(claimed) = self.other_claims(contest, &page).await?
        {
            with_claims(&mut page, claimed);
        }
        // What was live would have its slots, had no node forgotten that: a lock that came since bars it no more than then.
        let checks = if was_live { RespendChecks::Listed { height } } else { RespendChecks::Spend { height } };
        let Findings::Inputs(inputs) = self.findings(at, phase, &page, checks, may_wait).await? else {
            return Ok(passed_over);
        };
        let is_sure = !was_live && !self.parts.nodes.may_forget();
        let inputs = if is_sure { inputs } else { self.bar_by_fallen_parents(inputs).await? };
        if was_live {
            return self.judge_live(&page, &inputs).await;
        }
        match evaluate(txid, false, self.decision_height(&page), &inputs) {
            // The verdict that it has holds.
            DecisionBody::Conflicting { .. } if reopened => Ok(passed_over),
            body => Ok(body),
        }
    }

    /// A slot that names a transaction says nothing of its parent: over a store that forgets that may have been live once more,
    /// before its verdict was applied again.
    async fn bar_by_fallen_parents(&self, mut inputs: Vec<Input>) -> Result<Vec<Input>, Stop> {
        let parents = distinct(inputs.iter().map(|input| input.outpoint.txid));
        let masters = self.masters(&parents).await?;
        let fell = |page: &Page| matches!(page.state(), TxState::Conflicting(Verdict::Conflicting(_)));
        for (parent, _) in parents.iter().zip(masters).filter(|(_, master)| master.as_deref().is_some_and(fell)) {
            let reason = Reason::ConflictingParent { parent: *parent };
            let spends = inputs.iter_mut().filter(|input| input.outpoint.txid == *parent);
            spends.for_each(|input| input.found = Found::Refused(reason));
        }
        Ok(inputs)
    }

    /// A live transaction whose slots do not all name it: a node forgot a spend. The one that is mined stays, else the
    /// present holder.
    async fn judge_live(&self, page: &Page, inputs: &[Input]) -> Result<DecisionBody, Stop> {
        let txid = page.txid;
        let mined = |page: &Page| page.master.as_ref().is_some_and(|master| master.unmined_since.is_none());
        // A parent is pruned only when all who spend it are mined.
        let held = |input: &Input| match input.found {
            Found::Refused(Reason::PrunedParent { .. }) => mined(page),
            found => found == Found::Held,
        };
        if inputs.iter().all(held) {
            return Ok(DecisionBody::PassedOver { txid });
        }
        if !mined(page) {
            return Ok(evaluate(txid, true, self.decision_height(page), inputs));
        }
        let rival = inputs.iter().find_map(|input| match input.found {
            Found::HeldByLive(holder) => Some(holder),
            _ => None,
        });
        if let Some(rival) = rival {
            let holder = self.master(rival.txid).await?;
            if holder.is_some_and(|holder| mined(&holder)) {
                return Err(Stop::Halt(format!("{txid} and {} spend the same output and are both mined", rival.txid)));
            }
            let reason = Reason::DoubleSpend { input: rival.input, winner: txid };
            return Ok(DecisionBody::Conflicting {
                txid: rival.txid,
                reason,
                height: self.decision_height(page),
                live: true,
            });
        }
        if let Some(Found::Refused(reason)) =
            inputs.iter().map(|input| input.found).find(|found| matches!(found, Found::Refused(_)))
        {
            return Err(Stop::Halt(format!("{txid} is mined, and yet an input of it cannot be spent: {reason:?}")));
        }
        Ok(evaluate(txid, true, self.decision_height(page), inputs))
    }

    /// Takes what is free, contests holders that are not live, and reads again.
    pub async fn findings(
        &self,
        at: At,
        phase: Phase,
        page: &Page,
        checks: RespendChecks,
        may_wait: bool,
    ) -> Result<Findings, Stop> {
        let txid = page.txid;
        let slots = self.inputs_of(page).await?;
        let mut found: BTreeMap<u32, Input> = BTreeMap::new();
        let mut named: BTreeMap<Txid, Named> = BTreeMap::new();
        let mut completed = BTreeSet::new();
        let mut open: Vec<(Outpoint, SpendSlot)> = slots;
        let patience = Patience::new(self.parts.nodes.may_forget());
        let mut waiting = Waiting::new(&self.parts, format!("chain offset {}: {txid}", at.offset));
        while !open.is_empty() {
            let outcomes = self
                .apply_to_slots(
                    open.iter().map(|(outpoint, slot)| self.take(at, phase, txid, *outpoint, slot, checks)).collect(),
                )
                .await?;
            let mut again = Vec::new();
            let mut holders = Vec::new();
            let mut awaited = Vec::new();
            let mut half_created = Vec::new();
            for ((outpoint, slot), outcome) in open.into_iter().zip(outcomes) {
                let index = slot.input;
                let verdict = match outcome {
                    Outcome::Applied(_) | Outcome::AlreadyApplied(_) => Found::Held,
                    Outcome::Rejected(rejection) => match refusal(&rejection, index, outpoint.txid) {
                        Refusal::Pruned => return Ok(Findings::Pruned),
                        Refusal::Stale => return Err(Stop::Behind(at.offset)),
                        Refusal::Unforeseen(code) => {
                            return Err(Stop::Halt(format!("input {index} of {txid} is refused with {code}")));
                        }
                        Refusal::Reason(reason) => Found::Refused(reason),
                        Refusal::Absent if !may_wait => Found::Refused(Reason::MissingParent { parent: outpoint.txid }),
                        Refusal::Wait if rejection == Rejection::Creating => {
                            // Once: should that not help, it is waited for as anything else.
                            if completed.contains(&outpoint.txid) {
                                awaited.push(outpoint.txid);
                            } else {
                                half_created.push(outpoint.txid);
                            }
                            again.push((outpoint, slot));
                            continue;
                        }
                        // Its own contest stands behind this event: should it win, the child gets a second chance.
                        Refusal::Wait if !may_wait => {
                            Found::Refused(Reason::ConflictingParent { parent: outpoint.txid })
                        }
                        // The same for one that a node forgot, should it wait for such a contest before it comes again.
                        Refusal::Absent | Refusal::Wait if patience.is_over() => {
                            Found::Refused(Reason::ConflictingParent { parent: outpoint.txid })
                        }
                        // It existed when the contestant was contested, so it comes back.
                        Refusal::Absent | Refusal::Wait => {
                            awaited.push(outpoint.txid);
                            again.push((outpoint, slot));
                            continue;
                        }
                        Refusal::Holder(holder) => match self.known_holder(txid, holder, &named) {
                            Some(found) => found,
                            None => {
                                holders.push(holder.txid);
                                again.push((outpoint, slot));
                                continue;
                            }
                        },
                    },
                };
                found.insert(index, Input { index, outpoint, found: verdict });
            }
            named.extend(self.contest_holders(at, phase, holders).await?);
            self.complete(&distinct(half_created.iter().copied())).await?;
            completed.extend(half_created);
            open = again;
            if !awaited.is_empty() {
                waiting.look_again(&names(distinct(awaited))).await;
            }
        }
        Ok(Findings::Inputs(found.into_values().collect()))
    }

    /// What a holder means, once it is known whether it is live. The contestant itself under another input is no rival.
    fn known_holder(&self, txid: Txid, holder: SpendingData, named: &BTreeMap<Txid, Named>) -> Option<Found> {
        if holder.txid == txid {
            return Some(Found::HeldByUndecided(holder));
        }
        Some(match named.get(&holder.txid)? {
            Named::Live => Found::HeldByLive(holder),
            Named::NotLive | Named::Partial => Found::HeldByUndecided(holder),
        })
    }

    fn take(
        &self,
        at: At,
        phase: Phase,
        to: Txid,
        outpoint: Outpoint,
        slot: &SpendSlot,
        checks: RespendChecks,
    ) -> crate::engine::Row {
        let respend = Respend { to, slots: vec![RespendSlot { slot: slot.clone(), from: None }], checks };
        at.row(phase, self.place(outpoint).0, Sequenced::Respend(respend))
    }

    /// Contests holders that are not live (an absent one becomes a stub, so that it cannot become live behind our back).
    /// Answers what each of them is. A tombstone of what was spent counts as live: its slot was its own when it was pruned.
    pub async fn contest_holders(
        &self,
        at: At,
        phase: Phase,
        holders: Vec<Txid>,
    ) -> Result<BTreeMap<Txid, Named>, Stop> {
        let holders = distinct(holders);
        let rows = holders.iter().map(|txid| at.row(phase, Key::master(*txid), Sequenced::MarkContested)).collect();
        let outcomes = self.apply(rows).await?;
        let mut named = BTreeMap::new();
        let mut unknown = Vec::new();
        for (txid, outcome) in holders.into_iter().zip(outcomes) {
            match outcome {
                // Whole or partial: the reply does not tell. Or stamped later in this very event (its verdict was carried
                // out): its state says the rest.
                Outcome::AlreadyApplied(Reply::State(TxState::Live | TxState::Creating | TxState::Pruned(_)))
                | Outcome::Rejected(_) => {
                    unknown.push(txid);
                }
                Outcome::Applied(_) | Outcome::AlreadyApplied(_) => drop(named.insert(txid, Named::NotLive)),
            }
        }
        let masters = self.masters(&unknown).await?;
        named.extend(unknown.into_iter().zip(masters).map(|(txid, master)| (txid, what_is(master.as_deref()))));
        Ok(named)
    }
}

fn what_is(master: Option<&Page>) -> Named {
    match master.map(|page| (page.state(), page.is_partial())) {
        Some((TxState::Live, true)) => Named::Partial,
        Some((TxState::Pruned(_), true)) if master.is_some_and(|page| !page.conflicting) => Named::Partial,
        Some((TxState::Live, _)) => Named::Live,
        Some((TxState::Pruned(_), _)) if master.is_some_and(|page| !page.conflicting) => Named::Live,
        _ => Named::NotLive,
    }
}

/// Whether a decision is against what was live.
fn was_live(body: &DecisionBody) -> bool {
    matches!(body, DecisionBody::Conflicting { live: true, .. })
}

impl Reopen<'_> {
    fn opens(self, reason: Reason) -> bool {
        match self {
            // A coinbase spends nothing that could bar it: only its block brings it back.
            Reopen::Reconsider => reason != Reason::Disconnected,
            Reopen::ByEvent(_) => reason.reopened_by_its_event(),
        }
    }
}
