//! Enforces the order of the numbers that the outbox writer gives the events of one aggregate.
//!
//! Input: messages with the numbers of their aggregates, and the last number that was handled of each, as the
//! database has it. Output: which messages are next, and which are not (`Misplaced`); the settings
//! ([`SequenceSpec`]). Invariant: a message is next if its number is one more than the last; no decision is made
//! from memory alone, since another member of the group may handle messages of the same aggregate. Pure, but
//! for the table.

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
/// A message is handled when its number is one more than the last of its aggregate that was. One that comes too
/// early waits while other aggregates' messages pass; the offset of its partition waits before it. The
/// consumer must read every topic that has events of its aggregates: those of types that it ignores count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SequenceSpec {
    /// How long messages wait for a missing one, at least a millisecond; 60 s. Longer than one topic may be
    /// read ahead of another, and than an earlier message may be retried by another member.
    pub gap_wait: Duration,
    /// How many messages wait for missing ones, 1 to 100,000; 1,000. If more wait, the partitions that are ahead are not
    /// read. If none can be read, and no other member has a partition, the aggregate that has most is given up after a
    /// sixth of `gap_wait`; unless all of them wait for messages that this member retries.
    pub buffer_max: usize,
    /// What happens to messages that have waited in vain.
    pub on_gap: GapPolicy,
    /// With which number an aggregate begins that the consumer has not met.
    pub start: SequenceStart,
}

/// What happens to messages that have waited for a missing one in vain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum GapPolicy {
    /// They become dead letters (`sequence_gap`), and so do the later ones of the aggregate until the missing
    /// one is there: no message is ever handled before an earlier one. Redriven after it, they have their effects.
    #[default]
    DeadLetter,
    /// They are handled without it, with a warning. Should it come later, it becomes a dead letter
    /// (`out_of_sequence`).
    Pass,
}

/// With which number an aggregate begins that the consumer has handled nothing of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum SequenceStart {
    /// With the first that it meets: the earlier ones may be older than the topic's retention, or than the
    /// enforcement.
    #[default]
    FirstSeen,
    /// With 1, as the outbox writer does: a later one is a gap.
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

/// An aggregate by its type, empty where that is not sent, and its id.
pub(super) type Aggregate = (String, String);

/// A message that is not the next of its aggregate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Misplaced {
    /// Which of the messages, from 0.
    pub(super) at: usize,
    /// The last number of its aggregate that was handled before the transaction; `None`: nothing was.
    pub(super) last: Option<i64>,
}

/// A step of an aggregate's number, in one transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SequenceStep {
    pub(super) aggregate: Aggregate,
    /// What the database had when the transaction began.
    pub(super) was: Option<i64>,
    pub(super) last: i64,
}

/// The aggregate of a message, and its number in it; `None` without a number.
pub(super) fn place(message: &Message) -> Option<(Aggregate, i64)> {
    let aggregate_type = message.aggregate_type.clone().unwrap_or_default();
    Some(((aggregate_type, message.aggregate_id.clone()), message.sequence?))
}

/// Whether the number can never be next: a later one was handled, or it is below the first.
pub(super) fn is_late(number: i64, last: Option<i64>, start: SequenceStart) -> bool {
    match last {
        Some(last) => number <= last,
        None => next_of(None, start).is_some_and(|first| number < first),
    }
}

/// The number that comes after `last`; `None`: any does.
pub(super) fn next_of(last: Option<i64>, start: SequenceStart) -> Option<i64> {
    match (last, start) {
        (Some(last), _) => Some(last.saturating_add(1)),
        (None, SequenceStart::One) => Some(1),
        (None, SequenceStart::FirstSeen) => None,
    }
}

/// The steps of a transaction that handles those of the messages that are fresh, in their order; or the
/// messages that are not next.
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
            // Those before it in the batch have not been handled, and may fail.
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

/// Puts the messages of each aggregate into the order of their numbers, in the places that they have together.
pub(super) fn arrange(messages: Vec<Pending>) -> Vec<Pending> {
    let key = |pending: &Pending| place(&pending.message).map(|(aggregate, _)| aggregate);
    let places: Vec<Option<Aggregate>> = messages.iter().map(key).collect();
    let mut by_aggregate: HashMap<Option<Aggregate>, Vec<Pending>> = HashMap::new();
    for pending in messages.into_iter().rev() {
        by_aggregate.entry(key(&pending)).or_default().push(pending);
    }
    for own in by_aggregate.values_mut() {
        // The last is taken first.
        own.sort_by_key(|pending| std::cmp::Reverse(pending.message.sequence));
    }
    let take = |place: &Option<Aggregate>| by_aggregate.get_mut(place).and_then(Vec::pop);
    places.iter().filter_map(take).collect()
}

#[cfg(test)]
mod tests;
