//! Publishes many messages together, with a result for each.

use tokio::time::Instant;

use super::PRODUCE_RETRY_PAUSE;
use crate::{
    backoff::Backoff,
    broker::{BrokerError, BrokerErrorKind, Delivery, OutgoingMessage, Producer},
};

/// Order of messages in the log, when some have failed and are sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResendOrder {
    /// A message may come after messages that followed it.
    Any,
    /// A message never comes after messages that followed it: where a later message was acknowledged, an earlier one is
    /// not sent again. All messages are of one partition.
    Given,
}

/// Produces messages together and waits for their acknowledgements until the deadline. Messages that fail, and may be
/// sent again, are sent again, which may repeat a message in the log. `result[i]` belongs to `messages[i]`. A message
/// without an acknowledgement may be in the log.
pub(crate) async fn produce_until(
    producer: &dyn Producer,
    messages: &[OutgoingMessage],
    order: ResendOrder,
    deadline: Instant,
) -> Vec<Result<Delivery, BrokerError>> {
    let mut results = producer.produce_each(messages, deadline).await;
    let mut backoff = Backoff::from_key(PRODUCE_RETRY_PAUSE, messages.first().map_or(&[][..], |message| &message.key));
    loop {
        let resend = find_resend(&results, order);
        if resend.is_empty() || tokio::time::timeout_at(deadline, backoff.pause()).await.is_err() {
            return results;
        }
        let again: Vec<OutgoingMessage> = resend.iter().map(|index| messages[*index].clone()).collect();
        let produced = producer.produce_each(&again, deadline).await;
        resend.into_iter().zip(produced).for_each(|(index, result)| results[index] = result);
    }
}

/// Returns the indexes of the messages to send again.
fn find_resend(results: &[Result<Delivery, BrokerError>], order: ResendOrder) -> Vec<usize> {
    let first = match order {
        ResendOrder::Any => 0,
        ResendOrder::Given => results.iter().rposition(Result::is_ok).map_or(0, |last| last + 1),
    };
    let is_retryable =
        |index: &usize| results[*index].as_ref().is_err_and(|error| error.kind == BrokerErrorKind::Retryable);
    (first..results.len()).filter(is_retryable).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;

    use super::*;
    use crate::broker::{
        Broker, NewTopic, TopicPartition,
        memory::{MemoryBroker, MemoryFaults, MemorySettings},
    };

    fn failed(kind: BrokerErrorKind) -> Result<Delivery, BrokerError> {
        Err(BrokerError::new(kind, "produce", "refused"))
    }

    #[test]
    fn an_earlier_message_is_not_sent_again_after_a_later_one() {
        let done = || Ok(Delivery { partition: 0, offset: 0 });
        let lost = || failed(BrokerErrorKind::Retryable);
        let results = [lost(), done(), lost(), failed(BrokerErrorKind::TooLarge), lost()];
        assert_eq!(find_resend(&results, ResendOrder::Any), [0, 2, 4]);
        assert_eq!(find_resend(&results, ResendOrder::Given), [2, 4]);
        assert_eq!(find_resend(&[lost(), lost()], ResendOrder::Given), [0, 1]);
        assert_eq!(find_resend(&[lost(), done()], ResendOrder::Given), [] as [usize; 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn each_result_is_true_while_the_log_fails() {
        let faults = MemoryFaults { seed: 5, produce_refused: 0.3, produce_unacknowledged: 0.2, ..Default::default() };
        let settings = MemorySettings::new(crate::clock::Clock::System);
        let broker = MemoryBroker::new(settings);
        broker.create_topics(&[NewTopic { name: "log".into(), partitions: 1, config: vec![] }]).await.unwrap();
        broker.set_faults(faults);
        let producer = broker.producer().await.unwrap();
        let message = |number: u32| OutgoingMessage {
            topic: "log".into(),
            partition: Some(0),
            payload: Bytes::copy_from_slice(&number.to_le_bytes()),
            ..OutgoingMessage::default()
        };
        let messages: Vec<OutgoingMessage> = (0..500).map(message).collect();
        for order in [ResendOrder::Any, ResendOrder::Given] {
            let deadline = Instant::now() + Duration::from_secs(600);
            let results = produce_until(producer.as_ref(), &messages, order, deadline).await;
            let partition = TopicPartition { topic: "log".into(), partition: 0 };
            let mut reader = broker.read(&partition, 0).await.unwrap();
            let mut log = Vec::new();
            while log.len() < usize::try_from(broker.watermarks(&partition).await.unwrap().1).unwrap() {
                log.extend(reader.next(Duration::from_secs(1)).await.unwrap());
            }
            for (result, message) in results.iter().zip(&messages) {
                match result {
                    Ok(delivery) => assert_eq!(log[delivery.offset as usize].payload, message.payload),
                    Err(error) => assert_eq!((order, error.kind), (ResendOrder::Given, BrokerErrorKind::Retryable)),
                }
            }
            let offsets: Vec<u64> = results.iter().flatten().map(|delivery| delivery.offset).collect();
            assert!(order == ResendOrder::Any || offsets.is_sorted(), "the order of the messages");
            assert!(!offsets.is_empty());
        }
    }
}
