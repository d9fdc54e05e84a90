//! Which messages of the topic are dead letters that wait for somebody, and which of those were meant. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use clap::Args;
use serde::Serialize;

use crate::{
    broker::Message,
    cli::timestamp::Timestamp,
    event::{DeadLetter, DeadLetterClass, Settled, Settlement},
    tx::Txid,
};

/// Which dead letters are meant: those that all of it is true of.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct Filter {
    /// Of this class: decode, invalid, missing-parent, seed-mismatch, unsupported
    #[arg(long, value_name = "CLASS")]
    class: Option<DeadLetterClass>,
    /// Whose source message is in this topic
    #[arg(long, value_name = "TOPIC")]
    topic: Option<String>,
    /// Whose source message is in this partition
    #[arg(long, value_name = "N")]
    partition: Option<i32>,
    /// Whose source message has this offset, or a greater one
    #[arg(long, value_name = "OFFSET")]
    from_offset: Option<u64>,
    /// Whose source message has this offset, or a smaller one
    #[arg(long, value_name = "OFFSET")]
    to_offset: Option<u64>,
    /// Whose source message is of this time, or a later one: RFC 3339, or milliseconds since 1970
    #[arg(long, value_name = "T")]
    from_timestamp: Option<Timestamp>,
    /// Whose source message is of this time, or an earlier one
    #[arg(long, value_name = "T")]
    to_timestamp: Option<Timestamp>,
    /// Of this transaction, by the message's key
    #[arg(long, value_name = "TXID")]
    txid: Option<Txid>,
    /// Whose reason has this text in it
    #[arg(long, value_name = "TEXT")]
    contains: Option<String>,
}

impl Filter {
    /// Whether it means all of them.
    pub fn is_empty(&self) -> bool {
        *self == Filter::default()
    }

    fn means(&self, letter: &DeadLetter, txid: Option<Txid>) -> bool {
        fn is<T: PartialEq>(wanted: &Option<T>, there: &T) -> bool {
            wanted.as_ref().is_none_or(|wanted| wanted == there)
        }
        is(&self.class, &letter.class)
            && is(&self.topic, &letter.topic)
            && is(&self.partition, &letter.partition)
            && self.from_offset.is_none_or(|from| letter.offset >= from)
            && self.to_offset.is_none_or(|to| letter.offset <= to)
            && self.from_timestamp.is_none_or(|Timestamp(from)| letter.timestamp_ms >= from)
            && self.to_timestamp.is_none_or(|Timestamp(to)| letter.timestamp_ms <= to)
            && self.txid.is_none_or(|wanted| txid == Some(wanted))
            && self.contains.as_ref().is_none_or(|text| letter.message.contains(text))
    }
}

/// Topic, partition, offset and timestamp of a source message: by these its dead letter is known, however often it was
/// written. A topic that was created again has another message at the same offset.
type Source = (String, i32, u64, Option<i64>);

fn source_of(letter: &DeadLetter) -> Source {
    (letter.topic.clone(), letter.partition, letter.offset, Some(letter.timestamp_ms))
}

/// The transaction that a dead letter's key names. Blocks, reorgs and events of the chain have keys that mean something
/// else.
fn txid_of(letter: &DeadLetter, key: &[u8]) -> Option<Txid> {
    let is_of_a_transaction = match letter.stage.as_str() {
        "feed" => false,
        "sequencer" => letter.class == DeadLetterClass::MissingParent,
        _ => true,
    };
    <[u8; 32]>::try_from(key).ok().map(Txid).filter(|_| is_of_a_transaction)
}

/// A dead letter, without its payload.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Listed {
    /// Its partition in the topic of dead letters.
    pub at_partition: i32,
    /// Its offset there.
    pub at_offset: u64,
    /// What it says.
    #[serde(flatten)]
    pub letter: DeadLetter,
    /// By its key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub txid: Option<Txid>,
    /// What was done with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settled: Option<Settled>,
}

impl fmt::Display for Listed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DeadLetter { topic, partition, offset, class, message, .. } = &self.letter;
        write!(f, "{topic} partition {partition} offset {offset}: {}: {message}", class.name())?;
        if let Some(txid) = self.txid {
            write!(f, " (transaction {txid})")?;
        }
        match self.settled {
            Some(Settled::Replayed) => f.write_str(", replayed"),
            Some(Settled::Discarded) => f.write_str(", discarded"),
            None => Ok(()),
        }
    }
}

/// The topic as it is read.
#[derive(Debug)]
pub struct Register<'a> {
    filter: &'a Filter,
    settled: BTreeMap<Source, Settled>,
    seen: BTreeSet<Source>,
    listed: Vec<Listed>,
}

impl<'a> Register<'a> {
    /// Of what is meant.
    pub fn new(filter: &'a Filter) -> Self {
        Register { filter, settled: BTreeMap::new(), seen: BTreeSet::new(), listed: Vec::new() }
    }

    /// The next message of a partition.
    pub fn take(&mut self, at_partition: i32, message: &Message) {
        if let Ok(settlement) = Settlement::from_headers(&message.headers) {
            let Settlement { topic, partition, offset, timestamp_ms, settled } = settlement;
            self.settled.insert((topic, partition, offset, timestamp_ms), settled);
        }
        let Ok(letter) = DeadLetter::from_headers(&message.headers) else { return };
        let txid = txid_of(&letter, &message.key);
        if self.filter.means(&letter, txid) && self.seen.insert(source_of(&letter)) {
            self.listed.push(Listed { at_partition, at_offset: message.offset, letter, txid, settled: None });
        }
    }

    /// Each of them once, in the order they stand in; a settlement counts wherever it stands.
    pub fn finish(self, settled_too: bool) -> Vec<Listed> {
        let Register { settled, listed, .. } = self;
        let known = listed.into_iter().map(|listed| {
            let source = source_of(&listed.letter);
            // As an earlier version has noted it.
            let without_time = (source.0.clone(), source.1, source.2, None);
            let settled = settled.get(&source).or_else(|| settled.get(&without_time)).copied();
            Listed { settled, ..listed }
        });
        known.filter(|listed| settled_too || listed.settled.is_none()).collect()
    }
}

#[cfg(test)]
mod tests {
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

    fn listed(messages: &[Message], filter: &Filter, settled_too: bool) -> Vec<u64> {
        let mut register = Register::new(filter);
        messages.iter().for_each(|message| register.take(0, message));
        register.finish(settled_too).iter().map(|listed| listed.letter.offset).collect()
    }

    #[test]
    fn each_is_listed_once_until_it_is_settled_in_whatever_order_they_stand() {
        let (offset, timestamp_ms) = (8, None);
        let settled =
            Settlement { topic: "txs".into(), partition: 1, offset, timestamp_ms, settled: Settled::Replayed };
        let messages = [
            message(0, &[7; 32], letter(7, DeadLetterClass::Decode).to_headers()),
            message(1, &[8; 32], settled.to_headers()),
            message(2, &[8; 32], letter(8, DeadLetterClass::MissingParent).to_headers()),
            message(3, &[7; 32], letter(7, DeadLetterClass::Decode).to_headers()),
            message(4, b"", vec![]),
        ];
        assert_eq!(listed(&messages, &Filter::default(), false), [7]);
        assert_eq!(listed(&messages, &Filter::default(), true), [7, 8]);
    }

    /// The source of the second one is a stranger's message that bears headers of ours. The third one is of a topic
    /// that was created again.
    #[test]
    fn headers_of_a_source_message_settle_nothing_and_neither_does_what_was_done_with_another_topic_of_the_name() {
        let settlement = |offset, timestamp_ms| {
            let settled = Settled::Discarded;
            Settlement { topic: "txs".into(), partition: 1, offset, timestamp_ms, settled }.to_headers()
        };
        let spoofed = [settlement(8, None), letter(8, DeadLetterClass::Decode).to_headers()].concat();
        let anew = DeadLetter { timestamp_ms: 5_000, ..letter(7, DeadLetterClass::Decode) };
        let messages = [
            message(0, &[7; 32], letter(7, DeadLetterClass::Decode).to_headers()),
            message(1, &[8; 32], spoofed),
            message(2, &[9; 32], anew.to_headers()),
            message(3, &[7; 32], settlement(7, Some(107))),
        ];
        assert_eq!(listed(&messages, &Filter::default(), false), [8, 7]);
        assert_eq!(listed(&messages, &Filter::default(), true), [7, 8, 7]);
    }

    #[test]
    fn a_key_names_a_transaction_only_where_it_is_one() {
        let of = |stage: &str, class| {
            let letter = DeadLetter { stage: stage.into(), ..letter(1, class) };
            txid_of(&letter, &[7; 32]).is_some()
        };
        assert!(of("prepare", DeadLetterClass::Decode) && of("sequencer", DeadLetterClass::MissingParent));
        assert!(!of("feed", DeadLetterClass::Invalid) && !of("sequencer", DeadLetterClass::Decode));
    }

    #[test]
    fn a_filter_means_what_all_of_it_is_true_of() {
        let messages: Vec<_> = (0..4u8)
            .map(|n| message(n.into(), &[n; 32], letter(n.into(), DeadLetterClass::ALL[n as usize]).to_headers()))
            .collect();
        let of = |filter: Filter| listed(&messages, &filter, false);
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
