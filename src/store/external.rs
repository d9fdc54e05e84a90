//! Bodies outside the records: put into the blob store before the record that refers to them, and read for as long as it takes.
//!
//! `DESIGN.md` section 5 and `semantics.md`, "External"; seed `003_f428a83e5197ea21.txt`, "External Blob Storage". What the blob
//! store cannot do now is tried again: an event that needs it waits, as it waits for the engine.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    blob::{BlobError, BlobErrorKind, BlobStore, PartialTx, Reuse},
    engine::{EngineError, ErrorKind, Row},
    record::{Blob, Body, ClaimedBody, Key, Operation, Page, Sequenced, StoredOutput, build::Inline},
    tx::Txid,
};

use super::{Store, body::BodyError};

impl Store {
    /// Which bodies are kept with their masters.
    pub fn inline(&self) -> Inline {
        if self.blobs.is_some() { Inline::UpTo(self.settings.inline_limit) } else { Inline::All }
    }

    /// The body of a master as its record is to have it: in the blob store, if it belongs there. One try.
    ///
    /// # Errors
    /// The blob store's.
    pub(crate) async fn placed_once(&self, master: &Page) -> Result<Option<Body>, BlobError> {
        let others = master.master.as_ref().map_or(0, |bins| bins.total_extra_recs);
        match (&self.blobs, master.body()) {
            (Some(blobs), Some(body)) if !self.inline().takes(body, others) => {
                let _asking = self.trouble.asking();
                keep(blobs, master, body).await
            }
            _ => Ok(None),
        }
    }

    /// The claims of an event about the transaction of `master` as its record is to have them: their body in the blob store, if it
    /// belongs there.
    ///
    /// # Errors
    /// What trying again does not heal.
    pub(crate) async fn placed(&self, master: &Page, claimed: ClaimedBody) -> Result<ClaimedBody, EngineError> {
        let others = master.master.as_ref().map_or(0, |bins| bins.total_extra_recs);
        match &self.blobs {
            Some(blobs) if !self.inline().takes(&claimed.body, others) => {
                let body = self.kept(blobs, master, &claimed.body, |_| {}).await?;
                Ok(ClaimedBody { body: body.unwrap_or(claimed.body), ..claimed })
            }
            _ => Ok(claimed),
        }
    }

    /// A row that the engine found too big, with its body in the blob store instead.
    ///
    /// # Errors
    /// `too_big`, where it has no body that could go there, or there is no blob store; and what trying again does not heal.
    pub(crate) async fn lighter(
        &self,
        row: &Row,
        too_big: EngineError,
        told: impl FnMut(Option<&EngineError>) + Send,
    ) -> Result<Row, EngineError> {
        let (Key::Page(txid, _), Some(body)) = (row.key, row.operation.body()) else { return Err(too_big) };
        let Some(blobs) = &self.blobs else {
            let message = format!("{}; or give the store a blob store (store.blobs.url)", too_big.message);
            return Err(EngineError { message, ..too_big });
        };
        let page = row.operation.created().cloned().unwrap_or_else(|| Page::empty(txid).into());
        match self.kept(blobs, &page, body, told).await? {
            Some(body) => Ok(Row { key: row.key, operation: with_body(&row.operation, body) }),
            None => Err(too_big),
        }
    }

    /// The body of an external transaction, as a record would have it inline.
    ///
    /// # Errors
    /// There is no such blob, or it is damaged; there is no blob store.
    pub(super) async fn external_body(&self, master: &Page, blob: Blob) -> Result<Body, BodyError> {
        let txid = master.txid;
        let blobs = self.blobs.as_ref().ok_or(BodyError::External { txid })?;
        let found = self.asked(txid, || async {
            if master.is_partial() {
                Ok(blobs.kept_outputs(txid, blob).await?.map(|partial| partial.body()))
            } else {
                Ok(blobs.kept_tx(txid, blob, reuse(master)).await?.map(Body::Transaction))
            }
        });
        found.await.map_err(|error| BodyError::Blob { txid, error })?.ok_or(BodyError::NoBlob { txid })
    }

    /// Some outputs of an external whole transaction, by index, without all of it in memory.
    ///
    /// # Errors
    /// As [`external_body`](Self::external_body).
    pub(super) async fn external_outputs(
        &self,
        txid: Txid,
        blob: Blob,
        vouts: &[u32],
    ) -> Result<BTreeMap<u32, StoredOutput>, BodyError> {
        let blobs = self.blobs.as_ref().ok_or(BodyError::External { txid })?;
        let found = self.asked(txid, || blobs.kept_tx_outputs(txid, blob, vouts, Reuse::Likely));
        found.await.map_err(|error| BodyError::Blob { txid, error })?.ok_or(BodyError::NoBlob { txid })
    }

    /// Asks the blob store about a transaction until it answers.
    async fn asked<T, F>(&self, txid: Txid, ask: impl Fn() -> F) -> Result<T, BlobError>
    where
        F: Future<Output = Result<T, BlobError>>,
    {
        let asking = self.trouble.asking();
        let told = |failed: Option<&BlobError>| asking.heard(failed);
        let pauses = self.pauses(Some(Key::master(txid)));
        pauses.until_answered_telling(BlobError::may_be_repeated, ask, told).await
    }

    /// Puts a body into the blob store, for as long as it takes; `told` hears what keeps it from that, and `None` when it is done.
    async fn kept(
        &self,
        blobs: &BlobStore,
        page: &Page,
        body: &Body,
        mut told: impl FnMut(Option<&EngineError>) + Send,
    ) -> Result<Option<Body>, EngineError> {
        let put = || async { keep(blobs, page, body).await.map_err(engine_error) };
        let asking = self.trouble.asking();
        let told = |failed: Option<&EngineError>| {
            asking.heard(failed);
            told(failed);
        };
        self.pauses(Some(Key::master(page.txid))).until_answered_telling(EngineError::may_be_retried, put, told).await
    }
}

/// What a record of `page` says of a body that is in the blob store; `None`: it is there already, or can only be with the record.
async fn keep(blobs: &BlobStore, page: &Page, body: &Body) -> Result<Option<Body>, BlobError> {
    let blob = match body {
        Body::Transaction(bytes) => blobs.keep_tx(page.txid, bytes.clone()).await?,
        Body::Outputs(outputs) => match partial(page, outputs) {
            Some(partial) => blobs.keep_outputs(&partial).await?,
            None => return Ok(None),
        },
        Body::External(_) => return Ok(None),
    };
    Ok(Some(Body::External(blob)))
}

fn partial(page: &Page, outputs: &[Option<StoredOutput>]) -> Option<PartialTx> {
    let height = page.master.as_ref()?.mined.first()?.height;
    let known = outputs.iter().zip(0..).filter_map(|(output, vout)| Some((vout, output.clone()?)));
    Some(PartialTx { txid: page.txid, height, coinbase: page.is_coinbase, outputs: known.collect() })
}

fn with_body(operation: &Operation, body: Body) -> Operation {
    match operation {
        Operation::Create(page) => Operation::Create(page_with_body(page, body)),
        Operation::CreateContested(page) => Operation::CreateContested(page_with_body(page, body)),
        Operation::Sequenced(stamp, Sequenced::CreateCoinbase(page)) => {
            Operation::Sequenced(*stamp, Sequenced::CreateCoinbase(page_with_body(page, body)))
        }
        Operation::Sequenced(stamp, Sequenced::ReplaceBody(claimed)) => {
            Operation::Sequenced(*stamp, Sequenced::ReplaceBody(ClaimedBody { body, ..claimed.clone() }))
        }
        other => other.clone(),
    }
}

/// The same master with its body elsewhere.
pub(super) fn page_with_body(page: &Arc<Page>, body: Body) -> Arc<Page> {
    let mut page = Page::clone(page);
    let slots = page.utxos.as_ref().map_or(0, Vec::len);
    if let Some(inline) = page.master.as_mut().and_then(|master| master.body.replace(body)) {
        page.amount_sizes = inline.amount_sizes(slots);
    }
    Arc::new(page)
}

/// What keeps a body out of the blob store, to those who wait for the engine: for all but bytes that are not what they should be
/// there is a remedy outside, and asking again does no harm.
pub(super) fn engine_error(error: BlobError) -> EngineError {
    let kind = match error.kind {
        BlobErrorKind::Unknown => ErrorKind::Unknown,
        BlobErrorKind::Retryable | BlobErrorKind::Denied | BlobErrorKind::Corrupt => ErrorKind::Retryable,
        BlobErrorKind::Invalid => ErrorKind::Fatal,
    };
    let message = format!("blob store: {} ({})", error.message, error.kind);
    EngineError { kind, operation: error.operation, key: error.path, message }
}

/// Whether a transaction will be read again soon: where two of its outputs or more can still be spent (`semantics.md`, "Reads").
fn reuse(master: &Page) -> Reuse {
    let left = master.record_utxos.saturating_sub(master.spent_utxos);
    let open_pages = master.master.as_ref().is_some_and(|bins| bins.total_extra_recs as usize > bins.spent_pages.len());
    if left >= 2 || open_pages { Reuse::Likely } else { Reuse::Unlikely }
}

#[cfg(test)]
#[path = "external_tests.rs"]
mod tests;
