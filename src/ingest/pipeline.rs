//! The loop of the pipeline: read, decode, plan, apply, complete, commit offsets.

mod commits;
mod end_offsets;
mod halt_partitions;
mod interface;
mod operator_requests;
mod parent_proofs;
mod topic_id;

use commits::{DurableConsumed, PendingCommit, next_commit_progress};
pub use interface::{PipelineError, PipelineReport, PipelineServices, PipelineSettings};
pub use parent_proofs::ProofSnapshot;
use topic_id::TopicConfirmation;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{Duration, Instant},
};
use tokio_util::sync::CancellationToken;

use crate::{
    broker::{AssignedPartition, BrokerError, Consumer, ConsumerEvent, Message, MessageBatch, TopicPartition},
    group::{
        missing_parent::{ChainView, TxidPrefix},
        notify::TxNotifier,
        partition::{
            END_OFFSET_REFRESH_COMMITS, Moment, PartitionLimits, PartitionState, latest_plausible_ms, never_read_reason,
        },
    },
    ingest::{
        dispatch::{Dispatcher, MasterRead, TaskMessage},
        fair_share::max_min_fair_share,
        plan::{Action, EventRef, PlanCounts, Planner},
        publish::mismatch_poison,
    },
    prepare::{Poison, PrepareSettings, PreparedEvent, check_partition, prepare},
    record::{Reason, Record},
    replay::Modes,
    status::{
        CommitHealth, Condition,
        control::{ControlRequest, PartitionCommand},
        health::Workload,
        registry::{DrainStatus, GroupStatus, PipelineStatus},
    },
    telemetry::{Completion, DrainReason, EventKind, Metrics, RebalanceChange},
};

/// A chain without progress for this time, ms, may wait for transactions that wait in this instance.
const LONG_WAIT_MS: u64 = 5_000;

/// After a scan of all transactions in flight the next scan waits for this multiple of its duration. Without the pause
/// scans would take all time where many transactions wait, and these would wait the longer.
const SCAN_COOLDOWN_FACTOR: u32 = 20;
/// Upper bound of the pause after a scan: a long duration may have been the machine's doing.
const MAX_SCAN_COOLDOWN: Duration = Duration::from_secs(5);

/// Messages that were read together and are prepared in one task.
struct Chunk {
    partition: i32,
    epoch: u64,
    /// Number in the order of reading, over all partitions.
    number: u64,
    /// Least timestamp of the messages, and the first offset.
    oldest: (i64, u64),
    messages: usize,
    prepared: JoinHandle<Vec<(Message, Result<PreparedEvent, Poison>)>>,
}

/// The pipeline of one instance.
pub struct Pipeline {
    settings: PipelineSettings,
    prepare: PrepareSettings,
    services: PipelineServices,
    consumer: Box<dyn Consumer>,
    planner: Planner,
    dispatcher: Dispatcher,
    partitions: BTreeMap<i32, PartitionState>,
    /// Limits of each partition, after the shares of the common limit.
    bounds: PartitionLimits,
    chunks: VecDeque<Chunk>,
    topic_confirmation: TopicConfirmation,
    unprepared: usize,
    task_sender: mpsc::UnboundedSender<TaskMessage>,
    task_messages: mpsc::UnboundedReceiver<TaskMessage>,
    publishing: usize,
    snapshot_query_running: bool,
    /// Prefixes of the transactions that were last known to wait in partitions of other instances.
    waiting_elsewhere: BTreeSet<TxidPrefix>,
    end_query_running: bool,
    /// Number of tasks that get no answer from the store.
    tasks_without_answer: usize,
    /// An event has made progress since the last status.
    made_progress: bool,
    /// The wait that was last written to the log.
    last_logged_wait: Option<String>,
    throttled: bool,
    /// Progress of the chain, and the time since which it is unchanged, ms.
    chain: (ChainView, u64),
    started: Instant,
    /// An offset is out of range in one of these partitions, each with its epoch; the broker did not say in which.
    out_of_range: Option<(BrokerError, BTreeMap<i32, u64>)>,
    commits: CommitHealth,
    durable_consumed: DurableConsumed,
    pending_commit: Option<PendingCommit>,
    /// A second commit begins once the pending one has ended.
    commit_due: bool,
    last_commit: Instant,
    next_commit: Instant,
    next_proof: Instant,
    next_ends: Instant,
    /// No scan of all transactions in flight starts before this time.
    next_full_scan: Instant,
    /// Requests of operators about partitions.
    control_requests: mpsc::Receiver<ControlRequest<(i32, PartitionCommand)>>,
    last_drain: Option<DrainStatus>,
    report: PipelineReport,
}

impl Pipeline {
    /// Creates a pipeline over a subscribed consumer.
    pub fn new(settings: PipelineSettings, services: PipelineServices, consumer: Box<dyn Consumer>) -> Self {
        let (task_sender, task_messages) = mpsc::unbounded_channel();
        let now = Instant::now();
        Pipeline {
            // A rebuild whose nodes restart fails and has to begin again, so that its planner needs no such rule.
            planner: Planner::new(settings.plan)
                .with_forgetful_store(services.nodes.can_lose_writes() && matches!(services.modes, Modes::Live)),
            dispatcher: Dispatcher::new(services.creator.store().clone(), settings.dispatch, task_sender.clone()),
            partitions: BTreeMap::new(),
            bounds: settings.bounds,
            chunks: VecDeque::new(),
            topic_confirmation: TopicConfirmation::new(now),
            unprepared: 0,
            task_sender,
            task_messages,
            publishing: 0,
            snapshot_query_running: false,
            waiting_elsewhere: BTreeSet::new(),
            end_query_running: false,
            tasks_without_answer: 0,
            made_progress: false,
            last_logged_wait: None,
            throttled: false,
            chain: (ChainView::AtEnd, 0),
            started: now,
            out_of_range: None,
            commits: CommitHealth::new(Condition::OffsetsCommitted),
            durable_consumed: DurableConsumed::default(),
            pending_commit: None,
            commit_due: false,
            last_commit: now,
            next_commit: now + settings.commit_interval,
            next_proof: now,
            next_ends: now + settings.commit_interval * END_OFFSET_REFRESH_COMMITS,
            next_full_scan: now,
            control_requests: services.health.control().partitions.open(),
            last_drain: None,
            report: PipelineReport::default(),
            prepare: PrepareSettings::of(services.creator.store()),
            settings,
            services,
            consumer,
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
        while !shutdown.is_cancelled() && !self.is_finished() {
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
                progress = next_commit_progress(&mut self.pending_commit) => {
                    monitor.enter("a restart of the store's nodes", self.on_commit_progress(progress)).await?
                }
                Some(request) = self.control_requests.recv() => {
                    monitor.enter("the log, for an operator", self.on_control_request(request)).await?
                }
                Some(message) = self.task_messages.recv() => self.on_task_message(message)?,
                chunk = next_chunk(&mut self.chunks, &self.topic_confirmation) => self.on_prepared(chunk?),
                polled = self.consumer.poll() => match polled {
                    Ok(polled) => monitor.enter("a rebalance", self.on_polled(polled)).await?,
                    Err(error) => {
                        let assigned = self.epochs();
                        let halting = self.on_offset_out_of_range(error, assigned);
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
        self.drain(DrainReason::Shutdown, None).await?;
        self.dispatcher.shut_down().await;
        // The next owner finds a node's restart by itself: a rewind here would need a store that answers.
        self.commit_unless_restarted().await?;
        self.consumer.close().await?;
        self.report.parked_max = self.planner.counts().parked_max as u64;
        Ok(self.report)
    }

    /// Returns the steady clock, ms, for all durations.
    fn now_ms(&self) -> u64 {
        self.services.clock.steady_ms()
    }

    /// Returns whether a rebuild has reached its end offset, durably, in every partition.
    fn is_finished(&self) -> bool {
        self.services.modes.end_offsets().is_some_and(|ends| {
            ends.iter().all(|(number, end)| {
                *end == 0 || self.partitions.get(number).is_some_and(|state| state.tracker.durable_offset() >= *end)
            })
        })
    }

    fn next_wake(&self) -> Instant {
        let now_ms = self.now_ms();
        let due =
            self.planner.next_due_ms().map(|due| Instant::now() + Duration::from_millis(due.saturating_sub(now_ms)));
        let proof = (self.planner.counts().parked > 0).then_some(self.next_proof);
        [due, proof, self.dispatcher.deadline()].into_iter().flatten().fold(self.next_commit, Instant::min)
    }

    async fn on_polled(&mut self, polled: ConsumerEvent) -> Result<(), PipelineError> {
        match polled {
            ConsumerEvent::Messages(batch) => self.on_messages(batch),
            ConsumerEvent::Assigned(assigned) => {
                // An instance without partitions is a member, too, and takes over from others.
                self.services.health.set(Condition::Assigned, None);
                self.services.metrics.rebalances.of(RebalanceChange::Assigned).inc();
                assigned.into_iter().for_each(|partition| self.on_assigned(partition));
                self.check_topic_id();
                self.redistribute_shares();
                self.publish_status();
            }
            ConsumerEvent::Revoked { partitions, lost } => self.on_revoked(&partitions, lost).await?,
            ConsumerEvent::End(end) => {
                let state = self.partitions.get_mut(&end.partition.partition);
                if let Some(state) = state.filter(|state| state.epoch == end.epoch) {
                    state.reach_end(end.position);
                }
            }
        }
        Ok(())
    }

    fn on_assigned(&mut self, assigned: AssignedPartition) {
        let number = assigned.partition.partition;
        self.compare_with_store(&assigned);
        tracing::info!(
            partition = number,
            epoch = assigned.epoch,
            position = assigned.position,
            "pipeline: partition assigned"
        );
        let metrics = self.services.metrics.partition(&assigned.partition);
        let mut state = PartitionState::new(
            &assigned,
            metrics,
            self.services.nodes.can_lose_writes(),
            self.services.clock.now_ms(),
        );
        state.paused_by_operator = self.services.health.control().is_paused(number);
        let paused = self.throttled || state.paused_by_operator;
        self.partitions.insert(number, state);
        if paused {
            self.pause(number);
        }
        let halt_of = |committed| self.services.earlier_halts.remaining_halt(number, committed);
        if let Some(halt) = assigned.committed.as_ref().and_then(halt_of) {
            self.enter_halt(number, halt);
        }
        if let Some(why) = self.topic_confirmation.other_topic() {
            self.halt(number, why);
        } else if let Some(low) = self.partitions.get(&number).and_then(PartitionState::truncated_before_first_commit) {
            let why = never_read_reason(&self.settings.group, low);
            self.halt(number, why);
        }
    }

    async fn on_revoked(&mut self, partitions: &[TopicPartition], lost: bool) -> Result<(), PipelineError> {
        tracing::info!(?partitions, lost, "pipeline: partitions revoked");
        self.services.metrics.rebalances.of(if lost { RebalanceChange::Lost } else { RebalanceChange::Revoked }).inc();
        if !lost {
            self.drain(DrainReason::Revocation, Some(partitions)).await?;
            self.commit().await?;
        }
        let now_ms = self.now_ms();
        for partition in partitions {
            self.partitions.remove(&partition.partition);
            self.services.metrics.remove_partition(partition);
            self.planner.revoke(partition.partition, now_ms);
        }
        self.consumer.finish_revocation();
        self.redistribute_shares();
        self.publish_halts();
        if self.partitions.is_empty() {
            self.services.health.set(Condition::Assigned, Some("no partition is assigned".into()));
        }
        self.publish_status();
        Ok(())
    }

    /// Registers the messages of a batch, in order, and starts their preparation beside the loop.
    fn on_messages(&mut self, batch: MessageBatch) {
        let number = batch.partition.partition;
        let Some(state) = self.partitions.get_mut(&number).filter(|state| state.epoch == batch.epoch) else { return };
        state.update_high_watermark(batch.high_watermark);
        (state.at_end, state.end_offset_is_fresh) = (false, true);
        let latest_ms = latest_plausible_ms(self.services.clock.now_ms(), self.settings.missing_parent_grace_ms);
        state.record_read_time(self.services.clock.steady_ms());
        let messages: Vec<Message> =
            batch.messages.into_iter().filter(|message| state.deliver(message, latest_ms)).collect();
        if messages.is_empty() {
            return;
        }
        let replayed = messages.iter().filter(|message| state.is_replayed(message)).count();
        self.services.metrics.replayed_events.inc_by(replayed as u64);
        self.apply_backpressure(number);
        self.unprepared += messages.len();
        let (settings, partitions) = (self.prepare, self.settings.partitions);
        let count = messages.len();
        let oldest_ms = messages.iter().map(|message| message.timestamp_ms).min().unwrap_or(i64::MIN);
        let oldest = (oldest_ms, messages.first().map_or(0, |message| message.offset));
        let prepared = tokio::spawn(async move {
            messages
                .into_iter()
                .map(|message| {
                    let result = prepare(&settings, &message).and_then(|prepared| {
                        partitions.map_or(Ok(()), |count| check_partition(number, count, &message)).map(|()| prepared)
                    });
                    (message, result)
                })
                .collect()
        });
        self.chunks.push_back(Chunk {
            partition: number,
            epoch: batch.epoch,
            number: self.topic_confirmation.next_chunk_number(),
            oldest,
            messages: count,
            prepared,
        });
        self.check_topic_id();
        self.throttle();
    }

    /// Computes the fair shares of the common limit anew, after an assignment or revocation. Until every partition is
    /// within an equal share, bytes that one partition completes go to the others.
    fn redistribute_shares(&mut self) {
        let PipelineSettings { bounds: own, bytes_in_all, .. } = self.settings;
        let share = max_min_fair_share(bytes_in_all, self.unfinished_bytes());
        self.bounds = PartitionLimits { bytes: own.bytes.min(share), ..own };
        for number in self.partitions.keys().copied().collect::<Vec<_>>() {
            self.apply_backpressure(number);
            self.resume(number);
        }
    }

    /// Returns the unfinished bytes of each partition that is not halted: a halted partition keeps no bytes of its
    /// events.
    fn unfinished_bytes(&self) -> impl Iterator<Item = u64> {
        let running = self.partitions.values().filter(|state| state.halted.is_none());
        running.map(|state| state.tracker.unfinished_bytes())
    }

    /// Returns whether shares are below an equal share because a partition holds more than its share.
    fn has_unequal_shares(&self) -> bool {
        let equal = max_min_fair_share(self.settings.bytes_in_all, self.unfinished_bytes().map(|_| 0));
        self.bounds.bytes < self.settings.bounds.bytes.min(equal)
    }

    /// Pauses a partition that has reached its limit.
    fn apply_backpressure(&mut self, number: i32) {
        let Some(state) = self.partitions.get_mut(&number).filter(|state| !state.over_limit) else { return };
        let Some(why) = state.exceeded_limit(&self.bounds) else { return };
        let is_its_own = state.exceeded_limit(&self.settings.bounds).is_some();
        state.over_limit = true;
        self.pause(number);
        if is_its_own {
            tracing::warn!(partition = number, why, "pipeline: partition paused at its limit of unfinished events");
            let now_ms = self.now_ms();
            self.planner.mark_over_limit(number, now_ms);
        } else {
            // Bytes of other partitions caused the pause, which may end with the next batch.
            tracing::debug!(partition = number, why, "pipeline: partition paused at its share of the common limit");
        }
    }

    /// Pauses all partitions while too many transactions are in motion, or too many completed events are not durable;
    /// resumes at half. Also pauses while too many transactions wait for others in motion and enough are in motion:
    /// events that are read long before they can be applied fall out of the processor's caches.
    fn throttle(&mut self) {
        let PlanCounts { active, parked, .. } = self.planner.counts();
        let in_motion = active + self.unprepared;
        let not_durable: usize = self.partitions.values().map(|state| state.tracker.not_durable()).sum();
        let PipelineSettings { max_active, max_not_durable, .. } = self.settings;
        let too_many = |max_active: usize, max_not_durable: usize| {
            not_durable >= max_not_durable
                || in_motion >= max_active
                || (in_motion + parked >= max_active && in_motion >= self.sufficient_active())
        };
        if !self.throttled && too_many(max_active, max_not_durable) {
            if not_durable >= max_not_durable {
                tracing::warn!(
                    not_durable,
                    limit = max_not_durable,
                    "pipeline: polling paused, too many completed events are not yet durable"
                );
            }
            self.throttled = true;
            let all: Vec<i32> = self.partitions.keys().copied().collect();
            all.into_iter().for_each(|number| self.pause(number));
        } else if self.throttled && !too_many(max_active / 2 + 1, max_not_durable / 2 + 1) {
            self.throttled = false;
            self.resume_all();
        }
    }

    /// Returns the number of transactions in motion from which reading on gains nothing, however many wait. With fewer,
    /// the next event may be one that the waiting ones need.
    fn sufficient_active(&self) -> usize {
        (self.settings.max_active / 16).max(1)
    }

    fn pause(&mut self, number: i32) {
        let partition = TopicPartition { topic: self.settings.topic.clone(), partition: number };
        let Some(state) = self.partitions.get_mut(&number).filter(|state| !state.paused) else { return };
        match self.consumer.pause(&partition) {
            Ok(()) => state.paused = true,
            Err(error) => tracing::warn!(partition = number, %error, "pipeline: cannot pause the partition"),
        }
    }

    fn resume_all(&mut self) {
        for number in self.partitions.keys().copied().collect::<Vec<_>>() {
            self.resume(number);
        }
    }

    /// Resumes a partition that has room again.
    fn resume(&mut self, number: i32) {
        let Some(state) = self.partitions.get_mut(&number) else { return };
        if state.over_limit && state.exceeded_resume_limit(&self.bounds).is_none() {
            state.over_limit = false;
            self.planner.clear_over_limit(number);
        }
        if state.paused && !state.over_limit && state.halted.is_none() && !state.paused_by_operator && !self.throttled {
            let partition = TopicPartition { topic: self.settings.topic.clone(), partition: number };
            match self.consumer.resume(&partition) {
                Ok(()) => state.paused = false,
                Err(error) => tracing::warn!(partition = number, %error, "pipeline: cannot resume the partition"),
            }
        }
    }

    fn on_prepared(&mut self, chunk: PreparedChunk) {
        self.unprepared -= chunk.messages.len();
        self.made_progress = true;
        let now_ms = self.now_ms();
        for (message, result) in chunk.messages {
            let Some(state) = self.partitions.get_mut(&chunk.partition).filter(|state| state.epoch == chunk.epoch)
            else {
                return;
            };
            let event = EventRef {
                timestamp_ms: message.timestamp_ms,
                partition: chunk.partition,
                offset: message.offset,
                epoch: chunk.epoch,
            };
            if state.halted.is_some() {
                continue;
            }
            // An event that the live group has passed does not stop a rebuild.
            let replayed = self.services.modes.is_below_frontier(event.partition, event.offset);
            let limits = &self.settings.dead_letter_limits;
            let halt_reason = state.dead_letters.count(limits, result.is_err(), now_ms).filter(|_| !replayed);
            match result {
                Ok(prepared) => self.submit(event, prepared, now_ms),
                Err(poison) => self.publish_dead_letter(event, &message, poison),
            }
            if let Some(why) = halt_reason {
                self.halt(chunk.partition, why);
            }
        }
    }

    fn submit(&mut self, event: EventRef, prepared: PreparedEvent, now_ms: u64) {
        if self.services.modes.is_skipped(event.partition, event.offset, &prepared.txid()) {
            return self.complete(event, Completion::PassedOver);
        }
        let events = &self.services.metrics.events;
        match prepared {
            PreparedEvent::Validated(tx) => {
                events.of(EventKind::Validated).inc();
                let mode = self.services.modes.of(event.partition, event.offset, &tx.txid);
                self.planner.submit(event, tx, mode, now_ms);
            }
            PreparedEvent::Seeded(seed) => {
                events.of(EventKind::Seeded).inc();
                let mode = self.services.modes.of(event.partition, event.offset, &seed.txid);
                self.planner.submit(event, seed, mode, now_ms);
            }
        }
    }

    /// Publishes a dead letter; the offset completes with its acknowledgement.
    fn publish_dead_letter(&mut self, event: EventRef, message: &Message, poison: Poison) {
        if self.services.modes.is_below_frontier(event.partition, event.offset) {
            return self.complete(event, Completion::PassedOver);
        }
        self.report.dead_letters += 1;
        self.publishing += 1;
        self.services.publisher.publish_dead_letter(event, message.clone(), poison, self.task_sender.clone());
    }

    fn on_task_message(&mut self, message: TaskMessage) -> Result<(), PipelineError> {
        let now_ms = self.now_ms();
        match message {
            TaskMessage::Rows { outcomes, last } => {
                self.made_progress |= !outcomes.is_empty();
                for (token, outcome) in outcomes {
                    self.dispatcher.finish_detached(token);
                    self.planner.outcome(token, outcome, now_ms);
                }
                if last {
                    self.dispatcher.batch_done();
                }
            }
            TaskMessage::MastersRead(records) => {
                self.made_progress |= !records.is_empty();
                for (reading, record) in records {
                    let page = record.as_ref().and_then(Record::page);
                    match reading {
                        MasterRead::Own(flight) => self.planner.own_record(flight, page, now_ms),
                        MasterRead::Parent(flight, group) => self.planner.parent_record(flight, group, page, now_ms),
                    }
                }
            }
            TaskMessage::Created(token, outcome) => {
                self.made_progress = true;
                self.dispatcher.finish_detached(token);
                self.planner.outcome(token, outcome, now_ms);
            }
            TaskMessage::TooBig(token, row, why) if self.planner.flights().has_events(token.flight()) => {
                self.dispatcher.externalize_body(token, row, why)
            }
            TaskMessage::TooBig(token, ..) | TaskMessage::Cancelled(token) => {
                self.dispatcher.finish_detached(token);
                self.planner.on_cancelled(token, now_ms);
            }
            TaskMessage::CannotBeStored(token, why) => {
                self.dispatcher.finish_detached(token);
                self.halt_unstorable(token, &why)?;
            }
            TaskMessage::ContestPublished(flight) => {
                self.publishing -= 1;
                self.planner.contest_published(flight, now_ms);
                self.on_contests_published();
            }
            TaskMessage::DeadLetterPublished(event) => {
                self.publishing -= 1;
                self.complete(event, Completion::DeadLetter);
            }
            TaskMessage::ContestNotPublished(flight, error) => {
                self.publishing -= 1;
                let why = error.to_string();
                if self.services.modes.end_offsets().is_some() {
                    return Err(error);
                }
                let events = self.planner.halt(flight, now_ms).map_or_else(Vec::new, |(_, events)| events);
                self.halt_all(&events, &why);
            }
            TaskMessage::DeadLetterNotPublished(event, error) => {
                self.publishing -= 1;
                if self.services.modes.end_offsets().is_some() {
                    return Err(error);
                }
                self.halt_all(&[event], &error.to_string());
            }
            TaskMessage::TopicIdChecked { up_to, other } => self.on_topic_id_checked(up_to, other)?,
            TaskMessage::ParentCreated(txid) => self.planner.on_parent_created(&txid, now_ms),
            TaskMessage::ProofSnapshot(snapshot) => self.on_proof_snapshot(snapshot),
            TaskMessage::EndOffsets(ends) => {
                self.end_query_running = false;
                self.on_end_offsets(&ends);
            }
            TaskMessage::StoreCompared { partition, offset } => {
                // The epoch does not matter: after a node's restart the partition was read again from the beginning.
                if let Some(state) = self.partitions.get_mut(&partition) {
                    state.is_verified |= state.rewind_offset() <= offset;
                }
            }
            TaskMessage::StoreReachable(answer) => self.on_store_answer(answer),
            TaskMessage::Fatal(error) => return Err(error),
        }
        Ok(())
    }

    /// Updates the readiness of the store. The store counts as reachable once no task is without an answer: one answer
    /// does not speak for other nodes.
    fn on_store_answer(&mut self, answer: Result<(), String>) {
        match answer {
            Ok(()) => self.tasks_without_answer = self.tasks_without_answer.saturating_sub(1),
            Err(_) => self.tasks_without_answer += 1,
        }
        if answer.is_err() || self.tasks_without_answer == 0 {
            self.services.health.set(Condition::StoreReachable, answer.err());
        }
    }

    /// Performs the requests of the planner, sends what is due, and resumes reading when there is room.
    fn run_actions(&mut self) {
        while let Some(action) = self.planner.next_action() {
            match action {
                Action::Apply(token, row) => self.dispatcher.push(token, row),
                Action::CreatePaged(token, work) => self.dispatcher.create(self.services.creator.clone(), token, work),
                Action::Cancel(flight) => self.dispatcher.cancel(flight),
                Action::ReadOwn(flight, txid) => self.dispatcher.read(MasterRead::Own(flight), txid),
                Action::ReadParent(flight, group, txid) => {
                    self.dispatcher.read(MasterRead::Parent(flight, group), txid)
                }
                Action::PublishContest { flight, txid, event, body, reason } => {
                    // A chain that makes no progress may still bring the parent.
                    let grace_ms = self.settings.missing_parent_grace_ms;
                    if let Reason::MissingParent { parent } = reason
                        && !self.chain_is_stalled(grace_ms)
                        && self.counts_as_missing(&parent)
                    {
                        self.count_root(event, parent);
                    }
                    self.report.contests += 1;
                    self.publishing += 1;
                    self.services.publisher.publish_contest(
                        flight,
                        txid,
                        event,
                        body,
                        reason,
                        self.task_sender.clone(),
                    );
                }
                Action::Mismatched { event, work } => {
                    let txid = work.page().txid;
                    self.count_root(event, txid);
                    self.publish_dead_letter(event, work.source(), mismatch_poison(txid));
                }
                Action::Complete(event, how) => self.complete(event, how),
            }
        }
        self.dispatcher.flush();
        self.throttle();
    }

    /// Completes an event. A completion under an epoch that has ended is dropped: a duplicate is better than a loss.
    fn complete(&mut self, event: EventRef, how: Completion) {
        let at_ms = self.uptime_ms(Instant::now());
        if let Some(state) = self.partitions.get_mut(&event.partition).filter(|state| state.epoch == event.epoch) {
            state.tracker.complete(event.offset, at_ms);
            self.made_progress = true;
            self.report.completed += 1;
            self.services.metrics.completed.of(how).inc();
            if state.paused {
                self.resume(event.partition);
            }
        }
    }

    async fn on_tick(&mut self) -> Result<(), PipelineError> {
        let now = Instant::now();
        // Before the retries: a transaction that is being tried does not count as waiting.
        if now >= self.next_proof && self.planner.counts().parked > 0 {
            self.query_proof_snapshot();
            self.delay_next_scan(now);
            self.next_proof = self.next_full_scan.max(now + self.settings.commit_interval);
            if let Modes::Rebuild(_) = self.services.modes {
                // The progress of the live group's chain says nothing about the chain of the rebuild.
                self.planner.reread_own_records(LONG_WAIT_MS, self.now_ms());
            }
        }
        let commits = now >= self.next_commit;
        if commits {
            self.refresh_status();
            if self.has_unequal_shares() {
                self.redistribute_shares();
            }
            if now >= self.next_ends {
                self.next_ends = now + self.settings.commit_interval * END_OFFSET_REFRESH_COMMITS;
                self.query_end_offsets();
            }
            self.planner.detach_parked_buffers();
            self.delay_next_scan(now);
            self.last_commit = now;
            self.next_commit = self.next_full_scan.max(now + self.settings.commit_interval);
            self.begin_commit();
            if let Some((error, assigned)) = self.out_of_range.take() {
                self.on_offset_out_of_range(error, assigned).await?;
            }
        }
        self.planner.retry_due(self.now_ms());
        Ok(())
    }

    /// Delays the next scan after one that started at `begun`.
    fn delay_next_scan(&mut self, begun: Instant) {
        self.next_full_scan =
            self.next_full_scan.max(begun + (begun.elapsed() * SCAN_COOLDOWN_FACTOR).min(MAX_SCAN_COOLDOWN));
    }

    /// Returns the time since the start of the pipeline, ms; never decreases or jumps.
    fn uptime_ms(&self, at: Instant) -> u64 {
        at.duration_since(self.started).as_millis() as u64
    }

    fn refresh_status(&mut self) {
        let counts = self.planner.counts();
        self.services.metrics.parked.set(counts.parked as i64);
        self.services.metrics.parked_max.set(counts.parked_max as i64);
        self.services.metrics.in_flight.set((counts.active + counts.parked) as i64);
        self.services.health.set_idle(Workload::Transactions, self.is_idle());
        if std::mem::take(&mut self.made_progress) {
            self.services.health.record_progress(Workload::Transactions);
        }
        self.publish_status();
        if self.services.modes.end_offsets().is_some() {
            // A rebuild reports its waits as a condition.
            self.services
                .health
                .set(Condition::PartitionsRunning, self.planner.flights().oldest_wait().map(|(_, what)| what));
        } else {
            self.report_long_wait();
        }
    }

    /// Publishes the status of the pipeline, its partitions and the group.
    fn publish_status(&self) {
        let (now, counts) = (Moment::now(&self.services.clock), self.planner.counts());
        let mut partitions = Vec::with_capacity(self.partitions.len());
        for (number, state) in &self.partitions {
            let parked = self.planner.flights().parked_of(*number);
            let shown = state.status(
                now,
                &self.bounds,
                parked,
                "too many transactions are in flight, or completed events not durable",
            );
            state.update_metrics(&shown);
            partitions.push(shown);
        }
        let Metrics { rebalances, commit_failures, .. } = self.services.metrics.as_ref();
        let (rebalances, commit_failures) = (rebalances.now(), commit_failures.now());
        self.services.health.status_registry().publish_group(GroupStatus {
            rebalances,
            commit_failures,
            last_drain: self.last_drain,
        });
        self.services.health.status_registry().publish_pipeline(PipelineStatus {
            in_flight: counts.active as u64,
            parked: counts.parked as u64,
            not_durable: self.partitions.values().map(|state| state.tracker.not_durable() as u64).sum(),
            unfinished_bytes: self.partitions.values().map(|state| state.tracker.unfinished_bytes()).sum(),
            unfinished_bytes_bound: self.settings.bytes_in_all,
            partition_bytes_bound: self.bounds.bytes,
            nodes: self.services.nodes.status(),
            partitions,
        });
    }

    /// Reports a wait beyond the grace of a missing parent. The cause lies elsewhere: a partition without an owner, or
    /// a chain without progress. The wait does not change readiness: neither a restart nor another instance would end
    /// it.
    fn report_long_wait(&mut self) {
        let grace_ms = self.settings.missing_parent_grace_ms;
        let waited = |(since_ms, what): (u64, String)| (self.now_ms().saturating_sub(since_ms), what);
        let wait = self.planner.flights().oldest_wait().map(waited).filter(|(waited_ms, _)| *waited_ms >= grace_ms);
        self.services.metrics.longest_wait_seconds.set(wait.as_ref().map_or(0, |(ms, _)| (ms / 1_000) as i64));
        let what = wait.map(|(_, what)| what);
        if what.is_some() && what != self.last_logged_wait {
            tracing::warn!(what, "pipeline: an event waits longer than the grace of a missing parent");
            self.last_logged_wait.clone_from(&what);
        }
        self.services.health.set_wait(what);
    }

    /// Returns whether no event has to complete by itself: every event is completed, except in halted partitions; or
    /// only waiting transactions are left, which are retried or wait for a halted one.
    fn is_idle(&self) -> bool {
        let running = self.partitions.values().filter(|state| state.halted.is_none());
        let all_completed = running.map(|state| state.tracker.unfinished()).sum::<usize>() == 0;
        let in_motion =
            self.planner.counts().active + self.unprepared + self.publishing > 0 || !self.dispatcher.is_idle();
        all_completed || (!in_motion && (self.planner.next_due_ms().is_some() || self.planner.flights().has_halted()))
    }

    /// Returns whether transactions, rows, chunks or publications are in motion.
    fn has_work_in_flight(&self) -> bool {
        self.planner.counts().active > 0 || !self.dispatcher.is_idle() || !self.chunks.is_empty() || self.publishing > 0
    }

    /// Returns whether events of a partition are in motion. In a halted partition none are: its events never complete.
    /// The result may be `true` where two events wait as one transaction.
    fn partition_has_work_in_flight(&self, partition: &TopicPartition) -> bool {
        let number = partition.partition;
        let running = self.partitions.get(&number).filter(|state| state.halted.is_none());
        running.is_some_and(|state| state.tracker.unfinished() > self.planner.flights().parked_of(number))
    }

    /// Waits until the events in motion of these partitions (of all: `None`) have completed, at most for the drain
    /// timeout. Waiting events stay and are read again by the next owner.
    async fn drain(&mut self, why: DrainReason, of: Option<&[TopicPartition]>) -> Result<(), PipelineError> {
        let begun = Instant::now();
        let deadline = begun + self.settings.drain_timeout;
        self.cancel_unsent_commit();
        while self.has_work_in_flight()
            && of.is_none_or(|partitions| partitions.iter().any(|one| self.partition_has_work_in_flight(one)))
        {
            let flush = self.dispatcher.deadline().unwrap_or(deadline).min(deadline);
            tokio::select! {
                biased;
                progress = next_commit_progress(&mut self.pending_commit) => self.on_commit_progress(progress).await?,
                Some(message) = self.task_messages.recv() => self.on_task_message(message)?,
                chunk = next_chunk(&mut self.chunks, &self.topic_confirmation) => self.on_prepared(chunk?),
                () = tokio::time::sleep_until(flush) => {
                    if Instant::now() >= deadline {
                        tracing::warn!(in_flight = self.planner.counts().active, "pipeline: drain timed out");
                        break;
                    }
                }
            }
            self.run_actions();
        }
        let seconds = begun.elapsed().as_secs_f64();
        self.services.metrics.drain_seconds.of(why).observe(seconds);
        let ended_ms = self.services.clock.now_ms();
        self.last_drain =
            Some(DrainStatus { reason: self.services.metrics.drain_seconds.name_of(why), seconds, ended_ms });
        Ok(())
    }
}

/// Removes the partitions from metrics and status when the pipeline ends: the pipeline may be started again in this
/// process with other partitions.
impl Drop for Pipeline {
    fn drop(&mut self) {
        for number in std::mem::take(&mut self.partitions).into_keys() {
            let partition = TopicPartition { topic: self.settings.topic.clone(), partition: number };
            self.services.metrics.remove_partition(&partition);
        }
        // The pipeline of a rebuild may end before its chain: that is no stall.
        self.services.health.set_idle(Workload::Transactions, true);
        self.publish_status();
    }
}

struct PreparedChunk {
    partition: i32,
    epoch: u64,
    messages: Vec<(Message, Result<PreparedEvent, Poison>)>,
}

/// Returns the oldest chunk, once the chunk is prepared and the topic confirmed: chunks are used in the order of
/// reading.
async fn next_chunk(
    chunks: &mut VecDeque<Chunk>,
    confirmation: &TopicConfirmation,
) -> Result<PreparedChunk, PipelineError> {
    let Some(chunk) = chunks.front_mut().filter(|chunk| confirmation.is_confirmed(chunk.number)) else {
        return std::future::pending().await;
    };
    let messages = (&mut chunk.prepared).await.map_err(|error| PipelineError::Internal(error.to_string()))?;
    let (partition, epoch) = (chunk.partition, chunk.epoch);
    debug_assert_eq!(messages.len(), chunk.messages);
    chunks.pop_front();
    Ok(PreparedChunk { partition, epoch, messages })
}
