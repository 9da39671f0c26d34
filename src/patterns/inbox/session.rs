//! The consumer's session with Postgres, and the one transaction that everything happens in.
//!
//! Enters: messages, and the application's [`Effects`]. Leaves: which of them had their effects now.
//! What always holds: the markers, the effects and whatever rows the effects wrote for others are
//! committed together or not at all; a message whose marker was there has no effect; a session that
//! failed is not used again.

use std::collections::HashSet;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use tokio_postgres::error::SqlState;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Config, Error, Socket, Statement};
use uuid::Uuid;

use super::counters::{Counters, add};
use super::prepared;
use super::trouble::{Passing, describe, is_outdated, passing};
use super::{ConsumerSpec, Effects, Failure, InboxError, Message};

/// How the session names itself in `pg_stat_activity`.
const APPLICATION_NAME: &str = "postrider-inbox";
/// A server that is there answers sooner, however busy.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// After so long without a sign of life from the server's machine, the session is given up.
const SILENCE_LIMIT: Duration = Duration::from_secs(30);

/// Ids are inserted in their own order, so that two consumers with the same messages wait for each
/// other and do not lock each other out.
const MARK: &str = "\
    INSERT INTO processed_messages (consumer, message_id) \
    SELECT $1, id FROM unnest($2) AS id ON CONFLICT DO NOTHING RETURNING message_id";

type Connecting = Pin<Box<dyn Future<Output = Result<Client, Error>>>>;

/// Where the session leads, whatever secures it.
pub(super) struct Database {
    connect: Box<dyn Fn() -> Connecting + Send>,
    limits: String,
    consumer: String,
    session: Option<Session>,
}

struct Session {
    /// Boxed, so that it is known by its place.
    client: Box<Client>,
    number: u64,
    mark: Statement,
}

/// Why a transaction was rolled back.
#[derive(Debug)]
pub(super) enum Undone {
    /// The database is away; what may be said of it. It says nothing about the messages.
    Away(String),
    /// Another transaction is in the way: a deadlock, a serialization failure, a lock that was not
    /// had in time. Or a statement was cancelled, since the database is slow. It says nothing about
    /// the messages either, but fewer of them want fewer locks.
    InTheWay(Failure),
    /// The effects of a message failed, or the commit of all.
    Failed(Failure),
    /// The consumer cannot go on.
    Broken(InboxError),
}

/// What a committed transaction did.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Done {
    /// Messages that had their effects in it.
    pub(super) applied: usize,
    /// Messages that had had them before, or stood in it twice.
    pub(super) duplicates: usize,
}

/// The server would answer COMMIT with a rollback, and the client would call that a success.
#[derive(Debug, thiserror::Error)]
#[error("a statement failed and the effects did not say so")]
struct Hidden(#[source] Error);

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
        let limits = format!(
            "SET lock_timeout = {}; SET idle_in_transaction_session_timeout = {}",
            spec.lock_timeout.as_millis(),
            spec.idle_in_transaction_max.as_millis()
        );
        Self { connect: Box::new(connect), limits, consumer: spec.name.clone(), session: None }
    }

    /// Does all that the messages ask for in one transaction.
    pub(super) async fn transact<E: Effects>(
        &mut self,
        messages: &[&Message],
        effects: &E,
        counters: &Counters,
    ) -> Result<Done, Undone> {
        // Lets the connection's task notice a server that has gone meanwhile.
        tokio::task::yield_now().await;
        let session = match self.session.take().filter(|session| !session.client.is_closed()) {
            Some(session) => session,
            None => self.open().await?,
        };
        let session = self.session.insert(session);
        let outcome = session.transact(&self.consumer, messages, effects, counters).await;
        let Err(undone) = outcome else { return outcome };
        // Whatever an effect made of it: a session that ended is the database's doing.
        let ended = session.client.is_closed();
        let mut is_outdated_here = false;
        let undone = match undone {
            Undone::Failed(Failure::Technical(source)) => {
                is_outdated_here = is_outdated(&*source);
                match passing(&*source) {
                    Some(Passing::Away) => Undone::Away(describe(&*source)),
                    _ if ended => Undone::Away(describe(&*source)),
                    Some(Passing::InTheWay) => Undone::InTheWay(Failure::Technical(source)),
                    None => Undone::Failed(Failure::Technical(source)),
                }
            }
            other => other,
        };
        // A new one may lead to another server, or find what this one did not.
        if is_outdated_here || matches!(undone, Undone::Away(_)) {
            self.session = None;
        }
        Err(undone)
    }

    async fn open(&self) -> Result<Session, Undone> {
        let client = (self.connect)().await.map_err(|error| away(&error))?;
        client.batch_execute(&self.limits).await.map_err(|error| away(&error))?;
        let types = [Type::TEXT, Type::UUID_ARRAY];
        let mark = client.prepare_typed(MARK, &types).await.map_err(unmarked)?;
        Ok(Session { client: Box::new(client), number: prepared::next_session(), mark })
    }
}

impl Session {
    async fn transact<E: Effects>(
        &mut self,
        consumer: &str,
        messages: &[&Message],
        effects: &E,
        counters: &Counters,
    ) -> Result<Done, Undone> {
        let mut ids: Vec<Uuid> = messages.iter().map(|message| message.id).collect();
        ids.sort_unstable();
        ids.dedup();
        let _entered = prepared::enter(&self.client, self.number);
        add(&counters.statements, 3);
        let tx = self.client.transaction().await.map_err(|error| away(&error))?;
        let rows = tx.query(&self.mark, &[&consumer, &ids]).await.map_err(unmarked)?;
        let fresh: Result<HashSet<Uuid>, Error> = rows.iter().map(|row| row.try_get(0)).collect();
        let mut fresh = fresh.map_err(unmarked)?;
        let mut done = Done::default();
        for message in messages {
            if fresh.remove(&message.id) {
                effects.apply(&tx, message).await.map_err(Undone::Failed)?;
                done.applied += 1;
            } else {
                done.duplicates += 1;
            }
        }
        if done.applied > 0 {
            add(&counters.statements, 1);
            tx.batch_execute("SELECT 1").await.map_err(hidden)?;
        }
        // An error leaves open what has become of it; the markers tell the next attempt.
        tx.commit().await.map_err(|error| Undone::Failed(error.into()))?;
        Ok(done)
    }
}

fn away(error: &Error) -> Undone {
    Undone::Away(describe(error))
}

/// The markers are the consumer's own: nothing that fails there is a message's fault.
fn unmarked(error: Error) -> Undone {
    let not_there =
        [SqlState::UNDEFINED_TABLE, SqlState::UNDEFINED_COLUMN, SqlState::INSUFFICIENT_PRIVILEGE];
    if error.code().is_some_and(|code| not_there.contains(code)) {
        return Undone::Broken(InboxError::Markers(error));
    }
    match passing(&error) {
        Some(Passing::InTheWay) => Undone::InTheWay(error.into()),
        _ => away(&error),
    }
}

fn hidden(error: Error) -> Undone {
    let is_hidden = error.code() == Some(&SqlState::IN_FAILED_SQL_TRANSACTION);
    Undone::Failed(if is_hidden { Failure::technical(Hidden(error)) } else { error.into() })
}

/// What the application has not chosen, is chosen so that a server that vanished is noticed.
fn with_limits(mut config: Config) -> Config {
    if config.get_application_name().is_none() {
        config.application_name(APPLICATION_NAME);
    }
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT_LIMIT);
    }
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(SILENCE_LIMIT);
    }
    if config.get_keepalives_idle() == Config::new().get_keepalives_idle() {
        config.keepalives_idle(SILENCE_LIMIT);
    }
    config
}
