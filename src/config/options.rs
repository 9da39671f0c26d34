//! Every option there is: one table of name, kind, default, unit and meaning.
//!
//! Enters: nothing. Leaves: [`OPTIONS`], from which come the reader's checks, the environment
//! names, did-you-mean, `config example`, `config show` and docs/configuration.md. What always
//! holds: an option exists if and only if it is here, and every default is valid (tested).

use std::time::Duration;

use super::values::{
    Compression, Create, Delivery, EmptyPayload, LogFormat, LogLevel, OnUpdate, Partitioner,
    Rejected, TimestampUnit,
};

/// What an option's value looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Any text; what it must be is checked when the configuration is assembled.
    Text,
    /// A connection string, shown without its password.
    Connection,
    /// A list of texts; in the environment separated by commas.
    List,
    /// `true` or `false`.
    Switch,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A duration between these bounds, both included.
    Duration(Duration, Duration),
    /// A size in bytes between these bounds, both included.
    Size(u64, u64),
}

impl Kind {
    /// What the value must be, for a reader.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Connection => "a connection string",
            Self::List => "a list of texts",
            Self::Switch => "true or false",
            Self::Choice(_) => "one of a few words",
            Self::Duration(..) => "a duration such as \"1s\"",
            Self::Size(..) => "a size such as \"32MiB\"",
        }
    }
}

/// One option.
#[derive(Debug, Clone, Copy)]
pub struct OptionSpec {
    /// Section and name: `source.slot`.
    pub key: &'static str,
    /// What it looks like.
    pub kind: Kind,
    /// The default, as TOML.
    pub default: &'static str,
    /// The unit of the value, or "-".
    pub unit: &'static str,
    /// What it does, in a sentence or two.
    pub doc: &'static str,
}

impl OptionSpec {
    /// The environment variable that sets it: `POSTRIDER_SOURCE__SLOT`.
    pub fn env(&self) -> String {
        env_name(self.key)
    }

    /// The part before the dot.
    pub fn section(&self) -> &'static str {
        self.key.split_once('.').map_or("", |(section, _)| section)
    }

    /// The part after the dot.
    pub fn name(&self) -> &'static str {
        self.key.split_once('.').map_or(self.key, |(_, name)| name)
    }
}

/// What every variable of ours begins with.
pub(super) const ENV_PREFIX: &str = "POSTRIDER_";

/// The section whose keys are librdkafka's, not ours.
pub(super) const PROPERTIES: &str = "kafka.properties";

/// The environment variable for a key of the table.
pub(super) fn env_name(key: &str) -> String {
    format!("{ENV_PREFIX}{}", key.to_ascii_uppercase().replace('.', "__"))
}

/// The option of that key.
pub(super) fn option(key: &str) -> Option<&'static OptionSpec> {
    OPTIONS.iter().find(|option| option.key == key)
}

const fn text(key: &'static str, default: &'static str, doc: &'static str) -> OptionSpec {
    OptionSpec { key, kind: Kind::Text, default, unit: "-", doc }
}

const fn list(key: &'static str, default: &'static str, doc: &'static str) -> OptionSpec {
    OptionSpec { key, kind: Kind::List, default, unit: "-", doc }
}

const fn choice(
    key: &'static str,
    words: &'static [&'static str],
    default: &'static str,
    doc: &'static str,
) -> OptionSpec {
    OptionSpec { key, kind: Kind::Choice(words), default, unit: "-", doc }
}

const fn duration(
    key: &'static str,
    (min_ms, max_ms): (u64, u64),
    default: &'static str,
    doc: &'static str,
) -> OptionSpec {
    let kind = Kind::Duration(Duration::from_millis(min_ms), Duration::from_millis(max_ms));
    OptionSpec { key, kind, default, unit: "time", doc }
}

const DAY_MS: u64 = 24 * 3_600_000;

/// The table. Order is the order of the documentation.
pub const OPTIONS: &[OptionSpec] = &[
    OptionSpec {
        key: "source.url",
        kind: Kind::Connection,
        default: "\"\"",
        unit: "-",
        doc: "How to reach Postgres: a postgres:// URL or a libpq `key=value` string, every \
              sslmode included. What it leaves out comes from PG* variables, the service file and \
              the password file, as with psql; empty means all of it.",
    },
    text(
        "source.slot",
        "\"postrider\"",
        "The replication slot. It remembers how far delivery got, and is the lock that keeps a \
         second relay in standby.",
    ),
    text("source.publication", "\"postrider\"", "The publication that names the outbox tables."),
    list(
        "source.tables",
        "[\"public.outbox\"]",
        "The outbox tables, with their schema. Names with capitals or dots are quoted as in SQL.",
    ),
    choice(
        "source.create",
        Create::WORDS,
        "\"auto\"",
        "Whether a missing publication or slot is created at start.",
    ),
    duration(
        "source.status_interval",
        // Postgres ends a silent connection after wal_sender_timeout, 60 s by default.
        (10, 20_000),
        "\"1s\"",
        "How often Postgres is told how far delivery got, at the latest. A crash repeats what \
         was delivered since, and what was still in flight.",
    ),
    OptionSpec {
        key: "source.frame_max",
        kind: Kind::Size(1 << 20, 1 << 30),
        default: "\"64MiB\"",
        unit: "bytes",
        doc: "The largest row that is read, as Postgres sends it (JSON escaped, bytea in hex). A \
              larger one ends the relay before anything is allocated for it; one below it that no \
              broker takes is a dead letter.",
    },
    text(
        "outbox.id",
        "\"id\"",
        "The column that identifies a row; consumers recognise repeats by it.",
    ),
    text(
        "outbox.aggregate_type",
        "\"aggregate_type\"",
        "The column with the kind of thing that changed. `aggregatetype` is found by itself.",
    ),
    text(
        "outbox.aggregate_id",
        "\"aggregate_id\"",
        "The column that says which thing changed. `aggregateid` is found by itself.",
    ),
    text(
        "outbox.event_type",
        "\"event_type\"",
        "The column that says what happened. `type` is found by itself.",
    ),
    text("outbox.payload", "\"payload\"", "The column whose bytes become the record's value."),
    text(
        "outbox.timestamp",
        "\"\"",
        "A timestamp, timestamptz or integer column for the record's time. Empty: the \
         transaction's commit time.",
    ),
    choice(
        "outbox.timestamp_unit",
        TimestampUnit::WORDS,
        "\"ms\"",
        "What an integer timestamp column counts since 1970.",
    ),
    text(
        "outbox.traceparent",
        "\"traceparent\"",
        "A column copied into the `traceparent` header, where the table has it. Empty: none.",
    ),
    choice(
        "outbox.on_update",
        OnUpdate::WORDS,
        "\"warn\"",
        "What an UPDATE of an outbox row does besides being counted. It is never delivered, nor \
         is a DELETE.",
    ),
    text(
        "route.by",
        "\"event_type\"",
        "The column that decides the topic: one of the names above in [outbox], or any other \
         column of the table.",
    ),
    text(
        "route.regex",
        "\"(?<routedByValue>.*)\"",
        "What the column's value must match, with named groups for the topic.",
    ),
    text(
        "route.topic",
        "\"${routedByValue}\"",
        "The topic: text with the named groups of `route.regex` filled in.",
    ),
    text(
        "route.key",
        "\"aggregate_id\"",
        "The column that becomes the record's key: records of one key stay in order.",
    ),
    list(
        "route.headers",
        "[\"event_type\", \"aggregate_type\"]",
        "Columns sent as headers, `column` or `column:header-name`. The row's id is always sent.",
    ),
    choice(
        "route.empty_payload",
        EmptyPayload::WORDS,
        "\"keep\"",
        "Whether an empty or blank payload is kept or becomes a tombstone. SQL NULL always \
         becomes one.",
    ),
    text("route.id_header", "\"id\"", "The header with the row's id, the idempotency key."),
    OptionSpec {
        key: "route.position_header",
        kind: Kind::Switch,
        default: "true",
        unit: "-",
        doc: "Whether `postrider-lsn` is sent: commit LSN and index, growing per key, by which a \
              consumer can drop repeats.",
    },
    choice(
        "route.rejected",
        Rejected::WORDS,
        "\"dead_letter\"",
        "What happens to a row that cannot be delivered as it is: sent to the dead-letter topic, \
         stops the relay with its slot kept, or left out with an audit line.",
    ),
    list("kafka.brokers", "[\"localhost:9092\"]", "The brokers to begin with, `host:port`."),
    choice(
        "kafka.delivery",
        Delivery::WORDS,
        "\"at_least_once\"",
        "The guarantee. at_least_once: repeats only after a crash or a broken connection, what \
         followed the oldest unconfirmed row; first occurrences stay in order.",
    ),
    choice(
        "kafka.partitioner",
        Partitioner::WORDS,
        "\"murmur2_random\"",
        "How a key chooses its partition. The default is what Java producers, and so Debezium, \
         do; another one moves existing keys.",
    ),
    choice(
        "kafka.compression",
        Compression::WORDS,
        "\"lz4\"",
        "How batches are compressed on their way to the brokers.",
    ),
    text("kafka.client_id", "\"postrider\"", "How the relay names itself to the brokers."),
    duration(
        "kafka.linger",
        (0, 1_000),
        "\"0s\"",
        "How long a batch may wait for company before it is sent. While a backlog of more than \
         64 MiB of log is worked off, at least 20ms.",
    ),
    OptionSpec {
        key: "kafka.message_max_bytes",
        kind: Kind::Size(1_000, 1_000_000_000),
        default: "\"1MB\"",
        unit: "bytes",
        doc: "The largest record, key and headers included; a larger one is a dead letter. Not \
              above the topics' `max.message.bytes`.",
    },
    OptionSpec {
        key: "kafka.max_in_flight",
        kind: Kind::Size(1 << 20, 1 << 30),
        default: "\"32MiB\"",
        unit: "bytes",
        doc: "How much may be sent and not yet confirmed, besides 50,000 records. It bounds \
              memory: when it is full, reading from Postgres pauses.",
    },
    text(
        "dead_letters.topic",
        "\"postrider.dead-letters\"",
        "Where rows that cannot be delivered go.",
    ),
    text(
        "http.bind",
        "\"127.0.0.1:8484\"",
        "Where /livez, /readyz and /metrics answer. Empty: nowhere.",
    ),
    duration(
        "retry.initial",
        (10, 60_000),
        "\"100ms\"",
        "The pause before the first new attempt after a failure; it doubles, with jitter, up to \
         `retry.max`.",
    ),
    duration("retry.max", (100, 3_600_000), "\"30s\"", "The longest pause between two attempts."),
    duration(
        "retry.give_up_after",
        (0, 30 * DAY_MS),
        "\"0s\"",
        "How long Postgres or Kafka may be out of reach, or Kafka store nothing of what it is sent, \
         before the relay exits with code 69. 0s: never.",
    ),
    duration(
        "shutdown.grace",
        (0, 3_600_000),
        "\"25s\"",
        "How long a clean stop may wait for confirmations. Keep it below the orchestrator's kill \
         time, 30 s in Kubernetes.",
    ),
    choice(
        "log.level",
        LogLevel::WORDS,
        "\"info\"",
        "The least severe line that is logged. -v, -q and RUST_LOG go before it.",
    ),
    choice(
        "log.format",
        LogFormat::WORDS,
        "\"text\"",
        "Lines for people, or one JSON object each.",
    ),
    duration(
        "log.repeat_interval",
        (0, 3_600_000),
        "\"10s\"",
        "A warning or error that repeats is logged once per this time, with a count. 0s: each \
         time.",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_unique_and_have_one_dot() {
        for (index, option) in OPTIONS.iter().enumerate() {
            assert_eq!(option.key.matches('.').count(), 1, "{}", option.key);
            assert!(!OPTIONS[index + 1..].iter().any(|other| other.key == option.key));
            assert!(option.doc.ends_with('.'), "{}", option.key);
        }
    }

    #[test]
    fn environment_names() {
        let brokers = option("kafka.brokers").unwrap();
        assert_eq!(brokers.env(), "POSTRIDER_KAFKA__BROKERS");
        assert_eq!((brokers.section(), brokers.name()), ("kafka", "brokers"));
    }
}
