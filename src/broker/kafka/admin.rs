//! Admin requests of librdkafka for which rdkafka has no safe wrapper.

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
    connection_errors::QueryClient,
    errors::{kind_of_code, translate},
};
use crate::broker::{BrokerError, BrokerErrorKind};

/// Extra time for librdkafka's own timeout to fire first: its error names the cause.
const ANSWER_MARGIN: Duration = Duration::from_secs(1);

/// Describes groups of either protocol: the result of `each`, by group name. Joins no group.
pub(super) fn describe_groups<T, All: FromIterator<(String, T)>>(
    client: &QueryClient,
    operation: &'static str,
    groups: &[String],
    timeout: Duration,
    each: impl Fn(*const rd_kafka_ConsumerGroupDescription_t) -> T,
) -> Result<All, BrokerError> {
    if groups.is_empty() {
        return Ok(All::from_iter([]));
    }
    let (_names, mut pointers) = c_strings(operation, groups)?;
    let request = rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBECONSUMERGROUPS;
    let event = send_request(client, operation, (request, None), timeout, 2, {
        // SAFETY: all arguments live until the answer has arrived.
        |client, options, queue| unsafe {
            rd::rd_kafka_DescribeConsumerGroups(client, pointers.as_mut_ptr(), pointers.len(), options, queue)
        }
    })?;
    let mut count = 0;
    // SAFETY: the event is the checked answer to this request and outlives all reads from it.
    unsafe {
        let result = rd::rd_kafka_event_DescribeConsumerGroups_result(event.0);
        let descriptions = slice_from(rd::rd_kafka_DescribeConsumerGroups_result_groups(result, &mut count), count);
        let named = |group| (string_from(rd::rd_kafka_ConsumerGroupDescription_group_id(group)), each(group));
        Ok(descriptions.iter().map(|group| named(*group)).collect())
    }
}

/// Describes topics: the result of `each`, by name. Creates no topic. `broker`: id of the broker that serves the
/// request; `None`: the controller.
pub(super) fn describe_topics<T, All: FromIterator<(String, T)>>(
    client: &QueryClient,
    operation: &'static str,
    topics: &[String],
    broker: Option<i32>,
    timeout: Duration,
    each: impl Fn(*const rd_kafka_TopicDescription_t) -> T,
) -> Result<All, BrokerError> {
    if topics.is_empty() {
        return Ok(All::from_iter([]));
    }
    let (names, mut pointers) = c_strings(operation, topics)?;
    // SAFETY: `pointers` are terminated strings that `names` keeps; librdkafka copies them.
    let collection = unsafe { rd::rd_kafka_TopicCollection_of_topic_names(pointers.as_mut_ptr(), pointers.len()) };
    drop(names);
    let collection = NativeHandle(collection, rd::rd_kafka_TopicCollection_destroy);
    let request = rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS;
    let event = send_request(client, operation, (request, broker), timeout, 1, {
        // SAFETY: all four arguments live until the answer has arrived.
        |client, options, queue| unsafe { rd::rd_kafka_DescribeTopics(client, collection.0, options, queue) }
    })?;
    let mut count = 0;
    // SAFETY: the event is the checked answer to this request and outlives all reads from it.
    unsafe {
        let result = rd::rd_kafka_event_DescribeTopics_result(event.0);
        let descriptions = slice_from(rd::rd_kafka_DescribeTopics_result_topics(result, &mut count), count);
        let named = |topic| (string_from(rd::rd_kafka_TopicDescription_name(topic)), each(topic));
        Ok(descriptions.iter().map(|topic| named(*topic)).collect())
    }
}

/// An object of librdkafka with the function that destroys it.
pub(super) struct NativeHandle<T>(pub(super) *mut T, pub(super) unsafe extern "C" fn(*mut T));

impl<T> Drop for NativeHandle<T> {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: librdkafka created the object for this owner, which destroys it once.
            unsafe { (self.1)(self.0) }
        }
    }
}

/// Converts names to C strings. The pointers are valid as long as the strings.
pub(super) fn c_strings(
    operation: &'static str,
    names: &[String],
) -> Result<(Vec<CString>, Vec<*const c_char>), BrokerError> {
    let names: Result<Vec<CString>, _> = names.iter().map(|name| CString::new(name.as_str())).collect();
    let names = names.map_err(|error| translate(operation, "name", &KafkaError::Nul(error)))?;
    let pointers = names.iter().map(|name| name.as_ptr()).collect();
    Ok((names, pointers))
}

/// Sends an admin request that also asks for the client's rights, and waits for the answer. librdkafka turns it into up
/// to `requests` consecutive requests: two for groups, one by each group protocol.
pub(super) fn send_request(
    client: &QueryClient,
    operation: &'static str,
    (request, broker): (rd_kafka_admin_op_t, Option<i32>),
    timeout: Duration,
    requests: u32,
    send: impl FnOnce(*mut rd::rd_kafka_t, *const rd::rd_kafka_AdminOptions_t, *mut rd::rd_kafka_queue_t),
) -> Result<NativeHandle<rd_kafka_event_t>, BrokerError> {
    let no_answer = || BrokerError::new(BrokerErrorKind::Retryable, operation, format!("no answer within {timeout:?}"));
    let ms = |time: Duration| c_int::try_from(time.as_millis()).unwrap_or(c_int::MAX);
    // SAFETY: the client outlives the call. Every object that librdkafka creates here has one owner, which destroys it;
    // the queue is destroyed after its event. The setters return no errors, since all values are in range.
    unsafe {
        let native = client.client().native_ptr();
        let queue = NativeHandle(rd::rd_kafka_queue_new(native), rd::rd_kafka_queue_destroy);
        let options = NativeHandle(rd::rd_kafka_AdminOptions_new(native, request), rd::rd_kafka_AdminOptions_destroy);
        rd::rd_kafka_AdminOptions_set_request_timeout(options.0, ms(timeout / requests), ptr::null_mut(), 0);
        if let Some(broker) = broker {
            // librdkafka waits for an unreachable broker as long as for an answer.
            rd::rd_kafka_AdminOptions_set_broker(options.0, broker, ptr::null_mut(), 0);
        }
        drop(NativeHandle(
            rd::rd_kafka_AdminOptions_set_include_authorized_operations(options.0, 1),
            rd::rd_kafka_error_destroy,
        ));
        send(native, options.0, queue.0);
        let event = rd::rd_kafka_queue_poll(queue.0, ms(timeout + ANSWER_MARGIN));
        if event.is_null() {
            return Err(no_answer());
        }
        let event = NativeHandle(event, rd::rd_kafka_event_destroy);
        match rd::rd_kafka_event_error(event.0) {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR => Ok(event),
            code => {
                let message = rd::rd_kafka_event_error_string(event.0);
                Err(admin_error(operation, code.into(), (!message.is_null()).then(|| string_from(message))))
            }
        }
    }
}

pub(super) fn admin_error(operation: &'static str, code: RDKafkaErrorCode, message: Option<String>) -> BrokerError {
    BrokerError::new(kind_of_code(code), operation, message.unwrap_or_else(|| code.to_string()))
}

/// # Safety
/// `text` is a terminated string.
pub(super) unsafe fn string_from(text: *const c_char) -> String {
    // SAFETY: the caller keeps the contract above.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// # Safety
/// `first` is null or points to `count` elements, which outlive the slice.
pub(super) unsafe fn slice_from<'a, T>(first: *const T, count: usize) -> &'a [T] {
    // SAFETY: the caller keeps the contract above.
    if first.is_null() { &[] } else { unsafe { std::slice::from_raw_parts(first, count) } }
}
