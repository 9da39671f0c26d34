//! Detects that the brokers refuse a login which they accepted before, and that a new client would
//! help.
//!
//! Invariant: a client is replaced only if the refused secret can change and no broker accepted it
//! since. A client with a working connection gets [`PATIENCE`], because the new secret may arrive
//! later than the account.

use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(10);

/// Ends of lines about a failed login.
const FAILED: [&str; 3] = ["AUTH_REQ -> DOWN", "AUTH_LEGACY -> DOWN", "REAUTH -> DOWN"];
/// A client certificate was refused at the end of a handshake (TLS 1.2) or after it (1.3).
const FAILED_TLS: [&str; 3] =
    ["SSL_HANDSHAKE -> DOWN", "APIVERSION_QUERY -> DOWN", "AUTH_HANDSHAKE -> DOWN"];
const LET_IN: &str = " -> UP";

#[derive(Debug, Default)]
pub(super) struct RevokedLogin {
    can_change: bool,
    certificate_can_change: bool,
    refused: Option<Refused>,
}

#[derive(Debug)]
struct Refused {
    since: Instant,
    reason: String,
    again: [&'static str; 3],
}

/// True if the peer's alert refused the certificate (RFC 8446, 6.2), in OpenSSL's words.
pub(super) fn is_certificate_refused(reason: &str) -> bool {
    let reason = reason.to_ascii_lowercase();
    reason.contains(" alert ") && (reason.contains("certificate") || reason.contains("unknown ca"))
}

impl RevokedLogin {
    pub(super) const fn secret_can_change(&mut self) {
        self.can_change = true;
    }

    pub(super) const fn certificate_can_change(&mut self) {
        self.certificate_can_change = true;
    }

    pub(super) fn refused(&mut self, reason: &str, now: Instant) {
        if self.can_change {
            self.note(reason, now, FAILED);
        }
    }

    pub(super) fn certificate_refused(&mut self, reason: &str, now: Instant) {
        if self.certificate_can_change {
            self.note(reason, now, FAILED_TLS);
        }
    }

    fn note(&mut self, reason: &str, since: Instant, again: [&'static str; 3]) {
        let reason = reason.to_owned();
        self.refused.get_or_insert(Refused { since, reason, again });
    }

    /// Returns why the client must be replaced. `answering`: some connection works.
    pub(super) fn observe(&mut self, line: &str, answering: bool, now: Instant) -> Option<String> {
        if line.ends_with(LET_IN) {
            self.refused = None;
        }
        let Refused { since, reason, again } = self.refused.as_ref()?;
        if !again.iter().any(|end| line.ends_with(end)) {
            return None;
        }
        let enough = !answering || now.saturating_duration_since(*since) >= PATIENCE;
        enough.then(|| reason.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILS: &str = "a:9092/1: Broker changed state AUTH_REQ -> DOWN";

    fn refused() -> (RevokedLogin, Instant) {
        let (mut login, now) = (RevokedLogin::default(), Instant::now());
        login.secret_can_change();
        login.refused("why", now);
        (login, now)
    }

    #[test]
    fn one_that_is_refused_everywhere_is_replaced() {
        let (mut login, now) = refused();
        assert_eq!(login.observe("CONNECT -> DOWN", false, now), None);
        assert_eq!(login.observe(FAILS, false, now).as_deref(), Some("why"));
    }

    /// OpenSSL 3's words for Kafka 4's answer.
    #[test]
    fn a_certificate_that_is_refused_and_can_change_is_shown_anew() {
        let reason = "ssl://a:9093/1: Receive failed: SSL transport error: error:0A000416:SSL \
                      routines::ssl/tls alert certificate unknown: SSL alert number 46";
        assert!(is_certificate_refused(reason));
        let ours = "SSL handshake failed: error:0A000086:SSL routines::certificate verify failed";
        assert!(!is_certificate_refused(ours), "that is the broker's");
        let (mut login, now) = (RevokedLogin::default(), Instant::now());
        login.certificate_refused(reason, now);
        assert_eq!(login.observe("APIVERSION_QUERY -> DOWN", false, now), None, "it was typed");
        login.certificate_can_change();
        login.certificate_refused(reason, now);
        assert_eq!(login.observe(FAILS, false, now), None, "that is a login");
        let found = login.observe("APIVERSION_QUERY -> DOWN", false, now);
        assert_eq!(found.as_deref(), Some(reason));
    }

    #[test]
    fn connections_that_work_have_their_time_and_no_more() {
        let (mut login, now) = refused();
        assert_eq!(login.observe(FAILS, true, now), None);
        login.refused("again", now + PATIENCE);
        assert!(login.observe(FAILS, true, now + PATIENCE).is_some());
    }

    #[test]
    fn one_that_was_let_in_again_or_whose_secret_was_typed_is_kept() {
        let (mut login, now) = refused();
        assert_eq!(login.observe("AUTH_REQ -> UP", true, now), None);
        assert_eq!(login.observe(FAILS, false, now), None);
        let mut typed = RevokedLogin::default();
        typed.refused("why", now);
        assert_eq!(typed.observe(FAILS, false, now), None);
    }
}
