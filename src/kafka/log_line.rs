//! Reads single log lines of librdkafka: which of them say nothing new, the words of one without its thread,
//! and the reason of a transaction that failed.
//!
//! Input: one log line, and its facility (librdkafka's word for the kind of a line). Output: part of the
//! line, or whether a warning says something that is not known otherwise. No I/O.

use rdkafka::config::RDKafkaLogLevel as Level;

/// The reason in the line with which librdkafka 2.12 gives up a transaction
/// (`rd_kafka_txn_set_abortable_error0`).
pub(super) fn transaction_error(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once("transaction failed in state ")?;
    rest.split_once(": ").map(|(_, reason)| reason)
}

/// Whether a producer ended since its brokers offer no InitProducerId (librdkafka 2.12,
/// `rd_kafka_idemp_broker_any`).
pub(super) fn is_without_producer_ids(reason: &str) -> bool {
    reason.contains("Idempotent producer not supported by any of the")
}

/// Whether a line is at least a warning.
pub(super) const fn is_serious(level: Level) -> bool {
    matches!(level, Level::Emerg | Level::Alert | Level::Critical | Level::Error | Level::Warning)
}

/// The library's words without the name of its thread and its states: `[thrd:NAME]: WORDS (after ..`.
pub(super) fn bare(line: &str) -> &str {
    let named = line.strip_prefix("[thrd:").and_then(|rest| rest.split_once("]: "));
    let words = named.map_or(line, |(_, words)| words);
    words.split_once(" (after ").map_or(words, |(words, _)| words)
}

/// Whether the library itself has ended a connection: at its close, or to the address of a bootstrap server once the
/// brokers are known by their numbers. The line does not say why no broker answers.
pub(super) fn is_end_of_handle(line: &str) -> bool {
    line.contains("Broker handle is terminating")
}

/// Whether a warning of the library says what is known otherwise or passes by itself.
///
/// FAIL and ERROR lines come again as errors; GETPID is asked again until it is answered, which a
/// young broker takes a moment for; METADATAUPDATE is the answer of a restarting broker that names a
/// leader it does not list, after which it is asked anew; CONFWARN is about settings we chose, unless
/// it gives advice, as about a login that `security.protocol` leaves unused.
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
