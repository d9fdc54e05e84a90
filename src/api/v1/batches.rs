//! `/v1/transactions:batch`: many transactions in one request, read and sent a part at a time.

use std::vec;

use axum::{
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, header},
    response::{IntoResponse, Response},
};
use futures_util::stream;
use serde::{Deserialize, Serialize};
use tokio::sync::OwnedSemaphorePermit;
use utoipa::ToSchema;

use super::{
    binary,
    context::{ApiContext, refuse_unavailable},
    model::{SelectedFields, TransactionData},
    outputs::check_count,
    params::{JSON, OCTET_STREAM, Params, media_type, parse, parse_json, require_media_type},
    transactions::FieldParams,
};
use crate::{
    api::{
        limits::LimitedBody,
        problem::{Problem, ProblemKind},
    },
    record::Body as StoredBody,
    store::{
        StateStore,
        read::{ReadError, ReadFields, StoredTransaction, TxReader},
    },
    tx::Txid,
};

/// Transactions that are read at the same time with their bodies or slots: with the largest inline bodies 64 MiB.
const WHOLE_AT_A_TIME: usize = 64;
/// Transactions that are read at the same time without bodies and slots.
const MASTERS_AT_A_TIME: usize = 1_024;
/// Largest body in the blob store that a batch returns, bytes.
const LARGEST_BODY: u64 = 4 << 20;
/// Most pages besides the master of a transaction whose outputs a batch returns.
const MOST_PAGES: u32 = 1;

/// Keys of a batch of transactions.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TransactionsRequest {
    /// Txids, 64 hexadecimal digits each.
    txids: Vec<String>,
}

/// Answer to one key of a batch: a transaction, `null` for one that the store does not have, or the reason why the key
/// has no answer.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum TransactionAnswer {
    /// The selected fields of the transaction.
    #[schema(value_type = TransactionData)]
    Found(serde_json::Value),
    /// The store has no record of the transaction.
    Unknown,
    /// The reason why the transaction could not be read.
    Failed {
        /// Key as the request has it.
        txid: String,
        /// Reason as a problem document.
        error: Problem,
    },
}

/// Answers of a batch, in the order of the keys.
#[derive(Debug, Serialize, ToSchema)]
pub struct TransactionsAnswer {
    /// Answers, one for each key.
    transactions: Vec<TransactionAnswer>,
}

/// Read many transactions, with one batch of reads for their masters.
///
/// The answer has one entry for each key, in the order of the keys. The binary form (`application/octet-stream`) takes
/// 32 bytes a key, always returns the data of the master, and with `fields=txInpoints` or `fields=tx` a part of the
/// body; `schemas/api-batches.md` describes the records.
#[utoipa::path(
    post,
    path = "/v1/transactions:batch",
    tag = "transactions",
    params(FieldParams),
    request_body(content((TransactionsRequest = "application/json"), (Vec<u8> = "application/octet-stream"))),
    responses(
        (
            status = 200,
            description = "One answer for each key",
            content((TransactionsAnswer = "application/json"), (Vec<u8> = "application/octet-stream"))
        ),
        (status = 400, description = "Malformed body or field", body = Problem),
        (status = 413, description = "Too many keys, or a body that is too large", body = Problem),
        (status = 415, description = "Another media type", body = Problem),
        (status = 503, description = "The store does not answer", body = Problem),
    )
)]
pub async fn post_transactions_batch(
    State(context): State<ApiContext>,
    Params(params): Params<FieldParams>,
    headers: HeaderMap,
    LimitedBody(body): LimitedBody,
) -> Result<Response, Problem> {
    let fields = SelectedFields::parse(params.fields.as_deref())?;
    let store = context.store()?;
    if media_type(&headers).as_deref() == Some(OCTET_STREAM) {
        let txids = binary::decode_txids(&body).map_err(|error| Problem::bad_request(error.to_string()))?;
        check_count(&context, txids.len())?;
        let keys = txids.into_iter().map(|txid| (txid.to_string(), Ok(txid))).collect();
        return BatchReader { context, store, fields, form: BatchForm::Binary, keys }.respond().await;
    }
    require_media_type(&headers, JSON)?;
    let TransactionsRequest { txids: keys } = parse_json(&body)?;
    check_count(&context, keys.len())?;
    let parse_key = |key: String| {
        let parsed = parse(&key);
        (key, parsed)
    };
    let keys = keys.into_iter().map(parse_key).collect();
    BatchReader { context, store, fields, form: BatchForm::Json, keys }.respond().await
}

/// Forms of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BatchForm {
    Json,
    Binary,
}

/// A key as given, with the txid or the reason why the key is none.
type BatchKey = (String, Result<Txid, Problem>);

/// Reads the transactions of a batch, a part at a time.
struct BatchReader {
    context: ApiContext,
    store: StateStore,
    fields: SelectedFields,
    form: BatchForm,
    keys: Vec<BatchKey>,
}

/// The reader of a batch with the keys that are not read yet, and the right to stream.
type BatchState = (BatchReader, vec::IntoIter<BatchKey>, OwnedSemaphorePermit);

/// Answer of the store to one key.
type Found = Result<Option<StoredTransaction>, Problem>;

impl BatchReader {
    /// Reads the first part, so that a store that does not answer is answered with 503, and streams the others.
    async fn respond(mut self) -> Result<Response, Problem> {
        let at_a_time = if self.fields.parts() == ReadFields::default() { MASTERS_AT_A_TIME } else { WHOLE_AT_A_TIME };
        let mut keys = std::mem::take(&mut self.keys).into_iter();
        let first = self.read_part(&mut keys, at_a_time).await?;
        let content_type = match self.form {
            BatchForm::Json => JSON,
            BatchForm::Binary => OCTET_STREAM,
        };
        let mut head = self.open().to_vec();
        head.extend(self.encode(first, true));
        if keys.len() == 0 {
            head.extend_from_slice(self.close());
            return Ok(([(header::CONTENT_TYPE, content_type)], head).into_response());
        }
        // A slow reader of the answer keeps a part of it in memory.
        let permit = self.context.limits.open_stream()?;
        let next = move |(reader, mut keys, permit): BatchState| async move {
            if keys.len() == 0 {
                return None;
            }
            let part = reader.read_part(&mut keys, at_a_time).await;
            let encoded = part.map(|part| {
                let mut encoded = reader.encode(part, false);
                if keys.len() == 0 {
                    encoded.extend_from_slice(reader.close());
                }
                Bytes::from(encoded)
            });
            let encoded = encoded.map_err(|problem| {
                tracing::warn!(problem = problem.detail, "http: batch cut short");
                std::io::Error::other(problem.detail)
            });
            Some((encoded, (reader, keys, permit)))
        };
        let head = stream::iter([Ok(Bytes::from(head))]);
        let body = Body::from_stream(futures_util::StreamExt::chain(head, stream::unfold((self, keys, permit), next)));
        Ok(([(header::CONTENT_TYPE, content_type)], body).into_response())
    }

    /// Reads the next keys.
    async fn read_part(
        &self,
        keys: &mut vec::IntoIter<BatchKey>,
        at_a_time: usize,
    ) -> Result<Vec<(String, Found)>, Problem> {
        let part: Vec<BatchKey> = keys.take(at_a_time).collect();
        let txids: Vec<Txid> = part.iter().filter_map(|(_, txid)| txid.as_ref().ok().copied()).collect();
        let found = self.context.limits.bound_batch(self.read(&txids)).await?;
        refuse_unavailable(&found)?;
        let mut found = found.into_iter();
        let answer = |(key, txid): BatchKey| {
            let found = txid.and_then(|_| found.next().unwrap_or_else(|| unreachable!("one answer for one txid")));
            (key, found)
        };
        Ok(part.into_iter().map(answer).collect())
    }

    /// Reads transactions; one that cannot be read, or is too large for a batch, has an error of its own.
    async fn read(&self, txids: &[Txid]) -> Vec<Found> {
        let (reader, parts) = (TxReader::of(&self.store), self.fields.parts());
        let masters = reader.get_many(txids, ReadFields::default()).await;
        let masters = masters.into_iter().map(|found| found.map_err(Problem::from));
        if parts == ReadFields::default() {
            return masters.collect();
        }
        let refusal = |found: Found| match found {
            Ok(stored) => stored.and_then(|stored| find_excess(&stored, parts)),
            Err(problem) => Some(problem),
        };
        let refusals: Vec<Option<Problem>> = masters.map(refusal).collect();
        let whole: Vec<Txid> =
            txids.iter().zip(&refusals).filter(|(_, refusal)| refusal.is_none()).map(|(txid, _)| *txid).collect();
        let mut whole = reader.get_many(&whole, parts).await.into_iter();
        let answer = |refusal: Option<Problem>| match refusal {
            Some(problem) => Err(problem),
            None => Ok(whole.next().unwrap_or_else(|| unreachable!("one answer for one txid"))?),
        };
        refusals.into_iter().map(answer).collect()
    }

    fn open(&self) -> &'static [u8] {
        if self.form == BatchForm::Json { b"{\"transactions\":[" } else { b"" }
    }

    fn close(&self) -> &'static [u8] {
        if self.form == BatchForm::Json { b"]}" } else { b"" }
    }

    fn encode(&self, part: Vec<(String, Found)>, is_first: bool) -> Vec<u8> {
        let mut encoded = Vec::new();
        for (index, (key, found)) in part.into_iter().enumerate() {
            match self.form {
                BatchForm::Binary => self.encode_record(&found, &mut encoded),
                BatchForm::Json => {
                    if index > 0 || !is_first {
                        encoded.push(b',');
                    }
                    let answer = self.answer(key, found);
                    // Writing into memory fails only for a value that is no JSON.
                    serde_json::to_writer(&mut encoded, &answer).unwrap_or_else(|error| unreachable!("{error}"));
                }
            }
        }
        encoded
    }

    fn encode_record(&self, found: &Found, to: &mut Vec<u8>) {
        let found = found.as_ref().map(Option::as_ref);
        binary::encode_transaction(found, self.fields.has("txInpoints"), self.fields.has("tx"), to);
    }

    fn answer(&self, key: String, found: Found) -> TransactionAnswer {
        match found {
            Ok(None) => TransactionAnswer::Unknown,
            Ok(Some(stored)) => match self.fields.view(&stored) {
                Ok(view) => TransactionAnswer::Found(view),
                Err(error) => TransactionAnswer::Failed { txid: key, error: ReadError::from(error).into() },
            },
            Err(error) => TransactionAnswer::Failed { txid: key, error },
        }
    }
}

/// Returns the refusal of a transaction that is too large for a batch.
fn find_excess(stored: &StoredTransaction, parts: ReadFields) -> Option<Problem> {
    let master = &stored.master;
    let is_external = matches!(master.body(), Some(StoredBody::External(_)));
    if parts.body && is_external && master.extended_size > LARGEST_BODY {
        let detail = format!(
            "the body has {} bytes; a batch returns bodies of at most {LARGEST_BODY}: ask for /v1/transactions/{}/raw",
            master.extended_size, master.txid
        );
        return Some(Problem::new(ProblemKind::TooLarge, detail));
    }
    if parts.slots && master.extra_pages() > MOST_PAGES {
        let detail = format!(
            "the transaction has {} pages; a batch returns the outputs of at most {}: ask for /v1/transactions/{}",
            master.extra_pages().saturating_add(1),
            MOST_PAGES + 1,
            master.txid
        );
        return Some(Problem::new(ProblemKind::TooLarge, detail));
    }
    None
}
