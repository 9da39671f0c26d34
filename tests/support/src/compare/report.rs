//! The report as Markdown: where it was measured, a table for each workload, how each contestant was configured, and what
//! could not be compared.

use std::fmt::Write as _;

use super::figures::{Cell, RIVAL, rounded};
use super::{Comparison, MARKS, summary};

/// Those that nobody here could run, and why.
const ABSENT: [(&str, &str); 4] = [
    (
        "go-pq-cdc-kafka",
        "the Go module proxy refuses `github.com/Trendyol/go-pq-cdc-kafka` and `github.com/Trendyol/go-pq-cdc` (403) where \
         this was written; its Kafka client (segmentio/kafka-go) has no idempotent producer; go_pglogrepl_franz stands in for it",
    ),
    (
        "faucet-stream",
        "on crates.io as `faucet-cli`: 1.17 needs Rust 1.99 and 1.4 needs 1.96, newer than the compiler that this was written \
         with; its records are change events whose JSON is written anew, so that they could not be compared byte for byte",
    ),
    ("outboxx", "neither on crates.io nor on npm"),
    (
        "Sequin",
        "a server of its own; the npm package of that name is another, and the Go module proxy has none",
    ),
];

/// What a reader must know of the figures.
const METHOD: &str = "\
All contestants deliver the same rows from the same PostgreSQL to the same Kafka, one after the other, and where there are several runs \
forwards and backwards in turn, who polls behind all others, since what it marks is in the log; acks=all and an idempotent producer on all sides; records in topics of three partitions on one broker. \
Rows are written once, behind a slot that is copied for each drain; fsync and autovacuum are off for all. While a backlog is written, a \
checkpoint follows every 20,000 rows or 20 MB of payload: PostgreSQL notes every 15 s which transactions are open, and at checkpoints, so that the \
log is as if 1,300 rows or 1.3 MB a second had been written. Postrider reads a backlog in windows of the log, which begin at such notes; \
`postrider_streamed_tcp` streams it, as the others do. Notes in payloads are pieces of \
one text of 16 kB, so that batches compress as events do. The clock runs from the first stored record to the last, by \
the broker's own time, and so does CPU time; a start shows in `first_record_s`, `whole_s` (from the start of the process to the last record) and \
`cpu_us_per_row_with_start` only. `steady_rows_per_s` is the rate of the second half of the \
records, when Java has compiled what it runs often. \
`go_pglogrepl_franz` is a simple relay as one writes it by hand, which waits for all of its records once a second (benches/compare/main.go). \
`pg_recvlogical` throws away what it reads: its clock is that of its process. `writer_alone` is no relay: each session that commits a row sends it to Kafka \
itself after that (acks=all, idempotent, lz4, no linger, one client for all sessions), so that its latency is what the servers and the machine take without one; a row is lost \
if it ends between the two. `peak_private_mib` is the peak without pages of files, which the kernel shares and can drop (`RssAnon`, looked at every 20 ms). `debezium_tuned` and the relay in Go have a linger of 5 ms for a backlog, and none \
where latency is measured; `debezium_default` has the defaults of its client; Postrider lets batches of a backlog wait for 5 ms and no others, and compresses by lz4. While Debezium, the relay in Go or the polling one works, \
the ends of the partitions are asked for every 250 ms (less often with more topics), on the same cores. Debezium runs at least once; exactly once, which Kafka Connect offers in distributed mode, was not run. `server_cpu_us_per_row` is that of \
all processes that read the log for the contestant, from its start to its end; of all of PostgreSQL where rows are polled. `recovery_s` is the longest time in which no \
record was stored after kill -9, `finished_s` the time from then to the last \
record. \
Each run that delivers is verified: every row, in the order of its key, each key and value byte for byte (where latency is measured by count and order alone); repeats only after a kill, and \
never exactly once. Shown are medians, in brackets least and greatest, and the median of the ratios to the tuned Debezium in the \
same run.";

/// The whole of it, beside its plot.
pub(super) fn markdown(comparison: &Comparison, plot: &str) -> String {
    let (short, [begin, end]) = (summary::table(&comparison.cells), MARKS);
    let mut text = format!(
        "# Comparison\n\n{begin}\n\n{short}\n{end}\n\n![Bars for each line of the table]({plot})\n\n"
    );
    writeln!(text, "{METHOD}\n\n| | |\n|---|---|").unwrap();
    for (name, value) in comparison.environment.pairs() {
        writeln!(text, "| {name} | {value} |").unwrap();
    }
    for cell in &comparison.cells {
        table(&mut text, cell);
    }
    text.push_str("\n## Failures\n\n");
    let failures = comparison.failures();
    if failures.is_empty() {
        text.push_str("None: all rows of all runs arrived as they should.\n");
    }
    for failure in failures {
        writeln!(text, "- {failure}").unwrap();
    }
    text.push_str("\n## Not compared\n\nContestants that a workload does not name did not run it, for lack of time.\n\n");
    if let Some(why) = &comparison.without_go {
        writeln!(text, "- go_pglogrepl_franz: {why}.").unwrap();
    }
    for (name, why) in ABSENT {
        writeln!(text, "- {name}: {why}.").unwrap();
    }
    text.push_str("\n## Configurations\n");
    for (name, configuration) in &comparison.configurations {
        write!(text, "\n{name}:\n\n```properties\n{configuration}\n```\n").unwrap();
    }
    text
}

fn table(text: &mut String, cell: &Cell) {
    write!(text, "\n## {}\n\n{}.\n\n|", cell.name, upper(&cell.what)).unwrap();
    let contestants = &cell.contestants;
    for contestant in contestants {
        write!(text, " | {}", contestant.name()).unwrap();
    }
    writeln!(text, " |\n|---{}|", "|---".repeat(contestants.len())).unwrap();
    for figure in cell.figures() {
        write!(text, "| {figure}").unwrap();
        for contestant in contestants {
            let words = cell.of(*contestant, figure).map_or_else(|| "-".to_owned(), shown);
            let ratio = cell.ratio(*contestant, figure).filter(|_| *contestant != RIVAL);
            let ratio =
                ratio.map_or_else(String::new, |ratio| format!(", **{}x**", rounded(ratio)));
            write!(text, " | {words}{ratio}").unwrap();
        }
        text.push_str(" |\n");
    }
}

fn shown([median, least, greatest]: [f64; 3]) -> String {
    let [median, least, greatest] = [median, least, greatest].map(rounded);
    // Of one run, all three are the same.
    let is_single = (greatest - least).abs() < f64::EPSILON;
    if is_single { median.to_string() } else { format!("{median} [{least} - {greatest}]") }
}

fn upper(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
