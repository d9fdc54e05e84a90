//! Commits what is safe, or reads everything else again where a node of the store has forgotten.

use super::{Pipeline, PipelineError};
use crate::{
    api::Condition,
    broker::{BrokerErrorKind, TopicPartition},
    engine::ErrorKind,
    ingest::replay::Modes,
    store::nodes::Look,
};

impl Pipeline {
    /// Commits what is safe. Where a node has restarted nothing is: it is done again instead. The question comes first:
    /// what was complete for longer than the lag when it was asked is in the store for good.
    pub(super) async fn commit(&mut self) -> Result<(), PipelineError> {
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
                let why = format!("nobody knows whether a node of the store has restarted: {error}");
                self.commits.failed(&self.parts.health, why);
                Ok(())
            }
        }
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
                        self.stay_halted(number, halt);
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
    pub(super) async fn commit_safe(&mut self) -> Result<(), PipelineError> {
        let offsets: Vec<_> = self
            .partitions
            .iter()
            .filter_map(|(number, state)| {
                let partition = TopicPartition { topic: self.settings.topic.clone(), partition: *number };
                Some((partition, state.to_commit()?))
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
                self.parts.metrics.commit_failures.inc();
                self.commits.failed(&self.parts.health, error);
            }
        }
        Ok(())
    }
}
