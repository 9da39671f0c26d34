//! Reads the dead-letter topics of the relay and of consumers, and redrives dead letters (sends
//! them again).
//!
//! Each redriven letter gets a receipt in the dead-letter topic. Invariant: key, value and original
//! headers are kept byte for byte, so a consumer recognises a record that it has processed. Every
//! call blocks.
//!
//! [`DeadLetterTopic`] is any of these topics. `DeadLetters` is a consumer's
//! `<consumer>.dead-letters`, with a check of the markers' age:
//!
//! ```no_run
//! # fn main() -> Result<(), postrider_patterns::dead_letter::DeadLetterError> {
//! # use std::time::Duration;
//! use postrider_patterns::dead_letter::{DeadLetters, Filter, RedriveOptions, now_ms};
//!
//! let kafka = vec![("bootstrap.servers".to_owned(), "localhost:9092".to_owned())];
//! let letters = DeadLetters::new("payments", &kafka);
//! for letter in letters.list(&Filter::default())? {
//!     println!("{} {} {:?}", letter.at, letter.code, letter.header("id"));
//! }
//! let horizon = Duration::from_hours(7 * 24);
//! letters.redrive(&Filter::default(), &RedriveOptions { horizon, force: false, now_ms: now_ms() })?;
//! # Ok(())
//! # }
//! ```

mod consumer;
mod error;
mod redrive;
mod topic;

use std::time::{SystemTime, UNIX_EPOCH};

pub use consumer::{DeadLetters, Pending, RedriveOptions, Redriven, topic_of};
#[cfg(feature = "inbox")]
pub(crate) use consumer::{create_command, kafka_of};
pub use error::DeadLetterError;
pub use error::listed;
pub use postrider_core::record::{
    ConsumerFailure, DeadLetter, DeadLetterOrigin, Filter, Header, PartitionOffset, StoredRecord,
    Target,
};
pub use redrive::{Interrupt, Job, RedriveControl};
pub use topic::{DeadLetterTopic, Keep, Survey};

/// Wall-clock time in milliseconds since the Unix epoch.
pub fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
