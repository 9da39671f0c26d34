//! Hashes the parts of a record that must equal the routing's result. Pure.
//!
//! The hash excludes values that only the log or the moment determines, and the marks of repeats.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use postrider_config::Config;
use postrider_core::record::{LSN_HEADER, ORIGIN_HEADER, RETRIED_HEADER};
use postrider_core::route::ValueFormat;

/// Time of an event in CloudEvents' binary mode.
const TIME_HEADER: &str = "ce_time";

/// Precedes the time in CloudEvents' structured mode. Inside a JSON string, the quotes would have
/// backslashes.
const TIME_MEMBER: &[u8] = b",\"time\":\"";

/// Length of `2026-01-01T00:00:00.000Z`.
const TIME_BYTES: usize = 24;

#[derive(Debug, Clone)]
pub struct Content {
    pub id_header: String,
    is_structured: bool,
}

impl Content {
    pub fn of(config: &Config) -> Self {
        let is_structured = config.format.value == ValueFormat::CloudEventsStructured;
        Self { id_header: config.route.id_header.clone(), is_structured }
    }

    /// Stable between runs.
    pub fn hash<'a>(
        &self,
        topic: &str,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: impl Iterator<Item = (&'a str, Option<&'a [u8]>)>,
    ) -> u64 {
        let mut hasher = DefaultHasher::new();
        (topic, key).hash(&mut hasher);
        match value.map(|value| self.without_time(value)) {
            None => 0_u8.hash(&mut hasher),
            Some(parts) => parts.hash(&mut hasher),
        }
        let is_compared = |(name, _): &(&str, _)| {
            ![LSN_HEADER, RETRIED_HEADER, ORIGIN_HEADER, TIME_HEADER].contains(name)
        };
        for header in headers.filter(is_compared) {
            header.hash(&mut hasher);
        }
        hasher.finish()
    }

    fn without_time<'v>(&self, value: &'v [u8]) -> (&'v [u8], &'v [u8]) {
        let windows = || value.windows(TIME_MEMBER.len()).position(|window| window == TIME_MEMBER);
        let Some(at) = self.is_structured.then(windows).flatten() else { return (value, b"") };
        let (before, time) = value.split_at(at + TIME_MEMBER.len());
        (before, time.get(TIME_BYTES..).unwrap_or_default())
    }
}

/// Parses a position as [`postrider_core::route::position_text`] prints it.
pub(super) fn position(text: &[u8]) -> Option<(u64, u32)> {
    let (lsn, index) = str::from_utf8(text).ok()?.split_once('.')?;
    // An index beyond `u32` sorts after all others.
    let index = index.parse::<u64>().ok()?;
    Some((u64::from_str_radix(lsn, 16).ok()?, u32::try_from(index).unwrap_or(u32::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_core::lsn::Lsn;
    use postrider_core::outbox::Position;
    use postrider_core::pgoutput::PgTime;
    use postrider_core::route::position_text;

    fn content(is_structured: bool) -> Content {
        Content { id_header: "id".to_owned(), is_structured }
    }

    type Parts<'a> =
        (&'a str, Option<&'a [u8]>, Option<&'a [u8]>, &'a [(&'a str, Option<&'a [u8]>)]);

    fn hash(content: &Content, (topic, key, value, headers): Parts<'_>) -> u64 {
        content.hash(topic, key, value, headers.iter().copied())
    }

    #[test]
    fn every_part_counts_and_null_is_not_empty() {
        let parts: [Parts<'_>; 9] = [
            ("t", Some(b"k"), Some(b"v"), &[("id", Some(b"1"))]),
            ("u", Some(b"k"), Some(b"v"), &[("id", Some(b"1"))]),
            ("t", Some(b""), Some(b"v"), &[("id", Some(b"1"))]),
            ("t", None, Some(b"v"), &[("id", Some(b"1"))]),
            ("t", Some(b"k"), Some(b""), &[("id", Some(b"1"))]),
            ("t", Some(b"k"), None, &[("id", Some(b"1"))]),
            ("t", Some(b"k"), Some(b"v"), &[("id", None)]),
            ("t", Some(b"k"), Some(b"v"), &[("id", Some(b"1")), ("id", Some(b"1"))]),
            ("t", Some(b"k"), Some(b"v"), &[]),
        ];
        let all: std::collections::BTreeSet<u64> =
            parts.iter().map(|parts| hash(&content(false), *parts)).collect();
        assert_eq!(all.len(), parts.len());
    }

    #[test]
    fn position_and_marks_do_not_count() {
        let own: &[(&str, Option<&[u8]>)] = &[("id", Some(b"1"))];
        let sent: &[(&str, Option<&[u8]>)] = &[
            ("id", Some(b"1")),
            (LSN_HEADER, Some(b"0000000000000001.0000000000")),
            (ORIGIN_HEADER, Some(b"backfill")),
            (RETRIED_HEADER, Some(b"0:1")),
        ];
        let content = content(false);
        let of = |headers| hash(&content, ("t", None, None, headers));
        assert_eq!(of(own), of(sent));
    }

    #[test]
    fn the_time_of_an_event_does_not_count_and_the_rest_of_it_does() {
        let value = |time: &str, data: &str| {
            format!("{{\"id\":\"1\",\"time\":\"2026-01-0{time}T00:00:00.000Z\",\"data\":{data}}}")
        };
        let of = |is_structured, time, data| {
            let value = value(time, data);
            hash(&content(is_structured), ("t", None, Some(value.as_bytes()), &[]))
        };
        assert_eq!(of(true, "1", "1"), of(true, "2", "1"));
        assert_ne!(of(true, "1", "1"), of(true, "1", "2"));
        assert_ne!(of(false, "1", "1"), of(false, "2", "1"));
    }

    #[test]
    fn positions_are_read_as_they_are_printed() {
        let commit_lsn = Lsn::new(0x1_6B37_4D84);
        let of = |index| {
            let text =
                position_text(Position { commit_lsn, index, commit_time: PgTime::default() });
            position(&text)
        };
        assert_eq!(of(3), Some((0x1_6B37_4D84, 3)));
        assert_eq!(of(u64::MAX), Some((0x1_6B37_4D84, u32::MAX)));
        for wrong in ["", "1", "x.1", "1.", "1.x"] {
            assert_eq!(position(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
