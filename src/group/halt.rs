//! Halts of partitions, and the reasons that are found before any event is read.

use serde::{Deserialize, Serialize};

use crate::{
    broker::{CommittedOffset, MAX_COMMIT_METADATA},
    group::commit_metadata::CommitMetadata,
    text::truncate_for_json,
};

/// The halt of a partition, until an operator acts. The halt is part of the commit's metadata, so that a rebalance does
/// not lift it: only a retry by an operator or an instance that is started after the halt tries again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Halt {
    /// Reason of the halt, in one line.
    pub why: String,
    /// Time of the halt, ms since the epoch.
    #[serde(rename = "since")]
    pub since_ms: u64,
}

/// Bytes of a commit's metadata that the reason of a halt may take, written as JSON. All other metadata always fits
/// into the remaining 512 bytes. So the reason is cut at the same place in every commit, and a repeated commit carries
/// the same halt.
pub(super) const MAX_HALT_REASON_BYTES: usize = MAX_COMMIT_METADATA - 512;

impl Halt {
    /// Returns the halt with a reason that fits into a commit. The broker would refuse longer metadata, and with it
    /// every later commit of the partition.
    pub(super) fn truncated_for_commit(&self) -> Halt {
        Halt { why: truncate_for_json(&self.why, MAX_HALT_REASON_BYTES).into_owned(), since_ms: self.since_ms }
    }

    /// Reads the halt from the metadata of a commit.
    pub fn from_commit(committed: &CommittedOffset) -> Option<Halt> {
        CommitMetadata::parse(committed)?.halted
    }
}

/// Reason of the halt of a partition whose first events were deleted by retention before the group had committed an
/// offset of the partition.
pub fn never_read_reason(group: &str, low: u64) -> String {
    format!(
        "the topic no longer holds offsets 0 to {low}, and the group has committed nothing: these offsets were never \
         read; to continue without them, commit a first offset with `kafka-consumer-groups --group {group} \
         --reset-offsets` and start again"
    )
}

/// Returns the reason of a halt if the next offset is outside the offsets that the topic holds.
pub fn offset_out_of_range(next: u64, low: u64, high: u64) -> Option<String> {
    (!(low..=high).contains(&next)).then(|| format!("offset {next} is next, but the topic holds {low} to {high}"))
}
