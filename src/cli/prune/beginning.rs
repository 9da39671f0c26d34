//! Since when a slot has delivered every row, as the progress in Kafka shows it.
//!
//! Input: the slot's position, the source, and the newest progress of the slot. Output: the beginning of its
//! stream; or why nothing shows it; or what the relay's gate refuses, such as a slot that is ahead of the progress.
//! Invariant: the slot's position was read before the progress, which is ahead of it as long as the slot is the
//! one that the relay delivers from; so a slot that was made anew is found out, however it was made.

use tokio::runtime::Runtime;

use crate::failure::CommandFailure;
use crate::stream_position::{SlotPlace, StreamPosition, look};
use postrider_core::gate::GateError;
use postrider_core::progress::Since;
use postrider_postgres::control::Client;
use postrider_postgres::control::prune::SlotPosition;
use postrider_relay::{Plan, RelayError};

/// Of a relay that keeps none.
pub(crate) const UNKEPT: &str = "no progress is kept in Kafka";
const NONE: &str = "Kafka has no progress of it";
const BROKEN: &str = "its progress names no beginning, or tables or publication were changed since";

/// The beginning, or why it is not known.
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

/// The beginning that the progress names, or why it names none.
pub(crate) fn named_by(stream: &StreamPosition) -> Result<Result<Since, &'static str>, GateError> {
    if stream.progress.is_none() {
        return Ok(Err(NONE));
    }
    Ok(stream.since()?.ok_or(BROKEN))
}
