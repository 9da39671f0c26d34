//! One session: a stream, a pipeline and a sink, and the only loop that drives them.
//!
//! Enters: WAL frames and delivery reports. Leaves: records, and status updates that name a settled
//! position; the one line that tells Postgres an LSN is in `Session::tell`. The loop
//! runs on an OS thread of its own and waits for nothing but the socket, and for that no longer
//! than a tick. A session carries nothing over to the next: on any error it is dropped as a whole,
//! and Postgres sends again what was not acknowledged. Called by `relay::supervise`.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::failpoint;
use crate::kafka::{Reached, SendError, Sink, SinkError};
use crate::lsn::Lsn;
use crate::pipeline::{
    Answer, Aspect, Blame, Confirmation, Outcome, OwnedOutgoing, Pipeline, PipelineError, Refused,
    Translator,
};
use crate::relay::audit;
use crate::relay::error::RelayError;
use crate::relay::offer::{Offer, offer};
use crate::relay::owed::Owed;
use crate::relay::pace::{Next, Pace, Read};
use crate::relay::phase::{End, Phase};
use crate::relay::pulse::Pulse;
use crate::relay::report::Reporter;
use crate::relay::stop::{Request, Stop};
use crate::telemetry::age;
use crate::wal::{Frame, Stream, WalError};

/// While records are unconfirmed the socket is waited on no longer than this, so that a delivery
/// report is noticed within a millisecond.
const CONFIRM_TICK: Duration = Duration::from_millis(1);
/// While a Kafka transaction ends: how soon that is noticed, and how often the socket is emptied.
const COMMIT_TICK: Duration = Duration::from_micros(300);
/// Rows this old are many, or wait for something: then their number counts, not their latency.
const BEHIND: Duration = Duration::from_millis(250);
/// While nothing is outstanding: how soon a request to stop is noticed.
const IDLE_TICK: Duration = Duration::from_millis(50);
/// Smallest distance of two acknowledgements while idle: one per transaction would cost both sides
/// more than it tells.
const IDLE_ACKNOWLEDGE: Duration = Duration::from_millis(100);
/// How long a session that must close the stream still waits for the broker. Postgres's `fast`
/// stop waits for us no longer than this.
const LET_GO_GRACE: Duration = Duration::from_secs(3);

/// After this much of a gulp the socket is read again, or the server would stand still while we
/// work: a unix socket's default buffer holds some 80 kB of small messages.
const BITE_BYTES: usize = 16 * 1024;
/// After this much the gulp is worked off without reading on, for there is more to do than that.
const MEAL_BYTES: usize = 1024 * 1024;

/// After so long the rest waits for the next turn: rows whose topics the brokers are asked for take
/// milliseconds each, and signals, heartbeats and metrics must not wait for all of them.
const FORWARD_MAX: Duration = Duration::from_millis(50);

/// How long the server may take to say goodbye; it sends what it has begun to send before it hears
/// that we want no more. Everything is acknowledged by then.
const FAREWELL: Duration = Duration::from_secs(10);
/// The same for a server that is shutting down.
const LAST_FAREWELL: Duration = Duration::from_secs(2);

/// What bounds a session.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Longest distance of two acknowledgements while the settled position advances.
    pub(super) status_interval: Duration,
    /// Longest silence towards the server; well below its `wal_sender_timeout`.
    pub(super) heartbeat: Duration,
    /// How long the server may be silent after a heartbeat.
    pub(super) silence: Duration,
    /// How long a drain may take.
    pub(super) grace: Duration,
    /// End like this once this position is acknowledged.
    pub(super) until: Option<(Lsn, End)>,
    /// Whether positions are acknowledged at all (`run --dry-run` does not).
    pub(super) acknowledge: bool,
}

/// The three ends of the road, owned together.
pub(super) struct Session<S> {
    pub(super) stream: Stream,
    /// Of a stream that is not in UTF-8.
    pub(super) translator: Option<Translator>,
    pub(super) pipeline: Pipeline,
    pub(super) sink: S,
    pub(super) stop: Stop,
    pub(super) limits: Limits,
    pub(super) pace: Pace,
}

/// What the loop remembers between two turns.
struct Turn {
    phase: Phase,
    confirmations: Vec<Confirmation>,
    dead_letters: VecDeque<OwnedOutgoing>,
    acknowledged: Lsn,
    last_status: Instant,
    reply_now: bool,
    sink_is_full: bool,
    pulse: Pulse,
    /// Why no further frame can be taken; the session ends with it once it has drained.
    definite: Option<RelayError>,
    /// What earlier sessions left unconfirmed, which a drain confirms as well.
    owed: Owed,
}

impl Turn {
    /// Whether what earlier sessions left unconfirmed is confirmed before the end. Upholds G8.
    fn pays(&self) -> bool {
        matches!(self.phase, Phase::Ending { end: End::Drained, .. }) && self.definite.is_none()
    }
}

impl<S: Sink> Session<S> {
    /// Drives the session to its end.
    pub(super) fn run(mut self, reporter: &mut Reporter) -> Result<End, RelayError> {
        let result = self.turn_until_end(reporter);
        if result.as_ref().is_err_and(RelayError::is_of_a_record) {
            self.leave_word();
        }
        reporter.session_ended(&self.pipeline, &self.stream);
        let settled = self.settled();
        if self.limits.acknowledge {
            // Of a transaction that is delivered in part nothing was told.
            let told = self.pipeline.last_row().filter(|last| *last < settled);
            reporter.told(told, self.sink.kept());
        }
        failpoint::pass("drained");
        let (end, definite) = match result {
            // It says so once it has heard of what was acknowledged; see `Stream::finish`.
            Err(RelayError::Wal(WalError::Ended)) => {
                reporter.acknowledged(self.stream.acknowledged());
                return Ok(End::LetGo);
            }
            result => result?,
        };
        let limit = if end == End::LetGo { LAST_FAREWELL } else { FAREWELL };
        let farewell = self.stream.finish(limit).map(|()| reporter.acknowledged(settled));
        match (definite, end) {
            (Some(error), End::Drained) => Err(error),
            // The server may be gone before it has said goodbye.
            (_, End::LetGo) => Ok(end),
            _ => Ok(farewell.map(|()| end)?),
        }
    }

    /// Tells Postgres what is settled, for the next session would repeat it. A server that does not
    /// take it any more is met by that session.
    fn leave_word(&mut self) {
        if self.limits.acknowledge {
            let _ = self.tell(self.settled(), false);
        }
    }

    /// Returns how it ended, and the definite error that was put off, if any.
    fn turn_until_end(
        &mut self,
        reporter: &mut Reporter,
    ) -> Result<(End, Option<RelayError>), RelayError> {
        let mut turn = Turn {
            phase: Phase::Streaming,
            confirmations: Vec::new(),
            dead_letters: VecDeque::new(),
            acknowledged: Lsn::ZERO,
            last_status: Instant::now(),
            reply_now: false,
            sink_is_full: false,
            pulse: Pulse::new(self.limits.silence),
            definite: None,
            owed: reporter.owed(),
        };
        loop {
            self.obey(&mut turn, reporter)?;
            if let Err(error) = self.forward(&mut turn) {
                self.put_off(self.judged(error), &mut turn, reporter)?;
            }
            self.collect(&mut turn).map_err(|error| self.judged(error))?;
            self.mark(&turn).map_err(|error| self.judged(error.into()))?;
            self.tell_postgres(&mut turn)?;
            reporter.tick(&mut self.pipeline, &self.stream, self.sink.is_connected())?;
            if let Some(end) = self.end(&mut turn)? {
                return Ok((end, turn.definite));
            }
            if let Err(error) = self.listen(&mut turn, reporter) {
                self.put_off(error, &mut turn, reporter)?;
            }
        }
    }

    /// Turns a request from outside into a phase.
    fn obey(&self, turn: &mut Turn, reporter: &mut Reporter) -> Result<(), RelayError> {
        let grace = match turn.phase {
            // What earlier sessions have taken of it since the signal is gone.
            Phase::Streaming => self.limits.grace.saturating_sub(self.stop.told_for()),
            Phase::Ending { .. } => self.limits.grace,
        };
        let grace = if self.stop.must_let_go() { LET_GO_GRACE.min(grace) } else { grace };
        let end = match self.stop.requested() {
            Request::Run => return Ok(()),
            Request::Abort => return Err(RelayError::Aborted { records: self.unconfirmed() }),
            Request::Drain => End::Drained,
            Request::LetGo => End::LetGo,
        };
        self.head_for(end, grace, turn, reporter);
        Ok(())
    }

    /// Begins to end, or hurries an end that has begun.
    fn head_for(&self, end: End, grace: Duration, turn: &mut Turn, reporter: &mut Reporter) {
        let next = turn.phase.towards(end, grace, Instant::now());
        if next != turn.phase {
            reporter.draining(self.unconfirmed().max(turn.owed.records()), grace);
            failpoint::pass("draining");
            turn.phase = next;
        }
    }

    /// A topic that is missing or forbidden is an outage, unless it is the one for dead letters:
    /// whoever waits for that waits behind a row that only a human can help.
    fn judged(&self, error: RelayError) -> RelayError {
        match error {
            RelayError::Sink(cause) if self.is_about_dead_letters(&cause) => {
                RelayError::DeadLetters(cause)
            }
            RelayError::Sink(SinkError::BatchRefused { topic, reason, records, batch_bytes }) => {
                let dead = |one: &&Blame| self.pipeline.sends_dead_letters_to(&one.topic);
                // For its size it is sent again with a note in its body's place, for its time without one.
                if let Some(Blame { topic, rejection: Some(rejection), aspect, .. }) =
                    records.iter().find(dead)
                    && !matches!(aspect, Aspect::Size | Aspect::Time)
                {
                    let (topic, rejection) = (topic.clone(), rejection.clone());
                    return PipelineError::DeadLetterRefused { topic, rejection }.into();
                }
                let unnamed = batch_bytes.map(|_| topic.as_str());
                match self.pipeline.lesson(&records, unnamed) {
                    Ok(lesson) => {
                        let cause = SinkError::BatchRefused { topic, reason, records, batch_bytes };
                        RelayError::Refused { cause, lesson: Box::new(lesson) }
                    }
                    Err(error) => error.into(),
                }
            }
            error => error,
        }
    }

    fn is_about_dead_letters(&self, cause: &SinkError) -> bool {
        match cause {
            SinkError::UnknownTopic { topic } | SinkError::Unauthorised { topic } => {
                self.pipeline.sends_dead_letters_to(topic)
            }
            _ => false,
        }
    }

    /// A definite error about a frame, such as a row that must stop the relay, ends it only when
    /// everything before that frame is confirmed and acknowledged. Other errors are returned.
    fn put_off(
        &self,
        error: RelayError,
        turn: &mut Turn,
        reporter: &mut Reporter,
    ) -> Result<(), RelayError> {
        let definite = match &error {
            RelayError::Pipeline(inner) => inner.is_definite(),
            RelayError::DeadLetters(_) => true,
            _ => false,
        };
        if !definite {
            return Err(error);
        }
        turn.definite = Some(error);
        if let Phase::Streaming = turn.phase {
            self.head_for(End::Drained, self.limits.grace, turn, reporter);
        }
        Ok(())
    }

    /// Hands the buffered frames' rows to the sink, until the buffer, the budget or the sink's
    /// queue is exhausted. A row the sink has no room for stays in the buffer and is offered again.
    fn forward(&mut self, turn: &mut Turn) -> Result<(), RelayError> {
        turn.sink_is_full = false;
        let (mut unread, mut worked) = (self.stream.buffered(), 0);
        let began = Instant::now();
        while self.wants_frames(turn) {
            if self.sink.has_enough() && !self.pipeline.is_open() {
                return Ok(());
            }
            let bite = unread.saturating_sub(self.stream.buffered());
            if bite >= BITE_BYTES && worked < MEAL_BYTES {
                worked += bite;
                if began.elapsed() >= FORWARD_MAX {
                    return Ok(());
                }
                if self.stream.fill(Duration::ZERO)? > 0 {
                    turn.pulse.rest();
                }
                unread = self.stream.buffered();
            }
            let Some(place) = self.stream.place()? else { return Ok(()) };
            let received = self.stream.received_bytes();
            let Some(frame) = self.stream.peek()? else { return Ok(()) };
            if let Frame::Keepalive { reply_now: true, .. } = frame {
                turn.reply_now = true;
            }
            self.sink.reading(place, received);
            let frame = match &mut self.translator {
                None => frame,
                Some(translator) => translator.frame(frame).map_err(PipelineError::from)?,
            };
            let (pipeline, sink) = (&mut self.pipeline, &mut self.sink);
            let mut answer = offer(pipeline, sink, frame, None, self.limits.acknowledge)?;
            if let Offer::Refused(rejection) = answer {
                answer = offer(pipeline, sink, frame, Some(rejection), self.limits.acknowledge)?;
            }
            if matches!(answer, Offer::Full) {
                turn.sink_is_full = true;
                return Ok(());
            }
            self.stream.consume();
            self.translator.as_mut().map(Translator::consume);
        }
        Ok(())
    }

    /// Books the delivery reports, and sends the dead letters of records the brokers refused.
    fn collect(&mut self, turn: &mut Turn) -> Result<(), RelayError> {
        let polled = self.sink.poll(&mut turn.confirmations);
        // What is stored is, whatever has ended the sink meanwhile: the next session need not repeat it.
        for confirmation in turn.confirmations.drain(..) {
            match self.pipeline.confirm(confirmation)? {
                Answer::Stored => {}
                Answer::Send(dead_letter) => turn.dead_letters.push_back(*dead_letter),
                Answer::Skipped(refused) => audit::skipped_record(&refused),
            }
        }
        polled?;
        while let Some(dead_letter) = turn.dead_letters.pop_front() {
            let record = dead_letter.record.as_record();
            let letter = audit::Letter::of(dead_letter.rejection, &record);
            let sent = self.sink.send(&record, dead_letter.ticket);
            drop(record);
            match sent {
                Ok(()) => {
                    failpoint::pass("dead_letter_sent");
                    letter.sent(self.limits.acknowledge);
                }
                Err(SendError::Full) => {
                    turn.dead_letters.push_front(dead_letter);
                    return Ok(());
                }
                Err(SendError::Refused(rejection)) => {
                    let OwnedOutgoing { record, ticket, .. } = dead_letter;
                    let outcome = Outcome::Refused(Box::new(Refused { record, rejection }));
                    self.pipeline.confirm(Confirmation { ticket, outcome })?;
                }
                Err(SendError::Broken(error)) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Tells the sink how far we are, once nothing that it gave back waits to be sent again.
    fn mark(&mut self, turn: &Turn) -> Result<(), SinkError> {
        if !turn.dead_letters.is_empty() {
            return Ok(());
        }
        let settled = self.pipeline.settled();
        let lag = self.pipeline.newest_commit_time_us().map_or(Duration::ZERO, age);
        let arrived = self.limits.until.is_some_and(|(until, _)| settled >= until);
        self.sink.reached(Reached {
            mark: self.pipeline.reached(),
            settled,
            behind: lag > BEHIND,
            pressed: !self.pipeline.has_room(),
            ending: arrived || !matches!(turn.phase, Phase::Streaming),
        })
    }

    /// What Postgres may be told: everything up to here is confirmed, and so is, where progress is
    /// kept, that it is. Upholds G1, G6.
    fn settled(&self) -> Lsn {
        let settled = self.pipeline.settled();
        self.sink.kept().map_or(settled, |kept| settled.min(kept))
    }

    /// Tells Postgres what is settled: when asked, when silent for too long, within the status
    /// interval of an advance, and almost at once when nothing else is in flight. After a silence
    /// of ours the server is asked whether it still lives. Upholds G1, G5.
    fn tell_postgres(&mut self, turn: &mut Turn) -> Result<(), RelayError> {
        let settled = if self.limits.acknowledge { self.settled() } else { Lsn::ZERO };
        assert!(settled >= turn.acknowledged, "what is settled stays settled");
        let since_last = turn.last_status.elapsed();
        let spacing = match turn.phase {
            Phase::Ending { .. } => Duration::ZERO,
            Phase::Streaming if self.pipeline.is_idle() => IDLE_ACKNOWLEDGE,
            Phase::Streaming => self.limits.status_interval,
        };
        let advanced = settled > turn.acknowledged && since_last >= spacing;
        let heartbeat = since_last >= self.limits.heartbeat;
        if advanced || turn.reply_now || heartbeat {
            // A position to wait for may lie behind the last published change: ask for a keepalive.
            let awaited = self.limits.until.is_some_and(|(until, _)| settled < until);
            let ask = heartbeat || awaited || settled < turn.owed.until();
            failpoint::pass("status_due");
            self.tell(settled, ask)?;
            failpoint::pass("status_sent");
            if ask {
                turn.pulse.ask(Instant::now());
            }
            turn.acknowledged = settled;
            turn.last_status = Instant::now();
            turn.reply_now = false;
        }
        Ok(())
    }

    fn tell(&mut self, settled: Lsn, ask: bool) -> Result<(), WalError> {
        self.stream.acknowledge(settled, ask).map(drop)
    }

    /// Whether the session has come to its end. Having reached the position to stop at, it takes no
    /// further transaction, and confirms what it has sent beyond: the next run would repeat it.
    fn end(&self, turn: &mut Turn) -> Result<Option<End>, RelayError> {
        let settled = self.pipeline.settled();
        let told = if self.limits.acknowledge { turn.acknowledged } else { settled };
        if let Some((_, end)) = self.limits.until.filter(|(until, _)| told >= *until) {
            turn.phase = turn.phase.towards(end, self.limits.grace, Instant::now());
        }
        let Phase::Ending { end, deadline } = turn.phase else { return Ok(None) };
        let acknowledged = told >= settled;
        let at_rest =
            self.pipeline.may_end_here() || self.sink.may_end_within() || turn.definite.is_some();
        let owed = if turn.pays() { turn.owed.settled(settled) } else { Owed::default() };
        let unconfirmed = self.unconfirmed();
        if unconfirmed == 0 && at_rest && acknowledged && owed.is_nothing() {
            return Ok(Some(end));
        }
        if Instant::now() < deadline {
            return Ok(None);
        }
        match end {
            // Another session follows.
            End::LetGo | End::PastTheSpot => Ok(Some(end)),
            _ if turn.definite.is_some() => Ok(Some(end)),
            // Upholds G8.
            _ => Err(RelayError::GraceExpired { records: unconfirmed.max(owed.records()) }),
        }
    }

    /// Waits for the socket. While the budget or the sink's queue is exhausted the socket is left
    /// alone, so that TCP holds the server back; confirmations are what we wait for then (G3).
    fn listen(&mut self, turn: &mut Turn, reporter: &mut Reporter) -> Result<(), RelayError> {
        if !self.sink.takes_records() {
            std::thread::sleep(COMMIT_TICK);
            // What is read now need not be waited for later.
            self.stream.fill(Duration::ZERO)?;
            turn.pulse.rest();
            return Ok(());
        }
        if turn.sink_is_full || !self.wants_frames(turn) {
            std::thread::sleep(CONFIRM_TICK);
            reporter.held_back(CONFIRM_TICK);
            turn.pulse.rest();
            return Ok(());
        }
        let unconfirmed = self.pipeline.in_flight().records > 0;
        let mut wait = if unconfirmed { CONFIRM_TICK } else { IDLE_TICK };
        let lag = self.pipeline.newest_commit_time_us().map_or(Duration::ZERO, age);
        loop {
            let bytes = self.stream.fill(wait)?;
            failpoint::pass("frames_read");
            turn.pulse.hear(bytes, Instant::now())?;
            let read = Read { bytes, buffered: self.stream.buffered(), lag };
            match self.pace.after_read(Instant::now(), read) {
                Next::Work => return Ok(()),
                Next::Nap(nap) => std::thread::sleep(nap),
            }
            wait = Duration::ZERO;
        }
    }

    /// Whether another frame may be taken: there is room, and the phase allows it. A session that
    /// ends still reads the open transaction to its commit, where otherwise some of it would be sent
    /// twice, and what earlier sessions left unconfirmed.
    fn wants_frames(&self, turn: &Turn) -> bool {
        let allowed = matches!(turn.phase, Phase::Streaming)
            || self.pipeline.is_open() && !self.sink.may_end_within()
            || turn.pays() && self.pipeline.reached().end < turn.owed.until();
        allowed && turn.definite.is_none() && self.pipeline.has_room() && self.sink.takes_records()
    }

    fn unconfirmed(&self) -> u64 {
        self.pipeline.in_flight().records
    }
}
