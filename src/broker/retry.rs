//! A log that is away for a while: what may be retried is tried again, and who waits says so.

use std::time::Duration;

use super::{Broker, BrokerError, BrokerErrorKind, Message, Reader, TopicPartition};
use crate::backoff::Backoff;

/// First and longest pause between tries.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// Asks until there is an answer.
///
/// # Errors
/// What no retry heals.
pub async fn until_answered<T, F>(ask: impl FnMut() -> F) -> Result<T, BrokerError>
where
    F: Future<Output = Result<T, BrokerError>>,
{
    Backoff::new(PAUSE, 0).until_answered(|error| error.kind == BrokerErrorKind::Retryable, ask).await
}

/// The next messages, or none after `wait`. A reader that fails is replaced by one that goes on where it stood, as soon as the log
/// answers again.
///
/// # Errors
/// What no retry heals.
pub async fn next_messages(
    reader: &mut Box<dyn Reader>,
    broker: &dyn Broker,
    partition: &TopicPartition,
    wait: Duration,
) -> Result<Vec<Message>, BrokerError> {
    match reader.next(wait).await {
        Err(error) if error.kind == BrokerErrorKind::Retryable => {
            tracing::warn!(%error, %partition, "cannot be read; opened again");
            tokio::time::sleep(PAUSE.0).await;
            let position = reader.position();
            *reader = until_answered(|| broker.read(partition, position)).await?;
            Ok(Vec::new())
        }
        read => read,
    }
}
