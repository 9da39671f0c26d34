//! Loop that drives a session: reads frames, passes records to Kafka, sends status updates, and
//! sleeps. [`postrider_core::session`] makes all decisions.
//!
//! Invariant: one OS thread without a runtime owns source, session and sink. Only this file raises
//! the position that is acknowledged to Postgres, and only to a position that the session returns.

use std::time::Duration;

use crate::audit;
use crate::clock::Clock;
use crate::delivered::DeliveredNotes;
use crate::error::RelayError;
use crate::frame_source::FrameSource;
use crate::report::Reporter;
use crate::stop::StopSignal;
use postrider_core::frame::LastPlace;
use postrider_core::lsn::Lsn;
use postrider_core::pipeline::Handled;
use postrider_core::session::{Audit, Burst, End, Next, Owed, Session, Work};
use postrider_kafka::failpoint;
use postrider_kafka::{DeliveredTap, KafkaSink, SinkError};
use postrider_postgres::wal::WalError;

/// Maximum time for the server to end the stream. The server completes messages in progress before
/// it reads the request to end. All positions are acknowledged by then.
const FINISH_LIMIT: Duration = Duration::from_secs(10);
/// For a server that shuts down or first completes a large transaction (over 10 s for 400,000
/// rows).
const SHORT_FINISH_LIMIT: Duration = Duration::from_secs(2);

pub(super) struct Hot<F, S> {
    pub(super) source: F,
    pub(super) session: Session,
    pub(super) sink: S,
    pub(super) stop: StopSignal,
    pub(super) clock: Clock,
    pub(super) delivered: Option<DeliveredNotes>,
    pub(super) place: LastPlace,
    pub(super) tap: DeliveredTap,
}

impl<F: FrameSource, S: KafkaSink> Hot<F, S> {
    /// Replaces `owed` with the unconfirmed rest after the session.
    pub(super) fn run(
        mut self,
        reporter: &mut Reporter,
        owed: &mut Owed,
    ) -> Result<End, RelayError> {
        let mut put_off = None;
        let result = self.turn_until_end(&mut put_off, reporter);
        if result.as_ref().is_err_and(RelayError::is_of_a_record) {
            // Otherwise the next session would repeat settled rows. If this fails, the next session
            // reports the reason.
            if let Some(status) = self.session.final_status(&self.sink) {
                let _ = self.source.acknowledge(status.settled, status.ask_reply);
                let _ = self.source.conclude();
            }
        }
        reporter.session_ended(&self.session, &self.source);
        *owed = self.session.leaves(&self.sink);
        let settled = self.session.settled(&self.sink);
        if let Some(delivered) = &mut self.delivered {
            delivered.settled(settled);
        }
        failpoint::pass("drained");
        let end = match result {
            // The server ends the stream after it has received the acknowledged position; see
            // `Stream::finish`.
            Err(RelayError::Wal(WalError::Ended)) => {
                *owed = owed.settled(self.source.acknowledged());
                return Ok(End::ServerShutdown);
            }
            result => result?,
        };
        let is_within = self.session.pipeline().reached().part.is_some();
        let limit = match end {
            End::ServerShutdown => SHORT_FINISH_LIMIT,
            End::Drained if is_within && owed.is_nothing() => SHORT_FINISH_LIMIT,
            _ => FINISH_LIMIT,
        };
        let finished = self.source.finish(limit);
        if finished.is_ok() {
            *owed = owed.settled(settled);
        }
        match (put_off, end) {
            (Some(error), End::Drained | End::ModeOver) => Err(error),
            // The server may be gone before it has ended the stream.
            (_, End::ServerShutdown) => Ok(end),
            // The next start does not repeat any rows, even if the server has not received the end.
            // Upholds G8.
            (None, End::Drained) if owed.is_nothing() => {
                if let Err(error) = finished {
                    tracing::info!(reason = %error, "closed the connection before Postgres ended the stream");
                }
                Ok(end)
            }
            _ => Ok(finished.map(|()| end)?),
        }
    }

    /// Some errors are deferred until everything before them is confirmed and acknowledged.
    fn turn_until_end(
        &mut self,
        put_off: &mut Option<RelayError>,
        reporter: &mut Reporter,
    ) -> Result<End, RelayError> {
        let began = self.clock.instant();
        loop {
            let now = self.clock.now();
            let asked = self.stop.snapshot().of_session(now.at.since(began));
            let draining = self.session.request::<SinkError>(now, asked)?;
            if let Some(draining) = draining {
                reporter.draining(draining);
            }
            if let Err(error) = self.forward() {
                let error = self.judged(error);
                self.put_off(error, put_off, reporter)?;
            }
            let now = self.clock.now();
            let confirmed = self.session.confirm(now, &mut self.sink);
            let source = &self.source;
            self.sink.reaches(self.session.pipeline().reached(), &|mark| source.cursor(mark));
            let advanced = confirmed.and_then(|()| self.session.advance(now, &mut self.sink));
            self.log_refused();
            advanced.map_err(|error| self.judged(error.into()))?;
            if let Some(status) = self.session.status_due(now, &self.sink) {
                failpoint::pass("status_due");
                if let Some(delivered) = &mut self.delivered {
                    delivered.reached(self.session.pipeline().reached());
                    delivered.settled(status.settled);
                }
                if let Err(error) = self.source.acknowledge(status.settled, status.ask_reply) {
                    self.put_off(error.into(), put_off, reporter)?;
                }
                failpoint::pass("status_sent");
            }
            if let Err(error) = self.source.tend() {
                self.put_off(error.into(), put_off, reporter)?;
            }
            let connected = self.sink.is_connected();
            reporter.tick(self.session.pipeline_mut(), &self.source, connected)?;
            if let Some(lasted) = reporter.take_outage() {
                reporter.tell_outage(lasted, self.sink.outage_reason());
            }
            if let Some(end) = self.session.ended(now, &self.sink)? {
                return Ok(end);
            }
            if let Err(error) = self.listen(reporter) {
                self.put_off(error, put_off, reporter)?;
            }
        }
    }

    /// Defers this error until all sent records are confirmed. Returns an error that cannot be
    /// deferred, or a second one.
    fn put_off(
        &mut self,
        error: RelayError,
        put_off: &mut Option<RelayError>,
        reporter: &mut Reporter,
    ) -> Result<(), RelayError> {
        let error = self.placed(error);
        let Some(end) = error.put_off_until().filter(|_| put_off.is_none()) else {
            return Err(error);
        };
        *put_off = Some(error);
        if let Some(draining) = self.session.stop_reading(end, self.clock.now()) {
            reporter.draining(draining);
        }
        Ok(())
    }

    /// Adds the position of the faulty message, or of the last earlier message with a position,
    /// which the next session receives again.
    fn placed(&self, error: RelayError) -> RelayError {
        match self.source.log_position() {
            Some(received) if self.place.0 == Lsn::ZERO => error.of_message(received),
            Some(_) => error.of_message(self.place.0),
            None => error,
        }
    }

    fn log_refused(&mut self) {
        let acknowledges = self.session.limits().acknowledge;
        for audit in self.session.drain_audit() {
            match audit {
                Audit::DeadLetter(letter) => {
                    failpoint::pass("dead_letter_sent");
                    audit::dead_letter(&letter, acknowledges, &self.tap);
                }
                Audit::Skipped(refused) => audit::skipped_record(&refused),
            }
        }
    }

    /// Passes frames on until the buffer, the budget or the sink's queue is exhausted. A frame
    /// whose record does not fit stays in the buffer.
    fn forward(&mut self) -> Result<(), RelayError> {
        let mut now = self.clock.instant();
        let mut burst = Burst::begin(now);
        while self.session.takes_frames(&self.sink) {
            let ask = || {
                now = self.clock.instant();
                now
            };
            match burst.next(self.source.buffered(), ask) {
                Work::Go => {}
                Work::ReadOn if self.source.fill(Duration::ZERO)? == 0 => {}
                Work::ReadOn => self.session.has_refilled(),
                Work::Stop => return Ok(()),
            }
            let Some(place) = self.source.place()? else { return Ok(()) };
            self.sink.reading(place, self.source.received_bytes());
            let Some(frame) = self.source.peek()? else { return Ok(()) };
            failpoint::pass("frame_taken");
            self.place.read(&frame);
            let handled = self.session.frame(now, frame, &mut self.sink);
            match handled.map_err(|error| self.placed(error.into()))? {
                Handled::Done => self.source.consume(),
                Handled::DeadLetter(letter) => {
                    failpoint::pass("dead_letter_sent");
                    let acknowledges = self.session.limits().acknowledge;
                    audit::dead_letter(&letter, acknowledges, &self.tap);
                    self.source.consume();
                }
                Handled::Skipped(skipped) => {
                    audit::skipped_row(&skipped, self.session.limits().acknowledge);
                    self.source.consume();
                }
                Handled::Full => return Ok(()),
            }
        }
        Ok(())
    }

    fn listen(&mut self, reporter: &mut Reporter) -> Result<(), RelayError> {
        let source = &mut self.source;
        let next = self.session.next(&self.sink, || source.peek().map(|frame| frame.is_some()))?;
        let mut wait = match next {
            Next::Wait(time) => {
                std::thread::sleep(time);
                if !self.session.is_paused() {
                    reporter.held_back(time);
                }
                return Ok(());
            }
            Next::Refill(time) => {
                std::thread::sleep(time);
                self.source.fill(Duration::ZERO)?;
                return Ok(());
            }
            Next::Read(wait) => wait,
        };
        loop {
            let bytes = self.source.fill(wait)?;
            failpoint::pass("frames_read");
            let (now, buffered) = (self.clock.now(), self.source.buffered());
            match self.session.has_read::<SinkError>(now, bytes, buffered)? {
                None => return Ok(()),
                Some(time) => std::thread::sleep(time),
            }
            wait = Duration::ZERO;
        }
    }

    /// Treats a missing or forbidden topic as an outage, except for the dead-letter topic. A row
    /// that waits for dead letters needs an operator.
    fn judged(&self, error: RelayError) -> RelayError {
        let pipeline = self.session.pipeline();
        let is_of_dead_letters = |cause: &SinkError| match cause {
            SinkError::UnknownTopic { topic } | SinkError::Unauthorised { topic } => {
                pipeline.sends_dead_letters_to(topic)
            }
            _ => false,
        };
        match error {
            RelayError::Sink(cause) if is_of_dead_letters(&cause) => RelayError::DeadLetters(cause),
            RelayError::Sink(SinkError::BatchRefused { topic, reason, records, batch_bytes }) => {
                let unnamed = batch_bytes.map(|_| topic.as_str());
                match pipeline.analyse_refusals(&records, unnamed) {
                    Ok(analysis) => {
                        let cause = SinkError::BatchRefused { topic, reason, records, batch_bytes };
                        RelayError::Refused { cause, analysis: Box::new(analysis) }
                    }
                    Err(error) => error.into(),
                }
            }
            error => error,
        }
    }
}
