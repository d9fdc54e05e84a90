//! Rebalances: only noted in librdkafka's callback, and carried out by the worker's thread, so that the other partitions go on
//! while one is drained.

use std::{
    collections::VecDeque,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use rdkafka::{
    ClientContext, TopicPartitionList,
    consumer::{BaseConsumer, Consumer as _, ConsumerContext, RebalanceProtocol},
    error::{KafkaError, RDKafkaErrorCode},
    types::RDKafkaRespErr,
};
use tokio::sync::watch;
use tracing::{error, info, warn};

use super::{
    super::{
        inbox::Revocation,
        lookup::{all_watermarks_of, committed_of},
    },
    Worker,
};
use crate::{
    broker::{Assigned, BrokerError, BrokerErrorKind, Committed, Outage, Polled, TopicPartition},
    text::one_line,
};

/// The pause before a start position is looked up again.
const LOOK_UP_PAUSE: Duration = Duration::from_millis(500);

/// Epochs are unique in the process.
static NEXT_EPOCH: AtomicU64 = AtomicU64::new(1);

pub(super) fn next_epoch() -> u64 {
    NEXT_EPOCH.fetch_add(1, Ordering::Relaxed)
}

/// Notes rebalances for the thread to carry out, and tells of outages.
pub(in super::super) struct Context {
    pub(super) noted: Mutex<VecDeque<(Change, TopicPartitionList)>>,
    pub(super) closing: AtomicBool,
    outages: watch::Sender<Outage>,
}

impl Context {
    pub(super) fn telling(outages: watch::Sender<Outage>) -> Self {
        Context { noted: Mutex::default(), closing: AtomicBool::default(), outages }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Assign,
    Revoke,
}

impl ClientContext for Context {
    /// The end of a partition is told like an error. It is none; whoever reads the partition hears of it.
    fn error(&self, error: KafkaError, reason: &str) {
        let code = error.rdkafka_error_code();
        if let Some(whole) = code.and_then(outage) {
            self.outages.send_replace(Outage { whole, why: one_line(reason).into_owned() });
        }
        if code != Some(RDKafkaErrorCode::PartitionEOF) {
            error!(%error, reason, "librdkafka");
        }
    }
}

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

/// Whether an error is one of a cluster that is away, and then whether all of it is.
fn outage(code: RDKafkaErrorCode) -> Option<bool> {
    match code {
        RDKafkaErrorCode::AllBrokersDown => Some(true),
        RDKafkaErrorCode::BrokerTransportFailure
        | RDKafkaErrorCode::Resolve
        | RDKafkaErrorCode::SSL
        | RDKafkaErrorCode::Authentication
        | RDKafkaErrorCode::SaslAuthenticationFailed => Some(false),
        _ => None,
    }
}

/// Tells librdkafka that an assignment or revocation is accepted.
pub(super) fn carry_out(consumer: &BaseConsumer<Context>, change: Change, tpl: &TopicPartitionList) {
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

/// Where partitions start, or why that is not known yet.
type Starts = Result<Vec<Assigned>, BrokerError>;

/// A rebalance that is being carried out.
pub(super) enum Step {
    Assign { tpl: TopicPartitionList, not_before: Instant },
    LookUp { tpl: TopicPartitionList, answer: mpsc::Receiver<Starts> },
    Revoke { tpl: TopicPartitionList, partitions: Vec<TopicPartition>, deadline: Instant },
}

impl Worker {
    /// Carries a rebalance forward; true when something was done.
    pub(super) fn rebalance(&mut self) -> bool {
        if self.step.is_none() {
            let noted = self.consumer.context().noted.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some((change, tpl)) = noted else { return false };
            self.step = Some(match change {
                Change::Assign => Step::Assign { tpl, not_before: Instant::now() },
                Change::Revoke => self.announce(tpl),
            });
        }
        match self.step.take() {
            Some(Step::Assign { tpl, not_before }) if not_before <= Instant::now() => self.look_up(tpl),
            Some(Step::LookUp { tpl, answer }) => match answer.try_recv() {
                Ok(starts) => self.assign(tpl, starts),
                Err(mpsc::TryRecvError::Empty) => {
                    self.step = Some(Step::LookUp { tpl, answer });
                    false
                }
                Err(mpsc::TryRecvError::Disconnected) => self.assign(tpl, Err(unanswered("it ended without a word"))),
            },
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

    /// Begins to look up where to start, on a thread of its own: what is read already is polled meanwhile.
    fn look_up(&mut self, tpl: TopicPartitionList) -> bool {
        let (partitions, timeout) = (self.partitions(&tpl), self.settings.request_timeout);
        let (consumer, me, (sender, answer)) = (self.consumer.clone(), thread::current(), mpsc::channel());
        let started = thread::Builder::new().name("kafka-look-up".into()).spawn(move || {
            // Without a receiver the consumer is closed.
            let _ = sender.send(starts_of(&consumer, partitions, timeout));
            me.unpark();
        });
        match started {
            Ok(_) => self.step = Some(Step::LookUp { tpl, answer }),
            Err(error) => return self.assign(tpl, Err(unanswered(format!("no thread: {error}")))),
        }
        true
    }

    /// Splits the queues and starts reading.
    fn assign(&mut self, tpl: TopicPartitionList, starts: Starts) -> bool {
        let assigned = match starts {
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
                self.shared.ring();
                carry_out(&self.consumer, Change::Assign, &TopicPartitionList::new());
                return true;
            }
        }
        info!(partitions = assigned.len(), "assigned");
        self.shared.lock().push_event(Ok(Polled::Assigned(assigned)));
        self.shared.ring();
        true
    }
}

fn starts_of(consumer: &BaseConsumer<Context>, partitions: Vec<TopicPartition>, timeout: Duration) -> Starts {
    let committed = committed_of(consumer, &partitions, timeout)?;
    let watermarks = all_watermarks_of(consumer, &partitions, timeout)?;
    let start = |((partition, committed), (low, high_watermark)): ((_, Option<Committed>), _)| {
        let position = committed.as_ref().map_or(low, |committed| committed.offset);
        Assigned { partition, epoch: next_epoch(), committed, position, high_watermark }
    };
    Ok(partitions.into_iter().zip(committed).zip(watermarks).map(start).collect())
}

fn unanswered(why: impl Into<String>) -> BrokerError {
    BrokerError::new(BrokerErrorKind::Retryable, "look up start positions", why)
}
