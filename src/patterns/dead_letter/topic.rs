//! Reads a dead-letter topic to its end, or one record of it.
//!
//! Input: how to reach Kafka, the topic's name, a `Filter`. Output: a `Survey`: the selected dead letters,
//! and which of them were redriven; or the record at one position. Invariant: no offset is committed and no
//! group is joined. Whether a dead letter was redriven is known only at the end of the topic, since its
//! receipt comes after it. A survey that keeps summaries needs some 550 bytes per selected dead letter,
//! whatever their size.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use super::DeadLetterError;
use postrider_core::record::{
    DeadLetter, Filter, PartitionOffset, StoredRecord, Target, receipt_of,
};
use postrider_kafka::{
    KafkaSpec, Reader, ReaderError, ReaderEvent, ReaderSpec, Received, StartOffset,
};

/// How long the brokers may take to answer and to name the topic's partitions.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// Connected brokers that send nothing for this long, before the end is reached, have failed.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(30);

/// How often a waiting reader checks the time.
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
    /// The selected dead letters, in order of partition and offset, including those that were redriven.
    pub letters: Vec<DeadLetter>,
    /// Records that are neither dead letters nor receipts.
    pub foreign: usize,
}

impl DeadLetterTopic {
    /// Reads to the end; `progress` gets the number of records read. A named dead letter that does not exist
    /// is an error.
    pub fn survey(
        &self,
        filter: &Filter,
        keep: Keep,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Survey, DeadLetterError> {
        let mut survey = Survey::default();
        let (mut retried, mut missing, mut read) = (HashSet::new(), filter.named(), 0);
        self.walk(None, StartOffset::Beginning, |record| {
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

    /// The record at this position, whatever it is.
    pub fn record(&self, at: PartitionOffset) -> Result<StoredRecord, DeadLetterError> {
        let mut found = None;
        let read = self.walk(Some(at.partition), StartOffset::Offset(at.offset), |record| {
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
        start: StartOffset,
        mut each: impl FnMut(&Received<'_>) -> Result<ControlFlow<()>, DeadLetterError>,
    ) -> Result<(), DeadLetterError> {
        let spec = ReaderSpec { partition, start, ..ReaderSpec::whole(&[&self.name]) };
        let mut reader = Reader::open(&self.kafka, spec, CONNECT_TIMEOUT)?;
        let mut last_activity = Instant::now();
        loop {
            match reader.next(TICK)? {
                ReaderEvent::Record(record) => {
                    if each(&record)?.is_break() {
                        return Ok(());
                    }
                    last_activity = Instant::now();
                }
                ReaderEvent::End => return Ok(()),
                ReaderEvent::Idle if last_activity.elapsed() < SILENCE_TIMEOUT => {}
                ReaderEvent::Idle => {
                    return Err(DeadLetterError::Unread { seconds: SILENCE_TIMEOUT.as_secs() });
                }
            }
        }
    }
}
