//! The core of Postrider: every decision about which row becomes which record, and which position
//! is acknowledged to Postgres.
//!
//! ```text
//!  Frame --> pgoutput --> Message --> outbox --> OutboxRow --> route --> Record | Rejection
//!                                                                          |  Ticket
//!  settled Lsn <---------------- ledger <--------------- Confirmation -----+
//! ```
//!
//! Nothing here reads a clock, a socket, a file or the environment, or starts a thread, so the
//! shipped code is simulated, fuzzed and replayed. A [`session`] drives a [`pipeline`];
//! [`transaction`] delivers exactly once; [`gate`] decides where a stream resumes; [`supervisor`]
//! decides what happens between sessions. G1 to G8 are the guarantees of docs/guarantees.md.
//!
//! ```
//! use std::convert::Infallible;
//!
//! use postrider_core::ledger::{Budget, Ledger};
//! use postrider_core::lsn::Lsn;
//!
//! let mut ledger = Ledger::new(Budget::default());
//! ledger.begin(Lsn::ZERO, 0)?;
//! let Ok(ticket) = ledger.send(300, |ticket| Ok::<_, Infallible>(ticket))?;
//! ledger.commit(Lsn::new(0x16_B374))?;
//! assert_eq!(ledger.settled(), Lsn::ZERO, "a record is unconfirmed");
//! ledger.confirm(ticket)?;
//! assert_eq!(ledger.settled(), Lsn::new(0x16_B374), "Postgres may be told");
//! # Ok::<(), postrider_core::ledger::LedgerError>(())
//! ```

#![warn(missing_docs)]

pub mod backoff;
pub mod frame;
pub mod gate;
mod json;
pub mod ledger;
pub mod lsn;
pub mod mutants;
pub mod outbox;
pub mod pgoutput;
pub mod pipeline;
pub mod progress;
pub mod record;
pub mod route;
pub mod session;
pub mod sink;
pub mod supervisor;
pub mod time;
pub mod transaction;
