//! The data of `postrider top`, from `/api/v1/state` and `/api/v1/history`.
//!
//! Invariant: the history is bounded by [`SAMPLES_MAX`]; a rate needs two adjacent samples.

use std::time::Duration;

use serde::Deserialize;

use super::Reply;
use crate::status::relay::RelayStatus;

/// Seconds of the charts: more than the columns of a terminal.
const SAMPLES_MAX: usize = 300;
/// Samples further apart than this, in milliseconds, enclose a pause.
const APART_MS: i64 = 5_000;
/// Samples of a rate. Under a steady load, the counts of single seconds alternate.
const RATE_SAMPLES: usize = 10;

/// Current state, from `/api/v1/state`.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct State {
    pub(super) condition: String,
    pub(super) version: String,
    pub(super) slot_name: String,
    pub(super) uptime_seconds: f64,
    status: RelayStatus,
    pub(super) chain: Vec<Link>,
    pub(super) numbers: Numbers,
    pub(super) topics: Vec<Topic>,
    pub(super) unavailable: Vec<Unavailable>,
    pub(super) rejections: Vec<(String, u64)>,
    pub(super) ignored: Vec<(String, u64)>,
    pub(super) restarts: Vec<(String, u64)>,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Link {
    pub(super) name: String,
    pub(super) is: String,
    pub(super) detail: String,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Numbers {
    pub(super) confirmed: u64,
    pub(super) dead_lettered: u64,
    pub(super) in_flight_records: u64,
    pub(super) oldest_unacknowledged_seconds: Option<f64>,
    pub(super) slot_lag_bytes: Option<u64>,
    pub(super) slot_retained_bytes: Option<u64>,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Topic {
    pub(super) name: String,
    pub(super) sent: u64,
    pub(super) dead_lettered: u64,
    pub(super) bytes: u64,
    /// Records per second over the last ten seconds.
    pub(super) rate: Option<f64>,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Unavailable {
    pub(super) topic: String,
    reason: String,
    seconds: u64,
    rows_wait: bool,
}

impl Unavailable {
    pub(super) fn to_text(&self) -> String {
        let waits = if self.rows_wait { ", rows wait" } else { "" };
        format!("{} {} s{waits}", self.reason, self.seconds)
    }
}

#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Columns {
    at_ms: Vec<i64>,
    confirmed: Vec<u64>,
    p50_us: Vec<Option<u64>>,
    p95_us: Vec<Option<u64>>,
    p99_us: Vec<Option<u64>>,
}

impl Columns {
    pub(super) fn last_ms(&self) -> Option<i64> {
        self.at_ms.last().copied()
    }

    fn append(&mut self, mut newer: Self) {
        fn add<T>(all: &mut Vec<T>, newer: &mut Vec<T>) {
            all.append(newer);
            all.drain(..all.len().saturating_sub(SAMPLES_MAX));
        }
        add(&mut self.at_ms, &mut newer.at_ms);
        add(&mut self.confirmed, &mut newer.confirmed);
        add(&mut self.p50_us, &mut newer.p50_us);
        add(&mut self.p95_us, &mut newer.p95_us);
        add(&mut self.p99_us, &mut newer.p99_us);
    }
}

#[derive(Debug)]
pub(super) struct Model {
    pub(super) address: String,
    pub(super) stream: Option<String>,
    pub(super) state: Option<State>,
    past: Columns,
    /// Why the last question had no answer.
    pub(super) silence: Option<String>,
    pub(super) age: Duration,
}

impl Model {
    pub(super) fn of(address: String, stream: Option<String>) -> Self {
        let (past, age) = (Columns::default(), Duration::ZERO);
        Self { address, stream, state: None, past, silence: None, age }
    }

    pub(super) fn take(&mut self, reply: Reply) {
        match reply {
            Ok((state, columns)) => {
                self.state = Some(state);
                self.silence = None;
                self.past.append(columns);
            }
            Err(why) => self.silence = Some(why),
        }
    }

    pub(super) fn answered_before(&mut self, age: Duration) {
        self.age = age;
    }

    pub(super) fn topics(&self) -> usize {
        self.state.as_ref().map_or(0, |state| state.topics.len())
    }

    /// A problem, if any. Catching up is stated by the condition.
    pub(super) fn trouble(&self) -> Option<&RelayStatus> {
        let state = self.state.as_ref()?;
        let is_calm = state.status.level == "ok" || state.condition == "catching up";
        (!is_calm).then_some(&state.status)
    }

    /// Records per second over the last ten seconds, oldest first; `None` if unknown.
    pub(super) fn rates(&self) -> Vec<Option<f64>> {
        let samples: Vec<_> =
            self.past.at_ms.iter().copied().zip(self.past.confirmed.iter().copied()).collect();
        let mut first = 0;
        let is_apart = |(before_ms, before): (i64, u64), (at_ms, count): (i64, u64)| {
            at_ms - before_ms > APART_MS || count < before
        };
        let rate = |at: usize| {
            let &(at_ms, count) = samples.get(at)?;
            let before = samples.get(at.checked_sub(1)?)?;
            if is_apart(*before, (at_ms, count)) {
                first = at;
            }
            let &(from_ms, from) = samples.get(first.max(at.saturating_sub(RATE_SAMPLES)))?;
            let took_ms = at_ms - from_ms;
            #[expect(clippy::cast_precision_loss, reason = "a rate that people read")]
            let rate = count.checked_sub(from)? as f64 * 1_000.0 / took_ms as f64;
            (took_ms > 0).then_some(rate)
        };
        (0..samples.len()).map(rate).collect()
    }

    /// Median, 95th and 99th percentile of the last sample, in microseconds.
    pub(super) fn latency_us(&self) -> [Option<u64>; 3] {
        let last = |column: &Vec<Option<u64>>| column.last().copied().flatten();
        [last(&self.past.p50_us), last(&self.past.p95_us), last(&self.past.p99_us)]
    }

    pub(super) fn p99_us(&self) -> &[Option<u64>] {
        &self.past.p99_us
    }
}
