//! The part of `setup` that `postrider doctor --fix` runs: creates only missing objects.
//!
//! Invariant: refusals of `setup` apply, above all for a slot that would leave rows behind.
//! Existing objects stay, so that a repeated run completes an interrupted one.

use tokio::runtime::Runtime;

use super::{Done, make};
use crate::failure::CommandFailure;
use postrider_kafka::{Purpose, WantedTopic};
use postrider_postgres::control::{Became, Inspection, SetupChoices, SetupPlan, connect};
use postrider_relay::{Plan, RelayError};

/// Objects that `setup` would create, in its order.
pub(crate) fn missing(relay: &Plan, runtime: &Runtime) -> Result<Vec<String>, CommandFailure> {
    let plan = plan(relay)?;
    let now = runtime.block_on(async {
        let client = connect(&relay.config.source.connect).await?;
        plan.look(&client).await
    })?;
    Ok(objects(relay, &now))
}

/// Creates these objects and topics. Returns created objects even after a failure.
pub(crate) fn complete(
    relay: &Plan,
    runtime: &Runtime,
    with_source: bool,
    topics: &[WantedTopic],
) -> (Vec<String>, Result<(), CommandFailure>) {
    let mut done = Done::default();
    let made = if with_source { source(relay, runtime, &mut done) } else { Ok(()) };
    let others: Vec<_> =
        topics.iter().filter(|topic| !done.topics.has(&topic.name)).cloned().collect();
    let topics = done.make_topics(&relay.kafka, &others);
    let new = done.made.iter().filter(|made| made.became != Became::Existed);
    let topic = |name: &String| format!("topic `{name}`");
    let created = new.map(|made| made.object.clone()).chain(done.topics.created.iter().map(topic));
    (created.collect(), made.and(topics))
}

fn plan(relay: &Plan) -> Result<SetupPlan, CommandFailure> {
    let wanted = relay.requirements().map_err(RelayError::from)?;
    Ok(SetupPlan::new(wanted, SetupChoices::default()))
}

fn source(relay: &Plan, runtime: &Runtime, done: &mut Done) -> Result<(), CommandFailure> {
    let topic = WantedTopic::new(&relay.config.progress.topic, Purpose::Progress);
    let progress = relay.keeps_progress().then_some(&topic);
    let plan = plan(relay)?;
    runtime.block_on(make(&plan, relay, progress, done))?;
    done.mark_beginning(relay, runtime)
}

fn objects(relay: &Plan, now: &Inspection) -> Vec<String> {
    let source = &relay.config.source;
    let publication = format!("publication `{}`", source.publication);
    let tables = || source.tables.iter().zip(&now.tables);
    let absent = tables().filter(|(_, facts)| facts.is_none());
    let mut objects: Vec<_> = absent.map(|(name, _)| format!("table {name}")).collect();
    if now.publication.is_none() {
        objects.push(publication);
    } else {
        let is_published = |facts: &Option<_>| {
            facts.as_ref().is_some_and(|facts: &postrider_postgres::control::TableFacts| {
                facts.published.is_some()
            })
        };
        let lacking = tables().filter(|(_, facts)| !is_published(facts));
        objects.extend(lacking.map(|(name, _)| format!("table {name} to {publication}")));
    }
    if now.slot.is_none() {
        objects.push(format!("replication slot `{}`", source.slot));
    }
    objects
}
