//! Writes progress apart from any session.
//!
//! Enters: a [`Lineage`] or a [`Progress`]. Leaves: a stored record of it. What always holds: what
//! these return after is stored, and read by every later session. Called before there is a slot, and
//! by `postrider adopt`.

use std::time::{Duration, Instant};

use rdkafka::error::KafkaError;
use rdkafka::producer::Producer as _;

use super::fence::fence_patiently;
use super::progress_topic::newest_progress;
use super::transactional::PROGRESS_TICKET;
use super::{KafkaSpec, Lineage, Outcome, Producer, Progress, SendError, Sink as _, SinkError};
use crate::pipeline::Mark;

/// How often a stream is begun while others begin it too.
const ATTEMPTS: u32 = 5;
/// How long a record may take to be stored.
const LIMIT: Duration = Duration::from_secs(10);
/// Between two looks.
const TICK: Duration = Duration::from_millis(2);

/// Reads the newest progress of a stream that has no slot yet. If there is none, progress at 0/0 is
/// written: the slot that is created next is then known to be this stream's own. Blocks for seconds, and
/// for a minute at most where the cluster has had no transaction yet. Two relays may begin at once: each
/// fences before it looks again, and writes in a transaction, so that no base lands behind the progress
/// of one that has gone on. Upholds G6.
pub fn begin_progress(kafka: &KafkaSpec, lineage: &Lineage) -> Result<Option<Progress>, SinkError> {
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

fn try_to_begin(kafka: &KafkaSpec, lineage: &Lineage) -> Result<Option<Progress>, SinkError> {
    let found = newest_progress(kafka, &lineage.key())?;
    if found.is_some() {
        return Ok(found);
    }
    let mut producer = fence_patiently(kafka, lineage)?;
    let found = newest_progress(kafka, &lineage.key())?;
    if found.is_none() {
        let uncertain = |error: KafkaError| SinkError::Ambiguous(error.to_string());
        producer.client().begin_transaction().map_err(uncertain)?;
        let base = Progress { lineage: lineage.clone(), mark: Mark::default() };
        store(&mut producer, kafka, &base)?;
        // Whatever is uncertain about it, the next attempt fences and looks again.
        producer.client().commit_transaction(LIMIT).map_err(uncertain)?;
    }
    Ok(found)
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
