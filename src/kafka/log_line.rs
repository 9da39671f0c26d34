//! Parses single log lines of librdkafka.

use rdkafka::config::RDKafkaLogLevel as Level;

/// Reason of an aborted transaction (`rd_kafka_txn_set_abortable_error0`, librdkafka 2.12).
pub(super) fn transaction_error(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once("transaction failed in state ")?;
    rest.split_once(": ").map(|(_, reason)| reason)
}

/// True if the brokers do not offer InitProducerId (`rd_kafka_idemp_broker_any`, librdkafka 2.12).
pub(super) fn is_without_producer_ids(reason: &str) -> bool {
    reason.contains("Idempotent producer not supported by any of the")
}

pub(super) const fn is_serious(level: Level) -> bool {
    matches!(level, Level::Emerg | Level::Alert | Level::Critical | Level::Error | Level::Warning)
}

/// Text of `[thrd:NAME]: WORDS (after ..`.
pub(super) fn bare(line: &str) -> &str {
    let named = line.strip_prefix("[thrd:").and_then(|rest| rest.split_once("]: "));
    let words = named.map_or(line, |(_, words)| words);
    words.split_once(" (after ").map_or(words, |(words, _)| words)
}

/// True if the library itself closed a connection, for example to a bootstrap server. The line does
/// not explain an outage.
pub(super) fn is_end_of_handle(line: &str) -> bool {
    line.contains("Broker handle is terminating")
}

/// FAIL and ERROR lines come again as errors. GETPID is retried until a starting broker answers.
/// METADATAUPDATE is a restarting broker's answer without the leader. CONFWARN concerns settings
/// chosen here, unless it gives advice.
pub(super) fn is_no_news(facility: &str, line: &str) -> bool {
    match facility {
        "CONFWARN" => !line.contains("recommend setting"),
        "FAIL" | "ERROR" | "FATAL" | "GETPID" | "METADATAUPDATE" | "TXNERR" | "ADDPARTS" => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_library_fixes_itself_is_no_news() {
        assert!(is_no_news("METADATAUPDATE", "Partition a[0]: new leader-1 not found in cache"));
        assert!(is_no_news("CONFWARN", "Configuration property linger.ms is a producer property"));
        assert!(!is_no_news("CONFWARN", "recommend setting security.protocol=sasl_ssl"));
        assert!(!is_no_news("MAXPOLL", "Application maximum poll interval exceeded"));
    }
}
