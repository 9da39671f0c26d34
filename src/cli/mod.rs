//! Placeholder of the room.

pub mod broker;
pub mod tail;
