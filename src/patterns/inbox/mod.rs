//! An idempotent Kafka consumer: each message has its effects once, however often it is delivered.
//!
//! Input: records of Kafka topics in the relay's format, and [`Effects`]. Output: the effects and
//! offsets in Postgres; dead letters.
//!
//! Invariants:
//!
//! * A message's marker is a row in `processed_messages`, committed together with the message's
//!   effects, their outbox rows, and the partition's offset in `consumer_offsets`.
//! * The markers' unique index decides between two consumers with one message.
//! * Kafka's offset follows the commit. If the database has less, it gets the missing messages
//!   again.
//! * Redis, if configured, caches only committed messages.
//!
//! ```no_run
//! use postrider_patterns::inbox::{Consumer, ConsumerSpec, Effects, Failure, Interest, Message, Prepared};
//! use tokio_postgres::Transaction;
//!
//! static DUE: Prepared =
//!     Prepared::new("INSERT INTO payments (order_id, total, status) VALUES ($1, $2, $3)");
//!
//! #[derive(serde::Deserialize)]
//! struct OrderCreated {
//!     total: i64,
//! }
//!
//! struct Payments;
//!
//! impl Effects for Payments {
//!     fn interest(&self, event_type: &str) -> Interest {
//!         match event_type {
//!             "OrderCreated" => Interest::Handle,
//!             "OrderShipped" => Interest::Ignore,
//!             _ => Interest::Unknown,
//!         }
//!     }
//!
//!     async fn apply(&self, tx: &Transaction<'_>, message: &Message) -> Result<(), Failure> {
//!         // A payload that is something else is poison: a dead letter, which says where it is wrong.
//!         let OrderCreated { total } = message.parse()?;
//!         // Too expensive is a result like any other.
//!         let status = if total > 100_000 { "refused" } else { "due" };
//!         tx.execute(&DUE.of(tx).await?, &[&message.aggregate_id, &total, &status]).await?;
//!         Ok(())
//!     }
//! }
//!
//! # async fn shop(database: tokio_postgres::Config) -> Result<(), postrider_patterns::inbox::InboxError> {
//! let spec = ConsumerSpec::new("payments", ["orders"], "localhost:9092", database);
//! let stop = async { drop(tokio::signal::ctrl_c().await) };
//! let totals = Consumer::new(spec, Payments)?.run(stop).await?;
//! println!("{} messages", totals.processed);
//! # Ok(())
//! # }
//! ```

mod assignments;
mod attribution;
mod batch;
mod cache;
mod consumer;
mod counters;
mod dlq_publisher;
mod effects;
mod error;
mod group;
mod lag;
mod markers;
mod membership;
mod message;
mod offsets;
mod ordering;
mod prepared;
mod retention;
mod retries;
mod sequence;
mod session;
mod spec;
mod sqlstate;
mod start;
mod status;
mod stop;
mod upkeep;
mod xact;

pub use consumer::Consumer;
pub use counters::{ConsumerCounters, ConsumerSnapshot};
pub use effects::{Effects, Failure, Interest};
pub use error::InboxError;
pub use message::{
    InvalidMessage, KeyFormat, Message, MessageFormat, TEXT_ID_NAMESPACE, ValueFormat,
};
pub use postrider_service::backoff::Backoff;
pub use prepared::Prepared;
pub use retention::{RetentionError, TopicRetention, topic_retention};
pub use sequence::{GapPolicy, SequenceSpec, SequenceStart};
pub use spec::{CacheSpec, ConsumerSpec};
pub use sqlstate::describe;
pub use status::{ConsumerStatus, FailingMessage, UnpublishedLetter};
