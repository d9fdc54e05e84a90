//! Forgetting, between events of the chain: whoever holds it prunes what is due at the greatest height that is committed.
//!
//! What it writes bears the stamp of the last event that is committed. So whatever was done since refuses it, a sequencer that has
//! lost the chain can do no harm, and no event that is handled again meets a pruning that came behind it.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant as Started},
};

use tokio::{sync::watch, time::Instant};

use crate::{
    broker::{Broker, BrokerError, Committed, TopicPartition},
    record::Consumed,
    sequencer::{
        Stop, ValidatedSource,
        handler::Handler,
        state::{BadState, ChainState},
    },
    store::prune::{Pass, PruneError, PruneSettings, Pruned, Step, Terms, Under},
    telemetry::PrunedKind,
};

/// How much of it is done at once.
#[derive(Debug, Clone, Copy)]
pub struct PruneTask {
    /// Transactions that go in a second at the most.
    pub per_second: u32,
    /// Each step.
    pub pass: PruneSettings,
}

impl PruneTask {
    /// How long to rest after a step that did so many. Each that goes is in two: it is looked at and its parents marked, then it is buried.
    pub fn rest_after(&self, count: u64) -> Duration {
        Duration::from_secs_f64(count as f64 / (2.0 * f64::from(self.per_second.max(1))))
    }
}

/// How far the chain is committed: nothing below is ever handled again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Safe {
    /// Next to read.
    pub offset: u64,
    /// The greatest height that the longest chain has had below it.
    pub height: u32,
    /// In which era it is committed.
    pub era: u32,
}

impl Safe {
    /// What a commit of the chain says.
    ///
    /// # Errors
    /// It says nothing of the chain's state.
    pub fn of(committed: Option<&Committed>) -> Result<Self, BadState> {
        let Some(committed) = committed else { return Ok(Safe::default()) };
        let state = ChainState::from_metadata(&committed.metadata)?;
        Ok(Safe { offset: committed.offset, height: state.highest(), era: state.era })
    }
}

/// How long a step may take: events come first.
const STEP_LIMIT: Duration = Duration::from_secs(5);
/// How many times that a step of a single transaction, of many pages, may take.
const MOST_PATIENCE: u32 = 6;
/// Before what did not work is tried again.
const TRY_AGAIN: Duration = Duration::from_secs(10);
/// Between lines of the log about one pass.
const TELL_EVERY: Duration = Duration::from_secs(30);

/// The pruner of who holds the chain.
pub(super) struct Pruner {
    task: Option<PruneTask>,
    safe: watch::Receiver<Safe>,
    /// What was decided before the chain was taken hold of may have been forgotten: first it is done again.
    not_before: u64,
    pass: Option<(Pass, Started)>,
    /// How much longer than usual a step of a single transaction may take, which has been given up so far.
    patience: u32,
    /// What is left of the pass can only be decided on once more than this is committed.
    unsafe_at: Option<u64>,
    /// Pruned, as far as is known here.
    done: u32,
    wake: Instant,
    told: Instant,
}

impl Pruner {
    /// One that prunes once everything below chain offset `not_before` is committed; `None`: it never does.
    pub fn new(task: Option<PruneTask>, safe: watch::Receiver<Safe>, not_before: u64) -> Self {
        let now = Instant::now();
        let (pass, unsafe_at, done) = (None, None, 0);
        Pruner { task, safe, not_before, pass, patience: 1, unsafe_at, done, wake: now, told: now }
    }

    /// Waits until there is something to do.
    pub async fn ready(&mut self) {
        if self.task.is_none() {
            return std::future::pending().await;
        }
        loop {
            if self.has_work() {
                return tokio::time::sleep_until(self.wake).await;
            }
            if self.safe.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Whether there is something to do now.
    pub fn is_ready(&mut self) -> bool {
        self.task.is_some() && self.has_work() && Instant::now() >= self.wake
    }

    fn has_work(&mut self) -> bool {
        let safe = *self.safe.borrow_and_update();
        match &self.pass {
            Some(_) => self.unsafe_at.is_none_or(|offset| safe.offset > offset),
            None => safe.offset > 0 && safe.offset >= self.not_before && safe.height > self.done,
        }
    }

    /// A little of it.
    pub async fn step(&mut self, handler: &Handler) -> Result<(), Stop> {
        let Some(task) = self.task else { return Ok(()) };
        let safe = *self.safe.borrow();
        self.unsafe_at = None;
        let limit = STEP_LIMIT.saturating_mul(self.patience);
        let done = tokio::time::timeout(limit, self.try_step(handler, &task, safe)).await;
        let step = match done {
            Ok(Ok(step)) => step,
            Ok(Err(Failed::Stop(stop))) => return Err(stop),
            Ok(Err(Failed::Later(why))) => {
                tracing::warn!(why, "pruning is tried again");
                self.wake = Instant::now() + TRY_AGAIN;
                return Ok(());
            }
            Err(_) => {
                let smaller = self.pass.as_mut().map(|(pass, _)| pass.take_smaller_steps());
                if smaller == Some(false) {
                    self.patience = self.patience.saturating_mul(2).min(MOST_PATIENCE);
                }
                tracing::warn!(?limit, smaller, "a step of pruning took too long, and is tried again");
                self.wake = Instant::now() + TRY_AGAIN;
                return Ok(());
            }
        };
        self.patience = 1;
        if let Some((pass, _)) = &mut self.pass {
            pass.take_larger_steps();
        }
        match step {
            Step::Did(count) => {
                self.wake = Instant::now() + task.rest_after(count);
            }
            Step::Until(at) => self.wake = at,
            Step::Unsafe => self.unsafe_at = Some(safe.offset),
            Step::Done => self.pass = None,
        }
        self.tell();
        Ok(())
    }

    async fn try_step(&mut self, handler: &Handler, task: &PruneTask, safe: Safe) -> Result<Step, Failed> {
        let parts = &handler.parts;
        let (store, metrics) = (&parts.store, &parts.metrics);
        let retention = store.settings.rules.retention;
        let under = Under::new(Terms { height: safe.height, retention, safe: safe.offset }, handler.state.era);
        if self.pass.is_none() {
            // Replays from below are refused before anything is gone that they could bring back.
            let floor = floor_of(parts.broker.as_ref(), &parts.validated, safe.offset).await;
            let floor = floor.map_err(|error| Failed::Later(error.to_string()))?;
            let meta =
                store.begin_pruning(&floor, &under.terms).await.map_err(|error| match error.may_be_retried() {
                    true => Failed::Later(error.to_string()),
                    false => Failed::Stop(Stop::Damaged(error.to_string())),
                })?;
            metrics.prune_horizon.set(i64::from(meta.prune_horizon));
            self.pass = Some((Pass::new(task.pass, under), Started::now()));
        }
        let Some((pass, started)) = &mut self.pass else { return Ok(Step::Done) };
        pass.advance(under);
        let before = pass.pruned();
        let step = pass.step(store, &parts.nodes).await.map_err(|error| match error {
            PruneError::Engine(error) => Failed::Stop(error.into()),
            PruneError::NodeRestarted => Failed::Stop(Stop::NodeRestarted),
            error @ PruneError::Blob { .. } => Failed::Later(error.to_string()),
        })?;
        let now = pass.pruned();
        metrics.prune_examined.inc_by(now.examined - before.examined);
        metrics.pruned.of(PrunedKind::Spent).inc_by(now.spent - before.spent);
        metrics.pruned.of(PrunedKind::Conflicting).inc_by(now.conflicting - before.conflicting);
        metrics.pruned.of(PrunedKind::Tombstone).inc_by(now.tombstones - before.tombstones);
        if step == Step::Done {
            let height = pass.height();
            if now.total() > 0 {
                let seconds = started.elapsed().as_secs_f64();
                let Pruned { examined, spent, conflicting, tombstones, .. } = now;
                tracing::info!(height, examined, spent, conflicting, tombstones, seconds, "pruned");
            }
            store.end_pruning(height).await.map_err(|error| Failed::Later(error.to_string()))?;
            metrics.prune_horizon.set(i64::from(height));
            self.done = height;
        }
        Ok(step)
    }

    /// How far a long pass is.
    fn tell(&mut self) {
        let Some((pass, _)) = &self.pass else {
            self.told = Instant::now();
            return;
        };
        if self.told.elapsed() >= TELL_EVERY {
            self.told = Instant::now();
            tracing::info!(height = pass.height(), pruned = ?pass.pruned(), "pruning");
        }
    }
}

enum Failed {
    /// The chain cannot go on.
    Stop(Stop),
    /// Only this cannot.
    Later(String),
}

/// Where whoever is started next goes on at the least; `chain`: what is committed of that.
///
/// # Errors
/// The broker's.
pub async fn floor_of(broker: &dyn Broker, validated: &ValidatedSource, chain: u64) -> Result<Consumed, BrokerError> {
    let count = broker.partitions(&validated.topic).await?.unwrap_or(0);
    let partitions: Vec<_> =
        (0..count).map(|partition| TopicPartition { topic: validated.topic.clone(), partition }).collect();
    let offsets = broker.committed(&validated.group, &partitions).await?;
    let known = (0..count.unsigned_abs()).zip(offsets);
    let validated = known.filter_map(|(number, committed)| Some((number, committed?.offset)));
    Ok(Consumed { chain, validated: validated.collect::<BTreeMap<_, _>>() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_go_in_a_second_though_each_is_in_two_steps() {
        let pass = PruneSettings { keep_tombstones: None, step: 512, dry_run: false, alone: false };
        let task = PruneTask { per_second: 1_000, pass };
        let (looks, burials) =
            ([512, 512, 476].map(|count| task.rest_after(count)), [1_500].map(|count| task.rest_after(count)));
        assert_eq!(looks.into_iter().chain(burials).sum::<Duration>(), Duration::from_millis(1_500));
    }
}
