//! When is a parent *missing*? By proof, not by a guess (`DESIGN.md` section 3).
//!
//! A parent's event precedes its child's in time, and lies in the partition of its own id. So a parent that is not there will never
//! come once nothing older is unfinished in that partition (but what is known by name, and is somebody else) and everything that
//! could be older has been read there.

use serde::{Deserialize, Serialize};

use crate::{broker::BrokerError, tx::Txid};

/// Position of an event in the order that decides: timestamp, partition, offset.
pub type EventOrder = (i64, i32, u64);

/// What is known of one partition of validated transactions, of this instance or (from the metadata of its last commit)
/// of another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionView {
    /// Timestamp and offset of its first unfinished event.
    #[serde(rename = "oldest", default, skip_serializing_if = "Option::is_none")]
    pub oldest_unfinished: Option<(i64, u64)>,
    /// The oldest of those that wait themselves, where any do: who is known by name is nobody else's parent.
    #[serde(rename = "wait", default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<Waiting>,
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

/// Unfinished events that are known by name, and the others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// Timestamp, offset and [`Name`] of each; [`MOST_NAMED`] at the most.
    pub named: Vec<(i64, u64, Name)>,
    /// Timestamp and offset of the first unfinished event that is not among them.
    #[serde(rename = "rest", default, skip_serializing_if = "Option::is_none")]
    pub oldest_of_rest: Option<(i64, u64)>,
}

/// Events that are named at the most: a commit has room for 4,096 bytes of metadata, and each takes some fifty.
pub const MOST_NAMED: usize = 24;

/// The beginning of a transaction's id: should two have the same, one waits for the other.
pub type Name = u64;

/// The name of a transaction.
pub fn name_of(txid: &Txid) -> Name {
    txid.0.iter().take(8).fold(0, |name, byte| name << 8 | u64::from(*byte))
}

impl PartitionView {
    /// Whether an event of the transaction of that name is known to wait in the partition.
    fn is_known_to_wait(&self, name: Name) -> bool {
        self.waiting.iter().flat_map(|waiting| &waiting.named).any(|(.., other)| *other == name)
    }

    /// The oldest unfinished event that may be the transaction of that name.
    fn oldest_that_may_be(&self, name: Name) -> Option<(i64, u64)> {
        match &self.waiting {
            // What lies beyond the bound is younger than what is unfinished before it: than all of it.
            Some(waiting) if !self.at_bound => {
                let named = waiting.named.iter().filter(|(.., other)| *other == name);
                named.map(|(timestamp_ms, offset, _)| (*timestamp_ms, *offset)).chain(waiting.oldest_of_rest).min()
            }
            _ => self.oldest_unfinished,
        }
    }
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

/// How long an absent parent has been in question decides what still stands for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ties {
    /// An unfinished event of the same millisecond in another partition may be the parent: milliseconds are coarse, and
    /// partitions have no order in time.
    Wait,
    /// The order of partitions decides between events of one millisecond that nobody knows by name: otherwise two
    /// transactions could wait for each other. A parent that is known to wait is waited for, whatever its event's
    /// place.
    Break,
    /// A parent that is known to wait, and whose event is not older, counts as missing, too: the child may be what
    /// keeps the parent from being decided.
    BreakKnown,
}

/// After this many graces a parent that is known to wait counts as missing, if its event is not older than that of its
/// child. A wait for a lock ends before. So does the time that a block waits (`sequencer.block_wait_ms`, ten graces).
const GRACES_FOR_KNOWN: u64 = 5;
/// The grace that is counted at least: without a grace a known parent is waited for all the same.
const LEAST_GRACE_MS: u64 = 1_000;

impl Ties {
    /// The value for a parent that has been in question for `waited_ms`. `at_bound`: the partition of the child, or
    /// that of a parent, reads no further until an event of it ends, and may hold back what that event waits for.
    pub fn after(waited_ms: u64, grace_ms: u64, at_bound: bool) -> Self {
        match waited_ms {
            _ if waited_ms < grace_ms => Ties::Wait,
            _ if at_bound => Ties::BreakKnown,
            _ if waited_ms >= grace_ms.max(LEAST_GRACE_MS).saturating_mul(GRACES_FOR_KNOWN) => Ties::BreakKnown,
            _ => Ties::Break,
        }
    }
}

/// Whether the absent `parent` of `event` is proven never to have been produced before it. `view` is that of the parent's partition,
/// whose number comes with it.
pub fn proves_missing(
    event: EventOrder,
    parent: Name,
    ties: Ties,
    (number, view): (i32, &PartitionView),
    chain: ChainView,
    grace_ms: i64,
) -> bool {
    let past = event.0.saturating_add(grace_ms);
    let chain_passed = match chain {
        ChainView::AtEnd => true,
        ChainView::Behind(timestamp_ms) => timestamp_ms > past,
        ChainView::Unknown => false,
    };
    let nothing_older = view.oldest_that_may_be(parent).is_none_or(|(timestamp_ms, offset)| {
        let tie = timestamp_ms == event.0 && number != event.1;
        (timestamp_ms, number, offset) >= event && !(tie && ties == Ties::Wait)
    });
    if ties < Ties::BreakKnown && view.is_known_to_wait(parent) {
        return false;
    }
    // What lies beyond the bound is younger only as far as timestamps are in order: nobody believes that before its grace is over.
    let is_at_bound = view.at_bound && ties > Ties::Wait;
    let read_past = number == event.1 || view.at_end || is_at_bound || view.read_timestamp_ms > past;
    chain_passed && nothing_older && read_past
}

/// Tells how far the sequencer of any instance has handled the chain.
#[async_trait::async_trait]
pub trait ChainProgress: Send + Sync {
    /// The chain as of now.
    ///
    /// # Errors
    /// The broker does not answer.
    async fn view(&self) -> Result<ChainView, BrokerError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENT: EventOrder = (1_000, 1, 7);
    const GRACE: i64 = 60;
    const PARENT: Name = 5;

    fn view(oldest: Option<(i64, u64)>, read: i64) -> PartitionView {
        PartitionView {
            oldest_unfinished: oldest,
            waiting: None,
            read_timestamp_ms: read,
            position: 0,
            at_end: false,
            at_bound: false,
        }
    }

    fn proven(ties: Ties, number: i32, view: PartitionView, chain: ChainView) -> bool {
        proves_missing(EVENT, PARENT, ties, (number, &view), chain, GRACE)
    }

    #[test]
    fn the_oldest_event_of_all_is_proven_once_the_parents_partition_was_read_past_it() {
        let proven = |view, chain| proven(Ties::Break, 0, view, chain);
        assert!(proven(view(None, 1_061), ChainView::AtEnd));
        assert!(!proven(view(None, 1_060), ChainView::AtEnd), "not past the grace");
        assert!(proven(PartitionView { at_end: true, ..view(None, 0) }, ChainView::AtEnd));
        let at_bound = PartitionView { at_bound: true, ..view(Some((1_001, 0)), 900) };
        assert!(proven(at_bound.clone(), ChainView::AtEnd));
        assert!(
            !super::proves_missing(EVENT, PARENT, Ties::Wait, (0, &at_bound), ChainView::AtEnd, GRACE),
            "it may lie beyond"
        );
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
            let proven = |offset| proven(ties, 1, view(Some((1_000, offset)), 1_000), ChainView::AtEnd);
            assert!(!proven(6));
            assert!(proven(7));
        }
    }

    #[test]
    fn one_of_the_same_millisecond_may_be_the_parent_until_somebody_has_to_be_first() {
        for (number, timestamp_ms, waiting, breaking) in
            [(2, 1_000, false, true), (0, 1_000, false, false), (2, 1_001, true, true)]
        {
            let other = PartitionView { at_end: true, ..view(Some((timestamp_ms, 3)), 0) };
            let proven = |ties| proven(ties, number, other.clone(), ChainView::AtEnd);
            assert_eq!((proven(Ties::Wait), proven(Ties::Break)), (waiting, breaking), "{other:?}");
        }
    }

    #[test]
    fn who_is_known_by_name_is_nobody_elses_parent() {
        let waiting =
            |named: &[(i64, u64, Name)], oldest_of_rest| Some(Waiting { named: named.to_vec(), oldest_of_rest });
        let older = (900, 1);
        for (waiting, expected, why) in [
            (waiting(&[(900, 1, 6)], None), true, "it is another"),
            (waiting(&[(900, 1, 5)], None), false, "it is the parent"),
            (waiting(&[(900, 1, 6), (950, 2, 5)], None), false, "so is the second"),
            (waiting(&[(900, 1, 6), (1_100, 2, 5)], None), false, "the parent waits, though its event is younger"),
            (waiting(&[(900, 1, 6)], Some((999, 4))), false, "nobody knows who else"),
            (waiting(&[(900, 1, 6)], Some((1_001, 4))), true, "the others are younger"),
            (None, false, "nobody is named"),
        ] {
            let view = PartitionView { waiting, at_end: true, ..view(Some(older), 0) };
            assert_eq!(proven(Ties::Wait, 0, view.clone(), ChainView::AtEnd), expected, "{why}");
            let at_bound = PartitionView { at_bound: true, at_end: false, ..view };
            assert!(!proven(Ties::Wait, 0, at_bound, ChainView::AtEnd), "what lies beyond the bound may be the parent");
        }
    }

    #[test]
    fn a_parent_that_is_known_to_wait_is_not_missing_before_it_may_be_the_child_that_holds_it_up() {
        let (same, younger) = ((1_000, 3, PARENT), (1_500, 3, PARENT));
        for (named, number) in [(same, 2), (younger, 2), (younger, 0)] {
            let waiting = Some(Waiting { named: vec![named], oldest_of_rest: None });
            let view = PartitionView { waiting, at_end: true, ..view(Some((named.0, named.1)), 2_000) };
            let proven = |ties| proven(ties, number, view.clone(), ChainView::AtEnd);
            assert_eq!(
                [Ties::Wait, Ties::Break, Ties::BreakKnown].map(proven),
                [false, false, true],
                "{named:?} in partition {number}"
            );
        }
        let older = Some(Waiting { named: vec![(999, 3, PARENT)], oldest_of_rest: None });
        let older = PartitionView { waiting: older, at_end: true, ..view(Some((999, 3)), 2_000) };
        assert!(!proven(Ties::BreakKnown, 2, older, ChainView::AtEnd), "its event is older");
    }

    #[test]
    fn ties_are_broken_by_time_in_question() {
        let after = |waited_ms, at_bound| Ties::after(waited_ms, 2_000, at_bound);
        assert_eq!([after(1_999, true), after(2_000, true)], [Ties::Wait, Ties::BreakKnown]);
        let expected = [Ties::Break, Ties::Break, Ties::BreakKnown];
        assert_eq!([after(2_000, false), after(9_999, false), after(10_000, false)], expected);
        assert_eq!([0, 4_999, 5_000].map(|waited_ms| Ties::after(waited_ms, 0, false)), expected, "without a grace");
    }

    #[test]
    fn a_name_is_the_beginning_of_an_id() {
        let mut id = [9; 32];
        id[..8].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(name_of(&Txid(id)), 0x0102_0304_0506_0708);
    }
}
