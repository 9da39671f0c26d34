//! Comparison of both sides, repeated with `--follow`.
//!
//! Invariant: the topics are read after the snapshot of the tables, so that every row that the slot
//! had passed must be there. They are read again for pending rows until the grace period ends.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;

use super::judge::{Terms, judge};
use super::report::Report;
use super::tables::{Looks, Tables, TablesRead, Window};
use super::verdict::Verdict;
use super::{VerifyArgs, VerifyError};
use crate::context::Context;
use crate::counted::counted;
use crate::doctor::check::bytes as display;
use crate::exit::ExitCode;
use crate::failure::CommandFailure;
use postrider_config::{Config, Rejected};
use postrider_relay::compare::{
    Columns, Content, ENTRY_BYTES, Entry, ORDERED_BYTES, Sorter, TimeColumn, TopicNumbers, Topics,
};
use postrider_relay::{ControlRequest, Meter, StopSignal, Total, Unit, kafka_spec};
use postrider_sandbox::proc::peak_rss_bytes;
use postrider_service::units::parse_duration;

/// Minimum pause while rows are pending. A pause is at least as long as the comparison before it.
const PAUSE: Duration = Duration::from_secs(1);

const TICK: Duration = Duration::from_millis(100);

/// The time of a row and of its commit may have different clocks.
const CLOCKS_APART_MS: i64 = 10 * 60 * 1_000;

pub(super) struct Run<'a> {
    pub(super) args: &'a VerifyArgs,
    pub(super) config: &'a Config,
    pub(super) stop: &'a StopSignal,
    pub(super) runtime: Runtime,
    pub(super) meter: Meter,
}

impl Run<'_> {
    pub(super) fn once(&self) -> Result<Option<Report>, CommandFailure> {
        let begun = Instant::now();
        let kafka = kafka_spec(self.config);
        let mut tables = Tables::open(&self.runtime, &kafka, self.config)?;
        let window = self.window(&mut tables)?;
        let folder = self.args.work_dir.clone().unwrap_or_else(std::env::temp_dir);
        tell_room(tables.estimate()?, &folder);
        let mut entries = Sorter::new(&folder).map_err(VerifyError::from)?;
        let mut numbers = TopicNumbers::default();
        let letters = numbers.of(&self.config.dead_letters.topic);
        for topic in &self.args.topics {
            numbers.of(topic);
        }
        let looks = self.looks(&window);
        let (horizon, own_letters) = (tables.horizon, tables.letter_source());
        let read = tables.read((&looks, &window), &mut numbers, &mut entries, self)?;
        let Some(read) = read else { return Ok(None) };
        let since_ms = window.since_ms.map(|ms| (ms - CLOCKS_APART_MS).max(0));
        let from = (horizon, since_ms, self.config.outbox.timestamp.is_none());
        let topic = &self.config.dead_letters.topic;
        let topics = Topics::new(&kafka, looks.content, (topic, own_letters), from);
        let mut sides = Sides { entries, numbers, topics, letters, folder, read, order_bytes: 0 };
        let Some(verdict) = self.compare(&mut sides)? else { return Ok(None) };
        Ok(Some(self.report(sides, verdict, begun)))
    }

    /// Compares until a signal. The exit code states if every comparison was clean.
    pub(super) fn follow(&self, context: &Context) -> Result<ExitCode, CommandFailure> {
        let mut code = ExitCode::Ok;
        loop {
            let begun = Instant::now();
            let Some(report) = self.once()? else { return Ok(code) };
            if !report.is_clean() {
                code = ExitCode::CheckFailed;
            }
            if context.json() {
                context.print_json(&report.to_json())?;
            } else {
                context.print(&report.to_line())?;
            }
            if !self.pause(self.args.every.saturating_sub(begun.elapsed())) {
                return Ok(code);
            }
        }
    }

    fn compare(&self, sides: &mut Sides) -> Result<Option<Verdict>, CommandFailure> {
        let deadline = Instant::now() + self.args.grace;
        loop {
            let Sides { entries, numbers, topics, .. } = sides;
            if !topics.read(numbers, entries, &self.meter, &|| !self.is_stopped())? {
                return Ok(None);
            }
            self.meter.begin("comparing", Unit::Rows, Total::Unknown);
            let begun = Instant::now();
            let terms = Terms {
                topics: topics.kept(numbers),
                dead_letters: sides.letters,
                skips_rejected: self.config.route.rejected == Rejected::Skip,
                all_rows_kept: self.args.all_rows_kept,
            };
            let order = Sorter::new(&sides.folder).map_err(VerifyError::from)?;
            let verdict = judge(entries, &terms, order).map_err(VerifyError::from)?;
            sides.order_bytes = (verdict.ordered + verdict.unordered) * ORDERED_BYTES as u64;
            let pause = PAUSE.max(begun.elapsed());
            if verdict.pending == 0 || Instant::now() + pause > deadline {
                return Ok(Some(verdict));
            }
            self.meter.begin("waiting for pending rows", Unit::Rows, Total::Unknown);
            if !self.pause(pause) {
                return Ok(None);
            }
        }
    }

    fn window(&self, tables: &mut Tables) -> Result<Window, VerifyError> {
        let mut time = |option, text: Option<&str>| {
            let Some(text) = text else { return Ok(None) };
            let ago = parse_duration(text).ok().and_then(|ago| i64::try_from(ago.as_millis()).ok());
            let time_ms = match ago {
                Some(ago) => Some(tables.horizon.at_ms.saturating_sub(ago)),
                None => tables.time_ms(text)?,
            };
            time_ms.map(Some).ok_or_else(|| VerifyError::NoTime { option, text: text.to_owned() })
        };
        let since_ms = time("--since", self.args.since())?;
        Ok(Window { since_ms, until_ms: time("--until", self.args.until.as_deref())? })
    }

    fn looks(&self, window: &Window) -> Looks {
        let outbox = &self.config.outbox;
        let others = outbox.aliases.get(&outbox.id).into_iter().flatten();
        let time =
            TimeColumn { name: outbox.created_at.clone(), is_needed: *window != Window::default() };
        let columns = Columns {
            id: [&outbox.id].into_iter().chain(others).cloned().collect(),
            time: Some(time),
            order: self.args.order_column.clone(),
        };
        Looks { columns, content: Content::of(self.config) }
    }

    pub(super) fn is_stopped(&self) -> bool {
        matches!(self.stop.most_urgent(), ControlRequest::Drain | ControlRequest::Abort)
    }

    fn pause(&self, time: Duration) -> bool {
        let end = Instant::now() + time;
        while !self.is_stopped() {
            let rest = end.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return true;
            }
            std::thread::sleep(rest.min(TICK));
        }
        false
    }

    fn report(&self, sides: Sides, verdict: Verdict, begun: Instant) -> Report {
        let Sides { entries, numbers, topics, read, order_bytes, .. } = sides;
        let missing = topics.missing(&numbers).into_iter();
        // A missing dead-letter topic only means that nothing was rejected.
        let missing = missing.filter(|topic| *topic != self.config.dead_letters.topic);
        let missing_topics = missing.map(str::to_owned).collect();
        let kept = topics.kept(&numbers);
        let compacted = numbers.names().iter().zip(&kept).filter(|(_, kept)| kept.is_compacted);
        let compacted_topics = compacted.map(|(name, _)| name.clone()).collect();
        Report {
            verdict,
            numbers,
            duplicates_count: self.args.duplicates_count(self.config),
            without_id: (read.without_id, topics.without_id),
            has_slot: read.has_slot,
            tables: self.config.source.tables.len(),
            slot: self.config.source.slot.clone(),
            order_column: self.args.order_column.clone(),
            missing_topics,
            compacted_topics,
            spilled_bytes: entries.bytes() + order_bytes,
            elapsed: begun.elapsed(),
            peak_rss_bytes: peak_rss_bytes(std::process::id()),
        }
    }
}

struct Sides {
    entries: Sorter<Entry>,
    numbers: TopicNumbers,
    topics: Topics,
    letters: u32,
    folder: PathBuf,
    read: TablesRead,
    order_bytes: u64,
}

/// Logs the required disk space; warns if it is insufficient.
fn tell_room(rows: u64, folder: &std::path::Path) {
    let need = rows * (2 * ENTRY_BYTES + ORDERED_BYTES) as u64;
    // If the space is unknown, writing will fail later.
    let Ok(disk) = rustix::fs::statvfs(folder) else { return };
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    if rows == 0 {
        return;
    }
    let bytes = |bytes: u64| display(i64::try_from(bytes).unwrap_or(i64::MAX));
    let (need_text, free_text) = (bytes(need), bytes(free));
    let rows = counted(rows, "row");
    let folder = folder.display();
    if need > free {
        let help =
            "name another folder with --work-dir, or look at less at once with --since and --until";
        tracing::warn!(
            help,
            "about {rows}: {need_text} of disk needed in {folder}, {free_text} free"
        );
    } else {
        tracing::info!("about {rows}: {need_text} of disk needed in {folder}, {free_text} free");
    }
}
