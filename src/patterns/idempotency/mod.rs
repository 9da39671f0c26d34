//! The `Idempotency-Key` guard: one effect for many identical requests. Independent of any HTTP
//! framework.
//!
//! Input: a [`Request`] (a scope, the client's key and a fingerprint of the request) and its
//! effect, which returns a [`StoredResponse`]. Output: [`Outcome`], the result for the client. The
//! parts return [`BeginOutcome`] (whether to execute, wait, replay or refuse) and [`Claim`]
//! (whether the effect may happen).
//!
//! Invariant: of all requests with one key, at most one commits its effect, because [`claim`]
//! inserts a row with a unique key in the same transaction. A key that Redis loses can cost a
//! second execution, which is rolled back, but never a second effect. No request fails because
//! Redis is down.
//!
//! # Two halves
//!
//! **Redis, the cache** ([`Guard`]): a key is absent, then PENDING with its owner's token and a
//! time to live, then COMPLETED with the stored response. Redis answers most duplicates in one
//! round trip. It tells requests that arrive while the first is in progress to retry later. The
//! guard is correct without Redis.
//!
//! **Postgres, the claims table** ([`claim`], [`find_claim`]): the time to live that frees the key
//! of a crashed owner also frees the key of a slow one. Two requests may therefore execute at once.
//! A flush or a failover has the same effect. The unique key decides between them. The second
//! INSERT waits until the first transaction has ended. It then conflicts with that transaction's
//! row, or succeeds if the transaction was rolled back.
//!
//! # Use
//!
//! [`Guard::execute`] is the whole flow. It begins, waits or replays, runs the effect and the claim
//! in one transaction, commits, caches the response, and frees the key after a failure. Its example
//! is an endpoint. With the feature `idempotency-tower`, a layer does this for HTTP services: see
//! `tower`. Both support any driver: the effect's transaction is a [`ClaimTransaction`], which is
//! implemented here for tokio-postgres.
//!
//! Other flows can combine the parts: [`Guard::begin`], [`Guard::complete`], [`Guard::release`],
//! [`Guard::run_renewing`], [`claim`] and [`find_claim`]. Complete after the COMMIT, never before.
//! Release after any failure, also after a COMMIT with an unknown outcome, because the next
//! attempt's claim waits for that transaction or finds its row. Dropping a lease frees its key.
//!
//! The page `docs/patterns/evidence-services.md` lists mistakes in published implementations, each
//! with the test that shows it.

mod attempt;
mod breaker;
mod cache_entry;
mod canonical;
mod claim_transaction;
mod claims;
mod connecting;
mod counts;
mod enter;
mod error;
mod guard;
mod in_flight;
mod lease;
mod redis_store;
mod request;
mod response;
mod scripts;
mod settings;
#[cfg(feature = "idempotency-tower")]
pub mod tower;

pub use attempt::{Attempt, Outcome};
pub use claim_transaction::{ClaimTransaction, Reservation};
pub use claims::{Claim, ExistingClaim, claim, clean_claims, find_claim};
pub use counts::Counts;
pub use error::IdempotencyError;
pub use guard::{BeginOutcome, Guard, OwnerUpdate};
pub use lease::Lease;
pub use request::{Fingerprint, Key, KeyRefusal, NotJson, Request};
pub use response::StoredResponse;
pub use settings::GuardSettings;
