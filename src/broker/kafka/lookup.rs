//! What a client can be asked about partitions.

use std::{ffi::CString, time::Duration};

use rdkafka::{
    ClientContext, Offset, TopicPartitionList,
    bindings::rd_kafka_get_watermark_offsets,
    client::Client,
    consumer::{BaseConsumer, Consumer as _, ConsumerContext},
    error::KafkaResult,
    types::RDKafkaRespErr,
};

use super::errors::translate;
use crate::broker::{BrokerError, BrokerErrorKind, Committed, TopicPartition};

/// What the consumer's group has committed, in the order asked for.
pub(super) fn committed_of<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    partitions: &[TopicPartition],
    timeout: Duration,
) -> Result<Vec<Option<Committed>>, BrokerError> {
    if partitions.is_empty() {
        return Ok(Vec::new());
    }
    let mut asked = TopicPartitionList::new();
    for at in partitions {
        asked.add_partition(&at.topic, at.partition);
    }
    let answer = consumer
        .committed_offsets(asked, timeout)
        .map_err(|error| translate("look up committed offsets", &partitions[0].topic, &error))?;
    partitions
        .iter()
        .map(|at| {
            let Some(element) = answer.find_partition(&at.topic, at.partition) else { return Ok(None) };
            element.error().map_err(|error| translate("look up committed offsets", &at.to_string(), &error))?;
            Ok(match element.offset() {
                Offset::Offset(offset) => {
                    Some(Committed { offset: offset as u64, metadata: element.metadata().to_owned() })
                }
                _ => None,
            })
        })
        .collect()
}

/// How many members a group has.
pub(super) fn members_of<C: ConsumerContext>(
    client: &BaseConsumer<C>,
    group: &str,
    timeout: Duration,
) -> Result<usize, BrokerError> {
    let answer = client.fetch_group_list(Some(group), timeout);
    let answer = answer.map_err(|error| translate("look up group", group, &error))?;
    Ok(answer.groups().iter().filter(|found| found.name() == group).map(|found| found.members().len()).sum())
}

/// (low, high) watermarks, asked of the broker.
pub(super) fn watermarks_of<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    at: &TopicPartition,
    timeout: Duration,
) -> Result<(u64, u64), BrokerError> {
    let answer: KafkaResult<(i64, i64)> = consumer.fetch_watermarks(&at.topic, at.partition, timeout);
    let (low, high) = answer.map_err(|error| translate("look up watermarks", &at.to_string(), &error))?;
    Ok((low.max(0) as u64, high.max(0) as u64))
}

/// (low, high) watermarks of several partitions, in the order asked for: two requests to each broker that leads some of them.
pub(super) fn all_watermarks_of<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    partitions: &[TopicPartition],
    timeout: Duration,
) -> Result<Vec<(u64, u64)>, BrokerError> {
    let lows = ends_of(consumer, partitions, Offset::Beginning, timeout)?;
    let highs = ends_of(consumer, partitions, Offset::End, timeout)?;
    Ok(lows.into_iter().zip(highs).collect())
}

/// Where partitions begin or end. A lookup by timestamp takes either for a time, also where real times are not looked up.
fn ends_of<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    partitions: &[TopicPartition],
    end: Offset,
    timeout: Duration,
) -> Result<Vec<u64>, BrokerError> {
    const OPERATION: &str = "look up watermarks";
    let Some(first) = partitions.first() else { return Ok(Vec::new()) };
    let mut asked = TopicPartitionList::with_capacity(partitions.len());
    for at in partitions {
        let added = asked.add_partition_offset(&at.topic, at.partition, end);
        added.map_err(|error| translate(OPERATION, &at.to_string(), &error))?;
    }
    let answer = consumer.offsets_for_times(asked, timeout);
    let answer = answer.map_err(|error| translate(OPERATION, &first.topic, &error))?;
    let told = |at: &TopicPartition| {
        let unknown = || BrokerError::new(BrokerErrorKind::Retryable, OPERATION, format!("{at}: no answer"));
        let element = answer.find_partition(&at.topic, at.partition).ok_or_else(unknown)?;
        element.error().map_err(|error| translate(OPERATION, &at.to_string(), &error))?;
        match element.offset() {
            Offset::Offset(offset) => Ok(offset.max(0) as u64),
            _ => Err(unknown()),
        }
    };
    partitions.iter().map(told).collect()
}

/// The high watermark as the last fetch told it, without asking anybody; 0 when unknown.
pub(super) fn known_high_watermark<C: ClientContext>(client: &Client<C>, topic: &CString, partition: i32) -> u64 {
    let (mut low, mut high) = (0i64, 0i64);
    // SAFETY: the client outlives the call, the topic is a terminated string, and both results are ours to write; the
    // function only reads what librdkafka has cached under its own lock. rdkafka has no safe form of it.
    let code =
        unsafe { rd_kafka_get_watermark_offsets(client.native_ptr(), topic.as_ptr(), partition, &mut low, &mut high) };
    match code {
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR => high.max(0) as u64,
        _ => 0,
    }
}
