//! Accepts listed transactions that have lost together. Their verdicts are one record, and their losers share one walk
//! of descendants: two records for many transactions, where each alone takes two.

use std::collections::BTreeSet;

use futures_util::future::BoxFuture;

use crate::{
    event::{Block, DecisionBody},
    sequencer::{
        SequencerError,
        block::{
            accept::{are_parents_ready, evaluate},
            is_verdict_of_block,
        },
        context::HandlerContext,
        listing::ListedTx,
        steps::Steps,
        verdict::{apply_verdict, decided_txid},
    },
    tx::Txid,
};

/// Transactions of one run.
pub const MAX_RUN: usize = 64;
/// Bytes of the largest transaction that is accepted beside others.
const MAX_BYTES: u64 = 1 << 20;
/// Inputs and losers of one record: some 300 KB.
const MAX_ENTRIES: usize = 4_096;

/// Accepts several of these listed transactions, and returns them; none where fewer than two can be accepted together.
/// Each of the others is accepted alone.
pub fn accept_together<'a>(
    cx: &'a HandlerContext<'_>,
    steps: &'a mut Steps<'_>,
    block: &'a Block<'_>,
    listed: &'a [Txid],
    open: &'a [ListedTx],
) -> BoxFuture<'a, Result<Vec<Txid>, SequencerError>> {
    Box::pin(async move {
        if listed.len() < 2 {
            return Ok(Vec::new());
        }
        let mut verdicts = Vec::with_capacity(listed.len());
        for txid in listed {
            verdicts.extend(evaluate_ready(cx, block, *txid, open).await?);
        }
        let run = select_independent(verdicts);
        if run.len() < 2 {
            return Ok(Vec::new());
        }
        // As for one verdict: a closed event is opened again only where a verdict follows.
        steps.skip_closed();
        let accepted = run.iter().filter_map(decided_txid).collect();
        if steps.has_existing() || !steps.write_run_ahead(run).await? {
            return Ok(Vec::new());
        }
        while let Some(body) = steps.take_existing_matching(is_verdict_of_block) {
            apply_verdict(cx, steps, body).await?;
        }
        Ok(accepted)
    })
}

/// Decides on a listed transaction; `None` while its parents are not ready, and for a large transaction, whose body
/// stays in memory until the decision is applied.
fn evaluate_ready<'a>(
    cx: &'a HandlerContext<'_>,
    block: &'a Block<'_>,
    txid: Txid,
    open: &'a [ListedTx],
) -> BoxFuture<'a, Result<Option<DecisionBody>, SequencerError>> {
    Box::pin(async move {
        let Some(page) = cx.master(txid).await? else { return Ok(None) };
        if page.size_in_bytes > MAX_BYTES || !are_parents_ready(cx, block.height, &page, open).await? {
            return Ok(None);
        }
        evaluate(cx, block, page).await.map(Some)
    })
}

/// Selects the verdicts of which none depends on another: no output is spent twice, no loser loses twice, and none is
/// the parent of an accepted transaction. Verdicts without losers come first, since nothing follows them.
fn select_independent(verdicts: Vec<DecisionBody>) -> Vec<DecisionBody> {
    let (mut alone, mut run) = (Vec::new(), Vec::new());
    let (mut all_losers, mut parents, mut outputs) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let mut entries = 0;
    for verdict in verdicts {
        let DecisionBody::Accepted { inputs, losers, .. } = &verdict else { continue };
        entries += inputs.len() + losers.len();
        if entries > MAX_ENTRIES {
            break;
        }
        let own_parents: BTreeSet<Txid> = inputs.iter().map(|input| input.outpoint.txid).collect();
        let loses_elsewhere =
            |loser: &Txid| all_losers.contains(loser) || parents.contains(loser) || own_parents.contains(loser);
        let depends = own_parents.iter().any(|parent| all_losers.contains(parent))
            || inputs.iter().any(|input| outputs.contains(&input.outpoint))
            || losers.iter().any(loses_elsewhere);
        if depends {
            continue;
        }
        parents.extend(own_parents);
        outputs.extend(inputs.iter().map(|input| input.outpoint));
        all_losers.extend(losers.iter().copied());
        if losers.is_empty() { &mut alone } else { &mut run }.push(verdict);
    }
    alone.append(&mut run);
    alone
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{event::DecidedInput, tx::Outpoint};

    fn id(tag: u8) -> Txid {
        Txid([tag; 32])
    }

    fn accepted(txid: u8, parents: &[u8], losers: &[u8]) -> DecisionBody {
        let inputs = parents.iter().zip(0..).map(|(parent, input)| {
            let outpoint = Outpoint { txid: id(*parent), vout: u32::from(txid) };
            DecidedInput { input, outpoint, holder: None }
        });
        let losers = losers.iter().copied().map(id).collect();
        DecisionBody::Accepted { txid: id(txid), height: 5, inputs: inputs.collect(), losers, by_block: true }
    }

    fn selected(verdicts: &[DecisionBody]) -> Vec<u8> {
        let txid = |body: &DecisionBody| match body {
            DecisionBody::Accepted { txid, .. } => txid.0[0],
            other => panic!("{other:?}"),
        };
        select_independent(verdicts.to_vec()).iter().map(txid).collect()
    }

    #[test]
    fn independent_verdicts_are_selected_those_without_losers_first() {
        assert_eq!(
            selected(&[accepted(1, &[9], &[11]), accepted(2, &[9], &[]), accepted(3, &[8], &[13, 14])]),
            [2, 1, 3]
        );
    }

    #[test]
    fn a_verdict_on_a_loser_or_a_child_of_a_loser_waits() {
        let first = accepted(1, &[9], &[11]);
        assert_eq!(selected(&[first.clone(), accepted(2, &[9], &[11])]), [1], "the loser of both");
        assert_eq!(selected(&[first.clone(), accepted(2, &[11], &[12])]), [1], "the child of a loser");
        assert_eq!(selected(&[first.clone(), accepted(2, &[11], &[])]), [1], "the child of a loser, without losers");
        assert_eq!(selected(&[first.clone(), accepted(2, &[8], &[9])]), [1], "the parent of an accepted one loses");
        assert_eq!(selected(&[first.clone(), accepted(2, &[8], &[8])]), [1], "its own parent loses");
        let mut rival = accepted(2, &[9], &[12]);
        let DecisionBody::Accepted { inputs, .. } = &mut rival else { panic!() };
        inputs[0].outpoint.vout = 1;
        assert_eq!(selected(&[first, rival]), [1], "a listed rival");
    }

    #[test]
    fn a_run_is_bounded() {
        let many = Vec::from_iter((0..MAX_ENTRIES).map(|_| 9));
        assert_eq!(selected(&[accepted(1, &[9], &[]), accepted(2, &many, &[])]), [1]);
    }
}
