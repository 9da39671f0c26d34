//! The user who does everything wrong, with the real binary: what each mistake is answered with, and
//! that nothing is lost by it.
//!
//! Each case holds the whole contract: the exit code, one error with its code and help, no other
//! warning, no secret in any output, and the rows written meanwhile delivered once it is fixed.

mod access;
mod attempt;
mod brokers;
#[cfg(any(feature = "kafka-tls", feature = "kafka-tls-vendored"))]
mod certificates;
#[cfg(any(feature = "kafka-tls", feature = "kafka-tls-vendored"))]
mod encrypted;
mod environment;
mod gate;
mod midway;
mod outbox;
mod position;
mod routing;
#[cfg(any(feature = "kafka-tls", feature = "kafka-tls-vendored"))]
mod tokens;
mod typing;
mod unfit;
mod waiting;
