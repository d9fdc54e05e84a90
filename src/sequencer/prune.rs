//! Pruning between events of the chain: the sequencer prunes the records that are due at the greatest committed height.
//!
//! The writes have the stamp of the last committed event. A record that a later event has changed refuses them, a
//! sequencer that has lost the chain can do no harm, and no event that is handled again meets a pruning of a later
//! event.

use std::time::{Duration, Instant as Started};

use tokio::{sync::watch, time::Instant};

use crate::{
    broker::{Broker, BrokerError, CommittedOffset, committed::read_committed},
    record::ConsumedOffsets,
    sequencer::{
        SequencerError, SequencerParts, ValidatedSource,
        state::{BadState, ChainState},
    },
    store::{
        meta::{MetaError, StoreMeta},
        prune::{PruneBasis, PruneError, PrunePass, PruneSettings, PruneStep, PruneTerms, PruneTotals},
    },
    telemetry::PrunedKind,
};

/// The rate and the step size of pruning.
#[derive(Debug, Clone, Copy)]
pub struct PruneTask {
    /// Transactions pruned a second at most.
    pub per_second: u32,
    /// Settings of one pass and its steps.
    pub pass: PruneSettings,
}

impl PruneTask {
    /// Returns the pause after a step over `count` transactions. Each pruned transaction takes part in two steps: one
    /// marks its parents, one writes its tombstone.
    pub fn pause_after(&self, count: u64) -> Duration {
        Duration::from_secs_f64(count as f64 / (2.0 * f64::from(self.per_second.max(1))))
    }
}

/// The committed state of the chain. No event below its offset is handled again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CommittedChain {
    /// The committed offset, which is the next offset to read.
    pub offset: u64,
    /// The greatest height of the longest chain below that offset.
    pub height: u32,
    /// The era of the commit.
    pub era: u32,
}

impl CommittedChain {
    /// Reads the metadata of a commit of the chain.
    ///
    /// # Errors
    /// The metadata is not the chain's state.
    pub fn of(committed: Option<&CommittedOffset>) -> Result<Self, BadState> {
        let Some(committed) = committed else { return Ok(CommittedChain::default()) };
        let state = ChainState::from_metadata(&committed.metadata)?;
        Ok(CommittedChain { offset: committed.offset, height: state.highest(), era: state.era })
    }
}

/// Time limit of a step: events come first.
const STEP_LIMIT: Duration = Duration::from_secs(5);
/// Bound of the factor on [`STEP_LIMIT`] for a step of a single transaction of many pages.
const MAX_LIMIT_FACTOR: u32 = 6;
/// Pause before a failed step is retried.
const RETRY_PAUSE: Duration = Duration::from_secs(10);
/// Time that a step may still take when a chain event waits, at first and at most. The pause after an interrupted step
/// is ten times as long, so that pruning takes at most a tenth of a chain that is never idle.
const WAITING_EVENT_LIMITS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Time between two log lines about one pass.
const LOG_INTERVAL: Duration = Duration::from_secs(30);

/// Prunes, a step at a time, while this instance has the chain.
pub(super) struct Pruner {
    task: Option<PruneTask>,
    committed: watch::Receiver<CommittedChain>,
    /// No pruning before this chain offset is committed: decisions from before the assignment are applied again first,
    /// since a node may have lost their writes.
    not_before: u64,
    pass: Option<(PrunePass, Started)>,
    /// Factor on [`STEP_LIMIT`]; doubled after a step that could not become smaller has timed out.
    limit_factor: u32,
    /// Time that a step may still take when a chain event waits; doubled after a step that could not become smaller was
    /// interrupted.
    waiting_event_limit: Duration,
    /// The rest of the pass waits until a greater chain offset than this one is committed.
    blocked_at: Option<u64>,
    /// The height up to which this instance has pruned.
    done: u32,
    wake: Instant,
    last_logged: Instant,
}

impl Pruner {
    /// Makes a pruner that starts once chain offset `not_before` is committed. Without a task the pruner never starts.
    pub fn new(task: Option<PruneTask>, committed: watch::Receiver<CommittedChain>, not_before: u64) -> Self {
        let now = Instant::now();
        Pruner {
            task,
            committed,
            not_before,
            pass: None,
            limit_factor: 1,
            waiting_event_limit: WAITING_EVENT_LIMITS.0,
            blocked_at: None,
            done: 0,
            wake: now,
            last_logged: now,
        }
    }

    /// Returns the time that a step may still take when a chain event waits.
    pub fn waiting_event_limit(&self) -> Duration {
        self.waiting_event_limit
    }

    /// Waits until a step is due.
    pub async fn wait_for_work(&mut self) {
        if self.task.is_none() {
            return std::future::pending().await;
        }
        loop {
            if self.has_work() {
                return tokio::time::sleep_until(self.wake).await;
            }
            if self.committed.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Returns whether a step is due now.
    pub fn is_due(&mut self) -> bool {
        self.task.is_some() && self.has_work() && Instant::now() >= self.wake
    }

    fn has_work(&mut self) -> bool {
        let committed = *self.committed.borrow_and_update();
        match &self.pass {
            Some(_) => self.blocked_at.is_none_or(|offset| committed.offset > offset),
            None => committed.offset > 0 && committed.offset >= self.not_before && committed.height > self.done,
        }
    }

    /// Runs one step of the pass, within the time limit.
    pub async fn step(&mut self, parts: &SequencerParts, era: u32) -> Result<(), SequencerError> {
        let Some(task) = self.task else { return Ok(()) };
        let committed = *self.committed.borrow();
        self.blocked_at = None;
        let limit = STEP_LIMIT.saturating_mul(self.limit_factor);
        let done = tokio::time::timeout(limit, self.try_step(parts, era, &task, committed)).await;
        let step = match done {
            Ok(Ok(step)) => step,
            Ok(Err(StepError::Held(why))) => {
                tracing::debug!(why, "prune: held by a snapshot; retrying");
                self.wake = Instant::now() + RETRY_PAUSE;
                return Ok(());
            }
            Ok(Err(StepError::Stop(stop))) => return Err(stop),
            Ok(Err(StepError::Retry(why))) => {
                tracing::warn!(why, "prune: step failed; retrying");
                self.wake = Instant::now() + RETRY_PAUSE;
                return Ok(());
            }
            Err(_) => {
                let smaller = self.pass.as_mut().map(|(pass, _)| pass.shrink_step_size());
                if smaller != Some(true) {
                    self.limit_factor = self.limit_factor.saturating_mul(2).min(MAX_LIMIT_FACTOR);
                }
                tracing::warn!(?limit, smaller, "prune: step exceeded its time limit; retrying");
                self.wake = Instant::now() + RETRY_PAUSE;
                return Ok(());
            }
        };
        (self.limit_factor, self.waiting_event_limit) = (1, WAITING_EVENT_LIMITS.0);
        if let Some((pass, _)) = &mut self.pass {
            pass.grow_step_size();
        }
        match step {
            PruneStep::Progressed(count) => {
                self.wake = Instant::now() + task.pause_after(count);
            }
            PruneStep::WaitUntil(at) => self.wake = at,
            PruneStep::Uncommitted => self.blocked_at = Some(committed.offset),
            PruneStep::Done => self.pass = None,
        }
        self.log_progress();
        Ok(())
    }

    async fn try_step(
        &mut self,
        parts: &SequencerParts,
        era: u32,
        task: &PruneTask,
        committed: CommittedChain,
    ) -> Result<PruneStep, StepError> {
        let (store, metrics) = (&parts.store, &parts.metrics);
        let retention = store.settings.rules.retention;
        let under =
            PruneBasis::new(PruneTerms { height: committed.height, retention, committed: committed.offset }, era);
        if self.pass.is_none() {
            if !PrunePass::has_due(store, committed.height).await.map_err(|error| StepError::Stop(error.into()))? {
                // Without a pruned record any group may begin anywhere, and any block may leave: the floors stay.
                return self.end(parts, committed.height).await;
            }
            // The replay floor is written first: a replay from below could restore records that are pruned.
            let floor = read_replay_floor(parts.broker.as_ref(), &parts.validated, committed.offset).await;
            let floor = floor.map_err(|error| StepError::Retry(error.to_string()))?;
            let now_ms = parts.clock.now_ms();
            let meta = StoreMeta::of(store).begin_pruning(&floor, &under.terms, now_ms).await.map_err(to_step_error)?;
            metrics.prune_horizon.set(i64::from(meta.prune_horizon));
            self.pass = Some((PrunePass::new(task.pass, under), Started::now()));
        } else {
            // `committed` was read before: a snapshot that takes its hold from here on reads offsets at or above.
            StoreMeta::of(store).check_may_prune(parts.clock.now_ms()).await.map_err(to_step_error)?;
        }
        let Some((pass, started)) = &mut self.pass else { return Ok(PruneStep::Done) };
        pass.advance(under);
        let before = pass.pruned();
        let step = pass.step(store, &parts.nodes).await.map_err(|error| match error {
            PruneError::Engine(error) => StepError::Stop(error.into()),
            PruneError::NodeRestarted => StepError::Stop(SequencerError::NodeRestarted),
            error @ PruneError::Blob { .. } => StepError::Retry(error.to_string()),
        })?;
        let now = pass.pruned();
        metrics.prune_examined.inc_by(now.examined - before.examined);
        metrics.pruned.of(PrunedKind::Spent).inc_by(now.spent - before.spent);
        metrics.pruned.of(PrunedKind::Conflicting).inc_by(now.conflicting - before.conflicting);
        metrics.pruned.of(PrunedKind::Tombstone).inc_by(now.tombstones - before.tombstones);
        if step == PruneStep::Done {
            let height = pass.height();
            if now.total() > 0 {
                let seconds = started.elapsed().as_secs_f64();
                let PruneTotals { examined, spent, conflicting, tombstones, .. } = now;
                tracing::info!(height, examined, spent, conflicting, tombstones, seconds, "prune: pass ended");
            }
            return self.end(parts, height).await;
        }
        Ok(step)
    }

    /// Records that every transaction that was due at this height is pruned.
    async fn end(&mut self, parts: &SequencerParts, height: u32) -> Result<PruneStep, StepError> {
        let ended = StoreMeta::of(&parts.store).end_pruning(height).await;
        ended.map_err(|error| StepError::Retry(error.to_string()))?;
        parts.metrics.prune_horizon.set(i64::from(height));
        self.done = height;
        Ok(PruneStep::Done)
    }

    /// Gives up a step that was dropped because a chain event came. A smaller step follows after a pause, or the same
    /// step with more time: it would else be begun again and again, and no record behind it would be pruned.
    pub fn interrupt(&mut self) {
        let limit = self.waiting_event_limit;
        let smaller = self.pass.as_mut().map(|(pass, _)| pass.shrink_step_size());
        if smaller != Some(true) {
            self.waiting_event_limit = limit.saturating_mul(2).min(WAITING_EVENT_LIMITS.1);
        }
        tracing::debug!(?limit, smaller, "prune: step interrupted by a chain event; retrying");
        self.wake = Instant::now() + limit.saturating_mul(10);
    }

    /// Logs the progress of a long pass.
    fn log_progress(&mut self) {
        let Some((pass, _)) = &self.pass else {
            self.last_logged = Instant::now();
            return;
        };
        if self.last_logged.elapsed() >= LOG_INTERVAL {
            self.last_logged = Instant::now();
            tracing::info!(height = pass.height(), pruned = ?pass.pruned(), "prune: pass under way");
        }
    }
}

fn to_step_error(error: MetaError) -> StepError {
    match error {
        MetaError::HeldBySnapshot { .. } => StepError::Held(error.to_string()),
        _ if error.may_be_retried() => StepError::Retry(error.to_string()),
        _ => StepError::Stop(SequencerError::Damaged(error.to_string())),
    }
}

enum StepError {
    /// A snapshot is in progress.
    Held(String),
    /// An error that stops the chain.
    Stop(SequencerError),
    /// An error of the pruning alone: the step is retried.
    Retry(String),
}

/// Reads the offsets from which the next instance continues at the earliest: the committed offsets of validated
/// transactions, and the committed chain offset `chain`.
pub async fn read_replay_floor(
    broker: &dyn Broker,
    validated: &ValidatedSource,
    chain: u64,
) -> Result<ConsumedOffsets, BrokerError> {
    let committed = read_committed(broker, &validated.group, &validated.topic).await?.into_iter();
    let validated = committed.filter_map(|(at, committed)| Some((at.partition.unsigned_abs(), committed?.offset)));
    Ok(ConsumedOffsets { chain, validated: validated.collect(), height: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_counts_each_transaction_once_though_it_takes_two_steps() {
        let pass = PruneSettings { keep_tombstones: None, step_size: 512, dry_run: false, is_exclusive: false };
        let task = PruneTask { per_second: 1_000, pass };
        let (looks, burials) =
            ([512, 512, 476].map(|count| task.pause_after(count)), [1_500].map(|count| task.pause_after(count)));
        assert_eq!(looks.into_iter().chain(burials).sum::<Duration>(), Duration::from_millis(1_500));
    }
}
