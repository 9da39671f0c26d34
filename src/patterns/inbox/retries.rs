//! The retry queue: messages that failed and wait for their next attempt, each with the later messages of its
//! key behind it.
//!
//! Input: failed messages, later messages, the time. Output: those that are due. Invariant: a message never
//! overtakes an earlier one of its key and partition that waits here; a failure counts as an attempt only if
//! it is known to be the message's own. No I/O.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use super::Message;
use super::assignments::{Partition, RecordPosition};
use super::sqlstate::FailureCause;
use super::status::FailingMessage;

/// Messages that may wait, those behind others included. While the database is unavailable this is what a
/// consumer has tried before it takes no more: enough to find one that succeeds where some cannot.
const MESSAGES_MAX: usize = 1_000;
/// Bytes of their keys and values that may be held; a record of any size fits while the queue is empty.
const BYTES_MAX: usize = 16 << 20;

/// A failure that may pass by itself uses up one attempt in this time at most, so that five are five minutes: a
/// disk that is full for some statements, or sessions that are lost, are noticed and put right in such a time.
const ATTEMPT_INTERVAL: Duration = Duration::from_mins(1);

/// A message that is to have its effects.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) message: Message,
    pub(super) position: RecordPosition,
    /// False: its type is ignored, and only its number counts.
    pub(super) has_effect: bool,
    /// Whether it may be handled without an earlier one of its aggregate.
    pub(super) may_skip: bool,
}

/// Those that wait.
#[derive(Debug, Default)]
pub(super) struct RetryQueue {
    by_key: BTreeMap<OrderKey, KeyQueue>,
}

/// Messages with the same have an order. The null key is one like any other.
type OrderKey = (Partition, Option<Vec<u8>>);

/// A message that failed, and those of its key that came later.
#[derive(Debug)]
pub(super) struct KeyQueue {
    pub(super) head: FailedMessage,
    pub(super) followers: VecDeque<Pending>,
}

/// A message that failed at least once.
#[derive(Debug)]
pub(super) struct FailedMessage {
    pub(super) pending: Pending,
    /// Failures that were its own.
    pub(super) attempts: u32,
    /// In milliseconds since the Unix epoch.
    pub(super) first_failed_ms: i64,
    /// Without data of rows.
    pub(super) why: String,
    pub(super) cause: FailureCause,
    /// The failures since the last change of circumstances, for the back-off.
    pub(super) failures: u32,
    pub(super) due: Instant,
    /// How many transactions of others had succeeded when it failed first.
    successes_before: u64,
    /// The same, and the time, when a failure last used up an attempt; or when it failed first.
    counted: (u64, Instant),
}

impl Pending {
    pub(super) fn new(message: Message, position: RecordPosition) -> Self {
        Self { message, position, has_effect: true, may_skip: false }
    }

    /// Of its key and its value.
    pub(super) fn bytes(&self) -> usize {
        let size = |part: &Option<Vec<u8>>| part.as_ref().map_or(0, Vec::len);
        size(&self.message.record.key) + size(&self.message.record.value)
    }

    fn offset(&self) -> i64 {
        self.message.record.offset
    }
}

impl KeyQueue {
    /// Puts a message behind the first, in the order of the partition.
    fn push(&mut self, pending: Pending) {
        let at = self.followers.partition_point(|other| other.offset() < pending.offset());
        self.followers.insert(at, pending);
    }
}

impl FailedMessage {
    /// A message that has not failed yet, as far as anybody counts.
    pub(super) fn new(pending: Pending, now_ms: i64, successes: u64) -> Self {
        Self {
            pending,
            attempts: 0,
            first_failed_ms: now_ms,
            why: String::new(),
            cause: FailureCause::Message,
            failures: 0,
            due: Instant::now(),
            successes_before: successes,
            counted: (successes, Instant::now()),
        }
    }

    /// Notes a failure. `successes` is how many transactions of others have succeeded by now: if one did
    /// since the first failure, the database takes effects, and an unclear failure is the message's own; one that
    /// may pass counts once in `ATTEMPT_INTERVAL`, and if another succeeded since the one that counted before.
    pub(super) fn fail(&mut self, cause: FailureCause, why: String, successes: u64, now: Instant) {
        let (successes_counted, counted) = self.counted;
        let is_own = match cause {
            FailureCause::Message => true,
            FailureCause::Unclear => successes > self.successes_before,
            FailureCause::Passing => {
                successes > successes_counted && now.duration_since(counted) >= ATTEMPT_INTERVAL
            }
            FailureCause::Contention | FailureCause::Dependency => false,
        };
        if is_own {
            self.counted = (successes, now);
        }
        (self.cause, self.why) = (cause, why);
        self.attempts += u32::from(is_own);
        self.failures = self.failures.saturating_add(1);
    }

    /// Whether it may be the database that fails: nothing has succeeded since this message failed.
    pub(super) fn is_unclear(&self, successes: u64) -> bool {
        self.cause.is_open() && successes <= self.successes_before
    }
}

impl RetryQueue {
    /// How many messages wait, those behind others included.
    pub(super) fn len(&self) -> usize {
        self.by_key.values().map(|queue| 1 + queue.followers.len()).sum()
    }

    /// How many keys wait.
    pub(super) fn keys(&self) -> u32 {
        u32::try_from(self.by_key.len()).unwrap_or(u32::MAX)
    }

    /// Whether no more messages should be taken before some of these are done.
    pub(super) fn is_full(&self) -> bool {
        let bytes = self.all().map(Pending::bytes);
        self.len() >= MESSAGES_MAX || bytes.sum::<usize>() >= BYTES_MAX
    }

    /// Those that wait, in no order.
    pub(super) fn all(&self) -> impl Iterator<Item = &Pending> {
        let queues = self.by_key.values();
        queues.flat_map(|queue| std::iter::once(&queue.head.pending).chain(&queue.followers))
    }

    /// Forgets the messages that are not this member's any more: their partition's next owner has them.
    pub(super) fn retain(&mut self, is_current: impl Fn(&RecordPosition) -> bool) {
        // Those of a key are of one assignment: a queue of an older one is removed before any newer record.
        self.by_key.retain(|_, queue| is_current(&queue.head.pending.position));
    }

    /// Puts the message behind an earlier one of its key that waits; returns it if there is none.
    pub(super) fn follow(&mut self, pending: Pending) -> Option<Pending> {
        if self.by_key.is_empty() {
            return Some(pending);
        }
        let queue = self.by_key.get_mut(&order_key(&pending));
        let queue = queue.filter(|queue| queue.head.pending.offset() < pending.offset());
        let Some(queue) = queue else { return Some(pending) };
        queue.push(pending);
        None
    }

    /// Adds a message that failed, and those behind it. One of its key may wait already: of a batch the later
    /// one may fail first, and the earlier one when it is tried again without that.
    pub(super) fn insert(&mut self, queue: KeyQueue) {
        match self.by_key.entry(order_key(&queue.head.pending)) {
            Entry::Vacant(entry) => {
                entry.insert(queue);
            }
            Entry::Occupied(mut entry) => {
                let waiting = entry.get_mut();
                let later = if queue.head.pending.offset() < waiting.head.pending.offset() {
                    std::mem::replace(waiting, queue)
                } else {
                    queue
                };
                waiting.push(later.head.pending);
                later.followers.into_iter().for_each(|pending| waiting.push(pending));
            }
        }
    }

    /// When the next one is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.by_key.values().map(|queue| queue.head.due).min()
    }

    /// Takes the one that has been due longest.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<KeyQueue> {
        let due = self.by_key.iter().filter(|(_, queue)| queue.head.due <= now);
        let (key, _) = due.min_by_key(|(_, queue)| queue.head.due)?;
        let key = key.clone();
        self.by_key.remove(&key)
    }

    /// A transaction has succeeded, the first since these failed: they are due at once.
    pub(super) fn wake_unclear(&mut self, successes_before: u64) {
        for queue in self.by_key.values_mut() {
            if queue.head.is_unclear(successes_before) {
                queue.head.due = Instant::now();
                queue.head.failures = 0;
            }
        }
    }

    /// Whether it may be the database that fails.
    pub(super) fn is_unclear(&self, successes: u64) -> bool {
        self.by_key.values().any(|queue| queue.head.is_unclear(successes))
    }

    /// The message that has failed for the longest time.
    pub(super) fn failing(&self) -> Option<FailingMessage> {
        let head = self
            .by_key
            .values()
            .map(|queue| &queue.head)
            .min_by_key(|head| head.first_failed_ms)?;
        Some(FailingMessage::new(&head.pending.message.event_type, &head.why, head.first_failed_ms))
    }
}

fn order_key(pending: &Pending) -> OrderKey {
    (pending.position.partition().clone(), pending.message.record.key.clone())
}

#[cfg(test)]
mod tests {
    use postrider_core::record::StoredRecord;

    use super::*;
    use crate::inbox::MessageFormat;
    use crate::inbox::assignments::Assignments;

    const ID: &str = "0199f2a4-7c1e-7cc3-98c4-dc0c0c07398f";

    fn pending(offset: i64, key: Option<&str>) -> Pending {
        let header = |name: &str, value: &str| (name.to_owned(), Some(value.as_bytes().to_vec()));
        let record = StoredRecord {
            topic: "orders".into(),
            offset,
            key: key.map(|key| key.as_bytes().to_vec()),
            headers: vec![header("id", ID), header("event_type", "OrderPlaced")],
            ..StoredRecord::default()
        };
        let mut assignments = Assignments::default();
        let partition = ("orders".to_owned(), 0);
        assignments.assign([partition.clone()]);
        assignments.begin(&partition, 1, 0, 0);
        let position = assignments.tag(record.clone()).unwrap().position;
        let message = Message::read(record, &MessageFormat::new()).unwrap();
        Pending::new(message, position)
    }

    fn failed(pending: Pending, successes: u64) -> FailedMessage {
        let mut head = FailedMessage::new(pending, 0, successes);
        head.fail(FailureCause::Unclear, "42P01".into(), successes, Instant::now());
        head
    }

    #[test]
    fn an_unclear_failure_counts_once_another_message_has_succeeded() {
        let (mut head, now) = (failed(pending(1, None), 7), Instant::now());
        assert!(head.attempts == 0 && head.is_unclear(7));
        head.fail(FailureCause::Unclear, "42P01".into(), 7, now);
        head.fail(FailureCause::Contention, "40001".into(), 8, now);
        head.fail(FailureCause::Dependency, "no bank".into(), 8, now);
        assert_eq!((head.attempts, head.failures), (0, 4));
        head.fail(FailureCause::Unclear, "42P01".into(), 8, now);
        head.fail(FailureCause::Message, "23505".into(), 8, now);
        assert!(head.attempts == 2 && !head.is_unclear(8));
    }

    #[test]
    fn a_failure_that_may_pass_counts_once_a_minute_and_after_a_success_since() {
        let mut head = FailedMessage::new(pending(1, None), 0, 7);
        let mut now = Instant::now();
        let mut fail = |after: Duration, successes| {
            now += after;
            head.fail(FailureCause::Passing, "53100".into(), successes, now);
            (head.attempts, head.is_unclear(successes))
        };
        let (moment, minute) = (Duration::from_millis(100), Duration::from_mins(1));
        assert_eq!(fail(moment, 7), (0, true));
        assert_eq!(fail(minute, 7), (0, true));
        // The database takes effects now, and it has failed for a minute.
        assert_eq!(fail(moment, 8), (1, false));
        assert_eq!(fail(moment, 90), (1, false));
        assert_eq!(fail(minute, 90), (2, false));
        // Nothing has succeeded since that one.
        assert_eq!(fail(minute, 90), (2, false));
        assert_eq!(fail(moment, 91), (3, false));
    }

    #[test]
    fn a_message_waits_behind_an_earlier_one_of_its_key_alone() {
        let mut queue = RetryQueue::default();
        assert!(queue.follow(pending(1, Some("a"))).is_some());
        queue.insert(KeyQueue {
            head: failed(pending(1, Some("a")), 0),
            followers: VecDeque::new(),
        });
        assert!(queue.follow(pending(2, Some("a"))).is_none());
        assert!(queue.follow(pending(3, Some("b"))).is_some());
        assert!(queue.follow(pending(4, None)).is_some());
        assert!(queue.follow(pending(5, Some("a"))).is_none());
        assert_eq!(queue.len(), 3);
        let taken = queue.take_due(Instant::now()).unwrap();
        let offsets = taken.followers.iter().map(|it| it.message.record.offset);
        assert!(offsets.eq([2, 5]) && queue.len() == 0);
        queue.insert(taken);
        queue.retain(|_| false);
        assert_eq!(queue.next_due(), None);
    }

    #[test]
    fn an_earlier_message_that_fails_later_comes_first() {
        let mut queue = RetryQueue::default();
        let alone = |offset| KeyQueue {
            head: failed(pending(offset, Some("a")), 0),
            followers: VecDeque::new(),
        };
        queue.insert(alone(3));
        assert!(queue.follow(pending(4, Some("a"))).is_none());
        // It does not wait for a later one.
        assert!(queue.follow(pending(1, Some("a"))).is_some());
        queue.insert(alone(1));
        queue.insert(alone(2));
        let taken = queue.take_due(Instant::now()).unwrap();
        let offsets = taken.followers.iter().map(Pending::offset);
        assert!(taken.head.pending.offset() == 1 && offsets.eq([2, 3, 4]));
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn the_first_success_wakes_those_that_waited_for_it() {
        let mut queue = RetryQueue::default();
        let later = Instant::now() + Duration::from_mins(1);
        for (offset, key, successes) in [(1, "a", 3), (2, "b", 4)] {
            let mut head = failed(pending(offset, Some(key)), successes);
            head.due = later;
            queue.insert(KeyQueue { head, followers: VecDeque::new() });
        }
        assert!(queue.take_due(Instant::now()).is_none() && queue.is_unclear(4));
        // The first has known of a success before.
        queue.wake_unclear(4);
        let woken = queue.take_due(Instant::now()).unwrap();
        assert_eq!((woken.head.pending.message.record.offset, woken.head.failures), (2, 0));
        assert!(queue.take_due(Instant::now()).is_none() && !queue.is_unclear(4));
    }

    #[test]
    fn it_is_full_by_number_and_by_bytes() {
        let mut queue = RetryQueue::default();
        queue.insert(KeyQueue { head: failed(pending(0, None), 0), followers: VecDeque::new() });
        for offset in 1..1_000 {
            assert!(!queue.is_full());
            queue.follow(pending(offset, None));
        }
        assert!(queue.is_full());
        let mut large = pending(0, None);
        large.message.record.value = Some(vec![0; BYTES_MAX]);
        let mut queue = RetryQueue::default();
        queue.insert(KeyQueue { head: failed(large, 0), followers: VecDeque::new() });
        assert!(queue.is_full());
    }
}
