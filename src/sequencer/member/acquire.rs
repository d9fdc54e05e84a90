//! Acquires the chain partition: verifies topics and store, begins a new era if the nodes changed, starts the worker.

use std::{fmt::Display, time::Duration};

use tokio::sync::{mpsc, watch};

use crate::{
    broker::{AssignedPartition, BrokerErrorKind, CommittedOffset, TopicPartition, identity::Unconfirmed},
    group::{commit_metadata::never_read_reason, partition::PartitionState},
    record::ConsumedOffsets,
    sequencer::{
        ChainMode, CommittedChain, SequencerError, SequencerParts, chain_group,
        member::{
            CHAIN, Sequencer, bad_state,
            lease::{ChainLease, HandledStates},
        },
        state::ChainState,
        waiting::ReportedWait,
        worker::{ChainWorker, WorkerReport},
    },
    status::Condition,
    store::{meta::MetaError, restart_detector::RestartDetector},
    tasks,
    telemetry::RebalanceChange,
};

/// First and longest pause between attempts to commit a new era.
const ERA_PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

impl Sequencer {
    pub(super) async fn acquire_all(&mut self, assigned: Vec<AssignedPartition>) -> Result<(), SequencerError> {
        self.parts.metrics.rebalances.of(RebalanceChange::Assigned).inc();
        for assigned in assigned {
            self.acquire_chain(assigned).await?;
        }
        Ok(())
    }

    /// Acquires the partition at its committed offset.
    pub(super) async fn acquire_chain(&mut self, assigned: AssignedPartition) -> Result<(), SequencerError> {
        self.lease = None;
        self.member.partitions.states.clear();
        let acquired = self.try_acquire(assigned.clone()).await;
        if let Err(SequencerError::Halt(_)) = acquired {
            self.keep_without_worker(&assigned);
        }
        acquired
    }

    /// Keeps an assigned partition that could not be acquired, paused: without a worker no message of it must be read.
    fn keep_without_worker(&mut self, assigned: &AssignedPartition) {
        self.member.assign(assigned);
        self.member.pause(CHAIN);
    }

    async fn try_acquire(&mut self, mut assigned: AssignedPartition) -> Result<(), SequencerError> {
        // Offsets and their metadata mean nothing in another topic of the same name.
        let (guard, topics) = (self.parts.guard.clone(), self.parts.topics.guarded());
        let confirmed = ReportedWait::new(&self.parts, "the chain").run(guard.confirm(&topics)).await;
        self.member.other_topic = match &confirmed {
            Err(Unconfirmed::Other(why)) => Some(why.clone()),
            _ => None,
        };
        confirmed?;
        let metadata = assigned.committed.as_ref().map_or("", |committed| committed.metadata.as_str());
        let state = ChainState::from_metadata(metadata).map_err(bad_state)?;
        let mut state = state.checked().map_err(SequencerError::Halt)?;
        let parts = self.parts.clone();
        match (self.mode, metadata.is_empty()) {
            (ChainMode::Rebuild { .. }, _) => {}
            (ChainMode::Live, false) => verify_store_covers(&parts, assigned.position).await?,
            // A commit without metadata comes from an operator, who has set the offset to continue at; without a commit
            // the log is read from its beginning.
            (ChainMode::Live, true) => state.era = Box::pin(self.begin_without_state(&assigned)).await?,
        }
        let incarnation = ReportedWait::new(&parts, "the nodes of the store").run(self.parts.nodes.baseline()).await?;
        if self.mode == ChainMode::Live {
            let position = assigned.position;
            let new_era = state.in_new_era(incarnation);
            // The first handled block makes a stateless start impossible: after a kill the next owner needs the state.
            let is_committed_first = new_era.is_some() || (metadata.is_empty() && position > 0);
            if let Some(new) = new_era {
                tracing::warn!(era = new.era, position, "sequencer: new era, the nodes of the store changed");
                state = new;
            }
            if state.era > 0 {
                // Before the era is committed. The store of an earlier tree, or a restored one, has no record of an era
                // that is committed already.
                until_meta_answers(&parts, || parts.ownership.record_era(state.era)).await?;
            }
            if is_committed_first {
                let committed = CommittedOffset { offset: position, metadata: state.to_metadata() };
                if !self.commit_state(&assigned.partition, &committed).await? {
                    return Ok(());
                }
                assigned.committed = Some(committed);
            }
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
        self.member.assign(&assigned);
        // The last record may be among the writes that a node has lost since.
        self.member.commits.forget_recorded();
        self.lease = Some(ChainLease {
            messages,
            task: tasks::spawn("the worker of the chain", worker.run(received), move |why| {
                // Without a receiver the sequencer has ended, and the report has no reader.
                let _ = reports.send((epoch, WorkerReport::Stopped(SequencerError::Died(why))));
            }),
            handled: HandledStates::new(assigned.position),
            committed_chain,
        });
        Ok(())
    }

    /// Verifies that the chain may begin at the assigned position without a state; returns the era to begin in. A lower
    /// era would take every record for the work of a later sequencer, and change none.
    async fn begin_without_state(&mut self, assigned: &AssignedPartition) -> Result<u32, SequencerError> {
        let parts = self.parts.clone();
        let known = until_meta_answers(&parts, || parts.ownership.recorded_chain()).await?;
        let allowed = known.verify_stateless_start(assigned.position, parts.nodes.can_lose_writes());
        allowed.map_err(|error| halt_at(assigned, error))?;
        if assigned.committed.is_none() && assigned.position > 0 {
            let why = never_read_reason(&chain_group(&parts.validated.group), assigned.position);
            return Err(halt_at(assigned, why));
        }
        if assigned.position > 0 {
            // Every later commit compares with the consumed offset in the store.
            record_consumed_durably(&parts, &mut self.parts.nodes, assigned.position).await?;
            tracing::warn!(
                position = assigned.position,
                "sequencer: chain begins at the offset that an operator has set"
            );
        }
        Ok(known.era)
    }

    /// Commits the state of the chain before the first event, and a new era before any record is stamped with it. The
    /// group lets only the present owner of the partition
    /// commit, so that no two sequencers work in one era. Returns `false` when the partition is no longer assigned.
    async fn commit_state(
        &mut self,
        chain: &TopicPartition,
        committed: &CommittedOffset,
    ) -> Result<bool, SequencerError> {
        let mut waiting = ReportedWait::new(&self.parts, "the chain").with_pauses(ERA_PAUSE);
        loop {
            match self.member.consumer.commit(&[(chain.clone(), committed.clone())]).await {
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
    pub(super) async fn rewind(&mut self) -> Result<(), SequencerError> {
        self.parts.metrics.node_restarts.inc();
        if let ChainMode::Rebuild { .. } = self.mode {
            return Err(SequencerError::Damaged(
                "cannot continue the rebuild: a node restarted and may have lost writes; rebuild into an empty set"
                    .to_owned(),
            ));
        }
        self.release_chain().await;
        if self.lease.take().is_none() {
            return Ok(());
        }
        self.parts.ownership.verify_intact().await?;
        let committed = self.member.partitions.states.get(&CHAIN).map(PartitionState::committed_assignment);
        let Some(committed) = committed else { return Ok(()) };
        let position = committed.position;
        tracing::warn!(position, "sequencer: node restarted, chain rewound to the committed offset");
        match self.member.seek_to_committed(CHAIN).await {
            Ok(again) => self.acquire_chain(again).await,
            // The partition is being revoked; the next poll reports the revocation.
            Err(error) if error.kind == BrokerErrorKind::NotAssigned => {
                self.member.partitions.states.clear();
                Ok(())
            }
            Err(error) => {
                let stop = SequencerError::from(error);
                if let SequencerError::Halt(_) = stop {
                    self.keep_without_worker(&committed);
                }
                Err(stop)
            }
        }
    }
}

/// Repeats a request to the meta record until the store answers.
pub(in crate::sequencer) async fn until_meta_answers<T, F: Future<Output = Result<T, MetaError>>>(
    parts: &SequencerParts,
    mut request: impl FnMut() -> F,
) -> Result<T, MetaError> {
    let mut waiting = ReportedWait::new(parts, "the chain");
    loop {
        match request().await {
            Err(error) if error.may_be_retried() => waiting.pause_for("the meta record of the store").await,
            answer => return answer,
        }
    }
}

fn halt_at(assigned: &AssignedPartition, why: impl Display) -> SequencerError {
    SequencerError::Halt(format!("{}: {why}", assigned.partition))
}

/// Verifies that the store has consumed the chain up to the committed offset.
async fn verify_store_covers(parts: &SequencerParts, chain: u64) -> Result<(), SequencerError> {
    let committed = ConsumedOffsets { chain, ..ConsumedOffsets::default() };
    let verify = async || {
        parts.ownership.verify_covers(&committed).await.inspect_err(|error| {
            if error.may_be_retried() {
                tracing::warn!(%error, "sequencer: store ownership not verified; retrying");
            }
        })
    };
    Ok(until_meta_answers(parts, verify).await?)
}

/// Records the consumed chain offset in the meta record and waits until the write is durable.
async fn record_consumed_durably(
    parts: &SequencerParts,
    nodes: &mut RestartDetector,
    chain: u64,
) -> Result<(), SequencerError> {
    nodes.baseline().await?;
    let consumed = ConsumedOffsets { chain, ..ConsumedOffsets::default() };
    let durable = ConsumedOffsets::default();
    loop {
        until_meta_answers(parts, || parts.ownership.record_consumed(&consumed, &durable)).await?;
        if nodes.wait_until_durable().await? {
            return Ok(());
        }
    }
}
