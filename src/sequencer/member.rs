//! The member of the consumer group of `utxo.chain`: acquires the partition, bounds what is read, commits.

mod acquire;
mod lease;

use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    broker::{AssignedPartition, Consumer, ConsumerEvent, TopicPartition, identity::TopicCheck, ignore_not_assigned},
    group::partition::{END_OFFSET_REFRESH_COMMITS, Halt, Moment, PartitionLimits, PartitionState},
    record::ConsumedOffsets,
    sequencer::{ChainMode, CommittedChain, SequencerError, SequencerParts, state::BadState, worker::WorkerReport},
    status::{
        CommitHealth, Condition,
        control::{ControlAnswer, ControlRequest},
        health::Workload,
        registry::ChainStatus,
    },
    store::{
        commit_gate::{self, Blocked, Permit},
        restart_detector::RestartPoll,
    },
    telemetry::{CommitFailure, RebalanceChange},
};

use lease::{ChainLease, HaltedChain};

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
pub(super) const BOUNDS: PartitionLimits = PartitionLimits { span: 10_000, bytes: 64 << 20 };

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
                self.parts.health.liveness().record_progress(Workload::Chain);
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
        self.parts.health.liveness().set_idle(Workload::Chain, is_idle);
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
