//! Those who write rows to whichever server is the primary, and remember what became of each commit.
//!
//! Input: two addresses, a rate, a seed. Output: [`Written`]. Invariant: a lane is one writer's, whose transactions follow
//! one another, so that the numbers of its rows rise in the order of their commits.

use std::time::Duration;

use crate::load::rows::{self, Lane};
use crate::load::writers::{Shared, Threads, insert};
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
pub(crate) struct Writers(Threads<Vec<Written>>);

impl Writers {
    /// Begins to write.
    pub(crate) fn start(urls: &[String; 2], rows_per_s: u32, seed: u64) -> Self {
        let mut threads = Threads::none();
        let mean = f64::from(u32::try_from(SIZE_MAX).unwrap()) / 2.0;
        let pause = Duration::from_secs_f64(mean * f64::from(WRITERS) / f64::from(rows_per_s));
        for name in 0..WRITERS {
            let (urls, chance) = (urls.clone(), Chance::new(seed ^ (u64::from(name) << 32)));
            threads.start(move |shared| {
                Writer { name, urls, pause, chance, shared, written: Vec::new() }.write()
            });
        }
        Self(threads)
    }

    /// The number that the next row gets.
    pub(crate) fn next(&self) -> u32 {
        self.0.next()
    }

    /// Ends it, and tells of every row.
    pub(crate) fn stop(self) -> Vec<Written> {
        self.0.stop().concat()
    }
}

struct Writer {
    name: u32,
    urls: [String; 2],
    pause: Duration,
    chance: Chance,
    shared: Shared,
    written: Vec<Written>,
}

impl Writer {
    fn write(mut self) -> Vec<Written> {
        let mut session = None;
        while !self.shared.is_over() {
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
        let lanes = u32::try_from(rows::lanes()).unwrap() / WRITERS;
        let (name, chance) = (self.name, &mut self.chance);
        let rows = self.shared.draw(size, || {
            let drawn = u32::try_from(chance.below(lanes as usize)).unwrap();
            Lane::try_from(drawn * WRITERS + name).unwrap()
        });
        (insert(&rows, is_doomed), rows)
    }
}
