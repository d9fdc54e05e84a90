//! The bodies of stored transactions, wherever they are: what they spend, and from whom.
//!
//! Handling one event asks for the same body again and again, and a block that waits does so at every look. One that is in the blob
//! store is read once.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::{
    record::{Blob, Body, Page, SpendSlot},
    sequencer::{
        Stop,
        handler::{Handler, distinct},
    },
    tx::{Outpoint, Transaction, Txid},
};

/// What the event that is being handled has read of the blob store.
#[derive(Debug, Default)]
pub(super) struct ReadBodies {
    /// The last body, and whose it is: only one is in memory at a time.
    last: Option<((Txid, Blob), Bytes)>,
    /// Those whose outputs are spent, to which a transaction id commits.
    parents: BTreeMap<Txid, Vec<Txid>>,
}

impl Handler {
    /// The inputs of a stored transaction as slots to take, with what they spend. A partial transaction has none.
    pub async fn inputs_of(&self, page: &Page) -> Result<Vec<(Outpoint, SpendSlot)>, Stop> {
        match self.transaction_of(page).await? {
            Some(bytes) => self.inputs_in(&page.txid, &bytes),
            None => Ok(Vec::new()),
        }
    }

    /// The same of a body, wherever it was read.
    pub fn inputs_in(&self, txid: &Txid, body: &Bytes) -> Result<Vec<(Outpoint, SpendSlot)>, Stop> {
        let tx = parsed(txid, body)?;
        if tx.is_coinbase() {
            return Ok(Vec::new());
        }
        let slots = tx.inputs().zip(0..).filter_map(|(input, index)| {
            let (outpoint, previous) = (input.outpoint, input.previous?);
            let (_, offset) = self.place(outpoint);
            let script = body.slice_ref(previous.script);
            Some((outpoint, SpendSlot::claiming(&outpoint, offset, index, &previous, script)))
        });
        Ok(slots.collect())
    }

    /// The transactions whose outputs a stored transaction spends, each once. A partial transaction has none.
    pub(super) async fn parents_of(&self, page: &Page) -> Result<Vec<Txid>, Stop> {
        if let Some(parents) = self.bodies.lock().await.parents.get(&page.txid) {
            return Ok(parents.clone());
        }
        let Some(body) = self.transaction_of(page).await? else { return Ok(Vec::new()) };
        let tx = parsed(&page.txid, &body)?;
        let spends = if tx.is_coinbase() { None } else { Some(tx.inputs().map(|input| input.outpoint.txid)) };
        let parents = distinct(spends.into_iter().flatten());
        if let Some(Body::External(_)) = page.body() {
            self.bodies.lock().await.parents.insert(page.txid, parents.clone());
        }
        Ok(parents)
    }

    /// The bytes of a stored transaction; of a partial one, a stub, or a tombstone that keeps none, none.
    pub(super) async fn transaction_of(&self, page: &Page) -> Result<Option<Bytes>, Stop> {
        let whose = match page.body() {
            Some(Body::Transaction(bytes)) => return Ok(Some(bytes.clone())),
            Some(Body::External(blob)) if !page.is_partial() => (page.txid, *blob),
            _ => return Ok(None),
        };
        let mut bodies = self.bodies.lock().await;
        // Another one is let go before this one is read.
        bodies.last.take_if(|(of, _)| *of != whose);
        if let Some((_, bytes)) = &bodies.last {
            return Ok(Some(bytes.clone()));
        }
        // Rare, and a part of every future here: boxed.
        let body = Box::pin(self.answer("the store", self.parts.store.body(page))).await;
        // Whoever mends it lets the chain go on.
        let body = body.map_err(|error| Stop::Halt(format!("the store is damaged: {error}")))?;
        let Body::Transaction(bytes) = body.into_owned() else { return Ok(None) };
        bodies.last = Some((whose, bytes.clone()));
        Ok(Some(bytes))
    }

    /// The event is handled: what was read for it is let go.
    pub(super) async fn let_go_of_bodies(&self) {
        *self.bodies.lock().await = ReadBodies::default();
    }
}

fn parsed<'a>(txid: &Txid, body: &'a Bytes) -> Result<Transaction<'a>, Stop> {
    Transaction::parse(body).map_err(|error| Stop::Halt(format!("the stored body of {txid} is damaged: {error}")))
}
