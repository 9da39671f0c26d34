//! Whether a stream can be carried on from its slot, asked without the slot: what `prune` goes by, and `doctor`.
//!
//! Input: where the slot was, the source, and the newest progress in Kafka. Output: a [`StreamPosition`], which the
//! gate of `run` judges. Invariant: what is read here is read after the slot, and the end of the log after the
//! progress. Beside a live relay all three grow, the slot behind the progress and the progress behind the log: read
//! in this order, none seems to be ahead of the next one unless it is.

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

/// Where a slot was.
#[derive(Debug, Clone)]
pub(crate) struct SlotPlace {
    pub(crate) slot: String,
    pub(crate) confirmed: Lsn,
    pub(crate) next_xid: u64,
}

/// The facts that the gate judges a stream by, and the stream's progress in Kafka.
#[derive(Debug)]
pub(crate) struct StreamPosition {
    facts: Facts,
    pub(crate) progress: Option<Progress>,
}

impl StreamPosition {
    /// Asks Kafka, and then the server. A source that a relay refuses is refused.
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
        // Another relay's publication is known by what its progress says.
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
            // What a timeline descends from is told to a role alone that may replicate.
            _ => descent(client, &mut facts)?,
        }
        Ok(Self { facts, progress: Some(progress) })
    }

    /// The gate's verdict on a session that began here.
    pub(crate) fn judge(&self, exactly_once: bool) -> Result<Resume, GateError> {
        judge(&Facts { exactly_once, ..self.facts.clone() }, self.progress.as_ref())
    }

    /// Since when the stream has left out no row, if it can be carried on.
    pub(crate) fn since(&self) -> Result<Option<Since>, GateError> {
        let resume = self.judge(true)?;
        let progress = self.progress.as_ref();
        Ok(progress.and_then(|progress| unbroken(&self.facts, progress, &resume)))
    }
}

/// The newest progress of a slot, whether or not the slot exists.
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

/// The lineage of a stream, as far as the server and the slot's name tell.
fn stream(server: &ServerFacts, slot: &str) -> Result<Lineage, PruneError> {
    let Some((system, _)) = server.system.clone() else {
        return Err(PruneError::SystemUnknown { role: server.role.clone() });
    };
    let (database, slot) = (server.database.clone(), slot.to_owned());
    Ok(Lineage { system, database, slot, ..Lineage::default() })
}

/// Where the relay of that slot keeps progress: in a topic that all slots share, or in its own.
fn topic(plan: &Plan, slot: &str) -> String {
    let named = |slot: &str| format!("{PROGRESS_PREFIX}{slot}");
    let configured = plan.kafka.progress_topic.as_str();
    if configured == named(&plan.config.source.slot) { named(slot) } else { configured.to_owned() }
}

/// Adds the timeline, and what it descends from.
fn descent(client: &Client, facts: &mut Facts) -> Result<(), CommandFailure> {
    let mut connection = Connection::open(client.server(), &SessionParams::default())?;
    let identity = connection.identify_system()?;
    facts.history = connection.timeline_history(identity.timeline)?;
    facts.lineage.timeline = identity.timeline;
    facts.server = facts.server.max(identity.flushed);
    Ok(())
}

/// The source, unless a relay would refuse it: rows of it would not be delivered. Only a relay needs REPLICATION.
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
