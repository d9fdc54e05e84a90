//! Binds a store to the topics whose events the store consumes.
//!
//! The topic ids are in the meta record: all instances of a group share the record, and it stays when the coordinator
//! deletes the committed offsets and their metadata together with a topic.

use std::collections::BTreeMap;

use super::meta::{MetaError, StoreMeta, check_chain_id, check_partition_count, read_topic_id};
use crate::{
    broker::{Broker, BrokerError, TopicId, TopicIdentity, TopicPartition, identity::describe_recreated},
    event::Topic,
    record::{BoundTopic, MetaRecord},
};

/// A topic of the cluster with its identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundTopic {
    /// Purpose of the topic.
    pub topic: Topic,
    /// Name of the topic.
    pub name: String,
    /// Id of the topic; `None`: the cluster gives none.
    pub id: Option<TopicId>,
    /// Number of partitions of the topic.
    pub partitions: i32,
    /// First records, for a cluster without topic ids: the first 8 bytes of the id of each partition's record at offset
    /// 0; `None`: the partition is empty. A partition that no longer holds its first record is left out.
    pub first: BTreeMap<u32, Option<[u8; 8]>>,
}

/// Reads the identities of these topics: their ids, or else their first records.
///
/// # Errors
/// The broker does not answer, or a topic does not exist.
pub async fn find_topics(broker: &dyn Broker, names: &[(Topic, String)]) -> Result<Vec<FoundTopic>, BrokerError> {
    let mut found = look_up_topics(broker, names).await?;
    for topic in found.iter_mut().filter(|topic| topic.id.is_none()) {
        topic.first = first_records(broker, &topic.name, topic.partitions).await?;
    }
    Ok(found)
}

/// Reads the ids and the numbers of partitions of these topics, without their first records.
///
/// # Errors
/// The broker does not answer, or a topic does not exist.
pub(crate) async fn look_up_topics(
    broker: &dyn Broker,
    names: &[(Topic, String)],
) -> Result<Vec<FoundTopic>, BrokerError> {
    let names_only: Vec<String> = names.iter().map(|(_, name)| name.clone()).collect();
    let identities = broker.identify(&names_only).await?;
    let found = names.iter().zip(identities).map(|((topic, name), identity)| {
        let unknown = || BrokerError::unknown_topic("look up topic ids", name);
        let TopicIdentity { id, partitions } = identity.ok_or_else(unknown)?;
        Ok(FoundTopic { topic: *topic, name: name.clone(), id, partitions, first: BTreeMap::new() })
    });
    found.collect()
}

/// Returns why topics are not those that the store was made from; `None`: their ids, as far as the cluster gives ids,
/// and the number of partitions are those of the store.
pub(crate) fn find_topic_difference(meta: &MetaRecord, found: &[FoundTopic]) -> Option<MetaError> {
    let topics = found.iter().map(|topic| verify_topic_binding(meta, topic));
    let validated = found.iter().filter(|found| found.topic == Topic::ValidatedTxs);
    let counts = validated.map(|found| check_partition_count(meta, found.partitions.unsigned_abs()));
    topics.chain(counts).find_map(Result::err)
}

async fn first_records(
    broker: &dyn Broker,
    name: &str,
    partitions: i32,
) -> Result<BTreeMap<u32, Option<[u8; 8]>>, BrokerError> {
    let mut first = BTreeMap::new();
    for number in 0..partitions {
        let partition = TopicPartition { topic: name.into(), partition: number };
        let (low, high) = broker.watermarks(&partition).await?;
        if low > 0 {
            continue;
        }
        let id = read_topic_id(broker, &partition).await?.map(|id| {
            let [begin, ..] = *id.as_chunks::<8>().0 else { return [0; 8] };
            begin
        });
        // A record that was written or deleted between the two questions proves nothing.
        if id.is_some() || high == 0 {
            first.insert(number.unsigned_abs(), id);
        }
    }
    Ok(first)
}

/// Verifies that a topic is the one to which the store is bound, or that the store is not bound to such a topic yet.
///
/// # Errors
/// [`MetaError::TopicRecreated`]
pub fn verify_topic_binding(meta: &MetaRecord, found: &FoundTopic) -> Result<(), MetaError> {
    let Some(bound) = meta.topics.get(found.topic.default_name()) else { return Ok(()) };
    let recreated_error = |store: &[u8], now: Option<&[u8]>| {
        let now = now.map_or_else(|| "none".to_owned(), hex::encode);
        MetaError::TopicRecreated { message: describe_recreated(&found.name, &hex::encode(store), &now) }
    };
    if let (Some(store), Some(now)) = (&bound.id, &found.id) {
        return if store == now { Ok(()) } else { Err(recreated_error(store, Some(now))) };
    }
    let others = bound.first.iter().filter_map(|(partition, store)| {
        let now = found.first.get(partition)?.as_ref();
        (now != Some(store)).then(|| recreated_error(store, now.map(<[u8; 8]>::as_slice)))
    });
    others.into_iter().next().map_or(Ok(()), Err)
}

/// Identity of the log: of the topics whose events make the state.
#[derive(Debug, Clone)]
pub struct LogIdentity {
    /// The topics whose events make the state.
    pub topics: Vec<FoundTopic>,
    /// Id of the chain topic ([`compute_chain_id`](super::meta::compute_chain_id)); `None`: no record at offset 0.
    pub chain_id: Option<[u8; 32]>,
}

impl LogIdentity {
    /// Reads the identity of the log with these topics.
    ///
    /// # Errors
    /// The broker does not answer, or a topic does not exist.
    pub async fn read(broker: &dyn Broker, names: &[(Topic, String)]) -> Result<Self, BrokerError> {
        let topics = find_topics(broker, names).await?;
        let chain = topics.iter().find(|found| found.topic == Topic::Chain);
        let chain_id = match chain.map(|found| TopicPartition { topic: found.name.as_str().into(), partition: 0 }) {
            Some(chain) => read_topic_id(broker, &chain).await?,
            None => None,
        };
        Ok(LogIdentity { topics, chain_id })
    }

    /// Returns every difference from the log that the store was made from.
    pub fn differences(&self, meta: &MetaRecord) -> Vec<MetaError> {
        let mut results: Vec<_> = self.topics.iter().map(|topic| verify_topic_binding(meta, topic)).collect();
        // The topic id identifies a chain topic without a first record; a deleted first record changes nothing.
        let has_id = |found: &FoundTopic| found.topic == Topic::Chain && found.id.is_some();
        if self.chain_id.is_some() || !self.topics.iter().any(has_id) {
            results.push(check_chain_id(meta, self.chain_id));
        }
        results.extend(self.partition_count().map(|count| check_partition_count(meta, count)));
        results.into_iter().filter_map(Result::err).collect()
    }

    /// Number of partitions of the topic of validated transactions.
    pub fn partition_count(&self) -> Option<u32> {
        let validated = self.topics.iter().find(|found| found.topic == Topic::ValidatedTxs);
        validated.map(|found| found.partitions.unsigned_abs())
    }
}

fn bind(mut meta: MetaRecord, found: &[FoundTopic]) -> Result<MetaRecord, MetaError> {
    for topic in found {
        verify_topic_binding(&meta, topic)?;
        let first = topic.first.iter().filter_map(|(partition, id)| Some((*partition, (*id)?)));
        let bound: &mut BoundTopic = meta.topics.entry(topic.topic.default_name().to_owned()).or_default();
        bound.id = bound.id.or(topic.id);
        bound.first.extend(first);
    }
    meta.topics.retain(|_, bound| *bound != BoundTopic::default());
    Ok(meta)
}

impl StoreMeta<'_> {
    /// Binds the store to this log: to the ids of its topics, to the first record of its chain, and to the number of
    /// partitions of the validated transactions. What the meta record lacks is recorded; anything else is refused.
    ///
    /// # Errors
    /// [`MetaError::TopicRecreated`], [`MetaError::ChainRecreated`], [`MetaError::OtherPartitions`], or the errors of
    /// [`change`](Self::change).
    pub async fn bind_log(&self, log: &LogIdentity) -> Result<MetaRecord, MetaError> {
        self.change(|meta| {
            let mut meta = bind(meta, &log.topics)?;
            // A chain that was empty when it was read has a first record by now, if another instance has bound it.
            if log.chain_id.is_some() {
                check_chain_id(&meta, log.chain_id)?;
                meta.chain_id = log.chain_id;
            }
            if let Some(count) = log.partition_count() {
                check_partition_count(&meta, count)?;
                meta.partitions = Some(count);
            }
            Ok(meta)
        })
        .await
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn found(id: Option<u8>, first: &[(u32, Option<u8>)]) -> FoundTopic {
        FoundTopic {
            topic: Topic::ValidatedTxs,
            name: "txs".into(),
            id: id.map(|id| [id; 16]),
            partitions: 2,
            first: first.iter().map(|(partition, id)| (*partition, id.map(|id| [id; 8]))).collect(),
        }
    }

    #[test]
    fn a_store_is_bound_to_the_first_topic_id_and_refuses_another() {
        let bound = bind(MetaRecord::default(), &[found(Some(1), &[])]).unwrap();
        assert_eq!(bind(bound.clone(), &[found(Some(1), &[])]).unwrap(), bound);
        let error = bind(bound.clone(), &[found(Some(2), &[])]).unwrap_err().to_string();
        assert!(
            error.contains("`txs`") && error.contains(&"01".repeat(16)) && error.contains(&"02".repeat(16)),
            "{error}"
        );
        assert!(!error.contains("pruned") && !error.contains("offset"), "{error}");
    }

    #[test]
    fn without_ids_the_first_records_identify_topics() {
        let empty = bind(MetaRecord::default(), &[found(None, &[(0, None), (1, None)])]).unwrap();
        assert_eq!(empty, MetaRecord::default(), "no record is known yet");
        let bound = bind(empty, &[found(None, &[(0, Some(7)), (1, None)])]).unwrap();
        let later = bind(bound.clone(), &[found(None, &[(0, Some(7)), (1, Some(8))])]).unwrap();
        for (partitions, fits) in [
            (vec![(0, Some(7)), (1, Some(8))], true),
            (vec![(1, Some(8))], true),
            (vec![], true),
            (vec![(0, Some(9)), (1, Some(8))], false),
            (vec![(0, Some(7)), (1, None)], false),
        ] {
            assert_eq!(verify_topic_binding(&later, &found(None, &partitions)).is_ok(), fits, "{partitions:?}");
        }
        // An id counts from the time on at which the cluster gives one.
        assert!(bind(later, &[found(Some(1), &[])]).unwrap().topics["utxo.validated-txs"].id.is_some());
    }
}
