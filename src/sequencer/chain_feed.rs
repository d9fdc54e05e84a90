//! Copies blocks and reorgs from their topics into `utxo.chain`, in the order of their `sequence`.
//!
//! The instance that has the chain partition runs the feed. A former owner that does not know that it lost the
//! partition may copy an event twice; the sequencer skips the repeat by its sequence number.

mod topic_reader;

use std::time::Duration;

use bytes::Bytes;
use tokio::{sync::watch, time::Instant};
use topic_reader::{TopicReader, log_reader, read_passing_deleted};

use crate::{
    broker::{
        BrokerError, BrokerErrorKind, Message, OutgoingMessage, TopicPartition, produce_until_acknowledged,
        retry::{read_or_reopen, until_answered},
    },
    event::{DeadLetterClass, Event},
    record::{Key, Record},
    sequencer::{
        SequencerError, SequencerParts,
        copied_sequences::CopiedSequences,
        dead_letters::RefusedMessage,
        state::ChainState,
        waiting::{FEED, report_wait},
    },
    status::Condition,
    text::hex_reversed,
};

/// Header of a copied event: its offset in the topic that it was copied from.
const SOURCE_OFFSET_HEADER: &str = "utxo-source-offset";

/// Header of a copied event: the next offset of the feed in the topic that the event was copied from. Every message
/// below is in the chain up to this event, is a repeat, or is a dead letter. A late event, which was produced behind
/// events with later sequences, has a next offset below its own offset.
const SOURCE_NEXT_HEADER: &str = "utxo-source-next-offset";

/// Header of a copied event: its timestamp in the topic that it was copied from, milliseconds since the epoch. The
/// record in the chain has a timestamp of its own: a topic may refuse timestamps that are too old or too new, or
/// replace them.
const SOURCE_TIMESTAMP_HEADER: &str = "utxo-source-timestamp-ms";

/// The two topics that are copied into the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FeedTopic {
    /// The topic of blocks, `utxo.block-mined`.
    BlockMined,
    /// The topic of reorgs, `utxo.reorgs`.
    Reorgs,
}

/// The next step of the merge of the two topics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MergeStep {
    /// The head of this topic has the next sequence.
    Copy(FeedTopic),
    /// The head of this topic has a sequence that was copied before.
    Skip(FeedTopic),
    /// The next sequence has not been read yet.
    Wait,
    /// The heads of both topics have later sequences than the next one.
    Gap,
}

/// Chooses the next step of the merge. Pure: `next` is the next sequence, the others are the sequences at the heads of
/// the two topics. A topic that has the next sequence among the messages that were read has `next` as its head.
fn choose_step(next: u64, block_mined: Option<u64>, reorg: Option<u64>) -> MergeStep {
    for (source, head) in [(FeedTopic::BlockMined, block_mined), (FeedTopic::Reorgs, reorg)] {
        match head {
            Some(sequence) if sequence < next => return MergeStep::Skip(source),
            Some(sequence) if sequence == next => return MergeStep::Copy(source),
            _ => {}
        }
    }
    if block_mined.is_some() && reorg.is_some() { MergeStep::Gap } else { MergeStep::Wait }
}

/// Next offsets of the two topics. Each event below was copied into the chain, was in it before, or is a dead letter,
/// and each of these is acknowledged. The next owner of the chain continues at these offsets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct FeedProgress {
    /// Next offset of `utxo.block-mined`.
    pub block_mined: u64,
    /// Next offset of `utxo.reorgs`.
    pub reorgs: u64,
    /// Sequence of the last block or reorg below that is in the chain. Once that event is handled, all earlier ones
    /// are.
    pub sequence: u64,
}

/// The feed of one owner of the chain partition.
pub(super) struct ChainFeed {
    block_mined: TopicReader,
    reorgs: TopicReader,
    copied: CopiedSequences,
    progress: watch::Sender<FeedProgress>,
    /// Readiness shows an event whose sequence was used before.
    used_reported: bool,
    gap_since: Option<Instant>,
    gap_reported: bool,
    parts: SequencerParts,
}

/// Messages that are copied at once.
const BATCH: usize = 256;
const RETRY_PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// Time that a sequence may be missing before readiness names it.
const GAP_GRACE: Duration = Duration::from_secs(10);
const IDLE: Duration = Duration::from_millis(20);

impl ChainFeed {
    /// Opens a feed that continues after `state`, the state of the chain at offset `handled`.
    pub async fn open(parts: &SequencerParts, state: &ChainState, handled: u64) -> Result<Self, BrokerError> {
        let (broker, topics) = (parts.broker.as_ref(), &parts.topics);
        let mut feed = ChainFeed {
            block_mined: TopicReader::open(broker, &topics.block_mined, state.block_mined_next).await?,
            reorgs: TopicReader::open(broker, &topics.reorgs, state.reorgs_next).await?,
            copied: CopiedSequences::starting_at(state.sequence.saturating_add(1)),
            progress: watch::Sender::default(),
            used_reported: false,
            gap_since: None,
            gap_reported: false,
            parts: parts.clone(),
        };
        feed.skip_copied_events(handled).await?;
        // The offsets of the state: where the feed has passed over deleted messages, the first report differs.
        let (block_mined, reorgs) = (state.block_mined_next, state.reorgs_next);
        feed.progress.send_replace(FeedProgress { block_mined, reorgs, ..feed.current_progress() });
        Ok(feed)
    }

    /// Skips the events that an earlier owner has copied and that are not handled, from chain offset `handled` on.
    /// Otherwise each restart would copy them again, and the chain would grow by as many.
    async fn skip_copied_events(&mut self, handled: u64) -> Result<(), BrokerError> {
        let broker = self.parts.broker.clone();
        let chain = TopicPartition { topic: self.parts.topics.chain.as_str().into(), partition: 0 };
        let (low, high) = until_answered(|| broker.watermarks(&chain)).await?;
        let mut reader = until_answered(|| broker.read(&chain, handled.clamp(low, high))).await?;
        while reader.position() < high {
            for message in read_or_reopen(&mut reader, broker.as_ref(), &chain, Duration::from_millis(200)).await? {
                // A repeat by a former owner has a lower sequence. The chain has no gap.
                if sequence_of(&message).is_ok_and(|sequence| sequence == self.copied.next_sequence()) {
                    self.copied.push(hash_identity(&message));
                }
            }
        }
        Ok(())
    }

    /// Returns a receiver of the feed's progress.
    pub fn subscribe_progress(&self) -> watch::Receiver<FeedProgress> {
        self.progress.subscribe()
    }

    /// Copies events until an error stops the feed. Cancel safe: the sequencer skips an event that was copied twice.
    pub async fn run(mut self) -> Result<(), SequencerError> {
        loop {
            self.read_heads().await?;
            let batch = self.next_batch().await?;
            if !batch.is_empty() {
                let produced = produce_until_acknowledged(self.parts.producer.as_ref(), &batch, RETRY_PAUSE);
                report_wait(&self.parts, FEED, produced).await.map_err(|error| {
                    if error.kind == BrokerErrorKind::TooLarge { name_too_large(&batch, error) } else { error }
                })?;
            } else if self.are_heads_full() {
                // Neither topic is read, so this sleep is a point where other tasks run and the feed can be cancelled.
                tokio::time::sleep(IDLE).await;
            }
            if batch.is_empty() {
                self.search_ahead().await?;
            }
            let progress = self.current_progress();
            self.progress.send_if_modified(|last| std::mem::replace(last, progress) != progress);
        }
    }

    fn current_progress(&self) -> FeedProgress {
        let sequence = self.copied.next_sequence().saturating_sub(1);
        FeedProgress { block_mined: self.block_mined.next_offset(), reorgs: self.reorgs.next_offset(), sequence }
    }

    /// Returns whether both topics have a full batch of messages of which none is next.
    fn are_heads_full(&self) -> bool {
        [&self.block_mined, &self.reorgs].iter().all(|topic| topic.heads.len() >= BATCH)
    }

    /// Reads both topics. A read waits only while there is no event to copy: a quiet topic must not delay the other.
    async fn read_heads(&mut self) -> Result<(), SequencerError> {
        for source in [FeedTopic::BlockMined, FeedTopic::Reorgs] {
            let wait = if self.has_next() { Duration::ZERO } else { IDLE };
            if self.topic(source).heads.len() >= BATCH {
                continue;
            }
            let topic = match source {
                FeedTopic::BlockMined => &mut self.block_mined,
                FeedTopic::Reorgs => &mut self.reorgs,
            };
            let next = read_passing_deleted(&mut topic.reader, self.parts.broker.as_ref(), &topic.topic, wait);
            let messages = report_wait(&self.parts, FEED, next).await?;
            if !messages.is_empty() {
                // Messages of another topic with the same name are not copied.
                report_wait(&self.parts, FEED, self.parts.guard.confirm(&self.parts.topics.fed())).await?;
            }
            topic.heads.extend(messages.into_iter().map(|message| (sequence_of(&message), message)));
            self.discard_undecodable_heads(source).await?;
        }
        Ok(())
    }

    /// Looks for the next sequence in topics whose messages that were read all have another one. A producer can leave a
    /// number out and produce it later. Such an event is read again at its own place, and is skipped there as a repeat.
    async fn search_ahead(&mut self) -> Result<(), SequencerError> {
        let (broker, next) = (self.parts.broker.clone(), self.copied.next_sequence());
        for source in [FeedTopic::BlockMined, FeedTopic::Reorgs] {
            if self.has_next() || self.topic(source).heads.len() < BATCH {
                continue;
            }
            let topic = match source {
                FeedTopic::BlockMined => &mut self.block_mined,
                FeedTopic::Reorgs => &mut self.reorgs,
            };
            // A search for an earlier sequence may be past this one.
            let mut search = match topic.search.take_if(|(sequence, _)| *sequence == next) {
                Some((_, search)) => search,
                None => {
                    let from = topic.reader.position();
                    report_wait(&self.parts, FEED, log_reader(broker.as_ref(), &topic.topic, from)).await?
                }
            };
            let messages = read_passing_deleted(&mut search, broker.as_ref(), &topic.topic, IDLE);
            let messages = report_wait(&self.parts, FEED, messages).await?;
            if !messages.is_empty() {
                report_wait(&self.parts, FEED, self.parts.guard.confirm(&self.parts.topics.fed())).await?;
            }
            topic.found = messages.into_iter().find(|message| sequence_of(message) == Ok(next)).map(|it| (next, it));
            topic.search = Some((next, search)).filter(|_| topic.found.is_none());
        }
        Ok(())
    }

    /// Publishes dead letters for messages without a sequence, once no message is before them.
    async fn discard_undecodable_heads(&mut self, source: FeedTopic) -> Result<(), BrokerError> {
        while self.topic(source).heads.front().is_some_and(|(sequence, _)| sequence.is_err()) {
            let Some((Err(why), message)) = self.topic(source).heads.pop_front() else { break };
            self.discard(source, DeadLetterClass::Decode, message, why).await?;
        }
        Ok(())
    }

    async fn discard(
        &mut self,
        source: FeedTopic,
        class: DeadLetterClass,
        message: Message,
        why: String,
    ) -> Result<(), BrokerError> {
        let partition = self.topic(source).topic.clone();
        tracing::error!(topic = %partition.topic, offset = message.offset, why, "chain feed: dead letter");
        let refused = RefusedMessage { stage: "feed", partition, message, class, why };
        report_wait(&self.parts, FEED, refused.publish_dead_letter(&self.parts, RETRY_PAUSE)).await
    }

    /// Returns whether an event is a repeat of the one with its sequence. Events that were handled before this feed
    /// began are compared with the blocks of the store.
    async fn is_repeat(&mut self, sequence: u64, message: &Message) -> Result<bool, SequencerError> {
        if let Some(is_repeat) = self.copied.is_repeat(sequence, hash_identity(message)) {
            return Ok(is_repeat);
        }
        let Ok(Event::BlockMined(mined)) = Event::decode(&message.payload) else { return Ok(true) };
        let key = Key::Block(mined.block.block_id);
        let records = report_wait(&self.parts, FEED, self.parts.store.read(vec![key])).await?;
        Ok(matches!(records.first(), Some(Some(Record::Block(stored))) if stored.hash == mined.block.hash))
    }

    /// Refuses an event whose sequence another event had. A producer that starts to count again from the beginning
    /// would otherwise have all its events skipped as repeats. Readiness names the event, since only its producer can
    /// correct it.
    async fn refuse_used_sequence(
        &mut self,
        source: FeedTopic,
        sequence: u64,
        message: Message,
    ) -> Result<(), BrokerError> {
        let what = match Event::decode(&message.payload) {
            Ok(Event::BlockMined(mined)) => format!("block {}", hex_reversed(&mined.block.hash)),
            _ => "a reorg".to_owned(),
        };
        let next = self.copied.next_sequence();
        let why = format!(
            "cannot copy {what}: its sequence {sequence} was used by another event before; {next} is next: have the \
             producer of `{}` continue with {next}",
            self.topic(source).topic.topic
        );
        self.parts.health.set(Condition::ChainFed, Some(why.clone()));
        self.used_reported = true;
        self.discard(source, DeadLetterClass::Invalid, message, why).await
    }

    fn has_next(&self) -> bool {
        let next = self.copied.next_sequence();
        let step = choose_step(next, self.block_mined.head(next), self.reorgs.head(next));
        matches!(step, MergeStep::Copy(_) | MergeStep::Skip(_))
    }

    async fn next_batch(&mut self) -> Result<Vec<OutgoingMessage>, SequencerError> {
        let mut batch = Vec::new();
        while batch.len() < BATCH {
            let next = self.copied.next_sequence();
            let heads = (self.block_mined.head(next), self.reorgs.head(next));
            match choose_step(next, heads.0, heads.1) {
                MergeStep::Copy(source) => {
                    if let Some(message) = self.topic(source).take(next) {
                        // The greatest possible sequence halts the chain with a message of its own.
                        self.copied.push(hash_identity(&message));
                        batch.push(self.copy_to_chain(source, message));
                        self.clear_gap();
                    }
                    self.discard_undecodable_heads(source).await?;
                }
                MergeStep::Skip(source) => {
                    if let Some((sequence, message)) = self.topic(source).take_first()
                        && !self.is_repeat(sequence, &message).await?
                    {
                        self.refuse_used_sequence(source, sequence, message).await?;
                    }
                    self.discard_undecodable_heads(source).await?;
                }
                MergeStep::Wait => {
                    // One topic has a later sequence and the other has no message: the next sequence may still be
                    // produced.
                    let past = heads.0.is_some() || heads.1.is_some();
                    if past && self.gap_since.get_or_insert_with(Instant::now).elapsed() >= GAP_GRACE {
                        self.report_gap(heads);
                    }
                    break;
                }
                MergeStep::Gap => {
                    self.report_gap(heads);
                    break;
                }
            }
        }
        Ok(batch)
    }

    fn clear_gap(&mut self) {
        self.gap_since = None;
        if std::mem::take(&mut self.gap_reported) | std::mem::take(&mut self.used_reported) {
            self.parts.metrics.chain_gap.set(0);
            self.parts.health.set(Condition::ChainFed, None);
        }
    }

    fn report_gap(&mut self, heads: (Option<u64>, Option<u64>)) {
        let next_in = |head: Option<u64>| head.map_or("nothing".to_owned(), |sequence| sequence.to_string());
        let why = format!(
            "sequence {} is missing: in `{}` {} is next, in `{}` {}",
            self.copied.next_sequence(),
            self.parts.topics.block_mined,
            next_in(heads.0),
            self.parts.topics.reorgs,
            next_in(heads.1),
        );
        self.parts.health.set(Condition::ChainFed, Some(why));
        self.parts.metrics.chain_gap.set(1);
        if !std::mem::replace(&mut self.gap_reported, true) {
            tracing::error!(
                missing = self.copied.next_sequence(),
                block_mined = heads.0,
                reorgs = heads.1,
                "chain feed: a sequence number is missing in both topics; the chain waits for it"
            );
        }
    }

    fn topic(&mut self, source: FeedTopic) -> &mut TopicReader {
        match source {
            FeedTopic::BlockMined => &mut self.block_mined,
            FeedTopic::Reorgs => &mut self.reorgs,
        }
    }

    /// Returns the copy of a message that was taken from `source`.
    fn copy_to_chain(&mut self, source: FeedTopic, message: Message) -> OutgoingMessage {
        let next_offset = self.topic(source).next_offset();
        OutgoingMessage {
            topic: self.parts.topics.chain.clone(),
            partition: Some(0),
            key: message.key,
            payload: message.payload,
            headers: [
                (SOURCE_OFFSET_HEADER, message.offset.to_string()),
                (SOURCE_NEXT_HEADER, next_offset.to_string()),
                (SOURCE_TIMESTAMP_HEADER, message.timestamp_ms.to_string()),
            ]
            .map(|(name, value)| (name.to_owned(), Bytes::from(value)))
            .into(),
            timestamp_ms: None,
        }
    }
}

/// Returns the next offset of the feed, as the copy of an event names it; `None`: the event was not copied by the feed.
/// Valid only for messages of the chain: a producer of another topic may write any header. (Earlier versions wrote the
/// offset of the event alone.)
pub(super) fn source_next_offset(message: &Message) -> Option<u64> {
    parse_header(message, SOURCE_NEXT_HEADER)
        .or_else(|| parse_header(message, SOURCE_OFFSET_HEADER).map(|offset: u64| offset.saturating_add(1)))
}

/// Returns the time at which an event of the chain was produced, milliseconds since the epoch: the timestamp in the
/// topic that it was copied from, or else in the chain. (Earlier versions copied it with the timestamp of its source.)
/// Valid only for messages of the chain.
pub fn produced_at_ms(message: &Message) -> i64 {
    parse_header(message, SOURCE_TIMESTAMP_HEADER).unwrap_or(message.timestamp_ms)
}

fn parse_header<N: std::str::FromStr>(message: &Message, header: &str) -> Option<N> {
    let (_, value) = message.headers.iter().find(|(name, _)| name == header)?;
    std::str::from_utf8(value).ok()?.parse().ok()
}

/// Returns the `sequence` of a block or reorg.
///
/// # Errors
/// The reason why the message is neither.
pub(super) fn sequence_of(message: &Message) -> Result<u64, String> {
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

/// Names the event that is too large for the chain: the largest one of the batch is too large.
fn name_too_large(batch: &[OutgoingMessage], error: BrokerError) -> BrokerError {
    let Some(largest) = batch.iter().max_by_key(|message| message.payload.len()) else { return error };
    let sequence = Event::decode(&largest.payload).ok().and_then(|event| sequence(&event));
    let message = format!(
        "cannot copy the block or reorg with sequence {}: its {} bytes are too many for the chain topic: {}",
        sequence.unwrap_or_default(),
        largest.payload.len(),
        error.message
    );
    BrokerError { message, ..error }
}

/// Returns a hash that distinguishes one block or reorg from another.
fn hash_identity(message: &Message) -> u64 {
    let hash = match Event::decode(&message.payload) {
        Ok(Event::BlockMined(mined)) => mined.block.hash,
        _ => *blake3::hash(&message.payload).as_bytes(),
    };
    let [first, ..] = *hash.as_chunks::<8>().0 else { return 0 };
    u64::from_le_bytes(first)
}

#[cfg(test)]
#[path = "chain_feed_tests.rs"]
mod tests;
