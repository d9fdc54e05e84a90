//! `/v1/outputs`: whether an output can be spent, and by whom it is.

use std::collections::{BTreeMap, BTreeSet};

use axum::{
    Json,
    body::Bytes,
    extract::State,
    http::{HeaderMap, header},
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{
    binary,
    context::{ApiContext, compute, refuse_unavailable},
    memory::estimate_body,
    model::OutputView,
    params::{
        BoundedList, JSON, OCTET_STREAM, Params, PathParts, media_type, parse, parse_json, parse_number,
        require_media_type,
    },
};
use crate::{
    api::{
        byte_budget::RequestBytes,
        limits::LimitedBody,
        problem::{Problem, ProblemKind},
    },
    record::{Key, SelectedPage, Selection, build::InlineBodies},
    store::{
        StateStore,
        outputs::{OutputOptions, OutputQuery, OutputReader, OutputState},
    },
    tx::{Outpoint, Txid},
};

/// Outputs that are read at the same time with their scripts.
const WITH_OUTPUT_AT_A_TIME: usize = 256;

/// Part of the memory of all requests that the read of one script reserves at most. The length of a script is known
/// only once the script is read: until then the length of its body bounds the script.
const SCRIPT_SHARE: u64 = 4;
/// Least limit of a body in a record that counts, bytes: the default of `store.max_tx_size_in_store`. Records may be
/// older than a smaller limit.
const USUAL_INLINE_BYTES: u64 = 1 << 20;
/// Memory of the scripts that are read together, bytes. One script can need more.
const PART_BYTES: u64 = 16 << 20;
/// Memory of one output in an answer, without its script: the state, its texts and the answer.
const ANSWER_BYTES: u64 = 1_024;
/// Copies of a script in an answer: the bytes, and the text of twice their length, as a value and in the answer.
const SCRIPT_COPIES: u64 = 5;

/// Conditions of a question about outputs.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct OutputParams {
    /// Height of the block that would list the spender; by default the next block after the tip of the store.
    height: Option<u32>,
    /// `true`: with amount and locking script. Default: `true` for one output, `false` for a batch.
    output: Option<bool>,
    /// `true`: with the height of the block that lists the transaction. Default: `false`.
    mined: Option<bool>,
}

/// Keys of a batch of outputs.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OutputsRequest {
    /// Outpoints to read, each `txid:vout`.
    #[schema(value_type = Vec<String>)]
    outpoints: BoundedList<String>,
}

/// Answer to one key of a batch: a state, or the reason why the key has none.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum OutputAnswer {
    /// The state of the output.
    State(OutputView),
    /// The reason why the output could not be read.
    Failed {
        /// Key as the request has it.
        outpoint: String,
        /// Reason as a problem document.
        error: Problem,
    },
}

/// Answers of a batch, in the order of the keys.
#[derive(Debug, Serialize, ToSchema)]
pub struct OutputsAnswer {
    /// Answers, one for each key.
    outputs: Vec<OutputAnswer>,
}

/// Read the state of an output: what a spend would be told, and by whom the output is spent.
///
/// An output that the store does not know has the status `NOT_FOUND`; the answer is 200 all the same.
#[utoipa::path(
    get,
    path = "/v1/outputs/{txid}/{vout}",
    tag = "outputs",
    params(
        ("txid" = String, Path, description = "Id of the transaction"),
        ("vout" = u32, Path, description = "Index of the output"),
        OutputParams,
    ),
    responses(
        (status = 200, description = "State of the output", body = OutputView),
        (status = 400, description = "Malformed txid, vout or parameter", body = Problem),
        (status = 503, description = "The store does not answer", body = Problem),
    )
)]
pub async fn get_output(
    State(context): State<ApiContext>,
    PathParts((txid, vout)): PathParts<(String, String)>,
    Params(params): Params<OutputParams>,
    memory: RequestBytes,
) -> Result<Json<OutputView>, Problem> {
    let outpoint = Outpoint { txid: parse(&txid)?, vout: parse_number("vout", &vout)? };
    let store = context.store()?;
    let options = options(&context, &store, &params, true).await?;
    let state = match read_record(&context, &store, outpoint, options, &memory).await? {
        Some(state) => state,
        None => {
            let mut states = read_batch(&context, &store, &[outpoint], options, &memory).await?;
            states.pop().unwrap_or_else(|| unreachable!("one state for one outpoint"))?
        }
    };
    Ok(Json(OutputView::from(&state)))
}

/// Read the states of many outputs, with one batch of reads.
///
/// The answer has one entry for each key, in the order of the keys. A key that cannot be read has an error of its own.
/// The binary form (`application/octet-stream`) takes 36 bytes a key and is described in `schemas/api-batches.md`.
#[utoipa::path(
    post,
    path = "/v1/outputs:batch",
    tag = "outputs",
    params(OutputParams),
    request_body(content((OutputsRequest = "application/json"), (Vec<u8> = "application/octet-stream"))),
    responses(
        (
            status = 200,
            description = "One answer for each key",
            content((OutputsAnswer = "application/json"), (Vec<u8> = "application/octet-stream"))
        ),
        (status = 400, description = "Malformed body or parameter", body = Problem),
        (status = 413, description = "Too many keys, or a body that is too large", body = Problem),
        (status = 415, description = "Another media type", body = Problem),
        (status = 503, description = "The store does not answer", body = Problem),
    )
)]
pub async fn post_outputs_batch(
    State(context): State<ApiContext>,
    Params(params): Params<OutputParams>,
    headers: HeaderMap,
    memory: RequestBytes,
    LimitedBody(body): LimitedBody,
) -> Result<Response, Problem> {
    let store = context.store()?;
    let options = options(&context, &store, &params, false).await?;
    if media_type(&headers).as_deref() == Some(OCTET_STREAM) {
        let outpoints = binary::decode_outpoints(&body).map_err(|error| Problem::bad_request(error.to_string()))?;
        check_count(&context, outpoints.len())?;
        let states = read_batch(&context, &store, &outpoints, options, &memory).await?;
        let mut encoded = Vec::with_capacity(states.len() * 80);
        states.iter().for_each(|state| binary::encode_output(state, &mut encoded));
        return Ok(([(header::CONTENT_TYPE, OCTET_STREAM)], Bytes::from(encoded)).into_response());
    }
    require_media_type(&headers, JSON)?;
    let OutputsRequest { outpoints: BoundedList(keys) } = parse_json(&body)?;
    check_count(&context, keys.len())?;
    let parsed: Vec<Result<Outpoint, Problem>> = keys.iter().map(|key| parse::<Outpoint>(key)).collect();
    let outpoints: Vec<Outpoint> = parsed.iter().flatten().copied().collect();
    let states = read_batch(&context, &store, &outpoints, options, &memory).await?;
    let bytes = states.iter().map(|state| state.as_ref().map_or(ANSWER_BYTES, answer_bytes)).sum();
    let answer = move || Json(OutputsAnswer { outputs: answer_keys(keys, parsed, states) }).into_response();
    Ok(compute(&memory, bytes, answer).await)
}

/// Answers each key with the next state, or with the reason why the key is none.
fn answer_keys(
    keys: Vec<String>,
    parsed: Vec<Result<Outpoint, Problem>>,
    states: Vec<Result<OutputState, Problem>>,
) -> Vec<OutputAnswer> {
    let mut states = states.into_iter();
    let answer = |(outpoint, parsed): (String, Result<Outpoint, Problem>)| {
        let state = parsed.and_then(|_| {
            let state = states.next().unwrap_or_else(|| unreachable!("one state for one outpoint"));
            Ok(OutputView::from(&state?))
        });
        match state {
            Ok(view) => OutputAnswer::State(view),
            Err(error) => OutputAnswer::Failed { outpoint, error },
        }
    };
    keys.into_iter().zip(parsed).map(answer).collect()
}

/// Returns the memory of one output in an answer.
fn answer_bytes(state: &OutputState) -> u64 {
    ANSWER_BYTES + state.output.as_ref().map_or(0, |output| output.script.len() as u64) * SCRIPT_COPIES
}

/// Reads an output with its script by one read of its record, whose bodies have a limit. `None`: records have no limit
/// that the memory of requests permits, or the output is in the blob store.
async fn read_record(
    context: &ApiContext,
    store: &StateStore,
    outpoint: Outpoint,
    options: OutputOptions,
    memory: &RequestBytes,
) -> Result<Option<OutputState>, Problem> {
    let script_limit = match store.inline() {
        InlineBodies::UpTo(limit) if options.output => limit.max(USUAL_INLINE_BYTES),
        InlineBodies::UpTo(_) | InlineBodies::All => return Ok(None),
    };
    let part = memory.begin_part();
    if script_limit > memory.limit() / SCRIPT_SHARE || part.reserve(script_limit).is_err() {
        return Ok(None);
    }
    let query = OutputQuery { outpoint, hash: None };
    let mut states = context.bound_store(OutputReader::of(store).read_records(&[query], options)).await?;
    let state = states.pop().unwrap_or_else(|| unreachable!("one state for one query"))?;
    if state.is_in_body() {
        return Ok(None);
    }
    drop(part);
    let bytes = answer_bytes(&state);
    if bytes > context.limits.max_body as u64 {
        // The batch of one has the limits and the refusals.
        return Ok(None);
    }
    memory.reserve(bytes)?;
    Ok(Some(state))
}

async fn read_batch(
    context: &ApiContext,
    store: &StateStore,
    outpoints: &[Outpoint],
    options: OutputOptions,
    memory: &RequestBytes,
) -> Result<Vec<Result<OutputState, Problem>>, Problem> {
    let query = |outpoint: &Outpoint| OutputQuery { outpoint: *outpoint, hash: None };
    let queries: Vec<OutputQuery> = outpoints.iter().map(query).collect();
    memory.reserve(queries.len() as u64 * ANSWER_BYTES)?;
    let (mut states, mut bytes) = (Vec::with_capacity(queries.len()), 0);
    let mut unread = &queries[..];
    while !unread.is_empty() {
        let part = memory.begin_part();
        let count = if options.output {
            let (count, needed) = context.limits.bound_batch(plan_scripts(store, unread, memory.limit())).await?;
            part.reserve(needed)?;
            count
        } else {
            unread.len()
        };
        let queries;
        (queries, unread) = unread.split_at(count);
        let read = context.limits.bound_batch(OutputReader::of(store).read(queries, options)).await?;
        let read: Vec<Result<OutputState, Problem>> = read.into_iter().map(|state| Ok(state?)).collect();
        refuse_unavailable(&read)?;
        let scripts = read.iter().flatten().filter_map(|state| Some(state.output.as_ref()?.script.len()));
        let read_bytes = scripts.sum::<usize>();
        memory.reserve(read_bytes as u64 * SCRIPT_COPIES)?;
        bytes += read_bytes;
        if bytes > context.limits.max_body {
            let detail = format!(
                "the scripts of the outputs have more than {} bytes (http.max_body_bytes); ask for fewer outputs",
                context.limits.max_body
            );
            return Err(Problem::new(ProblemKind::TooLarge, detail));
        }
        states.extend(read);
    }
    Ok(states)
}

/// Returns the number of the next outputs whose scripts are read together, and the bytes that the scripts need at most.
/// The masters are read for that: a body is longer than its scripts.
async fn plan_scripts(store: &StateStore, queries: &[OutputQuery], limit: u64) -> (usize, u64) {
    let queries = &queries[..queries.len().min(WITH_OUTPUT_AT_A_TIME)];
    let txids: BTreeSet<Txid> = queries.iter().map(|query| query.outpoint.txid).collect();
    let masters = txids.iter().map(|txid| (Key::master(*txid), Selection::META)).collect();
    let masters = store.read_selected(masters).await;
    // A master that cannot be read fails its own outputs.
    let estimate = |master: Result<Option<SelectedPage>, _>| match master {
        Ok(Some(master)) => estimate_body(&master.page).min(limit / SCRIPT_SHARE),
        Ok(None) | Err(_) => 0,
    };
    let mut estimates: BTreeMap<Txid, u64> = txids.into_iter().zip(masters.into_iter().map(estimate)).collect();
    let (mut count, mut needed) = (0, 0);
    for query in queries {
        // The outputs of one transaction share its body.
        let bytes = estimates.insert(query.outpoint.txid, 0).unwrap_or(0);
        if count > 0 && needed + bytes > PART_BYTES {
            break;
        }
        (count, needed) = (count + 1, needed + bytes);
    }
    (count, needed)
}

/// Refuses a batch of more keys than permitted.
pub fn check_count(context: &ApiContext, count: usize) -> Result<(), Problem> {
    let limit = context.limits.max_batch;
    if count <= limit {
        return Ok(());
    }
    let detail = format!("{count} keys; a batch has at most {limit} (http.max_batch)");
    Err(Problem::new(ProblemKind::TooLarge, detail))
}

async fn options(
    context: &ApiContext,
    store: &StateStore,
    params: &OutputParams,
    output: bool,
) -> Result<OutputOptions, Problem> {
    let height = match params.height {
        Some(height) => height,
        None => context.next_height(store).await?,
    };
    let (output, mined) = (params.output.unwrap_or(output), params.mined.unwrap_or(false));
    Ok(OutputOptions { height: Some(height), output, mined })
}
