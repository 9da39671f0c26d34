//! Session with Postgres: runs the transaction that inserts markers and applies effects.
//!
//! Invariants:
//!
//! * Markers, offsets and all writes of the effects are committed together or not at all.
//! * A message has no effect if its marker exists, or if the database has gone back.
//! * If the order of numbers is enforced, only the next message of an aggregate has effects.
//! * A lost session is not used again.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{Client, Config, Error, Socket, Statement, Transaction};
use tracing::{Instrument as _, Span, info_span};
use uuid::Uuid;

use super::assignments::Advance;
use super::counters::{ConsumerCounters, add};
use super::markers::Inserted;
use super::retries::Pending;
use super::sequence::table::{SequenceTable, start_of};
use super::sequence::{self, Aggregate, Misplaced, SequenceStart};
use super::sqlstate::{EffectPanicked, FailureCause, describe, describe_failure, is_outdated};
use super::xact::{self, is_committed, still_in};
use super::{ConsumerSpec, Effects, Failure, Message};
use super::{markers, offsets, prepared};
use crate::table_error::TableFault;

const APPLICATION_NAME: &str = "postrider-inbox";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const TCP_TIMEOUT: Duration = Duration::from_secs(30);

const MARKERS_HINT: &str = "run `migrations::migrate` with `Piece::Inbox`, or migrations/0003_application.sql; \
    have the schema in the role's search_path; GRANT USAGE ON SCHEMA <schema> TO <the consumer's role>; \
    GRANT SELECT, INSERT ON processed_messages TO <the consumer's role>; \
    GRANT SELECT, INSERT, UPDATE ON consumer_offsets, consumer_sequences TO <the consumer's role>";

/// The first column distinguishes a server from others, and from itself after a restart.
const SERVER: &str = "\
    SELECT (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint, \
    current_setting('default_transaction_read_only')::bool";

const READ_ONLY_HINT: &str = "if nobody keeps the database from being written to: \
    ALTER ROLE <the consumer's role> SET default_transaction_read_only = off";

/// The receiver is closed when the session ends.
type Connecting = Pin<Box<dyn Future<Output = Result<(Client, watch::Receiver<()>), Error>>>>;

#[derive(Debug, thiserror::Error)]
#[error("the database session ended while the effect ran")]
struct SessionEnded;

pub(super) struct Database {
    connect: Box<dyn Fn() -> Connecting + Send>,
    timeouts: String,
    consumer: String,
    start: Option<SequenceStart>,
    session: Option<PgSession>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    Commit,
    /// The transaction only showed that its changes are possible.
    Rollback,
}

pub(super) struct PgSession {
    /// Boxed, so that its address identifies it.
    pub(super) client: Box<Client>,
    pub(super) consumer: String,
    ended: watch::Receiver<()>,
    number: u64,
    opened: Instant,
    /// By the server's own clock, in µs since the Unix epoch.
    started: i64,
    insert_markers: Statement,
    look: Statement,
    pub(super) advance: Statement,
    pub(super) sequences: Option<SequenceTable>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Work<'w> {
    pub(super) messages: &'w [Pending],
    /// Offsets before which every message is handled after the commit.
    pub(super) advances: &'w [Advance],
    /// Messages with a marker but without effects, committed by an effect.
    pub(super) unmarked: &'w [Uuid],
}

#[derive(Debug)]
pub(super) enum RolledBack {
    /// No session, or it cannot insert markers. Says nothing about the messages.
    Unavailable {
        why: String,
        hint: Option<&'static str>,
    },
    Failed(TransactionFailure),
    /// Earlier messages are missing in the database.
    WentBack,
    Misplaced(Vec<Misplaced>),
}

#[derive(Debug)]
pub(super) struct TransactionFailure {
    pub(super) failure: Failure,
    pub(super) cause: FailureCause,
    pub(super) took: Duration,
    /// Index of the failed message, from 0, if it was a single one.
    pub(super) at: Option<usize>,
    /// Start time of the server whose session was lost. The outcome of a COMMIT is then unknown,
    /// and any message may be the cause.
    pub(super) lost: Option<i64>,
    /// Transaction id after markers were written. The effects may have committed it.
    pub(super) xact: Option<i64>,
    /// Messages that should have had their effects and did not.
    pub(super) without: HashSet<Uuid>,
}

impl RolledBack {
    pub(super) fn explain(self) -> (String, Option<&'static str>) {
        match self {
            Self::Unavailable { why, hint } => (why, hint),
            Self::Failed(failed) => (describe_failure(&failed.failure), None),
            Self::WentBack => ("the database has less than it had".to_owned(), None),
            Self::Misplaced(_) => unreachable!("only messages are misplaced, and they wait"),
        }
    }
}

impl TransactionFailure {
    pub(super) fn new(failure: Failure, at: Option<usize>) -> Self {
        let (cause, took) = (FailureCause::of(&failure), Duration::ZERO);
        Self { failure, cause, took, at, lost: None, xact: None, without: HashSet::new() }
    }
}

#[derive(Debug, Default, Clone, Copy)]
pub(super) struct TransactionResult {
    pub(super) applied: usize,
    /// Messages that were processed before, or occur twice in the batch.
    pub(super) duplicates: usize,
    /// Messages of ignored types, of which only the number counts.
    pub(super) passed_over: usize,
}

impl Database {
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
                // The client's next statement reports this failure to code that can handle it.
                let (running, ended) = watch::channel(());
                tokio::spawn(async move {
                    drop(connection.await);
                    drop(running);
                });
                Ok((client, ended))
            })
        };
        let timeouts = format!(
            // If an effect ends its transaction, later statements would commit without a marker.
            // The session therefore cannot write outside an explicit transaction.
            "SET default_transaction_read_only = on; SET lock_timeout = {}; SET idle_in_transaction_session_timeout = {}",
            spec.lock_timeout.as_millis(),
            spec.idle_in_transaction_max.as_millis()
        );
        let (consumer, start) = (spec.name.clone(), start_of(spec));
        Self { connect: Box::new(connect), timeouts, consumer, start, session: None }
    }

    pub(super) async fn transact<E: Effects>(
        &mut self,
        work: Work<'_>,
        effects: &E,
        counters: &ConsumerCounters,
        ending: Ending,
    ) -> Result<TransactionResult, RolledBack> {
        let session = self.session().await?;
        let outcome = session.transact(work, effects, counters, ending).await;
        match outcome {
            Ok(done) => Ok(done),
            Err(rolled_back) => Err(self.examine(rolled_back).await),
        }
    }

    /// Runs `work` while no other transaction can commit the message's marker. `None` means that
    /// the message was processed and `work` did not run. The transaction leaves no marker.
    pub(super) async fn while_unprocessed<T>(
        &mut self,
        message: &Message,
        work: impl Future<Output = T>,
    ) -> Result<Option<T>, RolledBack> {
        let session = self.session().await?;
        match session.while_unprocessed(message.id, work).await {
            Ok(done) => Ok(done),
            Err(rolled_back) => Err(self.examine(rolled_back).await),
        }
    }

    /// Ends a session of at least this age. A new one may reach another server, or see other
    /// settings.
    pub(super) fn renew(&mut self, age: Duration) {
        self.session = self.session.take().filter(|session| session.opened.elapsed() < age);
    }

    pub(super) async fn session(&mut self) -> Result<&mut PgSession, RolledBack> {
        // Lets the connection's task notice that the server has gone.
        tokio::task::yield_now().await;
        let session = match self.session.take().filter(|session| !session.client.is_closed()) {
            Some(session) => session,
            None => self.open().await?,
        };
        Ok(self.session.insert(session))
    }

    pub(super) async fn is_committed(&mut self, xact: i64) -> Result<bool, RolledBack> {
        let client = &*self.session().await?.client;
        is_committed(client, xact).await.map_err(|error| unavailable(&error))
    }

    pub(super) async fn started(&mut self) -> Result<i64, RolledBack> {
        Ok(self.session().await?.started)
    }

    /// Checks whether the session was lost, whatever error the effect returned.
    async fn examine(&mut self, rolled_back: RolledBack) -> RolledBack {
        let rolled_back = match (rolled_back, &self.session) {
            (RolledBack::Failed(mut failed), Some(session)) => {
                // The server's last message may arrive before its connection ends.
                let lives = session.client.batch_execute("").await.is_ok();
                match &failed.failure {
                    Failure::Technical(source) if !lives => {
                        failed.cause = FailureCause::of_lost_session(&**source);
                        failed.lost = Some(session.started);
                        self.session = None;
                        RolledBack::Failed(failed)
                    }
                    Failure::Technical(source) if is_outdated(&**source) => {
                        self.session = None;
                        RolledBack::Failed(failed)
                    }
                    _ => RolledBack::Failed(failed),
                }
            }
            (other, _) => other,
        };
        self.end_if_unavailable(&rolled_back);
        rolled_back
    }

    pub(super) fn end_if_unavailable(&mut self, rolled_back: &RolledBack) {
        if matches!(rolled_back, RolledBack::Unavailable { .. }) {
            self.session = None;
        }
    }

    async fn open(&self) -> Result<PgSession, RolledBack> {
        let (client, ended) = (self.connect)().await.map_err(|error| unavailable(&error))?;
        let server = client.query_typed_one(SERVER, &[]).await;
        let server = server.and_then(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
        let (started, is_read_only) = server.map_err(|error| unavailable(&error))?;
        if is_read_only {
            let why = "default_transaction_read_only is on".to_owned();
            return Err(RolledBack::Unavailable { why, hint: Some(READ_ONLY_HINT) });
        }
        client.batch_execute(&self.timeouts).await.map_err(|error| unavailable(&error))?;
        let insert_markers = markers::prepare_insert(&client).await.map_err(marker_error)?;
        let look = xact::prepare_look(&client).await.map_err(marker_error)?;
        let advance = offsets::prepare_advance(&client).await.map_err(marker_error)?;
        let sequences = SequenceTable::prepare(&client, self.start).await.map_err(marker_error)?;
        let (client, consumer) = (Box::new(client), self.consumer.clone());
        let (number, opened) = (prepared::next_session(), Instant::now());
        let session = PgSession {
            client,
            consumer,
            ended,
            number,
            opened,
            started,
            insert_markers,
            look,
            advance,
            sequences,
        };
        Ok(session)
    }
}

fn span_of(message: &Message) -> Span {
    let record = &message.record;
    let (id, event_type) = (&message.id, message.event_type.as_str());
    info_span!("message", %id, event_type, record.topic, record.partition, record.offset)
}

impl PgSession {
    async fn transact<E: Effects>(
        &mut self,
        Work { messages, advances, unmarked }: Work<'_>,
        effects: &E,
        counters: &ConsumerCounters,
        ending: Ending,
    ) -> Result<TransactionResult, RolledBack> {
        let mut ids: Vec<Uuid> = messages.iter().map(|pending| pending.message.id).collect();
        ids.sort_unstable();
        ids.dedup();
        let _entered = prepared::enter(&self.client, self.number);
        let numbered = usize::from(self.sequences.is_some());
        add(&counters.statements, 3 + usize::from(!advances.is_empty()) + numbered);
        let tx = self.client.build_transaction().read_only(false).start().await;
        let mut tx = tx.map_err(|error| unavailable(&error))?;
        // All statements are sent before the first answer. Numbers are read last: after a wait for
        // another member's marker, they include its commit.
        let (advanced, inserted, lasts) = tokio::join!(
            offsets::advance(&tx, &self.advance, &self.consumer, advances),
            markers::insert(&tx, &self.insert_markers, &self.consumer, &ids),
            read_sequences(&tx, self.sequences.as_ref(), &self.consumer, messages)
        );
        advanced?;
        let Inserted { mut fresh, xact } = inserted.map_err(marker_error)?;
        // A rollback only shows whether the effect is possible.
        if let Some(table) = self.sequences.as_ref().filter(|_| ending == Ending::Commit) {
            let checked = sequence::check(messages, fresh.clone(), &lasts?, table.start);
            let steps = checked.map_err(RolledBack::Misplaced)?;
            // Before the effects, because effects may change role or search_path, or commit.
            if !steps.is_empty() {
                add(&counters.statements, 1);
                table.advance(&tx, &self.consumer, &steps).await?;
            }
        }
        // Their numbers were counted with their markers.
        fresh.extend(unmarked);
        let outcome = apply(&tx, effects, messages, &mut fresh, &mut self.ended).await;
        let in_xact = |failed: TransactionFailure| {
            RolledBack::Failed(TransactionFailure { xact, without: fresh, ..failed })
        };
        let done = match outcome {
            Ok(done) if done.applied > 0 => {
                add(&counters.statements, 1);
                tx = still_in(tx, &self.look, xact).await.map_err(in_xact)?;
                done
            }
            outcome => outcome.map_err(in_xact)?,
        };
        // After an error the outcome is unknown, and the next attempt finds the markers.
        let ended = match ending {
            Ending::Commit => tx.commit().await,
            Ending::Rollback => tx.rollback().await,
        };
        ended.map_err(|error| failed(error.into(), None))?;
        Ok(done)
    }

    async fn while_unprocessed<T>(
        &mut self,
        id: Uuid,
        work: impl Future<Output = T>,
    ) -> Result<Option<T>, RolledBack> {
        let tx = self.client.build_transaction().read_only(false).start().await;
        let tx = tx.map_err(|error| unavailable(&error))?;
        let inserted = markers::insert(&tx, &self.insert_markers, &self.consumer, &[id]).await;
        if inserted.map_err(marker_error)?.fresh.is_empty() {
            return Ok(None);
        }
        let done = work.await;
        Ok(Some(done))
    }
}

/// Applies effects in order. After an error, `fresh` holds the messages without effects. An effect
/// is abandoned when its session ends, so `idle_in_transaction_max` ends one that never returns.
async fn apply<E: Effects>(
    tx: &Transaction<'_>,
    effects: &E,
    messages: &[Pending],
    fresh: &mut HashSet<Uuid>,
    ended: &mut watch::Receiver<()>,
) -> Result<TransactionResult, TransactionFailure> {
    let mut done = TransactionResult::default();
    let mut ended = pin!(ended.changed());
    for (at, Pending { message, has_effect, .. }) in messages.iter().enumerate() {
        if !fresh.remove(&message.id) {
            done.duplicates += 1;
        } else if *has_effect {
            let outcome = tokio::select! {
                biased;
                outcome = caught(async { effects.apply(tx, message).await }.instrument(span_of(message))) => outcome,
                _ = &mut ended => Err(Failure::technical(SessionEnded)),
            };
            if let Err(failure) = outcome {
                fresh.insert(message.id);
                return Err(TransactionFailure::new(failure, Some(at)));
            }
            done.applied += 1;
        } else {
            done.passed_over += 1;
        }
    }
    Ok(done)
}

/// Turns a panic into a failure of the message, because a restarted consumer would get that message
/// first again.
async fn caught(effect: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let mut effect = pin!(effect);
    // State that the panic leaves half changed is the application's own.
    poll_fn(|context| {
        catch_unwind(AssertUnwindSafe(|| effect.as_mut().poll(context)))
            .unwrap_or_else(|_| Poll::Ready(Err(Failure::technical(EffectPanicked))))
    })
    .await
}

async fn read_sequences(
    tx: &Transaction<'_>,
    table: Option<&SequenceTable>,
    consumer: &str,
    messages: &[Pending],
) -> Result<BTreeMap<Aggregate, i64>, RolledBack> {
    let Some(table) = table else { return Ok(BTreeMap::new()) };
    let places = messages.iter().filter_map(|pending| sequence::place(&pending.message));
    let aggregates: BTreeSet<Aggregate> = places.map(|(aggregate, _)| aggregate).collect();
    table.read(tx, consumer, &aggregates.into_iter().collect::<Vec<_>>()).await
}

fn failed(failure: Failure, at: Option<usize>) -> RolledBack {
    RolledBack::Failed(TransactionFailure::new(failure, at))
}

fn unavailable(error: &Error) -> RolledBack {
    RolledBack::Unavailable { why: describe(error), hint: None }
}

/// The statements are equal for all messages, so no message is the cause.
pub(super) fn marker_error(error: Error) -> RolledBack {
    if FailureCause::of_error(&error) == FailureCause::Contention {
        return failed(error.into(), None);
    }
    let is_missing = matches!(TableFault::of(&error), TableFault::Missing | TableFault::Forbidden);
    let why = format!("cannot write processed_messages and consumer_offsets: {}", describe(&error));
    RolledBack::Unavailable { why, hint: is_missing.then_some(MARKERS_HINT) }
}

/// Adds timeouts to notice a vanished server.
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
