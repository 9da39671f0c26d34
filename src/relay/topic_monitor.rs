//! Topic monitor: checks the topics in use, so that no session waits for such a check.
//!
//! Output: log lines, changes in the Kafka client's topic book, and an error if dead letters can
//! never be stored. Sessions report brokers that do not answer; for a standby, the monitor warns.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::blocking::run_blocking;
use crate::bootstrap::tell;
use crate::certificates::name_invalid;
use crate::error::RelayError;
use crate::plan::Plan;
use crate::stop::StopSignal;
use crate::telemetry::{RelayState, Telemetry};
use postrider_config::Rejected;
use postrider_core::pipeline::TopicTotal;
use postrider_core::session::ControlRequest;
use postrider_kafka::{
    Grade, KafkaSpec, Purpose, TopicFinding, TopicsError, look_for_absent, look_for_gone, survey,
};

const EVERY: Duration = Duration::from_secs(5);
/// Time without confirmations from answering brokers until the monitor looks for a deleted topic.
const IN_VAIN: Duration = Duration::from_secs(2);
/// Each topic costs the brokers two small requests.
const GO: usize = 50;

pub(super) struct TopicMonitor {
    kafka: KafkaSpec,
    dead_letters: Option<String>,
    telemetry: Telemetry,
}

/// Topics that records were sent to recently; others do not explain missing confirmations.
#[derive(Debug, Default)]
struct Recent {
    /// Records per topic at the last check with confirmed records, and at the previous one.
    last: BTreeMap<String, u64>,
    earlier: BTreeMap<String, u64>,
}

impl Recent {
    /// Returns the topics that may have records in flight if confirmations have stopped (`stands`).
    fn look(&mut self, sent: BTreeMap<String, u64>, stands: bool) -> Vec<String> {
        if !stands {
            self.earlier = std::mem::replace(&mut self.last, sent);
            return Vec::new();
        }
        let is_recent = |(topic, sent): &(String, u64)| self.earlier.get(topic) != Some(sent);
        sent.into_iter().filter(is_recent).map(|(topic, _)| topic).collect()
    }
}

impl TopicMonitor {
    pub(super) fn of(plan: &Plan, telemetry: Telemetry) -> Self {
        let wanted = plan.config.route.rejected == Rejected::DeadLetter;
        let dead_letters = wanted.then(|| plan.config.dead_letters.topic.clone());
        Self { kafka: plan.kafka.clone(), dead_letters, telemetry }
    }

    pub(super) async fn beside<T>(
        self,
        stop: &StopSignal,
        work: impl Future<Output = Result<T, RelayError>>,
    ) -> Result<T, RelayError> {
        tokio::select! {
            result = work => result,
            error = self.keep() => {
                stop.request(ControlRequest::Abort);
                Err(error)
            }
        }
    }

    async fn keep(self) -> RelayError {
        let mut seen = BTreeSet::new();
        let mut warned = false;
        let mut recent = Recent::default();
        let mut every = tokio::time::interval(EVERY);
        loop {
            every.tick().await;
            let kafka = self.kafka.clone();
            // Sessions report brokers that do not answer.
            let _ = run_blocking(move || look_for_absent(&kafka)).await;
            let topics = self.in_vain(&mut recent);
            if !topics.is_empty() {
                let kafka = self.kafka.clone();
                let _ = run_blocking(move || look_for_gone(&kafka, &topics)).await;
            }
            let fresh: Vec<_> = self.topics().filter(|(name, _)| !seen.contains(name)).collect();
            let fresh: Vec<_> = fresh.into_iter().take(GO).collect();
            if fresh.is_empty() {
                continue;
            }
            let (kafka, topics) = (self.kafka.clone(), fresh.clone());
            let asked = move || survey(&kafka, &topics).map_err(named);
            let Ok(answer) = run_blocking(asked).await else { continue };
            match answer {
                Ok(findings) => {
                    tell(&self.kafka, &findings);
                    if let Some(unfit) = findings.into_iter().find(|one| self.is_final(one)) {
                        return TopicsError::Unfit(unfit).into();
                    }
                }
                // Brokers without an admin API report their topics, but not settings.
                Err(TopicsError::Unsupported) => {}
                // The sessions report the error.
                Err(error) => {
                    warned = warned || self.warn_standby(&error);
                    continue;
                }
            }
            seen.extend(fresh.into_iter().map(|(name, _)| name));
        }
    }

    fn in_vain(&self, recent: &mut Recent) -> Vec<String> {
        let snapshot = &self.telemetry.view().snapshot;
        let of_rows = snapshot.topics.iter().filter(|count| &*count.topic != TopicTotal::OTHERS);
        let sent = of_rows.map(|count| (count.topic.to_string(), count.sent)).collect();
        let stands = snapshot.broker_connected && snapshot.unconfirmed_for >= IN_VAIN;
        recent.look(sent, stands)
    }

    fn warn_standby(&self, error: &TopicsError) -> bool {
        let is_standby = self.telemetry.view().snapshot.state == RelayState::Standby;
        if is_standby {
            let help = error.hint();
            tracing::warn!(help, "this standby could not take over: {error}");
        }
        is_standby
    }

    fn topics(&self) -> impl Iterator<Item = (String, Purpose)> {
        let dead_letters = self.dead_letters.clone();
        let of_rows = self.telemetry.view().snapshot.topics.clone().into_iter();
        let of_rows = of_rows.filter(|count| &*count.topic != TopicTotal::OTHERS);
        let of_rows = of_rows.map(|count| (count.topic.to_string(), Purpose::Rows));
        let special = dead_letters.clone().map(|name| (name, Purpose::DeadLetters));
        let others = of_rows.filter(move |(name, _)| Some(name) != dead_letters.as_ref());
        special.into_iter().chain(others)
    }

    /// Topics of rows may be fixed while the rows wait. Rows behind a dead letter would wait
    /// unnoticed.
    fn is_final(&self, finding: &TopicFinding) -> bool {
        finding.grade == Grade::Unfit
            && finding.topic.is_some()
            && finding.topic == self.dead_letters
    }
}

fn named(error: TopicsError) -> TopicsError {
    match error {
        TopicsError::NoEntry(error) => TopicsError::NoEntry(name_invalid(error)),
        error => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_that_nothing_was_sent_to_lately_is_not_asked_for() {
        let sent =
            |old: u64, new: u64| BTreeMap::from([("old".to_owned(), old), ("new".to_owned(), new)]);
        let mut recent = Recent::default();
        for new in 1..=3 {
            assert_eq!(recent.look(sent(5, new), false), [""; 0]);
        }
        for _ in 0..3 {
            assert_eq!(recent.look(sent(5, 4), true), ["new"]);
        }
        assert_eq!(
            Recent::default().look(sent(5, 4), true),
            ["new", "old"],
            "nothing is known yet"
        );
    }
}
