//! `/v1/conflicts` and `/v1/transactions/{txid}/history`: which transactions exclude each other, and what was decided.

use axum::{Json, extract::State};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use utoipa::{IntoParams, ToSchema};

use super::{
    context::ApiContext,
    memory::reserve_body,
    params::{Params, PathParts, parse, unknown_transaction},
};
use crate::{
    api::{byte_budget::RequestBytes, problem::Problem},
    client::history::{HistoryEntry, HistoryPart, HistoryPosition, find_history_start, read_history_part},
    store::{
        queries::{RelatedTxs, StoreQueries},
        read::{ReadFields, TxReader},
    },
    tx::Txid,
};

/// Transactions in each list, by default.
const DEFAULT_LIMIT: usize = 100;
/// Transactions in each list, at most.
const LARGEST_LIMIT: usize = 10_000;

/// Memory of a related transaction: its id in the lists of the search, its text, and the text in the answer.
const RELATED_BYTES: u64 = 512;
/// Copies of the body of the transaction: the body, and the outpoints that it spends.
const BODY_COPIES: u64 = 2;

/// Memory of a part of a history: the messages that are read at the same time, and the entries.
const HISTORY_BYTES: u64 = 1 << 20;

/// Bound of the lists of related transactions.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ConflictParams {
    /// Most transactions in each list: 1 to 10,000, by default 100.
    limit: Option<usize>,
}

/// Transactions in conflict with one.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConflictsAnswer {
    /// Conflicting descendants of the transaction.
    conflicting_descendants: RelatedView,
    /// Transactions that would become conflicting if this transaction won; `null`: the store has no body of the
    /// transaction.
    counter_conflicting: Option<RelatedView>,
}

/// Related transactions, nearest first.
#[derive(Debug, Serialize, ToSchema)]
pub struct RelatedView {
    /// Txids of the transactions.
    txids: Vec<String>,
    /// More transactions exist than the limit permits.
    more: bool,
}

impl From<RelatedTxs> for RelatedView {
    fn from(related: RelatedTxs) -> Self {
        RelatedView { txids: related.txids.iter().map(ToString::to_string).collect(), more: related.more }
    }
}

/// Place at which the history begins.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct HistoryParams {
    /// Cursor of the answer before, or `earliest`: the start of the logs. By default the history begins an hour before
    /// the event of the transaction.
    cursor: Option<String>,
}

/// History of a transaction.
#[derive(Debug, Serialize, ToSchema)]
pub struct HistoryView {
    /// Contests, decisions and commands in the order of the chain log; empty for a transaction without conflicts.
    history: Vec<HistoryLine>,
    /// Cursor with which the history continues; `null`: the logs were read to their ends.
    cursor: Option<String>,
}

/// A chain event or a decision that concerns a transaction.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct HistoryLine {
    /// Offset in the chain log of the event, or of the event that the decision belongs to.
    chain_offset: u64,
    /// Step of the decision; `null`: the line is the event itself.
    step: Option<u32>,
    /// Time of the message, milliseconds since the epoch.
    timestamp_ms: i64,
    /// Event or decision in words.
    what: String,
}

impl From<HistoryEntry> for HistoryLine {
    fn from(entry: HistoryEntry) -> Self {
        let HistoryEntry { chain_offset, step, timestamp_ms, what } = entry;
        HistoryLine { chain_offset, step, timestamp_ms, what }
    }
}

/// Read which transactions are in conflict with one.
#[utoipa::path(
    get,
    path = "/v1/conflicts/{txid}",
    tag = "conflicts",
    params(("txid" = String, Path, description = "Id of the transaction"), ConflictParams),
    responses(
        (status = 200, description = "The transactions in conflict", body = ConflictsAnswer),
        (status = 400, description = "Malformed txid or limit", body = Problem),
        (status = 404, description = "The store has no record of the transaction", body = Problem),
        (status = 503, description = "The store does not answer", body = Problem),
    )
)]
pub async fn get_conflicts(
    State(context): State<ApiContext>,
    PathParts(txid): PathParts<String>,
    Params(params): Params<ConflictParams>,
    memory: RequestBytes,
) -> Result<Json<ConflictsAnswer>, Problem> {
    let txid: Txid = parse(&txid)?;
    let limit = params.limit.unwrap_or(DEFAULT_LIMIT);
    if !(1..=LARGEST_LIMIT).contains(&limit) {
        return Err(Problem::bad_request(format!("limit: {limit} is not in 1 to {LARGEST_LIMIT}")));
    }
    let store = context.store()?;
    let read = async {
        if reserve_body(&store, &memory, txid, BODY_COPIES).await?.is_none() {
            return Err(unknown_transaction(txid));
        }
        memory.reserve(2 * limit as u64 * RELATED_BYTES)?;
        let queries = StoreQueries::of(&store);
        let descendants = queries.conflicting_descendants(txid, limit).await?;
        let counter = queries.counter_conflicting(txid, limit).await?;
        Ok(ConflictsAnswer {
            conflicting_descendants: descendants.into(),
            counter_conflicting: counter.map(RelatedView::from),
        })
    };
    Ok(Json(context.bound_store(read).await??))
}

/// Read the contests, decisions and commands of a transaction.
///
/// The chain log and the decisions are read from the time of the transaction's event on, for `http.timeout_ms` at the
/// most. The answer has a cursor where the logs go on.
#[utoipa::path(
    get,
    path = "/v1/transactions/{txid}/history",
    tag = "conflicts",
    params(("txid" = String, Path, description = "Id of the transaction"), HistoryParams),
    responses(
        (status = 200, description = "The history", body = HistoryView),
        (status = 400, description = "Malformed txid or cursor", body = Problem),
        (status = 404, description = "The store has no record of the transaction", body = Problem),
        (status = 429, description = "Too many open streams", body = Problem),
        (status = 503, description = "The store or the log does not answer", body = Problem),
    )
)]
pub async fn get_history(
    State(context): State<ApiContext>,
    PathParts(txid): PathParts<String>,
    Params(params): Params<HistoryParams>,
    memory: RequestBytes,
) -> Result<Json<HistoryView>, Problem> {
    let part = load_history(&context, parse(&txid)?, params.cursor.as_deref(), &memory).await?;
    let cursor = part.next.as_ref().map(ToString::to_string);
    Ok(Json(HistoryView { history: part.entries.into_iter().map(HistoryLine::from).collect(), cursor }))
}

/// Reads a part of the history of a transaction, within the limits of a scan. `cursor`: `earliest`, or where the part
/// before has ended; `None`: shortly before the event of the transaction.
///
/// # Errors
/// 400 for a malformed cursor; 404 for a transaction without a record; 413 where the request has no room; 429 where
/// other requests read the log, or hold the memory; 503 while the log or the store does not answer.
pub async fn load_history(
    context: &ApiContext,
    txid: Txid,
    cursor: Option<&str>,
    memory: &RequestBytes,
) -> Result<HistoryPart, Problem> {
    let cursor: Option<HistoryPosition> = match cursor {
        Some("earliest") => Some(HistoryPosition::default()),
        cursor => cursor.map(parse_cursor).transpose()?,
    };
    let (store, broker) = (context.store()?, context.log()?.broker.clone());
    let stored = context.bound_store(TxReader::of(&store).get(txid, ReadFields::default())).await??;
    let stored = stored.ok_or_else(|| unknown_transaction(txid))?;
    let created_at = stored.master.master.as_deref().map_or(0, |bins| bins.created_at);
    let _permit = context.limits.open_scan()?;
    memory.reserve(HISTORY_BYTES)?;
    let deadline = Some(Instant::now() + context.limits.timeout);
    let read = async {
        let from = match cursor {
            Some(from) => from,
            None => find_history_start(broker.as_ref(), &context.topics, created_at).await?,
        };
        read_history_part(broker.as_ref(), &context.topics, txid, from, deadline).await
    };
    let part = context.limits.bound_scan("the log", read).await?;
    part.map_err(|error| Problem::unavailable(error.to_string()))
}

fn parse_cursor(text: &str) -> Result<HistoryPosition, Problem> {
    let refuse = |_| Problem::bad_request("cursor: write `earliest`, or the cursor of an answer");
    text.parse().map_err(refuse)
}
