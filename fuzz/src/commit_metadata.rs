//! Metadata of committed offsets: the state of the chain, and the pipeline's view of a partition.

use std::sync::LazyLock;

use bytes::Bytes;
use utxo_store::{
    broker::{AssignedPartition, CommittedOffset, MAX_COMMIT_METADATA, Message, TopicPartition},
    group::{
        missing_parent::{ChainView, MAX_WAITING_EVENTS, PartitionView, TieRule, WaitingEvents, is_proven_missing},
        partition::PartitionState,
    },
    sequencer::state::ChainState,
    telemetry::Metrics,
};

use super::assert_one_line;

/// Runs the target `commit_metadata`.
pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    chain(text);
    match serde_json::from_str::<PartitionView>(text) {
        Ok(view) => {
            assert_proof(&view);
            assert_view_survives(&view);
            // Other parts of the metadata may be unreadable, and then count as unknown; the view never covers more
            // offsets than it states.
            assert!(!read_before(text, view.position).1);
        }
        // Metadata of another program says nothing about read offsets.
        Err(_) => assert!(!read_before(text, 1).0),
    }
}

fn chain(text: &str) {
    match ChainState::from_metadata(text) {
        Ok(state) => {
            let metadata = state.to_metadata();
            assert!(metadata.len() <= MAX_COMMIT_METADATA, "{metadata}");
            assert_eq!(ChainState::from_metadata(&metadata).ok(), Some(state));
        }
        Err(error) => assert_one_line(&error),
    }
}

fn assert_view_survives(view: &PartitionView) {
    let metadata = serde_json::to_string(view).expect("numbers and booleans always serialise");
    let is_ours = view.waiting.as_ref().is_none_or(|waiting| waiting.events.len() <= MAX_WAITING_EVENTS);
    assert!(!is_ours || metadata.len() <= MAX_COMMIT_METADATA, "{metadata}");
    assert_eq!(serde_json::from_str::<PartitionView>(&metadata).as_ref().ok(), Some(view));
    assert_eq!(read_before(&metadata, view.position), (true, false));
}

/// Checks, for any claims of another instance, that an older unfinished event bars the proof, and that a claim of
/// progress never adds to what bars the proof.
fn assert_proof(view: &PartitionView) {
    let grace_ms = 60_000;
    let oldest = view.oldest_unfinished.unwrap_or((view.read_timestamp_ms, view.position));
    let events = [
        (oldest.0, 1, oldest.1),
        (oldest.0, 0, oldest.1.saturating_add(1)),
        (i64::MAX, i32::MAX, u64::MAX),
        (i64::MIN, 0, 0),
        (view.read_timestamp_ms, 0, 0),
    ];
    let named = view.waiting.iter().flat_map(|waiting| &waiting.events).map(|(.., name)| *name);
    let parents: Vec<_> = named.take(3).chain([0]).collect();
    for (event, parent) in events.iter().flat_map(|event| parents.iter().map(|parent| (*event, *parent))) {
        let chains = [ChainView::AtEnd, ChainView::Unhandled(view.read_timestamp_ms), ChainView::Unhandled(i64::MAX)];
        for (chain, ties) in chains.iter().flat_map(|chain| [(*chain, TieRule::Wait), (*chain, TieRule::Break)]) {
            let proven = |view: &PartitionView| is_proven_missing(event, parent, ties, (0, view), chain, grace_ms);
            let is_older = |(timestamp_ms, offset): (i64, u64)| (timestamp_ms, 0, offset) < event;
            let bars = match &view.waiting {
                Some(waiting) if !view.over_limit => {
                    let is_it = |(at, offset, name): &(i64, u64, u64)| *name == parent && is_older((*at, *offset));
                    waiting.oldest_of_rest.is_some_and(is_older) || waiting.events.iter().any(is_it)
                }
                _ => view.oldest_unfinished.is_some_and(is_older),
            };
            assert!(!(bars && proven(view)));
            if proven(view) {
                assert!(proven(&PartitionView { at_end: true, read_timestamp_ms: i64::MAX, ..view.clone() }));
                assert!(proven(&PartitionView { oldest_unfinished: None, ..view.clone() }));
                let no_waiting = view.waiting.as_ref().map(|_| WaitingEvents { events: vec![], oldest_of_rest: None });
                assert!(proven(&PartitionView { waiting: no_waiting, ..view.clone() }));
                assert!(is_proven_missing(event, parent, ties, (0, view), ChainView::AtEnd, grace_ms));
            }
        }
    }
}

/// Whether an instance that is assigned the partition with this metadata takes the offset before `position`, and the
/// one at it, as read by an earlier owner.
fn read_before(metadata: &str, position: u64) -> (bool, bool) {
    static METRICS: LazyLock<Metrics> = LazyLock::new(Metrics::new);
    let partition = TopicPartition { topic: "txs".into(), partition: 0 };
    let metrics = METRICS.partition(&partition);
    let committed = Some(CommittedOffset { offset: 0, metadata: metadata.to_owned() });
    let state = PartitionState::new(
        &AssignedPartition { partition, epoch: 1, committed, position: 0, high_watermark: 0 },
        metrics,
        false,
        0,
    );
    let is_replayed = |offset| {
        state.is_replayed(&Message {
            offset,
            timestamp_ms: 0,
            key: Bytes::new(),
            payload: Bytes::new(),
            headers: vec![],
        })
    };
    (position == 0 || is_replayed(position - 1), is_replayed(position))
}
