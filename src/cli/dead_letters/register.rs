//! Finds the dead letters of the topic that are not settled and match a filter. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use clap::Args;
use serde::Serialize;

use crate::{
    broker::Message,
    cli::timestamp::Timestamp,
    event::{DeadLetter, DeadLetterClass, DeadLetterSettlement, SettlementKind},
    tx::Txid,
};

/// Filter of dead letters: a dead letter must match every given option.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct Filter {
    /// Class of the error: decode, invalid, missing-parent, seed-mismatch, unsupported
    #[arg(long, value_name = "CLASS")]
    class: Option<DeadLetterClass>,
    /// Topic of the source message
    #[arg(long, value_name = "TOPIC")]
    topic: Option<String>,
    /// Partition of the source message
    #[arg(long, value_name = "N")]
    partition: Option<i32>,
    /// First offset of the source message, inclusive
    #[arg(long, value_name = "OFFSET")]
    from_offset: Option<u64>,
    /// Last offset of the source message, inclusive
    #[arg(long, value_name = "OFFSET")]
    to_offset: Option<u64>,
    /// Earliest time of the source message, inclusive: RFC 3339, or milliseconds since 1970
    #[arg(long, value_name = "T")]
    from_timestamp: Option<Timestamp>,
    /// Latest time of the source message, inclusive: RFC 3339, or milliseconds since 1970
    #[arg(long, value_name = "T")]
    to_timestamp: Option<Timestamp>,
    /// Transaction of the source message, by the key of the message
    #[arg(long, value_name = "TXID")]
    txid: Option<Txid>,
    /// Text that the reason contains
    #[arg(long, value_name = "TEXT")]
    contains: Option<String>,
}

impl Filter {
    /// Returns whether the filter matches every dead letter, because no option was given.
    pub fn is_empty(&self) -> bool {
        *self == Filter::default()
    }

    fn matches_all(&self, letter: &DeadLetter, txid: Option<Txid>) -> bool {
        fn matches<T: PartialEq>(wanted: &Option<T>, actual: &T) -> bool {
            wanted.as_ref().is_none_or(|wanted| wanted == actual)
        }
        matches(&self.class, &letter.class)
            && matches(&self.topic, &letter.topic)
            && matches(&self.partition, &letter.partition)
            && self.from_offset.is_none_or(|from| letter.offset >= from)
            && self.to_offset.is_none_or(|to| letter.offset <= to)
            && self.from_timestamp.is_none_or(|Timestamp(from)| letter.timestamp_ms >= from)
            && self.to_timestamp.is_none_or(|Timestamp(to)| letter.timestamp_ms <= to)
            && self.txid.is_none_or(|wanted| txid == Some(wanted))
            && self.contains.as_ref().is_none_or(|text| letter.message.contains(text))
    }
}

/// Topic, partition, offset and timestamp of a source message identify its dead letter, however often that was written.
/// The timestamp distinguishes a recreated topic, in which another message has the same offset.
type Source = (String, i32, u64, Option<i64>);

fn source_of(letter: &DeadLetter) -> Source {
    (letter.topic.clone(), letter.partition, letter.offset, Some(letter.timestamp_ms))
}

/// Returns the transaction that a dead letter's key names. Keys of blocks, reorgs and events of the chain log do not
/// name a transaction.
fn txid_of(letter: &DeadLetter, key: &[u8]) -> Option<Txid> {
    let key_is_txid = match letter.stage.as_str() {
        "feed" => false,
        "sequencer" => letter.class == DeadLetterClass::MissingParent,
        _ => true,
    };
    <[u8; 32]>::try_from(key).ok().map(Txid).filter(|_| key_is_txid)
}

/// A dead letter, without its payload.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DeadLetterEntry {
    /// Partition of the dead letter in its own topic.
    pub at_partition: i32,
    /// Offset of the dead letter in that partition.
    pub at_offset: u64,
    /// Content of the dead letter's headers.
    #[serde(flatten)]
    pub letter: DeadLetter,
    /// Transaction that the key names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub txid: Option<Txid>,
    /// Result of the replay or discard that settled the dead letter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settled: Option<SettlementKind>,
}

impl fmt::Display for DeadLetterEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DeadLetter { topic, partition, offset, class, message, .. } = &self.letter;
        write!(f, "{topic} partition {partition} offset {offset}: {}: {message}", class.name())?;
        if let Some(txid) = self.txid {
            write!(f, " (transaction {txid})")?;
        }
        match self.settled {
            Some(SettlementKind::Replayed) => f.write_str(", replayed"),
            Some(SettlementKind::Discarded) => f.write_str(", discarded"),
            None => Ok(()),
        }
    }
}

/// Dead letters and settlements that were read from the topic.
#[derive(Debug)]
pub struct Register<'a> {
    filter: &'a Filter,
    settled: BTreeMap<Source, SettlementKind>,
    seen: BTreeSet<Source>,
    listed: Vec<DeadLetterEntry>,
}

impl<'a> Register<'a> {
    /// Starts a register of the dead letters that match the filter.
    pub fn new(filter: &'a Filter) -> Self {
        Register { filter, settled: BTreeMap::new(), seen: BTreeSet::new(), listed: Vec::new() }
    }

    /// Adds the next message of a partition.
    pub fn add(&mut self, at_partition: i32, message: &Message) {
        if let Ok(settlement) = DeadLetterSettlement::from_headers(&message.headers) {
            let DeadLetterSettlement { topic, partition, offset, timestamp_ms, settled } = settlement;
            self.settled.insert((topic, partition, offset, timestamp_ms), settled);
        }
        let Ok(letter) = DeadLetter::from_headers(&message.headers) else { return };
        let txid = txid_of(&letter, &message.key);
        if self.filter.matches_all(&letter, txid) && self.seen.insert(source_of(&letter)) {
            self.listed.push(DeadLetterEntry { at_partition, at_offset: message.offset, letter, txid, settled: None });
        }
    }

    /// Returns each dead letter once, in the order of the messages, with or without the settled ones. A settlement
    /// counts wherever it is in the topic.
    pub fn finish(self, include_settled: bool) -> Vec<DeadLetterEntry> {
        let Register { settled, listed, .. } = self;
        let entries = listed.into_iter().map(|entry| {
            let source = source_of(&entry.letter);
            // Settlements of earlier versions have no timestamp.
            let without_time = (source.0.clone(), source.1, source.2, None);
            let settled = settled.get(&source).or_else(|| settled.get(&without_time)).copied();
            DeadLetterEntry { settled, ..entry }
        });
        entries.filter(|entry| include_settled || entry.settled.is_none()).collect()
    }
}

#[cfg(test)]
mod tests {
    use strum::IntoEnumIterator;

    use super::*;

    fn message(offset: u64, key: &[u8], headers: Vec<(String, bytes::Bytes)>) -> Message {
        Message { offset, timestamp_ms: 0, key: key.to_vec().into(), payload: Default::default(), headers }
    }

    fn letter(offset: u64, class: DeadLetterClass) -> DeadLetter {
        let message = format!("why {offset}");
        DeadLetter {
            topic: "txs".into(),
            partition: 1,
            offset,
            stage: "prepare".into(),
            class,
            message,
            timestamp_ms: 100 + offset as i64,
        }
    }

    fn listed_offsets(messages: &[Message], filter: &Filter, include_settled: bool) -> Vec<u64> {
        let mut register = Register::new(filter);
        messages.iter().for_each(|message| register.add(0, message));
        register.finish(include_settled).iter().map(|entry| entry.letter.offset).collect()
    }

    #[test]
    fn dead_letters_are_listed_once_until_settled_in_any_order() {
        let (offset, timestamp_ms) = (8, None);
        let settled = DeadLetterSettlement {
            topic: "txs".into(),
            partition: 1,
            offset,
            timestamp_ms,
            settled: SettlementKind::Replayed,
        };
        let messages = [
            message(0, &[7; 32], letter(7, DeadLetterClass::Decode).to_headers()),
            message(1, &[8; 32], settled.to_headers()),
            message(2, &[8; 32], letter(8, DeadLetterClass::MissingParent).to_headers()),
            message(3, &[7; 32], letter(7, DeadLetterClass::Decode).to_headers()),
            message(4, b"", vec![]),
        ];
        assert_eq!(listed_offsets(&messages, &Filter::default(), false), [7]);
        assert_eq!(listed_offsets(&messages, &Filter::default(), true), [7, 8]);
    }

    /// The source message of the second dead letter has foreign settlement headers. The source topic of the third was
    /// created again.
    #[test]
    fn foreign_headers_and_settlements_of_a_recreated_topic_settle_nothing() {
        let settlement = |offset, timestamp_ms| {
            let settled = SettlementKind::Discarded;
            DeadLetterSettlement { topic: "txs".into(), partition: 1, offset, timestamp_ms, settled }.to_headers()
        };
        let spoofed = [settlement(8, None), letter(8, DeadLetterClass::Decode).to_headers()].concat();
        let recreated = DeadLetter { timestamp_ms: 5_000, ..letter(7, DeadLetterClass::Decode) };
        let messages = [
            message(0, &[7; 32], letter(7, DeadLetterClass::Decode).to_headers()),
            message(1, &[8; 32], spoofed),
            message(2, &[9; 32], recreated.to_headers()),
            message(3, &[7; 32], settlement(7, Some(107))),
        ];
        assert_eq!(listed_offsets(&messages, &Filter::default(), false), [8, 7]);
        assert_eq!(listed_offsets(&messages, &Filter::default(), true), [7, 8, 7]);
    }

    #[test]
    fn a_key_names_a_transaction_only_in_stages_of_transactions() {
        let of = |stage: &str, class| {
            let letter = DeadLetter { stage: stage.into(), ..letter(1, class) };
            txid_of(&letter, &[7; 32]).is_some()
        };
        assert!(of("prepare", DeadLetterClass::Decode) && of("sequencer", DeadLetterClass::MissingParent));
        assert!(!of("feed", DeadLetterClass::Invalid) && !of("sequencer", DeadLetterClass::Decode));
    }

    #[test]
    fn a_filter_matches_only_if_every_option_matches() {
        let messages: Vec<_> = (0..4u8)
            .map(|n| {
                message(
                    n.into(),
                    &[n; 32],
                    letter(n.into(), DeadLetterClass::iter().nth(n.into()).unwrap()).to_headers(),
                )
            })
            .collect();
        let of = |filter: Filter| listed_offsets(&messages, &filter, false);
        let none = Filter::default;
        assert_eq!(of(Filter { class: Some(DeadLetterClass::MissingParent), ..none() }), [2]);
        assert_eq!(of(Filter { from_offset: Some(1), to_offset: Some(2), ..none() }), [1, 2]);
        let (from_timestamp, to_timestamp) = (Some(Timestamp(102)), Some(Timestamp(102)));
        assert_eq!(of(Filter { from_timestamp, ..none() }), [2, 3]);
        assert_eq!(of(Filter { from_timestamp, to_timestamp, ..none() }), [2]);
        assert_eq!(of(Filter { txid: Some(Txid([3; 32])), ..none() }), [3]);
        assert_eq!(of(Filter { contains: Some("why 0".into()), ..none() }), [0]);
        assert_eq!(of(Filter { topic: Some("blocks".into()), ..none() }), [0; 0]);
        assert_eq!(of(Filter { partition: Some(0), ..none() }), [0; 0]);
        assert!(none().is_empty() && !Filter { partition: Some(0), ..none() }.is_empty());
    }
}
