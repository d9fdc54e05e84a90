//! Commits what is safe, or reads everything else again where a node of the store has forgotten.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

use super::{Pipeline, PipelineError};
use crate::{
    broker::{Assigned, BrokerErrorKind, TopicPartition},
    engine::ErrorKind,
    ingest::{
        dispatch::{Done, spawn},
        partition::consumed_of,
        replay::Modes,
    },
    record::Consumed,
    store::{meta::MetaError, nodes::Look, whole::WholeStore},
    telemetry::CommitFailure,
};

/// The store may take so long to write down what is consumed; a commit is tried again soon enough.
const PATIENCE: Duration = Duration::from_secs(2);
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// What this instance has written into the store of what it has consumed.
#[derive(Default)]
pub(super) struct Notes {
    /// What was written last.
    last: Consumed,
    /// What the store may still forget, each with when it was there.
    young: VecDeque<(Instant, Consumed)>,
    /// What it can no longer forget.
    settled: Consumed,
}

impl Notes {
    /// Whatever was there longer than `lag` before `asked` is there for good.
    fn settle(&mut self, asked: Instant, lag: Duration) {
        while let Some((_, consumed)) = self.young.front().filter(|(at, _)| *at + lag <= asked) {
            self.settled.raise(consumed);
            self.young.pop_front();
        }
    }

    /// So much of a partition may be committed.
    fn of(&self, partition: i32) -> u64 {
        self.settled.validated.get(&partition.unsigned_abs()).copied().unwrap_or(0)
    }
}

impl Pipeline {
    /// Commits what is safe. Where a node has restarted nothing is: it is done again instead. What is consumed is written into
    /// the store first, and the question comes before the commit: what was there for longer than the lag when it was asked is
    /// there for good.
    pub(super) async fn commit(&mut self) -> Result<(), PipelineError> {
        if !self.note_consumed().await? {
            return Ok(());
        }
        match self.parts.nodes.look().await {
            Ok(Look::Same { asked }) => {
                let lag = self.parts.nodes.lag();
                let before_ms = self.uptime_ms(asked).saturating_sub(lag.as_millis() as u64);
                for (number, state) in &mut self.partitions {
                    state.tracker.settle(before_ms);
                    self.planner.settle(*number, state.tracker.safe());
                }
                self.notes.settle(asked, lag);
                self.commit_safe().await
            }
            Ok(Look::Restarted) => self.rewind().await,
            Err(error) if error.kind == ErrorKind::Fatal => Err(PipelineError::Store(error.to_string())),
            Err(error) => {
                tracing::warn!(%error, "nobody knows whether a node has restarted: nothing is committed");
                let why = format!("nobody knows whether a node of the store has restarted: {error}");
                self.parts.metrics.commit_failures.of(CommitFailure::Nodes).inc();
                self.commits.failed(&self.parts.health, why);
                Ok(())
            }
        }
    }

    /// Writes into the store what is consumed by now. `false`: it is not written, and nothing may be committed.
    async fn note_consumed(&mut self) -> Result<bool, PipelineError> {
        if let Modes::Rebuild(_) = self.parts.modes {
            return Ok(true);
        }
        let mut consumed = self.notes.last.clone();
        let compared = self.partitions.iter().filter(|(_, state)| state.compared);
        let validated = compared.map(|(number, state)| (number.unsigned_abs(), state.tracker.watermark()));
        consumed.raise(&Consumed { chain: 0, validated: validated.collect() });
        if consumed == self.notes.last {
            return Ok(true);
        }
        let why = match tokio::time::timeout(PATIENCE, self.parts.whole.note(&consumed)).await {
            Ok(Ok(())) => {
                self.notes.young.push_back((Instant::now(), consumed.clone()));
                self.notes.last = consumed;
                return Ok(true);
            }
            Ok(Err(error)) if !error.may_be_retried() => return Err(PipelineError::Store(error.to_string())),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {PATIENCE:?}"),
        };
        tracing::warn!(why, "what is consumed cannot be written into the store: nothing is committed");
        let why = format!("what is consumed cannot be written into the store: {why}");
        self.parts.metrics.commit_failures.of(CommitFailure::Store).inc();
        self.commits.failed(&self.parts.health, why);
        Ok(false)
    }

    /// Looks, beside the loop, whether the store is the one that the commits of a partition speak of; ends the pipeline where it
    /// is not. Until then nothing is said of the partition, neither to the store nor to the group.
    pub(super) fn compare_with_store(&mut self, assigned: &Assigned) {
        let partition = assigned.partition.partition;
        let Some(offset) = assigned.committed.as_ref().and_then(consumed_of) else { return };
        let committed = Consumed { chain: 0, validated: [(partition.unsigned_abs(), offset)].into() };
        let (whole, done) = (self.parts.whole.clone(), self.done_sender.clone());
        spawn("comparing the store with its group", &self.done_sender, async move {
            let answer = match until_compared(whole.as_ref(), &committed).await {
                Ok(()) => Done::Compared { partition, offset },
                Err(error) => Done::Fatal(PipelineError::Store(error.to_string())),
            };
            // A pipeline that has ended meanwhile asks again when it starts.
            let _ = done.send(answer);
        });
    }

    /// A node has forgotten: everything that is not committed is read and done again, under new epochs, so that no
    /// completion from before counts.
    pub(super) async fn rewind(&mut self) -> Result<(), PipelineError> {
        let store = |error: &dyn std::fmt::Display| PipelineError::Store(error.to_string());
        self.parts.metrics.node_restarts.inc();
        if let Modes::Rebuild(_) = self.parts.modes {
            return Err(store(&"a node restarted while the store was rebuilt: begin again, with an empty set"));
        }
        self.parts.nodes.meet().await.map_err(|error| store(&error))?;
        self.parts.whole.check().await.map_err(|error| store(&error))?;
        // What was written last may be among what is forgotten.
        self.notes = Notes::default();
        self.planner.abandon();
        self.dispatcher.give_all_up();
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
                        self.stay_halted(number, halt);
                    }
                }
                // It is being taken away, which is heard next.
                Err(error) if error.kind == BrokerErrorKind::NotAssigned => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.share_out();
        self.tell_halts();
        Ok(())
    }

    /// Commits every safe prefix that has grown, with what other instances need for their proofs.
    pub(super) async fn commit_safe(&mut self) -> Result<(), PipelineError> {
        let rebuild = matches!(self.parts.modes, Modes::Rebuild(_));
        let named = self.planner.named();
        let offsets: Vec<_> = self
            .partitions
            .iter()
            .filter_map(|(number, state)| {
                let partition = TopicPartition { topic: self.settings.topic.clone(), partition: *number };
                let noted = if rebuild { u64::MAX } else { self.notes.of(*number) };
                Some((partition, state.to_commit(noted, named.get(number).map_or(&[], Vec::as_slice))?))
            })
            .collect();
        if offsets.is_empty() {
            self.commits.succeeded(&self.parts.health);
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
                self.commits.succeeded(&self.parts.health);
            }
            Err(error) if error.kind == BrokerErrorKind::Fatal => return Err(error.into()),
            Err(error) => {
                tracing::warn!(%error, "offsets are not committed; tried again");
                self.parts.metrics.commit_failures.of(CommitFailure::Broker).inc();
                self.commits.failed(&self.parts.health, error);
            }
        }
        Ok(())
    }
}

/// Asks until the store answers.
pub(super) async fn until_compared(whole: &dyn WholeStore, committed: &Consumed) -> Result<(), MetaError> {
    loop {
        match whole.holds(committed).await {
            Err(error) if error.may_be_retried() => {
                tracing::warn!(%error, "whether the store is the group's is asked again");
                tokio::time::sleep(ASK_AGAIN).await;
            }
            answer => return answer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_may_be_committed_once_the_store_cannot_forget_it() {
        let consumed = |offset| Consumed { chain: 0, validated: [(3, offset)].into() };
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut notes = Notes::default();
        (1..=4).for_each(|n| notes.young.push_back((start + second * n, consumed(u64::from(n) * 10))));
        let mut settled = |at: u32| {
            notes.settle(start + second * at, 2 * second);
            (notes.of(3), notes.of(4), notes.young.len())
        };
        assert_eq!([settled(2), settled(3), settled(5), settled(9)], [(0, 0, 4), (10, 0, 3), (30, 0, 1), (40, 0, 0)]);
    }
}
