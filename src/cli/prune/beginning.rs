//! The beginning of a slot's stream, since which every row was delivered, from the progress in
//! Kafka.
//!
//! Invariant: the slot's position was read before the progress. The progress stays ahead of it as
//! long as the relay delivers from this slot, so a recreated slot is detected.

use tokio::runtime::Runtime;

use crate::failure::CommandFailure;
use crate::stream_position::{SlotPlace, StreamPosition, look};
use postrider_core::gate::GateError;
use postrider_core::progress::Since;
use postrider_postgres::control::Client;
use postrider_postgres::control::prune::SlotPosition;
use postrider_relay::{Plan, RelayError};

pub(crate) const UNKEPT: &str = "no progress is kept in Kafka";
const NONE: &str = "Kafka has no progress of it";
const BROKEN: &str = "its progress names no beginning, or tables or publication were changed since";

pub(super) fn known(
    plan: &Plan,
    runtime: &Runtime,
    client: &Client,
    position: &SlotPosition,
) -> Result<Result<Since, &'static str>, CommandFailure> {
    if !plan.keeps_progress() {
        let wanted = plan.requirements().map_err(RelayError::from)?;
        if position.slot == wanted.slot {
            runtime.block_on(look(client, &wanted))?;
        }
        return Ok(Err(UNKEPT));
    }
    let SlotPosition { confirmed, next_xid, .. } = *position;
    let place = SlotPlace { slot: position.slot.clone(), confirmed, next_xid };
    let stream = StreamPosition::after(place, plan, runtime, client)?;
    Ok(named_by(&stream).map_err(RelayError::from)?)
}

pub(crate) fn named_by(stream: &StreamPosition) -> Result<Result<Since, &'static str>, GateError> {
    if stream.progress.is_none() {
        return Ok(Err(NONE));
    }
    Ok(stream.since()?.ok_or(BROKEN))
}
