//! The fault proxy itself: each lever does to real connections what it says.

mod bytes;
mod ends;
mod statuses;
