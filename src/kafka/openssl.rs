//! OpenSSL in a process that uses librdkafka.
//!
//! Output: OpenSSL, initialized. Invariant: a process that first calls this may exit while clients
//! run.

/// Initializes OpenSSL without its clean-up at process exit. Call it at the start of `main`, before
/// the first client is configured; later calls, and builds without TLS, do nothing.
///
/// By default OpenSSL frees its state in an `atexit` handler. Threads of librdkafka may then be in
/// a handshake, because a failed command does not wait for its clients. The process would end by a
/// signal instead of its exit code (`OPENSSL_INIT_NO_ATEXIT` in `OPENSSL_init_crypto(3)`;
/// openssl/openssl#6214).
pub fn keep_openssl_until_exit() {
    // Passes `OPENSSL_INIT_NO_ATEXIT`. librdkafka initializes OpenSSL again, without an effect.
    #[cfg(feature = "tls")]
    openssl_sys::init();
}
