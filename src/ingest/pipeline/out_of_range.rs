//! Searches the partition whose next offset the topic does not hold; the broker does not say in which one.

use std::collections::BTreeMap;

use super::{PipelineError, partition_reads::PartitionReads};
use crate::{
    broker::{BrokerError, BrokerErrorKind},
    group::commit_metadata::offset_out_of_range,
};

impl PartitionReads {
    /// Handles an offset out of range: the next offset of a partition is not in the topic any more, or not yet.
    /// Skipping it would lose events, so the partition halts. The partition is one of `assigned`, the partitions and
    /// epochs at the time of the error.
    pub(super) async fn on_out_of_range(
        &mut self,
        error: BrokerError,
        assigned: BTreeMap<i32, u64>,
    ) -> Result<(), PipelineError> {
        if error.kind != BrokerErrorKind::OutOfRange || self.ends_by_itself {
            return Err(error.into());
        }
        let mut found = false;
        for number in self.member.partitions.numbers() {
            let Some(state) = self.member.partitions.states.get(&number) else { continue };
            let position = state.tracker.position();
            let (low, high) = match self.member.services.broker.watermarks(&self.member.partitions.place(number)).await
            {
                Ok(ends) => ends,
                Err(why) if why.kind == BrokerErrorKind::Retryable => {
                    tracing::warn!(
                        %error, %why,
                        "pipeline: cannot find the partition whose offset is out of range; retrying"
                    );
                    self.out_of_range = Some((error, assigned));
                    return Ok(());
                }
                Err(why) => return Err(why.into()),
            };
            if let Some(why) = offset_out_of_range(position, low, high) {
                found = true;
                self.halt(number, why);
            }
        }
        // The partition may have been revoked since: the next owner gets the same error.
        let now = self.member.partitions.epochs();
        let all_assigned = assigned.iter().all(|(number, epoch)| now.get(number) == Some(epoch));
        if found || !all_assigned { Ok(()) } else { Err(error.into()) }
    }

    /// Searches again for the partition whose offset is out of range, if the broker has not answered yet.
    pub(super) async fn retry_out_of_range(&mut self) -> Result<(), PipelineError> {
        match self.out_of_range.take() {
            Some((error, assigned)) => self.on_out_of_range(error, assigned).await,
            None => Ok(()),
        }
    }
}
