//! Liveness (`/livez`) and readiness (`/readyz`), from the latest snapshot.
//!
//! Invariant: liveness never depends on Postgres or Kafka. Otherwise their outage would make an
//! orchestrator restart every relay. A standby is ready unless the caller asks for the active
//! relay.

use std::time::Duration;

use serde::Serialize;

use super::snapshot::{RelayState, Snapshot, UnavailableTopics};
use super::{View, time_text};

/// The hot thread ticks at least once per second; a longer gap means that it hangs.
const TICK_AGE_MAX: Duration = Duration::from_secs(30);

/// Maximum time without progress while records are outstanding. Exceeds a leader election.
const PROGRESS_AGE_MAX: Duration = Duration::from_secs(30);

/// Time after which answering brokers count as stalled. Exceeds a leader election among healthy
/// brokers.
pub const STALL: Duration = Duration::from_secs(10);

pub const STALL_HELP: &str = "look for a broker that hangs, and for partitions below \
                              min.insync.replicas: kafka-topics.sh --bootstrap-server BROKER \
                              --describe --under-min-isr-partitions";

pub(crate) const SILENCE_HELP: &str = "check kafka.brokers, security.protocol in [kafka.properties] and the network; nothing is \
                            lost: the rows wait in Postgres";

pub(super) const CHECKS: [&str; 6] = ["loop", "state", "slot", "progress", "kafka", "topics"];

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Role {
    /// Delivers, or is ready to take over.
    #[default]
    Any,
    /// Delivers, and therefore holds the slot.
    Active,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Name that never changes.
    pub name: &'static str,
    pub ok: bool,
    pub detail: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Health {
    /// Status 200 (true) or 503 (false).
    pub ok: bool,
    pub state: &'static str,
    /// `active` (holds the slot), `standby` (waits for the slot) or `none`.
    pub role: &'static str,
    pub checks: Vec<Check>,
}

pub fn liveness(view: &View) -> Health {
    let age = view.tick_age;
    let ok = age <= TICK_AGE_MAX;
    let detail = format!("last tick {} ms ago", age.as_millis());
    health(view, vec![Check { name: "loop", ok, detail }])
}

pub fn readiness(view: &View, role: Role) -> Health {
    let snapshot = &view.snapshot;
    // A failed relay does not run a loop.
    let has_loop = snapshot.state != RelayState::Failed;
    let mut checks = if has_loop { liveness(view).checks } else { Vec::new() };
    if snapshot.state == RelayState::Standby {
        let ok = role == Role::Any;
        let detail = "another relay holds the slot; waiting to take over".to_owned();
        checks.push(Check { name: "slot", ok, detail });
        checks.extend(view.operated.paused_since_us.map(|since_us| paused(view, since_us, role)));
        return health(view, checks);
    }
    checks.push(Check {
        name: "state",
        ok: snapshot.state == RelayState::Streaming,
        detail: state(view),
    });
    checks.push(slot(view));
    let progress = snapshot.last_progress.map(|at| at.elapsed());
    checks.push(match view.operated.paused_since_us {
        Some(since_us) => paused(view, since_us, role),
        None => progress_of(snapshot, progress),
    });
    checks.push(kafka(snapshot));
    checks.push(topics(&snapshot.unavailable));
    health(view, checks)
}

fn slot(view: &View) -> Check {
    let is_held = view.snapshot.holds_slot;
    let waits = view.slot.and_then(|slot| slot.waits).filter(|_| is_held);
    let locked = view.snapshot.locked_rows.as_ref().filter(|_| is_held);
    let state = match (view.snapshot.is_polled, is_held) {
        (true, true) => "rows are polled, without a slot",
        (true, false) => "no rows are polled",
        (false, true) => "held",
        (false, false) => "not held",
    };
    let detail = match (waits, locked) {
        (Some(wait), _) => format!("{state}, and {}; {}", wait.what(), wait.help()),
        (None, Some(locked)) => format!("{locked}; {}", locked.help()),
        (None, None) => state.to_owned(),
    };
    Check { name: "slot", ok: is_held && waits.is_none() && locked.is_none(), detail }
}

pub(crate) fn of_pause(view: &View) -> &'static str {
    if view.snapshot.is_polled {
        "nothing is read, and rows wait in their tables"
    } else {
        "nothing is read, the slot is kept, and WAL is retained"
    }
}

/// Passes, so that an orchestrator does not restart a paused relay, unless the caller asks for the
/// active one.
fn paused(view: &View, since_us: i64, role: Role) -> Check {
    let detail = format!(
        "paused since {} by request: {}; resume with `postrider ctl resume`",
        time_text(since_us),
        of_pause(view)
    );
    Check { name: "paused", ok: role == Role::Any, detail }
}

fn progress_of(snapshot: &Snapshot, progress: Option<Duration>) -> Check {
    Check {
        name: "progress",
        ok: progress.is_some_and(|age| age <= PROGRESS_AGE_MAX),
        detail: match progress {
            Some(age) if age > PROGRESS_AGE_MAX => format!(
                "nothing of the oldest transaction was confirmed for {} s, and {} records are in flight",
                age.as_secs(),
                snapshot.in_flight_records
            ),
            Some(age) => format!("last progress {} ms ago", age.as_millis()),
            None => "none yet".to_owned(),
        },
    }
}

fn state(view: &View) -> String {
    let snapshot = &view.snapshot;
    let state = snapshot.state.as_str();
    let state = match &snapshot.last_failure {
        Some(failure) if snapshot.state != RelayState::Streaming => format!("{state}: {failure}"),
        _ if snapshot.state == RelayState::Stalled => {
            format!(
                "{state}: no broker has answered, or records have waited for a confirmation, for a minute"
            )
        }
        _ => state.to_owned(),
    };
    view.next_run.as_ref().map_or_else(|| state.clone(), |next| format!("{state}; {next}"))
}

fn kafka(snapshot: &Snapshot) -> Check {
    let stalled = snapshot.unconfirmed_for >= STALL && snapshot.unavailable.awaited().is_none();
    let ok = snapshot.broker_connected && !stalled;
    let detail = match (snapshot.broker_connected, stalled) {
        (false, _) => format!("no broker answers; {SILENCE_HELP}"),
        (true, false) => "connected".to_owned(),
        (true, true) => format!(
            "{} records are in flight, and nothing of the oldest transaction was confirmed for {} s; {STALL_HELP}",
            snapshot.in_flight_records,
            snapshot.unconfirmed_for.as_secs()
        ),
    };
    Check { name: "kafka", ok, detail }
}

/// Rows that become dead letters do not delay others, but are reported here.
fn topics(unavailable: &UnavailableTopics) -> Check {
    let name = "topics";
    let Some(first) = unavailable.named.first() else {
        return Check {
            name,
            ok: true,
            detail: "every topic that rows are routed to can be used".to_owned(),
        };
    };
    let what = if first.reason == "missing" { "does not exist" } else { "is forbidden to us" };
    let (topic, help, seconds) = (&first.topic, &first.help, first.age.as_secs());
    let then = if first.waiting { "rows wait for it" } else { "its rows become dead letters" };
    let others = (unavailable.missing + unavailable.forbidden).saturating_sub(1);
    let others = if others > 0 { format!("; {others} more like it") } else { String::new() };
    let detail = format!("topic `{topic}` {what}, {then} for {seconds} s; {help}{others}");
    Check { name, ok: !first.waiting, detail }
}

fn health(view: &View, checks: Vec<Check>) -> Health {
    let snapshot = &view.snapshot;
    let role = match snapshot.state {
        RelayState::Standby => "standby",
        _ if snapshot.holds_slot => "active",
        _ => "none",
    };
    let ok = checks.iter().all(|check| check.ok);
    Health { ok, state: snapshot.state.as_str(), role, checks }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::Snapshot;
    use postrider_kafka::Traces;
    use postrider_postgres::wal::{LockHolder, LockedRows};
    use std::sync::Arc;
    use std::time::Instant;

    fn view(
        state: RelayState,
        holds_slot: bool,
        broker: bool,
        progress_age_s: Option<u64>,
    ) -> View {
        let last_progress =
            progress_age_s.and_then(|s| Instant::now().checked_sub(Duration::from_secs(s)));
        let snapshot = Snapshot {
            state,
            holds_slot,
            broker_connected: broker,
            last_progress,
            ..Snapshot::default()
        };
        View {
            snapshot: Arc::new(snapshot),
            slot: None,
            slot_columns: None,
            certificates: Arc::default(),
            oldest_unacknowledged_age: Duration::ZERO,
            tick_age: Duration::ZERO,
            uptime: Duration::ZERO,
            operated: crate::telemetry::Operated::default(),
            traces: Traces::default(),
            next_run: None,
        }
    }

    #[test]
    fn readiness_truth_table() {
        let fresh = Some(0);
        let table = [
            // Columns: state, holds slot, broker, progress -> ready for any role, ready as active.
            (RelayState::Streaming, true, true, fresh, true, true),
            (RelayState::Streaming, true, true, Some(31), false, false),
            (RelayState::Streaming, true, true, None, false, false),
            (RelayState::Streaming, true, false, fresh, false, false),
            (RelayState::Streaming, false, true, fresh, false, false),
            (RelayState::Standby, false, true, None, true, false),
            (RelayState::Standby, false, false, None, true, false),
            (RelayState::Starting, false, true, fresh, false, false),
            (RelayState::Retrying, false, true, fresh, false, false),
            (RelayState::Stalled, true, false, fresh, false, false),
            (RelayState::Draining, true, true, fresh, false, false),
            (RelayState::Stopped, false, true, fresh, false, false),
            (RelayState::Failed, false, true, fresh, false, false),
        ];
        for (state, slot, broker, progress, any, active) in table {
            let view = view(state, slot, broker, progress);
            let checks = readiness(&view, Role::Any).checks;
            assert!(checks.iter().all(|check| CHECKS.contains(&check.name)), "{checks:?}");
            let row = format!("{state:?} slot={slot} broker={broker} progress={progress:?}");
            assert_eq!(readiness(&view, Role::Any).ok, any, "{row}");
            assert_eq!(readiness(&view, Role::Active).ok, active, "{row}");
            assert!(liveness(&view).ok, "{row}: alive whatever the peers do");
        }
    }

    fn with(change: impl FnOnce(&mut Snapshot)) -> Health {
        let mut view = view(RelayState::Streaming, true, true, Some(0));
        let mut snapshot = (*view.snapshot).clone();
        change(&mut snapshot);
        view.snapshot = Arc::new(snapshot);
        readiness(&view, Role::Any)
    }

    fn detail(health: &Health, name: &str) -> String {
        health.checks.iter().find(|check| check.name == name).unwrap().detail.clone()
    }

    #[test]
    fn a_topic_that_rows_wait_for_is_named_with_its_remedy() {
        for waiting in [true, false] {
            let health = with(|snapshot| {
                snapshot.unavailable.missing = 3;
                snapshot.unavailable.named.push(crate::telemetry::UnavailableTopic {
                    topic: "orders".to_owned(),
                    reason: "missing",
                    age: Duration::from_secs(12),
                    waiting,
                    help: "create it".to_owned(),
                });
            });
            assert_eq!(health.ok, !waiting);
            let detail = detail(&health, "topics");
            let then = if waiting { "rows wait" } else { "dead letters" };
            for part in ["`orders` does not exist", "12 s", "create it", "2 more", then] {
                assert!(detail.contains(part), "{detail}");
            }
        }
    }

    #[test]
    fn brokers_that_confirm_nothing_are_not_merely_connected() {
        let frozen = with(|snapshot| snapshot.unconfirmed_for = STALL);
        assert!(
            !frozen.ok && detail(&frozen, "kafka").contains("nothing of the oldest transaction")
        );
        assert!(with(|snapshot| snapshot.unconfirmed_for = STALL / 2).ok);
    }

    #[test]
    fn a_lock_that_polled_rows_wait_for_is_named() {
        let (table, end_sql) = ("public.outbox".to_owned(), "SELECT 1;".to_owned());
        let holder =
            LockHolder { name: "process 7".to_owned(), seconds: None, end_sql, is_certain: true };
        let locked = LockedRows { table, rows: 3, seconds: 12, holder: Some(holder) };
        let health = with(|snapshot| snapshot.locked_rows = Some(Arc::new(locked)));
        let detail = detail(&health, "slot");
        assert!(!health.ok && detail.contains("process 7; SELECT 1;"), "{detail}");
    }

    #[test]
    fn a_relay_that_polls_does_not_claim_a_slot() {
        let told = |is_polled, holds_slot| {
            let mut view = view(RelayState::Streaming, holds_slot, true, Some(0));
            view.snapshot = Arc::new(Snapshot { is_polled, ..(*view.snapshot).clone() });
            view.operated.paused_since_us = Some(0);
            ["slot", "paused"].map(|name| detail(&readiness(&view, Role::Any), name)).concat()
        };
        for holds_slot in [true, false] {
            let polled = told(true, holds_slot);
            assert!(!polled.contains("held") && !polled.contains("WAL"), "{polled}");
            let streamed = told(false, holds_slot);
            assert!(streamed.contains("held") && streamed.contains("WAL"), "{streamed}");
        }
    }

    #[test]
    fn a_relay_that_does_not_stream_says_why() {
        let failed = |state| {
            with(|snapshot| {
                snapshot.state = state;
                snapshot.last_failure = Some("the server is silent; look at it".into());
            })
        };
        let retrying = failed(RelayState::Retrying);
        assert_eq!(detail(&retrying, "state"), "retrying: the server is silent; look at it");
        assert_eq!(detail(&failed(RelayState::Streaming), "state"), "streaming");
    }

    /// For several streams, only the first failing check per stream is reported.
    #[test]
    fn a_relay_that_has_failed_says_why_however_long_ago() {
        let mut view = view(RelayState::Failed, false, true, Some(0));
        view.tick_age = TICK_AGE_MAX * 4;
        let health = readiness(&view, Role::Any);
        let first = health.checks.iter().find(|check| !check.ok).unwrap();
        assert_eq!((health.ok, first.name, &first.detail[..]), (false, "state", "failed"));
    }

    #[test]
    fn a_loop_that_hangs_is_neither_alive_nor_ready() {
        let mut view = view(RelayState::Streaming, true, true, Some(0));
        view.tick_age = Duration::from_secs(31);
        assert!(!liveness(&view).ok);
        assert!(!readiness(&view, Role::Any).ok);
    }

    #[test]
    fn a_pause_is_said_and_is_no_stall() {
        let mut view = view(RelayState::Streaming, true, true, Some(9_000));
        assert!(!readiness(&view, Role::Any).ok);
        view.operated.paused_since_us = Some(0);
        let health = readiness(&view, Role::Any);
        assert!(
            health.ok && !readiness(&view, Role::Active).ok,
            "it holds the slot and delivers nothing"
        );
        let detail = detail(&health, "paused");
        for part in ["paused since 1970-01-01T00:00:00", "WAL is retained", "ctl resume"] {
            assert!(detail.contains(part), "{detail}");
        }
        view.snapshot = Arc::new(Snapshot { broker_connected: false, ..(*view.snapshot).clone() });
        assert!(!readiness(&view, Role::Any).ok, "what is broken is broken");
        view.snapshot = Arc::new(Snapshot { state: RelayState::Standby, ..Snapshot::default() });
        let standby = readiness(&view, Role::Any);
        assert!(standby.ok && self::detail(&standby, "paused").contains("paused since"));
    }

    #[test]
    fn roles() {
        assert_eq!(liveness(&view(RelayState::Standby, false, true, None)).role, "standby");
        assert_eq!(liveness(&view(RelayState::Draining, true, true, None)).role, "active");
        assert_eq!(liveness(&view(RelayState::Retrying, false, true, None)).role, "none");
    }
}
