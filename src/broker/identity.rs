//! Watches that topics stay the ones that a store was made from.
//!
//! A topic that is deleted and created again keeps its name. librdkafka goes on reading it at the old position, without
//! a word where the new topic is long enough. Offsets of the old topic mean nothing in the new one. So an event counts
//! only once the topic's identity was asked for *after* the event was read, and was the expected one
//! ([`TopicGuard::confirm`]).

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{Broker, BrokerError, BrokerErrorKind, TopicIdentity};
use crate::backoff::Backoff;

/// A topic that is not there for so long was deleted. Brokers that have just started may not know every topic yet.
const ABSENT_FOR: Duration = Duration::from_secs(10);

/// First and longest pause between looks that had no answer.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// The expected identities of topics. Clones share them.
#[derive(Clone)]
pub struct TopicGuard {
    broker: Option<Arc<dyn Broker>>,
    expected: Arc<BTreeMap<String, TopicIdentity>>,
}

/// Outcome of one look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sight {
    /// Every topic is the expected one.
    Same,
    /// This topic does not exist at the moment.
    Absent(String),
    /// A topic is another one. In words, with its name and both identities.
    Other(String),
}

/// Reason why events of a topic must not be applied.
#[derive(Debug, Clone)]
pub enum Unconfirmed {
    /// A topic is another one, is gone, or may not be looked at. In words.
    Other(String),
    /// The broker cannot go on.
    Broker(BrokerError),
}

impl TopicGuard {
    /// A guard of these topics, by name.
    pub fn new(broker: Arc<dyn Broker>, expected: BTreeMap<String, TopicIdentity>) -> Self {
        TopicGuard { broker: Some(broker), expected: Arc::new(expected) }
    }

    /// A guard that takes every topic for the expected one: benches and unit tests.
    pub fn unguarded() -> Self {
        TopicGuard { broker: None, expected: Arc::default() }
    }

    /// Asks once which identities the topics have now.
    ///
    /// # Errors
    /// The broker does not answer, or a topic may not be looked at.
    pub async fn look(&self, topics: &[String]) -> Result<Sight, BrokerError> {
        let Some(broker) = &self.broker else { return Ok(Sight::Same) };
        let found = broker.identify(topics).await?;
        let judged = topics.iter().zip(found).map(|(topic, found)| match self.expected.get(topic) {
            Some(expected) => judge(topic, *expected, found),
            None => Sight::Same,
        });
        // A topic that is another one is the news, whatever else is away.
        let worst = judged.max_by_key(|sight| match sight {
            Sight::Same => 0,
            Sight::Absent(_) => 1,
            Sight::Other(_) => 2,
        });
        Ok(worst.unwrap_or(Sight::Same))
    }

    /// Asks until every topic is known to be the expected one. Events that were read before the call may be applied
    /// then. Answers at once where the cluster gives no ids.
    ///
    /// # Errors
    /// See [`Unconfirmed`].
    pub async fn confirm(&self, topics: &[String]) -> Result<(), Unconfirmed> {
        self.confirm_after(topics, || ()).await
    }

    /// As [`confirm`](Self::confirm); calls `asks` right before each question. Events that were read before the last
    /// such call may be applied.
    ///
    /// # Errors
    /// See [`Unconfirmed`].
    pub async fn confirm_after(&self, topics: &[String], mut asks: impl FnMut()) -> Result<(), Unconfirmed> {
        let (mut absent_since, mut pauses) = (None, Backoff::new(PAUSE, 0));
        loop {
            asks();
            if !self.has_ids(topics) {
                return Ok(());
            }
            match self.look(topics).await {
                Ok(Sight::Same) => return Ok(()),
                Ok(Sight::Other(why)) => return Err(Unconfirmed::Other(why)),
                Ok(Sight::Absent(topic)) => {
                    let since: Instant = *absent_since.get_or_insert_with(Instant::now);
                    if since.elapsed() >= ABSENT_FOR {
                        return Err(Unconfirmed::Other(deleted(&topic)));
                    }
                }
                Err(error) if error.kind == BrokerErrorKind::Refused => {
                    return Err(Unconfirmed::Other(format!("cannot tell whether topics are the store's: {error}")));
                }
                Err(error) if error.kind == BrokerErrorKind::Retryable => {
                    tracing::warn!(%error, "topic identity: no answer, asked again");
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

/// Compares a topic as it is with the expected one. An id that either side does not know says nothing.
fn judge(topic: &str, expected: TopicIdentity, found: Option<TopicIdentity>) -> Sight {
    let Some(found) = found else { return Sight::Absent(topic.to_owned()) };
    match (expected.id, found.id) {
        (Some(store), Some(now)) if store != now => {
            Sight::Other(recreated(topic, &hex::encode(store), &hex::encode(now)))
        }
        _ if found.partitions != expected.partitions => Sight::Other(format!(
            "topic `{topic}` has {} partitions, the store was made from {}: keys lie in other partitions now; \
             restore the topic with {}, or produce all events again into new topics, for another group and an empty store",
            found.partitions, expected.partitions, expected.partitions
        )),
        _ => Sight::Same,
    }
}

/// Says that a topic is not the one that a store was made from.
pub fn recreated(topic: &str, store: &str, found: &str) -> String {
    format!(
        "topic `{topic}` is not the one that the store was made from: its id is {found}, the store's is {store}; \
         the topic was deleted and created again, or another topic or cluster is configured; no event of it is \
         applied; configure the topic that the store was made from, or produce all events again into new topics, for another group and an empty store"
    )
}

fn deleted(topic: &str) -> String {
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
        let other = |expected, found| match judge("txs", expected, found) {
            Sight::Other(why) => why,
            sight => format!("{sight:?}"),
        };
        let same = format!("{:?}", Sight::Same);
        assert_eq!(other(identity(Some(1), 2), Some(identity(Some(1), 2))), same);
        assert_eq!(other(identity(None, 2), Some(identity(Some(1), 2))), same, "bound before ids were known");
        assert_eq!(other(identity(Some(1), 2), Some(identity(None, 2))), same, "a cluster without ids");
        let anew = other(identity(Some(1), 2), Some(identity(Some(2), 2)));
        assert!(anew.contains("`txs`") && anew.contains(&"02".repeat(16)) && anew.contains(&"01".repeat(16)), "{anew}");
        let fewer = other(identity(Some(1), 4), Some(identity(Some(1), 2)));
        assert!(fewer.contains("has 2 partitions, the store was made from 4"), "{fewer}");
        assert_eq!(judge("txs", identity(Some(1), 2), None), Sight::Absent("txs".into()));
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
        assert_eq!(guard.look(&names).await.unwrap(), Sight::Absent("txs".into()));
        let began = Instant::now();
        let Err(Unconfirmed::Other(why)) = guard.confirm(&names).await else { panic!("it was confirmed") };
        assert!(why.contains("does not exist any more") && began.elapsed() >= ABSENT_FOR, "{why}");
        broker.recreate_topic(&topic).unwrap();
        let Err(Unconfirmed::Other(why)) = guard.confirm(&names).await else { panic!("it was confirmed") };
        assert!(why.contains("deleted and created again"), "{why}");
        TopicGuard::unguarded().confirm(&names).await.unwrap();
    }
}
