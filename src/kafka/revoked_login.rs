//! Detects that the brokers refuse a login which they accepted before, and that a new client would help.
//!
//! Input: refused logins, and the connection states that the library logs. Output: whether the client has
//! to be replaced. A client keeps the secret it was created with; only a new one reads it again. Invariant:
//! a client is replaced only if its secret can change; one that was accepted since is kept, and one that
//! still has a working connection is given [`PATIENCE`], since the new secret may arrive later than the
//! account, and a new client has no connection yet.

use std::time::{Duration, Instant};

/// How long the connections that are left may be worth more than the one that is refused.
const PATIENCE: Duration = Duration::from_secs(10);

/// The ends of lines about a login that failed, and about one that did not.
const FAILED: [&str; 3] = ["AUTH_REQ -> DOWN", "AUTH_LEGACY -> DOWN", "REAUTH -> DOWN"];
const LET_IN: &str = " -> UP";

/// See the module.
#[derive(Debug, Default)]
pub(super) struct RevokedLogin {
    /// Whether a new client may say another secret.
    can_change: bool,
    refused: Option<(Instant, String)>,
}

impl RevokedLogin {
    /// The secret of this client comes from something that can change.
    pub(super) const fn secret_can_change(&mut self) {
        self.can_change = true;
    }

    /// A login was refused.
    pub(super) fn refused(&mut self, reason: &str, now: Instant) {
        if self.can_change && self.refused.is_none() {
            self.refused = Some((now, reason.to_owned()));
        }
    }

    /// A connection has changed its state; `answering`: some connection works. Returns why the client
    /// has to be replaced.
    pub(super) fn observe(&mut self, line: &str, answering: bool, now: Instant) -> Option<String> {
        if line.ends_with(LET_IN) {
            self.refused = None;
        }
        if !FAILED.iter().any(|end| line.ends_with(end)) {
            return None;
        }
        let (since, reason) = self.refused.as_ref()?;
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
