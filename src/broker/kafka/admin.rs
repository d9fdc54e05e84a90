//! Questions to the cluster that librdkafka asks, and of which rdkafka has no safe form.

use std::{
    ffi::{CStr, CString, c_char, c_int},
    ptr,
    time::Duration,
};

use rdkafka::{
    bindings::{
        self as rd, rd_kafka_ConsumerGroupDescription_t, rd_kafka_TopicDescription_t, rd_kafka_admin_op_t,
        rd_kafka_event_t,
    },
    consumer::Consumer as _,
    error::{KafkaError, RDKafkaErrorCode},
    types::RDKafkaRespErr,
};

use super::{
    errors::{kind_of_code, translate},
    trouble::Asked,
};
use crate::broker::{BrokerError, BrokerErrorKind};

/// More than librdkafka takes to answer in time itself, so that it can name the cause.
const ANSWER_TAKES: Duration = Duration::from_secs(1);

/// What `each` makes of the descriptions of groups, by their names; of either protocol. Joins none of them.
pub(super) fn describe_groups<T, All: FromIterator<(String, T)>>(
    client: &Asked,
    operation: &'static str,
    groups: &[String],
    timeout: Duration,
    each: impl Fn(*const rd_kafka_ConsumerGroupDescription_t) -> T,
) -> Result<All, BrokerError> {
    if groups.is_empty() {
        return Ok(All::from_iter([]));
    }
    let (_names, mut pointers) = terminated(operation, groups)?;
    let question = rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBECONSUMERGROUPS;
    let event = ask(client, operation, (question, None), timeout, 2, {
        // SAFETY: all live until the answer is there.
        |client, options, queue| unsafe {
            rd::rd_kafka_DescribeConsumerGroups(client, pointers.as_mut_ptr(), pointers.len(), options, queue)
        }
    })?;
    let mut count = 0;
    // SAFETY: the event is an answer to this question, which `ask` has looked at, and lives as long as what is read of
    // it.
    unsafe {
        let result = rd::rd_kafka_event_DescribeConsumerGroups_result(event.0);
        let told = array(rd::rd_kafka_DescribeConsumerGroups_result_groups(result, &mut count), count);
        let named = |group| (text(rd::rd_kafka_ConsumerGroupDescription_group_id(group)), each(group));
        Ok(told.iter().map(|group| named(*group)).collect())
    }
}

/// Describes topics: the result of `each`, by name. Creates no topic. `broker`: the one that is asked;
/// otherwise the controller.
pub(super) fn describe_topics<T, All: FromIterator<(String, T)>>(
    client: &Asked,
    operation: &'static str,
    topics: &[String],
    broker: Option<i32>,
    timeout: Duration,
    each: impl Fn(*const rd_kafka_TopicDescription_t) -> T,
) -> Result<All, BrokerError> {
    if topics.is_empty() {
        return Ok(All::from_iter([]));
    }
    let (names, mut pointers) = terminated(operation, topics)?;
    // SAFETY: `pointers` are terminated strings that `names` keeps; librdkafka copies them.
    let collection = unsafe { rd::rd_kafka_TopicCollection_of_topic_names(pointers.as_mut_ptr(), pointers.len()) };
    drop(names);
    let collection = Owned(collection, rd::rd_kafka_TopicCollection_destroy);
    let question = rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS;
    let event = ask(client, operation, (question, broker), timeout, 1, {
        // SAFETY: all four live until the answer is there.
        |client, options, queue| unsafe { rd::rd_kafka_DescribeTopics(client, collection.0, options, queue) }
    })?;
    let mut count = 0;
    // SAFETY: the event is an answer to this question, which `ask` has looked at, and lives as long as what is read of
    // it.
    unsafe {
        let result = rd::rd_kafka_event_DescribeTopics_result(event.0);
        let told = array(rd::rd_kafka_DescribeTopics_result_topics(result, &mut count), count);
        let named = |topic| (text(rd::rd_kafka_TopicDescription_name(topic)), each(topic));
        Ok(told.iter().map(|topic| named(*topic)).collect())
    }
}

/// Something of librdkafka's that has to be given back.
pub(super) struct Owned<T>(pub(super) *mut T, pub(super) unsafe extern "C" fn(*mut T));

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: it was made by librdkafka for us, and is given back once.
            unsafe { (self.1)(self.0) }
        }
    }
}

/// Names as librdkafka takes them: the pointers hold as long as the strings.
pub(super) fn terminated(
    operation: &'static str,
    names: &[String],
) -> Result<(Vec<CString>, Vec<*const c_char>), BrokerError> {
    let names: Result<Vec<CString>, _> = names.iter().map(|name| CString::new(name.as_str())).collect();
    let names = names.map_err(|error| translate(operation, "name", &KafkaError::Nul(error)))?;
    let pointers = names.iter().map(|name| name.as_ptr()).collect();
    Ok((names, pointers))
}

/// Sends a question that asks for rights, too, and waits for its answer. librdkafka makes up to so many requests of it, one after the
/// other: of groups two, one by each protocol.
pub(super) fn ask(
    client: &Asked,
    operation: &'static str,
    (question, broker): (rd_kafka_admin_op_t, Option<i32>),
    timeout: Duration,
    requests: u32,
    send: impl FnOnce(*mut rd::rd_kafka_t, *const rd::rd_kafka_AdminOptions_t, *mut rd::rd_kafka_queue_t),
) -> Result<Owned<rd_kafka_event_t>, BrokerError> {
    let no_answer = || BrokerError::new(BrokerErrorKind::Retryable, operation, format!("no answer within {timeout:?}"));
    let ms = |time: Duration| c_int::try_from(time.as_millis()).unwrap_or(c_int::MAX);
    // SAFETY: the client outlives the call. What librdkafka makes here is given back by its owner, the queue behind the event that came
    // from it; errors that options answer with are ours, and there are none to be told: the values are in range.
    unsafe {
        let native = client.client().native_ptr();
        let queue = Owned(rd::rd_kafka_queue_new(native), rd::rd_kafka_queue_destroy);
        let options = Owned(rd::rd_kafka_AdminOptions_new(native, question), rd::rd_kafka_AdminOptions_destroy);
        rd::rd_kafka_AdminOptions_set_request_timeout(options.0, ms(timeout / requests), ptr::null_mut(), 0);
        if let Some(broker) = broker {
            // A broker that is not there is waited for as long as an answer.
            rd::rd_kafka_AdminOptions_set_broker(options.0, broker, ptr::null_mut(), 0);
        }
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
                Err(refused(operation, code.into(), (!told.is_null()).then(|| text(told))))
            }
        }
    }
}

pub(super) fn refused(operation: &'static str, code: RDKafkaErrorCode, told: Option<String>) -> BrokerError {
    BrokerError::new(kind_of_code(code), operation, told.unwrap_or_else(|| code.to_string()))
}

/// # Safety
/// `text` is a terminated string.
pub(super) unsafe fn text(text: *const c_char) -> String {
    // SAFETY: as the caller promises.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// # Safety
/// `first` is null or has `count` elements, which outlive what is made of them.
pub(super) unsafe fn array<'a, T>(first: *const T, count: usize) -> &'a [T] {
    // SAFETY: as the caller promises.
    if first.is_null() { &[] } else { unsafe { std::slice::from_raw_parts(first, count) } }
}
