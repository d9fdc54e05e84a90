//! The events of the log, their versioned encoding, and the envelope of dead letters.
//!
//! A message is an envelope of three bytes ([`MAGIC`], [`SCHEMA_VERSION`], [`Kind`]) and a body, whose bytes
//! `schemas/` lays down. Decoding borrows from the message, never panics, and never allocates more than the message
//! justifies. Every type is declared once (`declare!`): its binary form, its JSON form and its table in `schemas/`
//! follow from that.

mod block;
mod chain;
mod codec;
mod dead_letter;
mod decision;
mod declare;
mod json;
mod topic;
mod transaction;

#[cfg(test)]
mod samples;
#[cfg(test)]
mod schema;
#[cfg(test)]
mod tests;

use codec::{Sink, Source, Wire};
use declare::declare;

pub use block::{Block, BlockMined, Reorg, Subtree, SubtreeTransactions};
pub use chain::{Action, Command, Contest, Position};
pub use codec::{DecodeError, Problem};
pub use dead_letter::{DeadLetter, DeadLetterClass, HeaderError, Settled, Settlement};
pub use decision::{ConeMember, DecidedInput, Decision, DecisionBody, OutcomeEvent, OutcomeKind};
pub use json::{JsonError, from_json, to_json};
pub use topic::Topic;
pub use transaction::{SEEDED_OUTPUT_LIMIT, Seeded, SeededOutput, Validated};

pub use crate::record::CommandResult;
use crate::record::Reason;

/// The bytes of a reason, for records that keep one.
pub(crate) fn encode_reason(reason: &Reason) -> Vec<u8> {
    let mut sink = Sink::new(Vec::new());
    Wire::encode(reason, &mut sink);
    sink.into_bytes()
}

/// The reason that all these bytes are.
pub(crate) fn decode_reason(bytes: &[u8]) -> Result<Reason, DecodeError> {
    let mut source = Source::new(bytes);
    let reason = <Reason as Wire>::decode(&mut source)?;
    match source.left() {
        0 => Ok(reason),
        left => Err(Problem::Trailing(left).into()),
    }
}

/// First byte of every event: no JSON, no text and no transaction starts with it.
pub const MAGIC: u8 = 0xD7;

/// Second byte: the version of the bodies.
pub const SCHEMA_VERSION: u8 = 1;

const ENVELOPE: usize = 3;

/// Most transactions are smaller, so that most messages are written without growing.
const USUAL: usize = 512;

macro_rules! events {
    ($( $(#[$doc:meta])* $kind:ident($type:ident $(<$lt:lifetime>)?) = $number:literal, $text:literal; )+) => {
        /// Third byte of every event.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Kind { $( $(#[$doc])* $kind = $number, )+ }

        impl Kind {
            /// All of them.
            pub const ALL: [Kind; [$($number),+].len()] = [$(Kind::$kind),+];

            /// Its name in JSON and in logs.
            pub const fn name(self) -> &'static str {
                match self { $( Kind::$kind => $text, )+ }
            }
        }

        /// An event of any kind.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Event<'a> { $( $(#[$doc])* $kind($type $(<$lt>)?), )+ }

        impl<'a> Event<'a> {
            /// What kind of event it is.
            pub fn kind(&self) -> Kind {
                match self { $( Event::$kind(_) => Kind::$kind, )+ }
            }

            /// Reads a message. What it returns borrows from it.
            ///
            /// # Errors
            /// The message is no event, of an unknown version or kind, ends too early or too late, or holds a value
            /// that its field must not have.
            pub fn decode(message: &'a [u8]) -> Result<Self, DecodeError> {
                let (kind, body) = open(message)?;
                let mut source = Source::new(body);
                let event = match kind {
                    $( Kind::$kind => {
                        <$type as Wire>::decode(&mut source)
                            .map(Event::$kind)
                            .map_err(|error| error.within(Kind::$kind.name()))?
                    } )+
                };
                match source.left() {
                    0 => Ok(event),
                    left => Err(DecodeError::from(Problem::Trailing(left)).within(kind.name())),
                }
            }

            /// The message. Does not check the rules that [`decode`](Self::decode) holds a message to.
            pub fn encode(&self) -> Vec<u8> {
                match self { $( Event::$kind(event) => event.encode(), )+ }
            }
        }

        $(
            impl $(<$lt>)? $type $(<$lt>)? {
                /// The message of this event. Does not check the rules that [`Event::decode`] holds it to.
                pub fn encode(&self) -> Vec<u8> {
                    let mut sink = seal(Kind::$kind);
                    Wire::encode(self, &mut sink);
                    sink.into_bytes()
                }
            }
        )+

        fn write_event(event: &Event<'_>, object: &mut json::ObjectWriter<'_>) {
            match event { $( Event::$kind(event) => json::Fields::write_fields(event, object), )+ }
        }

        fn transcode_event(kind: Kind, object: &mut json::ObjectReader<'_>) -> Result<Vec<u8>, JsonError> {
            let mut sink = seal(kind);
            match kind { $(
                Kind::$kind => <$type as json::Fields>::transcode_fields(object, &mut sink)?,
            )+ }
            Ok(sink.into_bytes())
        }
    };
}

events! {
    /// See [`Validated`].
    Validated(Validated<'a>) = 1, "validated";
    /// See [`Seeded`].
    Seeded(Seeded<'a>) = 2, "seeded";
    /// See [`BlockMined`].
    BlockMined(BlockMined<'a>) = 3, "block-mined";
    /// See [`Reorg`].
    Reorg(Reorg<'a>) = 4, "reorg";
    /// See [`Contest`].
    Contest(Contest) = 5, "contest";
    /// See [`Command`].
    Command(Command<'a>) = 6, "command";
    /// See [`Decision`].
    Decision(Decision) = 7, "decision";
    /// See [`OutcomeEvent`].
    Outcome(OutcomeEvent) = 8, "outcome";
}

impl Event<'_> {
    /// Whether `topic` may carry it; elsewhere it is a dead letter.
    pub fn admitted_by(&self, topic: Topic) -> bool {
        topic.kinds().contains(&self.kind())
    }
}

/// The kind and the body of a message.
fn open(message: &[u8]) -> Result<(Kind, &[u8]), DecodeError> {
    let Some((&[magic, version, number], body)) = message.split_first_chunk::<ENVELOPE>() else {
        return Err(Problem::NoEnvelope(message.len()).into());
    };
    if magic != MAGIC {
        return Err(Problem::Magic(magic).into());
    }
    if version != SCHEMA_VERSION {
        return Err(Problem::Version(version).into());
    }
    match Kind::ALL.into_iter().find(|kind| *kind as u8 == number) {
        Some(kind) => Ok((kind, body)),
        None => Err(Problem::Kind(number).into()),
    }
}

/// A message with its envelope and nothing yet in it.
fn seal(kind: Kind) -> Sink {
    let mut message = Vec::with_capacity(USUAL);
    message.extend([MAGIC, SCHEMA_VERSION, kind as u8]);
    Sink::new(message)
}
