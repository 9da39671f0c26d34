//! Utilities of a long-running service.
//!
//! ```
//! use std::time::{Duration, Instant};
//!
//! use postrider_service::backoff::{Backoff, draw};
//! use postrider_service::log_throttle::LogThrottle;
//!
//! let pause = Backoff::default().wait(3, draw());
//! assert!((Duration::from_millis(200)..=Duration::from_millis(400)).contains(&pause));
//!
//! let mut throttle = LogThrottle::default();
//! let now = Instant::now();
//! assert_eq!(throttle.admit("cannot reach Kafka; retrying", now), Some(0));
//! assert_eq!(throttle.admit("cannot reach Kafka; retrying", now), None, "said a moment ago");
//! ```

pub mod backoff;
#[cfg(feature = "http")]
pub mod http;
pub mod log_throttle;
#[cfg(feature = "http")]
pub mod prometheus;
pub mod shell;
pub mod units;
