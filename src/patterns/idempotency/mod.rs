//! The `Idempotency-Key` guard: one effect for many identical requests.
//!
//! Enters: a [`Request`], which is a scope, the client's key and a fingerprint of what it asks for;
//! later the [`Answer`] it got. Leaves: [`Begun`], which says whether to work, to wait, to replay or
//! to refuse, and [`Claim`], which says whether the effect may happen. What always holds: of all
//! requests with one key at most one commits its effect, because [`claim`] writes a row with a unique
//! key in the very transaction of the effect; whatever Redis loses, forgets or doubles can cost a
//! second execution that is rolled back, never a second effect. Trouble with Redis stops no request.
//! Knows no HTTP framework.
//!
//! # Two halves
//!
//! **Redis, in front** ([`Guard`]): absent, then PENDING with a fencing token and a time to live, then
//! COMPLETED with the answer. It turns most duplicates away in one round trip, and tells those that
//! come while the first is at work to wait. It is a cache and a courtesy. A guard without Redis works.
//!
//! **Postgres, the truth** ([`claim`], [`look_up`]): the time to live that frees the key of a crashed
//! owner also frees the key of one that was only slow, so two may execute at once, and so they may
//! after a flush or a failover. The unique key decides between them: the second INSERT waits until
//! the first transaction has ended, then finds the row, or takes its place if it was rolled back.
//!
//! # Use
//!
//! ```no_run
//! use postrider_patterns::idempotency::{
//!     Answer, Begun, Claim, Guard, IdempotencyError, Known, Request, claim, look_up,
//! };
//!
//! /// What the HTTP layer turns into 201 (or the replay of it), 409 with Retry-After, 422.
//! enum Reply { Answer(Answer), Wait(std::time::Duration), Mismatch }
//!
//! async fn place(
//!     guard: &Guard,
//!     client: &mut tokio_postgres::Client,
//!     request: &Request,
//! ) -> Result<Reply, IdempotencyError> {
//!     let permit = match guard.begin(request).await {
//!         Begun::New(permit) => Some(permit),
//!         Begun::Pending { retry_after } => return Ok(Reply::Wait(retry_after)),
//!         Begun::Replay(answer) => return Ok(Reply::Answer(answer)),
//!         Begun::Mismatch => return Ok(Reply::Mismatch),
//!         Begun::Unsure => match look_up(client, request).await? {
//!             Some(Known::Done(answer)) => return Ok(Reply::Answer(answer)),
//!             Some(Known::Mismatch) => return Ok(Reply::Mismatch),
//!             None => None,
//!         },
//!     };
//!     let work = effect(client, request);
//!     let claimed = match &permit {
//!         Some(permit) => guard.hold(permit, work).await,
//!         None => work.await,
//!     };
//!     match (claimed, permit) {
//!         (Ok((Claim::Won, answer)) | Ok((Claim::Done(answer), _)), permit) => {
//!             if let Some(permit) = permit {
//!                 // Told that it is stale, it still answers what Postgres holds.
//!                 guard.complete(&permit, &answer).await;
//!             }
//!             Ok(Reply::Answer(answer))
//!         }
//!         (Ok((Claim::Mismatch, _)), permit) => {
//!             if let Some(permit) = permit {
//!                 guard.release(&permit).await;
//!             }
//!             Ok(Reply::Mismatch)
//!         }
//!         // After an error of COMMIT nobody knows: the key stays PENDING until its time is over, and
//!         // the client's next attempt finds out from Postgres.
//!         (Err(error), _) => Err(error),
//!     }
//! }
//!
//! async fn effect(
//!     client: &mut tokio_postgres::Client,
//!     request: &Request,
//! ) -> Result<(Claim, Answer), IdempotencyError> {
//!     let id = uuid::Uuid::now_v7();
//!     let headers = vec![("location".to_owned(), format!("/orders/{id}"))];
//!     let answer = Answer::new(201, headers, format!("{{\"id\":\"{id}\"}}"))?;
//!     let transaction = client.transaction().await?;
//!     let claimed = claim(&transaction, request, &answer).await?;
//!     if claimed == Claim::Won {
//!         transaction.execute("INSERT INTO orders (id) VALUES ($1)", &[&id]).await?;
//!         transaction.commit().await?;
//!     }
//!     Ok((claimed, answer))
//! }
//! ```
//!
//! The mistakes that published versions of this make, each with the test that shows it:
//! `docs/patterns/idempotency-key.md`.

mod answer;
mod breaker;
mod counts;
mod error;
mod guard;
mod held;
mod redis_side;
mod request;
mod scripts;
mod truth;

pub use answer::Answer;
pub use counts::Counts;
pub use error::IdempotencyError;
pub use guard::{Begun, Completed, Guard};
pub use redis_side::{Permit, Settings};
pub use request::{Fingerprint, Key, KeyRefusal, Request};
pub use truth::{Claim, Known, claim, look_up};
