//! Redrives dead letters: sends them to their topics again, and stores a receipt for each in the
//! dead-letter topic.
//!
//! Invariant: a receipt is sent only after its record is confirmed, so a crash repeats a record and
//! loses none. One record per topic and key is in flight, so records of a key keep their order.

use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use super::{DeadLetterError, DeadLetterTopic, now_ms};
use postrider_core::ledger::Ticket;
use postrider_core::pipeline::Outgoing;
use postrider_core::record::{DeadLetter, PartitionOffset, retried};
use postrider_core::route::{OwnedRecord, Rejection};
use postrider_core::time;
use postrider_kafka::{
    Confirmation, KafkaSpec, Outcome, Producer, SendError, Sink, SinkError, StartOffset,
};

/// A crash can repeat this many records.
const IN_FLIGHT_MAX: usize = 64;

const SILENCE_TIMEOUT: Duration = Duration::from_secs(30);

const TICK: Duration = Duration::from_millis(1);

/// Maximum delay that the rate limit makes up for. More would cause a burst.
const CATCH_UP: Duration = Duration::from_millis(100);

/// This producer does not use the time.
const NO_TIME: time::Instant = time::Instant::START;

/// A dead letter to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Position of the dead letter.
    pub at: PartitionOffset,
    /// Topic that the record is sent to.
    pub topic: String,
}

/// Rate limit and interruption of a redrive.
#[derive(Clone, Copy)]
pub struct RedriveControl<'a> {
    /// Maximum number of records per second, at least 1.
    pub rate: u32,
    /// Returns whether to end early. Called about a thousand times per second.
    pub interrupt: &'a dyn Fn() -> Interrupt,
}

/// Whether to end a redrive early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Interrupt {
    /// Continue.
    None,
    /// Send no new records. Records in flight get their receipts.
    Drain,
    /// End immediately.
    Abort,
}

impl DeadLetterTopic {
    /// Runs the jobs, which must be in order. Returns the number of dead letters with receipts,
    /// also after a failure, and calls `progress` with it as it grows.
    pub fn redrive(
        &self,
        jobs: &[Job],
        control: RedriveControl<'_>,
        progress: &mut dyn FnMut(u64),
    ) -> (u64, Result<(), DeadLetterError>) {
        if jobs.is_empty() {
            return (0, Ok(()));
        }
        let kafka = KafkaSpec { cautious: true, ..self.kafka.clone() };
        let sink = match Producer::open(&kafka) {
            Ok(sink) => sink,
            Err(error) => return (0, Err(DeadLetterError::Sink(error))),
        };
        let mut redrive = Redrive::new(sink, &self.name, control);
        let mut result = Ok(true);
        for of_one in jobs.chunk_by(|a, b| a.at.partition == b.at.partition) {
            result = self.redrive_partition(of_one, &mut redrive, progress);
            if !matches!(result, Ok(true)) {
                break;
            }
        }
        // Records in flight are confirmed even if reading fails.
        let finished = match &result {
            Err(error) if error.is_of_the_producer() => Ok(()),
            _ => redrive.finish(),
        };
        (redrive.done, result.and(finished))
    }

    /// Returns false if the redrive was interrupted.
    fn redrive_partition<S: Sink<Error = SinkError>>(
        &self,
        jobs: &[Job],
        redrive: &mut Redrive<'_, S>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<bool, DeadLetterError> {
        let mut ahead = jobs.iter().peekable();
        let Some(first) = jobs.first() else { return Ok(true) };
        let mut more = true;
        self.walk(Some(first.at.partition), StartOffset::Offset(first.at.offset), |record| {
            let record = record.to_stored();
            let at = record.at();
            let Some(job) = ahead.next_if(|job| job.at <= at) else {
                return Ok(ControlFlow::Continue(()));
            };
            let letter = DeadLetter::read(record).filter(|_| job.at == at);
            let letter = letter.ok_or(DeadLetterError::Gone(job.at))?;
            more = redrive.send(at, &record_to_resend(letter, &job.topic))?;
            progress(redrive.done);
            let is_last = ahead.peek().is_none();
            Ok(if more && !is_last { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
        })?;
        match ahead.next() {
            Some(job) if more => Err(DeadLetterError::Gone(job.at)),
            _ => Ok(more),
        }
    }
}

fn record_to_resend(letter: DeadLetter, topic: &str) -> OwnedRecord {
    OwnedRecord {
        topic: topic.to_owned(),
        partition: letter.partition_again(),
        headers: letter.headers_again(),
        timestamp_ms: letter.timestamp_again(now_ms()),
        key: letter.key,
        value: letter.value,
    }
}

struct Redrive<'a, S> {
    sink: S,
    dead_letter_topic: &'a str,
    interrupt: &'a dyn Fn() -> Interrupt,
    interval: Duration,
    due: Instant,
    /// Time of the last confirmation, or the last time without records in flight.
    last_activity: Instant,
    tickets: u32,
    in_flight: BTreeMap<u32, Sent>,
    receipts: VecDeque<Sent>,
    confirmations: Vec<Confirmation>,
    failure: Option<DeadLetterError>,
    done: u64,
}

struct Sent {
    at: PartitionOffset,
    key: Option<Vec<u8>>,
    is_receipt: bool,
}

impl<'a, S: Sink<Error = SinkError>> Redrive<'a, S> {
    fn new(sink: S, dead_letter_topic: &'a str, control: RedriveControl<'a>) -> Self {
        let now = Instant::now();
        Self {
            sink,
            dead_letter_topic,
            interrupt: control.interrupt,
            interval: Duration::from_secs(1) / control.rate.max(1),
            due: now,
            last_activity: now,
            tickets: 0,
            in_flight: BTreeMap::new(),
            receipts: VecDeque::new(),
            confirmations: Vec::new(),
            failure: None,
            done: 0,
        }
    }

    /// Waits for the rate limit. Returns false after a failure or an interrupt; [`Redrive::finish`]
    /// returns the cause.
    fn send(&mut self, at: PartitionOffset, record: &OwnedRecord) -> Result<bool, DeadLetterError> {
        loop {
            self.poll()?;
            if self.failure.is_some() || (self.interrupt)() >= Interrupt::Drain {
                return Ok(false);
            }
            let is_due = Instant::now() >= self.due;
            let has_room = self.in_flight.len() < IN_FLIGHT_MAX && self.receipts.is_empty();
            if is_due && has_room {
                let sent = Sent { at, key: record.key.clone(), is_receipt: false };
                if self.offer(record, sent)?.is_none() {
                    let now = Instant::now();
                    let earliest = now.checked_sub(CATCH_UP).unwrap_or(now);
                    self.due = (self.due + self.interval).max(earliest);
                    return Ok(self.failure.is_none());
                }
            }
            self.wait(is_due.then_some(at))?;
        }
    }

    fn finish(&mut self) -> Result<(), DeadLetterError> {
        loop {
            self.poll()?;
            if self.is_idle() {
                return self.failure.take().map_or(Ok(()), Err);
            }
            self.wait(None)?;
        }
    }

    fn poll(&mut self) -> Result<(), DeadLetterError> {
        let mut confirmations = std::mem::take(&mut self.confirmations);
        let polled = self.sink.poll(NO_TIME, &mut confirmations);
        for Confirmation { ticket, outcome } in confirmations.drain(..) {
            self.last_activity = Instant::now();
            match (self.in_flight.remove(&ticket.transaction()), outcome) {
                (Some(sent), Outcome::Stored) if sent.is_receipt => self.done += 1,
                (Some(sent), Outcome::Stored) => {
                    self.receipts.push_back(Sent { is_receipt: true, ..sent });
                }
                (Some(sent), Outcome::Refused(refused)) => self.fail(&sent, refused.rejection),
                (None, _) => unreachable!("an answer to nothing: each ticket has one"),
            }
        }
        self.confirmations = confirmations;
        polled.map_err(|error| self.broken(error))?;
        if (self.interrupt)() == Interrupt::Abort {
            return Err(DeadLetterError::Aborted { count: self.waiting().len() });
        }
        while let Some(sent) = self.receipts.pop_front() {
            if let Some(sent) = self.offer(&self.receipt(&sent), sent)? {
                self.receipts.push_front(sent);
                break;
            }
        }
        Ok(())
    }

    /// Has the dead letter's key and partition, so that the topic retains both equally long.
    fn receipt(&self, sent: &Sent) -> OwnedRecord {
        OwnedRecord {
            topic: self.dead_letter_topic.to_owned(),
            partition: Some(sent.at.partition),
            key: sent.key.clone(),
            value: None,
            headers: vec![retried(sent.at)],
            timestamp_ms: now_ms(),
        }
    }

    /// Returns `sent` if the sink's queue is full.
    fn offer(&mut self, record: &OwnedRecord, sent: Sent) -> Result<Option<Sent>, DeadLetterError> {
        let number = self.tickets;
        let outgoing = Outgoing::new(record.as_record(), Ticket::new(number, 0));
        match self.sink.send(NO_TIME, &outgoing) {
            Ok(()) => {
                if self.in_flight.is_empty() {
                    self.last_activity = Instant::now();
                }
                self.tickets = number.wrapping_add(1);
                self.in_flight.insert(number, sent);
            }
            Err(SendError::Full) => return Ok(Some(sent)),
            Err(SendError::Refused(rejection)) => self.fail(&sent, rejection),
            Err(SendError::Broken(error)) => {
                self.in_flight.insert(number, sent);
                return Err(self.broken(error));
            }
        }
        Ok(None)
    }

    fn fail(&mut self, sent: &Sent, rejection: Rejection) {
        let (at, reason) = (sent.at, rejection.reason);
        self.failure.get_or_insert(if sent.is_receipt {
            DeadLetterError::ReceiptRefused { at, reason }
        } else {
            DeadLetterError::Refused { at, reason }
        });
    }

    fn broken(&self, source: SinkError) -> DeadLetterError {
        let waiting = self.waiting();
        match waiting.first() {
            Some(&first) => {
                DeadLetterError::Unconfirmed { first, others: waiting.len() - 1, source }
            }
            None => DeadLetterError::Sink(source),
        }
    }

    fn waiting(&self) -> Vec<PartitionOffset> {
        self.in_flight.values().chain(&self.receipts).map(|sent| sent.at).collect()
    }

    /// Silence is a failure only while records are in flight or waiting.
    fn wait(&mut self, offered: Option<PartitionOffset>) -> Result<(), DeadLetterError> {
        let now = Instant::now();
        if offered.is_none() && self.is_idle() {
            self.last_activity = now;
        }
        if now.duration_since(self.last_activity) >= SILENCE_TIMEOUT
            && let Some(first) = self.waiting().first().copied().or(offered)
        {
            return Err(DeadLetterError::Silent { seconds: SILENCE_TIMEOUT.as_secs(), first });
        }
        std::thread::sleep(TICK);
        Ok(())
    }

    fn is_idle(&self) -> bool {
        self.in_flight.is_empty() && self.receipts.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    use super::*;
    use postrider_core::record::RETRIED_HEADER;
    use postrider_core::route::RejectionCode;
    use postrider_kafka::Refused;

    type Log = Rc<RefCell<Vec<(String, String, Option<String>)>>>;

    #[derive(Default)]
    struct Fake {
        log: Log,
        sent: Vec<(Ticket, OwnedRecord)>,
    }

    impl Sink for Fake {
        type Error = SinkError;

        fn send(&mut self, _now: time::Instant, outgoing: &Outgoing<'_>) -> Result<(), SendError> {
            let Outgoing { record, ticket, .. } = outgoing;
            if record.topic == "broken" {
                return Err(SinkError::Fatal("gone".into()).into());
            }
            if self.sent.iter().any(|(_, sent)| sent.key.as_deref() == record.key) {
                return Err(SendError::Full);
            }
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let mark = record.headers.iter().find(|(name, _)| *name == RETRIED_HEADER);
            let key = record.key.map(text).unwrap_or_default();
            let mark = mark.and_then(|(_, value)| value.map(text));
            self.log.borrow_mut().push((record.topic.to_owned(), key, mark));
            self.sent.push((*ticket, record.to_owned()));
            Ok(())
        }

        fn poll(
            &mut self,
            _now: time::Instant,
            confirmations: &mut Vec<Confirmation>,
        ) -> Result<(), SinkError> {
            for (ticket, record) in self.sent.drain(..) {
                let rejection =
                    Rejection { code: RejectionCode::Refused, reason: "not this one".into() };
                let outcome = if ["refused", "compacted"].contains(&record.topic.as_str()) {
                    Outcome::Refused(Box::new(Refused { record, rejection }))
                } else {
                    Outcome::Stored
                };
                confirmations.push(Confirmation { ticket, outcome });
            }
            Ok(())
        }
    }

    const CONTROL: RedriveControl<'static> =
        RedriveControl { rate: 1_000_000, interrupt: &|| Interrupt::None };

    fn redrive<'a>(
        log: &Log,
        dead_letter_topic: &'a str,
        control: RedriveControl<'a>,
    ) -> Redrive<'a, Fake> {
        let fake = Fake { log: Rc::clone(log), ..Fake::default() };
        Redrive::new(fake, dead_letter_topic, control)
    }

    fn record(topic: &str, key: &str) -> OwnedRecord {
        OwnedRecord { topic: topic.into(), key: Some(key.into()), ..OwnedRecord::default() }
    }

    fn at(offset: i64) -> PartitionOffset {
        PartitionOffset { partition: 0, offset }
    }

    fn entry(topic: &str, key: &str, mark: Option<i64>) -> (String, String, Option<String>) {
        (topic.into(), key.into(), mark.map(|offset| at(offset).to_string()))
    }

    #[test]
    fn each_record_is_confirmed_before_its_receipt_and_before_the_next_of_its_key() {
        let log = Log::default();
        let mut redrive = redrive(&log, "dead", CONTROL);
        for offset in 0..3 {
            assert!(redrive.send(at(offset), &record("orders", "k")).unwrap());
        }
        redrive.finish().unwrap();
        assert_eq!(redrive.done, 3);
        let pair = |offset| [entry("orders", "k", None), entry("dead", "k", Some(offset))];
        assert_eq!(*log.borrow(), [pair(0), pair(1), pair(2)].concat());
    }

    #[test]
    fn a_refused_record_has_no_receipt_and_nothing_follows_it() {
        let log = Log::default();
        let mut redrive = redrive(&log, "dead", CONTROL);
        assert!(redrive.send(at(0), &record("orders", "a")).unwrap());
        assert!(redrive.send(at(1), &record("refused", "b")).unwrap());
        assert!(!redrive.send(at(2), &record("orders", "c")).unwrap());
        let error = redrive.finish().unwrap_err();
        let refused = at(1);
        assert!(matches!(error, DeadLetterError::Refused { at, .. } if at == refused));
        assert_eq!(redrive.done, 1);
        let receipts = log.borrow().iter().filter(|(topic, ..)| topic == "dead").count();
        assert_eq!((receipts, log.borrow().len()), (1, 3));
    }

    #[test]
    fn a_refused_receipt_is_a_different_error() {
        let log = Log::default();
        let mut redrive = redrive(&log, "compacted", CONTROL);
        assert!(redrive.send(at(7), &record("orders", "a")).unwrap());
        let error = redrive.finish().unwrap_err();
        assert!(error.to_string().contains("receipt for the dead letter at 0:7"), "{error}");
        assert_eq!(redrive.done, 0);
    }

    #[test]
    fn a_broken_producer_is_reported_with_what_is_unconfirmed() {
        let mut redrive = redrive(&Log::default(), "dead", CONTROL);
        let error = redrive.send(at(7), &record("broken", "a")).unwrap_err();
        assert!(
            error.to_string().starts_with("the dead letter at 0:7 is not confirmed: "),
            "{error}"
        );
    }

    #[test]
    fn an_interrupt_ends_it_between_two_records() {
        let (log, asked) = (Log::default(), Cell::new(Interrupt::None));
        let interrupt = || asked.get();
        let mut redrive =
            redrive(&log, "dead", RedriveControl { interrupt: &interrupt, ..CONTROL });
        assert!(redrive.send(at(0), &record("orders", "a")).unwrap());
        asked.set(Interrupt::Drain);
        assert!(!redrive.send(at(1), &record("orders", "b")).unwrap());
        redrive.finish().unwrap();
        assert_eq!((redrive.done, log.borrow().len()), (1, 2));
    }

    #[test]
    fn the_rate_is_kept() {
        let mut redrive = redrive(&Log::default(), "dead", CONTROL);
        redrive.interval = Duration::from_millis(20);
        let begun = Instant::now();
        for offset in 0..11 {
            redrive.send(at(offset), &record("orders", "a")).unwrap();
        }
        assert!(begun.elapsed() >= Duration::from_millis(200));
    }

    #[test]
    fn silence_of_the_brokers_is_a_failure_only_while_records_are_in_flight() {
        let mut redrive = redrive(&Log::default(), "dead", CONTROL);
        let long_ago = Instant::now().checked_sub(2 * SILENCE_TIMEOUT).unwrap();
        redrive.last_activity = long_ago;
        redrive.wait(None).unwrap();
        redrive.last_activity = long_ago;
        let error = redrive.wait(Some(at(3))).unwrap_err();
        assert!(matches!(error, DeadLetterError::Silent { first, .. } if first == at(3)));
    }
}
