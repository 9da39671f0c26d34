//! What a row is known by: a dense number in its `id`, and a lane, which is its topic and its key.
//!
//! Numbers make the account of millions of rows a few bytes each, and let a record be held against
//! the row it claims to be.

/// Topics, besides the dead letters'.
pub(crate) const TOPICS: usize = 5;

/// Partitions of each topic, the dead letters' too.
pub(crate) const PARTITIONS: usize = 3;

/// Partitions of all topics.
pub(crate) const PLACES: usize = (TOPICS + 1) * PARTITIONS;

/// Keys of each topic.
pub(crate) const KEYS: u16 = 36;

/// What is read where no row could be meant.
pub(crate) const NOBODY: u32 = u32::MAX;

/// A topic and a key: the rows of a lane have an order.
pub(crate) type Lane = u16;

/// A lane that no row has.
pub(crate) const NO_LANE: Lane = Lane::MAX;

/// The lane of a topic, from 0, and a key, from 0.
pub(crate) const fn lane(topic: u16, key: u16) -> Lane {
    topic * KEYS + key
}

/// How many lanes there are.
pub(crate) const fn lanes() -> usize {
    TOPICS * KEYS as usize
}

/// One row of an INSERT's VALUES: id, aggregate_type, aggregate_id, event_type, payload. A doomed
/// one is never committed.
pub(crate) fn values(number: u32, lane: Lane, is_doomed: bool) -> String {
    let (topic, key) = (lane / KEYS, lane % KEYS);
    let mark = if is_doomed { ", \"doomed\": true" } else { "" };
    format!("('{}','crash','k{key}','t{topic}','{{\"n\": {number}{mark}}}')", id(number))
}

/// What a committed row's value is.
pub(crate) fn payload(number: u32) -> String {
    format!("{{\"n\": {number}}}")
}

fn id(number: u32) -> String {
    format!("00000000-0000-4000-8000-{number:012x}")
}

/// The number in an id, where it is one of ours.
pub(crate) fn number(id: &str) -> Option<u32> {
    let digits = id.strip_prefix("00000000-0000-4000-8000-")?;
    if digits.len() != 12 {
        return None;
    }
    u32::from_str_radix(digits, 16).ok()
}

/// The topic in `t3`.
pub(crate) fn topic(name: &str) -> Option<u16> {
    let topic = name.strip_prefix('t')?.parse().ok()?;
    (usize::from(topic) < TOPICS).then_some(topic)
}

/// The key in `k17`.
pub(crate) fn key(text: &str) -> Option<u16> {
    text.strip_prefix('k')?.parse().ok().filter(|key| *key < KEYS)
}
