//! Declares every option in one table: key, kind, default and description.
//!
//! Parsing, environment variables, suggestions for typos, `config example`, `config show` and
//! docs/configuration.md all use `OPTIONS`, so that an option is declared once. `option` finds one by its
//! key, the options of routing rules included. Invariant: every default is valid (tested).

use std::collections::BTreeMap;
use std::sync::LazyLock;

use super::control;
use super::kafka;
use super::oauth;
use super::options::{
    OptionKind, OptionSpec, choice, count, duration, list, names, size, switch, text,
};
use super::poll;
use super::rds_login;
use super::rule_options;
use super::traces;
use super::values::{Create, LogFormat, LogLevel, MissingTopicWord, Rejected};
use postrider_core::pipeline::UpdatePolicy;
use postrider_core::route::{
    ByteaForm, ColumnStyle, EmptyPayload, EpochUnit, KeyFormat, Members, MissingColumn, ValueFormat,
};

const DAY_MS: u64 = 24 * 3_600_000;

/// Every option, in the order of the documentation.
pub const OPTIONS: &[OptionSpec] = &[
    OptionSpec {
        key: "source.url",
        kind: OptionKind::Connection,
        default: "\"\"",
        doc: "The connection to Postgres: a postgres:// URL or a libpq `key=value` string, with \
              every sslmode and `require_auth`. Parameters that it does not set come from PG* \
              variables, the service file and the password file, as with psql; empty means that \
              all do.",
    },
    list(
        "source.password_command",
        "[]",
        "A program and its arguments, run without a shell at every connect, that prints the \
         password within 15 s: `[\"aws\", \"rds\", \"generate-db-auth-token\", ...]`. One \
         trailing line end is removed; stderr is ignored. Overrides every other password.",
    ),
    rds_login::LOGIN,
    rds_login::AWS_REGION,
    text(
        "source.slot",
        "\"postrider\"",
        "The replication slot. It stores how far delivery has got, and is the lock that keeps a \
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
        "Whether `run` creates a missing publication and slot instead of leaving that to \
         `postrider setup`. With `auto` it also recreates a lost slot, and rows committed in \
         between are not delivered.",
    ),
    switch(
        "source.failover",
        "true",
        "Whether a slot that is made follows a failover to a standby, from PostgreSQL 17 on. It harms \
         nothing where there is no standby. A slot that exists is left as it is; `postrider doctor` \
         has the command.",
    ),
    switch(
        "source.standby",
        "false",
        "Whether `setup` makes the slot on a standby, from PostgreSQL 16 on, which is then streamed from: \
         `source.url` names that standby alone. The slot is the standby's own, and does not follow a failover to \
         another server.",
    ),
    switch(
        "source.catch_up",
        "true",
        "Whether a backlog of more than 64 MiB of WAL is read through a temporary copy of the slot, in windows, which \
         costs the server less than streaming it. Where the server does not allow that, or would decode too much for it, \
         the backlog is streamed.",
    ),
    duration(
        "source.status_interval",
        // Postgres ends a silent connection after wal_sender_timeout, 60 s by default.
        (10, 20_000),
        "\"1s\"",
        "The longest interval between two acknowledgements to Postgres. A crash repeats what was \
         delivered since the last one, and what was still in flight.",
    ),
    size(
        "source.frame_max",
        (1 << 20, 1 << 30),
        "\"64MiB\"",
        "The largest row that is delivered, as Postgres sends it (JSON escaped, bytea in \
         hex); memory grows to this size while such a row is read. A larger row is never \
         held in memory: it is read in pieces and becomes a dead letter (`too_large`) with \
         its id, sizes and hashes.",
    ),
    poll::MODE,
    poll::WORKERS,
    poll::BATCH,
    poll::INTERVAL,
    poll::NOTIFY,
    poll::MARK,
    poll::PROCESSED_AT,
    poll::STATUS,
    poll::PENDING,
    poll::SENT,
    poll::RETRY_COUNT,
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
        "Whether a member that is null counts as a NULL column (`keep`) or as a missing column \
         (`drop`).",
    ),
    names(
        "outbox.id",
        "\"id\"",
        "The column that identifies a row; consumers recognise repeats by it. For this and the \
         other columns of this section, a list gives several names for one column: each row is \
         read by the first name that its table had when the row was written, as with \
         `[\"event_id\", \"id\"]` after a rename.",
    ),
    names(
        "outbox.aggregate_type",
        "\"aggregate_type\"",
        "The column with the type of the object that changed. `aggregatetype` is found \
         automatically.",
    ),
    names(
        "outbox.aggregate_id",
        "\"aggregate_id\"",
        "The column with the id of the object that changed. `aggregateid` is found automatically.",
    ),
    names(
        "outbox.event_type",
        "\"event_type\"",
        "The column with the type of the event. `type` is found automatically.",
    ),
    names("outbox.payload", "\"payload\"", "The column whose bytes become the record's value."),
    names(
        "outbox.timestamp",
        "\"\"",
        "A timestamp, timestamptz or integer column for the record's timestamp. Empty: the \
         transaction's commit time.",
    ),
    choice(
        "outbox.timestamp_unit",
        EpochUnit::WORDS,
        "\"ms\"",
        "The unit of an integer timestamp column, counted since 1970.",
    ),
    names(
        "outbox.traceparent",
        "\"traceparent\"",
        "A column that is copied into the `traceparent` header, if the table has it. Empty: none.",
    ),
    list(
        "outbox.order_by",
        "[]",
        "The columns in whose order `postrider backfill`, `repair` and `replay` read the rows of a table; the id is added \
         where it is needed to tell rows apart. Empty: `sequence` if the table has it, `created_at` if it has that.",
    ),
    names(
        "outbox.created_at",
        "\"created_at\"",
        "The column with the time at which a row was written: a timestamptz, timestamp or date. \
         `postrider prune` reads it, and `replay` and `verify` where they are told times.",
    ),
    choice(
        "outbox.on_update",
        UpdatePolicy::WORDS,
        "\"warn\"",
        "What an UPDATE of an outbox row does in addition to being counted. Neither an UPDATE nor \
         a DELETE is ever delivered. A publication of inserts only, as `postrider setup` creates \
         it, sends no UPDATE, so this option then has no effect.",
    ),
    names(
        "outbox.schema_version",
        "\"\"",
        "An integer column with the version of the payload's schema. Empty: none. Sent only in \
         the format `json_schema` with an envelope.",
    ),
    text(
        "route.by",
        "\"event_type\"",
        "The column that determines the topic: one of the names in [outbox] above, or any other \
         column of the table. A name in double quotes is always a column of the table.",
    ),
    text(
        "route.regex",
        "\"(?<routedByValue>.*)\"",
        "A regular expression that the whole value of the column must match, with named groups \
         for the topic.",
    ),
    text(
        "route.topic",
        "\"${routedByValue}\"",
        "The topic: text with the named groups of `route.regex` filled in.",
    ),
    list(
        "route.topics_allowed",
        "[]",
        "The topics that rows may be routed to, as globs: `orders.*`. A row for another topic is \
         rejected as `invalid_topic`. Empty: any topic except the reserved ones: the relay's own, \
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
        "Columns sent inside the value, `column` or `column:member-name`: the value is then an \
         object of `payload` and these columns. Needs a JSON format.",
    ),
    text(
        "route.partition",
        "\"\"",
        "An integer column with the partition number. Empty, or NULL in a row: the partitioner \
         chooses.",
    ),
    choice(
        "route.missing_column",
        MissingColumn::WORDS,
        "\"refuse\"",
        "What happens if a table lacks a column of headers, envelope or partition: the relay \
         refuses it at start, or delivers rows without that column.",
    ),
    choice(
        "route.empty_payload",
        EmptyPayload::WORDS,
        "\"keep\"",
        "Whether an empty or blank payload is kept or becomes a tombstone. SQL NULL always \
         becomes one.",
    ),
    text(
        "route.id_header",
        "\"id\"",
        "The name of the header with the row's id, which is the idempotency key.",
    ),
    switch(
        "route.position_header",
        "true",
        "Whether the header `postrider-lsn` is sent: commit LSN and index, which increase \
         per key, so that a consumer can drop repeats.",
    ),
    choice(
        "route.rejected",
        Rejected::WORDS,
        "\"dead_letter\"",
        "What happens to a row that cannot be delivered: it goes to the dead-letter topic, it \
         stops the relay and stays in Postgres, or it is left out with an audit line.",
    ),
    choice(
        "route.missing_topic",
        MissingTopicWord::WORDS,
        "\"dead_letter\"",
        "What happens to rows whose topic does not exist or that the relay may not write to. \
         `dead_letter`: they become dead letters until the topic can be used. `wait`: they wait, \
         and all rows behind them. `create`: the relay creates the topic, and they become dead \
         letters if that fails. If `route.rejected` is not `dead_letter`, the default is `wait`.",
    ),
    duration(
        "route.missing_topic_deadline",
        (0, 24 * 3_600_000),
        "\"0s\"",
        "How long rows wait for a topic, and all rows behind them, before they become dead \
         letters. 0s: with `dead_letter`, no longer than it takes to query the brokers; with \
         `wait`, without limit.",
    ),
    list(
        "route.create_topics",
        "[]",
        "Which topics `route.missing_topic = \"create\"` creates, and how: a glob, a colon, and \
         partitions, replication and settings, as in `orders.*: partitions=12 replication=3 \
         cleanup.policy=compact`. The first entry whose glob matches the name applies; the \
         brokers' defaults apply to what it does not set. A topic that no entry matches is not \
         created.",
    ),
    count(
        "route.create_topics_max",
        (0, u64::MAX),
        "100",
        "The maximum number of topics that a relay creates while it runs.",
    ),
    choice(
        "format.key",
        KeyFormat::WORDS,
        "\"raw\"",
        "The format of the key: `raw` is the column's text or bytes; `json` and `json_schema` are \
         what Kafka Connect's JsonConverter writes without and with schemas.",
    ),
    choice(
        "format.value",
        ValueFormat::WORDS,
        "\"raw\"",
        "The format of the value: `raw` is the payload verbatim; `string`, `json` and \
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
        "How a bytea is written in keys and values: as the format writes it (base64 inside JSON), \
         always raw, or as text in base64 or hex.",
    ),
    switch(
        "format.expand_json",
        "false",
        "Whether a text payload that contains a JSON object or array is sent as JSON instead of \
         as a JSON string. Numbers and spacing are then rewritten.",
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
        "The prefix of envelope schema names; Debezium's `topic.prefix`.",
    ),
    text(
        "format.cloudevents_source",
        "\"\"",
        "The `source` attribute of CloudEvents. Empty: the table's name.",
    ),
    kafka::BROKERS,
    kafka::DELIVERY,
    kafka::TRANSACTION_AGE,
    kafka::PARTITIONER,
    kafka::COMPRESSION,
    kafka::PASSWORD_COMMAND,
    kafka::CLIENT_ID,
    kafka::LINGER,
    kafka::MESSAGE_MAX_BYTES,
    kafka::MAX_IN_FLIGHT,
    oauth::METHOD,
    oauth::ENDPOINT,
    oauth::CLIENT_ID,
    oauth::CLIENT_SECRET,
    oauth::SCOPE,
    oauth::PARAMETERS,
    oauth::CA_FILE,
    oauth::COMMAND,
    oauth::AWS_REGION,
    text(
        "progress.topic",
        "\"\"",
        "The topic in which exactly_once stores its progress: compacted, with one partition, \
         created if missing. Empty: `postrider.progress.` and the slot's name.",
    ),
    switch(
        "progress.at_least_once",
        "false",
        "Whether at_least_once stores progress there too, so that nothing is repeated if the \
         server recovers from a crash with an older slot position.",
    ),
    text(
        "dead_letters.topic",
        "\"postrider.dead-letters\"",
        "The topic for rows that cannot be delivered.",
    ),
    text(
        "http.bind",
        "\"127.0.0.1:8484\"",
        "The address of /livez, /readyz, /metrics and the dashboard. Empty: they are not served.",
    ),
    switch(
        "http.dashboard",
        "true",
        "Whether `/` shows people how the relay is, and its settings with secrets masked.",
    ),
    switch(
        "http.dashboard_payloads",
        "false",
        "Whether its live tail shows keys and payloads to everybody who reaches it. Without: how large they are.",
    ),
    control::SOCKET,
    control::TOKEN_FILE,
    traces::ENDPOINT,
    traces::MAX_PER_SECOND,
    duration(
        "retry.initial",
        (10, 60_000),
        "\"100ms\"",
        "The pause before the first retry after a failure; it doubles, with jitter, up to \
         `retry.max`, and is short again once the relay has streamed for 10 s. After a session that \
         confirmed something it is no longer than an eighth of the time for which that streamed, if that is \
         more than `retry.initial`.",
    ),
    duration("retry.max", (100, 3_600_000), "\"30s\"", "The longest pause between two attempts."),
    duration(
        "retry.give_up_after",
        (0, 30 * DAY_MS),
        "\"0s\"",
        "How long Postgres or Kafka may be unreachable, or Kafka may store nothing of what it is \
         sent, before the relay exits with code 69. 0s: never, except that `run --once` gives up \
         after a minute.",
    ),
    duration(
        "retry.login_give_up_after",
        (0, 30 * DAY_MS),
        "\"5m\"",
        "How long the relay retries a connection that Postgres or Kafka refuses, because of a \
         certificate, pg_hba.conf or a login, after they have let it in once; then it exits with \
         code 77 or 78. At a first start only a login is retried, and only if its secret comes from \
         a file, a service file or a command. 0s: the first refusal ends the relay, by Postgres and \
         by Kafka alike, though it was let in before.",
    ),
    duration(
        "shutdown.grace",
        (0, 3_600_000),
        "\"25s\"",
        "How long a clean stop may wait for confirmations. Keep it below the time after which the \
         orchestrator kills the process, 30 s in Kubernetes.",
    ),
    choice(
        "log.level",
        LogLevel::WORDS,
        "\"info\"",
        "The least severe level that is logged. -v, -q and RUST_LOG override it.",
    ),
    choice(
        "log.format",
        LogFormat::WORDS,
        "\"text\"",
        "Text for people, or one JSON object per line. If it is not set, `--output json` makes it json.",
    ),
    duration(
        "log.repeat_interval",
        (0, 3_600_000),
        "\"10s\"",
        "A repeated warning or error is logged once per this interval, with a count. 0s: each \
         time.",
    ),
];

pub(super) fn option(key: &str) -> Option<&'static OptionSpec> {
    static BY_KEY: LazyLock<BTreeMap<&str, &OptionSpec>> =
        LazyLock::new(|| OPTIONS.iter().map(|option| (option.key, option)).collect());
    BY_KEY.get(key).copied().or_else(|| rule_options::option(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_unique_and_have_a_section() {
        for (index, option) in OPTIONS.iter().enumerate() {
            assert!(matches!(option.key.matches('.').count(), 1 | 2), "{}", option.key);
            assert!(!OPTIONS[index + 1..].iter().any(|other| other.key == option.key));
            assert!(option.doc.ends_with('.'), "{}", option.key);
        }
    }
}
