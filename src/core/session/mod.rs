//! One session: what a relay does between the start of a replication stream and its end.
//!
//! Input: frames, what the sink confirms, requests to stop, and the time. Output: records to the sink, the
//! status update that is due, what to wait for ([`Next`]), and how the session ended. It reads no clock and
//! waits for nothing, so that the code that ships is simulated by seeds in virtual time.
//!
//! Invariant:
//! * a [`StatusUpdate`] names only a position that the pipeline has settled and, where progress is stored
//!   in Kafka, that the stored progress covers (G1, G6);
//! * a session that has begun to end reads no further than the open transaction and what earlier sessions
//!   left unconfirmed; it ends once everything is confirmed and acknowledged, or at its deadline, which is
//!   an error after a request to stop (G8);
//! * a session that is paused takes no frame, keeps its stream, and tells the server the same position as before;
//! * while there is no room the socket is not read, so that TCP holds the server back (G3).
//!
//! A session carries nothing over to the next: on any error it is dropped as a whole, and Postgres sends
//! again what was not acknowledged.
//!
//! ```text
//!   loop {
//!       session.request(now, ..)          what is asked from outside
//!       session.frame(now, ..)            for each frame, while session.takes_frames(..)
//!       session.confirm(now, ..)          delivery reports
//!       session.advance(now, ..)          dead letters of refused records, Kafka transactions
//!       session.drain_audit()             what became of refused records, for the log
//!       session.status_due(now, ..)       send it
//!       session.ended(now, ..)            leave the loop
//!       session.next(..)                  wait and read, then session.has_read(now, ..)
//!   }
//! ```
//! If a frame must end the relay, the caller calls [`Session::stop_reading`]; after a read between two
//! frames it calls [`Session::has_refilled`].

mod audit;
mod burst;
mod coalescing;
mod error;
mod limits;
mod liveness;
mod oldest;
mod owed;
mod phase;
mod request;
mod stall;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use crate::frame::Frame;
use crate::lsn::Lsn;
use crate::mutants::{self, Mutant};
use crate::pipeline::{
    Confirmation, Handled, Outgoing, OwnedOutgoing, Pipeline, PipelineError, Translator,
};
use crate::sink::{Reached, Sink};
use crate::time::{Instant, Now};
use coalescing::{ReadCoalescing, SocketRead};
use liveness::Liveness;
use phase::{Phase, Reading};

pub use audit::Audit;
pub use burst::{Burst, Work};
pub use coalescing::CoalescingProfile;
pub use error::SessionError;
pub use limits::Limits;
pub use liveness::TimeoutEscalation;
pub use oldest::Oldest;
pub use owed::Owed;
pub use phase::End;
pub use request::{ControlRequest, Draining, Requested};
pub use stall::{StallDetector, Stalled};

/// While records are unconfirmed the socket is waited on no longer than this, so that a delivery
/// report is noticed within a millisecond.
const CONFIRM_TICK: Duration = Duration::from_millis(1);
/// While a Kafka transaction ends: how soon that is noticed, and how often the socket is emptied.
const COMMIT_TICK: Duration = Duration::from_micros(300);
/// While nothing is outstanding: how soon a request to stop is noticed.
const IDLE_TICK: Duration = Duration::from_millis(50);
/// Rows this old are many, or wait for something: then their number counts, not their latency.
const BEHIND: Duration = Duration::from_millis(250);
/// How long a session that must close the stream for a server that stops still waits for the brokers.
/// Postgres's `fast` stop waits for us no longer than this.
const SERVER_SHUTDOWN_GRACE: Duration = Duration::from_secs(3);

/// What to tell Postgres.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatusUpdate {
    /// Everything up to here is settled.
    pub settled: Lsn,
    /// Whether the server is to answer at once.
    pub ask_reply: bool,
}

/// What to do before the next turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Read, waiting at most so long for something to come; then ask [`Session::has_read`].
    Read(Duration),
    /// Wait so long, then read what has come: a Kafka transaction ends, and what is read now need not be
    /// waited for later.
    Refill(Duration),
    /// Wait so long and leave the socket alone: there is no room (G3), or no frame is wanted.
    Wait(Duration),
}

/// The state of a session. See the module for the order of calls.
#[derive(Debug)]
pub struct Session {
    pipeline: Pipeline,
    /// Of a stream that is not in UTF-8.
    translator: Option<Translator>,
    limits: Limits,
    phase: Phase,
    confirmations: Vec<Confirmation>,
    /// Of refused records; they wait for room.
    dead_letters: VecDeque<OwnedOutgoing>,
    /// What became of refused records.
    audit: Vec<Audit>,
    acknowledged: Lsn,
    last_status: Instant,
    reply_now: bool,
    sink_is_full: bool,
    coalescing: ReadCoalescing,
    liveness: Liveness,
    /// No further frame can be taken: the session ends once it has drained.
    stops_reading: bool,
    reading: Reading,
    /// What earlier sessions left unconfirmed, which a drain confirms as well.
    owed: Owed,
}

impl Session {
    /// A session that begins now. `owed`: what earlier sessions left unconfirmed.
    pub fn new(
        pipeline: Pipeline,
        limits: Limits,
        profile: CoalescingProfile,
        owed: Owed,
        now: Instant,
    ) -> Self {
        Self {
            pipeline,
            translator: None,
            limits,
            phase: Phase::Streaming,
            confirmations: Vec::new(),
            dead_letters: VecDeque::new(),
            audit: Vec::new(),
            acknowledged: Lsn::ZERO,
            last_status: now,
            reply_now: false,
            sink_is_full: false,
            coalescing: ReadCoalescing::new(profile, now),
            liveness: Liveness::new(limits.silence),
            stops_reading: false,
            reading: Reading::On,
            owed,
        }
    }

    /// The same for a stream that is not in UTF-8.
    #[must_use]
    pub fn translated_by(self, translator: Option<Translator>) -> Self {
        Self { translator, ..self }
    }

    /// The pipeline, for what it can tell.
    pub const fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    /// The pipeline, for samples that are taken out of it.
    pub const fn pipeline_mut(&mut self) -> &mut Pipeline {
        &mut self.pipeline
    }

    /// What bounds it.
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Turns what is asked from outside into a phase. `Some`: it has begun to end, or has less time.
    pub fn request<E>(
        &mut self,
        now: Now,
        asked: Requested,
    ) -> Result<Option<Draining>, SessionError<E>> {
        self.reading = if asked.is_paused { Reading::Paused } else { Reading::On };
        let end = match asked.request {
            ControlRequest::Run => return Ok(None),
            // It goes on with others at once: no drain to tell of.
            ControlRequest::Reconfigure => {
                self.head_for(End::Reconfigured, self.limits.grace, now);
                return Ok(None);
            }
            ControlRequest::Abort => {
                return Err(SessionError::Aborted { records: self.unconfirmed() });
            }
            ControlRequest::Drain => End::Drained,
            ControlRequest::ServerShutdown => End::ServerShutdown,
        };
        let grace = match self.phase {
            // What earlier sessions have taken of it since the signal is gone.
            Phase::Streaming => self.limits.grace.saturating_sub(asked.told_for),
            Phase::Ending { .. } => self.limits.grace,
        };
        let grace = if asked.server_stops { SERVER_SHUTDOWN_GRACE.min(grace) } else { grace };
        Ok(self.head_for(end, grace, now))
    }

    /// Takes no further frame: the next one is a row that only a human can help, or comes in another way. What was
    /// sent is confirmed and acknowledged, then the session ends so. `Some`: it has begun to end for that.
    pub fn stop_reading(&mut self, end: End, now: Now) -> Option<Draining> {
        self.stops_reading = true;
        match self.phase {
            Phase::Streaming => self.head_for(end, self.limits.grace, now),
            Phase::Ending { .. } => None,
        }
    }

    fn head_for(&mut self, end: End, grace: Duration, now: Now) -> Option<Draining> {
        let next = self.phase.towards(end, grace, now.at);
        if next == self.phase {
            return None;
        }
        self.phase = next;
        Some(Draining { unconfirmed: self.unconfirmed().max(self.owed.records()), grace })
    }

    /// Whether the next frame is taken now. To be asked before each.
    pub fn takes_frames(&self, sink: &impl Sink) -> bool {
        if self.sink_is_full || !self.wants_frames(sink) {
            return false;
        }
        !sink.has_enough() || self.pipeline.is_open()
    }

    /// Takes the next frame of the stream; see [`Pipeline::frame`]. After [`Handled::Full`] none is taken
    /// until [`Session::next`].
    #[inline]
    pub fn frame<S: Sink>(
        &mut self,
        now: Instant,
        frame: Frame<'_>,
        sink: &mut S,
    ) -> Result<Handled, SessionError<S::Error>> {
        if let Frame::Keepalive { reply_now: true, .. } = frame {
            self.reply_now = true;
        }
        let frame = match &mut self.translator {
            None => frame,
            Some(translator) => translator.frame(frame).map_err(PipelineError::from)?,
        };
        let send = |outgoing: &Outgoing<'_>| {
            sink.send(now, outgoing).map_err(|error| error.map(SessionError::Sink))
        };
        let handled = self.pipeline.frame(frame, send)?;
        if handled == Handled::Full {
            self.sink_is_full = true;
        } else if let Some(translator) = &mut self.translator {
            translator.consume();
        }
        Ok(handled)
    }

    /// Books what the sink has confirmed.
    pub fn confirm<S: Sink>(
        &mut self,
        now: Now,
        sink: &mut S,
    ) -> Result<(), SessionError<S::Error>> {
        let polled = sink.poll(now.at, &mut self.confirmations);
        // What is stored is, whatever has ended the sink meanwhile: the next session need not repeat it.
        let mut confirmations = std::mem::take(&mut self.confirmations);
        if sink.is_observed() {
            self.pipeline.tell_commits(&confirmations, sink);
        }
        for confirmation in confirmations.drain(..) {
            let answer = self.pipeline.confirm(confirmation)?;
            self.keep(answer);
        }
        self.confirmations = confirmations;
        polled.map_err(SessionError::Sink)
    }

    /// Sends the dead letters of records that the brokers refused, and tells the sink how far the session has
    /// come: between two frames, when all that was confirmed is booked.
    pub fn advance<S: Sink>(
        &mut self,
        now: Now,
        sink: &mut S,
    ) -> Result<(), SessionError<S::Error>> {
        self.send_dead_letters(now.at, sink)?;
        if self.dead_letters.is_empty() {
            sink.reached(now.at, self.reached(now)).map_err(SessionError::Sink)?;
        }
        Ok(())
    }

    fn reached(&self, now: Now) -> Reached {
        let settled = self.pipeline.settled();
        let arrived = self.limits.until.is_some_and(|(until, _)| settled >= until);
        Reached {
            mark: self.pipeline.reached(),
            settled,
            behind: self.lag(now) > BEHIND,
            pressed: !self.pipeline.has_room(),
            ending: arrived || self.is_paused() || !matches!(self.phase, Phase::Streaming),
        }
    }

    /// What became of refused records since the last call: a line in the log each.
    pub fn drain_audit(&mut self) -> std::vec::Drain<'_, Audit> {
        self.audit.drain(..)
    }

    /// What Postgres may be told: everything up to here is confirmed, and so is, where progress is
    /// kept, that it is. Upholds G1, G6.
    pub fn settled(&self, sink: &impl Sink) -> Lsn {
        let settled = self.pipeline.settled();
        sink.kept().map_or(settled, |kept| settled.min(kept))
    }

    /// The status update that is due, to be sent at once: when asked, when silent for too long, within the
    /// status interval of an advance, and almost at once when nothing else is in flight. After a silence
    /// of ours the server is asked whether it still lives. Upholds G1, G5.
    ///
    /// # Panics
    /// If what was settled is not any more.
    pub fn status_due(&mut self, now: Now, sink: &impl Sink) -> Option<StatusUpdate> {
        let settled = if self.limits.acknowledge { self.settled(sink) } else { Lsn::ZERO };
        assert!(settled >= self.acknowledged, "what is settled stays settled");
        let since_last = now.at - self.last_status;
        let spacing = match self.phase {
            Phase::Ending { .. } => Duration::ZERO,
            Phase::Streaming if self.pipeline.is_idle() => self.limits.idle_spacing(),
            Phase::Streaming => self.limits.status_interval,
        };
        let advanced = settled > self.acknowledged && since_last >= spacing;
        let heartbeat = since_last >= self.limits.heartbeat && !mutants::is(Mutant::StaysSilent);
        if !(advanced || self.reply_now || heartbeat) {
            return None;
        }
        // A position to wait for may lie behind the last published change: ask for a keepalive.
        let awaited = self.limits.until.is_some_and(|(until, _)| settled < until);
        let ask_reply = heartbeat || awaited || settled < self.owed.until();
        if ask_reply {
            self.liveness.ask(now.at);
        }
        (self.acknowledged, self.last_status, self.reply_now) = (settled, now.at, false);
        Some(StatusUpdate { settled, ask_reply })
    }

    /// What Postgres is told by a session that ends for the sake of a record, for the next one would repeat
    /// it; `None` where nothing is acknowledged.
    pub fn final_status(&self, sink: &impl Sink) -> Option<StatusUpdate> {
        let settled = self.settled(sink);
        self.limits.acknowledge.then_some(StatusUpdate { settled, ask_reply: false })
    }

    /// Whether the session has come to its end. Having reached the position to stop at, it takes no
    /// further transaction, and confirms what it has sent beyond: the next run would repeat it.
    pub fn ended<S: Sink>(
        &mut self,
        now: Now,
        sink: &S,
    ) -> Result<Option<End>, SessionError<S::Error>> {
        let settled = self.pipeline.settled();
        let told = if self.limits.acknowledge { self.acknowledged } else { settled };
        if let Some((_, end)) = self.limits.until.filter(|(until, _)| told >= *until) {
            self.phase = self.phase.towards(end, self.limits.grace, now.at);
        }
        let Phase::Ending { end, deadline } = self.phase else { return Ok(None) };
        let at_rest = (self.pipeline.may_end_here() && !self.is_in_pieces(sink))
            || self.may_end_within(sink)
            || self.stops_reading
            || mutants::is(Mutant::EndsWithinTransaction);
        let owed = if self.pays() { self.owed.settled(settled) } else { Owed::default() };
        let unconfirmed = self.unconfirmed();
        let confirmed = unconfirmed == 0 || mutants::is(Mutant::EndsUnconfirmed);
        if confirmed && at_rest && told >= settled && owed.is_nothing() {
            return Ok(Some(end));
        }
        if now.at < deadline {
            return Ok(None);
        }
        match end {
            // What is stored may end within a transaction, whose rest would be routed in another way. Upholds G6.
            End::Reconfigured if sink.may_end_within() && !self.stops_reading => Ok(None),
            // Another session follows.
            End::ServerShutdown | End::ModeOver | End::Reconfigured => Ok(Some(end)),
            _ if self.stops_reading => Ok(Some(end)),
            // Upholds G8.
            _ => Err(SessionError::GraceExpired { records: unconfirmed.max(owed.records()) }),
        }
    }

    /// What to do before the next turn. Where no frame is wanted, none is looked for: it may be the stream's end.
    pub fn next<S: Sink, E>(
        &mut self,
        sink: &S,
        mut has_frame: impl FnMut() -> Result<bool, E>,
    ) -> Result<Next, E> {
        let was_full = std::mem::take(&mut self.sink_is_full);
        if mutants::is(Mutant::LooksForTheEnd) {
            has_frame()?;
        }
        if !sink.takes_records() {
            self.liveness.rest();
            let next = if self.allows_frames(sink) { Next::Refill } else { Next::Wait };
            return Ok(next(COMMIT_TICK));
        }
        if was_full || !self.wants_frames(sink) {
            self.liveness.rest();
            let is_idle = self.is_paused() && self.unconfirmed() == 0;
            return Ok(Next::Wait(if is_idle { IDLE_TICK } else { CONFIRM_TICK }));
        }
        // It came while a Kafka transaction ended, or was left behind by a burst: it waits for nothing.
        if self.takes_frames(sink) && !mutants::is(Mutant::WaitsBesideFrames) && has_frame()? {
            return Ok(Next::Read(Duration::ZERO));
        }
        Ok(Next::Read(if self.unconfirmed() > 0 { CONFIRM_TICK } else { IDLE_TICK }))
    }

    /// A read brought so many bytes, and so many are buffered now. How long to wait before reading on;
    /// `None`: work on what is buffered.
    pub fn has_read<E>(
        &mut self,
        now: Now,
        bytes: usize,
        buffered: usize,
    ) -> Result<Option<Duration>, SessionError<E>> {
        if let Some(silence) = self.liveness.heard(bytes, now.at) {
            return Err(SessionError::Silent { seconds: silence.as_secs() });
        }
        let read = SocketRead { bytes, buffered, lag: self.lag(now) };
        Ok(self.coalescing.after_read(now.at, read))
    }

    /// A read between two frames brought something.
    pub const fn has_refilled(&mut self) {
        self.liveness.rest();
    }

    /// Whether another frame may be taken: the phase allows it, and there is room.
    fn wants_frames(&self, sink: &impl Sink) -> bool {
        self.allows_frames(sink) && self.pipeline.has_room() && sink.takes_records()
    }

    /// A session that ends still reads the open transaction to its commit, where otherwise some of it would
    /// be sent twice, and what earlier sessions left unconfirmed.
    fn allows_frames(&self, sink: &impl Sink) -> bool {
        let is_open = || self.pipeline.is_open() && !self.may_end_within(sink);
        let owes = || self.pays() && self.pipeline.reached().end < self.owed.until();
        let allows = match self.phase {
            Phase::Streaming => self.reading == Reading::On,
            Phase::Ending { .. } => is_open() || owes() || self.is_in_pieces(sink),
        };
        allows && !self.stops_reading
    }

    /// Whether a session that ends may do so within a transaction: not if the rest of it would be routed in another
    /// way.
    fn may_end_within(&self, sink: &impl Sink) -> bool {
        let is_replaced = matches!(self.phase, Phase::Ending { end: End::Reconfigured, .. });
        sink.may_end_within() && !is_replaced
    }

    /// Whether a transaction is stored in part, by an earlier session perhaps, and has to be stored whole before the
    /// routes change.
    fn is_in_pieces(&self, sink: &impl Sink) -> bool {
        let is_replaced = matches!(self.phase, Phase::Ending { end: End::Reconfigured, .. });
        is_replaced && sink.may_end_within() && self.pipeline.reached().part.is_some()
    }

    /// Whether it waits until further notice, and not for room.
    pub fn is_paused(&self) -> bool {
        self.reading == Reading::Paused && self.phase == Phase::Streaming
    }

    /// Whether what earlier sessions left unconfirmed is confirmed before the end. Upholds G8.
    const fn pays(&self) -> bool {
        matches!(self.phase, Phase::Ending { end: End::Drained, .. }) && !self.stops_reading
    }

    fn unconfirmed(&self) -> u64 {
        self.pipeline.in_flight().records
    }

    /// The age of the newest transaction that was taken.
    fn lag(&self, now: Now) -> Duration {
        self.pipeline.newest_commit_time_us().map_or(Duration::ZERO, |time_us| now.age(time_us))
    }
}
