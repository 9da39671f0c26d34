//! The report: one line of JSON on stdout, and faults on stderr.
//!
//! Input: a [`Verdict`] and a summary. Output: the report, and whether there is no fault.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use crate::shop_chaos::audit::Verdict;
use crate::shop_chaos::chaos::FaultCounts;
use crate::shop_chaos::clients::RequestCounts;
use crate::shop_chaos::duplicates::Copies;
use crate::shop_chaos::process::Service;
use crate::shop_chaos::settings::Plan;
use crate::shop_chaos::victims::Kind;

/// Faults that are printed.
const SHOWN: usize = 20;

/// The least kills of each kind in a long run that nobody has shortened.
const KINDS: [(Kind, u32); 5] = [
    (Kind::Service, 20),
    (Kind::Relay, 5),
    (Kind::Postgres, 10),
    (Kind::Kafka, 5),
    (Kind::Redis, 3),
];

/// Figures of a run besides its verdict.
pub(crate) struct RunSummary<'c> {
    pub(crate) tally: RequestCounts,
    pub(crate) toll: &'c FaultCounts,
    pub(crate) copies: &'c Copies,
    pub(crate) services: &'c [Service],
    /// Whether everything came to rest, and every service ended well.
    pub(crate) faults: Vec<String>,
    pub(crate) took: Duration,
}

/// Prints the report; returns whether there is no fault.
pub(crate) fn report(plan: &Plan, verdict: &Verdict, course: &RunSummary<'_>) -> bool {
    println!("{}", line(verdict, course));
    explain(course);
    let faults = verdict.faults.iter().chain(&course.faults).chain(&course.toll.ended);
    for fault in faults.clone().take(SHOWN) {
        eprintln!("{fault}");
    }
    let count = faults.count();
    if count > SHOWN {
        eprintln!("... and {} more", count - SHOWN);
    }
    let is_struck = KINDS.iter().all(|(kind, least)| {
        let (done, wanted) = (course.toll.kills_of(*kind), kind.share(plan.kills));
        let wanted = if plan.is_asked_in_full() { wanted.max(*least) } else { wanted };
        if done < wanted {
            eprintln!("{done} kills of {kind:?}, and not {wanted}");
        }
        done >= wanted
    });
    let is_lossy = verdict.replies_destroyed > 0 || plan.kills == 0;
    if !is_lossy {
        eprintln!("no reply was destroyed");
    }
    let is_varied = verdict.confirmed > 0 && verdict.cancelled > 0;
    if !is_varied {
        eprintln!("a run in which all orders end alike shows little");
    }
    verdict.is_sound() && count == 0 && is_struck && is_lossy && is_varied
}

fn line(verdict: &Verdict, course: &RunSummary<'_>) -> Value {
    let RunSummary { tally, toll, copies, .. } = course;
    let counted = counted(course.services);
    let count = |name: &str| counted.get(name).copied().unwrap_or(0);
    let (hits, misses) = (count("shop_cache_hits_total"), count("shop_cache_misses_total"));
    let percent = |part: u64, whole: u64| (part * 100).checked_div(whole).unwrap_or(0);
    json!({
        "orders": verdict.orders,
        "double_orders": verdict.double_orders,
        "confirmed": verdict.confirmed,
        "cancelled": verdict.cancelled,
        "stuck": verdict.stuck,
        "effects_missing": verdict.effects_missing,
        "effects_doubled": verdict.effects_doubled,
        "money_balance": verdict.money_balance,
        "stock_balance": verdict.stock_balance,
        "dead_letters": verdict.dead_letters,
        "replies_destroyed": verdict.replies_destroyed,
        "kills": toll.kills(),
        "kills_of_services": toll.kills_of(Kind::Service),
        "kills_of_relays": toll.kills_of(Kind::Relay),
        "kills_of_postgres": toll.kills_of(Kind::Postgres),
        "kills_of_kafka": toll.kills_of(Kind::Kafka),
        "redis_failovers": toll.kills_of(Kind::Redis),
        "redis_flushes": toll.flushes,
        "freezes": toll.freezes,
        "requests": tally.requests,
        "replays": tally.replays,
        "conflicts": tally.conflicts,
        "unavailable": tally.unavailable,
        "broken": tally.broken,
        "answers_wrong": verdict.answers_wrong,
        "dead_letters_wrong": verdict.dead_letters_wrong,
        "dead_letters_repeated": verdict.dead_letters_repeated,
        "lag": verdict.lag,
        "duplicated_deliveries": copies.values().sum::<u32>(),
        "messages_repeated": count("shop_messages_repeated_total"),
        "retries": count("shop_retries_total"),
        "cache_hit_percent": percent(hits, hits + misses),
        "timed_out": verdict.timed_out,
        "seconds": course.took.as_secs(),
    })
}

/// What all services counted in all their lives; what they counted after they were asked for the last
/// time is lost with them.
fn counted(services: &[Service]) -> BTreeMap<&str, u64> {
    let mut all = BTreeMap::new();
    for (name, value) in services.iter().flat_map(Service::counted) {
        *all.entry(name.as_str()).or_default() += value;
    }
    all
}

fn explain(course: &RunSummary<'_>) {
    let mut warnings: BTreeMap<String, u32> = BTreeMap::new();
    for service in course.services {
        for (text, count) in service.warnings() {
            *warnings.entry(text).or_default() += count;
        }
    }
    // Dead letters are counted where they lie.
    warnings.retain(|text, _| !text.contains("message sent to the dead-letter topic"));
    for (text, count) in warnings {
        eprintln!("{count} times a service logged: {text}");
    }
}
