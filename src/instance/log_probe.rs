//! Watches the log for a process in which no loop reads the log.

use std::convert::Infallible;

use super::{POLL_INTERVAL, PROBE_INTERVAL, PROBE_TIMEOUT};
use crate::{
    broker::Broker,
    event::Topic,
    status::{Condition, Health},
    store::{
        StateStore,
        topics::{find_topic_difference, look_up_topics},
    },
};

/// Reports in the health conditions whether the log answers, and whether its topics are still those that the store was
/// made from. An outage shows within [`PROBE_INTERVAL`] and [`PROBE_TIMEOUT`] together, less than five seconds.
pub(crate) async fn probe_log(
    store: &StateStore,
    broker: &dyn Broker,
    topics: &[(Topic, String)],
    health: &Health,
) -> Infallible {
    loop {
        let (meta, found) = tokio::join!(
            tokio::time::timeout(PROBE_TIMEOUT, store.meta()),
            tokio::time::timeout(PROBE_TIMEOUT, look_up_topics(broker, topics)),
        );
        let why = match (found, meta) {
            (Err(_), _) => Some(format!("the broker does not answer within {PROBE_TIMEOUT:?}")),
            (Ok(Err(error)), _) => Some(format!("cannot look up the topics: {error}")),
            (Ok(Ok(found)), Ok(Ok(Some(meta)))) => find_topic_difference(&meta, &found).map(|error| error.to_string()),
            // The store has a condition of its own.
            (Ok(Ok(_)), _) => None,
        };
        let pause = if why.is_none() { PROBE_INTERVAL } else { POLL_INTERVAL };
        health.set(Condition::BrokerReachable, why);
        tokio::time::sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicU8, Ordering},
        },
        time::Duration,
    };

    use super::*;
    use crate::{
        broker::{BrokerDecorator, BrokerError, BrokerErrorKind, TopicIdentity, memory::MemoryBroker},
        clock::Clock,
        store::{meta::StoreMeta, testing::store, topics::LogIdentity},
    };

    /// A log that answers lookups, fails them, does not answer, or has other topics.
    struct SwitchedBroker {
        inner: Arc<dyn Broker>,
        mode: AtomicU8,
    }

    impl BrokerDecorator for SwitchedBroker {
        fn inner(&self) -> &dyn Broker {
            self.inner.as_ref()
        }

        async fn identify(&self, topics: &[String]) -> Result<Vec<Option<TopicIdentity>>, BrokerError> {
            let mode = self.mode.load(Ordering::Relaxed);
            match mode {
                2 => Err(BrokerError::new(BrokerErrorKind::Retryable, "identify", "no broker is up")),
                3 => std::future::pending().await,
                id => Ok(topics.iter().map(|_| Some(TopicIdentity { id: Some([id; 16]), partitions: 2 })).collect()),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_and_other_topics_are_named_within_five_seconds() {
        let broker = SwitchedBroker { inner: Arc::new(MemoryBroker::default()), mode: AtomicU8::new(1) };
        let topics = [(Topic::ValidatedTxs, "txs".to_owned())];
        let store = store(100);
        StoreMeta::of(&store).open(false, [1; 16]).await.unwrap();
        let log = LogIdentity { topics: look_up_topics(&broker, &topics).await.unwrap(), chain_id: None };
        StoreMeta::of(&store).bind_log(&log).await.unwrap();
        let health = Health::new(Clock::System, Duration::from_secs(60));
        let reason = || health.ready().reasons.get("broker_reachable").cloned();
        let look = async {
            let mut reasons = Vec::new();
            for mode in [1, 2, 1, 3, 1, 4, 1] {
                broker.mode.store(mode, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_secs(5)).await;
                reasons.push(reason());
            }
            reasons
        };
        let reasons = tokio::select! {
            never = probe_log(&store, &broker, &topics, &health) => match never {},
            reasons = look => reasons,
        };
        let reasons: Vec<&str> = reasons.iter().map(|reason| reason.as_deref().unwrap_or("")).collect();
        let [met, failed, met_again, silent, met_later, other, met_at_last] = reasons[..] else {
            panic!("{reasons:?}")
        };
        assert_eq!([met, met_again, met_later, met_at_last], [""; 4]);
        assert!(failed.contains("no broker is up"), "{failed}");
        assert!(silent.contains("does not answer within"), "{silent}");
        assert!(other.contains("`txs`") && other.contains("created again"), "{other}");
    }
}
