//! Looks at the topics beside the sessions.
//!
//! Enters: what rows have chosen, from the telemetry, and the dead-letter topic. Leaves: a line in the
//! log for what is wrong with them, once each; and the error if dead letters can never be stored,
//! which ends the relay. What always holds: nothing waits for it, and brokers that do not answer are
//! left to the sessions; only a standby, which has none, is warned of them. Called by `supervise`.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::config::Rejected;
use crate::kafka::{
    Finding, Grade, KafkaSpec, Purpose, TopicsError, look_for_absent, look_for_gone, survey,
};
use crate::pipeline::TopicTotal;
use crate::relay::aside::aside;
use crate::relay::beforehand::tell;
use crate::relay::error::RelayError;
use crate::relay::plan::Plan;
use crate::telemetry::{State, Telemetry};

/// How often it looks whether rows have chosen topics that it has not looked at.
const EVERY: Duration = Duration::from_secs(5);
/// How long brokers that answer may confirm nothing until it is asked whether a topic is gone.
const IN_VAIN: Duration = Duration::from_secs(2);
/// Topics looked at in one go; each costs the brokers two small requests.
const GO: usize = 50;

/// See the module.
pub(super) struct Lookout {
    kafka: KafkaSpec,
    /// If dead letters are to go anywhere.
    dead_letters: Option<String>,
    telemetry: Telemetry,
}

impl Lookout {
    /// What is looked at for this plan, beside the topics that `telemetry` names.
    pub(super) fn of(plan: &Plan, telemetry: Telemetry) -> Self {
        let wanted = plan.config.route.rejected == Rejected::DeadLetter;
        let dead_letters = wanted.then(|| plan.config.dead_letters.topic.clone());
        Self { kafka: plan.kafka.clone(), dead_letters, telemetry }
    }

    /// Looks for as long as it is polled; ends with the reason why the relay must.
    pub(super) async fn keep(self) -> RelayError {
        let mut seen = BTreeSet::new();
        let mut warned = false;
        let mut every = tokio::time::interval(EVERY);
        loop {
            every.tick().await;
            let kafka = self.kafka.clone();
            // Brokers that do not answer are left to the sessions.
            let _ = aside(move || look_for_absent(&kafka)).await;
            if let Some(topics) = self.in_vain() {
                let kafka = self.kafka.clone();
                let _ = aside(move || look_for_gone(&kafka, &topics)).await;
            }
            let fresh: Vec<_> = self.topics().filter(|(name, _)| !seen.contains(name)).collect();
            let fresh: Vec<_> = fresh.into_iter().take(GO).collect();
            if fresh.is_empty() {
                continue;
            }
            let (kafka, topics) = (self.kafka.clone(), fresh.clone());
            let Ok(answer) = aside(move || survey(&kafka, &topics)).await else { continue };
            match answer {
                Ok(findings) => {
                    tell(&findings);
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

    /// The topics of rows, where brokers that answer have confirmed nothing for a while.
    fn in_vain(&self) -> Option<Vec<String>> {
        let view = self.telemetry.view();
        let stands = view.snapshot.broker_connected && view.snapshot.unconfirmed_for >= IN_VAIN;
        let of_rows = self.topics().filter(|(_, purpose)| *purpose == Purpose::Rows);
        stands.then(|| of_rows.map(|(topic, _)| topic).collect())
    }

    /// Says what keeps a standby from taking over, which would come out only when it has to.
    fn warn_standby(&self, error: &TopicsError) -> bool {
        let is_standby = self.telemetry.view().snapshot.state == State::Standby;
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

    /// What rows have chosen may be mended while they wait; what waits behind a dead letter does not
    /// know for what.
    fn is_final(&self, finding: &Finding) -> bool {
        finding.grade == Grade::Unfit
            && finding.topic.is_some()
            && finding.topic == self.dead_letters
    }
}
