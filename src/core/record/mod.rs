//! Reads records back from Kafka, especially dead letters, and builds the record for sending one
//! again.
//!
//! Input: records read from topics. Output: [`DeadLetter`]s, written by the relay or by a consumer;
//! a selection of them ([`Filter`]); headers for a consumer's dead letter and for a record that is
//! sent again; the receipt for it. Also the header names, and the setting for partitioning by key.
//! Invariant: parsing returns the written values, even if the record's own headers have the same
//! names. No I/O.

mod consumer;
mod dead_letter;
mod filter;
mod headers;
mod letter_source;
mod partitioner;
mod stored;

pub use consumer::{ConsumerFailure, Truncation};
pub use dead_letter::{DeadLetter, DeadLetterOrigin, Note, receipt_of, retried};
pub use filter::{Filter, Target};
pub use headers::{
    ATTEMPTS_HEADER, COMMIT_TIMESTAMP_HEADER, CONSUMER_HEADER, CUT_HEADER, DATABASE_HEADER,
    ERROR_CODE_HEADER, ERROR_HEADER, EXPLANATION_HEADERS, FAILED_HEADER, FIRST_FAILED_HEADER,
    LSN_HEADER, OFFSET_HEADER, ORIGIN_HEADER, PARTITION_HEADER, RETRIED_HEADER, SLOT_HEADER,
    STREAM_HEADER, SYSTEM_HEADER, TABLE_HEADER, TIMESTAMP_HEADER, TOO_LARGE_CODE, TOPIC_HEADER,
};
pub use letter_source::{Kinship, LetterSource};
pub use partitioner::Partitioner;
pub use stored::{Header, PartitionOffset, StoredRecord};

fn text(name: &str, value: impl Into<Vec<u8>>) -> Header {
    (name.to_owned(), Some(value.into()))
}
