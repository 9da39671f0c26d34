//! Writes the first progress record of a stream (delivered up to 0/0) before its slot is created, so that a
//! slot that another program created is known by having none; and replaces progress for `postrider adopt`.
//!
//! Input: the [`Lineage`] of the stream, or a [`Progress`]. Output: a stored record, and the progress that
//! was found before. Invariant: when these functions return without error, a record is stored. With
//! transactions, two relays that begin at once cannot overwrite each other's progress.

use std::time::{Duration, Instant};

use rdkafka::error::KafkaError;
use rdkafka::producer::Producer as _;

use super::fence::fence_patiently;
use super::progress_topic::newest_progress;
use super::{KafkaSpec, Lineage, Outcome, Producer, Progress, SendError, SinkError};
use postrider_core::pipeline::Mark;
use postrider_core::transaction::PROGRESS_TICKET;

/// How often a stream is begun while others begin it too.
const ATTEMPTS: u32 = 5;
/// How long a record may take to be stored.
const LIMIT: Duration = Duration::from_secs(10);
/// Between two looks.
const TICK: Duration = Duration::from_millis(2);

/// Reads the newest progress of a stream that has no slot yet. If it names no position, or there is none,
/// progress at 0/0 is written: the slot that is created next is then known to be this stream's own.
/// Blocks for seconds, and for a minute at most where the cluster has had no transaction yet. Two relays may begin at once: each
/// fences before it looks again, and writes in a transaction, so that no base lands behind the progress
/// of one that has gone on. Upholds G6.
pub fn init_progress_transactional(
    kafka: &KafkaSpec,
    lineage: &Lineage,
) -> Result<Option<Progress>, SinkError> {
    let mut attempts = 1;
    loop {
        match try_to_begin(kafka, lineage) {
            // Somebody else begins at this moment, or we do not know whether we have.
            Err(SinkError::Fenced(_) | SinkError::Fatal(_) | SinkError::Ambiguous(_))
                if attempts < ATTEMPTS =>
            {
                attempts += 1;
            }
            ended => return ended,
        }
    }
}

/// The same at least once, where no transaction is used: two that begin at once may both write, and what
/// one of them has delivered meanwhile is delivered again.
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
        // Whatever is uncertain about it, the next attempt fences and looks again.
        producer.client().commit_transaction(LIMIT).map_err(uncertain)?;
    }
    Ok(found)
}

fn base(lineage: &Lineage) -> Progress {
    Progress { lineage: lineage.clone(), mark: Mark::default(), backfill: None }
}

/// Whether a stream without a slot needs a base. One that was begun before, and of which nothing was
/// delivered, may name what has been replaced since; its slot is not there either.
fn lacks_base(found: Option<&Progress>, lineage: &Lineage) -> bool {
    found.is_none_or(|found| {
        // Who sends rows of before the slot goes on by what is noted of that.
        let is_base = found.mark == Mark::default() && found.backfill.is_none();
        is_base && found.lineage != *lineage
    })
}

/// Writes progress. Blocks until it is stored, for seconds at most.
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
                // It is not acquainted with the topic yet.
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
