//! Statements of the application's effects, prepared once per session. Invariant: a statement is
//! used only in the session that prepared it, which a thread-local value identifies (`enter`).

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use tokio_postgres::{Client, Error, Statement, Transaction};

const SESSIONS_MAX: usize = 16;

thread_local! {
    /// Address of the client of this thread's consumer, and the number of its session.
    static CURRENT: Cell<Option<(*const Client, u64)>> = const { Cell::new(None) };
}

pub(super) fn next_session() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Marks this thread as running in this session, for the lifetime of the returned value.
pub(super) fn enter(client: &Client, session: u64) -> Entered {
    CURRENT.set(Some((client, session)));
    Entered
}

pub(super) struct Entered;

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(None);
    }
}

/// `None` in a session that is not the consumer's. The client does not move in this time, so its
/// address is unique.
fn session_of(tx: &Transaction<'_>) -> Option<u64> {
    let here = std::ptr::from_ref(tx.client());
    CURRENT.get().filter(|(client, _)| *client == here).map(|(_, session)| session)
}

/// A statement that is parsed once per session. Use it as a `static` or a field.
#[derive(Debug)]
pub struct Prepared {
    sql: &'static str,
    /// The newest last.
    known: Mutex<Vec<(u64, Statement)>>,
}

impl Prepared {
    /// Creates a statement with parameters `$1`, `$2` and so on.
    pub const fn new(sql: &'static str) -> Self {
        Self { sql, known: Mutex::new(Vec::new()) }
    }

    /// Statement for use in this transaction.
    pub async fn of(&self, tx: &Transaction<'_>) -> Result<Statement, Error> {
        let Some(session) = session_of(tx) else { return tx.prepare(self.sql).await };
        if let Some(statement) = self.find(session) {
            return Ok(statement);
        }
        let statement = tx.prepare(self.sql).await?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() == SESSIONS_MAX {
            known.remove(0);
        }
        known.push((session, statement.clone()));
        Ok(statement)
    }

    fn find(&self, session: u64) -> Option<Statement> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().rev().find(|(it, _)| *it == session).map(|(_, statement)| statement.clone())
    }
}
