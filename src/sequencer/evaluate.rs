//! Decides a contest from the findings for its inputs. Pure.

use crate::{
    event::{DecidedInput, DecisionBody},
    record::{Reason, Rejection, SpendingData, Verdict},
    tx::{Outpoint, Txid},
};

/// The finding for one input of a contestant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvaluatedInput {
    /// Index of the input in the transaction.
    pub index: u32,
    /// The output that the input spends.
    pub outpoint: Outpoint,
    /// State of the output's slot.
    pub found: SlotFinding,
}

/// The state of a slot after the contestant has taken the free ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotFinding {
    /// The slot names the contestant.
    Held,
    /// The slot names a transaction that is not live and is contested. The contestant comes first in the log and takes
    /// the slot.
    HeldByUndecided(SpendingData),
    /// The slot names a live transaction.
    HeldByLive(SpendingData),
    /// The slot cannot be taken, for this reason.
    Refused(Reason),
}

/// The meaning of a refused `Respend` for the contestant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RespendRefusal {
    /// The contestant cannot be live, for this reason.
    Reason(Reason),
    /// A transaction other than the contestant holds the slot.
    Holder(SpendingData),
    /// The contestant was live, mined and pruned.
    Pruned,
    /// A later event was handled already: this sequencer is not the present one, or is late.
    Stale,
    /// The parent has no record.
    Absent,
    /// The parent is creating or has no verdict yet.
    Wait,
    /// A `Respend` never gives this answer: the chain halts.
    Unexpected(&'static str),
}

/// Classifies the refusal of an evaluating `Respend` of one input.
pub fn classify_refusal(rejection: &Rejection, index: u32, parent: Txid) -> RespendRefusal {
    match *rejection {
        Rejection::SpentBy(_, holder) => RespendRefusal::Holder(holder),
        Rejection::SpenderPruned(_) => RespendRefusal::Pruned,
        Rejection::StaleStamp(_) => RespendRefusal::Stale,
        // An undecided parent has a contest with a later offset: the parents of a contestant were decided when it was
        // contested, or were lost by a node and are contested anew. If the parent wins, the child gets a second chance.
        Rejection::Conflicting(Verdict::Conflicting(_) | Verdict::Pending) => {
            RespendRefusal::Reason(Reason::ConflictingParent { parent })
        }
        Rejection::Pruned(_) => RespendRefusal::Reason(Reason::PrunedParent { parent }),
        Rejection::Locked => RespendRefusal::Reason(Reason::Locked { parent }),
        Rejection::Immature(_) => RespendRefusal::Reason(Reason::Immature { input: index }),
        Rejection::NoSuchOutput(_) => RespendRefusal::Reason(Reason::NoSuchOutput { input: index }),
        Rejection::HashMismatch(_) | Rejection::OutputMismatch(_) => {
            RespendRefusal::Reason(Reason::Mismatch { input: index })
        }
        Rejection::Frozen(_) => RespendRefusal::Reason(Reason::Frozen { input: index }),
        Rejection::NotYetSpendable(..) => RespendRefusal::Reason(Reason::NotYetSpendable { input: index }),
        Rejection::NotFound => RespendRefusal::Absent,
        Rejection::Creating | Rejection::Conflicting(Verdict::Accepted) => RespendRefusal::Wait,
        ref unforeseen => RespendRefusal::Unexpected(unforeseen.code()),
    }
}

/// Decides on a contestant. The first input that bars it gives the reason, but a missing parent comes before all other
/// reasons: a missing parent needs a dead letter.
pub fn evaluate(contestant: Txid, was_live: bool, height: u32, inputs: &[EvaluatedInput]) -> DecisionBody {
    let bars = || {
        inputs.iter().filter_map(|input| match input.found {
            SlotFinding::Held | SlotFinding::HeldByUndecided(_) => None,
            SlotFinding::HeldByLive(holder) => Some(Reason::DoubleSpend { input: input.index, winner: holder.txid }),
            SlotFinding::Refused(reason) => Some(reason),
        })
    };
    let missing = bars().find(|reason| matches!(reason, Reason::MissingParent { .. }));
    match missing.or_else(|| bars().next()) {
        Some(reason) => DecisionBody::Conflicting { txid: contestant, reason, height, live: was_live },
        None => accepted(contestant, height, inputs, Vec::new(), false),
    }
}

/// Decides on a transaction that a block of the longest chain lists: the transaction wins.
///
/// # Errors
/// The reason that no block may override; the chain halts.
pub fn evaluate_listed(listed: Txid, height: u32, inputs: &[EvaluatedInput]) -> Result<DecisionBody, Reason> {
    let mut losers = Vec::new();
    for input in inputs {
        match input.found {
            SlotFinding::Held | SlotFinding::HeldByUndecided(_) => {}
            SlotFinding::HeldByLive(holder) => losers.push(holder.txid),
            SlotFinding::Refused(reason) => return Err(reason),
        }
    }
    losers.sort_unstable();
    losers.dedup();
    Ok(accepted(listed, height, inputs, losers, true))
}

/// Builds an `Accepted` decision. The transaction gets all its slots, whichever transaction held them.
fn accepted(txid: Txid, height: u32, inputs: &[EvaluatedInput], losers: Vec<Txid>, by_block: bool) -> DecisionBody {
    let inputs = inputs
        .iter()
        .map(|input| DecidedInput {
            input: input.index,
            outpoint: input.outpoint,
            holder: match input.found {
                SlotFinding::Held | SlotFinding::Refused(_) => Some(SpendingData { txid, input: input.index }),
                SlotFinding::HeldByUndecided(holder) | SlotFinding::HeldByLive(holder) => Some(holder),
            },
        })
        .collect();
    DecisionBody::Accepted { txid, height, inputs, losers, by_block }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Txid = Txid([1; 32]);
    const U: Txid = Txid([2; 32]);

    fn input(index: u32, found: SlotFinding) -> EvaluatedInput {
        EvaluatedInput { index, outpoint: Outpoint { txid: Txid([9; 32]), vout: index }, found }
    }

    fn by(txid: Txid) -> SpendingData {
        SpendingData { txid, input: 0 }
    }

    #[test]
    fn a_live_holder_wins_and_an_undecided_one_loses() {
        let decision = evaluate(T, false, 5, &[input(0, SlotFinding::Held), input(1, SlotFinding::HeldByLive(by(U)))]);
        let reason = Reason::DoubleSpend { input: 1, winner: U };
        assert_eq!(decision, DecisionBody::Conflicting { txid: T, reason, height: 5, live: false });
        let decision = evaluate(T, false, 5, &[input(0, SlotFinding::HeldByUndecided(by(U)))]);
        let DecisionBody::Accepted { inputs, losers, by_block, .. } = decision else { panic!("{decision:?}") };
        assert_eq!((inputs[0].holder, losers.len(), by_block), (Some(by(U)), 0, false));
    }

    #[test]
    fn the_first_barring_input_gives_the_reason() {
        let frozen = SlotFinding::Refused(Reason::Frozen { input: 0 });
        let decision = evaluate(T, true, 5, &[input(0, frozen), input(1, SlotFinding::HeldByLive(by(U)))]);
        let reason = Reason::Frozen { input: 0 };
        assert_eq!(decision, DecisionBody::Conflicting { txid: T, reason, height: 5, live: true });
    }

    #[test]
    fn a_listed_transaction_wins_over_live_holders_but_not_over_a_freeze() {
        let inputs = [input(0, SlotFinding::HeldByLive(by(U))), input(1, SlotFinding::HeldByLive(by(U)))];
        let Ok(DecisionBody::Accepted { losers, by_block, .. }) = evaluate_listed(T, 5, &inputs) else { panic!() };
        assert_eq!((losers, by_block), (vec![U], true));
        let frozen = [input(0, SlotFinding::Refused(Reason::Frozen { input: 0 }))];
        assert_eq!(evaluate_listed(T, 5, &frozen), Err(Reason::Frozen { input: 0 }));
    }
}
