//! Checks the claims of a listed transaction: a block proves that the transaction spends the outputs that its parents
//! made, whatever its event claims of these outputs.
//!
//! A txid commits to the outpoints that are spent, and the outputs are stored with the parents. A wrong claim bars a
//! contestant, but never a listed transaction: a listed transaction gets the true claims and wins.

use bytes::Bytes;

use futures_util::future::BoxFuture;

use crate::{
    record::{Body, ClaimedBody, Page, StoredOutput, TxState},
    sequencer::{
        SequencerError,
        bodies::{parse_body, read_body},
        contested_event::replace_body,
        context::HandlerContext,
        lost_records::{RestartGrace, create_missing_stubs},
    },
    store::{
        into_page,
        read::{ReadError, TxReader},
    },
    tx::{InvalidTransaction, PreviousOutput, Transaction, Txid, utxo_hash},
};

/// The claims of a stored transaction, compared with the stored outputs of its parents.
pub enum ClaimCheck {
    /// The claims are true, or the transaction claims nothing.
    Matches,
    /// The claims are wrong; the transaction is to be stored with this body.
    Differs(ClaimedBody),
    /// The outputs of this parent are not stored.
    MissingParent(Txid),
}

/// Compares the claims of a stored transaction with the stored outputs of its parents.
pub async fn check_claims(cx: &HandlerContext<'_>, page: &Page) -> Result<ClaimCheck, SequencerError> {
    let Some(stored) = read_body(cx, page).await? else { return Ok(ClaimCheck::Matches) };
    let txid = page.txid;
    let tx = parse_body(txid, &stored)?;
    if tx.is_coinbase() {
        return Ok(ClaimCheck::Matches);
    }
    let mut outputs = match cx.wait_for("the store", TxReader::of(&cx.parts.store).previous_outputs(&tx)).await {
        Ok(outputs) => outputs,
        Err(ReadError::NoPreviousTransaction { outpoint, .. } | ReadError::NoPreviousOutput { outpoint, .. }) => {
            return Ok(ClaimCheck::MissingParent(outpoint.txid));
        }
        Err(ReadError::Engine(error)) => return Err(error.into()),
        Err(error) => {
            return Err(SequencerError::Halt(format!("the outputs that {txid} spends cannot be read: {error}")));
        }
    };
    if !claims_match(&tx, &outputs) {
        accept_claims_before_reassignment(cx, &tx, &mut outputs).await?;
    }
    if claims_match(&tx, &outputs) {
        return Ok(ClaimCheck::Matches);
    }
    let claimed = build_body(&tx, &outputs);
    claimed
        .map(ClaimCheck::Differs)
        .map_err(|error| SequencerError::Halt(format!("a block lists {txid}, which cannot be live: {error}")))
}

/// Accepts claims on the former state of an output that was reassigned since: they were true when the event was
/// made. They do not entitle the transaction to the output's present state.
async fn accept_claims_before_reassignment(
    cx: &HandlerContext<'_>,
    tx: &Transaction<'_>,
    outputs: &mut [StoredOutput],
) -> Result<(), SequencerError> {
    let claims = tx.inputs().zip(outputs).filter_map(|(input, output)| {
        let claimed = input.previous.filter(|claimed| *claimed != to_claim(output))?;
        Some((input.outpoint, claimed, output))
    });
    for (outpoint, claimed, output) in claims {
        let (key, offset) = cx.locate(outpoint);
        let records = cx.read(vec![key]).await?;
        let Some(page) = records.into_iter().find_map(into_page) else { continue };
        let hash = utxo_hash(&outpoint.txid, outpoint.vout, claimed.script, claimed.satoshis);
        if page.reassignments.iter().any(|entry| entry.offset == offset && entry.utxo_hash == hash) {
            *output = StoredOutput { satoshis: claimed.satoshis, script: Bytes::copy_from_slice(claimed.script) };
        }
    }
    Ok(())
}

/// Stores a transaction with its proven claims before the transaction becomes live: a live transaction keeps the
/// claims that made it live. Its slots are its own by then, so the parents exist; a parent that a node lost since
/// is waited for. A verdict that is applied again leaves the claims on a parent that was deleted since.
pub fn store_proven_claims<'a>(cx: &'a HandlerContext<'_>, txid: Txid) -> BoxFuture<'a, Result<(), SequencerError>> {
    Box::pin(async move {
        let grace = RestartGrace::of_wait(cx);
        let proof = cx.wait_until("the outputs that prove the claims of a transaction", || async {
            let page = cx.master(txid).await?;
            let Some(page) = page.filter(|page| matches!(page.state(), TxState::Conflicting(_) | TxState::Live)) else {
                return Ok(Ok(ClaimCheck::Matches));
            };
            Ok(match check_claims(cx, &page).await? {
                ClaimCheck::MissingParent(parent) => {
                    // A later event deleted the parent, so that this decision has been applied before.
                    if cx.master(parent).await?.is_some_and(|page| page.pruned.is_some()) {
                        return Ok(Ok(ClaimCheck::Matches));
                    }
                    if grace.has_expired() {
                        create_missing_stubs(cx, vec![parent]).await?;
                    }
                    Err(parent.to_string())
                }
                proof => Ok(proof),
            })
        });
        let ClaimCheck::Differs(proven) = proof.await? else { return Ok(()) };
        tracing::warn!(%txid, "claims: body replaced: a block proves other previous outputs than the event claims");
        replace_body(cx, txid, proven).await
    })
}

fn claims_match(tx: &Transaction<'_>, outputs: &[StoredOutput]) -> bool {
    tx.inputs().zip(outputs).all(|(input, output)| input.previous == Some(to_claim(output)))
}

fn to_claim(output: &StoredOutput) -> PreviousOutput<'_> {
    PreviousOutput { satoshis: output.satoshis, script: &output.script }
}

/// Builds the body of the same transaction with these outputs as its claims.
fn build_body(tx: &Transaction<'_>, outputs: &[StoredOutput]) -> Result<ClaimedBody, InvalidTransaction> {
    let mut standard = Vec::new();
    tx.write_standard(&mut standard);
    let parsed = |bytes| Transaction::parse(bytes).unwrap_or_else(|_| unreachable!("written from one that parses"));
    let mut extended = Vec::new();
    let written = parsed(&standard).write_extended(&mut extended, |input, _| outputs.get(input).map(to_claim));
    written.unwrap_or_else(|_| unreachable!("there is an output for every input"));
    let (fee, extended_size) = (parsed(&extended).fee()?, extended.len() as u64);
    Ok(ClaimedBody { body: Body::Transaction(extended.into()), fee, extended_size })
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use super::*;
    use crate::{
        engine::Row,
        record::{Key, Operation},
        sequencer::{handler::Handler, state::ChainState, steps::DecisionMode, tests::parts},
        store::testing,
    };

    /// A node loses the parent after the slot has moved and before the body is replaced (simulator, seed 1414).
    #[tokio::test(start_paused = true)]
    async fn a_lost_parent_is_waited_for_before_claims_are_checked() {
        let parts = parts().await;
        let store = parts.store.clone();
        let put = |operation: Operation, txid: Txid| store.apply(vec![Row { key: Key::master(txid), operation }]);
        let parent = testing::seeded(9, 1);
        let outpoint = testing::outpoint(parent.txid, 0);
        let [lie, honest] = [1_001, 1_000].map(|claimed| testing::transaction(&[(outpoint, claimed)], &[500]));
        let txid = testing::txid(&lie);
        assert_eq!(txid, testing::txid(&honest));
        put(Operation::CreateContested(Arc::new(testing::page(&lie).contested())), txid).await.unwrap();
        let handler = Handler::new(parts, ChainState::default());
        let adopting =
            tokio::spawn(async move { store_proven_claims(&handler.context(0, DecisionMode::Live), txid).await });
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!adopting.is_finished());
        put(Operation::Create(Arc::new(parent)), outpoint.txid).await.unwrap();
        adopting.await.unwrap().unwrap();
        let page = store.master(txid).await.unwrap().unwrap();
        assert_eq!(page.body(), Some(&Body::Transaction(honest)));
    }
}
