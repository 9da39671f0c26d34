//! `postrider adopt`: writes the slot's position to Kafka as the relay's new progress, after a
//! relay refused the slot with exit code 70.
//!
//! Invariant: without `--execute` only a plan is printed. With it, the command holds the slot and,
//! for exactly-once delivery, fences off older producers, so that no relay delivers concurrently.
//! Nothing is acknowledged to Postgres.

use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::context::Context;
use super::exit::ExitCode;
use super::failure::CommandFailure;
use super::needs_slot;
use super::runtime;
use postrider_config::Delivery;
use postrider_core::gate::begins;
use postrider_core::lsn::Lsn;
use postrider_core::pipeline::Mark;
use postrider_kafka::{
    Grade, KafkaSpec, Lineage, Progress, SinkError, ensure_progress_topic, fence_off,
    newest_progress, write_progress,
};
use postrider_postgres::control::{self, Client, ControlError, Inspection, Requirements};
use postrider_postgres::wal::{Connection, SessionParams, Stream, WalError};
use postrider_relay::kafka_spec;
use postrider_relay::{Plan, RelayError};

const FINISH_LIMIT: Duration = Duration::from_secs(2);

const UNREAD: &str = "nothing was written: check that kafka.brokers can be reached with \
                      [kafka.properties] and that reading the topic is allowed, then run it \
                      again; a transaction that a killed relay left open is aborted within a \
                      minute";

/// `adopt [--execute]`
#[derive(Debug, Args)]
#[command(after_help = "\
If progress is stored (kafka.delivery = \"exactly_once\", or progress.at_least_once), the relay
refuses a slot that does not match the progress in Kafka, with exit code 70. Find the cause and
send lost rows again. Then adopt stores the position of the slot as the new progress. Stop the
relay first.

Examples:
  postrider adopt              print the plan; nothing is written
  postrider adopt --execute")]
pub struct AdoptArgs {
    /// Apply; without it, only print the plan
    #[arg(long)]
    pub execute: bool,
}

pub(crate) fn run(args: &AdoptArgs, context: &Context) -> Result<ExitCode, CommandFailure> {
    let config = context.load(Vec::new())?.config;
    needs_slot(&config, "postrider adopt")?;
    let source = Source { plan: Plan::new(kafka_spec(&config), config) };
    let runtime = runtime()?;
    let client = runtime.block_on(control::connect(&source.plan.config.source.connect));
    let client = client?;
    let (mut base, mut connection) = source.look(&runtime, &client)?;
    let kafka = &source.plan.kafka;
    if !args.execute {
        print(&base, false, context)?;
        return Ok(ExitCode::Ok);
    }
    // The relay reports remarks about a cluster with one broker.
    for finding in ensure_progress_topic(kafka)?.iter().filter(|one| one.grade < Grade::Remark) {
        tracing::warn!(help = finding.help, "{finding}");
    }
    // From here on no relay has the slot. After the fencing no relay can write records that it
    // still holds.
    let process = connection.server_process()?;
    let held = source.hold(connection)?;
    if source.fences() {
        fence_off(kafka, &base.lineage)?;
    }
    base.before = read(kafka, &base.lineage)?;
    // The sample is taken while this command holds the slot.
    let slot = &source.plan.config.source.slot;
    let sample = runtime.block_on(control::held_sample(&client, slot, process))?;
    base.slot = sample.confirmed_flush;
    // Delivery of rows before this position is unknown.
    let before = base.before.as_ref();
    let since = begins(sample.confirmed_flush, sample.next_xid, &base.lineage, before);
    base.lineage.since = Some(since);
    base.write(kafka)?;
    let _ = held.finish(FINISH_LIMIT);
    print(&base, true, context)?;
    Ok(ExitCode::Ok)
}

struct Source {
    plan: Plan,
}

impl Source {
    /// Refuses a database that a relay would refuse.
    fn look(
        &self,
        runtime: &Runtime,
        client: &Client,
    ) -> Result<(Base, Connection), CommandFailure> {
        let wanted = self.plan.requirements().map_err(RelayError::from)?;
        let inspection = runtime.block_on(fit(client, &wanted))?;
        let encoding = control::stream_encoding(client, &inspection.server.encoding);
        let encoding = runtime.block_on(encoding)?;
        let params = SessionParams { encoding, ..SessionParams::default() };
        let mut connection = Connection::open(client.server(), &params)?;
        let identity = connection.identify_system()?;
        let (system, timeline) = (identity.system_id, identity.timeline);
        let lineage = Lineage { system, timeline, ..self.plan.lineage(&inspection) };
        let before = read(&self.plan.kafka, &lineage)?;
        let Some(slot) = inspection.slot.and_then(|slot| slot.confirmed_flush) else {
            let source = WalError::Protocol("a slot without a position");
            return Err(ControlError::Connection { doing: "looking at the slot", source }.into());
        };
        Ok((Base { lineage, slot, before }, connection))
    }

    fn hold(&self, connection: Connection) -> Result<Stream, WalError> {
        let source = &self.plan.config.source;
        let started = connection.start(&source.slot, &source.publication, Lsn::ZERO);
        started.map_err(|refused| refused.error)
    }

    /// Whether a relay that lost the slot may still commit. Progress without transactions requires
    /// no rights for them.
    fn fences(&self) -> bool {
        let config = &self.plan.config;
        config.kafka.delivery == Delivery::ExactlyOnce || !config.progress.at_least_once
    }
}

/// Reads the progress. Unlike a relay, this fails if brokers are away.
fn read(kafka: &KafkaSpec, lineage: &Lineage) -> Result<Option<Progress>, CommandFailure> {
    newest_progress(kafka, &lineage.key()).map_err(|error| match error {
        SinkError::ProgressUnread { .. } => CommandFailure::from(error).help(UNREAD),
        error => error.into(),
    })
}

async fn fit(client: &Client, wanted: &Requirements) -> Result<Inspection, ControlError> {
    let inspection = control::inspect(client, wanted).await?;
    let refusal = inspection.refusals(wanted).into_iter().next();
    match refusal.or_else(|| inspection.held(wanted)) {
        Some(refusal) => Err(refusal),
        None => Ok(inspection),
    }
}

struct Base {
    lineage: Lineage,
    slot: Lsn,
    before: Option<Progress>,
}

#[derive(Debug, PartialEq, Eq)]
enum Effect {
    None,
    /// Rows between these positions may be delivered again.
    Repeated(Lsn, Lsn),
    /// Rows between these positions were never sent, and will not be.
    LeftOut(Lsn, Lsn),
    /// Rows before this position will not be sent, because a backfill or repair has not ended.
    Unfinished(Lsn),
    Unknown,
}

impl Base {
    fn effect(&self) -> Effect {
        let Some(before) = &self.before else { return Effect::Unknown };
        if before.backfill.is_some() {
            return Effect::Unfinished(self.slot);
        }
        let same = before.lineage.timeline == self.lineage.timeline;
        match (before.mark, self.slot) {
            _ if !same => Effect::Unknown,
            (Mark { end, part: None, .. }, slot) if end == slot || end == Lsn::ZERO => Effect::None,
            (Mark { end, .. }, slot) if end < slot => Effect::LeftOut(end, slot),
            (mark, slot) => {
                let reached = mark.part.map_or(mark.end, |part| part.commit_lsn);
                Effect::Repeated(slot, reached)
            }
        }
    }

    fn write(&self, kafka: &KafkaSpec) -> Result<(), CommandFailure> {
        let (lineage, mark) = (self.lineage.clone(), Mark::at(self.slot));
        write_progress(kafka, &Progress { lineage, mark, backfill: None })?;
        let before = self.before.as_ref().map(|before| before.mark.end.to_string());
        tracing::info!(
            slot = self.lineage.slot,
            system = self.lineage.system,
            timeline = self.lineage.timeline,
            before = before.as_deref().unwrap_or("none"),
            adopted = %self.slot,
            "adopted the slot's position as progress"
        );
        Ok(())
    }

    fn to_text(&self) -> String {
        let Self { lineage, slot, .. } = self;
        let before = match &self.before {
            None => "none".to_owned(),
            Some(Progress { lineage, mark: Mark { end, part, .. }, .. }) => {
                let part = part.map_or_else(String::new, |part| {
                    format!(", and {} rows of the transaction at {}", part.rows, part.commit_lsn)
                });
                format!("{end} on timeline {}{part}", lineage.timeline)
            }
        };
        let effect = match self.effect() {
            Effect::None => "no row is repeated and none is left out".to_owned(),
            Effect::Repeated(from, to) => {
                format!("rows committed between {from} and {to} are delivered a second time")
            }
            Effect::LeftOut(from, to) => format!(
                "rows committed between {from} and {to} will not be delivered: unless a relay \
                 delivered them at least once from this slot, re-send those that are still in the \
                 outbox"
            ),
            Effect::Unfinished(slot) => format!(
                "a backfill or a repair has not ended: rows committed before {slot} that it has not delivered will \
                 not be; run `postrider backfill --execute` or `postrider repair --execute` to its end instead"
            ),
            Effect::Unknown => {
                "if a relay delivered from this slot before, its last rows may be delivered \
                 again; if the slot was created after its last row, the rows in between are not \
                 delivered: re-send them"
                    .to_owned()
            }
        };
        format!(
            "slot `{}` of database `{}`, system {}, timeline {}: {slot}\nprogress in Kafka: \
             {before}\nrows committed after {slot} will be delivered\n{effect}\n",
            lineage.slot, lineage.database, lineage.system, lineage.timeline
        )
    }

    fn to_json(&self, written: bool) -> Value {
        let Lineage { system, timeline, database, slot, .. } = &self.lineage;
        let between = |from: Lsn, to: Lsn| json!([from.to_string(), to.to_string()]);
        let (repeated, left_out) = match self.effect() {
            Effect::Repeated(from, to) => (between(from, to), Value::Null),
            Effect::LeftOut(from, to) => (Value::Null, between(from, to)),
            Effect::Unfinished(slot) => (Value::Null, between(Lsn::ZERO, slot)),
            Effect::None | Effect::Unknown => (Value::Null, Value::Null),
        };
        json!({
            "system": system, "timeline": timeline, "database": database, "slot": slot,
            "position": self.slot.to_string(),
            "progress": self.before.as_ref().map(|before| before.mark.end.to_string()),
            "repeated": repeated, "left_out": left_out, "written": written,
        })
    }
}

fn print(base: &Base, written: bool, context: &Context) -> Result<(), CommandFailure> {
    if context.json() {
        return context.print_json(&base.to_json(written));
    }
    let last = if written { "adopted\n" } else { "nothing was written; --execute adopts it\n" };
    context.print(&(base.to_text() + last))
}

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_core::pipeline::PartialTransaction;
    use postrider_core::progress::BackfillProgress;

    fn base(slot: u64, before: Option<(u32, Mark)>) -> Base {
        let lineage = |timeline| Lineage { timeline, ..Lineage::default() };
        let before = before.map(|(timeline, mark)| Progress {
            lineage: lineage(timeline),
            mark,
            backfill: None,
        });
        Base { lineage: lineage(2), slot: Lsn::new(slot), before }
    }

    #[test]
    fn what_becomes_of_rows_is_said() {
        let at = |end| Mark::at(Lsn::new(end));
        let part = Some(PartialTransaction { commit_lsn: Lsn::new(700), rows: 3 });
        let half = Mark { part, ..at(500) };
        for (before, effect, words) in [
            (Some((2, at(500))), Effect::None, "none is left out"),
            (Some((2, at(0))), Effect::None, "none is left out"),
            (Some((2, at(499))), Effect::LeftOut(Lsn::new(499), Lsn::new(500)), "0/1F3 and 0/1F4"),
            (Some((2, at(600))), Effect::Repeated(Lsn::new(500), Lsn::new(600)), "a second time"),
            (Some((2, half)), Effect::Repeated(Lsn::new(500), Lsn::new(700)), "a second time"),
            (Some((1, at(500))), Effect::Unknown, "re-send"),
            (None, Effect::Unknown, "re-send"),
        ] {
            let base = base(500, before);
            assert_eq!(base.effect(), effect, "{before:?}");
            assert!(base.to_text().contains(words), "{}", base.to_text());
            assert_eq!(base.to_json(false)["position"], "0/1F4");
        }
        for end in [0, 9] {
            let mut base = base(500, Some((2, at(end))));
            base.before.as_mut().unwrap().backfill = Some(BackfillProgress::default());
            assert_eq!(base.effect(), Effect::Unfinished(Lsn::new(500)));
            assert!(base.to_text().contains("has not ended"), "{}", base.to_text());
        }
    }
}
