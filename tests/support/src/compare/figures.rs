//! The figures of runs: medians, spread, and ratios within the same run.
//!
//! Input: [`Figures`] of each run of each contestant. Output: what a [`Cell`] has for a reader: JSON and tables.
//! Invariant: a ratio compares figures of the same run, and the median of ratios is shown.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::contestants::Contestant;

/// What every contestant of every workload has in the JSON, `null` where it was not measured there.
pub(super) const ALWAYS: [&str; 6] =
    ["rows_per_s", "cpu_us_per_row", "peak_rss_mib", "p50_ms", "p99_ms", "first_record_s"];

/// Whom all are compared with.
pub(super) const RIVAL: Contestant = Contestant::DebeziumTuned;

/// Of one run of one contestant, by name.
#[derive(Debug, Clone, Default)]
pub(super) struct Figures(BTreeMap<&'static str, f64>);

impl Figures {
    pub(super) fn set(&mut self, name: &'static str, value: f64) {
        self.0.insert(name, value);
    }

    pub(super) fn leave_out(&mut self, names: &[&str]) {
        self.0.retain(|name, _| !names.contains(name));
    }
}

impl std::fmt::Display for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let words = self.0.iter().map(|(name, value)| format!("{name} {}", rounded(*value)));
        f.write_str(&words.collect::<Vec<_>>().join(", "))
    }
}

/// All runs of one workload.
#[derive(Debug, Default)]
pub(super) struct Cell {
    pub(super) name: &'static str,
    /// In a reader's words.
    pub(super) what: String,
    pub(super) contestants: Vec<Contestant>,
    /// Of each contestant: its runs, or why there is none.
    runs: BTreeMap<&'static str, Vec<Result<Figures, String>>>,
}

impl Cell {
    pub(super) fn new(name: &'static str, what: String, contestants: &[Contestant]) -> Self {
        Self { name, what, contestants: contestants.to_vec(), runs: BTreeMap::new() }
    }

    pub(super) fn add(&mut self, contestant: Contestant, run: Result<Figures, String>) {
        self.runs.entry(contestant.name()).or_default().push(run);
    }

    /// What went wrong.
    pub(super) fn failures(&self) -> Vec<String> {
        let runs =
            self.runs.iter().flat_map(|(name, runs)| runs.iter().map(move |run| (name, run)));
        runs.filter_map(|(name, run)| {
            Some(format!("{}: {name}: {}", self.name, run.as_ref().err()?))
        })
        .collect()
    }

    /// The figure of each run, in their order; nothing of one that failed.
    fn of_runs(&self, contestant: Contestant, figure: &str) -> Vec<Option<f64>> {
        let runs = self.runs.get(contestant.name()).into_iter().flatten();
        runs.map(|run| run.as_ref().ok()?.0.get(figure).copied()).collect()
    }

    /// Median, least and greatest.
    pub(super) fn of(&self, contestant: Contestant, figure: &str) -> Option<[f64; 3]> {
        spread(self.of_runs(contestant, figure).into_iter().flatten().collect())
    }

    /// The median of the ratios to the rival in the same run.
    pub(super) fn ratio(&self, contestant: Contestant, figure: &str) -> Option<f64> {
        let (ours, theirs) = (self.of_runs(contestant, figure), self.of_runs(RIVAL, figure));
        let pairs =
            ours.into_iter().zip(theirs).filter_map(|(ours, theirs)| Some((ours?, theirs?)));
        let ratios = pairs.filter(|(_, theirs)| *theirs > 0.0).map(|(ours, theirs)| ours / theirs);
        spread(ratios.collect()).map(|[median, ..]| median)
    }

    /// Every figure that any contestant has, those of every workload first.
    pub(super) fn figures(&self) -> Vec<&'static str> {
        let runs = self.runs.values().flatten().filter_map(|run| run.as_ref().ok());
        let names: std::collections::BTreeSet<_> =
            runs.flat_map(|run| run.0.keys().copied()).collect();
        let first = ALWAYS.into_iter().filter(|name| names.contains(name));
        let further = names.iter().copied().filter(|name| !ALWAYS.contains(name));
        first.chain(further).collect()
    }

    pub(super) fn json(&self) -> Value {
        let (mut all, mut ratios) = (Map::new(), Map::new());
        for contestant in &self.contestants {
            let mut own = Map::new();
            let mut to_rival = Map::new();
            for name in ALWAYS.into_iter().chain(self.figures()) {
                let found = self.of(*contestant, name);
                own.insert(
                    name.to_owned(),
                    found.map_or(Value::Null, |[median, ..]| short(median)),
                );
                if let Some([_, least, greatest]) = found.filter(|[_, least, most]| least < most) {
                    own.insert(format!("{name}_spread"), json!([short(least), short(greatest)]));
                }
                if let Some(ratio) = self.ratio(*contestant, name) {
                    to_rival.insert(name.to_owned(), short(ratio));
                }
            }
            all.insert(contestant.name().to_owned(), own.into());
            if *contestant != RIVAL {
                ratios.insert(contestant.name().to_owned(), to_rival.into());
            }
        }
        json!({ "what": self.what, "contestants": all, "ratios": ratios })
    }
}

/// Median, least and greatest.
fn spread(mut values: Vec<f64>) -> Option<[f64; 3]> {
    values.sort_by(f64::total_cmp);
    let middle = values.get(values.len() / 2)?;
    let median = if values.len().is_multiple_of(2) {
        f64::midpoint(values[values.len() / 2 - 1], *middle)
    } else {
        *middle
    };
    Some([median, *values.first()?, *values.last()?])
}

/// With as many digits as mean something.
fn short(value: f64) -> Value {
    json!(rounded(value))
}

/// Three digits, and all of those before the point.
pub(super) fn rounded(value: f64) -> f64 {
    let digits = if value.abs() >= 100.0 {
        0
    } else if value.abs() >= 10.0 {
        1
    } else {
        3
    };
    let scale = 10_f64.powi(digits);
    (value * scale).round() / scale
}

/// Microseconds of CPU time for a row.
pub(super) fn per_row(cpu: Duration, rows: usize) -> f64 {
    cpu.as_secs_f64() * 1e6 / f64::from(u32::try_from(rows.max(1)).unwrap())
}

pub(super) fn to_mib(bytes: u64) -> f64 {
    f64::from(u32::try_from(bytes / 1_024).unwrap()) / 1_024.0
}

/// The smallest that so many of a thousand do not exceed.
pub(super) fn quantile(sorted: &[i64], per_mille: usize) -> i64 {
    let rank = (sorted.len() * per_mille).div_ceil(1_000).saturating_sub(1);
    sorted.get(rank).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::contestants::Transport;

    const OURS: Contestant = Contestant::AtLeastOnce(Transport::Tcp);

    fn run(rows_per_s: f64) -> Figures {
        let mut figures = Figures::default();
        figures.set("rows_per_s", rows_per_s);
        figures
    }

    #[test]
    fn ratios_are_of_the_same_run_and_leave_out_what_failed() {
        let mut cell = Cell::new("one", "one row".to_owned(), &[OURS, RIVAL]);
        for (ours, theirs) in [(40.0, 10.0), (90.0, 30.0), (100.0, 20.0)] {
            cell.add(OURS, Ok(run(ours)));
            cell.add(RIVAL, Ok(run(theirs)));
        }
        assert_eq!(cell.ratio(OURS, "rows_per_s"), Some(4.0));
        assert_eq!(cell.of(OURS, "rows_per_s"), Some([90.0, 40.0, 100.0]));
        cell.add(OURS, Err("lost".to_owned()));
        cell.add(RIVAL, Ok(run(1.0)));
        assert_eq!(cell.ratio(OURS, "rows_per_s"), Some(4.0));
        assert_eq!(cell.failures().len(), 1);
        let json = cell.json();
        assert_eq!(json["ratios"][OURS.name()]["rows_per_s"], 4.0);
        assert!(json["contestants"][OURS.name()]["p50_ms"].is_null());
    }

    #[test]
    fn medians_and_quantiles() {
        assert_eq!(spread(vec![3.0, 1.0]), Some([2.0, 1.0, 3.0]));
        assert_eq!(spread(Vec::new()), None);
        let sorted: Vec<i64> = (1..=1_000).collect();
        assert_eq!([500, 990, 999].map(|rank| quantile(&sorted, rank)), [500, 990, 999]);
    }
}
