//! The consumer of the demo: reads the topics of the load and reports each of its records to the judge.
//!
//! Input: brokers and topics; reading starts at their ends. Output: arrivals with their times in `Judge`, and the first
//! record for [`report`]. A thread of its own reads, so that the times are those of the arrival. Records that others write
//! to these topics are not counted.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::Deserialize;
use uuid::Uuid;

use super::report;
use crate::demo::judge::{Arrival, Judge};
use postrider_kafka::{
    KafkaSpec, Reader, ReaderError, ReaderEvent, ReaderSpec, Received, StartOffset,
};

/// Topics are there before the consumer starts; a broker that takes longer is out of reach.
const OPEN_LIMIT: Duration = Duration::from_secs(20);
/// How soon a request to stop is noticed.
const TICK: Duration = Duration::from_millis(100);

/// What the judge needs of a payload.
#[derive(Deserialize)]
struct Payload {
    seq: u64,
}

/// A consumer at work.
pub(super) struct DemoConsumer {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<(), ReaderError>>,
}

impl DemoConsumer {
    /// Positions a reader at the end of every topic, then reads on.
    pub(super) fn start(
        kafka: &KafkaSpec,
        topics: &[String],
        judge: Arc<Mutex<Judge>>,
        mut shows_first: bool,
    ) -> Result<Self, ReaderError> {
        let names: Vec<&str> = topics.iter().map(String::as_str).collect();
        let mut spec = ReaderSpec::following(&names);
        spec.start = StartOffset::End;
        spec.fetch_wait_ms = 1;
        let mut reader = Reader::open(kafka, spec, OPEN_LIMIT)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Acquire) {
                match reader.next(TICK)? {
                    ReaderEvent::Record(record) => {
                        let at = Instant::now();
                        note(&record, at, &judge);
                        if std::mem::take(&mut shows_first) {
                            report::tell_first(&record);
                        }
                    }
                    ReaderEvent::Idle | ReaderEvent::End => {}
                }
            }
            Ok(())
        });
        Ok(Self { stop, thread })
    }

    /// Stops reading; an error is the reason why it had stopped before.
    pub(super) fn stop(self) -> Result<(), ReaderError> {
        self.stop.store(true, Ordering::Release);
        self.thread.join().unwrap_or(Ok(()))
    }
}

/// A record without the id or the sequence of this load is not ours, and so not for the judge:
/// with a real broker others may write to the topics too.
fn note(record: &Received<'_>, at: Instant, judge: &Mutex<Judge>) {
    let id = record.headers().find(|(name, _)| *name == "id").and_then(|(_, value)| value);
    let id = id.and_then(|value| Uuid::try_parse_ascii(value).ok());
    let payload = record.value().and_then(|value| serde_json::from_slice::<Payload>(value).ok());
    if let (Some(id), Some(Payload { seq: sequence }), Some(key)) = (id, payload, record.key()) {
        let arrival = Arrival { id, topic: record.topic(), key, sequence, at };
        judge.lock().unwrap_or_else(PoisonError::into_inner).arrived(&arrival);
    }
}
