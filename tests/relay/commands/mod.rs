//! Commands other than `run` that need servers, and the documents that show them.

mod bench;
mod containers;
mod demo;
mod progress;
mod readme;
mod setup;
mod setup_roles;
mod status;
mod tail;
mod terminal;
mod top;
mod trace;
