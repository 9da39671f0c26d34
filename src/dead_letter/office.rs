//! Dead letters as an operator sees them: what there is, and sending it again.
//!
//! Enters: a consumer's name and a [`Filter`]. Leaves: letters; or their records in the topics they
//! came from, and in the dead-letter topic a receipt for each. What always holds: a receipt is sent
//! only after its record is confirmed, so a crash in between repeats a record, which its marker then
//! makes harmless, and loses none; what has a receipt is not sent again. Records go one at a time,
//! in the order of their places, so that those of one key keep their order. Every call blocks.
//! Called by `shop`.

use std::time::Duration;

use super::courier::{Courier, Parcel};
use super::letter::mark;
use super::topic::{Filter, read};
use super::{DeadLetterError, Letter};

/// How the name of a consumer's dead-letter topic ends.
pub(super) const SUFFIX: &str = ".dead-letters";

/// The name of a consumer's dead-letter topic.
pub fn topic_of(consumer: &str) -> String {
    format!("{consumer}{SUFFIX}")
}

/// One consumer's dead letters.
#[derive(Clone)]
pub struct DeadLetters {
    settings: Vec<(String, String)>,
    topic: String,
}

/// Settings may hold passwords: their names are shown.
impl std::fmt::Debug for DeadLetters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = self.settings.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("DeadLetters").field("settings", &names).field("topic", &self.topic).finish()
    }
}

/// How to send again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Redrive {
    /// For how long markers are kept. Other consumers of the topic receive the record as well, and
    /// what failed longer ago may have lost its markers there, so that it is not sent.
    pub horizon: Duration,
    /// Sends it nevertheless.
    pub force: bool,
    /// Now, in milliseconds since the Unix epoch; see [`now_ms`](super::now_ms).
    pub now_ms: i64,
}

/// What has become of the letters that were meant.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Redriven {
    /// Stored in their topics, with receipts.
    pub sent: u64,
    /// They had receipts, and were left alone.
    pub already: u64,
    /// Older than the markers, and not forced.
    pub too_old: u64,
    /// Their values are not here.
    pub cut: u64,
}

impl DeadLetters {
    /// Those of `consumer`, reached with librdkafka's `settings`, `bootstrap.servers` at least.
    pub fn new(consumer: &str, settings: Vec<(String, String)>) -> Self {
        Self { settings, topic: topic_of(consumer) }
    }

    /// The letters that are meant, those that were sent again included, by place.
    pub fn list(&self, filter: &Filter) -> Result<Vec<Letter>, DeadLetterError> {
        read(&self.settings, &self.topic, filter)
    }

    /// Sends the letters that are meant to the topics they came from. What was sent when a call
    /// fails has its receipt, but for one record at most.
    pub fn redrive(&self, filter: &Filter, how: &Redrive) -> Result<Redriven, DeadLetterError> {
        let courier = Courier::new(&self.settings)?;
        self.each(filter, how, |letter| self.send(&courier, letter))
    }

    /// What [`DeadLetters::redrive`] would do now. Sends nothing.
    pub fn rehearse(&self, filter: &Filter, how: &Redrive) -> Result<Redriven, DeadLetterError> {
        self.each(filter, how, |_| Ok(()))
    }

    fn each(
        &self,
        filter: &Filter,
        how: &Redrive,
        mut send: impl FnMut(&Letter) -> Result<(), DeadLetterError>,
    ) -> Result<Redriven, DeadLetterError> {
        let letters = self.list(filter)?;
        let mut redriven = Redriven::default();
        for letter in &letters {
            *match fate(letter, how) {
                Fate::Already => &mut redriven.already,
                Fate::Cut => &mut redriven.cut,
                Fate::TooOld => &mut redriven.too_old,
                Fate::Send => {
                    send(letter)?;
                    &mut redriven.sent
                }
            } += 1;
        }
        Ok(redriven)
    }

    fn send(&self, courier: &Courier, letter: &Letter) -> Result<(), DeadLetterError> {
        let key = letter.record.key.as_deref();
        courier.deliver(&Parcel {
            topic: &letter.record.topic,
            // Where it was, whatever chose it: later records of its key go there.
            partition: Some(letter.record.partition),
            key,
            value: letter.record.value.as_deref(),
            headers: &letter.headers_again(),
        })?;
        // Of the same key and partition, so that it shares the dead letter's fate.
        courier.deliver(&Parcel {
            topic: &self.topic,
            partition: Some(letter.place.partition),
            key,
            value: None,
            headers: &[mark(letter.place)],
        })
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Fate {
    Already,
    Cut,
    TooOld,
    Send,
}

fn fate(letter: &Letter, how: &Redrive) -> Fate {
    let age_ms = how.now_ms.saturating_sub(letter.grounds.first_failed_ms);
    let horizon_ms = i64::try_from(how.horizon.as_millis()).unwrap_or(i64::MAX);
    if letter.is_retried {
        Fate::Already
    } else if letter.is_cut {
        Fate::Cut
    } else if age_ms > horizon_ms && !how.force {
        Fate::TooOld
    } else {
        Fate::Send
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dead_letter::{Grounds, Place, Record};

    fn letter(first_failed_ms: i64) -> Letter {
        Letter {
            place: Place { partition: 0, offset: 0 },
            grounds: Grounds {
                consumer: "payments".into(),
                code: "poison".into(),
                reason: String::new(),
                attempts: 1,
                first_failed_ms,
                failed_ms: i64::MAX,
            },
            record: Record::bare("orders", 0, 0),
            is_cut: false,
            is_retried: false,
        }
    }

    #[test]
    fn what_is_older_than_the_markers_is_sent_by_force_alone() {
        let how = Redrive { horizon: Duration::from_secs(1), force: false, now_ms: 5_000 };
        assert_eq!(fate(&letter(4_000), &how), Fate::Send);
        assert_eq!(fate(&letter(3_999), &how), Fate::TooOld);
        assert_eq!(fate(&letter(3_999), &Redrive { force: true, ..how }), Fate::Send);
    }

    #[test]
    fn the_brokers_password_is_not_shown() {
        let settings = vec![("sasl.password".to_owned(), "hunter2".to_owned())];
        let text = format!("{:?}", DeadLetters::new("payments", settings));
        assert!(text.contains("sasl.password") && !text.contains("hunter2"), "{text}");
    }

    #[test]
    fn no_force_sends_what_was_sent_or_is_not_whole() {
        let how = Redrive { horizon: Duration::MAX, force: true, now_ms: 0 };
        assert_eq!(fate(&Letter { is_retried: true, ..letter(0) }, &how), Fate::Already);
        assert_eq!(fate(&Letter { is_cut: true, ..letter(0) }, &how), Fate::Cut);
    }
}
