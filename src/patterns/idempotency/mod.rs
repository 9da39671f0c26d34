//! The `Idempotency-Key` guard: one effect for many identical requests, for any HTTP framework.
//!
//! Invariant: of all requests with one key, at most one commits its effect. No request fails because
//! Redis is down.
//!
//! **Redis, the cache** ([`Guard`]): a key is absent, then PENDING with its owner's token, then
//! COMPLETED with the stored response. A lost key can cost a second execution, which is rolled back.
//!
//! **Postgres, the claims table** ([`claim`], [`find_claim`]): a unique key in the effect's
//! transaction decides. The second INSERT waits for the first transaction.
//!
//! [`Guard::execute`] is the whole flow. With the feature `idempotency-tower`, a layer does this
//! for HTTP services: see `tower`. Other drivers implement [`ClaimTransaction`].
//!
//! Other flows combine [`Guard::begin`], [`Guard::complete`], [`Guard::release`],
//! [`Guard::run_renewing`], [`claim`] and [`find_claim`]. Complete after the COMMIT, never before.
//! Release after any failure, also after a COMMIT with an unknown outcome.

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
