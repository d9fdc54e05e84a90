//! The envelope of dead letters: message headers that say whence and why. Key and payload are the source's, untouched.

use bytes::Bytes;
use serde::Serialize;

use super::{
    codec::{Source, Wire},
    declare,
    json::{self, JsonError},
};

const PREFIX: &str = "utxo-dead-letter-";

declare! {
    /// Whence a message comes that could not be handled, and why it could not.
    #[derive(Serialize)]
    pub struct DeadLetter {
        /// Topic of the source message.
        pub topic: String,
        /// Its partition.
        pub partition: i32,
        /// Its own offset.
        pub offset: u64,
        /// The step of the pipeline that gave it up.
        pub stage: String,
        /// Why, as a class.
        pub class: DeadLetterClass,
        /// Why, in one line that names the field.
        pub message: String,
        /// Milliseconds since the epoch of the source message, as its topic records it.
        pub timestamp_ms: i64,
    }
}

declare! {
    /// Why a message is a dead letter.
    #[derive(Copy, Eq, Serialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum DeadLetterClass {
        /// The bytes are no event that the topic may carry, its transaction does not parse, or it is not the key's.
        Decode = 0, "decode",
        /// It cannot be: an overspend, no outputs, an input without previous output; or a block or reorg under a sequence that
        /// something else had before.
        Invalid = 1, "invalid",
        /// A parent was proven never to have been produced before it.
        MissingParent = 2, "missing-parent",
        /// A seeded transaction, and a later event for it that says otherwise.
        SeedMismatch = 3, "seed-mismatch",
        /// Well formed, but beyond what this version can store.
        Unsupported = 4, "unsupported",
    }
}

impl DeadLetterClass {
    /// All of them.
    pub const ALL: [DeadLetterClass; 5] = [
        DeadLetterClass::Decode,
        DeadLetterClass::Invalid,
        DeadLetterClass::MissingParent,
        DeadLetterClass::SeedMismatch,
        DeadLetterClass::Unsupported,
    ];

    /// Its name in headers, JSON and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            DeadLetterClass::Decode => "decode",
            DeadLetterClass::Invalid => "invalid",
            DeadLetterClass::MissingParent => "missing-parent",
            DeadLetterClass::SeedMismatch => "seed-mismatch",
            DeadLetterClass::Unsupported => "unsupported",
        }
    }
}

/// A message whose headers do not make it a dead letter. One line that names the header.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// It is not there.
    #[error("header `{PREFIX}{0}` is missing")]
    Missing(&'static str),
    /// It is not what it should be.
    #[error("header `{PREFIX}{0}` is not {1}")]
    Malformed(&'static str, &'static str),
}

impl std::str::FromStr for DeadLetterClass {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let names = || DeadLetterClass::ALL.map(DeadLetterClass::name).join(", ");
        class_named(name).ok_or_else(|| format!("a class is one of {}", names()))
    }
}

impl DeadLetter {
    /// The headers to be put behind those of the source message.
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

    /// Reads the headers of a dead letter. Others are ignored; of several with one name the last counts, since a
    /// message that was replayed and failed again carries the older ones in front.
    ///
    /// # Errors
    /// A header is missing or malformed.
    pub fn from_headers(headers: &[(String, Bytes)]) -> Result<Self, HeaderError> {
        let text = |name| text_of(headers, name);
        Ok(DeadLetter {
            topic: text("topic")?.to_owned(),
            partition: number_of(headers, "partition")?,
            offset: number_of(headers, "offset")?,
            stage: text("stage")?.to_owned(),
            class: class_named(text("class")?).ok_or(HeaderError::Malformed("class", "a known class"))?,
            message: text("message")?.to_owned(),
            timestamp_ms: number_of(headers, "timestamp-ms")?,
        })
    }

    /// One line of JSON.
    pub fn to_json(&self) -> String {
        let mut line = String::new();
        json::write_object(self, &mut line);
        line
    }

    /// What [`to_json`](Self::to_json) writes.
    ///
    /// # Errors
    /// The text is no JSON object, lacks a field, has one too many, or one with a value that it must not have.
    pub fn from_json(text: &str) -> Result<Self, JsonError> {
        let mut sink = super::Sink::new(Vec::new());
        json::transcode_object::<Self>(&json::Node::parse(text)?, &mut sink)?;
        Ok(DeadLetter::decode(&mut Source::new(&sink.into_bytes()))?)
    }
}

/// What was done with a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Settled {
    /// Its source message was published again, or its transaction looked at again.
    Replayed,
    /// Nobody wants it.
    Discarded,
}

/// A dead letter needs nobody any more. A message without a payload, in the topic of dead letters: of a log nothing is taken away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settlement {
    /// Topic of the dead letter's source message.
    pub topic: String,
    /// Its partition.
    pub partition: i32,
    /// Its offset.
    pub offset: u64,
    /// Timestamp of the message, milliseconds since the epoch: a topic that was created again has another message at
    /// that offset. `None`: an earlier version has not written it down.
    pub timestamp_ms: Option<i64>,
    /// What was done.
    pub settled: Settled,
}

impl Settlement {
    /// All its headers.
    pub fn to_headers(&self) -> Vec<(String, Bytes)> {
        let settled = match self.settled {
            Settled::Replayed => "replayed",
            Settled::Discarded => "discarded",
        };
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

    /// Reads the headers of one. A dead letter has the headers of its source message in front of its own, so that a
    /// header of the same name may be anybody's: a message that says at which stage it was given up is no settlement,
    /// whatever else it says.
    ///
    /// # Errors
    /// A header is missing or malformed: it is something else, a dead letter perhaps.
    pub fn from_headers(headers: &[(String, Bytes)]) -> Result<Self, HeaderError> {
        if headers.iter().any(|(name, _)| name.strip_prefix(PREFIX) == Some("stage")) {
            return Err(HeaderError::Malformed(SETTLED, "that of a settlement: the message is a dead letter"));
        }
        let settled = match text_of(headers, SETTLED)? {
            "replayed" => Settled::Replayed,
            "discarded" => Settled::Discarded,
            _ => return Err(HeaderError::Malformed(SETTLED, "replayed or discarded")),
        };
        let topic = text_of(headers, "topic")?.to_owned();
        let (partition, offset) = (number_of(headers, "partition")?, number_of(headers, "offset")?);
        let timestamp_ms = match number_of(headers, "timestamp-ms") {
            Err(HeaderError::Missing(_)) => None,
            timestamp_ms => Some(timestamp_ms?),
        };
        Ok(Settlement { topic, partition, offset, timestamp_ms, settled })
    }
}

const SETTLED: &str = "settled";

fn class_named(name: &str) -> Option<DeadLetterClass> {
    DeadLetterClass::ALL.into_iter().find(|class| class.name() == name)
}

fn text_of<'h>(headers: &'h [(String, Bytes)], name: &'static str) -> Result<&'h str, HeaderError> {
    let named = |header: &&(String, Bytes)| header.0.strip_prefix(PREFIX) == Some(name);
    let (_, value) = headers.iter().rfind(named).ok_or(HeaderError::Missing(name))?;
    std::str::from_utf8(value).map_err(|_| HeaderError::Malformed(name, "UTF-8"))
}

fn number_of<N: std::str::FromStr>(headers: &[(String, Bytes)], name: &'static str) -> Result<N, HeaderError> {
    text_of(headers, name)?.parse().map_err(|_| HeaderError::Malformed(name, "a decimal number in its range"))
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
    fn a_settlement_is_no_dead_letter_and_a_dead_letter_no_settlement() {
        for (settled, timestamp_ms) in [(Settled::Replayed, Some(-7)), (Settled::Discarded, None)] {
            let settlement = Settlement { topic: "t".into(), partition: 3, offset: 9, timestamp_ms, settled };
            let headers = settlement.to_headers();
            assert_eq!(Settlement::from_headers(&headers), Ok(settlement.clone()));
            assert_eq!(DeadLetter::from_headers(&headers), Err(HeaderError::Missing("stage")));
            // A stranger's message with the very headers of a settlement, as it lies among the dead letters.
            let letter = samples::dead_letters()[0].clone();
            let spoofed = [headers, letter.to_headers()].concat();
            assert!(matches!(Settlement::from_headers(&spoofed), Err(HeaderError::Malformed(SETTLED, _))));
            assert_eq!(DeadLetter::from_headers(&spoofed), Ok(letter));
        }
        let letter = samples::dead_letters()[0].to_headers();
        assert!(Settlement::from_headers(&letter).is_err());
    }

    #[test]
    fn the_last_of_several_headers_counts() {
        let first = samples::dead_letters()[0].clone();
        let second = DeadLetter { offset: 43, message: "again".into(), ..first.clone() };
        let headers = [first.to_headers(), second.to_headers()].concat();
        assert_eq!(DeadLetter::from_headers(&headers), Ok(second));
    }
}
