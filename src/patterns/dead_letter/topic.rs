//! Reads a dead-letter topic to its end, or a single record. Invariant: the reader commits no
//! offset and joins no group. A receipt follows its dead letter, so the topic is read to its end. A
//! summary needs about 550 bytes per dead letter.

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

const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

const SILENCE_TIMEOUT: Duration = Duration::from_secs(30);

const TICK: Duration = Duration::from_millis(100);

/// A dead-letter topic and its Kafka connection.
#[derive(Debug, Clone)]
pub struct DeadLetterTopic {
    /// Kafka connection.
    pub kafka: KafkaSpec,
    /// Name of the topic.
    pub name: String,
}

/// How much of each dead letter a survey keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// The whole dead letter, including its value.
    Whole,
    /// The result of [`DeadLetter::summarize`].
    Summary,
}

/// Result of reading a dead-letter topic.
#[derive(Debug, Default)]
pub struct Survey {
    /// Selected dead letters by partition and offset, including redriven ones.
    pub letters: Vec<DeadLetter>,
    /// Number of records that are neither dead letters nor receipts.
    pub foreign: usize,
}

impl DeadLetterTopic {
    /// Reads the topic to its end, and calls `progress` with the number of records read. A named
    /// dead letter must exist.
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

    /// Record at this position, even if it is not a dead letter.
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

    /// Reads from a position to the end or until the callback stops.
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
