//! How rows become records, as the configuration says it.

use std::str::FromStr;

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
    /// The column whose bytes are the record's key.
    pub key: String,
    /// Columns sent as headers, in this order, after the id.
    pub headers: Vec<HeaderSpec>,
    /// The name of the header that carries the row's id.
    pub id_header: String,
    /// Whether each record tells its position in the header [`super::LSN_HEADER`].
    pub lsn_header: bool,
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

impl Default for RouteSpec {
    fn default() -> Self {
        Self {
            id: "id".to_owned(),
            payload: "payload".to_owned(),
            by: "event_type".to_owned(),
            regex: super::template::WHOLE_VALUE.to_owned(),
            topic: "${routedByValue}".to_owned(),
            key: "aggregate_id".to_owned(),
            headers: ["event_type", "aggregate_type"].map(HeaderSpec::of_column).to_vec(),
            id_header: "id".to_owned(),
            lsn_header: true,
            traceparent: Some(super::TRACEPARENT_HEADER.to_owned()),
            timestamp: TimestampSource::Commit,
            empty_payload: EmptyPayload::Keep,
            max_record_bytes: RECORD_BYTES_MAX,
        }
    }
}

/// A column sent as header. Written `column` or `column:name`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderSpec {
    /// The column.
    pub column: String,
    /// The header's name.
    pub name: String,
    /// Whether a table without the column is refused; otherwise its rows lack the header.
    pub required: bool,
}

impl HeaderSpec {
    /// A header named like its column, which every table must have.
    pub fn of_column(column: &str) -> Self {
        Self { column: column.to_owned(), name: column.to_owned(), required: true }
    }
}

impl FromStr for HeaderSpec {
    type Err = RouteSpecError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (column, name) = text.split_once(':').unwrap_or((text, text));
        let (column, name) = (column.trim(), name.trim());
        if column.is_empty() || name.is_empty() || name.contains(':') {
            return Err(RouteSpecError::HeaderSyntax { text: text.to_owned() });
        }
        Ok(Self { name: name.to_owned(), ..Self::of_column(column) })
    }
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

/// What an integer timestamp counts since 1970-01-01 UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EpochUnit {
    /// Milliseconds.
    Milliseconds,
    /// Microseconds.
    Microseconds,
}

/// What becomes of a payload that is empty or only white space. SQL NULL is a tombstone anyway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmptyPayload {
    /// It is sent as it is.
    Keep,
    /// It becomes a null value. Never done to a `bytea`.
    Tombstone,
}

/// A routing that cannot work for any row.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RouteSpecError {
    /// The pattern is not a regular expression that can be run in bounded time.
    #[error("the route's regex does not compile: {reason}")]
    Regex {
        /// The compiler's words; spans several lines.
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
    /// A header that is not `column` or `column:name`.
    #[error("`{text}` is not a header of the form `column` or `column:name`")]
    HeaderSyntax {
        /// As written.
        text: String,
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
            Self::Regex { .. } => Some(
                "look-around and back-references of Java's regular expressions are not offered"
                    .to_owned(),
            ),
            Self::UnknownGroup { known, .. } => Some(format!("it has {}", known.join(", "))),
            Self::TopicSyntax { .. } => {
                Some("write ${name} or $1 for a group of the regex".to_owned())
            }
            Self::TopicCharacter { .. } => {
                Some("topics are made of a-z, A-Z, 0-9, `.`, `_` and `-`".to_owned())
            }
            Self::HeaderSyntax { .. } | Self::Empty { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_a_column_and_perhaps_a_name() {
        assert_eq!("type".parse(), Ok(HeaderSpec::of_column("type")));
        let renamed = HeaderSpec { name: "kind".to_owned(), ..HeaderSpec::of_column("type") };
        assert_eq!(" type : kind ".parse(), Ok(renamed));
        for wrong in ["", ":", "type:", ":kind", "a:b:c"] {
            assert!(wrong.parse::<HeaderSpec>().is_err(), "{wrong}");
        }
    }
}
