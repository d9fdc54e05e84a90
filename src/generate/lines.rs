//! Events as JSON lines: what a program in any language can feed the store with.

use super::Message;
use crate::{
    event::{Event, Topic, from_json},
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

/// The messages of `text`, one event a line (the JSON of `schemas/`); empty lines are left out.
///
/// # Errors
/// The first line that is no event, or one of an event that only the store itself writes.
pub fn messages_from_lines(file: &str, text: &str) -> Result<Vec<Message>, LineError> {
    let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(line, text)| message(text.trim()).map_err(|problem| LineError { file: file.to_owned(), line, problem }))
        .collect()
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
