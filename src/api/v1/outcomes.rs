//! `GET /v1/outcomes`: the outcomes of transactions and commands, as server-sent events.

use std::{convert::Infallible, time::Duration};

use axum::{
    extract::State,
    http::HeaderMap,
    response::{
        IntoResponse, Response,
        sse::{self, KeepAlive, Sse},
    },
};
use futures_util::stream;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;
use utoipa::IntoParams;

use super::{context::ApiContext, params::Params};
use crate::{
    api::problem::Problem,
    client::outcome_feed::{FeedPosition, FollowError, OutcomeMessage, OutcomeReader},
    event::{Event, OutcomeChange, OutcomeKind, to_json},
    tx::Txid,
};

/// Pause between two comments on a quiet stream, which show both sides that the other side is there.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Messages that a filter skips before the stream sends its position.
const POSITION_EVERY: u32 = 1_000;

/// Selection of the outcomes to follow.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct OutcomesParams {
    /// `now` (default), `earliest`, or the id of an event of an earlier stream, after which the stream continues. The
    /// header `Last-Event-ID` has precedence.
    from: Option<String>,
    /// First hexadecimal digits of the txids.
    txid: Option<String>,
    /// Kinds joined by commas: `live`, `mined`, `unmined`, `accepted`, `conflicting`, `refused`, `command`.
    kind: Option<String>,
}

/// Follow the outcomes of transactions and commands, as server-sent events.
///
/// The name of an event is its kind, the data is the event in JSON (`schemas/outcome.md`, `schemas/outcome-batch.md`),
/// and the id is the position after the event: a client that connects again with `Last-Event-ID` misses nothing. An
/// outcome can come more than once. A reader that is too slow is disconnected.
#[utoipa::path(
    get,
    path = "/v1/outcomes",
    tag = "outcomes",
    params(OutcomesParams),
    responses(
        (status = 200, description = "Server-sent events", content_type = "text/event-stream", body = String),
        (status = 400, description = "Malformed parameter", body = Problem),
        (status = 429, description = "Too many open streams", body = Problem),
        (status = 503, description = "The log does not answer", body = Problem),
    )
)]
pub async fn get_outcomes(
    State(context): State<ApiContext>,
    Params(params): Params<OutcomesParams>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let filter = OutcomeFilter::parse(&params)?;
    let last = headers.get("last-event-id").map(|id| id.to_str().map_err(|_| bad_position())).transpose()?;
    let from = last.or(params.from.as_deref()).unwrap_or("now");
    let start = match from {
        "now" => None,
        "earliest" => Some(None),
        id => Some(Some(id.parse::<FeedPosition>().map_err(|_| bad_position())?)),
    };
    let feed = context.outcomes()?;
    let permit = context.limits.open_stream()?;
    let open = async {
        match start {
            None => feed.follow().await.map_err(FollowError::Broker),
            Some(from) => feed.follow_from(from).await,
        }
    };
    let reader = context.limits.bound("the log", open).await?.map_err(|error| match error {
        FollowError::Position(_) => bad_position(),
        FollowError::Broker(error) => Problem::unavailable(error.to_string()),
    })?;
    let scan = if reader.is_catching_up() { Some(context.limits.open_scan()?) } else { None };
    let stream = OutcomeStream { reader, filter, skipped: 0, scan, _permit: permit };
    let events = stream::unfold(stream, |mut stream| async move {
        stream.next().await.map(|event| (Ok::<_, Infallible>(event), stream))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response())
}

fn bad_position() -> Problem {
    Problem::bad_request("from: write `now`, `earliest`, or the id of an event of this stream")
}

/// A stream of outcomes to one client.
struct OutcomeStream {
    reader: OutcomeReader,
    filter: OutcomeFilter,
    /// Messages that the filter has skipped since the last event.
    skipped: u32,
    /// Right to read the log from an earlier offset, until the stream follows the present.
    scan: Option<OwnedSemaphorePermit>,
    _permit: OwnedSemaphorePermit,
}

impl OutcomeStream {
    /// Returns the next event; `None`: the client is disconnected, and continues after its last event.
    async fn next(&mut self) -> Option<sse::Event> {
        loop {
            let message = match self.reader.next().await {
                Ok(message) => message,
                Err(error) => {
                    tracing::warn!(%error, "http: stream of outcomes ended");
                    return None;
                }
            };
            if !self.reader.is_catching_up() {
                self.scan = None;
            }
            let id = || self.reader.position().to_string();
            if let Some((kind, json)) = self.filter.select(&message) {
                self.skipped = 0;
                return Some(sse::Event::default().event(kind).id(id()).data(json));
            }
            self.skipped += 1;
            if self.skipped >= POSITION_EVERY {
                self.skipped = 0;
                return Some(sse::Event::default().id(id()).comment("position"));
            }
        }
    }
}

/// Selects outcomes by kind and txid. Pure.
struct OutcomeFilter {
    /// First digits of the txids, lower case; empty: every transaction.
    prefix: String,
    /// Kinds to select; `None`: all.
    kinds: Option<Vec<&'static str>>,
}

/// Names of the kinds, as events of the stream.
const KINDS: [&str; 7] = ["live", "mined", "unmined", "accepted", "conflicting", "refused", "command"];

impl OutcomeFilter {
    fn parse(params: &OutcomesParams) -> Result<Self, Problem> {
        let prefix = params.txid.clone().unwrap_or_default().to_ascii_lowercase();
        if prefix.len() > 64 || !prefix.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(Problem::bad_request("txid: write the first hexadecimal digits of a txid, at most 64"));
        }
        let find = |name: &str| {
            KINDS.iter().copied().find(|kind| *kind == name).ok_or_else(|| {
                Problem::bad_request(format!("kind: unknown kind `{name}`; known: {}", KINDS.join(", ")))
            })
        };
        let kinds = params.kind.as_deref().map(|kinds| kinds.split(',').map(find).collect()).transpose()?;
        Ok(OutcomeFilter { prefix, kinds })
    }

    fn has_kind(&self, kind: &str) -> bool {
        self.kinds.as_ref().is_none_or(|kinds| kinds.contains(&kind))
    }

    fn has_txid(&self, txid: &Txid) -> bool {
        self.prefix.is_empty() || txid.to_string().starts_with(&self.prefix)
    }

    /// Returns the kind and the JSON of a selected message. A batch keeps only the selected transactions.
    fn select(&self, message: &OutcomeMessage) -> Option<(&'static str, String)> {
        let event = Event::decode(&message.message.payload).ok()?;
        match &event {
            Event::Outcome(outcome) => {
                let kind = match outcome.kind {
                    OutcomeKind::Accepted => "accepted",
                    OutcomeKind::Conflicting { .. } => "conflicting",
                    OutcomeKind::Refused { .. } => "refused",
                    OutcomeKind::Command { .. } => "command",
                };
                (self.has_kind(kind) && self.has_txid(&outcome.txid)).then(|| (kind, to_json(&event)))
            }
            Event::OutcomeBatch(batch) => {
                let kind = match batch.change {
                    OutcomeChange::Live => "live",
                    OutcomeChange::Mined { .. } => "mined",
                    OutcomeChange::Unmined { .. } => "unmined",
                };
                if !self.has_kind(kind) {
                    return None;
                }
                if self.prefix.is_empty() {
                    return Some((kind, to_json(&event)));
                }
                let selected: Vec<Value> =
                    batch.txids.iter().filter(|txid| self.has_txid(txid)).map(|txid| txid.to_string().into()).collect();
                if selected.is_empty() {
                    return None;
                }
                let mut json: Value = serde_json::from_str(&to_json(&event)).ok()?;
                *json.get_mut("txids")? = Value::Array(selected);
                Some((kind, json.to_string()))
            }
            _ => None,
        }
    }
}
