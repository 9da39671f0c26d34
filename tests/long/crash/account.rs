//! What was committed, and in which order: from a second slot with PostgreSQL's own `test_decoding`,
//! read in slices while the writers write, and in the end held against the table itself.
//!
//! Invariant: the slot is moved on only past what has been noted, so a server that is killed
//! costs a repeated slice and no row.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::crash::judge::{Committed, Truth};
use crate::load::rows::{self, Lane};
use support::postgres::Database;
use support::sql::Sql;

/// Pause between two looks. Each reads the log again from where the slot may restart, some 15 s
/// back, so looking often is dear.
const PAUSE: Duration = Duration::from_secs(4);

/// Changes of a slice, roughly: a transaction is never split.
const SLICE: usize = 100_000;

/// The account, kept by a thread of its own.
pub(crate) struct Account {
    database: Database,
    stop: Arc<AtomicBool>,
    rows: Arc<AtomicUsize>,
    thread: JoinHandle<Truth>,
}

impl Account {
    /// Sees what is committed from now on.
    pub(crate) fn open(database: &Database) -> Self {
        let book = Book { database: database.clone(), truth: Truth::default() };
        let create = "SELECT pg_create_logical_replication_slot";
        database.sql().run(&format!("{create}('{}', 'test_decoding')", book.slot()));
        let (stop, rows) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let thread = std::thread::spawn({
            let (stop, rows) = (Arc::clone(&stop), Arc::clone(&rows));
            move || book.keep(&stop, &rows)
        });
        Self { database: database.clone(), stop, rows, thread }
    }

    /// Rows noted so far.
    pub(crate) fn rows(&self) -> usize {
        self.rows.load(Ordering::SeqCst)
    }

    /// Notes what is left, once nobody writes any more.
    ///
    /// # Panics
    /// When slot and table disagree about which rows there are.
    pub(crate) fn close(self) -> Truth {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.thread().unpark();
        let truth = self.thread.join().unwrap();
        let mut noted: Vec<u32> = truth.rows.iter().map(|(number, _)| *number).collect();
        noted.sort_unstable();
        assert!(noted == stored(&self.database.sql()), "the second slot and the table disagree");
        truth
    }
}

/// Numbers of all rows in the table, in order.
fn stored(sql: &Sql) -> Vec<u32> {
    let mut numbers = Vec::new();
    let mut last = "00000000-0000-0000-0000-000000000000".to_owned();
    loop {
        let rows = sql
            .rows(&format!("SELECT id FROM outbox WHERE id > '{last}' ORDER BY id LIMIT {SLICE}"));
        let ids = rows.into_iter().map(|mut row| row.remove(0).unwrap());
        let before = numbers.len();
        for id in ids {
            numbers.push(rows::number(&id).unwrap());
            last = id;
        }
        if numbers.len() == before {
            return numbers;
        }
    }
}

struct Book {
    database: Database,
    truth: Truth,
}

impl Book {
    fn slot(&self) -> String {
        format!("{}_account", self.database.name())
    }

    fn keep(mut self, stop: &AtomicBool, rows: &AtomicUsize) -> Truth {
        loop {
            let is_last = stop.load(Ordering::SeqCst);
            // A server that is down is asked again; in the end it is up.
            let outcome = self.read_on(is_last);
            rows.store(self.truth.rows.len(), Ordering::SeqCst);
            match outcome {
                Ok(()) if is_last => return self.truth,
                Ok(()) => std::thread::park_timeout(PAUSE),
                Err(_) => std::thread::sleep(Duration::from_millis(200)),
            }
        }
    }

    /// Reads a slice; in the end until nothing is left.
    fn read_on(&mut self, is_last: bool) -> Result<(), tokio_postgres::Error> {
        let sql = Sql::try_connect(&self.database.address().unix_url())?;
        let slot = self.slot();
        loop {
            let peeked = sql.try_rows(&format!(
                "SELECT lsn - '0/0', data FROM pg_logical_slot_peek_changes('{slot}', NULL, {SLICE}, \
                 'include-xids', '0', 'skip-empty-xacts', '1') \
                 WHERE data = 'COMMIT' OR data LIKE 'table public.outbox: INSERT: id%'"
            ))?;
            let Some(end) = self.note(&peeked) else { return Ok(()) };
            sql.try_run(&format!(
                "SELECT pg_replication_slot_advance('{slot}', '0/0'::pg_lsn + {end})"
            ))?;
            if !is_last {
                return Ok(());
            }
        }
    }

    /// Notes a slice, and gives its end. What was noted before a crash may come again.
    fn note(&mut self, peeked: &[Vec<Option<String>>]) -> Option<u64> {
        let known = self.truth.transactions.last().map_or(0, |last| last.end_lsn);
        let mut open = Vec::new();
        let mut end = None;
        for row in peeked {
            let [Some(lsn), Some(data)] = row.as_slice() else { panic!("a NULL from Postgres") };
            if data != "COMMIT" {
                open.push(read(data));
                continue;
            }
            let end_lsn = lsn.parse().unwrap();
            end = Some(end_lsn);
            if end_lsn > known && !open.is_empty() {
                self.truth.rows.append(&mut open);
                let rows_end = self.truth.rows.len();
                self.truth.transactions.push(Committed { end_lsn, rows_end });
            }
            open.clear();
        }
        end
    }
}

/// Number and lane in `table public.outbox: INSERT: id[uuid]:'..' aggregate_type[text]:'..' ..`.
fn read(insert: &str) -> (u32, Lane) {
    let value = |column: &str| {
        let (_, rest) = insert.split_once(column)?;
        rest.trim_start_matches(|char| char != '\'').split('\'').nth(1)
    };
    let row = || {
        let number = rows::number(value(" id[")?)?;
        let topic = rows::topic(value(" event_type[")?)?;
        let key = rows::key(value(" aggregate_id[")?)?;
        Some((number, rows::lane(topic, key)))
    };
    assert!(!insert.contains("doomed"), "Postgres committed a row that was rolled back: {insert}");
    row().unwrap_or_else(|| panic!("not a row of ours: {insert}"))
}
