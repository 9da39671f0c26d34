//! OpenSSL as a process has it that uses librdkafka.
//!
//! Input: nothing. Output: OpenSSL, initialized. Invariant: whoever calls this first may exit while clients run.

/// Initializes OpenSSL so that it is not cleaned up when the process exits. Call it at the start of `main`, before
/// the first client is configured; later calls, and builds without TLS, do nothing.
///
/// By default OpenSSL frees what it holds in a handler of `atexit`. Threads of librdkafka may be in a handshake
/// then, as clients are not waited for when a command has failed, and the process ends by a signal in place of its
/// exit code (`OPENSSL_INIT_NO_ATEXIT` in `OPENSSL_init_crypto(3)`; openssl/openssl#6214).
pub fn keep_openssl_until_exit() {
    // It passes `OPENSSL_INIT_NO_ATEXIT`. librdkafka initializes OpenSSL again, which changes nothing.
    #[cfg(feature = "tls")]
    openssl_sys::init();
}
