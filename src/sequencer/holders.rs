//! Contests the holders of slots that a transaction is to get, and finds out which of them are live.

use std::collections::BTreeMap;

use crate::{
    record::{Key, Outcome, Page, Phase, Reply, Sequenced, TxState},
    sequencer::{
        SequencerError,
        context::{HandlerContext, distinct},
    },
    tx::Txid,
};

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

/// Contests holders that are not live, and returns the state of each. An absent holder becomes a stub, so that it
/// cannot become live unnoticed. A tombstone of a transaction that was not conflicting counts as live: its slots
/// were its own when it was pruned.
pub async fn contest_holders(
    cx: &HandlerContext<'_>,
    phase: Phase,
    holders: Vec<Txid>,
) -> Result<BTreeMap<Txid, HolderState>, SequencerError> {
    let holders = distinct(holders);
    let rows = holders.iter().map(|txid| cx.row(phase, Key::master(*txid), Sequenced::MarkContested)).collect();
    let outcomes = cx.apply(rows).await?;
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
    let masters = cx.masters(&unknown).await?;
    holder_states
        .extend(unknown.into_iter().zip(masters).map(|(txid, master)| (txid, classify_holder(master.as_deref()))));
    Ok(holder_states)
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

/// Contests one holder, as [`contest_holders`] does, and returns its state.
pub async fn contest_holder(
    cx: &HandlerContext<'_>,
    phase: Phase,
    holder: Txid,
) -> Result<HolderState, SequencerError> {
    let states = contest_holders(cx, phase, vec![holder]).await?;
    Ok(states.get(&holder).copied().unwrap_or_else(|| unreachable!("a state a holder")))
}

/// Returns whether a transaction is mined on the longest chain, as its master shows.
pub fn is_mined(page: &Page) -> bool {
    page.master.as_ref().is_some_and(|master| master.unmined_since.is_none())
}

/// Returns the holders that are live.
pub fn filter_live(holders: BTreeMap<Txid, HolderState>) -> Vec<Txid> {
    holders.into_iter().filter(|(_, state)| *state == HolderState::Live).map(|(txid, _)| txid).collect()
}
