//! Several streams in one process, each with its own telemetry and stop signal.
//!
//! Invariant: the process is ready only if each stream is ready, unless the caller accepts a single
//! one.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::stop::StopSignal;
use crate::telemetry::{Check, Health, RelayState, Role, Telemetry, View, liveness, readiness};
use postrider_kafka::DeliveredTap;

/// Further streams are counted.
const NAMED_MAX: usize = 10;

/// Maximum time to wait for starting streams before the process counts as started.
const BEGIN_LIMIT: Duration = Duration::from_secs(30);

#[derive(Debug, Clone)]
pub struct StreamHandle {
    pub name: String,
    pub telemetry: Telemetry,
    /// Extends the process's signal.
    pub stop: StopSignal,
    pub tap: DeliveredTap,
}

#[derive(Debug, Clone)]
pub struct Streams(Arc<[StreamHandle]>);

#[derive(Debug, Clone, Serialize)]
pub struct StreamsHealth {
    #[serde(flatten)]
    pub whole: Health,
    pub streams: Vec<StreamHealth>,
}

#[derive(Debug, Clone, Serialize)]
pub struct StreamHealth {
    pub stream: String,
    #[serde(flatten)]
    pub health: Health,
}

impl Streams {
    pub fn new(streams: Vec<StreamHandle>) -> Self {
        Self(streams.into())
    }

    pub fn each(&self) -> std::slice::Iter<'_, StreamHandle> {
        self.0.iter()
    }

    /// The error text lists all names.
    pub fn named(&self, name: Option<&str>) -> Result<&StreamHandle, String> {
        let names = || self.each().map(|one| one.name.as_str()).collect::<Vec<_>>().join(", ");
        match name {
            None => Err(format!("this process runs {} streams: {}", self.0.len(), names())),
            Some(name) => {
                let found = self.each().find(|one| one.name == name);
                found.ok_or_else(|| format!("there is no such stream; they are {}", names()))
            }
        }
    }

    pub fn liveness(&self) -> StreamsHealth {
        let streams = self.ask(|telemetry| liveness_of(&telemetry.view()));
        let ok = streams.iter().all(|one| one.health.ok);
        self.health(("loop", ok), told(&streams, "alive", cause), streams)
    }

    /// Checks that each stream delivers, or could take over.
    pub fn readiness(&self, role: Role) -> StreamsHealth {
        let streams = self.ask(|telemetry| readiness(&telemetry.view(), role));
        let ok = streams.iter().all(|one| one.health.ok);
        self.health(("streams", ok), told(&streams, "ready", cause), streams)
    }

    /// Checks that one stream delivers or could take over, and that each has started or had time
    /// to. For replacing one process with another: an unreachable database affects both.
    pub fn readiness_of_any(&self, role: Role) -> StreamsHealth {
        let streams = self.ask(|telemetry| readiness(&telemetry.view(), role));
        let ok = self.has_begun() && streams.iter().any(|one| one.health.ok);
        self.health(("streams", ok), told(&streams, "ready", cause), streams)
    }

    /// A stream that waits for a connection does not delay the others.
    pub fn has_begun(&self) -> bool {
        let views = self.each().map(|one| one.telemetry.view());
        has_begun(views.map(|view| (view.snapshot.state, view.uptime)))
    }

    /// Contains no ages, so that the line changes only if streams become ready or fail.
    pub fn line(&self) -> String {
        let streams = self.ask(|telemetry| readiness(&telemetry.view(), Role::Any));
        told(&streams, "ready", |health| {
            let failing: Vec<_> = health.checks.iter().filter(|check| !check.ok).collect();
            match failing.iter().find(|check| check.name == "state") {
                Some(state) => state.detail.clone(),
                None => failing.iter().map(|check| check.name).collect::<Vec<_>>().join(", "),
            }
        })
    }

    fn ask(&self, ask: impl Fn(&Telemetry) -> Health) -> Vec<StreamHealth> {
        let each = |one: &StreamHandle| StreamHealth {
            stream: one.name.clone(),
            health: ask(&one.telemetry),
        };
        self.each().map(each).collect()
    }

    fn health(
        &self,
        (name, ok): (&'static str, bool),
        detail: String,
        streams: Vec<StreamHealth>,
    ) -> StreamsHealth {
        let role = |role| streams.iter().any(|one| one.health.role == role).then_some(role);
        let whole = Health {
            ok,
            state: self.state().as_str(),
            role: role("active").or_else(|| role("standby")).unwrap_or("none"),
            checks: vec![Check { name, ok, detail }],
        };
        StreamsHealth { whole, streams }
    }

    /// State of the stream that is furthest from delivery.
    pub fn state(&self) -> RelayState {
        let states = self.each().map(|one| one.telemetry.view().snapshot.state);
        states.max_by_key(|state| state.rank()).unwrap_or_default()
    }
}

fn has_begun(mut streams: impl Iterator<Item = (RelayState, Duration)>) -> bool {
    streams.all(|(state, uptime)| state != RelayState::Starting || uptime >= BEGIN_LIMIT)
}

fn told(streams: &[StreamHealth], word: &str, cause: impl Fn(&Health) -> String) -> String {
    let failing: Vec<_> = streams.iter().filter(|one| !one.health.ok).collect();
    let (count, all) = (streams.len() - failing.len(), streams.len());
    let mut told = format!("{count} of {all} streams are {word}");
    for one in failing.iter().take(NAMED_MAX) {
        let _ = write!(told, "; `{}`: {}", one.stream, cause(&one.health));
    }
    if failing.len() > NAMED_MAX {
        let _ = write!(told, "; {} more", failing.len() - NAMED_MAX);
    }
    told
}

fn cause(health: &Health) -> String {
    let failing = health.checks.iter().find(|check| !check.ok);
    failing.map(|check| check.detail.clone()).unwrap_or_default()
}

/// An ended stream has no loop. A restart of the process would not help it, and would end the
/// others.
fn liveness_of(view: &View) -> Health {
    let health = liveness(view);
    let state = view.snapshot.state;
    if !matches!(state, RelayState::Failed | RelayState::Stopped) {
        return health;
    }
    let detail = format!("this stream has {}, and has none", state.as_str());
    Health { ok: true, checks: vec![Check { name: "loop", ok: true, detail }], ..health }
}

pub(crate) fn stream_of(query: Option<&str>) -> Option<&str> {
    query.unwrap_or_default().split('&').find_map(|part| part.strip_prefix("stream="))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::{BuildInfo, Snapshot};
    use std::time::Instant;

    fn streams(states: &[(&str, RelayState)]) -> Streams {
        let one = |(name, state): &(&str, RelayState)| {
            let telemetry = Telemetry::new(BuildInfo::default());
            telemetry.publish(Snapshot {
                state: *state,
                holds_slot: *state == RelayState::Streaming,
                broker_connected: true,
                last_progress: Some(Instant::now()),
                last_failure: Some("the slot is lost".into()),
                ..Snapshot::default()
            });
            let (stop, tap) = (StopSignal::default(), DeliveredTap::default());
            StreamHandle { name: (*name).to_owned(), telemetry, stop, tap }
        };
        Streams::new(states.iter().map(one).collect())
    }

    #[test]
    fn readiness_names_the_stream_and_its_cause() {
        let both = streams(&[("a", RelayState::Streaming), ("b", RelayState::Streaming)]);
        assert!(both.readiness(Role::Active).whole.ok);
        let one = streams(&[("a", RelayState::Streaming), ("b", RelayState::Failed)]);
        let health = one.readiness(Role::Any);
        assert_eq!(
            (health.whole.ok, health.whole.state, health.whole.role),
            (false, "failed", "active")
        );
        let detail = &health.whole.checks[0].detail;
        assert_eq!(detail, "1 of 2 streams are ready; `b`: failed: the slot is lost");
        assert!(health.streams[0].health.ok && !health.streams[1].health.ok);
        assert!(one.liveness().whole.ok);
    }

    #[test]
    fn a_process_is_of_use_once_one_stream_is_ready() {
        let one = streams(&[("a", RelayState::Streaming), ("b", RelayState::Failed)]);
        let health = one.readiness_of_any(Role::Any);
        assert!(health.whole.ok && !one.readiness(Role::Any).whole.ok);
        assert!(health.whole.checks[0].detail.contains("1 of 2"), "{health:?}");
        let none = streams(&[("a", RelayState::Retrying), ("b", RelayState::Failed)]);
        assert!(!none.readiness_of_any(Role::Any).whole.ok);
        let standby = streams(&[("a", RelayState::Standby), ("b", RelayState::Retrying)]);
        assert!(standby.readiness_of_any(Role::Any).whole.ok);
        assert!(!standby.readiness_of_any(Role::Active).whole.ok);
        let starts = streams(&[("a", RelayState::Streaming), ("b", RelayState::Starting)]);
        assert!(!starts.readiness_of_any(Role::Any).whole.ok);
        let after = |uptime| has_begun([(RelayState::Starting, uptime)].into_iter());
        assert!(!after(BEGIN_LIMIT / 2) && after(BEGIN_LIMIT));
    }

    #[test]
    fn a_stream_that_has_ended_has_no_loop_that_could_hang() {
        let mut view = streams(&[("a", RelayState::Stopped)]).0[0].telemetry.view();
        view.tick_age = Duration::from_mins(5);
        assert!(liveness_of(&view).ok && !liveness(&view).ok);
    }

    #[test]
    fn the_line_is_the_same_as_long_as_nothing_changes() {
        let all = streams(&[("a", RelayState::Streaming), ("b", RelayState::Failed)]);
        let late = Snapshot {
            state: RelayState::Streaming,
            holds_slot: true,
            last_progress: Instant::now().checked_sub(Duration::from_mins(9)),
            ..Snapshot::default()
        };
        all.0[0].telemetry.publish(late);
        let line = all.line();
        let told = "0 of 2 streams are ready; `a`: progress, kafka; `b`: failed: the slot is lost";
        assert_eq!(line, told);
    }

    #[test]
    fn who_names_no_stream_is_told_their_names() {
        let both = streams(&[("a", RelayState::Streaming), ("b", RelayState::Streaming)]);
        assert_eq!(both.named(stream_of(Some("role=any&stream=b"))).unwrap().name, "b");
        assert_eq!(both.named(None).unwrap_err(), "this process runs 2 streams: a, b");
        assert!(both.named(Some("c")).unwrap_err().ends_with("they are a, b"));
    }
}
