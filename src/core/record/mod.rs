//! Reads records back from Kafka, especially dead letters.
//!
//! Parsing returns the written values, even if the record's own headers have equal names.

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
