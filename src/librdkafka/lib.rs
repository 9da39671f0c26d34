//! Calls of librdkafka that rdkafka 0.39 lacks:
//!
//! * set a client's OAUTHBEARER token, which rdkafka does only while the client's main queue is
//!   polled. An `AdminClient`, and a consumer that only reads metadata, would wait for a login for
//!   ever;
//! * ask the brokers what a client may do with topics;
//! * flush a producer at once, which rdkafka does only if it takes the delivery reports itself;
//! * add brokers to a client.
//!
//! Invariant: this crate has the only `unsafe` of the project.

mod rights;

use std::ffi::{CString, c_int};
use std::ptr;
use std::time::Duration;

use rdkafka::bindings::{rd_kafka_brokers_add, rd_kafka_flush, rd_kafka_oauthbearer_set_token};
use rdkafka::client::{Client, ClientContext};
use rdkafka::types::RDKafkaRespErr;

pub use rights::{TopicRights, topic_rights};

/// Bytes of the error buffer in librdkafka's examples.
const ERROR_BYTES: usize = 512;

/// Sets the token for logins until `expires_ms` (Unix time in milliseconds).
///
/// # Errors
///
/// librdkafka's message if the mechanism is not OAUTHBEARER, the token has expired, or it contains
/// invalid characters (`rd_kafka_oauthbearer_set_token` in rdkafka.h).
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

/// Sends a producer's queued records without `linger.ms`. Returns after the last record was
/// reported, or after `limit`.
///
/// Another thread must take the reports during the call: they arrive as events, which this call
/// does not consume (`rd_kafka_flush` in rdkafka.h). rdkafka's own `flush` calls librdkafka with a
/// limit of zero, so it may end before librdkafka notices the call.
pub fn flush<C: ClientContext>(producer: &Client<C>, limit: Duration) {
    let limit_ms = c_int::try_from(limit.as_millis()).unwrap_or(c_int::MAX);
    #[expect(unsafe_code, reason = "rdkafka's own takes delivery reports meanwhile")]
    // SAFETY: the client lives as long as its borrow, and librdkafka's functions may be called from
    // any thread.
    let _ = unsafe { rd_kafka_flush(producer.native_ptr(), limit_ms) };
}

/// Adds `host:port` addresses, comma-separated. A known broker is not added twice. librdkafka keeps
/// a copy of the text as long as the client lives.
pub fn add_brokers<C: ClientContext>(client: &Client<C>, addresses: &str) {
    // The client could not have been created with a zero byte in an address.
    let Ok(addresses) = CString::new(addresses) else { return };
    #[expect(unsafe_code, reason = "rdkafka has no safe function for it")]
    // SAFETY: the client lives as long as its borrow, and librdkafka's functions may be called from
    // any thread. The string is zero-terminated and lives until the call returns; librdkafka copies
    // it.
    let _ = unsafe { rd_kafka_brokers_add(client.native_ptr(), addresses.as_ptr()) };
}
