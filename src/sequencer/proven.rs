//! What a block proves: a transaction that it lists spends what its parents made, whatever its event claims of that.
//!
//! A txid commits to the outpoints that are spent, and what those hold is stored with the parents. So a wrong claim bars a
//! contestant, but never a listed transaction: it gets the claims that are true, and wins.

use bytes::Bytes;

use crate::{
    record::{Body, ClaimedBody, Page, StoredOutput, TxState},
    sequencer::{
        Stop,
        handler::{At, Handler, Patience},
    },
    store::{into_page, read::ReadError},
    tx::{InvalidTransaction, PreviousOutput, Transaction, Txid, utxo_hash},
};

/// What the stored outputs of its parents say of the claims of a stored transaction.
pub(super) enum Proof {
    /// They are true, or it claims nothing.
    AsStored,
    /// It is to be stored like this.
    Otherwise(ClaimedBody),
    /// What it spends is not there: which parent.
    Unknown(Txid),
}

impl Handler {
    /// The transaction as its parents' stored outputs prove it.
    pub(super) async fn prove_claims(&self, page: &Page) -> Result<Proof, Stop> {
        let Some(stored) = self.transaction_of(page).await? else { return Ok(Proof::AsStored) };
        let txid = page.txid;
        let tx = Transaction::parse(&stored)
            .map_err(|error| Stop::Halt(format!("the stored body of {txid} is damaged: {error}")))?;
        if tx.is_coinbase() {
            return Ok(Proof::AsStored);
        }
        let mut outputs = match self.answer("the store", self.parts.store.previous_outputs(&tx)).await {
            Ok(outputs) => outputs,
            Err(ReadError::NoPreviousTransaction { outpoint, .. } | ReadError::NoPreviousOutput { outpoint, .. }) => {
                return Ok(Proof::Unknown(outpoint.txid));
            }
            Err(ReadError::Engine(error)) => return Err(error.into()),
            Err(error) => return Err(Stop::Halt(format!("what {txid} spends cannot be read: {error}"))),
        };
        if !agree(&tx, &outputs) {
            self.keep_what_was_given_away(&tx, &mut outputs).await?;
        }
        if agree(&tx, &outputs) {
            return Ok(Proof::AsStored);
        }
        let claimed = claiming(&tx, &outputs);
        claimed
            .map(Proof::Otherwise)
            .map_err(|error| Stop::Halt(format!("a block lists {txid}, which cannot be live: {error}")))
    }

    /// Claims on an output that was given to a new owner since, as it was before, were true then, and are no lie. They get nobody the
    /// output as it is now.
    async fn keep_what_was_given_away(&self, tx: &Transaction<'_>, outputs: &mut [StoredOutput]) -> Result<(), Stop> {
        let claims = tx.inputs().zip(outputs).filter_map(|(input, output)| {
            let claimed = input.previous.filter(|claimed| *claimed != view(output))?;
            Some((input.outpoint, claimed, output))
        });
        for (outpoint, claimed, output) in claims {
            let (key, offset) = self.place(outpoint);
            let records = self.answer("the store", self.parts.store.read(vec![key])).await?;
            let Some(page) = records.into_iter().find_map(into_page) else { continue };
            let hash = utxo_hash(&outpoint.txid, outpoint.vout, claimed.script, claimed.satoshis);
            if page.reassignments.iter().any(|entry| entry.offset == offset && entry.utxo_hash == hash) {
                *output = StoredOutput { satoshis: claimed.satoshis, script: Bytes::copy_from_slice(claimed.script) };
            }
        }
        Ok(())
    }

    /// Stores it as its parents prove it, before it becomes live: what is live by its own claims keeps them. By then it has its slots,
    /// so that its parents are there; one that a node forgot since is waited for.
    pub(super) async fn adopt_proven(&self, at: At, applied_again: bool, txid: Txid) -> Result<(), Stop> {
        let patience = Patience::new(applied_again);
        let proof = self.wait_until(at, "what proves the claims of a transaction is not there", || async {
            let page = self.master(txid).await?;
            let Some(page) = page.filter(|page| matches!(page.state(), TxState::Conflicting(_) | TxState::Live)) else {
                return Ok(Ok(Proof::AsStored));
            };
            Ok(match self.prove_claims(&page).await? {
                Proof::Unknown(parent) => {
                    if patience.is_over() {
                        self.call_for(at, vec![parent]).await?;
                    }
                    Err(parent.to_string())
                }
                proof => Ok(proof),
            })
        });
        let Proof::Otherwise(proven) = proof.await? else { return Ok(()) };
        tracing::warn!(%txid, "its event claims wrongly what it spends: a block proves what that is");
        self.replace_body(at, txid, proven).await
    }
}

fn agree(tx: &Transaction<'_>, outputs: &[StoredOutput]) -> bool {
    tx.inputs().zip(outputs).all(|(input, output)| input.previous == Some(view(output)))
}

fn view(output: &StoredOutput) -> PreviousOutput<'_> {
    PreviousOutput { satoshis: output.satoshis, script: &output.script }
}

/// The same transaction, said to spend these outputs.
fn claiming(tx: &Transaction<'_>, outputs: &[StoredOutput]) -> Result<ClaimedBody, InvalidTransaction> {
    let mut standard = Vec::new();
    tx.write_standard(&mut standard);
    let parsed = |bytes| Transaction::parse(bytes).unwrap_or_else(|_| unreachable!("written from one that parses"));
    let mut extended = Vec::new();
    let written = parsed(&standard).write_extended(&mut extended, |input, _| outputs.get(input).map(view));
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
        sequencer::{state::ChainState, steps::Making, tests::parts},
        store::testing,
    };

    /// A node forgets the parent after the slot has moved, and before the body is replaced (simulator, seed 1414).
    #[tokio::test(start_paused = true)]
    async fn what_proves_the_claims_is_waited_for() {
        let parts = parts().await;
        let store = parts.store.clone();
        let put = |operation: Operation, txid: Txid| store.apply(vec![Row { key: Key::master(txid), operation }]);
        let parent = testing::seeded(9, 1);
        let outpoint = testing::outpoint(parent.txid, 0);
        let [lie, honest] = [1_001, 1_000].map(|claimed| testing::transaction(&[(outpoint, claimed)], &[500]));
        let txid = testing::txid(&lie);
        assert_eq!(txid, testing::txid(&honest));
        put(Operation::CreateContested(Arc::new(testing::page(&lie).contested())), txid).await.unwrap();
        let at = At { offset: 0, era: 0, making: Making::Allowed, leaving: false };
        let handler = Handler::new(parts, ChainState::default());
        let adopting = tokio::spawn(async move { handler.adopt_proven(at, false, txid).await });
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!adopting.is_finished());
        put(Operation::Create(Arc::new(parent)), outpoint.txid).await.unwrap();
        adopting.await.unwrap().unwrap();
        let page = store.master(txid).await.unwrap().unwrap();
        assert_eq!(page.body(), Some(&Body::Transaction(honest)));
    }
}
