//! Calls of librdkafka that rdkafka 0.39 lacks:
//!
//! * set a Kafka client's OAUTHBEARER token, which rdkafka does only while the client is polled;
//! * ask the brokers what a client may do with topics;
//! * flush a producer at once, which rdkafka does only if it takes the delivery reports itself;
//! * add brokers to a client.
//!
//! Input: a client, and a token, names of topics or addresses. Output: the rights on topics, or
//! librdkafka's error if it refuses. Invariant: this crate has the only `unsafe` of the project.
//!
//! rdkafka passes a token on when it polls the client's main queue. It never polls that queue of an
//! `AdminClient`. A consumer that only reads metadata is not polled either. Without this crate,
//! both would wait for a login for ever.

mod rights;

use std::ffi::{CString, c_int};
use std::ptr;
use std::time::Duration;

use rdkafka::bindings::{rd_kafka_brokers_add, rd_kafka_flush, rd_kafka_oauthbearer_set_token};
use rdkafka::client::{Client, ClientContext};
use rdkafka::types::RDKafkaRespErr;

pub use rights::{TopicRights, topic_rights};

/// Size of the error buffer in librdkafka's examples, in bytes.
const ERROR_BYTES: usize = 512;

/// Sets the token for the client's logins from now on, until `expires_ms` (Unix time in
/// milliseconds).
///
/// # Errors
///
/// Returns librdkafka's message if the mechanism is not OAUTHBEARER, the token has expired, or it
/// contains invalid characters (`rd_kafka_oauthbearer_set_token` in rdkafka.h).
pub fn set_token<C: ClientContext>(
    client: &Client<C>,
    token: &str,
    expires_ms: i64,
    principal: &str,
) -> Result<(), String> {
    let holds_zero = |_| "it holds a zero byte".to_owned();
    let token = CString::new(token).map_err(holds_zero)?;
    let principal = CString::new(principal).map_err(holds_zero)?;
    let mut reason = [0_u8; ERROR_BYTES];
    #[expect(unsafe_code, reason = "rdkafka has no safe function for it")]
    // SAFETY: the client lives as long as its borrow, and librdkafka's functions may be called from
    // any thread. Both strings are zero-terminated and live until the call returns; librdkafka
    // copies them. There are no extensions: a null pointer with the length 0. The buffer has the
    // given length, and librdkafka zero-terminates its message.
    let code = unsafe {
        rd_kafka_oauthbearer_set_token(
            client.native_ptr(),
            token.as_ptr(),
            expires_ms,
            principal.as_ptr(),
            ptr::null_mut(),
            0,
            reason.as_mut_ptr().cast(),
            reason.len(),
        )
    };
    if code == RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR {
        return Ok(());
    }
    let written = reason.iter().take_while(|byte| **byte != 0).copied().collect::<Vec<_>>();
    Err(String::from_utf8_lossy(&written).into_owned())
}

/// Sends a producer's queued records without waiting for more (`linger.ms`). librdkafka ignores the
/// linger time during the call. Returns after the last record was reported, or after `limit`.
///
/// Another thread must take the reports during the call. rdkafka's producers receive reports as
/// events, which this call does not consume (`rd_kafka_flush` in rdkafka.h). rdkafka's own `flush`
/// takes the reports itself, and calls librdkafka with a limit of zero, so the call may end before
/// librdkafka notices it.
pub fn flush<C: ClientContext>(producer: &Client<C>, limit: Duration) {
    let limit_ms = c_int::try_from(limit.as_millis()).unwrap_or(c_int::MAX);
    #[expect(unsafe_code, reason = "rdkafka's own takes delivery reports meanwhile")]
    // SAFETY: the client lives as long as its borrow, and librdkafka's functions may be called from
    // any thread.
    let _ = unsafe { rd_kafka_flush(producer.native_ptr(), limit_ms) };
}

/// Adds these addresses (`host:port`, comma-separated) to the client's brokers. A known broker is
/// not added twice. librdkafka keeps a copy of the text for the lifetime of the client.
pub fn add_brokers<C: ClientContext>(client: &Client<C>, addresses: &str) {
    // No address contains a zero byte, because the client could not have been created with one.
    let Ok(addresses) = CString::new(addresses) else { return };
    #[expect(unsafe_code, reason = "rdkafka has no safe function for it")]
    // SAFETY: the client lives as long as its borrow, and librdkafka's functions may be called from
    // any thread. The string is zero-terminated and lives until the call returns; librdkafka copies
    // it.
    let _ = unsafe { rd_kafka_brokers_add(client.native_ptr(), addresses.as_ptr()) };
}
