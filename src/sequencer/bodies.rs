//! Bodies of stored transactions, inline or in the blob store: the inputs and the parents of a transaction.
//!
//! The handling of one event needs the same body several times, and a waiting block needs it at every retry. A body in
//! the blob store is read once.

use std::{collections::BTreeMap, fmt::Display};

use bytes::Bytes;

use crate::{
    record::{Blob, Body, Page, SpendSlot},
    sequencer::{
        SequencerError,
        context::{HandlerContext, distinct},
    },
    tx::{Outpoint, Transaction, Txid},
};

/// Bodies that the present event has read from the blob store.
#[derive(Debug, Default)]
pub struct BodyCache {
    /// The last body read, with its txid and blob: only one body is in memory at a time.
    last: Option<((Txid, Blob), Bytes)>,
    /// The parents of each transaction read. A txid commits to its parents, so an entry stays valid.
    parents: BTreeMap<Txid, Vec<Txid>>,
}

/// Reads the inputs of a stored transaction as slots to take, with the outpoint of each. A partial transaction has
/// none.
pub async fn read_inputs(cx: &HandlerContext<'_>, page: &Page) -> Result<Vec<(Outpoint, SpendSlot)>, SequencerError> {
    match read_body(cx, page).await? {
        Some(bytes) => parse_inputs(cx, &page.txid, &bytes),
        None => Ok(Vec::new()),
    }
}

/// Parses the inputs of a body as slots to take, with the outpoint of each. A coinbase has none.
pub fn parse_inputs(
    cx: &HandlerContext<'_>,
    txid: &Txid,
    body: &Bytes,
) -> Result<Vec<(Outpoint, SpendSlot)>, SequencerError> {
    let tx = parse_body(*txid, body)?;
    if tx.is_coinbase() {
        return Ok(Vec::new());
    }
    let slots = tx.inputs().zip(0..).filter_map(|(input, index)| {
        let (outpoint, previous) = (input.outpoint, input.previous?);
        let (_, offset) = cx.locate(outpoint);
        let script = body.slice_ref(previous.script);
        Some((outpoint, SpendSlot::claiming(&outpoint, offset, index, &previous, script)))
    });
    Ok(slots.collect())
}

/// Reads the parents of a stored transaction, each once. A partial transaction has none.
pub async fn read_parents(cx: &HandlerContext<'_>, page: &Page) -> Result<Vec<Txid>, SequencerError> {
    if let Some(parents) = cx.bodies.lock().await.parents.get(&page.txid) {
        return Ok(parents.clone());
    }
    let Some(body) = read_body(cx, page).await? else { return Ok(Vec::new()) };
    let tx = parse_body(page.txid, &body)?;
    let spends = if tx.is_coinbase() { None } else { Some(tx.inputs().map(|input| input.outpoint.txid)) };
    let parents = distinct(spends.into_iter().flatten());
    if let Some(Body::External(_)) = page.body() {
        cx.bodies.lock().await.parents.insert(page.txid, parents.clone());
    }
    Ok(parents)
}

/// Reads the bytes of a stored transaction. Returns `None` for a partial transaction, and for a stub or a tombstone
/// without a body.
pub async fn read_body(cx: &HandlerContext<'_>, page: &Page) -> Result<Option<Bytes>, SequencerError> {
    let whose = match page.body() {
        Some(Body::Transaction(bytes)) => return Ok(Some(bytes.clone())),
        Some(Body::External(blob)) if !page.is_partial() => (page.txid, *blob),
        _ => return Ok(None),
    };
    let mut bodies = cx.bodies.lock().await;
    // The body of another transaction is dropped before this one is read.
    bodies.last.take_if(|(of, _)| *of != whose);
    if let Some((_, bytes)) = &bodies.last {
        return Ok(Some(bytes.clone()));
    }
    // Boxed: rare, and else a part of every future here.
    let body = Box::pin(cx.wait_for("the store", cx.parts.store.body(page))).await;
    // A halt, so that an operator can repair the body and lift the halt.
    let body = body.map_err(|error| SequencerError::Halt(format!("the store is damaged: {error}")))?;
    let Body::Transaction(bytes) = body.into_owned() else { return Ok(None) };
    bodies.last = Some((whose, bytes.clone()));
    Ok(Some(bytes))
}

/// Parses the stored body of a transaction.
pub fn parse_body<'a>(txid: Txid, body: &'a Bytes) -> Result<Transaction<'a>, SequencerError> {
    Transaction::parse(body).map_err(|error| damaged_body(txid, error))
}

/// Returns the halt for a stored body that is damaged.
pub fn damaged_body(txid: Txid, error: impl Display) -> SequencerError {
    SequencerError::Halt(format!("the stored body of {txid} is damaged: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        blob::BlobStore,
        sequencer::{SequencerParts, handler::Handler, state::ChainState, steps::DecisionMode, tests::parts},
        store::testing,
    };

    /// Protects: reads of two bodies at once return each its own body, and one body stays in memory.
    #[tokio::test]
    async fn bodies_that_are_read_at_once_are_not_confused() {
        let parts = parts().await;
        let mut store = parts.store.clone().with_blobs(Some(BlobStore::memory()));
        store.settings.inline_limit = 10;
        let outpoints = [8, 9].map(|id| testing::outpoint(Txid([id; 32]), 0));
        let bodies = outpoints.map(|outpoint| testing::transaction(&[(outpoint, 1_000)], &[500]));
        let mut pages = Vec::new();
        for body in &bodies {
            let mut page = testing::page(body);
            testing::master(&mut page).body = store.externalize_once(&page).await.unwrap();
            pages.push(page);
        }
        let handler = Handler::new(SequencerParts { store, ..parts }, ChainState::default());
        let cx = &handler.context(0, DecisionMode::Live);
        let (one, other, again) =
            tokio::join!(read_body(cx, &pages[0]), read_body(cx, &pages[1]), read_body(cx, &pages[0]));
        for (read, body) in [(one, &bodies[0]), (other, &bodies[1]), (again, &bodies[0])] {
            assert_eq!(read.unwrap().as_ref(), Some(body));
        }
        for (page, spent) in pages.iter().zip(outpoints) {
            assert_eq!(read_parents(cx, page).await.unwrap(), [spent.txid]);
        }
        assert!(cx.bodies.lock().await.last.is_some());
    }
}
