//! The short table of a comparison: Postrider beside the tuned Debezium, for the README and its picture.
//!
//! Input: the workloads. Output: a table of Markdown. Invariant: the table shows medians, and medians of the ratios of the
//! same runs, as the report does; a workload that was not measured has no line.

use std::fmt::Write as _;

use super::contestants::{Contestant, Transport};
use super::figures::{Cell, RIVAL};

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

const LINES: [Line; 10] = [
    line("Backlog, 1 row per transaction", "one_row", "rows_per_s", "rows/s"),
    line("Second half of that backlog", "one_row", "steady_rows_per_s", "rows/s"),
    line("Backlog, 1,000 rows per transaction", "bulk", "rows_per_s", "rows/s"),
    line("CPU time per row", "one_row", "cpu_us_per_row", "µs"),
    line("Peak memory", "one_row", "peak_rss_mib", "MiB"),
    line("Start to the first record", "one_row", "first_record_s", "s"),
    line("Commit to consumer, median", "latency_1000", "p50_ms", "ms"),
    line("Commit to consumer, p99", "latency_1000", "p99_ms", "ms"),
    line("Pause after kill -9", "kill", "recovery_s", "s"),
    line("Rows sent again after kill -9", "kill", "repeats", "rows"),
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
    let ratio = cell.ratio(contestant, line.figure).filter(|_| contestant != RIVAL);
    let ratio = ratio.map_or_else(String::new, in_words);
    format!("{} {}{ratio}", two_digits(median), line.unit)
}

/// A ratio above one, such as `15x less`.
fn in_words(ratio: f64) -> String {
    if ratio >= 1.0 {
        format!(" (**{}x**)", two_digits(ratio))
    } else if ratio > 0.0 {
        format!(" (**{}x less**)", two_digits(ratio.recip()))
    } else {
        String::new()
    }
}

/// Two significant digits, with a comma between thousands.
fn two_digits(value: f64) -> String {
    // The exponent form rounds to two digits: 1.8e5.
    let rounded: f64 = format!("{value:.1e}").parse().unwrap();
    let decimals = match rounded {
        0.0 | 10.0.. => 0,
        1.0..10.0 => 1,
        0.1..1.0 => 2,
        _ => 3,
    };
    let text = format!("{rounded:.decimals$}");
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
    fn values_have_two_digits_and_groups_of_thousands() {
        let shown = [0.0, 0.0742, 0.504, 2.9, 9.96, 31.9, 484.0, 181_708.0].map(two_digits);
        assert_eq!(shown, ["0", "0.074", "0.50", "2.9", "10", "32", "480", "180,000"]);
        assert_eq!([4.81, 0.067, 0.0].map(in_words), [" (**4.8x**)", " (**15x less**)", ""]);
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
        let line = "| Backlog, 1,000 rows per transaction | 160,000 rows/s (**4.0x**) | - | 40,000 rows/s |";
        assert_eq!(table.lines().nth(2), Some(line), "{table}");
        assert!(!table.contains("kill -9"), "{table}");
    }
}
