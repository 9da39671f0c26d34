//! Keeps rows with a sampled `traceparent` until the brokers' confirmation, then queues a
//! [`TracedRow`].
//!
//! Invariant: nothing waits; rows without room are omitted and counted. While tracing is off, a
//! record costs one comparison. Keys and payloads are not kept.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::Message;
use rdkafka::message::BorrowedMessage;

use super::deliveries::now_us;
use postrider_core::ledger::Ticket;
use postrider_core::pipeline::Outgoing;
use postrider_core::route::{RejectionCode, TraceContext, content_of};

/// More than ten seconds' worth at the highest rate.
const WAITING_MAX: usize = 4_096;

/// At most about 400 bytes per row.
const QUEUE_ROWS: usize = 4_096;

/// A row's event type may be as large as a record.
const EVENT_TYPE_BYTES_MAX: usize = 200;

/// Names of relays and Debezium.
const EVENT_TYPE_HEADERS: [&str; 4] = ["event_type", "eventType", "ce_type", "type"];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracedRow {
    /// Trace and span that wrote the row.
    pub context: TraceContext,
    pub topic: String,
    pub partition: i32,
    pub offset: i64,
    /// Cut if long.
    pub event_type: Option<String>,
    /// Commit position in the log, in bytes.
    pub lsn: u64,
    /// Microseconds since the Unix epoch.
    pub committed_us: i64,
    /// Local clock, in microseconds since the Unix epoch.
    pub confirmed_us: i64,
    pub rejection: Option<RejectionCode>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanResult {
    Exported,
    RateLimited,
    QueueFull,
    Failed,
}

impl SpanResult {
    pub const ALL: [Self; 4] = [Self::Exported, Self::RateLimited, Self::QueueFull, Self::Failed];

    /// Value of the metric label `result`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exported => "exported",
            Self::RateLimited => "rate_limited",
            Self::QueueFull => "queue_full",
            Self::Failed => "failed",
        }
    }
}

/// Shared by clones. Off by default.
#[derive(Debug, Clone, Default)]
pub struct Traces(Option<Arc<Shared>>);

impl PartialEq for Traces {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        }
    }
}

impl Eq for Traces {}

#[derive(Debug)]
struct Shared {
    queue: SyncSender<TracedRow>,
    rate: Mutex<Rate>,
    counts: [AtomicU64; SpanResult::ALL.len()],
}

/// A second starts with its first row.
#[derive(Debug)]
struct Rate {
    per_second: u64,
    since: Option<Instant>,
    taken: u64,
}

impl Rate {
    fn admits(&mut self, now: Instant) -> bool {
        let is_same = |since: &Instant| now.duration_since(*since) < Duration::from_secs(1);
        if !self.since.as_ref().is_some_and(is_same) {
            (self.since, self.taken) = (Some(now), 0);
        }
        self.taken += 1;
        self.taken <= self.per_second
    }
}

impl Traces {
    pub fn on(per_second: u64) -> (Self, Receiver<TracedRow>) {
        let (queue, rows) = sync_channel(QUEUE_ROWS);
        let rate = Mutex::new(Rate { per_second, since: None, taken: 0 });
        (Self(Some(Arc::new(Shared { queue, rate, counts: Default::default() }))), rows)
    }

    pub(super) const fn is_on(&self) -> bool {
        self.0.is_some()
    }

    pub fn count(&self, result: SpanResult, rows: u64) {
        if let Some(count) = self.0.as_ref().and_then(|shared| shared.counts.get(result as usize)) {
            count.fetch_add(rows, Ordering::Relaxed);
        }
    }

    /// `None` while tracing is off.
    pub fn counts(&self) -> Option<[(SpanResult, u64); SpanResult::ALL.len()]> {
        let counts = &self.0.as_ref()?.counts;
        let of =
            |result: SpanResult| counts.get(result as usize).map(|n| n.load(Ordering::Relaxed));
        Some(SpanResult::ALL.map(|result| (result, of(result).unwrap_or_default())))
    }

    fn admits(&self) -> bool {
        let Some(shared) = &self.0 else { return false };
        let admitted =
            shared.rate.lock().unwrap_or_else(PoisonError::into_inner).admits(Instant::now());
        if !admitted {
            self.count(SpanResult::RateLimited, 1);
        }
        admitted
    }

    fn export(&self, row: TracedRow) {
        if self.0.as_ref().is_some_and(|shared| shared.queue.try_send(row).is_err()) {
            self.count(SpanResult::QueueFull, 1);
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct TracedRows {
    traces: Traces,
    /// By ticket; content distinguishes rows of one ticket.
    waiting: HashMap<u64, Vec<(u64, TracedRow)>>,
    count: usize,
    /// Rows that wait for the commit of their transaction.
    stored: Option<Vec<TracedRow>>,
}

impl TracedRows {
    pub(super) fn new(traces: Traces) -> Self {
        Self { traces, ..Self::default() }
    }

    pub(super) fn await_commits(&mut self) {
        self.stored = Some(Vec::new());
    }

    pub(super) fn sent(&mut self, outgoing: &Outgoing<'_>) {
        let (Outgoing { record, ticket, rejection, .. }, Some(position)) =
            (outgoing, outgoing.position)
        else {
            return;
        };
        let Some(context) = record.trace().filter(|context| context.is_sampled) else { return };
        if !self.traces.admits() {
            return;
        }
        if self.count >= WAITING_MAX {
            return self.traces.count(SpanResult::QueueFull, 1);
        }
        let mut headers = record.headers.iter();
        let event_type = headers.find(|(name, _)| EVENT_TYPE_HEADERS.contains(name));
        let event_type = event_type.and_then(|(_, value)| std::str::from_utf8((*value)?).ok());
        let row = TracedRow {
            context,
            topic: record.topic.to_owned(),
            partition: 0,
            offset: 0,
            event_type: event_type.map(|text| {
                let end = text.floor_char_boundary(EVENT_TYPE_BYTES_MAX);
                text.get(..end).unwrap_or_default().to_owned()
            }),
            lsn: position.commit_lsn.get(),
            committed_us: position.commit_time.unix_us(),
            confirmed_us: 0,
            rejection: *rejection,
        };
        let hash = content_of(record.topic, record.key, record.value);
        self.waiting.entry(ticket.to_opaque()).or_default().push((hash, row));
        self.count += 1;
    }

    #[inline]
    pub(super) fn answered(
        &mut self,
        ticket: Ticket,
        message: &BorrowedMessage<'_>,
        is_stored: bool,
    ) {
        if self.count > 0 {
            self.match_up(ticket, message, is_stored);
        }
    }

    fn match_up(&mut self, ticket: Ticket, message: &BorrowedMessage<'_>, is_stored: bool) {
        let Some(rows) = self.waiting.get_mut(&ticket.to_opaque()) else { return };
        let content = content_of(message.topic(), message.key(), message.payload());
        let Some(index) = rows.iter().position(|(known, _)| *known == content) else { return };
        let (_, mut row) = rows.remove(index);
        self.count -= 1;
        if rows.is_empty() {
            self.waiting.remove(&ticket.to_opaque());
        }
        if !is_stored {
            return;
        }
        (row.partition, row.offset) = (message.partition(), message.offset());
        match &mut self.stored {
            Some(stored) if stored.len() < WAITING_MAX => stored.push(row),
            Some(_) => self.traces.count(SpanResult::QueueFull, 1),
            None => self.traces.export(TracedRow { confirmed_us: now_us(), ..row }),
        }
    }

    pub(super) fn committed(&mut self) {
        for row in self.stored.iter_mut().flat_map(|stored| stored.drain(..)) {
            self.traces.export(TracedRow { confirmed_us: now_us(), ..row });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_rows_a_second_are_traced() {
        let mut rate = Rate { per_second: 2, since: None, taken: 0 };
        let start = Instant::now();
        let admitted = |rate: &mut Rate, ms: u64| rate.admits(start + Duration::from_millis(ms));
        let found = [0, 500, 999, 1_000, 1_001, 1_002].map(|ms| admitted(&mut rate, ms));
        assert_eq!(found, [true, true, false, true, true, false]);
    }

    #[test]
    fn what_has_no_room_is_left_out_and_counted() {
        let (traces, _rows) = Traces::on(10);
        let context = TraceContext { trace_id: [1; 16], span_id: [2; 8], is_sampled: true };
        let row = TracedRow {
            context,
            topic: "t".to_owned(),
            partition: 0,
            offset: 0,
            event_type: None,
            lsn: 0,
            committed_us: 0,
            confirmed_us: 0,
            rejection: None,
        };
        (0..QUEUE_ROWS + 3).for_each(|_| traces.export(row.clone()));
        let counts = traces.counts().unwrap();
        let full = counts.iter().find(|(result, _)| *result == SpanResult::QueueFull);
        assert_eq!(full.map(|(_, count)| *count), Some(3));
        assert_eq!(Traces::default().counts(), None);
    }
}
