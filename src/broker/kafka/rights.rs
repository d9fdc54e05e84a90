//! What this client may do with topics and groups, as the cluster says.

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
    admin::{array, describe_groups, describe_topics, refused},
    trouble::Asked,
};
use crate::broker::BrokerError;

/// What a client may be let do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Right {
    /// Read a topic; join a group, and commit its offsets.
    Read,
    /// Write to a topic.
    Write,
    /// Look at a topic's configuration.
    DescribeConfigs,
}

/// What a client may do with one topic or group; `None`: the cluster does not say.
pub type Rights = Option<BTreeSet<Right>>;

const OPERATION: &str = "look up permissions";

/// Rights on topics, in the order asked for.
pub(super) fn on_topics(client: &Asked, topics: &[String], timeout: Duration) -> Result<Vec<Rights>, BrokerError> {
    // SAFETY: the description lives while this reads from it.
    let each = |topic| unsafe {
        let mut count = 0;
        let operations = rd::rd_kafka_TopicDescription_authorized_operations(topic, &mut count);
        match rd::rd_kafka_error_code(rd::rd_kafka_TopicDescription_error(topic)) {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR => Ok(rights(operations, count)),
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED => Ok(Some(BTreeSet::new())),
            code => Err(refused(OPERATION, code.into(), None)),
        }
    };
    let told: Vec<(String, _)> = describe_topics(client, OPERATION, topics, None, timeout, each)?;
    let told = told.into_iter().map(|(name, rights)| Ok((name, rights?)));
    Ok(in_order(topics, told.collect::<Result<_, _>>()?))
}

/// Rights on groups, in the order asked for. Joins none of them.
pub(super) fn on_groups(client: &Asked, groups: &[String], timeout: Duration) -> Result<Vec<Rights>, BrokerError> {
    // SAFETY: what is described lives while this looks at it.
    let each = |group| unsafe {
        let mut count = 0;
        let operations = rd::rd_kafka_ConsumerGroupDescription_authorized_operations(group, &mut count);
        match rd::rd_kafka_error_code(rd::rd_kafka_ConsumerGroupDescription_error(group)) {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR => rights(operations, count),
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED => Some(BTreeSet::new()),
            // Nobody has been in it yet.
            _ => None,
        }
    };
    Ok(in_order(groups, describe_groups(client, OPERATION, groups, timeout, each)?))
}

/// As they were asked for, whatever order they were told in.
fn in_order(asked: &[String], mut told: BTreeMap<String, Rights>) -> Vec<Rights> {
    asked.iter().map(|name| told.remove(name).flatten()).collect()
}

/// # Safety
/// As [`array`].
unsafe fn rights(first: *const rd_kafka_AclOperation_t, count: usize) -> Rights {
    // As numbers: a newer cluster may know operations that the enumeration does not.
    // SAFETY: as the caller promises; an enumeration of C is a `c_int`.
    let operations = unsafe { array(first.cast::<c_int>(), count) };
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
