//! What an instance looks at before it begins, without a change to anything: a start does it, and so does `run --check`.

use super::{InstanceError, InstanceSettings};
use crate::{
    broker::{Broker, BrokerError, BrokerErrorKind, TopicPartition},
    event::Topic,
    preflight::topics::{Found, problems},
    sequencer::{chain_group, decisions::short_id, state::ChainState},
    store::meta::topic_id,
};

/// Every topic must be there; those that are a log of one order have one partition.
/// Answers how many partitions the topic of validated transactions has.
pub(super) async fn check_topics(settings: &InstanceSettings, broker: &dyn Broker) -> Result<i32, BrokerError> {
    let mut validated = 0;
    for topic in Topic::ALL {
        let name = settings.topic_name(topic);
        let count = broker.partitions(name).await?;
        if let Some(problem) = problems(topic, count.map(Found::of_partitions).as_ref()).first() {
            let message = format!("topic `{name}` {problem}");
            return Err(BrokerError { kind: BrokerErrorKind::Refused, operation: "check topics", message });
        }
        if topic == Topic::ValidatedTxs {
            validated = count.unwrap_or(0);
        }
    }
    Ok(validated)
}

/// The topics that make the state, with their names: a store is bound to them.
pub(crate) fn store_topics(settings: &InstanceSettings) -> Vec<(Topic, String)> {
    let topics = Topic::ALL.into_iter().filter(|topic| topic.makes_the_state());
    topics.map(|topic| (topic, settings.topic_name(topic).to_owned())).collect()
}

/// The id of the chain topic, where it has a first record.
pub(crate) async fn first_of_chain(
    settings: &InstanceSettings,
    broker: &dyn Broker,
) -> Result<Option<[u8; 32]>, BrokerError> {
    let chain = TopicPartition { topic: settings.topics.chain.as_str().into(), partition: 0 };
    topic_id(broker, &chain).await
}

/// The decisions topic must be the one that the chain's committed offset speaks of: decisions of another would be taken for those
/// on this chain, and without those that there were everything would be decided anew.
pub(crate) async fn check_decisions(settings: &InstanceSettings, broker: &dyn Broker) -> Result<(), InstanceError> {
    let chain = [TopicPartition { topic: settings.topics.chain.as_str().into(), partition: 0 }];
    let committed = broker.committed(&chain_group(&settings.pipeline.group), &chain).await?.pop().flatten();
    // What cannot be read halts the chain, by name.
    let Some(Ok(state)) = committed.map(|committed| ChainState::from_metadata(&committed.metadata)) else {
        return Ok(());
    };
    let decisions = TopicPartition { topic: settings.topics.decisions.as_str().into(), partition: 0 };
    let (low, high) = broker.watermarks(&decisions).await?;
    let found = short_id(broker, &decisions).await?;
    // Of a topic that no longer holds its first record nothing is known but how far it goes.
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
