//! What a client can be asked about partitions.

use std::{ffi::CString, time::Duration};

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
    admin::{describe_groups, refused},
    errors::translate,
    trouble::Asked,
};
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

/// Offsets with what is said with them, as a commit carries them.
pub(super) fn list_of(
    operation: &'static str,
    offsets: &[(TopicPartition, Committed)],
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

/// Commits for the client's group, whose member the client is not.
pub(super) fn set_committed_of<C: ConsumerContext>(
    client: &BaseConsumer<C>,
    group: &str,
    offsets: &TopicPartitionList,
) -> Result<(), BrokerError> {
    const OPERATION: &str = "set offsets";
    // Of a member the coordinator wants to know who it is.
    let answer = client.commit(offsets, CommitMode::Sync);
    answer.map_err(|error| match error.rdkafka_error_code() {
        Some(Code::UnknownMemberId | Code::IllegalGeneration | Code::RebalanceInProgress) => {
            BrokerError::has_members(OPERATION, group)
        }
        _ => translate(OPERATION, group, &error),
    })
}

/// How many members a group has, by whichever protocol they joined it.
pub(super) fn members_of(client: &Asked, group: &str, timeout: Duration) -> Result<usize, BrokerError> {
    const OPERATION: &str = "look up group";
    // SAFETY: what is described lives while this looks at it.
    let each = |described| unsafe {
        let error = rd_kafka_ConsumerGroupDescription_error(described);
        match rd_kafka_error_code(error) {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR => Ok(rd_kafka_ConsumerGroupDescription_member_count(described)),
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_GROUP_ID_NOT_FOUND => Ok(0),
            code => Err(refused(OPERATION, code.into(), None)),
        }
    };
    let told: Vec<(String, _)> = describe_groups(client, OPERATION, &[group.to_owned()], timeout, each)?;
    told.into_iter().map(|(_, members)| members).sum()
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
    // A lookup by timestamp takes either for a time, also where real times are not looked up.
    let ends_of = |end| offsets_at(consumer, partitions, end, "look up watermarks", timeout);
    let ends = ends_of(Offset::Beginning)?.into_iter().zip(ends_of(Offset::End)?);
    let told = |(at, ends)| match ends {
        (Some(low), Some(high)) => Ok((low, high)),
        _ => Err(no_answer("look up watermarks", at)),
    };
    partitions.iter().zip(ends).map(told).collect()
}

/// The first offset in each partition of this time or later, ms since the epoch; `None`: there is none.
pub(super) fn offsets_at<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    partitions: &[TopicPartition],
    time: Offset,
    operation: &'static str,
    timeout: Duration,
) -> Result<Vec<Option<u64>>, BrokerError> {
    let Some(first) = partitions.first() else { return Ok(Vec::new()) };
    let mut asked = TopicPartitionList::with_capacity(partitions.len());
    for at in partitions {
        let added = asked.add_partition_offset(&at.topic, at.partition, time);
        added.map_err(|error| translate(operation, &at.to_string(), &error))?;
    }
    let answer = consumer.offsets_for_times(asked, timeout);
    let answer = answer.map_err(|error| translate(operation, &first.topic, &error))?;
    let told = |at: &TopicPartition| {
        let element = answer.find_partition(&at.topic, at.partition).ok_or_else(|| no_answer(operation, at))?;
        element.error().map_err(|error| translate(operation, &at.to_string(), &error))?;
        match element.offset() {
            Offset::Offset(offset) => Ok(Some(offset.max(0) as u64)),
            Offset::End => Ok(None),
            _ => Err(no_answer(operation, at)),
        }
    };
    partitions.iter().map(told).collect()
}

fn no_answer(operation: &'static str, at: &TopicPartition) -> BrokerError {
    BrokerError::new(BrokerErrorKind::Retryable, operation, format!("{at}: no answer"))
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
