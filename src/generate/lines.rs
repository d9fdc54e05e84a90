//! Events as JSON lines: the form in which a program in any language can feed the store.

use serde::Deserialize;

use super::Message;
use crate::{
    event::{Destination, Event, Topic, from_json},
    text::strip_byte_order_mark,
};

/// Error of a line that is no event, or an event that only the store writes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}: line {line}: {problem}")]
pub struct LineError {
    /// Name of the file.
    pub file: String,
    /// Number of the line, from 1.
    pub line: usize,
    /// Problem of the line, with the field.
    pub problem: String,
}

/// Parses one event a line (the JSON of `schemas/`). Empty lines and a byte order mark are skipped.
///
/// # Errors
/// The first line that is no event, or an event that only the store itself writes.
pub fn parse_event_lines(file: &str, text: &str) -> Result<Vec<Message>, LineError> {
    let lines = (1..).zip(strip_byte_order_mark(text).lines()).filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(line, text)| {
            parse_event(text.trim()).map_err(|problem| LineError { file: file.to_owned(), line, problem })
        })
        .collect()
}

/// Step of a demo: one line of its events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DemoStep {
    /// Produces one message to its topic.
    Produce(Message),
    /// Waits until every message produced so far is consumed.
    Settle,
}

/// Lines that a demo accepts besides events.
#[derive(Debug, Deserialize)]
#[serde(tag = "demo", rename_all = "snake_case", deny_unknown_fields)]
enum Directive {
    /// Becomes [`DemoStep::Settle`], a pause.
    Settle {},
    /// Produces any bytes. Bytes that are no event become a dead letter.
    Raw { topic: String, key: Option<String>, payload: String },
}

/// Parses the steps of a demo: events as in [`parse_event_lines`], and between them lines `{"demo":"settle"}` and
/// `{"demo":"raw","topic":"utxo.validated-txs","key":"txid","payload":"hex"}`.
///
/// # Errors
/// The first line that is neither an event nor such a line.
pub fn parse_demo_lines(file: &str, text: &str) -> Result<Vec<DemoStep>, LineError> {
    let lines = (1..).zip(strip_byte_order_mark(text).lines()).filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(line, text)| {
            parse_step(text.trim()).map_err(|problem| LineError { file: file.to_owned(), line, problem })
        })
        .collect()
}

fn parse_step(line: &str) -> Result<DemoStep, String> {
    // A line with a field `event` is an event, whatever other fields the line has.
    let is_directive = |value: &serde_json::Value| value.get("demo").is_some() && value.get("event").is_none();
    match serde_json::from_str(line).ok().filter(is_directive) {
        None => parse_event(line).map(DemoStep::Produce),
        Some(value) => match serde_json::from_value(value).map_err(|error| error.to_string())? {
            Directive::Settle {} => Ok(DemoStep::Settle),
            Directive::Raw { topic, key, payload } => {
                parse_raw(&topic, key.as_deref(), &payload).map(DemoStep::Produce)
            }
        },
    }
}

fn parse_raw(topic: &str, key: Option<&str>, payload: &str) -> Result<Message, String> {
    const ACCEPTED: [Topic; 4] = [Topic::ValidatedTxs, Topic::BlockMined, Topic::Reorgs, Topic::Chain];
    let accepted = ACCEPTED.into_iter().find(|accepted| accepted.default_name() == topic);
    let topic = accepted.ok_or_else(|| {
        format!("topic: `{}` is none of {}", topic.escape_debug(), ACCEPTED.map(Topic::default_name).join(", "))
    })?;
    let key = key.map(str::parse).transpose().map_err(|error| format!("key: {error}"))?;
    let payload = hex::decode(payload).map_err(|error| format!("payload: {error}"))?;
    Ok(Message { topic, key, payload })
}

fn parse_event(line: &str) -> Result<Message, String> {
    let payload = from_json(line).map_err(|error| error.to_string())?;
    let event = Event::decode(&payload).map_err(|error| error.to_string())?;
    let Destination { topic, key } = event.destination().map_err(|error| error.to_string())?;
    Ok(Message { topic, key, payload })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn golden(name: &str) -> String {
        let path = format!("{}/schemas/golden/{name}.jsonl", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(path).unwrap()
    }

    #[test]
    fn each_event_gets_the_topic_of_its_kind() {
        let text = ["seeded", "validated", "block-mined", "reorg", "command"].map(golden).join("\n");
        let messages = parse_event_lines("e.jsonl", &text).unwrap();
        let count = |topic| messages.iter().filter(|message| message.topic == topic).count();
        assert_eq!(messages.len(), 1 + 1 + 2 + 1 + 13);
        assert_eq!((count(Topic::ValidatedTxs), count(Topic::BlockMined), count(Topic::Reorgs)), (2, 2, 1));
        let payment = "f4184fc596403b9d638783cf57adfe4c75c605f6356fbc91338530e9831e9e16";
        assert_eq!(messages[1].key, Some(payment.parse().unwrap()));
        assert!(messages.iter().all(|message| message.key.is_some() == (message.topic == Topic::ValidatedTxs)));
    }

    #[test]
    fn a_byte_order_mark_before_the_first_line_is_skipped() {
        let text = golden("seeded");
        assert_eq!(parse_event_lines("e.jsonl", &format!("\u{feff}{text}")), parse_event_lines("e.jsonl", &text));
        assert!(parse_event_lines("e.jsonl", &format!("{text}\u{feff}{text}")).is_err(), "a later mark is text");
    }

    #[test]
    fn a_demo_accepts_pauses_and_raw_bytes_between_events() {
        let seeded = golden("seeded");
        let key = "f4184fc596403b9d638783cf57adfe4c75c605f6356fbc91338530e9831e9e16";
        let raw = format!(r#"{{"demo":"raw","topic":"utxo.validated-txs","key":"{key}","payload":"00ff"}}"#);
        let text = format!("{seeded}\n{{\"demo\":\"settle\"}}\n{raw}\n");
        let steps = parse_demo_lines("e.jsonl", &text).unwrap();
        let poison = Message { topic: Topic::ValidatedTxs, key: Some(key.parse().unwrap()), payload: vec![0, 0xff] };
        assert_eq!(steps[1..], [DemoStep::Settle, DemoStep::Produce(poison)]);
        assert_eq!(steps[0], DemoStep::Produce(parse_event_lines("e.jsonl", &seeded).unwrap().remove(0)));
        assert!(parse_event_lines("e.jsonl", &text).is_err(), "only a demo has pauses");
        for (bad, says) in [
            (r#"{"demo":"rest"}"#, "unknown variant"),
            (r#"{"demo":"settle","for":"ever"}"#, "unknown field"),
            (
                r#"{"demo":"raw","topic":"utxo.decisions","payload":""}"#,
                "`utxo.decisions` is none of utxo.validated-txs",
            ),
            (r#"{"demo":"raw","topic":"utxo.chain","payload":"0"}"#, "payload: Odd"),
            (r#"{"demo":"raw","topic":"utxo.chain","key":"00","payload":""}"#, "key: "),
            ("{}", "event: is missing"),
        ] {
            let error = parse_demo_lines("e.jsonl", bad).unwrap_err().to_string();
            assert!(error.contains(says), "{bad}: {error}");
        }
    }

    #[test]
    fn a_line_that_cannot_be_produced_is_refused_with_its_number() {
        let seeded = golden("seeded");
        for (bad, says) in [
            ("{}".to_owned(), "event: is missing"),
            (golden("contest").lines().next().unwrap().to_owned(), "contest: only the store writes such"),
            (golden("decision").lines().next().unwrap().to_owned(), "decision: only the store writes such"),
            (golden("outcome").lines().next().unwrap().to_owned(), "outcome: only the store writes such"),
            (r#"{"event":"validated","tx":"00","height":1,"locked":false}"#.to_owned(), "validated.tx: at byte"),
        ] {
            let error = parse_event_lines("e.jsonl", &format!("{seeded}\n{bad}\n")).unwrap_err();
            assert_eq!(error.line, 3);
            assert!(error.to_string().contains(says), "{error}");
        }
    }
}
