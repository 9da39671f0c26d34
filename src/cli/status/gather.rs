//! Gathers the sides of `postrider status` independently: a side that does not answer does not
//! affect the others.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::timeout;

use super::relay::{RelayFacts, Silence, relay_facts};
use crate::counted::counted;
use crate::doctor::check::{bytes, duration};
use crate::doctor::kafka::answering;
use crate::failure::{CommandFailure, printable};
use crate::marks::{Mark, MarkedLine, marked_text};
use crate::with_brokers;
use postrider_config::{Config, SourceMode};
use postrider_core::lsn::Lsn;
use postrider_core::progress::BackfillProgress;
use postrider_kafka::{Lineage, cluster_facts, newest_progress, topic_bounds};
use postrider_postgres::control::{self, ServerFacts, SlotFacts, SlotSample};
use postrider_relay::Plan;

const LIMIT: Duration = Duration::from_secs(10);

/// A side that does not answer has the text of its error.
pub(super) struct Status {
    pub(super) server: String,
    /// Name of the slot; `None` if rows are polled.
    pub(super) slot: Option<String>,
    pub(super) postgres: Result<Source, String>,
    pub(super) relay: Result<RelayFacts, Silence>,
    pub(super) brokers: Result<usize, String>,
    pub(super) kafka_brokers: Vec<String>,
    /// Place of the progress; `None` if none is kept.
    pub(super) progress: Option<Result<Option<Place>, String>>,
    /// Offsets in the dead-letter topic; `None` if there is no such topic.
    pub(super) dead_letters: Result<Option<u64>, String>,
    pub(super) dead_letter_topic: String,
}

pub(super) struct Place {
    pub(super) end: Lsn,
    /// `backfill` or `repair`; `end` then counts what it has delivered.
    pub(super) unfinished: Option<&'static str>,
}

impl Place {
    fn to_text(&self) -> String {
        match self.unfinished {
            Some(command) => format!(
                "in Kafka: a {command} that has not ended; `postrider {command}` prints what is \
                 left, and resumes with --execute"
            ),
            None if self.end == Lsn::ZERO => "in Kafka, no row delivered yet".to_owned(),
            None => format!("in Kafka, up to {}", self.end),
        }
    }
}

/// No table is read, because a locked or large table would block.
pub(super) struct Source {
    pub(super) server: ServerFacts,
    /// `None` if there is no such slot. Without a sample, it is being created.
    pub(super) slot: Option<(SlotFacts, Option<SlotSample>)>,
}

fn told(failure: &CommandFailure) -> String {
    let told = failure.findings.iter().map(|one| format!("{} ({})", one.what, one.code.as_str()));
    told.collect::<Vec<_>>().join("; ")
}

impl Status {
    pub(super) fn gather(config: &Config, stream: Option<&str>) -> Result<Self, CommandFailure> {
        let plan = Plan::of(config.clone());
        let runtime = crate::runtime()?;
        let kafka = plan.kafka.clone();
        let topic = config.dead_letters.topic.clone();
        let of_kafka = std::thread::spawn({
            let (kafka, topics) = (kafka.clone(), vec![topic.clone()]);
            move || {
                let brokers = cluster_facts(&kafka)?.brokers.len();
                let bounds = topic_bounds(&kafka, &topics)?;
                Ok((brokers, bounds.into_values().next()))
            }
        });
        let postgres = runtime.block_on(async { timeout(LIMIT, of_postgres(&plan)).await });
        runtime.shutdown_background();
        let postgres = match postgres {
            Ok(answer) => answer.map_err(|failure| told(&failure)),
            Err(_) => Err(format!("no answer within {} s", LIMIT.as_secs())),
        };
        let answer: Result<_, CommandFailure> = match of_kafka.join() {
            Ok(answer) => answer.map_err(|error: postrider_kafka::TopicsError| error.into()),
            Err(panic) => std::panic::resume_unwind(panic),
        };
        let (brokers, bounds) = match answer {
            Ok((brokers, bounds)) => (Ok(brokers), Ok(bounds)),
            Err(failure) => (Err(told(&failure)), Err("not asked".to_owned())),
        };
        let progress = plan.keeps_progress().then(|| match (&postgres, &brokers) {
            (Ok(source), Ok(_)) => progress(&plan, &source.server),
            _ => Err("not asked".to_owned()),
        });
        let records = |one: &postrider_kafka::PartitionBounds| one.stable.saturating_sub(one.first);
        Ok(Self {
            server: server(config),
            slot: (config.source.mode == SourceMode::Stream).then(|| config.source.slot.clone()),
            relay: relay_facts(
                config.http.bind,
                (config.source.mode == SourceMode::Stream).then_some(config.source.slot.as_str()),
                stream,
            ),
            dead_letters: bounds
                .map(|found| found.map(|found| found.partitions.iter().map(records).sum())),
            dead_letter_topic: topic,
            postgres,
            brokers,
            kafka_brokers: kafka.brokers,
            progress,
        })
    }

    pub(super) fn is_sound(&self) -> bool {
        let is_read = |source: &Source| self.slot_mark(source) != Mark::Bad;
        let has_source = self.postgres.as_ref().is_ok_and(is_read);
        let has_relay = match &self.relay {
            Ok(relay) => relay.is_ready && relay.paused.is_none(),
            Err(Silence::Hangs(_)) => false,
            // The relay may run elsewhere, which a slot in use shows.
            Err(Silence::None(_) | Silence::Nowhere(_)) => true,
        };
        has_source && has_relay && self.brokers.is_ok()
    }

    pub(super) fn to_text(&self, width: Option<usize>, color: bool) -> String {
        marked_text(&self.lines(), width, color)
    }

    fn lines(&self) -> Vec<MarkedLine> {
        let mut lines = Vec::new();
        let mut line = |mark: Mark, name: &'static str, text: &str| {
            lines.push(MarkedLine { mark, name, text: printable(text), steps: Vec::new() });
        };
        match &self.postgres {
            Ok(source) => {
                let version = source.server.version_num;
                let (major, minor) = (version / 10_000, version % 10_000);
                let text = format!("{}, PostgreSQL {major}.{minor}", self.server);
                line(Mark::Good, "postgres", &text);
                line(self.slot_mark(source), "slot", &self.slot_text(source));
            }
            Err(why) => line(Mark::Bad, "postgres", &format!("{}: {why}", self.server)),
        }
        match &self.relay {
            Ok(relay) => line(relay_mark(relay), "relay", &self.relay_text(relay)),
            Err(why @ Silence::Hangs(_)) => line(Mark::Bad, "relay", &why.to_string()),
            Err(why) => line(Mark::Unknown, "relay", &why.to_string()),
        }
        match &self.brokers {
            Ok(brokers) => line(Mark::Good, "kafka", &answering(*brokers)),
            Err(why) => line(Mark::Bad, "kafka", why),
        }
        let (mark, text) = self.progress_text();
        line(mark, "progress", &text);
        let (mark, text) = self.dead_letters_text();
        line(mark, "dead letters", &text);
        let status = self.relay.as_ref().ok().and_then(|relay| relay.status.as_ref());
        if let Some(status) = status
            && let Some(line) = lines.iter_mut().find(|line| line.name == "relay")
        {
            line.steps = status.steps().iter().map(|step| printable(step)).collect();
        }
        lines
    }

    fn relay_text(&self, relay: &RelayFacts) -> String {
        let RelayFacts { is_ready, state, paused, confirmed, oldest_seconds, .. } = relay;
        #[expect(clippy::cast_possible_truncation, reason = "a time that people read")]
        let uptime = duration(relay.uptime_seconds as i64);
        let ready = if *is_ready { "ready" } else { "not ready" };
        let oldest = match (paused, oldest_seconds) {
            (Some(paused), _) => paused.clone(),
            (None, Some(age)) => format!("oldest unacknowledged {age:.1} s"),
            (None, None) => "it does not read the slot".to_owned(),
        };
        let mut text = format!(
            "{ready}, {state}, up for {uptime}; {} confirmed; {oldest}",
            counted(*confirmed, "record")
        );
        let _ = match &relay.status {
            Some(status) => write!(text, ". {}", status.what()),
            None if relay.failing.is_empty() => Ok(()),
            None => {
                write!(text, "; {}", with_brokers(&relay.failing.join("; "), &self.kafka_brokers))
            }
        };
        text
    }

    fn progress_text(&self) -> (Mark, String) {
        match &self.progress {
            None if self.slot.is_none() => (
                Mark::Unknown,
                "none is kept in Kafka: the tables mark the delivered rows".to_owned(),
            ),
            None => (
                Mark::Unknown,
                "none is stored in Kafka: the slot stores where delivery resumes".to_owned(),
            ),
            Some(Ok(None)) => (Mark::Unknown, "none yet".to_owned()),
            Some(Ok(Some(place))) => {
                let is_whole = place.unfinished.is_none();
                (if is_whole { Mark::Good } else { Mark::Attention }, place.to_text())
            }
            Some(Err(why)) => (Mark::Unknown, why.clone()),
        }
    }

    fn dead_letters_text(&self) -> (Mark, String) {
        let topic = &self.dead_letter_topic;
        match &self.dead_letters {
            Ok(Some(0)) => (Mark::Good, format!("none in topic `{topic}`")),
            // Offsets include receipts and markers of transactions.
            Ok(Some(records)) => (
                Mark::Attention,
                format!("at most {records} in topic `{topic}`: postrider dead-letters list"),
            ),
            Ok(None) => (Mark::Unknown, format!("topic `{topic}` does not exist")),
            Err(why) => (Mark::Unknown, why.clone()),
        }
    }

    fn slot_mark(&self, source: &Source) -> Mark {
        match (&self.slot, &source.slot) {
            (None, _) => Mark::Good,
            (Some(_), Some((slot, Some(_)))) if !slot.is_lost() && slot.active_pid.is_some() => {
                match slot.wal_status.as_deref() {
                    Some("unreserved") => Mark::Attention,
                    _ => Mark::Good,
                }
            }
            _ => Mark::Bad,
        }
    }

    fn slot_text(&self, source: &Source) -> String {
        let Some(name) = &self.slot else {
            return "none: rows are polled (source.mode = \"poll\")".to_owned();
        };
        let Some((slot, sample)) = &source.slot else {
            return format!("`{name}` does not exist");
        };
        if slot.is_lost() {
            return format!(
                "`{name}` is lost: nothing is delivered from it any more; postrider repair"
            );
        }
        let Some(sample) = sample else {
            return slot.unfinished(name).map_or_else(
                || format!("`{name}` is still being created"),
                |unfinished| unfinished.to_string(),
            );
        };
        let reader = match (slot.active_pid, slot.holder.as_str()) {
            (None, _) => "read by nobody".to_owned(),
            (Some(pid), "") => format!("read by process {pid}"),
            (Some(_), holder) => format!("read by {holder}"),
        };
        let shown = |amount: u64| bytes(i64::try_from(amount).unwrap_or(i64::MAX));
        let limit = sample.safe_wal_bytes.map_or_else(
            || "without a limit".to_owned(),
            |left| format!("and lost after {} more", shown(left)),
        );
        let state = slot.wal_status.as_deref().filter(|status| *status != "reserved");
        let state = state.map(|state| format!(", {state}")).unwrap_or_default();
        format!(
            "`{name}`{state}, {reader}; {} not acknowledged, {} of WAL kept {limit}",
            shown(sample.lag_bytes()),
            shown(sample.retained_bytes())
        )
    }

    pub(super) fn to_json(&self) -> Value {
        let error = |why: &String| json!({ "error": why });
        let slot = match &self.postgres {
            Err(why) => error(why),
            Ok(source) => match &source.slot {
                Some((slot, sample)) => json!({
                    "name": self.slot,
                    "status": slot.wal_status,
                    "active_pid": slot.active_pid,
                    "unfinished": slot.is_unfinished(),
                    "lag_bytes": sample.as_ref().map(SlotSample::lag_bytes),
                    "retained_bytes": sample.as_ref().map(SlotSample::retained_bytes),
                    "safe_bytes": sample.as_ref().and_then(|sample| sample.safe_wal_bytes),
                    "confirmed": slot.confirmed_flush.map(|lsn| lsn.to_string()),
                }),
                None => Value::Null,
            },
        };
        let relay = match &self.relay {
            Err(why) => error(&why.to_string()),
            Ok(relay) => json!({
                "ready": relay.is_ready,
                "state": relay.state,
                "failing": relay.failing,
                "paused": relay.paused,
                "confirmed": relay.confirmed,
                "oldest_unacknowledged_seconds": relay.oldest_seconds,
                "reads_slot": relay.reads_slot,
                "uptime_seconds": relay.uptime_seconds,
            }),
        };
        let progress = match &self.progress {
            None => Value::Null,
            Some(Ok(None)) => json!({ "end": null, "unfinished": null }),
            Some(Ok(Some(Place { end, unfinished }))) => {
                json!({ "end": end.to_string(), "unfinished": unfinished })
            }
            Some(Err(why)) => error(why),
        };
        json!({
            "what": "status",
            "ok": self.is_sound(),
            "postgres": self.postgres.as_ref().map_or_else(error, |source| json!({
                "server": self.server, "version": source.server.version_num,
            })),
            "slot": slot,
            "relay": relay,
            "kafka": self.brokers.as_ref().map_or_else(error, |brokers| json!({ "brokers": brokers })),
            "progress": progress,
            "dead_letters": self.dead_letters.as_ref().map_or_else(error, |records| json!({
                "topic": self.dead_letter_topic, "records": records,
            })),
        })
    }
}

const fn relay_mark(relay: &RelayFacts) -> Mark {
    match (relay.is_ready, &relay.paused) {
        (false, _) => Mark::Bad,
        (true, Some(_)) => Mark::Attention,
        (true, None) => Mark::Good,
    }
}

fn server(config: &Config) -> String {
    let connect = &config.source.connect;
    let addresses: Vec<_> = connect.endpoints.iter().map(ToString::to_string).collect();
    format!("`{}` on {} as `{}`", connect.database, addresses.join(","), connect.user)
}

async fn of_postgres(plan: &Plan) -> Result<Source, CommandFailure> {
    let source = &plan.config.source;
    let client = control::connect(&source.connect).await?;
    control::limit_waits(&client).await?;
    let server = control::server(&client).await?;
    let slot = if source.mode == SourceMode::Stream {
        control::slot(&client, &source.slot).await?
    } else {
        None
    };
    let slot = match slot {
        Some(facts) if facts.is_unfinished() => Some((facts, None)),
        Some(facts) => {
            let sample = control::sample(&client, &source.slot).await?;
            sample.map(|sample| (facts, Some(sample)))
        }
        None => None,
    };
    Ok(Source { server, slot })
}

fn progress(plan: &Plan, server: &ServerFacts) -> Result<Option<Place>, String> {
    let Some((system, _)) = server.system.clone() else {
        return Err("the role may not ask for the cluster's identifier".to_owned());
    };
    let lineage = Lineage {
        system,
        database: server.database.clone(),
        slot: plan.config.source.slot.clone(),
        ..Lineage::default()
    };
    match newest_progress(&plan.kafka, &lineage.key()) {
        Ok(found) => Ok(found.map(|found| {
            let command = |begun: BackfillProgress| match begun.repair {
                Some(_) => "repair",
                None => "backfill",
            };
            Place { end: found.mark.end, unfinished: found.backfill.map(command) }
        })),
        Err(error) => Err(told(&error.into())),
    }
}
