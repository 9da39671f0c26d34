//! Executes a request once, from the lease to the response.
//!
//! Invariant: claim, effect and stored response commit together or not at all. If the caller is
//! dropped, the work continues. If the work fails, the key is free before the caller has the
//! outcome. That is safe even if the outcome of COMMIT is unknown: the next INSERT waits for that
//! transaction or finds its row.

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

/// Outcome of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "the client's response"]
pub enum Outcome {
    /// The request had its effect now, with this response.
    Executed(StoredResponse),
    /// The request had its effect before, with this response.
    Replayed(StoredResponse),
    /// Another attempt is in progress: respond with 409.
    Pending {
        /// Value for the Retry-After header.
        retry_after: Duration,
    },
    /// The key belongs to another request: respond with 422.
    Mismatch,
}

/// The right to execute a request. Clones are the same attempt.
#[derive(Debug, Clone)]
#[must_use = "nothing is executed before `run`"]
pub struct Attempt(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    keyed: Option<Keyed>,
    was_run: AtomicBool,
    /// Whether a response exists. Locked while the attempt runs.
    has_response: Mutex<bool>,
}

#[derive(Debug)]
struct Keyed {
    guard: Guard,
    request: Request,
    /// `None` if Postgres decides alone.
    lease: Option<Lease>,
    in_flight: InFlight,
}

impl Guard {
    /// Executes the request unless it was executed before. If several attempts share a key, in any
    /// process, one has its effect. The others get its response.
    ///
    /// `work` runs in its own task, which renews the lease and continues if this future is dropped.
    /// If it ends without an effect, the key is freed. A panic is propagated.
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

    #[cfg(feature = "idempotency-tower")]
    pub(super) fn without_key() -> Self {
        Self::of(None)
    }

    fn of(keyed: Option<Keyed>) -> Self {
        Self(Arc::new(Inner { keyed, was_run: false.into(), has_response: Mutex::new(false) }))
    }

    /// Request to execute. `None` if it has no key, which only a layer with optional keys permits.
    pub fn request(&self) -> Option<&Request> {
        self.0.keyed.as_ref().map(|keyed| &keyed.request)
    }

    #[cfg(feature = "idempotency-tower")]
    pub(super) fn was_run(&self) -> bool {
        self.0.was_run.load(Ordering::Relaxed)
    }

    /// Runs the effect in a transaction of `client`, as [`Attempt::run_in`] does. Also fails with
    /// [`IdempotencyError::CommitUnknown`].
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
                // COMMIT reports no error if a statement failed and its error was ignored.
                let alive = transaction.execute_typed("SELECT", &[]).await;
                alive.map_err(IdempotencyError::from)?;
            }
            Ok(response)
        };
        self.run_started(has_response, transaction, effect).await
    }

    /// Claims the key, awaits `effect`, stores its response, commits, and caches the response,
    /// unless the request had its effect before.
    ///
    /// If `effect` refuses a request for good, it should return a response. The response commits
    /// with everything that `effect` wrote, and is replayed. An error rolls everything back.
    /// Actions of `effect` outside the transaction may happen twice.
    ///
    /// May be called again after an error. A call while it runs, or after a response, fails with
    /// [`IdempotencyError::RunAgain`]. If another transaction has the key for longer than
    /// [`Guard::with_lock_timeout`], the outcome is [`Outcome::Pending`].
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

    /// Allows only one of two concurrent runs.
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

    /// The key is then freed, unless its state was settled.
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
            // The unique key in Postgres ensures that the effect happened only once.
            tracing::warn!("a request outlasted its lease; its response was not cached");
        }
        Ok(outcome)
    }
}
