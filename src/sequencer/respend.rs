//! Gives the slots of an accepted transaction to that transaction.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    engine::Row,
    event::DecidedInput,
    record::{
        Outcome, Page, Phase, Rejection, Respend, RespendChecks, RespendSlot, Sequenced, SpendSlot, SpendingData,
    },
    sequencer::{
        SequencerError,
        added_slots::read_and_add_slots,
        bodies::read_inputs,
        context::{HandlerContext, distinct},
        holders::{HolderState, contest_holder},
        lost_records::{RestartGrace, create_missing_stubs, wait_for_bodies},
        pages::apply_to_slots,
        second_chances::publish_reconsider,
        waiting::format_missing,
    },
    tx::{Outpoint, Txid},
};

/// Gives each input slot of an accepted transaction to that transaction and returns its master. `None`: a later
/// event has deleted the transaction and given its slots away. `mined_at` is the height of the block by which the
/// transaction wins.
pub async fn respend_inputs(
    cx: &HandlerContext<'_>,
    txid: Txid,
    inputs: &[DecidedInput],
    mined_at: Option<u32>,
) -> Result<Option<Arc<Page>>, SequencerError> {
    let page = wait_for_bodies(cx, &[txid]).await?.pop();
    let Some(page) = page.filter(|page| page.pruned.is_none()) else { return Ok(None) };
    let slots: BTreeMap<Outpoint, _> = read_inputs(cx, &page).await?.into_iter().collect();
    let mut open: Vec<DecidedInput> = inputs.to_vec();
    let mut slots_added = BTreeSet::new();
    let grace = RestartGrace::new(cx.applied_again);
    let mut waiting = cx.start_wait(format_args!("the slots of {txid}"));
    while !open.is_empty() {
        let rows = open.iter().map(|input| decided_row(cx, txid, &slots, input)).collect::<Result<Vec<Row>, _>>()?;
        let outcomes = apply_to_slots(cx, rows).await?;
        let mut unsettled = Vec::new();
        for (input, outcome) in open.into_iter().zip(outcomes) {
            match outcome {
                Outcome::Applied(_) | Outcome::AlreadyApplied(_) => {}
                // A later event has already changed this slot.
                Outcome::Rejected(Rejection::StaleStamp(_)) => {}
                // A frozen slot was frozen by a later event: the winner was conflicting before that freeze, and
                // becomes conflicting again when later events are applied again.
                Outcome::Rejected(Rejection::Frozen(_)) if cx.applied_again => {}
                Outcome::Rejected(Rejection::SpentBy(_, own)) if own.txid == txid => {
                    return Err(SequencerError::Halt(format!(
                        "the store is damaged: {} names input {} of {txid}, but its input {} spends it",
                        input.outpoint, own.input, input.input
                    )));
                }
                Outcome::Rejected(Rejection::SpentBy(_, unexpected)) => {
                    unsettled.push(displace_unexpected_holder(cx, txid, &input, unexpected).await?);
                }
                // A rebuild stores a contestant before its parents, which are stored later.
                Outcome::Rejected(Rejection::NotFound | Rejection::Creating | Rejection::Conflicting(_)) => {
                    unsettled.push(input);
                }
                // The same block lists the parent, which lies on the other side of Genesis than its event said, and
                // sets it mined only later: decisions that are in the log are applied first.
                Outcome::Rejected(Rejection::NoSuchOutput(_))
                    if mined_at.is_some() && slots_added.insert(input.outpoint) =>
                {
                    if let Some(height) = mined_at {
                        Box::pin(read_and_add_slots(cx, input.outpoint.txid, height)).await?;
                    }
                    unsettled.push(input);
                }
                Outcome::Rejected(rejection) => {
                    return Err(SequencerError::Halt(format!(
                        "the decision that {txid} gets {} cannot be applied: {rejection:?}",
                        input.outpoint
                    )));
                }
            }
        }
        open = unsettled;
        if !open.is_empty() {
            if grace.has_expired() {
                create_missing_stubs(cx, distinct(open.iter().map(|input| input.outpoint.txid))).await?;
            }
            waiting.pause_for(&format_missing(open.iter().map(|input| input.outpoint))).await;
        }
    }
    Ok(Some(page))
}

/// Returns the row by which an accepted transaction takes the slot of this input.
fn decided_row(
    cx: &HandlerContext<'_>,
    txid: Txid,
    slots: &BTreeMap<Outpoint, SpendSlot>,
    input: &DecidedInput,
) -> Result<Row, SequencerError> {
    let outpoint = input.outpoint;
    let slot = slots.get(&outpoint).cloned().ok_or_else(|| {
        SequencerError::Halt(format!("the decision on {txid} names {outpoint}, which {txid} does not spend"))
    })?;
    let slot = RespendSlot { slot, from: input.holder.filter(|holder| holder.txid != txid) };
    Ok(respend_row(cx, Phase::Apply, txid, outpoint, slot, RespendChecks::Decided))
}

/// Returns the row by which `to` takes the slot of `outpoint`.
pub fn respend_row(
    cx: &HandlerContext<'_>,
    phase: Phase,
    to: Txid,
    outpoint: Outpoint,
    slot: RespendSlot,
    checks: RespendChecks,
) -> Row {
    let respend = Respend { to, slots: vec![slot], checks };
    cx.row(phase, cx.locate(outpoint).0, Sequenced::Respend(respend))
}

/// Handles a holder that the decision does not name: a node lost the spend of the slot's former holder. The
/// unexpected holder is contested. If it is live already, a contest of the winner would find both live, so the slot
/// moves and the unexpected holder gets a `Reconsider`.
async fn displace_unexpected_holder(
    cx: &HandlerContext<'_>,
    txid: Txid,
    input: &DecidedInput,
    unexpected: SpendingData,
) -> Result<DecidedInput, SequencerError> {
    let (outpoint, holder) = (input.outpoint, unexpected.txid);
    tracing::warn!(%txid, %outpoint, %holder, "verdict: unexpected holder displaced");
    if contest_holder(cx, Phase::Apply, holder).await? == HolderState::Live && !cx.is_replay() {
        publish_reconsider(cx, &[holder]).await?;
    }
    Ok(DecidedInput { holder: Some(unexpected), ..input.clone() })
}
