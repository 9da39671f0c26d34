//! Topics that keep refusing records for their size.
//!
//! Enters: each such refusal. Leaves: for a record, whether it is refused without being sent. What always
//! holds: a refusal costs a session, and a topic does not cost one for each of its rows (G4); what is
//! not sent is at least as large as something that the topic refused not long ago; memory is bounded.
//!
//! Time is that of commits: the same rows are judged alike in every session. Sizes are those of records
//! before compression, so that one which would have fitted when compressed may be among those that are
//! not sent. Therefore a few refusals in a row are taken before anything is inferred from them.

use std::collections::BTreeMap;

use crate::route::{Rejection, RejectionCode};

/// So many refusals are seen before larger records are not sent.
const REFUSALS: u32 = 3;
/// Refusals further apart than this, in microseconds, are not related.
const RELATED_US: i64 = 60_000_000;
/// For so long larger records are not sent, in microseconds; then one is, and decides on twice as long.
const PAUSE_US: i64 = 60_000_000;
/// The longest pause: as long as a topic whose limit was raised may still lack its larger records.
const PAUSE_MAX_US: i64 = 600_000_000;
/// Topics remembered; beyond that the one that refused longest ago is forgotten.
const TOPICS_MAX: usize = 1_000;

/// What one topic refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Limit {
    /// The smallest record.
    bytes: u64,
    refusals: u32,
    /// Commit time of the last one, in microseconds since the Unix epoch.
    last_us: i64,
    pause_us: i64,
}

impl Limit {
    const fn until_us(self) -> i64 {
        self.last_us.saturating_add(self.pause_us)
    }
}

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Oversize(BTreeMap<String, Limit>);

impl Oversize {
    /// Whether no topic has refused any.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A topic has refused a record of so many bytes, whose row committed at `at_us`.
    pub(super) fn refused(&mut self, topic: &str, bytes: u64, at_us: i64) {
        let first = Limit { bytes, refusals: 1, last_us: at_us, pause_us: 0 };
        let Some(limit) = self.0.get_mut(topic) else {
            if self.0.len() >= TOPICS_MAX {
                let oldest = self.0.iter().min_by_key(|(_, limit)| limit.last_us);
                let oldest = oldest.map(|(topic, _)| topic.clone());
                oldest.map(|topic| self.0.remove(&topic));
            }
            self.0.insert(topic.to_owned(), first);
            return;
        };
        let forgotten = limit.until_us().saturating_add(limit.pause_us.max(RELATED_US));
        if at_us > forgotten {
            *limit = first;
            return;
        }
        limit.bytes = limit.bytes.min(bytes);
        limit.refusals = limit.refusals.saturating_add(1);
        if limit.refusals >= REFUSALS && at_us >= limit.until_us() {
            limit.pause_us = (limit.pause_us * 2).clamp(PAUSE_US, PAUSE_MAX_US);
        }
        limit.last_us = limit.last_us.max(at_us);
    }

    /// Why a record of a row that committed at `at_us` is not sent, if it is not.
    pub(super) fn judge(&self, topic: &str, bytes: u64, at_us: i64) -> Option<Rejection> {
        let limit = self.0.get(topic)?;
        let applies =
            limit.refusals >= REFUSALS && bytes >= limit.bytes && at_us <= limit.until_us();
        applies.then(|| Rejection {
            code: RejectionCode::TooLarge,
            reason: format!(
                "topic `{topic}` has just refused records of {} bytes and more, and this one has {bytes}: \
                 it was not sent",
                limit.bytes
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000;

    fn refused_thrice() -> Oversize {
        let mut oversize = Oversize::default();
        for at in 0..3 {
            assert_eq!(oversize.judge("t", 900, at), None, "{at}");
            oversize.refused("t", 600 + 100 * at.unsigned_abs(), at * SECOND);
        }
        oversize
    }

    #[test]
    fn g4_the_fourth_record_as_large_is_not_sent() {
        let oversize = refused_thrice();
        let rejection = oversize.judge("t", 600, 3 * SECOND).unwrap();
        assert_eq!(rejection.code, RejectionCode::TooLarge);
        assert_eq!(oversize.judge("t", 599, 3 * SECOND), None, "a smaller one is");
        assert_eq!(oversize.judge("u", 900, 3 * SECOND), None, "another topic's is");
    }

    #[test]
    fn g4_one_record_a_pause_finds_out_whether_the_limit_was_raised() {
        let mut oversize = refused_thrice();
        let mut sent = 0;
        // An hour with a record of 700 bytes each second.
        for at in 3..3_600 {
            if oversize.judge("t", 700, at * SECOND).is_none() {
                sent += 1;
                oversize.refused("t", 700, at * SECOND);
            }
        }
        assert!((6..=12).contains(&sent), "{sent}");
        assert!(oversize.judge("t", 700, 3_600 * SECOND + PAUSE_MAX_US).is_none());
    }

    #[test]
    fn refusals_far_apart_are_each_tried() {
        let mut oversize = Oversize::default();
        for at in 0..10 {
            let at_us = at * 2 * RELATED_US;
            assert_eq!(oversize.judge("t", 700, at_us), None, "{at}");
            oversize.refused("t", 700, at_us);
        }
    }

    #[test]
    fn rows_told_out_of_the_order_of_their_commits_change_nothing() {
        let mut oversize = refused_thrice();
        oversize.refused("t", 700, SECOND);
        assert!(oversize.judge("t", 700, 61 * SECOND).is_some());
        assert!(oversize.judge("t", 700, 63 * SECOND).is_none());
    }

    #[test]
    fn g3_topics_are_forgotten_in_the_end() {
        let mut oversize = Oversize::default();
        for n in 0..3 * TOPICS_MAX {
            oversize.refused(&format!("t{n}"), 700, i64::try_from(n).unwrap());
        }
        assert_eq!(oversize.0.len(), TOPICS_MAX);
    }
}
