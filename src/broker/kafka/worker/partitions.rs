//! The open partitions of a consumer: splits off their queues, fills batches and seeks.

use std::{ffi::CString, thread, time::Duration};

use rdkafka::{
    Offset, TopicPartitionList,
    consumer::{BaseConsumer, Consumer as _, RebalanceProtocol, base_consumer::PartitionQueue},
    error::KafkaError,
};
use tracing::{debug, warn};

use super::{
    super::{
        arena::Arena,
        errors::{is_unknown_topic, kind, translate},
        lookup::{cached_high_watermark, fetch_watermarks},
        settings::KafkaSettings,
    },
    SeekResult, Worker,
    rebalance::{RebalanceContext, next_epoch},
};
use crate::{
    broker::{BrokerError, BrokerErrorKind, ConsumerEvent, MessageBatch, PartitionEnd, TopicPartition},
    liveness::LoopMonitor,
};

/// A partition that is being read.
pub(super) struct OpenPartition {
    queue: PartitionQueue<RebalanceContext>,
    topic: CString,
    epoch: u64,
    position: u64,
}

impl Worker {
    /// Splits off the queues of partitions and returns the list to assign.
    pub(super) fn split_queues(
        &mut self,
        starts: &[(TopicPartition, u64, u64)],
    ) -> Result<TopicPartitionList, BrokerError> {
        let mut tpl = TopicPartitionList::new();
        for (at, epoch, position) in starts {
            let failed = |message: &str| BrokerError::new(BrokerErrorKind::Fatal, "assign", format!("{at}: {message}"));
            let topic = CString::new(&*at.topic).map_err(|_| failed("a topic name with a zero byte"))?;
            tpl.add_partition_offset(&at.topic, at.partition, Offset::Offset(*position as i64))
                .map_err(|error| translate("assign", &at.to_string(), &error))?;
            let mut queue = self
                .consumer
                .split_partition_queue(&at.topic, at.partition)
                .ok_or_else(|| failed("no queue for this partition"))?;
            let me = thread::current();
            queue.set_nonempty_callback(move || me.unpark());
            self.open_partitions.insert(at.clone(), OpenPartition { queue, topic, epoch: *epoch, position: *position });
            self.shared.lock().add_partition(at.clone());
        }
        Ok(tpl)
    }

    /// Fills a batch for each partition with room in the inbox; true where a partition had a message, end or error.
    pub(super) fn fill_batches(&mut self) -> bool {
        let mut is_busy = false;
        for (at, open) in &mut self.open_partitions {
            self.monitor.iter().for_each(LoopMonitor::beat);
            if self.shared.lock().wants_batch(at) {
                let filled = fetch_batch(&self.consumer, &self.settings, at, open);
                if let Some(error) = filled.error {
                    self.monitor.iter().for_each(|monitor| monitor.announce_blocking(self.settings.request_timeout));
                    let error = out_of_range(&self.consumer, &self.settings, at, open.position, &error);
                    self.shared.lock().push_event(Err(error));
                    self.shared.notify();
                    is_busy = true;
                }
                let mut inbox = self.shared.lock();
                for polled in filled.batch.into_iter().chain(filled.end.map(ConsumerEvent::End)) {
                    inbox.push_batch(polled);
                    self.shared.notify();
                    is_busy = true;
                }
            }
        }
        is_busy
    }

    pub(super) fn seek(&mut self, at: &TopicPartition, offset: u64) -> Result<SeekResult, BrokerError> {
        let timeout = self.settings.request_timeout;
        if !self.open_partitions.contains_key(at) {
            return Err(BrokerError::not_assigned("seek", at));
        }
        self.announce_requests(2);
        let (low, high) = fetch_watermarks(&self.consumer, at, timeout)?;
        if !(low..=high).contains(&offset) {
            return Err(BrokerError::out_of_range("seek", at, offset, low, high));
        }
        let epoch = next_epoch();
        match self.consumer.seek(&at.topic, at.partition, Offset::Offset(offset as i64), timeout) {
            Ok(()) => {
                let open = self.open_partitions.get_mut(at).ok_or_else(|| BrokerError::not_assigned("seek", at))?;
                (open.epoch, open.position) = (epoch, offset);
            }
            // An out-of-range position has stopped the partition for good: only a new assignment restarts it.
            Err(error) => {
                debug!(partition = %at, %error, "kafka consumer: seek refused, assigning the partition again");
                self.restart(at, epoch, offset)?;
            }
        }
        self.shared.lock().discard_batches(at);
        Ok(SeekResult { epoch, end: high })
    }

    /// Unassigns a partition and assigns it at `offset`, without the group's knowledge.
    fn restart(&mut self, at: &TopicPartition, epoch: u64, offset: u64) -> Result<(), BrokerError> {
        let failed = |error| translate("seek", &at.to_string(), &error);
        if matches!(self.consumer.rebalance_protocol(), RebalanceProtocol::Cooperative) {
            self.open_partitions.remove(at);
            let mut one = TopicPartitionList::new();
            one.add_partition(&at.topic, at.partition);
            self.consumer.incremental_unassign(&one).map_err(failed)?;
            let tpl = self.split_queues(&[(at.clone(), epoch, offset)])?;
            return self.consumer.incremental_assign(&tpl).map_err(failed);
        }
        // The eager protocol has only whole assignments: the other partitions continue at their positions, in new
        // queues.
        let starts: Vec<_> = std::mem::take(&mut self.open_partitions)
            .into_iter()
            .map(|(other, open)| match other == *at {
                true => (other, epoch, offset),
                false => (other, open.epoch, open.position),
            })
            .collect();
        let tpl = self.split_queues(&starts)?;
        self.consumer.assign(&tpl).map_err(failed)
    }
}

#[derive(Default)]
struct FetchResult {
    batch: Option<ConsumerEvent>,
    end: Option<PartitionEnd>,
    error: Option<KafkaError>,
}

/// Takes messages of a partition's queue, up to one batch.
fn fetch_batch(
    consumer: &BaseConsumer<RebalanceContext>,
    settings: &KafkaSettings,
    at: &TopicPartition,
    open: &mut OpenPartition,
) -> FetchResult {
    let mut filled = FetchResult::default();
    let mut arena = Arena::default();
    let mut at_end = false;
    while arena.messages() < settings.batch_messages && arena.bytes() < settings.batch_bytes {
        match open.queue.poll(Duration::ZERO) {
            None => break,
            Some(Ok(message)) => arena.push(&message),
            Some(Err(KafkaError::PartitionEOF(_))) => {
                at_end = true;
                break;
            }
            Some(Err(error)) if kind(&error) == BrokerErrorKind::Retryable || is_unknown_topic(&error) => {
                warn!(partition = %at, %error, "kafka consumer: fetch failed, retrying")
            }
            Some(Err(error)) => {
                filled.error = Some(error);
                break;
            }
        }
    }
    if arena.messages() > 0 {
        let messages = arena.finish();
        let next = messages.last().map_or(open.position, |last| last.offset + 1);
        open.position = next;
        let high_watermark = open.known_end(consumer, at).max(next);
        let batch = MessageBatch { partition: at.clone(), epoch: open.epoch, messages, high_watermark };
        filled.batch = Some(ConsumerEvent::Messages(batch));
    }
    if at_end {
        if open.known_end(consumer, at) > open.position {
            // Read before the next poll: every offset that the position passes was polled before the end.
            open.position = open.position.max(polled_position(consumer, at));
        }
        filled.end = Some(PartitionEnd { partition: at.clone(), epoch: open.epoch, position: open.position });
    }
    filled
}

impl OpenPartition {
    fn known_end(&self, consumer: &BaseConsumer<RebalanceContext>, at: &TopicPartition) -> u64 {
        cached_high_watermark(consumer.client(), &self.topic, at.partition)
    }
}

/// librdkafka's position: above all polled messages and above the markers of Kafka transactions, which are never
/// delivered; 0: unknown.
fn polled_position(consumer: &BaseConsumer<RebalanceContext>, at: &TopicPartition) -> u64 {
    match consumer.position() {
        Ok(positions) => match positions.find_partition(&at.topic, at.partition).map(|found| found.offset()) {
            Some(Offset::Offset(offset)) => offset.max(0) as u64,
            _ => 0,
        },
        Err(error) => {
            warn!(partition = %at, %error, "kafka consumer: position unknown");
            0
        }
    }
}

/// Translates an error of a fetch; an out-of-range error names the offsets that the partition holds.
fn out_of_range(
    consumer: &BaseConsumer<RebalanceContext>,
    settings: &KafkaSettings,
    at: &TopicPartition,
    position: u64,
    error: &KafkaError,
) -> BrokerError {
    if kind(error) != BrokerErrorKind::OutOfRange {
        return translate("poll", &at.to_string(), error);
    }
    match fetch_watermarks(consumer, at, settings.request_timeout) {
        Ok((low, high)) => BrokerError::out_of_range("poll", at, position, low, high),
        Err(unknown) => {
            let message =
                format!("{at}: offset {position} is out of range (and the watermarks are unknown: {unknown})");
            BrokerError::new(BrokerErrorKind::OutOfRange, "poll", message)
        }
    }
}
