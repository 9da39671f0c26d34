//! The source: logging in, the stream, the checks before it, and a server that stops, moves or changes.

mod barred;
mod control;
mod direct;
#[cfg(feature = "faults")]
mod disasters;
mod failover;
mod failover_slot;
mod issued;
mod login;
#[cfg(feature = "faults")]
mod network;
mod one_server;
mod pair;
mod promotion;
mod remarks;
mod renamed;
mod rotation;
mod server;
mod severed;
mod silence;
mod standby;
mod stream;
