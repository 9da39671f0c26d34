//! Which contestant runs which workload, how often, and with how many rows: what fits into the time.
//!
//! Input: a [`Scale`]. Output: [`Plan`]s. Invariant: whoever is in a workload is in each of its runs, beside the tuned
//! Debezium, so that ratios are of the same run.

use std::time::Duration;

use super::contestants::{Contestant, Transport};
use super::latency::Load;
use super::rows::Shape;

/// How much of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// One pair and a few rows, so that it is known to work.
    Smoke,
    /// Below 8 minutes on two cores.
    Quick,
    /// Below 40 minutes on two cores.
    Full,
}

/// What is measured.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    Drain(Shape),
    /// The same, with kill -9 in the middle.
    Kill(Shape),
    Latency(Load),
}

/// One workload.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) contestants: Vec<Contestant>,
    pub(super) runs: usize,
}

const AT_LEAST_ONCE: Contestant = Contestant::AtLeastOnce(Transport::Tcp);
const EXACTLY_ONCE: Contestant = Contestant::ExactlyOnce(Transport::Tcp);
const TUNED: Contestant = Contestant::DebeziumTuned;

const PAIR: [Contestant; 2] = [AT_LEAST_ONCE, TUNED];
const MAIN: [Contestant; 3] = [AT_LEAST_ONCE, EXACTLY_ONCE, TUNED];
const LIVE_MAIN: [Contestant; 4] = [Contestant::Writer, AT_LEAST_ONCE, EXACTLY_ONCE, TUNED];
const WITH_CEILING: [Contestant; 4] =
    [Contestant::Ceiling(Transport::Tcp), AT_LEAST_ONCE, EXACTLY_ONCE, TUNED];
const LIVE: [Contestant; 7] = [
    Contestant::Writer,
    AT_LEAST_ONCE,
    EXACTLY_ONCE,
    Contestant::Poll,
    Contestant::Go,
    Contestant::DebeziumDefault,
    TUNED,
];
const ALL: [Contestant; 11] = [
    Contestant::Ceiling(Transport::Tcp),
    Contestant::Ceiling(Transport::Unix),
    AT_LEAST_ONCE,
    Contestant::AtLeastOnce(Transport::Unix),
    EXACTLY_ONCE,
    Contestant::ExactlyOnce(Transport::Unix),
    Contestant::Streamed,
    Contestant::Go,
    Contestant::DebeziumDefault,
    TUNED,
    Contestant::Poll,
];

/// Rows of some 300 bytes over five topics.
const fn usual(rows: usize, per_transaction: usize) -> Shape {
    Shape { rows, per_transaction, bytes: 300, topics: 5 }
}

const fn load(rate: u32, warm_up_s: u64, counted_s: u64) -> Load {
    let (warm_up, counted) = (Duration::from_secs(warm_up_s), Duration::from_secs(counted_s));
    Load { rate, warm_up, counted, topics: 5, bytes: 260 }
}

fn plan(name: &'static str, kind: Kind, contestants: &[Contestant], runs: usize) -> Plan {
    Plan { name, kind, contestants: contestants.to_vec(), runs }
}

/// The workloads of a scale.
pub(super) fn plans(scale: Scale) -> Vec<Plan> {
    use Kind::{Drain, Kill, Latency};
    let bulk = |rows, bytes| Shape { bytes, ..usual(rows, 1_000) };
    match scale {
        Scale::Smoke => vec![
            plan("one_row", Drain(usual(2_000, 1)), &PAIR, 1),
            plan("latency_200", Latency(load(200, 1, 2)), &LIVE_MAIN, 1),
            plan("kill", Kill(usual(20_000, 1)), &MAIN[..2], 1),
        ],
        Scale::Quick => vec![
            plan("one_row", Drain(usual(60_000, 1)), &ALL, 1),
            plan("bulk", Drain(usual(150_000, 1_000)), &ALL, 1),
            plan("payload_16000", Drain(bulk(8_000, 16_000)), &MAIN, 1),
            plan("latency_1000", Latency(load(1_000, 3, 8)), &LIVE, 1),
            plan("kill", Kill(usual(60_000, 1)), &MAIN, 1),
        ],
        Scale::Full => vec![
            plan("one_row", Drain(usual(300_000, 1)), &ALL, 3),
            plan("bulk", Drain(usual(500_000, 1_000)), &ALL, 3),
            plan("one_transaction", Drain(usual(1_000_000, 1_000_000)), &WITH_CEILING, 1),
            plan("payload_100", Drain(bulk(400_000, 100)), &MAIN, 2),
            plan("payload_1600", Drain(bulk(100_000, 1_600)), &MAIN, 2),
            plan("payload_16000", Drain(bulk(20_000, 16_000)), &MAIN, 2),
            plan("topics_50", Drain(Shape { topics: 50, ..bulk(200_000, 300) }), &MAIN, 2),
            plan("latency_1000", Latency(load(1_000, 5, 20)), &LIVE, 2),
            plan("latency_5000", Latency(load(5_000, 5, 15)), &LIVE_MAIN, 1),
            plan("latency_50", Latency(Load { topics: 50, ..load(1_000, 5, 15) }), &LIVE_MAIN, 1),
            plan("kill", Kill(usual(200_000, 1)), &MAIN, 2),
        ],
    }
}

impl Plan {
    /// In a reader's words.
    pub(super) fn what(&self) -> String {
        let runs = if self.runs == 1 { "1 run".to_owned() } else { format!("{} runs", self.runs) };
        match self.kind {
            Kind::Drain(shape) => format!("backlog of {}, {runs}", rows(shape)),
            Kind::Kill(shape) => {
                format!(
                    "backlog of {}, kill -9 at half of it and a start at once, {runs}",
                    rows(shape)
                )
            }
            Kind::Latency(Load { rate, counted, topics, .. }) => format!(
                "{rate} commits of one row a second for {} s, {topics} topics, {runs}",
                counted.as_secs()
            ),
        }
    }
}

fn rows(shape: Shape) -> String {
    let Shape { rows, per_transaction, bytes, topics } = shape;
    format!(
        "{rows} rows, {per_transaction} a transaction, payload of {bytes} bytes, {topics} topics"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workload_but_the_smallest_kill_has_the_tuned_rival() {
        for plan in [Scale::Quick, Scale::Full].map(plans).iter().flatten() {
            assert!(plan.contestants.contains(&TUNED), "{}", plan.name);
        }
    }
}
