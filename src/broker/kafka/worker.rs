//! The thread that owns a consumer: it serves librdkafka's callbacks, carries out rebalances, and fills batches.
//!
//! Every partition has its own queue, split off before fetching starts: so an end or an out-of-range error names its
//! partition, a paused or slow one is simply not polled (librdkafka stops fetching at its own bound), and the main queue
//! is served whatever the partitions do.

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
    error::{KafkaError, RDKafkaErrorCode},
    message::Message as _,
};
use tokio::sync::{oneshot, watch};
use tracing::warn;

use self::{
    partitions::Slot,
    rebalance::{Change, Context, Step, carry_out, next_epoch},
};
use super::{
    errors::{fenced, is_unknown_topic, kind, translate},
    inbox::Shared,
    settings::KafkaSettings,
};
use crate::{
    broker::{BrokerError, BrokerErrorKind, Outage, TopicPartition},
    liveness::{LivenessMonitor, LoopMonitor},
};

/// Where clients tell what others are to know of them.
#[derive(Clone, Default)]
pub(super) struct Signs {
    pub(super) outages: watch::Sender<Outage>,
    pub(super) liveness: Option<LivenessMonitor>,
}

/// How long the thread sleeps when nothing wakes it: librdkafka's wake-up callback alone can miss one.
const NAP: Duration = Duration::from_millis(20);

/// What the async side asks of the thread.
pub(super) enum Command {
    Seek { partition: TopicPartition, offset: u64, reply: oneshot::Sender<Result<Sought, BrokerError>> },
    Close { reply: Option<oneshot::Sender<()>> },
}

/// What a seek has begun.
pub(super) struct Sought {
    /// Of what is read from now on.
    pub(super) epoch: u64,
    /// End of the partition before anything is read.
    pub(super) end: u64,
}

/// Where the consumer gets its partitions from.
pub(super) enum Source {
    Group { topics: Vec<String> },
    Manual { partition: TopicPartition, offset: u64 },
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

/// Starts a thread that reads from `source`; `name` is what operators are told of it.
pub(super) fn start(
    config: ClientConfig,
    settings: KafkaSettings,
    source: Source,
    signs: Signs,
    name: String,
) -> Result<Handle, BrokerError> {
    let (commands, inbox) = mpsc::channel();
    let (ready, started) = mpsc::channel();
    let shared = Arc::new(Shared::default());
    let worker_shared = shared.clone();
    let join = thread::Builder::new()
        .name("kafka-consumer".into())
        .spawn(move || {
            let worker = match Worker::new(&config, settings, source, worker_shared.clone(), inbox, &signs) {
                Ok(worker) => worker,
                // Whoever started us waits for this answer; should it be gone, nobody wants the consumer.
                Err(error) => return drop(ready.send(Err(error))),
            };
            if ready.send(Ok(Arc::downgrade(&worker.consumer))).is_ok() {
                // Without a guard a panic here would leave the async side waiting for ever.
                let _guard = EndGuard(worker_shared);
                worker.run(signs.liveness.map(|liveness| liveness.watch_loop(name)));
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
    /// Until it leaves: that takes as long as librdkafka takes.
    monitor: Option<LoopMonitor>,
}

impl Worker {
    fn new(
        config: &ClientConfig,
        settings: KafkaSettings,
        source: Source,
        shared: Arc<Shared>,
        commands: mpsc::Receiver<Command>,
        signs: &Signs,
    ) -> Result<Self, BrokerError> {
        let failed = |error: KafkaError| translate("start consumer", &settings.brokers, &error);
        let context = Context::telling(signs.outages.clone());
        let mut consumer: BaseConsumer<Context> = config.create_with_context(context).map_err(failed)?;
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
            monitor: None,
        };
        if let Source::Manual { partition, offset } = source {
            let tpl = worker.open_slots(&[(partition.clone(), next_epoch(), offset)])?;
            worker.consumer.assign(&tpl).map_err(|error| translate("read", &partition.to_string(), &error))?;
        }
        Ok(worker)
    }

    fn run(mut self, monitor: Option<LoopMonitor>) {
        self.monitor = monitor;
        loop {
            self.beat();
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

    fn beat(&self) {
        self.monitor.iter().for_each(LoopMonitor::beat);
    }

    /// The cluster is about to be asked so many things, each of which may take its time.
    fn asks(&self, questions: u32) {
        let bound = self.settings.request_timeout * questions;
        self.monitor.iter().for_each(|monitor| monitor.announce_blocking(bound));
    }

    /// Errors that heal by themselves are logged; the others go to the async side.
    fn report(&self, error: &KafkaError) {
        let unknown = is_unknown_topic(error);
        match kind(error) {
            BrokerErrorKind::Fenced | BrokerErrorKind::Fatal | BrokerErrorKind::Refused if !unknown => {
                let error = self.fenced().unwrap_or_else(|| translate("poll", &self.settings.brokers, error));
                self.shared.lock().push_event(Err(error));
                self.shared.ring();
            }
            _ => warn!(%error, "consumer"),
        }
    }

    /// What ends a client is told as an error without a cause; the client knows the cause.
    fn fenced(&self) -> Option<BrokerError> {
        let (code, _) = self.consumer.client().fatal_error()?;
        let name = self.settings.group_instance_id.as_deref();
        (code == RDKafkaErrorCode::FencedInstanceId).then(|| fenced("poll", name))
    }

    /// Leaves the group. Queues go first: a consumer with living queues may never close.
    fn close(mut self, reply: Option<oneshot::Sender<()>>) {
        self.monitor = None;
        self.slots.clear();
        let context = self.consumer.context().clone();
        context.closing.store(true, Ordering::Release);
        let mut open: VecDeque<_> = self
            .step
            .take()
            .map(|step| match step {
                Step::Assign { .. } | Step::LookUp { .. } => (Change::Assign, TopicPartitionList::new()),
                Step::Revoke { tpl, .. } => (Change::Revoke, tpl),
            })
            .into_iter()
            .collect();
        open.extend(context.noted.lock().unwrap_or_else(PoisonError::into_inner).drain(..));
        for (change, tpl) in open {
            carry_out(&self.consumer, change, &tpl);
        }
        self.shared.lock().forget_everything();
        self.leave();
        if let Some(reply) = reply {
            // A caller who no longer waits has reached its own deadline.
            let _ = reply.send(());
        }
    }

    /// Destroys the consumer, which leaves the group: closing it before would only make its destruction close it once more, in
    /// vain and with an error in the log. A commit that is on its way holds it for a moment; then that destroys it.
    fn leave(self) {
        let deadline = Instant::now() + self.settings.close_timeout;
        let consumer = Arc::downgrade(&self.consumer);
        drop(self);
        while consumer.strong_count() > 0 && Instant::now() < deadline {
            thread::sleep(NAP);
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
