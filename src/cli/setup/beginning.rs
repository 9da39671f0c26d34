//! Records in Kafka where the stream of a new slot begins, so that `prune` knows which rows the
//! slot has delivered.
//!
//! Invariant: the record is written while this command holds the slot, and only if nothing was
//! delivered yet. A relay that was faster records its own beginning.

use std::time::Duration;

use tokio::runtime::Runtime;

use crate::failure::CommandFailure;
use postrider_config::Delivery;
use postrider_core::lsn::Lsn;
use postrider_core::pipeline::Mark;
use postrider_core::progress::Since;
use postrider_kafka::{Lineage, Progress, fence_off, newest_progress, write_progress};
use postrider_postgres::control::{self, Inspection, MadeSlot};
use postrider_postgres::wal::{Class, Connection, SessionParams};
use postrider_relay::Plan;

const FINISH_LIMIT: Duration = Duration::from_secs(2);

pub(super) fn mark(
    relay: &Plan,
    runtime: &Runtime,
    ready: &Inspection,
    made: &MadeSlot,
) -> Result<(), CommandFailure> {
    let source = &relay.config.source;
    let client = runtime.block_on(control::connect(&source.connect))?;
    let mut connection = Connection::open(client.server(), &SessionParams::default())?;
    let identity = connection.identify_system()?;
    let process = connection.server_process()?;
    let (system, timeline) = (identity.system_id, identity.timeline);
    let mut lineage = Lineage { system, timeline, ..relay.lineage(ready) };
    let held = match connection.start(&source.slot, &source.publication, Lsn::ZERO) {
        Ok(held) => held,
        Err(refused) if refused.error.class() == Class::Held => return Ok(()),
        Err(refused) => return Err(refused.error.into()),
    };
    if relay.config.kafka.delivery == Delivery::ExactlyOnce {
        fence_off(&relay.kafka, &lineage)?;
    }
    let found = newest_progress(&relay.kafka, &lineage.key())?;
    if found.is_none_or(|found| found.mark == Mark::default()) {
        let sample = control::held_sample(&client, &source.slot, process);
        let sample = runtime.block_on(sample)?;
        // Without earlier rows, every row commits behind the slot's beginning.
        let xid = if made.left_behind.is_empty() { 0 } else { sample.next_xid };
        lineage.since = Some(Since::first(sample.confirmed_flush, xid));
        write_progress(&relay.kafka, &Progress { lineage, mark: Mark::default(), backfill: None })?;
    }
    let _ = held.finish(FINISH_LIMIT);
    Ok(())
}
