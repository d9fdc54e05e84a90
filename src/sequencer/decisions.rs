//! The write-ahead log of decisions: the topic `utxo.decisions`, one partition.
//!
//! The *first* record in the topic for a pair (chain offset, step) counts, whichever sequencer wrote it. The steps of a
//! chain offset are contiguous, and `Closed` is the last. So each sequencer applies the same decisions, after a crash
//! and where two run at once.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;

use crate::{
    broker::{
        Broker, BrokerError, BrokerErrorKind, Message, OutgoingMessage, PartitionReader, Producer, TopicPartition,
        produce_until_acknowledged,
        retry::{read_or_reopen, until_answered},
    },
    engine::EngineError,
    event::{Decision, DecisionBody, Event, LiftedOutput},
    sequencer::{
        SequencerParts,
        decided_chunks::{KeptChunks, StepRecord},
        decision_parts,
        reader_cache::ReaderCache,
        waiting::{DECISIONS, report_wait},
    },
    store::meta::read_topic_id,
};

/// The decisions by chain offset. Pure: messages are added in the order of the topic.
///
/// The tables of a sequencer and of a rebuild leave chunks of descendants in the topic. Every other table has all
/// decisions.
#[derive(Debug, Default)]
pub struct DecisionTable {
    pub(super) by_offset: BTreeMap<u64, EventSteps>,
    pub(super) kept: KeptChunks,
    /// All events below this chain offset are handled: later records for them (repeats, or of a former owner) do not
    /// count.
    floor: u64,
}

#[derive(Debug)]
pub(super) struct EventSteps {
    first_seen_at: u64,
    pub(super) steps: Vec<StepRecord>,
}

impl EventSteps {
    fn from_position(first_seen_at: u64) -> Self {
        EventSteps { first_seen_at, steps: Vec::new() }
    }

    fn push(&mut self, body: DecisionBody, at: u64) {
        self.steps.push(StepRecord { body: Some(Box::new(body)), at });
    }

    /// Returns the contents from a step on, up to a chunk that is only in the topic.
    pub(super) fn bodies_from(&self, step: u32) -> impl Iterator<Item = &DecisionBody> {
        self.steps.iter().skip(step as usize).map_while(|record| record.body.as_deref())
    }
}

/// A message of the decisions topic that is no decision, or that skips a step.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants and name the fields")]
pub enum BadDecision {
    /// The message cannot be decoded, or is another event; its offset and the reason.
    #[error("offset {0} of the decisions topic holds no decision: {1}")]
    NotADecision(u64, String),
    #[error(
        "offset {at} of the decisions topic has step {found} on chain offset {chain_offset}; \
         step {expected} is next"
    )]
    Gap { at: u64, chain_offset: u64, found: u32, expected: u32 },
    #[error("offset {at} of the decisions topic no longer has step {step} on chain offset {chain_offset}")]
    Lost { at: u64, chain_offset: u64, step: u32 },
}

impl DecisionTable {
    /// Creates a table for a sequencer that continues at this chain offset.
    pub fn from_offset(floor: u64) -> Self {
        DecisionTable { floor, ..DecisionTable::default() }
    }

    /// Leaves all but the newest chunks of descendants in the topic; those in memory have about `limit` bytes.
    pub fn with_kept_bytes(self, limit: usize) -> Self {
        DecisionTable { kept: KeptChunks::with_limit(limit), ..self }
    }

    /// Adds one message; repeats of a known step are ignored, and so is a void group.
    pub fn absorb(&mut self, message: &Message) -> Result<(), BadDecision> {
        self.absorb_payload(message.offset, &message.payload)
    }

    fn absorb_payload(&mut self, at: u64, payload: &Bytes) -> Result<(), BadDecision> {
        let wrong = |why: String| BadDecision::NotADecision(at, why);
        let event = Event::decode(payload).map_err(|error| wrong(error.to_string()))?;
        let kind = event.kind().name();
        let decisions = event.into_decisions(at).ok_or_else(|| wrong(format!("a {kind} event")))?;
        decisions.into_iter().try_for_each(|decision| self.absorb_decision(at, decision))
    }

    fn absorb_decision(&mut self, at: u64, decision: Decision) -> Result<(), BadDecision> {
        let Decision { chain_offset, step, body } = decision;
        if chain_offset < self.floor {
            return Ok(());
        }
        let event = self.by_offset.entry(chain_offset).or_insert_with(|| EventSteps::from_position(at));
        let expected = event.steps.len() as u32;
        if step > expected {
            return Err(BadDecision::Gap { at, chain_offset, found: step, expected });
        }
        if step == expected {
            self.kept.add(chain_offset, step, &body);
            event.push(body, at);
        }
        self.drop_excess();
        Ok(())
    }

    /// Adds a decision that is not in the topic yet, as the next step of its event.
    fn stage(&mut self, chain_offset: u64, body: DecisionBody) {
        self.by_offset.entry(chain_offset).or_insert_with(|| EventSteps::from_position(u64::MAX)).push(body, u64::MAX);
    }

    /// Removes the decisions of an event that are not in the topic yet.
    pub(super) fn unstage(&mut self, chain_offset: u64) -> Vec<DecisionBody> {
        let staged = self.by_offset.remove(&chain_offset).map_or_else(Vec::new, |staged| staged.steps);
        staged.into_iter().filter_map(|record| record.body).map(|body| *body).collect()
    }

    /// Returns whether the topic has any decision on the event.
    pub fn has_decisions(&self, chain_offset: u64) -> bool {
        self.by_offset.contains_key(&chain_offset)
    }

    /// Returns the record that counts for a step: a decision, or a part of one. `None` also for a chunk of descendants
    /// that is not in memory.
    pub fn get(&self, chain_offset: u64, step: u32) -> Option<&DecisionBody> {
        self.by_offset.get(&chain_offset)?.steps.get(step as usize)?.body.as_deref()
    }

    /// Returns whether there is a decision from `step` on, also where it is not in memory.
    pub fn has_next(&self, chain_offset: u64, step: u32) -> bool {
        self.next_decision(chain_offset, step).is_some()
    }

    /// Returns the next decision from `step` on, its parts joined, and the step after it. `None` also where that is a
    /// chunk of descendants that is not in memory.
    pub fn next_joined(&self, chain_offset: u64, step: u32) -> Option<(DecisionBody, u32)> {
        let (body, taken) = decision_parts::join_next(self.by_offset.get(&chain_offset)?.bodies_from(step))?;
        Some((body, step + taken))
    }

    /// Returns the outputs whose bars an operator has lifted for the event, at whichever steps.
    pub fn lifted_outputs(&self, chain_offset: u64) -> Vec<LiftedOutput> {
        let steps = self.by_offset.get(&chain_offset).map_or(&[][..], |decided| &decided.steps);
        let lifted = steps.iter().filter_map(|record| match record.body.as_deref() {
            Some(DecisionBody::Lifted { outputs, .. }) => Some(outputs),
            _ => None,
        });
        lifted.flatten().cloned().collect()
    }

    /// Returns the first step without a record.
    pub fn next_step(&self, chain_offset: u64) -> u32 {
        self.by_offset.get(&chain_offset).map_or(0, |decided| decided.steps.len() as u32)
    }

    /// Returns the next decision from `step` on, its parts joined, or `None` in its place for a chunk of descendants
    /// that is not in memory; and the step after it.
    pub fn next_decision(&self, chain_offset: u64, step: u32) -> Option<(Option<DecisionBody>, u32)> {
        match self.next_joined(chain_offset, step) {
            Some((body, next)) => Some((Some(body), next)),
            None => self.find_next_dropped(chain_offset, step).map(|dropped| (None, dropped + 1)),
        }
    }

    /// Returns whether the last decision on an event is `Closed`; `None`: the event has no decision.
    fn is_closed(&self, chain_offset: u64) -> Option<bool> {
        let (mut last, mut step) = (None, 0);
        while let Some((body, next)) = self.next_decision(chain_offset, step) {
            (last, step) = (Some(body == Some(DecisionBody::Closed)), next);
        }
        last
    }

    /// Returns the chain offset below which every event is decided to its end. The sequencer decides in order, so that
    /// only the last event with decisions may be half decided. The events of the last group may not be applied yet.
    pub fn handled_below(&self) -> u64 {
        let is_closed = |chain_offset: &u64| Some((*chain_offset, self.is_closed(*chain_offset)?));
        let last = self.by_offset.keys().rev().find_map(is_closed);
        last.map_or(0, |(chain_offset, is_closed)| chain_offset + u64::from(is_closed))
    }

    /// Returns the chain offset from which on no event has a decision.
    pub fn decided_below(&self) -> u64 {
        self.by_offset.keys().next_back().map_or(0, |last| last + 1)
    }

    /// Drops the decisions below a handled chain offset.
    fn forget_below(&mut self, chain_offset: u64) {
        self.by_offset = self.by_offset.split_off(&chain_offset);
        self.kept.forget_below(chain_offset);
        self.floor = self.floor.max(chain_offset);
    }

    /// Returns the offset in the topic at which the decisions on `chain_offset` and later ones begin, if there are any.
    fn find_first_position(&self, chain_offset: u64) -> Option<u64> {
        self.by_offset.range(chain_offset..).map(|(_, decided)| decided.first_seen_at).min()
    }
}

/// The reason why decisions cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants and name the fields")]
pub enum DecisionError {
    #[error(transparent)]
    Broker(#[from] BrokerError),
    #[error(transparent)]
    Bad(#[from] BadDecision),
    /// The decision has one entry left and is still too large for a message.
    #[error("the decision on chain offset {chain_offset} is larger than a message may be: {error}")]
    TooLarge { chain_offset: u64, error: BrokerError },
}

/// The decisions topic, with a reader and a producer.
pub struct DecisionLog {
    pub(super) table: DecisionTable,
    pub(super) broker: Arc<dyn Broker>,
    pub(super) partition: TopicPartition,
    /// May be behind `end` by records of this sequencer.
    reader: Box<dyn PartitionReader>,
    /// Offset below which the table has every record of the topic.
    pub(super) end: u64,
    producer: Arc<dyn Producer>,
    pub(super) parts: Option<SequencerParts>,
    /// True while decisions are staged: they are published together later.
    is_staging: bool,
    /// Readers of chunks of descendants that are not in memory.
    pub(super) rereaders: ReaderCache,
}

/// Reads the short id of a decisions topic: 16 hexadecimal digits of the hash of its first record. Empty where the
/// topic has no record at offset 0.
pub async fn read_short_topic_id(broker: &dyn Broker, decisions: &TopicPartition) -> Result<String, BrokerError> {
    let id = read_topic_id(broker, decisions).await?;
    Ok(id.map_or_else(String::new, |id| hex::encode(&id[..8])))
}

const RETRY_PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
const READ_WAIT: Duration = Duration::from_millis(100);

impl DecisionLog {
    /// Opens the topic as [`open_with_limit`](Self::open_with_limit) does, with every decision in memory.
    pub async fn open(
        broker: Arc<dyn Broker>,
        producer: Arc<dyn Producer>,
        topic: &str,
        from: u64,
        chain_offset: u64,
    ) -> Result<Self, DecisionError> {
        Self::open_with_limit(broker, producer, topic, from, chain_offset, usize::MAX).await
    }

    /// Opens the topic and reads it from offset `from` to its end, for a sequencer that continues at `chain_offset`.
    /// Chunks of descendants take about `chunk_bytes` of memory at most; the newest one is always in memory.
    pub async fn open_with_limit(
        broker: Arc<dyn Broker>,
        producer: Arc<dyn Producer>,
        topic: &str,
        from: u64,
        chain_offset: u64,
        chunk_bytes: usize,
    ) -> Result<Self, DecisionError> {
        let partition = TopicPartition { topic: topic.into(), partition: 0 };
        let reader = until_answered(|| broker.read(&partition, from)).await?;
        let table = DecisionTable::from_offset(chain_offset).with_kept_bytes(chunk_bytes);
        let rereaders = ReaderCache::default();
        let mut log = DecisionLog {
            table,
            broker,
            partition,
            reader,
            end: from,
            producer,
            parts: None,
            is_staging: false,
            rereaders,
        };
        log.catch_up().await?;
        Ok(log)
    }

    /// Adds the parts of a sequencer: decisions then require that no node has restarted, and waits are reported.
    pub fn with_parts(self, parts: &SequencerParts) -> Self {
        DecisionLog { parts: Some(parts.clone()), ..self }
    }

    /// Returns whether a node has restarted, so that a decision may have been evaluated without writes that the node
    /// lost.
    pub async fn have_nodes_restarted(&mut self) -> Result<bool, EngineError> {
        let Some(parts) = self.parts.clone() else { return Ok(false) };
        report_wait(&parts, DECISIONS, parts.nodes.has_restarted()).await
    }

    /// Returns whether decisions are staged: they are published together later, after one look at the nodes.
    pub fn is_staging(&self) -> bool {
        self.is_staging
    }

    /// Adds a decision to the table that is not in the topic yet.
    pub fn stage(&mut self, chain_offset: u64, body: DecisionBody) {
        self.table.stage(chain_offset, body);
    }

    /// Begins or ends to stage the decisions of a window.
    pub fn set_staging(&mut self, is_staging: bool) {
        self.is_staging = is_staging;
    }

    /// Drops the staged decisions on an event.
    pub fn discard_staged(&mut self, chain_offset: u64) {
        self.table.unstage(chain_offset);
    }

    /// Produces a record and reads the topic up to the record. Returns the offset of the record.
    ///
    /// A record that is acknowledged at the end of what was read follows no unread record, and need not be read.
    pub(super) async fn produce_and_read_back(
        &mut self,
        chain_offset: u64,
        payload: Vec<u8>,
    ) -> Result<u64, DecisionError> {
        let payload = Bytes::from(payload);
        let message = OutgoingMessage {
            topic: self.partition.topic.to_string(),
            partition: Some(self.partition.partition),
            key: Bytes::copy_from_slice(&chain_offset.to_be_bytes()),
            payload: payload.clone(),
            ..OutgoingMessage::default()
        };
        let delivered = produce_until_acknowledged(self.producer.as_ref(), &[message], RETRY_PAUSE).await?;
        let at = delivered.iter().map(|delivered| delivered.offset).max().unwrap_or(0);
        // Offset 0 may stand for an unknown offset.
        if at == self.end && at > 0 {
            self.table.absorb_payload(at, &payload)?;
            self.end = at + 1;
            self.read_once(Duration::ZERO).await?;
        }
        self.read_up_to(at + 1).await?;
        Ok(at)
    }

    /// Returns the decisions that have been read.
    pub fn table(&self) -> &DecisionTable {
        &self.table
    }

    /// Reads the short id of the topic; empty where the topic has no record at offset 0.
    pub async fn read_short_id(&mut self) -> Result<String, BrokerError> {
        read_short_topic_id(self.broker.as_ref(), &self.partition).await
    }

    /// Reads the topic to its end: other sequencers may have written meanwhile.
    pub async fn catch_up(&mut self) -> Result<(), DecisionError> {
        let parts = self.parts.clone();
        let caught_up = async {
            let (_, high) = until_answered(|| self.broker.watermarks(&self.partition)).await?;
            self.read_up_to(high).await
        };
        report_wait(parts.as_ref(), DECISIONS, caught_up).await
    }

    async fn read_up_to(&mut self, end: u64) -> Result<(), DecisionError> {
        while self.end < end {
            self.read_once(READ_WAIT).await?;
        }
        Ok(())
    }

    /// Takes what the reader has within `wait`.
    async fn read_once(&mut self, wait: Duration) -> Result<(), DecisionError> {
        let (broker, partition) = (self.broker.as_ref(), &self.partition);
        for message in read_or_reopen(&mut self.reader, broker, partition, wait).await? {
            if message.offset >= self.end {
                self.table.absorb(&message)?;
                self.end = message.offset + 1;
            }
        }
        self.end = self.end.max(self.reader.position());
        Ok(())
    }

    /// Publishes a decision after the known ones and reads it back: the table then has the decision that counts, this
    /// one or another sequencer's. A decision larger than a message is published in parts, as large as the topic takes;
    /// a chunk of descendants is cut short instead.
    pub async fn publish(&mut self, chain_offset: u64, body: DecisionBody) -> Result<(), DecisionError> {
        let mut entries = decision_parts::count_entries(&body);
        let mut count = self.table.next_step(chain_offset);
        loop {
            let sequencer = self.parts.clone();
            let published = self.publish_in_order(chain_offset, decision_parts::split(&body, entries), &mut count);
            match report_wait(sequencer.as_ref(), DECISIONS, published).await {
                // Another sequencer has continued meanwhile: parts after its records would be between them.
                Err(DecisionError::Broker(error))
                    if error.kind == BrokerErrorKind::TooLarge && self.table.next_step(chain_offset) > count =>
                {
                    return Ok(());
                }
                Err(DecisionError::Broker(error)) if error.kind == BrokerErrorKind::TooLarge => {
                    if entries <= 1 {
                        return Err(DecisionError::TooLarge { chain_offset, error });
                    }
                    entries = entries.div_ceil(2);
                    tracing::debug!(chain_offset, entries, %error, "decisions: decision split into parts");
                }
                published => return published,
            }
        }
    }

    /// Publishes records and reads each back before the next is written: steps are contiguous, even where a produce
    /// fails. `count` becomes the step after the last written one.
    async fn publish_in_order(
        &mut self,
        chain_offset: u64,
        records: Vec<DecisionBody>,
        count: &mut u32,
    ) -> Result<(), DecisionError> {
        // Steps are counted from here, not from the table's end after each read: another sequencer may have written the
        // same parts and closed the event.
        let first = self.table.next_step(chain_offset);
        for (body, step) in records.into_iter().zip(first..) {
            let payload = Event::Decision(Decision { chain_offset, step, body: body.clone() }).encode();
            self.produce_and_read_back(chain_offset, payload).await?;
            *count = step + 1;
            if self.table.get(chain_offset, step) != Some(&body) {
                break;
            }
        }
        Ok(())
    }

    /// Drops the decisions below a handled chain offset and returns the offset at which a sequencer that continues at
    /// `chain_offset` reads the topic.
    pub fn forget_handled(&mut self, chain_offset: u64) -> u64 {
        self.table.forget_below(chain_offset);
        // In a rebuild later events have decisions, too, and their chunks follow in the topic.
        if self.table.by_offset.is_empty() {
            self.rereaders.close();
        }
        self.table.find_first_position(chain_offset).unwrap_or(self.end)
    }
}
