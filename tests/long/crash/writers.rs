//! Those who write rows: in transactions of mixed sizes, some rolled back, some up to a savepoint,
//! some prepared first. Rows that will never be committed say so in their payload.
//!
//! Input: an address, a rate, a seed. Output: rows with dense numbers. Invariant: a writer goes on
//! over a crash of Postgres, and leaves no prepared transaction behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::load::rows::{self, Lane};
use crate::load::writers::{Shared, Threads, insert};
use support::chance::Chance;
use support::sql::Sql;

/// Rows of a transaction, and the writer's part of all rows in percent.
const WRITERS: [(u32, u32); 5] = [(1, 8), (7, 20), (60, 30), (500, 32), (5_000, 10)];

/// A writer that has fallen behind by more does not make up for it.
const ARREARS_MAX: Duration = Duration::from_millis(500);

/// All of them.
pub(crate) struct Writers {
    threads: Threads<()>,
    committed: Arc<AtomicU64>,
}

impl Writers {
    /// Begins to write.
    pub(crate) fn start(url: &str, rows_per_s: u32, seed: u64) -> Self {
        let (mut threads, committed) = (Threads::none(), Arc::new(AtomicU64::new(0)));
        for (name, &(size, percent)) in (1..).zip(&WRITERS) {
            let (url, committed) = (url.to_owned(), Arc::clone(&committed));
            let seconds = f64::from(size) * 100.0 / f64::from(rows_per_s * percent);
            let pause = Duration::from_secs_f64(seconds);
            let chance = Chance::new(seed ^ (name << 32));
            threads.start(move |shared| {
                Writer { name, size, pause, chance, url, committed, shared }.write();
            });
        }
        Self { threads, committed }
    }

    /// The number that the next row gets: rows from here on were committed later than now.
    pub(crate) fn next(&self) -> u32 {
        self.threads.next()
    }

    /// Rows whose commit Postgres has confirmed.
    pub(crate) fn committed(&self) -> u64 {
        self.committed.load(Ordering::SeqCst)
    }

    /// Ends it, and tells how many rows Postgres has confirmed.
    pub(crate) fn stop(self) -> u64 {
        self.threads.stop();
        self.committed.load(Ordering::SeqCst)
    }
}

struct Writer {
    name: u64,
    /// Rows of its transactions.
    size: u32,
    pause: Duration,
    chance: Chance,
    url: String,
    committed: Arc<AtomicU64>,
    shared: Shared,
}

impl Writer {
    fn write(mut self) {
        let mut due = Instant::now() + self.pause.mul_f64(0.5);
        loop {
            let is_over = self.shared.is_over();
            let outcome = Sql::try_connect(&self.url)
                .and_then(|sql| self.decide_prepared(&sql).map(|()| sql))
                .and_then(|sql| if is_over { Ok(()) } else { self.write_on(&sql, &mut due) });
            match outcome {
                Ok(()) if is_over => return,
                Ok(()) => {}
                Err(error) => {
                    assert_is_outage(&error);
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        }
    }

    /// What a crash left prepared ends as its name says.
    fn decide_prepared(&self, sql: &Sql) -> Result<(), tokio_postgres::Error> {
        let ours = format!("SELECT gid FROM pg_prepared_xacts WHERE gid LIKE '%/{}/%'", self.name);
        for row in sql.try_rows(&ours)? {
            let name = row[0].clone().unwrap();
            let verb = if name.starts_with("live") { "COMMIT" } else { "ROLLBACK" };
            sql.try_run(&format!("{verb} PREPARED '{name}'"))?;
        }
        Ok(())
    }

    fn write_on(&mut self, sql: &Sql, due: &mut Instant) -> Result<(), tokio_postgres::Error> {
        while !self.shared.is_over() {
            let now = Instant::now();
            if *due > now {
                std::thread::sleep((*due - now).min(Duration::from_millis(100)));
                continue;
            }
            *due = (*due + self.pause).max(now.checked_sub(ARREARS_MAX).unwrap_or(now));
            let live = match self.chance.below(100) {
                0..70 => self.commit(sql)?,
                70..80 => self.roll_back(sql)?,
                80..90 => self.return_to_savepoint(sql)?,
                draw => self.prepare(sql, draw < 95)?,
            };
            self.committed.fetch_add(live.into(), Ordering::SeqCst);
        }
        Ok(())
    }

    fn commit(&mut self, sql: &Sql) -> Result<u32, tokio_postgres::Error> {
        let size = self.size;
        let statements = if self.chance.percent(50) {
            self.insert(size, false)
        } else {
            let first = self.insert(size.div_ceil(2), false);
            // Statements sent together are one transaction.
            format!("{first}; {}", self.insert(size / 2, false))
        };
        sql.try_run(&statements)?;
        Ok(size)
    }

    fn roll_back(&mut self, sql: &Sql) -> Result<u32, tokio_postgres::Error> {
        let doomed = self.insert(self.size, true);
        sql.try_run(&format!("BEGIN; {doomed}; ROLLBACK"))?;
        Ok(0)
    }

    fn return_to_savepoint(&mut self, sql: &Sql) -> Result<u32, tokio_postgres::Error> {
        let size = self.size;
        let first = self.insert(size.div_ceil(2), false);
        let doomed = self.insert(size.div_ceil(3), true);
        let last = self.insert(size / 2, false);
        sql.try_run(&format!(
            "BEGIN; {first}; SAVEPOINT s; {doomed}; ROLLBACK TO s; {last}; COMMIT"
        ))?;
        Ok(size)
    }

    fn prepare(&mut self, sql: &Sql, is_doomed: bool) -> Result<u32, tokio_postgres::Error> {
        let rows = self.insert(self.size, is_doomed);
        let fate = if is_doomed { "doomed" } else { "live" };
        let name = format!("{fate}/{}/{}", self.name, self.shared.next());
        sql.try_run(&format!("BEGIN; {rows}; PREPARE TRANSACTION '{name}'"))?;
        std::thread::sleep(Duration::from_millis(self.chance.between(0, 60)));
        let verb = if is_doomed { "ROLLBACK" } else { "COMMIT" };
        sql.try_run(&format!("{verb} PREPARED '{name}'"))?;
        Ok(if is_doomed { 0 } else { self.size })
    }

    /// An INSERT of so many rows; nothing for none.
    fn insert(&mut self, rows: u32, is_doomed: bool) -> String {
        if rows == 0 {
            return String::new();
        }
        let chance = &mut self.chance;
        let lane = || Lane::try_from(chance.below(rows::lanes())).unwrap();
        insert(&self.shared.draw(rows, lane), is_doomed)
    }
}

/// Postgres may be killed under our feet; what became of the rest, the account knows.
fn assert_is_outage(error: &tokio_postgres::Error) {
    let refused = error.code().map(|code| code.code().to_owned());
    let is_outage = refused.as_deref().is_none_or(|code| code.starts_with("57"));
    assert!(is_outage, "a writer: {error:?}");
}
