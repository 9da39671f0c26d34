//! Defines [`Record`]: what is sent to Kafka (topic, partition, key, value, headers, timestamp).
//!
//! It borrows from the read buffer and the router's scratch buffer, without allocation in steady state.
//! [`OwnedRecord`] is for the rare record that outlives its frame: dead letters and refused records. Also a
//! record's weight against the in-flight budget, its largest size on the wire, and a hash by which it is
//! recognised when it is sent again.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use smallvec::SmallVec;

use super::trace::{TRACEPARENT_HEADER, TraceContext};

/// Header name and value in wire order; `None` is Kafka's null value. Repeated names are kept.
/// Eight fit inline, more spill to the heap.
pub type Headers<'a> = SmallVec<[(&'a str, Option<&'a [u8]>); 8]>;

/// Bytes a record alone in its batch takes besides its parts, at most: 61 of the batch's header and
/// some 35 of lengths, offsets and timestamps (record format 2), rounded up.
pub(super) const RECORD_OVERHEAD_BYTES: usize = 128;

/// Bytes a header takes besides name and value, at most: two lengths of up to 5 bytes.
pub(super) const HEADER_OVERHEAD_BYTES: usize = 10;

/// A record has no time of its own; brokers take it whatever they think of times (`NO_TIMESTAMP` of
/// Kafka's record format 2).
pub const NO_TIMESTAMP: i64 = -1;

/// One Kafka record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record<'a> {
    /// A legal topic name.
    pub topic: &'a str,
    /// A fixed partition, or `None` to let the partitioner choose by key.
    pub partition: Option<i32>,
    /// `None` is the null key, which differs from an empty one.
    pub key: Option<&'a [u8]>,
    /// `None` is a tombstone.
    pub value: Option<&'a [u8]>,
    /// In wire order.
    pub headers: Headers<'a>,
    /// Milliseconds since the Unix epoch, from 0; or [`NO_TIMESTAMP`].
    pub timestamp_ms: i64,
}

/// A number by which a record is recognised when it is sent again. Headers and timestamp do not count:
/// a report of the brokers names neither.
pub fn content_of(topic: &str, key: Option<&[u8]>, value: Option<&[u8]>) -> u64 {
    let mut hasher = DefaultHasher::new();
    (topic, key, value).hash(&mut hasher);
    hasher.finish()
}

impl Record<'_> {
    /// Bytes this record weighs against the in-flight budget: key, value and headers.
    pub fn weight(&self) -> usize {
        let header =
            |(name, value): &(&str, Option<&[u8]>)| name.len() + value.map_or(0, <[u8]>::len);
        self.key.map_or(0, <[u8]>::len)
            + self.value.map_or(0, <[u8]>::len)
            + self.headers.iter().map(header).sum::<usize>()
    }

    /// The largest number of bytes the record can take on the wire, uncompressed: what limits on
    /// message sizes are held against.
    pub fn wire_size_max(&self) -> usize {
        RECORD_OVERHEAD_BYTES + self.headers.len() * HEADER_OVERHEAD_BYTES + self.weight()
    }

    /// The trace that its `traceparent` names, if it has a valid one.
    pub fn trace(&self) -> Option<TraceContext> {
        let mut headers = self.headers.iter();
        let (_, text) = headers.find(|(name, _)| *name == TRACEPARENT_HEADER)?;
        TraceContext::parse((*text)?)
    }

    /// A copy that owns its bytes.
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

/// A [`Record`] that owns its bytes.
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
    /// Lends the record to the send path.
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
