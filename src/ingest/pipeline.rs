//! The loop: poll → decode → plan → apply → complete → commit offsets.

mod commits;
mod ends;
mod halting;
mod identity;
mod orders;
mod parts;
mod proofs;

use commits::{Notes, UnderWay, next_heard};
use identity::Identity;
pub use parts::{PipelineError, PipelineParts, PipelineReport, PipelineSettings};
pub use proofs::Others;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{Duration, Instant},
};
use tokio_util::sync::CancellationToken;

use crate::{
    broker::{Assigned, Batch, BrokerError, Consumer, Message, Polled, TopicPartition},
    group::{
        notify::TxNotifier,
        partition::{ENDS_EVERY, Moment, PartitionBounds, PartitionState, latest_believed_ms, never_read},
        proof::{ChainView, Name},
    },
    ingest::{
        dispatch::{Dispatcher, Done, Reading},
        level::level,
        plan::{Action, EventRef, PlanCounts, Planner},
        publish::mismatch,
    },
    prepare::{Poison, PrepareSettings, Prepared, check_place, prepare},
    record::{Reason, Record},
    replay::Modes,
    status::{
        Commits, Condition,
        control::{ControlRequest, PartitionCommand},
        health::Part,
        registry::{DrainStatus, GroupStatus, PipelineStatus},
    },
    telemetry::{Completion, Drain, EventKind, Metrics, Rebalance},
};

/// A chain that has stood still for so long may wait for what waits for it here.
const LONG_WAIT_MS: u64 = 5_000;

/// What goes through all that is in flight pauses for so many times as long as it took: else nothing else gets done where many wait, and
/// so they wait the longer.
const REST: u32 = 20;
/// However long that was: it may have been the machine's doing.
const LONGEST_REST: Duration = Duration::from_secs(5);

struct Chunk {
    partition: i32,
    epoch: u64,
    /// In the order of reading, over all partitions.
    number: u64,
    /// Least timestamp of its messages, and the first offset.
    oldest: (i64, u64),
    messages: usize,
    prepared: JoinHandle<Vec<(Message, Result<Prepared, Poison>)>>,
}

/// One instance of the pipeline.
pub struct Pipeline {
    settings: PipelineSettings,
    prepare: PrepareSettings,
    parts: PipelineParts,
    consumer: Box<dyn Consumer>,
    planner: Planner,
    dispatcher: Dispatcher,
    partitions: BTreeMap<i32, PartitionState>,
    /// Of each of them, as they share what is bounded in all.
    bounds: PartitionBounds,
    chunks: VecDeque<Chunk>,
    identity: Identity,
    unprepared: usize,
    done_sender: mpsc::UnboundedSender<Done>,
    done: mpsc::UnboundedReceiver<Done>,
    publishing: usize,
    asking: bool,
    /// Names of the transactions that were last known to wait in partitions of other instances.
    waiting_elsewhere: BTreeSet<Name>,
    asking_ends: bool,
    /// Tasks that get no answer of the store.
    unanswered: usize,
    /// Something has come to an end since that was last looked at.
    moved: bool,
    /// The wait that was last written to the log.
    told_wait: Option<String>,
    throttled: bool,
    /// Where the chain stands, and since when that has been seen.
    chain: (ChainView, u64),
    started: Instant,
    /// The log did not say which partition this befell, of those that were held then, each with its epoch.
    gone: Option<(BrokerError, BTreeMap<i32, u64>)>,
    commits: Commits,
    notes: Notes,
    under_way: Option<UnderWay>,
    /// Another commit is to begin once that has ended.
    commit_due: bool,
    last_commit: Instant,
    next_commit: Instant,
    next_proof: Instant,
    next_ends: Instant,
    /// Nothing goes through all that is in flight before.
    rested: Instant,
    /// What operators ask.
    orders: mpsc::Receiver<ControlRequest<(i32, PartitionCommand)>>,
    last_drain: Option<DrainStatus>,
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
            dispatcher: Dispatcher::new(parts.creator.store().clone(), settings.dispatch, done_sender.clone()),
            partitions: BTreeMap::new(),
            bounds: settings.bounds,
            chunks: VecDeque::new(),
            identity: Identity::new(now),
            unprepared: 0,
            done_sender,
            done,
            publishing: 0,
            asking: false,
            waiting_elsewhere: BTreeSet::new(),
            asking_ends: false,
            unanswered: 0,
            moved: false,
            told_wait: None,
            throttled: false,
            chain: (ChainView::AtEnd, 0),
            started: now,
            gone: None,
            commits: Commits::new(Condition::OffsetsCommitted),
            notes: Notes::default(),
            under_way: None,
            commit_due: false,
            last_commit: now,
            next_commit: now + settings.commit_interval,
            next_proof: now,
            next_ends: now + settings.commit_interval * ENDS_EVERY,
            rested: now,
            orders: parts.health.control().partitions.open(),
            last_drain: None,
            report: PipelineReport::default(),
            prepare: PrepareSettings::of(parts.creator.store()),
            settings,
            parts,
            consumer,
        }
    }

    /// Tells this pipeline of transactions that the sequencer creates.
    pub fn tx_notifier(&self) -> TxNotifier {
        let done = self.done_sender.clone();
        // A pipeline that has ended has no parked children.
        TxNotifier::new(move |txid| drop(done.send(Done::ParentCreated(txid))))
    }

    /// Runs until `shutdown` (then drains, commits what is safe by then and leaves the group; the rest is read again by
    /// whoever comes next, rather than keep a shutdown waiting for the durability lag), until everything that was asked for is done, or
    /// until it cannot go on.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<PipelineReport, PipelineError> {
        let monitor = self.parts.health.liveness().watch_loop("the pipeline's loop");
        while !shutdown.is_cancelled() && !self.finished() {
            monitor.beat();
            let wake = self.wake_at().min(monitor.next_beat());
            if Instant::now() >= wake {
                // However busy the rest is: commits and retries must not wait for it to end.
                monitor.enter("the ends of its partitions", self.on_tick()).await?;
                self.act();
            }
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                heard = next_heard(&mut self.under_way) => monitor.enter("a restart of the store's nodes", self.on_heard(heard)).await?,
                Some(order) = self.orders.recv() => monitor.enter("the log, for an operator", self.on_order(order)).await?,
                Some(done) = self.done.recv() => self.on_done(done)?,
                chunk = next_chunk(&mut self.chunks, &self.identity) => self.on_prepared(chunk?),
                polled = self.consumer.poll() => match polled {
                    Ok(polled) => monitor.enter("a rebalance", self.on_polled(polled)).await?,
                    Err(error) => {
                        let held = self.epochs();
                        monitor.enter("the ends of its partitions", self.on_gone(error, held)).await?;
                    }
                },
                () = tokio::time::sleep_until(wake) => monitor.enter("the ends of its partitions", self.on_tick()).await?,
            }
            self.act();
        }
        monitor.enter("the end of what moves", self.end()).await
    }

    async fn end(&mut self) -> Result<PipelineReport, PipelineError> {
        self.drain(Drain::Shutdown, None).await?;
        self.dispatcher.end().await;
        // Whoever comes next finds out for himself that a node has restarted: to read everything again takes a store that answers.
        self.commit_unless_restarted().await?;
        self.consumer.close().await?;
        self.report.parked_max = self.planner.counts().parked_max as u64;
        Ok(self.report)
    }

    /// Steady, for everything that takes time.
    fn now_ms(&self) -> u64 {
        self.parts.clock.steady_ms()
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
            Polled::Assigned(assigned) => {
                // With none it is a member all the same, and takes over from the others.
                self.parts.health.set(Condition::Assigned, None);
                self.parts.metrics.rebalances.of(Rebalance::Assigned).inc();
                assigned.into_iter().for_each(|partition| self.on_assigned(partition));
                self.ask_identity();
                self.share_out();
                self.show();
            }
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
        self.compare_with_store(&assigned);
        tracing::info!(partition = number, epoch = assigned.epoch, position = assigned.position, "assigned");
        let metrics = self.parts.metrics.partition(&assigned.partition);
        let mut state =
            PartitionState::new(&assigned, metrics, self.parts.nodes.may_forget(), self.parts.clock.now_ms());
        state.paused_by_hand = self.parts.health.control().is_paused(number);
        let paused = self.throttled || state.paused_by_hand;
        self.partitions.insert(number, state);
        if paused {
            self.pause(number);
        }
        let standing = |committed| self.parts.earlier_halts.standing(number, committed);
        if let Some(halt) = assigned.committed.as_ref().and_then(standing) {
            self.stay_halted(number, halt);
        }
        if let Some(why) = self.identity.other() {
            self.halt(number, why);
        } else if let Some(low) = self.partitions.get(&number).and_then(PartitionState::begins_above) {
            let why = never_read(&self.settings.group, low);
            self.halt(number, why);
        }
    }

    async fn on_revoked(&mut self, partitions: &[TopicPartition], lost: bool) -> Result<(), PipelineError> {
        tracing::info!(?partitions, lost, "revoked");
        self.parts.metrics.rebalances.of(if lost { Rebalance::Lost } else { Rebalance::Revoked }).inc();
        if !lost {
            self.drain(Drain::Revocation, Some(partitions)).await?;
            self.commit().await?;
        }
        let now_ms = self.now_ms();
        for partition in partitions {
            self.partitions.remove(&partition.partition);
            self.parts.metrics.forget_partition(partition);
            self.planner.revoke(partition.partition, now_ms);
        }
        self.consumer.finish_revocation();
        self.share_out();
        self.tell_halts();
        if self.partitions.is_empty() {
            self.parts.health.set(Condition::Assigned, Some("no partition is assigned".into()));
        }
        self.show();
        Ok(())
    }

    /// Registers what was read, in order, and has it prepared beside the loop.
    fn on_messages(&mut self, batch: Batch) {
        let number = batch.partition.partition;
        let Some(state) = self.partitions.get_mut(&number).filter(|state| state.epoch == batch.epoch) else { return };
        state.hear_end(batch.high_watermark);
        (state.at_end, state.heard) = (false, true);
        let latest_ms = latest_believed_ms(self.parts.clock.now_ms(), self.settings.missing_parent_grace_ms);
        state.note_read(self.parts.clock.steady_ms());
        let messages: Vec<Message> =
            batch.messages.into_iter().filter(|message| state.deliver(message, latest_ms)).collect();
        if messages.is_empty() {
            return;
        }
        let replayed = messages.iter().filter(|message| state.is_replayed(message)).count();
        self.parts.metrics.replayed_events.inc_by(replayed as u64);
        self.hold_to_bound(number);
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
                        partitions.map_or(Ok(()), |count| check_place(number, count, &message)).map(|()| prepared)
                    });
                    (message, result)
                })
                .collect()
        });
        self.chunks.push_back(Chunk {
            partition: number,
            epoch: batch.epoch,
            number: self.identity.number(),
            oldest,
            messages: count,
            prepared,
        });
        self.ask_identity();
        self.throttle();
    }

    /// Divides what is bounded in all among the partitions, whenever one has come or gone; until all of them hold no more than an equal
    /// share, what one is done with goes to the others.
    fn share_out(&mut self) {
        let PipelineSettings { bounds: own, bytes_in_all, .. } = self.settings;
        let level = level(bytes_in_all, self.unfinished_bytes());
        self.bounds = PartitionBounds { bytes: own.bytes.min(level), ..own };
        for number in self.partitions.keys().copied().collect::<Vec<_>>() {
            self.hold_to_bound(number);
            self.resume(number);
        }
    }

    /// Of each partition; what a halted one has read is not kept.
    fn unfinished_bytes(&self) -> impl Iterator<Item = u64> {
        let running = self.partitions.values().filter(|state| state.halted.is_none());
        running.map(|state| state.tracker.unfinished_bytes())
    }

    /// Whether some have less than an equal share, for others still hold more.
    fn shares_unequally(&self) -> bool {
        let equal = level(self.settings.bytes_in_all, self.unfinished_bytes().map(|_| 0));
        self.bounds.bytes < self.settings.bounds.bytes.min(equal)
    }

    /// Pauses a partition that has been read to its bound.
    fn hold_to_bound(&mut self, number: i32) {
        let Some(state) = self.partitions.get_mut(&number).filter(|state| !state.at_bound) else { return };
        let Some(why) = state.over_bound(&self.bounds) else { return };
        let is_its_own = state.over_bound(&self.settings.bounds).is_some();
        state.at_bound = true;
        self.pause(number);
        if is_its_own {
            tracing::warn!(partition = number, why, "paused: too much is unfinished");
            let now_ms = self.now_ms();
            self.planner.bound_reached(number, now_ms);
        } else {
            // The others' doing, and it may be over with the next batch.
            tracing::debug!(partition = number, why, "paused: its share of what may be unfinished in all is used up");
        }
    }

    /// Reads nothing more while too much moves, or may be forgotten; resumes at half. Nor while too many wait for what moves, as long
    /// as enough does: what was read long before its turn has to be fetched from far memory, again and again.
    fn throttle(&mut self) {
        let PlanCounts { active, parked, .. } = self.planner.counts();
        let moving = active + self.unprepared;
        let not_safe: usize = self.partitions.values().map(|state| state.tracker.not_safe()).sum();
        let PipelineSettings { max_active, max_not_safe, .. } = self.settings;
        let too_many = |max_active: usize, max_not_safe: usize| {
            not_safe >= max_not_safe
                || moving >= max_active
                || (moving + parked >= max_active && moving >= self.enough())
        };
        if !self.throttled && too_many(max_active, max_not_safe) {
            if not_safe >= max_not_safe {
                tracing::warn!(
                    not_safe,
                    "nothing more is read until some of what is done cannot be forgotten any more"
                );
            }
            self.throttled = true;
            let all: Vec<i32> = self.partitions.keys().copied().collect();
            all.into_iter().for_each(|number| self.pause(number));
        } else if self.throttled && !too_many(max_active / 2 + 1, max_not_safe / 2 + 1) {
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
        for number in self.partitions.keys().copied().collect::<Vec<_>>() {
            self.resume(number);
        }
    }

    /// Lets a partition go on that has room again.
    fn resume(&mut self, number: i32) {
        let Some(state) = self.partitions.get_mut(&number) else { return };
        if state.at_bound && state.over_half(&self.bounds).is_none() {
            state.at_bound = false;
            self.planner.bound_left(number);
        }
        if state.paused && !state.at_bound && state.halted.is_none() && !state.paused_by_hand && !self.throttled {
            let partition = TopicPartition { topic: self.settings.topic.clone(), partition: number };
            match self.consumer.resume(&partition) {
                Ok(()) => state.paused = false,
                Err(error) => tracing::warn!(partition = number, %error, "cannot resume"),
            }
        }
    }

    fn on_prepared(&mut self, chunk: PreparedChunk) {
        self.unprepared -= chunk.messages.len();
        self.moved = true;
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
                self.halt(chunk.partition, why);
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

    fn on_done(&mut self, done: Done) -> Result<(), PipelineError> {
        let now_ms = self.now_ms();
        match done {
            Done::Rows { outcomes, last } => {
                self.moved |= !outcomes.is_empty();
                for (token, outcome) in outcomes {
                    self.dispatcher.ended(token);
                    self.planner.outcome(token, outcome, now_ms);
                }
                if last {
                    self.dispatcher.batch_done();
                }
            }
            Done::Reads(records) => {
                self.moved |= !records.is_empty();
                for (reading, record) in records {
                    let page = record.as_ref().and_then(Record::page);
                    match reading {
                        Reading::Own(flight) => self.planner.own_record(flight, page, now_ms),
                        Reading::Parent(flight, group) => self.planner.parent_record(flight, group, page, now_ms),
                    }
                }
            }
            Done::Created(token, outcome) => {
                self.moved = true;
                self.dispatcher.ended(token);
                self.planner.outcome(token, outcome, now_ms);
            }
            Done::TooBig(token, row, why) if self.planner.wants(token) => self.dispatcher.lighten(token, row, why),
            Done::TooBig(token, ..) | Done::GivenUp(token) => {
                self.dispatcher.ended(token);
                self.planner.given_up(token, now_ms);
            }
            Done::Stands(token, why) => {
                self.dispatcher.ended(token);
                self.on_standing(token, &why)?;
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
            Done::ContestNotPublished(flight, error) => {
                self.publishing -= 1;
                let told = error.to_string();
                if self.parts.modes.ends().is_some() {
                    return Err(error);
                }
                let events = self.planner.halt(flight, now_ms).map_or_else(Vec::new, |(_, events)| events);
                self.halt_all(&events, &told);
            }
            Done::DeadLetterNotPublished(event, error) => {
                self.publishing -= 1;
                if self.parts.modes.ends().is_some() {
                    return Err(error);
                }
                self.halt_all(&[event], &error.to_string());
            }
            Done::Identity { up_to, other } => self.on_identity(up_to, other)?,
            Done::ParentCreated(txid) => self.planner.on_parent_created(&txid, now_ms),
            Done::Others(others) => self.prove_missing_parents(others),
            Done::Ends(ends) => {
                self.asking_ends = false;
                self.on_ends(&ends);
            }
            Done::Compared { partition, offset } => {
                // Under whichever epoch it was asked: it has been read again from the beginning meanwhile, where a node forgot.
                if let Some(state) = self.partitions.get_mut(&partition) {
                    state.compared |= state.rewind_to() <= offset;
                }
            }
            Done::StoreReachable(answer) => self.on_store(answer),
            Done::Fatal(error) => return Err(error),
        }
        Ok(())
    }

    /// It is reachable once nobody is without an answer any more: the first to have one does not speak for the others.
    fn on_store(&mut self, answer: Result<(), String>) {
        match answer {
            Ok(()) => self.unanswered = self.unanswered.saturating_sub(1),
            Err(_) => self.unanswered += 1,
        }
        if answer.is_err() || self.unanswered == 0 {
            self.parts.health.set(Condition::StoreReachable, answer.err());
        }
    }

    /// Does what the planner asks for, sends what is due, and reads on when there is room again.
    fn act(&mut self) {
        while let Some(action) = self.planner.next_action() {
            match action {
                Action::Apply(token, row) => self.dispatcher.push(token, row),
                Action::CreatePaged(token, work) => self.dispatcher.create(self.parts.creator.clone(), token, work),
                Action::GiveUp(flight) => self.dispatcher.give_up(flight),
                Action::ReadOwn(flight, txid) => self.dispatcher.read(Reading::Own(flight), txid),
                Action::ReadParent(flight, group, txid) => self.dispatcher.read(Reading::Parent(flight, group), txid),
                Action::PublishContest { flight, txid, event, body, reason } => {
                    // While the chain stands, what was proven without it may yet be found to have its parent.
                    let grace_ms = self.settings.missing_parent_grace_ms;
                    if let Reason::MissingParent { parent } = reason
                        && !self.chain_stands(grace_ms)
                        && self.counts_as_missing(&parent)
                    {
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
            self.moved = true;
            self.report.completed += 1;
            self.parts.metrics.completed.of(how).inc();
            if state.paused {
                self.resume(event.partition);
            }
        }
    }

    async fn on_tick(&mut self) -> Result<(), PipelineError> {
        let now = Instant::now();
        // Before they try again: who tries does not wait.
        if now >= self.next_proof && self.planner.counts().parked > 0 {
            self.ask_others();
            self.rest_from(now);
            self.next_proof = self.rested.max(now + self.settings.commit_interval);
            if let Modes::Rebuild(_) = self.parts.modes {
                // How far the chain of the live group is says nothing of this one.
                self.planner.look_at_own(LONG_WAIT_MS, self.now_ms());
            }
        }
        let commits = now >= self.next_commit;
        if commits {
            self.observe();
            if self.shares_unequally() {
                self.share_out();
            }
            if now >= self.next_ends {
                self.next_ends = now + self.settings.commit_interval * ENDS_EVERY;
                self.ask_ends();
            }
            self.planner.keep_apart();
            self.rest_from(now);
            self.last_commit = now;
            self.next_commit = self.rested.max(now + self.settings.commit_interval);
            self.begin_commit();
            if let Some((error, held)) = self.gone.take() {
                self.on_gone(error, held).await?;
            }
        }
        self.planner.retry_due(self.now_ms());
        Ok(())
    }

    /// Rests for what has been done since `begun`.
    fn rest_from(&mut self, begun: Instant) {
        self.rested = self.rested.max(begun + (begun.elapsed() * REST).min(LONGEST_REST));
    }

    /// Milliseconds since the pipeline began; unlike the clock's, they never go back or jump.
    fn uptime_ms(&self, at: Instant) -> u64 {
        at.duration_since(self.started).as_millis() as u64
    }

    fn observe(&mut self) {
        let counts = self.planner.counts();
        self.parts.metrics.parked.set(counts.parked as i64);
        self.parts.metrics.parked_max.set(counts.parked_max as i64);
        self.parts.metrics.in_flight.set((counts.active + counts.parked) as i64);
        self.parts.health.set_idle(Part::Transactions, self.rests());
        if std::mem::take(&mut self.moved) {
            self.parts.health.moved(Part::Transactions);
        }
        self.show();
        if self.parts.modes.ends().is_some() {
            // Nobody but a rebuild looks.
            self.parts.health.set(Condition::PartitionsRunning, self.planner.one_that_waits().map(|(_, what)| what));
        } else {
            self.tell_long_wait();
        }
    }

    /// Shows where everything stands, for whoever asks meanwhile.
    fn show(&self) {
        let (now, counts) = (Moment::of(&self.parts.clock), self.planner.counts());
        let mut partitions = Vec::with_capacity(self.partitions.len());
        for (number, state) in &self.partitions {
            let parked = self.planner.parked_of(*number);
            let shown = state.shown(now, &self.bounds, parked, "too much is in flight, or may be forgotten yet");
            state.measure(&shown);
            partitions.push(shown);
        }
        let Metrics { rebalances, commit_failures, .. } = self.parts.metrics.as_ref();
        let (rebalances, commit_failures) = (rebalances.now(), commit_failures.now());
        self.parts.health.status_registry().publish_group(GroupStatus {
            rebalances,
            commit_failures,
            last_drain: self.last_drain,
        });
        self.parts.health.status_registry().publish_pipeline(PipelineStatus {
            in_flight: counts.active as u64,
            parked: counts.parked as u64,
            not_safe: self.partitions.values().map(|state| state.tracker.not_safe() as u64).sum(),
            unfinished_bytes: self.partitions.values().map(|state| state.tracker.unfinished_bytes()).sum(),
            unfinished_bytes_bound: self.settings.bytes_in_all,
            partition_bytes_bound: self.bounds.bytes,
            nodes: self.parts.nodes.status(),
            partitions,
        });
    }

    /// A wait beyond the grace of a missing parent is somebody else's doing: of a partition that nobody holds, of a chain that stands.
    /// It is said, and no reason to be unready: neither a restart nor another instance would end it.
    fn tell_long_wait(&mut self) {
        let grace_ms = self.settings.missing_parent_grace_ms;
        let waited = |(since_ms, what): (u64, String)| (self.now_ms().saturating_sub(since_ms), what);
        let wait = self.planner.one_that_waits().map(waited).filter(|(waited_ms, _)| *waited_ms >= grace_ms);
        self.parts.metrics.longest_wait_seconds.set(wait.as_ref().map_or(0, |(ms, _)| (ms / 1_000) as i64));
        let what = wait.map(|(_, what)| what);
        if what.is_some() && what != self.told_wait {
            tracing::warn!(what, "an event waits for longer than the grace of a missing parent");
            self.told_wait.clone_from(&what);
        }
        self.parts.health.set_wait(what);
    }

    /// Whether there is nothing at hand that would have to come to an end by itself: nothing at all, but in a partition that is
    /// halted; or only what waits, and is tried again, or waits for what is halted.
    fn rests(&self) -> bool {
        let running = self.partitions.values().filter(|state| state.halted.is_none());
        let all_done = running.map(|state| state.tracker.unfinished()).sum::<usize>() == 0;
        let moving = self.planner.counts().active + self.unprepared + self.publishing > 0 || !self.dispatcher.is_idle();
        all_done || (!moving && (self.planner.next_due_ms().is_some() || self.planner.has_halted()))
    }

    fn moves(&self) -> bool {
        self.planner.counts().active > 0 || !self.dispatcher.is_idle() || !self.chunks.is_empty() || self.publishing > 0
    }

    /// Whether something of the partition moves, but in one that is halted, where what was read never ends. It may say so where two events
    /// wait as one transaction.
    fn moves_in(&self, partition: &TopicPartition) -> bool {
        let number = partition.partition;
        let running = self.partitions.get(&number).filter(|state| state.halted.is_none());
        running.is_some_and(|state| state.tracker.unfinished() > self.planner.parked_of(number))
    }

    /// Lets what moves come to its end, within a bound: of some partitions, or all of it. What waits stays behind and is read again by
    /// whoever comes next.
    async fn drain(&mut self, why: Drain, of: Option<&[TopicPartition]>) -> Result<(), PipelineError> {
        let begun = Instant::now();
        let deadline = begun + self.settings.drain_timeout;
        self.begin_no_commit();
        while self.moves() && of.is_none_or(|partitions| partitions.iter().any(|one| self.moves_in(one))) {
            let flush = self.dispatcher.deadline().unwrap_or(deadline).min(deadline);
            tokio::select! {
                biased;
                heard = next_heard(&mut self.under_way) => self.on_heard(heard).await?,
                Some(done) = self.done.recv() => self.on_done(done)?,
                chunk = next_chunk(&mut self.chunks, &self.identity) => self.on_prepared(chunk?),
                () = tokio::time::sleep_until(flush) => {
                    if Instant::now() >= deadline {
                        tracing::warn!(in_flight = self.planner.counts().active, "drain timed out");
                        break;
                    }
                }
            }
            self.act();
        }
        let seconds = begun.elapsed().as_secs_f64();
        self.parts.metrics.drain_seconds.of(why).observe(seconds);
        let ended_ms = self.parts.clock.now_ms();
        self.last_drain =
            Some(DrainStatus { reason: self.parts.metrics.drain_seconds.name_of(why), seconds, ended_ms });
        Ok(())
    }
}

/// However it ends, what it held is shown no more: it may be started again within its process, and be given other partitions.
impl Drop for Pipeline {
    fn drop(&mut self) {
        for number in std::mem::take(&mut self.partitions).into_keys() {
            let partition = TopicPartition { topic: self.settings.topic.clone(), partition: number };
            self.parts.metrics.forget_partition(&partition);
        }
        // A rebuild has ended here while its chain goes on: that is no stall.
        self.parts.health.set_idle(Part::Transactions, true);
        self.show();
    }
}

struct PreparedChunk {
    partition: i32,
    epoch: u64,
    messages: Vec<(Message, Result<Prepared, Poison>)>,
}

/// The oldest chunk, once it is prepared and known to be of the store's topic: chunks are worked on in the order of
/// reading.
async fn next_chunk(chunks: &mut VecDeque<Chunk>, identity: &Identity) -> Result<PreparedChunk, PipelineError> {
    let Some(chunk) = chunks.front_mut().filter(|chunk| identity.covers(chunk.number)) else {
        return std::future::pending().await;
    };
    let messages = (&mut chunk.prepared).await.map_err(|error| PipelineError::Internal(error.to_string()))?;
    let (partition, epoch) = (chunk.partition, chunk.epoch);
    debug_assert_eq!(messages.len(), chunk.messages);
    chunks.pop_front();
    Ok(PreparedChunk { partition, epoch, messages })
}
