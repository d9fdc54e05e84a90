//! Binds a store to the topics that it is made from.
//!
//! The ids live in the meta record: the record belongs to the store, all instances of a group share it, and it outlives
//! what the coordinator forgets with a deleted topic (the committed offsets and all that was said with them).

use std::collections::BTreeMap;

use super::{
    Store,
    meta::{MetaError, topic_id},
};
use crate::{
    broker::{Broker, BrokerError, TopicId, TopicIdentity, TopicPartition, identity::recreated},
    event::Topic,
    record::{BoundTopic, MetaRecord},
};

/// A topic as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundTopic {
    /// Purpose of the topic.
    pub topic: Topic,
    /// Name of the topic.
    pub name: String,
    /// Id of the topic; `None`: the cluster gives none.
    pub id: Option<TopicId>,
    /// Number of partitions.
    pub partitions: i32,
    /// Where the cluster gives no id: the beginning of the id of each partition's record at offset 0; `None`: the
    /// partition is empty. A partition that no longer holds its first record is left out.
    pub first: BTreeMap<u32, Option<[u8; 8]>>,
}

/// Looks which topics are there, by their ids or else by their first records.
///
/// # Errors
/// The broker does not answer, or a topic does not exist.
pub async fn find_topics(broker: &dyn Broker, names: &[(Topic, String)]) -> Result<Vec<FoundTopic>, BrokerError> {
    let asked: Vec<String> = names.iter().map(|(_, name)| name.clone()).collect();
    let mut found = Vec::with_capacity(names.len());
    for ((topic, name), identity) in names.iter().zip(broker.identify(&asked).await?) {
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
        let id = topic_id(broker, &partition).await?.map(|id| {
            let [begin, ..] = *id.as_chunks::<8>().0 else { return [0; 8] };
            begin
        });
        // A record that came, or went, in between says nothing.
        if id.is_some() || high == 0 {
            first.insert(number.unsigned_abs(), id);
        }
    }
    Ok(first)
}

/// Whether a topic is the one that the store was made from, or the first of its kind.
///
/// # Errors
/// [`MetaError::TopicRecreated`]
pub fn is_bound_to(meta: &MetaRecord, found: &FoundTopic) -> Result<(), MetaError> {
    let Some(bound) = meta.topics.get(found.topic.default_name()) else { return Ok(()) };
    let anew = |store: &[u8], now: Option<&[u8]>| MetaError::TopicRecreated {
        told: recreated(&found.name, &hex::encode(store), &now.map_or_else(|| "none".to_owned(), hex::encode)),
    };
    if let (Some(store), Some(now)) = (&bound.id, &found.id) {
        return if store == now { Ok(()) } else { Err(anew(store, Some(now))) };
    }
    let others = bound.first.iter().filter_map(|(partition, store)| {
        let now = found.first.get(partition)?.as_ref();
        (now != Some(store)).then(|| anew(store, now.map(<[u8; 8]>::as_slice)))
    });
    others.into_iter().next().map_or(Ok(()), Err)
}

/// Whether a topic is told from others by its id.
pub fn is_known_by_id(found: &[FoundTopic], topic: Topic) -> bool {
    found.iter().any(|one| one.topic == topic && one.id.is_some())
}

fn bind(mut meta: MetaRecord, found: &[FoundTopic]) -> Result<MetaRecord, MetaError> {
    for one in found {
        is_bound_to(&meta, one)?;
        let first = one.first.iter().filter_map(|(partition, id)| Some((*partition, (*id)?)));
        let bound: &mut BoundTopic = meta.topics.entry(one.topic.default_name().to_owned()).or_default();
        bound.id = bound.id.or(one.id);
        bound.first.extend(first);
    }
    meta.topics.retain(|_, bound| *bound != BoundTopic::default());
    Ok(meta)
}

impl Store {
    /// Holds the store to these topics: ids that are seen for the first time are written down, any other refused from
    /// then on.
    ///
    /// # Errors
    /// [`MetaError::TopicRecreated`], or as [`change_meta`](Self::change_meta).
    pub async fn bind_topics(&self, found: &[FoundTopic]) -> Result<MetaRecord, MetaError> {
        self.change_meta(|meta| bind(meta, found)).await
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
    fn a_store_is_bound_at_first_sight_and_refuses_another_topic_by_both_ids() {
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
    fn without_ids_the_first_records_tell_topics_apart() {
        let empty = bind(MetaRecord::default(), &[found(None, &[(0, None), (1, None)])]).unwrap();
        assert_eq!(empty, MetaRecord::default(), "nothing is known yet");
        let bound = bind(empty, &[found(None, &[(0, Some(7)), (1, None)])]).unwrap();
        let later = bind(bound.clone(), &[found(None, &[(0, Some(7)), (1, Some(8))])]).unwrap();
        for (partitions, fits) in [
            (vec![(0, Some(7)), (1, Some(8))], true),
            (vec![(1, Some(8))], true),
            (vec![], true),
            (vec![(0, Some(9)), (1, Some(8))], false),
            (vec![(0, Some(7)), (1, None)], false),
        ] {
            assert_eq!(is_bound_to(&later, &found(None, &partitions)).is_ok(), fits, "{partitions:?}");
        }
        // A cluster that gives ids from now on is believed.
        assert!(bind(later, &[found(Some(1), &[])]).unwrap().topics["utxo.validated-txs"].id.is_some());
    }
}
