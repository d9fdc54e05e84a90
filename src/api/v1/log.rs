//! [`LogAccess`]: the log as the routes of a server use it.

use std::sync::Arc;

use tokio::sync::Mutex;

use crate::{
    api::{limits::HttpLimits, problem::Problem},
    broker::Broker,
    client::{
        EventPublisher,
        outcome_feed::{OutcomeFeed, OutcomeReader},
    },
    config::Config,
    embed::opening::open_event_bodies,
};

/// The log of a server, with what is opened at the first request.
pub struct LogAccess {
    pub(super) broker: Arc<dyn Broker>,
    config: Config,
    /// `None`: not opened yet, or given up.
    publisher: Mutex<Option<Arc<EventPublisher>>>,
    /// The outcomes of transactions and commands.
    pub(super) outcomes: OutcomeFeed,
}

impl LogAccess {
    /// Makes the access to a log whose topics a configuration names.
    pub fn new(broker: Arc<dyn Broker>, config: &Config) -> Self {
        let outcomes = OutcomeFeed::new(broker.clone(), config.kafka.topics.outcomes.as_str());
        LogAccess { broker, config: config.clone(), publisher: Mutex::default(), outcomes }
    }

    /// Returns the publisher of events.
    ///
    /// # Errors
    /// 503 while the log does not answer, or the object store cannot be opened.
    pub(super) async fn publisher(&self, limits: &HttpLimits) -> Result<Arc<EventPublisher>, Problem> {
        let open = async {
            let mut kept = self.publisher.lock().await;
            if let Some(publisher) = kept.as_ref() {
                return Ok(publisher.clone());
            }
            Ok(kept.insert(Arc::new(self.open_publisher().await?)).clone())
        };
        limits.bound("the log", open).await?
    }

    /// Opens the publisher, with the object store for the bodies of large transactions.
    async fn open_publisher(&self) -> Result<EventPublisher, Problem> {
        let topics = self.config.kafka.topics.clone();
        let publisher = EventPublisher::open(self.broker.as_ref(), topics).await;
        let publisher = publisher.map_err(|error| Problem::unavailable(error.to_string()))?;
        let bodies = open_event_bodies(&self.config).await;
        let bodies = bodies.map_err(|error| Problem::unavailable(error.to_string()))?;
        Ok(match bodies {
            Some(bodies) => publisher.with_bodies(bodies),
            None => publisher,
        })
    }

    /// Gives up a publisher whose producer has failed for good: the next request opens another one.
    pub(super) async fn give_up_publisher(&self, failed: &Arc<EventPublisher>) {
        let mut kept = self.publisher.lock().await;
        if kept.as_ref().is_some_and(|kept| Arc::ptr_eq(kept, failed)) {
            tracing::error!("http: the producer has failed for good; the next request opens another one");
            *kept = None;
        }
    }

    /// Begins to read the outcomes from now on.
    ///
    /// # Errors
    /// 503 while the log does not answer.
    pub(super) async fn follow(&self, limits: &HttpLimits) -> Result<OutcomeReader, Problem> {
        let reader = limits.bound("the log", self.outcomes.follow()).await?;
        reader.map_err(|error| Problem::unavailable(error.to_string()))
    }
}
