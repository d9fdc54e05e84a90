//! Applies a verdict: marks the losers and their descendants conflicting, moves slots to the winner, settles the slots
//! of the losers, and publishes second chances.

use futures_util::future::BoxFuture;

use crate::{
    event::{DecidedInput, DecisionBody, OutcomeKind},
    record::{Phase, Reason},
    sequencer::{
        SequencerError,
        claims::store_proven_claims,
        context::HandlerContext,
        descendants::{Descendants, LosingTx, mark_descendants_conflicting},
        holders::{contest_holder, contest_holders, filter_live},
        pages::accept,
        respend::respend_inputs,
        second_chances::{publish_reconsider, publish_second_chances, reconsider_if_parent_is_live},
        settle::{settle_descendants, settle_passed_over, update_conflicting_children},
        steps::Steps,
    },
    tx::Txid,
};

/// A transaction that becomes live, with its inputs, their holders and the losers.
struct AcceptedTx {
    txid: Txid,
    height: u32,
    inputs: Vec<DecidedInput>,
    losers: Vec<Txid>,
    by_block: bool,
}

impl AcceptedTx {
    fn from_decision(body: DecisionBody) -> Option<Self> {
        let DecisionBody::Accepted { txid, height, inputs, losers, by_block } = body else { return None };
        Some(AcceptedTx { txid, height, inputs, losers, by_block })
    }

    /// Returns the parents, each with the transaction as its child.
    fn parents(&self) -> impl Iterator<Item = (Txid, Txid)> {
        self.inputs.iter().map(|input| (input.outpoint.txid, self.txid))
    }

    /// Returns the losers with the reasons of their verdicts.
    fn losing(&self) -> impl Iterator<Item = LosingTx> {
        let input_of = |loser: &Txid| {
            let mut holders = self.inputs.iter().filter_map(|input| input.holder);
            holders.find(|holder| holder.txid == *loser).map_or(0, |held| held.input)
        };
        self.losers.iter().map(move |loser| LosingTx {
            txid: *loser,
            reason: Reason::DoubleSpend { input: input_of(loser), winner: self.txid },
            was_live: true,
        })
    }
}

/// Outcomes that are published at once.
const OUTCOME_BATCH: usize = 10_000;

/// Applies a verdict, the decision that was taken last of `steps`, with the verdicts of its run. Each part is
/// idempotent, so that a verdict can be applied again from its beginning.
pub fn apply_verdict<'a>(
    cx: &'a HandlerContext<'_>,
    steps: &'a mut Steps<'_>,
    body: DecisionBody,
) -> BoxFuture<'a, Result<(), SequencerError>> {
    Box::pin(async move {
        // Read before the decisions on its descendants: these may be new after a node lost writes.
        let cx = &cx.applying(steps);
        match body {
            body @ DecisionBody::Accepted { .. } => {
                let run: Vec<AcceptedTx> =
                    steps.take_run(body).into_iter().filter_map(AcceptedTx::from_decision).collect();
                apply_accepted(cx, steps, &run).await
            }
            DecisionBody::Conflicting { txid, reason, height, live } => {
                let loser = LosingTx { txid, reason, was_live: live };
                let descendants = mark_descendants_conflicting(cx, steps, height, vec![loser], Vec::new()).await?;
                let settled = settle_descendants(cx, steps, &descendants).await?;
                publish_second_chances(cx, &settled, &[], &descendants).await?;
                if let Reason::MissingParent { parent } = reason {
                    reconsider_if_parent_is_live(cx, txid, parent).await?;
                }
                publish_conflicting_outcomes(cx, steps, &descendants).await
            }
            DecisionBody::PassedOver { txid } => settle_passed_over(cx, txid).await,
            DecisionBody::Cone { .. }
            | DecisionBody::CommandDone { .. }
            | DecisionBody::Closed
            | DecisionBody::AcceptedPart { .. }
            | DecisionBody::Lifted { .. } => Err(cx.halt(format_args!("expected a verdict, found {body:?}"))),
        }
    })
}

/// Applies the verdicts of a run: all losers and their descendants become conflicting, then each accepted transaction
/// takes its slots. No accepted transaction of a run depends on another one.
fn apply_accepted<'a>(
    cx: &'a HandlerContext<'_>,
    steps: &'a mut Steps<'_>,
    run: &'a [AcceptedTx],
) -> BoxFuture<'a, Result<(), SequencerError>> {
    Box::pin(async move {
        let mut contested = Vec::new();
        for accepted in run {
            contested.extend(contest_decided_holders(cx, accepted).await?);
        }
        let txids: Vec<Txid> = run.iter().map(|accepted| accepted.txid).collect();
        let losing: Vec<LosingTx> = run.iter().flat_map(AcceptedTx::losing).collect();
        let height = run.first().map_or(0, |accepted| accepted.height);
        let descendants = match losing.is_empty() {
            true => Descendants::default(),
            false => mark_descendants_conflicting(cx, steps, height, losing, txids.clone()).await?,
        };
        let wins = |accepted: &&AcceptedTx| !cx.is_replay() || cx.is_live_at_frontier(&accepted.txid);
        let mut won = Vec::with_capacity(run.len());
        for accepted in run.iter().filter(wins) {
            won.extend(make_live(cx, accepted).await?.then_some(accepted));
        }
        // In one request: many of them can have one parent.
        let children: Vec<(Txid, Txid)> = won.into_iter().flat_map(AcceptedTx::parents).collect();
        update_conflicting_children(cx, children.into_iter(), false).await?;
        let settled = settle_descendants(cx, steps, &descendants).await?;
        publish_reconsider(cx, &contested).await?;
        publish_second_chances(cx, &settled, &txids, &descendants).await?;
        cx.publish_outcomes(txids.into_iter().map(|txid| (txid, OutcomeKind::Accepted)).collect()).await?;
        publish_conflicting_outcomes(cx, steps, &descendants).await
    })
}

/// Gives an accepted transaction its slots, and makes the transaction live. Returns `false` where a later event has
/// deleted the transaction.
fn make_live<'a>(cx: &'a HandlerContext<'_>, accepted: &'a AcceptedTx) -> BoxFuture<'a, Result<bool, SequencerError>> {
    Box::pin(async move {
        let AcceptedTx { txid, height, inputs, by_block, .. } = accepted;
        let Some(page) = respend_inputs(cx, *txid, inputs, by_block.then_some(*height)).await? else {
            return Ok(false);
        };
        // The stored body may be of another event than the body that was decided on.
        if *by_block || cx.applied_again || cx.is_replay() {
            store_proven_claims(cx, *txid).await?;
        }
        accept(cx, &page).await?;
        Ok(true)
    })
}

/// Contests the holders from which an `Accepted` decision takes slots, before the decision is applied. They were
/// contested when it was made, but this store may have lost that, and a rebuild applies events in another order.
/// Returns the holders that are live by now: each gets a `Reconsider`.
async fn contest_decided_holders(cx: &HandlerContext<'_>, accepted: &AcceptedTx) -> Result<Vec<Txid>, SequencerError> {
    let AcceptedTx { txid: winner, inputs, losers, .. } = accepted;
    if cx.is_replay() {
        // The winner may wait for a slot that this very decision gives to it. A stub makes the pipeline store it.
        contest_holder(cx, Phase::Apply, *winner).await?;
    }
    if !cx.applied_again {
        return Ok(Vec::new());
    }
    let holders = inputs.iter().filter_map(|input| input.holder).map(|holder| holder.txid);
    let holders = holders.filter(|holder| holder != winner && !losers.contains(holder)).collect();
    let live = contest_holders(cx, Phase::Apply, holders).await?;
    Ok(filter_live(live))
}

async fn publish_conflicting_outcomes(
    cx: &HandlerContext<'_>,
    steps: &mut Steps<'_>,
    descendants: &Descendants,
) -> Result<(), SequencerError> {
    for number in 0..descendants.chunks() {
        let members = descendants.members(cx, steps, number).await?;
        let outcome = |loser: &LosingTx| (loser.txid, OutcomeKind::Conflicting { reason: loser.reason });
        for members in members.chunks(OUTCOME_BATCH) {
            cx.publish_outcomes(members.iter().map(outcome).collect()).await?;
        }
    }
    Ok(())
}

/// Returns the transaction that a decision accepts, refuses or passes over; `None` for other decisions.
pub fn decided_txid(body: &DecisionBody) -> Option<Txid> {
    match body {
        DecisionBody::PassedOver { txid }
        | DecisionBody::Accepted { txid, .. }
        | DecisionBody::Conflicting { txid, .. } => Some(*txid),
        DecisionBody::Cone { .. }
        | DecisionBody::CommandDone { .. }
        | DecisionBody::Closed
        | DecisionBody::AcceptedPart { .. }
        | DecisionBody::Lifted { .. } => None,
    }
}
