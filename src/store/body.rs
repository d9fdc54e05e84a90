//! Reading a transaction's body, inline or from the blob store.

use std::borrow::Cow;

use crate::{
    blob::BlobError,
    record::{Body, Page, PartialOutputs, StoredOutput},
    tx::{Output, ParseError, Transaction, Txid},
};

use super::{StateStore, external::BlobBodies};

/// Reasons why a body cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants and name the fields")]
pub enum BodyError {
    /// The master refers to a blob, and this store has no blob store.
    #[error("cannot read the body of {txid}: it is in the blob store, and none is configured; set store.blobs.url")]
    NoBlobStore { txid: Txid },
    /// The blob store answers, and does not have the blob that the master refers to.
    #[error("the body of {txid} is not in the blob store, where it should be")]
    BlobMissing { txid: Txid },
    /// The blob store refused the request, or the blob does not match its name.
    #[error("cannot read the body of {txid}: {error}")]
    Blob { txid: Txid, error: BlobError },
    #[error("{txid} has slots but no body")]
    Missing { txid: Txid },
    #[error("the body of {txid} is damaged: {error}")]
    Damaged { txid: Txid, error: ParseError },
    #[error("the body of {txid} is damaged: it hashes to {found}")]
    OtherTransaction { txid: Txid, found: Txid },
}

/// A body whose bytes were parsed once, so that walking its outputs cannot fail.
#[derive(Debug, Clone, Copy)]
pub enum ParsedBody<'a> {
    /// The body of a whole transaction.
    Transaction(Transaction<'a>),
    /// The outputs of a partial transaction by index; gaps are `None`.
    Outputs(&'a PartialOutputs),
}

impl BodyError {
    /// Returns whether the stored body is damaged, as opposed to a store without a blob store.
    fn is_damage(&self) -> bool {
        !matches!(self, BodyError::NoBlobStore { .. })
    }
}

impl StateStore {
    /// Returns the body of a master's transaction: every reader of bodies comes here. A request to the blob store is
    /// repeated until the blob store answers.
    ///
    /// # Errors
    /// [`BodyError`] for a body that is missing or damaged, or is a blob of a store that has no blob store here.
    pub async fn body<'a>(&self, master: &'a Page) -> Result<Cow<'a, Body>, BodyError> {
        match master.body() {
            Some(Body::External(blob)) => {
                let bodies = BlobBodies::of_reader(self, master.txid)?;
                Box::pin(bodies.load(master, *blob)).await.map(Cow::Owned)
            }
            Some(body) => Ok(Cow::Borrowed(body)),
            None => Err(BodyError::Missing { txid: master.txid }),
        }
    }

    /// Like [`body`](Self::body), with `None` for a body that is damaged or missing.
    ///
    /// # Errors
    /// [`BodyError::NoBlobStore`]
    pub(super) async fn read_intact_body<'a>(&self, master: &'a Page) -> Result<Option<Cow<'a, Body>>, BodyError> {
        match self.body(master).await {
            Err(error) if error.is_damage() => {
                tracing::warn!(txid = %master.txid, %error, "store: stored body unreadable; treating it as missing");
                Ok(None)
            }
            found => found.map(Some),
        }
    }
}

impl<'a> ParsedBody<'a> {
    /// Parses a body of the transaction `txid`.
    ///
    /// # Errors
    /// [`BodyError::Damaged`] for bytes that are no transaction; [`BodyError::NoBlobStore`] for a body that was not
    /// fetched.
    pub fn parse(txid: Txid, body: &'a Body) -> Result<Self, BodyError> {
        match body {
            Body::Transaction(bytes) => Transaction::parse(bytes)
                .map(ParsedBody::Transaction)
                .map_err(|error| BodyError::Damaged { txid, error }),
            Body::Outputs(outputs) => Ok(ParsedBody::Outputs(outputs)),
            Body::External(_) => Err(BodyError::NoBlobStore { txid }),
        }
    }

    /// Verifies that the body hashes to `txid`. The outputs of a partial transaction have no hash: they always pass.
    ///
    /// # Errors
    /// [`BodyError::OtherTransaction`]
    pub fn belongs_to(&self, txid: Txid) -> Result<(), BodyError> {
        match self {
            ParsedBody::Transaction(transaction) => match transaction.txid() {
                found if found == txid => Ok(()),
                found => Err(BodyError::OtherTransaction { txid, found }),
            },
            ParsedBody::Outputs(_) => Ok(()),
        }
    }

    /// Returns output `vout`; `None` for a gap, and beyond the last output.
    pub fn output(&self, vout: u32) -> Option<Output<'a>> {
        match self {
            ParsedBody::Transaction(transaction) => transaction.outputs().nth(vout as usize),
            ParsedBody::Outputs(outputs) => outputs.get(vout).map(view),
        }
    }

    /// Returns all outputs by index, with `None` for a gap.
    pub fn outputs(&self) -> Box<dyn Iterator<Item = Option<Output<'a>>> + Send + 'a> {
        match self {
            ParsedBody::Transaction(transaction) => Box::new(transaction.outputs().map(Some)),
            ParsedBody::Outputs(outputs) => Box::new(outputs.iter().map(|output| output.map(view))),
        }
    }

    /// Returns the transaction; `None` for a partial one.
    pub fn transaction(&self) -> Option<&Transaction<'a>> {
        match self {
            ParsedBody::Transaction(transaction) => Some(transaction),
            ParsedBody::Outputs(_) => None,
        }
    }
}

fn view(output: &StoredOutput) -> Output<'_> {
    Output { satoshis: output.satoshis, script: &output.script }
}
