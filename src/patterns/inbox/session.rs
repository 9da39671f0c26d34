//! The consumer's session with Postgres: connects, and runs the transaction that inserts markers and
//! applies effects.
//!
//! Input: messages, and the application's `Effects`. Output: how many had their effects now and how many
//! were processed before; or why the transaction was rolled back (`RolledBack`). Invariant: the markers
//! (rows that say which messages are processed) and everything that the effects wrote are committed
//! together or not at all; a message whose marker exists has no effect; a session that was lost is not used
//! again.

use std::collections::HashSet;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use tokio_postgres::error::SqlState;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Config, Error, Socket, Statement};
use uuid::Uuid;

use super::counters::{ConsumerCounters, add};
use super::prepared;
use super::sqlstate::{Transient, describe, is_outdated, transient};
use super::{ConsumerSpec, Effects, Failure, InboxError, Message};

/// How the session names itself in `pg_stat_activity`.
const APPLICATION_NAME: &str = "postrider-inbox";
/// A server that is there answers sooner, however busy.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// TCP keepalive and user timeout: after this the session is considered dead.
const TCP_TIMEOUT: Duration = Duration::from_secs(30);

/// Ids are inserted in sorted order, so that two consumers with the same messages wait for each other and do
/// not deadlock.
const INSERT_MARKERS: &str = "\
    INSERT INTO processed_messages (consumer, message_id) \
    SELECT $1, id FROM unnest($2) AS id ON CONFLICT DO NOTHING RETURNING message_id";

type Connecting = Pin<Box<dyn Future<Output = Result<Client, Error>>>>;

/// How to connect, and the open session.
pub(super) struct Database {
    connect: Box<dyn Fn() -> Connecting + Send>,
    timeouts: String,
    consumer: String,
    session: Option<PgSession>,
}

struct PgSession {
    /// Boxed, so that it is identified by its address.
    client: Box<Client>,
    number: u64,
    insert_markers: Statement,
}

/// Why a transaction was rolled back.
#[derive(Debug)]
pub(super) enum RolledBack {
    /// The database is unavailable, and why. It says nothing about the messages.
    Unavailable(String),
    /// Contention: a deadlock, a serialization failure, a lock timeout; or a statement was cancelled, since
    /// the database is slow. It says nothing about the messages either, but fewer of them need fewer locks.
    Contention(Failure),
    /// The effects of a message failed, or the commit of all.
    Failed(Failure),
    /// The consumer cannot continue.
    Fatal(InboxError),
}

/// What a committed transaction did.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct TransactionResult {
    /// Messages that had their effects in it.
    pub(super) applied: usize,
    /// Messages that were processed before, or twice in the batch.
    pub(super) duplicates: usize,
}

/// The server would answer COMMIT with ROLLBACK, and the client would report success.
#[derive(Debug, thiserror::Error)]
#[error("a statement failed and the effects did not report it")]
struct IgnoredError(#[source] Error);

impl Database {
    /// Connects when it is first needed.
    pub(super) fn new<T>(spec: &ConsumerSpec, tls: T) -> Self
    where
        T: MakeTlsConnect<Socket> + Clone + Send + 'static,
        T::Stream: Send,
        T::TlsConnect: Send,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    {
        let config = with_limits(spec.database.clone());
        let connect = move || -> Connecting {
            let (config, tls) = (config.clone(), tls.clone());
            Box::pin(async move {
                let (client, connection) = config.connect(tls).await?;
                // The client's next statement reports the same failure to someone who can act.
                tokio::spawn(async move { drop(connection.await) });
                Ok(client)
            })
        };
        let timeouts = format!(
            "SET lock_timeout = {}; SET idle_in_transaction_session_timeout = {}",
            spec.lock_timeout.as_millis(),
            spec.idle_in_transaction_max.as_millis()
        );
        Self { connect: Box::new(connect), timeouts, consumer: spec.name.clone(), session: None }
    }

    /// Does all that the messages ask for in one transaction.
    pub(super) async fn transact<E: Effects>(
        &mut self,
        messages: &[&Message],
        effects: &E,
        counters: &ConsumerCounters,
    ) -> Result<TransactionResult, RolledBack> {
        // Lets the connection's task notice a server that has gone meanwhile.
        tokio::task::yield_now().await;
        let session = match self.session.take().filter(|session| !session.client.is_closed()) {
            Some(session) => session,
            None => self.open().await?,
        };
        let session = self.session.insert(session);
        let outcome = session.transact(&self.consumer, messages, effects, counters).await;
        let Err(rolled_back) = outcome else { return outcome };
        // Whatever error the effect returned: a closed session is a failure of the database.
        let ended = session.client.is_closed();
        let mut is_outdated_here = false;
        let rolled_back = match rolled_back {
            RolledBack::Failed(Failure::Technical(source)) => {
                is_outdated_here = is_outdated(&*source);
                match transient(&*source) {
                    Some(Transient::Unavailable) => RolledBack::Unavailable(describe(&*source)),
                    _ if ended => RolledBack::Unavailable(describe(&*source)),
                    Some(Transient::Contention) => {
                        RolledBack::Contention(Failure::Technical(source))
                    }
                    None => RolledBack::Failed(Failure::Technical(source)),
                }
            }
            other => other,
        };
        // A new session may reach another server, or see a migrated schema.
        if is_outdated_here || matches!(rolled_back, RolledBack::Unavailable(_)) {
            self.session = None;
        }
        Err(rolled_back)
    }

    async fn open(&self) -> Result<PgSession, RolledBack> {
        let client = (self.connect)().await.map_err(|error| unavailable(&error))?;
        client.batch_execute(&self.timeouts).await.map_err(|error| unavailable(&error))?;
        let types = [Type::TEXT, Type::UUID_ARRAY];
        let insert_markers =
            client.prepare_typed(INSERT_MARKERS, &types).await.map_err(marker_error)?;
        Ok(PgSession { client: Box::new(client), number: prepared::next_session(), insert_markers })
    }
}

impl PgSession {
    async fn transact<E: Effects>(
        &mut self,
        consumer: &str,
        messages: &[&Message],
        effects: &E,
        counters: &ConsumerCounters,
    ) -> Result<TransactionResult, RolledBack> {
        let mut ids: Vec<Uuid> = messages.iter().map(|message| message.id).collect();
        ids.sort_unstable();
        ids.dedup();
        let _entered = prepared::enter(&self.client, self.number);
        add(&counters.statements, 3);
        let tx = self.client.transaction().await.map_err(|error| unavailable(&error))?;
        let rows =
            tx.query(&self.insert_markers, &[&consumer, &ids]).await.map_err(marker_error)?;
        let fresh: Result<HashSet<Uuid>, Error> = rows.iter().map(|row| row.try_get(0)).collect();
        let mut fresh = fresh.map_err(marker_error)?;
        let mut done = TransactionResult::default();
        for message in messages {
            if fresh.remove(&message.id) {
                effects.apply(&tx, message).await.map_err(RolledBack::Failed)?;
                done.applied += 1;
            } else {
                done.duplicates += 1;
            }
        }
        if done.applied > 0 {
            add(&counters.statements, 1);
            tx.batch_execute("SELECT 1").await.map_err(ignored)?;
        }
        // After an error the outcome is unknown; the next attempt finds the markers.
        tx.commit().await.map_err(|error| RolledBack::Failed(error.into()))?;
        Ok(done)
    }
}

fn unavailable(error: &Error) -> RolledBack {
    RolledBack::Unavailable(describe(error))
}

/// Inserting markers failed, which is never a failure of a message.
fn marker_error(error: Error) -> RolledBack {
    let not_there =
        [SqlState::UNDEFINED_TABLE, SqlState::UNDEFINED_COLUMN, SqlState::INSUFFICIENT_PRIVILEGE];
    if error.code().is_some_and(|code| not_there.contains(code)) {
        return RolledBack::Fatal(InboxError::Markers(error));
    }
    match transient(&error) {
        Some(Transient::Contention) => RolledBack::Contention(error.into()),
        _ => unavailable(&error),
    }
}

fn ignored(error: Error) -> RolledBack {
    let is_ignored = error.code() == Some(&SqlState::IN_FAILED_SQL_TRANSACTION);
    RolledBack::Failed(if is_ignored {
        Failure::technical(IgnoredError(error))
    } else {
        error.into()
    })
}

/// Timeouts that the application has not set, so that a vanished server is noticed.
fn with_limits(mut config: Config) -> Config {
    if config.get_application_name().is_none() {
        config.application_name(APPLICATION_NAME);
    }
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT_TIMEOUT);
    }
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(TCP_TIMEOUT);
    }
    if config.get_keepalives_idle() == Config::new().get_keepalives_idle() {
        config.keepalives_idle(TCP_TIMEOUT);
    }
    config
}
