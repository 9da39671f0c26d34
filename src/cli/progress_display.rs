//! Progress of a long command on stderr: a bar on a terminal, otherwise a log line every 10 s; off
//! above INFO. A separate thread reads the counters, so that the work never waits.

use std::collections::VecDeque;
use std::io::{self, IsTerminal as _};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::context::Context;
use super::counted::grouped;
use super::doctor::check::bytes as bytes_text;
use super::logs;
use super::marks::columns;
use super::mask_arguments::{typed_command, typed_words};
use postrider_config::LogFormat;
use postrider_relay::{Reading, Total, Unit};

const BAR_EVERY: Duration = Duration::from_millis(200);
/// Pause between lines, and period over which a rate is measured.
const LINE_EVERY: Duration = Duration::from_secs(10);
/// Age of a stage below which a remaining time is unreliable.
const RATE_AFTER: Duration = Duration::from_secs(3);
const LEFT_MAX: Duration = Duration::from_hours(100);
const BAR_CELLS: std::ops::RangeInclusive<usize> = 6..=30;

#[derive(Debug)]
pub(crate) struct ProgressDisplay {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ProgressDisplay {
    pub(crate) fn start(
        context: &Context,
        read: impl Fn() -> Option<Reading> + Send + 'static,
    ) -> Self {
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let is_text = !context.json() && logs::format() == Some(LogFormat::Text);
        if io::stderr().is_terminal() && !is_dumb && is_text {
            let color = context.color_stderr();
            Self::every(BAR_EVERY, move |pace| {
                let shown = tracing::enabled!(tracing::Level::INFO);
                let bar = read().filter(|_| shown).map(|reading| {
                    let width = columns(io::stderr()).unwrap_or(80);
                    pace.look(reading, Instant::now()).to_bar(width, color)
                });
                logs::draw(&bar.unwrap_or_default());
            })
        } else {
            Self::lines(read)
        }
    }

    pub(crate) fn lines(read: impl Fn() -> Option<Reading> + Send + 'static) -> Self {
        Self::every(LINE_EVERY, move |pace| {
            if let Some(reading) = read() {
                pace.look(reading, Instant::now()).log();
            }
        })
    }

    fn every(pause: Duration, mut show: impl FnMut(&mut Pace) + Send + 'static) -> Self {
        let (stop, stopped) = channel();
        let span = tracing::Span::current();
        let thread = std::thread::Builder::new().name("postrider-progress".to_owned());
        let thread = thread.spawn(move || {
            let _of_stream = span.entered();
            let mut pace = Pace::default();
            while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                show(&mut pace);
            }
            logs::draw("");
        });
        // The work continues without the thread.
        Self { stop: Some(stop), thread: thread.ok() }
    }
}

impl Drop for ProgressDisplay {
    fn drop(&mut self) {
        drop(self.stop.take());
        // A panic of the display must not fail the command.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Logs the kept state, and the command that resumes: the typed one `without` and `with` these
/// words.
pub(crate) fn tell_interrupted(
    reading: Option<Reading>,
    kept: &str,
    (without, with): (&[&str], &[&str]),
) -> String {
    let resume = typed_command(typed_words(), without, with);
    let done = reading.map(|reading| reading.all());
    let total = reading.and_then(|reading| known(&reading));
    tracing::warn!(done, total, kept, resume, "interrupted");
    resume
}

/// The total, unless more is already done.
fn known(reading: &Reading) -> Option<u64> {
    match reading.total {
        Total::Exactly(total) | Total::About(total) => Some(total),
        Total::Unknown => None,
    }
    .filter(|total| *total > 0 && *total >= reading.all())
}

#[derive(Debug, Default)]
struct Pace {
    since: Option<Instant>,
    samples: VecDeque<(Instant, u64)>,
}

impl Pace {
    fn look(&mut self, reading: Reading, now: Instant) -> Numbers {
        let has_gone_back = self.samples.back().is_some_and(|(_, done)| *done > reading.done);
        if self.since != Some(reading.since) || has_gone_back {
            self.since = Some(reading.since);
            self.samples = VecDeque::from([(reading.since, 0)]);
        }
        self.samples.push_back((now, reading.done));
        let is_old = |at: &Instant| now.saturating_duration_since(*at) >= LINE_EVERY;
        while self.samples.get(1).is_some_and(|(at, _)| is_old(at)) {
            self.samples.pop_front();
        }
        let first = self.samples.front().copied().unwrap_or((now, reading.done));
        let ms = now.saturating_duration_since(first.0).as_millis();
        let done = u128::from(reading.done.saturating_sub(first.1));
        let per_second = (done * 1_000).checked_div(ms).and_then(|rate| u64::try_from(rate).ok());
        Numbers { reading, per_second, age: now.saturating_duration_since(reading.since) }
    }
}

#[derive(Debug, Clone, Copy)]
struct Numbers {
    reading: Reading,
    per_second: Option<u64>,
    age: Duration,
}

impl Numbers {
    fn percent(&self) -> Option<u64> {
        let total = known(&self.reading)?;
        let percent = u128::from(self.reading.all()) * 100 / u128::from(total);
        let most = if matches!(self.reading.total, Total::About(_)) { 99 } else { 100 };
        u64::try_from(percent).ok().map(|percent| percent.min(most))
    }

    /// Remaining time; `None` while the rate is unreliable.
    fn left(&self) -> Option<Duration> {
        let left = known(&self.reading)?.saturating_sub(self.reading.all());
        let rate = self.per_second.filter(|rate| *rate > 0 && self.age >= RATE_AFTER)?;
        Some(Duration::from_secs(left.div_ceil(rate))).filter(|time| *time < LEFT_MAX)
    }

    fn log(&self) {
        let Self { reading, per_second, .. } = self;
        let total = known(reading);
        let is_about = matches!(reading.total, Total::About(_));
        tracing::info!(
            done = reading.all(),
            total = total.filter(|_| !is_about),
            total_estimate = total.filter(|_| is_about),
            unit = reading.unit.as_str(),
            percent = self.percent(),
            per_second,
            seconds_left = self.left().map(|left| left.as_secs()),
            "{}",
            reading.stage
        );
    }

    /// Narrower than the terminal. Parts that do not fit are left out, and no number is cut.
    fn to_bar(self, width: usize, color: bool) -> String {
        let Reading { stage, unit, total, .. } = self.reading;
        let amount = |amount: u64| match unit {
            Unit::WalBytes => bytes_text(i64::try_from(amount).unwrap_or(i64::MAX)),
            Unit::Rows | Unit::Records | Unit::Partitions => grouped(amount),
        };
        let noun = if unit == Unit::WalBytes { "of WAL" } else { unit.as_str() };
        let about = if matches!(total, Total::About(_)) { "about " } else { "" };
        let all = amount(self.reading.all());
        let amounts = match known(&self.reading) {
            Some(total) => format!("{all} of {about}{} {noun}", amount(total)),
            None if self.reading.all() == 0 => String::new(),
            None => format!("{all} {noun}"),
        };
        let rate = self.per_second.filter(|rate| *rate > 0);
        let rate = rate.map(|rate| format!("{}/s", amount(rate))).unwrap_or_default();
        let left = self.left().map(|left| format!("{} left", clock(left)));
        let is_open = known(&self.reading).is_none() && self.age >= RATE_AFTER;
        let left = left.or_else(|| is_open.then(|| format!("for {}", clock(self.age))));
        let left = left.unwrap_or_default();
        let percent = self.percent().map(|percent| format!("{percent}%")).unwrap_or_default();
        let room = width.saturating_sub(1);
        let shorter: [&[&str]; 5] = [
            &[stage, &percent, &amounts, &rate, &left],
            &[stage, &percent, &amounts, &left],
            &[stage, &percent, &left],
            &[&percent, &left],
            &[&percent],
        ];
        // A bar replaces the last numbers if it fits.
        if let Some(done) = self.percent() {
            for parts in shorter {
                let text = joined(parts);
                let cells = room.saturating_sub(text.chars().count() + 2).min(*BAR_CELLS.end());
                if cells >= *BAR_CELLS.start() {
                    let marked = format!("{percent}  {}", bar(done, cells, color));
                    return text.replacen(&percent, &marked, 1);
                }
            }
        }
        let fits = |line: &String| line.chars().count() <= room;
        shorter.into_iter().map(joined).find(fits).unwrap_or_default()
    }
}

fn joined(parts: &[&str]) -> String {
    let parts: Vec<&str> = parts.iter().copied().filter(|part| !part.is_empty()).collect();
    parts.join("  ")
}

fn bar(percent: u64, cells: usize, color: bool) -> String {
    let full = cells * usize::try_from(percent).unwrap_or(0) / 100;
    let (on, off) = if color { ("\x1b[32m", "\x1b[0m") } else { ("", "") };
    format!("{on}{}{off}{}", "█".repeat(full), "░".repeat(cells - full))
}

/// `1:02:03`, or `0:29`.
fn clock(time: Duration) -> String {
    let (hours, minutes, seconds) =
        (time.as_secs() / 3_600, time.as_secs() / 60 % 60, time.as_secs() % 60);
    if hours > 0 {
        format!("{hours}:{minutes:02}:{seconds:02}")
    } else {
        format!("{minutes}:{seconds:02}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(since: Instant, (before, done): (u64, u64), total: Total) -> Reading {
        Reading { stage: "delivering rows", unit: Unit::Rows, before, done, total, since }
    }

    fn numbers(seconds: u64, rows: (u64, u64), total: Total) -> Numbers {
        let since = Instant::now();
        let mut pace = Pace::default();
        pace.look(reading(since, rows, total), since + Duration::from_secs(seconds))
    }

    #[test]
    fn a_bar_fits_each_width_and_cuts_no_number() {
        let numbers = numbers(10, (393_000, 148_870), Total::Exactly(1_000_000));
        let shown = [30, 50, 80, 120, 200].map(|width| numbers.to_bar(width, false));
        assert_eq!(
            shown,
            [
                "54%  ███████░░░░░░  0:31 left",
                "delivering rows  54%  ████████░░░░░░░░  0:31 left",
                "delivering rows  54%  ████░░░░░  541,870 of 1,000,000 rows  14,887/s  0:31 left",
                "delivering rows  54%  ████████████████░░░░░░░░░░░░░░  541,870 of 1,000,000 rows  14,887/s  0:31 left",
                "delivering rows  54%  ████████████████░░░░░░░░░░░░░░  541,870 of 1,000,000 rows  14,887/s  0:31 left",
            ]
        );
        for width in 0..250 {
            assert!(numbers.to_bar(width, false).chars().count() <= width, "{width}");
        }
        assert!(numbers.to_bar(120, true).contains("\x1b[32m█"));
    }

    #[test]
    fn rows_that_were_done_before_count_in_percent_and_not_in_the_rate() {
        let resumed = numbers(10, (600_000, 1_000), Total::Exactly(1_000_000));
        assert_eq!((resumed.percent(), resumed.per_second), (Some(60), Some(100)));
        assert_eq!(resumed.left(), Some(Duration::from_secs(3_990)));
        assert!(resumed.to_bar(120, false).ends_with("100/s  1:06:30 left"));
    }

    #[test]
    fn time_left_is_shown_only_if_the_rate_tells_it() {
        let left = |seconds, rows, total| numbers(seconds, rows, total).left().is_some();
        let total = Total::Exactly(1_000);
        assert!(left(3, (0, 30), total), "it moves");
        assert!(!left(2, (0, 30), total), "too early");
        assert!(!left(3, (0, 2), total), "less than one a second");
        assert!(!left(3, (900, 0), total), "it stands still");
        assert!(!left(3, (0, 30), Total::Unknown));
        assert!(!left(10, (0, 10), Total::Exactly(1_000_000_000)), "years");
    }

    #[test]
    fn an_estimate_is_marked_and_never_reaches_the_whole() {
        let near = numbers(5, (0, 999), Total::About(1_000));
        assert_eq!(near.percent(), Some(99));
        assert!(near.to_bar(200, false).contains("999 of about 1,000 rows"));
        let passed = numbers(5, (0, 1_001), Total::About(1_000));
        assert_eq!(passed.percent(), None);
        assert_eq!(passed.to_bar(200, false), "delivering rows  1,001 rows  200/s  for 0:05");
    }

    #[test]
    fn a_rate_is_that_of_the_last_ten_seconds() {
        let since = Instant::now();
        let mut pace = Pace::default();
        let mut at = |seconds, done| {
            let reading = reading(since, (0, done), Total::Unknown);
            pace.look(reading, since + Duration::from_secs(seconds)).per_second
        };
        assert_eq!(at(10, 1_000), Some(100));
        assert_eq!(at(20, 1_100), Some(10));
        assert_eq!(at(30, 1_100), Some(0), "it stands still");
        assert_eq!(at(40, 90), Some(2), "a count that has gone back begins anew");
    }

    #[test]
    fn amounts_of_log_are_bytes_and_a_stage_without_a_count_has_none() {
        let numbers = numbers(10, (0, 0), Total::Unknown);
        assert_eq!(numbers.to_bar(80, false), "delivering rows  for 0:10");
        let total = Total::Exactly(2 << 30);
        let wal = Reading { unit: Unit::WalBytes, done: 1 << 30, total, ..numbers.reading };
        let wal = Numbers { reading: wal, per_second: Some(50 << 20), ..numbers };
        assert_eq!(
            wal.to_bar(80, false),
            "delivering rows  50%  ███░░░░  1024 MiB of 2048 MiB of WAL  50 MiB/s  0:21 left"
        );
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }
}
