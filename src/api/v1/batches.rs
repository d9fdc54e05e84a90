//! `/v1/transactions:batch`: many transactions in one request, read and sent a part at a time.

use std::{collections::VecDeque, sync::Arc, vec};

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
    context::{ApiContext, compute, refuse_unavailable},
    memory::{estimate_answer, is_external},
    model::{SelectedFields, TransactionData},
    outputs::check_count,
    params::{BoundedList, JSON, OCTET_STREAM, Params, media_type, parse, parse_json, require_media_type},
    transactions::FieldParams,
};
use crate::{
    api::{
        byte_budget::RequestBytes,
        limits::LimitedBody,
        problem::{Problem, ProblemKind},
    },
    store::{
        StateStore,
        read::{ReadError, ReadFields, StoredTransaction, TxReader},
    },
    tx::Txid,
};

/// Memory of the transactions that are read and answered together, bytes. One transaction can need more.
const PART_BYTES: u64 = 16 << 20;
/// Memory of an answer to a key without a transaction, bytes.
const ABSENT_BYTES: u64 = 512;
/// Transactions whose masters are read at the same time.
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
    #[schema(value_type = Vec<String>)]
    txids: BoundedList<String>,
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
    memory: RequestBytes,
    LimitedBody(body): LimitedBody,
) -> Result<Response, Problem> {
    let fields = SelectedFields::parse(params.fields.as_deref())?;
    let store = context.store()?;
    if media_type(&headers).as_deref() == Some(OCTET_STREAM) {
        let txids = binary::decode_txids(&body).map_err(|error| Problem::bad_request(error.to_string()))?;
        check_count(&context, txids.len())?;
        let keys = txids.into_iter().map(|txid| (txid.to_string(), Ok(txid))).collect();
        return BatchReader::new(context, store, fields, BatchForm::Binary, keys).respond(memory).await;
    }
    require_media_type(&headers, JSON)?;
    let TransactionsRequest { txids: BoundedList(keys) } = parse_json(&body)?;
    check_count(&context, keys.len())?;
    let parse_key = |key: String| {
        let parsed = parse(&key);
        (key, parsed)
    };
    let keys = keys.into_iter().map(parse_key).collect();
    BatchReader::new(context, store, fields, BatchForm::Json, keys).respond(memory).await
}

/// Forms of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BatchForm {
    Json,
    Binary,
}

/// A key as given, with the txid or the reason why the key is none.
type BatchKey = (String, Result<Txid, Problem>);

/// A key with the answer of the store.
type FoundKey = (String, Result<Option<StoredTransaction>, Problem>);

/// Reads the transactions of a batch, a part at a time.
struct BatchReader {
    context: ApiContext,
    store: StateStore,
    encoder: Arc<PartEncoder>,
    /// Keys whose masters are not read yet.
    keys: vec::IntoIter<BatchKey>,
    /// Keys whose masters are read, without bodies and slots.
    masters: VecDeque<FoundKey>,
    /// Bytes that the request has reserved for its largest part.
    reserved: u64,
}

/// The reader of a batch, the bytes of the request, and the right to stream.
type BatchState = (BatchReader, RequestBytes, OwnedSemaphorePermit);

impl BatchReader {
    fn new(
        context: ApiContext,
        store: StateStore,
        fields: SelectedFields,
        form: BatchForm,
        keys: Vec<BatchKey>,
    ) -> Self {
        let (keys, encoder) = (keys.into_iter(), Arc::new(PartEncoder { fields, form }));
        BatchReader { context, store, encoder, keys, masters: VecDeque::new(), reserved: 0 }
    }

    /// Reads the first part, so that a store that does not answer is answered with 503, and streams the others.
    async fn respond(mut self, memory: RequestBytes) -> Result<Response, Problem> {
        let missing = self.prepare_part().await?;
        memory.reserve(missing)?;
        let first = self.read_part().await?;
        let content_type = match self.encoder.form {
            BatchForm::Json => JSON,
            BatchForm::Binary => OCTET_STREAM,
        };
        let mut head = self.encoder.open().to_vec();
        head.extend(self.encode(first, true, &memory).await);
        if self.is_done() {
            head.extend_from_slice(self.encoder.close());
            return Ok(([(header::CONTENT_TYPE, content_type)], head).into_response());
        }
        // A slow reader of the answer keeps a part of it in memory.
        let permit = self.context.limits.open_stream()?;
        let next = move |(mut reader, memory, permit): BatchState| async move {
            if reader.is_done() {
                return None;
            }
            let encoded = reader.next_part(&memory).await.map_err(|problem| {
                tracing::warn!(problem = problem.detail, "http: batch cut short");
                std::io::Error::other(problem.detail)
            });
            Some((encoded, (reader, memory, permit)))
        };
        let head = stream::iter([Ok(Bytes::from(head))]);
        let parts = stream::unfold((self, memory, permit), next);
        let body = Body::from_stream(futures_util::StreamExt::chain(head, parts));
        Ok(([(header::CONTENT_TYPE, content_type)], body).into_response())
    }

    fn is_done(&self) -> bool {
        self.keys.len() == 0 && self.masters.is_empty()
    }

    /// Reads and encodes the next part of a stream.
    async fn next_part(&mut self, memory: &RequestBytes) -> Result<Bytes, Problem> {
        let missing = self.prepare_part().await?;
        memory.reserve_within(missing, self.context.limits.timeout).await?;
        let part = self.read_part().await?;
        let mut encoded = self.encode(part, false, memory).await;
        if self.is_done() {
            encoded.extend_from_slice(self.encoder.close());
        }
        Ok(encoded.into())
    }

    /// Reads the masters of the next keys, unless some are left, and returns the bytes that the next part needs beyond
    /// those that earlier parts have reserved.
    async fn prepare_part(&mut self) -> Result<u64, Problem> {
        if self.masters.is_empty() {
            self.read_masters().await?;
        }
        let part = self.masters.iter().take(self.part_len());
        let needed: u64 = part.map(|(_, found)| self.estimate(found)).sum();
        let missing = needed.saturating_sub(self.reserved);
        self.reserved += missing;
        Ok(missing)
    }

    async fn read_masters(&mut self) -> Result<(), Problem> {
        let part: Vec<BatchKey> = self.keys.by_ref().take(MASTERS_AT_A_TIME).collect();
        let txids: Vec<Txid> = part.iter().filter_map(|(_, txid)| txid.as_ref().ok().copied()).collect();
        let reader = TxReader::of(&self.store);
        let found = self.context.limits.bound_batch(reader.get_many(&txids, ReadFields::default())).await?;
        let found: Vec<Result<_, Problem>> = found.into_iter().map(|found| Ok(found?)).collect();
        refuse_unavailable(&found)?;
        let (mut found, parts) = (found.into_iter(), self.encoder.fields.parts());
        let answer = |(key, txid): BatchKey| {
            let found = txid.and_then(|_| found.next().unwrap_or_else(|| unreachable!("one answer for one txid")));
            let excess = |stored: &StoredTransaction| find_excess(stored, parts);
            match found.as_ref().ok().and_then(Option::as_ref).and_then(excess) {
                Some(refusal) => (key, Err(refusal)),
                None => (key, found),
            }
        };
        self.masters.extend(part.into_iter().map(answer));
        Ok(())
    }

    /// Returns the number of keys of the next part: one at least, and no more than the memory of a part holds.
    fn part_len(&self) -> usize {
        // Four streams at least have room for their parts.
        let most = PART_BYTES.min(self.context.limits.bytes.limit() / 4);
        let mut bytes = 0;
        let fits = |(_, found): &&FoundKey| {
            bytes += self.estimate(found);
            bytes <= most
        };
        self.masters.iter().take_while(fits).count().max(1)
    }

    fn estimate(&self, found: &Result<Option<StoredTransaction>, Problem>) -> u64 {
        let stored = found.as_ref().ok().and_then(Option::as_ref);
        stored.map_or(ABSENT_BYTES, |stored| estimate_answer(&stored.master, &self.encoder.fields))
    }

    /// Reads what the fields need besides the masters. A transaction that cannot be read has an error of its own.
    async fn read_part(&mut self) -> Result<Vec<FoundKey>, Problem> {
        let len = self.part_len().min(self.masters.len());
        let mut part: Vec<FoundKey> = self.masters.drain(..len).collect();
        let parts = self.encoder.fields.parts();
        if parts == ReadFields::default() {
            return Ok(part);
        }
        let txid = |(_, found): &FoundKey| Some(found.as_ref().ok()?.as_ref()?.master.txid);
        let txids: Vec<Txid> = part.iter().filter_map(txid).collect();
        let read = self.context.limits.bound_batch(TxReader::of(&self.store).get_many(&txids, parts)).await?;
        let read: Vec<Result<_, Problem>> = read.into_iter().map(|read| Ok(read?)).collect();
        if read.len() == part.len() {
            refuse_unavailable(&read)?;
        }
        let found = part.iter_mut().filter(|key| txid(key).is_some());
        found.zip(read).for_each(|((_, found), read)| *found = read);
        Ok(part)
    }

    /// Encodes a part on a thread of its own, if the part is large.
    async fn encode(&self, part: Vec<FoundKey>, is_first: bool, memory: &RequestBytes) -> Vec<u8> {
        let bytes = part.iter().map(|(_, found)| self.estimate(found)).sum();
        let encoder = self.encoder.clone();
        compute(memory, bytes, move || encoder.encode(part, is_first)).await
    }
}

/// Encoder of the parts of an answer.
struct PartEncoder {
    fields: SelectedFields,
    form: BatchForm,
}

impl PartEncoder {
    fn open(&self) -> &'static [u8] {
        if self.form == BatchForm::Json { b"{\"transactions\":[" } else { b"" }
    }

    fn close(&self) -> &'static [u8] {
        if self.form == BatchForm::Json { b"]}" } else { b"" }
    }

    fn encode(&self, part: Vec<FoundKey>, is_first: bool) -> Vec<u8> {
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

    fn encode_record(&self, found: &Result<Option<StoredTransaction>, Problem>, to: &mut Vec<u8>) {
        let found = found.as_ref().map(Option::as_ref);
        binary::encode_transaction(found, self.fields.has("txInpoints"), self.fields.has("tx"), to);
    }

    fn answer(&self, key: String, found: Result<Option<StoredTransaction>, Problem>) -> TransactionAnswer {
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
    if parts.body && is_external(master) && master.extended_size > LARGEST_BODY {
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
