//! Writes a stream's first progress record (delivered up to 0/0) before its slot is created, so
//! that another program's slot is recognised. Replaces progress for `postrider adopt`.

use std::time::{Duration, Instant};

use rdkafka::error::KafkaError;
use rdkafka::producer::Producer as _;

use super::fence::fence_patiently;
use super::progress_topic::newest_progress;
use super::{KafkaSpec, Lineage, Outcome, Producer, Progress, SendError, SinkError};
use postrider_core::pipeline::Mark;
use postrider_core::transaction::PROGRESS_TICKET;

/// Others may start the stream too.
const ATTEMPTS: u32 = 5;
const LIMIT: Duration = Duration::from_secs(10);
const TICK: Duration = Duration::from_millis(2);

/// Writes progress at 0/0 if there is none, or if it names other objects and no position. Blocks
/// for seconds, or up to a minute before a cluster's first transaction. Each relay fences before it
/// reads again, and writes in a transaction, so a base never follows another relay's progress.
/// Upholds G6.
pub fn init_progress_transactional(
    kafka: &KafkaSpec,
    lineage: &Lineage,
) -> Result<Option<Progress>, SinkError> {
    let mut attempts = 1;
    loop {
        match try_to_begin(kafka, lineage) {
            // Another relay starts now, or the outcome is unknown.
            Err(SinkError::Fenced(_) | SinkError::Fatal(_) | SinkError::Ambiguous(_))
                if attempts < ATTEMPTS =>
            {
                attempts += 1;
            }
            ended => return ended,
        }
    }
}

/// Two relays that start at once may both write, and rows that one of them delivered are repeated.
pub fn init_progress_at_least_once(
    kafka: &KafkaSpec,
    lineage: &Lineage,
) -> Result<Option<Progress>, SinkError> {
    let found = newest_progress(kafka, &lineage.key())?;
    if lacks_base(found.as_ref(), lineage) {
        write_progress(kafka, &base(lineage))?;
    }
    Ok(found)
}

fn try_to_begin(kafka: &KafkaSpec, lineage: &Lineage) -> Result<Option<Progress>, SinkError> {
    let found = newest_progress(kafka, &lineage.key())?;
    if !lacks_base(found.as_ref(), lineage) {
        return Ok(found);
    }
    let mut producer = fence_patiently(kafka, lineage)?;
    let found = newest_progress(kafka, &lineage.key())?;
    if lacks_base(found.as_ref(), lineage) {
        let uncertain = |error: KafkaError| SinkError::Ambiguous(error.to_string());
        producer.client().begin_transaction().map_err(uncertain)?;
        store(&mut producer, kafka, &base(lineage))?;
        // After an uncertain outcome the next attempt fences and reads again.
        producer.client().commit_transaction(LIMIT).map_err(uncertain)?;
    }
    Ok(found)
}

fn base(lineage: &Lineage) -> Progress {
    Progress { lineage: lineage.clone(), mark: Mark::default(), backfill: None }
}

/// A stream that delivered nothing may name replaced objects; its slot does not exist either.
fn lacks_base(found: Option<&Progress>, lineage: &Lineage) -> bool {
    found.is_none_or(|found| {
        // A backfill resumes from its own notes.
        let is_base = found.mark == Mark::default() && found.backfill.is_none();
        is_base && found.lineage != *lineage
    })
}

/// Blocks for seconds, until the record is stored.
pub fn write_progress(kafka: &KafkaSpec, progress: &Progress) -> Result<(), SinkError> {
    store(&mut Producer::open(kafka)?, kafka, progress)
}

fn store(producer: &mut Producer, kafka: &KafkaSpec, progress: &Progress) -> Result<(), SinkError> {
    let topic = kafka.progress_topic.as_str();
    let failed = |reason: String| SinkError::Delivery { topic: topic.to_owned(), reason };
    let record = progress.record(topic);
    let deadline = Instant::now() + LIMIT;
    let (mut sent, mut reports) = (false, Vec::new());
    while Instant::now() < deadline {
        if !sent {
            sent = match producer.send(&record.as_record(), PROGRESS_TICKET) {
                Ok(()) => true,
                // The client does not know the topic yet.
                Err(SendError::Full) => false,
                Err(SendError::Refused(rejection)) => {
                    return Err(SinkError::of_progress(topic, rejection));
                }
                Err(SendError::Broken(error)) => return Err(error),
            };
        }
        producer.poll(&mut reports)?;
        if let Some(report) = reports.pop() {
            return match report.outcome {
                Outcome::Stored => Ok(()),
                Outcome::Refused(refused) => Err(SinkError::of_progress(topic, refused.rejection)),
            };
        }
        std::thread::sleep(TICK);
    }
    Err(failed(format!("not stored within {} s", LIMIT.as_secs())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_core::lsn::Lsn;
    use postrider_core::progress::BackfillProgress;

    #[test]
    fn g6_a_base_is_written_over_a_base_of_what_was_replaced_and_over_nothing_else() {
        let now = Lineage { publication: 2, ..Lineage::default() };
        let before = Lineage { publication: 1, ..Lineage::default() };
        let at = |end: u64, lineage: &Lineage| Progress {
            lineage: lineage.clone(),
            mark: Mark::at(Lsn::new(end)),
            backfill: None,
        };
        assert!(lacks_base(None, &now));
        assert!(lacks_base(Some(&at(0, &before)), &now));
        assert!(!lacks_base(Some(&at(0, &now)), &now));
        assert!(!lacks_base(Some(&at(1, &before)), &now), "rows of it were delivered");
        let backfill = Some(BackfillProgress::default());
        let begun = Progress { backfill, ..at(0, &before) };
        assert!(!lacks_base(Some(&begun), &now), "rows of before it are to be delivered");
    }
}
