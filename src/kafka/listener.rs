//! Recognises a wrong listener from librdkafka's reasons. Also distinguishes a broken-off login (an
//! outage) from a refused one.

const TLS_HELP: &str = "set security.protocol = \"SSL\" (or \"SASL_SSL\") in [kafka.properties], or name \
                        the brokers' plaintext listener in kafka.brokers";
const SASL_HELP: &str = "set security.protocol = \"SASL_PLAINTEXT\" (or \"SASL_SSL\") and sasl.* in \
                         [kafka.properties], or name a listener without login in kafka.brokers";

const NO_BROKER_HELP: &str = "check host and port in kafka.brokers (or -b): Kafka's port is 9092 unless it was \
                              changed, Postgres's 5432";

/// First byte of a TLS alert (RFC 8446, section 5.1).
const TLS_ALERT: u8 = 21;
/// First byte of a Postgres error.
const POSTGRES_ERROR: u8 = b'E';

/// The library interprets them as a length (`rd_kafka_recv`, librdkafka 2.12).
fn first_bytes(line: &str) -> Option<[u8; 4]> {
    let (_, size) = line.split_once("Invalid response size ")?;
    size.split(' ').next()?.parse().ok().map(i32::to_be_bytes)
}

/// Valid only if the listener never spoke Kafka: a broker's answer may also be too large.
fn no_broker_at(line: &str) -> Option<(&'static str, &'static str)> {
    const POSTGRES: &str = "the server there is not a Kafka broker; it may be Postgres";
    const NO_BROKER: &str = "the server there is not a Kafka broker";
    Some(match first_bytes(line)? {
        [TLS_ALERT, ..] => return None,
        [POSTGRES_ERROR, 0, 0, _] => (POSTGRES, NO_BROKER_HELP),
        _ => (NO_BROKER, NO_BROKER_HELP),
    })
}

/// Reason and remedy (from `rd_kafka_broker_set_error`, librdkafka 2.12).
pub(super) fn mismatch(line: &str) -> Option<(&'static str, &'static str)> {
    let is_tls = first_bytes(line).is_some_and(|[first, ..]| first == TLS_ALERT);
    if is_tls || line.contains("connecting to a SSL listener?") {
        return Some(("the listener does not speak plaintext; it may require TLS", TLS_HELP));
    }
    line.contains("broker might require SASL authentication")
        .then_some(("the listener closes the connection: it may require a login (SASL)", SASL_HELP))
}

/// Kafka's TLS listener closes connections at the first request, its SASL listener at the first
/// request other than a login. A connection's name starts with the protocol, except for plaintext.
fn hung_up_at(line: &str) -> Option<(&'static str, &'static str)> {
    const NO_TLS: &str = "the listener closes the connection at the first request: it may require \
                          TLS, or no broker is behind it";
    const NO_LOGIN: &str = "the listener closes the connection: it may require a login (SASL)";
    if !line.contains("closed by peer") || line.contains("://") {
        return None;
    }
    let is_last = |state| line.contains(&format!("in state {state}"));
    if is_last("APIVERSION_QUERY") {
        return Some((NO_TLS, TLS_HELP));
    }
    (is_last("UP") && line.contains("/bootstrap")).then_some((NO_LOGIN, SASL_HELP))
}

pub(super) const NO_LOGIN_HELP: &str = "name the brokers' listener for logins (SASL) in kafka.brokers; or set \
    security.protocol = \"PLAINTEXT\" (\"SSL\" for TLS) in [kafka.properties] and remove sasl.* there";

/// True if the reason names no mechanism (`rd_kafka_broker_handle_SaslHandshake`, librdkafka 2.12).
pub(super) fn offers_no_login(reason: &str) -> bool {
    let named = reason.split_once("broker's supported mechanisms:").map(|(_, named)| named.trim());
    named.is_some_and(|named| named.is_empty() || named.starts_with("(after "))
}

/// True if a login ended without a refusal. After a request for a mechanism, the library reports
/// this as a refusal.
pub(super) fn broke_off(reason: &str) -> bool {
    let failed = reason.split_once("mechanism handshake failed: ").map(|(_, why)| why);
    failed.is_some_and(|why| {
        ["Local: Broker transport failure", "Local: Timed out"]
            .iter()
            .any(|one| why.starts_with(one))
    })
}

pub(super) fn refused_by(line: &str) -> Option<(&'static str, &'static str)> {
    hung_up_at(line).or_else(|| no_broker_at(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As logged by librdkafka 2.12.
    #[test]
    fn a_listener_that_wants_another_protocol_is_named() {
        let tls = "a:9093/bootstrap: Disconnected: requesting ApiVersion: might be caused by incorrect \
                   security.protocol configuration (connecting to a SSL listener?) or broker version";
        assert_eq!(mismatch(tls).map(|(_, help)| help), Some(TLS_HELP));
        let sasl = "a:9094/bootstrap: Disconnected: verify that security.protocol is correctly \
                    configured, broker might require SASL authentication (after 3ms in state UP)";
        assert_eq!(mismatch(sasl).map(|(_, help)| help), Some(SASL_HELP));
        let silent = "a:9093/bootstrap: Disconnected: connection closed by peer: receive 0 after POLLIN \
                      (after 3ms in state APIVERSION_QUERY) (_TRANSPORT)";
        assert_eq!(hung_up_at(silent).map(|(_, help)| help), Some(TLS_HELP));
        assert_eq!(hung_up_at(&format!("ssl://{silent}")), None);
        let later = silent.replace("APIVERSION_QUERY", "UP");
        assert_eq!(hung_up_at(&later).map(|(_, help)| help), Some(SASL_HELP));
        assert_eq!(mismatch("a:9092/bootstrap: Connect failed: Connection refused"), None);
    }

    #[test]
    fn an_answer_in_another_protocol_is_no_brokers() {
        let answered = |first: [u8; 4]| {
            let size = i32::from_be_bytes(first);
            format!(
                "a:5432/bootstrap: Receive failed: Invalid response size {size} (0..100000000): increase \
                 receive.message.max.bytes (after 1ms in state APIVERSION_QUERY)"
            )
        };
        let postgres = answered([b'E', 0, 0, 0]);
        assert!(postgres.contains(" 1157627904 "), "{postgres}");
        for (first, words) in
            [([b'E', 0, 0, 0], "may be Postgres"), (*b"HTTP", "not a Kafka broker")]
        {
            let (reason, help) = no_broker_at(&answered(first)).unwrap();
            assert!(reason.contains(words) && help.contains("kafka.brokers"), "{reason}");
            assert_eq!(mismatch(&answered(first)), None);
        }
        assert!(!no_broker_at(&answered(*b"SSH-")).unwrap().0.contains("Postgres"));
        for alert in [[21, 3, 3, 0], [21, 0, 0, 0]] {
            assert_eq!(mismatch(&answered(alert)).map(|(_, help)| help), Some(TLS_HELP));
            assert_eq!(no_broker_at(&answered(alert)), None);
        }
        assert_eq!(no_broker_at("a:9092/bootstrap: Connect failed: Connection refused"), None);
    }

    #[test]
    fn a_listener_without_a_login_is_told_from_one_that_wants_another() {
        let failed = |mechanisms: &str| {
            format!(
                "sasl_plaintext://a:9092/bootstrap: SASL PLAIN mechanism handshake failed: Broker: Request \
                 not valid in current SASL state: broker's supported mechanisms: {mechanisms}"
            )
        };
        assert!(offers_no_login(&failed("")));
        assert!(offers_no_login(&failed(" (after 3ms in state AUTH_HANDSHAKE)")));
        assert!(!offers_no_login(&failed("SCRAM-SHA-512 (after 3ms in state AUTH_HANDSHAKE)")));
        assert!(!offers_no_login("SASL authentication error: Authentication failed"));
        assert!(!broke_off(&failed("SCRAM-SHA-512 (after 3ms in state AUTH_HANDSHAKE)")));
    }

    #[test]
    fn a_login_that_broke_off_was_not_refused() {
        let broken = "sasl_plaintext://a:9092/bootstrap: SASL PLAIN mechanism handshake failed: Local: \
                      Broker transport failure: broker's supported mechanisms: (n/a) (after 0ms in state \
                      DOWN)";
        assert!(broke_off(broken) && !offers_no_login(broken));
        assert!(!broke_off("SASL authentication error: Authentication failed"));
    }
}
