//! The events of the log, their versioned encoding, and the envelope of dead letters.
//!
//! A message is an envelope of three bytes ([`MAGIC`], [`SCHEMA_VERSION`], [`Kind`]) and a body. `schemas/` specifies
//! every body byte for byte. Decoding borrows from the message, never panics, and never allocates more than the message
//! justifies. `declare!` declares every type once; the binary form, the JSON form and the table in `schemas/` follow
//! from the declaration.

mod block;
mod chain;
mod codec;
mod dead_letter;
mod decision;
mod declare;
mod destination;
mod json;
mod outcome;
mod topic;
mod transaction;

#[cfg(test)]
mod samples;
#[cfg(test)]
mod schema;
#[cfg(test)]
mod tests;

use codec::{BodyReader, BodyWriter, Wire};
use declare::declare;

pub use block::{Block, BlockMined, Reorg, Subtree, SubtreeTransactions};
pub use chain::{Command, CommandAction, Contest, EventPosition};
pub use codec::{DecodeError, DecodeProblem};
pub use dead_letter::{DeadLetter, DeadLetterClass, DeadLetterSettlement, HeaderError, SettlementKind};
pub use decision::{
    DecidedEvent, DecidedInput, Decision, DecisionBody, DecisionGroup, DecisionRun, Descendant, LiftedOutput,
};
pub use destination::{Destination, DestinationError};
pub use json::{from_json, to_json};
pub use outcome::{OutcomeBatch, OutcomeChange, OutcomeEvent, OutcomeKind, OutcomeSource, TxidList};
pub use topic::Topic;
pub use transaction::{
    BodyReference, ContentHash, PartialOutput, PartialTxEvent, PartialTxReference, Validated, ValidatedReference,
};

pub use crate::record::CommandResult;
use crate::record::Reason;

/// Encodes a reason for the `reason` bin of a record.
pub(crate) fn encode_reason(reason: &Reason) -> Vec<u8> {
    let mut sink = BodyWriter::new(Vec::new());
    Wire::encode(reason, &mut sink);
    sink.into_bytes()
}

/// Decodes a reason that takes up all of `bytes`.
pub(crate) fn decode_reason(bytes: &[u8]) -> Result<Reason, DecodeError> {
    let mut source = BodyReader::new(bytes);
    let reason = <Reason as Wire>::decode(&mut source)?;
    match source.left() {
        0 => Ok(reason),
        left => Err(DecodeProblem::Trailing(left).into()),
    }
}

/// First byte of every event. No JSON, no text and no transaction starts with this byte.
pub const MAGIC: u8 = 0xD7;

/// Second byte of every event: the version of the body layouts.
pub const SCHEMA_VERSION: u8 = 1;

const ENVELOPE_LEN: usize = 3;

/// Most transactions are smaller, so that most messages are written without another allocation.
const USUAL_TRANSACTION_LEN: usize = 512;
/// Most messages without transactions are smaller. A log in memory keeps the capacity of each message.
const USUAL_MESSAGE_LEN: usize = 160;

macro_rules! events {
    ($( $(#[$doc:meta])* $kind:ident($type:ident $(<$lt:lifetime>)?) = $number:literal, $text:literal; )+) => {
        /// Kind of an event: the third byte of the message.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Kind { $( $(#[$doc])* $kind = $number, )+ }

        impl Kind {
            /// Every kind, ascending by number.
            pub const ALL: [Kind; [$($number),+].len()] = [$(Kind::$kind),+];

            /// Returns the name in JSON and in logs.
            pub const fn name(self) -> &'static str {
                match self { $( Kind::$kind => $text, )+ }
            }
        }

        /// An event of any kind.
        #[derive(Debug, Clone, PartialEq, serde::Serialize)]
        #[serde(tag = "event")]
        pub enum Event<'a> { $( $(#[$doc])* #[serde(rename = $text)] $kind($type $(<$lt>)?), )+ }

        impl<'a> Event<'a> {
            /// Returns the kind of the event.
            pub fn kind(&self) -> Kind {
                match self { $( Event::$kind(_) => Kind::$kind, )+ }
            }

            /// Decodes a message. The event borrows from the message.
            ///
            /// # Errors
            /// Fails where the message is no event, has an unknown version or kind, ends too early or too late, or
            /// holds a value that the field must not have.
            pub fn decode(message: &'a [u8]) -> Result<Self, DecodeError> {
                let (kind, body) = open_envelope(message)?;
                let mut source = BodyReader::new(body);
                let event = match kind {
                    $( Kind::$kind => {
                        <$type as Wire>::decode(&mut source)
                            .map(Event::$kind)
                            .map_err(|error| error.within(Kind::$kind.name()))?
                    } )+
                };
                match source.left() {
                    0 => Ok(event),
                    left => Err(DecodeError::from(DecodeProblem::Trailing(left)).within(kind.name())),
                }
            }

            /// Encodes the event as a message, without the checks of [`decode`](Self::decode).
            pub fn encode(&self) -> Vec<u8> {
                match self { $( Event::$kind(event) => event.encode(), )+ }
            }
        }

        $(
            impl $(<$lt>)? $type $(<$lt>)? {
                /// Encodes the event as a message, without the checks of [`Event::decode`].
                pub fn encode(&self) -> Vec<u8> {
                    let mut sink = begin_message(Kind::$kind);
                    Wire::encode(self, &mut sink);
                    sink.into_bytes()
                }
            }
        )+

        /// Reads the fields of an event; the event borrows the bytes that the node holds.
        fn read_event(kind: Kind, fields: &json::Node) -> Result<Event<'_>, DecodeError> {
            Ok(match kind { $(
                Kind::$kind => Event::$kind(json::read_node::<$type>(fields)?),
            )+ })
        }
    };
}

events! {
    /// A whole transaction, see [`Validated`].
    Validated(Validated<'a>) = 1, "validated";
    /// A partial transaction, see [`PartialTxEvent`].
    Seeded(PartialTxEvent<'a>) = 2, "seeded";
    /// A mined block, see [`BlockMined`].
    BlockMined(BlockMined<'a>) = 3, "block-mined";
    /// A change of the longest chain, see [`Reorg`].
    Reorg(Reorg<'a>) = 4, "reorg";
    /// A transaction for the sequencer, see [`Contest`].
    Contest(Contest) = 5, "contest";
    /// A requested change, see [`Command`].
    Command(Command<'a>) = 6, "command";
    /// A step of the sequencer, see [`Decision`].
    Decision(Decision) = 7, "decision";
    /// A result for clients, see [`OutcomeEvent`].
    Outcome(OutcomeEvent) = 8, "outcome";
    /// A whole transaction whose body is an object, see [`ValidatedReference`].
    ValidatedReference(ValidatedReference) = 9, "validated-reference";
    /// A partial transaction whose outputs are an object, see [`PartialTxReference`].
    SeededReference(PartialTxReference) = 10, "seeded-reference";
    /// Transactions with one result, for clients, see [`OutcomeBatch`].
    OutcomeBatch(OutcomeBatch<'a>) = 11, "outcome-batch";
    /// Steps of the sequencer on several events, see [`DecisionGroup`].
    DecisionGroup(DecisionGroup) = 12, "decision-group";
    /// Verdicts of one block, see [`DecisionRun`].
    DecisionRun(DecisionRun) = 13, "decision-run";
}

impl Event<'_> {
    /// Returns the offset of `utxo.decisions` at which the event counts; `None`: the event counts at any offset.
    pub fn position(&self) -> Option<u64> {
        match self {
            Event::DecisionGroup(group) => Some(group.position),
            Event::DecisionRun(run) => Some(run.position),
            _ => None,
        }
    }

    /// Returns the decisions of a message of `utxo.decisions` at this offset, by event and step. A void group and a
    /// void run have none; `None`: the event is no decision.
    pub fn into_decisions(self, offset: u64) -> Option<Vec<Decision>> {
        let is_void = self.position().is_some_and(|position| position != offset);
        match self {
            Event::Decision(decision) => Some(vec![decision]),
            Event::DecisionGroup(_) | Event::DecisionRun(_) if is_void => Some(Vec::new()),
            Event::DecisionGroup(group) => Some(group.into_decisions().collect()),
            Event::DecisionRun(run) => Some(run.into_decisions().collect()),
            _ => None,
        }
    }

    /// Decodes the decisions of a message of `utxo.decisions` at this offset. A message that is no decision has none.
    pub fn decode_decisions(message: &[u8], offset: u64) -> Vec<Decision> {
        Event::decode(message).ok().and_then(|event| event.into_decisions(offset)).unwrap_or_default()
    }

    /// Returns the object with the body of the event's transaction; `None`: the body is in the message.
    pub fn body_reference(&self) -> Option<&BodyReference> {
        match self {
            Event::ValidatedReference(event) => Some(&event.tx),
            Event::SeededReference(event) => Some(&event.outputs),
            _ => None,
        }
    }

    /// Returns the length in bytes of the object to which a message refers; `None`: the message refers to no object.
    pub fn referenced_length(message: &[u8]) -> Option<u64> {
        let is_reference = message
            .get(2)
            .is_some_and(|kind| *kind == Kind::ValidatedReference as u8 || *kind == Kind::SeededReference as u8);
        let event = if is_reference { Event::decode(message).ok() } else { None };
        event.as_ref().and_then(Event::body_reference).map(|reference| reference.length)
    }
}

/// Splits a message into its kind and its body.
fn open_envelope(message: &[u8]) -> Result<(Kind, &[u8]), DecodeError> {
    let Some((&[magic, version, number], body)) = message.split_first_chunk::<ENVELOPE_LEN>() else {
        return Err(DecodeProblem::NoEnvelope(message.len()).into());
    };
    if magic != MAGIC {
        return Err(DecodeProblem::Magic(magic).into());
    }
    if version != SCHEMA_VERSION {
        return Err(DecodeProblem::Version(version).into());
    }
    match Kind::ALL.into_iter().find(|kind| *kind as u8 == number) {
        Some(kind) => Ok((kind, body)),
        None => Err(DecodeProblem::Kind(number).into()),
    }
}

/// Begins a message: the envelope, ready for the body.
fn begin_message(kind: Kind) -> BodyWriter {
    let mut message = Vec::with_capacity(match kind {
        Kind::Validated | Kind::Seeded => USUAL_TRANSACTION_LEN,
        _ => USUAL_MESSAGE_LEN,
    });
    message.extend([MAGIC, SCHEMA_VERSION, kind as u8]);
    BodyWriter::new(message)
}
