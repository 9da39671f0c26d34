//! One line of JSON for a run, and what is wrong in words.
//!
//! Input: an [`Outcome`]. Output: a line on stdout, words on stderr, and whether all is well. Called
//! by `main`.

use std::time::Duration;

use serde_json::{Map, Value};

use crate::crash::arena::Outcome;
use crate::crash::judge::{SHOWN, Verdict};
use crate::crash::settings::Plan;
use crate::load::settings::Mode;

/// Judges, prints, and says whether the guarantee held.
pub(crate) fn report(plan: &Plan, outcome: &Outcome) -> bool {
    let verdict = outcome.journal.judge();
    println!("{}", line(plan, outcome, &verdict));
    explain(outcome, &verdict);
    let repeats_max = match plan.mode {
        Mode::ExactlyOnce => 0,
        Mode::AtLeastOnce => outcome.in_flight_cap,
    };
    let is_complete = verdict.rows as u64 >= outcome.confirmed;
    if !is_complete {
        eprintln!("Postgres confirmed {} rows and kept {}", outcome.confirmed, verdict.rows);
    }
    let is_within = verdict.duplicated_max_per_kill <= repeats_max
        && (plan.mode == Mode::AtLeastOnce || verdict.duplicated.is_empty());
    let is_noticed = outcome.tally.is_none_or(|tally| tally.is_sound());
    verdict.is_sound() && is_within && is_complete && is_noticed && agrees(outcome, &verdict)
}

/// Whether the second judge saw the same rows, and nothing wrong with them.
fn agrees(outcome: &Outcome, verdict: &Verdict) -> bool {
    let second = &outcome.second;
    let agrees = second.is_clean && second.rows == verdict.rows as u64;
    if !agrees {
        eprintln!("verify, of {} rows: {}", verdict.rows, second.report);
    }
    agrees
}

fn line(plan: &Plan, outcome: &Outcome, verdict: &Verdict) -> Value {
    let mut line = Map::new();
    if let Some(tally) = outcome.tally {
        tally.tell(&mut line);
    }
    let mut set = |name: &str, value: Value| drop(line.insert(name.to_owned(), value));
    if outcome.tally.is_none() {
        set("mode", plan.mode.name().into());
        set("kill", plan.victim.name().into());
        set("cycles", plan.cycles.into());
        set("seed", plan.seed.into());
    }
    set("rows", verdict.rows.into());
    set("lost", verdict.lost.len().into());
    set("duplicated", verdict.duplicated.len().into());
    if plan.mode == Mode::AtLeastOnce {
        set("duplicated_max_per_kill", verdict.duplicated_max_per_kill.into());
        set("in_flight_cap", outcome.in_flight_cap.into());
    }
    set("reordered", verdict.reordered.len().into());
    set("phantom", verdict.phantom.len().into());
    set("unsafe_acks", verdict.unsafe_acks.len().into());
    set("verify_clean", outcome.second.is_clean.into());
    if outcome.tally.is_none() {
        set("recovery_p50_ms", percentile(&outcome.recoveries, 50).into());
        set("recovery_p99_ms", percentile(&outcome.recoveries, 99).into());
    }
    Value::Object(line)
}

/// The smallest duration that so many percent do not exceed, in ms.
fn percentile(durations: &[Duration], percent: usize) -> u64 {
    let mut sorted = durations.to_vec();
    sorted.sort_unstable();
    let rank = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(rank).map_or(0, |found| u64::try_from(found.as_millis()).unwrap())
}

fn explain(outcome: &Outcome, verdict: &Verdict) {
    let journal = &outcome.journal;
    eprintln!(
        "{} records visible, {} in all, {} acknowledgements, {} recoveries, the longest {:?}",
        journal.committed.len(),
        journal.uncommitted.len(),
        journal.told.len(),
        outcome.recoveries.len(),
        outcome.recoveries.iter().max()
    );
    if let Some(tally) = outcome.tally {
        tally.explain();
    }
    for (what, numbers) in [("lost", &verdict.lost), ("reordered", &verdict.reordered)] {
        for number in numbers.iter().take(SHOWN) {
            eprintln!("{what}: row {number}: {}", journal.history(*number));
        }
    }
    if verdict.duplicated_max_per_kill > 0 {
        let number = verdict.duplicated[0];
        eprintln!("first repeat: row {number}: {}", journal.history(number));
    }
    for seen in verdict.phantom.iter().take(SHOWN) {
        eprintln!("phantom: {seen:?}");
    }
    for fault in verdict.unsafe_acks.iter().take(SHOWN) {
        eprintln!("unsafe acknowledgement: {fault}");
    }
}
