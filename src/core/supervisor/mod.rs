//! Decides what happens between two sessions.
//!
//! Input: how each session ended ([`SessionFailure`]), what it left ([`Left`]), requests, and the
//! time. Output: [`NextAction`] and [`SessionStart`].
//!
//! Invariants:
//! * a stop is clean only if everything that any session sent is confirmed (G8);
//! * a transient failure causes a pause that grows until a session has done useful work; a definite
//!   failure ends the relay;
//! * a few ends at one unreadable message end the relay, because no pause helps;
//! * a refused login ends a first start, unless another secret may help; it ends a relay that
//!   logged in before only after the limit;
//! * after a refused record, sessions send single records or smaller batches until the faulty one
//!   is found (G4).

mod failure;
mod login_retry;
mod mode;
mod refusals;
#[cfg(test)]
mod tests;
mod unreadable;

use std::time::Duration;

use crate::backoff::Backoff;
use crate::lsn::Lsn;
use crate::mutants::{self, Mutant};
use crate::pipeline::Suspects;
use crate::session::{ControlRequest, End, Limits, Owed, Requested, TimeoutEscalation};
use crate::time::Instant;
use login_retry::LoginRetry;
use mode::RepeatedFailures;
use refusals::Refusals;
use unreadable::{SESSIONS_MAX, UnreadableMessage};

pub use failure::{Left, Peer, RefusalConsequence, RefusedBatch, SessionFailure, SinkFault};
pub use mode::{ModeKind, SessionMode, SlotPosition};

const PAUSE_TICK: Duration = Duration::from_millis(50);
const STANDBY_TICK: Duration = Duration::from_millis(200);
const HEALTHY_AFTER: Duration = Duration::from_secs(10);

/// Limits the pause to this fraction of the streaming time, for sessions that end every few
/// seconds. Pauses would otherwise grow until rows wait longer than they flow.
const PAUSE_PART: u32 = 8;

/// The operator's settings.
#[derive(Debug, Clone, Copy)]
pub struct SupervisorPolicy {
    /// Pauses after failures.
    pub backoff: Backoff,
    /// Longest time without progress; zero: no limit.
    pub give_up_after: Duration,
    /// Longest time of refused logins; zero: none.
    pub login_give_up_after: Duration,
    /// Time limit after the first request to stop.
    pub grace: Duration,
    /// Whether the relay waits for a slot that is held.
    pub wait_for_slot: bool,
    /// False for `run --dry-run`.
    pub acknowledge: bool,
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextAction {
    /// Begin a session. `Some`: a stop was requested between sessions, and at least this many
    /// records are unconfirmed.
    Begin(Option<u64>),
    /// Wait at most this long.
    Wait(Duration),
    /// Check the slot at this interval until it is free, or until a stop is requested. Then call
    /// [`Supervisor::slot_is_free`].
    Standby(Duration),
    /// The relay ends.
    End(Conclusion),
}

/// How the relay ended, if no session failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conclusion {
    /// Stopped, with everything confirmed.
    Stopped,
    /// Everything requested is delivered.
    CaughtUp,
    /// Stopped after the grace period expired.
    GraceExpired {
        /// Unconfirmed records.
        records: u64,
    },
    /// Ended at once on request.
    Aborted {
        /// Unconfirmed records.
        records: u64,
    },
}

/// The consequence of a session's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterSession {
    /// Call [`Supervisor::next`].
    GoOn,
    /// Postgres is shutting down; retry after a pause.
    ServerShutdown,
    /// Retry after a pause.
    Retry {
        /// Failures since useful work.
        failures: u32,
    },
    /// Send the refused records differently.
    SendDifferently,
    /// The relay waits for the slot.
    Standby,
    /// The slot is held by another process.
    SlotHeld,
    /// No progress for longer than allowed.
    GaveUp {
        /// Duration.
        quiet: Duration,
    },
    /// Too many sessions ended at one unreadable message of the log.
    Unreadable {
        /// Sessions, including this one.
        sessions: u32,
    },
    /// The relay ends with the session's error.
    Final,
}

/// Parameters of the next session.
#[derive(Debug, Clone)]
pub struct SessionStart {
    /// The session's limits.
    pub limits: Limits,
    /// An unusual mode.
    pub mode: Option<SessionMode>,
    /// Refused records.
    pub suspects: Suspects,
    /// Largest batch in bytes, if not as configured.
    pub batch_bytes: Option<u32>,
    /// Unconfirmed records of earlier sessions.
    pub owed: Owed,
}

#[derive(Debug, Clone, Copy)]
enum Waiting {
    Nothing,
    /// Length, and end once it has started.
    Pause(Duration, Option<Instant>),
    Standby,
    ForEver(Conclusion),
}

/// A later refusal is not a configuration mistake.
#[derive(Debug, Clone, Copy, Default)]
struct LetIn {
    /// Also true if another relay streamed.
    source: bool,
    sink: bool,
}

/// The state between sessions.
#[derive(Debug)]
pub struct Supervisor {
    policy: SupervisorPolicy,
    waiting: Waiting,
    /// Seed of the pauses, so that failed relays do not return together.
    draw: u64,
    /// Failures since useful work.
    failures: u32,
    last_progress: Instant,
    settled: Lsn,
    owed: Owed,
    /// True if the stop was requested before the last session ended, so that the pause is not cut
    /// short.
    was_told: bool,
    /// True if the stop was requested between sessions.
    settling: bool,
    has_streamed: bool,
    let_in: LetIn,
    target: Option<Lsn>,
    mode: Option<SessionMode>,
    narrowing: RepeatedFailures,
    refusals: Refusals,
    escalation: TimeoutEscalation,
    login_retry: LoginRetry,
    unreadable: UnreadableMessage,
}

impl Supervisor {
    /// Creates the supervisor of a starting relay. `draw`: a random number.
    pub fn new(policy: SupervisorPolicy, draw: u64, now: Instant) -> Self {
        Self {
            policy,
            waiting: Waiting::Nothing,
            draw,
            failures: 0,
            last_progress: now,
            settled: Lsn::ZERO,
            owed: Owed::default(),
            was_told: false,
            settling: false,
            has_streamed: false,
            let_in: LetIn::default(),
            target: None,
            mode: None,
            narrowing: RepeatedFailures::default(),
            refusals: Refusals::default(),
            escalation: TimeoutEscalation::default(),
            login_retry: LoginRetry::default(),
            unreadable: UnreadableMessage::default(),
        }
    }

    /// What to do now, while no session runs.
    pub fn next(&mut self, now: Instant, asked: Requested) -> NextAction {
        if let Waiting::ForEver(conclusion) = self.waiting {
            return NextAction::End(conclusion);
        }
        if asked.must_end(self.owed, self.policy.grace) {
            return NextAction::End(self.stopped(asked.request));
        }
        let is_told = asked.request >= ControlRequest::Drain;
        match &mut self.waiting {
            Waiting::Standby => return NextAction::Standby(STANDBY_TICK),
            Waiting::Pause(wait, began) => {
                let until = *began.get_or_insert(now + *wait);
                let goes_on = self.was_told || !is_told || mutants::is(Mutant::SleepsThroughStop);
                if now < until && goes_on {
                    return NextAction::Wait(PAUSE_TICK.min(*wait));
                }
                if now < until {
                    // Time is short.
                    self.failures = 0;
                }
                self.waiting = Waiting::Nothing;
            }
            Waiting::Nothing | Waiting::ForEver(_) => {}
        }
        let is_news = is_told && !std::mem::replace(&mut self.settling, is_told);
        NextAction::Begin(is_news.then(|| self.owed.records()))
    }

    /// The next session's parameters; `usual` are its limits unless a mode changes them.
    pub fn start(&mut self, now: Instant, usual: Limits) -> SessionStart {
        let owed = self.owed;
        let once = self.target.map(|target| (target.max(owed.until()), End::CaughtUp));
        let mode = self.mode.map(|mode| (mode.until, End::ModeOver));
        let silence = if mutants::is(Mutant::KeepsTimeout) {
            TimeoutEscalation::default().timeout(usual.heartbeat)
        } else {
            self.escalation.timeout(usual.heartbeat)
        };
        let until = [once, mode].into_iter().flatten().min_by_key(|(position, _)| *position);
        SessionStart {
            limits: Limits { silence, until, ..usual },
            mode: self.mode,
            suspects: self.refusals.suspects(),
            batch_bytes: self.refusals.batch_bytes(now),
            owed,
        }
    }

    /// Handles the end of a session, or a failed start.
    pub fn ended(
        &mut self,
        now: Instant,
        request: ControlRequest,
        left: Left,
        result: Result<End, SessionFailure<'_>>,
    ) -> (AfterSession, Option<RefusalConsequence>) {
        (self.owed, self.was_told) = (left.owed, request >= ControlRequest::Drain);
        self.has_streamed |= left.has_streamed;
        self.let_in.source |= left.has_streamed || matches!(result, Err(SessionFailure::Held));
        self.let_in.sink |= left.sink_let_in;
        self.forgive(now, left);
        let verdict = match result {
            Ok(end) => self.ended_well(end, request),
            Err(SessionFailure::Refused(refused)) => {
                let learned = self.refusals.learn(&refused, left.settled, now);
                let verdict = if learned.is_news {
                    self.waiting = Waiting::Pause(refused.analysis.wait, None);
                    AfterSession::SendDifferently
                } else {
                    self.narrow(SinkFault::Refused, left);
                    self.retry(now)
                };
                return (verdict, Some(learned));
            }
            Err(failure) => self.failed(failure, left, now),
        };
        (verdict, None)
    }

    /// Shortens the next pause after a useful session. A session that reached a new position was
    /// accepted everywhere, so its pause depends on its streaming time.
    fn forgive(&mut self, now: Instant, left: Left) {
        let is_healthy = left.useful >= HEALTHY_AFTER;
        if is_healthy || left.settled > self.settled {
            (self.login_retry, self.last_progress) = (LoginRetry::default(), now);
            let within = self.policy.backoff.failures_within(left.useful / PAUSE_PART);
            // This end counts as one more failure.
            let kept = within.map_or(self.failures, |within| within.saturating_sub(1));
            self.failures = if is_healthy { 0 } else { self.failures.min(kept) };
        }
        self.settled = self.settled.max(left.settled);
    }

    fn ended_well(&mut self, end: End, request: ControlRequest) -> AfterSession {
        match end {
            End::ModeOver => self.mode = None,
            End::Reconfigured => {}
            // A shutdown of the server has no time limit.
            End::ServerShutdown if request < ControlRequest::Drain => {
                self.pause();
                return AfterSession::ServerShutdown;
            }
            End::ServerShutdown | End::Drained => {
                self.waiting = Waiting::ForEver(self.stopped(request));
            }
            End::CaughtUp => self.waiting = Waiting::ForEver(Conclusion::CaughtUp),
        }
        AfterSession::GoOn
    }

    fn failed(&mut self, failure: SessionFailure<'_>, left: Left, now: Instant) -> AfterSession {
        match failure {
            SessionFailure::Final => return AfterSession::Final,
            // After the relay has streamed, the holder is most likely the rest of its own session.
            SessionFailure::Held if !self.policy.wait_for_slot && !self.has_streamed => {
                return AfterSession::SlotHeld;
            }
            SessionFailure::Held => {
                self.waiting = Waiting::Standby;
                return AfterSession::Standby;
            }
            SessionFailure::Barred { by, secret_can_change } => {
                let (limit, pause_max) = (self.policy.login_give_up_after, self.policy.backoff.max);
                let was_let_in = match by {
                    Peer::Source => self.let_in.source,
                    Peer::Sink => self.let_in.sink,
                };
                if !(was_let_in || secret_can_change)
                    || !self.login_retry.refused(now, limit, pause_max)
                {
                    return AfterSession::Final;
                }
                return self.pause();
            }
            SessionFailure::Unreadable(at) => {
                let sessions = self.unreadable.met(at);
                if sessions >= SESSIONS_MAX && !mutants::is(Mutant::RetriesUnreadable) {
                    return AfterSession::Unreadable { sessions };
                }
            }
            SessionFailure::Silent => self.escalation.silent(left.settled),
            SessionFailure::Sink(fault) => self.narrow(fault, left),
            SessionFailure::Refused(_) | SessionFailure::Transient => {}
        }
        self.retry(now)
    }

    fn narrow(&mut self, fault: SinkFault, left: Left) {
        self.mode = self.narrowing.after(fault, self.mode, left.settled, left.received);
        if fault.is_met_otherwise() {
            self.failures = 0;
        }
    }

    fn retry(&mut self, now: Instant) -> AfterSession {
        let (quiet, limit) = (now - self.last_progress, self.policy.give_up_after);
        if !limit.is_zero() && quiet >= limit {
            return AfterSession::GaveUp { quiet };
        }
        self.pause()
    }

    fn pause(&mut self) -> AfterSession {
        let failures = self.failures;
        self.failures = failures.saturating_add(1);
        let counted = if mutants::is(Mutant::NeverBacksOff) { 1 } else { self.failures };
        self.draw = split_mix(self.draw);
        self.waiting = Waiting::Pause(self.policy.backoff.wait(counted, self.draw), None);
        AfterSession::Retry { failures }
    }

    /// The conclusion after a signal: clean only if every record is confirmed. Upholds G8.
    fn stopped(&self, request: ControlRequest) -> Conclusion {
        let records = self.owed.records();
        match request {
            _ if self.owed.is_nothing() || mutants::is(Mutant::ForgetsOwed) => Conclusion::Stopped,
            ControlRequest::Abort => Conclusion::Aborted { records },
            _ => Conclusion::GraceExpired { records },
        }
    }

    /// Ends the wait for the slot.
    pub const fn slot_is_free(&mut self, now: Instant) {
        (self.waiting, self.last_progress) = (Waiting::Nothing, now);
    }

    /// Reports the slot's position. A long backlog selects larger batches, unless a failed session
    /// requires another mode.
    pub fn slot_reaches(&mut self, slot: Option<SlotPosition>) {
        if let Some(slot) = slot {
            self.owed = self.owed.settled(slot.confirmed);
        }
        // Without acknowledgements each mode would start over after its end.
        if self.policy.acknowledge && !self.mode.is_some_and(SessionMode::is_for_an_end) {
            self.mode = slot.and_then(SessionMode::of_backlog);
        }
    }

    /// The position set by [`Supervisor::end_at`].
    pub const fn target(&self) -> Option<Lsn> {
        self.target
    }

    /// Sets the position that `--once` must reach.
    pub const fn end_at(&mut self, target: Lsn) {
        self.target = Some(target);
    }

    /// Unconfirmed records of ended sessions.
    pub const fn owed(&self) -> Owed {
        self.owed
    }
}

const fn split_mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mixed = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}
