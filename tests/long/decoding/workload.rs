//! What applications and people do to a database, drawn from a seed: transactions of up to three sessions with savepoints,
//! exceptions, large values and messages, committed, rolled back or prepared; between them DDL, and jumps of the log.
//!
//! Output: statements that have been run, and the numbers of the rows that they have committed. Invariant: no statement waits
//! for another session: whoever changes a table has it alone, and a transaction changes rows of its own only.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use support::chance::Chance;
use support::sql::Sql;

/// Transactions that are open at a time.
const SESSIONS: usize = 3;
/// Steps of a round: a group of transactions, DDL, or a checkpoint each.
const STEPS: std::ops::RangeInclusive<u64> = 3..=8;
/// Keys of the rows.
const KEYS: u64 = 5;

/// Tables besides the outbox, and a procedure whose blocks fail or not.
pub(super) const SCHEMA: &str = "CREATE TABLE job (text text); ALTER TABLE job ALTER text SET STORAGE PLAIN; \
    CREATE TABLE other (n bigint PRIMARY KEY, text text)";

/// Who writes.
pub(super) struct Workload<'c> {
    chance: &'c mut Chance,
    sessions: Vec<Sql>,
    /// The number of the last row.
    last: u64,
    /// A column that is added, changed and dropped, while it is there.
    has_note: bool,
    /// Numbers of rows that were committed.
    pub(super) committed: BTreeSet<u64>,
}

/// One transaction that is still to be run.
#[derive(Debug, Default)]
struct Transaction {
    /// In reverse order.
    statements: Vec<Statement>,
    /// Rows that it commits, if it does.
    rows: Vec<u64>,
    is_committed: bool,
    /// The name under which it is prepared.
    prepared: Option<String>,
}

/// A statement, and whether it is one that fails.
#[derive(Debug)]
struct Statement {
    sql: String,
    fails: bool,
}

impl<'c> Workload<'c> {
    /// In this database.
    pub(super) fn new(chance: &'c mut Chance, open: impl Fn() -> Sql) -> Self {
        // One more moves the log, whatever the others are in.
        let sessions = (0..=SESSIONS).map(|_| open()).collect();
        Self { chance, sessions, last: 0, has_note: false, committed: BTreeSet::new() }
    }

    /// One round.
    pub(super) fn round(&mut self) {
        for _ in 0..self.chance.between(*STEPS.start(), *STEPS.end()) {
            match self.chance.below(10) {
                0..=6 => self.transactions(),
                7 | 8 => self.change_tables(),
                _ => self.sessions[0].run("CHECKPOINT"),
            }
        }
    }

    /// Moves the end of the log into the next segment of 16 MiB, which costs next to nothing.
    pub(super) fn skip_log(&self, segments: usize) {
        for _ in 0..segments {
            self.sessions[SESSIONS]
                .run("SELECT pg_logical_emit_message(false, 'skip', ''), pg_switch_wal()");
        }
    }

    /// Some transactions, whose statements are mixed at random.
    fn transactions(&mut self) {
        let count = usize::try_from(self.chance.between(1, SESSIONS as u64)).unwrap();
        let mut open: Vec<Transaction> = (0..count).map(|_| self.transaction()).collect();
        while open.iter().any(|one| !one.statements.is_empty()) {
            let session = self.chance.below(count);
            let Some(Statement { sql, fails }) = open[session].statements.pop() else { continue };
            let failed = self.sessions[session].try_run(&sql);
            assert_eq!(failed.is_err(), fails, "{sql}: {failed:?}");
            if self.chance.percent(2) {
                self.skip_log(1);
            }
        }
        for Transaction { rows, is_committed, prepared, .. } in open {
            if let Some(name) = prepared {
                let end = if is_committed { "COMMIT" } else { "ROLLBACK" };
                self.sessions[0].run(&format!("{end} PREPARED '{name}'"));
            }
            if is_committed {
                self.committed.extend(rows);
            }
        }
    }

    fn transaction(&mut self) -> Transaction {
        let mut sql = vec!["BEGIN".to_owned()];
        let mut rows = Vec::new();
        for _ in 0..self.chance.between(1, 5) {
            self.part(&mut sql, &mut rows, 0);
        }
        if self.chance.percent(50) {
            // Behind small subtransactions it is the transaction itself that exceeds the server's memory.
            sql.push(self.noise());
            sql.push(self.noise());
        }
        let mut one = Transaction { rows, ..Transaction::default() };
        let statement = |sql| Statement { sql, fails: false };
        one.statements = sql.into_iter().map(statement).collect();
        match self.chance.below(20) {
            0..=10 => {
                one.is_committed = true;
                one.statements.push(statement("COMMIT".to_owned()));
            }
            11..=14 => one.statements.push(statement("ROLLBACK".to_owned())),
            // What fails takes the whole transaction back.
            15 | 16 => {
                let raise = "DO $$ BEGIN RAISE EXCEPTION 'it fails'; END $$".to_owned();
                one.statements.push(Statement { sql: raise, fails: true });
                one.statements.push(statement("COMMIT".to_owned()));
            }
            _ => {
                let name = format!("p{}", self.number());
                one.statements.push(statement(format!("PREPARE TRANSACTION '{name}'")));
                (one.is_committed, one.prepared) = (self.chance.percent(60), Some(name));
            }
        }
        one.statements.reverse();
        one
    }

    /// A part of a transaction, at this depth of savepoints. `rows`: what it leaves.
    fn part(&mut self, sql: &mut Vec<String>, rows: &mut Vec<u64>, depth: u32) {
        match self.chance.below(12) {
            0..=3 => sql.push(self.insert(rows)),
            4 | 5 => sql.push(self.noise()),
            6 => self.block(sql, rows),
            7 => {
                let transactional = self.chance.percent(60);
                let size = self.chance.between(0, 20_000);
                sql.push(format!(
                    "SELECT pg_logical_emit_message({transactional}, 'note', repeat('m', {size}))"
                ));
            }
            8 => {
                if let Some(&n) = rows.last() {
                    let update = "UPDATE outbox SET payload = payload || '{\"again\": 1}'";
                    sql.push(format!("{update} WHERE aggregate_type = 'n{n}'"));
                    if self.chance.percent(30) {
                        sql.push(format!("DELETE FROM outbox WHERE aggregate_type = 'n{n}'"));
                    }
                }
            }
            _ if depth < 3 => {
                let name = format!("s{depth}");
                sql.push(format!("SAVEPOINT {name}"));
                let mut inner = Vec::new();
                for _ in 0..self.chance.between(1, 3) {
                    self.part(sql, &mut inner, depth + 1);
                }
                if self.chance.percent(50) {
                    sql.push(format!("RELEASE {name}"));
                    rows.extend(inner);
                } else {
                    sql.push(format!("ROLLBACK TO {name}"));
                }
            }
            _ => sql.push(self.insert(rows)),
        }
    }

    /// PL/pgSQL blocks with exceptions, each of which is a subtransaction.
    fn block(&mut self, sql: &mut Vec<String>, rows: &mut Vec<u64>) {
        let mut body = String::new();
        for _ in 0..self.chance.between(1, 4) {
            let mut inner = Vec::new();
            let (insert, noise) = (self.insert(&mut inner), self.noise());
            let fails = self.chance.percent(50);
            let end = if fails { "PERFORM 1 / 0;" } else { "" };
            let handler = "EXCEPTION WHEN division_by_zero THEN NULL;";
            write!(body, "BEGIN {insert}; {noise}; {end} {handler} END; ").unwrap();
            if !fails {
                rows.extend(inner);
            }
        }
        sql.push(format!("DO $block$ BEGIN {body} END $block$"));
    }

    /// Some rows of the outbox; one of four is stored out of line.
    fn insert(&mut self, rows: &mut Vec<u64>) -> String {
        let count = self.chance.between(1, 3);
        let values: Vec<String> = (0..count)
            .map(|_| {
                let n = self.number();
                rows.push(n);
                let text = if self.chance.percent(25) {
                    "(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 300))"
                        .to_owned()
                } else {
                    format!("repeat('x', {})", self.chance.between(0, 200))
                };
                let key = self.chance.between(1, KEYS);
                format!("('n{n}', 'k{key}', 'A', jsonb_build_object('n', {n}, 'text', {text}))")
            })
            .collect();
        let columns = "aggregate_type, aggregate_id, event_type, payload";
        format!("INSERT INTO outbox ({columns}) VALUES {}", values.join(", "))
    }

    /// Changes of tables that nobody reads, often more than the server decodes in memory.
    fn noise(&mut self) -> String {
        match self.chance.below(4) {
            0 => "INSERT INTO job VALUES ('a')".to_owned(),
            1 => "DELETE FROM job WHERE ctid IN (SELECT ctid FROM job LIMIT 0)".to_owned(),
            _ => {
                let rows = self.chance.between(20, 200);
                format!("INSERT INTO job SELECT repeat('x', 1000) FROM generate_series(1, {rows})")
            }
        }
    }

    /// DDL, in a transaction with rows around it, of which every part may be rolled back.
    fn change_tables(&mut self) {
        let mut sql = vec!["BEGIN".to_owned()];
        let (mut rows, had_note) = (Vec::new(), self.has_note);
        for _ in 0..self.chance.between(1, 3) {
            self.part(&mut sql, &mut rows, 2);
            let is_inner = self.chance.percent(30);
            let noted = self.has_note;
            if is_inner {
                sql.push("SAVEPOINT ddl".to_owned());
            }
            sql.push(self.change());
            if is_inner && self.chance.percent(50) {
                sql.push("ROLLBACK TO ddl".to_owned());
                self.has_note = noted;
            }
        }
        self.part(&mut sql, &mut rows, 2);
        let is_committed = self.chance.percent(70);
        sql.push(if is_committed { "COMMIT" } else { "ROLLBACK" }.to_owned());
        for statement in &sql {
            self.sessions[0].run(statement);
        }
        if is_committed {
            self.committed.extend(rows);
        } else {
            self.has_note = had_note;
        }
    }

    /// One change of tables; the outbox keeps the columns that rows are written to.
    fn change(&mut self) -> String {
        match (self.chance.below(8), self.has_note) {
            (0..=2, false) => {
                self.has_note = true;
                "ALTER TABLE outbox ADD note text DEFAULT 'none'".to_owned()
            }
            // All rows are written anew.
            (0, true) => "ALTER TABLE outbox ALTER note TYPE varchar USING note || '.'".to_owned(),
            (1, true) => "ALTER TABLE outbox RENAME note TO remark; \
                          ALTER TABLE outbox RENAME remark TO note"
                .to_owned(),
            (2, true) => {
                self.has_note = false;
                "ALTER TABLE outbox DROP note".to_owned()
            }
            (3, _) => "TRUNCATE job".to_owned(),
            (4, _) => "TRUNCATE outbox, other".to_owned(),
            (5, _) => {
                "ALTER TABLE other ADD IF NOT EXISTS more int, ALTER text SET STORAGE EXTERNAL"
                    .to_owned()
            }
            (6, _) => {
                "CREATE TABLE made AS SELECT repeat('x', 1000) FROM generate_series(1, 100); \
                       DROP TABLE made"
                    .to_owned()
            }
            _ => "INSERT INTO other SELECT coalesce(max(n), 0) + 1, repeat('y', 5000) FROM other"
                .to_owned(),
        }
    }

    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
}
