//! Those who write rows to whichever server is the primary, and remember what became of each commit.
//!
//! Input: two addresses, a rate, a seed. Output: [`Written`]. Invariant: a lane is one writer's, whose transactions follow
//! one another, so that the numbers of its rows rise in the order of their commits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::crash::rows::{self, Lane};
use support::chance::Chance;
use support::sql::Sql;
use support::wait::let_pass;

const WRITERS: u32 = 3;
/// Rows of a transaction, at most.
const SIZE_MAX: u64 = 24;

/// What a writer knows of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Postgres said that it is committed.
    Confirmed,
    /// The server went before it said so.
    Unknown,
    /// It was rolled back.
    Doomed,
}

/// A row that was written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Written {
    pub(crate) number: u32,
    pub(crate) lane: Lane,
    pub(crate) fate: Fate,
}

/// All of them.
pub(crate) struct Writers {
    stop: Arc<AtomicBool>,
    next: Arc<AtomicU32>,
    threads: Vec<JoinHandle<Vec<Written>>>,
}

impl Writers {
    /// Begins to write.
    pub(crate) fn start(urls: &[String; 2], rows_per_s: u32, seed: u64) -> Self {
        let (stop, next) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(1)));
        let mean = f64::from(u32::try_from(SIZE_MAX).unwrap()) / 2.0;
        let pause = Duration::from_secs_f64(mean * f64::from(WRITERS) / f64::from(rows_per_s));
        let thread = |name: u32| {
            let writer = Writer {
                name,
                urls: urls.clone(),
                pause,
                chance: Chance::new(seed ^ (u64::from(name) << 32)),
                next: Arc::clone(&next),
                written: Vec::new(),
            };
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || writer.write(&stop))
        };
        Self { threads: (0..WRITERS).map(thread).collect(), stop, next }
    }

    /// The number that the next row gets.
    pub(crate) fn next(&self) -> u32 {
        self.next.load(Ordering::SeqCst)
    }

    /// Ends it, and tells of every row.
    pub(crate) fn stop(self) -> Vec<Written> {
        self.stop.store(true, Ordering::SeqCst);
        self.threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    }
}

struct Writer {
    name: u32,
    urls: [String; 2],
    pause: Duration,
    chance: Chance,
    next: Arc<AtomicU32>,
    written: Vec<Written>,
}

impl Writer {
    fn write(mut self, stop: &AtomicBool) -> Vec<Written> {
        let mut session = None;
        while !stop.load(Ordering::SeqCst) {
            let_pass(self.pause, "the pace of a writer");
            let Some(sql) = session.take().or_else(|| self.primary()) else { continue };
            let is_doomed = self.chance.percent(10);
            let (statement, rows) = self.insert(is_doomed);
            let done = if is_doomed {
                sql.try_run(&format!("BEGIN; {statement}; ROLLBACK"))
            } else {
                sql.try_run(&statement)
            };
            let fate = match (is_doomed, &done) {
                (true, _) => Fate::Doomed,
                (false, Ok(())) => Fate::Confirmed,
                (false, Err(_)) => Fate::Unknown,
            };
            self.written.extend(rows.into_iter().map(|(number, lane)| Written {
                number,
                lane,
                fate,
            }));
            session = done.is_ok().then_some(sql);
        }
        self.written
    }

    /// A session at the server that takes writes, if one does.
    fn primary(&self) -> Option<Sql> {
        self.urls.iter().find_map(|url| {
            let sql = Sql::try_connect(url).ok()?;
            let rows = sql.try_rows("SELECT pg_is_in_recovery()").ok()?;
            (rows.first()?.first()?.as_deref() == Some("f")).then_some(sql)
        })
    }

    fn insert(&mut self, is_doomed: bool) -> (String, Vec<(u32, Lane)>) {
        let size = u32::try_from(self.chance.between(1, SIZE_MAX)).unwrap();
        let first = self.next.fetch_add(size, Ordering::SeqCst);
        let lanes = u32::try_from(rows::lanes()).unwrap() / WRITERS;
        let rows: Vec<(u32, Lane)> = (first..first + size)
            .map(|number| {
                let drawn = u32::try_from(self.chance.below(lanes as usize)).unwrap();
                (number, Lane::try_from(drawn * WRITERS + self.name).unwrap())
            })
            .collect();
        let values: Vec<String> =
            rows.iter().map(|(number, lane)| rows::values(*number, *lane, is_doomed)).collect();
        let statement = format!(
            "INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload) VALUES {}",
            values.join(",")
        );
        (statement, rows)
    }
}
