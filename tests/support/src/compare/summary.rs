//! The table that says it in short: Postrider beside the tuned Debezium, for the README.
//!
//! Input: the workloads. Output: a table of Markdown. Invariant: it shows medians and the median ratios of the same runs, as
//! the report does; what was not measured has no line.

use std::fmt::Write as _;

use super::contestants::{Contestant, Transport};
use super::figures::{Cell, RIVAL, rounded};

/// A line of the table.
struct Line {
    what: &'static str,
    workload: &'static str,
    figure: &'static str,
    unit: &'static str,
}

const fn line(
    what: &'static str,
    workload: &'static str,
    figure: &'static str,
    unit: &'static str,
) -> Line {
    Line { what, workload, figure, unit }
}

const LINES: [Line; 15] = [
    line("backlog, 1 row a transaction", "one_row", "rows_per_s", "rows/s"),
    line("the second half of it", "one_row", "steady_rows_per_s", "rows/s"),
    line("its CPU time for a row", "one_row", "cpu_us_per_row", "us"),
    line("its peak of memory", "one_row", "peak_rss_mib", "MiB"),
    line("the same without pages of files", "one_row", "peak_private_mib", "MiB"),
    line("start to the first record", "one_row", "first_record_s", "s"),
    line("backlog, 1,000 rows a transaction", "bulk", "rows_per_s", "rows/s"),
    line("the second half of it", "bulk", "steady_rows_per_s", "rows/s"),
    line("its CPU time for a row", "bulk", "cpu_us_per_row", "us"),
    line("its peak of memory", "bulk", "peak_rss_mib", "MiB"),
    line("the same without pages of files", "bulk", "peak_private_mib", "MiB"),
    line("commit to receipt at 1,000 rows/s, p50", "latency_1000", "p50_ms", "ms"),
    line("the same, p99", "latency_1000", "p99_ms", "ms"),
    line("no record after kill -9 for", "kill", "recovery_s", "s"),
    line("rows sent twice then", "kill", "repeats", ""),
];

const SHOWN: [(&str, Contestant); 3] = [
    ("Postrider, at least once", Contestant::AtLeastOnce(Transport::Tcp)),
    ("Postrider, exactly once", Contestant::ExactlyOnce(Transport::Tcp)),
    ("Debezium, tuned", RIVAL),
];

/// The table.
pub(super) fn table(cells: &[Cell]) -> String {
    let mut text = String::from("|");
    for (name, _) in SHOWN {
        write!(text, " | {name}").unwrap();
    }
    writeln!(text, " |\n|---{}|", "|---".repeat(SHOWN.len())).unwrap();
    for line in &LINES {
        let Some(cell) = cells.iter().find(|cell| cell.name == line.workload) else { continue };
        write!(text, "| {}", line.what).unwrap();
        for (_, contestant) in SHOWN {
            write!(text, " | {}", words(cell, contestant, line)).unwrap();
        }
        text.push_str(" |\n");
    }
    text
}

fn words(cell: &Cell, contestant: Contestant, line: &Line) -> String {
    let Some([median, ..]) = cell.of(contestant, line.figure) else { return "-".to_owned() };
    let value = format!("{} {}", grouped(rounded(median)), line.unit);
    let ratio = cell.ratio(contestant, line.figure).filter(|_| contestant != RIVAL);
    let ratio = ratio.map_or_else(String::new, |ratio| format!(" (**{}x**)", rounded(ratio)));
    format!("{}{ratio}", value.trim_end())
}

/// With a comma between thousands.
fn grouped(value: f64) -> String {
    let text = value.to_string();
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut grouped = String::new();
    for (place, digit) in whole.chars().enumerate() {
        if place > 0 && (whole.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + rest
}

#[cfg(test)]
mod tests {
    use super::super::figures::Figures;
    use super::*;

    #[test]
    fn thousands_are_grouped() {
        let shown = [0.074, 999.0, 1_000.0, 178_800.0, 1_234_567.5].map(grouped);
        assert_eq!(shown, ["0.074", "999", "1,000", "178,800", "1,234,567.5"]);
    }

    #[test]
    fn what_was_measured_has_a_line_with_its_ratio() {
        let mut cell = Cell::new("bulk", "rows".to_owned(), &[SHOWN[0].1, RIVAL]);
        for (contestant, rate) in [(SHOWN[0].1, 160_000.0), (RIVAL, 40_000.0)] {
            let mut figures = Figures::default();
            figures.set("rows_per_s", rate);
            cell.add(contestant, Ok(figures));
        }
        let table = table(&[cell]);
        let line =
            "| backlog, 1,000 rows a transaction | 160,000 rows/s (**4x**) | - | 40,000 rows/s |";
        assert_eq!(table.lines().nth(2), Some(line), "{table}");
        assert!(!table.contains("kill -9"), "{table}");
    }
}
