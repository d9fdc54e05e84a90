//! What this client may do with topics and groups, as the cluster says: librdkafka asks it, rdkafka has no safe form of the question.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{CStr, CString, c_char, c_int},
    ptr,
    time::Duration,
};

use rdkafka::{
    bindings::{self as rd, rd_kafka_AclOperation_t, rd_kafka_admin_op_t, rd_kafka_event_t},
    consumer::Consumer as _,
    error::{KafkaError, RDKafkaErrorCode},
    types::RDKafkaRespErr,
};

use super::{
    errors::{kind_of_code, translate},
    trouble::Asked,
};
use crate::broker::{BrokerError, BrokerErrorKind};

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
/// More than librdkafka takes to answer in time itself, so that it can name the cause.
const ANSWER_TAKES: Duration = Duration::from_secs(1);

/// Rights on topics, in the order asked for.
pub(super) fn on_topics(client: &Asked, topics: &[String], timeout: Duration) -> Result<Vec<Rights>, BrokerError> {
    if topics.is_empty() {
        return Ok(Vec::new());
    }
    let (names, mut pointers) = terminated(topics)?;
    // SAFETY: `pointers` are terminated strings that `names` keeps; librdkafka copies them.
    let collection = unsafe { rd::rd_kafka_TopicCollection_of_topic_names(pointers.as_mut_ptr(), pointers.len()) };
    drop(names);
    let collection = Owned(collection, rd::rd_kafka_TopicCollection_destroy);
    let event = ask(client, rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS, timeout, {
        // SAFETY: all four live until the answer is there.
        |client, options, queue| unsafe { rd::rd_kafka_DescribeTopics(client, collection.0, options, queue) }
    })?;
    let mut count = 0;
    // SAFETY: the event is an answer to this question, which `ask` has looked at, and lives as long as what is read of it.
    unsafe {
        let result = rd::rd_kafka_event_DescribeTopics_result(event.0);
        let told = array(rd::rd_kafka_DescribeTopics_result_topics(result, &mut count), count);
        let each = told.iter().map(|topic| {
            let (name, mut count) = (text(rd::rd_kafka_TopicDescription_name(*topic)), 0);
            let operations = rd::rd_kafka_TopicDescription_authorized_operations(*topic, &mut count);
            match rd::rd_kafka_error_code(rd::rd_kafka_TopicDescription_error(*topic)) {
                RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR => Ok((name, rights(operations, count))),
                RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED => Ok((name, Some(BTreeSet::new()))),
                code => Err(refused(code.into(), None)),
            }
        });
        Ok(in_order(topics, each.collect::<Result<_, _>>()?))
    }
}

/// Rights on groups, in the order asked for. Joins none of them.
pub(super) fn on_groups(client: &Asked, groups: &[String], timeout: Duration) -> Result<Vec<Rights>, BrokerError> {
    if groups.is_empty() {
        return Ok(Vec::new());
    }
    let (_names, mut pointers) = terminated(groups)?;
    let event = ask(client, rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBECONSUMERGROUPS, timeout, {
        // SAFETY: all live until the answer is there.
        |client, options, queue| unsafe {
            rd::rd_kafka_DescribeConsumerGroups(client, pointers.as_mut_ptr(), pointers.len(), options, queue)
        }
    })?;
    let mut count = 0;
    // SAFETY: as above.
    unsafe {
        let result = rd::rd_kafka_event_DescribeConsumerGroups_result(event.0);
        let told = array(rd::rd_kafka_DescribeConsumerGroups_result_groups(result, &mut count), count);
        let each = told.iter().map(|group| {
            let (name, mut count) = (text(rd::rd_kafka_ConsumerGroupDescription_group_id(*group)), 0);
            let operations = rd::rd_kafka_ConsumerGroupDescription_authorized_operations(*group, &mut count);
            let rights = match rd::rd_kafka_error_code(rd::rd_kafka_ConsumerGroupDescription_error(*group)) {
                RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR => rights(operations, count),
                RDKafkaRespErr::RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED => Some(BTreeSet::new()),
                // Nobody has been in it yet.
                _ => None,
            };
            (name, rights)
        });
        Ok(in_order(groups, each.collect()))
    }
}

/// Something of librdkafka's that has to be given back.
struct Owned<T>(*mut T, unsafe extern "C" fn(*mut T));

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: it was made by librdkafka for us, and is given back once.
            unsafe { (self.1)(self.0) }
        }
    }
}

/// As they were asked for, whatever order they were told in.
fn in_order(asked: &[String], mut told: BTreeMap<String, Rights>) -> Vec<Rights> {
    asked.iter().map(|name| told.remove(name).flatten()).collect()
}

fn terminated(names: &[String]) -> Result<(Vec<CString>, Vec<*const c_char>), BrokerError> {
    let names: Result<Vec<CString>, _> = names.iter().map(|name| CString::new(name.as_str())).collect();
    let names = names.map_err(|error| translate(OPERATION, "name", &KafkaError::Nul(error)))?;
    let pointers = names.iter().map(|name| name.as_ptr()).collect();
    Ok((names, pointers))
}

/// Sends a question that asks for rights, too, and waits for its answer.
fn ask(
    client: &Asked,
    question: rd_kafka_admin_op_t,
    timeout: Duration,
    send: impl FnOnce(*mut rd::rd_kafka_t, *const rd::rd_kafka_AdminOptions_t, *mut rd::rd_kafka_queue_t),
) -> Result<Owned<rd_kafka_event_t>, BrokerError> {
    let no_answer = || BrokerError::new(BrokerErrorKind::Retryable, OPERATION, format!("no answer within {timeout:?}"));
    let ms = |time: Duration| c_int::try_from(time.as_millis()).unwrap_or(c_int::MAX);
    // SAFETY: the client outlives the call. What librdkafka makes here is given back by its owner, the queue behind the event that came
    // from it; errors that options answer with are ours, and there are none to be told: the values are in range.
    unsafe {
        let native = client.client().native_ptr();
        let queue = Owned(rd::rd_kafka_queue_new(native), rd::rd_kafka_queue_destroy);
        let options = Owned(rd::rd_kafka_AdminOptions_new(native, question), rd::rd_kafka_AdminOptions_destroy);
        rd::rd_kafka_AdminOptions_set_request_timeout(options.0, ms(timeout), ptr::null_mut(), 0);
        drop(Owned(
            rd::rd_kafka_AdminOptions_set_include_authorized_operations(options.0, 1),
            rd::rd_kafka_error_destroy,
        ));
        send(native, options.0, queue.0);
        let event = rd::rd_kafka_queue_poll(queue.0, ms(timeout + ANSWER_TAKES));
        if event.is_null() {
            return Err(no_answer());
        }
        let event = Owned(event, rd::rd_kafka_event_destroy);
        match rd::rd_kafka_event_error(event.0) {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR => Ok(event),
            code => {
                let told = rd::rd_kafka_event_error_string(event.0);
                Err(refused(code.into(), (!told.is_null()).then(|| text(told))))
            }
        }
    }
}

fn refused(code: RDKafkaErrorCode, told: Option<String>) -> BrokerError {
    BrokerError::new(kind_of_code(code), OPERATION, told.unwrap_or_else(|| code.to_string()))
}

/// # Safety
/// `text` is a terminated string.
unsafe fn text(text: *const c_char) -> String {
    // SAFETY: as the caller promises.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// # Safety
/// `first` is null or has `count` elements, which outlive what is made of them.
unsafe fn array<'a, T>(first: *const T, count: usize) -> &'a [T] {
    // SAFETY: as the caller promises.
    if first.is_null() { &[] } else { unsafe { std::slice::from_raw_parts(first, count) } }
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
