//! Sends dead letters again, and writes down what was stored.
//!
//! Enters: records one by one, in the order they are to be stored. Leaves: the records in their
//! topics, and in the dead-letter topic a receipt for each that the brokers have confirmed. What
//! always holds: a receipt is sent only after its record is confirmed, so a crash in between repeats
//! a record and loses none; of one topic and key one record is under way at a time (the producer is
//! cautious), so that when one is refused nothing later of its key was sent. After a failure nothing
//! new is sent, and what is under way is still confirmed and given its receipt. Called by `retry`.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use super::error::DeadLettersError;
use super::letter::{Place, receipt};
use crate::kafka::{Confirmation, Outcome, SendError, Sink, SinkError};
use crate::ledger::Ticket;
use crate::pipeline::Outgoing;
use crate::relay::{Request, Stop};
use crate::route::{OwnedRecord, Rejection};
use crate::time;

/// Records and receipts under way at most: what a crash can repeat, against round trips that are
/// waited for in turn.
const UNDER_WAY_MAX: usize = 64;

/// How long the brokers may confirm nothing while something waits.
const SILENCE_LIMIT: Duration = Duration::from_secs(30);

/// How soon a confirmation is noticed.
const TICK: Duration = Duration::from_millis(1);

/// So much may be made up for after a wait; more would be a burst.
const CATCH_UP: Duration = Duration::from_millis(100);

/// See the module.
pub(super) struct Redrive<S> {
    sink: S,
    dead_letter_topic: String,
    stop: Stop,
    /// Between two records.
    interval: Duration,
    /// When the next record may go.
    due: Instant,
    /// The last sign of life from the brokers, or the last moment when none was waited for.
    heard: Instant,
    tickets: u32,
    under_way: BTreeMap<u32, Errand>,
    /// Confirmed, and not yet receipted.
    receipts: VecDeque<Letter>,
    confirmations: Vec<Confirmation>,
    failure: Option<DeadLettersError>,
    done: u64,
}

/// What is under way.
enum Errand {
    Record(Letter),
    Receipt(Place),
}

/// What the receipt needs.
struct Letter {
    place: Place,
    key: Option<Vec<u8>>,
}

impl<S: Sink<Error = SinkError>> Redrive<S> {
    /// Sends at most `rate` records per second.
    pub(super) fn new(sink: S, dead_letter_topic: &str, rate: u32, stop: Stop) -> Self {
        let now = Instant::now();
        Self {
            sink,
            dead_letter_topic: dead_letter_topic.to_owned(),
            stop,
            interval: Duration::from_secs(1) / rate.max(1),
            due: now,
            heard: now,
            tickets: 0,
            under_way: BTreeMap::new(),
            receipts: VecDeque::new(),
            confirmations: Vec::new(),
            failure: None,
            done: 0,
        }
    }

    /// Records that were stored and have their receipts.
    pub(super) const fn done(&self) -> u64 {
        self.done
    }

    /// Sends the record of the dead letter at `place` when its time has come. False: no more is to
    /// be sent, because of a failure or a signal; [`Redrive::finish`] tells.
    pub(super) fn send(
        &mut self,
        place: Place,
        record: &OwnedRecord,
    ) -> Result<bool, DeadLettersError> {
        loop {
            self.turn()?;
            if self.failure.is_some() || self.stop.requested() >= Request::Drain {
                return Ok(false);
            }
            let is_due = Instant::now() >= self.due;
            let has_room = self.under_way.len() < UNDER_WAY_MAX && self.receipts.is_empty();
            if is_due && has_room {
                let errand = Errand::Record(Letter { place, key: record.key.clone() });
                if self.offer(record, errand)?.is_none() {
                    let now = Instant::now();
                    let earliest = now.checked_sub(CATCH_UP).unwrap_or(now);
                    self.due = (self.due + self.interval).max(earliest);
                    return Ok(self.failure.is_none());
                }
            }
            self.wait(is_due.then_some(place))?;
        }
    }

    /// Waits until all that was sent has its receipt.
    pub(super) fn finish(&mut self) -> Result<(), DeadLettersError> {
        loop {
            self.turn()?;
            if self.is_idle() {
                return self.failure.take().map_or(Ok(()), Err);
            }
            self.wait(None)?;
        }
    }

    /// Books what was confirmed, and sends the receipts for it.
    fn turn(&mut self) -> Result<(), DeadLettersError> {
        let mut confirmations = std::mem::take(&mut self.confirmations);
        let polled = self.sink.poll(time::Instant::START, &mut confirmations);
        for Confirmation { ticket, outcome } in confirmations.drain(..) {
            self.heard = Instant::now();
            let errand = self.under_way.remove(&ticket.transaction());
            match (errand, outcome) {
                (Some(Errand::Record(letter)), Outcome::Stored) => self.receipts.push_back(letter),
                (Some(Errand::Receipt(_)), Outcome::Stored) => self.done += 1,
                (Some(errand), Outcome::Refused(refused)) => self.fail(&errand, refused.rejection),
                (None, _) => unreachable!("an answer to nothing: each ticket has one"),
            }
        }
        self.confirmations = confirmations;
        polled.map_err(|error| self.broken(error))?;
        if self.stop.requested() == Request::Abort {
            return Err(DeadLettersError::Aborted { count: self.waiting().len() });
        }
        while let Some(letter) = self.receipts.pop_front() {
            let Letter { place, key } = letter;
            let record = receipt(&self.dead_letter_topic, place, key, super::now_ms());
            if self.offer(&record, Errand::Receipt(place))?.is_some() {
                self.receipts.push_front(Letter { place, key: record.key });
                break;
            }
        }
        Ok(())
    }

    /// Hands a record to the sink; gives the errand back when there is no room for it now.
    fn offer(
        &mut self,
        record: &OwnedRecord,
        errand: Errand,
    ) -> Result<Option<Errand>, DeadLettersError> {
        let number = self.tickets;
        let outgoing = Outgoing::new(record.as_record(), Ticket::new(number, 0));
        match self.sink.send(time::Instant::START, &outgoing) {
            Ok(()) => {
                if self.under_way.is_empty() {
                    self.heard = Instant::now();
                }
                self.tickets = number.wrapping_add(1);
                self.under_way.insert(number, errand);
            }
            Err(SendError::Full) => return Ok(Some(errand)),
            Err(SendError::Refused(rejection)) => self.fail(&errand, rejection),
            Err(SendError::Broken(error)) => {
                self.under_way.insert(number, errand);
                return Err(self.broken(error));
            }
        }
        Ok(None)
    }

    /// The brokers will not take this one; the first such is told.
    fn fail(&mut self, errand: &Errand, rejection: Rejection) {
        let reason = rejection.reason;
        self.failure.get_or_insert(match *errand {
            Errand::Record(Letter { place, .. }) => DeadLettersError::Refused { place, reason },
            Errand::Receipt(place) => DeadLettersError::ReceiptRefused { place, reason },
        });
    }

    fn broken(&self, source: SinkError) -> DeadLettersError {
        let waiting = self.waiting();
        match waiting.first() {
            Some(&first) => {
                DeadLettersError::Unconfirmed { first, others: waiting.len() - 1, source }
            }
            None => DeadLettersError::Sink(source),
        }
    }

    /// What has no confirmed receipt, in the order of sending.
    fn waiting(&self) -> Vec<Place> {
        let under_way = self.under_way.values().map(|errand| match errand {
            Errand::Record(letter) => letter.place,
            Errand::Receipt(place) => *place,
        });
        under_way.chain(self.receipts.iter().map(|letter| letter.place)).collect()
    }

    /// A moment. Brokers that owe nothing, and have nothing offered to them, may be silent.
    fn wait(&mut self, offered: Option<Place>) -> Result<(), DeadLettersError> {
        let now = Instant::now();
        if offered.is_none() && self.is_idle() {
            self.heard = now;
        }
        if now.duration_since(self.heard) >= SILENCE_LIMIT
            && let Some(first) = self.waiting().first().copied().or(offered)
        {
            return Err(DeadLettersError::Silent { seconds: SILENCE_LIMIT.as_secs(), first });
        }
        std::thread::sleep(TICK);
        Ok(())
    }

    fn is_idle(&self) -> bool {
        self.under_way.is_empty() && self.receipts.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;
    use crate::cli::dead_letters::letter::RETRIED_HEADER;
    use crate::kafka::Refused;
    use crate::route::RejectionCode;

    /// Topics, keys and marks in the order of sending.
    type Log = Rc<RefCell<Vec<(String, String, Option<String>)>>>;

    /// Stores what it is sent at the next poll, but for topics it refuses and one that breaks it.
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

    fn redrive(log: &Log, dead_letter_topic: &str, stop: &Stop) -> Redrive<Fake> {
        let fake = Fake { log: Rc::clone(log), ..Fake::default() };
        Redrive::new(fake, dead_letter_topic, 1_000_000, stop.clone())
    }

    fn record(topic: &str, key: &str) -> OwnedRecord {
        OwnedRecord { topic: topic.into(), key: Some(key.into()), ..OwnedRecord::default() }
    }

    fn at(offset: i64) -> Place {
        Place { partition: 0, offset }
    }

    fn entry(topic: &str, key: &str, mark: Option<i64>) -> (String, String, Option<String>) {
        (topic.into(), key.into(), mark.map(|offset| at(offset).to_string()))
    }

    #[test]
    fn each_record_is_confirmed_before_its_receipt_and_before_the_next_of_its_key() {
        let log = Log::default();
        let mut redrive = redrive(&log, "dead", &Stop::default());
        for offset in 0..3 {
            assert!(redrive.send(at(offset), &record("orders", "k")).unwrap());
        }
        redrive.finish().unwrap();
        assert_eq!(redrive.done(), 3);
        let pair = |offset| [entry("orders", "k", None), entry("dead", "k", Some(offset))];
        assert_eq!(*log.borrow(), [pair(0), pair(1), pair(2)].concat());
    }

    #[test]
    fn a_refused_record_has_no_receipt_and_nothing_follows_it() {
        let log = Log::default();
        let mut redrive = redrive(&log, "dead", &Stop::default());
        assert!(redrive.send(at(0), &record("orders", "a")).unwrap());
        assert!(redrive.send(at(1), &record("refused", "b")).unwrap());
        assert!(!redrive.send(at(2), &record("orders", "c")).unwrap());
        let error = redrive.finish().unwrap_err();
        let place = at(1);
        assert!(matches!(error, DeadLettersError::Refused { place: at, .. } if at == place));
        assert_eq!(redrive.done(), 1);
        let receipts = log.borrow().iter().filter(|(topic, ..)| topic == "dead").count();
        assert_eq!((receipts, log.borrow().len()), (1, 3));
    }

    #[test]
    fn a_receipt_that_is_refused_is_told_apart() {
        let log = Log::default();
        let mut redrive = redrive(&log, "compacted", &Stop::default());
        assert!(redrive.send(at(7), &record("orders", "a")).unwrap());
        let error = redrive.finish().unwrap_err();
        assert!(error.to_string().contains("receipt for the dead letter at 0:7"), "{error}");
        assert_eq!(redrive.done(), 0);
    }

    #[test]
    fn a_broken_sink_is_told_with_what_it_owes() {
        let mut redrive = redrive(&Log::default(), "dead", &Stop::default());
        let error = redrive.send(at(7), &record("broken", "a")).unwrap_err();
        assert!(
            error.to_string().starts_with("the dead letter at 0:7 is not confirmed: "),
            "{error}"
        );
    }

    #[test]
    fn a_signal_ends_it_between_two_records() {
        let (log, stop) = (Log::default(), Stop::default());
        let mut redrive = redrive(&log, "dead", &stop);
        assert!(redrive.send(at(0), &record("orders", "a")).unwrap());
        stop.signal();
        assert!(!redrive.send(at(1), &record("orders", "b")).unwrap());
        redrive.finish().unwrap();
        assert_eq!((redrive.done(), log.borrow().len()), (1, 2));
    }

    #[test]
    fn the_rate_is_kept() {
        let mut redrive = redrive(&Log::default(), "dead", &Stop::default());
        redrive.interval = Duration::from_millis(20);
        let begun = Instant::now();
        for offset in 0..11 {
            redrive.send(at(offset), &record("orders", "a")).unwrap();
        }
        assert!(begun.elapsed() >= Duration::from_millis(200));
    }

    #[test]
    fn brokers_that_say_nothing_are_given_up_but_not_while_nothing_is_asked_of_them() {
        let mut redrive = redrive(&Log::default(), "dead", &Stop::default());
        let long_ago = Instant::now().checked_sub(2 * SILENCE_LIMIT).unwrap();
        redrive.heard = long_ago;
        redrive.wait(None).unwrap();
        redrive.heard = long_ago;
        let error = redrive.wait(Some(at(3))).unwrap_err();
        assert!(matches!(error, DeadLettersError::Silent { first, .. } if first == at(3)));
    }
}
