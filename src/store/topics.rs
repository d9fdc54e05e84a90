//! Binds a store to the topics whose events the store consumes.
//!
//! The topic ids are in the meta record: all instances of a group share the record, and it stays when the coordinator
//! deletes the committed offsets and their metadata together with a topic.

use std::collections::BTreeMap;

use super::meta::{MetaError, StoreMeta, read_topic_id};
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
    let names_only: Vec<String> = names.iter().map(|(_, name)| name.clone()).collect();
    let mut found = Vec::with_capacity(names.len());
    for ((topic, name), identity) in names.iter().zip(broker.identify(&names_only).await?) {
        let unknown = || BrokerError::unknown_topic("look up topic ids", name);
        let TopicIdentity { id, partitions } = identity.ok_or_else(unknown)?;
        let first = if id.is_some() { BTreeMap::new() } else { first_records(broker, name, partitions).await? };
        found.push(FoundTopic { topic: *topic, name: name.clone(), id, partitions, first });
    }
    Ok(found)
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

/// Returns whether the cluster gives the topic an id.
pub fn has_topic_id(found: &[FoundTopic], topic: Topic) -> bool {
    found.iter().any(|found| found.topic == topic && found.id.is_some())
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
    /// Binds the store to these topics: a first id is recorded, and later any other id is refused.
    ///
    /// # Errors
    /// [`MetaError::TopicRecreated`], or the errors of [`change`](Self::change).
    pub async fn bind_topics(&self, found: &[FoundTopic]) -> Result<MetaRecord, MetaError> {
        self.change(|meta| bind(meta, found)).await
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
