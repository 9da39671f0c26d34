//! The consumer of the demo: reads the topics of the load and reports each of its records to the judge.
//!
//! Input: brokers and topics; it starts at their ends. Output: arrivals with their times in `Judge`, and a
//! sample of them on stdout, at most ten lines a second. It reads on a thread of its own, so that the times
//! are those of the arrival. Records that others write to these topics are not counted.

use std::io::{IsTerminal as _, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::Deserialize;
use uuid::Uuid;

use crate::demo::judge::{Arrival, Judge};
use postrider_kafka::{
    KafkaSpec, Reader, ReaderError, ReaderEvent, ReaderSpec, Received, StartOffset,
};

/// Topics are there before the consumer starts; a broker that takes longer is out of reach.
const OPEN_LIMIT: Duration = Duration::from_secs(20);
/// How soon a request to stop is noticed.
const TICK: Duration = Duration::from_millis(100);
/// A tail is for eyes: at most this many lines a second.
const TAIL_EVERY: Duration = Duration::from_millis(100);

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
        show_tail: bool,
    ) -> Result<Self, ReaderError> {
        let names: Vec<&str> = topics.iter().map(String::as_str).collect();
        let mut spec = ReaderSpec::following(&names);
        spec.start = StartOffset::End;
        spec.fetch_wait_ms = 1;
        let mut reader = Reader::open(kafka, spec, OPEN_LIMIT)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut tail = Tail::new(show_tail);
            while !stopped.load(Ordering::Acquire) {
                match reader.next(TICK)? {
                    ReaderEvent::Record(record) => {
                        let at = Instant::now();
                        note(&record, at, &judge);
                        tail.show(&record, at);
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

/// Shows a sample of what arrives.
struct Tail {
    wanted: bool,
    colour: bool,
    last: Option<Instant>,
    unseen: u64,
}

impl Tail {
    fn new(wanted: bool) -> Self {
        Self { wanted, colour: std::io::stdout().is_terminal(), last: None, unseen: 0 }
    }

    fn show(&mut self, record: &Received<'_>, at: Instant) {
        if !self.wanted {
            return;
        }
        if self.last.is_some_and(|last| at.duration_since(last) < TAIL_EVERY) {
            self.unseen += 1;
            return;
        }
        self.last = Some(at);
        let text =
            |bytes: Option<&[u8]>| String::from_utf8_lossy(bytes.unwrap_or(b"")).into_owned();
        let (dim, bold, plain) =
            if self.colour { ("\x1b[2m", "\x1b[1m", "\x1b[0m") } else { ("", "", "") };
        let mut value = text(record.value());
        if let Some((end, _)) = value.char_indices().nth(96) {
            value.truncate(end);
            value.push('…');
        }
        let more = match std::mem::take(&mut self.unseen) {
            0 => String::new(),
            unseen => format!(" {dim}(+{unseen}){plain}"),
        };
        let place = format!("{}[{}]@{}", record.topic(), record.partition(), record.offset());
        let key = text(record.key());
        // A closed pipe ends the tail, not the demo.
        self.wanted = writeln!(
            std::io::stdout().lock(),
            "{bold}{place:<24}{plain} {key:<14} {dim}{value}{plain}{more}"
        )
        .is_ok();
    }
}
