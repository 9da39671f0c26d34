//! Predicts refusals of records, because each refused batch ends a session (G4).
//!
//! Several related refusals come first (one for a missing key); later records deviate as far or
//! within a bounded margin. After one to ten minutes records are sent again. Time is commit time,
//! so that all sessions decide alike. A good record may be rejected, because neither compression
//! nor the brokers' clock is known.

use std::collections::BTreeMap;

use super::confirmation::RefusalCause;
use crate::route::{NO_TIMESTAMP, Record, Rejection, RejectionCode};

/// Longest distance of related refusals, in microseconds.
const RELATED_US: i64 = 60_000_000;
/// First pause, in microseconds; each refusal after a pause doubles the next.
const PAUSE_US: i64 = 60_000_000;
/// Longest pause: a topic whose settings changed lacks records for this long.
const PAUSE_MAX_US: i64 = 600_000_000;
/// Rows committed this much earlier, in microseconds, are not related.
const EARLIER_US: i64 = 3_600_000_000;
/// Backward step of the server's clock, in microseconds, after which refusals are forgotten.
const CLOCK_PUT_BACK_US: i64 = 1_000_000;
/// Unit for comparing future timestamps. Timestamps with a fixed offset to their commits differ by
/// a commit's duration.
const MINUTE_MS: u64 = 60_000;
/// Largest timestamp margin, in milliseconds.
const NEARER_MS: u64 = 60_000;
const TOPICS_MAX: usize = 1_000;

/// Why a topic refuses records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    Size,
    NoKey,
    /// Later than its commit.
    Ahead,
    /// Too new, but not after its commit: a clock is wrong.
    New,
    Old,
}

impl Cause {
    const ALL: [Self; 5] = [Self::Size, Self::NoKey, Self::Ahead, Self::New, Self::Old];

    /// Degree of the cause: bytes, minutes after the commit at `at_us`, Unix milliseconds, or
    /// milliseconds below the largest timestamp.
    fn degree(self, record: &Record<'_>, at_us: i64) -> Option<u64> {
        let ahead = record.timestamp_ms.saturating_sub(at_us.div_euclid(1_000));
        match self {
            Self::Size => Some(record.weight() as u64),
            Self::NoKey => record.key.is_none().then_some(1),
            Self::Ahead => {
                let minutes = (ahead.unsigned_abs() + MINUTE_MS / 2) / MINUTE_MS;
                Some(minutes).filter(|minutes| ahead > 0 && *minutes > 0)
            }
            Self::New => u64::try_from(record.timestamp_ms).ok(),
            Self::Old if record.timestamp_ms == NO_TIMESTAMP => None,
            Self::Old => Some(i64::MAX.abs_diff(record.timestamp_ms)),
        }
    }

    /// Only the demand for keys is a known setting.
    const fn refusals(self) -> u32 {
        match self {
            Self::NoKey => 1,
            Self::Size => 2,
            Self::Ahead | Self::New | Self::Old => 3,
        }
    }

    /// Largest margin below a refused record.
    fn margin_max(self, least: u64) -> u64 {
        match self {
            Self::New | Self::Old => NEARER_MS,
            Self::Size | Self::NoKey | Self::Ahead => least / 8,
        }
    }

    /// No topic treats a minute as too old.
    fn of(
        (refused_for, now_ms): (RefusalCause, i64),
        record: &Record<'_>,
        at_us: i64,
    ) -> Option<(Self, u64)> {
        let is_old = record.timestamp_ms < now_ms.saturating_sub_unsigned(MINUTE_MS);
        let causes: &[Self] = match refused_for {
            RefusalCause::Size => &[Self::Size],
            RefusalCause::Key => &[Self::NoKey],
            RefusalCause::Time if is_old => &[Self::Old],
            RefusalCause::Time => &[Self::Ahead, Self::New],
            RefusalCause::OfSeveral | RefusalCause::Unknown | RefusalCause::Brokers => &[],
        };
        causes.iter().find_map(|cause| Some((*cause, cause.degree(record, at_us)?)))
    }

    const fn refused_for(self) -> RefusalCause {
        match self {
            Self::Size => RefusalCause::Size,
            Self::NoKey => RefusalCause::Key,
            Self::Ahead | Self::New | Self::Old => RefusalCause::Time,
        }
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
            Self::New => (RejectionCode::Refused, "whose timestamps are as new".to_owned()),
            Self::Old => (RejectionCode::Refused, "whose timestamps are as old".to_owned()),
        };
        let reason = format!("topic `{topic}` has just refused records {what}: it was not sent");
        Rejection { code, reason }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Limit {
    least: u64,
    refusals: u32,
    /// Commit time in Unix microseconds.
    last_us: i64,
    pause_us: i64,
    /// The server's clock, in microseconds since 2000.
    sent_us: i64,
    /// Refusals below the limit.
    lowered: u32,
}

impl Limit {
    /// Degree from which records are not sent. Each lower refusal doubles the margin, so that few
    /// sessions find the topic's limit.
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

    const fn is_related(self, at_us: i64, within_us: i64) -> bool {
        at_us <= self.until_us().saturating_add(within_us)
            && at_us >= self.last_us.saturating_sub(EARLIER_US)
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

/// Commit time in Unix microseconds, and the server's clock in microseconds since 2000.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Times {
    pub(super) at_us: i64,
    pub(super) sent_us: i64,
}

type CauseLimits = [Option<Limit>; Cause::ALL.len()];

fn last_us(limits: &CauseLimits) -> Option<i64> {
    limits.iter().flatten().map(|limit| limit.last_us).max()
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Inferred(BTreeMap<String, CauseLimits>);

impl Inferred {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Books a refused record and its cause, with the local clock in Unix milliseconds.
    pub(super) fn refused(
        &mut self,
        cause_at_ms: (RefusalCause, i64),
        record: &Record<'_>,
        Times { at_us, sent_us }: Times,
    ) {
        self.forget_before(record.topic, sent_us);
        let Some((cause, degree)) = Cause::of(cause_at_ms, record, at_us) else { return };
        if !self.0.contains_key(record.topic) && self.0.len() >= TOPICS_MAX {
            let oldest = self.0.iter().min_by_key(|(_, limits)| last_us(limits));
            let oldest = oldest.map(|(topic, _)| topic.clone());
            oldest.map(|topic| self.0.remove(&topic));
        }
        let limits = self.0.entry(record.topic.to_owned()).or_default();
        let [size, no_key, ahead, new, old] = limits;
        let limit = match cause {
            Cause::Size => size,
            Cause::NoKey => no_key,
            Cause::Ahead => ahead,
            Cause::New => new,
            Cause::Old => old,
        };
        let (least, last_us) = (degree, at_us);
        let fresh = Limit { least, refusals: 0, last_us, pause_us: 0, sent_us, lowered: 0 };
        let is_related = |known: &Limit| known.is_related(at_us, known.pause_us.max(RELATED_US));
        let mut known = limit.filter(is_related).unwrap_or(fresh);
        known.refused(cause, degree, at_us);
        known.sent_us = sent_us;
        *limit = Some(known);
    }

    fn forget_before(&mut self, topic: &str, sent_us: i64) {
        let Some(limits) = self.0.get(topic) else { return };
        let newest_us = limits.iter().flatten().map(|limit| limit.sent_us).max();
        if newest_us.is_some_and(|newest_us| sent_us < newest_us.saturating_sub(CLOCK_PUT_BACK_US))
        {
            self.0.remove(topic);
        }
    }

    pub(super) fn judge(
        &mut self,
        record: &Record<'_>,
        Times { at_us, sent_us }: Times,
    ) -> Option<(Rejection, RefusalCause)> {
        self.forget_before(record.topic, sent_us);
        let limits = self.0.get(record.topic)?;
        let mut known = Cause::ALL.iter().zip(limits);
        known.find_map(|(cause, limit)| {
            let is_enough =
                |limit: &Limit| limit.refusals >= cause.refusals() && limit.is_related(at_us, 0);
            let limit = limit.filter(is_enough)?;
            let threshold = limit.threshold(*cause);
            let applies = cause.degree(record, at_us)? >= threshold;
            applies.then(|| (cause.rejection(record.topic, threshold, record), cause.refused_for()))
        })
    }
}

#[cfg(test)]
mod tests;
