//! Reorder buffer: messages that wait for an earlier one of their aggregate. Invariant: the
//! returned messages of an aggregate have its lowest numbers. A message is returned once. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::super::assignments::{Partition, RecordPosition};
use super::super::retries::{BYTES_MAX, Load, Pending, full_partitions};
use super::{Aggregate, GapPolicy, SequenceSpec, next_of, place};

/// Another member may have handled the missing message, so the database is asked.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Divisor of `gap_wait` if no partition can be read, or the aggregate was given up before without
/// progress since.
const SHORT_PART: u32 = 6;
const GIVEN_UP_MAX: usize = 10_000;

#[derive(Debug)]
pub(in crate::inbox) struct ReorderBuffer {
    spec: SequenceSpec,
    by_aggregate: BTreeMap<Aggregate, Waiting>,
    /// Last numbers at which aggregates were given up.
    given_up: BTreeMap<Aggregate, Option<i64>>,
    checked: Instant,
    epoch: u64,
    counted: Instant,
}

#[derive(Debug)]
struct Waiting {
    last: Option<i64>,
    /// By number; copies of a message in the order of arrival.
    messages: Vec<Pending>,
    /// Time since which the current number has been missing.
    since: Instant,
    /// The missing message is known to be in the retry queue, so these messages wait for it.
    is_behind_retried: bool,
}

#[derive(Debug)]
pub(in crate::inbox) struct GivenUp {
    pub(in crate::inbox) messages: Vec<Pending>,
    pub(in crate::inbox) last: Option<i64>,
}

impl ReorderBuffer {
    pub(in crate::inbox) fn new(spec: SequenceSpec, now: Instant) -> Self {
        let (by_aggregate, given_up) = (BTreeMap::new(), BTreeMap::new());
        Self { spec, by_aggregate, given_up, checked: now, epoch: 0, counted: now }
    }

    pub(in crate::inbox) fn len(&self) -> usize {
        self.by_aggregate.values().map(|waiting| waiting.messages.len()).sum()
    }

    /// The database says that the message is not next. It must have a number.
    pub(in crate::inbox) fn hold(&mut self, pending: Pending, last: Option<i64>, now: Instant) {
        let Some((aggregate, number)) = place(&pending.message) else {
            unreachable!("a message without a number is always next")
        };
        if self.by_aggregate.is_empty() {
            (self.checked, self.counted) = (now, now);
        }
        let is_known_gap = self.given_up.get(&aggregate) == Some(&last);
        let early = self.spec.gap_wait.saturating_sub(self.spec.gap_wait / SHORT_PART);
        let since = now.checked_sub(early).filter(|_| is_known_gap).unwrap_or(now);
        let fresh = || Waiting { last, messages: Vec::new(), since, is_behind_retried: false };
        let waiting = self.by_aggregate.entry(aggregate).or_insert_with(fresh);
        waiting.reach(last, now);
        // With a larger number, a message that is not next would be taken as next without end.
        waiting.last = last;
        let at = waiting.messages.partition_point(|other| other.message.sequence <= Some(number));
        waiting.messages.insert(at, pending);
    }

    /// Holds the message if it cannot be next, as far as is known, or returns it.
    pub(in crate::inbox) fn follow(&mut self, pending: Pending, now: Instant) -> Option<Pending> {
        let held = place(&pending.message).and_then(|(aggregate, number)| {
            let last = self.by_aggregate.get(&aggregate)?.last;
            let is_early = next_of(last, self.spec.start).is_some_and(|next| number > next);
            is_early.then_some(last)
        });
        let Some(last) = held else { return Some(pending) };
        self.hold(pending, last, now);
        None
    }

    pub(in crate::inbox) fn reach(&mut self, aggregate: &Aggregate, last: i64, now: Instant) {
        if let Some(waiting) = self.by_aggregate.get_mut(aggregate) {
            waiting.reach(Some(last), now);
        }
    }

    pub(in crate::inbox) fn take_ready(&mut self) -> Vec<Pending> {
        let start = self.spec.start;
        let mut ready = Vec::new();
        self.by_aggregate.retain(|_, waiting| {
            let mut next = next_of(waiting.last, start);
            let is_next = |pending: &&Pending| {
                let number = pending.message.sequence;
                let is_next = next.is_none_or(|next| number <= Some(next));
                next = if number == next { next_of(number, start) } else { next };
                is_next
            };
            let count = waiting.messages.iter().take_while(is_next).count();
            ready.extend(waiting.messages.drain(..count));
            !waiting.messages.is_empty()
        });
        ready
    }

    pub(in crate::inbox) fn take_check(&mut self, now: Instant) -> Vec<Aggregate> {
        if self.next_due().is_none_or(|due| due > now) {
            return Vec::new();
        }
        self.checked = now;
        self.by_aggregate.keys().cloned().collect()
    }

    /// Counts the waiting time while missing messages could be read, at most a tenth of `gap_wait`
    /// per call, so that outages and long batches do not count.
    pub(in crate::inbox) fn count_time(&mut self, is_reading: bool, now: Instant) {
        let time = now.saturating_duration_since(self.counted);
        let limit = CHECK_INTERVAL.max(self.spec.gap_wait / 10);
        let not_counted = if is_reading { time.saturating_sub(limit) } else { time };
        for waiting in self.by_aggregate.values_mut() {
            waiting.since = (waiting.since + not_counted).min(now);
        }
        self.counted = now;
    }

    /// Restarts all waits, because the partition of a killed member is not read before.
    pub(in crate::inbox) fn follow_assignment(&mut self, epoch: u64, now: Instant) {
        if std::mem::replace(&mut self.epoch, epoch) != epoch {
            self.by_aggregate.values_mut().for_each(|waiting| waiting.since = now);
        }
    }

    /// Takes an aggregate that has waited for `gap_wait`. `is_stuck` means that no partition can be
    /// read and no other member has one: the largest aggregate then waits for a sixth of that.
    /// Messages behind a retried one keep waiting.
    pub(in crate::inbox) fn take_given_up(
        &mut self,
        there: &BTreeSet<Aggregate>,
        is_stuck: bool,
        now: Instant,
    ) -> Option<GivenUp> {
        for (aggregate, waiting) in &mut self.by_aggregate {
            waiting.is_behind_retried = there.contains(aggregate);
            if waiting.is_behind_retried {
                waiting.since = now;
            }
        }
        let (gap_wait, is_stuck) = (self.spec.gap_wait, is_stuck && self.is_over());
        let missing = || self.by_aggregate.iter().filter(|(_, waiting)| !waiting.is_behind_retried);
        let expired = missing().find(|(_, waiting)| waiting.is_expired(gap_wait, now));
        let most = || missing().max_by_key(|(_, it)| it.messages.len()).filter(|_| is_stuck);
        let most = || most().filter(|(_, it)| it.is_expired(gap_wait / SHORT_PART, now));
        let aggregate = expired.or_else(most)?.0.clone();
        let Waiting { mut messages, last, since, .. } = self.by_aggregate.remove(&aggregate)?;
        if self.given_up.len() >= GIVEN_UP_MAX {
            self.given_up.clear();
        }
        self.given_up.insert(aggregate.clone(), last);
        if self.spec.on_gap == GapPolicy::Pass {
            // Each gap has its own wait, and no message follows an unhandled one.
            let rest = messages.split_off(length_of_run(&messages));
            if !rest.is_empty() {
                let rest = Waiting { last, messages: rest, since, is_behind_retried: false };
                self.by_aggregate.insert(aggregate, rest);
            }
        }
        Some(GivenUp { messages, last })
    }

    pub(in crate::inbox) fn next_due(&self) -> Option<Instant> {
        if self.by_aggregate.is_empty() { None } else { Some(self.checked + CHECK_INTERVAL) }
    }

    pub(in crate::inbox) fn retain(&mut self, is_current: impl Fn(&RecordPosition) -> bool) {
        self.by_aggregate.retain(|_, waiting| {
            waiting.messages.retain(|pending| is_current(&pending.position));
            !waiting.messages.is_empty()
        });
    }

    pub(in crate::inbox) fn is_over(&self) -> bool {
        !self.full_partitions(1).is_empty()
    }

    /// Partitions that are ahead and must wait for the others.
    pub(in crate::inbox) fn full_partitions(&self, assigned: usize) -> BTreeSet<Partition> {
        let missing = self.by_aggregate.values().filter(|waiting| !waiting.is_behind_retried);
        let missing = missing.flat_map(|waiting| &waiting.messages).map(|pending| (0, pending));
        let messages = self.spec.buffer_max;
        let limits = Load { keys: usize::MAX, messages, bytes: BYTES_MAX };
        full_partitions(missing, limits, assigned)
    }

    pub(in crate::inbox) fn behind_retried(&self) -> impl Iterator<Item = &Pending> {
        let behind = self.by_aggregate.values().filter(|waiting| waiting.is_behind_retried);
        behind.flat_map(|waiting| &waiting.messages)
    }
}

/// Number of messages before the first gap.
fn length_of_run(messages: &[Pending]) -> usize {
    let number = |pending: &Pending| pending.message.sequence.unwrap_or_default();
    let is_gap = |pair: &[Pending]| match pair {
        [one, next] => number(next) > number(one).saturating_add(1),
        _ => false,
    };
    messages.windows(2).position(is_gap).map_or(messages.len(), |at| at + 1)
}

impl Waiting {
    fn reach(&mut self, last: Option<i64>, now: Instant) {
        if last > self.last {
            (self.last, self.since, self.is_behind_retried) = (last, now, false);
        }
    }

    fn is_expired(&self, gap_wait: Duration, now: Instant) -> bool {
        now.saturating_duration_since(self.since) >= gap_wait
    }
}
