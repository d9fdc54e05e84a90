//! Rebalances: librdkafka's callback only records them, and the worker's thread carries them out, so that other
//! partitions are read while one is drained.

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
        inbox::RevocationState,
        lookup::{fetch_all_watermarks, fetch_committed},
    },
    Worker,
};
use crate::{
    broker::{AssignedPartition, BrokerError, BrokerErrorKind, CommittedOffset, ConsumerEvent, Outage, TopicPartition},
    text::one_line,
};

/// Pause before the start positions are looked up again.
const LOOK_UP_PAUSE: Duration = Duration::from_millis(500);

/// Epochs are unique in the process.
static NEXT_EPOCH: AtomicU64 = AtomicU64::new(1);

pub(super) fn next_epoch() -> u64 {
    NEXT_EPOCH.fetch_add(1, Ordering::Relaxed)
}

/// Callbacks of the consumer: records rebalances for the thread and reports outages.
pub(in super::super) struct RebalanceContext {
    pub(super) pending: Mutex<VecDeque<(RebalanceKind, TopicPartitionList)>>,
    pub(super) closing: AtomicBool,
    outages: watch::Sender<Outage>,
}

impl RebalanceContext {
    pub(super) fn reporting_to(outages: watch::Sender<Outage>) -> Self {
        RebalanceContext { pending: Mutex::default(), closing: AtomicBool::default(), outages }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RebalanceKind {
    Assign,
    Revoke,
}

impl ClientContext for RebalanceContext {
    /// Logs an error and reports an outage. The end of a partition comes as an error, too, and is ignored here: the
    /// partition's queue reports the end.
    fn error(&self, error: KafkaError, reason: &str) {
        let code = error.rdkafka_error_code();
        if let Some(is_total) = code.and_then(classify_outage) {
            self.outages.send_replace(Outage { is_total, reason: one_line(reason).into_owned() });
        }
        if code != Some(RDKafkaErrorCode::PartitionEOF) {
            error!(%error, reason, "librdkafka");
        }
    }
}

impl ConsumerContext for RebalanceContext {
    fn rebalance(&self, consumer: &BaseConsumer<Self>, err: RDKafkaRespErr, tpl: &mut TopicPartitionList) {
        let change = match err {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS => RebalanceKind::Assign,
            _ => RebalanceKind::Revoke,
        };
        if self.closing.load(Ordering::Acquire) {
            apply_change(consumer, change, tpl);
        } else {
            self.pending.lock().unwrap_or_else(PoisonError::into_inner).push_back((change, tpl.clone()));
        }
    }
}

/// Classifies an error as an outage: `Some(true)` of all brokers, `Some(false)` of one broker; `None`: no outage.
fn classify_outage(code: RDKafkaErrorCode) -> Option<bool> {
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

/// Accepts an assignment or revocation, so that librdkafka carries it out.
pub(super) fn apply_change(consumer: &BaseConsumer<RebalanceContext>, change: RebalanceKind, tpl: &TopicPartitionList) {
    let cooperative = matches!(consumer.rebalance_protocol(), RebalanceProtocol::Cooperative);
    let result = match (change, cooperative) {
        (RebalanceKind::Assign, true) => consumer.incremental_assign(tpl),
        (RebalanceKind::Assign, false) => consumer.assign(tpl),
        (RebalanceKind::Revoke, true) => consumer.incremental_unassign(tpl),
        (RebalanceKind::Revoke, false) => consumer.unassign(),
    };
    if let Err(error) = result {
        warn!(?change, %error, "rebalance: librdkafka refused the change");
    }
}

/// Start positions of partitions, or the error of the lookup.
type StartPositions = Result<Vec<AssignedPartition>, BrokerError>;

/// The current step of a rebalance.
pub(super) enum RebalanceStep {
    Assign { tpl: TopicPartitionList, not_before: Instant },
    LookUp { tpl: TopicPartitionList, answer: mpsc::Receiver<StartPositions> },
    Revoke { tpl: TopicPartitionList, partitions: Vec<TopicPartition>, deadline: Instant },
}

impl Worker {
    /// Advances the rebalance; true where a step was done.
    pub(super) fn rebalance(&mut self) -> bool {
        if self.step.is_none() {
            let pending = self.consumer.context().pending.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some((change, tpl)) = pending else { return false };
            self.step = Some(match change {
                RebalanceKind::Assign => RebalanceStep::Assign { tpl, not_before: Instant::now() },
                RebalanceKind::Revoke => self.announce_revocation(tpl),
            });
        }
        match self.step.take() {
            Some(RebalanceStep::Assign { tpl, not_before }) if not_before <= Instant::now() => self.look_up_starts(tpl),
            Some(RebalanceStep::LookUp { tpl, answer }) => match answer.try_recv() {
                Ok(starts) => self.assign(tpl, starts),
                Err(mpsc::TryRecvError::Empty) => {
                    self.step = Some(RebalanceStep::LookUp { tpl, answer });
                    false
                }
                Err(mpsc::TryRecvError::Disconnected) => {
                    self.assign(tpl, Err(lookup_error("the lookup thread ended without an answer")))
                }
            },
            Some(RebalanceStep::Revoke { tpl, partitions, deadline }) => self.release(tpl, partitions, deadline),
            waiting => {
                self.step = waiting;
                false
            }
        }
    }

    /// Stops the reads of revoked partitions and announces the revocation to the async side.
    fn announce_revocation(&mut self, tpl: TopicPartitionList) -> RebalanceStep {
        let lost = self.consumer.assignment_lost();
        let partitions: Vec<_> =
            self.partitions(&tpl).into_iter().filter(|at| self.open_partitions.contains_key(at)).collect();
        for at in &partitions {
            // The queue is dropped before the partition is split again: a later drop would silence the new queue.
            self.open_partitions.remove(at);
        }
        let mut inbox = self.shared.lock();
        inbox.revoke(&partitions);
        inbox.revocation = RevocationState::Announced;
        if lost {
            inbox.remove_partitions(&partitions);
        }
        if lost || partitions.is_empty() {
            inbox.revocation = RevocationState::Finished;
        }
        if !partitions.is_empty() {
            info!(?partitions, lost, "kafka consumer: partitions revoked");
            inbox.push_event(Ok(ConsumerEvent::Revoked { partitions: partitions.clone(), lost }));
        }
        drop(inbox);
        self.shared.notify();
        RebalanceStep::Revoke { tpl, partitions, deadline: Instant::now() + self.settings.revocation_timeout }
    }

    /// Gives up partitions once the async side has finished the revocation and no commit is in progress, or at the
    /// deadline.
    fn release(&mut self, tpl: TopicPartitionList, partitions: Vec<TopicPartition>, deadline: Instant) -> bool {
        let now = Instant::now();
        let lost = self.consumer.assignment_lost();
        let mut inbox = self.shared.lock();
        let finished = inbox.revocation == RevocationState::Finished;
        let overdue = now >= deadline;
        let committing = inbox.committing && now < deadline + self.settings.commit_timeout;
        if !lost && (committing || !(finished || overdue)) {
            drop(inbox);
            self.step = Some(RebalanceStep::Revoke { tpl, partitions, deadline });
            return false;
        }
        inbox.remove_partitions(&partitions);
        inbox.revocation = RevocationState::None;
        drop(inbox);
        if !finished {
            warn!(?partitions, lost, "kafka consumer: partitions released before the revocation was finished");
        }
        apply_change(&self.consumer, RebalanceKind::Revoke, &tpl);
        true
    }

    /// Starts the lookup of the start positions on a thread of its own: open partitions are polled meanwhile.
    fn look_up_starts(&mut self, tpl: TopicPartitionList) -> bool {
        let (partitions, timeout) = (self.partitions(&tpl), self.settings.request_timeout);
        let (consumer, me, (sender, answer)) = (self.consumer.clone(), thread::current(), mpsc::channel());
        let started = thread::Builder::new().name("kafka-look-up".into()).spawn(move || {
            // The send fails only where the consumer was closed.
            let _ = sender.send(fetch_start_positions(&consumer, partitions, timeout));
            me.unpark();
        });
        match started {
            Ok(_) => self.step = Some(RebalanceStep::LookUp { tpl, answer }),
            Err(error) => return self.assign(tpl, Err(lookup_error(format!("no thread: {error}")))),
        }
        true
    }

    /// Splits off the queues and starts the reads.
    fn assign(&mut self, tpl: TopicPartitionList, starts: StartPositions) -> bool {
        let assigned = match starts {
            Ok(assigned) => assigned,
            Err(error) => {
                warn!(%error, "kafka consumer: start positions unknown, retrying");
                self.step = Some(RebalanceStep::Assign { tpl, not_before: Instant::now() + LOOK_UP_PAUSE });
                return false;
            }
        };
        let starts: Vec<_> = assigned.iter().map(|a| (a.partition.clone(), a.epoch, a.position)).collect();
        match self.split_queues(&starts) {
            Ok(tpl) => apply_change(&self.consumer, RebalanceKind::Assign, &tpl),
            Err(error) => {
                self.shared.lock().push_event(Err(error));
                self.shared.notify();
                apply_change(&self.consumer, RebalanceKind::Assign, &TopicPartitionList::new());
                return true;
            }
        }
        info!(partitions = assigned.len(), "kafka consumer: partitions assigned");
        self.shared.lock().push_event(Ok(ConsumerEvent::Assigned(assigned)));
        self.shared.notify();
        true
    }
}

fn fetch_start_positions(
    consumer: &BaseConsumer<RebalanceContext>,
    partitions: Vec<TopicPartition>,
    timeout: Duration,
) -> StartPositions {
    let committed = fetch_committed(consumer, &partitions, timeout)?;
    let watermarks = fetch_all_watermarks(consumer, &partitions, timeout)?;
    let start = |((partition, committed), (low, high_watermark)): ((_, Option<CommittedOffset>), _)| {
        let position = committed.as_ref().map_or(low, |committed| committed.offset);
        AssignedPartition { partition, epoch: next_epoch(), committed, position, high_watermark }
    };
    Ok(partitions.into_iter().zip(committed).zip(watermarks).map(start).collect())
}

fn lookup_error(why: impl Into<String>) -> BrokerError {
    BrokerError::new(BrokerErrorKind::Retryable, "look up start positions", why)
}
