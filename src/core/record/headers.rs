//! The names of the `postrider-..` headers, by which dead letters explain a failure.
//!
//! A dead letter begins with them in a fixed order; the record's own headers follow, and may have the same
//! names. `LSN_HEADER` is a header of ordinary records too; `RETRIED_HEADER` marks a record that was sent
//! again from a dead letter. Also the error code of dead letters that are too large.

/// The reason in one word. The first header of every dead letter.
pub const ERROR_CODE_HEADER: &str = "postrider-error-code";
/// The reason in a sentence. The second header of every dead letter.
pub const ERROR_HEADER: &str = "postrider-error";
/// Of the relay's dead letters: the outbox table, quoted as in SQL.
pub const TABLE_HEADER: &str = "postrider-table";
/// A record's position in the log, of dead letters and, where that is asked for, of every record. Rises
/// strictly with the records of a key, so a consumer can drop repeats by comparing bytes.
pub const LSN_HEADER: &str = "postrider-lsn";
/// Of a record whose row was not read from the log but from its table: for what. It stands in the place of
/// [`LSN_HEADER`], since the row's position in the log is not known.
pub const ORIGIN_HEADER: &str = "postrider-origin";
/// The topic that a row was meant for, or that a consumer received the record from.
pub const TOPIC_HEADER: &str = "postrider-topic";
/// Of the relay's dead letters: the system identifier of the cluster that the row is of.
pub const SYSTEM_HEADER: &str = "postrider-system";
/// Of the relay's dead letters: the row's database.
pub const DATABASE_HEADER: &str = "postrider-database";
/// Of the relay's dead letters: the slot of its stream. Rows that are polled have none.
pub const SLOT_HEADER: &str = "postrider-slot";
/// Of the relay's dead letters: the name of the stream, of a relay with several.
pub const STREAM_HEADER: &str = "postrider-stream";
/// The time that the row's record would have had, in milliseconds since the Unix epoch, where that
/// is not the commit's. A dead letter itself is of the commit's time: brokers refuse times to come,
/// and retention removes what is old.
pub const TIMESTAMP_HEADER: &str = "postrider-timestamp";
/// The commit's time, in milliseconds since the Unix epoch, of a dead letter that has none: brokers
/// whose clock disagrees with Postgres's refuse it.
pub const COMMIT_TIMESTAMP_HEADER: &str = "postrider-commit-timestamp";
/// What stands before the row's own headers in the relay's dead letters, in this order; of the middle
/// ones some may be missing.
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

/// The consumer that could not take the record.
pub const CONSUMER_HEADER: &str = "postrider-consumer";
/// The partition that a consumer received the record from.
pub const PARTITION_HEADER: &str = "postrider-partition";
/// The offset that a consumer received the record at.
pub const OFFSET_HEADER: &str = "postrider-offset";
/// How often it was tried, with what was tried before it was sent again.
pub const ATTEMPTS_HEADER: &str = "postrider-attempts";
/// When it failed first, in milliseconds since the Unix epoch: ever, also before it was sent again.
pub const FIRST_FAILED_HEADER: &str = "postrider-first-failed-ms";
/// When it failed last, in milliseconds since the Unix epoch.
pub const FAILED_HEADER: &str = "postrider-failed-ms";
/// Marks a consumer's dead letter of which parts are missing; its value says which, and why.
pub const CUT_HEADER: &str = "postrider-cut";

/// Marks a record that was sent again, and the receipt for it: the dead letter's partition and offset.
pub const RETRIED_HEADER: &str = "postrider-retried";

/// The code of the relay's dead letters whose body or other parts were set aside for their size.
pub const TOO_LARGE_CODE: &str = "too_large";
