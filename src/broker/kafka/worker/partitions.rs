//! The partitions that are read: a queue for each, split off before fetching starts, filled into batches, sought.

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
        lookup::{known_high_watermark, watermarks_of},
        settings::KafkaSettings,
    },
    Sought, Worker,
    rebalance::{Context, next_epoch},
};
use crate::{
    broker::{Batch, BrokerError, BrokerErrorKind, End, Polled, TopicPartition},
    liveness::LoopMonitor,
};

/// A partition that is being read.
pub(super) struct Slot {
    queue: PartitionQueue<Context>,
    topic: CString,
    epoch: u64,
    position: u64,
}

impl Worker {
    /// Splits off the queues of partitions and returns the list to assign.
    pub(super) fn open_slots(
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
            self.slots.insert(at.clone(), Slot { queue, topic, epoch: *epoch, position: *position });
            self.shared.lock().own(at.clone());
        }
        Ok(tpl)
    }

    /// Fills a batch for each partition that wants one; true when something came.
    pub(super) fn fill(&mut self) -> bool {
        let mut busy = false;
        for (at, slot) in &mut self.slots {
            self.monitor.iter().for_each(LoopMonitor::beat);
            if self.shared.lock().wants(at) {
                let filled = fill_slot(&self.consumer, &self.settings, at, slot);
                if let Some(error) = filled.error {
                    self.monitor.iter().for_each(|monitor| monitor.announce_blocking(self.settings.request_timeout));
                    let error = out_of_range(&self.consumer, &self.settings, at, slot.position, &error);
                    self.shared.lock().push_event(Err(error));
                    self.shared.ring();
                    busy = true;
                }
                let mut inbox = self.shared.lock();
                for polled in filled.batch.into_iter().chain(filled.end.map(Polled::End)) {
                    inbox.push_batch(polled);
                    self.shared.ring();
                    busy = true;
                }
            }
        }
        busy
    }

    pub(super) fn seek(&mut self, at: &TopicPartition, offset: u64) -> Result<Sought, BrokerError> {
        let timeout = self.settings.request_timeout;
        if !self.slots.contains_key(at) {
            return Err(BrokerError::not_assigned("seek", at));
        }
        self.asks(2);
        let (low, high) = watermarks_of(&self.consumer, at, timeout)?;
        if !(low..=high).contains(&offset) {
            return Err(BrokerError::out_of_range("seek", at, offset, low, high));
        }
        let epoch = next_epoch();
        match self.consumer.seek(&at.topic, at.partition, Offset::Offset(offset as i64), timeout) {
            Ok(()) => {
                let slot = self.slots.get_mut(at).ok_or_else(|| BrokerError::not_assigned("seek", at))?;
                (slot.epoch, slot.position) = (epoch, offset);
            }
            // An out-of-range position has stopped the partition for good: only a new start helps.
            Err(error) => {
                debug!(partition = %at, %error, "starting the partition anew instead of seeking");
                self.restart(at, epoch, offset)?;
            }
        }
        self.shared.lock().discard(at);
        Ok(Sought { epoch, end: high })
    }

    /// Unassigns a partition and assigns it at `offset`; the group does not hear of it.
    fn restart(&mut self, at: &TopicPartition, epoch: u64, offset: u64) -> Result<(), BrokerError> {
        let failed = |error| translate("seek", &at.to_string(), &error);
        if matches!(self.consumer.rebalance_protocol(), RebalanceProtocol::Cooperative) {
            self.slots.remove(at);
            let mut one = TopicPartitionList::new();
            one.add_partition(&at.topic, at.partition);
            self.consumer.incremental_unassign(&one).map_err(failed)?;
            let tpl = self.open_slots(&[(at.clone(), epoch, offset)])?;
            return self.consumer.incremental_assign(&tpl).map_err(failed);
        }
        // The eager protocol knows only whole assignments: the others go on where they were, in new queues.
        let starts: Vec<_> = std::mem::take(&mut self.slots)
            .into_iter()
            .map(|(other, slot)| match other == *at {
                true => (other, epoch, offset),
                false => (other, slot.epoch, slot.position),
            })
            .collect();
        let tpl = self.open_slots(&starts)?;
        self.consumer.assign(&tpl).map_err(failed)
    }
}

#[derive(Default)]
struct Filled {
    batch: Option<Polled>,
    end: Option<End>,
    error: Option<KafkaError>,
}

/// Takes what a partition's queue holds, up to a batch.
fn fill_slot(
    consumer: &BaseConsumer<Context>,
    settings: &KafkaSettings,
    at: &TopicPartition,
    slot: &mut Slot,
) -> Filled {
    let mut filled = Filled::default();
    let mut arena = Arena::default();
    let mut at_end = false;
    while arena.messages() < settings.batch_messages && arena.bytes() < settings.batch_bytes {
        match slot.queue.poll(Duration::ZERO) {
            None => break,
            Some(Ok(message)) => arena.push(&message),
            Some(Err(KafkaError::PartitionEOF(_))) => {
                at_end = true;
                break;
            }
            Some(Err(error)) if kind(&error) == BrokerErrorKind::Retryable || is_unknown_topic(&error) => {
                warn!(partition = %at, %error, "fetch")
            }
            Some(Err(error)) => {
                filled.error = Some(error);
                break;
            }
        }
    }
    if arena.messages() > 0 {
        let messages = arena.finish();
        let next = messages.last().map_or(slot.position, |last| last.offset + 1);
        slot.position = next;
        let high_watermark = slot.known_end(consumer, at).max(next);
        let batch = Batch { partition: at.clone(), epoch: slot.epoch, messages, high_watermark };
        filled.batch = Some(Polled::Messages(batch));
    }
    if at_end {
        if slot.known_end(consumer, at) > slot.position {
            // Asked for before anything more is polled: what it passes was polled before the end.
            slot.position = slot.position.max(polled_up_to(consumer, at));
        }
        filled.end = Some(End { partition: at.clone(), epoch: slot.epoch, position: slot.position });
    }
    filled
}

impl Slot {
    fn known_end(&self, consumer: &BaseConsumer<Context>, at: &TopicPartition) -> u64 {
        known_high_watermark(consumer.client(), &self.topic, at.partition)
    }
}

/// Behind all that was polled, marks of transactions too (which are passed over in silence); 0 when unknown.
fn polled_up_to(consumer: &BaseConsumer<Context>, at: &TopicPartition) -> u64 {
    match consumer.position() {
        Ok(positions) => match positions.find_partition(&at.topic, at.partition).map(|found| found.offset()) {
            Some(Offset::Offset(offset)) => offset.max(0) as u64,
            _ => 0,
        },
        Err(error) => {
            warn!(partition = %at, %error, "position unknown");
            0
        }
    }
}

/// Names what the partition holds, when a fetch position is not there.
fn out_of_range(
    consumer: &BaseConsumer<Context>,
    settings: &KafkaSettings,
    at: &TopicPartition,
    position: u64,
    error: &KafkaError,
) -> BrokerError {
    if kind(error) != BrokerErrorKind::OutOfRange {
        return translate("poll", &at.to_string(), error);
    }
    match watermarks_of(consumer, at, settings.request_timeout) {
        Ok((low, high)) => BrokerError::out_of_range("poll", at, position, low, high),
        Err(unknown) => {
            let message =
                format!("{at}: offset {position} is out of range (and the watermarks are unknown: {unknown})");
            BrokerError::new(BrokerErrorKind::OutOfRange, "poll", message)
        }
    }
}
