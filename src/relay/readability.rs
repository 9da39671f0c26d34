//! Finds out whether the slot of a plan can be read on, for `repair` and `doctor`.
//!
//! Input: a plan, and the database as it was inspected. Output: a [`Readability`]; of a slot that does not exist or is lost
//! nothing is asked. Invariant: nothing is acknowledged.

use std::time::{Duration, Instant};

use crate::blocking::run_blocking;
use crate::error::RelayError;
use crate::plan::Plan;
use postrider_config::Config;
use postrider_postgres::control::{Client, Inspection, SlotFacts};
use postrider_postgres::wal::{LogProbe, Readability, SessionParams};

/// Reads the slot's log, or the part of it that can be read in this time. The slot stays free.
pub async fn slot_readability(
    plan: &Plan,
    client: &Client,
    inspection: &Inspection,
    limit: Duration,
) -> Result<Readability, RelayError> {
    let mut config = plan.config.clone();
    config.source.connect = client.server().clone();
    let params = plan.session_params(client, inspection).await?;
    let slot = inspection.slot.clone();
    run_blocking(move || {
        let began = Instant::now();
        readability(&config, &params, slot.as_ref(), (false, &|| began.elapsed() < limit))
    })
    .await?
}

/// The same on this thread. The slot itself may be taken for it.
pub(super) fn readability(
    config: &Config,
    params: &SessionParams,
    slot: Option<&SlotFacts>,
    (takes_slot, goes_on): (bool, &dyn Fn() -> bool),
) -> Result<Readability, RelayError> {
    if slot.is_none_or(|slot| slot.is_lost() || slot.is_unfinished()) {
        return Ok(Readability::Unknown("the slot cannot be read from".to_owned()));
    }
    let source = &config.source;
    let probe = LogProbe {
        server: &source.connect,
        params,
        slot: &source.slot,
        publication: &source.publication,
        takes_slot,
    };
    Ok(probe.run(goes_on)?)
}
