//! Finds out, for each input of a contestant, which slot the contestant gets and what bars it.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    record::{Outcome, Page, Phase, Reason, Rejection, RespendChecks, RespendSlot, SpendSlot, SpendingData},
    sequencer::{
        SequencerError,
        bodies::read_inputs,
        context::{HandlerContext, distinct},
        evaluate::{EvaluatedInput, RespendRefusal, SlotFinding, classify_refusal},
        holders::{HolderState, contest_holders},
        lost_records::RestartGrace,
        pages::{apply_to_slots, complete},
        respend::respend_row,
        waiting::format_missing,
    },
    tx::{Outpoint, Txid},
};

/// The findings for all inputs of a contestant.
pub enum InputFindings {
    /// The finding for each input, in the order of the inputs.
    Inputs(Vec<EvaluatedInput>),
    /// The transaction was live, mined and pruned.
    Pruned,
}

/// Takes free slots for the contestant, contests holders that are not live, and reads again until each input has a
/// finding.
pub async fn collect_findings(
    cx: &HandlerContext<'_>,
    phase: Phase,
    page: &Page,
    checks: RespendChecks,
    may_wait: bool,
) -> Result<InputFindings, SequencerError> {
    let txid = page.txid;
    let mut found: BTreeMap<u32, EvaluatedInput> = BTreeMap::new();
    let mut holder_states: BTreeMap<Txid, HolderState> = BTreeMap::new();
    let mut completed = BTreeSet::new();
    let mut open = read_inputs(cx, page).await?;
    let grace = RestartGrace::new(cx.parts.nodes.can_lose_writes());
    let mut waiting = None;
    while !open.is_empty() {
        let row = |(outpoint, slot): &(Outpoint, SpendSlot)| {
            respend_row(cx, phase, txid, *outpoint, RespendSlot { slot: slot.clone(), from: None }, checks)
        };
        let outcomes = apply_to_slots(cx, open.iter().map(row).collect()).await?;
        let mut again = Vec::new();
        let mut holders = Vec::new();
        let mut awaited = Vec::new();
        let mut half_created = Vec::new();
        for ((outpoint, slot), outcome) in open.into_iter().zip(outcomes) {
            let (index, parent) = (slot.input, outpoint.txid);
            let finding = match outcome {
                Outcome::Applied(_) | Outcome::AlreadyApplied(_) => Some(SlotFinding::Held),
                Outcome::Rejected(rejection) => match classify_refusal(&rejection, index, parent) {
                    RespendRefusal::Pruned => return Ok(InputFindings::Pruned),
                    RespendRefusal::Stale => return Err(SequencerError::Behind(cx.offset)),
                    RespendRefusal::Unexpected(code) => {
                        return Err(SequencerError::Halt(format!("input {index} of {txid} is refused with {code}")));
                    }
                    RespendRefusal::Reason(reason) => Some(SlotFinding::Refused(reason)),
                    RespendRefusal::Absent if !may_wait => Some(SlotFinding::Refused(Reason::MissingParent { parent })),
                    RespendRefusal::Wait if rejection == Rejection::Creating => {
                        // Completed once only: a parent that is still creating afterwards is waited for like any other.
                        let parents = if completed.contains(&parent) { &mut awaited } else { &mut half_created };
                        parents.push(parent);
                        None
                    }
                    // The parent's own contest has a later offset. If the parent wins, the child gets a second chance.
                    RespendRefusal::Wait if !may_wait => {
                        Some(SlotFinding::Refused(Reason::ConflictingParent { parent }))
                    }
                    // A parent that a node lost may wait for a contest at a later offset before it comes again.
                    RespendRefusal::Absent | RespendRefusal::Wait if grace.has_expired() => {
                        Some(SlotFinding::Refused(Reason::ConflictingParent { parent }))
                    }
                    // The parent existed when the contestant was contested, so it comes again.
                    RespendRefusal::Absent | RespendRefusal::Wait => {
                        awaited.push(parent);
                        None
                    }
                    RespendRefusal::Holder(holder) => {
                        let found = classify_known_holder(txid, holder, &holder_states);
                        holders.extend(found.is_none().then_some(holder.txid));
                        found
                    }
                },
            };
            match finding {
                Some(finding) => {
                    found.insert(index, EvaluatedInput { index, outpoint, found: finding });
                }
                None => again.push((outpoint, slot)),
            }
        }
        holder_states.extend(contest_holders(cx, phase, holders).await?);
        complete(cx, &distinct(half_created.iter().copied())).await?;
        completed.extend(half_created);
        open = again;
        if !awaited.is_empty() {
            let waiting = waiting.get_or_insert_with(|| cx.start_wait(txid));
            waiting.pause_for(&format_missing(distinct(awaited))).await;
        }
    }
    Ok(InputFindings::Inputs(found.into_values().collect()))
}

/// Returns the finding for a slot with a known holder; `None`: the state of the holder is not known yet. The
/// contestant itself under another input is no rival.
fn classify_known_holder(
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
