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
struct AcceptedTx<'a> {
    txid: Txid,
    height: u32,
    inputs: &'a [DecidedInput],
    losers: &'a [Txid],
    by_block: bool,
}

/// Outcomes that are published at once.
const OUTCOME_BATCH: usize = 10_000;

/// Applies a verdict, the decision that was taken last of `steps`. Each part is idempotent, so that a verdict can
/// be applied again from its beginning.
pub fn apply_verdict<'a>(
    cx: &'a HandlerContext<'_>,
    steps: &'a mut Steps<'_>,
    body: DecisionBody,
) -> BoxFuture<'a, Result<(), SequencerError>> {
    Box::pin(async move {
        // Read before the decisions on its descendants: these may be new after a node lost writes.
        let cx = &cx.applying(steps);
        match body {
            DecisionBody::Accepted { txid, height, inputs, losers, by_block } => {
                let accepted = AcceptedTx { txid, height, inputs: &inputs, losers: &losers, by_block };
                apply_accepted(cx, steps, accepted).await
            }
            DecisionBody::Conflicting { txid, reason, height, live } => {
                let loser = LosingTx { txid, reason, was_live: live };
                let descendants = mark_descendants_conflicting(cx, steps, height, vec![loser], None).await?;
                let settled = settle_descendants(cx, steps, &descendants).await?;
                publish_second_chances(cx, &settled, None, &descendants).await?;
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

fn apply_accepted<'a>(
    cx: &'a HandlerContext<'_>,
    steps: &'a mut Steps<'_>,
    accepted: AcceptedTx<'a>,
) -> BoxFuture<'a, Result<(), SequencerError>> {
    Box::pin(async move {
        let AcceptedTx { txid, height, inputs, losers, by_block } = accepted;
        let wins = !cx.is_replay() || cx.is_live_at_frontier(&txid);
        let contested = contest_decided_holders(cx, txid, inputs, losers).await?;
        let input_of = |loser: &Txid| {
            inputs
                .iter()
                .filter_map(|input| input.holder)
                .find(|holder| holder.txid == *loser)
                .map_or(0, |held| held.input)
        };
        let reason_of = |loser: &Txid| Reason::DoubleSpend { input: input_of(loser), winner: txid };
        let losing = losers
            .iter()
            .map(|loser| LosingTx { txid: *loser, reason: reason_of(loser), was_live: true })
            .collect::<Vec<_>>();
        let descendants = if losing.is_empty() {
            Descendants::default()
        } else {
            mark_descendants_conflicting(cx, steps, height, losing, Some(txid)).await?
        };
        let mined_at = by_block.then_some(height);
        if wins && let Some(page) = respend_inputs(cx, txid, inputs, mined_at).await? {
            // The stored body may be of another event than the body that was decided on.
            if by_block || cx.applied_again || cx.is_replay() {
                store_proven_claims(cx, txid).await?;
            }
            accept(cx, &page).await?;
            let parents = inputs.iter().map(|input| (input.outpoint.txid, txid));
            update_conflicting_children(cx, parents, false).await?;
        }
        let settled = settle_descendants(cx, steps, &descendants).await?;
        publish_reconsider(cx, &contested).await?;
        publish_second_chances(cx, &settled, Some(txid), &descendants).await?;
        cx.publish_outcomes(vec![(txid, OutcomeKind::Accepted)]).await?;
        publish_conflicting_outcomes(cx, steps, &descendants).await
    })
}

/// Contests the holders from which an `Accepted` decision takes slots, before the decision is applied. They were
/// contested when it was made, but this store may have lost that, and a rebuild applies events in another order.
/// Returns the holders that are live by now: each gets a `Reconsider`.
async fn contest_decided_holders(
    cx: &HandlerContext<'_>,
    winner: Txid,
    inputs: &[DecidedInput],
    losers: &[Txid],
) -> Result<Vec<Txid>, SequencerError> {
    if cx.is_replay() {
        // The winner may wait for a slot that this very decision gives to it. A stub makes the pipeline store it.
        contest_holder(cx, Phase::Apply, winner).await?;
    }
    if !cx.applied_again {
        return Ok(Vec::new());
    }
    let holders = inputs.iter().filter_map(|input| input.holder).map(|holder| holder.txid);
    let holders = holders.filter(|holder| *holder != winner && !losers.contains(holder)).collect();
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
