//! Kafka records at rest, and those among them that are dead letters: what they are made of.
//!
//! Enters: records as they lie in topics. Leaves: [`DeadLetter`]s, whoever wrote them; the headers of
//! a consumer's new one; the choice of some of them ([`Filter`]); and what tells that one was sent
//! again. What always holds: reading gives back what was written, also where a record's own headers
//! have the same names. Pure.

mod consumer;
mod dead_letter;
mod filter;
mod headers;
mod partitioner;
mod stored;

pub use consumer::{ConsumerFailure, Truncation};
pub use dead_letter::{DeadLetter, DeadLetterOrigin, Note, receipt_of, retried};
pub use filter::{Filter, Target};
pub use headers::{
    ATTEMPTS_HEADER, COMMIT_TIMESTAMP_HEADER, CONSUMER_HEADER, CUT_HEADER, ERROR_CODE_HEADER,
    ERROR_HEADER, EXPLANATION_HEADERS, FAILED_HEADER, FIRST_FAILED_HEADER, LSN_HEADER,
    OFFSET_HEADER, PARTITION_HEADER, RETRIED_HEADER, TABLE_HEADER, TIMESTAMP_HEADER,
    TOO_LARGE_CODE, TOPIC_HEADER,
};
pub use partitioner::Partitioner;
pub use stored::{Header, PartitionOffset, StoredRecord};

fn text(name: &str, value: impl Into<Vec<u8>>) -> Header {
    (name.to_owned(), Some(value.into()))
}
