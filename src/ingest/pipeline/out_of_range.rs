//! Searches the partition whose next offset the topic does not hold; the broker does not say in which one.

use std::{collections::BTreeMap, sync::Arc};

use super::{PipelineError, partition_reads::PartitionReads};
use crate::{
    broker::{Broker, BrokerError, BrokerErrorKind},
    group::halt::offset_out_of_range,
};

/// An offset out of range whose partition is not found yet.
pub(super) struct OutOfRange {
    broker: Arc<dyn Broker>,
    /// The error, and the partitions that were assigned at its time, each with its epoch.
    pending: Option<(BrokerError, BTreeMap<i32, u64>)>,
}

impl OutOfRange {
    pub(super) fn new(broker: Arc<dyn Broker>) -> Self {
        OutOfRange { broker, pending: None }
    }

    /// Handles an offset out of range: the next offset of a partition is not in the topic any more, or not yet.
    /// Skipping it would lose events, so the partition halts. The partition is one of `assigned`, the partitions and
    /// epochs at the time of the error.
    pub(super) async fn on_error(
        &mut self,
        error: BrokerError,
        assigned: BTreeMap<i32, u64>,
        reads: &mut PartitionReads,
    ) -> Result<(), PipelineError> {
        if error.kind != BrokerErrorKind::OutOfRange || reads.ends_by_itself {
            return Err(error.into());
        }
        let mut found = false;
        for number in reads.member.partitions.numbers() {
            let Some(state) = reads.member.partitions.states.get(&number) else { continue };
            let position = state.tracker.position();
            let (low, high) = match self.broker.watermarks(&reads.member.partitions.place(number)).await {
                Ok(ends) => ends,
                Err(why) if why.kind == BrokerErrorKind::Retryable => {
                    tracing::warn!(
                        %error, %why,
                        "pipeline: cannot find the partition whose offset is out of range; retrying"
                    );
                    self.pending = Some((error, assigned));
                    return Ok(());
                }
                Err(why) => return Err(why.into()),
            };
            if let Some(why) = offset_out_of_range(position, low, high) {
                found = true;
                reads.halt(number, why);
            }
        }
        // The partition may have been revoked since: the next owner gets the same error.
        let now = reads.member.partitions.epochs();
        let all_assigned = assigned.iter().all(|(number, epoch)| now.get(number) == Some(epoch));
        if found || !all_assigned { Ok(()) } else { Err(error.into()) }
    }

    /// Searches again for the partition whose offset is out of range, if the broker has not answered yet.
    pub(super) async fn retry(&mut self, reads: &mut PartitionReads) -> Result<(), PipelineError> {
        match self.pending.take() {
            Some((error, assigned)) => self.on_error(error, assigned, reads).await,
            None => Ok(()),
        }
    }
}
