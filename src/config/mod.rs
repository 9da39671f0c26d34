//! Placeholder of the room.

pub mod libpq;

pub use libpq::ConnectInfo;
