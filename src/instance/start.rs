//! The start of an instance: the checks of the topics, the log and the store, and the binding of the store to the log.
//! `run --check` makes the same checks, and writes nothing.

use super::{InstanceError, InstanceParts, InstanceSettings, frontier::Frontier};
use crate::{
    broker::{Broker, BrokerError, BrokerErrorKind, TopicIdentity, identity::TopicGuard},
    event::Topic,
    preflight::topics::{ObservedTopic, find_problems},
    record::MetaRecord,
    sequencer::{decisions::read_short_topic_id, state::ChainState},
    store::{
        StateStore,
        meta::{MetaError, StoreMeta},
        ownership::{verify_above_floor, verify_has_consumed},
        restart_detector::{LagTooShort, RestartDetector, durability_lag},
        sentinels::Sentinels,
        topics::LogIdentity,
    },
};

/// Numbers of partitions that an instance needs.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PartitionCounts {
    /// Partitions of the validated transactions.
    pub validated: i32,
    /// Partitions of the outcomes.
    pub outcomes: i32,
}

/// Checks that every topic exists, with one partition where its messages have one order. Returns the numbers of
/// partitions.
pub(super) async fn check_topics(
    settings: &InstanceSettings,
    broker: &dyn Broker,
) -> Result<PartitionCounts, BrokerError> {
    let mut counts = PartitionCounts::default();
    for topic in Topic::all() {
        let name = settings.topic_name(topic);
        let count = broker.partitions(name).await?;
        if let Some(problem) = find_problems(topic, count.map(ObservedTopic::with_partition_count).as_ref()).first() {
            let message = format!("topic `{name}` {problem}");
            return Err(BrokerError { kind: BrokerErrorKind::Refused, operation: "check topics", message });
        }
        match topic {
            Topic::ValidatedTxs => counts.validated = count.unwrap_or(0),
            Topic::Outcomes => counts.outcomes = count.unwrap_or(0),
            _ => {}
        }
    }
    Ok(counts)
}

pub(super) fn restart_detector(
    settings: &InstanceSettings,
    parts: &InstanceParts,
) -> Result<RestartDetector, LagTooShort> {
    let engine = &parts.store.engine;
    let lag = durability_lag(engine.as_ref(), settings.durability_lag)?;
    Ok(RestartDetector::new(engine.clone(), lag))
}

/// Opens the meta record, and returns once the meta record, the mark in the blob store and the sentinels are durable.
///
/// Each of the three waits until the one before is durable, while the group has committed nothing:
/// 1. The meta record may have been written just now, by this instance or another. A node can still lose the write, and
///    records without a meta record would belong to no store.
/// 2. The blob store is marked with the id of the store. No other id can ever take a marked blob store, so that the id
///    must be durable first. If the note "the store has blobs" were lost, an empty place would count as a new blob
///    store.
/// 3. The sentinels belong to the id, too.
pub(super) async fn open_durably(
    parts: &InstanceParts,
    nodes: &mut RestartDetector,
    group_has_offsets: bool,
) -> Result<(), InstanceError> {
    nodes.baseline().await.map_err(MetaError::from)?;
    let mut durable_store_id = None;
    loop {
        let opened = async {
            let meta = StoreMeta::of(&parts.store).open(group_has_offsets, parts.store_id).await?;
            // Committed offsets of the group show that the meta record is durable.
            if !group_has_offsets && durable_store_id != Some(meta.store_id) {
                durable_store_id = nodes.wait_until_durable().await.map_err(MetaError::from)?.then_some(meta.store_id);
                return Err(MetaError::NoMetaRecord.into());
            }
            let has_new_blobs = claim_blobs(&parts.store, &meta).await?;
            Ok((has_new_blobs, Sentinels::of(&parts.store).write(&meta).await?))
        };
        let (has_new_blobs, has_new_sentinels) = match opened.await {
            // Read again: the meta record is durable now, or a node lost it (perhaps the record of another instance).
            Err(InstanceError::Meta(MetaError::NoMetaRecord)) => continue,
            opened => opened?,
        };
        let is_durable = group_has_offsets && !has_new_blobs && !has_new_sentinels;
        if is_durable || nodes.wait_until_durable().await.map_err(MetaError::from)? {
            if has_new_sentinels {
                // An instance that created the store at the same time, and lost the race, may have overwritten them.
                let meta = parts.store.meta().await?.ok_or(MetaError::NoMetaRecord)?;
                Sentinels::of(&parts.store).verify(&meta).await?;
                Sentinels::of(&parts.store).record().await?;
            }
            return Ok(());
        }
    }
}

/// Marks the blob store with the id of this store: a store has one blob store for good, or none so far. Returns true if
/// the mark is new.
pub(crate) async fn claim_blobs(store: &StateStore, meta: &MetaRecord) -> Result<bool, InstanceError> {
    let Some(blobs) = &store.blobs else { return Ok(false) };
    let is_first = !meta.has_blobs;
    blobs.claim(meta.store_id, is_first).await?;
    if is_first {
        StoreMeta::of(store).record_blob_store().await?;
    }
    Ok(is_first)
}

/// Checks that the store was made from this log and belongs to the group. Returns the identity of the log.
pub(super) async fn check_log(
    settings: &InstanceSettings,
    parts: &InstanceParts,
    frontier: &Frontier,
) -> Result<LogIdentity, InstanceError> {
    // Topics are identified before offsets are compared: an error about offsets of another topic would mislead.
    let (meta, log) = identify_log(settings, parts).await?;
    check_decisions(settings, parts.broker.as_ref(), frontier).await?;
    verify_has_consumed(&meta, &frontier.consumed)?;
    if verify_above_floor(&meta.replay_floor, &frontier.resume).is_err() {
        // The store may have been pruned after the offsets were read. The group has committed more since then.
        let frontier = Frontier::read(settings, parts.broker.as_ref()).await?;
        verify_above_floor(&meta.replay_floor, &frontier.resume)?;
    }
    Ok(log)
}

/// Identifies the log, and checks that the store was made from it. Returns the meta record and the identity.
pub(super) async fn identify_log(
    settings: &InstanceSettings,
    parts: &InstanceParts,
) -> Result<(MetaRecord, LogIdentity), InstanceError> {
    // The meta record is read first: a first record that another instance has bound to the store is then in the log.
    let meta = parts.store.meta().await?.ok_or(MetaError::NoMetaRecord)?;
    let log = LogIdentity::read(parts.broker.as_ref(), &settings.state_topics()).await?;
    match log.differences(&meta).into_iter().next() {
        Some(difference) => Err(difference.into()),
        None => Ok((meta, log)),
    }
}

/// Binds the store to the log that is the source of the state. Returns the guard that checks the topics from here on.
pub(super) async fn bind_log(parts: &InstanceParts, log: LogIdentity) -> Result<TopicGuard, InstanceError> {
    StoreMeta::of(&parts.store).bind_log(&log).await?;
    let expected = log.topics.into_iter().map(|topic| {
        let identity = TopicIdentity { id: topic.id, partitions: topic.partitions };
        (topic.name, identity)
    });
    Ok(TopicGuard::new(parts.broker.clone(), expected.collect()))
}

/// Checks that the decisions topic is the one that the committed offset of the chain names. Decisions of another topic
/// would count as decisions on this chain; without the earlier decisions every contest would be decided again.
pub(crate) async fn check_decisions(
    settings: &InstanceSettings,
    broker: &dyn Broker,
    frontier: &Frontier,
) -> Result<(), InstanceError> {
    let state = frontier.chain_commit.as_ref().map(|committed| ChainState::from_metadata(&committed.metadata));
    // Unreadable metadata halts the chain with its own error.
    let Some(Ok(state)) = state else {
        return Ok(());
    };
    let decisions = settings.partition(Topic::Decisions, 0);
    let (low, high) = broker.watermarks(&decisions).await?;
    let found = read_short_topic_id(broker, &decisions).await?;
    // A topic that lost its first record can be compared by its end offset only.
    if high < state.decisions_from || (low == 0 && !state.decisions_id.is_empty() && state.decisions_id != found) {
        let known = |id: String| if id.is_empty() { "none".to_owned() } else { id };
        return Err(InstanceError::DecisionsRecreated {
            topic: decisions.topic.to_string(),
            expected: known(state.decisions_id),
            found: known(found),
            next: state.decisions_from,
            high,
        });
    }
    Ok(())
}
