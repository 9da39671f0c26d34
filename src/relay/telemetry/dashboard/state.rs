//! What the dashboard shows of this moment.
//!
//! Input: a [`View`]. Output: [`State`], serialised as JSON; the same numbers as in `/metrics`. Invariant: no payload and no
//! key of a row is part of it, and settings come with their secrets masked.

use serde::Serialize;

use crate::telemetry::health::{Health, Role, readiness};
use crate::telemetry::snapshot::{Count, RelayState, Snapshot, UnavailableTopic};
use crate::telemetry::{Setting, Telemetry, View, time_text};

/// Rows that wait for longer, in seconds, are a backlog.
const CATCHING_UP: f64 = 5.0;
/// So many topics are listed; the metrics have more.
const TOPICS_MAX: usize = 200;

/// See the module.
#[derive(Debug, Serialize)]
pub(super) struct State<'a> {
    /// `streaming`, `catching up`, `paused`, `standby` or `not ready`.
    condition: &'static str,
    version: &'a str,
    git: &'a str,
    librdkafka: &'a str,
    slot_name: &'a str,
    uptime_seconds: f64,
    health: Health,
    /// From Postgres to Kafka.
    chain: [Link; 4],
    numbers: Numbers,
    topics: Vec<Topic<'a>>,
    unavailable: Vec<Unavailable<'a>>,
    /// Rows that became dead letters, and rows that were left out, by reason.
    rejections: &'a [Count],
    ignored: &'a [Count],
    /// Sessions that ended, by reason.
    restarts: &'a [Count],
    last_failure: Option<&'a str>,
    /// The slot as Postgres shows it, by column.
    slot: Option<&'a [(String, String)]>,
    paused_since: Option<String>,
    settings: Vec<Setting>,
}

/// One part of the way.
#[derive(Debug, Serialize)]
struct Link {
    name: &'static str,
    /// `ok`, `waiting`, `failed` or `unknown`.
    is: &'static str,
    detail: String,
}

#[derive(Debug, Serialize)]
struct Numbers {
    confirmed: u64,
    dead_lettered: u64,
    in_flight_records: u64,
    in_flight_bytes: u64,
    oldest_unacknowledged_seconds: f64,
    transactions_settled: u64,
    received_lsn: u64,
    settled_lsn: u64,
    acknowledged_lsn: Option<u64>,
    slot_lag_bytes: Option<u64>,
    slot_retained_bytes: Option<u64>,
    slot_safe_bytes: Option<u64>,
}

#[derive(Debug, Serialize)]
struct Topic<'a> {
    name: &'a str,
    sent: u64,
    dead_lettered: u64,
    bytes: u64,
}

#[derive(Debug, Serialize)]
struct Unavailable<'a> {
    topic: &'a str,
    reason: &'a str,
    seconds: u64,
    rows_wait: bool,
    help: &'a str,
}

impl<'a> State<'a> {
    pub(super) fn of(view: &'a View, telemetry: &'a Telemetry) -> Self {
        let (snapshot, build) = (&*view.snapshot, telemetry.build());
        let health = readiness(view, Role::Any);
        let topic = |count: &'a crate::telemetry::TopicCount| Topic {
            name: &count.topic,
            sent: count.sent,
            dead_lettered: count.dead_lettered,
            bytes: count.bytes,
        };
        Self {
            condition: condition(view, &health),
            version: &build.version,
            git: &build.git,
            librdkafka: &build.librdkafka,
            slot_name: &build.slot,
            uptime_seconds: view.uptime.as_secs_f64(),
            chain: chain(view, &health),
            health,
            numbers: Numbers::of(view),
            topics: snapshot.topics.iter().take(TOPICS_MAX).map(topic).collect(),
            unavailable: snapshot.unavailable.named.iter().map(Unavailable::of).collect(),
            rejections: &snapshot.rejections,
            ignored: &snapshot.ignored,
            restarts: &snapshot.restarts,
            last_failure: snapshot.last_failure.as_deref(),
            slot: view.slot_columns.as_deref(),
            paused_since: view.operated.paused_since_us.map(time_text),
            settings: telemetry.settings().to_vec(),
        }
    }
}

impl Numbers {
    fn of(view: &View) -> Self {
        let Snapshot {
            confirmed,
            in_flight_records,
            in_flight_bytes,
            transactions_settled,
            received_lsn,
            settled_lsn,
            ..
        } = *view.snapshot;
        Self {
            confirmed,
            dead_lettered: view.snapshot.topics.iter().map(|topic| topic.dead_lettered).sum(),
            in_flight_records,
            in_flight_bytes,
            oldest_unacknowledged_seconds: view.oldest_unacknowledged_age.as_secs_f64(),
            transactions_settled,
            received_lsn,
            settled_lsn,
            acknowledged_lsn: view.slot.map(|slot| slot.acknowledged_lsn),
            slot_lag_bytes: view.slot.map(|slot| slot.lag_bytes),
            slot_retained_bytes: view.slot.map(|slot| slot.retained_bytes),
            slot_safe_bytes: view.slot.and_then(|slot| slot.safe_bytes),
        }
    }
}

impl<'a> Unavailable<'a> {
    fn of(topic: &'a UnavailableTopic) -> Self {
        Self {
            topic: &topic.topic,
            reason: topic.reason,
            seconds: topic.age.as_secs(),
            rows_wait: topic.waiting,
            help: &topic.help,
        }
    }
}

fn condition(view: &View, health: &Health) -> &'static str {
    let waits = view.oldest_unacknowledged_age.as_secs_f64() > CATCHING_UP;
    match (health.ok, view.snapshot.state) {
        (false, _) => "not ready",
        (true, RelayState::Standby) => "standby",
        (true, _) if view.operated.paused_since_us.is_some() => "paused",
        (true, _) if waits => "catching up",
        (true, _) => "streaming",
    }
}

/// Of the checks of readiness what each part of the way has to do with.
fn chain(view: &View, health: &Health) -> [Link; 4] {
    let snapshot = &view.snapshot;
    let failing = |names: &[&str]| {
        let found = health.checks.iter().find(|check| !check.ok && names.contains(&check.name));
        found.map(|check| check.detail.clone())
    };
    let is_standby = snapshot.state == RelayState::Standby;
    let has_failed = || snapshot.last_failure.as_deref().map(str::to_owned);
    let postgres = match (snapshot.holds_slot, view.slot.is_some()) {
        (true, _) if snapshot.is_polled => Link::ok("Postgres", "rows are polled"),
        (true, _) => Link::ok("Postgres", "a stream is open"),
        (false, true) => Link::ok("Postgres", "it answers"),
        (false, false) => Link::unknown("Postgres", has_failed()),
    };
    let slot = match (snapshot.holds_slot, is_standby) {
        _ if snapshot.is_polled => Link::ok("Slot", "none: rows are polled"),
        (true, _) => Link::ok("Slot", "held by this relay"),
        (false, true) => Link {
            name: "Slot",
            is: "waiting",
            detail: "another relay holds it; this one takes over when it ends".to_owned(),
        },
        (false, false) => Link::unknown("Slot", has_failed()),
    };
    let paused = health.checks.iter().find(|check| check.name == "paused");
    let relay = match (failing(&["loop", "state"]), paused) {
        (Some(detail), _) if snapshot.state == RelayState::Stalled => {
            Link { name: "Relay", is: "waiting", detail }
        }
        (Some(detail), _) => Link { name: "Relay", is: "failed", detail },
        (None, Some(paused)) => {
            Link { name: "Relay", is: "waiting", detail: paused.detail.clone() }
        }
        (None, None) => Link::ok("Relay", snapshot.state.as_str()),
    };
    let kafka = match failing(&["kafka", "topics", "progress"]) {
        Some(detail) if snapshot.holds_slot => Link { name: "Kafka", is: "failed", detail },
        _ if snapshot.broker_connected => Link::ok("Kafka", "the brokers confirm"),
        _ => Link::unknown("Kafka", None),
    };
    [postgres, slot, relay, kafka]
}

impl Link {
    fn ok(name: &'static str, detail: &str) -> Self {
        Self { name, is: "ok", detail: detail.to_owned() }
    }

    fn unknown(name: &'static str, detail: Option<String>) -> Self {
        Self { name, is: "unknown", detail: detail.unwrap_or_else(|| "not known yet".to_owned()) }
    }
}
