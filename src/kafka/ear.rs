//! What consumers of the client library hear.
//!
//! Enters: its log lines and errors. Leaves: what a [`Watch`] makes of them: why no broker answers, and
//! why we are not let in. What always holds: nothing is heard but while a consumer is served. Called by
//! whatever reads topics, or asks about them.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::KafkaError;
use rdkafka::statistics::Statistics;

use super::SinkError;
use super::watch::Watch;

/// Callbacks served between two questions. The library logs tens of lines for each connection that it
/// tries, and the one that tells why none is made stands behind them. A call that finds nothing takes
/// less than a microsecond.
const EVENTS: u32 = 1_000;

/// A consumer's context: nothing but the shared watch.
#[derive(Debug)]
pub(super) struct Ear(Mutex<Watch>);

/// Serves what a consumer has to tell that is assigned nothing, so that there are no records; an error if
/// the brokers do not let us in, and never did.
pub(super) fn serve(consumer: &BaseConsumer<Ear>) -> Result<(), SinkError> {
    for _ in 0..EVENTS {
        if let Some(Err(error)) = consumer.poll(Duration::ZERO) {
            consumer.context().hear(&error);
        }
    }
    consumer.context().watch().no_entry().cloned().map_or(Ok(()), Err)
}

impl Ear {
    /// Of a reader that says itself that no broker answers.
    pub(super) fn reading() -> Self {
        Self(Mutex::new(Watch::reading()))
    }

    /// Of a client whose failures its caller tells.
    pub(super) fn quiet() -> Self {
        let mut watch = Watch::aside();
        watch.close();
        Self(Mutex::new(watch))
    }

    /// Takes in an error of a poll, whose log line had the reason before.
    pub(super) fn hear(&self, error: &KafkaError) {
        if let Some(code) = error.rdkafka_error_code() {
            self.watch().hear(code);
        }
    }

    /// Says once that no broker answers, when that has lasted for a while.
    pub(super) fn tell_outage(&self) {
        self.watch().tell_outage();
    }

    /// Why no broker answers, while none does.
    pub(super) fn outage_reason(&self) -> Option<String> {
        self.watch().outage_reason().map(str::to_owned)
    }

    fn watch(&self) -> MutexGuard<'_, Watch> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientContext for Ear {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        self.watch().log(level, facility, line);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.watch().error(&error, reason);
    }

    fn stats(&self, _statistics: Statistics) {}
}

impl ConsumerContext for Ear {}
