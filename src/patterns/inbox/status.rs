//! Current status of a consumer, read through [`ConsumerCounters`](super::ConsumerCounters).
//! Invariant: the status contains no key and no payload.

use serde::Serialize;

use super::Message;

/// The event type comes from a header, so its length is limited.
const TYPE_CHARS_MAX: usize = 100;

/// The status of a consumer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ConsumerStatus {
    /// Number of assigned partitions.
    pub partitions: u64,
    /// Whether the group has ever assigned partitions to the consumer.
    pub has_joined: bool,
    /// Number of unhandled messages in the assigned partitions, updated every 5 s; `None` while the
    /// brokers do not answer. Messages that passed a waiting one count as handled. The end of a
    /// Kafka transaction counts until a later message is received.
    pub lag_messages: Option<u64>,
    /// Time when a message was last handled, in milliseconds since the Unix epoch.
    pub progress_ms: Option<i64>,
    /// Whether the last transaction found the database unavailable, or nothing has succeeded since
    /// a failure that may be the database's.
    pub is_database_unavailable: bool,
    /// Whether the brokers did not answer the last request, sent every 5 s.
    pub are_brokers_unavailable: bool,
    /// Time when the brokers had not answered for 15 s, in milliseconds since the Unix epoch. The
    /// consumer then adds its bootstrap servers again.
    pub brokers_lost_ms: Option<i64>,
    /// Number of messages that wait for a retry or for an earlier message.
    pub waiting_messages: u64,
    /// The message that has failed for the longest time.
    pub failing: Option<FailingMessage>,
    /// Number of partitions that are paused because too many of their messages wait.
    pub paused_partitions: u64,
    /// The message that most others wait for, if it has failed for 5 s.
    pub blocking: Option<FailingMessage>,
    /// Oldest dead letter that has been unconfirmed for 5 s.
    pub unpublished: Option<UnpublishedLetter>,
}

/// A dead letter that the brokers do not confirm.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct UnpublishedLetter {
    /// Name of the dead-letter topic.
    pub topic: String,
    /// Error of the last attempt.
    pub reason: String,
    /// Time of the first attempt, in milliseconds since the Unix epoch.
    pub since_ms: i64,
}

/// A message that waits for another attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FailingMessage {
    /// Topic of the message.
    pub topic: String,
    /// Partition of the message.
    pub partition: i32,
    /// Offset of the message.
    pub offset: i64,
    /// Id of the message, a UUID.
    pub id: String,
    /// First 100 characters of its event type.
    pub event_type: String,
    /// Reason of the last failure. For an error of Postgres: SQLSTATE and names.
    pub reason: String,
    /// Time of the first failure, in milliseconds since the Unix epoch.
    pub first_failed_ms: i64,
    /// Number of later messages of its key.
    pub behind: u64,
}

impl FailingMessage {
    pub(super) fn new(message: &Message, reason: &str, first_failed_ms: i64) -> Self {
        let Message { id, event_type, record, .. } = message;
        Self {
            topic: record.topic.clone(),
            partition: record.partition,
            offset: record.offset,
            id: id.to_string(),
            event_type: event_type.chars().take(TYPE_CHARS_MAX).collect(),
            reason: reason.to_owned(),
            first_failed_ms,
            behind: 0,
        }
    }

    pub(super) fn before(self, behind: usize) -> Self {
        Self { behind: u64::try_from(behind).unwrap_or(u64::MAX), ..self }
    }

    fn name(&self) -> String {
        let Self { topic, partition, offset, id, event_type, .. } = self;
        format!(
            "message {id} of type `{event_type}` (topic {topic}, partition {partition}, offset {offset})"
        )
    }
}

impl ConsumerStatus {
    /// Reason why the consumer cannot process any message, the messages of some partitions, or the
    /// messages behind one message. A consumer that processes other messages while some fail is
    /// ready: see [`failing`](Self::failing).
    pub fn not_ready_reason(&self) -> Option<String> {
        match (&self.failing, &self.blocking) {
            (Some(FailingMessage { event_type, reason, .. }), _)
                if self.is_database_unavailable =>
            {
                Some(format!(
                    "the consumer is waiting for its database: no message has succeeded since one of type \
                     `{event_type}` failed ({reason})"
                ))
            }
            _ if self.is_database_unavailable => {
                Some("the consumer is waiting for its database".to_owned())
            }
            _ if self.brokers_lost_ms.is_some() => {
                Some("the brokers have not answered the consumer for 15 s".to_owned())
            }
            _ if !self.has_joined => Some("the consumer has not joined its group yet".to_owned()),
            (_, Some(blocking)) => Some(self.blocked_reason(blocking)),
            _ => self.unpublished.as_ref().map(|UnpublishedLetter { topic, reason, .. }| {
                format!("a dead letter cannot be published to topic `{topic}` ({reason})")
            }),
        }
    }

    fn blocked_reason(&self, blocking: &FailingMessage) -> String {
        let FailingMessage { reason, behind, .. } = blocking;
        let name = blocking.name();
        let (paused, all) = (self.paused_partitions, self.partitions);
        let taken = if paused > 0 {
            format!("; the consumer has paused {paused} of its {all} partitions")
        } else {
            String::new()
        };
        format!("{behind} messages wait behind {name}, which fails ({reason}){taken}")
    }
}

#[cfg(test)]
mod tests {
    use postrider_core::record::StoredRecord;

    use super::*;
    use crate::inbox::MessageFormat;

    #[test]
    fn a_consumer_without_its_database_or_its_group_cannot_work() {
        let fresh = ConsumerStatus::default();
        assert!(fresh.not_ready_reason().unwrap().contains("group"));
        let idle = ConsumerStatus { has_joined: true, ..fresh };
        assert_eq!(idle.not_ready_reason(), None);
        let away = ConsumerStatus { is_database_unavailable: true, ..idle.clone() };
        assert!(away.not_ready_reason().unwrap().ends_with("database"));
        let lost = ConsumerStatus { brokers_lost_ms: Some(1), ..idle.clone() };
        assert!(lost.not_ready_reason().unwrap().starts_with("the brokers"));
        let failing = Some(failing(&"Paid".repeat(100)));
        let one_fails = ConsumerStatus { failing: failing.clone(), ..idle };
        assert_eq!(one_fails.not_ready_reason(), None);
        let all_fail = ConsumerStatus { is_database_unavailable: true, ..one_fails.clone() };
        let why = all_fail.not_ready_reason().unwrap();
        assert!(why.contains("`PaidPaid") && why.contains("42P01") && why.len() < 250, "{why}");
        let blocked = ConsumerStatus { blocking: failing, partitions: 3, ..one_fails };
        let why = blocked.not_ready_reason().unwrap();
        let place = "(topic orders, partition 2, offset 17), which fails (SQLSTATE 42P01)";
        assert!(why.starts_with("1100 messages wait behind message 0199f2a4-"), "{why}");
        assert!(why.ends_with(place) && why.len() < 300, "{why}");
        let paused = ConsumerStatus { paused_partitions: 1, ..blocked };
        assert!(paused.not_ready_reason().unwrap().ends_with("has paused 1 of its 3 partitions"));
        let topic = "payments.dead-letters".to_owned();
        let letter = UnpublishedLetter { topic, reason: "no such topic".into(), since_ms: 1 };
        let unpublished =
            ConsumerStatus { unpublished: Some(letter), has_joined: true, ..Default::default() };
        assert_eq!(
            unpublished.not_ready_reason().unwrap(),
            "a dead letter cannot be published to topic `payments.dead-letters` (no such topic)"
        );
    }

    fn failing(event_type: &str) -> FailingMessage {
        let header = |name: &str, value: &str| (name.to_owned(), Some(value.as_bytes().to_vec()));
        let id = header("id", "0199f2a4-7c1e-7cc3-98c4-dc0c0c07398f");
        let record = StoredRecord {
            topic: "orders".into(),
            partition: 2,
            offset: 17,
            headers: vec![id, header("event_type", event_type)],
            ..StoredRecord::default()
        };
        let message = Message::read(record, &MessageFormat::new()).unwrap();
        FailingMessage::new(&message, "SQLSTATE 42P01", 1).before(1_100)
    }
}
