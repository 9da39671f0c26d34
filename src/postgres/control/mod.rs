//! SQL on the source database, beside the replication stream: checks, set-up, monitoring.
//!
//! Output: a checked database ([`preflight`]), the SQL of `postrider setup` ([`SetupPlan`]),
//! samples of the slot ([`sample`]), and others. Runs on tokio, not on the relay's own thread.
//! Nothing here moves the slot; only the stream acknowledges.

mod address;
mod authentication;
mod connect;
mod encoding;
mod error;
mod existing_rows;
mod failover;
mod grants;
mod health;
mod hint_text;
mod inspect;
mod left_copies;
mod log_end;
mod newest_rows;
mod outbox_table;
mod peek;
mod poll_setup;
mod preflight;
pub mod prune;
mod remedy;
mod requirements_check;
mod row_size;
mod setup;
mod slot;
mod slot_sample;
mod source_identity;
mod standby;
mod traced_rows;
mod unique_columns;

pub use crate::wal::RowColumn;
pub use address::{AddressError, LoginRefused, SqlAddress};
pub use connect::{Client, STATEMENT_LIMIT, connect};
pub use encoding::stream_encoding;
pub use error::ControlError;
pub use existing_rows::RowsBefore;
pub use failover::{
    FailoverAbout, FailoverFacts, FailoverFinding, FailoverFix, failover, failover_of_server,
    waits_for_standby,
};
pub use grants::LackingRights;
pub use health::{
    HealthFacts, IdleSlot, OpenTransaction, ServerLimits, SlotHealth, TableHealth, health,
    how_to_end, limit_waits, table_locks,
};
pub use hint_text::slot_of_database;
pub use inspect::{
    FAILOVER_SLOTS_SINCE, Inspection, NewSlot, Others, PartFacts, PublicationFacts, Published,
    Requirements, ServerFacts, TableFacts, inspect, server,
};
pub use left_copies::{LeftCopy, end_left_copies, left_copies};
pub use log_end::{LogEnd, log_end};
pub use newest_rows::{NewestRows, newest_rows};
pub use outbox_table::{DAYS_AHEAD, OutboxPartitions};
pub use peek::{PeekRequest, PeekedMessage, copy_to_peek, peek};
pub use poll_setup::{PollSetup, PollSetupMark};
pub use preflight::{SLOT_LIMIT_MS, no_free_slot, preflight, slot_blocked};
pub use requirements_check::{SourceWarning, WarningAbout};
pub use row_size::{UnboundedTable, unguarded};
pub use setup::{Became, Made, MadeSlot, SetupChoices, SetupPlan, SetupStep};
pub use slot::{SlotFacts, slot};
pub use slot_sample::{SlotSample, current_flush_lsn, held_sample, sample, slot_columns};
pub use source_identity::Known;
pub use standby::{Replay, StandbyError, replay};
pub use traced_rows::{RowSearch, TracedRow, TracedRows, rows_with_ids};
pub use unique_columns::{is_number, unique_columns};
