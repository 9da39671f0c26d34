//! The consumer's session with Postgres: connects, and runs the transaction that inserts markers and
//! applies effects.
//!
//! Input: messages, the offsets that follow them, and the application's `Effects`. Output: how many had their
//! effects now and how many were processed before; or why the transaction was rolled back (`RolledBack`).
//! Invariant: the markers (rows that say which messages are processed), the offsets and everything that the
//! effects wrote are committed together or not at all; a message whose marker exists has no effect, nor has
//! any message while the database has less than it had, or one that is not next where the order of numbers is
//! enforced; a session that was lost is not used again.

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

/// How the session names itself in `pg_stat_activity`.
const APPLICATION_NAME: &str = "postrider-inbox";
/// A server that is there answers sooner, however busy.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// TCP keepalive and user timeout: after this the session is considered dead.
const TCP_TIMEOUT: Duration = Duration::from_secs(30);

/// What to do where markers and offsets cannot be written.
const MARKERS_HINT: &str = "run `migrations::migrate` with `Piece::Inbox`, or migrations/0003_application.sql; \
    have the schema in the role's search_path; GRANT USAGE ON SCHEMA <schema> TO <the consumer's role>; \
    GRANT SELECT, INSERT ON processed_messages TO <the consumer's role>; \
    GRANT SELECT, INSERT, UPDATE ON consumer_offsets, consumer_sequences TO <the consumer's role>";

/// The first tells the sessions of one server from those after its restart, or of another.
const SERVER: &str = "\
    SELECT (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint, \
    current_setting('default_transaction_read_only')::bool";

const READ_ONLY_HINT: &str = "if nobody keeps the database from being written to: \
    ALTER ROLE <the consumer's role> SET default_transaction_read_only = off";

/// The receiver is closed when the session ends.
type Connecting = Pin<Box<dyn Future<Output = Result<(Client, watch::Receiver<()>), Error>>>>;

/// With it everything that a running effect has done is undone.
#[derive(Debug, thiserror::Error)]
#[error("the database session ended while the effect ran")]
struct SessionEnded;

/// How to connect, and the open session.
pub(super) struct Database {
    connect: Box<dyn Fn() -> Connecting + Send>,
    timeouts: String,
    consumer: String,
    start: Option<SequenceStart>,
    session: Option<PgSession>,
}

/// How a transaction ends that has not failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// With everything that was done.
    Commit,
    /// With nothing: it only showed that it could be.
    Rollback,
}

/// An open session, and what is prepared in it.
pub(super) struct PgSession {
    /// Boxed, so that it is identified by its address.
    pub(super) client: Box<Client>,
    pub(super) consumer: String,
    ended: watch::Receiver<()>,
    number: u64,
    opened: Instant,
    /// When its server was started, by the server's clock, in µs since the Unix epoch.
    started: i64,
    /// For [`markers::insert`].
    insert_markers: Statement,
    /// For [`xact::still_in`].
    look: Statement,
    /// For [`offsets::advance`].
    pub(super) advance: Statement,
    /// If the order of numbers is enforced.
    pub(super) sequences: Option<SequenceTable>,
}

/// What one transaction does.
#[derive(Debug, Clone, Copy)]
pub(super) struct Work<'w> {
    /// In order.
    pub(super) messages: &'w [Pending],
    /// Everything before these offsets is handled once it is committed.
    pub(super) advances: &'w [Advance],
    /// Those of them that have a marker and no effects, since an effect committed their transaction before.
    pub(super) unmarked: &'w [Uuid],
}

/// Why a transaction was rolled back.
#[derive(Debug)]
pub(super) enum RolledBack {
    /// There is no session, or it cannot insert markers. That says nothing about the messages.
    Unavailable {
        /// Without data of rows.
        why: String,
        /// The exact remedy, where there is one.
        hint: Option<&'static str>,
    },
    /// Something failed, in a session that lives or by losing it.
    Failed(TransactionFailure),
    /// The database has less than it had, so messages before these are missing in it.
    WentBack,
    /// These are not the next of their aggregates.
    Misplaced(Vec<Misplaced>),
}

/// What failed after markers and offsets were written.
#[derive(Debug)]
pub(super) struct TransactionFailure {
    pub(super) failure: Failure,
    pub(super) cause: FailureCause,
    /// Time of the whole attempt.
    pub(super) took: Duration,
    /// Which of the messages, from 0, where it is one's.
    pub(super) at: Option<usize>,
    /// The session ended, on a server that was started then. Whether a COMMIT was executed is not known, and of
    /// several messages any may have ended it: a server may say so only to the next.
    pub(super) lost: Option<i64>,
    /// Which transaction it was, once it had markers. The effects may have committed it.
    pub(super) xact: Option<i64>,
    /// Those of its messages that were to have their effects, and had not.
    pub(super) without: HashSet<Uuid>,
}

impl RolledBack {
    /// Without data of rows, and the exact remedy, where there is one.
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

/// What a committed transaction did.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct TransactionResult {
    /// Messages that had their effects in it.
    pub(super) applied: usize,
    /// Messages that were processed before, or twice in the batch.
    pub(super) duplicates: usize,
    /// Messages of ignored types, which only have a number.
    pub(super) passed_over: usize,
}

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
                let (running, ended) = watch::channel(());
                tokio::spawn(async move {
                    drop(connection.await);
                    drop(running);
                });
                Ok((client, ended))
            })
        };
        let timeouts = format!(
            // Where an effect has ended its transaction, the statements of later messages would take hold at once and
            // without a marker: outside of a transaction of this session nothing is written.
            "SET default_transaction_read_only = on; SET lock_timeout = {}; SET idle_in_transaction_session_timeout = {}",
            spec.lock_timeout.as_millis(),
            spec.idle_in_transaction_max.as_millis()
        );
        let (consumer, start) = (spec.name.clone(), start_of(spec));
        Self { connect: Box::new(connect), timeouts, consumer, start, session: None }
    }

    /// Does all that the messages ask for in one transaction.
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

    /// Runs `work` while no other transaction can commit the message's marker; what is waited for is that
    /// one. `None`: the message has been processed, and nothing was run. It ends without a marker.
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

    /// Ends a session of that age: a new one may reach another server, or see other settings.
    pub(super) fn renew(&mut self, age: Duration) {
        self.session = self.session.take().filter(|session| session.opened.elapsed() < age);
    }

    /// An open session.
    pub(super) async fn session(&mut self) -> Result<&mut PgSession, RolledBack> {
        // Lets the connection's task notice a server that has gone meanwhile.
        tokio::task::yield_now().await;
        let session = match self.session.take().filter(|session| !session.client.is_closed()) {
            Some(session) => session,
            None => self.open().await?,
        };
        Ok(self.session.insert(session))
    }

    /// Whether the transaction was committed, on the server that is asked.
    pub(super) async fn is_committed(&mut self, xact: i64) -> Result<bool, RolledBack> {
        let client = &*self.session().await?.client;
        is_committed(client, xact).await.map_err(|error| unavailable(&error))
    }

    /// When the server was started that the session is on, by its clock. It opens one if there is none.
    pub(super) async fn started(&mut self) -> Result<i64, RolledBack> {
        Ok(self.session().await?.started)
    }

    /// Notes whether the session was lost, whatever error the effect returned.
    async fn examine(&mut self, rolled_back: RolledBack) -> RolledBack {
        let rolled_back = match (rolled_back, &self.session) {
            (RolledBack::Failed(mut failed), Some(session)) => {
                // The server's last message may come before its connection ends, so it is asked.
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

    /// Gives up the session if the database is unavailable: a new one may reach another server.
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

/// What the effects of a message log and trace happens in this span.
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
        // All are sent before one is answered. No effect sees a database that has gone back. The numbers are
        // read last: after a wait for another member's marker, what that has committed.
        let (advanced, inserted, lasts) = tokio::join!(
            offsets::advance(&tx, &self.advance, &self.consumer, advances),
            markers::insert(&tx, &self.insert_markers, &self.consumer, &ids),
            read_sequences(&tx, self.sequences.as_ref(), &self.consumer, messages)
        );
        advanced?;
        let Inserted { mut fresh, xact } = inserted.map_err(marker_error)?;
        // What is rolled back shows only whether the effect could be had.
        if let Some(table) = self.sequences.as_ref().filter(|_| ending == Ending::Commit) {
            let checked = sequence::check(messages, fresh.clone(), &lasts?, table.start);
            let steps = checked.map_err(RolledBack::Misplaced)?;
            // Before the effects, as the markers: these may leave another role or search_path, or commit.
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
        // After an error the outcome is unknown; the next attempt finds the markers.
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
        // Dropped, the transaction is rolled back; if the server has ended it, that changes nothing.
        Ok(Some(done))
    }
}

/// Has the effects of those messages that are fresh, in order. After an error those are left that had none. An
/// effect is given up when its session ends, as after `idle_in_transaction_max` one that never returns.
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

/// A panic of the effects is a failure of their message, where the program is built to unwind. Upholds that one
/// message ends no consumer: restarted, it would get the same one first.
async fn caught(effect: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let mut effect = pin!(effect);
    // What it may leave half done is the application's own; its transaction is rolled back.
    poll_fn(|context| {
        catch_unwind(AssertUnwindSafe(|| effect.as_mut().poll(context)))
            .unwrap_or_else(|_| Poll::Ready(Err(Failure::technical(EffectPanicked))))
    })
    .await
}

/// The last numbers of the messages' aggregates, if their order is enforced.
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

/// Writing markers or offsets failed, which is never a failure of a message: it is the same for all.
pub(super) fn marker_error(error: Error) -> RolledBack {
    if FailureCause::of_error(&error) == FailureCause::Contention {
        return failed(error.into(), None);
    }
    let is_missing = matches!(TableFault::of(&error), TableFault::Missing | TableFault::Forbidden);
    let why = format!("cannot write processed_messages and consumer_offsets: {}", describe(&error));
    RolledBack::Unavailable { why, hint: is_missing.then_some(MARKERS_HINT) }
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
