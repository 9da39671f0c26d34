//! One ear for the client library's log lines and errors, in place of its own.
//!
//! Enters: what librdkafka logs and reports outside of records. Leaves: Postrider's log, in its
//! levels and without repetition, and the facts that others ask for: is a broker answering, has the
//! producer died, are we not let in. Called by every client context of this room.

use std::time::Instant;

use rdkafka::config::RDKafkaLogLevel as Level;
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode as Code;
use tracing::{debug, info, warn};

use super::SinkError;
use super::brokers::{Brokers, Change};
use super::damper::Damper;

/// What is known about the connection as a whole.
#[derive(Debug, Default)]
pub(super) struct Watch {
    brokers: Brokers,
    damper: Damper,
    fatal: Option<Fatal>,
    no_entry: Option<SinkError>,
    /// Of a client beside the relay's own, whose connecting is no news.
    aside: bool,
}

/// The library gave up on this client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fatal {
    /// The library's words.
    pub(super) reason: String,
    /// When it was seen.
    pub(super) since: Instant,
}

impl Watch {
    /// For a client beside the relay's own.
    pub(super) fn aside() -> Self {
        Self { aside: true, ..Self::default() }
    }

    /// Takes in one log line.
    pub(super) fn log(&mut self, level: Level, facility: &str, line: &str) {
        if facility == "STATE" {
            match self.brokers.observe(line) {
                Some(Change::Connected) if self.aside => debug!("a Kafka broker answers"),
                Some(Change::Connected) => info!("a Kafka broker answers"),
                Some(Change::Lost) => warn!("no Kafka broker answers; waiting"),
                None => debug!(target: "librdkafka", "{facility} {line}"),
            }
            return;
        }
        let serious = matches!(
            level,
            Level::Emerg | Level::Alert | Level::Critical | Level::Error | Level::Warning
        );
        // FAIL and ERROR lines come again as errors; CONFWARN is about settings we chose.
        if serious && !matches!(facility, "FAIL" | "ERROR" | "CONFWARN" | "FATAL") {
            self.warn(facility, line);
        } else {
            debug!(target: "librdkafka", "{facility} {line}");
        }
    }

    /// Takes in one error that belongs to no record.
    pub(super) fn error(&mut self, error: &KafkaError, reason: &str) {
        let Some(code) = error.rdkafka_error_code() else { return self.warn("error", reason) };
        match code {
            Code::PartitionEOF => {}
            Code::Fatal => self.died(reason),
            // `brokers` tells the story from the first connection on.
            Code::AllBrokersDown if self.brokers.ever_answered() => {}
            Code::AllBrokersDown => self.warn("no Kafka broker answers", reason),
            Code::Authentication | Code::SaslAuthenticationFailed
                if !self.brokers.ever_answered() =>
            {
                self.no_entry = Some(SinkError::Authentication(reason.to_owned()));
            }
            Code::SSL if !self.brokers.ever_answered() => {
                self.no_entry = Some(SinkError::Tls(reason.to_owned()));
            }
            _ => self.warn(&code.to_string(), reason),
        }
    }

    /// Notes that the library gave up on this client; the first reason stands.
    pub(super) fn died(&mut self, reason: &str) {
        if self.fatal.is_none() {
            self.fatal = Some(Fatal { reason: reason.to_owned(), since: Instant::now() });
        }
    }

    /// The library gave up on this client.
    pub(super) const fn fatal(&self) -> Option<&Fatal> {
        self.fatal.as_ref()
    }

    /// The brokers do not let us in, and never did.
    pub(super) fn no_entry(&self) -> Option<&SinkError> {
        self.no_entry.as_ref().filter(|_| !self.brokers.ever_answered())
    }

    /// At least one broker is known to answer.
    pub(super) const fn answering(&self) -> bool {
        self.brokers.answering()
    }

    fn warn(&mut self, kind: &str, line: &str) {
        match self.damper.admit(kind, Instant::now()) {
            Some(0) => warn!("kafka: {kind}: {line}"),
            Some(held_back) => warn!("kafka: {kind}: {line} ({held_back} more since)"),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(watch: &mut Watch, code: Code) {
        watch.error(&KafkaError::Global(code), "why");
    }

    #[test]
    fn refused_entry_counts_only_before_the_first_entry() {
        let mut watch = Watch::default();
        error(&mut watch, Code::Authentication);
        assert_eq!(watch.no_entry(), Some(&SinkError::Authentication("why".into())));
        watch.log(Level::Debug, "STATE", "a: Broker changed state AUTH_REQ -> UP");
        assert_eq!(watch.no_entry(), None);
        error(&mut watch, Code::SSL);
        assert_eq!(watch.no_entry(), None);
    }

    #[test]
    fn the_first_fatal_reason_stands() {
        let mut watch = Watch::default();
        error(&mut watch, Code::Fatal);
        watch.died("later");
        assert_eq!(watch.fatal().map(|fatal| fatal.reason.as_str()), Some("why"));
    }

    #[test]
    fn an_outage_alone_is_no_failure() {
        let mut watch = Watch::default();
        for code in [Code::AllBrokersDown, Code::BrokerTransportFailure, Code::Resolve] {
            error(&mut watch, code);
        }
        assert!(watch.fatal().is_none() && watch.no_entry().is_none() && !watch.answering());
    }
}
