//! Current state of the relay for the dashboard, with the same numbers as `/metrics`.
//!
//! Invariant: keys and payloads of dead letters appear only as sizes unless
//! `http.dashboard_payloads` is on. Secrets in settings are masked.

use serde::Serialize;

use super::history::History;
use super::status::Status;
use super::tail::Shown;
use super::topics::TOPICS_MAX;
use crate::telemetry::health::{Health, Role, readiness};
use crate::telemetry::process::usage;
use crate::telemetry::snapshot::{Count, FailedPart, RelayState, Snapshot, UnavailableTopic};
use crate::telemetry::{Setting, StreamEnds, Telemetry, View, time_text};
use postrider_kafka::{DeliveredTap, TappedDeadLetter};
use postrider_service::shell::shell_word;

/// Codes of dead letters that can be sent again once their topic accepts them.
const SENT_AGAIN: [&str; 3] = ["forbidden_topic", "missing_topic", "refused"];

/// Age of the oldest row in seconds, above which the relay counts as catching up.
const CATCHING_UP: f64 = 5.0;

#[derive(Debug, Serialize)]
pub(super) struct State<'a> {
    /// `streaming`, `catching up`, `paused`, `standby` or `not ready`.
    condition: &'static str,
    version: &'a str,
    git: &'a str,
    librdkafka: &'a str,
    slot_name: &'a str,
    stream: Option<&'a str>,
    database: &'a str,
    hosts: &'a [String],
    brokers: &'a [String],
    uptime_seconds: f64,
    status: Status,
    health: Health,
    chain: [Link; 4],
    numbers: Numbers,
    topics: Vec<Topic<'a>>,
    unavailable: Vec<Unavailable<'a>>,
    /// Newest first.
    dead_letters: Vec<DeadLetter>,
    /// Rows that became dead letters, and rows that were left out, by reason.
    rejections: &'a [Count],
    ignored: &'a [Count],
    restarts: &'a [Count],
    last_failure: Option<&'a str>,
    /// Columns of the slot in `pg_replication_slots`.
    slot: Option<&'a [(String, String)]>,
    paused_since: Option<String>,
    settings: Vec<Setting>,
}

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
    /// `None` if rows may wait that the relay has not received yet.
    oldest_unacknowledged_seconds: Option<f64>,
    transactions_settled: u64,
    received_lsn: u64,
    settled_lsn: u64,
    acknowledged_lsn: Option<u64>,
    slot_lag_bytes: Option<u64>,
    slot_retained_bytes: Option<u64>,
    slot_safe_bytes: Option<u64>,
    in_flight_bytes_max: Option<u64>,
    resident_bytes: Option<u64>,
    memory_bytes_max: Option<u64>,
}

#[derive(Debug, Serialize)]
struct Topic<'a> {
    name: &'a str,
    sent: u64,
    dead_lettered: u64,
    bytes: u64,
    partitions: Option<usize>,
    /// Records per second over the last ten seconds.
    rate: Option<f64>,
    /// Milliseconds since the Unix epoch.
    last_ms: Option<i64>,
}

#[derive(Debug, Serialize)]
struct DeadLetter {
    /// Milliseconds since the Unix epoch.
    at_ms: i64,
    code: &'static str,
    reason: Option<String>,
    id: Option<String>,
    table: Option<String>,
    /// Intended topic of the row.
    topic: Option<String>,
    key: Option<Shown>,
    payload: Option<Shown>,
    command: String,
}

#[derive(Debug, Serialize)]
pub(super) struct StreamLine<'a> {
    name: &'a str,
    condition: &'static str,
    status: Status,
    database: &'a str,
    rate: Option<f64>,
    p99_us: Option<u64>,
    oldest_unacknowledged_seconds: Option<f64>,
    slot_lag_bytes: Option<u64>,
    dead_lettered: u64,
}

#[derive(Debug, Serialize)]
struct Unavailable<'a> {
    topic: &'a str,
    reason: &'a str,
    seconds: u64,
    rows_wait: bool,
    help: &'a str,
}

impl<'a> StreamLine<'a> {
    pub(super) fn of(
        name: &'a str,
        view: &View,
        telemetry: &'a Telemetry,
        history: &History,
    ) -> Self {
        let (health, ends) = (readiness(view, Role::Any), &telemetry.build().ends);
        let (rate, p99_us) = history.latest();
        let numbers = Numbers::of(view, ends);
        Self {
            name,
            condition: condition(view, &health),
            status: Status::of(view, &health, ends, is_late(view)),
            database: &ends.database,
            rate,
            p99_us,
            oldest_unacknowledged_seconds: numbers.oldest_unacknowledged_seconds,
            slot_lag_bytes: numbers.slot_lag_bytes,
            dead_lettered: numbers.dead_lettered,
        }
    }
}

impl<'a> State<'a> {
    pub(super) fn of(
        view: &'a View,
        telemetry: &'a Telemetry,
        history: &History,
        tap: &DeliveredTap,
    ) -> Self {
        let (snapshot, build) = (&*view.snapshot, telemetry.build());
        let health = readiness(view, Role::Any);
        let topic = |count: &'a crate::telemetry::TopicCount| {
            let pace = history.pace(&count.topic);
            Topic {
                name: &count.topic,
                sent: count.sent,
                dead_lettered: count.dead_lettered,
                bytes: count.bytes,
                partitions: tap.partitions(&count.topic),
                rate: pace.rate,
                last_ms: pace.last_ms,
            }
        };
        let ends = &build.ends;
        let letter = |letter| DeadLetter::of(letter, ends.stream.as_deref());
        Self {
            condition: condition(view, &health),
            version: &build.version,
            git: &build.git,
            librdkafka: &build.librdkafka,
            slot_name: &build.slot,
            stream: ends.stream.as_deref(),
            database: &ends.database,
            hosts: &ends.hosts,
            brokers: &ends.brokers,
            uptime_seconds: view.uptime.as_secs_f64(),
            status: Status::of(view, &health, ends, is_late(view)),
            chain: chain(view, &health),
            health,
            numbers: Numbers::of(view, ends),
            topics: snapshot.topics.iter().take(TOPICS_MAX).map(topic).collect(),
            unavailable: snapshot.unavailable.named.iter().map(Unavailable::of).collect(),
            dead_letters: tap.dead_letters().into_iter().map(letter).collect(),
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
    fn of(view: &View, ends: &StreamEnds) -> Self {
        let Snapshot {
            confirmed,
            in_flight_records,
            in_flight_bytes,
            transactions_settled,
            received_lsn,
            settled_lsn,
            ..
        } = *view.snapshot;
        let oldest = view.oldest_unacknowledged_age;
        let reads = view.snapshot.holds_slot && view.operated.paused_since_us.is_none();
        let is_known = reads || !oldest.is_zero();
        let oldest = is_known.then_some(oldest.as_secs_f64());
        Self {
            confirmed,
            dead_lettered: view.snapshot.topics.iter().map(|topic| topic.dead_lettered).sum(),
            in_flight_records,
            in_flight_bytes,
            oldest_unacknowledged_seconds: oldest,
            transactions_settled,
            received_lsn,
            settled_lsn,
            acknowledged_lsn: view.slot.map(|slot| slot.acknowledged_lsn),
            slot_lag_bytes: view.slot.map(|slot| slot.lag_bytes),
            slot_retained_bytes: view.slot.map(|slot| slot.retained_bytes),
            slot_safe_bytes: view.slot.and_then(|slot| slot.safe_bytes),
            in_flight_bytes_max: ends.in_flight_bytes_max,
            resident_bytes: usage().resident_bytes,
            memory_bytes_max: ends.memory_bytes_max,
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

impl DeadLetter {
    fn of(letter: TappedDeadLetter, stream: Option<&str>) -> Self {
        let command = next_command(&letter, stream);
        Self {
            at_ms: letter.at_us / 1_000,
            code: letter.code,
            reason: letter.reason,
            id: letter.id,
            table: letter.table,
            topic: letter.topic,
            key: letter.key.map(Shown::of),
            payload: letter.payload.map(Shown::of),
            command,
        }
    }
}

/// Command that sends this dead letter again, or that shows it if Kafka would refuse the row again.
/// The error code, which selects several dead letters, replaces an id that is truncated or contains
/// control characters.
fn next_command(letter: &TappedDeadLetter, stream: Option<&str>) -> String {
    let is_plain = |id: &&String| !id.is_empty() && !id.contains(char::is_control);
    let id = letter.id.as_ref().filter(|_| letter.is_whole_id).filter(is_plain);
    let stream = stream.map(|name| format!(" --stream {name}")).unwrap_or_default();
    let code = letter.code;
    match id.map(|id| shell_word(id)) {
        Some(id) if SENT_AGAIN.contains(&code) => {
            format!("postrider dead-letters retry --id={id}{stream} --execute")
        }
        None if SENT_AGAIN.contains(&code) => {
            format!("postrider dead-letters retry --code={code}{stream} --execute")
        }
        Some(id) => format!("postrider dead-letters show{stream} -- {id}"),
        None => format!("postrider dead-letters list --code={code}{stream}"),
    }
}

fn is_late(view: &View) -> bool {
    view.oldest_unacknowledged_age.as_secs_f64() > CATCHING_UP
}

fn condition(view: &View, health: &Health) -> &'static str {
    let waits = is_late(view);
    match (health.ok, view.snapshot.state) {
        (false, _) => "not ready",
        (true, RelayState::Standby) => "standby",
        (true, _) if view.operated.paused_since_us.is_some() => "paused",
        (true, _) if waits => "catching up",
        (true, _) => "streaming",
    }
}

fn chain(view: &View, health: &Health) -> [Link; 4] {
    let snapshot = &view.snapshot;
    let failing = |names: &[&str]| {
        let found = health.checks.iter().find(|check| !check.ok && names.contains(&check.name));
        found.map(|check| check.detail.clone())
    };
    let is_standby = snapshot.state == RelayState::Standby;
    // An open stream supersedes the error of an earlier session.
    let failed = snapshot.failed_part.filter(|_| !snapshot.holds_slot && !is_standby);
    let has_failed = || snapshot.last_failure.as_deref().map(str::to_owned);
    let postgres = match (snapshot.holds_slot, failed) {
        (true, _) if snapshot.is_polled => Link::ok("Postgres", "rows are polled"),
        (true, _) => Link::ok("Postgres", "replication stream open"),
        (false, Some(FailedPart::Postgres)) => Link::failed("Postgres", has_failed()),
        (false, Some(FailedPart::Slot)) => Link::ok("Postgres", "it answers"),
        (false, _) if view.slot.is_some() => Link::ok("Postgres", "it answers"),
        (false, _) => Link::unknown("Postgres", None),
    };
    let slot = match (snapshot.holds_slot, is_standby) {
        _ if snapshot.is_polled => Link::ok("Slot", "none: rows are polled"),
        _ if failed == Some(FailedPart::Slot) => Link::failed("Slot", has_failed()),
        (true, _) => Link::ok("Slot", "held by this relay"),
        (false, true) => Link {
            name: "Slot",
            is: "waiting",
            detail: "another relay holds it; this one takes over when it ends".to_owned(),
        },
        (false, false) => Link::unknown("Slot", None),
    };
    let is_elsewhere = failed.is_some_and(|part| part != FailedPart::Relay);
    let waiting = |detail: String| Link { name: "Relay", is: "waiting", detail };
    let relay = match (failing(&["loop", "state"]), snapshot.state) {
        (Some(_), RelayState::Stalled) => waiting("stalled".to_owned()),
        (Some(_), RelayState::Retrying) if is_elsewhere => waiting("retrying".to_owned()),
        (detail @ Some(_), _) => Link::failed("Relay", detail),
        (None, _) if view.operated.paused_since_us.is_some() => waiting("paused".to_owned()),
        (None, _) => Link::ok("Relay", snapshot.state.as_str()),
    };
    let kafka = match failing(&["kafka", "topics", "progress"]) {
        _ if failed == Some(FailedPart::Kafka) => Link::failed("Kafka", has_failed()),
        detail @ Some(_) if snapshot.holds_slot => Link::failed("Kafka", detail),
        _ if snapshot.holds_slot && snapshot.broker_connected => {
            Link::ok("Kafka", "the brokers confirm")
        }
        _ => Link::unknown("Kafka", None),
    };
    [postgres, slot, relay, kafka]
}

impl Link {
    fn ok(name: &'static str, detail: &str) -> Self {
        Self { name, is: "ok", detail: detail.to_owned() }
    }

    fn failed(name: &'static str, detail: Option<String>) -> Self {
        Self { name, is: "failed", detail: detail.unwrap_or_default() }
    }

    fn unknown(name: &'static str, detail: Option<String>) -> Self {
        Self { name, is: "unknown", detail: detail.unwrap_or_else(|| "not known yet".to_owned()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::BuildInfo;

    fn command(code: &'static str, id: Option<&str>, is_whole_id: bool) -> String {
        let letter = TappedDeadLetter {
            at_us: 0,
            code,
            reason: None,
            id: id.map(str::to_owned),
            is_whole_id,
            table: None,
            topic: None,
            key: None,
            payload: None,
        };
        next_command(&letter, Some("orders"))
    }

    #[test]
    fn the_command_of_a_dead_letter_is_safe_to_paste() {
        let retry =
            |which: &str| format!("postrider dead-letters retry {which} --stream orders --execute");
        assert_eq!(command("refused", Some("17"), true), retry("--id=17"));
        let id = r"a'; rm -rf ~ #$(x)";
        let quoted = r"'a'\''; rm -rf ~ #$(x)'";
        assert_eq!(command("refused", Some(id), true), retry(&format!("--id={quoted}")));
        let show = format!("postrider dead-letters show --stream orders -- {quoted}");
        assert_eq!(command("too_large", Some(id), true), show);
        for (id, is_whole) in
            [(Some("a\nb"), true), (Some("17…"), false), (Some(""), true), (None, true)]
        {
            assert_eq!(command("refused", id, is_whole), retry("--code=refused"), "{id:?}");
            let list = "postrider dead-letters list --code=too_large --stream orders";
            assert_eq!(command("too_large", id, is_whole), list, "{id:?}");
        }
    }

    #[test]
    fn the_chain_shows_the_part_that_failed() {
        let shown = |state, part, holds_slot| {
            let telemetry = Telemetry::new(BuildInfo::default());
            telemetry.publish(Snapshot {
                state,
                holds_slot,
                broker_connected: true,
                last_failure: Some("it failed".into()),
                failed_part: Some(part),
                ..Snapshot::default()
            });
            let view = telemetry.view();
            let health = readiness(&view, Role::Any);
            (chain(&view, &health).map(|link| link.is), Numbers::of(&view, &StreamEnds::default()))
        };
        let (retrying, failed) = (RelayState::Retrying, RelayState::Failed);
        let (is, numbers) = shown(retrying, FailedPart::Postgres, false);
        assert_eq!(is, ["failed", "unknown", "waiting", "unknown"]);
        assert_eq!(numbers.oldest_unacknowledged_seconds, None, "rows may wait");
        assert_eq!(shown(failed, FailedPart::Slot, false).0, ["ok", "failed", "failed", "unknown"]);
        assert_eq!(shown(retrying, FailedPart::Kafka, false).0[3], "failed");
        let (is, numbers) = shown(RelayState::Streaming, FailedPart::Postgres, true);
        assert_eq!(is[..2], ["ok", "ok"]);
        assert_eq!(numbers.oldest_unacknowledged_seconds, Some(0.0));
    }

    #[test]
    fn the_age_of_the_oldest_row_is_unknown_during_a_pause() {
        let telemetry = Telemetry::new(BuildInfo::default());
        telemetry.publish(Snapshot {
            state: RelayState::Streaming,
            holds_slot: true,
            last_progress: Some(std::time::Instant::now()),
            ..Snapshot::default()
        });
        telemetry.set_paused(true);
        let view = telemetry.view();
        let numbers = Numbers::of(&view, &StreamEnds::default());
        assert_eq!(numbers.oldest_unacknowledged_seconds, None, "rows may wait");
        let relay = &chain(&view, &readiness(&view, Role::Any))[2];
        assert_eq!((relay.is, relay.detail.as_str()), ("waiting", "paused"));
    }
}
