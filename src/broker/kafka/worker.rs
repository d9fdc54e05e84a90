//! The thread that owns a consumer: it serves librdkafka's callbacks, carries out rebalances, and fills batches.
//!
//! Every partition has its own queue, split off before fetching starts: so an end or an out-of-range error names its
//! partition, a paused or slow one is simply not polled (librdkafka stops fetching at its own bound), and the main queue
//! is served whatever the partitions do. A rebalance is only noted in the callback and carried out here, so that the
//! other partitions go on while one is drained.

use std::{
    collections::{BTreeMap, VecDeque},
    ffi::CString,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread::{self, Thread},
    time::{Duration, Instant},
};

use rdkafka::{
    ClientContext, Offset, TopicPartitionList,
    bindings::rd_kafka_get_watermark_offsets,
    client::Client,
    config::ClientConfig,
    consumer::{BaseConsumer, Consumer as _, ConsumerContext, RebalanceProtocol, base_consumer::PartitionQueue},
    error::{KafkaError, KafkaResult, RDKafkaErrorCode},
    message::Message as _,
    types::RDKafkaRespErr,
};
use tokio::sync::oneshot;
use tracing::{debug, info, warn};

use super::{
    arena::Arena,
    errors::{kind, translate},
    inbox::{Revocation, Shared},
    settings::KafkaSettings,
};
use crate::broker::{Assigned, Batch, BrokerError, BrokerErrorKind, Committed, Polled, TopicPartition};

/// How long the thread sleeps when nothing wakes it: librdkafka's wake-up callback alone can miss one.
const NAP: Duration = Duration::from_millis(20);
/// The pause before a start position is looked up again.
const LOOK_UP_PAUSE: Duration = Duration::from_millis(500);

/// Epochs are unique in the process.
static NEXT_EPOCH: AtomicU64 = AtomicU64::new(1);

fn next_epoch() -> u64 {
    NEXT_EPOCH.fetch_add(1, Ordering::Relaxed)
}

/// Notes rebalances for the thread to carry out.
#[derive(Default)]
pub(super) struct Context {
    noted: Mutex<VecDeque<(Change, TopicPartitionList)>>,
    closing: AtomicBool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Assign,
    Revoke,
}

impl ClientContext for Context {}

impl ConsumerContext for Context {
    fn rebalance(&self, consumer: &BaseConsumer<Self>, err: RDKafkaRespErr, tpl: &mut TopicPartitionList) {
        let change = match err {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS => Change::Assign,
            _ => Change::Revoke,
        };
        if self.closing.load(Ordering::Acquire) {
            carry_out(consumer, change, tpl);
        } else {
            self.noted.lock().unwrap_or_else(PoisonError::into_inner).push_back((change, tpl.clone()));
        }
    }
}

/// Tells librdkafka that an assignment or revocation is accepted.
fn carry_out(consumer: &BaseConsumer<Context>, change: Change, tpl: &TopicPartitionList) {
    let cooperative = matches!(consumer.rebalance_protocol(), RebalanceProtocol::Cooperative);
    let result = match (change, cooperative) {
        (Change::Assign, true) => consumer.incremental_assign(tpl),
        (Change::Assign, false) => consumer.assign(tpl),
        (Change::Revoke, true) => consumer.incremental_unassign(tpl),
        (Change::Revoke, false) => consumer.unassign(),
    };
    if let Err(error) = result {
        warn!(?change, %error, "rebalance: librdkafka refused the change");
    }
}

/// What the async side asks of the thread.
pub(super) enum Command {
    Seek { partition: TopicPartition, offset: u64, reply: oneshot::Sender<Result<u64, BrokerError>> },
    Close { reply: Option<oneshot::Sender<()>> },
}

/// Where the consumer gets its partitions from.
pub(super) enum Source {
    Group { topics: Vec<String> },
    Manual { partition: TopicPartition, offset: u64 },
}

/// A partition that is being read.
struct Slot {
    queue: PartitionQueue<Context>,
    topic: CString,
    epoch: u64,
    position: u64,
}

/// A rebalance that is being carried out.
enum Step {
    Assign { tpl: TopicPartitionList, not_before: Instant },
    Revoke { tpl: TopicPartitionList, partitions: Vec<TopicPartition>, deadline: Instant },
}

/// The handles to a running thread.
pub(super) struct Handle {
    /// The thread's own: destroying it may take its time, which must not be the runtime's.
    pub(super) consumer: Weak<BaseConsumer<Context>>,
    pub(super) shared: Arc<Shared>,
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) thread: Thread,
}

impl Handle {
    pub(super) fn wake(&self) {
        self.thread.unpark();
    }
}

/// Starts a thread that reads from `source`.
pub(super) fn start(config: ClientConfig, settings: KafkaSettings, source: Source) -> Result<Handle, BrokerError> {
    let (commands, inbox) = mpsc::channel();
    let (ready, started) = mpsc::channel();
    let shared = Arc::new(Shared::default());
    let worker_shared = shared.clone();
    let join = thread::Builder::new()
        .name("kafka-consumer".into())
        .spawn(move || {
            let worker = match Worker::new(&config, settings, source, worker_shared.clone(), inbox) {
                Ok(worker) => worker,
                // Whoever started us waits for this answer; should it be gone, nobody wants the consumer.
                Err(error) => return drop(ready.send(Err(error))),
            };
            if ready.send(Ok(Arc::downgrade(&worker.consumer))).is_ok() {
                // Without a guard a panic here would leave the async side waiting for ever.
                let _guard = EndGuard(worker_shared);
                worker.run();
            }
        })
        .map_err(|error| {
            BrokerError::new(BrokerErrorKind::Retryable, "start consumer", format!("no thread: {error}"))
        })?;
    let consumer = started.recv().map_err(|_| {
        BrokerError::new(BrokerErrorKind::Fatal, "start consumer", "the thread ended before it began")
    })??;
    Ok(Handle { consumer, shared, commands, thread: join.thread().clone() })
}

struct EndGuard(Arc<Shared>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        let ended = BrokerError::new(BrokerErrorKind::Fatal, "poll", "the consumer is closed");
        self.0.lock().ended.get_or_insert(ended);
        self.0.ring();
    }
}

struct Worker {
    consumer: Arc<BaseConsumer<Context>>,
    settings: KafkaSettings,
    shared: Arc<Shared>,
    commands: mpsc::Receiver<Command>,
    slots: BTreeMap<TopicPartition, Slot>,
    topics: BTreeMap<String, Arc<str>>,
    step: Option<Step>,
}

impl Worker {
    fn new(
        config: &ClientConfig,
        settings: KafkaSettings,
        source: Source,
        shared: Arc<Shared>,
        commands: mpsc::Receiver<Command>,
    ) -> Result<Self, BrokerError> {
        let failed = |error: KafkaError| translate("start consumer", &settings.brokers, &error);
        let mut consumer: BaseConsumer<Context> = config.create_with_context(Context::default()).map_err(failed)?;
        let me = thread::current();
        consumer.set_nonempty_callback(move || me.unpark());
        let consumer = Arc::new(consumer);
        if let Source::Group { topics } = &source {
            let topics: Vec<_> = topics.iter().map(String::as_str).collect();
            consumer.subscribe(&topics).map_err(failed)?;
        }
        let mut worker = Worker {
            consumer,
            settings,
            shared,
            commands,
            slots: BTreeMap::new(),
            topics: BTreeMap::new(),
            step: None,
        };
        if let Source::Manual { partition, offset } = source {
            let tpl = worker.open_slots(&[(partition.clone(), next_epoch(), offset)])?;
            worker.consumer.assign(&tpl).map_err(|error| translate("read", &partition.to_string(), &error))?;
        }
        Ok(worker)
    }

    fn run(mut self) {
        loop {
            let mut busy = false;
            loop {
                match self.commands.try_recv() {
                    Ok(Command::Seek { partition, offset, reply }) => {
                        // A caller who no longer waits has given the seek up; the epoch tells it anyway.
                        drop(reply.send(self.seek(&partition, offset)));
                        busy = true;
                    }
                    Ok(Command::Close { reply }) => return self.close(reply),
                    Err(mpsc::TryRecvError::Disconnected) => return self.close(None),
                    Err(mpsc::TryRecvError::Empty) => break,
                }
            }
            if let Some(polled) = self.consumer.poll(Duration::ZERO) {
                busy = true;
                match polled {
                    // Cannot happen while queues are split before they are assigned; were it dropped, it would be lost.
                    Ok(message) => {
                        let message = format!("{}/{} came outside of its queue", message.topic(), message.partition());
                        self.shared.lock().push_event(Err(BrokerError::new(BrokerErrorKind::Fatal, "poll", message)));
                        self.shared.ring();
                    }
                    Err(error) => self.report(&error),
                }
            }
            busy |= self.rebalance();
            busy |= self.fill();
            if !busy {
                thread::park_timeout(NAP);
            }
        }
    }

    /// Errors that heal by themselves are logged; the others go to the async side.
    fn report(&self, error: &KafkaError) {
        let code = error.rdkafka_error_code();
        let unknown = matches!(
            code,
            Some(
                RDKafkaErrorCode::UnknownTopicOrPartition
                    | RDKafkaErrorCode::UnknownTopic
                    | RDKafkaErrorCode::UnknownPartition
            )
        );
        match kind(error) {
            BrokerErrorKind::Fatal | BrokerErrorKind::Refused if !unknown => {
                self.shared.lock().push_event(Err(translate("poll", &self.settings.brokers, error)));
                self.shared.ring();
            }
            _ => warn!(%error, "consumer"),
        }
    }

    /// Carries a rebalance forward; true when something was done.
    fn rebalance(&mut self) -> bool {
        if self.step.is_none() {
            let noted = self.consumer.context().noted.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some((change, tpl)) = noted else { return false };
            self.step = Some(match change {
                Change::Assign => Step::Assign { tpl, not_before: Instant::now() },
                Change::Revoke => self.announce(tpl),
            });
        }
        match self.step.take() {
            Some(Step::Assign { tpl, not_before }) if not_before <= Instant::now() => self.assign(tpl),
            Some(Step::Revoke { tpl, partitions, deadline }) => self.let_go(tpl, partitions, deadline),
            waiting => {
                self.step = waiting;
                false
            }
        }
    }

    /// Stops reading what is revoked and tells the async side.
    fn announce(&mut self, tpl: TopicPartitionList) -> Step {
        let lost = self.consumer.assignment_lost();
        let partitions: Vec<_> = self.partitions(&tpl).into_iter().filter(|at| self.slots.contains_key(at)).collect();
        for at in &partitions {
            // The queue must be gone before the partition can be split again: a late drop would silence the new one.
            self.slots.remove(at);
        }
        let mut inbox = self.shared.lock();
        inbox.revoke(&partitions);
        inbox.revocation = Revocation::Announced;
        if lost {
            inbox.disown(&partitions);
        }
        if lost || partitions.is_empty() {
            inbox.revocation = Revocation::Finished;
        }
        if !partitions.is_empty() {
            info!(?partitions, lost, "revoked");
            inbox.push_event(Ok(Polled::Revoked { partitions: partitions.clone(), lost }));
        }
        drop(inbox);
        self.shared.ring();
        Step::Revoke { tpl, partitions, deadline: Instant::now() + self.settings.revocation_timeout }
    }

    /// Gives partitions up once the async side has let go, no commit is on its way, or time is up.
    fn let_go(&mut self, tpl: TopicPartitionList, partitions: Vec<TopicPartition>, deadline: Instant) -> bool {
        let now = Instant::now();
        let lost = self.consumer.assignment_lost();
        let mut inbox = self.shared.lock();
        let finished = inbox.revocation == Revocation::Finished;
        let overdue = now >= deadline;
        let committing = inbox.committing && now < deadline + self.settings.commit_timeout;
        if !lost && (committing || !(finished || overdue)) {
            drop(inbox);
            self.step = Some(Step::Revoke { tpl, partitions, deadline });
            return false;
        }
        inbox.disown(&partitions);
        inbox.revocation = Revocation::None;
        drop(inbox);
        if !finished {
            warn!(?partitions, lost, "revocation went through without having been finished");
        }
        carry_out(&self.consumer, Change::Revoke, &tpl);
        true
    }

    /// Looks up where to start, splits the queues and starts reading.
    fn assign(&mut self, tpl: TopicPartitionList) -> bool {
        let assigned = match self.look_up(&tpl) {
            Ok(assigned) => assigned,
            Err(error) => {
                warn!(%error, "start positions not known yet");
                self.step = Some(Step::Assign { tpl, not_before: Instant::now() + LOOK_UP_PAUSE });
                return false;
            }
        };
        let starts: Vec<_> = assigned.iter().map(|a| (a.partition.clone(), a.epoch, a.position)).collect();
        match self.open_slots(&starts) {
            Ok(tpl) => carry_out(&self.consumer, Change::Assign, &tpl),
            Err(error) => {
                self.shared.lock().push_event(Err(error));
                carry_out(&self.consumer, Change::Assign, &TopicPartitionList::new());
            }
        }
        if !assigned.is_empty() {
            info!(partitions = assigned.len(), "assigned");
            self.shared.lock().push_event(Ok(Polled::Assigned(assigned)));
        }
        self.shared.ring();
        true
    }

    fn look_up(&mut self, tpl: &TopicPartitionList) -> Result<Vec<Assigned>, BrokerError> {
        let partitions = self.partitions(tpl);
        let committed = committed_of(&self.consumer, &partitions, self.settings.request_timeout)?;
        let mut assigned = Vec::with_capacity(partitions.len());
        for (partition, committed) in partitions.into_iter().zip(committed) {
            let (low, high_watermark) = watermarks_of(&self.consumer, &partition, self.settings.request_timeout)?;
            let position = committed.as_ref().map_or(low, |committed| committed.offset);
            assigned.push(Assigned { partition, epoch: next_epoch(), committed, position, high_watermark });
        }
        Ok(assigned)
    }

    /// Splits off the queues of partitions and returns the list to assign.
    fn open_slots(&mut self, starts: &[(TopicPartition, u64, u64)]) -> Result<TopicPartitionList, BrokerError> {
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
    fn fill(&mut self) -> bool {
        let mut busy = false;
        for (at, slot) in &mut self.slots {
            if self.shared.lock().wants(at) {
                let filled = fill_slot(&self.consumer, &self.settings, at, slot);
                if let Some(error) = filled.error {
                    let error = out_of_range(&self.consumer, &self.settings, at, slot.position, &error);
                    self.shared.lock().push_event(Err(error));
                    self.shared.ring();
                    busy = true;
                }
                let mut inbox = self.shared.lock();
                for polled in filled.batch.into_iter().chain(filled.end.then(|| Polled::End(at.clone()))) {
                    inbox.push_batch(polled);
                    self.shared.ring();
                    busy = true;
                }
            }
        }
        busy
    }

    fn seek(&mut self, at: &TopicPartition, offset: u64) -> Result<u64, BrokerError> {
        let timeout = self.settings.request_timeout;
        if !self.slots.contains_key(at) {
            return Err(BrokerError::not_assigned("seek", at));
        }
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
        Ok(epoch)
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

    /// Leaves the group. Queues go first: a consumer with living queues may never close.
    fn close(mut self, reply: Option<oneshot::Sender<()>>) {
        self.slots.clear();
        let context = self.consumer.context().clone();
        context.closing.store(true, Ordering::Release);
        let mut open: VecDeque<_> = self
            .step
            .take()
            .map(|step| match step {
                Step::Assign { .. } => (Change::Assign, TopicPartitionList::new()),
                Step::Revoke { tpl, .. } => (Change::Revoke, tpl),
            })
            .into_iter()
            .collect();
        open.extend(context.noted.lock().unwrap_or_else(PoisonError::into_inner).drain(..));
        for (change, tpl) in open {
            carry_out(&self.consumer, change, &tpl);
        }
        self.shared.lock().forget_everything();
        let deadline = Instant::now() + self.settings.close_timeout;
        match self.consumer.close_queue() {
            Err(error) => warn!(%error, "closing the consumer"),
            Ok(()) => {
                while !self.consumer.closed() && Instant::now() < deadline {
                    self.consumer.poll(Duration::from_millis(50));
                }
            }
        }
        if let Some(reply) = reply {
            // A caller who no longer waits has reached its own deadline.
            let _ = reply.send(());
        }
    }

    fn partitions(&mut self, tpl: &TopicPartitionList) -> Vec<TopicPartition> {
        let mut partitions: Vec<_> = tpl
            .elements()
            .iter()
            .map(|element| {
                let topic = element.topic();
                let name = self.topics.entry(topic.to_owned()).or_insert_with(|| topic.into());
                TopicPartition { topic: name.clone(), partition: element.partition() }
            })
            .collect();
        partitions.sort();
        partitions
    }
}

#[derive(Default)]
struct Filled {
    batch: Option<Polled>,
    end: bool,
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
    while arena.messages() < settings.batch_messages && arena.bytes() < settings.batch_bytes {
        match slot.queue.poll(Duration::ZERO) {
            None => break,
            Some(Ok(message)) => arena.push(&message),
            Some(Err(KafkaError::PartitionEOF(_))) => {
                filled.end = true;
                break;
            }
            Some(Err(error)) if kind(&error) == BrokerErrorKind::Retryable => warn!(partition = %at, %error, "fetch"),
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
        let high_watermark = known_high_watermark(consumer.client(), &slot.topic, at.partition).max(next);
        let batch = Batch { partition: at.clone(), epoch: slot.epoch, messages, high_watermark };
        filled.batch = Some(Polled::Messages(batch));
    }
    filled
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

/// What the consumer's group has committed, in the order asked for.
pub(super) fn committed_of<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    partitions: &[TopicPartition],
    timeout: Duration,
) -> Result<Vec<Option<Committed>>, BrokerError> {
    if partitions.is_empty() {
        return Ok(Vec::new());
    }
    let mut asked = TopicPartitionList::new();
    for at in partitions {
        asked.add_partition(&at.topic, at.partition);
    }
    let answer = consumer
        .committed_offsets(asked, timeout)
        .map_err(|error| translate("look up committed offsets", &partitions[0].topic, &error))?;
    partitions
        .iter()
        .map(|at| {
            let Some(element) = answer.find_partition(&at.topic, at.partition) else { return Ok(None) };
            element.error().map_err(|error| translate("look up committed offsets", &at.to_string(), &error))?;
            Ok(match element.offset() {
                Offset::Offset(offset) => {
                    Some(Committed { offset: offset as u64, metadata: element.metadata().to_owned() })
                }
                _ => None,
            })
        })
        .collect()
}

/// (low, high) watermarks, asked of the broker.
pub(super) fn watermarks_of<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    at: &TopicPartition,
    timeout: Duration,
) -> Result<(u64, u64), BrokerError> {
    let answer: KafkaResult<(i64, i64)> = consumer.fetch_watermarks(&at.topic, at.partition, timeout);
    let (low, high) = answer.map_err(|error| translate("look up watermarks", &at.to_string(), &error))?;
    Ok((low.max(0) as u64, high.max(0) as u64))
}

/// The high watermark as the last fetch told it, without asking anybody; 0 when unknown.
fn known_high_watermark(client: &Client<Context>, topic: &CString, partition: i32) -> u64 {
    let (mut low, mut high) = (0i64, 0i64);
    // SAFETY: the client outlives the call, the topic is a terminated string, and both results are ours to write; the
    // function only reads what librdkafka has cached under its own lock. rdkafka has no safe form of it.
    let code =
        unsafe { rd_kafka_get_watermark_offsets(client.native_ptr(), topic.as_ptr(), partition, &mut low, &mut high) };
    match code {
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR => high.max(0) as u64,
        _ => 0,
    }
}
