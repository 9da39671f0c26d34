//! Decides what happens between two sessions: whether the next one starts, when, and in which mode.
//!
//! Input: how each session ended ([`SessionFailure`]), what it left ([`Left`]), the slot's position,
//! requests from outside, and the time. Output: what to do next ([`NextAction`]), and the parameters of the
//! next session ([`SessionStart`]). [`SupervisorPolicy`] holds the limits. No I/O and no clock, so that a
//! relay's whole life is simulated by seeds in virtual time.
//!
//! Invariants:
//! * a stop is clean only when everything that any session sent is confirmed (G8);
//! * a transient failure causes a pause that grows until a session has done useful work; a definite one
//!   ends the relay;
//! * sessions that end at the same message of the log, since it cannot be read, end the relay after a few: no pause helps;
//! * a relay that was let in before is not ended by a refusal at connect until refusals have lasted for the
//!   limit; a first start is, unless another secret may help;
//! * a session that would end like the last one because of a refused record is not started again unchanged:
//!   records are sent alone, or in smaller batches, until the one at fault is found (G4);
//! * a slot that another process holds is waited for, if so configured.
//!
//! ```text
//!   loop {
//!       match supervisor.next(now, ..) {
//!           NextAction::Begin(_) => run a session with supervisor.start(now, ..),
//!                             and tell supervisor.ended(now, ..)
//!           NextAction::Wait(time) => wait
//!           NextAction::Standby(every) => look at the slot that often, then supervisor.slot_is_free(now)
//!           NextAction::End(conclusion) => leave the loop
//!       }
//!   }
//! ```

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

/// How soon a pause notices a request to stop.
const PAUSE_TICK: Duration = Duration::from_millis(50);
/// How often a standby looks whether the slot is free: fast enough to take over well within a second.
const STANDBY_TICK: Duration = Duration::from_millis(200);
/// A session that streamed this long was healthy.
const HEALTHY_AFTER: Duration = Duration::from_secs(10);

/// The pause after a session that got further is no longer than this part of the time for which it streamed: where sessions
/// are ended every few seconds, pauses do not grow until rows wait for longer than they flow.
const PAUSE_PART: u32 = 8;

/// What the operator wants.
#[derive(Debug, Clone, Copy)]
pub struct SupervisorPolicy {
    /// Pauses after sessions that failed.
    pub backoff: Backoff,
    /// Time without progress after which the relay gives up; zero: never.
    pub give_up_after: Duration,
    /// Time for which connections that are refused are tried again; zero: the first refusal ends the relay.
    pub login_give_up_after: Duration,
    /// How long what was sent may take to be confirmed, from the first request to stop.
    pub grace: Duration,
    /// Whether a slot that another process holds is waited for.
    pub wait_for_slot: bool,
    /// Whether positions are acknowledged at all (`run --dry-run` does not).
    pub acknowledge: bool,
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextAction {
    /// Begin a session. `Some`, once: a request to stop came while no session ran, and at least so many
    /// records are unconfirmed.
    Begin(Option<u64>),
    /// Wait so long at most, then ask again.
    Wait(Duration),
    /// Look at the slot that often until nobody holds it, or until told to stop; then say
    /// [`Supervisor::slot_is_free`].
    Standby(Duration),
    /// There is nothing more to do.
    End(Conclusion),
}

/// How the relay ended without a failure of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conclusion {
    /// It was told to, and everything is confirmed.
    Stopped,
    /// Everything is delivered that was asked for.
    CaughtUp,
    /// It was told to, and had no more time.
    GraceExpired {
        /// Unconfirmed.
        records: u64,
    },
    /// It was told to end at once.
    Aborted {
        /// Unconfirmed.
        records: u64,
    },
}

/// What the end of a session comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterSession {
    /// It ended in good order: [`Supervisor::next`] says how to go on.
    GoOn,
    /// Postgres is shutting down. Another session begins after a pause.
    ServerShutdown,
    /// Another session begins after a pause.
    Retry {
        /// Sessions that failed before this one, since one did useful work.
        failures: u32,
    },
    /// Another session sends what was refused in another way.
    SendDifferently,
    /// The slot is waited for.
    Standby,
    /// The slot is held, and not waited for.
    SlotHeld,
    /// There was no progress for longer than allowed.
    GaveUp {
        /// How long.
        quiet: Duration,
    },
    /// So many sessions ended at the same message of the log: the relay ends with it.
    Unreadable {
        /// How many, this one included.
        sessions: u32,
    },
    /// The relay ends with it.
    Final,
}

/// What a session begins with.
#[derive(Debug, Clone)]
pub struct SessionStart {
    /// What bounds it.
    pub limits: Limits,
    /// How it differs from the usual, if it does.
    pub mode: Option<SessionMode>,
    /// Records that the brokers refused.
    pub suspects: Suspects,
    /// The largest batch in bytes, where it is not as configured.
    pub batch_bytes: Option<u32>,
    /// What earlier sessions left unconfirmed.
    pub owed: Owed,
}

/// What stands between the relay and its next session.
#[derive(Debug, Clone, Copy)]
enum Waiting {
    Nothing,
    /// So long; once it has begun, until then.
    Pause(Duration, Option<Instant>),
    Standby,
    ForEver(Conclusion),
}

/// Who has let the relay in: a refusal of theirs is not for a mistake in its configuration.
#[derive(Debug, Clone, Copy, Default)]
struct LetIn {
    /// It has streamed, or seen another relay stream.
    source: bool,
    sink: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Supervisor {
    policy: SupervisorPolicy,
    waiting: Waiting,
    /// For pauses: those who failed together do not come back together.
    draw: u64,
    /// Sessions that failed since one did useful work.
    failures: u32,
    last_progress: Instant,
    /// How far any session got.
    settled: Lsn,
    /// What sessions left unconfirmed.
    owed: Owed,
    /// It was told to stop before the last session ended: a pause that follows is not cut short.
    was_told: bool,
    /// It was told to stop between two sessions, and goes on for what is owed.
    settling: bool,
    has_streamed: bool,
    let_in: LetIn,
    /// What `--once` has to reach; fixed when the relay first reaches Postgres.
    target: Option<Lsn>,
    /// The way of sending that holds up to a position, if it is not the usual one.
    mode: Option<SessionMode>,
    /// How often sessions ended where the last one did.
    narrowing: RepeatedFailures,
    /// What the brokers refused, and with it a session.
    refusals: Refusals,
    /// How long the server may be silent.
    escalation: TimeoutEscalation,
    /// How long connections have been refused.
    login_retry: LoginRetry,
    /// The message of the log that ended the last session that could not read on.
    unreadable: UnreadableMessage,
}

impl Supervisor {
    /// A relay that begins now. Its pauses go by `draw`, a number that no other relay has.
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
                    // There is something to confirm, and little time.
                    self.failures = 0;
                }
                self.waiting = Waiting::Nothing;
            }
            Waiting::Nothing | Waiting::ForEver(_) => {}
        }
        let is_news = is_told && !std::mem::replace(&mut self.settling, is_told);
        NextAction::Begin(is_news.then(|| self.owed.records()))
    }

    /// What the session that begins now is to do, where the limits are usually these.
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

    /// A session has ended, or did not begin.
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

    /// A session that did its work for a while is forgiven its end: the next pause is short again. One that got further than
    /// any before was let in everywhere, and its pause goes by the time for which it streamed.
    fn forgive(&mut self, now: Instant, left: Left) {
        let is_healthy = left.useful >= HEALTHY_AFTER;
        if is_healthy || left.settled > self.settled {
            (self.login_retry, self.last_progress) = (LoginRetry::default(), now);
            let within = self.policy.backoff.failures_within(left.useful / PAUSE_PART);
            // The end itself counts as one more.
            let kept = within.map_or(self.failures, |within| within.saturating_sub(1));
            self.failures = if is_healthy { 0 } else { self.failures.min(kept) };
        }
        self.settled = self.settled.max(left.settled);
    }

    fn ended_well(&mut self, end: End, request: ControlRequest) -> AfterSession {
        match end {
            End::ModeOver => self.mode = None,
            End::Reconfigured => {}
            // A server that is shutting down takes as long as it likes.
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
            // Once it has streamed, what holds the slot is most likely what is left of its own session.
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

    /// Makes the next session send in another way, where it would end like this one.
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

    /// Waits before the next session, longer each time.
    fn pause(&mut self) -> AfterSession {
        let failures = self.failures;
        self.failures = failures.saturating_add(1);
        let counted = if mutants::is(Mutant::NeverBacksOff) { 1 } else { self.failures };
        self.draw = split_mix(self.draw);
        self.waiting = Waiting::Pause(self.policy.backoff.wait(counted, self.draw), None);
        AfterSession::Retry { failures }
    }

    /// The end that a signal asked for: a clean one only when every record is confirmed that any
    /// session has sent. Upholds G8.
    fn stopped(&self, request: ControlRequest) -> Conclusion {
        let records = self.owed.records();
        match request {
            _ if self.owed.is_nothing() || mutants::is(Mutant::ForgetsOwed) => Conclusion::Stopped,
            ControlRequest::Abort => Conclusion::Aborted { records },
            _ => Conclusion::GraceExpired { records },
        }
    }

    /// The slot is waited for no longer.
    pub const fn slot_is_free(&mut self, now: Instant) {
        (self.waiting, self.last_progress) = (Waiting::Nothing, now);
    }

    /// Where the slot stands, if it exists. The next session sends a long backlog in larger batches, unless a failed
    /// session asked for another mode.
    pub fn slot_reaches(&mut self, slot: Option<SlotPosition>) {
        if let Some(slot) = slot {
            self.owed = self.owed.settled(slot.confirmed);
        }
        // What acknowledges nothing would begin anew behind every mode.
        if self.policy.acknowledge && !self.mode.is_some_and(SessionMode::is_for_an_end) {
            self.mode = slot.and_then(SessionMode::of_backlog);
        }
    }

    /// The position that `--once` has to reach, if it is known.
    pub const fn target(&self) -> Option<Lsn> {
        self.target
    }

    /// The position after which the relay ends.
    pub const fn end_at(&mut self, target: Lsn) {
        self.target = Some(target);
    }

    /// What sessions that have ended left unconfirmed.
    pub const fn owed(&self) -> Owed {
        self.owed
    }
}

/// The next of a sequence of numbers (SplitMix64).
const fn split_mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mixed = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}
