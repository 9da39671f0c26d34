//! Messages that a consumer could not take, set aside with the reason.
//!
//! Enters: a record and its [`Grounds`], from `inbox`. Leaves: a record in the consumer's own topic,
//! `<consumer>.dead-letters`; [`DeadLetters`] lists them and sends them again. What always holds:
//! key, value and headers are kept byte for byte, so that a record that is sent again bears its old
//! id, and the markers of all who took it still protect them. Called by `inbox` and `shop`.
//!
//! ```no_run
//! use postrider::dead_letter::{DeadLetters, Filter, Redrive, now_ms};
//! # use std::time::Duration;
//!
//! # fn main() -> Result<(), postrider::dead_letter::DeadLetterError> {
//! let kafka = vec![("bootstrap.servers".to_owned(), "localhost:9092".to_owned())];
//! let letters = DeadLetters::new("payments", kafka);
//! for letter in letters.list(&Filter::default())? {
//!     println!("{} {} {:?}", letter.place, letter.grounds.code, letter.header("id"));
//! }
//! let horizon = Duration::from_hours(7 * 24);
//! letters.redrive(&Filter::default(), &Redrive { horizon, force: false, now_ms: now_ms() })?;
//! # Ok(())
//! # }
//! ```

mod courier;
mod error;
mod letter;
mod office;
mod place;
mod record;
mod topic;

use std::time::{SystemTime, UNIX_EPOCH};

#[cfg(feature = "inbox")]
pub(crate) use courier::{Courier, Parcel, is_too_large, valueless};
pub use error::DeadLetterError;
pub use letter::{
    ATTEMPTS_HEADER, CONSUMER_HEADER, CUT_HEADER, ERROR_CODE_HEADER, ERROR_HEADER, FAILED_HEADER,
    FIRST_FAILED_HEADER, Grounds, Letter, OFFSET_HEADER, PARTITION_HEADER, RETRIED_HEADER,
    TOPIC_HEADER,
};
#[cfg(feature = "inbox")]
pub(crate) use letter::{Cut, headers};
pub use office::{DeadLetters, Redrive, Redriven, topic_of};
pub use place::Place;
pub use record::{Header, Record};
pub use topic::Filter;

#[cfg(feature = "inbox")]
pub(crate) use crate::log_throttle::LogThrottle as Reminder;

/// The time of day in milliseconds since the Unix epoch, to be written down and compared with what
/// was written down.
pub fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
