//! Topic monitor: looks at the topics in use, beside the sessions, so that a session waits for no such
//! request. It checks settings, notices when a missing topic exists, and when a topic with unconfirmed
//! records was deleted.
//!
//! Input: the topics that rows have chosen, from the telemetry, and the dead-letter topic. Output: a log
//! line for each problem, once; what changed, in the Kafka client's topic book; and the error if dead
//! letters can never be stored, which ends the relay. Brokers that do not answer are left to the sessions,
//! except that a standby, which has none, warns of them.

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

/// How often it looks whether rows have chosen topics that it has not looked at.
const EVERY: Duration = Duration::from_secs(5);
/// How long brokers that answer may confirm nothing until it is asked whether a topic is gone.
const IN_VAIN: Duration = Duration::from_secs(2);
/// Topics looked at in one go; each costs the brokers two small requests.
const GO: usize = 50;

/// See the module.
pub(super) struct TopicMonitor {
    kafka: KafkaSpec,
    /// If dead letters are to go anywhere.
    dead_letters: Option<String>,
    telemetry: Telemetry,
}

/// Which topics records were sent to lately. One that was retired before is none of them: that it is gone is
/// no reason for anything.
#[derive(Debug, Default)]
struct Recent {
    /// Records of each topic at the last look at which records were confirmed, and at the one before it.
    last: BTreeMap<String, u64>,
    earlier: BTreeMap<String, u64>,
}

impl Recent {
    /// Takes in how many records were `sent` to each topic so far. If nothing is confirmed any more, returns
    /// the topics that may have some under way.
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
    /// What is looked at for this plan, beside the topics that `telemetry` names.
    pub(super) fn of(plan: &Plan, telemetry: Telemetry) -> Self {
        let wanted = plan.config.route.rejected == Rejected::DeadLetter;
        let dead_letters = wanted.then(|| plan.config.dead_letters.topic.clone());
        Self { kafka: plan.kafka.clone(), dead_letters, telemetry }
    }

    /// Looks while the work is done, and ends it if it must.
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

    /// Looks for as long as it is polled; ends with the reason why the relay must.
    async fn keep(self) -> RelayError {
        let mut seen = BTreeSet::new();
        let mut warned = false;
        let mut recent = Recent::default();
        let mut every = tokio::time::interval(EVERY);
        loop {
            every.tick().await;
            let kafka = self.kafka.clone();
            // Brokers that do not answer are left to the sessions.
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
                // Brokers without an admin API have no settings to tell; they know their topics.
                Err(TopicsError::Unsupported) => {}
                // The sessions tell, and this is asked again.
                Err(error) => {
                    warned = warned || self.warn_standby(&error);
                    continue;
                }
            }
            seen.extend(fresh.into_iter().map(|(name, _)| name));
        }
    }

    /// Topics whose records may be what brokers that answer have not confirmed for a while.
    fn in_vain(&self, recent: &mut Recent) -> Vec<String> {
        let snapshot = &self.telemetry.view().snapshot;
        let of_rows = snapshot.topics.iter().filter(|count| &*count.topic != TopicTotal::OTHERS);
        let sent = of_rows.map(|count| (count.topic.to_string(), count.sent)).collect();
        let stands = snapshot.broker_connected && snapshot.unconfirmed_for >= IN_VAIN;
        recent.look(sent, stands)
    }

    /// Says what keeps a standby from taking over, which would come out only when it has to.
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

    /// What rows have chosen may be fixed while they wait; what waits behind a dead letter does not
    /// know for what.
    fn is_final(&self, finding: &TopicFinding) -> bool {
        finding.grade == Grade::Unfit
            && finding.topic.is_some()
            && finding.topic == self.dead_letters
    }
}

/// Names a certificate that has expired.
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
        // However long it lasts.
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
