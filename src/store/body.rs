//! The body of a transaction, wherever it is kept.

use std::borrow::Cow;

use crate::{
    blob::BlobError,
    record::{Body, Page, StoredOutput},
    tx::{Output, ParseError, Transaction, Txid},
};

use super::Store;

/// Why a body cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// It is in a blob store, and this store is set up without one.
    #[error("the body of {txid} is in the blob store, and this store has none")]
    External {
        /// Whose.
        txid: Txid,
    },
    /// The blob that the master refers to is not there, though its blob store is.
    #[error("the body of {txid} is not in the blob store, where it should be")]
    NoBlob {
        /// Whose.
        txid: Txid,
    },
    /// What the blob store has is not what its name says.
    #[error("the body of {txid}: {error}")]
    Blob {
        /// Whose.
        txid: Txid,
        /// What is wrong.
        error: BlobError,
    },
    /// The master has none, though it has slots.
    #[error("{txid} has slots but no body")]
    Missing {
        /// Whose.
        txid: Txid,
    },
    /// It is no transaction.
    #[error("the body of {txid} is damaged: {error}")]
    Damaged {
        /// Whose.
        txid: Txid,
        /// What is wrong with it.
        error: ParseError,
    },
    /// It is another transaction.
    #[error("the body of {txid} is damaged: it hashes to {found}")]
    OtherTransaction {
        /// Whose.
        txid: Txid,
        /// What was found.
        found: Txid,
    },
}

/// A body that was looked at once: transactions parse, and can be walked without failing.
#[derive(Debug, Clone, Copy)]
pub enum ParsedBody<'a> {
    /// Whole.
    Transaction(Transaction<'a>),
    /// Partial: outputs by index, gaps `None`.
    Outputs(&'a [Option<StoredOutput>]),
}

impl BodyError {
    /// Whether what is stored is not what it should be, rather than out of reach.
    pub fn is_damage(&self) -> bool {
        !matches!(self, BodyError::External { .. })
    }
}

impl Store {
    /// The body of the transaction that `master` is the master of. The one place that knows where bodies are. Asks the blob store
    /// for as long as it does not answer.
    ///
    /// # Errors
    /// It is missing, or damaged; or in a blob store that this store does not know.
    pub async fn body<'a>(&self, master: &'a Page) -> Result<Cow<'a, Body>, BodyError> {
        match master.body() {
            Some(Body::External(blob)) => Box::pin(self.external_body(master, *blob)).await.map(Cow::Owned),
            Some(body) => Ok(Cow::Borrowed(body)),
            None => Err(BodyError::Missing { txid: master.txid }),
        }
    }

    /// The same; `None`: what is stored is damaged, or gone.
    ///
    /// # Errors
    /// It is in a blob store that this store does not know.
    pub(super) async fn body_unless_damaged<'a>(&self, master: &'a Page) -> Result<Option<Cow<'a, Body>>, BodyError> {
        match self.body(master).await {
            Err(error) if error.is_damage() => {
                tracing::warn!(%error, "it counts as missing");
                Ok(None)
            }
            found => found.map(Some),
        }
    }
}

impl<'a> ParsedBody<'a> {
    /// # Errors
    /// Bytes that are no transaction; a body that was not fetched.
    pub fn parse(txid: Txid, body: &'a Body) -> Result<Self, BodyError> {
        match body {
            Body::Transaction(bytes) => Transaction::parse(bytes)
                .map(ParsedBody::Transaction)
                .map_err(|error| BodyError::Damaged { txid, error }),
            Body::Outputs(outputs) => Ok(ParsedBody::Outputs(outputs)),
            Body::External(_) => Err(BodyError::External { txid }),
        }
    }

    /// Whether it is the body of `txid`. A partial one cannot be told.
    ///
    /// # Errors
    /// It hashes to another id.
    pub fn belongs_to(&self, txid: Txid) -> Result<(), BodyError> {
        match self {
            ParsedBody::Transaction(transaction) => match transaction.txid() {
                found if found == txid => Ok(()),
                found => Err(BodyError::OtherTransaction { txid, found }),
            },
            ParsedBody::Outputs(_) => Ok(()),
        }
    }

    /// Output `vout`; `None` where there is none, or a gap.
    pub fn output(&self, vout: u32) -> Option<Output<'a>> {
        match self {
            ParsedBody::Transaction(transaction) => transaction.outputs().nth(vout as usize),
            ParsedBody::Outputs(outputs) => outputs.get(vout as usize)?.as_ref().map(view),
        }
    }

    /// All outputs by index; gaps `None`.
    pub fn outputs(&self) -> Box<dyn Iterator<Item = Option<Output<'a>>> + Send + 'a> {
        match self {
            ParsedBody::Transaction(transaction) => Box::new(transaction.outputs().map(Some)),
            ParsedBody::Outputs(outputs) => Box::new(outputs.iter().map(|output| output.as_ref().map(view))),
        }
    }

    /// The whole transaction, where it is one.
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
