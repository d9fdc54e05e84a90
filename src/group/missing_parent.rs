//! Proof that a parent is *missing* (`docs/protocols/missing-parent.md`).
//!
//! A parent's event precedes the event of its child in time, and is in the partition of the parent's txid. So an absent
//! parent can no longer be created once
//!
//! - every event of this partition that can be older has been read, and
//! - no older event of this partition is unfinished, except events that are known to be other transactions.

use serde::{Deserialize, Serialize};

use crate::{broker::BrokerError, tx::Txid};

/// Position of an event in the order of all events: timestamp, partition, offset.
pub type EventOrder = (i64, i32, u64);

/// Progress of one partition of validated transactions: of this instance, or of another instance (from the metadata of
/// the last commit).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionView {
    /// Timestamp and offset of the oldest unfinished event.
    #[serde(rename = "oldest", default, skip_serializing_if = "Option::is_none")]
    pub oldest_unfinished: Option<(i64, u64)>,
    /// Oldest events that are parked, if any: an event of a known txid cannot be another parent.
    #[serde(rename = "wait", default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<WaitingEvents>,
    /// Greatest timestamp read, ms since the epoch.
    #[serde(rename = "read")]
    pub read_timestamp_ms: i64,
    /// The partition is read to its end.
    #[serde(rename = "end", default)]
    pub at_end: bool,
    /// The partition is read to its limit of unfinished events and paused there.
    #[serde(rename = "bound", default)]
    pub over_limit: bool,
    /// Offset of the next event to read: the next owner of the partition reads every event below again.
    #[serde(rename = "pos", default)]
    pub position: u64,
}

/// Unfinished events of known transactions, and the oldest of all other unfinished events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingEvents {
    /// Timestamp, offset and [`TxidPrefix`] of each event; at most [`MAX_WAITING_EVENTS`].
    #[serde(rename = "named")]
    pub events: Vec<(i64, u64, TxidPrefix)>,
    /// Timestamp and offset of the oldest unfinished event that is not among `events`.
    #[serde(rename = "rest", default, skip_serializing_if = "Option::is_none")]
    pub oldest_of_rest: Option<(i64, u64)>,
}

/// Greatest number of waiting events in a commit: the metadata of a commit has 4,096 bytes, and an event takes about
/// 50.
pub const MAX_WAITING_EVENTS: usize = 24;

/// First 8 bytes of a txid, big-endian. Of two transactions with the same prefix one waits for the other.
pub type TxidPrefix = u64;

/// Returns the first 8 bytes of a txid.
pub fn txid_prefix(txid: &Txid) -> TxidPrefix {
    txid.0.iter().take(8).fold(0, |prefix, byte| prefix << 8 | u64::from(*byte))
}

impl PartitionView {
    /// Returns whether an event of this transaction is known to wait in the partition.
    fn is_known_to_wait(&self, txid: TxidPrefix) -> bool {
        self.waiting.iter().flat_map(|waiting| &waiting.events).any(|(.., other)| *other == txid)
    }

    /// Returns whether all unfinished events that were read are known to be events of other transactions.
    pub fn has_no_unfinished_event_of(&self, txid: TxidPrefix) -> bool {
        self.oldest_possible_event(txid).is_none()
    }

    /// The oldest unfinished event that can be an event of this transaction.
    fn oldest_possible_event(&self, txid: TxidPrefix) -> Option<(i64, u64)> {
        match &self.waiting {
            // At the limit unread events may follow: these are younger only than the oldest of all unfinished events.
            Some(waiting) if !self.over_limit => {
                let events = waiting.events.iter().filter(|(.., other)| *other == txid);
                events.map(|(timestamp_ms, offset, _)| (*timestamp_ms, *offset)).chain(waiting.oldest_of_rest).min()
            }
            _ => self.oldest_unfinished,
        }
    }
}

/// Progress of the chain and of the topics that are fed into the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChainView {
    /// Every event up to the end offsets has been handled.
    AtEnd,
    /// Timestamp of the first event that has not been handled, ms since the epoch.
    Unhandled(i64),
    /// The chain offset moves, or the topics cannot be read: the first unhandled event is not known.
    Unknown,
}

/// Rule for unfinished events that are not older than the child, by the time for which the parent was in question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TieRule {
    /// An unfinished event of the same millisecond in another partition may be the parent: milliseconds are coarse, and
    /// partitions have no order in time.
    Wait,
    /// The order of partitions decides between events of one millisecond whose transactions are not known: otherwise
    /// two transactions could wait for each other. The child waits for a parent that is known to wait, whatever the
    /// place of the parent's event.
    Break,
    /// A parent that is known to wait and whose event is not older counts as missing, too: the child may be the reason
    /// why the parent is not decided.
    BreakKnown,
}

/// Number of graces after which a parent that is known to wait counts as missing, if the parent's event is not older
/// than the child's. A wait for a lock ends before, and a block waits for longer (`sequencer.block_wait_ms`, ten
/// graces).
const GRACES_BEFORE_BREAK_KNOWN: u64 = 5;
/// Least grace for `BreakKnown`: a child waits for a known parent also where the grace is zero.
const MIN_GRACE_MS: u64 = 1_000;

impl TieRule {
    /// Returns the rule for a parent that has been in question for `waited_ms`. `over_limit`: the partition of the
    /// child or of a parent is paused at its limit, so that the event that would help may be unread.
    pub fn after(waited_ms: u64, grace_ms: u64, over_limit: bool) -> Self {
        let break_known_ms = grace_ms.max(MIN_GRACE_MS).saturating_mul(GRACES_BEFORE_BREAK_KNOWN);
        match waited_ms {
            _ if waited_ms < grace_ms => TieRule::Wait,
            _ if over_limit => TieRule::BreakKnown,
            _ if waited_ms >= break_known_ms => TieRule::BreakKnown,
            _ => TieRule::Break,
        }
    }
}

/// Returns whether the absent `parent` of `event` is proven never to have been produced before `event`. `number` and
/// `view` are of the parent's partition; `grace_ms` is the time by which a partition must be read past the event.
pub fn is_proven_missing(
    event: EventOrder,
    parent: TxidPrefix,
    ties: TieRule,
    (number, view): (i32, &PartitionView),
    chain: ChainView,
    grace_ms: i64,
) -> bool {
    let past = event.0.saturating_add(grace_ms);
    let chain_passed = match chain {
        ChainView::AtEnd => true,
        ChainView::Unhandled(timestamp_ms) => timestamp_ms > past,
        ChainView::Unknown => false,
    };
    let nothing_older = view.oldest_possible_event(parent).is_none_or(|(timestamp_ms, offset)| {
        let tie = timestamp_ms == event.0 && number != event.1;
        (timestamp_ms, number, offset) >= event && !(tie && ties == TieRule::Wait)
    });
    if ties < TieRule::BreakKnown && view.is_known_to_wait(parent) {
        return false;
    }
    // Events after the limit are younger only if timestamps are in order, which counts only after the grace.
    let is_over_limit = view.over_limit && ties > TieRule::Wait;
    let read_past = number == event.1 || view.at_end || is_over_limit || view.read_timestamp_ms > past;
    chain_passed && nothing_older && read_past
}

/// Source of the progress of the chain, in whatever instance the sequencer runs.
#[async_trait::async_trait]
pub trait ChainProgress: Send + Sync {
    /// Reads the present progress of the chain.
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
    const PARENT: TxidPrefix = 5;

    fn view(oldest: Option<(i64, u64)>, read: i64) -> PartitionView {
        PartitionView {
            oldest_unfinished: oldest,
            waiting: None,
            read_timestamp_ms: read,
            position: 0,
            at_end: false,
            over_limit: false,
        }
    }

    fn proven(ties: TieRule, number: i32, view: PartitionView, chain: ChainView) -> bool {
        is_proven_missing(EVENT, PARENT, ties, (number, &view), chain, GRACE)
    }

    #[test]
    fn proven_once_the_parents_partition_is_read_past_the_child() {
        let proven = |view, chain| proven(TieRule::Break, 0, view, chain);
        assert!(proven(view(None, 1_061), ChainView::AtEnd));
        assert!(!proven(view(None, 1_060), ChainView::AtEnd), "not past the grace");
        assert!(proven(PartitionView { at_end: true, ..view(None, 0) }, ChainView::AtEnd));
        let over_limit = PartitionView { over_limit: true, ..view(Some((1_001, 0)), 900) };
        assert!(proven(over_limit.clone(), ChainView::AtEnd));
        assert!(
            !super::is_proven_missing(EVENT, PARENT, TieRule::Wait, (0, &over_limit), ChainView::AtEnd, GRACE),
            "the parent may be after the limit"
        );
        let older = PartitionView { at_end: true, ..view(Some((999, 3)), 0) };
        assert!(!proven(older, ChainView::AtEnd), "an older event is unfinished");
        assert!(
            !proven(PartitionView { at_end: true, ..view(Some((1_000, 3)), 0) }, ChainView::AtEnd),
            "tie: partition"
        );
        assert!(proven(view(None, 1_061), ChainView::Unhandled(1_061)));
        assert!(!proven(view(None, 1_061), ChainView::Unhandled(1_060)), "an unhandled block may create the coinbase");
        assert!(!proven(view(None, 1_061), ChainView::Unknown));
    }

    #[test]
    fn an_older_unfinished_event_in_the_own_partition_bars_the_proof() {
        for ties in [TieRule::Wait, TieRule::Break] {
            let proven = |offset| proven(ties, 1, view(Some((1_000, offset)), 1_000), ChainView::AtEnd);
            assert!(!proven(6));
            assert!(proven(7));
        }
    }

    #[test]
    fn an_event_of_the_same_millisecond_may_be_the_parent_until_ties_break() {
        for (number, timestamp_ms, waiting, breaking) in
            [(2, 1_000, false, true), (0, 1_000, false, false), (2, 1_001, true, true)]
        {
            let other = PartitionView { at_end: true, ..view(Some((timestamp_ms, 3)), 0) };
            let proven = |ties| proven(ties, number, other.clone(), ChainView::AtEnd);
            assert_eq!((proven(TieRule::Wait), proven(TieRule::Break)), (waiting, breaking), "{other:?}");
        }
    }

    #[test]
    fn an_event_of_a_known_txid_is_no_other_parent() {
        let waiting = |events: &[(i64, u64, TxidPrefix)], oldest_of_rest| {
            Some(WaitingEvents { events: events.to_vec(), oldest_of_rest })
        };
        let older = (900, 1);
        for (waiting, expected, why) in [
            (waiting(&[(900, 1, 6)], None), true, "the event is of another transaction"),
            (waiting(&[(900, 1, 5)], None), false, "the event is of the parent"),
            (waiting(&[(900, 1, 6), (950, 2, 5)], None), false, "the second event is of the parent"),
            (waiting(&[(900, 1, 6), (1_100, 2, 5)], None), false, "the parent waits, though its event is younger"),
            (waiting(&[(900, 1, 6)], Some((999, 4))), false, "the rest may have the parent"),
            (waiting(&[(900, 1, 6)], Some((1_001, 4))), true, "the rest is younger"),
            (None, false, "no event is known"),
        ] {
            let view = PartitionView { waiting, at_end: true, ..view(Some(older), 0) };
            assert_eq!(proven(TieRule::Wait, 0, view.clone(), ChainView::AtEnd), expected, "{why}");
            let over_limit = PartitionView { over_limit: true, at_end: false, ..view };
            assert!(!proven(TieRule::Wait, 0, over_limit, ChainView::AtEnd), "an unread event may be the parent");
        }
    }

    #[test]
    fn a_parent_that_is_known_to_wait_is_missing_only_by_break_known() {
        let (same, younger) = ((1_000, 3, PARENT), (1_500, 3, PARENT));
        for (event, number) in [(same, 2), (younger, 2), (younger, 0)] {
            let waiting = Some(WaitingEvents { events: vec![event], oldest_of_rest: None });
            let view = PartitionView { waiting, at_end: true, ..view(Some((event.0, event.1)), 2_000) };
            let proven = |ties| proven(ties, number, view.clone(), ChainView::AtEnd);
            assert_eq!(
                [TieRule::Wait, TieRule::Break, TieRule::BreakKnown].map(proven),
                [false, false, true],
                "{event:?} in partition {number}"
            );
        }
        let older = Some(WaitingEvents { events: vec![(999, 3, PARENT)], oldest_of_rest: None });
        let older = PartitionView { waiting: older, at_end: true, ..view(Some((999, 3)), 2_000) };
        assert!(!proven(TieRule::BreakKnown, 2, older, ChainView::AtEnd), "the parent's event is older");
    }

    #[test]
    fn tie_rule_follows_from_the_time_in_question() {
        let after = |waited_ms, over_limit| TieRule::after(waited_ms, 2_000, over_limit);
        assert_eq!([after(1_999, true), after(2_000, true)], [TieRule::Wait, TieRule::BreakKnown]);
        let expected = [TieRule::Break, TieRule::Break, TieRule::BreakKnown];
        assert_eq!([after(2_000, false), after(9_999, false), after(10_000, false)], expected);
        assert_eq!([0, 4_999, 5_000].map(|waited_ms| TieRule::after(waited_ms, 0, false)), expected, "without a grace");
    }

    #[test]
    fn txid_prefix_is_the_first_eight_bytes_big_endian() {
        let mut id = [9; 32];
        id[..8].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(txid_prefix(&Txid(id)), 0x0102_0304_0506_0708);
    }
}
