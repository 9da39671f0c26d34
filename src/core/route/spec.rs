//! Defines [`RouteSpec`], the routing configuration before compilation.
//!
//! The default routes an outbox table as `setup` creates it.

use std::str::FromStr;

use super::format::{EmptyPayload, EpochUnit, FormatSpec, MissingColumn};
use super::topics::TopicsSpec;

/// The router's settings, for [`super::Router::compile`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteSpec {
    /// Column with the row's id.
    pub id: String,
    /// Column of the record's value.
    pub payload: String,
    /// Column that decides the topic.
    pub by: String,
    /// Pattern for the whole `by` value. Another value is itself the topic.
    pub regex: String,
    /// Topic, with Java's `$1` or `${name}` for groups of `regex`.
    pub topic: String,
    /// Allowed topics.
    pub topics: TopicsSpec,
    /// Column of the record's key.
    pub key: String,
    /// Headers after the id.
    pub headers: Vec<FieldSpec>,
    /// Integer column with the partition; NULL: the partitioner chooses.
    pub partition: Option<String>,
    /// Columns beside `payload` in the value.
    pub envelope: Vec<FieldSpec>,
    /// Integer column of the envelope's schema version.
    pub schema_version: Option<String>,
    /// Treatment of a table that lacks a column of `headers`, `envelope` or `partition`.
    pub missing_column: MissingColumn,
    /// Exceptions; the first match decides.
    pub rules: Vec<RuleSpec>,
    /// Formats.
    pub format: FormatSpec,
    /// Column of CloudEvents' `type`.
    pub event_type: String,
    /// Column of CloudEvents' `subject`.
    pub subject: String,
    /// Header of the row's id.
    pub id_header: String,
    /// Whether to send [`super::LSN_HEADER`].
    pub lsn_header: bool,
    /// Source of rows.
    pub origin: RowOrigin,
    /// Column sent as [`super::TRACEPARENT_HEADER`], if the table has it and it is not NULL.
    pub traceparent: Option<String>,
    /// Source of timestamps.
    pub timestamp: TimestampSource,
    /// Treatment of an empty payload.
    pub empty_payload: EmptyPayload,
    /// Limit for [`super::Record::wire_size_max`].
    pub max_record_bytes: usize,
}

/// librdkafka's default `message.max.bytes`, a little below the broker's (1,048,588).
const RECORD_BYTES_MAX: usize = 1_000_000;

impl RouteSpec {
    /// Sends everything to one topic; nothing else changes.
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

/// Source of rows. Records from a table state the purpose in [`super::ORIGIN_HEADER`], unless rows
/// are polled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RowOrigin {
    /// The log.
    #[default]
    Log,
    /// Rows older than the slot.
    Backfill,
    /// Rows sent again.
    Replay,
    /// Rows that a lost slot did not deliver.
    Repair,
    /// Polled rows.
    Poll,
}

impl RowOrigin {
    /// The header's value.
    pub const fn header(self) -> Option<&'static str> {
        match self {
            Self::Log | Self::Poll => None,
            Self::Backfill => Some("backfill"),
            Self::Replay => Some("replay"),
            Self::Repair => Some("repair"),
        }
    }
}

/// A header or envelope member, written `column` or `column:name`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldSpec {
    /// The column.
    pub column: String,
    /// Name as sent.
    pub name: String,
}

impl FieldSpec {
    /// A field named like its column.
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

/// Treatment of matching rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleSpec {
    /// Column; NULL matches nothing.
    pub column: String,
    /// Pattern.
    pub pattern: PatternSpec,
    /// Treatment.
    pub action: RuleAction,
}

/// Pattern for a whole value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PatternSpec {
    /// Text with `*` and `?`.
    Glob(String),
    /// Regular expression, with groups for the topic.
    Regex(String),
}

/// Action of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RuleAction {
    /// Drop the row.
    Drop,
    /// Deliver the row.
    Send(DestinationSpec),
}

/// Delivery of a rule's rows; `None`: the default.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DestinationSpec {
    /// Topic, with groups of the pattern.
    pub topic: Option<String>,
    /// Key column.
    pub key: Option<String>,
    /// Headers after the id.
    pub headers: Option<Vec<FieldSpec>>,
    /// Partition column.
    pub partition: Option<String>,
}

/// Source of a record's timestamp.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TimestampSource {
    /// Commit time.
    Commit,
    /// `timestamptz`, `timestamp` (as UTC) or integer. NULL: the commit time.
    Column {
        /// Name.
        name: String,
        /// Unit of an integer column.
        unit: EpochUnit,
    },
}

/// A routing that works for no row.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RouteSpecError {
    /// The pattern is not a regular expression that runs in bounded time.
    #[error("the route's regex does not compile: {reason}")]
    Regex {
        /// Reason.
        reason: String,
    },
    /// The topic refers to a missing group.
    #[error("the topic `{topic}` refers to the group `{group}`, which the regex lacks")]
    UnknownGroup {
        /// Topic template.
        topic: String,
        /// Name or number.
        group: String,
        /// Existing groups.
        known: Vec<String>,
    },
    /// A `$` or `\` is not part of a reference.
    #[error("the topic `{topic}` has a `{character}` at byte {offset} that begins nothing")]
    TopicSyntax {
        /// Topic template.
        topic: String,
        /// The character.
        character: char,
        /// Its offset.
        offset: usize,
    },
    /// The topic contains an illegal character.
    #[error("the topic `{topic}` has the character `{character}`, which Kafka does not allow")]
    TopicCharacter {
        /// Topic template.
        topic: String,
        /// The character.
        character: char,
    },
    /// A field is not `column` or `column:name`.
    #[error("`{text}` is not of the form `column` or `column:name`")]
    FieldSyntax {
        /// Text.
        text: String,
    },
    /// The format does not support an envelope.
    #[error("an envelope needs JSON around it, and the value's format is `{format}`")]
    Envelope {
        /// Format.
        format: &'static str,
    },
    /// Two envelope members share a name.
    #[error("the envelope has the member `{name}` twice")]
    MemberTwice {
        /// Member.
        name: String,
    },
    /// A name is empty.
    #[error("the {what} is empty")]
    Empty {
        /// Setting.
        what: &'static str,
    },
}

impl RouteSpecError {
    /// Advice for the operator.
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
