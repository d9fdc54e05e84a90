//! Events as JSON lines: what a program in any language can feed the store with.

use serde::Deserialize;

use super::Message;
use crate::{
    event::{Event, Topic, from_json},
    text::without_mark,
    tx::Transaction,
};

/// A line that is no event, or none that can be fed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}: line {line}: {problem}")]
pub struct LineError {
    /// Name of the file.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// What is wrong there, with the field.
    pub problem: String,
}

/// The messages of `text`, one event a line (the JSON of `schemas/`); empty lines and a byte order mark are left out.
///
/// # Errors
/// The first line that is no event, or one of an event that only the store itself writes.
pub fn messages_from_lines(file: &str, text: &str) -> Result<Vec<Message>, LineError> {
    let lines = (1..).zip(without_mark(text).lines()).filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(line, text)| message(text.trim()).map_err(|problem| LineError { file: file.to_owned(), line, problem }))
        .collect()
}

/// A line of a demo's events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// A message to be produced.
    Produce(Message),
    /// Everything before it is consumed before anything behind it is produced.
    Settle,
}

/// Lines that a demo takes besides events.
#[derive(Debug, Deserialize)]
#[serde(tag = "demo", rename_all = "snake_case", deny_unknown_fields)]
enum Directive {
    /// See [`Step::Settle`].
    Settle {},
    /// Bytes that need not be an event: what is none becomes a dead letter.
    Raw { topic: String, key: Option<String>, payload: String },
}

/// The steps of `text`: events as [`messages_from_lines`] takes them, and between them lines `{"demo":"settle"}` and
/// `{"demo":"raw","topic":"utxo.validated-txs","key":"txid","payload":"hex"}`.
///
/// # Errors
/// The first line that is none of these.
pub fn steps_from_lines(file: &str, text: &str) -> Result<Vec<Step>, LineError> {
    let lines = (1..).zip(without_mark(text).lines()).filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(line, text)| step(text.trim()).map_err(|problem| LineError { file: file.to_owned(), line, problem }))
        .collect()
}

fn step(line: &str) -> Result<Step, String> {
    // An event says that it is one before anything else is looked at.
    let is_directive = |value: &serde_json::Value| value.get("demo").is_some() && value.get("event").is_none();
    match serde_json::from_str(line).ok().filter(is_directive) {
        None => message(line).map(Step::Produce),
        Some(value) => match serde_json::from_value(value).map_err(|error| error.to_string())? {
            Directive::Settle {} => Ok(Step::Settle),
            Directive::Raw { topic, key, payload } => raw(&topic, key.as_deref(), &payload).map(Step::Produce),
        },
    }
}

fn raw(topic: &str, key: Option<&str>, payload: &str) -> Result<Message, String> {
    const FED: [Topic; 4] = [Topic::ValidatedTxs, Topic::BlockMined, Topic::Reorgs, Topic::Chain];
    let fed = FED.into_iter().find(|fed| fed.default_name() == topic);
    let topic = fed.ok_or_else(|| {
        format!("topic: `{}` is none of {}", topic.escape_debug(), FED.map(Topic::default_name).join(", "))
    })?;
    let key = key.map(str::parse).transpose().map_err(|error| format!("key: {error}"))?;
    let payload = hex::decode(payload).map_err(|error| format!("payload: {error}"))?;
    Ok(Message { topic, key, payload })
}

fn message(line: &str) -> Result<Message, String> {
    let payload = from_json(line).map_err(|error| error.to_string())?;
    let event = Event::decode(&payload).map_err(|error| error.to_string())?;
    let (topic, key) = match &event {
        Event::Validated(validated) => {
            let transaction = Transaction::parse(validated.tx).map_err(|error| format!("validated.tx: {error}"))?;
            (Topic::ValidatedTxs, Some(transaction.txid()))
        }
        Event::Seeded(seeded) => (Topic::ValidatedTxs, Some(seeded.txid)),
        Event::BlockMined(_) => (Topic::BlockMined, None),
        Event::Reorg(_) => (Topic::Reorgs, None),
        Event::Command(_) => (Topic::Chain, None),
        Event::Contest(_) | Event::Decision(_) | Event::Outcome(_) => {
            return Err(format!(
                "an event of the kind {} is written by the store and cannot be fed",
                event.kind().name()
            ));
        }
    };
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
    fn events_go_to_their_topics() {
        let text = ["seeded", "validated", "block-mined", "reorg", "command"].map(golden).join("\n");
        let messages = messages_from_lines("e.jsonl", &text).unwrap();
        let count = |topic| messages.iter().filter(|message| message.topic == topic).count();
        assert_eq!(messages.len(), 1 + 1 + 2 + 1 + 11);
        assert_eq!((count(Topic::ValidatedTxs), count(Topic::BlockMined), count(Topic::Reorgs)), (2, 2, 1));
        let payment = "f4184fc596403b9d638783cf57adfe4c75c605f6356fbc91338530e9831e9e16";
        assert_eq!(messages[1].key, Some(payment.parse().unwrap()));
        assert!(messages.iter().all(|message| message.key.is_some() == (message.topic == Topic::ValidatedTxs)));
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_the_first_line() {
        let text = golden("seeded");
        assert_eq!(messages_from_lines("e.jsonl", &format!("\u{feff}{text}")), messages_from_lines("e.jsonl", &text));
        assert!(messages_from_lines("e.jsonl", &format!("{text}\u{feff}{text}")).is_err(), "elsewhere it is");
    }

    #[test]
    fn a_demo_takes_pauses_and_bytes_between_events() {
        let seeded = golden("seeded");
        let key = "f4184fc596403b9d638783cf57adfe4c75c605f6356fbc91338530e9831e9e16";
        let raw = format!(r#"{{"demo":"raw","topic":"utxo.validated-txs","key":"{key}","payload":"00ff"}}"#);
        let text = format!("{seeded}\n{{\"demo\":\"settle\"}}\n{raw}\n");
        let steps = steps_from_lines("e.jsonl", &text).unwrap();
        let poison = Message { topic: Topic::ValidatedTxs, key: Some(key.parse().unwrap()), payload: vec![0, 0xff] };
        assert_eq!(steps[1..], [Step::Settle, Step::Produce(poison)]);
        assert_eq!(steps[0], Step::Produce(messages_from_lines("e.jsonl", &seeded).unwrap().remove(0)));
        assert!(messages_from_lines("e.jsonl", &text).is_err(), "what is produced without a demo has no pauses");
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
            let error = steps_from_lines("e.jsonl", bad).unwrap_err().to_string();
            assert!(error.contains(says), "{bad}: {error}");
        }
    }

    #[test]
    fn what_cannot_be_fed_is_refused_with_its_line() {
        let seeded = golden("seeded");
        for (bad, says) in [
            ("{}".to_owned(), "event: is missing"),
            (golden("contest").lines().next().unwrap().to_owned(), "contest is written by the store"),
            (golden("decision").lines().next().unwrap().to_owned(), "decision is written by the store"),
            (golden("outcome").lines().next().unwrap().to_owned(), "outcome is written by the store"),
            (r#"{"event":"validated","tx":"00","height":1,"locked":false}"#.to_owned(), "validated.tx: at byte"),
        ] {
            let error = messages_from_lines("e.jsonl", &format!("{seeded}\n{bad}\n")).unwrap_err();
            assert_eq!(error.line, 3);
            assert!(error.to_string().contains(says), "{error}");
        }
    }
}
