//! Checks that topics are still the topics that the store is bound to.
//!
//! A topic that is deleted and created again keeps its name. librdkafka continues at the old position, and reports no
//! error where the new topic is long enough. Offsets of the old topic have no meaning in the new topic. An event
//! therefore counts only once a lookup *after* the read returned the expected identity ([`TopicGuard::confirm`]).

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{Broker, BrokerError, BrokerErrorKind, TopicIdentity};
use crate::backoff::Backoff;

/// Time after which an absent topic counts as deleted. Brokers that have just started may not know every topic yet.
const ABSENCE_LIMIT: Duration = Duration::from_secs(10);

/// First and longest pause between lookups without an answer.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Expected identities of topics. Clones share the identities.
#[derive(Clone)]
pub struct TopicGuard {
    broker: Option<Arc<dyn Broker>>,
    expected: Arc<BTreeMap<String, TopicIdentity>>,
}

/// Outcome of one lookup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TopicCheck {
    /// Every topic has its expected identity.
    Same,
    /// Name of a topic that does not exist at the moment.
    Absent(String),
    /// Message about a topic with another identity: its name and both identities.
    Other(String),
}

/// Reason why events of a topic must not be applied.
#[derive(Debug, Clone)]
pub enum Unconfirmed {
    /// Message about a topic that has another identity, does not exist, or refuses the lookup.
    Other(String),
    /// Error that a retry does not heal.
    Broker(BrokerError),
}

impl TopicGuard {
    /// A guard of topics, with the expected identity by name.
    pub fn new(broker: Arc<dyn Broker>, expected: BTreeMap<String, TopicIdentity>) -> Self {
        TopicGuard { broker: Some(broker), expected: Arc::new(expected) }
    }

    /// A guard that accepts every topic, for benches and unit tests.
    #[cfg(feature = "testkit")]
    pub fn unguarded() -> Self {
        TopicGuard { broker: None, expected: Arc::default() }
    }

    /// Looks up the current identities of the topics once.
    ///
    /// # Errors
    /// The broker does not answer, or refuses access to a topic.
    pub async fn check(&self, topics: &[String]) -> Result<TopicCheck, BrokerError> {
        let Some(broker) = &self.broker else { return Ok(TopicCheck::Same) };
        let found = broker.identify(topics).await?;
        let judged = topics.iter().zip(found).map(|(topic, found)| match self.expected.get(topic) {
            Some(expected) => compare_identity(topic, *expected, found),
            None => TopicCheck::Same,
        });
        // Another identity matters more than an absent topic.
        let worst = judged.max_by_key(|sight| match sight {
            TopicCheck::Same => 0,
            TopicCheck::Absent(_) => 1,
            TopicCheck::Other(_) => 2,
        });
        Ok(worst.unwrap_or(TopicCheck::Same))
    }

    /// Repeats the lookup until every topic has its expected identity. Events that were read before the call may be
    /// applied then. Returns at once where the cluster gives no ids.
    pub async fn confirm(&self, topics: &[String]) -> Result<(), Unconfirmed> {
        self.confirm_after(topics, || ()).await
    }

    /// Does the same as [`confirm`](Self::confirm) and calls `before_request` right before each lookup. Events that
    /// were read before the last such call may be applied.
    pub async fn confirm_after(&self, topics: &[String], mut before_request: impl FnMut()) -> Result<(), Unconfirmed> {
        let (mut absent_since, mut pauses) = (None, Backoff::new(PAUSE, 0));
        loop {
            before_request();
            if !self.has_ids(topics) {
                return Ok(());
            }
            match self.check(topics).await {
                Ok(TopicCheck::Same) => return Ok(()),
                Ok(TopicCheck::Other(why)) => return Err(Unconfirmed::Other(why)),
                Ok(TopicCheck::Absent(topic)) => {
                    let since: Instant = *absent_since.get_or_insert_with(Instant::now);
                    if since.elapsed() >= ABSENCE_LIMIT {
                        return Err(Unconfirmed::Other(describe_deleted(&topic)));
                    }
                }
                Err(error) if error.kind == BrokerErrorKind::Refused => {
                    return Err(Unconfirmed::Other(format!("cannot tell whether topics are the store's: {error}")));
                }
                Err(error) if error.kind == BrokerErrorKind::Retryable => {
                    tracing::warn!(%error, "topic identity: no answer, retrying");
                }
                Err(error) => return Err(Unconfirmed::Broker(error)),
            }
            pauses.pause().await;
        }
    }

    fn has_ids(&self, topics: &[String]) -> bool {
        let expected = topics.iter().filter_map(|topic| self.expected.get(topic));
        self.broker.is_some() && expected.into_iter().any(|expected| expected.id.is_some())
    }
}

/// Compares the identity of a topic with the expected identity. A missing id on either side compares as equal.
fn compare_identity(topic: &str, expected: TopicIdentity, found: Option<TopicIdentity>) -> TopicCheck {
    let Some(found) = found else { return TopicCheck::Absent(topic.to_owned()) };
    match (expected.id, found.id) {
        (Some(store), Some(now)) if store != now => {
            TopicCheck::Other(describe_recreated(topic, &hex::encode(store), &hex::encode(now)))
        }
        _ if found.partitions != expected.partitions => TopicCheck::Other(format!(
            "topic `{topic}` has {} partitions, the store was made from {}: keys lie in other partitions now; \
             restore the topic with {}, or produce all events again into new topics, for another group and an \
             empty store",
            found.partitions, expected.partitions, expected.partitions
        )),
        _ => TopicCheck::Same,
    }
}

/// Message about a topic whose id is not the id that the store is bound to.
pub fn describe_recreated(topic: &str, store: &str, found: &str) -> String {
    format!(
        "topic `{topic}` is not the one that the store was made from: its id is {found}, the store's is {store}; \
         the topic was deleted and created again, or another topic or cluster is configured; no event of it is \
         applied; configure the topic that the store was made from, or produce all events again into new topics, \
         for another group and an empty store"
    )
}

fn describe_deleted(topic: &str) -> String {
    format!("topic `{topic}` does not exist any more: no event of it is applied; restore the topic")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::{
        broker::{
            NewTopic,
            memory::{MemoryBroker, MemorySettings},
        },
        clock::Clock,
    };

    fn identity(id: Option<u8>, partitions: i32) -> TopicIdentity {
        TopicIdentity { id: id.map(|id| [id; 16]), partitions }
    }

    #[test]
    fn a_topic_with_another_id_or_number_of_partitions_is_another_topic() {
        let other = |expected, found| match compare_identity("txs", expected, found) {
            TopicCheck::Other(why) => why,
            sight => format!("{sight:?}"),
        };
        let same = format!("{:?}", TopicCheck::Same);
        assert_eq!(other(identity(Some(1), 2), Some(identity(Some(1), 2))), same);
        assert_eq!(other(identity(None, 2), Some(identity(Some(1), 2))), same, "a store that was bound without an id");
        assert_eq!(other(identity(Some(1), 2), Some(identity(None, 2))), same, "a cluster without ids");
        let anew = other(identity(Some(1), 2), Some(identity(Some(2), 2)));
        assert!(anew.contains("`txs`") && anew.contains(&"02".repeat(16)) && anew.contains(&"01".repeat(16)), "{anew}");
        let fewer = other(identity(Some(1), 4), Some(identity(Some(1), 2)));
        assert!(fewer.contains("has 2 partitions, the store was made from 4"), "{fewer}");
        assert_eq!(compare_identity("txs", identity(Some(1), 2), None), TopicCheck::Absent("txs".into()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_topic_is_confirmed_until_it_is_created_again_and_may_be_away_for_a_moment() {
        let broker = MemoryBroker::new(MemorySettings::new(Clock::simulated(1_000)));
        let topic = NewTopic { name: "txs".into(), partitions: 2, config: Vec::new() };
        broker.create_topics(std::slice::from_ref(&topic)).await.unwrap();
        let names = vec!["txs".to_owned()];
        let expected = broker.identify(&names).await.unwrap().pop().flatten().unwrap();
        let guard = TopicGuard::new(Arc::new(broker.clone()), [("txs".to_owned(), expected)].into());
        guard.confirm(&names).await.unwrap();
        broker.delete_topic("txs");
        assert_eq!(guard.check(&names).await.unwrap(), TopicCheck::Absent("txs".into()));
        let began = Instant::now();
        let Err(Unconfirmed::Other(why)) = guard.confirm(&names).await else { panic!("it was confirmed") };
        assert!(why.contains("does not exist any more") && began.elapsed() >= ABSENCE_LIMIT, "{why}");
        broker.recreate_topic(&topic).unwrap();
        let Err(Unconfirmed::Other(why)) = guard.confirm(&names).await else { panic!("it was confirmed") };
        assert!(why.contains("deleted and created again"), "{why}");
        TopicGuard::unguarded().confirm(&names).await.unwrap();
    }
}
