//! Renders a [`View`] as Prometheus metrics.
//!
//! Input: a view and the process's resource usage. Output: text. Invariant: every family has HELP and TYPE
//! once, counters end in `_total`, units are base units, and the number of series is bounded, whatever the
//! topics are called.

mod operated;

use std::time::Duration;

use super::health::{CHECKS, Health, Role, readiness};
use super::process::Usage;
use super::snapshot::{Count, RESTART_REASONS, RelayState, SlotMetrics, Snapshot, TopicCount};
use super::{BuildInfo, Histogram, View};
use postrider_core::route::RejectionCode;
use postrider_service::prometheus::Page;

/// Topics with series of their own; further ones share `topic="other"`. A template over a column
/// with free text must not flood the monitoring.
const TOPICS_MAX: usize = 200;

/// Renders everything.
pub(super) fn render(view: &View, build: &BuildInfo, usage: &Usage) -> String {
    let mut page = Page::new("postrider_");
    about_itself(&mut page, view, build);
    position(&mut page, view, &build.slot);
    records(&mut page, &view.snapshot);
    received(&mut page, &view.snapshot);
    flow(&mut page, view);
    operated::operated(&mut page, &view.operated);
    histogram(&mut page, &view.snapshot.commit_to_confirm);
    // These names are Prometheus's own, without our prefix.
    let mut page = page.then("process_");
    process(&mut page, usage);
    page.into_text()
}

fn about_itself(page: &mut Page, view: &View, build: &BuildInfo) {
    page.family("build_info", "What is running.");
    let labels = [
        ("version", build.version.as_str()),
        ("git", build.git.as_str()),
        ("librdkafka", build.librdkafka.as_str()),
    ];
    page.sample("build_info", &labels, 1);
    page.single("uptime_seconds", "Since the process started.", Seconds(view.uptime));
    page.family("state", "1 for the state the relay is in.");
    for state in RelayState::ALL {
        let on = u8::from(state == view.snapshot.state);
        page.sample("state", &[("state", state.as_str())], on);
    }
    // The same function as `/readyz` asks, of the same view.
    let Health { ok, checks, .. } = readiness(view, Role::Any);
    page.single("ready", "1 while /readyz answers 200.", u8::from(ok));
    page.family("ready_check", "0 for each check of /readyz that fails.");
    for name in CHECKS {
        let fails = checks.iter().any(|check| check.name == name && !check.ok);
        page.sample("ready_check", &[("check", name)], u8::from(!fails));
    }
}

fn position(page: &mut Page, view: &View, slot: &str) {
    let mut of_slot = |name, help, value: Option<u64>| {
        let Some(value) = value else { return };
        page.family(name, help);
        page.sample(name, &[("slot_name", slot)], value);
    };
    let Snapshot { holds_slot, received_lsn, settled_lsn, .. } = *view.snapshot;
    of_slot("slot_active", "1 while this relay holds the slot.", Some(holds_slot.into()));
    of_slot("received_lsn_bytes", "WAL position received.", Some(received_lsn));
    of_slot(
        "settled_lsn_bytes",
        "WAL position up to which every record is confirmed.",
        Some(settled_lsn),
    );
    let Some(SlotMetrics { lag_bytes, retained_bytes, safe_bytes, .. }) = view.slot else { return };
    of_slot("slot_lag_bytes", "WAL written and not acknowledged.", Some(lag_bytes));
    of_slot("slot_retained_wal_bytes", "WAL kept on disk for the slot.", Some(retained_bytes));
    let help = "WAL that may be written before the slot is invalidated.";
    of_slot("slot_safe_wal_bytes", help, safe_bytes);
}

fn records(page: &mut Page, snapshot: &Snapshot) {
    let topics = bounded(&snapshot.topics);
    page.family("records_total", "Records handed to the Kafka client, again after a restart.");
    for (topic, count) in &topics {
        for (result, number) in [("sent", count.sent), ("dead_lettered", count.dead_lettered)] {
            page.sample("records_total", &[("topic", topic), ("result", result)], number);
        }
    }
    let help = "Records that the brokers confirmed, dead letters included.";
    page.single("records_confirmed_total", help, snapshot.confirmed);
    page.family("record_bytes_total", "Key, value and header bytes handed to the Kafka client.");
    for (topic, count) in &topics {
        page.sample("record_bytes_total", &[("topic", topic)], count.bytes);
    }
    let help = "Rows that could not be delivered.";
    let rejections =
        from_zero(RejectionCode::ALL.iter().map(|code| code.as_str()), &snapshot.rejections);
    counts(page, "rejections_total", help, ("reason", &rejections));
    let help = "Rows skipped by policy or dropped by a rule, and changes of outbox rows after their insert.";
    counts(page, "ignored_rows_total", help, ("operation", &snapshot.ignored));
}

fn received(page: &mut Page, snapshot: &Snapshot) {
    let help = "Replication messages received.";
    counts(page, "messages_total", help, ("kind", &snapshot.messages));
    let help = "Bytes of replication messages.";
    page.single("received_bytes_total", help, snapshot.received_bytes);
    let help = "Transactions of which every record is confirmed.";
    page.single("transactions_settled_total", help, snapshot.transactions_settled);
}

fn flow(page: &mut Page, view: &View) {
    let snapshot = &view.snapshot;
    let help = "Records sent and not confirmed.";
    page.single("in_flight_records", help, snapshot.in_flight_records);
    page.single("in_flight_bytes", "Bytes sent and not confirmed.", snapshot.in_flight_bytes);
    let help =
        "Time for which reading was paused: no room in the budget or the Kafka client, or a drain.";
    page.single("back_pressure_seconds_total", help, Seconds(snapshot.back_pressure));
    let help = "Age of the oldest transaction that is not wholly confirmed.";
    let age = Seconds(view.oldest_unacknowledged_age);
    page.single("oldest_unacknowledged_age_seconds", help, age);
    let help = "Topics that rows are routed to and that are missing or forbidden.";
    page.family("topics_unavailable", help);
    let unavailable = &snapshot.unavailable;
    page.sample("topics_unavailable", &[("reason", "missing")], unavailable.missing);
    page.sample("topics_unavailable", &[("reason", "forbidden")], unavailable.forbidden);
    page.family(
        "topic_unavailable_seconds",
        "For how long the first of them has been unavailable.",
    );
    for one in &unavailable.named {
        let labels = [("topic", one.topic.as_str()), ("reason", one.reason)];
        page.sample("topic_unavailable_seconds", &labels, Seconds(one.age));
    }
    let connected = u8::from(snapshot.broker_connected);
    page.single("kafka_connected", "1 while a broker answers.", connected);
    let help = "For how long records have waited while the brokers confirmed none.";
    page.single("kafka_unconfirmed_seconds", help, Seconds(snapshot.unconfirmed_for));
    let help = "Sessions that ended, by reason.";
    let restarts = from_zero(RESTART_REASONS, &snapshot.restarts);
    counts(page, "restarts_total", help, ("reason", &restarts));
}

fn histogram(page: &mut Page, histogram: &Histogram) {
    let name = "commit_to_confirm_seconds";
    let help = "From the commit in Postgres to the brokers' confirmation, per transaction.";
    page.family_of(name, "histogram", help);
    let bucket = format!("{name}_bucket");
    for (bound, below) in histogram.cumulative() {
        let bound = bound.map_or_else(|| "+Inf".to_owned(), seconds);
        page.sample(&bucket, &[("le", &bound)], below);
    }
    page.sample(&format!("{name}_sum"), &[], seconds(histogram.sum_us()));
    page.sample(&format!("{name}_count"), &[], histogram.count());
}

fn process(page: &mut Page, usage: &Usage) {
    let bytes = |number: u64| number.to_string();
    // Ticks of 10 ms; see `Usage::cpu_ticks`.
    let cpu = |ticks: u64| seconds(ticks.saturating_mul(10_000));
    let known = [
        ("resident_memory_bytes", "Memory in use.", usage.resident_bytes.map(bytes)),
        (
            "resident_memory_max_bytes",
            "Most memory ever in use.",
            usage.resident_bytes_max.map(bytes),
        ),
        ("cpu_seconds_total", "User and system time.", usage.cpu_ticks.map(cpu)),
        ("open_fds", "Open file descriptors.", usage.open_files.map(bytes)),
    ];
    for (name, help, value) in known {
        if let Some(value) = value {
            page.single(name, help, value);
        }
    }
}

fn counts(page: &mut Page, name: &str, help: &str, (label, counts): (&str, &[Count])) {
    page.family(name, help);
    for (value, count) in counts {
        page.sample(name, &[(label, value)], count);
    }
}

/// Each of these words with its count, 0 if it has none, and what else is counted: a counter that appears with its
/// first event has no increase that Prometheus could see.
fn from_zero(words: impl IntoIterator<Item = &'static str>, counts: &[Count]) -> Vec<Count> {
    let mut all: Vec<Count> = words.into_iter().map(|word| (word, 0)).collect();
    for &(word, count) in counts {
        match all.iter_mut().find(|(known, _)| *known == word) {
            Some((_, zero)) => *zero = count,
            None => all.push((word, count)),
        }
    }
    all
}

/// The first topics, and the sum of the rest as `other`.
fn bounded(topics: &[TopicCount]) -> Vec<(&str, TopicCount)> {
    let mut shown: Vec<(&str, TopicCount)> =
        topics.iter().take(TOPICS_MAX).map(|count| (&*count.topic, count.clone())).collect();
    let rest = topics.get(TOPICS_MAX..).unwrap_or_default();
    let sum = rest.iter().cloned().reduce(|sum, next| TopicCount {
        topic: sum.topic,
        sent: sum.sent + next.sent,
        dead_lettered: sum.dead_lettered + next.dead_lettered,
        bytes: sum.bytes + next.bytes,
    });
    shown.extend(sum.map(|sum| ("other", sum)));
    shown
}

/// Microseconds as decimal seconds, exactly: `0.00005`, `1`, `2.5`.
fn seconds(microseconds: u64) -> String {
    let (whole, fraction) = (microseconds / 1_000_000, microseconds % 1_000_000);
    let text = format!("{whole}.{fraction:06}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

struct Seconds(Duration);

impl std::fmt::Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&seconds(u64::try_from(self.0.as_micros()).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests;
