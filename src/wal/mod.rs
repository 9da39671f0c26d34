//! The replication connection: the only room that knows it.

mod frame;

pub use frame::Frame;
