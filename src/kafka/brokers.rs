//! Tracks from librdkafka's log (context `broker`) if a broker is reachable. The library has no
//! cheap call for that.
//!
//! A closed connection is not an outage, because brokers close idle ones. A failed attempt to
//! connect is an outage while no connection is up.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BrokerChange {
    Connected,
    Lost,
}

#[derive(Debug, Default)]
pub(super) struct Brokers {
    up: u32,
    answering: bool,
    ever_answered: bool,
    let_in: bool,
}

impl Brokers {
    pub(super) fn observe(&mut self, line: &str) -> Option<BrokerChange> {
        let (broker, states) = line.rsplit_once("Broker changed state ")?;
        let (before, after) = states.split_once(" -> ")?;
        let (was_up, is_up) = (before.trim() == UP, after.trim() == UP);
        self.let_in |= is_up;
        if broker.contains(BOOTSTRAP) || COORDINATORS.iter().any(|name| broker.contains(name)) {
            // A connected broker has not answered yet, and coordinators get no records.
        } else if is_up && !was_up {
            self.up = self.up.saturating_add(1);
        } else if was_up && !is_up {
            self.up = self.up.saturating_sub(1);
        }
        let failed_attempt = after.trim() == DOWN && ATTEMPT.contains(&before.trim());
        match self.answering {
            false if self.up > 0 => {
                (self.answering, self.ever_answered) = (true, true);
                Some(BrokerChange::Connected)
            }
            true if self.up == 0 && failed_attempt => {
                self.answering = false;
                Some(BrokerChange::Lost)
            }
            _ => None,
        }
    }

    pub(super) const fn answering(&self) -> bool {
        self.answering
    }

    /// The library tries every second to have a connection.
    pub(super) const fn has_connection(&self) -> bool {
        self.up > 0
    }

    /// Returns true if a broker counted as answering.
    pub(super) const fn lose(&mut self) -> bool {
        std::mem::replace(&mut self.answering, false)
    }

    pub(super) const fn ever_answered(&self) -> bool {
        self.ever_answered
    }

    pub(super) const fn ever_let_in(&self) -> bool {
        self.let_in
    }
}

/// A connection to a bootstrap address, before the brokers are known by id. A listener that
/// requires a login accepts it too, and closes it at the first request.
const BOOTSTRAP: &str = "/bootstrap";
/// Connections that do not prove an answering broker. The first is unused without a group. The
/// second outlives connections to removed brokers.
const COORDINATORS: [&str; 2] = ["GroupCoordinator", "TxnCoordinator"];
/// librdkafka's names (`rd_kafka_broker_state_names`).
const UP: &str = "UP";
const DOWN: &str = "DOWN";
/// States from which a connection attempt can fail. `INIT` is not one: the library drops initial
/// connections once it knows the brokers by id.
const ATTEMPT: [&str; 6] =
    ["CONNECT", "SSL_HANDSHAKE", "AUTH_LEGACY", "AUTH_HANDSHAKE", "AUTH_REQ", "APIVERSION_QUERY"];

#[cfg(test)]
mod tests {
    use super::*;

    fn observe(brokers: &mut Brokers, change: &str) -> Option<BrokerChange> {
        brokers.observe(&format!("[thrd:a:9092/1]: a:9092/1: Broker changed state {change}"))
    }

    #[test]
    fn an_outage_and_its_end() {
        let mut brokers = Brokers::default();
        assert_eq!(observe(&mut brokers, "INIT -> TRY_CONNECT"), None);
        assert!(!brokers.answering());
        assert_eq!(observe(&mut brokers, "APIVERSION_QUERY -> UP"), Some(BrokerChange::Connected));
        assert_eq!(observe(&mut brokers, "UP -> DOWN"), None);
        assert!(brokers.answering(), "an idle connection may end");
        assert_eq!(observe(&mut brokers, "CONNECT -> DOWN"), Some(BrokerChange::Lost));
        assert_eq!(observe(&mut brokers, "CONNECT -> DOWN"), None);
        assert!(!brokers.answering() && brokers.ever_let_in());
        assert_eq!(observe(&mut brokers, "APIVERSION_QUERY -> UP"), Some(BrokerChange::Connected));
    }

    #[test]
    fn one_broker_of_three_is_enough() {
        let mut brokers = Brokers::default();
        observe(&mut brokers, "AUTH_REQ -> UP");
        observe(&mut brokers, "AUTH_REQ -> UP");
        observe(&mut brokers, "UP -> DOWN");
        assert_eq!(observe(&mut brokers, "CONNECT -> DOWN"), None);
        assert!(brokers.answering());
    }

    #[test]
    fn the_address_one_begins_with_is_no_broker_yet_and_may_go() {
        let mut brokers = Brokers::default();
        let bootstrap = "a:9092/bootstrap: Broker changed state APIVERSION_QUERY -> UP";
        assert_eq!(brokers.observe(bootstrap), None);
        assert!(!brokers.answering() && brokers.ever_let_in());
        observe(&mut brokers, "APIVERSION_QUERY -> UP");
        for change in ["UP -> DOWN", "DOWN -> INIT", "INIT -> DOWN", "TRY_CONNECT -> DOWN"] {
            assert_eq!(observe(&mut brokers, change), None, "{change}");
        }
        assert!(brokers.answering());
    }

    /// As seen with librdkafka 2.12 and a hanging broker: that connection stays up forever.
    #[test]
    fn a_connection_that_asks_nothing_is_no_broker_that_answers() {
        let mut brokers = Brokers::default();
        let idle = "[thrd:GroupCoordinator]: GroupCoordinator/1: Broker changed state APIVERSION_QUERY -> UP";
        assert_eq!(brokers.observe(idle), None);
        assert_eq!(observe(&mut brokers, "APIVERSION_QUERY -> UP"), Some(BrokerChange::Connected));
        assert_eq!(observe(&mut brokers, "UP -> DOWN"), None);
        assert_eq!(observe(&mut brokers, "APIVERSION_QUERY -> DOWN"), Some(BrokerChange::Lost));
    }

    #[test]
    fn a_library_without_brokers_has_no_connection_though_no_attempt_failed() {
        let mut brokers = Brokers::default();
        observe(&mut brokers, "APIVERSION_QUERY -> UP");
        brokers.observe("TxnCoordinator/1: Broker changed state APIVERSION_QUERY -> UP");
        assert!(brokers.has_connection() && brokers.answering());
        for change in ["UP -> DOWN", "DOWN -> INIT", "INIT -> DOWN"] {
            assert_eq!(observe(&mut brokers, change), None);
        }
        assert!(!brokers.has_connection() && brokers.answering());
        assert!(brokers.lose() && !brokers.lose());
        assert_eq!(observe(&mut brokers, "APIVERSION_QUERY -> UP"), Some(BrokerChange::Connected));
    }

    #[test]
    fn other_lines_change_nothing() {
        let mut brokers = Brokers::default();
        for line in ["", "Broker changed state UP", "-> UP", "Topic t changed state a -> UP"] {
            assert_eq!(brokers.observe(line), None, "{line}");
        }
        assert!(!brokers.answering());
    }
}
