//! The records that were delivered last, while somebody looks on.
//!
//! Input: requests for `/api/v1/tail`, a tick a second. Output: [`TailPage`], the records after a number. Invariant: records
//! are copied only while somebody has asked within [`LOOKS_FOR`], and at most [`RECORDS_PER_SECOND`]; keys and payloads are
//! told by their size unless `http.dashboard_payloads` is on.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use postrider_kafka::{Content, DeliveredRecord, DeliveredTap};
use serde::Serialize;

/// A page asks once a second; one that has not for so long is gone. In milliseconds.
const LOOKS_FOR: i64 = 5_000;
/// More than a person reads, and little beside 100,000 rows a second.
const RECORDS_PER_SECOND: u32 = 50;
/// Nobody looks on.
const NOBODY: i64 = i64::MIN;

/// See the module. Cloning shares it.
#[derive(Debug, Clone)]
pub(super) struct Tail {
    tap: DeliveredTap,
    /// When somebody asked last, in milliseconds since the Unix epoch.
    asked_ms: Arc<AtomicI64>,
}

/// What is answered.
#[derive(Debug, Serialize)]
pub(super) struct TailPage {
    /// Keys and payloads are told by their size.
    masked: bool,
    /// The oldest first.
    records: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    /// Counts the records that were copied, from 1.
    number: u64,
    topic: String,
    partition: i32,
    offset: i64,
    id: Option<String>,
    event_type: Option<String>,
    key: Option<Shown>,
    payload: Option<Shown>,
    /// Where its transaction committed, as Postgres writes it.
    position: Option<String>,
    /// When, in milliseconds since the Unix epoch.
    committed_ms: i64,
}

/// A key or a payload.
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

    /// What is copied of the records.
    pub(super) const fn tap(&self) -> &DeliveredTap {
        &self.tap
    }

    /// Somebody looks on, and has seen the records up to this number.
    pub(super) fn after(&self, number: u64, now_ms: i64) -> TailPage {
        if self.asked_ms.swap(now_ms, Ordering::Relaxed) == NOBODY {
            self.tap.allow(RECORDS_PER_SECOND);
        }
        let records = self.tap.after(number).into_iter().map(Row::from).collect();
        TailPage { masked: !self.tap.shows_payloads(), records }
    }

    /// Once a second.
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
