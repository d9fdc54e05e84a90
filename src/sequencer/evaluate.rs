//! What a contest means, from what was read. Pure.

use crate::{
    event::{DecidedInput, DecisionBody},
    record::{Reason, Rejection, SpendingData, Verdict},
    tx::{Outpoint, Txid},
};

/// What was found of one input of a contestant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Input {
    /// Its index.
    pub index: u32,
    /// What it spends.
    pub outpoint: Outpoint,
    /// How the slot stands.
    pub found: Found,
}

/// How a slot stands, after the contestant has taken what was free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// It names the contestant.
    Held,
    /// It names somebody who is not live, and is contested now if it was not yet: the contestant, being first in the log,
    /// takes the slot.
    HeldByUndecided(SpendingData),
    /// It names somebody live.
    HeldByLive(SpendingData),
    /// It cannot be taken.
    Refused(Reason),
}

/// What a refusal means to a contestant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The contestant cannot be live.
    Reason(Reason),
    /// Somebody holds the slot.
    Holder(SpendingData),
    /// The contestant was live, mined and pruned.
    Pruned,
    /// A later event was handled already: this sequencer is behind.
    Stale,
    /// There is no parent.
    Absent,
    /// The parent is half created or undecided.
    Wait,
    /// What such an operation never answers: somebody must look.
    Unforeseen(&'static str),
}

/// Reads the refusal of an evaluating `Respend` of one input.
pub fn refusal(rejection: &Rejection, index: u32, parent: Txid) -> Refusal {
    match *rejection {
        Rejection::SpentBy(_, holder) => Refusal::Holder(holder),
        Rejection::SpenderPruned(_) => Refusal::Pruned,
        Rejection::StaleStamp(_) => Refusal::Stale,
        // Undecided: its contest stands behind this event, for a contestant's parents were decided when it was contested,
        // or are contested anew since a node forgot them. Should it win, the child gets a second chance.
        Rejection::Conflicting(Verdict::Conflicting(_) | Verdict::Pending) => {
            Refusal::Reason(Reason::ConflictingParent { parent })
        }
        Rejection::Pruned(_) => Refusal::Reason(Reason::PrunedParent { parent }),
        Rejection::Locked => Refusal::Reason(Reason::Locked { parent }),
        Rejection::Immature(_) => Refusal::Reason(Reason::Immature { input: index }),
        Rejection::NoSuchOutput(_) => Refusal::Reason(Reason::NoSuchOutput { input: index }),
        Rejection::HashMismatch(_) | Rejection::OutputMismatch(_) => Refusal::Reason(Reason::Mismatch { input: index }),
        Rejection::Frozen(_) => Refusal::Reason(Reason::Frozen { input: index }),
        Rejection::NotYetSpendable(..) => Refusal::Reason(Reason::NotYetSpendable { input: index }),
        Rejection::NotFound => Refusal::Absent,
        Rejection::Creating | Rejection::Conflicting(Verdict::Accepted) => Refusal::Wait,
        ref unforeseen => Refusal::Unforeseen(unforeseen.code()),
    }
}

/// The decision on a contestant. The first input that bars it gives the reason, but a missing parent comes before all else:
/// it asks for a dead letter.
pub fn evaluate(contestant: Txid, was_live: bool, height: u32, inputs: &[Input]) -> DecisionBody {
    let bars = || {
        inputs.iter().filter_map(|input| match input.found {
            Found::Held | Found::HeldByUndecided(_) => None,
            Found::HeldByLive(holder) => Some(Reason::DoubleSpend { input: input.index, winner: holder.txid }),
            Found::Refused(reason) => Some(reason),
        })
    };
    let missing = bars().find(|reason| matches!(reason, Reason::MissingParent { .. }));
    match missing.or_else(|| bars().next()) {
        Some(reason) => DecisionBody::Conflicting { txid: contestant, reason, height, live: was_live },
        None => accepted(contestant, height, inputs, Vec::new(), false),
    }
}

/// The decision on a transaction that a block of the longest chain lists: it wins. `None`: something that no block may
/// override bars it, and the chain halts.
pub fn evaluate_listed(listed: Txid, height: u32, inputs: &[Input]) -> Result<DecisionBody, Reason> {
    let mut losers = Vec::new();
    for input in inputs {
        match input.found {
            Found::Held | Found::HeldByUndecided(_) => {}
            Found::HeldByLive(holder) => losers.push(holder.txid),
            Found::Refused(reason) => return Err(reason),
        }
    }
    losers.sort_unstable();
    losers.dedup();
    Ok(accepted(listed, height, inputs, losers, true))
}

/// An accepted transaction gets every one of its slots, whoever held it.
fn accepted(txid: Txid, height: u32, inputs: &[Input], losers: Vec<Txid>, by_block: bool) -> DecisionBody {
    let inputs = inputs
        .iter()
        .map(|input| DecidedInput {
            input: input.index,
            outpoint: input.outpoint,
            holder: match input.found {
                Found::Held | Found::Refused(_) => Some(SpendingData { txid, input: input.index }),
                Found::HeldByUndecided(holder) | Found::HeldByLive(holder) => Some(holder),
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

    fn input(index: u32, found: Found) -> Input {
        Input { index, outpoint: Outpoint { txid: Txid([9; 32]), vout: index }, found }
    }

    fn by(txid: Txid) -> SpendingData {
        SpendingData { txid, input: 0 }
    }

    #[test]
    fn a_live_holder_wins_and_an_undecided_one_loses() {
        let decision = evaluate(T, false, 5, &[input(0, Found::Held), input(1, Found::HeldByLive(by(U)))]);
        let reason = Reason::DoubleSpend { input: 1, winner: U };
        assert_eq!(decision, DecisionBody::Conflicting { txid: T, reason, height: 5, live: false });
        let decision = evaluate(T, false, 5, &[input(0, Found::HeldByUndecided(by(U)))]);
        let DecisionBody::Accepted { inputs, losers, by_block, .. } = decision else { panic!("{decision:?}") };
        assert_eq!((inputs[0].holder, losers.len(), by_block), (Some(by(U)), 0, false));
    }

    #[test]
    fn the_first_input_that_bars_it_gives_the_reason() {
        let frozen = Found::Refused(Reason::Frozen { input: 0 });
        let decision = evaluate(T, true, 5, &[input(0, frozen), input(1, Found::HeldByLive(by(U)))]);
        let reason = Reason::Frozen { input: 0 };
        assert_eq!(decision, DecisionBody::Conflicting { txid: T, reason, height: 5, live: true });
    }

    #[test]
    fn a_listed_transaction_wins_over_live_holders_but_not_over_a_freeze() {
        let inputs = [input(0, Found::HeldByLive(by(U))), input(1, Found::HeldByLive(by(U)))];
        let Ok(DecisionBody::Accepted { losers, by_block, .. }) = evaluate_listed(T, 5, &inputs) else { panic!() };
        assert_eq!((losers, by_block), (vec![U], true));
        let frozen = [input(0, Found::Refused(Reason::Frozen { input: 0 }))];
        assert_eq!(evaluate_listed(T, 5, &frozen), Err(Reason::Frozen { input: 0 }));
    }
}
