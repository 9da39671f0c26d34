//! Names of the `postrider-..` headers with which dead letters explain a failure.
//!
//! A dead letter begins with them in a fixed order. The record's own headers follow, and may have
//! the same names. `LSN_HEADER` also occurs on ordinary records; `RETRIED_HEADER` marks a record
//! that was sent again from a dead letter. Also defines the error code of dead letters that are too
//! large.

/// The reason as a code. First header of every dead letter.
pub const ERROR_CODE_HEADER: &str = "postrider-error-code";
/// The reason as a sentence. Second header of every dead letter.
pub const ERROR_HEADER: &str = "postrider-error";
/// On the relay's dead letters: the outbox table, quoted as in SQL.
pub const TABLE_HEADER: &str = "postrider-table";
/// A record's position in the log, on dead letters and, if configured, on every record. The
/// position rises strictly with the records of a key, so a consumer can drop repeats by comparing
/// bytes.
pub const LSN_HEADER: &str = "postrider-lsn";
/// The purpose of a record whose row was read from its table and not from the log. Replaces
/// [`LSN_HEADER`], because the row's log position is not known.
pub const ORIGIN_HEADER: &str = "postrider-origin";
/// A row's intended topic, or the topic from which a consumer received the record.
pub const TOPIC_HEADER: &str = "postrider-topic";
/// On the relay's dead letters: system identifier of the row's cluster.
pub const SYSTEM_HEADER: &str = "postrider-system";
/// On the relay's dead letters: the row's database.
pub const DATABASE_HEADER: &str = "postrider-database";
/// On the relay's dead letters: the stream's slot. Polled rows have none.
pub const SLOT_HEADER: &str = "postrider-slot";
/// On the relay's dead letters: the stream's name, if the relay has several.
pub const STREAM_HEADER: &str = "postrider-stream";
/// Timestamp of the row's own record, in milliseconds since the Unix epoch, if it differs from the
/// commit's. The dead letter itself has the commit's time: brokers refuse future times, and
/// retention removes old ones.
pub const TIMESTAMP_HEADER: &str = "postrider-timestamp";
/// Commit time, in milliseconds since the Unix epoch, on a dead letter without a timestamp. Brokers
/// whose clock disagrees with Postgres's refuse the timestamp.
pub const COMMIT_TIMESTAMP_HEADER: &str = "postrider-commit-timestamp";
/// Headers before the row's own headers on the relay's dead letters, in this order. Some in the
/// middle may be missing.
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

/// The consumer that could not process the record.
pub const CONSUMER_HEADER: &str = "postrider-consumer";
/// The partition from which a consumer received the record.
pub const PARTITION_HEADER: &str = "postrider-partition";
/// The offset at which a consumer received the record.
pub const OFFSET_HEADER: &str = "postrider-offset";
/// Number of attempts, including those before it was sent again.
pub const ATTEMPTS_HEADER: &str = "postrider-attempts";
/// Time of the very first failure, in milliseconds since the Unix epoch.
pub const FIRST_FAILED_HEADER: &str = "postrider-first-failed-ms";
/// Time of the last failure, in milliseconds since the Unix epoch.
pub const FAILED_HEADER: &str = "postrider-failed-ms";
/// Marks a consumer's dead letter with missing parts; the value lists them with the reason.
pub const CUT_HEADER: &str = "postrider-cut";

/// Marks a record that was sent again, and its receipt: the dead letter's partition and offset.
pub const RETRIED_HEADER: &str = "postrider-retried";

/// Code of the relay's dead letters whose body or other parts were omitted for their size.
pub const TOO_LARGE_CODE: &str = "too_large";
