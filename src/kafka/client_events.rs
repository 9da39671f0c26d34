//! Interprets librdkafka's log lines and client errors, which do not name the wrong setting.
//!
//! Output: warnings, each kind at most every 10 s, and the client's state.

use std::time::{Duration, Instant};

use rdkafka::config::RDKafkaLogLevel as Level;
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode as Code;
use tracing::{debug, info, warn};

use super::SinkError;
pub(super) use super::add_partition_error::AddPartitionError;
use super::brokers::{BrokerChange, Brokers};
use super::listener::{broke_off, mismatch, refused_by};
use super::log_line::{bare, is_end_of_handle, is_no_news, is_serious};
use super::log_line::{is_without_producer_ids, transaction_error};
use super::offered_requests::OfferedRequests;
use super::revoked_login::{RevokedLogin, is_certificate_refused};
use postrider_service::log_throttle::LogThrottle;

/// A first connection or a broker's restart may take this long.
const OUTAGE_PATIENCE: Duration = Duration::from_secs(1);
/// A reader's data does not age.
const READER_PATIENCE: Duration = Duration::from_secs(3);

/// A dead broker causes about ten lines per second.
const QUIET: Duration = Duration::from_secs(10);

/// Ends of lines about a connection that was in use.
const HUNG_UP: [&str; 2] = [" UP -> DOWN", " REAUTH -> DOWN"];

const OUTAGE_HELP: &str = "check kafka.brokers, security.protocol in [kafka.properties] and the \
                           network; nothing is lost: the rows wait in Postgres";

const READER_HELP: &str =
    "check kafka.brokers (or -b), security.protocol in [kafka.properties] and the network";

#[derive(Debug)]
pub(super) struct ClientEvents {
    brokers: Brokers,
    throttle: LogThrottle,
    outage: Option<Outage>,
    trouble: Option<String>,
    /// Requirement of the listener, and the remedy.
    mismatch: Option<(&'static str, &'static str)>,
    fatal: Option<Fatal>,
    /// Reason of an aborted transaction; the reports of purged records have none.
    transaction_error: Option<String>,
    forbidden: bool,
    revoked_login: RevokedLogin,
    replaced: bool,
    /// Closed connections and timed-out requests.
    disturbances: u64,
    authentication_error: Option<SinkError>,
    add_partition_error: Option<AddPartitionError>,
    pub(super) offered: OfferedRequests,
    whose: Whose,
    /// Reports about purged records do not matter while the client closes.
    closing: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Whose {
    #[default]
    Relay,
    /// Logs only failures to connect.
    Reader,
    /// An auxiliary client: announces neither outages nor connections. Other warnings are logged.
    Aside,
}

#[derive(Debug)]
struct Outage {
    since: Instant,
    told: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fatal {
    pub(super) reason: String,
    pub(super) since: Instant,
}

impl Default for ClientEvents {
    fn default() -> Self {
        Self {
            brokers: Brokers::default(),
            throttle: LogThrottle::new(QUIET),
            outage: Some(Outage::new()),
            trouble: None,
            mismatch: None,
            fatal: None,
            transaction_error: None,
            forbidden: false,
            revoked_login: RevokedLogin::default(),
            replaced: false,
            disturbances: 0,
            authentication_error: None,
            add_partition_error: None,
            offered: OfferedRequests::default(),
            whose: Whose::default(),
            closing: false,
        }
    }
}

impl Outage {
    fn new() -> Self {
        Self { since: Instant::now(), told: false }
    }
}

impl ClientEvents {
    pub(super) fn auxiliary() -> Self {
        Self { whose: Whose::Aside, ..Self::default() }
    }

    pub(super) fn reading() -> Self {
        Self { whose: Whose::Reader, ..Self::default() }
    }

    pub(super) fn log(&mut self, level: Level, facility: &str, line: &str) {
        let hung_up = facility == "STATE" && HUNG_UP.iter().any(|end| line.ends_with(end));
        if hung_up || facility == "REQTMOUT" {
            self.disturbances += 1;
        }
        if let Some(codec) = self.offered.observe(line) {
            let help = "set kafka.compression to a codec that the brokers take: gzip, or none";
            warn!(codec, help, "the brokers do not offer {codec}; batches are sent uncompressed");
        }
        if facility == "STATE" {
            match self.brokers.observe(line) {
                Some(BrokerChange::Connected) => self.connected(),
                Some(BrokerChange::Lost) => self.outage = Some(Outage::new()),
                None => {}
            }
            let answering = self.brokers.answering();
            if let Some(reason) = self.revoked_login.observe(line, answering, Instant::now()) {
                self.replaced |= self.fatal.is_none();
                self.died(&reason);
            }
            debug!(target: "librdkafka", "{facility} {line}");
            return;
        }
        if facility == "FAIL"
            && let Some(outage) = &mut self.outage
            && let stranger = !self.brokers.ever_answered()
            && let Some(mismatch) =
                mismatch(line).or_else(|| stranger.then(|| refused_by(line)).flatten())
            && self.mismatch != Some(mismatch)
        {
            // Logged again, with the cause.
            (self.mismatch, outage.told) = (Some(mismatch), false);
        }
        if facility == "FAIL" && self.outage.is_some() && !is_end_of_handle(line) {
            let refused = SinkError::Tls(bare(line).to_owned());
            // A consumer gets this line but no error.
            if refused.unverified_broker().is_some() {
                self.authentication_error.get_or_insert(refused);
            }
            self.trouble = Some(bare(line).to_owned());
        }
        if facility == "FATAL" {
            // The error that follows has the cause's code instead of `Fatal`.
            self.died(line.split_once("Fatal error: ").map_or(line, |(_, reason)| reason));
        }
        if facility == "TXNERR" && self.transaction_error.is_none() {
            self.transaction_error = transaction_error(line).map(str::to_owned);
        }
        if facility == "ADDPARTS" && self.add_partition_error.is_none() {
            self.add_partition_error = AddPartitionError::read(line);
        }
        if is_serious(level) && !is_no_news(facility, line) {
            self.warn(facility, line);
        } else {
            debug!(target: "librdkafka", "{facility} {line}");
        }
    }

    pub(super) fn error(&mut self, error: &KafkaError, reason: &str) {
        let Some(code) = error.rdkafka_error_code() else { return self.warn("error", reason) };
        if is_certificate_refused(reason) {
            self.revoked_login.certificate_refused(reason, Instant::now());
        }
        match code {
            // No client here keeps offsets in a group.
            Code::PartitionEOF | Code::GroupAuthorizationFailed => {}
            // Also reported when a client is dropped with records in flight.
            Code::Fatal | Code::GaplessGuarantee => self.died(reason),
            Code::ClusterAuthorizationFailed => {
                self.died(reason);
                self.forbidden = true;
            }
            _ if self.fatal.is_some() => {}
            // `brokers` is more precise, and `tell_outage` logs it.
            Code::AllBrokersDown if self.whose != Whose::Aside => {}
            Code::BrokerTransportFailure | Code::Resolve
                if self.outage.is_some() && self.whose != Whose::Aside =>
            {
                self.trouble = Some(reason.to_owned());
            }
            // Already reported from its log line, with the kind of peer.
            Code::BadMessage if self.mismatch.is_some() => {}
            Code::Authentication if broke_off(reason) && self.outage.is_some() => {
                self.trouble = Some(reason.to_owned());
            }
            Code::Authentication | Code::SaslAuthenticationFailed
                if !self.brokers.ever_let_in() =>
            {
                self.authentication_error = Some(SinkError::of_login(reason.to_owned()));
            }
            Code::SSL if !self.brokers.ever_let_in() => {
                self.authentication_error = Some(SinkError::Tls(reason.to_owned()));
            }
            _ => {
                if matches!(code, Code::Authentication | Code::SaslAuthenticationFailed) {
                    self.revoked_login.refused(reason, Instant::now());
                }
                self.warn(&code.to_string(), reason);
            }
        }
    }

    /// A client with a refused login may be replaced: the next one reads the secret again.
    pub(super) const fn secret_can_change(&mut self) {
        self.revoked_login.secret_can_change();
    }

    /// A client with a refused certificate may be replaced: the next one reads its files again.
    pub(super) const fn certificate_can_change(&mut self) {
        self.revoked_login.certificate_can_change();
    }

    pub(super) fn hear(&mut self, code: Code) {
        let reason = self.trouble.clone().unwrap_or_else(|| code.to_string());
        self.error(&KafkaError::Global(code), &reason);
    }

    /// The first reason stays.
    pub(super) fn died(&mut self, reason: &str) {
        if self.fatal.is_none() {
            self.fatal = Some(Fatal { reason: reason.to_owned(), since: Instant::now() });
        }
    }

    pub(super) const fn fatal(&self) -> Option<&Fatal> {
        self.fatal.as_ref()
    }

    pub(super) const fn add_partition_error(&self) -> Option<&AddPartitionError> {
        self.add_partition_error.as_ref()
    }

    pub(super) fn fatal_reason(&self) -> Option<SinkError> {
        let fatal = self.fatal.as_ref()?;
        // A failed transaction ends the producer, so its reason comes first.
        let reason = self.transaction_error.as_ref().unwrap_or(&fatal.reason).clone();
        Some(match (self.replaced, self.forbidden) {
            (true, _) => SinkError::LoginRevoked(reason),
            (_, true) => SinkError::Forbidden(reason),
            _ if is_without_producer_ids(&reason) => SinkError::NoIdempotence(reason),
            _ => SinkError::Fatal(reason),
        })
    }

    /// Only if no broker ever accepted the login.
    pub(super) fn authentication_error(&self) -> Option<&SinkError> {
        self.authentication_error.as_ref().filter(|_| !self.brokers.ever_let_in())
    }

    pub(super) const fn ever_let_in(&self) -> bool {
        self.brokers.ever_let_in()
    }

    pub(super) const fn answering(&self) -> bool {
        self.brokers.answering()
    }

    pub(super) const fn has_connection(&self) -> bool {
        self.brokers.has_connection()
    }

    /// The library has lost all brokers, and does not try to connect.
    pub(super) fn lost(&mut self) {
        if self.brokers.lose() {
            self.outage = Some(Outage { told: true, ..Outage::new() });
            warn!("no broker is reachable; the bootstrap servers were added again");
        }
    }

    /// Number of events after which a request may have no answer. Only then does librdkafka send
    /// requests again (`rd_kafka_broker_fail`, `rd_kafka_broker_bufq_timeout_scan`, 2.12), and it
    /// logs the event first.
    pub(super) const fn disturbances(&self) -> u64 {
        self.disturbances
    }

    /// `None` while a broker answers.
    pub(super) fn outage_reason(&self) -> Option<&str> {
        self.outage.as_ref()?;
        let trouble = self.trouble.as_deref().unwrap_or("no answer yet");
        Some(self.mismatch.map_or(trouble, |(reason, _)| reason))
    }

    /// Logs once that no broker answers. Call it often.
    pub(super) fn tell_outage(&mut self) {
        let Some(outage) = &mut self.outage else { return };
        let (patience, help) = match self.whose {
            Whose::Relay => (OUTAGE_PATIENCE, OUTAGE_HELP),
            Whose::Reader => (READER_PATIENCE, READER_HELP),
            Whose::Aside => return,
        };
        if outage.told || outage.since.elapsed() < patience {
            return;
        }
        outage.told = true;
        let trouble = self.trouble.as_deref().unwrap_or("no answer yet");
        let (reason, help) = self.mismatch.unwrap_or((trouble, help));
        warn!(reason, help, "cannot reach Kafka; retrying");
    }

    fn connected(&mut self) {
        (self.trouble, self.mismatch) = (None, None);
        match self.outage.take() {
            Some(Outage { since, told: true }) => {
                let outage_ms = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
                info!(outage_ms, "connected to Kafka");
            }
            _ if self.whose != Whose::Relay => debug!("connected to Kafka"),
            _ => info!("connected to Kafka"),
        }
    }

    pub(super) const fn close(&mut self) {
        self.closing = true;
    }

    fn warn(&mut self, kind: &str, line: &str) {
        if self.closing {
            debug!("kafka: {kind}: {line}");
            return;
        }
        match self.throttle.admit(kind, Instant::now()) {
            Some(0) => warn!("kafka: {kind}: {line}"),
            Some(held_back) => warn!("kafka: {kind}: {line} ({held_back} more since)"),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(events: &mut ClientEvents, code: Code) {
        events.error(&KafkaError::Global(code), "why");
    }

    #[test]
    fn refused_entry_counts_only_before_the_first_entry() {
        let mut events = ClientEvents::default();
        error(&mut events, Code::Authentication);
        assert_eq!(events.authentication_error(), Some(&SinkError::Authentication("why".into())));
        events.log(Level::Debug, "STATE", "a: Broker changed state AUTH_REQ -> UP");
        assert_eq!(events.authentication_error(), None);
        error(&mut events, Code::SSL);
        assert_eq!(events.authentication_error(), None);
    }

    #[test]
    fn a_login_that_breaks_off_is_an_outage() {
        let mut events = ClientEvents::default();
        let reason = "SASL PLAIN mechanism handshake failed: Local: Broker transport failure: broker's \
                      supported mechanisms: (n/a)";
        events.error(&KafkaError::Global(Code::Authentication), reason);
        assert_eq!((events.authentication_error(), events.outage_reason()), (None, Some(reason)));
    }

    #[test]
    fn the_first_fatal_reason_stands() {
        let mut events = ClientEvents::default();
        error(&mut events, Code::Fatal);
        events.died("later");
        assert_eq!(events.fatal().map(|fatal| fatal.reason.as_str()), Some("why"));
    }

    /// Seen with librdkafka 2.12.
    #[test]
    fn a_fatal_error_is_known_by_its_log_line() {
        let mut events = ClientEvents::default();
        events.log(Level::Emerg, "FATAL", "[thrd:main]: Fatal error: Broker: Cluster: no PID");
        error(&mut events, Code::OutOfOrderSequenceNumber);
        assert_eq!(events.fatal_reason(), Some(SinkError::Fatal("Broker: Cluster: no PID".into())));
        error(&mut events, Code::ClusterAuthorizationFailed);
        assert!(matches!(events.fatal_reason(), Some(SinkError::Forbidden(_))));
    }

    #[test]
    fn brokers_that_give_no_producer_id_are_known_by_the_reason() {
        let mut events = ClientEvents::default();
        let line = "[thrd:main]: Fatal error: Local: Required feature not supported by broker: Idempotent producer \
                    not supported by any of the 1 connected broker(s): requires Apache Kafka broker version >= 0.11.0";
        events.log(Level::Emerg, "FATAL", line);
        assert!(matches!(events.fatal_reason(), Some(SinkError::NoIdempotence(_))));
    }

    #[test]
    fn a_transaction_that_failed_is_the_reason_why_its_records_were_purged() {
        let mut events = ClientEvents::default();
        events.died("PurgeQueue");
        assert_eq!(events.fatal_reason(), Some(SinkError::Fatal("PurgeQueue".into())));
        let line = "[thrd:main]: Current transaction failed in state InTransaction: 1 message(s) failed \
                    delivery (see individual delivery reports) (_INCONSISTENT)";
        events.log(Level::Error, "TXNERR", line);
        let Some(SinkError::Fatal(reason)) = events.fatal_reason() else { panic!("{events:?}") };
        assert!(reason.starts_with("1 message(s) failed delivery"), "{reason}");
    }

    #[test]
    fn g6_whatever_may_make_the_library_ask_again_is_counted() {
        let mut events = ClientEvents::default();
        let state =
            |change: &str| format!("[thrd:a:9092/1]: a:9092/1: Broker changed state {change}");
        for harmless in ["CONNECT -> DOWN", "INIT -> TRY_CONNECT", "APIVERSION_QUERY -> UP"] {
            events.log(Level::Debug, "STATE", &state(harmless));
        }
        assert_eq!(events.disturbances(), 0);
        events.log(Level::Debug, "STATE", &state("UP -> DOWN"));
        events.log(Level::Notice, "REQTMOUT", "Timed out EndTxnRequest in flight (after 1000ms)");
        assert_eq!(events.disturbances(), 2);
    }

    #[test]
    fn a_readers_outage_has_the_librarys_words() {
        let mut events = ClientEvents::reading();
        let words = "a:1/bootstrap: Connect to ipv4#127.0.0.1:1 failed: Connection refused";
        events.log(
            Level::Error,
            "FAIL",
            &format!("[thrd:a:1/bootstrap]: {words} (after 0ms in state CONNECT)"),
        );
        assert_eq!(events.trouble.as_deref(), Some(words));
        assert_eq!(events.outage_reason(), Some(words));
        assert!(!events.outage.as_ref().unwrap().told);
        events.outage.as_mut().unwrap().since -= READER_PATIENCE;
        events.tell_outage();
        assert!(events.outage.as_ref().unwrap().told);
    }

    /// Seen with librdkafka 2.12.
    #[test]
    fn the_end_of_a_connection_of_the_librarys_own_is_not_the_reason_of_an_outage() {
        let mut events = ClientEvents::default();
        let end = "[thrd:a:1/bootstrap]: a:1/bootstrap: Broker handle is terminating (after 3ms in state \
                   TRY_CONNECT) (_DESTROY)";
        events.log(Level::Debug, "FAIL", end);
        assert_eq!(events.outage_reason(), Some("no answer yet"));
        let refused = "a:1/bootstrap: Connect to ipv4#127.0.0.1:1 failed: Connection refused";
        events.log(Level::Error, "FAIL", &format!("[thrd:a:1/bootstrap]: {refused}"));
        events.log(Level::Debug, "FAIL", end);
        assert_eq!(events.outage_reason(), Some(refused));
    }

    /// Seen with librdkafka 2.12.
    #[test]
    fn what_is_no_broker_is_named_while_none_ever_answered() {
        let line = "[thrd:a:5432/bootstrap]: a:5432/bootstrap: Receive failed: Invalid response size \
                    1157627904 (0..100000000): increase receive.message.max.bytes (after 1ms in state \
                    APIVERSION_QUERY)";
        let mut events = ClientEvents::default();
        events.log(Level::Error, "FAIL", line);
        let reason = events.outage_reason().unwrap();
        assert!(reason.contains("not a Kafka broker"), "{reason}");
        error(&mut events, Code::BadMessage);
        assert!(events.authentication_error().is_none() && events.fatal().is_none());
        events.log(Level::Debug, "STATE", "a/1: Broker changed state APIVERSION_QUERY -> UP");
        events.log(Level::Debug, "STATE", "a/1: Broker changed state UP -> DOWN");
        events.log(Level::Debug, "STATE", "a/1: Broker changed state CONNECT -> DOWN");
        events.log(Level::Error, "FAIL", line);
        assert!(events.outage_reason().unwrap().contains("receive.message.max.bytes"));
    }

    #[test]
    fn an_outage_alone_is_no_failure() {
        let mut events = ClientEvents::default();
        for code in [Code::AllBrokersDown, Code::BrokerTransportFailure, Code::Resolve] {
            error(&mut events, code);
        }
        assert!(
            events.fatal().is_none()
                && events.authentication_error().is_none()
                && !events.answering()
        );
    }
}
