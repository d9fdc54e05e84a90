//! Read-only checks before an instance begins, for a start and for `run --check`.

use super::{InstanceError, InstanceSettings};
use crate::{
    broker::{Broker, BrokerError, BrokerErrorKind, TopicPartition},
    event::Topic,
    preflight::topics::{ObservedTopic, find_problems},
    sequencer::{chain_group, decisions::read_short_topic_id, state::ChainState},
    store::meta::read_topic_id,
};

/// Checks that every topic exists, with one partition where its messages have one order. Returns the number of
/// partitions of the topic of validated transactions.
pub(super) async fn check_topics(settings: &InstanceSettings, broker: &dyn Broker) -> Result<i32, BrokerError> {
    let mut validated = 0;
    for topic in Topic::all() {
        let name = settings.topic_name(topic);
        let count = broker.partitions(name).await?;
        if let Some(problem) = find_problems(topic, count.map(ObservedTopic::with_partition_count).as_ref()).first() {
            let message = format!("topic `{name}` {problem}");
            return Err(BrokerError { kind: BrokerErrorKind::Refused, operation: "check topics", message });
        }
        if topic == Topic::ValidatedTxs {
            validated = count.unwrap_or(0);
        }
    }
    Ok(validated)
}

/// Returns the topics that are the source of the state, with their names. A store is bound to these topics.
pub(crate) fn store_topics(settings: &InstanceSettings) -> Vec<(Topic, String)> {
    let topics = Topic::all().filter(|topic| topic.is_state_source());
    topics.map(|topic| (topic, settings.topic_name(topic).to_owned())).collect()
}

/// Returns the id of the chain topic (the hash of its first record); `None`: the topic is empty.
pub(crate) async fn read_chain_topic_id(
    settings: &InstanceSettings,
    broker: &dyn Broker,
) -> Result<Option<[u8; 32]>, BrokerError> {
    let chain = TopicPartition { topic: settings.topics.chain.as_str().into(), partition: 0 };
    read_topic_id(broker, &chain).await
}

/// Checks that the decisions topic is the one that the committed offset of the chain names. Decisions of another topic
/// would count as decisions on this chain; without the earlier decisions every contest would be decided again.
pub(crate) async fn check_decisions(settings: &InstanceSettings, broker: &dyn Broker) -> Result<(), InstanceError> {
    let chain = [TopicPartition { topic: settings.topics.chain.as_str().into(), partition: 0 }];
    let committed = broker.committed(&chain_group(&settings.pipeline.group), &chain).await?.pop().flatten();
    // Unreadable metadata halts the chain with its own error.
    let Some(Ok(state)) = committed.map(|committed| ChainState::from_metadata(&committed.metadata)) else {
        return Ok(());
    };
    let decisions = TopicPartition { topic: settings.topics.decisions.as_str().into(), partition: 0 };
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
