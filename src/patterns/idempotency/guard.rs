//! The guard in front: who may work on a key, who waits, who gets the answer again.
//!
//! ```text
//!            begin: New                      complete by the owner
//!  absent ---------------> PENDING(token) ----------------------------> COMPLETED(answer or pointer)
//!    ^                        |  |                                           |
//!    +------------------------+  +-- renew by the owner: more time           |
//!    |   release by the owner,                                               |
//!    |   or its time is over                                                 |
//!    +---------------------------------------- its time is over -------------+
//! ```
//!
//! Enters: a [`Request`], a [`Permit`], an [`Answer`]. Leaves: [`Begun`], [`Completed`]. What always
//! holds: who is not the owner changes nothing; each call is one round trip, and none where Redis is
//! passed over; nothing here fails.

use std::convert::Infallible;
use std::time::Duration;

use super::answer::Answer;
use super::counts::{Counts, Tally, count};
use super::error::IdempotencyError;
use super::held::Held;
use super::redis_side::{Permit, RedisSide, Said, Settings};
use super::request::Request;

/// What to do with a request.
#[derive(Debug)]
pub enum Begun {
    /// It is the first: work, then [`Guard::complete`].
    New(Permit),
    /// The same request is at work: 409, come again.
    Pending {
        /// For the Retry-After header.
        retry_after: Duration,
    },
    /// It was answered already.
    Replay(Answer),
    /// The key belongs to another request: 422.
    Mismatch,
    /// Redis cannot say: [`look_up`](super::look_up) in Postgres; if that knows nothing either, work
    /// without a permit. It is as safe, only slower for those who come at the same time: they wait in
    /// [`claim`](super::claim) for each other.
    Unsure,
}

/// What became of the owner's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Completed {
    /// Redis did as it was told.
    Done,
    /// The time was over, and another may have begun since. Nothing was changed; what Postgres holds
    /// is valid.
    Stale,
    /// Redis did not answer. The key is free again when its time is over; until then a client may be
    /// told to wait.
    Unsure,
}

/// The Redis side of idempotency, or the lack of one. Share it: all of its calls take `&self`.
#[derive(Debug)]
pub struct Guard {
    redis: Option<RedisSide>,
    tally: Tally,
}

impl Guard {
    /// A guard in front of which stands the Redis at `url`. Returns at once, whether or not Redis is
    /// there, and connects meanwhile; must be called inside a tokio runtime. Errors:
    /// [`IdempotencyError::Url`], [`IdempotencyError::Settings`].
    pub fn connect(url: &str, settings: &Settings) -> Result<Self, IdempotencyError> {
        Ok(Self { redis: Some(RedisSide::connect(url, settings)?), tally: Tally::default() })
    }

    /// A guard that leaves everything to Postgres: always [`Begun::Unsure`].
    pub fn without_redis() -> Self {
        Self { redis: None, tally: Tally::default() }
    }

    /// Asks for the right to work.
    ///
    /// If the caller goes away while it waits, the key may be PENDING without an owner, until its time
    /// is over.
    pub async fn begin(&self, request: &Request) -> Begun {
        let begun = self.ask(request).await.unwrap_or(Begun::Unsure);
        count(match &begun {
            Begun::New(_) => &self.tally.new,
            Begun::Pending { .. } => &self.tally.pending,
            Begun::Replay(_) => &self.tally.replayed,
            Begun::Mismatch => &self.tally.mismatched,
            Begun::Unsure => &self.tally.unsure,
        });
        begun
    }

    async fn ask(&self, request: &Request) -> Option<Begun> {
        let redis = self.redis.as_ref()?;
        let value = match redis.begin(request).await? {
            Said::New(permit) => return Some(Begun::New(permit)),
            Said::Held(value) => value,
        };
        Some(match Held::read(value, request.fingerprint()) {
            Held::Pending => Begun::Pending { retry_after: redis.settings().retry_after },
            Held::Completed(answer) => Begun::Replay(answer),
            Held::Mismatch => Begun::Mismatch,
            Held::Pointer | Held::Garbage => Begun::Unsure,
        })
    }

    /// Hands in the answer that the owner's transaction committed, or found committed by another. Call
    /// it after the COMMIT, never before.
    pub async fn complete(&self, permit: &Permit, answer: &Answer) -> Completed {
        let Some(redis) = &self.redis else { return Completed::Unsure };
        self.judge(redis.complete(permit, answer).await)
    }

    /// Asks for more time. [`Guard::hold`] does it by itself.
    pub async fn renew(&self, permit: &Permit) -> Completed {
        let Some(redis) = &self.redis else { return Completed::Unsure };
        self.judge(redis.renew(permit).await)
    }

    /// Gives the key back after a failure without effect, so that the client's next attempt need not
    /// wait. Not after a COMMIT whose outcome is unknown.
    pub async fn release(&self, permit: &Permit) -> Completed {
        let Some(redis) = &self.redis else { return Completed::Unsure };
        self.judge(redis.release(permit).await)
    }

    /// Runs the work, and asks for more time at every third of it, so that two renewals may fail.
    ///
    /// Work that was overtaken is not cut off: half a COMMIT away nobody could say what it did, and
    /// [`claim`](super::claim) settles who was first. The work should not block its thread, or nothing
    /// is renewed.
    pub async fn hold<F: Future>(&self, permit: &Permit, work: F) -> F::Output {
        tokio::select! {
            biased;
            output = work => output,
            never = self.keep_renewing(permit) => match never {},
        }
    }

    /// Numbers since the guard was made.
    pub fn counts(&self) -> Counts {
        self.tally.snapshot()
    }

    async fn keep_renewing(&self, permit: &Permit) -> Infallible {
        if let Some(redis) = &self.redis {
            let third = redis.settings().pending_ttl / 3;
            loop {
                tokio::time::sleep(third).await;
                if self.renew(permit).await == Completed::Stale {
                    break;
                }
            }
        }
        std::future::pending().await
    }

    fn judge(&self, was_owner: Option<bool>) -> Completed {
        match was_owner {
            Some(true) => Completed::Done,
            Some(false) => {
                count(&self.tally.stale);
                Completed::Stale
            }
            None => Completed::Unsure,
        }
    }
}
