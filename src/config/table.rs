//! Every option there is: one table of name, kind, default, unit and meaning.
//!
//! Enters: nothing. Leaves: [`OPTIONS`], from which come the reader's checks, the environment
//! names, did-you-mean, `config example`, `config show` and docs/configuration.md. What always
//! holds: an option exists if and only if it is here or is a rule's, and every default is valid
//! (tested).

use postrider_core::record::Partitioner;
use std::collections::BTreeMap;
use std::sync::LazyLock;

use super::options::{Kind, OptionSpec, choice, duration, list, names, switch, text};
use super::rule_options;
use super::values::{
    Compression, Create, Delivery, LogFormat, LogLevel, MissingTopicWord, OnUpdate, Rejected,
};
use postrider_core::route::{
    ByteaForm, ColumnStyle, EmptyPayload, EpochUnit, KeyFormat, Members, MissingColumn, ValueFormat,
};

const DAY_MS: u64 = 24 * 3_600_000;

/// Every option. Order is the order of the documentation.
pub const OPTIONS: &[OptionSpec] = &[
    OptionSpec {
        key: "source.url",
        kind: Kind::Connection,
        default: "\"\"",
        unit: "-",
        doc: "How to reach Postgres: a postgres:// URL or a libpq `key=value` string, every \
              sslmode and `require_auth` included. What it leaves out comes from PG* variables, the service file and \
              the password file, as with psql; empty means all of it.",
    },
    list(
        "source.password_command",
        "[]",
        "A program and its arguments, run without a shell at every connect, that prints the password \
         within 15 s: `[\"aws\", \"rds\", \"generate-db-auth-token\", ...]`. One line end is taken off; \
         stderr is not read. Goes before every other password.",
    ),
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
        "\"never\"",
        "Whether `run` creates a missing publication and slot, rather than leaving that to \
         `postrider setup`. With `auto` a slot that was lost is created anew as well, and what was \
         committed in between is not delivered.",
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
        doc: "The largest row that is delivered, as Postgres sends it (JSON escaped, bytea in hex); \
              memory grows to it while such a row is read. A larger one is never held: it passes in \
              pieces and becomes a dead letter (`too_large`) with its id, sizes and hashes.",
    },
    list(
        "messages.prefixes",
        "[]",
        "Prefixes, as globs, of logical messages whose content is an outbox row: a JSON object \
         whose members are the columns, written by pg_logical_emit_message. `*`: all. Needs \
         PostgreSQL 14.",
    ),
    choice(
        "messages.null_members",
        Members::WORDS,
        "\"keep\"",
        "Whether a member that is null counts as a NULL column or as a missing one.",
    ),
    names(
        "outbox.id",
        "\"id\"",
        "The column that identifies a row; consumers recognise repeats by it. Here as in the other \
         columns of this section a list gives several names for one column: each row is read by the \
         first that its table had when it was written, as with `[\"event_id\", \"id\"]` after a \
         rename.",
    ),
    names(
        "outbox.aggregate_type",
        "\"aggregate_type\"",
        "The column with the kind of thing that changed. `aggregatetype` is found by itself.",
    ),
    names(
        "outbox.aggregate_id",
        "\"aggregate_id\"",
        "The column that says which thing changed. `aggregateid` is found by itself.",
    ),
    names(
        "outbox.event_type",
        "\"event_type\"",
        "The column that says what happened. `type` is found by itself.",
    ),
    names("outbox.payload", "\"payload\"", "The column whose bytes become the record's value."),
    names(
        "outbox.timestamp",
        "\"\"",
        "A timestamp, timestamptz or integer column for the record's time. Empty: the \
         transaction's commit time.",
    ),
    choice(
        "outbox.timestamp_unit",
        EpochUnit::WORDS,
        "\"ms\"",
        "What an integer timestamp column counts since 1970.",
    ),
    names(
        "outbox.traceparent",
        "\"traceparent\"",
        "A column copied into the `traceparent` header, where the table has it. Empty: none.",
    ),
    choice(
        "outbox.on_update",
        OnUpdate::WORDS,
        "\"warn\"",
        "What an UPDATE of an outbox row does besides being counted. It is never delivered, nor \
         is a DELETE. A publication of inserts only, as `postrider setup` makes it, sends no \
         UPDATE, so that this has no effect.",
    ),
    names(
        "outbox.schema_version",
        "\"\"",
        "An integer column with the version of the payload's schema. Empty: none. Told only in \
         the format `json_schema`, beside an envelope.",
    ),
    text(
        "route.by",
        "\"event_type\"",
        "The column that decides the topic: one of the names above in [outbox], or any other \
         column of the table; a name in double quotes is always the table's own.",
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
    list(
        "route.topics_allowed",
        "[]",
        "The topics that rows may go to, as globs: `orders.*`. A row for another topic is rejected \
         as `invalid_topic`. Empty: any topic but those that no row may choose: the relay's own, \
         `postrider.progress.*`, and Kafka's, `__*`.",
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
    list(
        "route.envelope",
        "[]",
        "Columns sent inside of the value, `column` or `column:member-name`: the value is then an \
         object of `payload` and these. Needs a JSON format.",
    ),
    text(
        "route.partition",
        "\"\"",
        "An integer column that is the partition. Empty, or NULL in a row: as the partitioner says.",
    ),
    choice(
        "route.missing_column",
        MissingColumn::WORDS,
        "\"refuse\"",
        "What a table is that lacks a column of headers, envelope or partition: refused at start, \
         or taken and delivered without.",
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
    choice(
        "route.missing_topic",
        MissingTopicWord::WORDS,
        "\"dead_letter\"",
        "What happens to rows whose topic does not exist or is forbidden to the relay: they become \
         dead letters, until the topic can be used, or wait, and all rows behind them; or the topic \
         is created, and they become dead letters where that fails. Where `route.rejected` is not \
         `dead_letter`, the default is `wait`.",
    ),
    duration(
        "route.missing_topic_deadline",
        (0, 24 * 3_600_000),
        "\"0s\"",
        "How long rows wait for a topic, and all rows behind them, before they become dead letters. \
         0s: with `dead_letter`, no longer than it takes to ask the brokers; with `wait`, for ever.",
    ),
    list(
        "route.create_topics",
        "[]",
        "Which topics `route.missing_topic = \"create\"` creates, and how: a glob, a colon, and \
         partitions, replication and settings, as in \
         `orders.*: partitions=12 replication=3 cleanup.policy=compact`. The first that fits a name \
         counts; what it leaves out is the brokers' default; a name that none fits is not created.",
    ),
    text(
        "route.create_topics_max",
        "\"100\"",
        "How many topics a relay creates at most while it runs.",
    ),
    choice(
        "format.key",
        KeyFormat::WORDS,
        "\"raw\"",
        "What the key is made of: `raw` is the column's text or bytes; `json` and `json_schema` \
         are what Kafka Connect's JsonConverter writes without and with schemas.",
    ),
    choice(
        "format.value",
        ValueFormat::WORDS,
        "\"raw\"",
        "What the value is made of: `raw` is the payload verbatim; `string`, `json` and \
         `json_schema` are what Kafka Connect's StringConverter and JsonConverter write; the \
         others are CloudEvents in binary and structured mode.",
    ),
    choice(
        "format.columns",
        ColumnStyle::WORDS,
        "\"postgres\"",
        "How columns are written in keys, headers and envelopes: as Postgres prints them, or as \
         Debezium's connector represents them (`true` for `t`, times as numbers, bytes as base64).",
    ),
    choice(
        "format.bytea",
        ByteaForm::WORDS,
        "\"encoded\"",
        "How a bytea is written in keys and values: as the format does it (base64 inside of \
         JSON), always raw, or as text in base64 or hex.",
    ),
    switch(
        "format.expand_json",
        "false",
        "Whether a payload that is text and holds a JSON object or array is sent as JSON instead \
         of as a JSON string. Numbers and spacing are then rewritten.",
    ),
    choice(
        "format.null_members",
        Members::WORDS,
        "\"drop\"",
        "Whether an expanded payload keeps members that are null.",
    ),
    choice(
        "format.empty_arrays",
        Members::WORDS,
        "\"drop\"",
        "Whether an expanded payload keeps members that are empty arrays.",
    ),
    text(
        "format.schema_prefix",
        "\"\"",
        "What names of envelope schemas begin with; Debezium's `topic.prefix`.",
    ),
    text(
        "format.cloudevents_source",
        "\"\"",
        "The `source` attribute of CloudEvents. Empty: the table's name.",
    ),
    list("kafka.brokers", "[\"localhost:9092\"]", "The brokers to begin with, `host:port`."),
    choice(
        "kafka.delivery",
        Delivery::WORDS,
        "\"at_least_once\"",
        "The guarantee. at_least_once: repeats only after a crash or a broken connection, what \
         followed the oldest unconfirmed row; first occurrences stay in order. exactly_once: none \
         for consumers with isolation.level=read_committed.",
    ),
    duration(
        "kafka.transaction_age",
        (0, 1_000),
        "\"5ms\"",
        "exactly_once: how long a Kafka transaction takes rows in before it is committed; longer \
         while rows are old, shorter when there are many.",
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
    list(
        "kafka.password_command",
        "[]",
        "As `source.password_command`, for `sasl.password`: run whenever a Kafka client is made.",
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
        "progress.topic",
        "\"\"",
        "Where exactly_once keeps how far it came: a compacted topic of one partition, created if \
         missing. Empty: `postrider.progress.` and the slot's name.",
    ),
    switch(
        "progress.at_least_once",
        "false",
        "Whether at_least_once keeps progress there too, so that a server which comes back from a \
         crash with an older position costs no repeats.",
    ),
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
         before the relay exits with code 69. 0s: never; `run --once` then gives up after a minute.",
    ),
    duration(
        "retry.login_give_up_after",
        (0, 30 * DAY_MS),
        "\"5m\"",
        "How long a login that Postgres or Kafka refuses is tried again, with the secret read anew, \
         where it comes from a file, a service file or a command; then the relay exits with code 77. \
         0s: not at all. What was typed into the configuration is not tried again.",
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

/// The option of that key.
pub(super) fn option(key: &str) -> Option<&'static OptionSpec> {
    static BY_KEY: LazyLock<BTreeMap<&str, &OptionSpec>> =
        LazyLock::new(|| OPTIONS.iter().map(|option| (option.key, option)).collect());
    BY_KEY.get(key).copied().or_else(|| rule_options::option(key))
}

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
