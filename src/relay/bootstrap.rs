//! Prepares the progress topic in Kafka before a session or for `postrider setup`.
//!
//! Invariant: with `setup` or exactly-once delivery, a base record (progress at 0/0) is written
//! before the slot is created. A slot without progress was therefore not created by this relay. A
//! missing slot whose rows were delivered is not created again. Upholds G1, G6.

use crate::blocking::run_blocking;
use crate::error::RelayError;
use crate::plan::Plan;
use postrider_config::Delivery;
use postrider_core::gate::{GateError, unfinished};
use postrider_core::lsn::Lsn;
use postrider_core::pipeline::Mark;
use postrider_kafka::{
    Grade, KafkaSpec, Lineage, TopicBook, TopicFinding, ensure_progress_topic,
    init_progress_at_least_once, init_progress_transactional, newest_progress,
};
use postrider_postgres::control::{self, Client, Inspection, Requirements};
use postrider_postgres::wal::{Connection, SessionParams};

#[derive(Debug, Default)]
pub(super) struct Bootstrap {
    topic_is_fit: bool,
    slot_is_ours: bool,
}

impl Bootstrap {
    pub(super) const fn slot_is_ours(&self) -> bool {
        self.slot_is_ours
    }

    pub(super) const fn topic_is_gone(&mut self) {
        self.topic_is_fit = false;
    }

    pub(super) const fn is_due(&self) -> bool {
        !self.topic_is_fit
    }

    pub(super) async fn arrange(
        &mut self,
        plan: &Plan,
        client: &Client,
        wanted: &Requirements,
    ) -> Result<(), RelayError> {
        let exists = control::slot(client, &wanted.slot).await?.is_some();
        // The name of a missing slot that the relay does not create may be a typo, so no topic is
        // created for it.
        if (exists || wanted.create) && !self.topic_is_fit {
            let kafka = plan.kafka.clone();
            let findings = run_blocking(move || ensure_progress_topic(&kafka)).await??;
            tell(&plan.kafka, &findings);
            self.topic_is_fit = true;
        }
        if exists {
            return Ok(());
        }
        let exactly_once = plan.config.kafka.delivery == Delivery::ExactlyOnce;
        if wanted.create && !exactly_once {
            return Ok(());
        }
        let begins = exactly_once && wanted.create;
        let slot = plan.config.source.slot.clone();
        // The publication may be created together with the slot.
        let database = client.server().database.clone();
        let stream = Lineage { database, slot: slot.clone(), ..Lineage::default() };
        // A slot whose rows were delivered was lost. Otherwise this may be the first start.
        if let Some(delivered) = delivered_of(plan, client, stream, begins).await? {
            // Another relay may have started with its own slot since the check.
            if control::slot(client, &slot).await?.is_some() {
                return Ok(());
            }
            return Err(GateError::SlotGone { slot, delivered }.into());
        }
        self.slot_is_ours = begins;
        Ok(())
    }
}

/// Prepares Kafka for a new slot. If an earlier slot of that name delivered rows, returns their end
/// and does not write the base record. The database must have passed all other checks.
pub async fn begin_stream(
    plan: &Plan,
    client: &Client,
    inspection: &Inspection,
) -> Result<Option<Lsn>, RelayError> {
    let kafka = plan.kafka.clone();
    tell(&plan.kafka, &run_blocking(move || ensure_progress_topic(&kafka)).await??);
    delivered_of(plan, client, plan.lineage(inspection), true).await
}

/// Returns the position that a missing slot has delivered. If none exists and the stream `begins`,
/// writes the base record.
async fn delivered_of(
    plan: &Plan,
    client: &Client,
    stream: Lineage,
    begins: bool,
) -> Result<Option<Lsn>, RelayError> {
    let (kafka, connect) = (plan.kafka.clone(), client.server().clone());
    let delivery = plan.config.kafka.delivery;
    let found = run_blocking(move || {
        let identity = Connection::open(&connect, &SessionParams::default())?.identify_system()?;
        let (system, timeline) = (identity.system_id, identity.timeline);
        let lineage = Lineage { system, timeline, ..stream };
        let newest = match (begins, delivery) {
            (false, _) => newest_progress(&kafka, &lineage.key()),
            (true, Delivery::ExactlyOnce) => init_progress_transactional(&kafka, &lineage),
            (true, Delivery::AtLeastOnce) => init_progress_at_least_once(&kafka, &lineage),
        };
        Ok::<_, RelayError>(newest?)
    });
    let found = found.await??;
    if let Some(error) = found.as_ref().and_then(unfinished) {
        return Err(error.into());
    }
    let mark = found.map_or_else(Mark::default, |progress| progress.mark);
    Ok((mark != Mark::default()).then_some(mark.end))
}

pub(super) fn tell(kafka: &KafkaSpec, findings: &[TopicFinding]) {
    for (finding, line) in lines(&kafka.topics, findings) {
        let help = &finding.help;
        match finding.grade {
            Grade::Unfit => tracing::error!(help, "{line}"),
            Grade::Warning => tracing::warn!(help, "{line}"),
            Grade::Remark => tracing::info!(help, "{line}"),
        }
    }
}

/// Equal findings share one line. A remark concerns the whole cluster, so a stream logs it only
/// once.
fn lines<'a>(topics: &TopicBook, findings: &'a [TopicFinding]) -> Vec<(&'a TopicFinding, String)> {
    let mut lines = Vec::new();
    let same = |one: &TopicFinding, other: &TopicFinding| {
        (one.grade, &one.what) == (other.grade, &other.what)
    };
    for (index, finding) in findings.iter().enumerate() {
        let is_told = findings.iter().take(index).any(|earlier| same(earlier, finding));
        let is_remark = finding.grade == Grade::Remark;
        if is_told || is_remark && !topics.is_first_remark(&finding.what) {
            continue;
        }
        let others = findings.iter().skip(index + 1).filter(|later| same(later, finding)).count();
        let others = if others > 0 { format!(" (and {others} more)") } else { String::new() };
        lines.push((finding, format!("{}{others} {}", finding.subject(), finding.what)));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_core::pipeline::{MissingPolicy, MissingTopic};

    #[test]
    fn a_remark_about_the_cluster_is_told_once() {
        let finding = |grade, topic: &str| TopicFinding {
            grade,
            topic: Some(topic.to_owned()),
            what: "has one replica".to_owned(),
            help: String::new(),
        };
        let told = |topics: &TopicBook, grade, names: &[&str]| {
            let findings: Vec<_> = names.iter().map(|name| finding(grade, name)).collect();
            lines(topics, &findings).into_iter().map(|(_, line)| line).collect::<Vec<_>>()
        };
        let policy =
            MissingPolicy { then: MissingTopic::Create, create: Vec::new(), create_max: 0 };
        let topics = TopicBook::new(policy, Vec::new());
        assert_eq!(
            told(&topics, Grade::Remark, &["progress"]),
            ["topic `progress` has one replica"]
        );
        for names in [&["progress"][..], &["orders"], &["orders", "dead-letters"]] {
            assert!(told(&topics, Grade::Remark, names).is_empty(), "{names:?}");
        }
        let warned = ["topic `orders` (and 1 more) has one replica"];
        for _ in 0..2 {
            assert_eq!(told(&topics, Grade::Warning, &["orders", "dead-letters"]), warned);
        }
    }
}
