//! When is a parent *missing*? By proof, not by a guess (`DESIGN.md` section 3).
//!
//! A parent's event precedes its child's in time. So a parent that is not there will never come once no older event
//! is unfinished anywhere and everything that could be older has been read.

use serde::{Deserialize, Serialize};

/// Position of an event in the order that decides: timestamp, partition, offset.
pub type EventOrder = (i64, i32, u64);

/// What is known of one partition of validated transactions, of this instance or (from the metadata of its last commit)
/// of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionView {
    /// Timestamp and offset of its first unfinished event.
    #[serde(rename = "oldest", default, skip_serializing_if = "Option::is_none")]
    pub oldest_unfinished: Option<(i64, u64)>,
    /// Greatest timestamp read.
    #[serde(rename = "read")]
    pub read_timestamp_ms: i64,
    /// Read to its end.
    #[serde(rename = "end", default)]
    pub at_end: bool,
    /// Read to its parking bound, and paused there.
    #[serde(rename = "bound", default)]
    pub at_bound: bool,
    /// Offset of the next event to be read: whoever has the partition next reads everything below it again.
    #[serde(rename = "pos", default)]
    pub position: u64,
}

/// What is known of the chain (and of the topics that are fed into it).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChainView {
    /// Handled to its end.
    AtEnd,
    /// Timestamp of the first event that has not been handled.
    Behind(i64),
    /// It moves, or cannot be read: nobody has looked what is next.
    Unknown,
}

/// What an unfinished event of the same millisecond in another partition means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ties {
    /// It may be the parent: milliseconds are coarse, and partitions have no order in time.
    Wait,
    /// The order of partitions decides: somebody has to be first, or two that wait would wait for each other.
    Break,
}

/// Whether an absent parent of `event` is proven never to have been produced before it.
///
/// `partitions` must hold every partition of the topic, `event`'s own too.
pub fn proves_missing(
    event: EventOrder,
    ties: Ties,
    partitions: &[(i32, PartitionView)],
    chain: ChainView,
    grace_ms: i64,
) -> bool {
    let past = event.0.saturating_add(grace_ms);
    let chain_passed = match chain {
        ChainView::AtEnd => true,
        ChainView::Behind(timestamp_ms) => timestamp_ms > past,
        ChainView::Unknown => false,
    };
    chain_passed
        && partitions.iter().all(|(number, view)| {
            let nothing_older = view.oldest_unfinished.is_none_or(|(timestamp_ms, offset)| {
                let tie = timestamp_ms == event.0 && *number != event.1;
                (timestamp_ms, *number, offset) >= event && !(tie && ties == Ties::Wait)
            });
            let read_past = *number == event.1 || view.at_end || view.at_bound || view.read_timestamp_ms > past;
            nothing_older && read_past
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENT: EventOrder = (1_000, 1, 7);
    const GRACE: i64 = 60;

    fn view(oldest: Option<(i64, u64)>, read: i64) -> PartitionView {
        PartitionView {
            oldest_unfinished: oldest,
            read_timestamp_ms: read,
            position: 0,
            at_end: false,
            at_bound: false,
        }
    }

    #[test]
    fn the_oldest_event_of_all_is_proven_once_the_others_were_read_past_it() {
        let own = (1, view(Some((1_000, 7)), 1_000));
        let proven = |other: PartitionView, chain| proves_missing(EVENT, Ties::Break, &[(0, other), own], chain, GRACE);
        assert!(proven(view(None, 1_061), ChainView::AtEnd));
        assert!(!proven(view(None, 1_060), ChainView::AtEnd), "not past the grace");
        assert!(proven(PartitionView { at_end: true, ..view(None, 0) }, ChainView::AtEnd));
        assert!(proven(PartitionView { at_bound: true, ..view(Some((1_001, 0)), 900) }, ChainView::AtEnd));
        assert!(!proven(PartitionView { at_end: true, ..view(Some((999, 3)), 0) }, ChainView::AtEnd), "an older one");
        assert!(
            !proven(PartitionView { at_end: true, ..view(Some((1_000, 3)), 0) }, ChainView::AtEnd),
            "tie: partition"
        );
        assert!(proven(view(None, 1_061), ChainView::Behind(1_061)));
        assert!(!proven(view(None, 1_061), ChainView::Behind(1_060)), "a coinbase may be on its way");
        assert!(!proven(view(None, 1_061), ChainView::Unknown));
    }

    #[test]
    fn an_older_unfinished_event_in_its_own_partition_stands_before_it() {
        for ties in [Ties::Wait, Ties::Break] {
            let proven = |offset| {
                proves_missing(EVENT, ties, &[(1, view(Some((1_000, offset)), 1_000))], ChainView::AtEnd, GRACE)
            };
            assert!(!proven(6));
            assert!(proven(7));
        }
    }

    #[test]
    fn one_of_the_same_millisecond_may_be_the_parent_until_somebody_has_to_be_first() {
        let own = (1, view(Some((1_000, 7)), 1_000));
        let other =
            |partition, timestamp_ms| (partition, PartitionView { at_end: true, ..view(Some((timestamp_ms, 3)), 0) });
        for (other, waiting, breaking) in
            [(other(2, 1_000), false, true), (other(0, 1_000), false, false), (other(2, 1_001), true, true)]
        {
            let proven = |ties| proves_missing(EVENT, ties, &[other, own], ChainView::AtEnd, GRACE);
            assert_eq!((proven(Ties::Wait), proven(Ties::Break)), (waiting, breaking), "{other:?}");
        }
    }
}
