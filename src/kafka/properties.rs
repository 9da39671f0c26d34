//! Decides which librdkafka properties `[kafka.properties]` may contain: none on which a guarantee
//! depends or that has a Postrider option. Source of names: librdkafka's CONFIGURATION.md, 2.12.

use super::settings::SettingsError;

struct Reserved {
    key: &'static str,
    why: &'static str,
    instead: &'static str,
}

const fn reserved(key: &'static str, why: &'static str, instead: &'static str) -> Reserved {
    Reserved { key, why, instead }
}

const DURABLE: &str = "a row is acknowledged to Postgres only when all replicas hold its record";
const ORDERED: &str = "records of one key must stay in commit order, without repeats from retries";
const NEVER_DROPPED: &str = "a record must wait out an outage, never expire in the queue";
const BOUNDED: &str = "the queue is the memory bound and the back-pressure";
const REPORTED: &str = "every record needs its delivery report";
const OWN: &str = "it has a setting of its own";
const PLACING: &str = "it decides which partition a key is in";
const LOGGED: &str = "the client's log goes through Postrider's";

/// Sorted by guarantee, with aliases: librdkafka uses the last one set.
const RESERVED: &[Reserved] = &[
    reserved("acks", DURABLE, ""),
    reserved("request.required.acks", DURABLE, ""),
    reserved("enable.idempotence", ORDERED, ""),
    reserved("enable.gapless.guarantee", ORDERED, ""),
    reserved("max.in.flight", ORDERED, ""),
    reserved("max.in.flight.requests.per.connection", ORDERED, ""),
    reserved("queuing.strategy", ORDERED, ""),
    reserved("api.version.request", ORDERED, ""),
    reserved("broker.version.fallback", ORDERED, ""),
    reserved("transactional.id", "it would fence other relays", "kafka.delivery"),
    reserved("transaction.timeout.ms", "it belongs to exactly-once delivery", "kafka.delivery"),
    reserved("message.timeout.ms", NEVER_DROPPED, ""),
    reserved("delivery.timeout.ms", NEVER_DROPPED, ""),
    reserved("retries", NEVER_DROPPED, ""),
    reserved("message.send.max.retries", NEVER_DROPPED, ""),
    reserved("queue.buffering.max.messages", BOUNDED, "kafka.max_in_flight"),
    reserved("queue.buffering.max.kbytes", BOUNDED, "kafka.max_in_flight"),
    reserved("queue.buffering.max.ms", OWN, "kafka.linger"),
    reserved("linger.ms", OWN, "kafka.linger"),
    reserved("message.max.bytes", OWN, "kafka.message_max_bytes"),
    reserved("partitioner", PLACING, "kafka.partitioner"),
    reserved("partitioner_cb", PLACING, "kafka.partitioner"),
    reserved("compression.codec", OWN, "kafka.compression"),
    reserved("compression.type", OWN, "kafka.compression"),
    reserved("bootstrap.servers", OWN, "kafka.brokers"),
    reserved("metadata.broker.list", OWN, "kafka.brokers"),
    reserved("client.id", OWN, "kafka.client_id"),
    reserved("delivery.report.only.error", REPORTED, ""),
    reserved("dr_cb", REPORTED, ""),
    reserved("dr_msg_cb", REPORTED, ""),
    reserved("enabled_events", REPORTED, ""),
    reserved("background_event_cb", REPORTED, ""),
    reserved("opaque", REPORTED, ""),
    reserved("log.queue", LOGGED, "--log-format, -v"),
    reserved("log_level", LOGGED, "-v"),
    reserved("statistics.interval.ms", "nobody reads them", "GET /metrics"),
    reserved("test.mock.num.brokers", "records would go to a mock broker", "postrider demo"),
    reserved("group.id", "Postrider joins no consumer group", ""),
    reserved("enable.auto.commit", "Postrider joins no consumer group", ""),
    reserved("isolation.level", "it has an option of its own", "tail --isolation"),
];

const SASL_OF_JAVA: &str = "only the Java client has it: set security.protocol (\"SASL_SSL\" or \
    \"SASL_PLAINTEXT\"), sasl.mechanism, sasl.username and sasl.password";
const TRUST_OF_JAVA: &str = "only the Java client has it: set ssl.ca.location to a PEM file with the authority's \
    certificate, or ssl.ca.pem to its text";

const JAVA: &[(&str, &str)] = &[
    ("buffer.memory", "set kafka.max_in_flight"),
    ("max.request.size", "set kafka.message_max_bytes"),
    ("max.block.ms", "leave it out: Postrider never blocks, it stops reading"),
    ("key.serializer", "leave it out: keys are sent as Postgres prints them"),
    ("value.serializer", "leave it out: values are sent as Postgres prints them"),
    ("sasl.jaas.config", SASL_OF_JAVA),
    ("sasl.login.class", SASL_OF_JAVA),
    ("sasl.login.callback.handler.class", SASL_OF_JAVA),
    ("sasl.client.callback.handler.class", SASL_OF_JAVA),
    ("ssl.truststore.location", TRUST_OF_JAVA),
    ("ssl.truststore.password", TRUST_OF_JAVA),
    ("ssl.truststore.type", TRUST_OF_JAVA),
    ("ssl.truststore.certificates", TRUST_OF_JAVA),
    ("ssl.keystore.certificate.chain", "set ssl.certificate.pem"),
    ("ssl.keystore.key", "set ssl.key.pem, and ssl.key.password if it has one"),
    ("ssl.keystore.type", "set ssl.certificate.location and ssl.key.location to PEM files"),
];

pub(super) const USUAL: &[&str] = &[
    "batch.num.messages",
    "batch.size",
    "broker.address.family",
    "broker.address.ttl",
    "client.dns.lookup",
    "client.rack",
    "compression.level",
    "connections.max.idle.ms",
    "debug",
    "enable.ssl.certificate.verification",
    "log.connection.close",
    "message.copy.max.bytes",
    "metadata.max.age.ms",
    "receive.message.max.bytes",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "request.timeout.ms",
    "retry.backoff.max.ms",
    "retry.backoff.ms",
    "sasl.mechanism",
    "sasl.mechanisms",
    "sasl.password",
    "sasl.username",
    "security.protocol",
    "socket.connection.setup.timeout.ms",
    "socket.keepalive.enable",
    "socket.nagle.disable",
    "socket.receive.buffer.bytes",
    "socket.send.buffer.bytes",
    "socket.timeout.ms",
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.certificate.location",
    "ssl.certificate.pem",
    "ssl.cipher.suites",
    "ssl.crl.location",
    "ssl.endpoint.identification.algorithm",
    "ssl.key.location",
    "ssl.key.password",
    "ssl.key.pem",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "sticky.partitioning.linger.ms",
    "topic.metadata.propagation.max.ms",
    "topic.metadata.refresh.interval.ms",
];

/// Jaro-Winkler similarity.
const SIMILAR: f64 = 0.88;

pub fn refuse_reserved(key: &str) -> Result<(), SettingsError> {
    match RESERVED.iter().find(|reserved| reserved.key == key) {
        Some(found) => Err(SettingsError::Reserved {
            key: key.to_owned(),
            why: found.why,
            instead: (!found.instead.is_empty()).then_some(found.instead),
        }),
        None => Ok(()),
    }
}

/// True if only the Java client supports it, although librdkafka may know its name.
pub(super) fn is_javas(key: &str) -> bool {
    JAVA.iter().any(|(name, _)| *name == key)
}

pub(super) fn advice_for_unknown(key: &str) -> Option<String> {
    if let Some((_, advice)) = JAVA.iter().find(|(name, _)| *name == key) {
        return Some((*advice).to_owned());
    }
    let known = USUAL.iter().copied().chain(RESERVED.iter().map(|reserved| reserved.key));
    let closest = known
        .map(|name| (strsim::jaro_winkler(key, name), name))
        .filter(|(likeness, _)| *likeness >= SIMILAR)
        .max_by(|left, right| left.0.total_cmp(&right.0))?;
    Some(format!("did you mean `{}`?", closest.1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdkafka::ClientConfig;
    use rdkafka::error::KafkaError;
    use rdkafka::types::RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN;

    fn is_librdkafkas(name: &str) -> bool {
        let mut config = ClientConfig::new();
        config.set(name, "");
        let result = config.create_native_config();
        !matches!(result, Err(KafkaError::ClientConfig(RD_KAFKA_CONF_UNKNOWN, ..)))
    }

    #[test]
    fn usual_names_are_librdkafkas() {
        for name in USUAL {
            assert!(is_librdkafkas(name), "{name}");
            assert!(refuse_reserved(name).is_ok(), "{name} is both usual and reserved");
        }
    }

    #[test]
    fn java_names_are_not_librdkafkas() {
        // Known by name, in order to be refused.
        let refused = ["sasl.jaas.config", "ssl.truststore.location"];
        for (name, _) in JAVA {
            assert!(!is_librdkafkas(name) || refused.contains(name), "{name} needs no translation");
            assert!(is_javas(name));
        }
        for advice in [SASL_OF_JAVA, TRUST_OF_JAVA] {
            let words = advice.split([' ', ',', ':', '(', ')']);
            for name in words.filter(|word| word.starts_with("sasl.") || word.starts_with("ssl.")) {
                assert!(is_librdkafkas(name), "{name}");
            }
        }
    }

    #[test]
    fn every_guarantee_is_out_of_reach() {
        for key in ["acks", "retries", "delivery.timeout.ms", "max.in.flight", "partitioner"] {
            assert!(refuse_reserved(key).is_err(), "{key}");
        }
        assert!(refuse_reserved("socket.timeout.ms").is_ok());
    }

    #[test]
    fn typing_mistakes_get_a_suggestion() {
        let advice = |key| advice_for_unknown(key).unwrap_or_default();
        assert_eq!(advice("sasl.pasword"), "did you mean `sasl.password`?");
        assert_eq!(advice("buffer.memory"), "set kafka.max_in_flight");
        assert_eq!(advice_for_unknown("zzz"), None);
    }
}
