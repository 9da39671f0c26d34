//! What is inferred from the records that a topic keeps refusing.
//!
//! Enters: each refusal whose cause can be told from the record itself. Leaves: for a record, whether it
//! is refused without being sent. What always holds: a refusal costs a session, and a topic does not cost
//! one for each of its rows (G4); what is not sent has the same cause as several that the topic refused not
//! long ago, to at least the same degree or, where degrees kept falling, short of it by a bounded margin;
//! memory is bounded.
//!
//! Time is that of commits: the same rows are judged alike in every session. Sizes are those of records
//! before compression, and the topic's bounds of time follow the brokers' clock, so that a record which
//! would have been taken may be among those that are not sent. Therefore a few refusals in a row are
//! taken before anything is inferred from them.

use std::collections::BTreeMap;

use super::confirmation::Aspect;
use crate::route::{Record, Rejection, RejectionCode};

/// Refusals further apart than this, in microseconds, are not related.
const RELATED_US: i64 = 60_000_000;
/// For so long other records are not sent, in microseconds; then one is, and decides on twice as long.
const PAUSE_US: i64 = 60_000_000;
/// The longest pause: as long as a topic whose settings were changed may still lack records.
const PAUSE_MAX_US: i64 = 600_000_000;
/// Rows committed so much earlier, in microseconds, were committed before a clock was put back.
const CLOCK_PUT_BACK_US: i64 = 3_600_000_000;
/// Times that lie ahead are compared as multiples of this, in milliseconds: those that are to be as far from
/// their commits differ by what a commit takes. One that is closer did not choose its time.
const MINUTE_MS: u64 = 60_000;
/// How much younger than a record that was refused as too old others may be that are not sent, in
/// milliseconds.
const YOUNGER_MS: u64 = 60_000;
/// Topics remembered; beyond that the one that refused longest ago is forgotten.
const TOPICS_MAX: usize = 1_000;

/// Why a topic refuses records, where a record shows whether it has the same cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    Size,
    NoKey,
    Ahead,
    Old,
}

impl Cause {
    const ALL: [Self; 4] = [Self::Size, Self::NoKey, Self::Ahead, Self::Old];

    /// How much of it a record has whose row committed at `at_us`: bytes of its weight, minutes after its
    /// commit, milliseconds below the largest timestamp; `None` if nothing.
    fn degree(self, record: &Record<'_>, at_us: i64) -> Option<u64> {
        let ahead = record.timestamp_ms.saturating_sub(at_us.div_euclid(1_000));
        match self {
            Self::Size => Some(record.weight() as u64),
            Self::NoKey => record.key.is_none().then_some(1),
            Self::Ahead => {
                let minutes = (ahead.unsigned_abs() + MINUTE_MS / 2) / MINUTE_MS;
                Some(minutes).filter(|minutes| ahead > 0 && *minutes > 0)
            }
            Self::Old => Some(i64::MAX.abs_diff(record.timestamp_ms)),
        }
    }

    /// So many refusals are seen before other records are not sent. That a topic demands keys is known from
    /// its settings; how well a record compresses, and the brokers' clock, are not known.
    const fn refusals(self) -> u32 {
        match self {
            Self::NoKey => 1,
            Self::Size => 2,
            Self::Ahead | Self::Old => 3,
        }
    }

    /// The most by which records may fall short of what was refused, and are not sent either.
    fn margin_max(self, least: u64) -> u64 {
        match self {
            Self::Old => YOUNGER_MS,
            Self::Size | Self::NoKey | Self::Ahead => least / 8,
        }
    }

    /// What the brokers' complaint about this record comes to, and to what degree.
    fn of(aspect: Aspect, record: &Record<'_>, at_us: i64) -> Option<(Self, u64)> {
        let causes: &[Self] = match aspect {
            Aspect::Size => &[Self::Size],
            Aspect::Key => &[Self::NoKey],
            Aspect::Time => &[Self::Ahead, Self::Old],
            Aspect::Unknown | Aspect::Brokers => &[],
        };
        causes.iter().find_map(|cause| Some((*cause, cause.degree(record, at_us)?)))
    }

    fn rejection(self, topic: &str, least: u64, record: &Record<'_>) -> Rejection {
        let (code, what) = match self {
            Self::Size => (
                RejectionCode::TooLarge,
                format!("of {least} bytes and more, and this one has {}", record.weight()),
            ),
            Self::NoKey => {
                (RejectionCode::Refused, "without a key (a compacted topic needs one)".to_owned())
            }
            Self::Ahead => (
                RejectionCode::Refused,
                format!("whose timestamps are {least} min and more after the commit"),
            ),
            Self::Old => (RejectionCode::Refused, "whose timestamps are as old".to_owned()),
        };
        let reason = format!("topic `{topic}` has just refused records {what}: it was not sent");
        Rejection { code, reason }
    }
}

/// What one topic refused for one cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Limit {
    /// The least degree.
    least: u64,
    refusals: u32,
    /// Commit time of the last one, in microseconds since the Unix epoch.
    last_us: i64,
    pause_us: i64,
    /// How often a record was refused that was below the limit, since others are not sent.
    lowered: u32,
}

impl Limit {
    /// From this degree on records are not sent. Of records that each fall below what was refused before,
    /// those that are twice as far below as the last one are not sent either, up to a bound: a few sessions
    /// find out where they end.
    fn threshold(self, cause: Cause) -> u64 {
        let margin = 1_u64.checked_shl(self.lowered).unwrap_or(u64::MAX);
        match self.lowered {
            0 => self.least,
            _ => self.least.saturating_sub(margin.min(cause.margin_max(self.least))),
        }
    }

    const fn until_us(self) -> i64 {
        self.last_us.saturating_add(self.pause_us)
    }

    /// Whether it says anything of a row that committed at `at_us`.
    const fn is_related(self, at_us: i64, within_us: i64) -> bool {
        at_us <= self.until_us().saturating_add(within_us)
            && at_us >= self.last_us.saturating_sub(CLOCK_PUT_BACK_US)
    }

    fn refused(&mut self, cause: Cause, degree: u64, at_us: i64) {
        if self.refusals >= cause.refusals() && degree < self.least {
            self.lowered = self.lowered.saturating_add(1);
        }
        self.least = self.least.min(degree);
        self.refusals = self.refusals.saturating_add(1);
        if self.refusals >= cause.refusals() && at_us >= self.until_us() {
            self.pause_us = (self.pause_us * 2).clamp(PAUSE_US, PAUSE_MAX_US);
        }
        self.last_us = self.last_us.max(at_us);
    }
}

type Limits = [Option<Limit>; Cause::ALL.len()];

fn last_us(limits: &Limits) -> Option<i64> {
    limits.iter().flatten().map(|limit| limit.last_us).max()
}

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Inferred(BTreeMap<String, Limits>);

impl Inferred {
    /// Whether no topic has refused any.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Its topic has refused a record, whose row committed at `at_us`, for this aspect of it.
    pub(super) fn refused(&mut self, aspect: Aspect, record: &Record<'_>, at_us: i64) {
        let Some((cause, degree)) = Cause::of(aspect, record, at_us) else { return };
        if !self.0.contains_key(record.topic) && self.0.len() >= TOPICS_MAX {
            let oldest = self.0.iter().min_by_key(|(_, limits)| last_us(limits));
            let oldest = oldest.map(|(topic, _)| topic.clone());
            oldest.map(|topic| self.0.remove(&topic));
        }
        let limits = self.0.entry(record.topic.to_owned()).or_default();
        let [size, no_key, ahead, old] = limits;
        let limit = match cause {
            Cause::Size => size,
            Cause::NoKey => no_key,
            Cause::Ahead => ahead,
            Cause::Old => old,
        };
        let fresh = Limit { least: degree, refusals: 0, last_us: at_us, pause_us: 0, lowered: 0 };
        let is_related = |known: &Limit| known.is_related(at_us, known.pause_us.max(RELATED_US));
        let mut known = limit.filter(is_related).unwrap_or(fresh);
        known.refused(cause, degree, at_us);
        *limit = Some(known);
    }

    /// Why a record of a row that committed at `at_us` is not sent, if it is not.
    pub(super) fn judge(&self, record: &Record<'_>, at_us: i64) -> Option<Rejection> {
        let limits = self.0.get(record.topic)?;
        let mut known = Cause::ALL.iter().zip(limits);
        known.find_map(|(cause, limit)| {
            let is_enough =
                |limit: &Limit| limit.refusals >= cause.refusals() && limit.is_related(at_us, 0);
            let limit = limit.filter(is_enough)?;
            let threshold = limit.threshold(*cause);
            let applies = cause.degree(record, at_us)? >= threshold;
            applies.then(|| cause.rejection(record.topic, threshold, record))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::Headers;

    const SECOND: i64 = 1_000_000;
    const HOUR_MS: i64 = 3_600_000;
    const LARGE: [u8; 900] = [0; 900];

    fn record(topic: &str, bytes: usize) -> Record<'_> {
        let value = LARGE.get(..bytes);
        Record {
            topic,
            partition: None,
            key: Some(b""),
            value,
            headers: Headers::new(),
            timestamp_ms: 0,
        }
    }

    fn too_large(inferred: &mut Inferred, topic: &str, bytes: usize, at_us: i64) {
        inferred.refused(Aspect::Size, &record(topic, bytes), at_us);
    }

    fn refused_twice() -> Inferred {
        let mut inferred = Inferred::default();
        for at in 0..2_u8 {
            assert_eq!(inferred.judge(&record("t", 900), at.into()), None, "{at}");
            too_large(&mut inferred, "t", 600 + 100 * usize::from(at), i64::from(at) * SECOND);
        }
        inferred
    }

    #[test]
    fn g4_the_third_record_as_large_is_not_sent() {
        let inferred = refused_twice();
        let rejection = inferred.judge(&record("t", 600), 3 * SECOND).unwrap();
        assert_eq!(rejection.code, RejectionCode::TooLarge);
        assert_eq!(inferred.judge(&record("t", 599), 3 * SECOND), None, "a smaller one is");
        assert_eq!(inferred.judge(&record("u", 900), 3 * SECOND), None, "another topic's is");
    }

    #[test]
    fn g4_no_record_without_a_key_is_sent_where_the_settings_demand_one() {
        let mut inferred = Inferred::default();
        let keyless = Record { key: None, ..record("t", 9) };
        assert_eq!(inferred.judge(&keyless, 0), None);
        inferred.refused(Aspect::Key, &keyless, 0);
        assert_eq!(inferred.judge(&keyless, SECOND).unwrap().code, RejectionCode::Refused);
        assert_eq!(inferred.judge(&record("t", 900), SECOND), None, "one with a key is");
        assert_eq!(inferred.judge(&keyless, PAUSE_US + SECOND), None, "the settings may change");
    }

    fn at(at_us: i64, hours: i64) -> Record<'static> {
        Record { timestamp_ms: at_us / 1_000 + hours * HOUR_MS, ..record("t", 9) }
    }

    #[test]
    fn g4_the_fourth_record_as_far_ahead_of_its_commit_is_not_sent() {
        let mut inferred = Inferred::default();
        for now in [0, SECOND, 2 * SECOND] {
            assert_eq!(inferred.judge(&at(now, 9), now), None, "{now}");
            inferred.refused(Aspect::Time, &at(now, 5), now);
        }
        let now = 3 * SECOND;
        for later_ms in [-20, 0, 20] {
            let mut near = at(now, 5);
            near.timestamp_ms += later_ms;
            assert!(inferred.judge(&near, now).is_some(), "{later_ms}");
        }
        assert_eq!(inferred.judge(&at(now, 4), now), None, "one that is closer is");
        assert_eq!(inferred.judge(&at(now, -9), now), None, "one on the other side is");
    }

    /// What was too old is too old later, and so is what is older.
    #[test]
    fn g4_a_backlog_that_is_too_old_costs_a_few_sessions() {
        let (mut inferred, mut sent) = (Inferred::default(), 0);
        // Half an hour with a record each second, each of the time of its commit.
        for second in 0..1_800 {
            let now = second * SECOND;
            if inferred.judge(&at(now, 0), now).is_none() {
                sent += 1;
                inferred.refused(Aspect::Time, &at(now, 0), now);
            }
        }
        assert!(sent <= 50, "{sent}");
        let now = 1_801 * SECOND;
        assert!(inferred.judge(&at(now, -1), now).is_some(), "an older one");
        let later = now + 130 * SECOND;
        assert_eq!(inferred.judge(&at(later, 0), later), None, "one that is younger is sent");
    }

    #[test]
    fn nothing_is_inferred_from_what_is_not_known() {
        let mut inferred = Inferred::default();
        for at in 0..9 {
            inferred.refused(Aspect::Unknown, &record("t", 9), at);
            inferred.refused(Aspect::Brokers, &record("t", 9), at);
        }
        assert!(inferred.is_empty());
    }

    #[test]
    fn g4_one_record_a_pause_finds_out_whether_the_limit_was_raised() {
        let mut inferred = refused_twice();
        let mut sent = 0;
        // An hour with a record of 700 bytes each second.
        for at in 3..3_600 {
            if inferred.judge(&record("t", 700), at * SECOND).is_none() {
                sent += 1;
                too_large(&mut inferred, "t", 700, at * SECOND);
            }
        }
        assert!((6..=12).contains(&sent), "{sent}");
        assert!(inferred.judge(&record("t", 700), 3_600 * SECOND + PAUSE_MAX_US).is_none());
    }

    /// Each is smaller than all that were refused before, and too large.
    #[test]
    fn g4_records_of_ever_smaller_size_cost_a_few_sessions() {
        for step in [1, 7, 60] {
            let (mut inferred, mut sent) = (Inferred::default(), 0);
            for bytes in (100..=900).rev().step_by(step) {
                if inferred.judge(&record("t", bytes), 0).is_none() {
                    sent += 1;
                    too_large(&mut inferred, "t", bytes, 0);
                }
            }
            assert!(sent <= 32, "{sent} by {step}");
        }
    }

    #[test]
    fn refusals_far_apart_are_each_tried() {
        let mut inferred = Inferred::default();
        for at in 0..10 {
            let at_us = at * 2 * RELATED_US;
            assert_eq!(inferred.judge(&record("t", 700), at_us), None, "{at}");
            too_large(&mut inferred, "t", 700, at_us);
        }
    }

    #[test]
    fn rows_told_out_of_the_order_of_their_commits_change_nothing() {
        let mut inferred = refused_twice();
        too_large(&mut inferred, "t", 700, SECOND);
        assert!(inferred.judge(&record("t", 700), 61 * SECOND).is_some());
        assert!(inferred.judge(&record("t", 700), 63 * SECOND).is_none());
    }

    #[test]
    fn a_clock_that_is_put_back_makes_no_pause_longer() {
        let mut inferred = refused_twice();
        let before = -CLOCK_PUT_BACK_US - SECOND;
        assert_eq!(inferred.judge(&record("t", 700), before), None);
        too_large(&mut inferred, "t", 700, before);
        assert_eq!(inferred.judge(&record("t", 700), SECOND), None, "it begins anew");
    }

    #[test]
    fn g3_topics_are_forgotten_in_the_end() {
        let mut inferred = Inferred::default();
        for n in 0..3 * TOPICS_MAX {
            too_large(&mut inferred, &format!("t{n}"), 700, i64::try_from(n).unwrap());
        }
        assert_eq!(inferred.0.len(), TOPICS_MAX);
    }
}
