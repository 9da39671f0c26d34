//! What sessions that ended for a refused batch leave to those that follow.
//!
//! Enters: the brokers' complaint, and what the session's core made of it. Leaves: whether the next
//! session treats the records in another way, and how large its batches may be. Owned by `supervise`.
//! What always holds: batches are made smaller only for a topic that takes single records, and not for
//! ever (G4).

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::kafka::SinkError;
use crate::pipeline::{Lesson, Suspects};

/// For so long no batch of any topic is larger than one topic takes; then a session may find out again.
const SMALL_BATCHES_FOR: Duration = Duration::from_hours(1);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    suspects: Suspects,
    small_batches: Option<SmallBatches>,
    /// Topics that refused something.
    topics: BTreeSet<String>,
}

/// Topics remembered; of others nobody asks for the settings.
const TOPICS_MAX: usize = 1_000;

#[derive(Debug, Clone, Copy)]
struct SmallBatches {
    bytes: u32,
    since: Instant,
}

impl Refusals {
    /// How records of rows are treated.
    pub(super) fn suspects(&self) -> Suspects {
        self.suspects.clone()
    }

    /// The largest batch of a session that begins now, in bytes, where it is not as configured.
    pub(super) fn batch_bytes(&mut self, now: Instant) -> Option<u32> {
        self.small_batches.take_if(|small| now - small.since >= SMALL_BATCHES_FOR);
        self.small_batches.map(|small| small.bytes)
    }

    /// The topic that refused something, where it is the first time.
    pub(super) fn first_of(&mut self, cause: &SinkError) -> Option<String> {
        let SinkError::BatchRefused { topic, .. } = cause else { return None };
        let is_first = self.topics.len() < TOPICS_MAX && self.topics.insert(topic.clone());
        is_first.then(|| topic.clone())
    }

    /// Takes over what a session has learned, and says so; false if the next one would end the same way.
    pub(super) fn learn(&mut self, cause: &SinkError, lesson: &Lesson, now: Instant) -> bool {
        let SinkError::BatchRefused { topic, batch_bytes, .. } = cause else { return false };
        self.suspects = lesson.suspects.clone();
        let mut is_news = lesson.is_news;
        if let Some(bytes) = batch_bytes.filter(|_| lesson.is_of_the_batch)
            && self.small_batches.is_none_or(|small| bytes < small.bytes)
        {
            self.small_batches = Some(SmallBatches { bytes, since: now });
            is_news = true;
            tracing::warn!(
                topic,
                bytes,
                help = cause.hint(),
                "the topic takes smaller batches only: batches for all topics are made smaller, for an hour at least"
            );
        }
        if is_news {
            let next = match lesson.refused {
                0 => "trying again with single records",
                _ => "trying again without what it refused",
            };
            tracing::warn!(refused = lesson.refused, help = cause.hint(), "{cause}; {next}");
        }
        is_news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(batch_bytes: u32) -> SinkError {
        SinkError::BatchRefused {
            topic: "t".into(),
            reason: "too large".into(),
            records: Vec::new(),
            batch_bytes: Some(batch_bytes),
        }
    }

    fn lesson(is_news: bool, is_of_the_batch: bool) -> Lesson {
        Lesson {
            suspects: Suspects::default(),
            is_news,
            refused: 0,
            is_of_the_batch,
            wait: Duration::ZERO,
        }
    }

    #[test]
    fn batches_become_smaller_for_an_hour() {
        let (mut refusals, now) = (Refusals::default(), Instant::now());
        assert!(refusals.learn(&refused(9_000), &lesson(true, false), now));
        assert_eq!(refusals.batch_bytes(now), None, "a record goes alone first");
        assert!(refusals.learn(&refused(9_000), &lesson(false, true), now));
        assert_eq!(refusals.batch_bytes(now), Some(9_000));
        assert!(!refusals.learn(&refused(9_000), &lesson(false, true), now), "it did not help");
        assert!(refusals.learn(&refused(5_000), &lesson(false, true), now));
        assert_eq!(refusals.batch_bytes(now + SMALL_BATCHES_FOR / 2), Some(5_000));
        assert_eq!(refusals.batch_bytes(now + SMALL_BATCHES_FOR), None);
    }
}
