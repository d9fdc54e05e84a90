//! The thread that owns a consumer: it serves librdkafka's callbacks, carries out rebalances and fills batches.
//!
//! Every partition has its own queue, split off before fetching starts. An end or an out-of-range error thereby names
//! its partition; a paused or slow partition is not polled, and librdkafka stops fetching at its own limit; and the
//! main queue is served whatever the partitions do.

mod partitions;
mod rebalance;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, PoisonError, Weak, atomic::Ordering, mpsc},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use rdkafka::{
    TopicPartitionList,
    config::ClientConfig,
    consumer::{BaseConsumer, Consumer as _},
    error::KafkaError,
    message::Message as _,
};
use tokio::sync::{oneshot, watch};
use tracing::warn;

use self::{
    partitions::OpenPartition,
    rebalance::{RebalanceContext, RebalanceKind, RebalanceStep, apply_change, next_epoch},
};
use super::{
    errors::{fenced, is_fencing, is_unknown_topic, kind, translate},
    inbox::SharedInbox,
    settings::KafkaSettings,
};
use crate::{
    broker::{BrokerError, BrokerErrorKind, Outage, TopicPartition},
    liveness::{LivenessMonitor, LoopMonitor},
};

/// Channels by which clients report outages and the beats of their polling threads.
#[derive(Clone, Default)]
pub(super) struct ConsumerSignals {
    pub(super) outages: watch::Sender<Outage>,
    pub(super) liveness: Option<LivenessMonitor>,
}

/// Longest sleep of the idle thread. librdkafka's wake-up callback alone can miss a message.
const IDLE_SLEEP: Duration = Duration::from_millis(20);

/// A request of the async side to the thread.
pub(super) enum WorkerCommand {
    Seek { partition: TopicPartition, offset: u64, reply: oneshot::Sender<Result<SeekResult, BrokerError>> },
    Close { reply: Option<oneshot::Sender<()>> },
}

/// Epoch and end offset of a partition after a seek.
pub(super) struct SeekResult {
    /// Epoch of the messages that are read after the seek.
    pub(super) epoch: u64,
    /// End offset of the partition before the first read.
    pub(super) end: u64,
}

/// Source of a consumer's partitions.
pub(super) enum ConsumerSource {
    Group {
        topics: Vec<String>,
    },
    /// Partitions without a group, each with its first offset.
    Manual(Vec<(TopicPartition, u64)>),
}

/// The handles to a running thread.
pub(super) struct Handle {
    /// The consumer, owned by the thread: its destruction may block, which the runtime must not.
    pub(super) consumer: Weak<BaseConsumer<RebalanceContext>>,
    pub(super) shared: Arc<SharedInbox>,
    pub(super) commands: mpsc::Sender<WorkerCommand>,
    pub(super) thread: Thread,
}

impl Handle {
    pub(super) fn wake(&self) {
        self.thread.unpark();
    }
}

/// Starts a thread that reads from `source`; logs and `/state` show the thread by `name`.
pub(super) fn start(
    config: ClientConfig,
    settings: KafkaSettings,
    source: ConsumerSource,
    signals: ConsumerSignals,
    name: String,
) -> Result<Handle, BrokerError> {
    let (commands, inbox) = mpsc::channel();
    let (ready, started) = mpsc::channel();
    let shared = Arc::new(SharedInbox::default());
    let worker_shared = shared.clone();
    let join = thread::Builder::new()
        .name("kafka-consumer".into())
        .spawn(move || {
            let worker = match Worker::new(&config, settings, source, worker_shared.clone(), inbox, &signals) {
                Ok(worker) => worker,
                // The send fails only where the starting call was cancelled, and the error has no reader.
                Err(error) => return drop(ready.send(Err(error))),
            };
            if ready.send(Ok(Arc::downgrade(&worker.consumer))).is_ok() {
                // Without the guard a panic of this thread would leave the async side waiting for ever.
                let _guard = EndGuard(worker_shared);
                worker.run(signals.liveness.map(|liveness| liveness.watch_loop(name)));
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

struct EndGuard(Arc<SharedInbox>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        let ended = BrokerError::new(BrokerErrorKind::Fatal, "poll", "the consumer is closed");
        self.0.lock().ended.get_or_insert(ended);
        self.0.notify();
    }
}

struct Worker {
    consumer: Arc<BaseConsumer<RebalanceContext>>,
    settings: KafkaSettings,
    shared: Arc<SharedInbox>,
    commands: mpsc::Receiver<WorkerCommand>,
    open_partitions: BTreeMap<TopicPartition, OpenPartition>,
    topics: BTreeMap<String, Arc<str>>,
    step: Option<RebalanceStep>,
    /// Monitor of the loop; `None` while the consumer leaves, which takes as long as librdkafka takes.
    monitor: Option<LoopMonitor>,
}

impl Worker {
    fn new(
        config: &ClientConfig,
        settings: KafkaSettings,
        source: ConsumerSource,
        shared: Arc<SharedInbox>,
        commands: mpsc::Receiver<WorkerCommand>,
        signals: &ConsumerSignals,
    ) -> Result<Self, BrokerError> {
        let failed = |error: KafkaError| translate("start consumer", &settings.brokers, &error);
        let context = RebalanceContext::reporting_to(signals.outages.clone());
        let mut consumer: BaseConsumer<RebalanceContext> = config.create_with_context(context).map_err(failed)?;
        let me = thread::current();
        consumer.set_nonempty_callback(move || me.unpark());
        let consumer = Arc::new(consumer);
        if let ConsumerSource::Group { topics } = &source {
            let topics: Vec<_> = topics.iter().map(String::as_str).collect();
            consumer.subscribe(&topics).map_err(failed)?;
        }
        let mut worker = Worker {
            consumer,
            settings,
            shared,
            commands,
            open_partitions: BTreeMap::new(),
            topics: BTreeMap::new(),
            step: None,
            monitor: None,
        };
        if let ConsumerSource::Manual(starts) = source {
            let name = starts.first().map_or_else(String::new, |(partition, _)| partition.to_string());
            let starts: Vec<_> = starts.into_iter().map(|(at, offset)| (at, next_epoch(), offset)).collect();
            let tpl = worker.split_queues(&starts)?;
            worker.consumer.assign(&tpl).map_err(|error| translate("read", &name, &error))?;
        }
        Ok(worker)
    }

    fn run(mut self, monitor: Option<LoopMonitor>) {
        self.monitor = monitor;
        loop {
            self.beat();
            let mut is_busy = false;
            loop {
                match self.commands.try_recv() {
                    Ok(WorkerCommand::Seek { partition, offset, reply }) => {
                        // A caller that no longer waits has cancelled the seek; the epoch of the messages shows it.
                        drop(reply.send(self.seek(&partition, offset)));
                        is_busy = true;
                    }
                    Ok(WorkerCommand::Close { reply }) => return self.close(reply),
                    Err(mpsc::TryRecvError::Disconnected) => return self.close(None),
                    Err(mpsc::TryRecvError::Empty) => break,
                }
            }
            if let Some(polled) = self.consumer.poll(Duration::ZERO) {
                is_busy = true;
                match polled {
                    // Impossible while queues are split before they are assigned; a dropped message would be lost.
                    Ok(message) => {
                        let at = format!("{}/{}", message.topic(), message.partition());
                        let message = format!("{at}: a message came outside the queue of its partition");
                        self.shared.lock().push_event(Err(BrokerError::new(BrokerErrorKind::Fatal, "poll", message)));
                        self.shared.notify();
                    }
                    Err(error) => self.report(&error),
                }
            }
            is_busy |= self.rebalance();
            is_busy |= self.fill_batches();
            if !is_busy {
                thread::park_timeout(IDLE_SLEEP);
            }
        }
    }

    fn beat(&self) {
        self.monitor.iter().for_each(LoopMonitor::beat);
    }

    /// Announces blocking requests to the monitor, each of which may take the request timeout.
    fn announce_requests(&self, requests: u32) {
        let bound = self.settings.request_timeout * requests;
        self.monitor.iter().for_each(|monitor| monitor.announce_blocking(bound));
    }

    /// Logs an error that heals without the caller; sends any other error to the async side.
    fn report(&self, error: &KafkaError) {
        let unknown = is_unknown_topic(error);
        match kind(error) {
            BrokerErrorKind::Fenced | BrokerErrorKind::Fatal | BrokerErrorKind::Refused if !unknown => {
                let error = self.fenced().unwrap_or_else(|| translate("poll", &self.settings.brokers, error));
                self.shared.lock().push_event(Err(error));
                self.shared.notify();
            }
            _ => warn!(%error, "kafka consumer: error, retrying"),
        }
    }

    /// Error of a fenced client. librdkafka's event has no cause, but the client keeps its fatal error.
    fn fenced(&self) -> Option<BrokerError> {
        let (code, _) = self.consumer.client().fatal_error()?;
        let name = self.settings.group_instance_id.as_deref();
        is_fencing(code).then(|| fenced("poll", name))
    }

    /// Leaves the group. The partitions' queues are dropped first: a consumer with open queues may never close.
    fn close(mut self, reply: Option<oneshot::Sender<()>>) {
        self.monitor = None;
        self.open_partitions.clear();
        let context = self.consumer.context().clone();
        context.closing.store(true, Ordering::Release);
        let mut unfinished: VecDeque<_> = self
            .step
            .take()
            .map(|step| match step {
                RebalanceStep::Assign { .. } | RebalanceStep::LookUp { .. } => {
                    (RebalanceKind::Assign, TopicPartitionList::new())
                }
                RebalanceStep::Revoke { tpl, .. } => (RebalanceKind::Revoke, tpl),
            })
            .into_iter()
            .collect();
        unfinished.extend(context.pending.lock().unwrap_or_else(PoisonError::into_inner).drain(..));
        for (change, tpl) in unfinished {
            apply_change(&self.consumer, change, &tpl);
        }
        self.shared.lock().clear();
        self.leave_group();
        if let Some(reply) = reply {
            // The send fails only where the caller's own timeout has passed.
            let _ = reply.send(());
        }
    }

    /// Destroys the consumer, which leaves the group. A close before would make the destruction close once more, in
    /// vain and with an error in the log. A commit in progress keeps the consumer for a moment and then destroys it.
    fn leave_group(self) {
        let deadline = Instant::now() + self.settings.close_timeout;
        let consumer = Arc::downgrade(&self.consumer);
        drop(self);
        while consumer.strong_count() > 0 && Instant::now() < deadline {
            thread::sleep(IDLE_SLEEP);
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
