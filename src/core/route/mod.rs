//! Turns an outbox row into a Kafka record, or into a rejection.
//!
//! Every row becomes a [`Record`], which borrows the frame and the router's scratch buffer, or a
//! [`Rejection`], unless a rule drops it (G4), whatever bytes it contains (G7).

mod array;
mod cloudevents;
mod column;
mod compile;
mod datetime;
mod dead_letter;
mod debezium_time;
mod decimal;
mod decisions;
mod format;
mod item;
mod java_regex;
mod json;
mod keyword_enum;
mod record;
mod rejection;
mod render;
mod router;
mod schema;
mod source;
mod spec;
mod template;
#[cfg(test)]
mod tests;
mod topics;
mod trace;
mod value;

pub use crate::record::{
    COMMIT_TIMESTAMP_HEADER, ERROR_CODE_HEADER, ERROR_HEADER, EXPLANATION_HEADERS, LSN_HEADER,
    ORIGIN_HEADER, TABLE_HEADER, TIMESTAMP_HEADER, TOPIC_HEADER,
};
pub use compile::check_members;
pub use datetime::{parse as parse_time, rfc3339};
pub use dead_letter::untimed;
pub use format::{
    ByteaForm, ColumnStyle, EmptyPayload, EpochUnit, FormatSpec, KeyFormat, Members, MissingColumn,
    ValueFormat,
};
pub use java_regex::{Matcher, Undecided};
pub use keyword_enum::keyword_enum;
pub use record::{Headers, NO_TIMESTAMP, OwnedRecord, Record, content_of};
pub use rejection::{Rejection, RejectionCode};
pub use router::{Router, position_text};
pub use spec::{
    DestinationSpec, FieldSpec, PatternSpec, RouteSpec, RouteSpecError, RowOrigin, RuleAction,
    RuleSpec, TimestampSource,
};
pub use template::{TopicTemplate, WHOLE_VALUE};
pub use topics::{PROGRESS_PREFIX, TopicsSpec, as_compared, check_beginning, check_topic};
pub use trace::{TRACEPARENT_HEADER, TraceContext};
