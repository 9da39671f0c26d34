//! Defines [`RouteSpec`]: the routing configuration, before compilation into a router.
//!
//! The spec names the columns of id, payload, key, headers and timestamp, the topic template, rules
//! ([`RuleSpec`]) and formats; the default routes an outbox table as `setup` creates it.
//! [`FieldSpec`] parses `column:name`. [`RouteSpecError`] explains why a routing cannot work for
//! any row, with a hint for the operator.

use std::str::FromStr;

use super::format::{EmptyPayload, EpochUnit, FormatSpec, MissingColumn};
use super::topics::TopicsSpec;

/// The router's settings. Built by the configuration, compiled by [`super::Router::compile`].
/// Columns have the table's names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteSpec {
    /// Column with the row's id, with which consumers recognise a repeat.
    pub id: String,
    /// Column whose bytes are the record's value.
    pub payload: String,
    /// Column that decides the topic.
    pub by: String,
    /// Pattern that the whole `by` value must match. Another value is itself the topic.
    pub regex: String,
    /// Topic name, with Java's `$1` or `${name}` for the groups of `regex`.
    pub topic: String,
    /// Allowed topics.
    pub topics: TopicsSpec,
    /// Column whose bytes are the record's key.
    pub key: String,
    /// Columns sent as headers, in this order, after the id.
    pub headers: Vec<FieldSpec>,
    /// Integer column with the partition; NULL: the partitioner chooses.
    pub partition: Option<String>,
    /// Columns that share the value with the payload: an object of `payload` and these.
    pub envelope: Vec<FieldSpec>,
    /// Integer column with the version of the envelope's schema.
    pub schema_version: Option<String>,
    /// Treatment of a table that lacks a column of `headers`, `envelope` or `partition`.
    pub missing_column: MissingColumn,
    /// Exceptions; the first matching rule decides.
    pub rules: Vec<RuleSpec>,
    /// Formats of key, value and headers.
    pub format: FormatSpec,
    /// Column with the `type` of CloudEvents.
    pub event_type: String,
    /// Column with the `subject` of CloudEvents.
    pub subject: String,
    /// Name of the header with the row's id.
    pub id_header: String,
    /// True if each record has its position in the header [`super::LSN_HEADER`].
    pub lsn_header: bool,
    /// Source of the rows.
    pub origin: RowOrigin,
    /// Column sent as header [`super::TRACEPARENT_HEADER`], if the table has it and it is not NULL.
    pub traceparent: Option<String>,
    /// Source of the record's timestamp.
    pub timestamp: TimestampSource,
    /// Treatment of an empty payload.
    pub empty_payload: EmptyPayload,
    /// Size limit of a record in bytes: key, value, headers and framing, as
    /// [`super::Record::wire_size_max`] counts.
    pub max_record_bytes: usize,
}

/// librdkafka's default `message.max.bytes`, a little below the broker's (1,048,588).
const RECORD_BYTES_MAX: usize = 1_000_000;

impl RouteSpec {
    /// Sends everything to one topic. Dropped rows, keys, values and headers are unchanged.
    pub fn send_all_to(&mut self, topic: &str) {
        super::template::WHOLE_VALUE.clone_into(&mut self.regex);
        topic.clone_into(&mut self.topic);
        self.topics.allowed = Vec::new();
        for rule in &mut self.rules {
            if let RuleAction::Send(destination) = &mut rule.action {
                destination.topic = Some(topic.to_owned());
            }
        }
    }
}

impl Default for RouteSpec {
    fn default() -> Self {
        Self {
            id: "id".to_owned(),
            payload: "payload".to_owned(),
            by: "event_type".to_owned(),
            regex: super::template::WHOLE_VALUE.to_owned(),
            topic: "${routedByValue}".to_owned(),
            topics: TopicsSpec::default(),
            key: "aggregate_id".to_owned(),
            headers: ["event_type", "aggregate_type"].map(FieldSpec::of_column).to_vec(),
            partition: None,
            envelope: Vec::new(),
            schema_version: None,
            missing_column: MissingColumn::Refuse,
            rules: Vec::new(),
            format: FormatSpec::default(),
            event_type: "event_type".to_owned(),
            subject: "aggregate_id".to_owned(),
            id_header: "id".to_owned(),
            lsn_header: true,
            origin: RowOrigin::Log,
            traceparent: Some(super::TRACEPARENT_HEADER.to_owned()),
            timestamp: TimestampSource::Commit,
            empty_payload: EmptyPayload::Keep,
            max_record_bytes: RECORD_BYTES_MAX,
        }
    }
}

/// Source of rows. A table's rows have no log position. Their records state the purpose in the
/// header [`super::ORIGIN_HEADER`], unless all rows are polled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RowOrigin {
    /// The log.
    #[default]
    Log,
    /// The table, for rows older than the slot.
    Backfill,
    /// The table, for rows that are sent again.
    Replay,
    /// The table, for rows that a lost slot did not deliver.
    Repair,
    /// The table, for rows that wait in it.
    Poll,
}

impl RowOrigin {
    /// Value of the header, if any.
    pub const fn header(self) -> Option<&'static str> {
        match self {
            Self::Log | Self::Poll => None,
            Self::Backfill => Some("backfill"),
            Self::Replay => Some("replay"),
            Self::Repair => Some("repair"),
        }
    }
}

/// A column with a name: a header, or a member of the envelope. Written `column` or `column:name`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldSpec {
    /// The column.
    pub column: String,
    /// Name under which it is sent.
    pub name: String,
}

impl FieldSpec {
    /// A field with its column's name.
    pub fn of_column(column: &str) -> Self {
        Self { column: column.to_owned(), name: column.to_owned() }
    }
}

impl FromStr for FieldSpec {
    type Err = RouteSpecError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (column, name) = text.split_once(':').unwrap_or((text, text));
        let (column, name) = (column.trim(), name.trim());
        if column.is_empty() || name.is_empty() || name.contains(':') {
            return Err(RouteSpecError::FieldSyntax { text: text.to_owned() });
        }
        Ok(Self { column: column.to_owned(), name: name.to_owned() })
    }
}

/// Treatment of rows whose `column` matches a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleSpec {
    /// The consulted column. NULL matches nothing.
    pub column: String,
    /// The pattern.
    pub pattern: PatternSpec,
    /// The treatment.
    pub action: RuleAction,
}

/// Pattern for a rule's whole value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PatternSpec {
    /// Text in which `*` stands for any characters and `?` for one.
    Glob(String),
    /// Regular expression, whose groups the rule's topic may use.
    Regex(String),
}

/// Action of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RuleAction {
    /// Drop the row on purpose.
    Drop,
    /// Deliver the row this way.
    Send(DestinationSpec),
}

/// Delivery of a rule's rows; `None` keeps the default.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DestinationSpec {
    /// The topic, with groups of the rule's pattern.
    pub topic: Option<String>,
    /// The key column.
    pub key: Option<String>,
    /// The headers after the id.
    pub headers: Option<Vec<FieldSpec>>,
    /// The partition column.
    pub partition: Option<String>,
}

/// Source of a record's timestamp.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TimestampSource {
    /// Commit time of the row's transaction.
    Commit,
    /// A column: `timestamptz`, `timestamp` (interpreted as UTC) or an integer. NULL: the commit
    /// time.
    Column {
        /// The column.
        name: String,
        /// Unit of an integer column.
        unit: EpochUnit,
    },
}

/// A routing that cannot work for any row.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RouteSpecError {
    /// The pattern is not a regular expression that runs in bounded time.
    #[error("the route's regex does not compile: {reason}")]
    Regex {
        /// The reason, with the character's position if known.
        reason: String,
    },
    /// The topic refers to a group that the pattern lacks.
    #[error("the topic `{topic}` refers to the group `{group}`, which the regex lacks")]
    UnknownGroup {
        /// The topic template.
        topic: String,
        /// The group's name or number.
        group: String,
        /// The existing groups.
        known: Vec<String>,
    },
    /// A `$` or `\` that is not part of a reference.
    #[error("the topic `{topic}` has a `{character}` at byte {offset} that begins nothing")]
    TopicSyntax {
        /// The topic template.
        topic: String,
        /// `$` or `\`.
        character: char,
        /// Offset of the character.
        offset: usize,
    },
    /// A fixed part of the topic contains an illegal character.
    #[error("the topic `{topic}` has the character `{character}`, which Kafka does not allow")]
    TopicCharacter {
        /// The topic template.
        topic: String,
        /// The first illegal character.
        character: char,
    },
    /// A field is not `column` or `column:name`.
    #[error("`{text}` is not of the form `column` or `column:name`")]
    FieldSyntax {
        /// The field's text.
        text: String,
    },
    /// The format does not support an envelope.
    #[error("an envelope needs JSON around it, and the value's format is `{format}`")]
    Envelope {
        /// The format's keyword.
        format: &'static str,
    },
    /// Two members of one envelope share a name.
    #[error("the envelope has the member `{name}` twice")]
    MemberTwice {
        /// The member.
        name: String,
    },
    /// An empty name.
    #[error("the {what} is empty")]
    Empty {
        /// The setting.
        what: &'static str,
    },
}

impl RouteSpecError {
    /// What the operator can do.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Regex { .. } => Some("the syntax is that of java.util.regex".to_owned()),
            Self::UnknownGroup { known, .. } => Some(format!("it has {}", known.join(", "))),
            Self::TopicSyntax { .. } => {
                Some("write ${name} or $1 for a group of the regex".to_owned())
            }
            Self::TopicCharacter { .. } => {
                Some("topics are made of a-z, A-Z, 0-9, `.`, `_` and `-`".to_owned())
            }
            Self::Envelope { .. } => {
                Some("set format.value to json, json_schema or string".to_owned())
            }
            Self::MemberTwice { .. } => Some(
                "`payload` is the payload's own; write column:name for another name".to_owned(),
            ),
            Self::FieldSyntax { .. } | Self::Empty { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_a_column_and_perhaps_a_name() {
        assert_eq!("type".parse(), Ok(FieldSpec::of_column("type")));
        let renamed = FieldSpec { name: "kind".to_owned(), ..FieldSpec::of_column("type") };
        assert_eq!(" type : kind ".parse(), Ok(renamed));
        for wrong in ["", ":", "type:", ":kind", "a:b:c"] {
            assert!(wrong.parse::<FieldSpec>().is_err(), "{wrong}");
        }
    }
}
