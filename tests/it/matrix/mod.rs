//! Rows of the fault matrix (`fixtures/faults/matrix.toml`) that nothing else shows: a test each, named
//! after its row.

mod brokers;
mod host;
mod network;
mod servers;
mod takeover;
mod transactions;
