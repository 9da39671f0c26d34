//! Defines [`RouteSpec`]: the routing configuration, before it is compiled into a router.
//!
//! It names the columns of id, payload, key, headers and timestamp, the topic template, rules
//! ([`RuleSpec`]) and formats; the default routes an outbox table as `setup` creates it. [`FieldSpec`]
//! parses `column:name`. [`RouteSpecError`] says why a routing cannot work for any row, with a hint for the
//! operator.

use std::str::FromStr;

use super::format::{EmptyPayload, EpochUnit, FormatSpec, MissingColumn};
use super::topics::TopicsSpec;

/// Everything the router must be told. Built by the configuration, compiled by
/// [`super::Router::compile`]. Columns are named as they are in the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteSpec {
    /// The column with the row's id, which consumers use to recognise a repeat.
    pub id: String,
    /// The column whose bytes are the record's value.
    pub payload: String,
    /// The column that decides on the topic.
    pub by: String,
    /// What `by` must match, as a whole. A value that does not match is itself the topic.
    pub regex: String,
    /// The topic's name, with `$1` or `${name}` for the groups of `regex` as in Java.
    pub topic: String,
    /// Which topics may come of that.
    pub topics: TopicsSpec,
    /// The column whose bytes are the record's key.
    pub key: String,
    /// Columns sent as headers, in this order, after the id.
    pub headers: Vec<FieldSpec>,
    /// An integer column that is the partition; NULL leaves it to the partitioner.
    pub partition: Option<String>,
    /// Columns that share the value with the payload: an object of `payload` and these.
    pub envelope: Vec<FieldSpec>,
    /// An integer column that is the version of the envelope's schema.
    pub schema_version: Option<String>,
    /// What a table is that lacks a column of `headers`, `envelope` or `partition`.
    pub missing_column: MissingColumn,
    /// What goes elsewhere; the first rule that matches decides.
    pub rules: Vec<RuleSpec>,
    /// The forms of key, value and headers.
    pub format: FormatSpec,
    /// The column that is the `type` of CloudEvents.
    pub event_type: String,
    /// The column that is the `subject` of CloudEvents.
    pub subject: String,
    /// The name of the header that carries the row's id.
    pub id_header: String,
    /// Whether each record tells its position in the header [`super::LSN_HEADER`].
    pub lsn_header: bool,
    /// Where rows are read from.
    pub origin: RowOrigin,
    /// A column sent as header [`super::TRACEPARENT_HEADER`] where the table has it and it is not
    /// NULL.
    pub traceparent: Option<String>,
    /// Where the record's timestamp comes from.
    pub timestamp: TimestampSource,
    /// What becomes of an empty payload.
    pub empty_payload: EmptyPayload,
    /// The largest record that is sent, in bytes: key, value, headers and their framing, as
    /// [`super::Record::wire_size_max`] counts them.
    pub max_record_bytes: usize,
}

/// librdkafka's default `message.max.bytes`, a little below the broker's (1,048,588).
const RECORD_BYTES_MAX: usize = 1_000_000;

impl RouteSpec {
    /// Sends what is delivered to one topic; which rows are dropped stays, and keys, values and headers do.
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

/// Where rows are read from. Those of a table have no position in the log: their records say in the header
/// [`super::ORIGIN_HEADER`] why they were read, unless all rows are polled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RowOrigin {
    /// The log.
    #[default]
    Log,
    /// The table, for the rows that were there before the slot.
    Backfill,
    /// The table, for rows that are sent once more.
    Replay,
    /// The table, for rows that a lost slot has not delivered.
    Repair,
    /// The table, for rows that wait in it.
    Poll,
}

impl RowOrigin {
    /// The header's value, if it has one.
    pub const fn header(self) -> Option<&'static str> {
        match self {
            Self::Log | Self::Poll => None,
            Self::Backfill => Some("backfill"),
            Self::Replay => Some("replay"),
            Self::Repair => Some("repair"),
        }
    }
}

/// A column under a name: a header, or a member of the envelope. Written `column` or `column:name`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldSpec {
    /// The column.
    pub column: String,
    /// The name it is sent under.
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

/// Where the rows go whose `column` has a certain value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleSpec {
    /// The column that is looked at. NULL matches nothing.
    pub column: String,
    /// What it must be.
    pub pattern: PatternSpec,
    /// What becomes of the row.
    pub action: RuleAction,
}

/// What a rule's column must be, as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PatternSpec {
    /// Text in which `*` stands for any characters and `?` for one.
    Glob(String),
    /// A regular expression, whose groups the rule's topic may name.
    Regex(String),
}

/// What a rule does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RuleAction {
    /// The row is not delivered, on purpose.
    Drop,
    /// The row is delivered this way.
    Send(DestinationSpec),
}

/// Where and as what rows are delivered; what is `None` is as it is without the rule.
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

/// Where a record's timestamp comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TimestampSource {
    /// The moment the row's transaction committed.
    Commit,
    /// A column: `timestamptz`, `timestamp` (read as UTC) or an integer. NULL: the commit time.
    Column {
        /// The column.
        name: String,
        /// What an integer column counts.
        unit: EpochUnit,
    },
}

/// A routing that cannot work for any row.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RouteSpecError {
    /// The pattern is not a regular expression that can be run in bounded time.
    #[error("the route's regex does not compile: {reason}")]
    Regex {
        /// What is wrong, and at which character of the pattern where that is known.
        reason: String,
    },
    /// The topic refers to a group that the pattern lacks.
    #[error("the topic `{topic}` refers to the group `{group}`, which the regex lacks")]
    UnknownGroup {
        /// The topic template.
        topic: String,
        /// The group's name or number.
        group: String,
        /// The groups there are.
        known: Vec<String>,
    },
    /// A `$` or `\` that is not part of a reference.
    #[error("the topic `{topic}` has a `{character}` at byte {offset} that begins nothing")]
    TopicSyntax {
        /// The topic template.
        topic: String,
        /// `$` or `\`.
        character: char,
        /// Where it stands.
        offset: usize,
    },
    /// A fixed part of the topic that no topic may have.
    #[error("the topic `{topic}` has the character `{character}`, which Kafka does not allow")]
    TopicCharacter {
        /// The topic template.
        topic: String,
        /// The first such character.
        character: char,
    },
    /// A field that is not `column` or `column:name`.
    #[error("`{text}` is not of the form `column` or `column:name`")]
    FieldSyntax {
        /// As written.
        text: String,
    },
    /// An envelope in a format that has no place for one.
    #[error("an envelope needs JSON around it, and the value's format is `{format}`")]
    Envelope {
        /// The format's word.
        format: &'static str,
    },
    /// Two members of one envelope.
    #[error("the envelope has the member `{name}` twice")]
    MemberTwice {
        /// The member.
        name: String,
    },
    /// An empty name.
    #[error("the {what} is empty")]
    Empty {
        /// Which setting.
        what: &'static str,
    },
}

impl RouteSpecError {
    /// What the operator can do about it.
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
