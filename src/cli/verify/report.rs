//! The result of `postrider verify`, for people, with the verdict in the first line, and as one
//! line of JSON. Pure.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::verdict::{Fault, Finding, SAMPLES_MAX, Verdict};
use crate::display_bytes::shown;
use crate::marks::wrapped;
use postrider_relay::compare::TopicNumbers;

#[derive(Debug)]
pub(super) struct Report {
    pub(super) verdict: Verdict,
    pub(super) numbers: TopicNumbers,
    pub(super) duplicates_count: bool,
    /// Rows and records without an id, which cannot be compared.
    pub(super) without_id: (u64, u64),
    pub(super) has_slot: bool,
    pub(super) tables: usize,
    pub(super) slot: String,
    pub(super) order_column: Option<String>,
    pub(super) missing_topics: Vec<String>,
    /// Topics that may have removed older records of a key.
    pub(super) compacted_topics: Vec<String>,
    pub(super) spilled_bytes: u64,
    pub(super) elapsed: Duration,
    pub(super) peak_rss_bytes: Option<u64>,
}

impl Report {
    pub(super) fn is_clean(&self) -> bool {
        self.verdict.is_clean(self.duplicates_count)
    }

    fn rows_per_s(&self) -> u64 {
        let elapsed_ms = u64::try_from(self.elapsed.as_millis()).unwrap_or(u64::MAX).max(1);
        self.verdict.rows.saturating_mul(1_000) / elapsed_ms
    }

    /// Evidence for the order.
    fn evidence(&self) -> String {
        match &self.order_column {
            None => "postrider-lsn".to_owned(),
            Some(column) => format!("postrider-lsn and column {column}"),
        }
    }

    /// For people, with meanings in lines of at most this many columns if the width is known.
    pub(super) fn to_text(&self, columns: Option<usize>) -> String {
        let Verdict { rows, records, .. } = self.verdict;
        let mut text = self.headline();
        let _ = writeln!(text, "\n  {:<12}{rows:>12}\n  {:<12}{records:>12}", "rows", "records");
        for (name, number, what) in self.lines() {
            text.push_str(&count_line(name, number, what, columns));
        }
        let _ = writeln!(
            text,
            "\norder: {} records judged by {}, {} have nothing to judge by",
            self.verdict.ordered,
            self.evidence(),
            self.verdict.unordered
        );
        for note in self.notes() {
            let _ = writeln!(text, "{note}");
        }
        for fault in Fault::ALL {
            let number = self.verdict.number(fault);
            if number > 0 {
                let first = if number > SAMPLES_MAX as u64 { ", the first" } else { "" };
                let _ = writeln!(text, "\n{}{first}:", fault.name());
            }
            for finding in self.verdict.samples(fault) {
                let _ = writeln!(text, "  {}", self.found(finding));
            }
        }
        text
    }

    fn headline(&self) -> String {
        let kinds = Fault::ALL.iter().filter(|fault| self.verdict.number(**fault) > 0);
        let told: Vec<String> = kinds
            .map(|fault| format!("{} {}", self.verdict.number(*fault), fault.name()))
            .collect();
        match (self.is_clean(), told.is_empty()) {
            (true, true) => "verify: clean\n".to_owned(),
            (true, false) => {
                format!("verify: clean; {}, which at-least-once delivery allows\n", told.join(", "))
            }
            (false, _) => format!("verify: NOT clean: {}\n", told.join(", ")),
        }
    }

    pub(super) fn to_line(&self) -> String {
        let Verdict { rows, records, pending, unknown, .. } = self.verdict;
        let headline = self.headline();
        format!(
            "{}  ({rows} rows, {records} records, {pending} pending, {unknown} unknown)\n",
            headline.trim_end()
        )
    }

    fn lines(&self) -> Vec<(&'static str, u64, &'static str)> {
        let found = &self.verdict;
        let always = [
            (
                "lost",
                found.lost,
                "the slot has passed the row, and there is neither record nor dead letter",
            ),
            ("duplicated", found.duplicated, "records beyond the first of a row"),
            ("reordered", found.reordered, "records that come after a later one of their key"),
            ("phantom", found.phantom, "records without row, where all rows are kept"),
            (
                "different",
                found.different,
                "rows with a record that is not what the routing makes of them today",
            ),
        ];
        let seldom = [
            ("not unique", found.not_unique, "ids that several rows have; not judged"),
            ("pending", found.pending, "rows that the slot has not passed, without record yet"),
            ("unknown", found.unknown, "rows whose record the topic may have removed"),
            ("dead letters", found.dead_lettered, "rows that arrived as dead letters alone"),
            ("dropped", found.dropped, "rows that a rule leaves out"),
            (
                "without row",
                found.without_row,
                "ids of records whose row was deleted, or was not read",
            ),
            (
                "newer",
                found.newer,
                "records that may be newer than the snapshot of the tables; not judged",
            ),
            ("sent again", found.sent_again, "records that were sent again on purpose"),
            ("rows no id", self.without_id.0, "rows without id; not judged"),
            ("no id", self.without_id.1, "records without the header of the id; not judged"),
        ];
        always.into_iter().chain(seldom.into_iter().filter(|(_, number, _)| *number > 0)).collect()
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if !self.has_slot {
            notes.push(format!(
                "slot `{}` does not exist or is lost: nothing is pending, what is missing is lost",
                self.slot
            ));
        }
        if self.verdict.not_unique > 0 && self.tables > 1 {
            notes.push(
                "ids that rows of several tables share are not judged: verify each table by itself (source.tables)"
                    .to_owned(),
            );
        }
        if !self.missing_topics.is_empty() {
            notes.push(format!("topics that do not exist: {}", self.missing_topics.join(", ")));
        }
        if !self.compacted_topics.is_empty() {
            notes.push(format!(
                "compacted topics, of which it cannot be known what is lost: {}",
                self.compacted_topics.join(", ")
            ));
        }
        notes
    }

    fn found(&self, finding: &Finding) -> String {
        let id = finding.id.map_or_else(String::new, |id| shown(Some(id.shown().as_bytes()), ""));
        let topic = finding.topic.and_then(|topic| self.numbers.name(topic));
        match (topic, finding.record) {
            (Some(topic), Some((partition, offset))) => {
                format!("{id}  {topic}[{partition}]@{offset}")
            }
            (Some(topic), None) => format!("{id}  {topic}"),
            (None, _) => id,
        }
    }

    pub(super) fn to_json(&self) -> Value {
        let found = &self.verdict;
        let samples: Map<String, Value> = Fault::ALL
            .iter()
            .map(|fault| {
                let samples = found.samples(*fault).map(|finding| self.sample(finding));
                (fault.name().to_owned(), samples.collect())
            })
            .filter(|(_, samples): &(_, Value)| {
                samples.as_array().is_some_and(|all| !all.is_empty())
            })
            .collect();
        json!({
            "what": "verify",
            "clean": self.is_clean(),
            "rows": found.rows,
            "records": found.records,
            "lost": found.lost,
            "duplicated": found.duplicated,
            "reordered": found.reordered,
            "phantom": found.phantom,
            "different": found.different,
            "not_unique": found.not_unique,
            "pending": found.pending,
            "unknown": found.unknown,
            "dead_lettered": found.dead_lettered,
            "dropped": found.dropped,
            "without_row": found.without_row,
            "newer": found.newer,
            "sent_again": found.sent_again,
            "rows_without_id": self.without_id.0,
            "records_without_id": self.without_id.1,
            "ordered_by": self.evidence(),
            "ordered": found.ordered,
            "unordered": found.unordered,
            "slot": self.has_slot,
            "topics": self.numbers.names(),
            "missing_topics": self.missing_topics,
            "compacted_topics": self.compacted_topics,
            "spilled_mib": self.spilled_bytes >> 20,
            "peak_rss_mib": self.peak_rss_bytes.map(|bytes| bytes >> 20),
            "seconds": self.elapsed.as_secs(),
            "rows_per_s": self.rows_per_s(),
            "samples": samples,
        })
    }

    fn sample(&self, finding: &Finding) -> Value {
        json!({
            "id": finding.id.map(|id| id.shown()),
            "topic": finding.topic.and_then(|topic| self.numbers.name(topic)),
            "partition": finding.record.map(|(partition, _)| partition),
            "offset": finding.record.map(|(_, offset)| offset),
        })
    }
}

/// Columns in front of what a number means.
const MEANING_AT: usize = 28;
/// Columns below which the meaning of a number is not broken any further.
const MEANING_MIN: usize = 20;

/// A number and what it means, in lines that begin below each other.
fn count_line(name: &str, number: u64, what: &str, columns: Option<usize>) -> String {
    let width = columns.map_or(usize::MAX, |all| all.saturating_sub(MEANING_AT).max(MEANING_MIN));
    let meaning = wrapped(what, width).join(&format!("\n{:MEANING_AT$}", ""));
    format!("  {name:<12}{number:>12}  {meaning}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_meaning_of_a_number_fits_the_terminal() {
        let what = "the slot has passed the row, and there is neither record nor dead letter";
        let whole = format!("  {:<12}{:>12}  {what}\n", "lost", 0);
        assert_eq!(count_line("lost", 0, what, None), whole);
        for columns in [50, 80, 100] {
            let shown = count_line("lost", 0, what, Some(columns));
            assert!(shown.lines().all(|line| line.chars().count() <= columns), "{shown}");
            let words = shown.split_whitespace().skip(2).collect::<Vec<_>>().join(" ");
            assert_eq!(words, what);
        }
    }
}
