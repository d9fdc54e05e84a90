//! Retries over an outage of the log: retryable errors are logged and the request is repeated.

use std::time::Duration;

use super::{Broker, BrokerError, BrokerErrorKind, Message, PartitionReader, TopicPartition};
use crate::backoff::Backoff;

/// First and longest pause between attempts.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// Repeats a request until it has an answer.
///
/// # Errors
/// The first error that a retry does not heal.
pub async fn until_answered<T, F>(ask: impl FnMut() -> F) -> Result<T, BrokerError>
where
    F: Future<Output = Result<T, BrokerError>>,
{
    Backoff::new(PAUSE, 0).retry(|error| error.kind == BrokerErrorKind::Retryable, ask).await
}

/// Returns the next messages, or none after `wait`. A reader with a retryable error is replaced by a new reader at the
/// same position, as soon as the log answers.
///
/// # Errors
/// The first error that a retry does not heal.
pub async fn read_or_reopen(
    reader: &mut Box<dyn PartitionReader>,
    broker: &dyn Broker,
    partition: &TopicPartition,
    wait: Duration,
) -> Result<Vec<Message>, BrokerError> {
    match reader.next(wait).await {
        Err(error) if error.kind == BrokerErrorKind::Retryable => {
            tracing::warn!(%error, %partition, "log reader: cannot read, opening a new reader");
            tokio::time::sleep(PAUSE.0).await;
            let position = reader.position();
            *reader = until_answered(|| broker.read(partition, position)).await?;
            Ok(Vec::new())
        }
        read => read,
    }
}
