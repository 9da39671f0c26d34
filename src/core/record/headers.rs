//! Names of the `postrider-..` headers of dead letters.
//!
//! Dead letters begin with them, in a fixed order. The record's own headers follow, and may have
//! equal names.

/// Reason as a code; the first header.
pub const ERROR_CODE_HEADER: &str = "postrider-error-code";
/// Reason as a sentence; the second header.
pub const ERROR_HEADER: &str = "postrider-error";
/// A row's outbox table, quoted as in SQL.
pub const TABLE_HEADER: &str = "postrider-table";
/// Position in the log, on dead letters and, if configured, on every record. The position rises
/// strictly with the records of a key, so a consumer can drop repeats by comparing bytes.
pub const LSN_HEADER: &str = "postrider-lsn";
/// Purpose of a row read from its table; replaces [`LSN_HEADER`], because the row's log position is
/// not known.
pub const ORIGIN_HEADER: &str = "postrider-origin";
/// A row's intended topic, or a message's topic.
pub const TOPIC_HEADER: &str = "postrider-topic";
/// System identifier of a row's cluster.
pub const SYSTEM_HEADER: &str = "postrider-system";
/// A row's database.
pub const DATABASE_HEADER: &str = "postrider-database";
/// The stream's slot, unless rows are polled.
pub const SLOT_HEADER: &str = "postrider-slot";
/// The stream's name, if the relay has several.
pub const STREAM_HEADER: &str = "postrider-stream";
/// A row's own timestamp in Unix milliseconds, if it differs from the commit's. The letter has the
/// commit's time: brokers refuse future times, and retention removes old ones.
pub const TIMESTAMP_HEADER: &str = "postrider-timestamp";
/// Commit time in Unix milliseconds, on a letter without a timestamp. Brokers whose clock disagrees
/// with Postgres's refuse the timestamp.
pub const COMMIT_TIMESTAMP_HEADER: &str = "postrider-commit-timestamp";
/// The relay's headers before the row's own, in this order. Some may be missing.
pub const EXPLANATION_HEADERS: [&str; 11] = [
    ERROR_CODE_HEADER,
    ERROR_HEADER,
    TABLE_HEADER,
    LSN_HEADER,
    TOPIC_HEADER,
    SYSTEM_HEADER,
    DATABASE_HEADER,
    SLOT_HEADER,
    STREAM_HEADER,
    TIMESTAMP_HEADER,
    COMMIT_TIMESTAMP_HEADER,
];

/// Name of the consumer.
pub const CONSUMER_HEADER: &str = "postrider-consumer";
/// Partition of a message.
pub const PARTITION_HEADER: &str = "postrider-partition";
/// Offset of a message.
pub const OFFSET_HEADER: &str = "postrider-offset";
/// Attempts, including those before it was sent again.
pub const ATTEMPTS_HEADER: &str = "postrider-attempts";
/// Very first failure, in Unix milliseconds.
pub const FIRST_FAILED_HEADER: &str = "postrider-first-failed-ms";
/// Last failure, in Unix milliseconds.
pub const FAILED_HEADER: &str = "postrider-failed-ms";
/// Parts missing in a consumer's dead letter, with the reason.
pub const CUT_HEADER: &str = "postrider-cut";

/// Partition and offset of the dead letter that was sent again.
pub const RETRIED_HEADER: &str = "postrider-retried";

/// Code of the relay's letters that lack parts for their size.
pub const TOO_LARGE_CODE: &str = "too_large";
