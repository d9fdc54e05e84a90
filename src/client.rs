//! Clients of the log: [`EventPublisher`] publishes events, [`submit_commands`] publishes commands to the sequencer and
//! waits for their results.

pub(crate) mod command_line;
mod commands;
mod feed_position;
pub(crate) mod history;
pub(crate) mod outcome_feed;
mod outcome_ring;
pub(crate) mod partitions;
mod publisher;
mod publishing;
pub(crate) mod steps;
pub(crate) mod submitted;

use std::time::Duration;

pub(crate) use commands::CommandClient;
pub use commands::{CommandAnswer, CommandOutcome, PendingCommand, submit_commands};
pub use publisher::{EventPublisher, PublishError, PublishedEvent};
pub(crate) use publisher::{outgoing_message, refer_if_large};

use crate::{
    broker::{Broker, BrokerError},
    config::Topics,
    preflight::topics::{NewTopicSettings, new_topics},
};

/// Creates the topics of a store on the log of `broker`; topics that exist with these numbers of partitions stay.
/// `partitions`: number of partitions of the topics that may have many, fixed for the life of a store. On a Kafka
/// cluster `utxo-store topics create` also sets replicas and checks existing topics.
///
/// # Errors
/// The log refuses a topic, or does not answer.
pub async fn create_topics(broker: &dyn Broker, topics: &Topics, partitions: i32) -> Result<(), BrokerError> {
    broker.create_topics(&new_topics(topics, NewTopicSettings::with_partitions(partitions))).await
}

/// Least and greatest pause between two attempts to produce.
pub(crate) const PRODUCE_RETRY_PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
