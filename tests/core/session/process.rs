//! What the relay knows from one session to the next, until it is killed: the supervisor that ships, and
//! what the world needs to judge it.

use std::time::Duration;

use postrider::backoff::Backoff;
use postrider::session::{ControlRequest, Requested};
use postrider::supervisor::{Left, NextAction, Supervisor, SupervisorPolicy};
use postrider::time::{Instant, Now};

use crate::session::judge::Violation;
use crate::session::relay::{LIMITS, Routes};

const POLICY: SupervisorPolicy = SupervisorPolicy {
    backoff: Backoff { first: Duration::from_millis(100), max: Duration::from_secs(3) },
    give_up_after: Duration::from_mins(10),
    login_give_up_after: Duration::from_mins(1),
    grace: LIMITS.grace,
    wait_for_slot: true,
    acknowledge: true,
};

/// Sessions that may fail at once while pauses are still short.
const BRISK_MAX: u32 = 10;
/// A session that lasts so long has done something.
const USEFUL: Duration = Duration::from_secs(10);

pub(crate) struct Process {
    pub(crate) supervisor: Supervisor,
    /// Told to end since then.
    pub(crate) told: Option<Now>,
    pub(crate) server_stops: bool,
    /// Nothing is to be read until further notice.
    pub(crate) is_paused: bool,
    /// The routes of the sessions, and those that they are to have.
    pub(crate) routes: (Routes, Routes),
    /// What the last session left.
    pub(crate) left: Left,
    /// When the session that runs has begun.
    began: Option<Instant>,
    /// Attempts in a row that got no stream, and since when.
    in_vain: Option<(u32, Instant)>,
    /// When the last session ended.
    ended: Instant,
    /// When something was last delivered, or another relay had the slot.
    progress: Instant,
}

impl Process {
    /// A relay is started.
    pub(crate) fn new(draw: u64, now: Instant) -> Self {
        Self {
            supervisor: Supervisor::new(POLICY, draw, now),
            told: None,
            server_stops: false,
            is_paused: false,
            routes: (Routes::default(), Routes::default()),
            left: Left::default(),
            began: None,
            in_vain: None,
            ended: now,
            progress: now,
        }
    }

    /// What is asked from outside.
    pub(crate) fn asked(&self, now: Now) -> Requested {
        let (in_effect, wanted) = self.routes;
        let request = match (self.told, self.server_stops) {
            (Some(_), _) => ControlRequest::Drain,
            (None, true) => ControlRequest::ServerShutdown,
            (None, false) if in_effect != wanted => ControlRequest::Reconfigure,
            (None, false) => ControlRequest::Run,
        };
        let told_for = self.told.map_or(Duration::ZERO, |told| now.at - told.at);
        let (server_stops, is_paused) = (self.server_stops, self.is_paused);
        Requested { request, server_stops, told_for, is_paused }
    }

    /// What to do while no session runs.
    pub(crate) fn next(&mut self, now: Now) -> Result<NextAction, Violation> {
        let asked = self.asked(now);
        let next = self.supervisor.next(now.at, asked);
        let is_late = self.told.is_some_and(|told| told.at > self.ended);
        if matches!(next, NextAction::Wait(_)) && is_late {
            return Err(Violation::new(
                "G8",
                "told to end, and sleeps while records are unconfirmed",
            ));
        }
        Ok(next)
    }

    /// A stream is asked for.
    pub(crate) fn attempts(&mut self, now: Instant) -> Result<(), Violation> {
        let (attempts, since) =
            self.in_vain.map_or((1, now), |(before, since)| (before + 1, since));
        self.in_vain = Some((attempts, since));
        let seconds = (now - since).as_secs();
        if u64::from(attempts.saturating_sub(BRISK_MAX)) > seconds {
            let what = format!("{attempts} attempts within {seconds} s");
            return Err(Violation::new("pace", what));
        }
        Ok(())
    }

    /// There is a stream.
    pub(crate) fn streams(&mut self, now: Instant) {
        (self.began, self.in_vain) = (Some(now), None);
    }

    /// Another relay, or what is left of an earlier session, has let go of the slot.
    pub(crate) fn slot_is_free(&mut self, now: Instant) {
        self.supervisor.slot_is_free(now);
        (self.progress, self.in_vain) = (now, None);
    }

    /// A session has ended. How long it has streamed.
    pub(crate) fn has_ended(&mut self, now: Instant) -> Duration {
        self.ended = now;
        let streamed = self.began.take().map_or(Duration::ZERO, |began| now - began);
        if streamed >= USEFUL {
            self.progress = now;
        }
        streamed
    }

    /// The relay gave up.
    pub(crate) fn gave_up(&self, now: Instant) -> Result<(), Violation> {
        if now - self.progress < POLICY.give_up_after {
            return Err(Violation::new("patience", "gave up too early"));
        }
        Ok(())
    }
}
