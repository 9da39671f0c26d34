//! The validated configuration, with one struct per section of the file. No `Option` means
//! "default", and `Debug` shows no secret.

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

/// All options, with the names and meanings of docs/configuration.md.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    pub source: SourceSection,
    pub messages: MessagesSection,
    pub outbox: OutboxSection,
    pub route: RouteSection,
    pub format: FormatSpec,
    pub kafka: KafkaSection,
    pub progress: ProgressSection,
    pub dead_letters: DeadLettersSection,
    pub http: HttpSection,
    pub traces: TracesSection,
    pub retry: RetrySection,
    pub shutdown: ShutdownSection,
    pub log: LogSection,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceSection {
    /// Text as typed; may be empty.
    pub url: ConnectionString,
    /// Parameters from `url` and libpq's environment and files.
    pub connect: ConnectInfo,
    pub slot: String,
    /// Not empty, at most 63 bytes.
    pub publication: String,
    /// At least one name, without repeats.
    pub tables: Vec<TableName>,
    pub create: Create,
    /// Whether a new slot follows a failover, if supported.
    pub failover: bool,
    /// Whether the slot is created on a standby, which is then streamed from.
    pub standby: bool,
    /// Whether a backlog is read in windows, if possible.
    pub catch_up: bool,
    pub status_interval: Duration,
    /// Largest message accepted from Postgres, in bytes; at most 1 GiB.
    pub frame_bytes_max: u64,
    pub mode: SourceMode,
    pub poll: PollSection,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessagesSection {
    /// Globs of prefixes. If empty, no message is a row.
    pub prefixes: Vec<String>,
    /// Whether a null member is a NULL column (`Keep`) or a missing one (`Drop`).
    pub null_members: Members,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxSection {
    pub id: String,
    pub aggregate_type: String,
    pub aggregate_id: String,
    pub event_type: String,
    pub payload: String,
    /// Column of the record's time; `None` uses the commit time.
    pub timestamp: Option<String>,
    pub timestamp_unit: EpochUnit,
    pub schema_version: Option<String>,
    /// Source of the header `traceparent`, if the table has it; `None` leaves the header out.
    pub traceparent: Option<String>,
    pub created_at: String,
    /// Alternatives for columns that a table lacks, by configured name.
    pub aliases: BTreeMap<String, Vec<String>>,
    /// Order in which a table is read. If empty, `order_of` of the relay decides.
    pub order_by: Vec<String>,
    pub on_update: UpdatePolicy,
}

impl OutboxSection {
    /// Possible names of this column, in order of preference.
    pub fn names(&self, column: &str) -> Vec<String> {
        let others = self.aliases.get(column).into_iter().flatten();
        std::iter::once(column).chain(others.map(String::as_str)).map(str::to_owned).collect()
    }

    /// Column that a name in `[route]` means: the one that plays this part here, or the table's own
    /// column of that name. A name in double quotes is always the table's own.
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

    pub(super) fn resolve_all(&self, fields: &[FieldSpec]) -> Vec<FieldSpec> {
        let resolve = |field: &FieldSpec| FieldSpec {
            column: self.resolve(&field.column).to_owned(),
            name: field.name.clone(),
        };
        fields.iter().map(resolve).collect()
    }
}

pub(super) fn unquoted(name: &str) -> &str {
    name.strip_prefix('"').and_then(|name| name.strip_suffix('"')).unwrap_or(name)
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteSection {
    /// Column as typed; see [`OutboxSection::resolve`].
    pub by: String,
    pub regex: String,
    /// Template that names only groups of `regex`.
    pub topic: String,
    /// Globs of topics that rows may go to. If empty, any.
    pub topics_allowed: Vec<String>,
    /// Column as typed; see [`OutboxSection::resolve`].
    pub key: String,
    /// Fields in wire order, with columns as typed.
    pub headers: Vec<FieldSpec>,
    /// In the order of the members, with columns as typed.
    pub envelope: Vec<FieldSpec>,
    /// As typed; `None` leaves the partition to the partitioner.
    pub partition: Option<String>,
    pub missing_column: MissingColumn,
    /// Rules that compile, with resolved columns.
    pub rules: Vec<RuleSpec>,
    pub empty_payload: EmptyPayload,
    pub id_header: String,
    /// Whether the header `postrider-lsn` is sent.
    pub position_header: bool,
    pub rejected: Rejected,
    pub missing_topic: MissingPolicy,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KafkaSection {
    /// At least one: `host`, `host:port` or `[v6]:port`.
    pub brokers: Vec<String>,
    pub client_id: String,
    pub delivery: Delivery,
    /// Time that a transaction stays open to collect records; longer while rows are old.
    pub transaction_age: Duration,
    pub partitioner: Partitioner,
    pub compression: Compression,
    /// Maximum bytes sent and not confirmed (G3).
    pub in_flight_bytes_max: u64,
    /// Time that a batch waits to fill; at least 5 ms while a large backlog is delivered.
    pub linger: Duration,
    /// Largest record in bytes, including key and headers.
    pub message_bytes_max: u32,
    pub properties: Vec<Property>,
    /// Files that `_FILE` variables named, by property.
    pub secret_files: BTreeMap<String, PathBuf>,
    /// Command that prints `sasl.password`.
    pub password_command: Option<PasswordCommand>,
    pub oauth: OAuthSection,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgressSection {
    pub topic: String,
    /// Whether at-least-once delivery keeps progress too.
    pub at_least_once: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLettersSection {
    pub topic: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpSection {
    /// Address to listen at; `None` does not listen.
    pub bind: Option<SocketAddr>,
    pub dashboard: bool,
    pub dashboard_payloads: bool,
    pub control: ControlSection,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracesSection {
    /// Address of the collector; `None` leaves it to the environment.
    pub endpoint: Option<String>,
    pub max_per_second: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetrySection {
    pub initial: Duration,
    /// Longest pause, not below `initial`.
    pub max: Duration,
    /// Outage before the relay exits; zero is never.
    pub give_up_after: Duration,
    /// How long a refused login is retried if its secret can change; zero does not retry.
    pub login_give_up_after: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShutdownSection {
    pub grace: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSection {
    pub level: LogLevel,
    pub format: LogFormat,
    /// Interval at which a repeating line is printed; zero prints each.
    pub repeat_interval: Duration,
}
