//! A dead-letter topic: what lies in it, and what of that was sent again.
//!
//! Enters: how to reach Kafka, the topic's name, a [`Filter`]. Leaves: a [`Survey`], or one record.
//! What always holds: nothing is committed and no group is joined; whether a dead letter was sent again
//! is known only at the end of the topic, since its receipt lies behind it. A survey that keeps
//! summaries needs memory for the number of dead letters that are meant, some 550 bytes each, and not
//! for their values.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use super::DeadLetterError;
use postrider_core::record::{
    DeadLetter, Filter, PartitionOffset, StoredRecord, Target, receipt_of,
};
use postrider_kafka::{KafkaSpec, Reader, ReaderError, ReaderSpec, Received, Start, Step};

/// How long the brokers may take to answer and to name the topic's partitions.
const CONNECT_LIMIT: Duration = Duration::from_secs(15);

/// Brokers that are there and send nothing for this long, before the end is reached, have failed.
const SILENCE_LIMIT: Duration = Duration::from_secs(30);

/// How soon a reader that waits looks at the time.
const TICK: Duration = Duration::from_millis(100);

/// A topic of dead letters, and how to reach it.
#[derive(Debug, Clone)]
pub struct DeadLetterTopic {
    /// How to reach Kafka.
    pub kafka: KafkaSpec,
    /// The topic.
    pub name: String,
}

/// How much of the dead letters a survey keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// All of them, values included.
    Whole,
    /// [`DeadLetter::summarize`].
    Summary,
}

/// What was found.
#[derive(Debug, Default)]
pub struct Survey {
    /// Those that are meant, in order of partition and offset; those that were sent again included.
    pub letters: Vec<DeadLetter>,
    /// Records that are neither dead letters nor receipts.
    pub foreign: usize,
}

impl DeadLetterTopic {
    /// Reads to the end; `progress` hears how many records were read. What was named and is not there is
    /// an error.
    pub fn survey(
        &self,
        filter: &Filter,
        keep: Keep,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Survey, DeadLetterError> {
        let mut survey = Survey::default();
        let (mut retried, mut missing, mut read) = (HashSet::new(), filter.named(), 0);
        self.walk(None, Start::Beginning, |record| {
            read += 1;
            progress(read);
            let record = record.to_stored();
            if let Some(at) = receipt_of(&record) {
                retried.insert(at);
            } else if let Some(mut letter) = DeadLetter::read(record) {
                if filter.admits(&letter, &mut missing) {
                    if keep == Keep::Summary {
                        letter.summarize();
                    }
                    survey.letters.push(letter);
                }
            } else {
                survey.foreign += 1;
            }
            Ok(ControlFlow::Continue(()))
        })?;
        if !missing.is_empty() {
            return Err(DeadLetterError::Missing(missing));
        }
        for letter in &mut survey.letters {
            letter.is_retried = retried.contains(&letter.at);
        }
        survey.letters.sort_unstable_by_key(|letter| letter.at);
        Ok(survey)
    }

    /// The record that lies there, whatever it is.
    pub fn record(&self, at: PartitionOffset) -> Result<StoredRecord, DeadLetterError> {
        let mut found = None;
        let read = self.walk(Some(at.partition), Start::Offset(at.offset), |record| {
            found = Some(record.to_stored()).filter(|record| record.at() == at);
            Ok(ControlFlow::Break(()))
        });
        match read {
            Ok(())
            | Err(DeadLetterError::Reader(
                ReaderError::OffsetGone(_) | ReaderError::UnknownPartition { .. },
            )) => found.ok_or_else(|| DeadLetterError::Missing(vec![Target::At(at)])),
            Err(error) => Err(error),
        }
    }

    /// Reads the topic, or one partition of it, from there to its end, or until told to stop.
    pub(super) fn walk(
        &self,
        partition: Option<i32>,
        start: Start,
        mut each: impl FnMut(&Received<'_>) -> Result<ControlFlow<()>, DeadLetterError>,
    ) -> Result<(), DeadLetterError> {
        let spec = ReaderSpec { partition, start, ..ReaderSpec::whole(&[&self.name]) };
        let mut reader = Reader::open(&self.kafka, spec, CONNECT_LIMIT)?;
        let mut heard = Instant::now();
        loop {
            match reader.next(TICK)? {
                Step::Record(record) => {
                    if each(&record)?.is_break() {
                        return Ok(());
                    }
                    heard = Instant::now();
                }
                Step::End => return Ok(()),
                Step::Idle if heard.elapsed() < SILENCE_LIMIT => {}
                Step::Idle => {
                    return Err(DeadLetterError::Unread { seconds: SILENCE_LIMIT.as_secs() });
                }
            }
        }
    }
}
