//! Envelope of dead letters: message headers name the source position and the reason. Key and payload are those of the
//! source message, unchanged.

use bytes::Bytes;
use serde::Serialize;
use strum::{EnumIter, EnumString, IntoStaticStr, VariantNames};

use super::{DecodeError, declare, json};

const PREFIX: &str = "utxo-dead-letter-";

declare! {
    /// Source position of a message that could not be applied, and the reason.
    pub struct DeadLetter {
        /// Topic of the source message.
        pub topic: String,
        /// Partition of the source message.
        pub partition: i32,
        /// Offset of the source message.
        pub offset: u64,
        /// Step of the pipeline that gave the message up.
        pub stage: String,
        /// Class of the reason.
        pub class: DeadLetterClass,
        /// Reason in one line that names the field.
        pub message: String,
        /// Timestamp of the source message in its topic, milliseconds since the epoch.
        pub timestamp_ms: i64,
    }
}

declare! {
    /// Class of the reason that makes a message a dead letter.
    #[derive(Copy, Eq, EnumIter, EnumString, IntoStaticStr, VariantNames)]
    #[strum(serialize_all = "kebab-case", parse_err_ty = String, parse_err_fn = DeadLetterClass::refuse)]
    pub enum DeadLetterClass {
        /// The bytes are no event that the topic may carry, the transaction does not parse, or the key is not its txid.
        Decode = 0, "decode",
        /// The content is invalid: an overspend, no outputs, an input without previous output; or another block or
        /// reorg has the same sequence.
        Invalid = 1, "invalid",
        /// A parent is missing: no event before the transaction's own event creates the parent.
        MissingParent = 2, "missing-parent",
        /// A later event contradicts the partial transaction that came first.
        SeedMismatch = 3, "seed-mismatch",
        /// The event is well formed, but this version cannot store it.
        Unsupported = 4, "unsupported",
    }
}

/// Headers that are not those of a dead letter or of a settlement. The text is one line and names the header.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// A required header is missing.
    #[error("header `{PREFIX}{0}` is missing")]
    Missing(&'static str),
    /// The value of a header has another form; the second text names the expected form.
    #[error("header `{PREFIX}{0}` is not {1}")]
    Malformed(&'static str, &'static str),
}

impl DeadLetterClass {
    /// Returns the name in headers, JSON and metrics.
    pub fn name(self) -> &'static str {
        self.into()
    }

    fn refuse(_: &str) -> String {
        format!("a class is one of {}", Self::VARIANTS.join(", "))
    }
}

impl DeadLetter {
    /// Returns the headers that follow those of the source message.
    pub fn to_headers(&self) -> Vec<(String, Bytes)> {
        [
            ("topic", self.topic.clone()),
            ("partition", self.partition.to_string()),
            ("offset", self.offset.to_string()),
            ("stage", self.stage.clone()),
            ("class", self.class.name().to_owned()),
            ("message", self.message.clone()),
            ("timestamp-ms", self.timestamp_ms.to_string()),
        ]
        .into_iter()
        .map(|(name, value)| (format!("{PREFIX}{name}"), Bytes::from(value)))
        .collect()
    }

    /// Reads the headers of a dead letter and ignores all others. The last header of a name counts, because a message
    /// that was replayed and failed again carries the older headers in front.
    ///
    /// # Errors
    /// Fails where a header is missing or malformed.
    pub fn from_headers(headers: &[(String, Bytes)]) -> Result<Self, HeaderError> {
        let text = |name| read_text(headers, name);
        Ok(DeadLetter {
            topic: text("topic")?.to_owned(),
            partition: read_number(headers, "partition")?,
            offset: read_number(headers, "offset")?,
            stage: text("stage")?.to_owned(),
            class: text("class")?.parse().map_err(|_| HeaderError::Malformed("class", "a known class"))?,
            message: text("message")?.to_owned(),
            timestamp_ms: read_number(headers, "timestamp-ms")?,
        })
    }

    /// Returns the dead letter as one line of JSON.
    pub fn to_json(&self) -> String {
        json::write_line(self)
    }

    /// Reads the JSON that [`to_json`](Self::to_json) writes.
    ///
    /// # Errors
    /// Fails where the text is no JSON object, or a field is missing, unknown or has an invalid value.
    pub fn from_json(text: &str) -> Result<Self, DecodeError> {
        json::read_node(&json::Node::parse(text)?)
    }
}

/// End of a dead letter: the work that settled it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, EnumString, IntoStaticStr)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum SettlementKind {
    /// The source message was published again, or the verdict of its transaction was reconsidered.
    Replayed,
    /// An operator discarded the dead letter.
    Discarded,
}

/// Message without a payload that marks a dead letter as settled. The message is in the topic of dead letters, because
/// nothing can be removed from a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetterSettlement {
    /// Topic of the dead letter's source message.
    pub topic: String,
    /// Partition of the dead letter's source message.
    pub partition: i32,
    /// Offset of the dead letter's source message.
    pub offset: u64,
    /// Timestamp of the source message, milliseconds since the epoch: a recreated topic has another message at that
    /// offset. `None`: an earlier version wrote the settlement without a timestamp.
    pub timestamp_ms: Option<i64>,
    /// Work that settled the dead letter.
    pub settled: SettlementKind,
}

impl DeadLetterSettlement {
    /// Returns all headers of the settlement.
    pub fn to_headers(&self) -> Vec<(String, Bytes)> {
        let settled: &str = self.settled.into();
        let headers = [
            ("topic", self.topic.clone()),
            ("partition", self.partition.to_string()),
            ("offset", self.offset.to_string()),
        ];
        let timestamp = self.timestamp_ms.map(|timestamp_ms| ("timestamp-ms", timestamp_ms.to_string()));
        headers
            .into_iter()
            .chain(timestamp)
            .chain([(SETTLED, settled.to_owned())])
            .map(|(name, value)| (format!("{PREFIX}{name}"), Bytes::from(value)))
            .collect()
    }

    /// Reads the headers of a settlement. A dead letter carries the headers of its source message in front of its own,
    /// so that the sender of the source message can have chosen any header. A message with the header `stage` is
    /// therefore never a settlement, whatever its other headers say.
    ///
    /// # Errors
    /// Fails where a header is missing or malformed: the message is something else, for example a dead letter.
    pub fn from_headers(headers: &[(String, Bytes)]) -> Result<Self, HeaderError> {
        if headers.iter().any(|(name, _)| name.strip_prefix(PREFIX) == Some("stage")) {
            return Err(HeaderError::Malformed(SETTLED, "the header of a settlement: the message is a dead letter"));
        }
        let settled = read_text(headers, SETTLED)?.parse();
        let settled = settled.map_err(|_| HeaderError::Malformed(SETTLED, "replayed or discarded"))?;
        let topic = read_text(headers, "topic")?.to_owned();
        let (partition, offset) = (read_number(headers, "partition")?, read_number(headers, "offset")?);
        let timestamp_ms = match read_number(headers, "timestamp-ms") {
            Err(HeaderError::Missing(_)) => None,
            timestamp_ms => Some(timestamp_ms?),
        };
        Ok(DeadLetterSettlement { topic, partition, offset, timestamp_ms, settled })
    }
}

const SETTLED: &str = "settled";

fn read_text<'h>(headers: &'h [(String, Bytes)], name: &'static str) -> Result<&'h str, HeaderError> {
    let named = |header: &&(String, Bytes)| header.0.strip_prefix(PREFIX) == Some(name);
    let (_, value) = headers.iter().rfind(named).ok_or(HeaderError::Missing(name))?;
    std::str::from_utf8(value).map_err(|_| HeaderError::Malformed(name, "UTF-8"))
}

fn read_number<N: std::str::FromStr>(headers: &[(String, Bytes)], name: &'static str) -> Result<N, HeaderError> {
    read_text(headers, name)?.parse().map_err(|_| HeaderError::Malformed(name, "a decimal number in its range"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::samples;

    #[test]
    fn headers_round_trip_beside_others() {
        for letter in samples::dead_letters() {
            let mut headers = vec![("traceparent".to_owned(), Bytes::from_static(b"\xFF"))];
            headers.extend(letter.to_headers());
            headers.push((format!("{PREFIX}later"), Bytes::from_static(b"unknown to this release")));
            assert_eq!(DeadLetter::from_headers(&headers), Ok(letter));
        }
    }

    #[test]
    fn every_header_is_needed_and_named_when_missing() {
        let headers = samples::dead_letters()[0].to_headers();
        for index in 0..headers.len() {
            let mut fewer = headers.clone();
            let (name, _) = fewer.remove(index);
            let error = DeadLetter::from_headers(&fewer).unwrap_err();
            assert_eq!(error.to_string(), format!("header `{name}` is missing"));
        }
    }

    #[test]
    fn malformed_headers_are_refused_by_name() {
        let with = |name: &str, value: &'static [u8]| {
            let mut headers = samples::dead_letters()[0].to_headers();
            headers.push((format!("{PREFIX}{name}"), Bytes::from_static(value)));
            DeadLetter::from_headers(&headers).unwrap_err().to_string()
        };
        assert_eq!(with("offset", b"-1"), "header `utxo-dead-letter-offset` is not a decimal number in its range");
        assert_eq!(with("class", b"other"), "header `utxo-dead-letter-class` is not a known class");
        assert_eq!(with("message", b"\xFF"), "header `utxo-dead-letter-message` is not UTF-8");
    }

    #[test]
    fn settlements_and_dead_letters_are_not_confused() {
        for (settled, timestamp_ms) in [(SettlementKind::Replayed, Some(-7)), (SettlementKind::Discarded, None)] {
            let settlement = DeadLetterSettlement { topic: "t".into(), partition: 3, offset: 9, timestamp_ms, settled };
            let headers = settlement.to_headers();
            assert_eq!(DeadLetterSettlement::from_headers(&headers), Ok(settlement.clone()));
            assert_eq!(DeadLetter::from_headers(&headers), Err(HeaderError::Missing("stage")));
            // A source message with the headers of a settlement, as a copy among the dead letters.
            let letter = samples::dead_letters()[0].clone();
            let spoofed = [headers, letter.to_headers()].concat();
            assert!(matches!(DeadLetterSettlement::from_headers(&spoofed), Err(HeaderError::Malformed(SETTLED, _))));
            assert_eq!(DeadLetter::from_headers(&spoofed), Ok(letter));
        }
        let letter = samples::dead_letters()[0].to_headers();
        assert!(DeadLetterSettlement::from_headers(&letter).is_err());
    }

    #[test]
    fn the_last_of_several_headers_counts() {
        let first = samples::dead_letters()[0].clone();
        let second = DeadLetter { offset: 43, message: "again".into(), ..first.clone() };
        let headers = [first.to_headers(), second.to_headers()].concat();
        assert_eq!(DeadLetter::from_headers(&headers), Ok(second));
    }
}
