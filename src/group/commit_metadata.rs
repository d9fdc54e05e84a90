//! Metadata of the commits of validated transactions: the progress of a partition for the proofs of other instances,
//! and its halt. Reasons of halts that are found before any event is read.

use serde::{Deserialize, Serialize};

use crate::{
    broker::{Broker, BrokerError, CommittedOffset, MAX_COMMIT_METADATA, TopicPartition},
    group::missing_parent::PartitionView,
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
const MAX_HALT_REASON_BYTES: usize = MAX_COMMIT_METADATA - 512;

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
         read, or the commits of the group are gone; to continue without them, commit a first offset with \
         `kafka-consumer-groups --group {group} --reset-offsets` and start again"
    )
}

/// Returns the reason of a halt if the next offset is outside the offsets that the topic holds.
pub fn offset_out_of_range(next: u64, low: u64, high: u64) -> Option<String> {
    (!(low..=high).contains(&next)).then(|| format!("offset {next} is next, but the topic holds {low} to {high}"))
}

/// Metadata of a commit, as JSON. Unknown fields of later versions are ignored; fields that an earlier version did not
/// write are absent.
#[derive(Serialize, Deserialize)]
pub(super) struct CommitMetadata {
    #[serde(flatten)]
    pub(super) view: PartitionView,
    #[serde(rename = "halt", default, skip_serializing_if = "Option::is_none")]
    pub(super) halted: Option<Halt>,
}

impl CommitMetadata {
    /// Parses the metadata of a commit. `None`: the metadata is not an instance's.
    pub(super) fn parse(committed: &CommittedOffset) -> Option<Self> {
        serde_json::from_str(&committed.metadata).ok()
    }

    pub(super) fn to_metadata(&self) -> String {
        serde_json::to_string(self).unwrap_or_else(|_| unreachable!("numbers and text always serialise"))
    }
}

/// Returns the committed offset if an instance has written the commit. `None`: an operator has committed the offset.
pub fn committed_by_instance(committed: &CommittedOffset) -> Option<u64> {
    CommitMetadata::parse(committed).map(|_| committed.offset)
}

/// Returns the commit for a group that is set back to `offset`: no event from this offset on is completed, and none was
/// read. The commit counts as one of an instance, as the store has consumed at least `offset`. The commit lets no
/// parent be proven missing in the partition until the partition is read again, and the commit lifts a halt.
pub fn reset_commit(offset: u64) -> CommittedOffset {
    let view = PartitionView {
        oldest_unfinished: Some((i64::MIN, offset)),
        waiting: None,
        read_timestamp_ms: i64::MIN,
        position: offset,
        at_end: false,
        over_limit: false,
    };
    CommittedOffset { offset, metadata: CommitMetadata { view, halted: None }.to_metadata() }
}

/// Returns the progress in the metadata of a commit.
pub(super) fn parse_view(committed: &CommittedOffset) -> Option<PartitionView> {
    CommitMetadata::parse(committed).map(|metadata| metadata.view)
}

/// Reads the progress of a partition that another instance, or no instance, has.
///
/// Old metadata shows less progress than there is, never more. A partition whose committed offset is its end has
/// no unfinished event.
///
/// # Errors
/// The broker does not answer.
pub async fn read_foreign_view(
    broker: &dyn Broker,
    partition: &TopicPartition,
    committed: Option<CommittedOffset>,
) -> Result<PartitionView, BrokerError> {
    let (_, high) = broker.watermarks(partition).await?;
    let view = view_of_commit(committed.as_ref());
    let next = committed.map_or(0, |committed| committed.offset);
    Ok(match next < high {
        // The end may have moved since the commit.
        true => PartitionView { at_end: view.position >= high, ..view },
        false => PartitionView { oldest_unfinished: None, at_end: true, ..unknown_view(next) },
    })
}

/// Returns the progress of a partition that another instance, or no instance, has, as the commit alone shows it: the
/// partition counts as not read to its end.
pub fn view_of_commit(committed: Option<&CommittedOffset>) -> PartitionView {
    let next = committed.map_or(0, |committed| committed.offset);
    match committed.and_then(parse_view) {
        Some(view) => PartitionView { at_end: false, ..view },
        None => unknown_view(next),
    }
}

/// Returns the progress of a partition of which only the next offset is known.
fn unknown_view(next: u64) -> PartitionView {
    PartitionView {
        oldest_unfinished: Some((i64::MIN, next)),
        waiting: None,
        read_timestamp_ms: i64::MIN,
        position: next,
        at_end: false,
        over_limit: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_halt_reason_of_any_length_fits_into_a_commit() {
        let view = PartitionView {
            oldest_unfinished: Some((i64::MIN, u64::MAX)),
            waiting: None,
            read_timestamp_ms: i64::MIN,
            at_end: false,
            over_limit: false,
            position: u64::MAX,
        };
        let reason_after = |why: String, view: &PartitionView| {
            let view = view.clone();
            let halted = Some(Halt { why, since_ms: u64::MAX }.truncated_for_commit());
            let metadata = CommitMetadata { view, halted }.to_metadata();
            assert!(metadata.len() <= MAX_COMMIT_METADATA, "{} bytes", metadata.len());
            Halt::from_commit(&CommittedOffset { offset: 0, metadata }).unwrap().why
        };
        for letter in ["x", "ü", "₿", "\"", "\n", "\u{1}", "\u{7f}", "🚀"] {
            let each = serde_json::to_string(letter).unwrap().len() - 2;
            let most = letter.repeat(MAX_HALT_REASON_BYTES / each);
            assert_eq!(reason_after(most.clone(), &view), most, "the whole reason fits");
            let cut = reason_after(letter.repeat(MAX_HALT_REASON_BYTES / each + 1), &view);
            assert!(cut.ends_with('…') && cut.starts_with(&letter.repeat((MAX_HALT_REASON_BYTES - 3) / each)), "{cut}");
            let shorter = PartitionView { oldest_unfinished: None, position: 1, ..view.clone() };
            assert_eq!(
                reason_after(letter.repeat(9_000), &shorter),
                reason_after(letter.repeat(9_000), &view),
                "whatever the other metadata"
            );
            assert_eq!(reason_after(cut.clone(), &view), cut, "a cut reason is not cut again");
        }
    }

    #[test]
    fn metadata_of_other_versions_can_be_read() {
        let committed = |metadata: &str| CommittedOffset { offset: 3, metadata: metadata.into() };
        let before = committed(r#"{"oldest":[7,3],"read":9,"end":true,"bound":false,"pos":5}"#);
        assert_eq!(parse_view(&before).map(|view| (view.position, view.oldest_unfinished)), Some((5, Some((7, 3)))));
        assert_eq!(Halt::from_commit(&before), None);
        let after = committed(r#"{"read":9,"pos":5,"halt":{"why":"x","since":4,"by":"y"},"more":[1]}"#);
        assert_eq!(parse_view(&after).map(|view| view.position), Some(5));
        assert_eq!(Halt::from_commit(&after), Some(Halt { why: "x".into(), since_ms: 4 }));
    }
}
