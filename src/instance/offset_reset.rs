//! Resets the committed offsets of a group, so that its instances read validated transactions again into their store.
//!
//! Only committed offsets are written, before anything is read again. After a kill at any moment the next instance
//! resumes at the committed offsets, and no event stays half applied. (An event that is applied outside the group
//! could: the fast path takes slots before it finds its own record contested, and frees none.) Offsets are only
//! lowered, and only for a group without members, which the group coordinator enforces.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{
    broker::{
        Broker, BrokerError, CommittedOffset, TopicPartition,
        committed::{GroupPosition, read_committed, read_positions},
    },
    group::commit_metadata::{committed_by_instance, reset_commit},
    record::ConsumedOffsets,
    sequencer::chain_group,
    store::meta::MetaError,
};

/// A bound of a range to read again, in every partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RereadBound {
    /// Offset of the first message of this time or later, ms since the epoch; the end offset where there is none.
    Time(i64),
    /// Offset by partition; the committed offset for a partition that is not listed.
    Offsets(BTreeMap<i32, u64>),
    /// The committed offset of the group.
    Committed,
    /// The end offset of now.
    End,
}

/// Offsets of one partition that are read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct RereadRange {
    /// Number of the partition in its topic.
    pub partition: i32,
    /// First offset that is read again.
    pub from: u64,
    /// Offset behind the last one that is read again.
    pub until: u64,
    /// Committed offset of the group before the reset.
    pub committed: u64,
}

/// Reason why offsets are not reset.
#[derive(Debug, Clone, thiserror::Error)]
pub enum OffsetResetError {
    /// Refusals, one text for each reason.
    #[error("{}", .0.join("; "))]
    Refused(Vec<String>),
    /// A request to the brokers failed.
    #[error(transparent)]
    Broker(#[from] BrokerError),
}

/// Describes the members of a group, which must stop; `None`: the group has no members.
///
/// # Errors
/// The broker does not answer.
pub async fn describe_members(broker: &dyn Broker, group: &str) -> Result<Option<String>, BrokerError> {
    let running = broker.member_count(group).await?;
    Ok((running > 0).then(|| {
        format!("{running} of the instances of this store run (members of the consumer group {group}): stop them")
    }))
}

/// A group of instances and the topic of validated transactions that it reads.
#[derive(Debug, Clone, Copy)]
pub struct OffsetReset<'a> {
    /// Name of the topic of validated transactions.
    pub topic: &'a str,
    /// Name of the consumer group of the validated transactions.
    pub group: &'a str,
}

impl OffsetReset<'_> {
    /// Describes each of the two groups that still has members: a reset needs groups without members.
    ///
    /// # Errors
    /// The broker does not answer.
    pub async fn describe_members(&self, broker: &dyn Broker) -> Result<Vec<String>, BrokerError> {
        let mut found = Vec::new();
        for group in [self.group, &chain_group(self.group)] {
            found.extend(describe_members(broker, group).await?);
        }
        Ok(found)
    }

    /// Plans a reset of the group to `from`: returns the offsets that are then read again, up to `until`. A partition
    /// with a committed offset at or below `from`, or without messages in the range, is left out. `floor`: the replay
    /// floor of the store, which was pruned.
    ///
    /// # Errors
    /// A bound is outside the topic, above the committed offset, or below the floor: each is named, with both offsets.
    /// Or the broker does not answer.
    pub async fn plan_ranges(
        &self,
        broker: &dyn Broker,
        from: &RereadBound,
        until: &RereadBound,
        floor: &ConsumedOffsets,
    ) -> Result<Vec<RereadRange>, OffsetResetError> {
        let positions = read_positions(broker, self.group, self.topic).await?;
        let starts = self.partition_bounds(broker, from, &positions).await?;
        let ends = self.partition_bounds(broker, until, &positions).await?;
        let mut refused = Vec::new();
        for bound in [from, until] {
            let RereadBound::Offsets(offsets) = bound else { continue };
            let is_known = |number: i32| positions.iter().any(|position| position.at.partition == number);
            let unknown = offsets.keys().filter(|number| !is_known(**number));
            refused.extend(unknown.map(|number| format!("topic {} has no partition {number}", self.topic)));
        }
        let mut ranges = Vec::new();
        for (position, (start, end)) in positions.iter().zip(starts.into_iter().zip(ends)) {
            let floor = floor.validated.get(&position.at.partition.unsigned_abs()).copied().unwrap_or(0);
            match plan_range(position, start, end, floor) {
                Ok(range) => ranges.extend(range),
                Err(why) => refused.push(format!("partition {}: {why}", position.at.partition)),
            }
        }
        if refused.is_empty() { Ok(ranges) } else { Err(OffsetResetError::Refused(refused)) }
    }

    /// Commits the first offset of each range for the group.
    ///
    /// # Errors
    /// The group has members, or has committed other offsets since the ranges were planned: nothing is changed. Or the
    /// broker does not answer: the result is unknown, and the call can be repeated.
    pub async fn reset_offsets(&self, broker: &dyn Broker, ranges: &[RereadRange]) -> Result<(), OffsetResetError> {
        let partitions = self.partitions_of(ranges);
        for (range, now) in ranges.iter().zip(broker.committed(self.group, &partitions).await?) {
            let now = now.map_or(0, |committed| committed.offset);
            if now != range.committed {
                let RereadRange { partition, committed, .. } = range;
                let moved =
                    format!("partition {partition}: the group had committed {committed}, and commits {now} now");
                return Err(OffsetResetError::Refused(vec![moved]));
            }
        }
        let offsets: Vec<(TopicPartition, CommittedOffset)> =
            partitions.into_iter().zip(ranges).map(|(at, range)| (at, reset_commit(range.from))).collect();
        Ok(broker.set_committed(self.group, &offsets).await?)
    }

    /// Returns the offsets that instances of the group have committed: the store of the group has consumed them.
    ///
    /// # Errors
    /// The broker does not answer.
    pub async fn consumed_offsets(&self, broker: &dyn Broker) -> Result<ConsumedOffsets, BrokerError> {
        let committed = read_committed(broker, self.group, self.topic).await?.into_iter();
        let validated = committed
            .filter_map(|(at, committed)| Some((at.partition.unsigned_abs(), committed_by_instance(&committed?)?)));
        Ok(ConsumedOffsets { validated: validated.collect(), ..ConsumedOffsets::default() })
    }

    /// Counts the messages of these ranges above the committed offsets of the group.
    ///
    /// # Errors
    /// The broker does not answer.
    pub async fn count_left(&self, broker: &dyn Broker, ranges: &[RereadRange]) -> Result<u64, BrokerError> {
        let committed = broker.committed(self.group, &self.partitions_of(ranges)).await?;
        let left = ranges.iter().zip(committed).map(|(range, committed)| {
            let next = committed.map_or(0, |committed| committed.offset);
            range.until.saturating_sub(next.max(range.from))
        });
        Ok(left.sum())
    }

    fn partitions_of(&self, ranges: &[RereadRange]) -> Vec<TopicPartition> {
        ranges.iter().map(|range| self.at(range.partition)).collect()
    }

    fn at(&self, partition: i32) -> TopicPartition {
        TopicPartition { topic: self.topic.into(), partition }
    }

    async fn partition_bounds(
        &self,
        broker: &dyn Broker,
        bound: &RereadBound,
        positions: &[GroupPosition],
    ) -> Result<Vec<PartitionBound>, BrokerError> {
        Ok(match bound {
            RereadBound::Time(time) => {
                let found = broker.offsets_at(self.topic, *time).await?;
                found.into_iter().map(|offset| offset.map_or(PartitionBound::End, PartitionBound::FirstSince)).collect()
            }
            RereadBound::Offsets(offsets) => {
                let bound_of = |position: &GroupPosition| match offsets.get(&position.at.partition) {
                    Some(offset) => PartitionBound::Offset(*offset),
                    None => PartitionBound::Committed,
                };
                positions.iter().map(bound_of).collect()
            }
            RereadBound::Committed => vec![PartitionBound::Committed; positions.len()],
            RereadBound::End => vec![PartitionBound::End; positions.len()],
        })
    }
}

/// A bound in one partition.
#[derive(Debug, Clone, Copy)]
enum PartitionBound {
    /// An offset that the caller named.
    Offset(u64),
    /// Offset of the first message since a time.
    FirstSince(u64),
    Committed,
    End,
}

/// Plans the range of one partition; `None`: nothing is read again.
fn plan_range(
    position: &GroupPosition,
    from: PartitionBound,
    until: PartitionBound,
    floor: u64,
) -> Result<Option<RereadRange>, String> {
    let &GroupPosition { low, high, .. } = position;
    let partition = position.at.partition;
    let Some(committed) = position.committed.as_ref().map(|committed| committed.offset) else {
        return match from {
            PartitionBound::Offset(_) => {
                Err("the group has committed nothing, so there is nothing to read again".to_owned())
            }
            _ => Ok(None),
        };
    };
    let offset_of = |bound: PartitionBound| match bound {
        PartitionBound::Offset(offset) | PartitionBound::FirstSince(offset) => offset,
        PartitionBound::Committed => committed,
        PartitionBound::End => high,
    };
    let (start, end) = (offset_of(from), offset_of(until));
    match from {
        PartitionBound::Offset(offset) if offset > committed => {
            return Err(format!(
                "the group has committed {committed}, and the events between that and {offset} would be skipped: \
                 offsets are only lowered"
            ));
        }
        PartitionBound::FirstSince(offset) if offset == low && low > 0 => {
            return Err(format!(
                "the time to begin at is not after the time of the first message that the topic holds (offset \
                 {low}): earlier messages are gone, and some may belong to the range (begin later, or name offsets)"
            ));
        }
        _ if start >= committed => return Ok(None),
        _ if start < low => {
            return Err(format!("the range begins at offset {start}, but the topic holds {low} to {high}"));
        }
        _ if start < floor => {
            let what = format!("partition {partition} of the validated transactions");
            return Err(MetaError::BelowFloor { what, from: start, floor }.to_string());
        }
        _ => {}
    }
    if end > high {
        return Err(format!("the range ends at offset {end}, but the topic holds {low} to {high}"));
    }
    if end < start {
        return Err(format!("the range ends at offset {end}, before it begins ({start})"));
    }
    Ok((start < end).then_some(RereadRange { partition, from: start, until: end, committed }))
}

#[cfg(test)]
#[path = "offset_reset_tests.rs"]
mod tests;
