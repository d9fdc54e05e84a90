//! Ids of topics (KIP-516), which rdkafka does not expose.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use rdkafka::{
    bindings::{self as rd, rd_kafka_TopicDescription_t},
    consumer::Consumer as _,
    metadata::{MetadataBroker, MetadataPartition},
    types::RDKafkaRespErr,
};

use super::{
    admin::{admin_error, describe_topics},
    connection_errors::QueryClient,
    errors::translate,
};
use crate::broker::{BrokerError, BrokerErrorKind, TopicId, TopicIdentity};

const OPERATION: &str = "look up topic ids";

/// Timeout of a request to the broker that answered last; after it another broker is chosen.
const SAME_BROKER: Duration = Duration::from_secs(2);

/// The broker that serves the requests for topic ids; `None`: not chosen yet.
///
/// librdkafka would use the controller, which a mock cluster does not have, and does not look for another controller
/// while the broker is unreachable. The leader of a topic's first partition is used instead: the leader learns of a new
/// topic before all other brokers.
#[derive(Debug, Default)]
pub(super) struct TopicIdBroker(Mutex<Option<i32>>);

impl TopicIdBroker {
    fn broker(&self) -> MutexGuard<'_, Option<i32>> {
        // No panic can leave the number half written.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Identities of topics, in the order of `topics`; `None`: the topic does not exist.
    pub(super) fn identities(
        &self,
        client: &QueryClient,
        topics: &[String],
        timeout: Duration,
    ) -> Result<Vec<Option<TopicIdentity>>, BrokerError> {
        let until = Instant::now() + timeout;
        let known = *self.broker();
        if known.is_some() {
            match request_identities(client, topics, known, timeout.min(SAME_BROKER)) {
                Err(error) if error.kind == BrokerErrorKind::Retryable => *self.broker() = None,
                answer => return answer,
            }
        }
        let left = || until.saturating_duration_since(Instant::now());
        let broker = find_leader(client, topics, left())?;
        let answer = request_identities(client, topics, broker, left());
        *self.broker() = broker.filter(|_| answer.is_ok());
        answer
    }
}

/// Leader of the first topic that has a leader, or else any broker.
fn find_leader(client: &QueryClient, topics: &[String], timeout: Duration) -> Result<Option<i32>, BrokerError> {
    let Some(topic) = topics.first() else { return Ok(None) };
    let answer = client.fetch_metadata(Some(topic), timeout);
    let answer = answer.map_err(|error| translate(OPERATION, topic, &error))?;
    let mut leaders = answer.topics().iter().flat_map(|topic| topic.partitions()).map(MetadataPartition::leader);
    let leader = leaders.find(|leader| *leader >= 0);
    Ok(leader.or_else(|| answer.brokers().first().map(MetadataBroker::id)))
}

fn request_identities(
    client: &QueryClient,
    topics: &[String],
    broker: Option<i32>,
    timeout: Duration,
) -> Result<Vec<Option<TopicIdentity>>, BrokerError> {
    // SAFETY: the description outlives the call.
    let each = |topic| unsafe { parse_identity(topic) };
    let identities: Vec<(String, _)> = describe_topics(client, OPERATION, topics, broker, timeout, each)?;
    let mut identities: BTreeMap<String, _> =
        identities.into_iter().map(|(name, identity)| Ok((name, identity?))).collect::<Result<_, BrokerError>>()?;
    Ok(topics.iter().map(|topic| identities.remove(topic).flatten()).collect())
}

/// # Safety
/// `topic` points to a valid description.
unsafe fn parse_identity(topic: *const rd_kafka_TopicDescription_t) -> Result<Option<TopicIdentity>, BrokerError> {
    // SAFETY: the caller guarantees a valid description; the parts that librdkafka returns live as long as it.
    unsafe {
        match rd::rd_kafka_error_code(rd::rd_kafka_TopicDescription_error(topic)) {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR => {}
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART
            | RDKafkaRespErr::RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC => return Ok(None),
            code => return Err(admin_error(OPERATION, code.into(), None)),
        }
        let mut partitions = 0;
        rd::rd_kafka_TopicDescription_partitions(topic, &mut partitions);
        let id = rd::rd_kafka_TopicDescription_topic_id(topic);
        let bits = match id.is_null() {
            true => (0, 0),
            false => (rd::rd_kafka_Uuid_most_significant_bits(id), rd::rd_kafka_Uuid_least_significant_bits(id)),
        };
        Ok(Some(TopicIdentity { id: topic_id(bits), partitions: i32::try_from(partitions).unwrap_or(i32::MAX) }))
    }
}

/// Topic id from its two halves; `None`: zeros, librdkafka's value for a cluster that gives no ids.
fn topic_id((most, least): (i64, i64)) -> Option<TopicId> {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&most.to_be_bytes());
    id[8..].copy_from_slice(&least.to_be_bytes());
    (id != [0; 16]).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_of_zeros_is_none() {
        assert_eq!(topic_id((0, 0)), None);
        let id = topic_id((1, -1)).unwrap();
        assert_eq!(hex::encode(id), "0000000000000001ffffffffffffffff");
    }
}
