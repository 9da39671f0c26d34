//! The `Idempotency-Key` guard: one effect for many identical requests. Independent of any HTTP framework.
//!
//! Input: a [`Request`]: a scope, the client's key and a fingerprint of what it asks for; later its
//! [`StoredResponse`]. Output: [`BeginOutcome`], whether to execute, wait, replay or refuse; and [`Claim`],
//! whether the effect may happen. Invariant: of all requests with one key at most one commits its effect,
//! since [`claim`] inserts a row with a unique key in the same transaction; a key that Redis loses can cost
//! a second execution that is rolled back, never a second effect. No request fails because Redis is down.
//!
//! # Two halves
//!
//! **Redis, the cache** ([`Guard`]): absent, then PENDING with a fencing token and a time to live, then
//! COMPLETED with the stored response. It answers most duplicates in one round trip, and tells those that
//! arrive while the first is in progress to retry later. It is a cache: the guard is correct without it.
//!
//! **Postgres, the claims table** ([`claim`], [`find_claim`]): the time to live that frees the key of a
//! crashed owner also frees the key of one that was only slow, so two requests may execute at once; the
//! same can happen after a flush or a failover. The unique key decides between them: the second INSERT
//! waits until the first transaction has ended, then conflicts with its row, or succeeds if it was rolled
//! back.
//!
//! # Use
//!
//! ```no_run
//! use postrider_patterns::idempotency::{
//!     StoredResponse, BeginOutcome, Claim, Guard, IdempotencyError, ExistingClaim, Request, claim, find_claim,
//! };
//!
//! /// What the HTTP layer turns into 201 (or the replay of it), 409 with Retry-After, 422.
//! enum Reply { Stored(StoredResponse), Wait(std::time::Duration), Mismatch }
//!
//! async fn place(
//!     guard: &Guard,
//!     client: &mut tokio_postgres::Client,
//!     request: &Request,
//! ) -> Result<Reply, IdempotencyError> {
//!     let lease = match guard.begin(request).await {
//!         BeginOutcome::New(lease) => Some(lease),
//!         BeginOutcome::Pending { retry_after } => return Ok(Reply::Wait(retry_after)),
//!         BeginOutcome::Replay(response) => return Ok(Reply::Stored(response)),
//!         BeginOutcome::Mismatch => return Ok(Reply::Mismatch),
//!         BeginOutcome::Unsure => match find_claim(client, request).await? {
//!             Some(ExistingClaim::Done(response)) => return Ok(Reply::Stored(response)),
//!             Some(ExistingClaim::Mismatch) => return Ok(Reply::Mismatch),
//!             None => None,
//!         },
//!     };
//!     let work = effect(client, request);
//!     let claimed = match &lease {
//!         Some(lease) => guard.run_renewing(lease, work).await,
//!         None => work.await,
//!     };
//!     match (claimed, lease) {
//!         (Ok((Claim::Won, response)) | Ok((Claim::Done(response), _)), lease) => {
//!             if let Some(lease) = lease {
//!                 // Stale or not, the response is the one that Postgres has committed.
//!                 guard.complete(&lease, &response).await;
//!             }
//!             Ok(Reply::Stored(response))
//!         }
//!         (Ok((Claim::Mismatch, _)), lease) => {
//!             if let Some(lease) = lease {
//!                 guard.release(&lease).await;
//!             }
//!             Ok(Reply::Mismatch)
//!         }
//!         // If COMMIT itself failed, the outcome is unknown: the key stays PENDING until it expires, and
//!         // the client's next attempt finds the outcome in Postgres.
//!         (Err(error), _) => Err(error),
//!     }
//! }
//!
//! async fn effect(
//!     client: &mut tokio_postgres::Client,
//!     request: &Request,
//! ) -> Result<(Claim, StoredResponse), IdempotencyError> {
//!     let id = uuid::Uuid::now_v7();
//!     let headers = vec![("location".to_owned(), format!("/orders/{id}"))];
//!     let response = StoredResponse::new(201, headers, format!("{{\"id\":\"{id}\"}}"))?;
//!     let transaction = client.transaction().await?;
//!     let claimed = claim(&transaction, request, &response).await?;
//!     if claimed == Claim::Won {
//!         transaction.execute("INSERT INTO orders (id) VALUES ($1)", &[&id]).await?;
//!         transaction.commit().await?;
//!     }
//!     Ok((claimed, response))
//! }
//! ```
//!
//! The mistakes that published versions of this make, each with the test that shows it:
//! `docs/patterns/idempotency-key.md`.

mod breaker;
mod cache_entry;
mod canonical;
mod claims;
mod counts;
mod error;
mod guard;
mod redis_store;
mod request;
mod response;
mod scripts;
mod settings;

pub use claims::{Claim, ExistingClaim, claim, find_claim};
pub use counts::Counts;
pub use error::IdempotencyError;
pub use guard::{BeginOutcome, Guard, OwnerUpdate};
pub use redis_store::{GuardSettings, Lease};
pub use request::{Fingerprint, Key, KeyRefusal, NotJson, Request};
pub use response::StoredResponse;
