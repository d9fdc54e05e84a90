//! The one consumer of `utxo.chain`: handles each event in order and finishes each event before the next.
//!
//! Three phases for each event: evaluate ([`evaluate`], pure), write the decision ahead ([`decisions`], the log),
//! apply. With [`steps`] each handler reads as if it decided everything itself. [`chain_feed`] appends blocks and
//! reorgs to the chain log in the order of their sequences.

mod added_slots;
mod block;
mod bodies;
pub mod chain_feed;
mod claims;
mod coinbase;
mod command;
mod contest;
mod contested_event;
mod copied_sequences;
mod decision_parts;
pub mod decisions;
mod descendants;
pub mod evaluate;
pub mod handler;
mod listing;
mod pages;
pub mod progress;
mod prune;
pub(crate) mod reader_cache;
mod reorg;
pub mod state;
pub mod steps;
mod verdict;
mod waiting;
mod worker;

use std::{collections::VecDeque, time::Duration};

use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::{
    broker::{
        AssignedPartition, BrokerErrorKind, CommittedOffset, Consumer, ConsumerEvent, MessageBatch, TopicPartition,
        identity::{TopicCheck, Unconfirmed},
        ignore_not_assigned,
    },
    group::partition::{END_OFFSET_REFRESH_COMMITS, Halt, Moment, PartitionLimits, PartitionState, never_read_reason},
    record::ConsumedOffsets,
    status::{
        CommitHealth, Condition,
        control::{ControlAnswer, ControlRequest},
        health::Workload,
        registry::ChainStatus,
    },
    store::{
        commit_gate::{self, Blocked, Permit},
        restart_detector::{RestartDetector, RestartPoll},
    },
    tasks,
    telemetry::{CommitFailure, RebalanceChange},
};

pub use command::ValidatedSource;
pub use handler::{SequencerError, SequencerParts, SequencerSettings, SequencerTopics};
pub use prune::{CommittedChain, PruneTask, read_replay_floor};
use waiting::ReportedWait;
use worker::{ChainWorker, WorkerReport};

/// The mode in which a sequencer handles the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ChainMode {
    /// Events are decided in the order of the log.
    #[default]
    Live,
    /// A rebuild: every event below the frontier is decided already. The sequencer applies the decisions, decides
    /// nothing and publishes nothing.
    Rebuild {
        /// The chain offset that the live group had committed when the rebuild began.
        frontier: u64,
        /// True when the run ends at the frontier.
        stop_at_frontier: bool,
    },
}

/// A member of the consumer group of `utxo.chain`. At most one member has the one partition.
pub struct Sequencer {
    parts: SequencerParts,
    mode: ChainMode,
    consumer: Box<dyn Consumer>,
    lease: Option<ChainLease>,
    /// The assigned chain partition, where acquiring it halted.
    halted_chain: Option<HaltedChain>,
    /// The reason why a topic of the chain is not the one that the store belongs to. No offset is committed until an
    /// operator has intervened.
    topic_mismatch: Option<String>,
    /// Requests of operators to the chain.
    requests: mpsc::Receiver<ControlRequest<()>>,
    reports: mpsc::UnboundedReceiver<(u64, WorkerReport)>,
    report_sender: mpsc::UnboundedSender<(u64, WorkerReport)>,
    commits: CommitHealth,
}

/// Bounds of the chain events that are read and not handled: a block can wait long for its transactions, and the events
/// after the block must not fill the memory.
const BOUNDS: PartitionLimits = PartitionLimits { span: 10_000, bytes: 64 << 20 };

/// First and longest pause between attempts to commit a new era.
const ERA_PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// The assigned chain partition, with its worker and the offsets that are handled and not committed.
struct ChainLease {
    partition: TopicPartition,
    /// Events read and events handled, as published in `/state`.
    state: PartitionState,
    epoch: u64,
    messages: mpsc::UnboundedSender<MessageBatch>,
    task: JoinHandle<()>,
    /// Handled states that are not committed: the latest of each commit tick, with the time of the tick.
    uncommitted: VecDeque<(Instant, CommittedOffset)>,
    /// The last handled state, not in `uncommitted` yet.
    latest: Option<CommittedOffset>,
    /// The next chain offset to handle.
    next: u64,
    /// The consumed offset that the meta record contains.
    recorded: u64,
    /// The commit from which the chain continues after a node's restart.
    committed: Option<CommittedOffset>,
    /// The offset at which the assignment began.
    start: u64,
    /// Tells the worker which chain state is committed.
    committed_chain: watch::Sender<CommittedChain>,
}

/// The assigned chain partition, halted before it could be acquired. The partition stays with this instance until an
/// operator intervenes.
struct HaltedChain {
    assigned: AssignedPartition,
    /// The partition as published in `/state`.
    state: PartitionState,
}

impl Sequencer {
    /// Makes a sequencer over a consumer that is subscribed to the chain topic.
    pub fn new(parts: SequencerParts, mode: ChainMode, consumer: Box<dyn Consumer>) -> Self {
        let (report_sender, reports) = mpsc::unbounded_channel();
        let commits = CommitHealth::new(Condition::ChainCommitted);
        let requests = parts.health.control().chain.open();
        let (lease, halted_chain, topic_mismatch) = (None, None, None);
        Sequencer {
            parts,
            mode,
            consumer,
            lease,
            halted_chain,
            topic_mismatch,
            requests,
            reports,
            report_sender,
            commits,
        }
    }

    /// Runs until `shutdown`, until a rebuild has reached its frontier, or until the broker or the store fails for
    /// good. A shutdown interrupts the event that is being handled; the next sequencer handles that event again from
    /// its beginning.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<(), SequencerError> {
        let monitor = self.parts.health.liveness().watch_loop("the sequencer's loop");
        let (mut next_commit, mut next_end) = (Instant::now(), Instant::now());
        let outcome = loop {
            monitor.beat();
            if self.is_finished() {
                break Ok(());
            }
            let step = tokio::select! {
                biased;
                () = shutdown.cancelled() => break Ok(()),
                Some((epoch, report)) = self.reports.recv() => {
                    self.on_report(epoch, report).and_then(|()| self.apply_backpressure())
                }
                Some(request) = self.requests.recv() => {
                    let trying = cancel_on_shutdown(&shutdown, Box::pin(self.on_request(request)));
                    monitor.enter("the store and the log, to acquire the chain", trying).await
                }
                polled = self.consumer.poll() => match polled {
                    Ok(ConsumerEvent::Assigned(assigned)) => {
                        let acquiring = cancel_on_shutdown(&shutdown, Box::pin(self.acquire_all(assigned)));
                        monitor.enter("the store and the log, to acquire the chain", acquiring).await
                    }
                    Ok(polled) => monitor.enter("a rebalance", self.on_polled(polled)).await,
                    Err(error) => Err(error.into()),
                },
                () = tokio::time::sleep_until(next_commit) => {
                    next_commit = Instant::now() + self.parts.settings.commit_interval;
                    if Instant::now() >= next_end {
                        next_end = Instant::now() + self.parts.settings.commit_interval * END_OFFSET_REFRESH_COMMITS;
                        self.request_end_offset();
                    }
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
        let closed = self.consumer.close().await;
        committed?;
        Ok(closed?)
    }

    fn is_finished(&self) -> bool {
        match self.mode {
            ChainMode::Rebuild { frontier, stop_at_frontier: true } => {
                frontier == 0 || self.lease.as_ref().is_some_and(|lease| lease.next >= frontier)
            }
            _ => false,
        }
    }

    async fn on_polled(&mut self, polled: ConsumerEvent) -> Result<(), SequencerError> {
        match polled {
            ConsumerEvent::Messages(batch) => {
                if let Some(lease) = self.lease.as_mut().filter(|lease| lease.epoch == batch.epoch) {
                    lease.state.update_high_watermark(batch.high_watermark);
                    lease.state.end_offset_is_fresh = true;
                    lease.state.record_read_time(self.parts.clock.steady_ms());
                    for message in &batch.messages {
                        lease.state.deliver(message, i64::MAX);
                    }
                    // A worker that has ended has reported the reason.
                    let _ = lease.messages.send(batch);
                }
                self.apply_backpressure()?;
            }
            ConsumerEvent::Assigned(assigned) => self.acquire_all(assigned).await?,
            ConsumerEvent::Revoked { partitions, lost } => {
                let change = if lost { RebalanceChange::Lost } else { RebalanceChange::Revoked };
                self.parts.metrics.rebalances.of(change).inc();
                self.release_chain().await;
                let committed = if lost { Ok(()) } else { self.commit().await };
                if let Err(stop) = committed
                    && !matches!(stop, SequencerError::NodeRestarted | SequencerError::Halt(_))
                {
                    return Err(stop);
                }
                (self.lease, self.halted_chain) = (None, None);
                // The next owner of the partition reports whether the chain is halted.
                self.parts.health.set(Condition::ChainRunning, None);
                self.parts.health.set(Condition::ChainFed, None);
                self.parts.metrics.chain_halted.set(0);
                partitions.iter().for_each(|partition| self.parts.metrics.remove_partition(partition));
                self.consumer.finish_revocation();
                self.publish_status();
            }
            ConsumerEvent::End(end) => {
                if let Some(lease) = self.lease.as_mut().filter(|lease| lease.epoch == end.epoch) {
                    lease.state.reach_end(end.position);
                }
            }
        }
        Ok(())
    }

    async fn acquire_all(&mut self, assigned: Vec<AssignedPartition>) -> Result<(), SequencerError> {
        self.parts.metrics.rebalances.of(RebalanceChange::Assigned).inc();
        for assigned in assigned {
            self.acquire_chain(assigned).await?;
        }
        Ok(())
    }

    async fn acquire_chain(&mut self, assigned: AssignedPartition) -> Result<(), SequencerError> {
        self.halted_chain = None;
        let acquired = self.try_acquire(assigned.clone()).await;
        if let Err(SequencerError::Halt(_)) = acquired {
            self.enter_halted(assigned);
        }
        acquired
    }

    fn never_read_reason(&self, assigned: &AssignedPartition) -> String {
        never_read_reason(&chain_group(&self.parts.validated.group), assigned.position)
    }

    fn state_of(&self, assigned: &AssignedPartition) -> PartitionState {
        let metrics = self.parts.metrics.partition(&assigned.partition);
        PartitionState::new(assigned, metrics, false, self.parts.clock.now_ms())
    }

    /// Keeps an assigned partition that could not be acquired, paused: without a worker no message of it must be read.
    fn enter_halted(&mut self, assigned: AssignedPartition) {
        let mut state = self.state_of(&assigned);
        // A partition that cannot be paused is being revoked.
        state.paused = self.consumer.pause(&assigned.partition).is_ok();
        self.halted_chain = Some(HaltedChain { assigned, state });
    }

    async fn try_acquire(&mut self, mut assigned: AssignedPartition) -> Result<(), SequencerError> {
        // Offsets and their metadata mean nothing in another topic of the same name.
        let (guard, topics) = (self.parts.guard.clone(), self.parts.topics.guarded());
        let confirmed = ReportedWait::new(&self.parts, "the chain").run(guard.confirm(&topics)).await;
        self.topic_mismatch = match &confirmed {
            Err(Unconfirmed::Other(why)) => Some(why.clone()),
            _ => None,
        };
        confirmed?;
        if assigned.committed.is_none() && assigned.position > 0 {
            let why = self.never_read_reason(&assigned);
            return Err(SequencerError::Halt(format!("{}: {why}", assigned.partition)));
        }
        let metadata = assigned.committed.as_ref().map_or("", |committed| committed.metadata.as_str());
        let state = state::ChainState::from_metadata(metadata).map_err(bad_state)?;
        let mut state = state.checked().map_err(SequencerError::Halt)?;
        let parts = self.parts.clone();
        // A commit without metadata comes from an operator, who has set the offset to continue at.
        if let (ChainMode::Live, false) = (self.mode, metadata.is_empty()) {
            verify_store_covers(&parts, assigned.position).await?;
        }
        if self.mode == ChainMode::Live && metadata.is_empty() && assigned.position > 0 {
            // Every later commit compares with the consumed offset in the store.
            record_consumed_durably(&parts, &mut self.parts.nodes, assigned.position).await?;
        }
        let incarnation = ReportedWait::new(&parts, "the nodes of the store").run(self.parts.nodes.baseline()).await?;
        if let (ChainMode::Live, Some(new)) = (self.mode, state.in_new_era(incarnation)) {
            let committed = CommittedOffset { offset: assigned.position, metadata: new.to_metadata() };
            if !self.commit_era(&assigned.partition, &committed).await? {
                return Ok(());
            }
            let (era, position) = (new.era, assigned.position);
            tracing::warn!(era, position, "sequencer: new era, the nodes of the store changed");
            assigned.committed = Some(committed);
            state = new;
        }
        tracing::info!(position = assigned.position, sequence = state.sequence, "sequencer: chain acquired");
        self.parts.health.set(Condition::ChainRunning, None);
        self.parts.health.set(Condition::ChainFed, None);
        self.parts.metrics.chain_halted.set(0);
        self.parts.metrics.chain_offset.set(assigned.position as i64);
        let (messages, received) = mpsc::unbounded_channel();
        let (committed_chain, committed) =
            watch::channel(CommittedChain::of(assigned.committed.as_ref()).map_err(bad_state)?);
        let worker = ChainWorker::new(
            self.parts.clone(),
            self.mode,
            state,
            assigned.epoch,
            assigned.position,
            self.report_sender.clone(),
            committed,
        );
        let (reports, epoch) = (self.report_sender.clone(), assigned.epoch);
        self.lease = Some(ChainLease {
            state: self.state_of(&assigned),
            partition: assigned.partition,
            epoch: assigned.epoch,
            messages,
            task: tasks::spawn("the worker of the chain", worker.run(received), move |why| {
                // Without a receiver the sequencer has ended, and the report has no reader.
                let _ = reports.send((epoch, WorkerReport::Stopped(SequencerError::Died(why))));
            }),
            uncommitted: VecDeque::new(),
            latest: None,
            next: assigned.position,
            recorded: 0,
            committed: assigned.committed,
            start: assigned.position,
            committed_chain,
        });
        Ok(())
    }

    /// Commits a new era before any record is stamped with it. The group lets only the present owner of the partition
    /// commit, so that no two sequencers work in one era. Returns `false` when the partition is no longer assigned.
    async fn commit_era(
        &mut self,
        chain: &TopicPartition,
        committed: &CommittedOffset,
    ) -> Result<bool, SequencerError> {
        let mut waiting = ReportedWait::new(&self.parts, "the chain").with_pauses(ERA_PAUSE);
        loop {
            match self.consumer.commit(&[(chain.clone(), committed.clone())]).await {
                Ok(()) => return Ok(true),
                Err(error) if error.kind == BrokerErrorKind::NotAssigned => return Ok(false),
                Err(error) if error.kind == BrokerErrorKind::Retryable => {
                    tracing::warn!(%error, "sequencer: new era not committed; retrying");
                    waiting.pause_for("the commit of its new era").await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Rewinds after a node's restart: every event that is not committed is handled again. Decisions in the log count.
    async fn rewind(&mut self) -> Result<(), SequencerError> {
        self.parts.metrics.node_restarts.inc();
        if let ChainMode::Rebuild { .. } = self.mode {
            return Err(SequencerError::Damaged(
                "cannot continue the rebuild: a node restarted and may have lost writes; rebuild into an empty set"
                    .to_owned(),
            ));
        }
        self.release_chain().await;
        let Some(lease) = self.lease.take() else { return Ok(()) };
        self.parts.ownership.verify_intact().await.map_err(|error| SequencerError::Damaged(error.to_string()))?;
        let resumed = lease.committed_assignment();
        let position = resumed.position;
        tracing::warn!(position, "sequencer: node restarted, chain rewound to the committed offset");
        match self.consumer.seek(&resumed.partition, resumed.position).await {
            Ok(epoch) => self.reacquire_chain(AssignedPartition { epoch, ..resumed }, lease.state.paused).await,
            // The partition is being revoked; the next poll reports the revocation.
            Err(error) if error.kind == BrokerErrorKind::NotAssigned => Ok(()),
            Err(error) => {
                let stop = SequencerError::from(error);
                if let SequencerError::Halt(_) = stop {
                    self.enter_halted(resumed);
                }
                Err(stop)
            }
        }
    }

    /// Acquires the partition again after a seek to its committed offset.
    async fn reacquire_chain(&mut self, resumed: AssignedPartition, was_paused: bool) -> Result<(), SequencerError> {
        if was_paused {
            ignore_not_assigned(self.consumer.resume(&resumed.partition))?;
        }
        self.acquire_chain(resumed).await
    }

    /// Lifts the halt of the chain at an operator's request: the chain is handled again from its committed offset, as
    /// after a start.
    async fn on_request(&mut self, request: ControlRequest<()>) -> Result<(), SequencerError> {
        let is_halted = |state: &PartitionState| state.halted.is_some();
        let resumed = match (&self.lease, &self.halted_chain) {
            (None, None) => Err(ControlAnswer::NotHeld("this instance does not have the chain partition".to_owned())),
            (Some(lease), _) if is_halted(&lease.state) => Ok((lease.committed_assignment(), lease.state.paused)),
            // A start would not lift this halt, either.
            (None, Some(HaltedChain { assigned, state })) if state.truncated_before_first_commit().is_some() => {
                Err(ControlAnswer::Refused(self.never_read_reason(assigned)))
            }
            (None, Some(HaltedChain { assigned, state })) => Ok((assigned.clone(), state.paused)),
            (Some(_), _) => Err(ControlAnswer::Refused("the chain is not halted; see its waits in /state".to_owned())),
        };
        let (resumed, was_paused) = match resumed {
            Ok(resumed) => resumed,
            Err(answer) => {
                request.answer(answer);
                return Ok(());
            }
        };
        // The halt stays until the log has answered the seek.
        let epoch = match self.consumer.seek(&resumed.partition, resumed.position).await {
            Ok(epoch) => epoch,
            Err(error) => {
                request.answer(ControlAnswer::from_seek_error(&error));
                return if error.kind.is_client_unusable() { Err(error.into()) } else { Ok(()) };
            }
        };
        tracing::warn!(position = resumed.position, "sequencer: halt lifted by an operator");
        // Answered before acquiring, which waits for as long as the store is unavailable.
        request.answer(ControlAnswer::Done(format!("the chain is handled again from offset {}", resumed.position)));
        self.release_chain().await;
        (self.lease, self.halted_chain) = (None, None);
        self.reacquire_chain(AssignedPartition { epoch, ..resumed }, was_paused).await
    }

    /// Pauses the partition while the unhandled events exceed [`BOUNDS`], and resumes it below half of the bounds.
    fn apply_backpressure(&mut self) -> Result<(), SequencerError> {
        let Some(lease) = &mut self.lease else { return Ok(()) };
        if !lease.state.paused && lease.state.exceeded_limit(&BOUNDS).is_some() {
            ignore_not_assigned(self.consumer.pause(&lease.partition))?;
            lease.state.paused = true;
        } else if lease.state.paused && lease.state.exceeded_resume_limit(&BOUNDS).is_none() {
            ignore_not_assigned(self.consumer.resume(&lease.partition))?;
            lease.state.paused = false;
        }
        Ok(())
    }

    /// Returns the published state of the partition, if this instance has the partition.
    fn partition_state(&mut self) -> Option<&mut PartitionState> {
        let owned = self.lease.as_mut().map(|lease| &mut lease.state);
        owned.or(self.halted_chain.as_mut().map(|halted| &mut halted.state))
    }

    /// Requests the end offset of the chain in a task of its own, if no message was delivered since the last request.
    fn request_end_offset(&mut self) {
        let chain = TopicPartition { topic: self.parts.topics.chain.as_str().into(), partition: 0 };
        let Some(state) = self.partition_state() else { return };
        let (needs_refresh, epoch) = (state.needs_end_offset_refresh(), state.epoch);
        if !needs_refresh || self.mode != ChainMode::Live {
            return;
        }
        let (broker, reports) = (self.parts.broker.clone(), self.report_sender.clone());
        tokio::spawn(async move {
            // A failed request is repeated at the next tick. Without a receiver the sequencer has ended.
            if let Ok((_, end)) = broker.watermarks(&chain).await {
                let _ = reports.send((epoch, WorkerReport::End(end)));
            }
        });
    }

    fn on_report(&mut self, epoch: u64, report: WorkerReport) -> Result<(), SequencerError> {
        if let (WorkerReport::End(end), Some(state)) =
            (&report, self.partition_state().filter(|state| state.epoch == epoch))
        {
            state.update_high_watermark(*end);
        }
        let Some(lease) = self.lease.as_mut().filter(|lease| lease.epoch == epoch) else { return Ok(()) };
        match report {
            WorkerReport::Handled(committed) => {
                self.parts.metrics.chain_offset.set(committed.offset as i64);
                self.parts.health.record_progress(Workload::Chain);
                lease.on_handled(committed);
                Ok(())
            }
            WorkerReport::Stopped(stop) => Err(stop),
            WorkerReport::End(_) => Ok(()),
        }
    }

    /// Records a halt, which stays until an operator intervenes. Every other error is returned and ends the instance.
    fn halt(&mut self, stop: SequencerError) -> Result<(), SequencerError> {
        // A rebuild has no operator that lifts halts: a rebuild that halts has failed.
        if !matches!((&stop, self.mode), (SequencerError::Halt(_), ChainMode::Live)) {
            return Err(stop);
        }
        // A mismatched topic is the cause of later errors (an offset out of range, say), and is reported in their
        // place.
        let why = self.topic_mismatch.clone().unwrap_or_else(|| stop.to_string());
        tracing::error!(why, "sequencer: chain halted");
        let since_ms = self.parts.clock.now_ms();
        if let Some(state) = self.partition_state() {
            state.halted = Some(Halt { why: why.clone(), since_ms });
        }
        self.parts.metrics.chain_halted.set(1);
        self.parts.health.set(Condition::ChainRunning, Some(why));
        self.publish_status();
        Ok(())
    }

    /// Stops the worker and takes over its last reports. An interrupted event is handled again from its beginning.
    async fn release_chain(&mut self) {
        if let Some(lease) = &mut self.lease {
            // A finished task may have been awaited already.
            if !lease.task.is_finished() {
                lease.task.abort();
                let _ = (&mut lease.task).await;
            }
            let epoch = lease.epoch;
            while let Ok((reported_epoch, report)) = self.reports.try_recv() {
                if let (true, WorkerReport::Handled(committed)) = (reported_epoch == epoch, report) {
                    lease.on_handled(committed);
                }
            }
        }
    }

    /// Publishes the state of the partition for `/state` and the metrics.
    fn publish_status(&self) {
        let owned = self.lease.as_ref().map(|lease| &lease.state);
        let is_idle = owned.is_none_or(|state| state.halted.is_some() || state.tracker.unfinished() == 0);
        self.parts.health.set_idle(Workload::Chain, is_idle);
        let status = owned.or(self.halted_chain.as_ref().map(|halted| &halted.state)).map(|state| {
            let moment = Moment::now(&self.parts.clock);
            let status = state.status(moment, &BOUNDS, 0, "too many events wait for the worker");
            state.update_metrics(&status);
            status
        });
        self.parts
            .health
            .status_registry()
            .publish_chain(ChainStatus { partition: status, nodes: self.parts.nodes.status() });
    }

    async fn commit(&mut self) -> Result<(), SequencerError> {
        let (commits, health) = (&mut self.commits, &self.parts.health);
        let Some(lease) = &mut self.lease else {
            commits.record_success(health);
            return Ok(());
        };
        let unrecorded = self.mode == ChainMode::Live && lease.recorded < lease.next;
        let consumed = unrecorded.then(|| ConsumedOffsets { chain: lease.next, ..ConsumedOffsets::default() });
        let Permit { recorded, restarts } =
            commit_gate::check(self.parts.ownership.as_ref(), &self.parts.nodes, consumed).await;
        if let Some((_, consumed)) = recorded {
            lease.recorded = consumed.chain;
        }
        let polled_at = match restarts {
            Ok(RestartPoll::Unchanged { polled_at }) => polled_at,
            Ok(RestartPoll::Restarted) => return Err(SequencerError::NodeRestarted),
            Err(Blocked::Temporary(failure, why)) => {
                tracing::warn!(why, "sequencer: chain offset not committed");
                self.parts.metrics.commit_failures.of(failure).inc();
                commits.record_failure(health, why);
                return Ok(());
            }
            Err(Blocked::Store(error)) => return Err(SequencerError::Damaged(error.to_string())),
            Err(Blocked::Engine(error)) => return Err(error.into()),
        };
        let committed = lease.latest_durable(polled_at, self.parts.nodes.lag());
        if self.topic_mismatch.is_some() {
            return Ok(());
        }
        // Checked also without an offset to commit: an idle chain has to detect a recreated topic, too.
        let why = match self.parts.guard.check(&self.parts.topics.guarded()).await {
            Ok(TopicCheck::Same) => None,
            Ok(TopicCheck::Other(why)) => {
                self.topic_mismatch = Some(why.clone());
                self.release_chain().await;
                return Err(SequencerError::Halt(why));
            }
            Ok(TopicCheck::Absent(topic)) => Some(format!("topic `{topic}` does not exist at the moment")),
            Err(error) if error.kind.is_client_unusable() => return Err(error.into()),
            Err(error) => Some(error.to_string()),
        };
        if let Some(why) = why {
            tracing::warn!(why, "sequencer: chain offset not committed, topic ids not confirmed");
            self.parts.metrics.commit_failures.of(CommitFailure::Broker).inc();
            commits.record_failure(health, format!("cannot confirm the ids of the chain's topics: {why}"));
            return Ok(());
        }
        let Some(committed) = committed else {
            commits.record_success(health);
            return Ok(());
        };
        match self.consumer.commit(&[(lease.partition.clone(), committed.clone())]).await {
            Ok(()) => {
                lease.uncommitted.pop_front();
                lease.committed_chain.send_replace(CommittedChain::of(Some(&committed)).map_err(bad_state)?);
                lease.state.committed = Some(committed.clone());
                lease.committed = Some(committed);
                self.parts.metrics.commits.inc();
                commits.record_success(health);
                Ok(())
            }
            Err(error) if error.kind.is_client_unusable() => Err(error.into()),
            Err(error) => {
                tracing::warn!(%error, "sequencer: chain offset not committed; retrying");
                self.parts.metrics.commit_failures.of(CommitFailure::Broker).inc();
                commits.record_failure(health, error);
                Ok(())
            }
        }
    }
}

/// Removes the partition from the status and the metrics however the sequencer ends: a restart within the process may
/// not get the partition again.
impl Drop for Sequencer {
    fn drop(&mut self) {
        let owned = self.lease.take().map(|lease| lease.partition);
        if let Some(partition) = owned.or(self.halted_chain.take().map(|halted| halted.assigned.partition)) {
            self.parts.metrics.remove_partition(&partition);
        }
        self.publish_status();
    }
}

impl ChainLease {
    /// Returns the assignment at its committed offset.
    fn committed_assignment(&self) -> AssignedPartition {
        AssignedPartition {
            partition: self.partition.clone(),
            epoch: self.epoch,
            committed: self.committed.clone(),
            position: self.committed.as_ref().map_or(self.start, |committed| committed.offset),
            high_watermark: self.state.high_watermark,
        }
    }

    fn on_handled(&mut self, committed: CommittedOffset) {
        self.next = committed.offset;
        if let Some(offset) = committed.offset.checked_sub(1) {
            self.state.tracker.complete(offset, 0);
        }
        self.latest = Some(committed);
    }

    /// Returns the latest handled state that was older than the durability lag at `polled_at`, the time when the nodes'
    /// incarnation was read. The state stays the first of `uncommitted` until it is committed.
    fn latest_durable(&mut self, polled_at: Instant, lag: Duration) -> Option<CommittedOffset> {
        self.uncommitted.extend(self.latest.take().map(|committed| (polled_at, committed)));
        while self.uncommitted.get(1).is_some_and(|(handled_at, _)| *handled_at + lag <= polled_at) {
            self.uncommitted.pop_front();
        }
        self.uncommitted
            .front()
            .filter(|(handled_at, _)| *handled_at + lag <= polled_at)
            .map(|(_, committed)| committed.clone())
    }
}

/// Verifies that the store has consumed the chain up to the committed offset.
async fn verify_store_covers(parts: &SequencerParts, chain: u64) -> Result<(), SequencerError> {
    let mut waiting = ReportedWait::new(parts, "the chain");
    loop {
        match parts.ownership.verify_covers(&ConsumedOffsets { chain, ..ConsumedOffsets::default() }).await {
            Err(error) if error.may_be_retried() => {
                tracing::warn!(%error, "sequencer: store ownership not verified; retrying");
                waiting.pause_for("the meta record of the store").await;
            }
            answer => return answer.map_err(|error| SequencerError::Damaged(error.to_string())),
        }
    }
}

/// Records the consumed chain offset in the meta record and waits until the write is durable.
async fn record_consumed_durably(
    parts: &SequencerParts,
    nodes: &mut RestartDetector,
    chain: u64,
) -> Result<(), SequencerError> {
    nodes.baseline().await?;
    let mut waiting = ReportedWait::new(parts, "the chain");
    loop {
        match parts.ownership.record_consumed(&ConsumedOffsets { chain, ..ConsumedOffsets::default() }).await {
            Err(error) if error.may_be_retried() => waiting.pause_for("the meta record of the store").await,
            Err(error) => return Err(SequencerError::Damaged(error.to_string())),
            Ok(()) if nodes.wait_until_durable().await? => return Ok(()),
            Ok(()) => {}
        }
    }
}

fn bad_state(error: state::BadState) -> SequencerError {
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

/// Returns the name of the chain's consumer group. The chain has a group of its own, so that rebalances of validated
/// transactions do not affect it.
pub fn chain_group(group: &str) -> String {
    format!("{group}.chain")
}

#[cfg(test)]
mod tests;
