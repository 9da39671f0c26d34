//! The `Idempotency-Key` guard: one effect for many identical requests. Independent of any HTTP framework.
//!
//! Input: a [`Request`]: a scope, the client's key and a fingerprint of what it asks for; and its effect,
//! which returns a [`StoredResponse`]. Output: [`Outcome`], what the client gets; or of the parts
//! [`BeginOutcome`], whether to execute, wait, replay or refuse, and [`Claim`], whether the effect may happen. Invariant: of all requests with one key at most one commits its effect,
//! since [`claim`] inserts a row with a unique key in the same transaction; a key that Redis loses can cost
//! a second execution that is rolled back, never a second effect. No request fails because Redis is down.
//!
//! # Two halves
//!
//! **Redis, the cache** ([`Guard`]): absent, then PENDING with its owner's token and a time to live, then
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
//! [`Guard::execute`] is the whole flow: it begins, waits or replays, runs the effect and the claim in one
//! transaction, commits, caches the response, and frees the key after a failure. Its example is an endpoint.
//! With the feature `idempotency-tower` a layer does it for HTTP services: see `tower`. Both serve any driver: the
//! effect's transaction is a [`ClaimTransaction`], which is implemented here for tokio-postgres.
//!
//! Below are the parts, for flows of another shape: [`Guard::begin`], [`Guard::complete`],
//! [`Guard::release`], [`Guard::run_renewing`], [`claim`] and [`find_claim`]. Whoever puts them together keeps
//! to this: complete after the COMMIT, never before; release after any failure, also after a COMMIT whose outcome
//! is not known, since the next attempt's claim waits for that transaction or finds its row. A lease that is
//! dropped frees its key.
//!
//! The mistakes that published versions of this make, each with the test that shows it:
//! `docs/patterns/evidence-services.md`.

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
