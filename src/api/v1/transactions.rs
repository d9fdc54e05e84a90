//! `/v1/transactions`: the stored data of transactions, and lists.

use axum::{
    Json,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, HeaderValue, header},
    response::{IntoResponse, Response},
};
use futures_util::stream;
use serde::{Deserialize, Serialize};
use tokio::sync::OwnedSemaphorePermit;
use utoipa::{IntoParams, ToSchema};

use super::{
    context::{ApiContext, compute},
    memory::{PIECES_BYTES, estimate_answer, estimate_body, is_external, reserve_body},
    model::{AmountAndScript, SelectedFields, TransactionData},
    params::{NoParams, OCTET_STREAM, Params, PathParts, parse, unknown_transaction},
};
use crate::{
    api::{
        access::{Role, StreamPermission},
        byte_budget::RequestBytes,
        limits::HttpLimits,
        problem::{Problem, ProblemKind},
    },
    blob::TxPieces,
    engine::ErrorKind,
    record::Reason,
    store::{
        StateStore,
        previous_outputs::GROUP_BYTES,
        raw::RawTransaction,
        read::{ReadError, ReadFields, TxReader},
        tx_list::{ConflictingEntry, InvalidCursor, TxList, TxListCursor, TxListEntry, TxSelection},
    },
    tx::{Transaction, Txid, WireFormat},
};

/// Copies of a body in the answer with the previous outputs: the body, the outputs, and their text twice.
const EXTENDED_COPIES: u64 = 6;

/// Memory of a part of a list: the masters, their lines as values and as text.
const LIST_BYTES: u64 = 512 << 10;
/// Media type of lines of JSON.
const NDJSON: &str = "application/x-ndjson";

/// Fields of a transaction.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct FieldParams {
    /// Fields to return, joined by commas; `*`: all. By default every field but `txInpoints`, `tx` and `spendingData`,
    /// which need the body or every page of the transaction.
    pub fields: Option<String>,
}

/// Format of a raw transaction.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct RawParams {
    /// `standard` (default) or `extended`. A coinbase that came in standard format stays in standard format.
    #[param(value_type = Option<String>)]
    format: Option<FormatName>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum FormatName {
    #[default]
    Standard,
    Extended,
}

/// Outputs that a transaction spends.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PreviousOutputsAnswer {
    /// Outputs, one for each input, in the order of the inputs; empty for a coinbase.
    previous_outputs: Vec<AmountAndScript>,
}

/// Selection of a list of transactions.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListParams {
    /// `true`: transactions that no block of the longest chain lists, without conflicting ones.
    #[serde(default)]
    #[param(required = false, example = true)]
    unmined: bool,
    /// `true`: contested transactions without a verdict, then conflicting ones.
    #[serde(default)]
    #[param(required = false)]
    conflicting: bool,
    /// Greatest height since which an unmined transaction is unmined; by default every height.
    until: Option<u32>,
    /// Cursor of the last line of the list before; by default the list begins at the start.
    cursor: Option<String>,
    /// Most transactions to list; by default all.
    limit: Option<u64>,
}

/// Read the stored data of a transaction.
#[utoipa::path(
    get,
    path = "/v1/transactions/{txid}",
    tag = "transactions",
    params(("txid" = String, Path, description = "Id of the transaction"), FieldParams),
    responses(
        (status = 200, description = "The selected fields", body = TransactionData),
        (status = 400, description = "Malformed txid or field", body = Problem),
        (status = 404, description = "The store has no record of the transaction", body = Problem),
        (status = 503, description = "The store does not answer", body = Problem),
    )
)]
pub async fn get_transaction(
    State(context): State<ApiContext>,
    PathParts(txid): PathParts<String>,
    Params(params): Params<FieldParams>,
    memory: RequestBytes,
) -> Result<Response, Problem> {
    let txid: Txid = parse(&txid)?;
    let fields = SelectedFields::parse(params.fields.as_deref())?;
    let store = context.store()?;
    let reader = TxReader::of(&store);
    let stored = context.bound_store(reader.get(txid, ReadFields::default())).await??;
    let mut stored = stored.ok_or_else(|| unknown_transaction(txid))?;
    let size = estimate_answer(&stored.master, &fields);
    memory.reserve(size)?;
    if fields.parts() != ReadFields::default() {
        let whole = context.bound_store(reader.get(txid, fields.parts())).await??;
        stored = whole.ok_or_else(|| unknown_transaction(txid))?;
    }
    let view = move || Ok::<_, Problem>(Json(fields.view(&stored).map_err(ReadError::from)?).into_response());
    compute(&memory, size, view).await
}

/// Read a transaction as bytes, streamed.
///
/// A body in the blob store is sent piece by piece and verified on the way: damage ends the connection before the last
/// byte.
#[utoipa::path(
    get,
    path = "/v1/transactions/{txid}/raw",
    tag = "transactions",
    params(("txid" = String, Path, description = "Id of the transaction"), RawParams),
    responses(
        (status = 200, description = "The transaction", content_type = "application/octet-stream", body = Vec<u8>),
        (status = 404, description = "The store has no record, or no body, of the transaction", body = Problem),
        (status = 429, description = "Too many open streams", body = Problem),
        (status = 503, description = "The store or the blob store does not answer", body = Problem),
    )
)]
pub async fn get_raw_transaction(
    State(context): State<ApiContext>,
    PathParts(txid): PathParts<String>,
    Params(params): Params<RawParams>,
    memory: RequestBytes,
) -> Result<Response, Problem> {
    let txid: Txid = parse(&txid)?;
    let format = match params.format.unwrap_or_default() {
        FormatName::Standard => WireFormat::Standard,
        FormatName::Extended => WireFormat::Extended,
    };
    let store = context.store()?;
    let reserve = async {
        let stored = TxReader::of(&store).get(txid, ReadFields::default()).await?;
        let stored = stored.ok_or_else(|| unknown_transaction(txid))?;
        memory.reserve(if is_external(&stored.master) { PIECES_BYTES } else { estimate_body(&stored.master) * 2 })
    };
    context.bound_store(reserve).await??;
    let read = context.bound_store(store.read_raw(txid, format)).await??;
    let content_type = (header::CONTENT_TYPE, HeaderValue::from_static(OCTET_STREAM));
    match read {
        RawTransaction::NotFound => Err(unknown_transaction(txid)),
        RawTransaction::NoBody => Err(Problem::not_found(format!("the store has no body of {txid}"))),
        RawTransaction::Inline(bytes) => Ok(([content_type], bytes).into_response()),
        RawTransaction::External { len, pieces } => {
            let permit = context.limits.open_stream()?;
            let mut response = ([content_type], body_of(*pieces, permit)).into_response();
            if let Some(len) = len {
                response.headers_mut().insert(header::CONTENT_LENGTH, len.into());
            }
            Ok(response)
        }
    }
}

/// Makes a body of pieces; the permit ends with the body.
fn body_of(pieces: TxPieces, permit: OwnedSemaphorePermit) -> Body {
    let next = |(mut pieces, permit): (TxPieces, OwnedSemaphorePermit)| async move {
        match pieces.next().await {
            Ok(piece) => piece.map(|piece| (Ok(piece), (pieces, permit))),
            Err(error) => {
                tracing::error!(%error, "http: raw transaction cut short");
                Some((Err(error), (pieces, permit)))
            }
        }
    };
    Body::from_stream(stream::unfold((pieces, permit), next))
}

/// Read the outputs that a transaction spends, in the order of its inputs.
#[utoipa::path(
    get,
    path = "/v1/transactions/{txid}/previous-outputs",
    tag = "transactions",
    params(("txid" = String, Path, description = "Id of the transaction")),
    responses(
        (status = 200, description = "The outputs", body = PreviousOutputsAnswer),
        (status = 404, description = "The store has no record, or no body, of the transaction", body = Problem),
        (status = 409, description = "A previous output is not in the store", body = Problem),
        (status = 503, description = "The store does not answer", body = Problem),
    )
)]
pub async fn get_previous_outputs(
    State(context): State<ApiContext>,
    PathParts(txid): PathParts<String>,
    Params(NoParams {}): Params<NoParams>,
    memory: RequestBytes,
) -> Result<Json<PreviousOutputsAnswer>, Problem> {
    let txid: Txid = parse(&txid)?;
    let store = context.store()?;
    let outputs = context.bound_store(previous_outputs_of(&store, txid, &memory)).await??;
    Ok(Json(PreviousOutputsAnswer { previous_outputs: outputs.iter().map(AmountAndScript::from).collect() }))
}

async fn previous_outputs_of(
    store: &StateStore,
    txid: Txid,
    memory: &RequestBytes,
) -> Result<Vec<crate::record::StoredOutput>, Problem> {
    let reader = TxReader::of(store);
    // The extended format names the previous outputs: the answer is as long as the body, and twice that as text.
    reserve_body(store, memory, txid, EXTENDED_COPIES).await?;
    let stored = reader.get(txid, ReadFields { body: true, slots: false }).await?;
    let stored = stored.ok_or_else(|| unknown_transaction(txid))?;
    let Some(crate::record::Body::Transaction(bytes)) = &stored.body else {
        return Err(Problem::not_found(format!("the store has no body of {txid}")));
    };
    let damaged = |error| ReadError::from(crate::store::body::BodyError::Damaged { txid, error });
    let transaction = Transaction::parse(bytes).map_err(damaged)?;
    let parents = reader.group_parents(&transaction, GROUP_BYTES).await?;
    memory.reserve(parents.bytes())?;
    Ok(reader.outputs_of_parents(parents).await?)
}

impl ListParams {
    /// Returns the list that the parameters select.
    ///
    /// # Errors
    /// 400 unless the parameters select one list.
    fn selection(&self) -> Result<TxSelection, Problem> {
        match (self.unmined, self.conflicting) {
            (true, false) => Ok(TxSelection::Unmined { until: self.until.unwrap_or(u32::MAX) }),
            (false, true) if self.until.is_some() => {
                Err(Problem::bad_request("until: only `unmined=true` has heights"))
            }
            (false, true) => Ok(TxSelection::Conflicting),
            _ => Err(Problem::bad_request("name one list: `unmined=true` or `conflicting=true`")),
        }
    }
}

/// List the unmined or the conflicting transactions, one JSON object a line, in no particular order.
///
/// The last field of each line is the cursor with which the list continues after the line.
#[utoipa::path(
    get,
    path = "/v1/transactions",
    tag = "transactions",
    params(ListParams),
    responses(
        (status = 200, description = "Lines of JSON", content_type = "application/x-ndjson", body = ListLine),
        (status = 400, description = "Malformed parameter", body = Problem),
        (status = 429, description = "Too many open streams", body = Problem),
        (status = 503, description = "The store does not answer", body = Problem),
    )
)]
pub async fn list_transactions(
    State(context): State<ApiContext>,
    Params(params): Params<ListParams>,
    headers: HeaderMap,
    memory: RequestBytes,
) -> Result<Response, Problem> {
    let selection = params.selection()?;
    let (store, permit) = (context.store()?, context.limits.open_stream()?);
    let permission = context.access.permit_stream(&headers, Role::Read)?;
    let (list, first) = begin_list(&context, store, selection, params.cursor.as_deref(), &memory).await?;
    let start = ListedLines {
        reserved: list.unread_bytes(),
        list,
        limits: context.limits.clone(),
        memory,
        ready: Some(first),
        left: params.limit.unwrap_or(u64::MAX),
        permission,
        _permit: permit,
    };
    let next = |mut lines: ListedLines| async move {
        match lines.next().await {
            Ok(text) if text.is_empty() => None,
            Ok(text) => Some((Ok(Bytes::from(text)), lines)),
            Err(problem) => {
                tracing::warn!(why = problem.detail, "http: list of transactions cut short");
                Some((Err(std::io::Error::other(problem.detail)), lines))
            }
        }
    };
    let body = Body::from_stream(stream::unfold(start, next));
    Ok(([(header::CONTENT_TYPE, HeaderValue::from_static(NDJSON))], body).into_response())
}

/// Transactions of a list, each with the cursor after itself.
pub type ListPart = Vec<(TxListEntry, TxListCursor)>;

/// Begins a list, or continues the list after a cursor; returns the list with its first part. The request reserves the
/// memory of a part.
///
/// # Errors
/// 400 for a text that is no cursor of this list and this store; 413 or 429 where the request has no room; 503 while
/// the store does not answer.
pub async fn begin_list(
    context: &ApiContext,
    store: StateStore,
    selection: TxSelection,
    cursor: Option<&str>,
    memory: &RequestBytes,
) -> Result<(TxList, ListPart), Problem> {
    memory.reserve(LIST_BYTES)?;
    let refuse = |error: InvalidCursor| Problem::bad_request(error.to_string());
    let parsed = cursor.map(str::parse::<TxListCursor>).transpose().map_err(refuse)?;
    let mut list = TxList::new(store, selection, parsed).map_err(refuse)?;
    let first = context.bound_store(list.next()).await?.map_err(|error| match (error.kind, cursor) {
        // Only the cursor can make the first part of the list fail for good.
        (ErrorKind::Fatal, Some(cursor)) => refuse(InvalidCursor(cursor.to_owned())),
        _ => Problem::from(error),
    })?;
    memory.reserve(list.unread_bytes())?;
    Ok((list, first))
}

/// The lines of a list, part by part.
struct ListedLines {
    list: TxList,
    /// Greatest number of bytes of the list that the request has reserved.
    reserved: u64,
    memory: RequestBytes,
    limits: HttpLimits,
    /// Part that was read before the answer began.
    ready: Option<ListPart>,
    /// Lines that the limit leaves.
    left: u64,
    permission: StreamPermission,
    _permit: OwnedSemaphorePermit,
}

impl ListedLines {
    /// Returns the lines of the next part; empty at the end.
    async fn next(&mut self) -> Result<String, Problem> {
        if self.permission.is_revoked() {
            return Err(Problem::new(ProblemKind::Unauthorized, "the token was revoked"));
        }
        let found = match self.ready.take() {
            Some(found) => found,
            None if self.left == 0 => Vec::new(),
            None => {
                let found = self.limits.bound("the store", self.list.next()).await??;
                let more = self.list.unread_bytes().saturating_sub(self.reserved);
                self.memory.reserve_within(more, self.limits.timeout).await?;
                self.reserved += more;
                found
            }
        };
        let shown = usize::try_from(self.left).unwrap_or(usize::MAX).min(found.len());
        self.left -= shown as u64;
        let line = |(entry, cursor): &(TxListEntry, TxListCursor)| {
            let line = ListLine::new(entry, cursor);
            serde_json::to_string(&line).unwrap_or_else(|error| unreachable!("a view is JSON: {error}")) + "\n"
        };
        Ok(found[..shown].iter().map(line).collect())
    }
}

/// A line of a list.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum ListLine {
    /// A line of the list of unmined transactions.
    Unmined(UnminedView),
    /// A line of the list of conflicting transactions.
    Conflicting(ConflictingView),
}

/// A line of the list of unmined transactions.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct UnminedView {
    /// Id of the transaction.
    txid: String,
    /// Height since which the transaction is unmined.
    unmined_since: u32,
    /// Time of the transaction's event, milliseconds since the epoch.
    created_at: u64,
    /// The transaction is half created.
    creating: bool,
    /// Cursor with which the list continues after this line.
    cursor: String,
}

/// A line of the list of conflicting transactions.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConflictingView {
    /// Id of the transaction.
    txid: String,
    /// Reason of the verdict; `null`: contested, without a verdict yet.
    reason: Option<String>,
    /// Transaction that spends the output instead; `null`: the reason is another one.
    winner: Option<String>,
    /// Time of the transaction's event, milliseconds since the epoch; `null`: the store has the verdict only.
    created_at: Option<u64>,
    /// Height from which the transaction may be pruned; `null`: not known yet.
    delete_at_height: Option<u32>,
    /// Cursor with which the list continues after this line.
    cursor: String,
}

impl ListLine {
    fn new(entry: &TxListEntry, cursor: &TxListCursor) -> Self {
        let cursor = cursor.to_string();
        match entry {
            TxListEntry::Unmined(unmined) => ListLine::Unmined(UnminedView {
                txid: unmined.txid.to_string(),
                unmined_since: unmined.unmined_since,
                created_at: unmined.created_at,
                creating: unmined.creating,
                cursor,
            }),
            TxListEntry::Conflicting(ConflictingEntry { txid, reason, created_at, delete_at_height }) => {
                ListLine::Conflicting(ConflictingView {
                    txid: txid.to_string(),
                    reason: reason.map(|reason| reason.to_string()),
                    winner: reason.and_then(Reason::winner).map(|winner| winner.to_string()),
                    created_at: *created_at,
                    delete_at_height: *delete_at_height,
                    cursor,
                })
            }
        }
    }
}
