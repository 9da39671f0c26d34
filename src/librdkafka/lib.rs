//! Gives a Kafka client its OAUTHBEARER token, which rdkafka 0.39 does only while the client is polled, asks the
//! brokers what a client may do with topics, which rdkafka 0.39 has no call for, sends what waits for others at once,
//! which rdkafka 0.39 does only where it takes the delivery reports meanwhile, and adds brokers to a client, which rdkafka
//! 0.39 has no call for.
//!
//! Input: a client, and a token, names of topics or addresses. Output: librdkafka's refusal, if it refuses, or what is allowed.
//! Invariant: this crate has the only `unsafe` of the project.
//!
//! rdkafka hands a token over when it polls the client's main queue. It never polls that of an `AdminClient`, and a
//! consumer that is asked for metadata alone is not polled either, so that both would wait for a login for ever.

mod rights;

use std::ffi::{CString, c_int};
use std::ptr;
use std::time::Duration;

use rdkafka::bindings::{rd_kafka_brokers_add, rd_kafka_flush, rd_kafka_oauthbearer_set_token};
use rdkafka::client::{Client, ClientContext};
use rdkafka::types::RDKafkaRespErr;

pub use rights::{TopicRights, topic_rights};

/// The size that librdkafka's examples give such a buffer.
const ERROR_BYTES: usize = 512;

/// Sets the token that the client logs in with from now on, until `expires_ms` (Unix time in milliseconds).
///
/// # Errors
///
/// librdkafka's words: the mechanism is not OAUTHBEARER, the token has expired, it has characters that no token has
/// (`rd_kafka_oauthbearer_set_token` in rdkafka.h).
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
    // SAFETY: the client lives as long as the borrow of it, and librdkafka's functions may be called from any thread.
    // Both strings end with a zero and live until the call returns; librdkafka copies them. There are no extensions:
    // a null pointer with the length 0. The buffer is as long as is said, and librdkafka ends what it writes with a
    // zero.
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

/// Sends what a producer has in its queue without the wait for others (`linger.ms`), which it leaves out as long as the call
/// lasts, and returns when the last of it was reported, or after `limit`. Another thread must take the reports meanwhile:
/// the producer is one of rdkafka's, which have them as events, and those this call leaves alone (`rd_kafka_flush` in
/// rdkafka.h). rdkafka's own `flush` takes them itself, and calls with a limit of zero, which may end before it is noticed.
pub fn flush<C: ClientContext>(producer: &Client<C>, limit: Duration) {
    let limit_ms = c_int::try_from(limit.as_millis()).unwrap_or(c_int::MAX);
    #[expect(unsafe_code, reason = "rdkafka's own takes delivery reports meanwhile")]
    // SAFETY: the client lives as long as the borrow of it, and librdkafka's functions may be called from any thread.
    let _ = unsafe { rd_kafka_flush(producer.native_ptr(), limit_ms) };
}

/// Adds these addresses (`host:port`, separated by commas) to the brokers that the client connects to. A broker that the
/// client knows is not added twice. librdkafka keeps a copy of the text for as long as the client lives.
pub fn add_brokers<C: ClientContext>(client: &Client<C>, addresses: &str) {
    // No address has a zero byte: the client would not exist.
    let Ok(addresses) = CString::new(addresses) else { return };
    #[expect(unsafe_code, reason = "rdkafka has no safe function for it")]
    // SAFETY: the client lives as long as the borrow of it, and librdkafka's functions may be called from any thread.
    // The string ends with a zero and lives until the call returns; librdkafka copies it.
    let _ = unsafe { rd_kafka_brokers_add(client.native_ptr(), addresses.as_ptr()) };
}
