//! Executes a request once, from the lease to the response, whatever fails on the way.
//!
//! Input: a [`Request`], and the work: code that gets a database session and calls [`Attempt::run`], or
//! [`Attempt::run_in`] with a transaction of any driver, with the effect. Output: an [`Outcome`]. Invariant: claim, effect and stored response commit together or not at
//! all; the work goes on when its caller is dropped (its client has hung up), so that the next attempt finds
//! its response; before the caller has the outcome of work that failed, the key is free again, also if the outcome
//! of its COMMIT is not known: the next attempt's INSERT waits for that transaction, or finds its row.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, MutexGuard};
use tokio_postgres::{Client, Transaction};
use tracing::Instrument as _;

use super::claim_transaction::{ClaimTransaction, Reservation};
use super::enter::Entry;
use super::error::IdempotencyError;
use super::guard::{Guard, OwnerUpdate};
use super::in_flight::InFlight;
use super::lease::Lease;
use super::request::Request;
use super::response::StoredResponse;

/// What became of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "the client's response"]
pub enum Outcome {
    /// It has had its effect now: this is its response.
    Executed(StoredResponse),
    /// It had its effect before: this was its response.
    Replayed(StoredResponse),
    /// The same request is in progress: 409, retry later.
    Pending {
        /// For the Retry-After header.
        retry_after: Duration,
    },
    /// The key belongs to another request: 422.
    Mismatch,
}

/// The right to execute a request, for [`Attempt::run`] or [`Attempt::run_in`]. A clone is the same attempt.
#[derive(Debug, Clone)]
#[must_use = "nothing is executed before `run`"]
pub struct Attempt(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// None without a key: there is nothing to claim, to cache or to free.
    keyed: Option<Keyed>,
    was_run: AtomicBool,
    /// Whether there is a response; locked while it is run.
    has_response: Mutex<bool>,
}

/// A request with its key.
#[derive(Debug)]
struct Keyed {
    guard: Guard,
    request: Request,
    /// None where Redis could not say: Postgres decides alone.
    lease: Option<Lease>,
    in_flight: InFlight,
}

impl Guard {
    /// Executes the request unless it has been executed before: of all attempts with one key, in all
    /// processes, one has its effect, and the others get its response.
    ///
    /// `work` is called for a request that is to be executed, in a task of its own, which goes on when
    /// this future is dropped, and with its lease renewed while it lasts. It gets a session with
    /// Postgres and awaits [`Attempt::run`]. Where it ends without an effect, by an error, a panic or
    /// otherwise, the key is free before this future is ready. A panic goes on in the caller.
    ///
    /// ```no_run
    /// use postrider_patterns::idempotency::{Guard, IdempotencyError, Outcome, Request, StoredResponse};
    ///
    /// /// The pool may be any that gives a `tokio_postgres::Client`.
    /// async fn place(guard: &Guard, request: &Request, pool: Pool) -> Result<Outcome, IdempotencyError> {
    ///     guard
    ///         .execute(request, |attempt| async move {
    ///             let mut client = pool.get().await?;
    ///             let effect = attempt.run(&mut client, async |transaction| {
    ///                 let id = uuid::Uuid::now_v7();
    ///                 transaction.execute("INSERT INTO orders (id) VALUES ($1)", &[&id]).await?;
    ///                 StoredResponse::json(201, &serde_json::json!({ "id": id.to_string() }))
    ///             });
    ///             effect.await
    ///         })
    ///         .await
    /// }
    /// # struct Pool;
    /// # impl Pool {
    /// #     async fn get(&self) -> Result<tokio_postgres::Client, IdempotencyError> {
    /// #         Err(IdempotencyError::ShutDown)
    /// #     }
    /// # }
    /// ```
    pub async fn execute<E, F>(
        &self,
        request: &Request,
        work: impl FnOnce(Attempt) -> F,
    ) -> Result<Outcome, E>
    where
        E: From<IdempotencyError> + Send + 'static,
        F: Future<Output = Result<Outcome, E>> + Send + 'static,
    {
        match self.enter(request).await {
            Entry::Answer(outcome) => Ok(outcome),
            Entry::Execute(attempt) => attempt.clone().detached(work(attempt)).await?,
        }
    }
}

impl Attempt {
    pub(super) fn new(
        guard: &Guard,
        request: &Request,
        lease: Option<Lease>,
        in_flight: InFlight,
    ) -> Self {
        let (guard, request) = (guard.clone(), request.clone());
        Self::of(Some(Keyed { guard, request, lease, in_flight }))
    }

    /// Of a request without a key.
    #[cfg(feature = "idempotency-tower")]
    pub(super) fn without_key() -> Self {
        Self::of(None)
    }

    fn of(keyed: Option<Keyed>) -> Self {
        Self(Arc::new(Inner { keyed, was_run: false.into(), has_response: Mutex::new(false) }))
    }

    /// What is to be executed; `None` without a key, which only a layer lets through that was told to.
    pub fn request(&self) -> Option<&Request> {
        self.0.keyed.as_ref().map(|keyed| &keyed.request)
    }

    /// Whether [`Attempt::run_in`] was called.
    #[cfg(feature = "idempotency-tower")]
    pub(super) fn was_run(&self) -> bool {
        self.0.was_run.load(Ordering::Relaxed)
    }

    /// Runs the effect in a transaction of `client`, as [`Attempt::run_in`] does. Errors: the effect's own;
    /// [`IdempotencyError::CommitUnknown`] and the other errors of Postgres.
    pub async fn run<E: From<IdempotencyError>>(
        &self,
        client: &mut Client,
        effect: impl AsyncFnOnce(&Transaction<'_>) -> Result<StoredResponse, E>,
    ) -> Result<Outcome, E> {
        let has_response = self.start()?;
        let transaction = client.transaction().await.map_err(IdempotencyError::from)?;
        let has_key = self.0.keyed.is_some();
        let effect = async |transaction: &mut Transaction<'_>| {
            let response = effect(transaction).await?;
            if !has_key {
                // COMMIT says nothing of a statement that failed and was ignored.
                let alive = transaction.execute_typed("SELECT", &[]).await;
                alive.map_err(IdempotencyError::from)?;
            }
            Ok(response)
        };
        self.run_started(has_response, transaction, effect).await
    }

    /// Runs the effect in this transaction, unless the request had it before: claims the key, awaits `effect`,
    /// stores the response that it returns, commits, and caches the response. Without a key it only awaits
    /// `effect` and commits.
    ///
    /// What `effect` refuses for good, and would refuse again (a business rule), it returns as a
    /// response: it is stored and replayed, and everything the effect wrote is committed with it. An
    /// error rolls everything back, and the next attempt starts anew. What `effect` does outside of the
    /// transaction may happen twice.
    ///
    /// After an error it may be called again. While it runs, and once there is a response, another call is
    /// refused ([`IdempotencyError::RunAgain`]): its effect would be taken for the one that the request has had,
    /// and skipped.
    ///
    /// A session that waits for another transaction with the same key waits for
    /// [`Guard::with_lock_timeout`] at most, then the outcome is [`Outcome::Pending`]. Errors: the effect's own and
    /// those of the driver.
    pub async fn run_in<T, E>(
        &self,
        transaction: T,
        effect: impl AsyncFnOnce(&mut T) -> Result<StoredResponse, E>,
    ) -> Result<Outcome, E>
    where
        T: ClaimTransaction,
        E: From<IdempotencyError> + From<T::Error>,
    {
        let has_response = self.start()?;
        self.run_started(has_response, transaction, effect).await
    }

    /// Of two runs at once, one.
    fn start(&self) -> Result<MutexGuard<'_, bool>, IdempotencyError> {
        self.0.was_run.store(true, Ordering::Relaxed);
        match self.0.has_response.try_lock() {
            Ok(has_response) if !*has_response => Ok(has_response),
            _ => Err(IdempotencyError::RunAgain),
        }
    }

    async fn run_started<T, E>(
        &self,
        mut has_response: MutexGuard<'_, bool>,
        mut transaction: T,
        effect: impl AsyncFnOnce(&mut T) -> Result<StoredResponse, E>,
    ) -> Result<Outcome, E>
    where
        T: ClaimTransaction,
        E: From<T::Error>,
    {
        let outcome = if let Some(keyed) = &self.0.keyed {
            keyed.run(transaction, effect).await?
        } else {
            let response = effect(&mut transaction).await?;
            transaction.commit().await?;
            Outcome::Executed(response)
        };
        *has_response = matches!(outcome, Outcome::Executed(_) | Outcome::Replayed(_));
        Ok(outcome)
    }

    /// Drives the work in a task of its own; then the key is free, unless that was settled.
    pub(super) async fn detached<T: Send + 'static>(
        self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, IdempotencyError> {
        let attempt = self.clone();
        let task = async move {
            let output = match attempt.lease() {
                Some((guard, lease)) => guard.run_renewing(lease, work).await,
                None => work.await,
            };
            attempt.settle().await;
            output
        };
        match tokio::spawn(task.instrument(tracing::Span::current())).await {
            Ok(output) => Ok(output),
            Err(ended) => {
                self.settle().await;
                match ended.try_into_panic() {
                    Ok(panic) => std::panic::resume_unwind(panic),
                    Err(_) => Err(IdempotencyError::ShutDown),
                }
            }
        }
    }

    fn lease(&self) -> Option<(&Guard, &Lease)> {
        let keyed = self.0.keyed.as_ref()?;
        Some((&keyed.guard, keyed.lease.as_ref()?))
    }

    async fn settle(&self) {
        if let Some((guard, lease)) = self.lease().filter(|(_, lease)| !lease.is_settled()) {
            guard.release(lease).await;
        }
    }
}

impl Keyed {
    async fn run<T, E>(
        &self,
        mut transaction: T,
        effect: impl AsyncFnOnce(&mut T) -> Result<StoredResponse, E>,
    ) -> Result<Outcome, E>
    where
        T: ClaimTransaction,
        E: From<T::Error>,
    {
        let Self { guard, request, lease, in_flight } = self;
        let (outcome, response) = match transaction.reserve(request, guard.lock_timeout).await? {
            Reservation::Won => {
                in_flight.starts_effect();
                let response = effect(&mut transaction).await?;
                transaction.store(request, &response).await?;
                transaction.commit().await?;
                (Outcome::Executed(response.clone()), response)
            }
            Reservation::Done(response) => (Outcome::Replayed(response.clone()), response),
            Reservation::Mismatch => return Ok(Outcome::Mismatch),
            Reservation::Busy => return Ok(guard.pending()),
        };
        in_flight.publish(&response);
        if let Some(lease) = lease
            && guard.complete(lease, &response).await == OwnerUpdate::Stale
        {
            // The effect is there once all the same: the unique key in Postgres ensures that.
            tracing::warn!("a request outlasted its lease; its response was not cached");
        }
        Ok(outcome)
    }
}
