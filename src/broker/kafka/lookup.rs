//! Lookups of a client: committed offsets, watermarks, members and timestamps.

use std::{
    ffi::CString,
    thread,
    time::{Duration, Instant},
};

use rdkafka::{
    ClientContext, Offset, TopicPartitionList,
    bindings::{
        rd_kafka_ConsumerGroupDescription_error, rd_kafka_ConsumerGroupDescription_member_count, rd_kafka_error_code,
        rd_kafka_get_watermark_offsets,
    },
    client::Client,
    consumer::{BaseConsumer, CommitMode, Consumer as _, ConsumerContext},
    error::{KafkaResult, RDKafkaErrorCode as Code},
    types::RDKafkaRespErr,
};

use super::{
    admin::{admin_error, describe_groups},
    connection_errors::QueryClient,
    errors::translate,
};
use crate::broker::{BrokerError, BrokerErrorKind, CommittedOffset, TopicPartition};

/// Committed offsets of the consumer's group, in the order of `partitions`.
pub(super) fn fetch_committed<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    partitions: &[TopicPartition],
    timeout: Duration,
) -> Result<Vec<Option<CommittedOffset>>, BrokerError> {
    if partitions.is_empty() {
        return Ok(Vec::new());
    }
    let mut list = TopicPartitionList::new();
    for at in partitions {
        list.add_partition(&at.topic, at.partition);
    }
    let answer = consumer
        .committed_offsets(list, timeout)
        .map_err(|error| translate("look up committed offsets", &partitions[0].topic, &error))?;
    partitions
        .iter()
        .map(|at| {
            let Some(element) = answer.find_partition(&at.topic, at.partition) else { return Ok(None) };
            element.error().map_err(|error| translate("look up committed offsets", &at.to_string(), &error))?;
            Ok(match element.offset() {
                Offset::Offset(offset) => {
                    Some(CommittedOffset { offset: offset as u64, metadata: element.metadata().to_owned() })
                }
                _ => None,
            })
        })
        .collect()
}

/// Offsets with their metadata, as a commit carries them.
pub(super) fn commit_list(
    operation: &'static str,
    offsets: &[(TopicPartition, CommittedOffset)],
) -> Result<TopicPartitionList, BrokerError> {
    let mut list = TopicPartitionList::with_capacity(offsets.len());
    for (at, committed) in offsets {
        committed.check(operation, at)?;
        let mut element = list.add_partition(&at.topic, at.partition);
        let set = element.set_offset(Offset::Offset(committed.offset as i64));
        set.map_err(|error| translate(operation, &at.to_string(), &error))?;
        element.set_metadata(&committed.metadata);
    }
    Ok(list)
}

/// Commits for the client's group. The client is not a member of the group.
pub(super) fn commit_for_group<C: ConsumerContext>(
    client: &BaseConsumer<C>,
    group: &str,
    offsets: &TopicPartitionList,
) -> Result<(), BrokerError> {
    const OPERATION: &str = "set offsets";
    // A coordinator whose group has members requires a member id and a generation.
    let answer = client.commit(offsets, CommitMode::Sync);
    answer.map_err(|error| match error.rdkafka_error_code() {
        Some(Code::UnknownMemberId | Code::IllegalGeneration | Code::RebalanceInProgress) => {
            BrokerError::has_members(OPERATION, group)
        }
        _ => translate(OPERATION, group, &error),
    })
}

/// Number of members of a group, whatever protocol they joined by.
pub(super) fn count_members(client: &QueryClient, group: &str, timeout: Duration) -> Result<usize, BrokerError> {
    const OPERATION: &str = "look up group";
    // SAFETY: the description outlives the call.
    let each = |described| unsafe {
        let error = rd_kafka_ConsumerGroupDescription_error(described);
        match rd_kafka_error_code(error) {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR => Ok(rd_kafka_ConsumerGroupDescription_member_count(described)),
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_GROUP_ID_NOT_FOUND => Ok(0),
            code => Err(admin_error(OPERATION, code.into(), None)),
        }
    };
    let answers: Vec<(String, _)> = describe_groups(client, OPERATION, &[group.to_owned()], timeout, each)?;
    answers.into_iter().map(|(_, members)| members).sum()
}

/// Timeout of the first attempt; each further attempt may take twice as long.
const FIRST_ATTEMPT: Duration = Duration::from_secs(2);
/// Pause before an attempt is repeated.
const ATTEMPT_PAUSE: Duration = Duration::from_millis(50);

/// Repeats a request to the leaders of a topic's partitions until they answer or the time is over.
///
/// librdkafka sends such a request to the leader that it knows. In a client that neither produces nor consumes the
/// topic, only an answer of the known leader, or 15 minutes, make librdkafka look for another one. A lost leader does
/// not answer, so that a failed attempt looks for the leaders.
fn ask_leaders<C: ConsumerContext, T>(
    consumer: &BaseConsumer<C>,
    topic: &str,
    timeout: Duration,
    request: impl Fn(Duration) -> Result<T, BrokerError>,
) -> Result<T, BrokerError> {
    let find_leaders = |bound| {
        if let Err(error) = consumer.fetch_metadata(Some(topic), bound) {
            tracing::debug!(%error, topic, "kafka lookup: leaders unknown");
        }
    };
    repeat_attempts(timeout, find_leaders, request)
}

/// Repeats a request after retryable errors until `timeout` is over; `find_leaders` runs between two attempts.
pub(super) fn repeat_attempts<T>(
    timeout: Duration,
    find_leaders: impl Fn(Duration),
    request: impl Fn(Duration) -> Result<T, BrokerError>,
) -> Result<T, BrokerError> {
    let until = Instant::now() + timeout;
    let mut longest = FIRST_ATTEMPT;
    let left = || until.saturating_duration_since(Instant::now());
    loop {
        match request(left().min(longest)) {
            Err(error) if error.kind == BrokerErrorKind::Retryable && left() > ATTEMPT_PAUSE => {
                thread::sleep(ATTEMPT_PAUSE);
                find_leaders(left().min(longest));
                // A broker that refuses at once is asked very often within the time.
                longest = longest.saturating_mul(2).min(timeout);
            }
            answer => return answer,
        }
    }
}

/// Requests the low and high watermark of a partition.
pub(super) fn fetch_watermarks<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    at: &TopicPartition,
    timeout: Duration,
) -> Result<(u64, u64), BrokerError> {
    ask_leaders(consumer, &at.topic, timeout, |timeout| {
        let answer: KafkaResult<(i64, i64)> = consumer.fetch_watermarks(&at.topic, at.partition, timeout);
        let (low, high) = answer.map_err(|error| translate("look up watermarks", &at.to_string(), &error))?;
        Ok((low.max(0) as u64, high.max(0) as u64))
    })
}

/// Requests the low and high watermarks of partitions, in the order of `partitions`: two requests to each broker that
/// leads some of them.
pub(super) fn fetch_all_watermarks<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    partitions: &[TopicPartition],
    timeout: Duration,
) -> Result<Vec<(u64, u64)>, BrokerError> {
    // A lookup by timestamp accepts both logical offsets, also on a cluster that looks up no timestamps.
    let ends_of = |end| fetch_offsets_at(consumer, partitions, end, "look up watermarks", timeout);
    let ends = ends_of(Offset::Beginning)?.into_iter().zip(ends_of(Offset::End)?);
    let pair = |(at, ends)| match ends {
        (Some(low), Some(high)) => Ok((low, high)),
        _ => Err(no_answer("look up watermarks", at)),
    };
    partitions.iter().zip(ends).map(pair).collect()
}

/// Requests the first offset of each partition with a timestamp of `time` (ms since the epoch) or later; `None`: no
/// such message.
pub(super) fn fetch_offsets_at<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    partitions: &[TopicPartition],
    time: Offset,
    operation: &'static str,
    timeout: Duration,
) -> Result<Vec<Option<u64>>, BrokerError> {
    let Some(first) = partitions.first() else { return Ok(Vec::new()) };
    ask_leaders(consumer, &first.topic, timeout, |timeout| {
        ask_offsets_at(consumer, partitions, time, operation, timeout)
    })
}

/// Requests the same once.
fn ask_offsets_at<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    partitions: &[TopicPartition],
    time: Offset,
    operation: &'static str,
    timeout: Duration,
) -> Result<Vec<Option<u64>>, BrokerError> {
    let mut list = TopicPartitionList::with_capacity(partitions.len());
    for at in partitions {
        let added = list.add_partition_offset(&at.topic, at.partition, time);
        added.map_err(|error| translate(operation, &at.to_string(), &error))?;
    }
    let answer = consumer.offsets_for_times(list, timeout);
    let topic = partitions.first().map_or("", |first| &*first.topic);
    let answer = answer.map_err(|error| translate(operation, topic, &error))?;
    let offset_of = |at: &TopicPartition| {
        let element = answer.find_partition(&at.topic, at.partition).ok_or_else(|| no_answer(operation, at))?;
        element.error().map_err(|error| translate(operation, &at.to_string(), &error))?;
        match element.offset() {
            Offset::Offset(offset) => Ok(Some(offset.max(0) as u64)),
            Offset::End => Ok(None),
            _ => Err(no_answer(operation, at)),
        }
    };
    partitions.iter().map(offset_of).collect()
}

fn no_answer(operation: &'static str, at: &TopicPartition) -> BrokerError {
    BrokerError::new(BrokerErrorKind::Retryable, operation, format!("{at}: no answer"))
}

/// High watermark of the last fetch, without a request; 0: unknown.
pub(super) fn cached_high_watermark<C: ClientContext>(client: &Client<C>, topic: &CString, partition: i32) -> u64 {
    let (mut low, mut high) = (0i64, 0i64);
    // SAFETY: the client outlives the call, the topic is a terminated string, and both results belong to this function.
    // librdkafka reads its cache under its own lock. rdkafka has no safe wrapper of the call.
    let code =
        unsafe { rd_kafka_get_watermark_offsets(client.native_ptr(), topic.as_ptr(), partition, &mut low, &mut high) };
    match code {
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR => high.max(0) as u64,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    /// Protects: a lookup finds the new leader of a partition whose leader was lost, within the time of the lookup.
    #[test]
    fn a_lookup_without_an_answer_looks_for_the_leaders() {
        let (attempts, found) = (RefCell::new(Vec::new()), Cell::new(0));
        let failed = |kind| Err::<u8, _>(BrokerError::new(kind, "look up watermarks", "no answer"));
        let repeat = |until: usize, kind| {
            let request = |bound: Duration| {
                attempts.borrow_mut().push(bound);
                if attempts.borrow().len() == until { Ok(7) } else { failed(kind) }
            };
            repeat_attempts(Duration::from_secs(10), |_| found.set(found.get() + 1), request)
        };
        assert_eq!(repeat(3, BrokerErrorKind::Retryable).unwrap(), 7);
        assert_eq!(found.get(), 2, "after each failed attempt");
        let bounds: Vec<u64> = attempts.take().iter().map(|bound| bound.as_millis() as u64).collect();
        assert_eq!(bounds, [2_000, 4_000, 8_000], "twice as long each");
        assert_eq!(repeat(3, BrokerErrorKind::Refused).unwrap_err().kind, BrokerErrorKind::Refused);
        assert_eq!((attempts.take().len(), found.get()), (1, 2), "a retry does not heal it");
        let never = repeat_attempts(Duration::ZERO, |_| {}, |_| failed(BrokerErrorKind::Retryable));
        assert_eq!(never.unwrap_err().kind, BrokerErrorKind::Retryable);
    }

    /// The leader of a partition refuses at once, for as long as the lookup lasts.
    /// Protects: the growing bound of an attempt once overflowed, and the lookup panicked after three seconds.
    #[test]
    fn a_lookup_that_is_refused_at_once_is_repeated_until_its_time_is_over() {
        let attempts = Cell::new(0);
        let request = |_| {
            attempts.set(attempts.get() + 1);
            Err::<u8, _>(BrokerError::new(BrokerErrorKind::Retryable, "look up watermarks", "no leader"))
        };
        let error = repeat_attempts(Duration::from_secs(5), |_| {}, request).unwrap_err();
        assert_eq!(error.kind, BrokerErrorKind::Retryable);
        assert!(attempts.get() > 64, "{} attempts", attempts.get());
    }
}
