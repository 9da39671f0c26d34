//! OpenSSL in a process that uses librdkafka: the process may exit while clients run.

/// Initializes OpenSSL without its clean-up at process exit. Call it at the start of `main`, before
/// the first client is configured.
///
/// OpenSSL's `atexit` handler frees its state while threads of librdkafka may be in a handshake.
/// The process would end by a signal (`OPENSSL_INIT_NO_ATEXIT` in `OPENSSL_init_crypto(3)`;
/// openssl/openssl#6214).
pub fn keep_openssl_until_exit() {
    // Passes `OPENSSL_INIT_NO_ATEXIT`. librdkafka's own initialization has no effect then.
    #[cfg(feature = "tls")]
    openssl_sys::init();
}
