//! A [`View`] as Prometheus text, exposition format 0.0.4.
//!
//! Enters: a view and the process's usage. Leaves: text. What always holds: every family has HELP
//! and TYPE once, counters end in `_total`, units are base units, and the number of series is
//! bounded whatever the topics are called.

use std::fmt::Write as _;
use std::time::Duration;

use super::process::Usage;
use super::snapshot::{Count, Snapshot, State, TopicCount};
use super::{BuildInfo, Histogram, View};

/// The media type of the text.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Topics with series of their own; further ones share `topic="other"`. A template over a column
/// with free text must not flood the monitoring.
const TOPICS_MAX: usize = 200;

/// Renders everything.
pub(super) fn render(view: &View, build: &BuildInfo, usage: &Usage) -> String {
    let mut page = Page::default();
    page.about_itself(view, build);
    page.position(view, &build.slot);
    page.records(&view.snapshot);
    page.flow(view);
    page.process(usage);
    page.out
}

#[derive(Default)]
struct Page {
    out: String,
}

/// Name and value of each label.
type Labels<'a> = &'a [(&'a str, &'a str)];

impl Page {
    fn about_itself(&mut self, view: &View, build: &BuildInfo) {
        self.family("build_info", "gauge", "What is running.");
        let labels = [
            ("version", build.version.as_str()),
            ("git", build.git.as_str()),
            ("librdkafka", build.librdkafka.as_str()),
        ];
        self.sample("build_info", &labels, 1);
        self.family("uptime_seconds", "gauge", "Since the process started.");
        self.sample("uptime_seconds", &[], Seconds(view.uptime));
        self.family("state", "gauge", "1 for the state the relay is in.");
        for state in State::ALL {
            let on = u8::from(state == view.snapshot.state);
            self.sample("state", &[("state", state.as_str())], on);
        }
    }

    fn position(&mut self, view: &View, slot: &str) {
        let snapshot = &view.snapshot;
        let labels = [("slot_name", slot)];
        self.family("slot_active", "gauge", "1 while this relay holds the slot.");
        self.sample("slot_active", &labels, u8::from(snapshot.holds_slot));
        self.family("received_lsn_bytes", "gauge", "End of the log received.");
        self.sample("received_lsn_bytes", &labels, snapshot.received_lsn);
        self.family("settled_lsn_bytes", "gauge", "End of the log wholly confirmed.");
        self.sample("settled_lsn_bytes", &labels, snapshot.settled_lsn);
        let Some(sample) = view.slot else { return };
        self.family("slot_lag_bytes", "gauge", "Log written and not acknowledged.");
        self.sample("slot_lag_bytes", &labels, sample.lag_bytes);
        self.family("slot_retained_wal_bytes", "gauge", "Log kept on disk for the slot.");
        self.sample("slot_retained_wal_bytes", &labels, sample.retained_bytes);
        if let Some(safe) = sample.safe_bytes {
            let help = "Log that may be written before the slot is invalidated.";
            self.family("slot_safe_wal_bytes", "gauge", help);
            self.sample("slot_safe_wal_bytes", &labels, safe);
        }
    }

    fn records(&mut self, snapshot: &Snapshot) {
        let topics = bounded(&snapshot.topics);
        self.family(
            "records_total",
            "counter",
            "Records handed to the Kafka client, again after a restart.",
        );
        for (topic, count) in &topics {
            for (result, number) in [("sent", count.sent), ("dead_lettered", count.dead_lettered)] {
                self.sample("records_total", &[("topic", topic), ("result", result)], number);
            }
        }
        let help = "Records that the brokers confirmed, dead letters included.";
        self.family("records_confirmed_total", "counter", help);
        self.sample("records_confirmed_total", &[], snapshot.confirmed);
        let help = "Key, value and header bytes handed to the Kafka client.";
        self.family("record_bytes_total", "counter", help);
        for (topic, count) in &topics {
            self.sample("record_bytes_total", &[("topic", topic)], count.bytes);
        }
        self.counts(
            "rejections_total",
            "Rows that could not be delivered.",
            "reason",
            &snapshot.rejections,
        );
        self.counts(
            "ignored_rows_total",
            "Rows skipped by policy or dropped by a rule, and changes of outbox rows after their insert.",
            "operation",
            &snapshot.ignored,
        );
    }

    fn flow(&mut self, view: &View) {
        let snapshot = &view.snapshot;
        self.counts("messages_total", "Replication messages received.", "kind", &snapshot.messages);
        self.family("received_bytes_total", "counter", "Bytes of replication messages.");
        self.sample("received_bytes_total", &[], snapshot.received_bytes);
        let help = "Transactions of which every record is confirmed.";
        self.family("transactions_settled_total", "counter", help);
        self.sample("transactions_settled_total", &[], snapshot.transactions_settled);
        self.family("in_flight_records", "gauge", "Records sent and not confirmed.");
        self.sample("in_flight_records", &[], snapshot.in_flight_records);
        self.family("in_flight_bytes", "gauge", "Bytes sent and not confirmed.");
        self.sample("in_flight_bytes", &[], snapshot.in_flight_bytes);
        let help = "Time for which reading was paused by the budget.";
        self.family("back_pressure_seconds_total", "counter", help);
        self.sample("back_pressure_seconds_total", &[], Seconds(snapshot.back_pressure));
        let help = "Age of the oldest transaction that is not wholly confirmed.";
        self.family("oldest_unacknowledged_age_seconds", "gauge", help);
        let age = Seconds(view.oldest_unacknowledged_age);
        self.sample("oldest_unacknowledged_age_seconds", &[], age);
        let help = "Topics that rows have chosen and that do not exist, or are forbidden to us.";
        self.family("topics_unavailable", "gauge", help);
        let unavailable = &snapshot.unavailable;
        self.sample("topics_unavailable", &[("reason", "missing")], unavailable.missing as u64);
        self.sample("topics_unavailable", &[("reason", "forbidden")], unavailable.forbidden as u64);
        self.family("topic_unavailable_seconds", "gauge", "For how long, of the first of them.");
        for one in &unavailable.named {
            let labels = [("topic", one.topic.as_str()), ("reason", one.reason)];
            self.sample("topic_unavailable_seconds", &labels, Seconds(one.age));
        }
        self.family("kafka_connected", "gauge", "1 while a broker answers.");
        self.sample("kafka_connected", &[], u8::from(snapshot.broker_connected));
        let help = "For how long records have waited while the brokers confirmed none.";
        self.family("kafka_unconfirmed_seconds", "gauge", help);
        self.sample("kafka_unconfirmed_seconds", &[], Seconds(snapshot.unconfirmed_for));
        self.counts(
            "restarts_total",
            "Sessions that ended, by reason.",
            "reason",
            &snapshot.restarts,
        );
        self.histogram(&snapshot.commit_to_confirm);
    }

    fn histogram(&mut self, histogram: &Histogram) {
        let name = "commit_to_confirm_seconds";
        let help = "From the commit in Postgres to the brokers' confirmation, per transaction.";
        self.family(name, "histogram", help);
        let bucket = format!("{name}_bucket");
        for (bound, below) in histogram.cumulative() {
            let bound = bound.map_or_else(|| "+Inf".to_owned(), seconds);
            self.sample(&bucket, &[("le", &bound)], below);
        }
        self.sample(&format!("{name}_sum"), &[], seconds(histogram.sum_us()));
        self.sample(&format!("{name}_count"), &[], histogram.count());
    }

    fn process(&mut self, usage: &Usage) {
        let bytes = |number: u64| number.to_string();
        // Ticks of 10 ms; see `Usage::cpu_ticks`.
        let cpu = |ticks: u64| seconds(ticks.saturating_mul(10_000));
        let families = [
            (
                "process_resident_memory_bytes",
                "gauge",
                "Memory in use.",
                usage.resident_bytes.map(bytes),
            ),
            (
                "process_resident_memory_max_bytes",
                "gauge",
                "Most memory ever in use.",
                usage.resident_bytes_max.map(bytes),
            ),
            (
                "process_cpu_seconds_total",
                "counter",
                "User and system time.",
                usage.cpu_ticks.map(cpu),
            ),
            ("process_open_fds", "gauge", "Open file descriptors.", usage.open_files.map(bytes)),
        ];
        for (name, kind, help, value) in families {
            // These names are Prometheus's own, without our prefix.
            if let Some(value) = value {
                let _ = writeln!(
                    self.out,
                    "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}"
                );
            }
        }
    }

    fn counts(&mut self, name: &str, help: &str, label: &str, counts: &[Count]) {
        self.family(name, "counter", help);
        for (value, count) in counts {
            self.sample(name, &[(label, value)], count);
        }
    }

    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ =
            writeln!(self.out, "# HELP postrider_{name} {help}\n# TYPE postrider_{name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: Labels<'_>, value: impl std::fmt::Display) {
        let _ = write!(self.out, "postrider_{name}");
        for (index, (label, text)) in labels.iter().enumerate() {
            let open = if index == 0 { '{' } else { ',' };
            let _ = write!(self.out, "{open}{label}=\"{}\"", escaped(text));
        }
        let close = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.out, "{close} {value}");
    }
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

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
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
