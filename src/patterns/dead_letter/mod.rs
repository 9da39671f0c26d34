//! Dead letters in their topics, the relay's and the consumers': found, and sent again.
//!
//! Enters: a dead-letter topic and a [`Filter`]. Leaves: [`DeadLetter`]s; or their records in the
//! topics they were meant for, and in the dead-letter topic a receipt for each. What always holds: key,
//! value and headers are kept byte for byte, so that a record that is sent again has its old id, and
//! the markers of all who took it still protect them. Every call blocks.
//!
//! [`DeadLetterTopic`] is any of these topics; `DeadLetters` is a consumer's own,
//! `<consumer>.dead-letters`, with what its markers demand:
//!
//! ```no_run
//! # //! # fn main() -> Result<(), postrider_patterns::dead_letter::DeadLetterError> {
//! # use std::time::Duration;
//! use postrider_patterns::dead_letter::{DeadLetters, Filter, Redrive, now_ms};
//!
//! let kafka = vec![("bootstrap.servers".to_owned(), "localhost:9092".to_owned())];
//! let letters = DeadLetters::new("payments", &kafka);
//! for letter in letters.list(&Filter::default())? {
//!     println!("{} {} {:?}", letter.at, letter.code, letter.header("id"));
//! }
//! let horizon = Duration::from_hours(7 * 24);
//! letters.redrive(&Filter::default(), &Redrive { horizon, force: false, now_ms: now_ms() })?;
//! # Ok(())
//! # }
//! ```

mod consumer;
mod error;
mod redrive;
mod topic;

use std::time::{SystemTime, UNIX_EPOCH};

pub use consumer::{DeadLetters, Redrive, Redriven, topic_of};
#[cfg(feature = "inbox")]
pub(crate) use consumer::{creation_of, kafka_of};
pub use error::DeadLetterError;
pub use error::listed;
pub use postrider_core::record::{
    ConsumerFailure, DeadLetter, Filter, Header, Origin, PartitionOffset, StoredRecord, Target,
};
pub use redrive::{Interrupt, Job, Pace};
pub use topic::{DeadLetterTopic, Keep, Survey};

/// The time of day in milliseconds since the Unix epoch, to be written down and compared with what
/// was written down.
pub fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
