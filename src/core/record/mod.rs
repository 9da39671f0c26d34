//! Records that are stored in Kafka, above all dead letters: parsing, headers, selection.
//!
//! Input: records read from topics. Output: [`DeadLetter`]s, written by the relay or by a consumer; the
//! headers of a consumer's dead letter; a selection of them ([`Filter`]); the receipt that says that one
//! was sent again. Invariant: parsing returns what was written, even where the record's own headers have
//! the same names. No I/O.

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
