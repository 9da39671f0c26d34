//! The validated configuration, one struct per section of the file: what the rest of the program reads.
//!
//! Input: values that `assemble` has checked. Output: plain fields, and `OutboxSection::resolve`, which
//! maps a name in `[route]` to a column. Invariant: no `Option` means "default", and `Debug` shows no
//! secret.

use postrider_core::record::Partitioner;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use postrider_core::outbox::TableName;
use postrider_core::pipeline::{MissingPolicy, UpdatePolicy};
use postrider_core::route::{
    EmptyPayload, EpochUnit, FieldSpec, FormatSpec, Members, MissingColumn, RuleSpec,
};

use super::control::ControlSection;
use super::oauth::OAuthSection;
use super::poll::PollSection;
use super::values::{
    Compression, ConnectionString, Create, Delivery, LogFormat, LogLevel, Property, Rejected,
    SourceMode,
};
use postrider_postgres::libpq::{ConnectInfo, PasswordCommand};

/// Everything an operator can decide. Names and meanings are those of docs/configuration.md.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Where rows come from.
    pub source: SourceSection,
    /// Which logical messages are rows.
    pub messages: MessagesSection,
    /// Which columns mean what.
    pub outbox: OutboxSection,
    /// Which record a row becomes.
    pub route: RouteSection,
    /// Which form keys and values have.
    pub format: FormatSpec,
    /// Where records go.
    pub kafka: KafkaSection,
    /// Where progress is kept.
    pub progress: ProgressSection,
    /// Where rows go that cannot be delivered.
    pub dead_letters: DeadLettersSection,
    /// Health and metrics.
    pub http: HttpSection,
    /// Which rows are traced, and where.
    pub traces: TracesSection,
    /// How failures are waited out.
    pub retry: RetrySection,
    /// How a clean stop is bounded.
    pub shutdown: ShutdownSection,
    /// What is logged.
    pub log: LogSection,
}

/// `[source]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceSection {
    /// As typed; may be empty.
    pub url: ConnectionString,
    /// `url` and libpq's environment and files, understood.
    pub connect: ConnectInfo,
    /// A legal slot name.
    pub slot: String,
    /// Not empty, at most 63 bytes.
    pub publication: String,
    /// At least one, no repeats.
    pub tables: Vec<TableName>,
    /// Whether publication and slot are created when missing.
    pub create: Create,
    /// Whether a slot that is made follows a failover, where the server can do that.
    pub failover: bool,
    /// Whether the slot is made on a standby, which then is streamed from.
    pub standby: bool,
    /// Whether a backlog is read in windows, where that can be done.
    pub catch_up: bool,
    /// At most this long between two status updates.
    pub status_interval: Duration,
    /// The largest message accepted from Postgres, in bytes; at most 1 GiB.
    pub frame_bytes_max: u64,
    /// Where rows are read from.
    pub mode: SourceMode,
    /// How they are polled, where they are.
    pub poll: PollSection,
}

/// `[messages]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessagesSection {
    /// Globs of prefixes; empty: no message is a row.
    pub prefixes: Vec<String>,
    /// Whether a null member is a NULL column (`Keep`) or a missing one (`Drop`).
    pub null_members: Members,
}

/// `[outbox]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxSection {
    /// The row's identity.
    pub id: String,
    /// The kind of thing that changed.
    pub aggregate_type: String,
    /// Which thing changed.
    pub aggregate_id: String,
    /// What happened.
    pub event_type: String,
    /// The value.
    pub payload: String,
    /// The record's time; `None` is the commit time.
    pub timestamp: Option<String>,
    /// What that column counts if it is an integer.
    pub timestamp_unit: EpochUnit,
    /// The version of the payload's schema; `None` is no such column.
    pub schema_version: Option<String>,
    /// Copied into `traceparent` where the table has it; `None` is no such header.
    pub traceparent: Option<String>,
    /// When a row was written.
    pub created_at: String,
    /// By one of these names: others to try where a row's table has none of that name.
    pub aliases: BTreeMap<String, Vec<String>>,
    /// In which order rows are read from their table; empty: as `order_of` of the relay has it.
    pub order_by: Vec<String>,
    /// What an UPDATE does.
    pub on_update: UpdatePolicy,
}

impl OutboxSection {
    /// The names that the column of this name may have, in the order in which they are tried.
    pub fn names(&self, column: &str) -> Vec<String> {
        let others = self.aliases.get(column).into_iter().flatten();
        std::iter::once(column).chain(others.map(String::as_str)).map(str::to_owned).collect()
    }

    /// The column a name in `[route]` means: the one that plays this part here, or the table's
    /// own column of that name; in double quotes always the latter.
    pub fn resolve<'a>(&'a self, name: &'a str) -> &'a str {
        match name {
            quoted if unquoted(quoted) != quoted => unquoted(quoted),
            "id" => &self.id,
            "aggregate_type" => &self.aggregate_type,
            "aggregate_id" => &self.aggregate_id,
            "event_type" => &self.event_type,
            "payload" => &self.payload,
            name => name,
        }
    }

    /// The same fields, of resolved columns.
    pub(super) fn resolve_all(&self, fields: &[FieldSpec]) -> Vec<FieldSpec> {
        let resolve = |field: &FieldSpec| FieldSpec {
            column: self.resolve(&field.column).to_owned(),
            name: field.name.clone(),
        };
        fields.iter().map(resolve).collect()
    }
}

/// A name without the double quotes around it, if there are any.
pub(super) fn unquoted(name: &str) -> &str {
    name.strip_prefix('"').and_then(|name| name.strip_suffix('"')).unwrap_or(name)
}

/// `[route]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteSection {
    /// The column that decides the topic, as typed; see [`OutboxSection::resolve`].
    pub by: String,
    /// Compiles.
    pub regex: String,
    /// Names only groups of `regex`.
    pub topic: String,
    /// Globs of topics that rows may go to; empty: any.
    pub topics_allowed: Vec<String>,
    /// The column that becomes the key, as typed; see [`OutboxSection::resolve`].
    pub key: String,
    /// In wire order; columns as typed, see [`OutboxSection::resolve`].
    pub headers: Vec<FieldSpec>,
    /// In the order of the members; columns as typed, see [`OutboxSection::resolve`].
    pub envelope: Vec<FieldSpec>,
    /// As typed; `None` leaves the partition to the partitioner.
    pub partition: Option<String>,
    /// What a table is that lacks one of these columns.
    pub missing_column: MissingColumn,
    /// Compile; their columns are resolved.
    pub rules: Vec<RuleSpec>,
    /// What an empty payload becomes.
    pub empty_payload: EmptyPayload,
    /// The header with the row's id.
    pub id_header: String,
    /// Whether `postrider-lsn` is sent.
    pub position_header: bool,
    /// What happens to rows that cannot be delivered.
    pub rejected: Rejected,
    /// What happens to rows whose topic is missing or forbidden.
    pub missing_topic: MissingPolicy,
}

/// `[kafka]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KafkaSection {
    /// At least one, each `host`, `host:port` or `[v6]:port`.
    pub brokers: Vec<String>,
    /// How the relay names itself to the brokers.
    pub client_id: String,
    /// The guarantee.
    pub delivery: Delivery,
    /// How long a Kafka transaction stays open for company.
    pub transaction_age: Duration,
    /// How keys choose partitions.
    pub partitioner: Partitioner,
    /// How batches are compressed.
    pub compression: Compression,
    /// Bytes sent and not confirmed, at most (G3).
    pub in_flight_bytes_max: u64,
    /// How long a batch may wait for company.
    pub linger: Duration,
    /// Largest record, in bytes, key and headers included.
    pub message_bytes_max: u32,
    /// For librdkafka, in name order.
    pub properties: Vec<Property>,
    /// The files that `_FILE` variables named, by property.
    pub secret_files: BTreeMap<String, PathBuf>,
    /// Prints `sasl.password`.
    pub password_command: Option<PasswordCommand>,
    /// A login by tokens.
    pub oauth: OAuthSection,
}

/// `[progress]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgressSection {
    /// A legal topic name.
    pub topic: String,
    /// Whether at-least-once delivery keeps it too.
    pub at_least_once: bool,
}

/// `[dead_letters]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLettersSection {
    /// A legal topic name.
    pub topic: String,
}

/// `[http]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpSection {
    /// Where to listen; `None` is nowhere.
    pub bind: Option<SocketAddr>,
    /// Whether `/` is the dashboard.
    pub dashboard: bool,
    /// Whether it shows keys and payloads.
    pub dashboard_payloads: bool,
    /// Who may change the relay while it runs.
    pub control: ControlSection,
}

/// `[traces]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracesSection {
    /// The collector; `None` leaves it to the environment.
    pub endpoint: Option<String>,
    /// Spans a second at most.
    pub max_per_second: u64,
}

/// `[retry]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetrySection {
    /// The first pause.
    pub initial: Duration,
    /// The longest pause, not below `initial`.
    pub max: Duration,
    /// Outage after which the relay exits; zero is never.
    pub give_up_after: Duration,
    /// How long a login that is refused is tried again where its secret can change; zero is not.
    pub login_give_up_after: Duration,
}

/// `[shutdown]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShutdownSection {
    /// How long a drain may take.
    pub grace: Duration,
}

/// `[log]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSection {
    /// The least severe line logged.
    pub level: LogLevel,
    /// Text or JSON.
    pub format: LogFormat,
    /// How often a repeating line is printed; zero is each time.
    pub repeat_interval: Duration,
}
