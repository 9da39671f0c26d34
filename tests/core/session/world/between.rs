//! What happens at the end of a session and until the next one, as the supervisor that ships decides it.

use std::time::Duration;

use postrider::lsn::Lsn;
use postrider::session::End;
use postrider::supervisor::{
    AfterSession, Conclusion, Left, NextAction, RefusedBatch, SessionFailure, SlotPosition,
};

use super::{Ghost, QUEUE_UNLIMITED, World};
use crate::session::judge::Violation;
use crate::session::process::Process;
use crate::session::relay::{Ended, LIMITS, Relay, Start};
use crate::session::sink::Delivery;

impl World<'_> {
    pub(super) fn ended_well(&mut self, end: End) -> Result<(), Violation> {
        // A server that hangs or is gone does not confirm the end of the stream.
        let is_confirmed = self.server.frozen.is_none() && !self.server.has_ended();
        if let Some(target) = self.process.supervisor.target().filter(|_| end == End::CaughtUp)
            && is_confirmed
            && Lsn::new(self.server.confirmed) < target
        {
            return Err(Violation::new("G8", "caught up before its target"));
        }
        if end == End::ServerShutdown {
            self.server.checkpoint();
        }
        if !is_confirmed && end != End::ServerShutdown {
            return self.end_session(Ended::Badly(SessionFailure::Transient));
        }
        self.end_session(Ended::Well(end))?;
        let owed = self.process.supervisor.owed();
        if is_confirmed && end >= End::Drained && !owed.is_nothing() {
            return Err(Violation::new("G8", format!("{end:?} with {owed:?}")));
        }
        Ok(())
    }

    /// The relay ends in good order.
    fn process_ends(&mut self) -> Result<(), Violation> {
        self.judge.examine(&self.server.history)?;
        self.judge.ended_well(self.server.confirmed, &self.server.history)?;
        self.tally.drained += 1;
        self.new_process();
        Ok(())
    }

    /// It begins with the routes that were in effect: another file under it is another history.
    fn new_process(&mut self) {
        let (in_effect, _) = self.process.routes;
        self.process = Process::new(self.chance.between(0, u64::MAX - 1), self.now.at);
        self.process.routes = (in_effect, in_effect);
    }

    /// New routes, unless a transaction would be delivered half by the old ones.
    fn take_routes(&mut self) {
        let (in_effect, wanted) = self.process.routes;
        if in_effect != wanted && !(self.cluster.is_some() && self.ended_within) {
            self.process.routes = (wanted, wanted);
            self.tally.reloads += 1;
        }
    }

    /// What the supervisor does while no session runs.
    pub(super) fn between_sessions(&mut self) -> Result<(), Violation> {
        match self.process.next(self.now)? {
            NextAction::Begin(_) => {
                self.take_routes();
                self.start_session()
            }
            NextAction::End(Conclusion::Stopped | Conclusion::CaughtUp) => self.process_ends(),
            NextAction::End(Conclusion::GraceExpired { .. } | Conclusion::Aborted { .. }) => {
                // It ends, and says that something is unconfirmed.
                self.kill();
                Ok(())
            }
            NextAction::Wait(tick) => {
                self.advance(tick);
                // Nothing else happens until the end of the pause, or something does.
                while self.chance.percent(95)
                    && let NextAction::Wait(tick) = self.process.next(self.now)?
                {
                    self.advance(tick);
                }
                Ok(())
            }
            NextAction::Standby(every) => {
                self.advance(every);
                if self.now.at >= self.server.held_until {
                    self.process.slot_is_free(self.now.at);
                }
                self.process.supervisor.slot_reaches(Some(self.slot_position()));
                Ok(())
            }
        }
    }

    const fn slot_position(&self) -> SlotPosition {
        let confirmed = Lsn::new(self.server.confirmed);
        SlotPosition { restart: confirmed, confirmed, log_end: Lsn::new(self.server.history.end) }
    }

    fn start_session(&mut self) -> Result<(), Violation> {
        self.process.server_stops = false;
        self.process.attempts(self.now.at)?;
        if self.now.at < self.server.away_until {
            return self.end_session(Ended::Badly(SessionFailure::Transient));
        }
        let slot = self.slot_position();
        self.process.supervisor.slot_reaches(Some(slot));
        let asked = self.process.asked(self.now);
        if asked.must_end(self.process.supervisor.owed(), LIMITS.grace) {
            return self.end_session(Ended::Well(End::Drained));
        }
        if self.now.at < self.server.held_until {
            return self.end_session(Ended::Badly(SessionFailure::Held));
        }
        if self.cluster.is_some() {
            // What is in no committed transaction is a row of the slot like any other.
            self.judge.forget();
        }
        if self.process.supervisor.target().is_none() && self.chance.percent(10) {
            self.process.supervisor.end_at(slot.log_end);
        }
        let start = Start {
            budget: self.budget,
            queue: if self.chance.percent(50) { QUEUE_UNLIMITED } else { 4 },
            wanted: self.process.supervisor.start(self.now.at, LIMITS),
            cluster: self.cluster.as_mut(),
            batch: self.batch,
            routes: self.process.routes.0,
        };
        self.server.connect(self.now.at);
        self.relay = Some(Relay::start(self.plan, start, self.server.confirmed, self.now));
        self.process.streams(self.now.at);
        self.tally.sessions += 1;
        Ok(())
    }

    /// The connection breaks, if there is one.
    pub(super) fn break_off(&mut self) -> Result<(), Violation> {
        if self.relay.is_none() {
            return Ok(());
        }
        self.end_session(Ended::Badly(SessionFailure::Transient))
    }

    /// A session has ended like this, or did not begin.
    pub(super) fn end_session(&mut self, ended: Ended) -> Result<(), Violation> {
        let mut left = self.drop_session();
        let (now, request) = (self.now.at, self.process.asked(self.now).request);
        let supervisor = &mut self.process.supervisor;
        let (verdict, _) = match ended {
            Ended::Well(end) => {
                // The server has said goodbye.
                left.owed = left.owed.settled(left.settled.min(Lsn::new(self.server.confirmed)));
                supervisor.ended(now, request, left, Ok(end))
            }
            Ended::Badly(failure) => supervisor.ended(now, request, left, Err(failure)),
            Ended::Refused(analysis, blame) => {
                let records = std::slice::from_ref(&*blame);
                let refused = RefusedBatch { analysis: &analysis, records, batch_bytes: None };
                supervisor.ended(now, request, left, Err(SessionFailure::Refused(refused)))
            }
            Ended::Violation(violation) => return Err(violation),
        };
        match verdict {
            AfterSession::Final => self.kill(),
            AfterSession::Unreadable { .. } => self.has_stopped_reading = true,
            AfterSession::GaveUp { .. } => {
                self.process.gave_up(now)?;
                self.kill();
            }
            _ => {}
        }
        Ok(())
    }

    /// The session is gone; what the brokers have not appended is lost, or still under way. What it leaves.
    fn drop_session(&mut self) -> Left {
        self.server.disconnect();
        self.hangs_since = None;
        let useful = self.process.has_ended(self.now.at);
        let owed = self.process.supervisor.owed();
        let Some(relay) = self.relay.take() else { return Left { owed, ..self.process.left } };
        self.ended_within = relay.is_within();
        let pipeline = relay.session.pipeline();
        let (settled, received) = (pipeline.settled(), pipeline.reached().end);
        let owed = relay.session.leaves(&relay.sink);
        let left = Left { owed, settled, received, useful, has_streamed: true, sink_let_in: true };
        self.process.left = Left { useful: Duration::ZERO, ..left };
        self.ghosts.push(match relay.sink.delivery {
            Delivery::AtLeastOnce(producer) => Ghost::Idempotent(*producer),
            Delivery::ExactlyOnce(mut machine) => {
                Ghost::Transactional(std::mem::take(machine.client_mut()))
            }
        });
        if self.chance.percent(50) {
            self.ghosts.pop();
        }
        left
    }

    /// kill -9 of the relay.
    pub(super) fn kill(&mut self) {
        self.drop_session();
        self.new_process();
        self.judge.forget();
    }
}
