//! The fault proxy itself: each lever does to real connections what it says; and what a relay makes of
//! those that only exactly-once delivery minds.

mod bytes;
mod ends;
mod relay;
mod statuses;
