//! Defines [`Record`], a Kafka record to send.
//!
//! A record borrows from the read buffer and the router's scratch buffer. [`OwnedRecord`] outlives
//! its frame.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use smallvec::SmallVec;

use super::trace::{TRACEPARENT_HEADER, TraceContext};

/// Header names and values in wire order; names may repeat. Eight fit inline.
pub type Headers<'a> = SmallVec<[(&'a str, Option<&'a [u8]>); 8]>;

/// Upper bound for a record alone in its batch: 61 bytes of batch header and about 35 of lengths,
/// offsets and timestamps (record format 2).
pub(super) const RECORD_OVERHEAD_BYTES: usize = 128;

/// Two lengths of up to 5 bytes.
pub(super) const HEADER_OVERHEAD_BYTES: usize = 10;

/// No timestamp, for brokers with any clock (`NO_TIMESTAMP` of record format 2).
pub const NO_TIMESTAMP: i64 = -1;

/// One Kafka record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record<'a> {
    /// Legal topic name.
    pub topic: &'a str,
    /// `None`: the partitioner chooses.
    pub partition: Option<i32>,
    /// `None`: the null key, which differs from an empty one.
    pub key: Option<&'a [u8]>,
    /// `None`: a tombstone.
    pub value: Option<&'a [u8]>,
    /// Wire order.
    pub headers: Headers<'a>,
    /// Unix milliseconds from 0, or [`NO_TIMESTAMP`].
    pub timestamp_ms: i64,
}

/// Hash that recognises a record. Headers and timestamp do not count, because the brokers' reports
/// lack them.
pub fn content_of(topic: &str, key: Option<&[u8]>, value: Option<&[u8]>) -> u64 {
    let mut hasher = DefaultHasher::new();
    (topic, key, value).hash(&mut hasher);
    hasher.finish()
}

impl Record<'_> {
    /// Bytes for the in-flight budget.
    pub fn weight(&self) -> usize {
        let header =
            |(name, value): &(&str, Option<&[u8]>)| name.len() + value.map_or(0, <[u8]>::len);
        self.key.map_or(0, <[u8]>::len)
            + self.value.map_or(0, <[u8]>::len)
            + self.headers.iter().map(header).sum::<usize>()
    }

    /// Largest uncompressed size in bytes, for size limits.
    pub fn wire_size_max(&self) -> usize {
        RECORD_OVERHEAD_BYTES + self.headers.len() * HEADER_OVERHEAD_BYTES + self.weight()
    }

    /// Its valid `traceparent`.
    pub fn trace(&self) -> Option<TraceContext> {
        let mut headers = self.headers.iter();
        let (_, text) = headers.find(|(name, _)| *name == TRACEPARENT_HEADER)?;
        TraceContext::parse((*text)?)
    }

    /// An owned copy.
    pub fn to_owned(&self) -> OwnedRecord {
        OwnedRecord {
            topic: self.topic.to_owned(),
            partition: self.partition,
            key: self.key.map(<[u8]>::to_vec),
            value: self.value.map(<[u8]>::to_vec),
            headers: self
                .headers
                .iter()
                .map(|&(name, value)| (name.to_owned(), value.map(<[u8]>::to_vec)))
                .collect(),
            timestamp_ms: self.timestamp_ms,
        }
    }
}

/// An owned [`Record`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OwnedRecord {
    /// See [`Record::topic`].
    pub topic: String,
    /// See [`Record::partition`].
    pub partition: Option<i32>,
    /// See [`Record::key`].
    pub key: Option<Vec<u8>>,
    /// See [`Record::value`].
    pub value: Option<Vec<u8>>,
    /// See [`Record::headers`].
    pub headers: Vec<(String, Option<Vec<u8>>)>,
    /// See [`Record::timestamp_ms`].
    pub timestamp_ms: i64,
}

impl OwnedRecord {
    /// Borrows the record for sending.
    pub fn as_record(&self) -> Record<'_> {
        Record {
            topic: &self.topic,
            partition: self.partition,
            key: self.key.as_deref(),
            value: self.value.as_deref(),
            headers: self
                .headers
                .iter()
                .map(|(name, value)| (name.as_str(), value.as_deref()))
                .collect(),
            timestamp_ms: self.timestamp_ms,
        }
    }
}
