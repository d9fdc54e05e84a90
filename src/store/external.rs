//! Bodies in the blob store: written before the record that refers to them, and read with retries.
//!
//! `docs/semantics.md`, "External", and the reference document `003_f428a83e5197ea21.txt`, "External Blob Storage". A
//! failed request is retried: an event waits for the blob store as it waits for the engine.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    blob::{BlobError, BlobErrorKind, BlobStore, PartialTx, Reuse, TxPieces, find_outputs_by_hash},
    engine::{EngineError, ErrorKind, Row},
    record::{
        Blob, Body, ClaimedBody, Key, Operation, Page, PartialOutputs, Record, Sequenced, StoredOutput,
        build::InlineBodies,
    },
    tx::{Txid, UtxoHash, WireFormat},
};

use super::{StateStore, body::BodyError};

impl StateStore {
    /// Returns the rule by which bodies stay inline in their masters.
    pub fn inline(&self) -> InlineBodies {
        if self.blobs.is_some() { InlineBodies::UpTo(self.settings.inline_limit) } else { InlineBodies::All }
    }

    /// Puts the body of a master into the blob store, if it belongs there, in one try.
    ///
    /// Returns the reference for the record; `None`: the body stays inline.
    ///
    /// # Errors
    /// The error of the blob store.
    pub(crate) async fn externalize_once(&self, master: &Page) -> Result<Option<Body>, BlobError> {
        match (&self.blobs, master.body()) {
            (Some(blobs), Some(body)) if !self.inline().is_inline(body, master.extra_pages()) => {
                let _wait = self.blob_status.begin_wait();
                put_body(blobs, master, body).await
            }
            _ => Ok(None),
        }
    }

    /// Puts the inline body of a master of a snapshot into the blob store, if it belongs there. Returns the reference
    /// for the record; `None`: the body stays inline.
    ///
    /// # Errors
    /// An error that no retry heals.
    pub(crate) async fn externalize_restored(&self, master: &Page) -> Result<Option<Body>, EngineError> {
        match (BlobBodies::of(self), master.body()) {
            (Some(bodies), Some(body)) if !self.inline().is_inline(body, master.extra_pages()) => {
                bodies.put(master, body, |_| {}).await
            }
            _ => Ok(None),
        }
    }

    /// Puts the claimed body of an event into the blob store, if it belongs there, and returns the claims with the
    /// reference for the record of `master`.
    ///
    /// # Errors
    /// An error that no retry heals.
    pub(crate) async fn externalize_claims(
        &self,
        master: &Page,
        claimed: ClaimedBody,
    ) -> Result<ClaimedBody, EngineError> {
        match BlobBodies::of(self) {
            Some(bodies) if !self.inline().is_inline(&claimed.body, master.extra_pages()) => {
                let body = bodies.put(master, &claimed.body, |_| {}).await?;
                Ok(ClaimedBody { body: body.unwrap_or(claimed.body), ..claimed })
            }
            _ => Ok(claimed),
        }
    }

    /// Returns a row that the engine found too big, with its body in the blob store instead.
    ///
    /// # Errors
    /// `too_big` for a row without such a body, or without a blob store; an error of the blob store that no retry
    /// heals.
    pub(crate) async fn externalize_body(
        &self,
        row: &Row,
        too_big: EngineError,
        report: impl FnMut(Option<&EngineError>) + Send,
    ) -> Result<Row, EngineError> {
        let (Key::Page(txid, _), Some(body)) = (row.key, row.operation.body()) else { return Err(too_big) };
        let Some(bodies) = BlobBodies::of(self) else {
            let message = format!("{}; or give the store a blob store (store.blobs.url)", too_big.message);
            return Err(EngineError { message, ..too_big });
        };
        let page = row.operation.created().cloned().unwrap_or_else(|| Page::empty(txid).into());
        match bodies.put(&page, body, report).await? {
            Some(body) => Ok(Row { key: row.key, operation: with_body(&row.operation, body) }),
            None => Err(too_big),
        }
    }
}

/// Bodies in the blob store of a store. Requests are repeated until the blob store answers, and the store's blob status
/// shows the waits.
pub(super) struct BlobBodies<'a> {
    store: &'a StateStore,
    blobs: &'a BlobStore,
}

impl<'a> BlobBodies<'a> {
    /// Returns the bodies; `None`: the store has no blob store.
    fn of(store: &'a StateStore) -> Option<Self> {
        store.blobs.as_ref().map(|blobs| BlobBodies { store, blobs })
    }

    /// Returns the bodies, in order to read the body of `txid`.
    ///
    /// # Errors
    /// [`BodyError::NoBlobStore`]
    pub(super) fn of_reader(store: &'a StateStore, txid: Txid) -> Result<Self, BodyError> {
        Self::of(store).ok_or(BodyError::NoBlobStore { txid })
    }

    /// Reads the body of an external transaction in the form of an inline body.
    ///
    /// # Errors
    /// [`BodyError`] for a blob that is missing or damaged.
    pub(super) async fn load(&self, master: &Page, blob: Blob) -> Result<Body, BodyError> {
        let (txid, blobs) = (master.txid, self.blobs);
        let request = || async {
            if master.is_partial() {
                Ok(blobs.load_outputs(txid, blob).await?.map(|partial| partial.body()))
            } else {
                Ok(blobs.load_tx(txid, blob, predict_reuse(master)).await?.map(Body::Transaction))
            }
        };
        self.retry(txid, request).await
    }

    /// Opens the body of an external whole transaction, to be read piece by piece.
    ///
    /// # Errors
    /// [`BodyError`] for a blob that is missing or damaged.
    pub(super) async fn open(&self, txid: Txid, blob: Blob, format: WireFormat) -> Result<TxPieces, BodyError> {
        self.retry(txid, || self.blobs.open_tx(txid, blob, format)).await
    }

    /// Reads some outputs of an external whole transaction by index, without the whole transaction in memory.
    pub(super) async fn load_outputs(
        &self,
        txid: Txid,
        blob: Blob,
        vouts: &[u32],
    ) -> Result<BTreeMap<u32, StoredOutput>, BodyError> {
        self.retry(txid, || self.blobs.load_tx_outputs(txid, blob, vouts, Reuse::Likely)).await
    }

    /// Reads some outputs of an external whole transaction by the hashes of their slots. The blob is read up to the
    /// last of these outputs.
    pub(super) async fn find_outputs(
        &self,
        txid: Txid,
        blob: Blob,
        hashes: &BTreeMap<u32, UtxoHash>,
    ) -> Result<BTreeMap<u32, StoredOutput>, BodyError> {
        self.retry(txid, || find_outputs_by_hash(self.blobs, txid, blob, hashes)).await
    }

    /// Repeats a request for the blob of a transaction until the blob store answers.
    async fn retry<T, F>(&self, txid: Txid, request: impl Fn() -> F) -> Result<T, BodyError>
    where
        F: Future<Output = Result<Option<T>, BlobError>>,
    {
        let wait = self.store.blob_status.begin_wait();
        let report = |failed: Option<&BlobError>| wait.record_failure(failed);
        let backoff = self.store.new_backoff(Some(Key::master(txid)));
        let found = backoff.retry_notify(BlobError::may_be_retried, request, report).await;
        found.map_err(|error| BodyError::Blob { txid, error })?.ok_or(BodyError::BlobMissing { txid })
    }

    /// Puts a body into the blob store, and returns the reference for the record of `page`. `report` is called with
    /// each error that is retried, and with `None` at the end. `None`: the body is a reference already, or can only be
    /// inline.
    async fn put(
        &self,
        page: &Page,
        body: &Body,
        mut report: impl FnMut(Option<&EngineError>) + Send,
    ) -> Result<Option<Body>, EngineError> {
        let put = || async { put_body(self.blobs, page, body).await.map_err(into_engine_error) };
        let wait = self.store.blob_status.begin_wait();
        let report = |failed: Option<&EngineError>| {
            wait.record_failure(failed);
            report(failed);
        };
        let backoff = self.store.new_backoff(Some(Key::master(page.txid)));
        backoff.retry_notify(EngineError::may_be_retried, put, report).await
    }
}

/// Puts a body into the blob store, and returns the reference for the record of `page`. `None`: the body is a reference
/// already, or can only be inline.
async fn put_body(blobs: &BlobStore, page: &Page, body: &Body) -> Result<Option<Body>, BlobError> {
    let blob = match body {
        Body::Transaction(bytes) => blobs.store_tx(page.txid, bytes.clone()).await?,
        Body::Outputs(outputs) => match partial_tx(page, outputs) {
            Some(partial) => blobs.store_outputs(&partial).await?,
            None => return Ok(None),
        },
        Body::External(_) => return Ok(None),
    };
    Ok(Some(Body::External(blob)))
}

fn partial_tx(page: &Page, outputs: &PartialOutputs) -> Option<PartialTx> {
    let height = page.master.as_ref()?.mined.first()?.height;
    let outputs = outputs.known().to_vec();
    Some(PartialTx { txid: page.txid, height, coinbase: page.is_coinbase, outputs })
}

fn with_body(operation: &Operation, body: Body) -> Operation {
    match operation {
        Operation::Create(page) => Operation::Create(with_body_replaced(page, body)),
        Operation::CreateContested(page) => Operation::CreateContested(with_body_replaced(page, body)),
        Operation::Sequenced(stamp, Sequenced::CreateCoinbase(page)) => {
            Operation::Sequenced(*stamp, Sequenced::CreateCoinbase(with_body_replaced(page, body)))
        }
        Operation::Sequenced(stamp, Sequenced::ReplaceBody(claimed)) => {
            Operation::Sequenced(*stamp, Sequenced::ReplaceBody(ClaimedBody { body, ..claimed.clone() }))
        }
        Operation::Restore(record) => match &**record {
            Record::Page(page) => Operation::Restore(Box::new(Record::Page(with_body_replaced(page, body)))),
            _ => operation.clone(),
        },
        other => other.clone(),
    }
}

/// Returns the same master with another body.
pub(super) fn with_body_replaced(page: &Arc<Page>, body: Body) -> Arc<Page> {
    let mut page = Page::clone(page);
    let slots = page.utxos.as_ref().map_or(0, Vec::len);
    if let Some(inline) = page.master.as_mut().and_then(|master| master.body.replace(body)) {
        page.amount_sizes = inline.amount_sizes(slots);
    }
    Arc::new(page)
}

/// Converts an error of the blob store into an error of the engine, for callers that wait for both.
///
/// Every error but invalid bytes may be retried: an operator can remove its cause, and a retry does no harm.
pub(super) fn into_engine_error(error: BlobError) -> EngineError {
    let kind = match error.kind {
        BlobErrorKind::Invalid => ErrorKind::Fatal,
        BlobErrorKind::Unknown | BlobErrorKind::Retryable | BlobErrorKind::Denied | BlobErrorKind::Corrupt => {
            ErrorKind::Storage
        }
    };
    let message = format!("blob store: {} ({})", error.message, error.kind);
    EngineError { kind, operation: error.operation, key: error.path, message }
}

/// Predicts whether a transaction is read again soon: when at least two of its outputs can still be spent
/// (`docs/semantics.md`, "Reads").
fn predict_reuse(master: &Page) -> Reuse {
    let unspent = master.record_utxos.saturating_sub(master.spent_utxos);
    let spent_pages = master.master.as_ref().map_or(0, |bins| bins.spent_pages.len());
    let has_open_pages = master.extra_pages() as usize > spent_pages;
    if unspent >= 2 || has_open_pages { Reuse::Likely } else { Reuse::Unlikely }
}

#[cfg(test)]
#[path = "external_tests.rs"]
mod tests;
