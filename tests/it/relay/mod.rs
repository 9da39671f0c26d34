//! The running relay between real servers: what it promises, one guarantee after the other, while
//! its peers and itself are stopped, killed and cut off.
//!
//! [`stage::Stage`] is one test's database, slot and topics; [`load::Load`] writes while the test
//! does something cruel; `support::judge` says what came of it.

mod absent;
mod backlog;
#[cfg(feature = "faults")]
mod codes;
mod crash;
mod dead_end;
mod encodings;
mod exactly;
#[cfg(feature = "failpoints")]
mod failpoints;
mod flow;
mod grown;
mod http;
pub(crate) mod idle;
mod kept;
mod large;
pub(crate) mod load;
mod names;
mod once;
mod one_server;
mod outage;
mod owed;
mod partitions;
mod refused;
mod rejected;
mod remarks;
mod renamed;
mod reserved;
mod server;
mod severed;
mod shutdown;
mod silence;
pub(crate) mod stage;
mod standby;
pub(crate) mod trial;
mod untimely;
