//! Feeds `utxo.chain` from the block-mined and reorg topics, in the order of their `sequence`.
//!
//! Whoever holds the chain partition feeds it. What a zombie feeds twice is passed over by its sequence number.

use std::{collections::VecDeque, time::Duration};

use bytes::Bytes;
use tokio::{sync::watch, time::Instant};

use crate::{
    broker::{
        Broker, BrokerError, BrokerErrorKind, Message, Produce, Reader, TopicPartition, produce_until_acknowledged,
        retry::{next_messages, until_answered},
    },
    event::{DeadLetter, DeadLetterClass, Event},
    group::dead_letters::publish_dead_letter,
    record::{Key, Record},
    sequencer::{SequencerParts, Stop, fed::Fed, state::ChainState, waiting::Waiting},
    status::Condition,
    telemetry::Metrics,
    text::hex_reversed,
};

/// Header of a fed event: its own offset in the topic that it comes from.
pub const SOURCE_OFFSET: &str = "utxo-source-offset";

/// Header of a fed event: its timestamp in the topic that it comes from, milliseconds since the epoch. The record in
/// the chain has a time of its own: a topic may refuse timestamps that are too old or too new, or replace them.
pub const SOURCE_TIMESTAMP: &str = "utxo-source-timestamp-ms";

/// The two topics that are fed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// `utxo.block-mined`
    BlockMined,
    /// `utxo.reorgs`
    Reorgs,
}

/// What the feed does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// The head of this topic is next.
    Feed(Source),
    /// The head of this topic was fed before.
    Skip(Source),
    /// What is next has not come yet.
    Wait,
    /// Both topics have gone past what is next.
    Gap,
}

/// Merges by sequence. Pure: `next` is the sequence to come, the others the heads of the two topics.
pub fn choose(next: u64, block_mined: Option<u64>, reorg: Option<u64>) -> Choice {
    for (source, head) in [(Source::BlockMined, block_mined), (Source::Reorgs, reorg)] {
        match head {
            Some(sequence) if sequence < next => return Choice::Skip(source),
            Some(sequence) if sequence == next => return Choice::Feed(source),
            _ => {}
        }
    }
    if block_mined.is_some() && reorg.is_some() { Choice::Gap } else { Choice::Wait }
}

struct Tap {
    topic: TopicPartition,
    reader: Box<dyn Reader>,
    /// What was read and waits for its turn, with its sequence; or why it has none.
    heads: VecDeque<(Result<u64, String>, Message)>,
}

/// Where the two topics go on, next to read: everything below is in the chain, was there before, or is a dead letter, each of them
/// acknowledged. Whoever takes the chain next need not look at it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Passed {
    /// Of `utxo.block-mined`.
    pub block_mined: u64,
    /// Of `utxo.reorgs`.
    pub reorgs: u64,
    /// Sequence of the last block or reorg below that is in the chain: once that is handled, so is everything below.
    pub sequence: u64,
}

/// The feed of one holder of the chain partition.
pub struct Feed {
    block_mined: Tap,
    reorgs: Tap,
    fed: Fed,
    passed: watch::Sender<Passed>,
    /// Readiness names something whose sequence was used before.
    told_used: bool,
    gap_since: Option<Instant>,
    gap_told: bool,
    parts: SequencerParts,
}

/// Messages fed at once.
const BATCH: usize = 256;
const RETRY_PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// How long a sequence number may be missing before that is said.
const GAP_GRACE: Duration = Duration::from_secs(10);
const IDLE: Duration = Duration::from_millis(20);

impl Feed {
    /// A feed that goes on after `state`, which is that of chain offset `handled`.
    pub async fn open(parts: &SequencerParts, state: &ChainState, handled: u64) -> Result<Self, BrokerError> {
        let (broker, topics) = (parts.broker.as_ref(), &parts.topics);
        let mut feed = Feed {
            block_mined: Tap::open(broker, &topics.block_mined, state.block_mined_next).await?,
            reorgs: Tap::open(broker, &topics.reorgs, state.reorgs_next).await?,
            fed: Fed::from(state.sequence.saturating_add(1)),
            passed: watch::Sender::default(),
            told_used: false,
            gap_since: None,
            gap_told: false,
            parts: parts.clone(),
        };
        feed.pass_over_fed(handled).await?;
        feed.passed.send_replace(feed.has_passed());
        Ok(feed)
    }

    /// Passes over what an earlier holder has fed and nobody has handled, from chain offset `handled` on: otherwise every
    /// restart would feed it again, and the chain would grow by as much.
    async fn pass_over_fed(&mut self, handled: u64) -> Result<(), BrokerError> {
        let broker = self.parts.broker.clone();
        let chain = TopicPartition { topic: self.parts.topics.chain.as_str().into(), partition: 0 };
        let (low, high) = until_answered(|| broker.watermarks(&chain)).await?;
        let mut reader = until_answered(|| broker.read(&chain, handled.clamp(low, high))).await?;
        while reader.position() < high {
            for message in next_messages(&mut reader, broker.as_ref(), &chain, Duration::from_millis(200)).await? {
                // Repeats of a zombie are below; a gap there cannot be.
                if sequence_of(&message).is_ok_and(|sequence| sequence == self.fed.next()) {
                    self.fed.push(identity(&message));
                }
            }
        }
        Ok(())
    }

    /// How far it is, from now on.
    pub fn passed(&self) -> watch::Receiver<Passed> {
        self.passed.subscribe()
    }

    /// Feeds until it cannot go on. Cancel safe: what was fed twice is passed over.
    pub async fn run(mut self) -> Result<(), Stop> {
        loop {
            self.listen().await?;
            let batch = self.gather().await?;
            if !batch.is_empty() {
                let produced = produce_until_acknowledged(self.parts.producer.as_ref(), &batch, RETRY_PAUSE);
                acknowledged(&self.parts, produced).await.map_err(|error| {
                    if error.kind == BrokerErrorKind::TooLarge { too_large(&batch, error) } else { error }
                })?;
            } else if self.reads_no_further() {
                // Neither topic is listened to, so nothing else here would let others have their turn, nor whoever stops this.
                tokio::time::sleep(IDLE).await;
            }
            let passed = self.has_passed();
            self.passed.send_if_modified(|told| std::mem::replace(told, passed) != passed);
        }
    }

    fn has_passed(&self) -> Passed {
        let sequence = self.fed.next().saturating_sub(1);
        Passed { block_mined: self.block_mined.next(), reorgs: self.reorgs.next(), sequence }
    }

    /// Whether enough waits of both topics, none of which is next.
    fn reads_no_further(&self) -> bool {
        [&self.block_mined, &self.reorgs].iter().all(|tap| tap.heads.len() >= BATCH)
    }

    /// Waits only while there is nothing to feed: one topic that is quiet must not hold up the other.
    async fn listen(&mut self) -> Result<(), Stop> {
        for source in [Source::BlockMined, Source::Reorgs] {
            let wait = if self.has_next() { Duration::ZERO } else { IDLE };
            if self.tap(source).heads.len() >= BATCH {
                continue;
            }
            let tap = match source {
                Source::BlockMined => &mut self.block_mined,
                Source::Reorgs => &mut self.reorgs,
            };
            let next = next_messages(&mut tap.reader, self.parts.broker.as_ref(), &tap.topic, wait);
            let messages = acknowledged(&self.parts, next).await?;
            if !messages.is_empty() {
                // What was read of another topic of that name is not fed.
                acknowledged(&self.parts, self.parts.guard.confirm(&self.parts.topics.fed())).await?;
            }
            tap.heads.extend(messages.into_iter().map(|message| (sequence_of(&message), message)));
            self.bury_heads(source).await?;
        }
        Ok(())
    }

    /// What has no sequence has its turn when nothing is before it.
    async fn bury_heads(&mut self, source: Source) -> Result<(), BrokerError> {
        while self.tap(source).heads.front().is_some_and(|(sequence, _)| sequence.is_err()) {
            let Some((Err(why), message)) = self.tap(source).heads.pop_front() else { break };
            self.bury(source, DeadLetterClass::Decode, message, why).await?;
        }
        Ok(())
    }

    async fn bury(
        &mut self,
        source: Source,
        class: DeadLetterClass,
        message: Message,
        why: String,
    ) -> Result<(), BrokerError> {
        let from = self.tap(source).topic.clone();
        let letter = dead_letter(&self.parts.metrics, &from, &message, class, why);
        let (producer, topic) = (self.parts.producer.as_ref(), self.parts.topics.dead_letters.as_str());
        acknowledged(&self.parts, publish_dead_letter(producer, topic, message, &letter, RETRY_PAUSE)).await
    }

    /// Whether it was fed before, under its sequence. Of what was handled before this feed began the store knows the blocks.
    async fn is_repeat(&mut self, sequence: u64, message: &Message) -> Result<bool, Stop> {
        if let Some(is_repeat) = self.fed.is_repeat(sequence, identity(message)) {
            return Ok(is_repeat);
        }
        let Ok(Event::BlockMined(mined)) = Event::decode(&message.payload) else { return Ok(true) };
        let key = Key::Block(mined.block.block_id);
        let there = acknowledged(&self.parts, self.parts.store.read(vec![key])).await?;
        Ok(matches!(there.first(), Some(Some(Record::Block(there))) if there.hash == mined.block.hash))
    }

    /// A producer that begins to count anew would have all that it sends passed over for repeats. Who sent it has to look.
    async fn refuse(&mut self, source: Source, sequence: u64, message: Message) -> Result<(), BrokerError> {
        let what = match Event::decode(&message.payload) {
            Ok(Event::BlockMined(mined)) => format!("block {}", hex_reversed(&mined.block.hash)),
            _ => "a reorg".to_owned(),
        };
        let why = format!(
            "{what} has sequence {sequence}, which something else had before it; {} is next, and whoever produces to `{}` goes on \
             with that",
            self.fed.next(),
            self.tap(source).topic.topic
        );
        self.parts.health.set(Condition::ChainFed, Some(why.clone()));
        self.told_used = true;
        self.bury(source, DeadLetterClass::Invalid, message, why).await
    }

    fn has_next(&self) -> bool {
        let choice = choose(self.fed.next(), self.block_mined.head(), self.reorgs.head());
        matches!(choice, Choice::Feed(_) | Choice::Skip(_))
    }

    async fn gather(&mut self) -> Result<Vec<Produce>, Stop> {
        let mut batch = Vec::new();
        while batch.len() < BATCH {
            let heads = (self.block_mined.head(), self.reorgs.head());
            match choose(self.fed.next(), heads.0, heads.1) {
                Choice::Feed(source) => {
                    if let Some((_, message)) = self.tap(source).heads.pop_front() {
                        // The last sequence that there can be halts the chain, which says so.
                        self.fed.push(identity(&message));
                        batch.push(self.to_chain(message));
                        self.end_gap();
                    }
                    self.bury_heads(source).await?;
                }
                Choice::Skip(source) => {
                    if let Some((Ok(sequence), message)) = self.tap(source).heads.pop_front()
                        && !self.is_repeat(sequence, &message).await?
                    {
                        self.refuse(source, sequence, message).await?;
                    }
                    self.bury_heads(source).await?;
                }
                Choice::Wait => {
                    // One topic has gone past it, and the other has nothing: what is next may still be on its way.
                    let past = heads.0.is_some() || heads.1.is_some();
                    if past && self.gap_since.get_or_insert_with(Instant::now).elapsed() >= GAP_GRACE {
                        self.tell_gap(heads);
                    }
                    break;
                }
                Choice::Gap => {
                    self.tell_gap(heads);
                    break;
                }
            }
        }
        Ok(batch)
    }

    fn end_gap(&mut self) {
        self.gap_since = None;
        if std::mem::take(&mut self.gap_told) | std::mem::take(&mut self.told_used) {
            self.parts.metrics.chain_gap.set(0);
            self.parts.health.set(Condition::ChainFed, None);
        }
    }

    fn tell_gap(&mut self, heads: (Option<u64>, Option<u64>)) {
        let shown = |head: Option<u64>| head.map_or("nothing".to_owned(), |sequence| sequence.to_string());
        let why = format!(
            "sequence {} is missing: in `{}` {} is next, in `{}` {}",
            self.fed.next(),
            self.parts.topics.block_mined,
            shown(heads.0),
            self.parts.topics.reorgs,
            shown(heads.1),
        );
        self.parts.health.set(Condition::ChainFed, Some(why));
        self.parts.metrics.chain_gap.set(1);
        if !std::mem::replace(&mut self.gap_told, true) {
            tracing::error!(
                missing = self.fed.next(),
                block_mined = heads.0,
                reorgs = heads.1,
                "a sequence number is missing in both topics; the chain waits for it"
            );
        }
    }

    fn tap(&mut self, source: Source) -> &mut Tap {
        match source {
            Source::BlockMined => &mut self.block_mined,
            Source::Reorgs => &mut self.reorgs,
        }
    }

    fn to_chain(&self, message: Message) -> Produce {
        Produce {
            topic: self.parts.topics.chain.clone(),
            partition: Some(0),
            key: message.key,
            payload: message.payload,
            headers: [
                (SOURCE_OFFSET, message.offset.to_string()),
                (SOURCE_TIMESTAMP, message.timestamp_ms.to_string()),
            ]
            .map(|(name, value)| (name.to_owned(), Bytes::from(value)))
            .into(),
            timestamp_ms: None,
        }
    }
}

/// Waits for the log, which is tried again and again.
async fn acknowledged<T>(parts: &SequencerParts, work: impl Future<Output = T>) -> T {
    Waiting::new(parts, "the feed").of(Condition::ChainFed).until_done(work).await
}

impl Tap {
    async fn open(broker: &dyn Broker, topic: &str, offset: u64) -> Result<Self, BrokerError> {
        let topic = TopicPartition { topic: topic.into(), partition: 0 };
        let reader = until_answered(|| broker.read(&topic, offset)).await?;
        Ok(Tap { topic, reader, heads: VecDeque::new() })
    }

    fn head(&self) -> Option<u64> {
        self.heads.front().and_then(|(sequence, _)| sequence.as_ref().ok().copied())
    }

    /// The first offset that has not had its turn.
    fn next(&self) -> u64 {
        self.heads.front().map_or_else(|| self.reader.position(), |(_, message)| message.offset)
    }
}

/// Where an event of the chain comes from, for the state that is committed with it; `None`: it was not fed. Only for
/// messages of the chain: whoever produces to another topic may write headers of any name.
pub fn source_offset(message: &Message) -> Option<u64> {
    number_in(message, SOURCE_OFFSET)
}

/// When an event of the chain was produced, milliseconds since the epoch: to the topic that it was fed from, or else to
/// the chain. (Earlier versions fed it with the timestamp of its source.) Only for messages of the chain.
pub fn produced_at_ms(message: &Message) -> i64 {
    number_in(message, SOURCE_TIMESTAMP).unwrap_or(message.timestamp_ms)
}

fn number_in<N: std::str::FromStr>(message: &Message, header: &str) -> Option<N> {
    let (_, value) = message.headers.iter().find(|(name, _)| name == header)?;
    std::str::from_utf8(value).ok()?.parse().ok()
}

/// The `sequence` of a block or reorg, or why the message is neither.
pub fn sequence_of(message: &Message) -> Result<u64, String> {
    let event = Event::decode(&message.payload).map_err(|error| error.to_string())?;
    sequence(&event).ok_or_else(|| format!("a {} event does not belong in this topic", event.kind().name()))
}

fn sequence(event: &Event<'_>) -> Option<u64> {
    match event {
        Event::BlockMined(block) => Some(block.sequence),
        Event::Reorg(reorg) => Some(reorg.sequence),
        _ => None,
    }
}

/// Names what is too large for the chain: the largest of the batch is among it.
fn too_large(batch: &[Produce], error: BrokerError) -> BrokerError {
    let Some(largest) = batch.iter().max_by_key(|message| message.payload.len()) else { return error };
    let sequence = Event::decode(&largest.payload).ok().and_then(|event| sequence(&event));
    let message = format!(
        "the block or reorg with sequence {}, of {} bytes, is larger than the chain takes: {}",
        sequence.unwrap_or_default(),
        largest.payload.len(),
        error.message
    );
    BrokerError { message, ..error }
}

/// Tells one block or reorg from another.
fn identity(message: &Message) -> u64 {
    let hash = match Event::decode(&message.payload) {
        Ok(Event::BlockMined(mined)) => mined.block.hash,
        _ => *blake3::hash(&message.payload).as_bytes(),
    };
    let [first, ..] = *hash.as_chunks::<8>().0 else { return 0 };
    u64::from_le_bytes(first)
}

fn dead_letter(
    metrics: &Metrics,
    source: &TopicPartition,
    message: &Message,
    class: DeadLetterClass,
    why: String,
) -> DeadLetter {
    metrics.dead_letters.of(class).inc();
    tracing::error!(topic = %source.topic, offset = message.offset, why, "dead letter");
    DeadLetter {
        topic: source.topic.to_string(),
        partition: source.partition,
        offset: message.offset,
        stage: "feed".to_owned(),
        class,
        message: why,
        timestamp_ms: message.timestamp_ms,
    }
}

#[cfg(test)]
#[path = "feed_tests.rs"]
mod tests;
