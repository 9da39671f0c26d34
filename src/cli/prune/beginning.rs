//! Since when a slot has delivered every row, as the progress in Kafka shows it.
//!
//! Input: the slot's position, the source, and the newest progress of the slot. Output: the beginning of its
//! stream; or why nothing shows it; or what the relay's gate refuses, such as a slot that is ahead of the progress.
//! Invariant: the slot's position was read before the progress, which is ahead of it as long as the slot is the
//! one that the relay delivers from; so a slot that was made anew is found out, however it was made.

use tokio::runtime::Runtime;

use crate::failure::CommandFailure;
use postrider_core::gate::{Facts, judge, unbroken};
use postrider_core::progress::Since;
use postrider_core::route::PROGRESS_PREFIX;
use postrider_kafka::{KafkaSpec, Lineage, newest_progress};
use postrider_postgres::control::prune::{PruneError, SlotPosition, publication_name};
use postrider_postgres::control::{Client, ControlError, Inspection, Requirements, inspect};
use postrider_relay::{GateError, Plan, RelayError};

const UNKEPT: &str = "no progress is kept in Kafka";
const NONE: &str = "Kafka has no progress of it";
const BROKEN: &str = "its progress names no beginning, or tables or publication were changed since";

/// The beginning, or why it is not known.
pub(crate) fn known(
    plan: &Plan,
    runtime: &Runtime,
    client: &Client,
    position: &SlotPosition,
) -> Result<Result<Since, &'static str>, CommandFailure> {
    let slot = &position.slot;
    let wanted = plan.requirements().map_err(RelayError::from)?;
    let is_own = *slot == wanted.slot;
    let wanted = Requirements { slot: slot.clone(), ..wanted };
    if !plan.keeps_progress() {
        if is_own {
            runtime.block_on(look(client, &wanted))?;
        }
        return Ok(Err(UNKEPT));
    }
    let server = runtime.block_on(inspect(client, &wanted))?.server;
    let Some((system, _)) = server.system else {
        return Err(PruneError::SystemUnknown { role: server.role }.into());
    };
    let stream =
        Lineage { system, database: server.database, slot: slot.clone(), ..Lineage::default() };
    let kafka = KafkaSpec { progress_topic: topic(plan, slot), ..plan.kafka.clone() };
    let Some(progress) = newest_progress(&kafka, &stream.key())? else {
        return Ok(Err(NONE));
    };
    // Another relay's publication is known by what its progress says.
    let publication = if is_own || progress.lineage.publication == 0 {
        wanted.publication.clone()
    } else {
        let name = publication_name(client, progress.lineage.publication);
        runtime.block_on(name)?.ok_or_else(|| {
            let (slot, delivered) = (slot.clone(), progress.mark.end);
            RelayError::from(GateError::PublicationReplaced { slot, delivered })
        })?
    };
    let wanted = Requirements { publication, ..wanted };
    let inspection = runtime.block_on(look(client, &wanted))?;
    let SlotPosition { timeline, confirmed, current, next_xid, .. } = *position;
    let facts = Facts {
        lineage: Lineage {
            system: stream.system,
            slot: stream.slot,
            timeline,
            ..plan.lineage(&inspection)
        },
        server: current,
        confirmed,
        exactly_once: true,
        publication: wanted.publication,
        next_xid,
        ..Facts::default()
    };
    let resume = judge(&facts, Some(&progress)).map_err(RelayError::from)?;
    Ok(unbroken(&facts, &progress, &resume).ok_or(BROKEN))
}

/// Where the relay of that slot keeps progress: in a topic that all slots share, or in its own.
fn topic(plan: &Plan, slot: &str) -> String {
    let named = |slot: &str| format!("{PROGRESS_PREFIX}{slot}");
    let configured = plan.kafka.progress_topic.as_str();
    if configured == named(&plan.config.source.slot) { named(slot) } else { configured.to_owned() }
}

/// The source, unless a relay would refuse it: rows of it would not be delivered. Only a relay needs REPLICATION.
async fn look(client: &Client, wanted: &Requirements) -> Result<Inspection, ControlError> {
    let inspection = inspect(client, wanted).await?;
    let is_right =
        |refusal: &ControlError| matches!(refusal, ControlError::RoleMayNotReplicate { .. });
    match inspection.refusals(wanted).into_iter().find(|refusal| !is_right(refusal)) {
        Some(refusal) => Err(refusal),
        None => Ok(inspection),
    }
}
