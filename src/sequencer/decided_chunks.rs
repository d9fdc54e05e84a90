//! Decided chunks of descendants: the newest are in memory, the others are read again from the decisions topic.
//!
//! One verdict can have millions of descendants, and all its decisions belong to one event. Memory holds the chunks of
//! a few megabytes and a few bytes for each other chunk, also after a restart and in a rebuild.

use std::{collections::VecDeque, time::Duration};

use crate::{
    backoff::Backoff,
    broker::{Broker, BrokerErrorKind, TopicPartition},
    event::{Decision, DecisionBody, Event},
    sequencer::{
        decision_parts,
        decisions::{BadDecision, DecisionError, DecisionLog, DecisionTable},
        reader_cache::{ReaderCache, RereadOutcome},
        waiting::{DECISIONS, report_wait},
    },
};

/// Estimated bytes of a chunk, and of each of its members.
const CHUNK_BYTES: usize = 256;
const MEMBER_BYTES: usize = 72;

const RETRY_PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// The record that counts for a step of a chain event.
#[derive(Debug)]
pub struct StepRecord {
    /// Content of the record; `None`: a chunk of descendants that is only in the topic.
    pub body: Option<Box<DecisionBody>>,
    /// Offset of the record in the topic.
    pub at: u64,
}

/// The chunks of descendants that are in memory, oldest first. Pure.
#[derive(Debug, Default)]
pub struct KeptChunks {
    /// Chain offset, step and bytes of each.
    chunks: VecDeque<(u64, u32, usize)>,
    bytes: usize,
    /// Bytes at most; `None`: all chunks stay in memory.
    limit: Option<usize>,
}

impl KeptChunks {
    /// Begins without a chunk. One chunk more than `limit` bytes may be in memory.
    pub fn with_limit(limit: usize) -> Self {
        KeptChunks { limit: Some(limit), ..KeptChunks::default() }
    }

    /// Adds a chunk that is in memory. Other decisions are always in memory, and so is the end of the descendants.
    pub fn add(&mut self, chain_offset: u64, step: u32, body: &DecisionBody) {
        if let DecisionBody::Cone { members, .. } = body
            && self.limit.is_some()
            && !members.is_empty()
        {
            let bytes = CHUNK_BYTES + MEMBER_BYTES * members.len();
            self.chunks.push_back((chain_offset, step, bytes));
            self.bytes += bytes;
        }
    }

    /// Removes the oldest chunk where the chunks exceed the limit, and returns its chain offset and step. The newest
    /// chunk stays.
    pub fn remove_excess(&mut self) -> Option<(u64, u32)> {
        if self.bytes <= self.limit? || self.chunks.len() == 1 {
            return None;
        }
        let (chain_offset, step, bytes) = self.chunks.pop_front()?;
        self.bytes -= bytes;
        Some((chain_offset, step))
    }

    /// Drops the chunks of the events below a chain offset.
    pub fn forget_below(&mut self, chain_offset: u64) {
        self.chunks.retain(|(of, ..)| *of >= chain_offset);
        self.bytes = self.chunks.iter().map(|(.., bytes)| bytes).sum();
    }
}

impl DecisionTable {
    /// Drops the oldest chunks of descendants from memory where there are too many.
    pub fn drop_excess(&mut self) {
        while let Some((chain_offset, step)) = self.kept.remove_excess() {
            if let Some(record) = self.record_mut(chain_offset, step) {
                record.body = None;
            }
        }
    }

    fn record_mut(&mut self, chain_offset: u64, step: u32) -> Option<&mut StepRecord> {
        self.by_offset.get_mut(&chain_offset)?.steps.get_mut(step as usize)
    }

    /// Returns the offset in the topic of a chunk of descendants that is not in memory.
    fn position_of_dropped(&self, chain_offset: u64, step: u32) -> Option<u64> {
        let record = self.by_offset.get(&chain_offset)?.steps.get(step as usize)?;
        record.body.is_none().then_some(record.at)
    }

    /// Returns the step of a dropped chunk of descendants that is the next decision from `step` on.
    pub fn find_next_dropped(&self, chain_offset: u64, step: u32) -> Option<u32> {
        let event = self.by_offset.get(&chain_offset)?;
        // Parts before it are void.
        let next = step + event.bodies_from(step).take_while(|body| !decision_parts::is_whole(body)).count() as u32;
        self.position_of_dropped(chain_offset, next).map(|_| next)
    }

    /// Puts a chunk of descendants back that was dropped.
    fn put_back(&mut self, chain_offset: u64, step: u32, body: DecisionBody) {
        self.kept.add(chain_offset, step, &body);
        if let Some(record) = self.record_mut(chain_offset, step) {
            record.body = Some(Box::new(body));
        }
        self.drop_excess();
    }
}

impl DecisionLog {
    /// Reads the record of a step into the table, if it is a chunk of descendants that is not in memory.
    pub async fn load(&mut self, chain_offset: u64, step: u32) -> Result<(), DecisionError> {
        let Some(at) = self.table.position_of_dropped(chain_offset, step) else { return Ok(()) };
        let parts = self.parts.clone();
        let topic = (self.broker.as_ref(), &self.partition);
        let reread = reread_step(&mut self.rereaders, topic, at, (chain_offset, step));
        let body = report_wait(parts.as_ref(), DECISIONS, reread).await?;
        self.table.put_back(chain_offset, step, body);
        Ok(())
    }

    /// Reads the next decision from `step` on into the table, as [`load`](Self::load) does.
    pub async fn load_next(&mut self, chain_offset: u64, step: u32) -> Result<(), DecisionError> {
        match self.table.find_next_dropped(chain_offset, step) {
            Some(dropped) => self.load(chain_offset, dropped).await,
            None => Ok(()),
        }
    }
}

/// Iterates over all decisions of a table by chain offset and step, parts joined. Chunks of descendants that are not in
/// memory are read again, one after the other, and are not kept.
pub struct DecisionWalk<'a> {
    table: &'a DecisionTable,
    topic: (&'a dyn Broker, &'a TopicPartition),
    readers: ReaderCache,
    chain_offset: u64,
    step: u32,
}

impl<'a> DecisionWalk<'a> {
    /// Begins with the first decision of a table that was read from this topic.
    pub fn new(table: &'a DecisionTable, topic: (&'a dyn Broker, &'a TopicPartition)) -> Self {
        DecisionWalk { table, topic, readers: ReaderCache::default(), chain_offset: 0, step: 0 }
    }

    /// Returns the next decision; `None` after the last one.
    ///
    /// # Errors
    /// The topic no longer has a chunk, or the broker's first error that a retry does not heal.
    pub async fn next(&mut self) -> Result<Option<Decision>, DecisionError> {
        while let Some((&chain_offset, _)) = self.table.by_offset.range(self.chain_offset..).next() {
            if chain_offset > self.chain_offset {
                (self.chain_offset, self.step) = (chain_offset, 0);
            }
            let Some((body, next)) = self.table.next_decision(chain_offset, self.step) else {
                (self.chain_offset, self.step) = (chain_offset + 1, 0);
                continue;
            };
            self.step = next;
            let body = match (body, self.table.position_of_dropped(chain_offset, next - 1)) {
                (None, Some(at)) => reread_step(&mut self.readers, self.topic, at, (chain_offset, next - 1)).await?,
                (Some(body), _) => body,
                (None, None) => continue,
            };
            return Ok(Some(Decision { chain_offset, step: next - 1, body }));
        }
        Ok(None)
    }
}

/// Reads the record of a step again, at its offset in the topic.
///
/// # Errors
/// The topic no longer has the record, or the broker's first error that a retry does not heal.
async fn reread_step(
    readers: &mut ReaderCache,
    (broker, partition): (&dyn Broker, &TopicPartition),
    at: u64,
    (chain_offset, step): (u64, u32),
) -> Result<DecisionBody, DecisionError> {
    let mut pauses = Backoff::new(RETRY_PAUSE, at);
    let message = loop {
        match readers.get(broker, partition, at).await {
            Ok(RereadOutcome::Found(message)) => break Some(message),
            Ok(RereadOutcome::Gone) => break None,
            Ok(RereadOutcome::NoAnswer) => {}
            Err(error) if error.kind == BrokerErrorKind::Retryable => {
                tracing::warn!(%error, at, "decisions: cannot read a chunk of descendants again; trying again");
            }
            Err(error) => return Err(error.into()),
        }
        pauses.pause().await;
    };
    let decisions = message.map_or_else(Vec::new, |message| Event::decode_decisions(&message.payload, at));
    let decision = decisions.into_iter().find(|found| (found.chain_offset, found.step) == (chain_offset, step));
    Ok(decision.map(|decision| decision.body).ok_or(BadDecision::Lost { at, chain_offset, step })?)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        broker::memory::{MemoryBroker, MemorySettings},
        broker::{NewTopic, OutgoingMessage},
        clock::Clock,
        event::Descendant,
        tx::Txid,
    };

    fn chunk(members: u8) -> DecisionBody {
        let member = |tag| Descendant { txid: Txid([tag; 32]), parent: Txid([0; 32]), live: true };
        DecisionBody::Cone { members: (0..members).map(member).collect(), height: 5 }
    }

    #[test]
    fn the_oldest_chunks_leave_and_the_newest_stays() {
        let mut kept = KeptChunks::with_limit(2 * CHUNK_BYTES + 3 * MEMBER_BYTES);
        kept.add(1, 0, &DecisionBody::Closed);
        kept.add(1, 1, &chunk(0));
        kept.add(1, 2, &chunk(1));
        kept.add(1, 3, &chunk(2));
        assert_eq!(kept.remove_excess(), None);
        kept.add(2, 0, &chunk(1));
        assert_eq!(kept.remove_excess(), Some((1, 2)));
        assert_eq!(kept.remove_excess(), None);
        kept.add(3, 0, &chunk(200));
        assert_eq!((kept.remove_excess(), kept.remove_excess()), (Some((1, 3)), Some((2, 0))));
        assert_eq!(kept.remove_excess(), None, "the newest chunk is larger than the limit");
        kept.forget_below(4);
        assert_eq!((kept.bytes, kept.remove_excess()), (0, None));
    }

    #[test]
    fn without_a_limit_all_chunks_stay() {
        let mut kept = KeptChunks::default();
        (0..100).for_each(|step| kept.add(1, step, &chunk(200)));
        assert_eq!((kept.chunks.len(), kept.remove_excess()), (0, None));
    }

    fn numbered_chunk(step: u32) -> DecisionBody {
        let member = Descendant { txid: Txid([step as u8; 32]), parent: Txid([0; 32]), live: true };
        DecisionBody::Cone { members: vec![member], height: 5 }
    }

    async fn open(broker: &MemoryBroker, chunk_bytes: usize) -> DecisionLog {
        let producer = broker.producer().await.unwrap();
        DecisionLog::open_with_limit(Arc::new(broker.clone()), producer, "decisions", 0, 0, chunk_bytes).await.unwrap()
    }

    /// An operator's record comes between two chunks of one event. Protects: the chunk behind the record is found
    /// although the chunk is not in memory.
    #[tokio::test(start_paused = true)]
    async fn a_dropped_chunk_behind_a_decision_of_an_operator_is_read_again() {
        let broker = MemoryBroker::new(MemorySettings::new(Clock::simulated(0)));
        broker.create_topics(&[NewTopic { name: "decisions".into(), partitions: 1, config: vec![] }]).await.unwrap();
        let mut log = open(&broker, 0).await;
        log.publish(7, numbered_chunk(0)).await.unwrap();
        log.publish(7, DecisionBody::Lifted { txid: Txid([9; 32]), outputs: vec![] }).await.unwrap();
        log.publish(7, numbered_chunk(2)).await.unwrap();
        log.publish(8, numbered_chunk(0)).await.unwrap();
        log.load_next(7, 1).await.unwrap();
        assert_eq!(log.table().next_joined(7, 1), Some((numbered_chunk(2), 3)));
    }

    /// Protects: memory does not grow with the chunks of one event, neither while they are decided nor after a restart.
    #[tokio::test(start_paused = true)]
    async fn dropped_chunks_are_read_again_in_any_order() {
        let broker = MemoryBroker::new(MemorySettings::new(Clock::simulated(0)));
        broker.create_topics(&[NewTopic { name: "decisions".into(), partitions: 1, config: vec![] }]).await.unwrap();
        let mut log = open(&broker, 0).await;
        for step in 0..9 {
            log.publish(7, numbered_chunk(step)).await.unwrap();
        }
        log.publish(8, numbered_chunk(0)).await.unwrap();
        let mut restarted = open(&broker, 0).await;
        for log in [&mut log, &mut restarted] {
            let in_memory = |log: &DecisionLog| (0..9).filter(|step| log.table().get(7, *step).is_some()).count();
            assert_eq!((in_memory(log), log.table().next_step(7)), (0, 9));
            assert!(log.table().has_next(7, 0) && log.table().has_next(8, 0) && !log.table().has_next(7, 9));
            for step in [0, 1, 2, 8, 3, 3, 0] {
                log.load_next(7, step).await.unwrap();
                assert_eq!(log.table().next_joined(7, step), Some((numbered_chunk(step), step + 1)));
                assert_eq!(in_memory(log), 1);
            }
            log.forget_handled(9);
            assert_eq!(log.table().next_step(7), 0);
        }
    }

    /// Protects: a rebuild takes every decision into account, though it holds one chunk of descendants in memory, and
    /// finds the last decided event, also where a chunk comes before its end.
    #[tokio::test(start_paused = true)]
    async fn a_walk_over_the_decisions_reads_dropped_chunks_again() {
        let broker = MemoryBroker::new(MemorySettings::new(Clock::simulated(0)));
        broker.create_topics(&[NewTopic { name: "decisions".into(), partitions: 1, config: vec![] }]).await.unwrap();
        let mut log = open(&broker, 0).await;
        let lifted = DecisionBody::Lifted { txid: Txid([9; 32]), outputs: vec![] };
        let bodies = [numbered_chunk(0), lifted, numbered_chunk(2), numbered_chunk(3), DecisionBody::Closed];
        // The events come in another order after a node's restart.
        for chain_offset in [9, 7, 8] {
            for body in &bodies {
                log.publish(chain_offset, body.clone()).await.unwrap();
            }
        }
        assert_eq!(log.table().handled_below(), 10);
        log.publish(12, numbered_chunk(0)).await.unwrap();
        log.publish(12, numbered_chunk(1)).await.unwrap();
        assert_eq!(log.table().handled_below(), 12);
        let chunks = [(0, 0), (2, 2), (3, 3)].map(|(step, tag)| (step, numbered_chunk(tag)));
        let of_event = chunks.into_iter().chain([(4, DecisionBody::Closed)]);
        let expected = [7, 8, 9].into_iter().flat_map(|at| of_event.clone().map(move |(step, body)| (at, step, body)));
        let expected = expected.chain([(12, 0, numbered_chunk(0)), (12, 1, numbered_chunk(1))]);
        let mut walk = DecisionWalk::new(log.table(), (log.broker.as_ref(), &log.partition));
        for (chain_offset, step, body) in expected {
            assert_eq!(walk.next().await.unwrap(), Some(Decision { chain_offset, step, body }));
        }
        assert_eq!(walk.next().await.unwrap(), None);
        let in_memory = [7, 8, 9, 12].into_iter().flat_map(|at| (0..5).map(move |step| (at, step)));
        let is_chunk = |(at, step): &(u64, u32)| matches!(log.table().get(*at, *step), Some(DecisionBody::Cone { .. }));
        assert_eq!(in_memory.filter(is_chunk).count(), 1);
    }

    /// A topic that lost the record, or has another one in its place, halts the chain by name.
    #[tokio::test(start_paused = true)]
    async fn a_chunk_that_the_topic_lost_is_an_error() {
        let broker = MemoryBroker::new(MemorySettings::new(Clock::simulated(0)));
        let topic = NewTopic { name: "decisions".into(), partitions: 1, config: vec![] };
        broker.create_topics(std::slice::from_ref(&topic)).await.unwrap();
        let mut log = open(&broker, 0).await;
        for step in 0..3 {
            log.publish(7, numbered_chunk(step)).await.unwrap();
        }
        broker.recreate_topic(&topic).unwrap();
        let other = Event::Decision(Decision { chain_offset: 7, step: 5, body: numbered_chunk(5) }).encode();
        let other = OutgoingMessage { topic: "decisions".into(), payload: other.into(), ..OutgoingMessage::default() };
        broker.producer().await.unwrap().produce_all(vec![other; 3]).await.unwrap();
        let lost = log.load(7, 0).await.unwrap_err();
        assert!(matches!(lost, DecisionError::Bad(BadDecision::Lost { at: 0, chain_offset: 7, step: 0 })), "{lost}");
    }
}
