//! Defines [`StoredRecord`], an owned record read from a topic.

use std::fmt;
use std::str::FromStr;

/// Name and value; `None` is a null value.
pub type Header = (String, Option<Vec<u8>>);

/// A record in its topic.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoredRecord {
    /// Topic.
    pub topic: String,
    /// Partition.
    pub partition: i32,
    /// Offset.
    pub offset: i64,
    /// Unix milliseconds.
    pub timestamp_ms: Option<i64>,
    /// Null and empty differ.
    pub key: Option<Vec<u8>>,
    /// Null and empty differ.
    pub value: Option<Vec<u8>>,
    /// Wire order; names may repeat.
    pub headers: Vec<Header>,
}

impl StoredRecord {
    /// Position in the topic.
    pub fn at(&self) -> PartitionOffset {
        PartitionOffset { partition: self.partition, offset: self.offset }
    }

    /// Value of the first header with this name; `None` if it is missing or null.
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        first(&self.headers, name)
    }
}

pub(super) fn first<'h>(headers: &'h [Header], name: &str) -> Option<&'h [u8]> {
    let (_, value) = headers.iter().find(|(header, _)| header == name)?;
    value.as_deref()
}

/// Position in a topic; prints as `PARTITION:OFFSET`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionOffset {
    /// From 0.
    pub partition: i32,
    /// From 0.
    pub offset: i64,
}

impl fmt::Display for PartitionOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.partition, self.offset)
    }
}

impl FromStr for PartitionOffset {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let (partition, offset) = text.split_once(':').ok_or(())?;
        if !plain(partition) || !plain(offset) {
            return Err(());
        }
        let numbers = (partition.parse(), offset.parse());
        let (Ok(partition), Ok(offset)) = numbers else { return Err(()) };
        Ok(Self { partition, offset })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_printed_is_read(partition in 0..=i32::MAX, offset in 0..=i64::MAX) {
            let at = PartitionOffset { partition, offset };
            prop_assert_eq!(at.to_string().parse(), Ok(at));
        }
    }

    #[test]
    fn what_is_no_partition_and_offset_is_refused() {
        for text in [
            "",
            ":",
            "1",
            "1:",
            ":1",
            "+3:17",
            "-1:2",
            "1:+2",
            "1:-2",
            "1:2:3",
            "a:b",
            "99999999999:1",
            "1:99999999999999999999",
        ] {
            assert_eq!(text.parse::<PartitionOffset>(), Err(()), "{text}");
        }
    }
}
