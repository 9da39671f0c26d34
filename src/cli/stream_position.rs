//! Decides, without taking the slot, if a stream can continue from its slot; for `prune` and
//! `doctor`.
//!
//! Invariant: slot, progress and end of the log are read in this order. A live relay advances all
//! three, the slot behind the progress and the progress behind the log. So none can falsely appear
//! ahead of the next.

use tokio::runtime::Runtime;

use crate::failure::CommandFailure;
use postrider_core::gate::{Facts, GateError, Resume, judge, unbroken};
use postrider_core::lsn::Lsn;
use postrider_core::progress::{Progress, Since};
use postrider_core::route::PROGRESS_PREFIX;
use postrider_kafka::{KafkaSpec, Lineage, newest_progress};
use postrider_postgres::control::prune::{PruneError, publication_name};
use postrider_postgres::control::{
    Client, ControlError, Inspection, Requirements, ServerFacts, inspect, log_end, server,
};
use postrider_postgres::wal::{Connection, SessionParams};
use postrider_relay::{Plan, RelayError};

#[derive(Debug, Clone)]
pub(crate) struct SlotPlace {
    pub(crate) slot: String,
    pub(crate) confirmed: Lsn,
    pub(crate) next_xid: u64,
}

#[derive(Debug)]
pub(crate) struct StreamPosition {
    facts: Facts,
    pub(crate) progress: Option<Progress>,
}

impl StreamPosition {
    /// Asks Kafka, then the server. Refuses a source that a relay refuses.
    pub(crate) fn after(
        place: SlotPlace,
        plan: &Plan,
        runtime: &Runtime,
        client: &Client,
    ) -> Result<Self, CommandFailure> {
        let wanted = plan.requirements().map_err(RelayError::from)?;
        let is_own = place.slot == wanted.slot;
        let wanted = Requirements { slot: place.slot.clone(), ..wanted };
        let stream = stream(&runtime.block_on(server(client))?, &place.slot)?;
        let progress = progress(plan, &stream)?;
        let SlotPlace { slot, confirmed, next_xid } = place;
        let facts = Facts { confirmed, next_xid, ..Facts::default() };
        let Some(progress) = progress else {
            if is_own {
                runtime.block_on(look(client, &wanted))?;
            }
            return Ok(Self { facts: Facts { lineage: stream, ..facts }, progress });
        };
        // Another relay's publication is known from its progress.
        let publication = if is_own || progress.lineage.publication == 0 {
            wanted.publication.clone()
        } else {
            let name = publication_name(client, progress.lineage.publication);
            runtime.block_on(name)?.ok_or_else(|| {
                let delivered = progress.mark.end;
                RelayError::from(GateError::PublicationReplaced { slot, delivered })
            })?
        };
        let wanted = Requirements { publication, ..wanted };
        let inspection = runtime.block_on(look(client, &wanted))?;
        let end = runtime.block_on(log_end(client))?;
        let mut facts = Facts {
            lineage: Lineage {
                system: stream.system,
                slot: stream.slot,
                ..plan.lineage(&inspection)
            },
            server: end.lsn,
            publication: wanted.publication,
            ..facts
        };
        match end.timeline {
            Some(timeline) if timeline == progress.lineage.timeline => {
                facts.lineage.timeline = timeline;
            }
            // Reading a timeline's history requires REPLICATION.
            _ => descent(client, &mut facts)?,
        }
        Ok(Self { facts, progress: Some(progress) })
    }

    pub(crate) fn judge(&self, exactly_once: bool) -> Result<Resume, GateError> {
        judge(&Facts { exactly_once, ..self.facts.clone() }, self.progress.as_ref())
    }

    /// Since when no row was left out, if the stream can continue.
    pub(crate) fn since(&self) -> Result<Option<Since>, GateError> {
        let resume = self.judge(true)?;
        let progress = self.progress.as_ref();
        Ok(progress.and_then(|progress| unbroken(&self.facts, progress, &resume)))
    }
}

pub(crate) fn progress_of(
    plan: &Plan,
    server: &ServerFacts,
    slot: &str,
) -> Result<Option<Progress>, CommandFailure> {
    progress(plan, &stream(server, slot)?)
}

fn progress(plan: &Plan, stream: &Lineage) -> Result<Option<Progress>, CommandFailure> {
    let kafka = KafkaSpec { progress_topic: topic(plan, &stream.slot), ..plan.kafka.clone() };
    Ok(newest_progress(&kafka, &stream.key())?)
}

fn stream(server: &ServerFacts, slot: &str) -> Result<Lineage, PruneError> {
    let Some((system, _)) = server.system.clone() else {
        return Err(PruneError::SystemUnknown { role: server.role.clone() });
    };
    let (database, slot) = (server.database.clone(), slot.to_owned());
    Ok(Lineage { system, database, slot, ..Lineage::default() })
}

/// Progress topic of the slot: shared by all slots, or its own.
fn topic(plan: &Plan, slot: &str) -> String {
    let named = |slot: &str| format!("{PROGRESS_PREFIX}{slot}");
    let configured = plan.kafka.progress_topic.as_str();
    if configured == named(&plan.config.source.slot) { named(slot) } else { configured.to_owned() }
}

fn descent(client: &Client, facts: &mut Facts) -> Result<(), CommandFailure> {
    let mut connection = Connection::open(client.server(), &SessionParams::default())?;
    let identity = connection.identify_system()?;
    facts.history = connection.timeline_history(identity.timeline)?;
    facts.lineage.timeline = identity.timeline;
    facts.server = facts.server.max(identity.flushed);
    Ok(())
}

/// Inspects the source. Refuses what a relay refuses, except a missing REPLICATION.
pub(crate) async fn look(
    client: &Client,
    wanted: &Requirements,
) -> Result<Inspection, ControlError> {
    let inspection = inspect(client, wanted).await?;
    let is_right =
        |refusal: &ControlError| matches!(refusal, ControlError::RoleMayNotReplicate { .. });
    match inspection.refusals(wanted).into_iter().find(|refusal| !is_right(refusal)) {
        Some(refusal) => Err(refusal),
        None => Ok(inspection),
    }
}
