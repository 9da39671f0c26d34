//! A record as a consumer received it, on its own.
//!
//! Enters: what a Kafka client lends. Leaves: a copy that outlives the poll, so that it can be laid
//! down or sent again byte for byte. Called by the rest of the room and by `inbox`.

use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};

/// A header's name and value; `None` is a null value.
pub type Header = (String, Option<Vec<u8>>);

/// A Kafka record and where it lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The topic it lies in.
    pub topic: String,
    /// From 0.
    pub partition: i32,
    /// From 0.
    pub offset: i64,
    /// Milliseconds since the Unix epoch; `None` where the broker keeps no time.
    pub timestamp_ms: Option<i64>,
    /// `None` is a null key.
    pub key: Option<Vec<u8>>,
    /// `None` is a null value.
    pub value: Option<Vec<u8>>,
    /// In wire order; names may repeat.
    pub headers: Vec<Header>,
}

impl Record {
    /// Copies what the client lends until its next poll.
    pub(crate) fn copy(message: &BorrowedMessage<'_>) -> Self {
        let headers = message.headers().into_iter().flat_map(|headers| headers.iter());
        Self {
            topic: message.topic().to_owned(),
            partition: message.partition(),
            offset: message.offset(),
            timestamp_ms: message.timestamp().to_millis(),
            key: message.key().map(<[u8]>::to_vec),
            value: message.payload().map(<[u8]>::to_vec),
            headers: headers
                .map(|header| (header.key.to_owned(), header.value.map(<[u8]>::to_vec)))
                .collect(),
        }
    }

    /// One that holds nothing.
    #[cfg(test)]
    pub(crate) fn bare(topic: &str, partition: i32, offset: i64) -> Self {
        let topic = topic.to_owned();
        let (timestamp_ms, key, value, headers) = (None, None, None, Vec::new());
        Self { topic, partition, offset, timestamp_ms, key, value, headers }
    }

    /// The value of the first header of that name; `None` also where it is null.
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        let (_, value) = self.headers.iter().find(|(header, _)| header == name)?;
        value.as_deref()
    }
}
