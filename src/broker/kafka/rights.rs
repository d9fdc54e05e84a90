//! Rights of this client on topics and groups, as the cluster reports them.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::c_int,
    time::Duration,
};

use rdkafka::{
    bindings::{self as rd, rd_kafka_AclOperation_t},
    types::RDKafkaRespErr,
};

use super::{
    admin::{admin_error, describe_groups, describe_topics, slice_from},
    connection_errors::QueryClient,
};
use crate::broker::BrokerError;

/// A right on a topic or group, displayed as the tool `kafka-acls` names the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, strum::Display)]
pub enum Right {
    /// The client may read a topic, or join a group and commit its offsets.
    Read,
    /// The client may write to a topic.
    Write,
    /// The client may read a topic's configuration.
    DescribeConfigs,
}

/// Rights on one topic or group; `None`: the cluster does not report rights.
pub type Rights = Option<BTreeSet<Right>>;

const OPERATION: &str = "look up permissions";

/// Requests the rights on topics, in the order of `topics`.
pub(super) fn fetch_topic_rights(
    client: &QueryClient,
    topics: &[String],
    timeout: Duration,
) -> Result<Vec<Rights>, BrokerError> {
    // SAFETY: the description outlives the call.
    let each = |topic| unsafe {
        let mut count = 0;
        let operations = rd::rd_kafka_TopicDescription_authorized_operations(topic, &mut count);
        match rd::rd_kafka_error_code(rd::rd_kafka_TopicDescription_error(topic)) {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR => Ok(parse_rights(operations, count)),
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED => Ok(Some(BTreeSet::new())),
            code => Err(admin_error(OPERATION, code.into(), None)),
        }
    };
    let rights_by_name: Vec<(String, _)> = describe_topics(client, OPERATION, topics, None, timeout, each)?;
    let rights_by_name = rights_by_name.into_iter().map(|(name, rights)| Ok((name, rights?)));
    Ok(in_order(topics, rights_by_name.collect::<Result<_, _>>()?))
}

/// Requests the rights on groups, in the order of `groups`. Joins no group.
pub(super) fn fetch_group_rights(
    client: &QueryClient,
    groups: &[String],
    timeout: Duration,
) -> Result<Vec<Rights>, BrokerError> {
    // SAFETY: the description outlives the call.
    let each = |group| unsafe {
        let mut count = 0;
        let operations = rd::rd_kafka_ConsumerGroupDescription_authorized_operations(group, &mut count);
        match rd::rd_kafka_error_code(rd::rd_kafka_ConsumerGroupDescription_error(group)) {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR => parse_rights(operations, count),
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED => Some(BTreeSet::new()),
            // A group that never had a member has no description.
            _ => None,
        }
    };
    Ok(in_order(groups, describe_groups(client, OPERATION, groups, timeout, each)?))
}

/// Sorts rights into the order of `names`.
fn in_order(names: &[String], mut rights_by_name: BTreeMap<String, Rights>) -> Vec<Rights> {
    names.iter().map(|name| rights_by_name.remove(name).flatten()).collect()
}

/// # Safety
/// The caller keeps the contract of [`slice_from`].
unsafe fn parse_rights(first: *const rd_kafka_AclOperation_t, count: usize) -> Rights {
    // Operations are read as numbers: a newer cluster may send operations that the enumeration does not have.
    // SAFETY: the caller keeps the contract; an enumeration of C is a `c_int`.
    let operations = unsafe { slice_from(first.cast::<c_int>(), count) };
    let right = |operation: &c_int| {
        [
            (rd_kafka_AclOperation_t::RD_KAFKA_ACL_OPERATION_READ, Right::Read),
            (rd_kafka_AclOperation_t::RD_KAFKA_ACL_OPERATION_WRITE, Right::Write),
            (rd_kafka_AclOperation_t::RD_KAFKA_ACL_OPERATION_DESCRIBE_CONFIGS, Right::DescribeConfigs),
        ]
        .into_iter()
        .find_map(|(known, right)| (known as c_int == *operation).then_some(right))
    };
    (!first.is_null()).then(|| operations.iter().filter_map(right).collect())
}
