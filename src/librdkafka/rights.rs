//! Asks the brokers what a login may do with topics (`DescribeTopics` with authorized operations,
//! KIP-430); rdkafka 0.39 has no call for this. The request neither creates a topic nor writes
//! data.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;
use std::time::Duration;

use rdkafka::bindings::{
    rd_kafka_AclOperation_t as Operation, rd_kafka_AdminOptions_destroy, rd_kafka_AdminOptions_new,
    rd_kafka_AdminOptions_set_include_authorized_operations,
    rd_kafka_AdminOptions_set_request_timeout, rd_kafka_DescribeTopics,
    rd_kafka_DescribeTopics_result_topics, rd_kafka_TopicCollection_destroy,
    rd_kafka_TopicCollection_of_topic_names, rd_kafka_TopicDescription_authorized_operations,
    rd_kafka_TopicDescription_error, rd_kafka_TopicDescription_name, rd_kafka_TopicDescription_t,
    rd_kafka_admin_op_t, rd_kafka_error_code, rd_kafka_error_destroy,
    rd_kafka_event_DescribeTopics_result, rd_kafka_event_destroy, rd_kafka_event_error,
    rd_kafka_event_t, rd_kafka_queue_destroy, rd_kafka_queue_new, rd_kafka_queue_poll,
};
use rdkafka::client::{Client, ClientContext};
use rdkafka::types::RDKafkaRespErr;

use crate::ERROR_BYTES;

/// Added to librdkafka's own limit; no answer comes later.
const LATER_MS: c_int = 1_000;

/// Rights of a login on a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopicRights {
    /// True if it may fetch records.
    pub read: bool,
    /// True if it may produce records.
    pub write: bool,
}

/// Rights on topics. Omits topics that do not exist, are hidden from the login, or whose rights the
/// brokers do not return.
///
/// # Errors
///
/// librdkafka's code if the brokers do not answer in time, or do not support the request.
pub fn topic_rights<C: ClientContext>(
    client: &Client<C>,
    topics: &[&str],
    limit: Duration,
) -> Result<BTreeMap<String, TopicRights>, RDKafkaRespErr> {
    // A name with a zero byte is not a topic.
    let names: Vec<CString> = topics.iter().filter_map(|name| CString::new(*name).ok()).collect();
    if names.is_empty() {
        return Ok(BTreeMap::new());
    }
    let limit_ms = c_int::try_from(limit.as_millis()).unwrap_or(c_int::MAX - LATER_MS);
    let mut pointers: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
    let mut reason = [0_u8; ERROR_BYTES];
    #[expect(unsafe_code, reason = "rdkafka has no safe function for it")]
    // SAFETY: the client lives as long as its borrow, and librdkafka's functions may be called from
    // any thread. The names are zero-terminated and live until the call returns. librdkafka copies
    // the names, the options and the collection (rdkafka_admin.c); the last two are destroyed once
    // each after that. A returned error belongs to this function, which destroys it.
    //
    // The buffer has the given length. The queue is destroyed once, after the event that was polled
    // from it; librdkafka frees a later answer. The event is null or belongs to this function, and
    // is read before it is destroyed.
    unsafe {
        let handle = client.native_ptr();
        let for_topics = rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS;
        let options = rd_kafka_AdminOptions_new(handle, for_topics);
        let buffer = reason.as_mut_ptr().cast();
        rd_kafka_AdminOptions_set_request_timeout(options, limit_ms, buffer, reason.len());
        let refused = rd_kafka_AdminOptions_set_include_authorized_operations(options, 1);
        if !refused.is_null() {
            rd_kafka_error_destroy(refused);
        }
        let collection =
            rd_kafka_TopicCollection_of_topic_names(pointers.as_mut_ptr(), pointers.len());
        let queue = rd_kafka_queue_new(handle);
        rd_kafka_DescribeTopics(handle, collection, options, queue);
        rd_kafka_TopicCollection_destroy(collection);
        rd_kafka_AdminOptions_destroy(options);
        let event = rd_kafka_queue_poll(queue, limit_ms.saturating_add(LATER_MS));
        let answer = read_event(event);
        if !event.is_null() {
            rd_kafka_event_destroy(event);
        }
        rd_kafka_queue_destroy(queue);
        answer
    }
}

/// # Safety
///
/// The event must be null, or an event of librdkafka that was not destroyed.
#[expect(unsafe_code, reason = "librdkafka lends what an event holds by pointers")]
unsafe fn read_event(
    event: *mut rd_kafka_event_t,
) -> Result<BTreeMap<String, TopicRights>, RDKafkaRespErr> {
    if event.is_null() {
        return Err(RDKafkaRespErr::RD_KAFKA_RESP_ERR__TIMED_OUT);
    }
    // SAFETY: the event is alive, as the caller promises. An event of another kind gives a null
    // pointer. The lent array has the returned number of elements and lives as long as the event.
    let topics = unsafe {
        let error = rd_kafka_event_error(event);
        if error != RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR {
            return Err(error);
        }
        let result = rd_kafka_event_DescribeTopics_result(event);
        if result.is_null() {
            return Err(RDKafkaRespErr::RD_KAFKA_RESP_ERR__BAD_MSG);
        }
        let mut count = 0;
        let first = rd_kafka_DescribeTopics_result_topics(result, ptr::addr_of_mut!(count));
        lent(first.cast_const(), count)
    };
    let mut rights = BTreeMap::new();
    for topic in topics.iter().filter(|topic| !topic.is_null()) {
        // SAFETY: the element is not null, and a live event lends it.
        rights.extend(unsafe { read_topic(*topic) });
    }
    Ok(rights)
}

/// `None` without rights.
///
/// # Safety
///
/// A live event must lend the topic.
#[expect(unsafe_code, reason = "librdkafka lends what an event holds by pointers")]
unsafe fn read_topic(topic: *const rd_kafka_TopicDescription_t) -> Option<(String, TopicRights)> {
    // SAFETY: the topic is alive, as the caller promises. It lends a zero-terminated name, an error
    // or null, and the returned number of operations or null. The operations are read as numbers,
    // because brokers may have more of them than the enum.
    let (name, operations) = unsafe {
        let error = rd_kafka_TopicDescription_error(topic);
        if !error.is_null()
            && rd_kafka_error_code(error) != RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR
        {
            return None;
        }
        let mut count = 0;
        let first =
            rd_kafka_TopicDescription_authorized_operations(topic, ptr::addr_of_mut!(count));
        if first.is_null() {
            return None;
        }
        let name = CStr::from_ptr(rd_kafka_TopicDescription_name(topic));
        (name.to_str().ok()?.to_owned(), lent(first.cast::<u32>(), count))
    };
    let may = |operation: Operation| operations.contains(&(operation as u32));
    let all = may(Operation::RD_KAFKA_ACL_OPERATION_ALL);
    let read = all || may(Operation::RD_KAFKA_ACL_OPERATION_READ);
    let write = all || may(Operation::RD_KAFKA_ACL_OPERATION_WRITE);
    Some((name, TopicRights { read, write }))
}

/// Empty if the pointer is null.
///
/// # Safety
///
/// The pointer must be null, or point to `count` elements that live as long as the slice.
#[expect(unsafe_code, reason = "librdkafka lends lists as a pointer and a length")]
const unsafe fn lent<'a, T>(first: *const T, count: usize) -> &'a [T] {
    if first.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: the caller promises this.
    unsafe { std::slice::from_raw_parts(first, count) }
}
