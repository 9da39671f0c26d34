//! Lists and redrives the dead letters of one consumer, from its topic `<consumer>.dead-letters`.
//!
//! Invariant: a dead letter is redriven once. A letter older than the markers is sent only with
//! `force`, because another consumer could process it twice.

use std::time::Duration;

use super::{
    DeadLetter, DeadLetterError, DeadLetterTopic, Filter, Interrupt, Job, Keep, RedriveControl,
};
use postrider_kafka::{KafkaSpec, ReaderError, refuse_reserved, topic_names};

const SUFFIX: &str = ".dead-letters";

/// Maximum that librdkafka accepts. The topic enforces its own size limit.
const RECORD_BYTES_MAX: u32 = 1_000_000_000;

/// Name of a consumer's dead-letter topic.
pub fn topic_of(consumer: &str) -> String {
    format!("{consumer}{SUFFIX}")
}

pub(crate) fn create_command(topic: &str) -> String {
    format!(
        "kafka-topics.sh --bootstrap-server <address> --create --topic {topic} --config retention.ms=-1"
    )
}

/// Drops the settings that Postrider sets itself.
pub(crate) fn kafka_of(settings: &[(String, String)]) -> KafkaSpec {
    let mut kafka = KafkaSpec {
        brokers: Vec::new(),
        client_id: "postrider-dead-letters".to_owned(),
        compression: "none".to_owned(),
        message_max_bytes: RECORD_BYTES_MAX,
        cautious: true,
        ..KafkaSpec::default()
    };
    for (name, value) in settings {
        match name.as_str() {
            "bootstrap.servers" | "metadata.broker.list" => {
                kafka.brokers = KafkaSpec::of_brokers(value).brokers;
            }
            "client.id" => kafka.client_id.clone_from(value),
            "compression.type" | "compression.codec" => kafka.compression.clone_from(value),
            name if refuse_reserved(name).is_err() => {}
            name => drop(kafka.properties.insert(name.to_owned(), value.clone())),
        }
    }
    kafka
}

/// The dead letters of one consumer.
#[derive(Debug, Clone)]
pub struct DeadLetters {
    consumer: String,
    topic: DeadLetterTopic,
}

/// Options of a redrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RedriveOptions {
    /// Time for which markers are kept. Another consumer may have deleted its marker of an older
    /// dead letter.
    pub horizon: Duration,
    /// Sends older dead letters too.
    pub force: bool,
    /// Current time in milliseconds since the Unix epoch; see [`now_ms`](super::now_ms).
    pub now_ms: i64,
}

/// Counts of the selected dead letters by outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Redriven {
    /// Stored in their topics, with receipts.
    pub sent: u64,
    /// Skipped: they already have receipts.
    pub already: u64,
    /// Skipped: older than the markers, and `force` is not set.
    pub too_old: u64,
    /// Skipped: their values were truncated.
    pub cut: u64,
}

/// The dead letters that were not redriven.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pending {
    /// Number of dead letters.
    pub count: u64,
    /// Time of the oldest letter's first failure, in milliseconds since the Unix epoch.
    pub oldest_ms: Option<i64>,
}

impl DeadLetters {
    /// Creates a handle. The librdkafka `settings` need at least `bootstrap.servers`.
    pub fn new(consumer: &str, settings: &[(String, String)]) -> Self {
        let topic = DeadLetterTopic { kafka: kafka_of(settings), name: topic_of(consumer) };
        Self { consumer: consumer.to_owned(), topic }
    }

    /// Selected dead letters by partition and offset, including redriven ones.
    pub fn list(&self, filter: &Filter) -> Result<Vec<DeadLetter>, DeadLetterError> {
        self.survey(filter, Keep::Whole)
    }

    /// Counts the dead letters that were not redriven. Reads the whole topic.
    pub fn pending(&self) -> Result<Pending, DeadLetterError> {
        let letters = self.survey(&Filter::default(), Keep::Summary)?;
        let waiting = letters.iter().filter(|letter| !letter.is_retried);
        let failed = waiting.filter_map(|letter| Some(letter.failure()?.first_failed_ms));
        Ok(failed.fold(Pending::default(), |pending, ms| Pending {
            count: pending.count + 1,
            oldest_ms: Some(pending.oldest_ms.map_or(ms, |oldest| oldest.min(ms))),
        }))
    }

    /// Sends the selected dead letters to their original topics. Letters that were sent before a
    /// failed call ended have receipts. If the process is killed, the next call may repeat up to 64
    /// letters.
    pub fn redrive(
        &self,
        filter: &Filter,
        how: &RedriveOptions,
    ) -> Result<Redriven, DeadLetterError> {
        let (planned, jobs) = plan(&self.survey(filter, Keep::Summary)?, how);
        let control = RedriveControl { rate: u32::MAX, interrupt: &|| Interrupt::None };
        let (sent, outcome) = self.topic.redrive(&jobs, control, &mut |_| {});
        outcome.map(|()| Redriven { sent, ..planned })
    }

    /// Counts that [`DeadLetters::redrive`] would return. Sends nothing.
    pub fn plan_redrive(
        &self,
        filter: &Filter,
        how: &RedriveOptions,
    ) -> Result<Redriven, DeadLetterError> {
        Ok(plan(&self.survey(filter, Keep::Summary)?, how).0)
    }

    fn survey(&self, filter: &Filter, keep: Keep) -> Result<Vec<DeadLetter>, DeadLetterError> {
        match self.topic.survey(filter, keep, &mut |_| {}) {
            Ok(mut survey) => {
                survey.letters.retain(|letter| letter.failure().is_some());
                Ok(survey.letters)
            }
            Err(DeadLetterError::Reader(ReaderError::UnknownTopic(topic))) => {
                let names = topic_names(&self.topic.kafka).unwrap_or_default();
                let others = names.iter().filter_map(|name| name.strip_suffix(SUFFIX));
                Err(DeadLetterError::NoDeadLetters {
                    consumer: self.consumer.clone(),
                    others: others.map(str::to_owned).collect(),
                    creation: create_command(&topic),
                    topic,
                })
            }
            Err(error) => Err(error),
        }
    }
}

fn plan(letters: &[DeadLetter], how: &RedriveOptions) -> (Redriven, Vec<Job>) {
    let (mut planned, mut jobs) = (Redriven::default(), Vec::new());
    let horizon_ms = i64::try_from(how.horizon.as_millis()).unwrap_or(i64::MAX);
    for letter in letters {
        let (Some(failure), Some(topic)) = (letter.failure(), &letter.topic) else { continue };
        let age_ms = how.now_ms.saturating_sub(failure.first_failed_ms);
        *if letter.is_retried {
            &mut planned.already
        } else if letter.is_cut {
            &mut planned.cut
        } else if age_ms > horizon_ms && !how.force {
            &mut planned.too_old
        } else {
            jobs.push(Job { at: letter.at, topic: topic.clone() });
            &mut planned.sent
        } += 1;
    }
    (planned, jobs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_core::record::{ConsumerFailure, DeadLetterOrigin, PartitionOffset};

    fn letter(first_failed_ms: i64) -> DeadLetter {
        let failure = ConsumerFailure {
            consumer: "payments".into(),
            attempts: 1,
            first_failed_ms,
            failed_ms: i64::MAX,
        };
        let at = PartitionOffset { partition: 0, offset: 0 };
        DeadLetter {
            topic: Some("orders".into()),
            origin: DeadLetterOrigin::Consumer { at, failure },
            ..DeadLetter::rejected(0, "poison", "")
        }
    }

    #[test]
    fn what_is_older_than_the_markers_is_sent_with_force_only() {
        let how = RedriveOptions { horizon: Duration::from_secs(1), force: false, now_ms: 5_000 };
        let letters = [letter(4_000), letter(3_999)];
        assert_eq!(plan(&letters, &how).0, Redriven { sent: 1, too_old: 1, ..Redriven::default() });
        let (planned, jobs) = plan(&letters, &RedriveOptions { force: true, ..how });
        assert_eq!((planned.sent, jobs.len()), (2, 2));
    }

    #[test]
    fn force_does_not_send_what_was_redriven_or_is_cut() {
        let how = RedriveOptions { horizon: Duration::MAX, force: true, now_ms: 0 };
        let retried = DeadLetter { is_retried: true, ..letter(0) };
        let (planned, jobs) = plan(&[retried, DeadLetter { is_cut: true, ..letter(0) }], &how);
        assert_eq!(planned, Redriven { already: 1, cut: 1, ..Redriven::default() });
        assert_eq!(jobs, []);
    }

    #[test]
    fn the_brokers_password_is_not_shown() {
        let settings = [("sasl.password".to_owned(), "hunter2".to_owned())];
        let text = format!("{:?}", DeadLetters::new("payments", &settings));
        assert!(text.contains("sasl.password") && !text.contains("hunter2"), "{text}");
    }

    #[test]
    fn settings_of_postrider_are_dropped_and_the_others_kept() {
        let settings = [
            ("bootstrap.servers", "a:1,b:2"),
            ("client.id", "shop"),
            ("acks", "0"),
            ("group.id", "x"),
            ("security.protocol", "ssl"),
        ];
        let kafka = kafka_of(&settings.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert_eq!(
            (kafka.brokers, kafka.client_id.as_str()),
            (vec!["a:1".into(), "b:2".into()], "shop")
        );
        assert_eq!(kafka.properties, [("security.protocol".to_owned(), "ssl".to_owned())].into());
    }
}
