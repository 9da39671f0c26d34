//! Copies of delivered records for whoever looks on: the live tail of the dashboard.
//!
//! Input: delivery reports and confirmations of every session of a process. Output: the last [`RECORDS_MAX`] that were
//! copied ([`DeliveredTap::after`]). Invariant: while nobody looks on ([`DeliveredTap::allow`]) a record costs one relaxed
//! load of an atomic number, and nothing is copied or kept; otherwise no more are copied than were allowed. A record
//! is shown once it is confirmed, and not before. Keys and payloads are copied only where they may be shown.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdkafka::Message as _;
use rdkafka::message::{BorrowedMessage, Headers as _};

use postrider_core::ledger::Ticket;
use postrider_core::lsn::Lsn;
use postrider_core::sink::CommitPlace;

/// So many records are kept, about 200 KiB with their payloads.
pub const RECORDS_MAX: usize = 200;
/// So much of a key, a payload or a header is copied, in bytes: what fits on a line of a screen.
const TEXT_BYTES_MAX: usize = 400;
/// Records that were stored and are not confirmed yet: those of one Kafka transaction at most.
const WAITING_MAX: usize = RECORDS_MAX;

/// What is shown of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TapSpec {
    /// Keys and payloads may be shown.
    pub shows_payloads: bool,
    /// Rows come from the log: a transaction's place in it says something.
    pub has_positions: bool,
}

/// The headers of a record that say what it is. They change with the routes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TapHeaders {
    /// The one with the row's id.
    pub id: String,
    /// The one with the type of the event.
    pub event_type: String,
}

/// See the module. Cloning shares it; the default copies nothing, ever.
#[derive(Clone, Default)]
pub struct DeliveredTap(Option<Arc<Tap>>);

struct Tap {
    spec: TapSpec,
    headers: Mutex<TapHeaders>,
    /// So many more records may be copied.
    allowance: AtomicU32,
    ring: Mutex<Ring>,
}

#[derive(Default)]
struct Ring {
    /// Number of the last record.
    last: u64,
    records: VecDeque<DeliveredRecord>,
}

/// A key or a payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    /// How large it is.
    pub bytes: usize,
    /// How it begins; `None` where it may not be shown.
    pub text: Option<String>,
}

/// A record that the brokers confirmed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveredRecord {
    /// Counts what was copied in this process, from 1.
    pub number: u64,
    /// Where it is.
    pub topic: String,
    /// See `topic`.
    pub partition: i32,
    /// See `topic`.
    pub offset: i64,
    /// As its header says.
    pub id: Option<String>,
    /// As its header says.
    pub event_type: Option<String>,
    /// `None` is no key.
    pub key: Option<Content>,
    /// `None` is a tombstone.
    pub payload: Option<Content>,
    /// Where its transaction committed; `None` where rows are polled.
    pub position: Option<Lsn>,
    /// When, in microseconds since the Unix epoch.
    pub committed_us: i64,
}

/// Records of one session that were stored and are not confirmed yet, under their tickets.
pub(super) type Waiting = Vec<(Ticket, DeliveredRecord)>;

impl DeliveredTap {
    /// A tap that nobody looks at yet.
    pub fn new(spec: TapSpec, headers: TapHeaders) -> Self {
        let (headers, allowance, ring) = (Mutex::new(headers), AtomicU32::new(0), Mutex::default());
        Self(Some(Arc::new(Tap { spec, headers, allowance, ring })))
    }

    /// Records have these headers from now on.
    pub fn take_headers(&self, headers: TapHeaders) {
        if let Some(tap) = &self.0 {
            *tap.headers() = headers;
        }
    }

    /// Whether keys and payloads may be shown.
    pub fn shows_payloads(&self) -> bool {
        self.0.as_ref().is_some_and(|tap| tap.spec.shows_payloads)
    }

    /// Lets so many records be copied from now on, and not those that were left of earlier allowances.
    pub fn allow(&self, records: u32) {
        if let Some(tap) = &self.0 {
            tap.allowance.store(records, Ordering::Relaxed);
        }
    }

    /// Copies nothing more, and forgets what was copied.
    pub fn close(&self) {
        if let Some(tap) = &self.0 {
            tap.allowance.store(0, Ordering::Relaxed);
            tap.ring().records = VecDeque::new();
        }
    }

    /// What is kept of the records after this number, the oldest first; all of it if the number is one of an earlier
    /// process.
    pub fn after(&self, number: u64) -> Vec<DeliveredRecord> {
        let Some(tap) = &self.0 else { return Vec::new() };
        let ring = tap.ring();
        let number = if number > ring.last { 0 } else { number };
        ring.records.iter().filter(|record| record.number > number).cloned().collect()
    }

    /// A record was stored: it is copied if somebody looks on. Costs one load otherwise.
    #[inline]
    pub(super) fn stored(
        &self,
        ticket: Ticket,
        message: &BorrowedMessage<'_>,
    ) -> Option<DeliveredRecord> {
        let tap = self.0.as_ref()?;
        if tap.allowance.load(Ordering::Relaxed) == 0 {
            return None;
        }
        tap.copy(ticket, message)
    }

    /// The record of this ticket is confirmed.
    pub(super) fn confirmed(&self, waiting: &mut Waiting, ticket: Ticket, commit: CommitPlace) {
        let Some(tap) = &self.0 else { return };
        let Some(at) = waiting.iter().position(|(waits, _)| *waits == ticket) else { return };
        let (_, mut record) = waiting.remove(at);
        record.position = Some(commit.lsn).filter(|_| tap.spec.has_positions);
        record.committed_us = commit.time_us;
        tap.ring().add(record);
    }
}

impl Tap {
    fn headers(&self) -> MutexGuard<'_, TapHeaders> {
        self.headers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cold]
    fn copy(&self, ticket: Ticket, message: &BorrowedMessage<'_>) -> Option<DeliveredRecord> {
        if ticket == postrider_core::transaction::PROGRESS_TICKET {
            return None;
        }
        let take = |left: u32| left.checked_sub(1);
        self.allowance.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok()?;
        let content = |bytes: &[u8]| Content {
            bytes: bytes.len(),
            text: self.spec.shows_payloads.then(|| beginning(bytes)),
        };
        let headers = self.headers();
        Some(DeliveredRecord {
            number: 0,
            topic: message.topic().to_owned(),
            partition: message.partition(),
            offset: message.offset(),
            id: header(message, &headers.id),
            event_type: header(message, &headers.event_type),
            key: message.key().map(content),
            payload: message.payload().map(content),
            position: None,
            committed_us: 0,
        })
    }
}

impl Ring {
    fn add(&mut self, record: DeliveredRecord) {
        if self.records.len() == RECORDS_MAX {
            self.records.pop_front();
        }
        self.last += 1;
        self.records.push_back(DeliveredRecord { number: self.last, ..record });
    }
}

/// Adds a record that was copied; those of a session that confirms none of them do not pile up.
pub(super) fn wait(waiting: &mut Waiting, ticket: Ticket, record: DeliveredRecord) {
    if waiting.len() < WAITING_MAX {
        waiting.push((ticket, record));
    }
}

fn header(message: &BorrowedMessage<'_>, name: &str) -> Option<String> {
    let headers = message.headers()?;
    let found = headers.iter().find(|header| header.key == name)?;
    found.value.map(beginning)
}

/// As text; what is none becomes replacement characters.
fn beginning(bytes: &[u8]) -> String {
    let cut = bytes.get(..TEXT_BYTES_MAX).unwrap_or(bytes);
    let mut text = String::from_utf8_lossy(cut).into_owned();
    if cut.len() < bytes.len() {
        // A character that was cut in two.
        while text.ends_with(char::REPLACEMENT_CHARACTER) {
            text.pop();
        }
        text.push('…');
    }
    text
}

impl PartialEq for DeliveredTap {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        }
    }
}

impl Eq for DeliveredTap {}

impl fmt::Debug for DeliveredTap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DeliveredTap").field(&self.0.as_ref().map(|tap| &tap.spec)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(offset: i64) -> DeliveredRecord {
        DeliveredRecord {
            number: 0,
            topic: "orders".to_owned(),
            partition: 0,
            offset,
            id: None,
            event_type: None,
            key: None,
            payload: None,
            position: None,
            committed_us: 0,
        }
    }

    #[test]
    fn the_last_records_are_kept_and_those_after_a_number_are_told() {
        let spec = TapSpec { has_positions: true, shows_payloads: false };
        let tap = DeliveredTap::new(spec, TapHeaders::default());
        let commit = CommitPlace { lsn: Lsn::new(7), time_us: 8 };
        let (ticket, other) = (Ticket::new(1, 2), Ticket::new(1, 3));
        for offset in 0..205 {
            let mut waiting = Waiting::new();
            wait(&mut waiting, ticket, record(offset));
            tap.confirmed(&mut waiting, other, commit);
            assert_eq!(waiting.len(), 1, "of another record");
            tap.confirmed(&mut waiting, ticket, commit);
            assert!(waiting.is_empty());
        }
        let kept = tap.after(0);
        assert_eq!((kept.len(), kept[0].offset, kept[0].number), (RECORDS_MAX, 5, 6));
        assert_eq!((kept[0].position, kept[0].committed_us), (Some(Lsn::new(7)), 8));
        assert_eq!((tap.after(204).len(), tap.after(205).len()), (1, 0));
        assert_eq!(tap.after(206).len(), RECORDS_MAX, "a number of an earlier process");
        tap.close();
        assert_eq!(tap.after(0), []);
        let never = DeliveredTap::default();
        never.allow(5);
        never.confirmed(&mut vec![(ticket, record(1))], ticket, commit);
        assert_eq!(never.after(0), []);
    }

    #[test]
    fn what_waits_for_its_confirmation_is_bounded() {
        let mut waiting = Waiting::new();
        for offset in 0..1_000 {
            wait(&mut waiting, Ticket::new(1, 2), record(offset));
        }
        assert_eq!(waiting.len(), WAITING_MAX);
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(beginning(b"short"), "short");
        let long = "ü".repeat(TEXT_BYTES_MAX);
        assert_eq!(beginning(&long.as_bytes()[1..]).matches('ü').count(), TEXT_BYTES_MAX / 2 - 1);
        assert!(beginning(long.as_bytes()).ends_with("ü…"));
    }
}
