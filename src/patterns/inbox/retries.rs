//! Retry queue: failed messages, with the later messages of their key.
//!
//! Output: due messages, full partitions, and the message that blocks most others. No I/O.
//!
//! Invariants:
//!
//! * A message never overtakes a waiting earlier message of its key and partition.
//! * A failure counts as an attempt only if the message is known to be the cause.
//! * Waiting time counts only while other messages have their effects.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use super::assignments::{Partition, RecordPosition};
use super::session::TransactionFailure;
use super::sqlstate::{FailureCause, describe_failure};
use super::status::FailingMessage;
use super::{ConsumerSpec, Message};
use crate::dead_letter::{StoredRecord, now_ms};

/// During an outage, a consumer tries this many messages: enough to find one that succeeds.
pub(super) const KEYS_MAX: usize = 1_000;
/// Each message takes about 2 kB plus its bytes. With a limit of 1,000, a locked row with 1,300
/// messages of its key let 0 of 40 others in its partition pass.
const MESSAGES_MAX: usize = 10_000;
/// Bytes of keys and values. An empty queue accepts a record of any size.
pub(super) const BYTES_MAX: usize = 16 << 20;

/// Interval between counted attempts of a failure that may pass by itself: five attempts give time
/// to fix a full disk. Also caps the counted length of an attempt or wait, because most of a longer
/// one may have been an outage.
const ATTEMPT_INTERVAL: Duration = Duration::from_mins(1);

/// Waiting messages that make a failing message of their key count as blocking.
const BLOCKED_MESSAGES: usize = 1_000;
/// Five attempts of a usual failure take 1.5 s, so a deadlock in a backlog is not reported as
/// blocking.
const BLOCKING_AFTER: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Pending {
    pub(super) message: Message,
    pub(super) position: RecordPosition,
    /// False if only the message's number counts.
    pub(super) has_effect: bool,
    /// Whether an earlier message of the aggregate may be missing.
    pub(super) may_skip: bool,
}

#[derive(Debug, Default)]
pub(super) struct RetryQueue {
    by_key: BTreeMap<OrderKey, KeyQueue>,
}

/// The null key is an ordinary key.
type OrderKey = (Partition, Option<Vec<u8>>);

#[derive(Debug)]
pub(super) struct KeyQueue {
    pub(super) head: FailedMessage,
    pub(super) followers: VecDeque<Pending>,
}

#[derive(Debug)]
pub(super) enum NextStep {
    First,
    /// Cause and duration of the last attempt.
    Retry(FailureCause, Duration),
    /// Code and reason.
    DeadLetter(&'static str, String),
}

#[derive(Debug)]
pub(super) struct FailedMessage {
    pub(super) pending: Pending,
    /// Failures that the message itself caused.
    pub(super) attempts: u32,
    /// Milliseconds since the Unix epoch.
    pub(super) first_failed_ms: i64,
    /// Last reason, without data of rows.
    pub(super) why: String,
    pub(super) next_step: NextStep,
    /// Failures since the last change of circumstances.
    pub(super) failures: u32,
    due: Instant,
    /// Successes of other messages, and time, at the first failure.
    began: (u64, Instant),
    /// `began`, updated by each failure that used up an attempt.
    counted: (u64, Instant),
    /// Wait for a lock or a dependency while other messages succeeded.
    waited: Duration,
    waited_until: (u64, Instant),
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Load {
    pub(super) keys: usize,
    pub(super) messages: usize,
    pub(super) bytes: usize,
}

impl Load {
    fn add(&mut self, keys: usize, pending: &Pending) {
        self.keys += keys;
        self.messages += 1;
        self.bytes += pending.bytes();
    }

    fn is_part(self, limits: Self, parts: usize) -> bool {
        self.keys.saturating_mul(parts) >= limits.keys
            || self.messages.saturating_mul(parts) >= limits.messages
            || self.bytes.saturating_mul(parts) >= limits.bytes
    }
}

impl Pending {
    pub(super) fn new(message: Message, position: RecordPosition) -> Self {
        Self { message, position, has_effect: true, may_skip: false }
    }

    pub(super) fn bytes(&self) -> usize {
        record_bytes(&self.message.record)
    }

    fn offset(&self) -> i64 {
        self.message.record.offset
    }
}

impl KeyQueue {
    pub(super) fn ready(mut messages: VecDeque<Pending>, successes: u64) -> Option<Self> {
        let head = FailedMessage::new(messages.pop_front()?, successes);
        Some(Self { head, followers: messages })
    }

    pub(super) fn into_messages(self) -> VecDeque<Pending> {
        let mut messages = self.followers;
        messages.push_front(self.head.pending);
        messages
    }

    fn describe(&self) -> FailingMessage {
        let Self { head, followers } = self;
        let message = FailingMessage::new(&head.pending.message, &head.why, head.first_failed_ms);
        message.before(followers.len())
    }

    fn push(&mut self, pending: Pending) {
        let at = self.followers.partition_point(|other| other.offset() < pending.offset());
        self.followers.insert(at, pending);
    }
}

impl FailedMessage {
    pub(super) fn new(pending: Pending, successes: u64) -> Self {
        let now = Instant::now();
        Self {
            pending,
            attempts: 0,
            first_failed_ms: now_ms(),
            why: String::new(),
            next_step: NextStep::First,
            failures: 0,
            due: now,
            began: (successes, now),
            counted: (successes, now),
            waited: Duration::ZERO,
            waited_until: (successes, now),
        }
    }

    /// Records a failure, after `successes` of other transactions.
    ///
    /// An unclear failure is the message's own if another transaction has succeeded since the first
    /// failure. A failure that may pass counts once per `ATTEMPT_INTERVAL`, and only after another
    /// success. If a dependency may come later, the last attempt counts after `give_up_after`.
    pub(super) fn fail(
        &mut self,
        failed: &TransactionFailure,
        successes: u64,
        now: Instant,
        spec: &ConsumerSpec,
    ) {
        let is_own = match failed.cause {
            FailureCause::Message => true,
            FailureCause::Early => {
                let is_last = self.attempts.saturating_add(1) >= spec.attempts_max;
                !is_last || now.duration_since(self.began.1) >= spec.give_up_after
            }
            FailureCause::Unclear => successes > self.began.0,
            FailureCause::Passing => {
                let (successes_counted, counted) = self.counted;
                successes > successes_counted && now.duration_since(counted) >= ATTEMPT_INTERVAL
            }
            FailureCause::Contention | FailureCause::Dependency => {
                self.wait(successes, now);
                false
            }
        };
        if is_own {
            self.counted = (successes, now);
        }
        self.why = describe_failure(&failed.failure);
        self.next_step = NextStep::Retry(failed.cause, failed.took);
        self.attempts += u32::from(is_own);
        self.failures = self.failures.saturating_add(1);
    }

    /// Waits at least as long as the last attempt took, so a message takes at most half of the
    /// consumer's time.
    pub(super) fn schedule(&mut self, backoff: Duration, now: Instant) {
        let took = match self.next_step {
            NextStep::Retry(_, took) => took.min(ATTEMPT_INTERVAL),
            NextStep::First | NextStep::DeadLetter(..) => Duration::ZERO,
        };
        self.due = now + backoff.max(took);
    }

    /// Adds the time since the last call, at most a minute, if another message has succeeded.
    fn wait(&mut self, successes: u64, now: Instant) {
        let (before, until) = self.waited_until;
        if successes > before {
            self.waited += now.duration_since(until).min(ATTEMPT_INTERVAL);
            self.waited_until = (successes, now);
        }
    }

    pub(super) fn has_waited_too_long(&self, spec: &ConsumerSpec) -> bool {
        spec.contention_max.is_some_and(|max| self.waited >= max)
    }

    pub(super) fn waited(&self) -> Duration {
        self.waited
    }

    /// Whether nothing has succeeded since this message failed, so the database may be the cause.
    pub(super) fn is_unclear(&self, successes: u64) -> bool {
        self.cause().is_some_and(FailureCause::is_open) && successes <= self.began.0
    }

    pub(super) fn cause(&self) -> Option<FailureCause> {
        if let NextStep::Retry(cause, _) = self.next_step { Some(cause) } else { None }
    }

    /// Whether the message fails again, and no other success shows that the database is not the
    /// cause. An unavailable dependency needs no witness of its key: a later message would reach
    /// the dependency first.
    pub(super) fn lacks_witness(&self, cause: FailureCause, successes: u64) -> bool {
        let is_quiet = match self.cause() {
            Some(FailureCause::Unclear) => successes <= self.began.0,
            Some(FailureCause::Passing) => successes <= self.counted.0,
            Some(FailureCause::Contention) => successes <= self.waited_until.0,
            _ => false,
        };
        (cause.is_open() || cause == FailureCause::Contention) && is_quiet
    }

    pub(super) fn has_failed(&self) -> bool {
        !matches!(self.next_step, NextStep::First)
    }
}

impl RetryQueue {
    pub(super) fn len(&self) -> usize {
        self.by_key.values().map(|queue| 1 + queue.followers.len()).sum()
    }

    pub(super) fn keys(&self) -> u32 {
        u32::try_from(self.by_key.len()).unwrap_or(u32::MAX)
    }

    /// Partitions that must not be read. Includes the messages in `others`.
    pub(super) fn full_partitions<'p>(
        &'p self,
        others: impl Iterator<Item = &'p Pending>,
        assigned: usize,
    ) -> BTreeSet<Partition> {
        let heads = self.by_key.values().map(|queue| (1, &queue.head.pending));
        let followers = self.by_key.values().flat_map(|queue| &queue.followers);
        let followers = followers.chain(others).map(|pending| (0, pending));
        let limits = Load { keys: KEYS_MAX, messages: MESSAGES_MAX, bytes: BYTES_MAX };
        full_partitions(heads.chain(followers), limits, assigned)
    }

    /// Message that most others wait for. `None` if the database may be the cause.
    pub(super) fn blocking(
        &self,
        full: &BTreeSet<Partition>,
        successes: u64,
        now: Instant,
    ) -> Option<FailingMessage> {
        let blocks = |(partition, queue): (&Partition, &KeyQueue)| {
            let head = &queue.head;
            let is_old = now.saturating_duration_since(head.began.1) >= BLOCKING_AFTER;
            let are_many = full.contains(partition) || queue.followers.len() >= BLOCKED_MESSAGES;
            is_old && are_many && head.has_failed() && !head.is_unclear(successes)
        };
        let queues = self.by_key.iter().map(|((partition, _), queue)| (partition, queue));
        let blocking = queues.filter(|it| blocks(*it)).map(|(_, queue)| queue);
        let first = |queue: &&KeyQueue| {
            let since = std::cmp::Reverse(queue.head.first_failed_ms);
            (queue.followers.len(), since)
        };
        blocking.max_by_key(first).map(KeyQueue::describe)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Pending> {
        let queues = self.by_key.values();
        queues.flat_map(|queue| std::iter::once(&queue.head.pending).chain(&queue.followers))
    }

    pub(super) fn retain(&mut self, is_current: impl Fn(&RecordPosition) -> bool) {
        // All messages of a key belong to one assignment, so checking the first is enough.
        self.by_key.retain(|_, queue| is_current(&queue.head.pending.position));
    }

    /// Puts the message behind a waiting earlier one of its key, or returns it.
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

    /// A message of the key may wait already, because the later message of a batch may fail first.
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

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.by_key.values().map(|queue| queue.head.due).min()
    }

    pub(super) fn take_due(&mut self, now: Instant) -> Option<KeyQueue> {
        let due = self.by_key.iter().filter(|(_, queue)| queue.head.due <= now);
        let (key, _) = due.min_by_key(|(_, queue)| queue.head.due)?;
        let key = key.clone();
        self.by_key.remove(&key)
    }

    /// Makes all unclear messages due, after the first success since they failed.
    pub(super) fn wake_unclear(&mut self, successes_before: u64) {
        for queue in self.by_key.values_mut() {
            if queue.head.is_unclear(successes_before) {
                queue.head.due = Instant::now();
                queue.head.failures = 0;
            }
        }
    }

    pub(super) fn is_unclear(&self, successes: u64) -> bool {
        self.by_key.values().any(|queue| queue.head.is_unclear(successes))
    }

    pub(super) fn failing(&self) -> Option<FailingMessage> {
        let failed = self.by_key.values().filter(|queue| queue.head.has_failed());
        failed.min_by_key(|queue| queue.head.first_failed_ms).map(KeyQueue::describe)
    }
}

/// Partitions that hold their share of the limits, if the limits are reached. A share is the limit
/// divided by the assigned partitions, so the total is at most twice the limits. Each message comes
/// with the number of keys that it adds.
pub(super) fn full_partitions<'p>(
    waiting: impl Iterator<Item = (usize, &'p Pending)>,
    limits: Load,
    assigned: usize,
) -> BTreeSet<Partition> {
    let mut loads: BTreeMap<&Partition, Load> = BTreeMap::new();
    let mut total = Load::default();
    for (keys, pending) in waiting {
        total.add(keys, pending);
        loads.entry(pending.position.partition()).or_default().add(keys, pending);
    }
    if !total.is_part(limits, 1) {
        return BTreeSet::new();
    }
    let parts = assigned.max(loads.len());
    let full = loads.into_iter().filter(|(_, load)| load.is_part(limits, parts));
    full.map(|(partition, _)| partition.clone()).collect()
}

pub(super) fn record_bytes(record: &StoredRecord) -> usize {
    let size = |part: &Option<Vec<u8>>| part.as_ref().map_or(0, Vec::len);
    size(&record.key) + size(&record.value)
}

fn order_key(pending: &Pending) -> OrderKey {
    (pending.position.partition().clone(), pending.message.record.key.clone())
}

#[cfg(test)]
mod tests {
    use postrider_core::record::StoredRecord;

    use super::*;
    use crate::inbox::assignments::Assignments;
    use crate::inbox::{Failure, MessageFormat};

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
        let mut head = FailedMessage::new(pending, successes);
        fail(&mut head, FailureCause::Unclear, successes, Instant::now());
        head
    }

    fn spec() -> ConsumerSpec {
        ConsumerSpec::new("payments", ["orders"], "localhost:1", tokio_postgres::Config::new())
    }

    fn failure(cause: FailureCause, took: Duration) -> TransactionFailure {
        let failure = TransactionFailure::new(Failure::unavailable("why"), None);
        TransactionFailure { cause, took, ..failure }
    }

    fn fail(head: &mut FailedMessage, cause: FailureCause, successes: u64, now: Instant) -> u32 {
        head.fail(&failure(cause, Duration::ZERO), successes, now, &spec());
        head.attempts
    }

    #[test]
    fn a_message_that_hangs_takes_half_of_the_time_at_most() {
        let (spec, mut head) = (spec(), FailedMessage::new(pending(1, None), 0));
        let (attempt, begin) = (spec.idle_in_transaction_max, head.due);
        let (mut now, mut busy) = (begin, Duration::ZERO);
        for successes in 1.. {
            (now, busy) = (now.max(head.due) + attempt, busy + attempt);
            head.fail(&failure(FailureCause::Passing, attempt), successes, now, &spec);
            head.schedule(spec.backoff.wait(head.failures, 0), now);
            if head.attempts == spec.attempts_max {
                break;
            }
        }
        assert_eq!((busy, head.due - begin), (attempt * 6, attempt * 12));
        head.fail(&failure(FailureCause::Passing, attempt * 100), 0, now, &spec);
        head.schedule(Duration::ZERO, now);
        assert_eq!(head.due - now, ATTEMPT_INTERVAL);
        head.next_step = NextStep::DeadLetter("code", "why".into());
        head.schedule(Duration::ZERO, now);
        assert_eq!(head.due, now);
    }

    #[test]
    fn an_unclear_failure_counts_once_another_message_has_succeeded() {
        let (mut head, now) = (failed(pending(1, None), 7), Instant::now());
        assert!(head.attempts == 0 && head.is_unclear(7));
        fail(&mut head, FailureCause::Unclear, 7, now);
        fail(&mut head, FailureCause::Contention, 8, now);
        fail(&mut head, FailureCause::Dependency, 8, now);
        assert_eq!((head.attempts, head.failures), (0, 4));
        fail(&mut head, FailureCause::Unclear, 8, now);
        fail(&mut head, FailureCause::Message, 8, now);
        assert!(head.attempts == 2 && !head.is_unclear(8));
    }

    #[test]
    fn a_failure_that_may_pass_counts_once_a_minute_and_after_a_success_since() {
        let mut head = FailedMessage::new(pending(1, None), 7);
        let mut now = Instant::now();
        let mut fail = |after: Duration, successes| {
            now += after;
            (fail(&mut head, FailureCause::Passing, successes, now), head.is_unclear(successes))
        };
        let (moment, minute) = (Duration::from_millis(100), Duration::from_mins(1));
        assert_eq!(fail(moment, 7), (0, true));
        assert_eq!(fail(minute, 7), (0, true));
        assert_eq!(fail(moment, 8), (1, false));
        assert_eq!(fail(moment, 90), (1, false));
        assert_eq!(fail(minute, 90), (2, false));
        assert_eq!(fail(minute, 90), (2, false));
        assert_eq!(fail(moment, 91), (3, false));
        assert!(head.lacks_witness(FailureCause::Passing, 90));
        assert!(!head.lacks_witness(FailureCause::Passing, 92));
    }

    #[test]
    fn the_last_attempt_counts_after_five_minutes_if_waiting_may_help() {
        let mut head = FailedMessage::new(pending(1, None), 7);
        let (mut now, mut attempts) = (Instant::now(), Vec::new());
        for _ in 0..6 {
            now += Duration::from_mins(1);
            attempts.push(fail(&mut head, FailureCause::Early, 7, now));
        }
        assert_eq!(attempts, [1, 2, 3, 4, 5, 6]);
        let mut head = FailedMessage::new(pending(1, None), 7);
        let quickly = [(); 9].map(|()| fail(&mut head, FailureCause::Early, 7, Instant::now()));
        assert_eq!(quickly, [1, 2, 3, 4, 4, 4, 4, 4, 4]);
    }

    #[test]
    fn the_wait_for_a_lock_is_bounded_while_others_succeed() {
        let mut head = FailedMessage::new(pending(1, None), 7);
        let mut now = Instant::now();
        let mut contend = |after: Duration, successes| {
            now += after;
            fail(&mut head, FailureCause::Contention, successes, now);
            (head.waited().as_secs(), head.has_waited_too_long(&spec()))
        };
        let (moment, hour) = (Duration::from_secs(10), Duration::from_hours(1));
        assert_eq!(contend(hour, 7), (0, false));
        assert_eq!(contend(moment, 8), (60, false));
        assert_eq!(contend(moment, 8), (60, false));
        assert_eq!(contend(moment, 9), (80, false));
        let steps: Vec<_> = (10..30).map(|successes| contend(hour, successes)).collect();
        assert_eq!(steps.iter().position(|(_, is_over)| *is_over), Some(13));
        let patient = ConsumerSpec { contention_max: None, ..spec() };
        assert!(!head.has_waited_too_long(&patient));
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
        queue.wake_unclear(4);
        let woken = queue.take_due(Instant::now()).unwrap();
        assert_eq!((woken.head.pending.message.record.offset, woken.head.failures), (2, 0));
        assert!(woken.head.has_failed());
        assert!(queue.take_due(Instant::now()).is_none() && !queue.is_unclear(4));
    }

    fn full(queue: &RetryQueue, assigned: usize) -> Vec<i32> {
        let full = queue.full_partitions(std::iter::empty(), assigned);
        full.into_iter().map(|(_, partition)| partition).collect()
    }

    fn of_partition(partition: i32, offset: i64, key: Option<&str>) -> Pending {
        let pending = pending(offset, key);
        let record = StoredRecord { partition, ..pending.message.record.clone() };
        let mut assignments = Assignments::default();
        let partition = ("orders".to_owned(), partition);
        assignments.assign([partition.clone()]);
        assignments.begin(&partition, 1, 0, 0);
        let position = assignments.tag(record).unwrap().position;
        Pending { position, ..pending }
    }

    fn alone(pending: Pending) -> KeyQueue {
        KeyQueue { head: failed(pending, 0), followers: VecDeque::new() }
    }

    #[test]
    fn a_key_that_fills_the_queue_stops_only_its_partition() {
        let mut queue = RetryQueue::default();
        queue.insert(alone(of_partition(0, 0, None)));
        queue.insert(alone(of_partition(1, 0, Some("a"))));
        for offset in 1..9_999 {
            assert!(queue.follow(of_partition(0, offset, None)).is_none());
        }
        assert_eq!(full(&queue, 3), [0]);
        for offset in 1..3_333 {
            assert!(queue.follow(of_partition(1, offset, Some("a"))).is_none());
        }
        assert_eq!(full(&queue, 3), [0]);
        assert!(queue.follow(of_partition(1, 3_333, Some("a"))).is_none());
        assert_eq!(full(&queue, 3), [0, 1]);
    }

    #[test]
    fn as_much_may_wait_by_number_by_keys_and_by_bytes() {
        let mut queue = RetryQueue::default();
        queue.insert(alone(pending(0, None)));
        for offset in 1..9_999 {
            queue.follow(pending(offset, None));
        }
        assert!(full(&queue, 1).is_empty());
        queue.follow(pending(9_999, None));
        assert_eq!(full(&queue, 1), [0]);
        let mut queue = RetryQueue::default();
        for offset in 0..999 {
            queue.insert(alone(pending(offset, Some(&offset.to_string()))));
        }
        assert!(full(&queue, 1).is_empty());
        queue.insert(alone(pending(999, None)));
        assert_eq!(full(&queue, 1), [0]);
        let mut large = pending(0, None);
        large.message.record.value = Some(vec![0; BYTES_MAX]);
        let mut queue = RetryQueue::default();
        queue.insert(alone(large));
        assert_eq!(full(&queue, 1), [0]);
    }

    #[test]
    fn a_message_blocks_when_a_thousand_wait_behind_it() {
        let mut queue = RetryQueue::default();
        queue.insert(alone(pending(0, Some("a"))));
        queue.insert(alone(pending(1, Some("b"))));
        for offset in 2..1_001 {
            queue.follow(pending(offset, Some("a")));
        }
        let (none, later) = (BTreeSet::new(), Instant::now() + Duration::from_mins(1));
        assert_eq!(queue.blocking(&none, 1, later), None);
        queue.follow(pending(1_001, Some("a")));
        assert_eq!(queue.blocking(&none, 1, Instant::now()), None);
        assert_eq!(queue.blocking(&none, 0, later), None);
        let blocking = queue.blocking(&none, 1, later).unwrap();
        assert_eq!((blocking.offset, blocking.behind), (0, 1_000));
        let mut queue = RetryQueue::default();
        queue.insert(alone(pending(1, Some("b"))));
        let full = [("orders".to_owned(), 0)].into();
        assert_eq!(queue.blocking(&full, 1, later).unwrap().offset, 1);
        let ready = KeyQueue::ready((0..2_000).map(|it| pending(it, None)).collect(), 0).unwrap();
        let mut queue = RetryQueue::default();
        queue.insert(ready);
        assert!(queue.blocking(&full, 1, later).is_none() && queue.failing().is_none());
    }
}
