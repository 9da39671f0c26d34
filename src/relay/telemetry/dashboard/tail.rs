//! Live tail of the records delivered last, while a browser shows them.
//!
//! Invariant: records are copied only if a request arrived within [`LOOKS_FOR`]. Keys and payloads
//! appear only as sizes unless `http.dashboard_payloads` is on.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use postrider_kafka::{Content, DeliveredRecord, DeliveredTap};
use serde::Serialize;

/// Milliseconds without a request until the page counts as closed. An open page sends one every
/// second.
const LOOKS_FOR: i64 = 5_000;
/// Costs little beside 100,000 rows per second.
const RECORDS_PER_SECOND: u32 = 50;
const NOBODY: i64 = i64::MIN;

#[derive(Debug, Clone)]
pub(super) struct Tail {
    tap: DeliveredTap,
    /// Milliseconds since the Unix epoch.
    asked_ms: Arc<AtomicI64>,
}

#[derive(Debug, Serialize)]
pub(super) struct TailPage {
    /// Keys and payloads appear only as sizes.
    masked: bool,
    /// Oldest first.
    records: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    number: u64,
    topic: String,
    partition: i32,
    offset: i64,
    id: Option<String>,
    event_type: Option<String>,
    key: Option<Shown>,
    payload: Option<Shown>,
    /// Commit position, in Postgres's notation.
    position: Option<String>,
    /// Milliseconds since the Unix epoch.
    committed_ms: i64,
}

/// Size and, if allowed, text of a key or a payload.
#[derive(Debug, Serialize)]
pub(super) struct Shown {
    bytes: usize,
    text: Option<String>,
}

impl Shown {
    pub(super) fn of(content: Content) -> Self {
        Self { bytes: content.bytes, text: content.text }
    }
}

impl Tail {
    pub(super) fn new(tap: DeliveredTap) -> Self {
        Self { tap, asked_ms: Arc::new(AtomicI64::new(NOBODY)) }
    }

    pub(super) const fn tap(&self) -> &DeliveredTap {
        &self.tap
    }

    pub(super) fn after(&self, number: u64, now_ms: i64) -> TailPage {
        if self.asked_ms.swap(now_ms, Ordering::Relaxed) == NOBODY {
            self.tap.allow(RECORDS_PER_SECOND);
        }
        let records = self.tap.after(number).into_iter().map(Row::from).collect();
        TailPage { masked: !self.tap.shows_payloads(), records }
    }

    /// Allows further copies, or stops copying if no page is open. Called once per second.
    pub(super) fn tick(&self, now_ms: i64) {
        let asked_ms = self.asked_ms.load(Ordering::Relaxed);
        if asked_ms == NOBODY {
            return;
        }
        if now_ms.saturating_sub(asked_ms) <= LOOKS_FOR {
            self.tap.allow(RECORDS_PER_SECOND);
        } else {
            self.asked_ms.store(NOBODY, Ordering::Relaxed);
            self.tap.close();
        }
    }
}

impl From<DeliveredRecord> for Row {
    fn from(record: DeliveredRecord) -> Self {
        Self {
            number: record.number,
            topic: record.topic,
            partition: record.partition,
            offset: record.offset,
            id: record.id,
            event_type: record.event_type,
            key: record.key.map(Shown::of),
            payload: record.payload.map(Shown::of),
            position: record.position.map(|lsn| lsn.to_string()),
            committed_ms: record.committed_us / 1_000,
        }
    }
}
