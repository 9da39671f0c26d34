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
        doc: "Connection to Postgres: a postgres:// URL or a libpq `key=value` string, with \
              every sslmode and `require_auth`. Parameters that are not set come from the \
              PG* variables, the service file and the password file, as in psql.",
    },
    list(
        "source.password_command",
        "[]",
        "Program and arguments that print the password within 15 s, for example `[\"aws\", \
         \"rds\", \"generate-db-auth-token\", ...]`. The relay runs the program without a \
         shell at every connect, removes one trailing newline and ignores stderr. Overrides \
         every other password.",
    ),
    rds_login::LOGIN,
    rds_login::AWS_REGION,
    text(
        "source.slot",
        "\"postrider\"",
        "Replication slot. Stores the position of delivery. While one relay uses the slot, a \
         second relay waits in standby.",
    ),
    text("source.publication", "\"postrider\"", "Publication that contains the outbox tables."),
    list(
        "source.tables",
        "[\"public.outbox\"]",
        "Outbox tables, with their schema. Quote names with capitals or dots as in SQL.",
    ),
    choice(
        "source.create",
        Create::WORDS,
        "\"never\"",
        "`auto`: `run` creates a missing publication and slot. It also recreates a lost \
         slot; rows committed in between are not delivered. `never`: `postrider setup` \
         creates them.",
    ),
    switch(
        "source.failover",
        "true",
        "If true, a slot that the relay creates on PostgreSQL 17 or later follows a failover \
         to a standby. Has no effect without a standby. An existing slot does not change; \
         `postrider doctor` prints the command that changes it.",
    ),
    switch(
        "source.standby",
        "false",
        "If true, `setup` creates the slot on a standby (PostgreSQL 16 or later), and the \
         relay streams from that standby. `source.url` must name only that standby. The slot \
         does not follow a failover to another server.",
    ),
    switch(
        "source.catch_up",
        "true",
        "If true, a backlog of more than 64 MiB of WAL is read in windows through a \
         temporary copy of the slot, which costs the server less than streaming. If the \
         server does not allow this, or would decode too much, the relay streams the \
         backlog.",
    ),
    duration(
        "source.status_interval",
        // Postgres ends a silent connection after wal_sender_timeout, 60 s by default.
        (10, 20_000),
        "\"1s\"",
        "Maximum interval between two acknowledgements to Postgres. After a crash, records \
         delivered since the last acknowledgement, and records still in flight, are repeated.",
    ),
    size(
        "source.frame_max",
        (1 << 20, 1 << 30),
        "\"64MiB\"",
        "Largest row that is delivered, measured as Postgres sends it (JSON escaped, bytea \
         in hex). Memory grows to this size while the relay reads such a row. A larger row \
         is read in pieces and becomes a dead letter (`too_large`) with its id, sizes and \
         hashes.",
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
        "Prefixes, as globs, of logical messages (pg_logical_emit_message) to deliver. The \
         content of such a message is a JSON object with the columns of an outbox row. `*`: \
         all prefixes. Needs PostgreSQL 14.",
    ),
    choice(
        "messages.null_members",
        Members::WORDS,
        "\"keep\"",
        "Whether a null member is a NULL column (`keep`) or a missing column (`drop`).",
    ),
    names(
        "outbox.id",
        "\"id\"",
        "Column with the row's id, by which consumers detect duplicates. Every column of \
         this section accepts a list of names. The relay uses the first name that the table \
         had when the row was written, for example `[\"event_id\", \"id\"]` after a rename.",
    ),
    names(
        "outbox.aggregate_type",
        "\"aggregate_type\"",
        "Column with the type of the changed object. `aggregatetype` is found automatically.",
    ),
    names(
        "outbox.aggregate_id",
        "\"aggregate_id\"",
        "Column with the id of the changed object. `aggregateid` is found automatically.",
    ),
    names(
        "outbox.event_type",
        "\"event_type\"",
        "Column with the type of the event. `type` is found automatically.",
    ),
    names("outbox.payload", "\"payload\"", "Column with the record's value."),
    names(
        "outbox.timestamp",
        "\"\"",
        "Column with the record's timestamp: timestamp, timestamptz or integer. If empty: \
         the commit time of the transaction.",
    ),
    choice(
        "outbox.timestamp_unit",
        EpochUnit::WORDS,
        "\"ms\"",
        "Unit of an integer timestamp column, since 1970.",
    ),
    names(
        "outbox.traceparent",
        "\"traceparent\"",
        "Column that is sent as the `traceparent` header, if the table has it. If empty, \
         none.",
    ),
    list(
        "outbox.order_by",
        "[]",
        "Columns by which `postrider backfill`, `repair` and `replay` sort the rows of a \
         table. The id breaks ties. If empty: `sequence` or, if the table lacks it, \
         `created_at`.",
    ),
    names(
        "outbox.created_at",
        "\"created_at\"",
        "Column with the time at which a row was written: timestamptz, timestamp or date. \
         `postrider prune` needs it, and `replay` and `verify` if you pass times.",
    ),
    choice(
        "outbox.on_update",
        UpdatePolicy::WORDS,
        "\"warn\"",
        "What the relay does on an UPDATE of an outbox row, besides counting it. UPDATE and DELETE \
         are never delivered. If the publication has no UPDATE, as `postrider setup` creates it, this \
         option has no effect.",
    ),
    names(
        "outbox.schema_version",
        "\"\"",
        "Integer column with the schema version of the payload. If empty, none. Sent only in \
         the format `json_schema` with an envelope.",
    ),
    text(
        "route.by",
        "\"event_type\"",
        "Column that determines the topic: a name of [outbox] above, or any column of the \
         table. A name in double quotes is always a column of the table.",
    ),
    text(
        "route.regex",
        "\"(?<routedByValue>.*)\"",
        "Regular expression that must match the whole value of the column. Named groups are \
         available to the topic.",
    ),
    text(
        "route.topic",
        "\"${routedByValue}\"",
        "Topic, with the named groups of `route.regex` filled in.",
    ),
    list(
        "route.topics_allowed",
        "[]",
        "Topics that rows may be routed to, as globs, for example `orders.*`. A row for \
         another topic is rejected as `invalid_topic`. If empty: any topic except the \
         relay's own (`postrider.progress.*`) and Kafka's (`__*`).",
    ),
    text(
        "route.key",
        "\"aggregate_id\"",
        "Column with the record's key. Records with the same key stay in order.",
    ),
    list(
        "route.headers",
        "[\"event_type\", \"aggregate_type\"]",
        "Columns that are sent as headers: `column` or `column:header-name`. The row's id is \
         always sent.",
    ),
    list(
        "route.envelope",
        "[]",
        "Columns that are sent inside the value: `column` or `column:member-name`. The value \
         is then an object of `payload` and these columns. Needs a JSON format.",
    ),
    text(
        "route.partition",
        "\"\"",
        "Integer column with the partition. If empty, or NULL in a row, the partitioner \
         chooses.",
    ),
    choice(
        "route.missing_column",
        MissingColumn::WORDS,
        "\"refuse\"",
        "What happens if a table lacks a column of headers, envelope or partition. `refuse`: \
         the relay does not start. `ignore`: rows are delivered without that column.",
    ),
    choice(
        "route.empty_payload",
        EmptyPayload::WORDS,
        "\"keep\"",
        "Whether an empty or blank payload is sent unchanged or as a tombstone. SQL NULL \
         always becomes a tombstone.",
    ),
    text(
        "route.id_header",
        "\"id\"",
        "Name of the header with the row's id, which is the idempotency key.",
    ),
    switch(
        "route.position_header",
        "true",
        "If true, the header `postrider-lsn` is sent: commit LSN and index. The pair \
         increases per key, so that a consumer can drop duplicates.",
    ),
    choice(
        "route.rejected",
        Rejected::WORDS,
        "\"dead_letter\"",
        "What happens to a row that cannot be delivered: it goes to the dead-letter topic, \
         it stops the relay and stays in Postgres, or it is skipped with an audit line.",
    ),
    choice(
        "route.missing_topic",
        MissingTopicWord::WORDS,
        "\"dead_letter\"",
        "What happens to rows if their topic does not exist or the relay may not write to \
         it. `dead_letter`: they become dead letters until the topic is usable. `wait`: they \
         and all later rows wait. `create`: the relay creates the topic; if that fails, they \
         become dead letters. If `route.rejected` is not `dead_letter`, the default is \
         `wait`.",
    ),
    duration(
        "route.missing_topic_deadline",
        (0, 24 * 3_600_000),
        "\"0s\"",
        "Time that rows, and all later rows, wait for a topic before they become dead \
         letters. 0s: with `dead_letter`, only as long as a query to the brokers takes; with \
         `wait`, forever.",
    ),
    list(
        "route.create_topics",
        "[]",
        "Topics that `route.missing_topic = \"create\"` creates: a glob, a colon, then \
         partitions, replication and settings, for example `orders.*: partitions=12 \
         replication=3 cleanup.policy=compact`. The first matching entry applies. The \
         brokers' defaults fill in the rest. A topic without a matching entry is not \
         created.",
    ),
    count(
        "route.create_topics_max",
        (0, u64::MAX),
        "100",
        "Maximum number of topics that a relay creates while it runs.",
    ),
    choice(
        "format.key",
        KeyFormat::WORDS,
        "\"raw\"",
        "Format of the key. `raw`: text or bytes of the column. `json`, `json_schema`: as \
         Kafka Connect's JsonConverter writes it, without and with schemas.",
    ),
    choice(
        "format.value",
        ValueFormat::WORDS,
        "\"raw\"",
        "Format of the value. `raw`: the payload verbatim. `string`, `json`, `json_schema`: \
         as Kafka Connect's StringConverter and JsonConverter write it. The others are \
         CloudEvents in binary and structured mode.",
    ),
    choice(
        "format.columns",
        ColumnStyle::WORDS,
        "\"postgres\"",
        "How columns are written in keys, headers and envelopes: as Postgres prints them, or \
         as Debezium's connector represents them (`true` for `t`, times as numbers, bytes as \
         base64).",
    ),
    choice(
        "format.bytea",
        ByteaForm::WORDS,
        "\"encoded\"",
        "How a bytea is written in keys and values: as the format writes it (base64 inside \
         JSON), raw, or as base64 or hex text.",
    ),
    switch(
        "format.expand_json",
        "false",
        "If true, a text payload with a JSON object or array is sent as JSON instead of a \
         JSON string. Numbers and spacing are then rewritten.",
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
        "Prefix of envelope schema names; Debezium's `topic.prefix`.",
    ),
    text(
        "format.cloudevents_source",
        "\"\"",
        "`source` attribute of CloudEvents. If empty: the name of the table.",
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
        "Topic in which exactly_once stores its position: compacted, one partition, created \
         if it does not exist. If empty: `postrider.progress.` and the name of the slot.",
    ),
    switch(
        "progress.at_least_once",
        "false",
        "If true, at_least_once also stores its position in this topic. Then nothing is \
         repeated if the server recovers from a crash with an older slot position.",
    ),
    text(
        "dead_letters.topic",
        "\"postrider.dead-letters\"",
        "Topic for rows that cannot be delivered.",
    ),
    text(
        "http.bind",
        "\"127.0.0.1:8484\"",
        "Address of /livez, /readyz, /metrics and the dashboard. If empty, they are not \
         served.",
    ),
    switch(
        "http.dashboard",
        "true",
        "If true, `/` serves the dashboard: the state of the relay, and its settings with \
         secrets masked.",
    ),
    switch(
        "http.dashboard_payloads",
        "false",
        "If true, the live tail of the dashboard shows keys and payloads to every visitor. \
         If false, it shows only their sizes.",
    ),
    control::SOCKET,
    control::TOKEN_FILE,
    traces::ENDPOINT,
    traces::MAX_PER_SECOND,
    duration(
        "retry.initial",
        (10, 60_000),
        "\"100ms\"",
        "Pause before the first retry after a failure. It doubles, with jitter, up to \
         `retry.max`, and is reset after 10 s of streaming. If a session confirmed records, \
         the pause is at most one eighth of the session's time, or `retry.initial` if that \
         is longer.",
    ),
    duration("retry.max", (100, 3_600_000), "\"30s\"", "Longest pause between two attempts."),
    duration(
        "retry.give_up_after",
        (0, 30 * DAY_MS),
        "\"0s\"",
        "Time that Postgres or Kafka may be unreachable, or Kafka may store nothing, before \
         the relay exits with code 69. 0s: no limit, except that `run --once` gives up after \
         one minute.",
    ),
    duration(
        "retry.login_give_up_after",
        (0, 30 * DAY_MS),
        "\"5m\"",
        "Time that the relay retries if Postgres or Kafka refuses a login that was accepted \
         before: certificate, pg_hba.conf or password. Then the relay exits with code 77 or \
         78. At a first start, only a login whose secret comes from a file, a service file \
         or a command is retried. 0s: the relay exits at the first refusal.",
    ),
    duration(
        "shutdown.grace",
        (0, 3_600_000),
        "\"25s\"",
        "Maximum time that a clean stop waits for confirmations. Keep it below the time \
         after which the orchestrator kills the process (30 s in Kubernetes).",
    ),
    choice(
        "log.level",
        LogLevel::WORDS,
        "\"info\"",
        "Least severe level that is logged. -v, -q and RUST_LOG override it.",
    ),
    choice(
        "log.format",
        LogFormat::WORDS,
        "\"text\"",
        "Text for people, or one JSON object per line. If it is not set, `--output json` \
         selects json.",
    ),
    duration(
        "log.repeat_interval",
        (0, 3_600_000),
        "\"10s\"",
        "Interval in which a repeated warning or error is logged once, with a count. 0s: log \
         each one.",
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
