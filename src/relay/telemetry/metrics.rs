//! Prometheus metrics of a [`View`].
//!
//! Invariant: every family has one HELP and one TYPE line, and base units; counters end in
//! `_total`. The number of series is bounded.

mod operated;

use std::fmt;
use std::time::Duration;

use super::health::{CHECKS, Health, Role, readiness};
use super::process::Usage;
use super::snapshot::{
    Count, RESTART_REASONS, RelayState, SlotMetrics, Snapshot, TopicCount, UnavailableTopics,
};
use super::{BuildInfo, Histogram, View};
use postrider_core::route::RejectionCode;
use postrider_kafka::Traces;
use postrider_service::prometheus::{Exemplar, Metrics, Number, Page};

/// Further topics share `topic="other"`, because templates over free text could flood the
/// monitoring.
const TOPICS_MAX: usize = 200;

#[derive(Debug)]
pub(super) struct RelayMetrics {
    pub(super) view: View,
    pub(super) build: BuildInfo,
    pub(super) usage: Option<Usage>,
}

#[derive(Debug)]
pub(super) struct ProcessMetrics {
    pub(super) usage: Usage,
    pub(super) traces: Traces,
}

impl Metrics for ProcessMetrics {
    fn write(&self, page: &mut Page<'_>) -> fmt::Result {
        page.begin_names("postrider_");
        spans(page, &self.traces)?;
        page.begin_names("process_");
        process(page, &self.usage)
    }
}

impl Metrics for RelayMetrics {
    fn write(&self, page: &mut Page<'_>) -> fmt::Result {
        let Self { view, build, usage } = self;
        page.begin_names("postrider_");
        about_itself(page, view, build)?;
        position(page, view, &build.slot)?;
        surroundings(page, view)?;
        records(page, &view.snapshot)?;
        received(page, &view.snapshot)?;
        flow(page, view)?;
        operated::operated(page, &view.operated)?;
        histogram(page, &view.snapshot.commit_to_confirm)?;
        spans(page, &view.traces)?;
        let Some(usage) = usage else { return Ok(()) };
        // Prometheus defines these names.
        page.begin_names("process_");
        process(page, usage)
    }

    fn exemplars(&self) -> Vec<Exemplar> {
        let exemplars = self.view.snapshot.exemplars.iter();
        let named = exemplars.map(|(bucket, one)| Exemplar {
            histogram: "postrider_commit_to_confirm_seconds",
            bucket,
            trace_id: format!("{:032x}", u128::from_be_bytes(one.trace_id)),
            value: seconds(one.us),
            unix_us: one.unix_us,
        });
        named.collect()
    }
}

fn about_itself(page: &mut Page<'_>, view: &View, build: &BuildInfo) -> fmt::Result {
    page.family("build_info", "What is running.")?.facts(&[
        ("version", build.version.as_str()),
        ("git", build.git.as_str()),
        ("librdkafka", build.librdkafka.as_str()),
    ])?;
    page.single("uptime_seconds", "Since the process started.", view.uptime)?;
    let mut states = page.family("state", "1 for the state the relay is in.")?;
    for state in RelayState::ALL {
        states.sample(&[("state", state.as_str())], state == view.snapshot.state)?;
    }
    // `/readyz` calls this function with the same view.
    let Health { ok, checks, .. } = readiness(view, Role::Any);
    page.single("ready", "1 while /readyz answers 200.", ok)?;
    let mut family = page.family("ready_check", "0 for each check of /readyz that fails.")?;
    for name in CHECKS {
        let fails = checks.iter().any(|check| check.name == name && !check.ok);
        family.sample(&[("check", name)], !fails)?;
    }
    Ok(())
}

fn position(page: &mut Page<'_>, view: &View, slot: &str) -> fmt::Result {
    let mut of_slot = |name, help, value: Option<u64>| {
        value.map_or(Ok(()), |value| page.family(name, help)?.sample(&[("slot_name", slot)], value))
    };
    let Snapshot { holds_slot, received_lsn, settled_lsn, .. } = *view.snapshot;
    of_slot("slot_active", "1 while this relay holds the slot.", Some(holds_slot.into()))?;
    of_slot("received_lsn_bytes", "WAL position received.", Some(received_lsn))?;
    of_slot(
        "settled_lsn_bytes",
        "WAL position up to which every record is confirmed.",
        Some(settled_lsn),
    )?;
    let Some(SlotMetrics { lag_bytes, retained_bytes, safe_bytes, .. }) = view.slot else {
        return Ok(());
    };
    of_slot("slot_lag_bytes", "WAL written and not acknowledged.", Some(lag_bytes))?;
    of_slot("slot_retained_wal_bytes", "WAL kept on disk for the slot.", Some(retained_bytes))?;
    let help = "WAL that may be written before the slot is invalidated.";
    of_slot("slot_safe_wal_bytes", help, safe_bytes)
}

fn surroundings(page: &mut Page<'_>, view: &View) -> fmt::Result {
    if let Some(slot) = view.slot {
        let help = "The server's clock minus the relay's. Latencies are wrong by that.";
        page.single("clock_skew_seconds", help, seconds_of_signed(slot.clock_skew_us))?;
    }
    if view.certificates.is_empty() {
        return Ok(());
    }
    let help = "Unix time at which a certificate of the relay's connections expires.";
    let mut family = page.family("certificate_not_after_timestamp_seconds", help)?;
    for one in view.certificates.iter() {
        let until_s = u64::try_from(one.until_s).unwrap_or(0);
        family.sample(&[("peer", one.peer), ("owner", one.owner)], until_s)?;
    }
    Ok(())
}

fn records(page: &mut Page<'_>, snapshot: &Snapshot) -> fmt::Result {
    let topics = bounded(&snapshot.topics);
    let help = "Records handed to the Kafka client, again after a restart.";
    let mut family = page.family("records_total", help)?;
    for (topic, count) in &topics {
        for (result, number) in [("sent", count.sent), ("dead_lettered", count.dead_lettered)] {
            family.sample(&[("topic", topic), ("result", result)], number)?;
        }
    }
    let help = "Records that the brokers confirmed, dead letters included.";
    page.single("records_confirmed_total", help, snapshot.confirmed)?;
    let help = "Key, value and header bytes handed to the Kafka client.";
    let mut family = page.family("record_bytes_total", help)?;
    for (topic, count) in &topics {
        family.sample(&[("topic", topic)], count.bytes)?;
    }
    let help = "Rows that could not be delivered.";
    let rejections =
        from_zero(RejectionCode::ALL.iter().map(|code| code.as_str()), &snapshot.rejections);
    counts(page, "rejections_total", help, ("reason", &rejections))?;
    let help = "Rows skipped by policy or dropped by a rule, and changes of outbox rows after their insert.";
    counts(page, "ignored_rows_total", help, ("operation", &snapshot.ignored))
}

fn received(page: &mut Page<'_>, snapshot: &Snapshot) -> fmt::Result {
    let help = "Replication messages received.";
    counts(page, "messages_total", help, ("kind", &snapshot.messages))?;
    let help = "Bytes of replication messages.";
    page.single("received_bytes_total", help, snapshot.received_bytes)?;
    let help = "Transactions of which every record is confirmed.";
    page.single("transactions_settled_total", help, snapshot.transactions_settled)
}

fn flow(page: &mut Page<'_>, view: &View) -> fmt::Result {
    let snapshot = &view.snapshot;
    let help = "Records sent and not confirmed.";
    page.single("in_flight_records", help, snapshot.in_flight_records)?;
    page.single("in_flight_bytes", "Bytes sent and not confirmed.", snapshot.in_flight_bytes)?;
    let help =
        "Time for which reading was paused: no room in the budget or the Kafka client, or a drain.";
    page.single("back_pressure_seconds_total", help, snapshot.back_pressure)?;
    let help = "Age of the oldest transaction that is not wholly confirmed.";
    page.single("oldest_unacknowledged_age_seconds", help, view.oldest_unacknowledged_age)?;
    unavailable(page, &snapshot.unavailable)?;
    page.single("kafka_connected", "1 while a broker answers.", snapshot.broker_connected)?;
    let help = "For how long records have waited while the brokers confirmed none.";
    page.single("kafka_unconfirmed_seconds", help, snapshot.unconfirmed_for)?;
    let help = "Sessions that ended, by reason.";
    let restarts = from_zero(RESTART_REASONS, &snapshot.restarts);
    counts(page, "restarts_total", help, ("reason", &restarts))
}

fn unavailable(page: &mut Page<'_>, unavailable: &UnavailableTopics) -> fmt::Result {
    let help = "Topics that rows are routed to and that are missing or forbidden.";
    let mut family = page.family("topics_unavailable", help)?;
    for (reason, topics) in [("missing", unavailable.missing), ("forbidden", unavailable.forbidden)]
    {
        family.sample(&[("reason", reason)], topics as u64)?;
    }
    let help = "For how long the first of them has been unavailable.";
    let mut family = page.family("topic_unavailable_seconds", help)?;
    for one in &unavailable.named {
        family.sample(&[("topic", one.topic.as_str()), ("reason", one.reason)], one.age)?;
    }
    Ok(())
}

fn histogram(page: &mut Page<'_>, histogram: &Histogram) -> fmt::Result {
    let help = "From the commit in Postgres to the brokers' confirmation, per transaction.";
    let buckets: Vec<(f64, u64)> = histogram
        .buckets()
        .map(|(bound, count)| (bound.map_or(f64::INFINITY, seconds), count))
        .collect();
    page.histogram("commit_to_confirm_seconds", help, (&buckets, seconds(histogram.sum_us())))
}

fn spans(page: &mut Page<'_>, traces: &Traces) -> fmt::Result {
    let Some(counts) = traces.counts() else { return Ok(()) };
    let counts = counts.map(|(result, count)| (result.as_str(), count));
    let help = "Spans of delivered rows, by outcome.";
    self::counts(page, "spans_total", help, ("result", &counts))
}

fn process(page: &mut Page<'_>, usage: &Usage) -> fmt::Result {
    // Ticks of 10 ms; see `Usage::cpu_ticks`.
    let cpu = usage.cpu_ticks.map(|ticks| Duration::from_millis(ticks.saturating_mul(10)).into());
    let known: [(&str, &str, Option<Number>); 4] = [
        ("resident_memory_bytes", "Memory in use.", usage.resident_bytes.map(Number::Whole)),
        (
            "resident_memory_max_bytes",
            "Most memory ever in use.",
            usage.resident_bytes_max.map(Number::Whole),
        ),
        ("cpu_seconds_total", "User and system time.", cpu),
        ("open_fds", "Open file descriptors.", usage.open_files.map(Number::Whole)),
    ];
    for (name, help, value) in known {
        if let Some(value) = value {
            page.single(name, help, value)?;
        }
    }
    Ok(())
}

fn counts(
    page: &mut Page<'_>,
    name: &str,
    help: &str,
    (label, counts): (&str, &[Count]),
) -> fmt::Result {
    let mut family = page.family(name, help)?;
    for &(value, count) in counts {
        family.sample(&[(label, value)], count)?;
    }
    Ok(())
}

/// Prometheus does not see an increase for a counter that first appears at 1.
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

/// Rounded to the float that the decimal text would give.
#[expect(clippy::cast_precision_loss, reason = "exact up to 285 years")]
fn seconds(microseconds: u64) -> f64 {
    microseconds as f64 / 1e6
}

#[expect(clippy::cast_precision_loss, reason = "exact up to 285 years")]
fn seconds_of_signed(microseconds: i64) -> Number {
    Number::Real(microseconds as f64 / 1e6)
}

#[cfg(test)]
mod tests;
