//! The member of the consumer group of `utxo.chain`: acquires the partition, bounds what is read, commits.

mod acquire;
mod lease;

use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    broker::{CommittedOffset, Consumer, ConsumerEvent, MessageBatch, TopicPartition},
    group::{
        commit_metadata::never_read_reason,
        member::{CommitStep, GroupMember, MemberProfile, MemberServices, RetryRefusal},
        partition::PartitionLimits,
    },
    sequencer::{
        ChainMode, CommittedChain, SequencerError, SequencerParts, chain_group, state::BadState, worker::WorkerReport,
    },
    status::{
        Condition,
        control::{ControlAnswer, ControlRequest},
        health::Workload,
        registry::ChainStatus,
    },
    telemetry::RebalanceChange,
};

pub(super) use acquire::until_meta_answers;
use lease::ChainLease;

/// The one partition of the chain.
const CHAIN: i32 = 0;

/// A member of the consumer group of `utxo.chain`. At most one member has the one partition.
///
/// ```text
///  no partition ── assigned ──► acquiring ──► leased: the worker handles events ──► halted: the worker has stopped
///        ▲                        ▲   │                      │                              │
///        │                        │   └──► halted: no worker │ node restarted               │ an operator's retry
///        │                        │             │            ▼                              ▼
///        └── revoked              └─────────────┴──── seek to the committed offset ◄────────┘
/// ```
pub struct Sequencer {
    parts: SequencerParts,
    mode: ChainMode,
    member: GroupMember,
    lease: Option<ChainLease>,
    /// Requests of operators to the chain.
    requests: mpsc::Receiver<ControlRequest<()>>,
    reports: mpsc::UnboundedReceiver<(u64, WorkerReport)>,
    report_sender: mpsc::UnboundedSender<(u64, WorkerReport)>,
}

/// Bounds of the chain events that are read and not handled: a block can wait long for its transactions, and the events
/// after the block must not fill the memory.
pub(super) const BOUNDS: PartitionLimits = PartitionLimits { span: 10_000, bytes: 64 << 20 };

impl Sequencer {
    /// Makes a sequencer over a consumer that is subscribed to the chain topic.
    pub fn new(parts: SequencerParts, mode: ChainMode, consumer: Box<dyn Consumer>) -> Self {
        let (report_sender, reports) = mpsc::unbounded_channel();
        let requests = parts.health.control().chain.open();
        let profile = MemberProfile {
            name: "sequencer",
            commits: "chain offset",
            topic_ids: "the ids of the chain's topics",
            topic: parts.topics.chain.as_str().into(),
            guarded_topics: parts.topics.guarded(),
            commit_condition: Condition::ChainCommitted,
            commit_interval: parts.settings.commit_interval,
            describe_pause: |_| "too many events wait for the worker",
            // The handled states wait for the durability lag.
            can_lose_writes: false,
            is_rebuild: mode != ChainMode::Live,
        };
        let services = MemberServices {
            broker: parts.broker.clone(),
            guard: parts.guard.clone(),
            ownership: parts.ownership.clone(),
            clock: parts.clock.clone(),
            metrics: parts.metrics.clone(),
            health: parts.health.clone(),
        };
        let member = GroupMember::new(profile, services, consumer, Instant::now());
        Sequencer { parts, mode, member, lease: None, requests, reports, report_sender }
    }

    /// Runs until `shutdown`, until a rebuild has reached its frontier, or until the broker or the store fails for
    /// good. A shutdown interrupts the event that is being handled; the next sequencer handles that event again from
    /// its beginning.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<(), SequencerError> {
        let monitor = self.parts.health.liveness().watch_loop("the sequencer's loop");
        self.member.commits.commit_now();
        let outcome = loop {
            monitor.beat();
            if self.is_finished() {
                break Ok(());
            }
            let step = tokio::select! {
                biased;
                () = shutdown.cancelled() => break Ok(()),
                Some((epoch, report)) = self.reports.recv() => {
                    let handled = self.on_report(epoch, report);
                    self.apply_backpressure();
                    handled
                }
                Some(request) = self.requests.recv() => {
                    let trying = cancel_on_shutdown(&shutdown, Box::pin(self.on_request(request)));
                    monitor.enter("the store and the log, to acquire the chain", trying).await
                }
                polled = self.member.consumer.poll() => match polled {
                    Ok(ConsumerEvent::Assigned(assigned)) => {
                        let acquiring = cancel_on_shutdown(&shutdown, Box::pin(self.acquire_all(assigned)));
                        monitor.enter("the store and the log, to acquire the chain", acquiring).await
                    }
                    Ok(polled) => monitor.enter("a rebalance", self.on_polled(polled)).await,
                    Err(error) => Err(error.into()),
                },
                () = tokio::time::sleep_until(self.member.commits.next()) => {
                    let now = Instant::now();
                    self.member.commits.schedule_next(now, now);
                    self.query_stale_end(now);
                    self.publish_status();
                    monitor.enter("a commit", self.commit()).await
                }
                () = tokio::time::sleep_until(monitor.next_beat()) => Ok(()),
            };
            let step = match step {
                Err(SequencerError::NodeRestarted) => {
                    let rewind = cancel_on_shutdown(&shutdown, Box::pin(self.rewind()));
                    monitor.enter("the rewind after a node restart", rewind).await
                }
                step => step,
            };
            if let Err(stop) = step.or_else(|stop| self.halt(stop)) {
                break Err(stop);
            }
        };
        let ended = monitor.enter("the end of the sequencer", self.end()).await;
        outcome.and(ended)
    }

    async fn end(&mut self) -> Result<(), SequencerError> {
        self.release_chain().await;
        let committed = match self.commit().await {
            // The next owner of the partition detects the restart or the halt again.
            Err(SequencerError::NodeRestarted | SequencerError::Halt(_)) => Ok(()),
            committed => committed,
        };
        let closed = self.member.consumer.close().await;
        committed?;
        Ok(closed?)
    }

    fn is_finished(&self) -> bool {
        match self.mode {
            ChainMode::Rebuild { frontier, stop_at_frontier: true } => {
                frontier == 0 || self.lease.as_ref().is_some_and(|lease| lease.handled.next >= frontier)
            }
            _ => false,
        }
    }

    async fn on_polled(&mut self, polled: ConsumerEvent) -> Result<(), SequencerError> {
        match polled {
            ConsumerEvent::Messages(batch) => self.on_messages(batch),
            ConsumerEvent::Assigned(assigned) => self.acquire_all(assigned).await?,
            ConsumerEvent::Revoked { partitions, lost } => self.on_revoked(&partitions, lost).await?,
            ConsumerEvent::End(end) => self.member.reach_end(&end),
        }
        Ok(())
    }

    fn on_messages(&mut self, batch: MessageBatch) {
        if let Some(lease) = &self.lease
            && let Some(batch) = self.member.register(batch, i64::MAX)
        {
            // A worker that has ended has reported the reason.
            let _ = lease.messages.send(batch);
        }
        self.apply_backpressure();
    }

    async fn on_revoked(&mut self, partitions: &[TopicPartition], lost: bool) -> Result<(), SequencerError> {
        self.parts.metrics.rebalances.of(if lost { RebalanceChange::Lost } else { RebalanceChange::Revoked }).inc();
        self.release_chain().await;
        let committed = if lost { Ok(()) } else { self.commit().await };
        if let Err(stop) = committed
            && !matches!(stop, SequencerError::NodeRestarted | SequencerError::Halt(_))
        {
            return Err(stop);
        }
        self.lease = None;
        // The next owner of the partition reports whether the chain is halted.
        self.parts.health.set(Condition::ChainRunning, None);
        self.parts.health.set(Condition::ChainFed, None);
        self.parts.metrics.chain_halted.set(0);
        self.member.remove(partitions);
        self.member.consumer.finish_revocation();
        self.publish_status();
        Ok(())
    }

    /// Lifts the halt of the chain at an operator's request: the chain is handled again from its committed offset, as
    /// after a start.
    async fn on_request(&mut self, request: ControlRequest<()>) -> Result<(), SequencerError> {
        let group = chain_group(&self.parts.validated.group);
        let again = match self.member.seek_for_retry(CHAIN, |_, refusal| word_refusal(&group, refusal)).await {
            Ok(Ok(again)) => again,
            Ok(Err(answer)) => {
                request.answer(answer);
                return Ok(());
            }
            Err(error) => {
                request.answer(ControlAnswer::from_seek_error(&error));
                return Err(error.into());
            }
        };
        tracing::warn!(position = again.position, "sequencer: halt lifted by an operator");
        // Answered before acquiring, which waits for as long as the store is unavailable.
        request.answer(ControlAnswer::Done(format!("the chain is handled again from offset {}", again.position)));
        self.release_chain().await;
        self.acquire_chain(again).await
    }

    /// Pauses the partition while the unhandled events exceed [`BOUNDS`], and resumes it below half of the bounds.
    fn apply_backpressure(&mut self) {
        if self.lease.is_none() {
            return;
        }
        self.member.pause_at_limit(CHAIN, &BOUNDS);
        if self.member.clear_full(CHAIN, &BOUNDS) {
            self.member.resume(CHAIN);
        }
    }

    /// Queries a stale end offset of the chain in a task of its own, if a query is due.
    fn query_stale_end(&mut self, now: Instant) {
        let Some(query) = self.member.query_stale_ends(now) else { return };
        let reports = self.report_sender.clone();
        tokio::spawn(async move {
            // The answers have their epochs. Without a receiver the sequencer has ended.
            let _ = reports.send((0, WorkerReport::EndOffsets(query.await)));
        });
    }

    fn on_report(&mut self, epoch: u64, report: WorkerReport) -> Result<(), SequencerError> {
        if let WorkerReport::EndOffsets(ends) = &report {
            // An end that went back does not halt the chain: its first record shows a recreated topic.
            self.member.on_end_offsets(ends);
        }
        if self.lease.is_none() || self.member.partitions.current(CHAIN, epoch).is_none() {
            return Ok(());
        }
        match report {
            WorkerReport::Handled(committed) => {
                self.parts.metrics.chain_offset.set(committed.offset as i64);
                self.parts.health.liveness().record_progress(Workload::Chain);
                self.on_handled(epoch, committed);
                Ok(())
            }
            WorkerReport::Stopped(stop) => Err(stop),
            WorkerReport::EndOffsets(_) => Ok(()),
        }
    }

    fn on_handled(&mut self, epoch: u64, handled: CommittedOffset) {
        // One report may cover the events of a whole window.
        self.member.partitions.complete_below(CHAIN, epoch, handled.offset);
        if let Some(lease) = &mut self.lease {
            lease.handled.push(handled);
        }
    }

    /// Records a halt, which stays until an operator intervenes. Every other error is returned and ends the instance.
    fn halt(&mut self, stop: SequencerError) -> Result<(), SequencerError> {
        // A rebuild has no operator that lifts halts: a rebuild that halts has failed.
        if !matches!((&stop, self.mode), (SequencerError::Halt(_), ChainMode::Live)) {
            return Err(stop);
        }
        let halt = self.member.new_halt(stop.to_string());
        let why = halt.why.clone();
        tracing::error!(why, "sequencer: chain halted");
        if let Some(state) = self.member.partitions.states.get_mut(&CHAIN) {
            state.reads.enter_halt(halt);
        }
        self.parts.metrics.chain_halted.set(1);
        self.parts.health.set(Condition::ChainRunning, Some(why));
        self.publish_status();
        Ok(())
    }

    /// Stops the worker and takes over its last reports. An interrupted event is handled again from its beginning.
    async fn release_chain(&mut self) {
        let Some(lease) = &mut self.lease else { return };
        // A finished task may have been awaited already.
        if !lease.task.is_finished() {
            lease.task.abort();
            let _ = (&mut lease.task).await;
        }
        while let Ok((epoch, report)) = self.reports.try_recv() {
            if let WorkerReport::Handled(handled) = report
                && self.member.partitions.current(CHAIN, epoch).is_some()
            {
                self.on_handled(epoch, handled);
            }
        }
    }

    /// Publishes the state of the partition for `/state` and the metrics.
    fn publish_status(&self) {
        self.parts.health.liveness().set_idle(Workload::Chain, self.member.partitions.has_completed_all());
        let partition = self.member.statuses(&BOUNDS, |_| 0).pop();
        self.parts.health.status_registry().publish_chain(ChainStatus { partition, nodes: self.parts.nodes.status() });
    }

    async fn commit(&mut self) -> Result<(), SequencerError> {
        let Some(lease) = &mut self.lease else {
            self.member.record_commit_success();
            return Ok(());
        };
        match self.member.commit(&self.parts.nodes, &mut lease.handled).await? {
            CommitStep::Settled => {}
            CommitStep::Restarted => return Err(SequencerError::NodeRestarted),
            CommitStep::OtherTopic(why) => {
                self.member.other_topic = Some(why.clone());
                self.release_chain().await;
                return Err(SequencerError::Halt(why));
            }
        }
        if let Some(committed) = lease.handled.committed.take() {
            lease.committed_chain.send_replace(CommittedChain::of(Some(&committed)).map_err(bad_state)?);
        }
        Ok(())
    }
}

/// Removes the partition from the status and the metrics however the sequencer ends: a restart within the process may
/// not get the partition again.
impl Drop for Sequencer {
    fn drop(&mut self) {
        self.member.remove(&self.member.partitions.places());
        self.publish_status();
    }
}

/// Words the refusal of a retry.
fn word_refusal(group: &str, refusal: RetryRefusal) -> ControlAnswer {
    match refusal {
        RetryRefusal::NotAssigned => {
            ControlAnswer::NotHeld("this instance does not have the chain partition".to_owned())
        }
        RetryRefusal::NotHalted => {
            ControlAnswer::Refused("the chain is not halted; see its waits in /state".to_owned())
        }
        RetryRefusal::NeverRead { low, .. } => ControlAnswer::Refused(never_read_reason(group, low)),
    }
}

fn bad_state(error: BadState) -> SequencerError {
    SequencerError::Halt(error.to_string())
}

/// Runs `work` until `shutdown`: acquiring the chain waits for as long as the store or the log does not answer. Before
/// the chain is acquired there is no offset to commit.
async fn cancel_on_shutdown(
    shutdown: &CancellationToken,
    work: impl Future<Output = Result<(), SequencerError>>,
) -> Result<(), SequencerError> {
    shutdown.run_until_cancelled(work).await.unwrap_or(Ok(()))
}
