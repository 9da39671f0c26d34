//! The consumer of the demo. A separate thread reads, so that it notes the times of the arrival.

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

/// Topics already exist, so a slow broker is unreachable.
const OPEN_LIMIT: Duration = Duration::from_secs(20);
const TICK: Duration = Duration::from_millis(100);

#[derive(Deserialize)]
struct Payload {
    seq: u64,
}

pub(super) struct DemoConsumer {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<(), ReaderError>>,
}

impl DemoConsumer {
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

    /// An error means that reading had ended earlier.
    pub(super) fn stop(self) -> Result<(), ReaderError> {
        self.stop.store(true, Ordering::Release);
        self.thread.join().unwrap_or(Ok(()))
    }
}

/// Ignores records without this load's id or sequence, because other programs may write to a real
/// broker's topics.
fn note(record: &Received<'_>, at: Instant, judge: &Mutex<Judge>) {
    let id = record.headers().find(|(name, _)| *name == "id").and_then(|(_, value)| value);
    let id = id.and_then(|value| Uuid::try_parse_ascii(value).ok());
    let payload = record.value().and_then(|value| serde_json::from_slice::<Payload>(value).ok());
    if let (Some(id), Some(Payload { seq: sequence }), Some(key)) = (id, payload, record.key()) {
        let arrival = Arrival { id, topic: record.topic(), key, sequence, at };
        judge.lock().unwrap_or_else(PoisonError::into_inner).arrived(&arrival);
    }
}
