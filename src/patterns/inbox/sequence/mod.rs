//! Enforces the order of the outbox writer's numbers within each aggregate.
//!
//! Invariant: the next number is one more than the last. No decision uses memory alone, because
//! another member may handle messages of the aggregate.

mod buffer;
pub(super) mod table;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use uuid::Uuid;

use super::Message;
use super::retries::Pending;

pub(super) use buffer::{GivenUp, ReorderBuffer};

/// How the order of each aggregate's messages is enforced.
///
/// An early message waits while other aggregates pass. The consumer must read every topic with
/// events of its aggregates. Ignored types count too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SequenceSpec {
    /// Maximum time to wait for a missing message; 60 s by default. It should exceed the lead of
    /// one topic over another, and the retries of another member.
    pub gap_wait: Duration,
    /// Maximum number of waiting messages, 1 to 100,000; 1,000 by default. Beyond it, partitions
    /// that are ahead are not read. If no partition can be read and no other member has one, the
    /// largest aggregate is given up after a sixth of `gap_wait`.
    pub buffer_max: usize,
    /// Policy for messages that have waited in vain.
    pub on_gap: GapPolicy,
    /// First number of an unknown aggregate.
    pub start: SequenceStart,
}

/// Policy for messages that have waited for a missing one in vain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum GapPolicy {
    /// Makes dead letters (`sequence_gap`) of these and of later messages, until the missing one
    /// arrives. They can be redriven after it.
    #[default]
    DeadLetter,
    /// Handles these messages with a warning. The missing message later becomes a dead letter
    /// (`out_of_sequence`).
    Pass,
}

/// First number of an unknown aggregate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum SequenceStart {
    /// The first number that the consumer meets: earlier messages may have expired.
    #[default]
    FirstSeen,
    /// The number 1. A larger number is a gap.
    One,
}

impl Default for SequenceSpec {
    fn default() -> Self {
        Self {
            gap_wait: Duration::from_mins(1),
            buffer_max: 1_000,
            on_gap: GapPolicy::default(),
            start: SequenceStart::default(),
        }
    }
}

/// Type (empty if it is not sent) and id.
pub(super) type Aggregate = (String, String);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Misplaced {
    pub(super) at: usize,
    pub(super) last: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SequenceStep {
    pub(super) aggregate: Aggregate,
    pub(super) was: Option<i64>,
    pub(super) last: i64,
}

/// `None` if the message has no number.
pub(super) fn place(message: &Message) -> Option<(Aggregate, i64)> {
    let aggregate_type = message.aggregate_type.clone().unwrap_or_default();
    Some(((aggregate_type, message.aggregate_id.clone()), message.sequence?))
}

/// Whether the number can never be next.
pub(super) fn is_late(number: i64, last: Option<i64>, start: SequenceStart) -> bool {
    match last {
        Some(last) => number <= last,
        None => next_of(None, start).is_some_and(|first| number < first),
    }
}

/// Number after `last`; `None` if any number may follow.
pub(super) fn next_of(last: Option<i64>, start: SequenceStart) -> Option<i64> {
    match (last, start) {
        (Some(last), _) => Some(last.saturating_add(1)),
        (None, SequenceStart::One) => Some(1),
        (None, SequenceStart::FirstSeen) => None,
    }
}

pub(super) fn check(
    messages: &[Pending],
    mut fresh: HashSet<Uuid>,
    lasts: &BTreeMap<Aggregate, i64>,
    start: SequenceStart,
) -> Result<Vec<SequenceStep>, Vec<Misplaced>> {
    let mut reached: BTreeMap<Aggregate, i64> = BTreeMap::new();
    let mut misplaced = Vec::new();
    for (at, pending) in messages.iter().enumerate() {
        let Some((aggregate, number)) = place(&pending.message) else { continue };
        if !fresh.remove(&pending.message.id) {
            continue;
        }
        let last = reached.get(&aggregate).or_else(|| lasts.get(&aggregate)).copied();
        let is_later = last.is_none_or(|last| number > last);
        let is_next = next_of(last, start).is_none_or(|next| number == next);
        if is_later && (is_next || pending.may_skip) {
            reached.insert(aggregate, number);
        } else {
            // Earlier messages of the batch may fail.
            let last = lasts.get(&aggregate).copied();
            misplaced.push(Misplaced { at, last });
        }
    }
    if !misplaced.is_empty() {
        return Err(misplaced);
    }
    let step =
        |(aggregate, last)| SequenceStep { was: lasts.get(&aggregate).copied(), aggregate, last };
    Ok(reached.into_iter().map(step).collect())
}

/// Sorts each aggregate's messages by number, within the positions that they occupy together.
pub(super) fn arrange(messages: Vec<Pending>) -> Vec<Pending> {
    let key = |pending: &Pending| place(&pending.message).map(|(aggregate, _)| aggregate);
    let places: Vec<Option<Aggregate>> = messages.iter().map(key).collect();
    let mut by_aggregate: HashMap<Option<Aggregate>, Vec<Pending>> = HashMap::new();
    for pending in messages.into_iter().rev() {
        by_aggregate.entry(key(&pending)).or_default().push(pending);
    }
    for own in by_aggregate.values_mut() {
        own.sort_by_key(|pending| std::cmp::Reverse(pending.message.sequence));
    }
    let take = |place: &Option<Aggregate>| by_aggregate.get_mut(place).and_then(Vec::pop);
    places.iter().filter_map(take).collect()
}

#[cfg(test)]
mod tests;
