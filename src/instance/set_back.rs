//! Sets a group back, so that its instances read validated transactions again, into the store that has them.
//!
//! The committed offset is all that is written, and it is written before anything is read: so whoever is killed at any moment, and
//! whoever comes next, goes on where the group stands, and no event is left half done. (One that was applied without the group could
//! be: the fast path takes slots before it finds its own record contested, and gives nothing back.) Offsets are only lowered, and
//! only of a group without members, which its coordinator sees to.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{
    broker::{Broker, BrokerError, BrokerErrorKind, Committed, TopicPartition},
    group::partition::{begins_at, consumed_of},
    record::Consumed,
    sequencer::chain_group,
    store::meta::MetaError,
};

/// A place in every partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Position {
    /// The first message of this time or later, ms since the epoch; behind the last one where there is none.
    Time(i64),
    /// By partition; one that is not named is where the group has committed.
    Offsets(BTreeMap<i32, u64>),
    /// Where the group has committed.
    Committed,
    /// The end, as it is now.
    End,
}

/// What is read again of one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Range {
    /// Its number.
    pub partition: i32,
    /// The first offset.
    pub from: u64,
    /// Behind the last.
    pub until: u64,
    /// Where the group has committed.
    pub committed: u64,
}

/// Why a group is not set back.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SetBackError {
    /// Each reason.
    #[error("{}", .0.join("; "))]
    Refused(Vec<String>),
    /// The log.
    #[error(transparent)]
    Broker(#[from] BrokerError),
}

/// A group of instances and the topic of validated transactions that it reads.
#[derive(Debug, Clone, Copy)]
pub struct Reading<'a> {
    /// The topic.
    pub topic: &'a str,
    /// The group.
    pub group: &'a str,
}

impl Reading<'_> {
    /// Which of the groups have members, in words; none of them should.
    ///
    /// # Errors
    /// The broker does not answer.
    pub async fn members(&self, broker: &dyn Broker) -> Result<Vec<String>, BrokerError> {
        let mut found = Vec::new();
        for group in [self.group.to_owned(), chain_group(self.group)] {
            match broker.member_count(&group).await? {
                0 => {}
                running => found.push(format!(
                    "{running} of the instances of this store run (members of the consumer group {group}): stop them"
                )),
            }
        }
        Ok(found)
    }

    /// What is read again where the group is set back to `from`, up to `until`. Partitions that stand there already, or have nothing in
    /// between, are left out. `floor`: from below it nothing may be read into the store, as it was pruned.
    ///
    /// # Errors
    /// Something is not to be had, or must not be: each is named, with both places. Or the broker does not answer.
    pub async fn ranges(
        &self,
        broker: &dyn Broker,
        from: &Position,
        until: &Position,
        floor: &Consumed,
    ) -> Result<Vec<Range>, SetBackError> {
        let standings = self.standings(broker).await?;
        let (starts, ends) =
            (self.places(broker, from, &standings).await?, self.places(broker, until, &standings).await?);
        let mut refused = Vec::new();
        for position in [from, until] {
            let Position::Offsets(offsets) = position else { continue };
            let unknown = offsets.keys().filter(|number| !standings.iter().any(|one| one.partition == **number));
            refused.extend(unknown.map(|number| format!("topic {} has no partition {number}", self.topic)));
        }
        let mut ranges = Vec::new();
        for (standing, (start, end)) in standings.iter().zip(starts.into_iter().zip(ends)) {
            let floor = floor.validated.get(&standing.partition.unsigned_abs()).copied().unwrap_or(0);
            match standing.range(start, end, floor) {
                Ok(range) => ranges.extend(range),
                Err(why) => refused.push(format!("partition {}: {why}", standing.partition)),
            }
        }
        if refused.is_empty() { Ok(ranges) } else { Err(SetBackError::Refused(refused)) }
    }

    /// Sets the group back: each range's first offset is where it goes on.
    ///
    /// # Errors
    /// The group has members, or has moved since the ranges were made; nothing is changed then. Or the broker does not answer: then nobody
    /// knows, and the same may be asked again.
    pub async fn set_back(&self, broker: &dyn Broker, ranges: &[Range]) -> Result<(), SetBackError> {
        let partitions = self.partitions_of(ranges);
        for (range, now) in ranges.iter().zip(broker.committed(self.group, &partitions).await?) {
            let now = now.map_or(0, |committed| committed.offset);
            if now != range.committed {
                let Range { partition, committed, .. } = range;
                let moved = format!("partition {partition}: the group had committed {committed}, and {now} by now");
                return Err(SetBackError::Refused(vec![moved]));
            }
        }
        let offsets: Vec<(TopicPartition, Committed)> =
            partitions.into_iter().zip(ranges).map(|(at, range)| (at, begins_at(range.from))).collect();
        Ok(broker.set_committed(self.group, &offsets).await?)
    }

    /// What instances of the group have committed: its store has consumed as much.
    ///
    /// # Errors
    /// The broker does not answer.
    pub async fn consumed(&self, broker: &dyn Broker) -> Result<Consumed, BrokerError> {
        let count = broker.partitions(self.topic).await?.unwrap_or(0);
        let partitions: Vec<_> = (0..count).map(|partition| self.at(partition)).collect();
        let committed = (0..).zip(broker.committed(self.group, &partitions).await?);
        let validated = committed.filter_map(|(number, committed)| Some((number, consumed_of(&committed?)?))).collect();
        Ok(Consumed { chain: 0, validated })
    }

    /// How many messages of these ranges the group has not committed yet.
    ///
    /// # Errors
    /// The broker does not answer.
    pub async fn left(&self, broker: &dyn Broker, ranges: &[Range]) -> Result<u64, BrokerError> {
        let committed = broker.committed(self.group, &self.partitions_of(ranges)).await?;
        let left = ranges.iter().zip(committed).map(|(range, committed)| {
            let next = committed.map_or(0, |committed| committed.offset);
            range.until.saturating_sub(next.max(range.from))
        });
        Ok(left.sum())
    }

    fn partitions_of(&self, ranges: &[Range]) -> Vec<TopicPartition> {
        ranges.iter().map(|range| self.at(range.partition)).collect()
    }

    fn at(&self, partition: i32) -> TopicPartition {
        TopicPartition { topic: self.topic.into(), partition }
    }

    async fn standings(&self, broker: &dyn Broker) -> Result<Vec<Standing>, BrokerError> {
        let missing = || {
            let message = format!("topic {} does not exist", self.topic);
            BrokerError::new(BrokerErrorKind::Refused, "look up topic", message)
        };
        let count = broker.partitions(self.topic).await?.ok_or_else(missing)?;
        let partitions: Vec<_> = (0..count).map(|partition| self.at(partition)).collect();
        let committed = broker.committed(self.group, &partitions).await?;
        let mut standings = Vec::new();
        for (at, committed) in partitions.iter().zip(committed) {
            let (low, high) = broker.watermarks(at).await?;
            let committed = committed.map(|committed| committed.offset);
            standings.push(Standing { partition: at.partition, low, high, committed });
        }
        Ok(standings)
    }

    async fn places(
        &self,
        broker: &dyn Broker,
        position: &Position,
        standings: &[Standing],
    ) -> Result<Vec<Place>, BrokerError> {
        Ok(match position {
            Position::Time(time) => {
                let found = broker.offsets_at(self.topic, *time).await?;
                found.into_iter().map(|offset| offset.map_or(Place::End, Place::FirstSince)).collect()
            }
            Position::Offsets(offsets) => {
                let of = |number: i32| offsets.get(&number).map_or(Place::Committed, |offset| Place::Offset(*offset));
                standings.iter().map(|standing| of(standing.partition)).collect()
            }
            Position::Committed => vec![Place::Committed; standings.len()],
            Position::End => vec![Place::End; standings.len()],
        })
    }
}

/// A place in one partition.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// As it was asked for.
    Offset(u64),
    /// Of the first message there is since a time.
    FirstSince(u64),
    Committed,
    End,
}

/// How a partition stands.
struct Standing {
    partition: i32,
    low: u64,
    high: u64,
    committed: Option<u64>,
}

impl Standing {
    fn range(&self, from: Place, until: Place, floor: u64) -> Result<Option<Range>, String> {
        let &Standing { partition, low, high, .. } = self;
        let Some(committed) = self.committed else {
            return match from {
                Place::Offset(_) => {
                    Err("the group has committed nothing, so there is nothing to read again".to_owned())
                }
                _ => Ok(None),
            };
        };
        let at = |place: Place| match place {
            Place::Offset(offset) | Place::FirstSince(offset) => offset,
            Place::Committed => committed,
            Place::End => high,
        };
        let (start, end) = (at(from), at(until));
        match from {
            Place::Offset(offset) if offset > committed => {
                return Err(format!(
                    "the group has committed {committed}, and what lies between that and {offset} would be passed over: offsets are \
                     only set back"
                ));
            }
            Place::FirstSince(offset) if offset == low && low > 0 => {
                return Err(format!(
                    "the time to begin at is not behind that of the first message that the topic holds (offset {low}): what came before \
                     is gone, and some of it may belong to it (begin later, or name offsets)"
                ));
            }
            _ if start >= committed => return Ok(None),
            _ if start < low => {
                return Err(format!("it begins at offset {start}, and the topic holds {low} to {high}"));
            }
            _ if start < floor => {
                let what = format!("partition {partition} of the validated transactions");
                return Err(MetaError::BelowFloor { what, from: start, floor }.to_string());
            }
            _ => {}
        }
        if end > high {
            return Err(format!("it ends at offset {end}, and the topic holds {low} to {high}"));
        }
        if end < start {
            return Err(format!("it ends at offset {end}, before it begins ({start})"));
        }
        Ok((start < end).then_some(Range { partition, from: start, until: end, committed }))
    }
}

#[cfg(test)]
#[path = "set_back_tests.rs"]
mod tests;
