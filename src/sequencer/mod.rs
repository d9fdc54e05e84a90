//! The one consumer of `utxo.chain`: it handles each event in order and finishes it before the next.
//!
//! Evaluate, write the decision ahead, apply: [`evaluate`] is pure, [`decisions`] is the log, [`steps`] makes each handler
//! read as if it decided everything itself. [`feed`] brings blocks and reorgs into the chain, in sequence.

mod added_slots;
mod block;
mod bodies;
mod coinbase;
mod command;
mod cone;
mod contest;
pub mod decisions;
pub mod evaluate;
mod fed;
pub mod feed;
pub mod handler;
mod listing;
mod pages;
mod parts;
pub mod progress;
mod proven;
mod prune;
mod reorg;
pub(crate) mod reread;
mod source;
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
        Assigned, Batch, BrokerErrorKind, Committed, Consumer, Polled, TopicPartition,
        identity::{Sight, Unconfirmed},
        unless_taken_away,
    },
    group::partition::{ENDS_EVERY, Halt, Moment, PartitionBounds, PartitionState, never_read},
    record::Consumed,
    status::{
        Commits, Condition,
        control::{Answer, ControlRequest},
        health::Part,
        registry::ChainStatus,
    },
    store::{
        asked::{Asked, Unasked, ask},
        nodes::{Look, Nodes},
    },
    tasks,
    telemetry::{CommitFailure, Rebalance},
};

pub use command::ValidatedSource;
pub use handler::{SequencerParts, SequencerSettings, SequencerTopics, Stop};
pub use prune::{PruneTask, Safe, floor_of};
use waiting::Waiting;
use worker::{Progress, Worker};

/// How the chain is treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ChainMode {
    /// Everything is decided as it comes.
    #[default]
    Live,
    /// Below this chain offset everything has been decided: nothing is decided, and nothing is published.
    Rebuild {
        /// Where the live group had committed.
        frontier: u64,
        /// The run ends there.
        stop_at_frontier: bool,
    },
}

/// A member of the group that consumes `utxo.chain`. At most one of them holds its one partition.
pub struct Sequencer {
    parts: SequencerParts,
    mode: ChainMode,
    consumer: Box<dyn Consumer>,
    holding: Option<Holding>,
    /// The chain partition is ours, and could not be taken hold of.
    standing: Option<Standing>,
    /// Why a topic of the chain is not the store's: nothing is committed until an operator has looked.
    other_topic: Option<String>,
    /// What operators ask.
    orders: mpsc::Receiver<ControlRequest<()>>,
    progress: mpsc::UnboundedReceiver<(u64, Progress)>,
    progress_sender: mpsc::UnboundedSender<(u64, Progress)>,
    commits: Commits,
}

/// Chain events read and not handled: a block may wait long, and its successors must not fill the memory.
const BOUNDS: PartitionBounds = PartitionBounds { span: 10_000, bytes: 64 << 20 };

const ERA_PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// The chain partition is ours.
struct Holding {
    partition: TopicPartition,
    /// What was read and what is handled, as it is shown.
    state: PartitionState,
    epoch: u64,
    messages: mpsc::UnboundedSender<Batch>,
    task: JoinHandle<()>,
    /// What is handled and not committed: the latest of each tick, with when that was.
    handled: VecDeque<(Instant, Committed)>,
    latest: Option<Committed>,
    /// Next to be handled.
    next: u64,
    /// The store knows that so much is consumed.
    noted: u64,
    /// Where it goes on when a node has forgotten.
    committed: Option<Committed>,
    start: u64,
    /// The worker hears what is committed.
    safe: watch::Sender<Safe>,
}

/// The chain partition is ours, and stands until somebody has looked: nobody else is given it.
struct Standing {
    assigned: Assigned,
    /// As it is shown.
    state: PartitionState,
}

impl Sequencer {
    /// A sequencer over a consumer that has been subscribed to the chain topic.
    pub fn new(parts: SequencerParts, mode: ChainMode, consumer: Box<dyn Consumer>) -> Self {
        let (progress_sender, progress) = mpsc::unbounded_channel();
        let commits = Commits::new(Condition::ChainCommitted);
        let orders = parts.health.control().chain.open();
        let (holding, standing, other_topic) = (None, None, None);
        Sequencer { parts, mode, consumer, holding, standing, other_topic, orders, progress, progress_sender, commits }
    }

    /// Runs until `shutdown`, until a rebuild has reached its end, or until the broker or the store cannot go on. What is
    /// being handled at a shutdown is left where it is: it is handled again from its beginning.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<(), Stop> {
        let monitor = self.parts.health.liveness().watch_loop("the sequencer's loop");
        let (mut next_commit, mut next_end) = (Instant::now(), Instant::now());
        let outcome = loop {
            monitor.beat();
            if self.finished() {
                break Ok(());
            }
            let step = tokio::select! {
                biased;
                () = shutdown.cancelled() => break Ok(()),
                Some((epoch, progress)) = self.progress.recv() => {
                    self.on_progress(epoch, progress).and_then(|()| self.pace())
                }
                Some(order) = self.orders.recv() => {
                    let trying = unless(&shutdown, Box::pin(self.on_order(order)));
                    monitor.enter("the store and the log, to take hold of the chain", trying).await
                }
                polled = self.consumer.poll() => match polled {
                    Ok(Polled::Assigned(assigned)) => {
                        let taking_hold = unless(&shutdown, Box::pin(self.take_hold_of(assigned)));
                        monitor.enter("the store and the log, to take hold of the chain", taking_hold).await
                    }
                    Ok(polled) => monitor.enter("a rebalance", self.on_polled(polled)).await,
                    Err(error) => Err(error.into()),
                },
                () = tokio::time::sleep_until(next_commit) => {
                    next_commit = Instant::now() + self.parts.settings.commit_interval;
                    if Instant::now() >= next_end {
                        next_end = Instant::now() + self.parts.settings.commit_interval * ENDS_EVERY;
                        self.ask_end();
                    }
                    self.show();
                    monitor.enter("a commit", self.commit()).await
                }
                () = tokio::time::sleep_until(monitor.next_beat()) => Ok(()),
            };
            let step = match step {
                Err(Stop::NodeRestarted) => {
                    monitor.enter("the store, which has restarted", unless(&shutdown, Box::pin(self.rewind()))).await
                }
                step => step,
            };
            if let Err(stop) = step.or_else(|stop| self.halt(stop)) {
                break Err(stop);
            }
        };
        let ended = monitor.enter("its end", self.end()).await;
        outcome.and(ended)
    }

    async fn end(&mut self) -> Result<(), Stop> {
        self.let_go().await;
        let committed = match self.commit().await {
            // Whoever comes next finds out for himself.
            Err(Stop::NodeRestarted | Stop::Halt(_)) => Ok(()),
            committed => committed,
        };
        let closed = self.consumer.close().await;
        committed?;
        Ok(closed?)
    }

    fn finished(&self) -> bool {
        match self.mode {
            ChainMode::Rebuild { frontier, stop_at_frontier: true } => {
                frontier == 0 || self.holding.as_ref().is_some_and(|holding| holding.next >= frontier)
            }
            _ => false,
        }
    }

    async fn on_polled(&mut self, polled: Polled) -> Result<(), Stop> {
        match polled {
            Polled::Messages(batch) => {
                if let Some(holding) = self.holding.as_mut().filter(|holding| holding.epoch == batch.epoch) {
                    holding.state.hear_end(batch.high_watermark);
                    holding.state.heard = true;
                    holding.state.note_read(self.parts.clock.steady_ms());
                    for message in &batch.messages {
                        holding.state.deliver(message, i64::MAX);
                    }
                    // A worker that has ended has said why.
                    let _ = holding.messages.send(batch);
                }
                self.pace()?;
            }
            Polled::Assigned(assigned) => self.take_hold_of(assigned).await?,
            Polled::Revoked { partitions, lost } => {
                let change = if lost { Rebalance::Lost } else { Rebalance::Revoked };
                self.parts.metrics.rebalances.of(change).inc();
                self.let_go().await;
                let committed = if lost { Ok(()) } else { self.commit().await };
                if let Err(stop) = committed
                    && !matches!(stop, Stop::NodeRestarted | Stop::Halt(_))
                {
                    return Err(stop);
                }
                (self.holding, self.standing) = (None, None);
                // Whoever holds it next says whether it stands.
                self.parts.health.set(Condition::ChainRunning, None);
                self.parts.health.set(Condition::ChainFed, None);
                self.parts.metrics.chain_halted.set(0);
                partitions.iter().for_each(|partition| self.parts.metrics.forget_partition(partition));
                self.consumer.finish_revocation();
                self.show();
            }
            Polled::End(end) => {
                if let Some(holding) = self.holding.as_mut().filter(|holding| holding.epoch == end.epoch) {
                    holding.state.reach_end(end.position);
                }
            }
        }
        Ok(())
    }

    async fn take_hold_of(&mut self, assigned: Vec<Assigned>) -> Result<(), Stop> {
        self.parts.metrics.rebalances.of(Rebalance::Assigned).inc();
        for assigned in assigned {
            self.take_hold(assigned).await?;
        }
        Ok(())
    }

    async fn take_hold(&mut self, assigned: Assigned) -> Result<(), Stop> {
        self.standing = None;
        let taken = self.try_to_hold(assigned.clone()).await;
        if let Err(Stop::Halt(_)) = taken {
            self.stand(assigned);
        }
        taken
    }

    fn never_read(&self, assigned: &Assigned) -> String {
        never_read(&chain_group(&self.parts.validated.group), assigned.position)
    }

    fn state_of(&self, assigned: &Assigned) -> PartitionState {
        let metrics = self.parts.metrics.partition(&assigned.partition);
        PartitionState::new(assigned, metrics, false, self.parts.clock.now_ms())
    }

    /// What cannot be taken hold of is ours all the same. Nothing of it is read on to nobody.
    fn stand(&mut self, assigned: Assigned) {
        let mut state = self.state_of(&assigned);
        // Where it cannot be paused it is being taken away.
        state.paused = self.consumer.pause(&assigned.partition).is_ok();
        self.standing = Some(Standing { assigned, state });
    }

    async fn try_to_hold(&mut self, mut assigned: Assigned) -> Result<(), Stop> {
        // Offsets, and what is said with them, mean nothing in other topics.
        let (guard, topics) = (self.parts.guard.clone(), self.parts.topics.guarded());
        let confirmed = Waiting::new(&self.parts, "the chain").until_done(guard.confirm(&topics)).await;
        self.other_topic = match &confirmed {
            Err(Unconfirmed::Other(why)) => Some(why.clone()),
            _ => None,
        };
        confirmed?;
        if assigned.committed.is_none() && assigned.position > 0 {
            let why = self.never_read(&assigned);
            return Err(Stop::Halt(format!("{}: {why}", assigned.partition)));
        }
        let metadata = assigned.committed.as_ref().map_or("", |committed| committed.metadata.as_str());
        let state = state::ChainState::from_metadata(metadata).map_err(bad_state)?;
        let mut state = state.checked().map_err(Stop::Halt)?;
        let parts = self.parts.clone();
        // A commit without metadata is an operator's, who has said where to go on.
        if let (ChainMode::Live, false) = (self.mode, metadata.is_empty()) {
            compare_with_store(&parts, assigned.position).await?;
        }
        if self.mode == ChainMode::Live && metadata.is_empty() && assigned.position > 0 {
            // Whatever is committed below speaks of what the store knows.
            note_safely(&parts, &mut self.parts.nodes, assigned.position).await?;
        }
        let met = Waiting::new(&parts, "the nodes of the store").until_done(self.parts.nodes.meet()).await;
        let incarnation = met?;
        if let (ChainMode::Live, Some(new)) = (self.mode, state.in_new_era(incarnation)) {
            let committed = Committed { offset: assigned.position, metadata: new.to_metadata() };
            if !self.commit_era(&assigned.partition, &committed).await? {
                return Ok(());
            }
            tracing::warn!(era = new.era, position = assigned.position, "a new era: the nodes of the store are others");
            assigned.committed = Some(committed);
            state = new;
        }
        tracing::info!(position = assigned.position, sequence = state.sequence, "holding the chain");
        self.parts.health.set(Condition::ChainRunning, None);
        self.parts.health.set(Condition::ChainFed, None);
        self.parts.metrics.chain_halted.set(0);
        self.parts.metrics.chain_offset.set(assigned.position as i64);
        let (messages, received) = mpsc::unbounded_channel();
        let (safe, committed) = watch::channel(Safe::of(assigned.committed.as_ref()).map_err(bad_state)?);
        let worker = Worker::new(
            self.parts.clone(),
            self.mode,
            state,
            assigned.epoch,
            assigned.position,
            self.progress_sender.clone(),
            committed,
        );
        let (progress, epoch) = (self.progress_sender.clone(), assigned.epoch);
        self.holding = Some(Holding {
            state: self.state_of(&assigned),
            partition: assigned.partition,
            epoch: assigned.epoch,
            messages,
            task: tasks::spawn("the worker of the chain", worker.run(received), move |why| {
                // Without a receiver the sequencer has ended, and nobody needs to know.
                let _ = progress.send((epoch, Progress::Stopped(Stop::Died(why))));
            }),
            handled: VecDeque::new(),
            latest: None,
            next: assigned.position,
            noted: 0,
            committed: assigned.committed,
            start: assigned.position,
            safe,
        });
        Ok(())
    }

    /// Says in the log that a new era begins, before anything is stamped with it: the group lets only the present holder
    /// commit, so that no two ever work in one era. `false`: the chain is somebody else's by now.
    async fn commit_era(&mut self, chain: &TopicPartition, committed: &Committed) -> Result<bool, Stop> {
        let mut waiting = Waiting::new(&self.parts, "the chain").paced(ERA_PAUSE);
        loop {
            match self.consumer.commit(&[(chain.clone(), committed.clone())]).await {
                Ok(()) => return Ok(true),
                Err(error) if error.kind == BrokerErrorKind::NotAssigned => return Ok(false),
                Err(error) if error.kind == BrokerErrorKind::Retryable => {
                    tracing::warn!(%error, "the new era is not committed; tried again");
                    waiting.look_again("the commit of its new era").await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// A node has forgotten: everything that is not committed is handled again, as it was decided where it was.
    async fn rewind(&mut self) -> Result<(), Stop> {
        self.parts.metrics.node_restarts.inc();
        if let ChainMode::Rebuild { .. } = self.mode {
            return Err(Stop::Damaged(
                "a node restarted while the store was rebuilt: begin again, with an empty set".into(),
            ));
        }
        self.let_go().await;
        let Some(holding) = self.holding.take() else { return Ok(()) };
        self.parts.whole.check().await.map_err(|error| Stop::Damaged(error.to_string()))?;
        let again = holding.again();
        let position = again.position;
        tracing::warn!(position, "a node of the store restarted: the chain is handled again from what is committed");
        match self.consumer.seek(&again.partition, again.position).await {
            Ok(epoch) => self.hold_again(Assigned { epoch, ..again }, holding.state.paused).await,
            // It is being taken away, which is heard next.
            Err(error) if error.kind == BrokerErrorKind::NotAssigned => Ok(()),
            Err(error) => {
                let stop = Stop::from(error);
                if let Stop::Halt(_) = stop {
                    self.stand(again);
                }
                Err(stop)
            }
        }
    }

    /// Takes hold anew of what has been sought to where it was assigned, or has been committed since.
    async fn hold_again(&mut self, again: Assigned, was_paused: bool) -> Result<(), Stop> {
        if was_paused {
            unless_taken_away(self.consumer.resume(&again.partition))?;
        }
        self.take_hold(again).await
    }

    /// An operator has the halt of the chain lifted: as by a start, it is handled again from its committed offset.
    async fn on_order(&mut self, order: ControlRequest<()>) -> Result<(), Stop> {
        let is_halted = |state: &PartitionState| state.halted.is_some();
        let again = match (&self.holding, &self.standing) {
            (None, None) => Err(Answer::NotHeld("this instance does not hold the chain".to_owned())),
            (Some(holding), _) if is_halted(&holding.state) => Ok((holding.again(), holding.state.paused)),
            // A start would not lift that, either.
            (None, Some(Standing { assigned, state })) if state.begins_above().is_some() => {
                Err(Answer::Refused(self.never_read(assigned)))
            }
            (None, Some(Standing { assigned, state })) => Ok((assigned.clone(), state.paused)),
            (Some(_), _) => {
                Err(Answer::Refused("the chain is not halted; what it waits for, if anything, is in /state".to_owned()))
            }
        };
        let (again, was_paused) = match again {
            Ok(again) => again,
            Err(answer) => {
                order.answer(answer);
                return Ok(());
            }
        };
        // Until the log has answered it stays as it is.
        let epoch = match self.consumer.seek(&again.partition, again.position).await {
            Ok(epoch) => epoch,
            Err(error) => {
                order.answer(Answer::not_read_again(&error));
                return if error.kind.ends_the_client() { Err(error.into()) } else { Ok(()) };
            }
        };
        tracing::warn!(position = again.position, "an operator has the halt of the chain lifted");
        // Taking hold may wait for the store for as long as that is away.
        order.answer(Answer::Done(format!("the chain is handled again from offset {}", again.position)));
        self.let_go().await;
        (self.holding, self.standing) = (None, None);
        self.hold_again(Assigned { epoch, ..again }, was_paused).await
    }

    /// Reads nothing more while too much waits for the worker; goes on at half.
    fn pace(&mut self) -> Result<(), Stop> {
        let Some(holding) = &mut self.holding else { return Ok(()) };
        if !holding.state.paused && holding.state.over_bound(&BOUNDS).is_some() {
            unless_taken_away(self.consumer.pause(&holding.partition))?;
            holding.state.paused = true;
        } else if holding.state.paused && holding.state.over_half(&BOUNDS).is_none() {
            unless_taken_away(self.consumer.resume(&holding.partition))?;
            holding.state.paused = false;
        }
        Ok(())
    }

    /// What is shown of the chain, where its partition is ours.
    fn held(&mut self) -> Option<&mut PartitionState> {
        let held = self.holding.as_mut().map(|holding| &mut holding.state);
        held.or(self.standing.as_mut().map(|standing| &mut standing.state))
    }

    /// Asks, beside the loop, for the end of the chain, where nothing was delivered since the last time.
    fn ask_end(&mut self) {
        let chain = TopicPartition { topic: self.parts.topics.chain.as_str().into(), partition: 0 };
        let Some(state) = self.held() else { return };
        let (is_unheard, epoch) = (state.end_is_unheard(), state.epoch);
        if !is_unheard || self.mode != ChainMode::Live {
            return;
        }
        let (broker, progress) = (self.parts.broker.clone(), self.progress_sender.clone());
        tokio::spawn(async move {
            // What is not told now is asked again. Without a receiver the sequencer has ended.
            if let Ok((_, end)) = broker.watermarks(&chain).await {
                let _ = progress.send((epoch, Progress::End(end)));
            }
        });
    }

    fn on_progress(&mut self, epoch: u64, progress: Progress) -> Result<(), Stop> {
        if let (Progress::End(end), Some(state)) = (&progress, self.held().filter(|state| state.epoch == epoch)) {
            state.hear_end(*end);
        }
        let Some(holding) = self.holding.as_mut().filter(|holding| holding.epoch == epoch) else { return Ok(()) };
        match progress {
            Progress::Handled(committed) => {
                self.parts.metrics.chain_offset.set(committed.offset as i64);
                self.parts.health.moved(Part::Chain);
                holding.on_handled(committed);
                Ok(())
            }
            Progress::Stopped(stop) => Err(stop),
            Progress::End(_) => Ok(()),
        }
    }

    /// A halt stays, loudly, until an operator has looked; whatever else stops the chain ends the instance.
    fn halt(&mut self, stop: Stop) -> Result<(), Stop> {
        // Nobody will look: a rebuild that cannot go on has failed.
        if !matches!((&stop, self.mode), (Stop::Halt(_), ChainMode::Live)) {
            return Err(stop);
        }
        // What follows of another topic (an offset that is not there, say) is not the reason.
        let why = self.other_topic.clone().unwrap_or_else(|| stop.to_string());
        tracing::error!("the chain is halted: {why}");
        let since_ms = self.parts.clock.now_ms();
        if let Some(state) = self.held() {
            state.halted = Some(Halt { why: why.clone(), since_ms });
        }
        self.parts.metrics.chain_halted.set(1);
        self.parts.health.set(Condition::ChainRunning, Some(why));
        self.show();
        Ok(())
    }

    /// Ends the worker, wherever it stands: what it was handling is handled again from its beginning.
    async fn let_go(&mut self) {
        if let Some(holding) = &mut self.holding {
            // One that has ended may have been waited for already.
            if !holding.task.is_finished() {
                holding.task.abort();
                let _ = (&mut holding.task).await;
            }
            let epoch = holding.epoch;
            while let Ok((of, progress)) = self.progress.try_recv() {
                if let (true, Progress::Handled(committed)) = (of == epoch, progress) {
                    holding.on_handled(committed);
                }
            }
        }
    }

    /// Shows where the chain stands, for whoever asks meanwhile.
    fn show(&self) {
        let held = self.holding.as_ref().map(|holding| &holding.state);
        let rests = held.is_none_or(|state| state.halted.is_some() || state.tracker.unfinished() == 0);
        self.parts.health.set_idle(Part::Chain, rests);
        let shown = held.or(self.standing.as_ref().map(|standing| &standing.state)).map(|state| {
            let shown = state.shown(Moment::of(&self.parts.clock), &BOUNDS, 0, "too much waits for its turn");
            state.measure(&shown);
            shown
        });
        self.parts
            .health
            .status_registry()
            .publish_chain(ChainStatus { partition: shown, nodes: self.parts.nodes.status() });
    }

    async fn commit(&mut self) -> Result<(), Stop> {
        let (commits, health) = (&mut self.commits, &self.parts.health);
        let Some(holding) = &mut self.holding else {
            commits.succeeded(health);
            return Ok(());
        };
        let unnoted = self.mode == ChainMode::Live && holding.noted < holding.next;
        let consumed = unnoted.then(|| Consumed { chain: holding.next, ..Consumed::default() });
        let Asked { noted, look } = ask(self.parts.whole.as_ref(), &self.parts.nodes, consumed).await;
        if let Some((_, consumed)) = noted {
            holding.noted = consumed.chain;
        }
        let asked = match look {
            Ok(Look::Same { asked }) => asked,
            Ok(Look::Restarted) => return Err(Stop::NodeRestarted),
            Err(Unasked::Now(failure, why)) => {
                tracing::warn!(why, "the chain is not committed");
                self.parts.metrics.commit_failures.of(failure).inc();
                commits.failed(health, why);
                return Ok(());
            }
            Err(Unasked::Store(error)) => return Err(Stop::Damaged(error.to_string())),
            Err(Unasked::Engine(error)) => return Err(error.into()),
        };
        let committed = holding.safe(asked, self.parts.nodes.lag());
        if self.other_topic.is_some() {
            return Ok(());
        }
        // Asked also where there is nothing to commit: a chain that rests has to notice, too.
        let why = match self.parts.guard.look(&self.parts.topics.guarded()).await {
            Ok(Sight::Same) => None,
            Ok(Sight::Other(why)) => {
                self.other_topic = Some(why.clone());
                self.let_go().await;
                return Err(Stop::Halt(why));
            }
            Ok(Sight::Absent(topic)) => Some(format!("topic `{topic}` does not exist at the moment")),
            Err(error) if error.kind.ends_the_client() => return Err(error.into()),
            Err(error) => Some(error.to_string()),
        };
        if let Some(why) = why {
            tracing::warn!(why, "the chain is not committed: cannot tell whether its topics are the store's");
            self.parts.metrics.commit_failures.of(CommitFailure::Broker).inc();
            commits.failed(health, format!("cannot tell whether the topics are the store's: {why}"));
            return Ok(());
        }
        let Some(committed) = committed else {
            commits.succeeded(health);
            return Ok(());
        };
        match self.consumer.commit(&[(holding.partition.clone(), committed.clone())]).await {
            Ok(()) => {
                holding.handled.pop_front();
                holding.safe.send_replace(Safe::of(Some(&committed)).map_err(bad_state)?);
                holding.state.committed = Some(committed.clone());
                holding.committed = Some(committed);
                self.parts.metrics.commits.inc();
                commits.succeeded(health);
                Ok(())
            }
            Err(error) if error.kind.ends_the_client() => Err(error.into()),
            Err(error) => {
                tracing::warn!(%error, "the chain offset is not committed; tried again");
                self.parts.metrics.commit_failures.of(CommitFailure::Broker).inc();
                commits.failed(health, error);
                Ok(())
            }
        }
    }
}

/// However it ends, what it held is shown no more: it may be started again within its process, and not be given the chain.
impl Drop for Sequencer {
    fn drop(&mut self) {
        let held = self.holding.take().map(|holding| holding.partition);
        if let Some(partition) = held.or(self.standing.take().map(|standing| standing.assigned.partition)) {
            self.parts.metrics.forget_partition(&partition);
        }
        self.show();
    }
}

impl Holding {
    /// As it was assigned, or as it has been committed since.
    fn again(&self) -> Assigned {
        Assigned {
            partition: self.partition.clone(),
            epoch: self.epoch,
            committed: self.committed.clone(),
            position: self.committed.as_ref().map_or(self.start, |committed| committed.offset),
            high_watermark: self.state.high_watermark,
        }
    }

    fn on_handled(&mut self, committed: Committed) {
        self.next = committed.offset;
        if let Some(offset) = committed.offset.checked_sub(1) {
            self.state.tracker.complete(offset, 0);
        }
        self.latest = Some(committed);
    }

    /// The latest that was handled for longer than `lag` at `asked`; it stays the first of `handled` until it is committed.
    fn safe(&mut self, asked: Instant, lag: Duration) -> Option<Committed> {
        self.handled.extend(self.latest.take().map(|committed| (asked, committed)));
        while self.handled.get(1).is_some_and(|(at, _)| *at + lag <= asked) {
            self.handled.pop_front();
        }
        self.handled.front().filter(|(at, _)| *at + lag <= asked).map(|(_, committed)| committed.clone())
    }
}

/// The store must be the one that the chain's committed offset speaks of.
async fn compare_with_store(parts: &SequencerParts, chain: u64) -> Result<(), Stop> {
    let mut waiting = Waiting::new(parts, "the chain");
    loop {
        match parts.whole.holds(&Consumed { chain, ..Consumed::default() }).await {
            Err(error) if error.may_be_retried() => {
                tracing::warn!(%error, "whether the store is the group's is asked again");
                waiting.look_again("the meta record of the store").await;
            }
            answer => return answer.map_err(|error| Stop::Damaged(error.to_string())),
        }
    }
}

/// Writes into the store that the chain is consumed so far, and waits until no node can forget it.
async fn note_safely(parts: &SequencerParts, nodes: &mut Nodes, chain: u64) -> Result<(), Stop> {
    nodes.meet().await?;
    let mut waiting = Waiting::new(parts, "the chain");
    loop {
        match parts.whole.note(&Consumed { chain, ..Consumed::default() }).await {
            Err(error) if error.may_be_retried() => waiting.look_again("the meta record of the store").await,
            Err(error) => return Err(Stop::Damaged(error.to_string())),
            Ok(()) if nodes.outlast().await? => return Ok(()),
            Ok(()) => {}
        }
    }
}

fn bad_state(error: state::BadState) -> Stop {
    Stop::Halt(error.to_string())
}

/// Gives up, at a shutdown, what may wait for the store or the log for as long as they do not answer. Until the chain is taken
/// hold of there is nothing to commit.
async fn unless(shutdown: &CancellationToken, work: impl Future<Output = Result<(), Stop>>) -> Result<(), Stop> {
    shutdown.run_until_cancelled(work).await.unwrap_or(Ok(()))
}

/// What the group of a sequencer is called: its own, so that rebalances of validated transactions leave the chain alone.
pub fn chain_group(group: &str) -> String {
    format!("{group}.chain")
}

#[cfg(test)]
mod tests;
