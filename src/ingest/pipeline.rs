//! The loop: poll → decode → plan → apply → complete → commit offsets.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::{sync::mpsc, task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    api::{Condition, Health},
    broker::{Assigned, Batch, Broker, BrokerError, BrokerErrorKind, Consumer, Message, Polled, TopicPartition},
    clock::Clock,
    engine::{ErrorKind, RecordEngine},
    ingest::{
        arrivals::Arrivals,
        dead_letters::DeadLetterLimits,
        dispatch::{DispatchSettings, Dispatcher, Done},
        flight::FlightId,
        partition::{Halt, PartitionBounds, PartitionState, never_read},
        plan::{Action, EventRef, PlanCounts, PlanSettings, Planner},
        prepare::{Poison, PrepareSettings, Prepared, prepare},
        proof::{ChainView, PartitionView, Ties, proves_missing},
        publish::{Publisher, mismatch},
        replay::Modes,
    },
    record::{Reason, Record},
    store::nodes::{Look, Nodes, WholeStore},
    telemetry::{Completion, EventKind, Metrics, Rebalance},
    tx::Txid,
};

/// Everything that the loop needs to know. Units are in the names.
#[derive(Debug, Clone)]
pub struct PipelineSettings {
    /// Topic of validated transactions.
    pub topic: Arc<str>,
    /// Group whose committed offsets count.
    pub group: String,
    /// What events are prepared for.
    pub prepare: PrepareSettings,
    /// Bounds and pauses of the planner.
    pub plan: PlanSettings,
    /// Batching.
    pub dispatch: DispatchSettings,
    /// Transactions that move at once; beyond it nothing more is read (it resumes at half). Those that wait count, too, as
    /// long as a sixteenth of it moves.
    pub max_active: usize,
    /// What may be unfinished in a partition before it is paused.
    pub bounds: PartitionBounds,
    /// When dead letters halt a partition.
    pub dead_letter_limits: DeadLetterLimits,
    /// How long other partitions must have been read past an event before its parent is missing.
    pub missing_parent_grace_ms: u64,
    /// Between commits.
    pub commit_interval: Duration,
    /// How long a shutdown waits for what is moving.
    pub drain_timeout: Duration,
}

/// What the pipeline works with.
#[derive(Clone)]
pub struct PipelineParts {
    /// The log.
    pub broker: Arc<dyn Broker>,
    /// The state.
    pub engine: Arc<dyn RecordEngine>,
    /// Where contests and dead letters go.
    pub publisher: Publisher,
    /// What is known of the chain, for the proof of a missing parent.
    pub chain: Arc<dyn ChainProgress>,
    /// How each event is treated.
    pub modes: Modes,
    /// Whether the store has forgotten.
    pub nodes: Nodes,
    /// Whether it is still there as a whole.
    pub whole: Arc<dyn WholeStore>,
    /// Time.
    pub clock: Clock,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// Health.
    pub health: Arc<Health>,
}

/// Tells how far the chain has been handled, whoever handles it.
#[async_trait::async_trait]
pub trait ChainProgress: Send + Sync {
    /// As of now.
    async fn view(&self) -> Result<ChainView, BrokerError>;
}

/// Why the pipeline ended, when nobody asked it to.
#[derive(Debug, thiserror::Error)]
pub enum PipelineError {
    /// The broker cannot go on.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// The store cannot go on.
    #[error("store: {0}")]
    Store(String),
    /// What had to be in the log before its event completes is not there, and no retry heals that.
    #[error("{what} cannot be published to `{topic}`: {error}")]
    NotPublished {
        /// What, with its transaction or place.
        what: String,
        /// Where it was to go.
        topic: String,
        /// Why not.
        error: BrokerError,
    },
    /// A task of the pipeline died.
    #[error("internal: {0}")]
    Internal(String),
}

/// What a run of the pipeline did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PipelineReport {
    /// Events completed.
    pub completed: u64,
    /// The most transactions that ever waited at once.
    pub parked_max: u64,
    /// Contests published.
    pub contests: u64,
    /// Dead letters published.
    pub dead_letters: u64,
}

/// A chain that has stood still for so long may wait for what waits for it here.
const LONG_WAIT_MS: u64 = 5_000;

struct Chunk {
    partition: i32,
    epoch: u64,
    /// Least timestamp of its messages, and the first offset.
    oldest: (i64, u64),
    messages: usize,
    prepared: JoinHandle<Vec<(Message, Result<Prepared, Poison>)>>,
}

/// One instance of the pipeline.
pub struct Pipeline {
    settings: PipelineSettings,
    parts: PipelineParts,
    consumer: Box<dyn Consumer>,
    planner: Planner,
    dispatcher: Dispatcher,
    partitions: BTreeMap<i32, PartitionState>,
    chunks: VecDeque<Chunk>,
    unprepared: usize,
    done_sender: mpsc::UnboundedSender<Done>,
    done: mpsc::UnboundedReceiver<Done>,
    publishing: usize,
    asking: bool,
    throttled: bool,
    /// Where the chain stands, and since when that has been seen.
    chain: (ChainView, u64),
    started: Instant,
    last_commit: Instant,
    next_commit: Instant,
    next_proof: Instant,
    report: PipelineReport,
}

impl Pipeline {
    /// A pipeline over a consumer that has been subscribed.
    pub fn new(settings: PipelineSettings, parts: PipelineParts, consumer: Box<dyn Consumer>) -> Self {
        let (done_sender, done) = mpsc::unbounded_channel();
        let now = Instant::now();
        Pipeline {
            // A rebuild over nodes that restart ends, and begins again.
            planner: Planner::new(settings.plan)
                .over_forgetful_store(parts.nodes.may_forget() && matches!(parts.modes, Modes::Live)),
            dispatcher: Dispatcher::new(parts.engine.clone(), settings.dispatch, done_sender.clone()),
            partitions: BTreeMap::new(),
            chunks: VecDeque::new(),
            unprepared: 0,
            done_sender,
            done,
            publishing: 0,
            asking: false,
            throttled: false,
            chain: (ChainView::AtEnd, 0),
            started: now,
            last_commit: now,
            next_commit: now + settings.commit_interval,
            next_proof: now,
            report: PipelineReport::default(),
            settings,
            parts,
            consumer,
        }
    }

    /// Where to tell of transactions that come by no event of theirs.
    pub fn arrivals(&self) -> Arrivals {
        Arrivals::to(self.done_sender.clone())
    }

    /// Runs until `shutdown` (then drains, commits what is safe by then and leaves the group; the rest is read again by
    /// whoever comes next, rather than keep a shutdown waiting for the durability lag), until everything that was asked for is done, or
    /// until it cannot go on.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<PipelineReport, PipelineError> {
        while !shutdown.is_cancelled() && !self.finished() {
            let wake = self.wake_at();
            if Instant::now() >= wake {
                // However busy the rest is: commits and retries must not wait for it to end.
                self.on_tick().await?;
                self.act();
            }
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                Some(done) = self.done.recv() => self.on_done(done)?,
                chunk = next_chunk(&mut self.chunks) => self.on_prepared(chunk?),
                polled = self.consumer.poll() => match polled {
                    Ok(polled) => self.on_polled(polled).await?,
                    Err(error) => self.on_gone(error).await?,
                },
                () = tokio::time::sleep_until(wake) => self.on_tick().await?,
            }
            self.act();
        }
        self.drain().await?;
        self.commit().await?;
        self.consumer.close().await?;
        self.report.parked_max = self.planner.counts().parked_max as u64;
        Ok(self.report)
    }

    fn now_ms(&self) -> u64 {
        self.parts.clock.now_ms()
    }

    /// Whether every partition has been completed safely up to where this run was to end.
    fn finished(&self) -> bool {
        self.parts.modes.ends().is_some_and(|ends| {
            ends.iter().all(|(number, end)| {
                *end == 0 || self.partitions.get(number).is_some_and(|state| state.tracker.safe() >= *end)
            })
        })
    }

    fn wake_at(&self) -> Instant {
        let now_ms = self.now_ms();
        let due =
            self.planner.next_due_ms().map(|due| Instant::now() + Duration::from_millis(due.saturating_sub(now_ms)));
        let proof = (self.planner.counts().parked > 0).then_some(self.next_proof);
        [due, proof, self.dispatcher.deadline()].into_iter().flatten().fold(self.next_commit, Instant::min)
    }

    async fn on_polled(&mut self, polled: Polled) -> Result<(), PipelineError> {
        match polled {
            Polled::Messages(batch) => self.on_messages(batch),
            Polled::Assigned(assigned) => assigned.into_iter().for_each(|partition| self.on_assigned(partition)),
            Polled::Revoked { partitions, lost } => self.on_revoked(&partitions, lost).await?,
            Polled::End(end) => {
                let state = self.partitions.get_mut(&end.partition.partition);
                if let Some(state) = state.filter(|state| state.epoch == end.epoch) {
                    state.reach_end(end.position);
                }
            }
        }
        Ok(())
    }

    fn on_assigned(&mut self, assigned: Assigned) {
        let number = assigned.partition.partition;
        tracing::info!(partition = number, epoch = assigned.epoch, position = assigned.position, "assigned");
        let metrics = self.parts.metrics.partition(&assigned.partition);
        self.partitions.insert(number, PartitionState::new(&assigned, metrics, self.parts.nodes.may_forget()));
        self.parts.metrics.rebalances.of(Rebalance::Assigned).inc();
        self.parts.health.set(Condition::Assigned, None);
        if self.throttled {
            self.pause(number);
        }
        let standing = |committed| Halt::standing(committed, self.parts.health.started_ms());
        if let Some(halt) = assigned.committed.as_ref().and_then(standing) {
            self.halt(number, halt);
        }
        if let Some(low) = self.partitions.get(&number).and_then(PartitionState::begins_above) {
            let why = never_read(&self.settings.group, low);
            self.halt(number, Halt { why, since_ms: self.now_ms() });
        }
    }

    /// What is to be read next is no longer in the topic, or is not there yet: skipping it would lose it, so the partitions
    /// that this befell halt. The rest goes on.
    async fn on_gone(&mut self, error: BrokerError) -> Result<(), PipelineError> {
        // Nobody will look at a rebuild: it has failed.
        if error.kind != BrokerErrorKind::OutOfRange || self.parts.modes.ends().is_some() {
            return Err(error.into());
        }
        let mut found = false;
        for number in self.partitions.keys().copied().collect::<Vec<_>>() {
            let Some(position) = self.partitions.get(&number).map(|state| state.tracker.position()) else { continue };
            let partition = TopicPartition { topic: self.settings.topic.clone(), partition: number };
            let (low, high) = self.parts.broker.watermarks(&partition).await?;
            if !(low..=high).contains(&position) {
                found = true;
                let why = format!("offset {position} is next, but the topic holds {low} to {high}");
                self.halt(number, Halt { why, since_ms: self.now_ms() });
            }
        }
        if found { Ok(()) } else { Err(error.into()) }
    }

    async fn on_revoked(&mut self, partitions: &[TopicPartition], lost: bool) -> Result<(), PipelineError> {
        tracing::info!(?partitions, lost, "revoked");
        self.parts.metrics.rebalances.of(if lost { Rebalance::Lost } else { Rebalance::Revoked }).inc();
        if !lost {
            self.drain().await?;
            self.commit().await?;
        }
        let now_ms = self.now_ms();
        for partition in partitions {
            self.partitions.remove(&partition.partition);
            self.parts.metrics.forget_partition(partition);
            self.planner.revoke(partition.partition, now_ms);
        }
        self.consumer.finish_revocation();
        if self.partitions.values().all(|state| state.halted.is_none()) {
            self.parts.health.set(Condition::PartitionsRunning, None);
        }
        if self.partitions.is_empty() {
            self.parts.health.set(Condition::Assigned, Some("no partition is assigned".into()));
        }
        Ok(())
    }

    /// Registers what was read, in order, and has it prepared beside the loop.
    fn on_messages(&mut self, batch: Batch) {
        let number = batch.partition.partition;
        let Some(state) = self.partitions.get_mut(&number).filter(|state| state.epoch == batch.epoch) else { return };
        state.high_watermark = state.high_watermark.max(batch.high_watermark);
        state.at_end = false;
        let messages: Vec<Message> = batch.messages.into_iter().filter(|message| state.deliver(message)).collect();
        if messages.is_empty() {
            return;
        }
        let replayed = messages.iter().filter(|message| state.is_replayed(message)).count();
        self.parts.metrics.replayed_events.inc_by(replayed as u64);
        if let Some(why) = state.over_bound(&self.settings.bounds) {
            tracing::warn!(partition = number, why, "paused: too much is unfinished");
            self.pause(number);
            let now_ms = self.now_ms();
            self.planner.bound_reached(number, now_ms);
        }
        self.unprepared += messages.len();
        let settings = self.settings.prepare;
        let count = messages.len();
        let oldest_ms = messages.iter().map(|message| message.timestamp_ms).min().unwrap_or(i64::MIN);
        let oldest = (oldest_ms, messages.first().map_or(0, |message| message.offset));
        let prepared = tokio::spawn(async move {
            messages
                .into_iter()
                .map(|message| {
                    let result = prepare(&settings, &message);
                    (message, result)
                })
                .collect()
        });
        self.chunks.push_back(Chunk { partition: number, epoch: batch.epoch, oldest, messages: count, prepared });
        self.throttle();
    }

    /// Reads nothing more while too much moves; resumes at half. Nor while too many wait for what moves, as long as enough
    /// does: what was read long before its turn has to be fetched from far memory, again and again.
    fn throttle(&mut self) {
        let PlanCounts { active, parked, .. } = self.planner.counts();
        let moving = active + self.unprepared;
        let limit = self.settings.max_active;
        let too_many = |limit: usize| moving >= limit || (moving + parked >= limit && moving >= self.enough());
        if !self.throttled && too_many(limit) {
            self.throttled = true;
            let all: Vec<i32> = self.partitions.keys().copied().collect();
            all.into_iter().for_each(|number| self.pause(number));
        } else if self.throttled && !too_many(limit / 2 + 1) {
            self.throttled = false;
            self.resume_all();
        }
    }

    /// So many move that nothing is gained by reading on, whatever waits. Fewer, and what is read next may be what they
    /// wait for.
    fn enough(&self) -> usize {
        (self.settings.max_active / 16).max(1)
    }

    fn pause(&mut self, number: i32) {
        let partition = TopicPartition { topic: self.settings.topic.clone(), partition: number };
        let Some(state) = self.partitions.get_mut(&number).filter(|state| !state.paused) else { return };
        match self.consumer.pause(&partition) {
            Ok(()) => state.paused = true,
            Err(error) => tracing::warn!(partition = number, %error, "cannot pause"),
        }
    }

    fn resume_all(&mut self) {
        for (number, state) in &mut self.partitions {
            let below_bound = state.over_half(&self.settings.bounds).is_none();
            if below_bound {
                self.planner.bound_left(*number);
            }
            let room = state.halted.is_none() && below_bound;
            if state.paused && room && !self.throttled {
                let partition = TopicPartition { topic: self.settings.topic.clone(), partition: *number };
                match self.consumer.resume(&partition) {
                    Ok(()) => state.paused = false,
                    Err(error) => tracing::warn!(partition = number, %error, "cannot resume"),
                }
            }
        }
    }

    fn on_prepared(&mut self, chunk: PreparedChunk) {
        self.unprepared -= chunk.messages.len();
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
            // What the live group got past, a rebuild gets past too.
            let replayed = self.parts.modes.is_below_frontier(event.partition, event.offset);
            let limits = &self.settings.dead_letter_limits;
            let stop = state.dead_letters.count(limits, result.is_err(), now_ms).filter(|_| !replayed);
            match result {
                Ok(prepared) => self.submit(event, prepared, now_ms),
                Err(poison) => self.bury(event, &message, poison),
            }
            if let Some(why) = stop {
                self.halt(chunk.partition, Halt { why, since_ms: now_ms });
            }
        }
    }

    fn submit(&mut self, event: EventRef, prepared: Prepared, now_ms: u64) {
        if self.parts.modes.passes_over(event.partition, event.offset, &prepared.txid()) {
            return self.complete(event, Completion::PassedOver);
        }
        let events = &self.parts.metrics.events;
        match prepared {
            Prepared::Validated(tx) => {
                events.of(EventKind::Validated).inc();
                let mode = self.parts.modes.of(event.partition, event.offset, &tx.txid);
                self.planner.submit(event, tx, mode, now_ms);
            }
            Prepared::Seeded(seed) => {
                events.of(EventKind::Seeded).inc();
                let mode = self.parts.modes.of(event.partition, event.offset, &seed.txid);
                self.planner.submit_seed(event, seed, mode, now_ms);
            }
        }
    }

    /// The dead letter is acknowledged before its offset completes.
    fn bury(&mut self, event: EventRef, message: &Message, poison: Poison) {
        if self.parts.modes.is_below_frontier(event.partition, event.offset) {
            return self.complete(event, Completion::PassedOver);
        }
        self.report.dead_letters += 1;
        self.publishing += 1;
        self.parts.publisher.dead_letter(event, message.clone(), poison, self.done_sender.clone());
    }

    /// An event is a dead letter, as was found after it had been read.
    fn count_root(&mut self, event: EventRef, root: Txid) {
        let now_ms = self.now_ms();
        let replayed = self.parts.modes.is_below_frontier(event.partition, event.offset);
        let state = self.partitions.get_mut(&event.partition);
        let Some(state) = state.filter(|state| state.epoch == event.epoch && state.halted.is_none() && !replayed)
        else {
            return;
        };
        if let Some(why) = state.dead_letters.count_root(&self.settings.dead_letter_limits, root, now_ms) {
            self.halt(event.partition, Halt { why, since_ms: now_ms });
        }
    }

    fn halt(&mut self, number: i32, halt: Halt) {
        let Halt { why, since_ms } = &halt;
        tracing::error!(partition = number, why, since_ms, "halted: the events that follow are left where they are");
        self.parts.health.set(Condition::PartitionsRunning, Some(format!("partition {number}: {why}")));
        if let Some(state) = self.partitions.get_mut(&number) {
            state.halted = Some(halt);
        }
        self.pause(number);
        // Whoever has the partition next is to know.
        self.next_commit = Instant::now();
    }

    fn on_done(&mut self, done: Done) -> Result<(), PipelineError> {
        let now_ms = self.now_ms();
        match done {
            Done::Rows { outcomes, last } => {
                for (token, outcome) in outcomes {
                    self.planner.outcome(token, outcome, now_ms);
                }
                if last {
                    self.dispatcher.batch_done();
                }
            }
            Done::Reads(records) => {
                for (flight, own) in records {
                    self.planner.own_record(flight, own.as_ref().and_then(Record::page), now_ms);
                }
            }
            Done::ContestPublished(flight) => {
                self.publishing -= 1;
                self.planner.contest_published(flight, now_ms);
                self.contests_published();
            }
            Done::DeadLetterPublished(event) => {
                self.publishing -= 1;
                self.complete(event, Completion::DeadLetter);
            }
            Done::Came(txid) => self.planner.parent_came(&txid, self.parts.clock.now_ms()),
            Done::Others(others) => self.prove_missing_parents(others),
            Done::StoreReachable(result) => self.parts.health.set(Condition::StoreReachable, result.err()),
            Done::Fatal(error) => return Err(error),
        }
        Ok(())
    }

    /// Others may be waiting for what was contested to be committed, and the next in line here may be proven missing now. Not
    /// for every single contest, though.
    fn contests_published(&mut self) {
        if self.publishing == 0 && self.planner.counts().parked > 0 {
            self.next_proof = Instant::now();
            self.next_commit = self.next_commit.min(self.last_commit + self.settings.commit_interval / 10);
        }
    }

    /// Does what the planner asks for, sends what is due, and reads on when there is room again.
    fn act(&mut self) {
        while let Some(action) = self.planner.next_action() {
            match action {
                Action::Apply(token, row) => self.dispatcher.push(token, row),
                Action::ReadOwn(flight, txid) => self.dispatcher.read(flight, txid),
                Action::PublishContest { flight, txid, event, body, reason } => {
                    if let Reason::MissingParent { parent } = reason {
                        self.count_root(event, parent);
                    }
                    self.report.contests += 1;
                    self.publishing += 1;
                    self.parts.publisher.contest(flight, txid, event, body, reason, self.done_sender.clone());
                }
                Action::Mismatched { event, work } => {
                    let txid = work.page().txid;
                    self.count_root(event, txid);
                    self.bury(event, work.source(), mismatch(txid));
                }
                Action::Complete(event, how) => self.complete(event, how),
            }
        }
        self.dispatcher.flush();
        self.throttle();
    }

    /// A completion whose epoch is gone is dropped: a duplicate beats a loss.
    fn complete(&mut self, event: EventRef, how: Completion) {
        let at_ms = self.uptime_ms(Instant::now());
        if let Some(state) = self.partitions.get_mut(&event.partition).filter(|state| state.epoch == event.epoch) {
            state.tracker.complete(event.offset, at_ms);
            self.report.completed += 1;
            self.parts.metrics.completed.of(how).inc();
            if state.paused {
                self.resume_all();
            }
        }
    }

    async fn on_tick(&mut self) -> Result<(), PipelineError> {
        let now = Instant::now();
        self.planner.retry_due(self.now_ms());
        if now >= self.next_commit {
            self.last_commit = now;
            self.next_commit = now + self.settings.commit_interval;
            self.commit().await?;
            self.observe();
        }
        if now >= self.next_proof && self.planner.counts().parked > 0 {
            self.next_proof = now + self.settings.commit_interval;
            self.ask_others();
        }
        Ok(())
    }

    /// Milliseconds since the pipeline began; unlike the clock's, they never go back or jump.
    fn uptime_ms(&self, at: Instant) -> u64 {
        at.duration_since(self.started).as_millis() as u64
    }

    /// Commits what is safe. Where a node has restarted nothing is: it is done again instead. The question comes first:
    /// what was complete for longer than the lag when it was asked is in the store for good.
    async fn commit(&mut self) -> Result<(), PipelineError> {
        match self.parts.nodes.look().await {
            Ok(Look::Same { asked }) => {
                let before_ms = self.uptime_ms(asked).saturating_sub(self.parts.nodes.lag().as_millis() as u64);
                self.partitions.values_mut().for_each(|state| state.tracker.settle(before_ms));
                self.commit_safe().await
            }
            Ok(Look::Restarted) => self.rewind().await,
            Err(error) if error.kind == ErrorKind::Fatal => Err(PipelineError::Store(error.to_string())),
            Err(error) => {
                tracing::warn!(%error, "nobody knows whether a node has restarted: nothing is committed");
                Ok(())
            }
        }
    }

    /// A node has forgotten: everything that is not committed is read and done again, under new epochs, so that no
    /// completion from before counts.
    async fn rewind(&mut self) -> Result<(), PipelineError> {
        let store = |error: &dyn std::fmt::Display| PipelineError::Store(error.to_string());
        self.parts.metrics.node_restarts.inc();
        if let Modes::Rebuild(_) = self.parts.modes {
            return Err(store(&"a node restarted while the store was rebuilt: begin again, with an empty set"));
        }
        self.parts.nodes.meet().await.map_err(|error| store(&error))?;
        self.parts.whole.check().await.map_err(|error| store(&error))?;
        self.planner.abandon();
        self.chunks.clear();
        self.unprepared = 0;
        self.throttled = false;
        for (number, state) in std::mem::take(&mut self.partitions) {
            let partition = TopicPartition { topic: self.settings.topic.clone(), partition: number };
            let position = state.rewind_to();
            tracing::warn!(%partition, position, "a node of the store restarted: read again from what is committed");
            match self.consumer.seek(&partition, position).await {
                Ok(epoch) => {
                    if state.paused {
                        self.consumer.resume(&partition)?;
                    }
                    self.partitions.insert(number, state.rewound(partition, epoch, position));
                    // Only an instance that was started after a halt tries again.
                    if let Some(halt) = state.halted {
                        self.halt(number, halt);
                    }
                }
                // It is being taken away, which is heard next.
                Err(error) if error.kind == BrokerErrorKind::NotAssigned => {}
                Err(error) => return Err(error.into()),
            }
        }
        if self.partitions.values().all(|state| state.halted.is_none()) {
            self.parts.health.set(Condition::PartitionsRunning, None);
        }
        Ok(())
    }

    /// Commits every safe prefix that has grown, with what other instances need for their proofs.
    async fn commit_safe(&mut self) -> Result<(), PipelineError> {
        let offsets: Vec<_> = self
            .partitions
            .iter()
            .filter_map(|(number, state)| {
                let partition = TopicPartition { topic: self.settings.topic.clone(), partition: *number };
                Some((partition, state.to_commit(&self.settings.bounds)?))
            })
            .collect();
        if offsets.is_empty() {
            return Ok(());
        }
        match self.consumer.commit(&offsets).await {
            Ok(()) => {
                for (partition, committed) in offsets {
                    if let Some(state) = self.partitions.get_mut(&partition.partition) {
                        state.committed = Some(committed);
                    }
                }
                self.parts.metrics.commits.inc();
                self.parts.health.moved();
            }
            Err(error) if error.kind == BrokerErrorKind::Fatal => return Err(error.into()),
            Err(error) => {
                tracing::warn!(%error, "offsets are not committed; tried again");
                self.parts.metrics.commit_failures.inc();
            }
        }
        Ok(())
    }

    fn observe(&self) {
        let counts = self.planner.counts();
        self.parts.metrics.parked.set(counts.parked as i64);
        self.parts.metrics.parked_max.set(counts.parked_max as i64);
        self.parts.metrics.in_flight.set((counts.active + counts.parked) as i64);
        self.parts.health.set_idle(self.partitions.values().all(|state| state.tracker.unfinished() == 0));
        let now_ms = self.now_ms();
        for state in self.partitions.values() {
            state.show(now_ms);
        }
        if self.parts.modes.ends().is_some() {
            // Nobody but a rebuild looks.
            self.parts.health.set(Condition::PartitionsRunning, self.planner.one_that_waits());
        }
    }

    /// Asks, beside the loop, how far the others are: whether a parent is missing follows from that.
    fn ask_others(&mut self) {
        let waiting = self.planner.waiting_for_absent();
        let now_ms = self.now_ms();
        if self.asking || (waiting.is_empty() && self.planner.waiting_long(LONG_WAIT_MS, now_ms).is_empty()) {
            return;
        }
        self.asking = true;
        let waiting = waiting.into_iter().map(|(_, flight)| flight).collect();
        let held: BTreeSet<i32> = self.partitions.keys().copied().collect();
        let (parts, done) = (self.parts.clone(), self.done_sender.clone());
        let (topic, group) = (self.settings.topic.clone(), self.settings.group.clone());
        tokio::spawn(async move {
            let others = how_far_others_are(&parts, topic, &group, &held, waiting).await;
            // A pipeline that has ended meanwhile asks again when it starts.
            let _ = done.send(Done::Others(others.map_err(|error| error.to_string())));
        });
    }

    /// Contests what waits for a parent that will never come.
    fn prove_missing_parents(&mut self, others: Result<Others, String>) {
        self.asking = false;
        let others = match others {
            Ok(others) => others,
            Err(error) => return tracing::warn!(error, "cannot look whether a parent is missing"),
        };
        self.look_at_chain(others.chain);
        // The end that was last heard of is too old: a message of one partition may be late, and its child in another not.
        let own = |(number, state): (&i32, &PartitionState)| {
            let mut view = state.view(&self.settings.bounds);
            // Who waits here is known by name, and is nobody's absent parent, or the planner says so. What is done but may
            // be forgotten is not known any more; nor is what a halted partition has left where it is, or what lies
            // beyond the bound of one that reads no further: that counts as read only for who is older than its head.
            if !self.parts.nodes.may_forget() && state.halted.is_none() && !view.at_bound {
                view.oldest_unfinished = self.oldest_unprepared(*number);
            }
            let at_end = others.ends.get(number).is_some_and(|end| view.position >= *end);
            (*number, PartitionView { at_end, ..view })
        };
        let mut views: Vec<(i32, PartitionView)> = self.partitions.iter().map(own).collect();
        views.extend(others.partitions.iter().filter(|(number, _)| !self.partitions.contains_key(number)));
        if views.len() < others.count {
            // A partition was taken away since: its next holder has not said anything yet.
            return;
        }
        // What is to be read next there may be what the chain waits for. A coinbase that comes after all gives a second chance.
        let at_bound = views.iter().any(|(_, view)| view.at_bound);
        let grace_ms = self.settings.missing_parent_grace_ms;
        let chain = if at_bound && self.chain_stands(grace_ms) { ChainView::AtEnd } else { others.chain };
        let mut waiting = self.planner.waiting_for_absent();
        waiting.retain(|(_, flight)| others.waiting.contains(flight));
        waiting.sort_unstable();
        let now_ms = self.now_ms();
        for (event, flight) in waiting {
            let order = (event.timestamp_ms, event.partition, event.offset);
            let ties = if self.planner.has_waited_ms(flight, now_ms) >= grace_ms { Ties::Break } else { Ties::Wait };
            if !proves_missing(order, ties, &views, chain, grace_ms as i64) {
                break;
            }
            self.planner.parent_is_missing(flight, ties, now_ms);
        }
    }

    /// The oldest that was read and that nobody has looked at.
    fn oldest_unprepared(&self, number: i32) -> Option<(i64, u64)> {
        self.chunks.iter().filter(|chunk| chunk.partition == number).map(|chunk| chunk.oldest).min()
    }

    /// A chain that does not move may want what waits here without need, or what a node forgot.
    fn look_at_chain(&mut self, chain: ChainView) {
        let now_ms = self.now_ms();
        if self.chain.0 != chain || chain == ChainView::Unknown {
            self.chain = (chain, now_ms);
        } else if self.chain_stands(LONG_WAIT_MS) {
            self.planner.look_at_own(LONG_WAIT_MS, now_ms);
        }
    }

    /// Whether the chain has been seen to stand at the same event for so long.
    fn chain_stands(&self, for_ms: u64) -> bool {
        let (view, since_ms) = self.chain;
        matches!(view, ChainView::Behind(_)) && self.now_ms().saturating_sub(since_ms) >= for_ms
    }

    /// Lets what moves come to its end, within a bound; what waits stays behind and is read again by whoever comes next.
    async fn drain(&mut self) -> Result<(), PipelineError> {
        let deadline = Instant::now() + self.settings.drain_timeout;
        while self.planner.counts().active > 0
            || !self.dispatcher.is_idle()
            || !self.chunks.is_empty()
            || self.publishing > 0
        {
            let flush = self.dispatcher.deadline().unwrap_or(deadline).min(deadline);
            tokio::select! {
                biased;
                Some(done) = self.done.recv() => self.on_done(done)?,
                chunk = next_chunk(&mut self.chunks) => self.on_prepared(chunk?),
                () = tokio::time::sleep_until(flush) => {
                    if Instant::now() >= deadline {
                        tracing::warn!(in_flight = self.planner.counts().active, "drain timed out");
                        break;
                    }
                }
            }
            self.act();
        }
        Ok(())
    }
}

struct PreparedChunk {
    partition: i32,
    epoch: u64,
    messages: Vec<(Message, Result<Prepared, Poison>)>,
}

/// The oldest chunk, once it is prepared: they are worked on in the order in which they were read.
async fn next_chunk(chunks: &mut VecDeque<Chunk>) -> Result<PreparedChunk, PipelineError> {
    let Some(chunk) = chunks.front_mut() else { return std::future::pending().await };
    let messages = (&mut chunk.prepared).await.map_err(|error| PipelineError::Internal(error.to_string()))?;
    let (partition, epoch) = (chunk.partition, chunk.epoch);
    debug_assert_eq!(messages.len(), chunk.messages);
    chunks.pop_front();
    Ok(PreparedChunk { partition, epoch, messages })
}

/// How far everybody else is.
#[derive(Debug)]
pub struct Others {
    /// Partitions of the topic.
    count: usize,
    /// Those that are not held here.
    partitions: Vec<(i32, PartitionView)>,
    /// Ends of those that are.
    ends: BTreeMap<i32, u64>,
    chain: ChainView,
    /// Who was waiting when all this was asked for: of anybody who came later it proves nothing.
    waiting: BTreeSet<FlightId>,
}

async fn how_far_others_are(
    parts: &PipelineParts,
    topic: Arc<str>,
    group: &str,
    held: &BTreeSet<i32>,
    waiting: BTreeSet<FlightId>,
) -> Result<Others, BrokerError> {
    let count = parts.broker.partitions(&topic).await?.unwrap_or(0);
    let foreign: Vec<TopicPartition> = (0..count)
        .filter(|number| !held.contains(number))
        .map(|partition| TopicPartition { topic: topic.clone(), partition })
        .collect();
    let committed = parts.broker.committed(group, &foreign).await?;
    let mut partitions = Vec::new();
    for (partition, committed) in foreign.iter().zip(committed) {
        let view = PartitionState::foreign_view(parts.broker.as_ref(), partition, committed).await?;
        partitions.push((partition.partition, view));
    }
    let mut ends = BTreeMap::new();
    for number in held {
        let partition = TopicPartition { topic: topic.clone(), partition: *number };
        ends.insert(*number, parts.broker.watermarks(&partition).await?.1);
    }
    Ok(Others { count: count as usize, partitions, ends, chain: parts.chain.view().await?, waiting })
}
