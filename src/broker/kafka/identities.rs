//! Ids of topics (KIP-516), which rdkafka does not hand out.

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
    admin::{describe_topics, refused},
    errors::translate,
    trouble::Asked,
};
use crate::broker::{BrokerError, BrokerErrorKind, TopicId, TopicIdentity};

const OPERATION: &str = "look up topic ids";

/// Time that the broker which answered last is given, before another one is looked for.
const SAME_BROKER: Duration = Duration::from_secs(2);

/// The broker that is asked: by itself librdkafka asks the controller, which a mock cluster does not have, and which is
/// not looked for again when its broker is away. The leader of a topic's first partition is asked instead: of all
/// brokers it hears of a new topic first.
#[derive(Debug, Default)]
pub(super) struct AskedBroker(Mutex<Option<i32>>);

impl AskedBroker {
    fn known(&self) -> MutexGuard<'_, Option<i32>> {
        // A number cannot be left half written, so a panic elsewhere does not spoil it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Identities of topics, in the order asked for; `None`: the topic does not exist.
    pub(super) fn identities(
        &self,
        client: &Asked,
        topics: &[String],
        timeout: Duration,
    ) -> Result<Vec<Option<TopicIdentity>>, BrokerError> {
        let until = Instant::now() + timeout;
        let known = *self.known();
        if known.is_some() {
            match of_topics(client, topics, known, timeout.min(SAME_BROKER)) {
                Err(error) if error.kind == BrokerErrorKind::Retryable => *self.known() = None,
                answer => return answer,
            }
        }
        let left = || until.saturating_duration_since(Instant::now());
        let broker = leader_of(client, topics, left())?;
        let answer = of_topics(client, topics, broker, left());
        *self.known() = broker.filter(|_| answer.is_ok());
        answer
    }
}

/// The leader of the first topic that has one, or else any broker.
fn leader_of(client: &Asked, topics: &[String], timeout: Duration) -> Result<Option<i32>, BrokerError> {
    let Some(topic) = topics.first() else { return Ok(None) };
    let answer = client.fetch_metadata(Some(topic), timeout);
    let answer = answer.map_err(|error| translate(OPERATION, topic, &error))?;
    let mut leaders = answer.topics().iter().flat_map(|topic| topic.partitions()).map(MetadataPartition::leader);
    let leader = leaders.find(|leader| *leader >= 0);
    Ok(leader.or_else(|| answer.brokers().first().map(MetadataBroker::id)))
}

fn of_topics(
    client: &Asked,
    topics: &[String],
    broker: Option<i32>,
    timeout: Duration,
) -> Result<Vec<Option<TopicIdentity>>, BrokerError> {
    // SAFETY: the description lives while this reads from it.
    let each = |topic| unsafe { identity_of(topic) };
    let told: Vec<(String, _)> = describe_topics(client, OPERATION, topics, broker, timeout, each)?;
    let mut told: BTreeMap<String, _> =
        told.into_iter().map(|(name, identity)| Ok((name, identity?))).collect::<Result<_, BrokerError>>()?;
    Ok(topics.iter().map(|topic| told.remove(topic).flatten()).collect())
}

/// # Safety
/// `topic` is a description that lives.
unsafe fn identity_of(topic: *const rd_kafka_TopicDescription_t) -> Result<Option<TopicIdentity>, BrokerError> {
    // SAFETY: as the caller promises; what librdkafka returns here lives as long as the description.
    unsafe {
        match rd::rd_kafka_error_code(rd::rd_kafka_TopicDescription_error(topic)) {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR => {}
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART
            | RDKafkaRespErr::RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC => return Ok(None),
            code => return Err(refused(OPERATION, code.into(), None)),
        }
        let mut partitions = 0;
        rd::rd_kafka_TopicDescription_partitions(topic, &mut partitions);
        let id = rd::rd_kafka_TopicDescription_topic_id(topic);
        let bits = match id.is_null() {
            true => (0, 0),
            false => (rd::rd_kafka_Uuid_most_significant_bits(id), rd::rd_kafka_Uuid_least_significant_bits(id)),
        };
        Ok(Some(TopicIdentity { id: id_of(bits), partitions: i32::try_from(partitions).unwrap_or(i32::MAX) }))
    }
}

/// An id of zeros is what librdkafka has of a cluster that gives none.
fn id_of((most, least): (i64, i64)) -> Option<TopicId> {
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
        assert_eq!(id_of((0, 0)), None);
        let id = id_of((1, -1)).unwrap();
        assert_eq!(hex::encode(id), "0000000000000001ffffffffffffffff");
    }
}
