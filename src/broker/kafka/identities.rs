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
    lookup::repeat_attempts,
};
use crate::broker::{BrokerError, BrokerErrorKind, TopicId, TopicIdentity};

const OPERATION: &str = "look up topic ids";

/// Time for which a broker is avoided: the cluster still names a lost broker as a leader until its session ends.
const AVOIDED_FOR: Duration = Duration::from_secs(10);

/// The broker that serves the requests for topic ids.
///
/// librdkafka would use the controller, which a mock cluster does not have, and does not look for another controller
/// while the broker is unreachable. The leader of a topic's first partition is used instead: the leader learns of a new
/// topic before all other brokers. Another broker is used only while the leader does not answer.
#[derive(Debug, Default)]
pub(super) struct TopicIdBroker(Mutex<BrokerChoice>);

/// The brokers that have answered, and those that have not.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct BrokerChoice {
    /// Leader that answered last; `None`: the leader has to be looked up.
    leader: Option<i32>,
    /// Broker that did not answer, and the time from which it is used again.
    avoided: Option<(i32, Instant)>,
}

impl BrokerChoice {
    /// Chooses the leader, or another broker while the leader is avoided; `None`: the cluster names no broker.
    fn choose(&self, leader: Option<i32>, brokers: &[i32], now: Instant) -> Option<i32> {
        let is_avoided = |broker: &i32| self.avoided.is_some_and(|(id, until)| id == *broker && now < until);
        let mut candidates = leader.into_iter().chain(brokers.iter().copied());
        candidates.clone().find(|broker| !is_avoided(broker)).or_else(|| candidates.next())
    }
}

impl TopicIdBroker {
    fn choice(&self) -> MutexGuard<'_, BrokerChoice> {
        // No panic can leave the choice half written.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Identities of topics, in the order of `topics`; `None`: the topic does not exist.
    pub(super) fn identities(
        &self,
        client: &QueryClient,
        topics: &[String],
        timeout: Duration,
    ) -> Result<Vec<Option<TopicIdentity>>, BrokerError> {
        repeat_attempts(timeout, |_| {}, |bound| self.attempt(client, topics, bound))
    }

    /// Asks one broker once.
    fn attempt(
        &self,
        client: &QueryClient,
        topics: &[String],
        timeout: Duration,
    ) -> Result<Vec<Option<TopicIdentity>>, BrokerError> {
        let known = self.choice().leader;
        let (leader, broker) = match known {
            Some(_) => (known, known),
            None => {
                let (leader, brokers) = find_leader(client, topics, timeout)?;
                (leader, self.choice().choose(leader, &brokers, Instant::now()))
            }
        };
        let answer = request_identities(client, topics, broker, timeout);
        let mut choice = self.choice();
        match &answer {
            Err(error) if error.kind == BrokerErrorKind::Retryable => {
                choice.leader = None;
                choice.avoided = broker.map(|broker| (broker, Instant::now() + AVOIDED_FOR));
            }
            // Another broker than the leader is not kept: the next request looks for the leader again.
            _ => choice.leader = leader.filter(|_| leader == broker && answer.is_ok()),
        }
        answer
    }
}

/// Leader of the first topic that has a leader, and all brokers.
fn find_leader(
    client: &QueryClient,
    topics: &[String],
    timeout: Duration,
) -> Result<(Option<i32>, Vec<i32>), BrokerError> {
    let Some(topic) = topics.first() else { return Ok((None, Vec::new())) };
    let answer = client.fetch_metadata(Some(topic), timeout);
    let answer = answer.map_err(|error| translate(OPERATION, topic, &error))?;
    let mut leaders = answer.topics().iter().flat_map(|topic| topic.partitions()).map(MetadataPartition::leader);
    let leader = leaders.find(|leader| *leader >= 0);
    Ok((leader, answer.brokers().iter().map(MetadataBroker::id).collect()))
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

    /// Protects: the lookups of all chunks do not wait for a lost leader for as long as the cluster names it.
    #[test]
    fn a_broker_without_an_answer_is_avoided_for_a_while() {
        let now = Instant::now();
        let lost = BrokerChoice { leader: None, avoided: Some((1, now + AVOIDED_FOR)) };
        let chosen = |choice: &BrokerChoice, leader, brokers: &[i32]| choice.choose(leader, brokers, now);
        assert_eq!(chosen(&BrokerChoice::default(), Some(1), &[1, 2]), Some(1), "the leader");
        assert_eq!(chosen(&BrokerChoice::default(), None, &[3, 2]), Some(3), "any broker");
        assert_eq!(chosen(&lost, Some(1), &[1, 2]), Some(2), "another broker");
        assert_eq!(chosen(&lost, Some(2), &[1, 2]), Some(2), "the new leader");
        assert_eq!(chosen(&lost, Some(1), &[1]), Some(1), "there is no other broker");
        assert_eq!(lost.choose(Some(1), &[1, 2], now + AVOIDED_FOR), Some(1), "the leader answers again");
        assert_eq!(chosen(&lost, None, &[]), None);
    }

    #[test]
    fn an_id_of_zeros_is_none() {
        assert_eq!(topic_id((0, 0)), None);
        let id = topic_id((1, -1)).unwrap();
        assert_eq!(hex::encode(id), "0000000000000001ffffffffffffffff");
    }
}
