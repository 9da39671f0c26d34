//! Every committed row arrives, in commit order, and is acknowledged only then (G1, G2, G3, G5, G6): on
//! good days, from a backlog, and while the relay is killed or the machine withholds something.
//!
//! `acknowledgements`, `restarts` and `slots` are how others lost rows, ticket by ticket: eleven of
//! Debezium's Postgres connector (which is much used and honestly documented), and those in which clients
//! of the replication protocol acknowledged too much or too little. Each is a test, by its name; where
//! theirs needs a snapshot, which this relay does not take, ours is the nearest thing it has: the
//! hand-over from "before the slot" to "after the slot".
//!
//! What only `fixtures/faults/matrix.toml` asks for is built with the feature `faults` alone.

#[cfg(feature = "faults")]
mod acknowledgements;
pub(crate) mod backlog;
mod crash;
mod disturbed;
#[cfg(feature = "faults")]
mod drawn;
mod encodings;
mod exactly;
#[cfg(feature = "failpoints")]
mod failpoints;
mod flow;
#[cfg(feature = "faults")]
mod held;
#[cfg(feature = "faults")]
mod host;
mod hostile;
pub(crate) mod idle;
mod large;
mod once;
mod partitions;
#[cfg(feature = "faults")]
mod restarts;
mod rolled_back;
#[cfg(feature = "faults")]
mod slots;
mod transactions;
#[cfg(feature = "faults")]
mod unusual;
mod window_sessions;
mod windows;
