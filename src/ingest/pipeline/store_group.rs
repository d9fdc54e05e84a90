//! Compares the store with the offsets that its group has committed.

use std::time::Duration;

use tokio::sync::mpsc;

use super::PipelineServices;
use crate::{
    broker::AssignedPartition,
    group::commit_metadata::committed_by_instance,
    ingest::dispatch::{TaskMessage, spawn},
    record::ConsumedOffsets,
    store::{meta::MetaError, ownership::StoreOwnership},
};

/// Pause between two comparisons with a store that does not answer.
const COMPARE_RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Compares, beside the loop, the store with the committed offset of an assigned partition; another store ends the
/// pipeline. Until the answer no offset of the partition is recorded or committed.
pub(super) fn compare_with_store(
    assigned: &AssignedPartition,
    services: &PipelineServices,
    sender: &mpsc::UnboundedSender<TaskMessage>,
) {
    let partition = assigned.partition.partition;
    let Some(offset) = assigned.committed.as_ref().and_then(committed_by_instance) else { return };
    let validated = [(partition.unsigned_abs(), offset)].into();
    let committed = ConsumedOffsets { validated, ..ConsumedOffsets::default() };
    let (whole, messages) = (services.whole.clone(), sender.clone());
    spawn("comparing the store with its group", sender, async move {
        let answer = match compare_until_answered(whole.as_ref(), &committed).await {
            Ok(()) => TaskMessage::StoreCompared { partition, offset },
            Err(error) => TaskMessage::Fatal(error.into()),
        };
        // A pipeline that has ended compares again at its next start.
        let _ = messages.send(answer);
    });
}

/// Compares until the store answers.
pub(super) async fn compare_until_answered(
    whole: &dyn StoreOwnership,
    committed: &ConsumedOffsets,
) -> Result<(), MetaError> {
    loop {
        match whole.verify_covers(committed).await {
            Err(error) if error.may_be_retried() => {
                tracing::warn!(%error, "pipeline: cannot compare the store with its group; retrying");
                tokio::time::sleep(COMPARE_RETRY_PAUSE).await;
            }
            answer => return answer,
        }
    }
}
