//! `GET /v1/outcomes`: the outcomes of transactions and commands, as server-sent events.

use std::{borrow::Cow, convert::Infallible, fmt::Display, time::Duration};

use axum::{
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, header},
    response::{IntoResponse, Response},
};
use futures_util::stream;
use serde::Deserialize;
use tokio::{sync::OwnedSemaphorePermit, time::Instant};
use utoipa::IntoParams;

use super::{context::ApiContext, params::Params};
use crate::{
    api::{
        access::{Role, StreamPermission},
        byte_budget::RequestBytes,
        limits::HttpLimits,
        problem::Problem,
    },
    client::outcome_feed::{FeedPosition, OutcomeContent, OutcomeGap, OutcomeItem, OutcomeMessage, OutcomeReader},
    event::{Event, OutcomeBatch, TxidList, to_json},
    tx::Txid,
};

/// Longest pause between two positions on a stream, which show both sides that the other side is there.
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
/// and the id is the position after the event: a client that connects again with `Last-Event-ID` misses nothing. Ids
/// without an event come first, and every 15 seconds. An outcome can come more than once. Outcomes that the topic no
/// longer has are told by the event `gap`. A reader that is too slow, and one whose token was revoked, gets the event
/// `end` with the reason, and then no more.
#[utoipa::path(
    get,
    path = "/v1/outcomes",
    tag = "outcomes",
    params(
        OutcomesParams,
        ("Last-Event-ID" = Option<String>, Header, description = "Id of the last event; has precedence over `from`"),
    ),
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
    memory: RequestBytes,
) -> Result<Response, Problem> {
    let filter = OutcomeFilter::parse(&params)?;
    let last = headers.get("last-event-id").map(|id| id.to_str().map_err(|_| bad_position())).transpose()?;
    let from = last.or(params.from.as_deref()).unwrap_or("now");
    let start = match from {
        "now" => None,
        "earliest" => Some(None),
        id => Some(Some(id.parse::<FeedPosition>().map_err(|_| bad_position())?)),
    };
    let feed = &context.log()?.outcomes;
    let permit = context.limits.open_stream()?;
    let open = async {
        match start {
            None => feed.follow().await,
            Some(from) => feed.follow_from(from).await,
        }
    };
    let reader = context.limits.bound("the log", open).await?;
    let reader = reader.map_err(|error| Problem::unavailable(error.to_string()))?;
    let scan = if reader.is_catching_up() { Some(context.limits.open_scan()?) } else { None };
    let permission = context.access.permit_stream(&headers, Role::Read)?;
    // The position comes first: a client that gets no outcome knows its place, too. A gap has the position already.
    let position_due = Instant::now() + if reader.has_gap() { KEEP_ALIVE } else { Duration::ZERO };
    let stream = OutcomeStream {
        last_id: reader.position().to_string(),
        reader,
        filter,
        permission,
        skipped: 0,
        position_due,
        has_ended: false,
        memory,
        limits: context.limits.clone(),
        scan,
        _permit: permit,
    };
    Ok(stream.into_response())
}

fn bad_position() -> Problem {
    Problem::bad_request("from: write `now`, `earliest`, or the id of an event of this stream")
}

/// A stream of outcomes to one client.
struct OutcomeStream {
    reader: OutcomeReader,
    filter: OutcomeFilter,
    permission: StreamPermission,
    /// Messages that the filter has skipped since the last event.
    skipped: u32,
    /// Time of the next position without an event.
    position_due: Instant,
    /// Id of the last event that was sent.
    last_id: String,
    /// The client has got its last event.
    has_ended: bool,
    memory: RequestBytes,
    limits: HttpLimits,
    /// Right to read the log from an earlier offset, until the stream follows the present.
    scan: Option<OwnedSemaphorePermit>,
    _permit: OwnedSemaphorePermit,
}

impl OutcomeStream {
    fn into_response(self) -> Response {
        let events = stream::unfold(self, |mut stream| async move {
            stream.next_frame().await.map(|frame| (Ok::<_, Infallible>(frame), stream))
        });
        let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
        (headers, Body::from_stream(events)).into_response()
    }

    /// Returns the bytes of the next event, which count until the client has received them: events wait in the
    /// connection of a slow client long after they have left the ring of outcomes.
    async fn next_frame(&mut self) -> Option<Bytes> {
        let event = self.next().await?;
        let text = event.to_text();
        let part = self.memory.begin_part();
        if let Err(problem) = part.reserve_within(text.len() as u64, self.limits.timeout).await {
            return Some(self.end(&problem.detail, self.last_id.clone()).to_text().into());
        }
        self.last_id = event.id;
        Some(part.keep_until_part_sent(text.into()))
    }

    /// Returns the next event; `None`: the client is disconnected, and continues after its last event.
    async fn next(&mut self) -> Option<StreamEvent> {
        while !self.has_ended {
            let message = tokio::select! {
                biased;
                () = self.permission.until_revoked() => return Some(self.end_here(&"the token was revoked")),
                () = tokio::time::sleep_until(self.position_due) => return Some(self.tell_position()),
                item = self.reader.next() => match item {
                    Ok(OutcomeItem::Message(message)) => message,
                    Ok(OutcomeItem::Gap(gap)) => return Some(self.tell_gap(&gap)),
                    Err(error) => return Some(self.end_here(&error)),
                },
            };
            if !self.reader.is_catching_up() {
                self.scan = None;
            }
            if let Some((kind, json)) = self.filter.select(&message) {
                let json = json.into_owned();
                return Some(self.event(kind, json));
            }
            self.skipped += 1;
            if self.skipped >= POSITION_EVERY {
                return Some(self.tell_position());
            }
        }
        None
    }

    fn event(&mut self, kind: &'static str, data: String) -> StreamEvent {
        StreamEvent { content: Some((kind, data)), ..self.tell_position() }
    }

    /// Returns the position alone. A client keeps the id of such an event, and dispatches nothing.
    fn tell_position(&mut self) -> StreamEvent {
        self.skipped = 0;
        self.position_due = Instant::now() + KEEP_ALIVE;
        StreamEvent { id: self.reader.position().to_string(), content: None }
    }

    fn tell_gap(&mut self, gap: &OutcomeGap) -> StreamEvent {
        tracing::warn!(?gap, "http: stream of outcomes has a gap");
        let data = serde_json::to_string(gap).unwrap_or_else(|error| unreachable!("a gap is JSON: {error}"));
        self.event("gap", data)
    }

    /// Returns the last event of a stream that the server ends, with the position after the last outcome.
    fn end_here(&mut self, why: &dyn Display) -> StreamEvent {
        self.end(why, self.reader.position().to_string())
    }

    fn end(&mut self, why: &dyn Display, id: String) -> StreamEvent {
        self.has_ended = true;
        tracing::warn!(%why, "http: stream of outcomes ended");
        let data = serde_json::json!({"reason": why.to_string()});
        StreamEvent { id, content: Some(("end", data.to_string())) }
    }
}

/// Event of a stream.
struct StreamEvent {
    /// Position after the event.
    id: String,
    /// Name and data, one line; `None`: the position alone.
    content: Option<(&'static str, String)>,
}

impl StreamEvent {
    /// Returns the event as a server-sent event. axum's `Sse` makes the text in the connection, where no limit counts
    /// the text.
    fn to_text(&self) -> String {
        match &self.content {
            Some((name, data)) => format!("event: {name}\nid: {}\ndata: {data}\n\n", self.id),
            None => format!("id: {}\n: position\n\n", self.id),
        }
    }
}

/// Selects outcomes by kind and txid. Pure.
struct OutcomeFilter {
    /// First digits of the txids; `None`: every transaction.
    prefix: Option<TxidPrefix>,
    /// Kinds to select; `None`: all.
    kinds: Option<Vec<&'static str>>,
}

/// First hexadecimal digits of a txid as it is displayed.
struct TxidPrefix {
    /// Whole bytes, in the order of the digits.
    bytes: Vec<u8>,
    /// Value of the last digit of an odd number of digits.
    last: Option<u8>,
}

impl TxidPrefix {
    fn parse(digits: &str) -> Option<Self> {
        let (pairs, rest) = digits.as_bytes().split_at_checked(digits.len() & !1)?;
        let last = match rest {
            [digit] => Some(u8::try_from(char::from(*digit).to_digit(16)?).ok()?),
            _ => None,
        };
        (digits.len() <= 64).then_some(TxidPrefix { bytes: hex::decode(pairs).ok()?, last })
    }

    fn matches(&self, txid: &Txid) -> bool {
        // The digits of a txid begin with its last byte.
        let mut bytes = txid.0.iter().rev();
        self.bytes.iter().all(|wanted| bytes.next() == Some(wanted))
            && self.last.is_none_or(|wanted| bytes.next().is_some_and(|byte| byte >> 4 == wanted))
    }
}

/// Names of the kinds, as events of the stream.
const KINDS: [&str; 7] = ["live", "mined", "unmined", "accepted", "conflicting", "refused", "command"];

impl OutcomeFilter {
    fn parse(params: &OutcomesParams) -> Result<Self, Problem> {
        let prefix = params.txid.as_deref().filter(|digits| !digits.is_empty()).map(|digits| {
            let problem = || Problem::bad_request("txid: write the first hexadecimal digits of a txid, at most 64");
            TxidPrefix::parse(digits).ok_or_else(problem)
        });
        let find = |name: &str| {
            KINDS.iter().copied().find(|kind| *kind == name).ok_or_else(|| {
                Problem::bad_request(format!("kind: unknown kind `{name}`; known: {}", KINDS.join(", ")))
            })
        };
        let kinds = params.kind.as_deref().map(|kinds| kinds.split(',').map(find).collect()).transpose()?;
        Ok(OutcomeFilter { prefix: prefix.transpose()?, kinds })
    }

    /// Returns the kind and the JSON of a selected message. A batch keeps only the selected transactions.
    fn select<'a>(&self, message: &'a OutcomeMessage) -> Option<(&'static str, Cow<'a, str>)> {
        let kind = message.content.kind()?;
        if self.kinds.as_ref().is_some_and(|kinds| !kinds.contains(&kind)) {
            return None;
        }
        let Some(prefix) = &self.prefix else { return Some((kind, message.json()?.into())) };
        let selected: Vec<Txid> = message.content.txids().filter(|txid| prefix.matches(txid)).collect();
        match &message.content {
            _ if selected.is_empty() => None,
            OutcomeContent::Many { change, txids } if selected.len() * size_of::<Txid>() < txids.len() => {
                let txids: Vec<u8> = selected.iter().flat_map(|txid| txid.0).collect();
                let batch = OutcomeBatch { change: *change, txids: TxidList::new(&txids)? };
                Some((kind, to_json(&Event::OutcomeBatch(batch)).into()))
            }
            _ => Some((kind, message.json()?.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use futures_util::StreamExt;

    use super::*;
    use crate::{
        api::access::AccessControl,
        broker::{Broker, Message, NewTopic, OutgoingMessage, memory::MemoryBroker},
        client::outcome_feed::OutcomeFeed,
        config::{Config, Http},
        event::{OutcomeChange, OutcomeEvent, OutcomeKind, OutcomeSource},
    };

    #[test]
    fn a_prefix_selects_the_txids_whose_text_begins_with_it() {
        let mut bytes = [7; 32];
        (bytes[31], bytes[30]) = (0xab, 0xcd);
        let txid = Txid(bytes);
        let text = txid.to_string();
        for len in 0..=64 {
            let prefix = TxidPrefix::parse(&text[..len]).unwrap();
            assert!(prefix.matches(&txid), "{len}");
            assert_eq!(prefix.matches(&Txid([7; 32])), len == 0, "{len}");
        }
        assert!(TxidPrefix::parse("ABC").unwrap().matches(&txid), "digits of either case");
        assert!(!TxidPrefix::parse("abd").unwrap().matches(&txid));
        for wrong in ["x", "0x", "a ", "ä", &"0".repeat(65)] {
            assert!(TxidPrefix::parse(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn a_batch_keeps_only_the_selected_transactions() {
        let txids = [[0xaa; 32], [0xbb; 32], [0xaa; 32]].concat();
        let batch = OutcomeBatch { change: OutcomeChange::Live, txids: TxidList::new(&txids).unwrap() };
        let payload: Bytes = Event::OutcomeBatch(batch).encode().into();
        let message = Message { offset: 0, timestamp_ms: 0, key: Bytes::new(), payload, headers: vec![] };
        let message = OutcomeMessage::decode(0, &message);
        let count = |txid: Option<&str>, kind: Option<&str>| {
            let params = OutcomesParams { from: None, txid: txid.map(str::to_owned), kind: kind.map(str::to_owned) };
            let selected = OutcomeFilter::parse(&params).unwrap().select(&message)?.1.into_owned();
            Some(serde_json::from_str::<serde_json::Value>(&selected).unwrap()["txids"].as_array().unwrap().len())
        };
        assert_eq!((count(None, None), count(Some("aaa"), Some("mined,live"))), (Some(3), Some(2)));
        assert_eq!((count(Some("c"), None), count(None, Some("mined"))), (None, None));
    }
    fn follow(reader: OutcomeReader, params: OutcomesParams, limits: &HttpLimits) -> OutcomeStream {
        OutcomeStream {
            last_id: reader.position().to_string(),
            position_due: Instant::now(),
            reader,
            filter: OutcomeFilter::parse(&params).unwrap(),
            permission: AccessControl::open().permit_stream(&HeaderMap::new(), Role::Read).ok().unwrap(),
            skipped: 0,
            has_ended: false,
            memory: limits.bytes.begin_request(),
            limits: limits.clone(),
            scan: None,
            _permit: limits.open_stream().unwrap(),
        }
    }

    async fn publish(broker: &dyn Broker, event: &Event<'_>) {
        let payload = Bytes::from(event.encode());
        let message = OutgoingMessage { topic: "outcomes".into(), payload, ..Default::default() };
        broker.producer().await.unwrap().produce(message).await.unwrap();
    }

    /// A client that receives nothing: its events leave the ring of outcomes, and stay in memory all the same.
    #[tokio::test(start_paused = true)]
    async fn events_that_wait_in_a_connection_count() {
        let broker: Arc<dyn Broker> = Arc::new(MemoryBroker::default());
        broker.create_topics(&[NewTopic { name: "outcomes".into(), partitions: 1, config: vec![] }]).await.unwrap();
        let feed = OutcomeFeed::new(broker.clone(), "outcomes");
        let params = || OutcomesParams { from: None, txid: None, kind: None };
        let http = Http { max_bytes_in_flight: 1_000_000, ..Config::default().http };
        let limits = HttpLimits::new(&http);
        let stream = follow(feed.follow().await.unwrap(), params(), &limits);
        let txids = vec![7; 32 * 4_000];
        let batch =
            Event::OutcomeBatch(OutcomeBatch { change: OutcomeChange::Live, txids: TxidList::new(&txids).unwrap() });
        for _ in 0..5 {
            publish(broker.as_ref(), &batch).await;
        }
        let mut body = stream.into_response().into_body().into_data_stream();
        let mut unsent = Vec::new();
        for _ in 0..4 {
            unsent.push(body.next().await.unwrap().unwrap());
        }
        let bytes: usize = unsent.iter().map(Bytes::len).sum();
        assert_eq!(limits.bytes.held(), bytes as u64);
        let last = std::str::from_utf8(unsent.last().unwrap()).unwrap();
        let last_id = last.lines().find_map(|line| line.strip_prefix("id: ")).unwrap().to_owned();
        let end = body.next().await.unwrap().unwrap();
        let end = std::str::from_utf8(&end).unwrap();
        assert!(end.starts_with("event: end\n") && end.contains("http.max_bytes_in_flight"), "{end}");
        assert!(
            end.contains(&format!("id: {last_id}\n")),
            "the client continues with the event that had no room: {end}"
        );
        assert!(body.next().await.is_none());
        drop(unsent);
        assert_eq!(limits.bytes.held(), 0);
    }

    /// A stream whose filter skips all outcomes: the client learns the positions all the same.
    #[tokio::test(start_paused = true)]
    async fn a_stream_without_an_event_tells_its_position() {
        let broker: Arc<dyn Broker> = Arc::new(MemoryBroker::default());
        broker.create_topics(&[NewTopic { name: "outcomes".into(), partitions: 1, config: vec![] }]).await.unwrap();
        let feed = OutcomeFeed::new(broker.clone(), "outcomes");
        let params = OutcomesParams { from: None, txid: None, kind: Some("refused".into()) };
        let limits = HttpLimits::new(&Config::default().http);
        let reader = feed.follow().await.unwrap();
        let stream = follow(reader, params, &limits);
        tokio::spawn(async move {
            for offset in 0.. {
                let source = OutcomeSource::Chain { offset };
                let outcome = OutcomeEvent { txid: Txid([7; 32]), source, kind: OutcomeKind::Accepted };
                publish(broker.as_ref(), &Event::Outcome(outcome)).await;
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
        let (begun, mut body) = (Instant::now(), stream.into_response().into_body().into_data_stream());
        let mut offsets = Vec::new();
        for at in [0, 15, 30] {
            let piece = body.next().await.unwrap().unwrap();
            assert_eq!(begun.elapsed().as_secs(), at);
            let text = std::str::from_utf8(&piece).unwrap();
            assert!(!text.contains("data") && text.contains(": position\n"), "{text}");
            let id = text.lines().find_map(|line| line.strip_prefix("id: ")).unwrap();
            offsets.push(id.parse::<FeedPosition>().unwrap().offsets[0]);
        }
        assert!(offsets[0] == 0 && offsets[1] >= 14 && offsets[2] >= offsets[1] + 14, "{offsets:?}");
    }
}
