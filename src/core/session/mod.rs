//! One session: from the start of a replication stream to its end.
//!
//! Input: frames, confirmations, requests, and the time. Output: records, status updates, what to
//! wait for ([`Next`]), and how the session ended.
//!
//! Invariants:
//! * a [`StatusUpdate`] names only a position that is settled and, if progress is stored, covered
//!   by it (G1, G6);
//! * an ending session reads only the open transaction and owed rows. It ends once everything is
//!   confirmed and acknowledged, or at its deadline. After a request to stop, the deadline is an
//!   error (G8);
//! * a paused session does not read frames and repeats its position;
//! * while there is no room the socket is not read, so TCP holds the server back (G3).
//!
//! After any error the session is dropped, and Postgres repeats unacknowledged rows.
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
//! If a frame must end the relay, call [`Session::stop_reading`]; after a read between two frames,
//! [`Session::has_refilled`].

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

/// Longest wait for the socket while records are unconfirmed, so that a delivery report is noticed
/// within a millisecond.
const CONFIRM_TICK: Duration = Duration::from_millis(1);
/// Poll interval while a Kafka transaction ends; the socket is emptied as often.
const COMMIT_TICK: Duration = Duration::from_micros(300);
const IDLE_TICK: Duration = Duration::from_millis(50);
/// Age of rows above which throughput matters more than latency.
const BEHIND: Duration = Duration::from_millis(250);
/// Longest wait for the brokers if Postgres shuts down, because its `fast` stop waits for the
/// stream.
const SERVER_SHUTDOWN_GRACE: Duration = Duration::from_secs(3);

/// A status update for Postgres.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatusUpdate {
    /// Settled position.
    pub settled: Lsn,
    /// Whether the server must answer.
    pub ask_reply: bool,
}

/// What to do before the next turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Read, and wait at most this long; then call [`Session::has_read`].
    Read(Duration),
    /// Wait this long while a Kafka transaction ends, then read.
    Refill(Duration),
    /// Wait this long without reading: there is no room (G3), or no frame is wanted.
    Wait(Duration),
}

/// A session; the module documentation has the order of calls.
#[derive(Debug)]
pub struct Session {
    pipeline: Pipeline,
    translator: Option<Translator>,
    limits: Limits,
    phase: Phase,
    confirmations: Vec<Confirmation>,
    dead_letters: VecDeque<OwnedOutgoing>,
    audit: Vec<Audit>,
    acknowledged: Lsn,
    last_status: Instant,
    reply_now: bool,
    sink_is_full: bool,
    coalescing: ReadCoalescing,
    liveness: Liveness,
    stops_reading: bool,
    reading: Reading,
    owed: Owed,
}

impl Session {
    /// Starts a session. `owed`: records of earlier sessions.
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

    /// Sets the translator of a stream that is not in UTF-8.
    #[must_use]
    pub fn translated_by(self, translator: Option<Translator>) -> Self {
        Self { translator, ..self }
    }

    /// The session's pipeline.
    pub const fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    /// The pipeline, for draining its samples.
    pub const fn pipeline_mut(&mut self) -> &mut Pipeline {
        &mut self.pipeline
    }

    /// The session's limits.
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Applies a request. `Some`: the session begins to end, or has less time.
    pub fn request<E>(
        &mut self,
        now: Now,
        asked: Requested,
    ) -> Result<Option<Draining>, SessionError<E>> {
        self.reading = if asked.is_paused { Reading::Paused } else { Reading::On };
        let end = match asked.request {
            ControlRequest::Run => return Ok(None),
            // Another session follows at once, so no drain is logged.
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
            // Earlier sessions have used part of the grace period since the signal.
            Phase::Streaming => self.limits.grace.saturating_sub(asked.told_for),
            Phase::Ending { .. } => self.limits.grace,
        };
        let grace = if asked.server_stops { SERVER_SHUTDOWN_GRACE.min(grace) } else { grace };
        Ok(self.head_for(end, grace, now))
    }

    /// Takes no further frame, confirms and acknowledges what it sent, and ends with `end`. `Some`:
    /// the session begins to end.
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

    /// True if the next frame may be taken. Ask before each frame.
    pub fn takes_frames(&self, sink: &impl Sink) -> bool {
        if self.sink_is_full || !self.wants_frames(sink) {
            return false;
        }
        !sink.has_enough() || self.pipeline.is_open()
    }

    /// Takes the next frame. After [`Handled::Full`], call [`Session::next`] first.
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

    /// Books the sink's confirmations.
    pub fn confirm<S: Sink>(
        &mut self,
        now: Now,
        sink: &mut S,
    ) -> Result<(), SessionError<S::Error>> {
        let polled = sink.poll(now.at, &mut self.confirmations);
        // Records stay stored even if the sink failed since.
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

    /// Sends dead letters of refused records, and reports progress. Call it between two frames,
    /// after all confirmations are booked.
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

    /// Results for refused records since the last call.
    pub fn drain_audit(&mut self) -> std::vec::Drain<'_, Audit> {
        self.audit.drain(..)
    }

    /// The position that Postgres may be told: confirmed and, if progress is stored, covered by it.
    /// Upholds G1, G6.
    pub fn settled(&self, sink: &impl Sink) -> Lsn {
        let settled = self.pipeline.settled();
        sink.kept().map_or(settled, |kept| settled.min(kept))
    }

    /// The status update to send now: when the server asks, after a silence, within the status
    /// interval of an advance, and almost at once if nothing else is in flight. After its own
    /// silence the session asks the server for a reply. Upholds G1, G5.
    ///
    /// # Panics
    ///
    /// If the settled position decreases.
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
        // The awaited position may lie after the last published change.
        let awaited = self.limits.until.is_some_and(|(until, _)| settled < until);
        let ask_reply = heartbeat || awaited || settled < self.owed.until();
        if ask_reply {
            self.liveness.ask(now.at);
        }
        (self.acknowledged, self.last_status, self.reply_now) = (settled, now.at, false);
        Some(StatusUpdate { settled, ask_reply })
    }

    /// The last status of a session that ends because of a record; `None` if nothing is
    /// acknowledged.
    pub fn final_status(&self, sink: &impl Sink) -> Option<StatusUpdate> {
        let settled = self.settled(sink);
        self.limits.acknowledge.then_some(StatusUpdate { settled, ask_reply: false })
    }

    /// The end, if the session has ended. At its stop position it confirms everything sent beyond,
    /// because the next run would repeat it.
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
            // New routes must not apply to the rest of a transaction stored in part. Upholds G6.
            End::Reconfigured if sink.may_end_within() && !self.stops_reading => Ok(None),
            End::ServerShutdown | End::ModeOver | End::Reconfigured => Ok(Some(end)),
            _ if self.stops_reading => Ok(Some(end)),
            _ => Err(SessionError::GraceExpired { records: unconfirmed.max(owed.records()) }),
        }
    }

    /// What to do before the next turn. An unwanted frame is not read: it may be the stream's end.
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
        // The frame arrived while a Kafka transaction ended, or remained from a burst, so it need
        // not wait.
        if self.takes_frames(sink) && !mutants::is(Mutant::WaitsBesideFrames) && has_frame()? {
            return Ok(Next::Read(Duration::ZERO));
        }
        Ok(Next::Read(if self.unconfirmed() > 0 { CONFIRM_TICK } else { IDLE_TICK }))
    }

    /// Handles a read of `bytes` bytes, with `buffered` now. Returns the wait before the next read.
    /// `None`: process the buffer.
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

    /// Notes that a read between two frames brought bytes.
    pub const fn has_refilled(&mut self) {
        self.liveness.rest();
    }

    fn wants_frames(&self, sink: &impl Sink) -> bool {
        self.allows_frames(sink) && self.pipeline.has_room() && sink.takes_records()
    }

    /// An ending session reads the open transaction to its commit, because it would be repeated in
    /// part, and the unconfirmed rows of earlier sessions.
    fn allows_frames(&self, sink: &impl Sink) -> bool {
        let is_open = || self.pipeline.is_open() && !self.may_end_within(sink);
        let owes = || self.pays() && self.pipeline.reached().end < self.owed.until();
        let allows = match self.phase {
            Phase::Streaming => self.reading == Reading::On,
            Phase::Ending { .. } => is_open() || owes() || self.is_in_pieces(sink),
        };
        allows && !self.stops_reading
    }

    /// New routes must not apply to the rest of a transaction.
    fn may_end_within(&self, sink: &impl Sink) -> bool {
        let is_replaced = matches!(self.phase, Phase::Ending { end: End::Reconfigured, .. });
        sink.may_end_within() && !is_replaced
    }

    /// True if a transaction in parts must be complete before the routes change.
    fn is_in_pieces(&self, sink: &impl Sink) -> bool {
        let is_replaced = matches!(self.phase, Phase::Ending { end: End::Reconfigured, .. });
        is_replaced && sink.may_end_within() && self.pipeline.reached().part.is_some()
    }

    /// True while the operator pauses the session.
    pub fn is_paused(&self) -> bool {
        self.reading == Reading::Paused && self.phase == Phase::Streaming
    }

    /// True if the records of earlier sessions must be confirmed before the end. Upholds G8.
    const fn pays(&self) -> bool {
        matches!(self.phase, Phase::Ending { end: End::Drained, .. }) && !self.stops_reading
    }

    fn unconfirmed(&self) -> u64 {
        self.pipeline.in_flight().records
    }

    fn lag(&self, now: Now) -> Duration {
        self.pipeline.newest_commit_time_us().map_or(Duration::ZERO, |time_us| now.age(time_us))
    }
}
