//! The write-ahead log of what was decided: `utxo.decisions`, one partition.
//!
//! The *first* record in the topic for an identity (chain offset, step) is the one that counts, whoever wrote it; steps of
//! a chain offset are contiguous and `Closed` is the last. So after a crash, and with two sequencers at once, everybody
//! applies the same.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;

use crate::{
    broker::{
        Broker, BrokerError, BrokerErrorKind, Message, Produce, Producer, Reader, TopicPartition,
        produce_until_acknowledged,
        retry::{next_messages, until_answered},
    },
    engine::EngineError,
    event::{Decision, DecisionBody, Event},
    sequencer::{SequencerParts, parts, waiting::Waiting},
    store::meta::topic_id,
};

/// Decisions by chain offset. Pure: fed with messages in the order of the topic.
#[derive(Debug, Default)]
pub struct DecisionTable {
    by_offset: BTreeMap<u64, Decided>,
    /// Below it everything is handled: what still comes for it (a repeat, or a zombie's) does not count.
    floor: u64,
}

#[derive(Debug)]
struct Decided {
    first_seen_at: u64,
    steps: Vec<DecisionBody>,
}

/// A message in the decisions topic that is none, or that does not follow.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadDecision {
    /// Cannot be decoded, or is another event.
    #[error("offset {0} of the decisions topic holds no decision: {1}")]
    NotADecision(u64, String),
    /// Skips a step.
    #[error(
        "offset {at} of the decisions topic holds step {found} on chain offset {chain_offset}, where step {expected} is next"
    )]
    Gap {
        /// Offset in the decisions topic.
        at: u64,
        /// What it decides on.
        chain_offset: u64,
        /// Its step.
        found: u32,
        /// The step that would follow.
        expected: u32,
    },
}

impl DecisionTable {
    /// A table for somebody who goes on at this chain offset.
    pub fn from_offset(floor: u64) -> Self {
        DecisionTable { by_offset: BTreeMap::new(), floor }
    }

    /// Takes one message; repeats of a step that is known are ignored.
    pub fn absorb(&mut self, message: &Message) -> Result<(), BadDecision> {
        let wrong = |why: String| BadDecision::NotADecision(message.offset, why);
        let decision = match Event::decode(&message.payload).map_err(|error| wrong(error.to_string()))? {
            Event::Decision(decision) => decision,
            other => return Err(wrong(format!("a {} event", other.kind().name()))),
        };
        if decision.chain_offset < self.floor {
            return Ok(());
        }
        let decided = self
            .by_offset
            .entry(decision.chain_offset)
            .or_insert_with(|| Decided { first_seen_at: message.offset, steps: Vec::new() });
        let expected = decided.steps.len() as u32;
        if decision.step > expected {
            let chain_offset = decision.chain_offset;
            return Err(BadDecision::Gap { at: message.offset, chain_offset, found: decision.step, expected });
        }
        if decision.step == expected {
            decided.steps.push(decision.body);
        }
        Ok(())
    }

    /// The record that counts for a step: a decision, or a part of one.
    pub fn get(&self, chain_offset: u64, step: u32) -> Option<&DecisionBody> {
        self.by_offset.get(&chain_offset)?.steps.get(step as usize)
    }

    /// The next decision from `step` on, its parts joined, and the step behind it.
    pub fn whole(&self, chain_offset: u64, step: u32) -> Option<(DecisionBody, u32)> {
        let steps = self.by_offset.get(&chain_offset)?.steps.get(step as usize..)?;
        let (body, taken) = parts::next_whole(steps)?;
        Some((body, step + taken))
    }

    /// The step that comes next.
    pub fn next_step(&self, chain_offset: u64) -> u32 {
        self.by_offset.get(&chain_offset).map_or(0, |decided| decided.steps.len() as u32)
    }

    /// Every decision, by chain offset and step; parts joined.
    pub fn iter(&self) -> impl Iterator<Item = Decision> + '_ {
        self.by_offset.keys().flat_map(|chain_offset| self.on(*chain_offset))
    }

    /// The decisions on one event, by step; parts joined.
    fn on(&self, chain_offset: u64) -> impl Iterator<Item = Decision> + '_ {
        let mut next = 0;
        std::iter::from_fn(move || {
            let (body, behind) = self.whole(chain_offset, next)?;
            let step = std::mem::replace(&mut next, behind);
            Some(Decision { chain_offset, step, body })
        })
    }

    /// Every event below this chain offset has been handled: the sequencer decides in order. The last that it decided on
    /// may be half decided.
    pub fn handled_below(&self) -> u64 {
        let last = self.by_offset.keys().rev().find_map(|chain_offset| self.on(*chain_offset).last());
        last.map_or(0, |last| last.chain_offset + u64::from(last.body == DecisionBody::Closed))
    }

    /// Nothing from this chain offset on is decided.
    pub fn decided_below(&self) -> u64 {
        self.by_offset.keys().next_back().map_or(0, |last| last + 1)
    }

    /// Forgets what lies below a chain offset that is handled.
    pub fn forget_below(&mut self, chain_offset: u64) {
        self.by_offset = self.by_offset.split_off(&chain_offset);
        self.floor = self.floor.max(chain_offset);
    }

    /// Where in the topic the decisions on `chain_offset` and later ones begin, if there are any.
    pub fn first_position_from(&self, chain_offset: u64) -> Option<u64> {
        self.by_offset.range(chain_offset..).map(|(_, decided)| decided.first_seen_at).min()
    }
}

/// Why decisions cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum DecisionError {
    /// The broker.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// The topic's content.
    #[error(transparent)]
    Bad(#[from] BadDecision),
    /// What cannot be split any further.
    #[error("the decision on chain offset {chain_offset} is larger than a message may be: {error}")]
    TooLarge {
        /// What it decides on.
        chain_offset: u64,
        /// What the broker says.
        error: BrokerError,
    },
}

/// The decisions topic, open.
pub struct DecisionLog {
    table: DecisionTable,
    broker: Arc<dyn Broker>,
    partition: TopicPartition,
    reader: Box<dyn Reader>,
    producer: Arc<dyn Producer>,
    parts: Option<SequencerParts>,
}

/// Says it where it takes long.
async fn attended<T>(parts: Option<&SequencerParts>, work: impl Future<Output = T>) -> T {
    match parts {
        Some(parts) => Waiting::new(parts, "the decisions").until_done(work).await,
        None => work.await,
    }
}

/// What a decisions topic is known by, in short; empty where it holds nothing at offset 0.
pub async fn short_id(broker: &dyn Broker, decisions: &TopicPartition) -> Result<String, BrokerError> {
    let id = topic_id(broker, decisions).await?;
    Ok(id.map_or_else(String::new, |id| hex::encode(&id[..8])))
}

const RETRY_PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
const READ_WAIT: Duration = Duration::from_millis(100);

impl DecisionLog {
    /// Opens the topic and reads it from `from` to its end, for somebody who goes on at `chain_offset`.
    pub async fn open(
        broker: Arc<dyn Broker>,
        producer: Arc<dyn Producer>,
        topic: &str,
        from: u64,
        chain_offset: u64,
    ) -> Result<Self, DecisionError> {
        let partition = TopicPartition { topic: topic.into(), partition: 0 };
        let reader = until_answered(|| broker.read(&partition, from)).await?;
        let table = DecisionTable::from_offset(chain_offset);
        let mut log = DecisionLog { table, broker, partition, reader, producer, parts: None };
        log.catch_up().await?;
        Ok(log)
    }

    /// For the decisions of a sequencer, which follow from what its store showed, and whose waits are said.
    pub fn over(self, parts: &SequencerParts) -> Self {
        DecisionLog { parts: Some(parts.clone()), ..self }
    }

    /// Whether a node has restarted, so that what was read for a decision may have lacked what had been applied before.
    pub async fn has_forgotten(&mut self) -> Result<bool, EngineError> {
        let Some(parts) = self.parts.clone() else { return Ok(false) };
        attended(Some(&parts), parts.nodes.have_restarted()).await
    }

    /// What has been read.
    pub fn table(&self) -> &DecisionTable {
        &self.table
    }

    /// What the topic is known by, in short; empty where it holds nothing at offset 0.
    pub async fn id(&mut self) -> Result<String, BrokerError> {
        short_id(self.broker.as_ref(), &self.partition).await
    }

    /// Reads what others have written meanwhile.
    pub async fn catch_up(&mut self) -> Result<(), DecisionError> {
        let parts = self.parts.clone();
        let caught_up = async {
            let (_, high) = until_answered(|| self.broker.watermarks(&self.partition)).await?;
            self.read_up_to(high).await
        };
        attended(parts.as_ref(), caught_up).await
    }

    async fn read_up_to(&mut self, end: u64) -> Result<(), DecisionError> {
        while self.reader.position() < end {
            let (broker, partition) = (self.broker.as_ref(), &self.partition);
            for message in next_messages(&mut self.reader, broker, partition, READ_WAIT).await? {
                self.table.absorb(&message)?;
            }
        }
        Ok(())
    }

    /// Publishes a decision behind those that are known, and reads it back: the table then holds what counts, this one or
    /// somebody else's. One that is larger than a message may be goes out in parts, as large as the topic takes; a chunk
    /// of a cone is cut short instead.
    ///
    /// # Errors
    /// [`DecisionError::TooLarge`] when not even one entry fits into a message.
    pub async fn publish(&mut self, chain_offset: u64, body: DecisionBody) -> Result<(), DecisionError> {
        let mut entries = parts::entries(&body);
        let mut count = self.table.next_step(chain_offset);
        loop {
            let sequencer = self.parts.clone();
            let published = self.publish_in_order(chain_offset, parts::records(&body, entries), &mut count);
            match attended(sequencer.as_ref(), published).await {
                // Somebody else has gone on meanwhile: parts behind that would stand in the middle of it.
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
                    tracing::debug!(chain_offset, entries, %error, "a decision is split");
                }
                published => return published,
            }
        }
    }

    /// Each record is read back before the next is written: steps are contiguous, whatever a produce may lose. `count`: the step behind
    /// the last that was written.
    async fn publish_in_order(
        &mut self,
        chain_offset: u64,
        records: Vec<DecisionBody>,
        count: &mut u32,
    ) -> Result<(), DecisionError> {
        // Not wherever the table ends by then: somebody else may have written the very same parts, and closed behind them.
        let first = self.table.next_step(chain_offset);
        for (body, step) in records.into_iter().zip(first..) {
            let payload = Event::Decision(Decision { chain_offset, step, body: body.clone() }).encode();
            let message = Produce {
                topic: self.partition.topic.to_string(),
                partition: Some(self.partition.partition),
                key: Bytes::copy_from_slice(&chain_offset.to_be_bytes()),
                payload: payload.into(),
                ..Produce::default()
            };
            let delivered = produce_until_acknowledged(self.producer.as_ref(), &[message], RETRY_PAUSE).await?;
            let end = delivered.iter().map(|delivered| delivered.offset + 1).max().unwrap_or(0);
            self.read_up_to(end).await?;
            *count = step + 1;
            if self.table.get(chain_offset, step) != Some(&body) {
                break;
            }
        }
        Ok(())
    }

    /// Forgets what is handled; answers from where the topic must be read by whoever goes on at `chain_offset`.
    pub fn handled_below(&mut self, chain_offset: u64) -> u64 {
        self.table.forget_below(chain_offset);
        self.table.first_position_from(chain_offset).unwrap_or_else(|| self.reader.position())
    }
}
