//! The loop of the pipeline: read, decode, plan, apply, complete, commit offsets.
//!
//! ```text
//! PartitionReads ─► ChunkQueue ─► Planner ─► Dispatcher ─► store
//!  pause, halt       prepared,      │             │
//!                    confirmed      └─► Publications ─► contests, dead letters, outcomes
//!      ▲                                          │
//!      └── complete ◄───────── task messages ◄────┘
//!
//! on a tick: commits, end offsets, ParentProofs, StatusReport
//! ```

mod backpressure;
mod chunks;
mod commits;
mod drain;
mod halt_partitions;
mod interface;
mod loads;
mod operator_requests;
mod out_of_range;
mod parent_proofs;
mod partition_reads;
mod publications;
mod scan_pace;
mod status_report;
mod store_group;
mod task_messages;
mod topic_id;

use chunks::{ChunkQueue, PreparationFailure, PreparedChunk};
use commits::PipelineCommits;
pub use interface::{PipelineError, PipelineReport, PipelineServices, PipelineSettings};
use loads::BodyLoads;
pub use parent_proofs::ProofSnapshot;
use parent_proofs::{LONG_WAIT_MS, ParentProofs};
use partition_reads::PartitionReads;
use publications::Publications;
use scan_pace::ScanPace;
use status_report::StatusReport;
use store_group::compare_with_store;
use topic_id::TopicConfirmation;

use tokio::{
    sync::mpsc,
    time::{Duration, Instant},
};
use tokio_util::sync::CancellationToken;

use crate::{
    broker::{Consumer, ConsumerEvent, Message, MessageBatch, TopicPartition},
    group::{notify::TxNotifier, partition::latest_plausible_ms},
    ingest::{
        dispatch::{Dispatcher, MasterRead, TaskMessage},
        flight::SubmittedTx,
        outcome_watch::OutcomeWatch,
        plan::{Action, EventRef, NamedTransaction, Planner, StoreHistory},
        publish::{FlightContest, mismatch_poison},
    },
    prepare::{Poison, PrepareSettings, PreparedEvent},
    record::Reason,
    status::{
        Condition,
        control::{ControlRequest, PartitionCommand},
        health::Workload,
    },
    telemetry::{Completion, DrainReason, EventKind, RebalanceChange, TryCause},
};

/// The pipeline of one instance.
pub struct Pipeline {
    settings: PipelineSettings,
    services: PipelineServices,
    reads: PartitionReads,
    chunks: ChunkQueue,
    topic_confirmation: TopicConfirmation,
    planner: Planner,
    /// The transactions that other instances' outcomes name, which wake parked transactions; `None`: they are retried.
    outcome_watch: Option<OutcomeWatch>,
    dispatcher: Dispatcher,
    publications: Publications,
    task_sender: mpsc::UnboundedSender<TaskMessage>,
    task_messages: mpsc::UnboundedReceiver<TaskMessage>,
    proofs: ParentProofs,
    scans: ScanPace,
    status: StatusReport,
    /// Requests of operators about partitions.
    control_requests: mpsc::Receiver<ControlRequest<(i32, PartitionCommand)>>,
    /// Number of completed events.
    completed: u64,
    shutdown: CancellationToken,
    /// A shutdown has ended a rewind before its end: which completed events are durable is unknown.
    has_abandoned_rewind: bool,
}

impl Pipeline {
    /// Creates a pipeline over a subscribed consumer. The outcomes that `outcome_watch` reads wake parked transactions.
    pub fn new(
        settings: PipelineSettings,
        services: PipelineServices,
        consumer: Box<dyn Consumer>,
        outcome_watch: Option<OutcomeWatch>,
    ) -> Self {
        let (sender, task_messages) = mpsc::unbounded_channel();
        let now = Instant::now();
        let topic = settings.topic.to_string();
        let store = services.creator.store();
        let loads = BodyLoads::new(store.event_bodies.clone(), services.clock.clone(), settings.bytes_in_all);
        Pipeline {
            reads: PartitionReads::new(&settings, &services, consumer, now),
            chunks: ChunkQueue::new(PrepareSettings::of(store), settings.partitions, loads),
            topic_confirmation: TopicConfirmation::new(services.guard.clone(), topic, sender.clone(), now),
            planner: Planner::new(settings.plan).with_history(StoreHistory {
                // A rebuild whose nodes restart fails and has to begin again, so that its planner needs no such rule.
                can_lose_writes: services.nodes.can_lose_writes() && !services.modes.is_rebuild(),
                verdicts: services.modes.verdicts(),
                flag_grace_start: services.flag_grace_start.clone(),
                live_grace_start: services.modes.reads_again().then(|| services.live_grace_start.clone()),
            }),
            outcome_watch,
            dispatcher: Dispatcher::new(store.clone(), settings.dispatch, sender.clone()),
            // A rebuild tells nothing: the live group has told, or will tell, everything.
            publications: Publications::new(
                services.publisher.clone(),
                sender.clone(),
                settings.live_outcomes.filter(|_| !services.modes.is_rebuild()),
            ),
            proofs: ParentProofs::new(&settings, sender.clone(), now),
            scans: ScanPace::new(now),
            status: StatusReport::default(),
            control_requests: services.health.control().partitions.open(),
            completed: 0,
            shutdown: CancellationToken::new(),
            has_abandoned_rewind: false,
            task_sender: sender,
            task_messages,
            settings,
            services,
        }
    }

    /// Returns a notifier for transactions that the sequencer creates.
    pub fn tx_notifier(&self) -> TxNotifier {
        let sender = self.task_sender.clone();
        // A pipeline that has ended has no parked children.
        TxNotifier::new(move |txid| drop(sender.send(TaskMessage::ParentCreated(txid))))
    }

    /// Runs until `shutdown` is cancelled, until a rebuild has reached its end offsets, or until an error. A shutdown
    /// drains, commits the durable offsets and leaves the group; the next owner reads the other events again. A
    /// shutdown does not wait for the durability lag.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<PipelineReport, PipelineError> {
        let monitor = self.services.health.liveness().watch_loop("the pipeline's loop");
        self.shutdown = shutdown.clone();
        while !shutdown.is_cancelled()
            && !self.reads.member.partitions.has_reached_all(self.services.modes.end_offsets())
        {
            monitor.beat();
            let wake = self.next_wake().min(monitor.next_beat());
            if Instant::now() >= wake {
                // A busy loop must not delay commits and retries.
                monitor.enter("the ends of its partitions", self.on_tick()).await?;
                self.run_actions();
            }
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                progress = self.reads.member.commits.next_progress() => {
                    monitor.enter("a restart of the store's nodes", self.on_commit_progress(progress)).await?
                }
                Some(request) = self.control_requests.recv() => {
                    monitor.enter("the log, for an operator", self.on_control_request(request)).await?
                }
                Some(message) = self.task_messages.recv() => self.on_task_message(message)?,
                // Behind the answers of the store: a burst of outcomes must not hold them up.
                named = next_named(&mut self.outcome_watch) => try_waiting(&mut self.planner, &self.services, named),
                chunk = self.chunks.next(&self.topic_confirmation) => self.on_prepared(chunk?),
                polled = self.reads.member.consumer.poll() => match polled {
                    Ok(polled) => monitor.enter("a rebalance", self.on_polled(polled)).await?,
                    Err(error) => {
                        let assigned = self.reads.member.partitions.epochs();
                        let halting = self.reads.on_out_of_range(error, assigned);
                        monitor.enter("the ends of its partitions", halting).await?;
                    }
                },
                () = tokio::time::sleep_until(wake) => {
                    monitor.enter("the ends of its partitions", self.on_tick()).await?
                }
            }
            self.run_actions();
        }
        monitor.enter("the drain of a shutdown", self.shut_down()).await
    }

    async fn shut_down(&mut self) -> Result<PipelineReport, PipelineError> {
        if self.has_abandoned_rewind {
            // The baseline may be that of the restarted nodes already: a commit would count lost writes as durable.
            self.dispatcher.shut_down().await;
        } else {
            self.drain(DrainReason::Shutdown, None).await?;
            self.dispatcher.shut_down().await;
            // The next owner finds a node's restart by itself: a rewind here would need a store that answers.
            self.commit_unless_restarted().await?;
        }
        self.reads.member.consumer.close().await?;
        let (contests, dead_letters) = self.publications.totals();
        let parked_max = self.planner.flights().counts().parked_max as u64;
        Ok(PipelineReport { completed: self.completed, parked_max, contests, dead_letters })
    }

    fn next_wake(&mut self) -> Instant {
        if std::mem::take(&mut self.reads.has_new_halt) {
            self.reads.member.commits.commit_now();
        }
        let now_ms = self.services.clock.steady_ms();
        let due =
            self.planner.next_due_ms().map(|due| Instant::now() + Duration::from_millis(due.saturating_sub(now_ms)));
        let proof = (self.planner.flights().counts().parked > 0).then_some(self.proofs.next());
        [due, proof, self.dispatcher.deadline(), self.publications.live_deadline()]
            .into_iter()
            .flatten()
            .fold(self.reads.member.commits.next(), Instant::min)
    }

    async fn on_polled(&mut self, polled: ConsumerEvent) -> Result<(), PipelineError> {
        match polled {
            ConsumerEvent::Messages(batch) => self.on_messages(batch),
            ConsumerEvent::Assigned(assigned) => {
                // An instance without partitions is a member, too, and takes over from others.
                self.services.health.set(Condition::Assigned, None);
                self.services.metrics.rebalances.of(RebalanceChange::Assigned).inc();
                for partition in assigned {
                    compare_with_store(&partition, &self.services, &self.task_sender);
                    self.reads.assign(&partition, &self.settings.group);
                }
                self.topic_confirmation.check();
                self.reads.redistribute_shares(&mut self.planner);
                self.publish_status();
            }
            ConsumerEvent::Revoked { partitions, lost } => self.on_revoked(&partitions, lost).await?,
            ConsumerEvent::End(end) => {
                self.reads.member.reach_end(&end);
            }
        }
        Ok(())
    }

    async fn on_revoked(&mut self, partitions: &[TopicPartition], lost: bool) -> Result<(), PipelineError> {
        tracing::info!(?partitions, lost, "pipeline: partitions revoked");
        self.services.metrics.rebalances.of(if lost { RebalanceChange::Lost } else { RebalanceChange::Revoked }).inc();
        if !lost {
            self.drain(DrainReason::Revocation, Some(partitions)).await?;
            if !self.commit_unless_restarted().await? {
                self.rewind().await?;
            }
        }
        let now_ms = self.services.clock.steady_ms();
        self.reads.member.remove(partitions);
        partitions.iter().for_each(|partition| self.planner.revoke(partition.partition, now_ms));
        self.reads.member.consumer.finish_revocation();
        self.reads.redistribute_shares(&mut self.planner);
        self.reads.publish_halts();
        if self.reads.member.partitions.states.is_empty() {
            self.services.health.set(Condition::Assigned, Some("no partition is assigned".into()));
        }
        self.publish_status();
        Ok(())
    }

    /// Registers the messages of a batch and starts their preparation beside the loop.
    fn on_messages(&mut self, batch: MessageBatch) {
        let latest_ms = latest_plausible_ms(self.services.clock.now_ms(), self.settings.missing_parent_grace_ms);
        let Some(batch) = self.reads.member.register(batch, latest_ms).filter(|batch| !batch.messages.is_empty())
        else {
            return;
        };
        let number = batch.partition.partition;
        self.reads.apply_backpressure(number, &mut self.planner);
        self.chunks.push(number, batch.epoch, self.topic_confirmation.next_chunk_number(), batch.messages);
        self.topic_confirmation.check();
        self.reads.throttle(self.chunks.messages(), &mut self.planner);
    }

    fn on_prepared(&mut self, chunk: PreparedChunk) {
        self.status.record_progress();
        let now_ms = self.services.clock.steady_ms();
        for (message, result) in chunk.messages {
            let Some(state) = self.reads.member.partitions.current(chunk.partition, chunk.epoch) else { return };
            if state.reads.is_halted() {
                continue;
            }
            let event = EventRef {
                timestamp_ms: message.timestamp_ms,
                partition: chunk.partition,
                offset: message.offset,
                epoch: chunk.epoch,
            };
            // An event that the live group has passed does not stop a rebuild.
            let replayed = self.services.modes.publishes_nothing_at(event.partition, event.offset);
            let limits = &self.settings.dead_letter_limits;
            let is_dead_letter = matches!(result, Err(PreparationFailure::Poison(_)));
            let halt_reason = state.dead_letters.count(limits, is_dead_letter, now_ms).filter(|_| !replayed);
            match result {
                Ok(prepared) if self.services.modes.is_skipped(event.partition, event.offset, &prepared.txid()) => {
                    self.complete(event, Completion::PassedOver);
                }
                Ok(prepared) => {
                    let (kind, work) = match prepared {
                        PreparedEvent::Validated(tx) => (EventKind::Validated, SubmittedTx::Validated(tx)),
                        PreparedEvent::Seeded(seed) => (EventKind::Seeded, SubmittedTx::Seeded(seed)),
                    };
                    self.services.metrics.events.of(kind).inc();
                    self.reads.member.partitions.raise_height(work.page().height().unwrap_or(0));
                    let mode = self.services.modes.of(event.partition, event.offset, &work.txid());
                    self.planner.submit(event, work, mode, now_ms);
                }
                Err(PreparationFailure::Poison(poison)) => self.publish_dead_letter(event, &message, poison),
                Err(PreparationFailure::Halt(why)) if self.reads.ends_by_itself => {
                    let _ = self.task_sender.send(TaskMessage::Fatal(PipelineError::Body(why)));
                }
                Err(PreparationFailure::Halt(why)) => self.reads.halt(chunk.partition, why),
            }
            if let Some(why) = halt_reason {
                self.reads.halt(chunk.partition, why);
            }
        }
    }

    /// Publishes a dead letter; the offset completes with its acknowledgement.
    fn publish_dead_letter(&mut self, event: EventRef, message: &Message, poison: Poison) {
        if self.services.modes.publishes_nothing_at(event.partition, event.offset) {
            return self.complete(event, Completion::PassedOver);
        }
        self.publications.publish_dead_letter(event, message.clone(), poison);
    }

    /// Performs the requests of the planner, sends what is due, and resumes reading when there is room.
    fn run_actions(&mut self) {
        while let Some(action) = self.planner.next_action() {
            match action {
                Action::Apply(token, row) => {
                    let flight = self.planner.flights().get(token.flight());
                    match flight.is_some_and(|flight| flight.is_woken) {
                        true => self.dispatcher.push_woken(token, row),
                        false => self.dispatcher.push(token, row),
                    }
                }
                Action::CreatePaged(token, work) => self.dispatcher.create(self.services.creator.clone(), token, work),
                Action::Cancel(flight) => self.dispatcher.cancel(flight),
                Action::ReadOwn(flight, txid) => self.dispatcher.read(MasterRead::Own(flight), txid),
                Action::ReadParent(flight, group, txid) => {
                    self.dispatcher.read(MasterRead::Parent(flight, group), txid)
                }
                Action::PublishContest { flight, txid, event, body, reason } => {
                    let now_ms = self.services.clock.steady_ms();
                    if let Reason::MissingParent { parent } = reason
                        && self.proofs.counts_as_missing(&parent, &self.planner, now_ms)
                    {
                        self.reads.count_root(&self.settings.dead_letter_limits, &self.services.modes, event, parent);
                    }
                    self.publications.gather_contest(FlightContest { flight, txid, event, body, reason });
                }
                Action::Mismatched { event, work } => {
                    let txid = work.page().txid;
                    self.reads.count_root(&self.settings.dead_letter_limits, &self.services.modes, event, txid);
                    self.publish_dead_letter(event, work.source(), mismatch_poison(txid));
                }
                Action::Complete(event, txid, how) => {
                    if !self.publications.gather_live(event, txid, how) {
                        self.complete(event, how);
                    }
                }
            }
        }
        self.dispatcher.flush();
        self.publications.flush_contests();
        let partitions = &self.reads.member.partitions;
        self.chunks.begin_loads(|number, epoch| partitions.running_watermark(number, epoch));
        self.publications.flush_live();
        self.reads.throttle(self.chunks.messages(), &mut self.planner);
    }

    /// Completes an event, unless its epoch has ended.
    fn complete(&mut self, event: EventRef, how: Completion) {
        if self.reads.member.partitions.complete(event.partition, event.epoch, event.offset) {
            self.status.record_progress();
            self.completed += 1;
            self.services.metrics.completed.of(how).inc();
            self.reads.resume(event.partition, &mut self.planner);
        }
    }

    async fn on_tick(&mut self) -> Result<(), PipelineError> {
        let now = Instant::now();
        // Before the retries: a transaction that is being tried does not count as waiting.
        if now >= self.proofs.next() && self.planner.flights().counts().parked > 0 {
            let now_ms = self.services.clock.steady_ms();
            self.proofs.query(&self.services, &self.reads.member.partitions, &mut self.planner, now_ms);
            self.scans.delay_after(now);
            self.proofs.schedule_next(now, self.scans);
            if self.services.modes.is_rebuild() {
                // The progress of the live group's chain says nothing about the chain of the rebuild.
                self.planner.reread_own_records(LONG_WAIT_MS, self.services.clock.steady_ms());
            }
        }
        if now >= self.reads.member.commits.next() {
            let is_idle = self.is_idle();
            self.status.refresh(&self.settings, &self.services, &self.reads, &self.planner, is_idle);
            self.status.report_body_wait(self.chunks.longest_wait(), &self.services);
            self.reads.equalize_shares(&mut self.planner);
            self.reads.query_stale_ends(now, &self.task_sender);
            self.planner.detach_parked_buffers();
            self.scans.delay_after(now);
            self.reads.member.commits.schedule_next(now, self.scans.next_scan());
            self.reads.member.begin_commit(&self.services.nodes, &PipelineCommits(&mut self.planner));
            self.reads.retry_out_of_range().await?;
        }
        let retries = self.planner.retry_due(self.services.clock.steady_ms());
        self.services.metrics.parked_tries.of(TryCause::Retry).inc_by(retries as u64);
        Ok(())
    }

    /// Publishes the status of the pipeline, its partitions and the group.
    fn publish_status(&self) {
        self.status.publish(&self.settings, &self.services, &self.reads, &self.planner);
    }

    /// Returns whether no event has to complete by itself: every event is completed, except in halted partitions; or
    /// only waiting transactions are left, which are retried, wait for a halted one, or wait for their body.
    fn is_idle(&self) -> bool {
        let unfinished = self.chunks.messages() + self.publications.unfinished();
        let in_motion = self.planner.flights().counts().active + unfinished > 0 || !self.dispatcher.is_idle();
        self.reads.member.partitions.has_completed_all()
            || (!in_motion
                && (self.planner.next_due_ms().is_some()
                    || self.planner.flights().has_halted()
                    || self.chunks.is_loading()))
    }
}

/// Tries the parked transactions that wait for these transactions only.
fn try_waiting(planner: &mut Planner, services: &PipelineServices, named: Vec<NamedTransaction>) {
    let woken = planner.on_named(named, services.clock.steady_ms());
    services.metrics.parked_tries.of(TryCause::Outcome).inc_by(woken as u64);
}

/// Waits for the next outcomes, for ever without a watch. Cancel safe.
async fn next_named(watch: &mut Option<OutcomeWatch>) -> Vec<NamedTransaction> {
    match watch {
        Some(watch) => watch.next().await,
        None => std::future::pending().await,
    }
}

/// Removes the partitions from metrics and status when the pipeline ends: the pipeline may be started again in this
/// process with other partitions.
impl Drop for Pipeline {
    fn drop(&mut self) {
        let member = &mut self.reads.member;
        member.remove(&member.partitions.places());
        // The pipeline of a rebuild may end before its chain: that is no stall.
        self.services.health.liveness().set_idle(Workload::Transactions, true);
        self.services.health.set(Condition::ObjectsReadable, None);
        self.publish_status();
    }
}
