//! Several streams in one process, for those who watch and control them: each has its own telemetry and its own stop signal.
//!
//! Input: a [`StreamHandle`] for each. Output: liveness and readiness of the process, which name the streams that are not as
//! they should be, a line for each stream, and the one that a request names. Invariant: the process is ready only if each
//! stream is; a request that names no stream, or none of these, is answered with their names.

use std::fmt::Write as _;
use std::sync::Arc;

use serde::Serialize;

use crate::stop::StopSignal;
use crate::telemetry::{Check, Health, RelayState, Role, Telemetry, View, liveness, readiness};

/// Streams whose causes are told in one line; the others are counted.
const NAMED_MAX: usize = 10;

/// One of several streams.
#[derive(Debug, Clone)]
pub struct StreamHandle {
    /// As the configuration has it.
    pub name: String,
    /// Where it publishes its state.
    pub telemetry: Telemetry,
    /// What it is told to do, beside the process.
    pub stop: StopSignal,
}

/// See the module. Cloning shares them.
#[derive(Debug, Clone)]
pub struct Streams(Arc<[StreamHandle]>);

/// The answer of a probe of several streams.
#[derive(Debug, Clone, Serialize)]
pub struct StreamsHealth {
    /// All of them together.
    #[serde(flatten)]
    pub whole: Health,
    /// Each by itself.
    pub streams: Vec<StreamHealth>,
}

/// The answer of one stream.
#[derive(Debug, Clone, Serialize)]
pub struct StreamHealth {
    /// Its name.
    pub stream: String,
    /// What it would answer alone.
    #[serde(flatten)]
    pub health: Health,
}

impl Streams {
    /// In the order of the configuration.
    pub fn new(streams: Vec<StreamHandle>) -> Self {
        Self(streams.into())
    }

    /// In that order.
    pub fn each(&self) -> std::slice::Iter<'_, StreamHandle> {
        self.0.iter()
    }

    /// The one of that name, or what to answer: their names.
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

    /// Whether every loop still turns.
    pub fn liveness(&self) -> StreamsHealth {
        self.health(("loop", "alive"), |telemetry| liveness_of(&telemetry.view()))
    }

    /// Whether each delivers, or would take over.
    pub fn readiness(&self, role: Role) -> StreamsHealth {
        self.health(("streams", "ready"), |telemetry| readiness(&telemetry.view(), role))
    }

    fn health(
        &self,
        (name, word): (&'static str, &str),
        ask: impl Fn(&Telemetry) -> Health,
    ) -> StreamsHealth {
        let each = |one: &StreamHandle| StreamHealth {
            stream: one.name.clone(),
            health: ask(&one.telemetry),
        };
        let streams: Vec<StreamHealth> = self.each().map(each).collect();
        let failing: Vec<_> = streams.iter().filter(|one| !one.health.ok).collect();
        let mut detail =
            format!("{} of {} streams are {word}", streams.len() - failing.len(), streams.len());
        for one in failing.iter().take(NAMED_MAX) {
            let cause = one.health.checks.iter().find(|check| !check.ok);
            let cause = cause.map_or("", |check| check.detail.as_str());
            let _ = write!(detail, "; `{}`: {cause}", one.stream);
        }
        if failing.len() > NAMED_MAX {
            let _ = write!(detail, "; {} more", failing.len() - NAMED_MAX);
        }
        let ok = failing.is_empty();
        let role = |role| streams.iter().any(|one| one.health.role == role).then_some(role);
        let whole = Health {
            ok,
            state: self.state().as_str(),
            role: role("active").or_else(|| role("standby")).unwrap_or("none"),
            checks: vec![Check { name, ok, detail }],
        };
        StreamsHealth { whole, streams }
    }

    /// That of the one that is furthest from delivering.
    pub fn state(&self) -> RelayState {
        let states = self.each().map(|one| one.telemetry.view().snapshot.state);
        states.max_by_key(|state| state.rank()).unwrap_or_default()
    }

    /// A line for each, for people.
    pub(crate) fn page(&self) -> String {
        let mut page =
            "Several streams run here; ?stream=NAME of /readyz has the checks of one.\n\n"
                .to_owned();
        for one in self.each() {
            let (view, health) =
                (one.telemetry.view(), readiness(&one.telemetry.view(), Role::Any));
            let ready = if health.ok { "ready" } else { "not ready" };
            let (in_flight, lag) =
                (view.snapshot.in_flight_records, view.slot.map(|slot| slot.lag_bytes));
            let _ = write!(
                page,
                "{}: {}, {ready}, {in_flight} records in flight",
                one.name, health.state
            );
            let _ = lag.map_or(Ok(()), |lag| write!(page, ", {lag} bytes behind"));
            let cause = health.checks.iter().find(|check| !check.ok);
            let _ = cause.map_or(Ok(()), |check| {
                write!(page, "; {}", check.detail.replace(char::is_control, " "))
            });
            page.push('\n');
        }
        page
    }
}

/// One that has ended has no loop; a restart of the process would not help it, and end the others.
fn liveness_of(view: &View) -> Health {
    let health = liveness(view);
    let state = view.snapshot.state;
    if !matches!(state, RelayState::Failed | RelayState::Stopped) {
        return health;
    }
    let detail = format!("this stream has {}, and has none", state.as_str());
    Health { ok: true, checks: vec![Check { name: "loop", ok: true, detail }], ..health }
}

/// The value of `stream=` in a query.
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
            StreamHandle { name: (*name).to_owned(), telemetry, stop: StopSignal::default() }
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
        assert!(one.page().contains("b: failed, not ready"), "{}", one.page());
    }

    #[test]
    fn who_names_no_stream_is_told_their_names() {
        let both = streams(&[("a", RelayState::Streaming), ("b", RelayState::Streaming)]);
        assert_eq!(both.named(stream_of(Some("role=any&stream=b"))).unwrap().name, "b");
        assert_eq!(both.named(None).unwrap_err(), "this process runs 2 streams: a, b");
        assert!(both.named(Some("c")).unwrap_err().ends_with("they are a, b"));
    }
}
