//! The relay: the session that ships, driven as the hot thread drives it, with a model at either end.

use std::time::Duration;

use postrider::ledger::Budget;
use postrider::lsn::Lsn;
use postrider::outbox::{MessageSpec, Outbox, OutboxSpec, TableName};
use postrider::pipeline::{
    Blame, Handled, Mark, Pipeline, PipelineError, Policy, RefusalAnalysis, RejectPolicy,
    ResumeCheck, UpdatePolicy,
};
use postrider::route::{RouteSpec, Router};
use postrider::session::{
    Audit, CoalescingProfile, End, Limits, Next, Owed, Requested, Session, SessionError,
};
use postrider::supervisor::{self, ModeKind, SessionFailure, SinkFault};
use postrider::time::Now;
use postrider::transaction::{BatchLimits, Transactional};

use crate::session::broker::{DEAD_LETTERS, Died, Producer};
use crate::session::cluster::{Cluster, TransactionalProducer};
use crate::session::judge::{Judge, Violation};
use crate::session::server::{Sent, Server};
use crate::session::sink::{Delivery, ModelSink};
use support::chance::Chance;

/// What bounds every session, but for the position to end at.
pub(crate) const LIMITS: Limits = Limits {
    status_interval: Duration::from_secs(1),
    heartbeat: Duration::from_secs(10),
    silence: Duration::from_secs(30),
    grace: Duration::from_secs(25),
    until: None,
    acknowledge: true,
};

/// How the socket is read under load.
pub(crate) const PROFILE: CoalescingProfile = CoalescingProfile {
    delay: Duration::from_micros(200),
    batch_max: Duration::from_millis(2),
    batch_bytes: 1 << 20,
};

/// A frame counts for so many bytes where only their number matters.
const FRAME_BYTES: usize = 100;

/// What ends a session.
#[derive(Debug)]
pub(crate) enum Ended {
    /// In good order.
    Well(End),
    /// By a failure.
    Badly(SessionFailure<'static>),
    /// By a record that was refused; with what is known of it.
    Refused(Box<RefusalAnalysis>, Box<Blame>),
    /// The product is wrong.
    Violation(Violation),
}

/// One session.
pub(crate) struct Relay {
    pub(crate) session: Session,
    pub(crate) sink: ModelSink,
    budget: Budget,
    told: u64,
    /// Where the message is that cannot be read: the session ends for it.
    unreadable: Option<Lsn>,
}

/// One of two configurations between which a reload changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Routes {
    #[default]
    First,
    Second,
}

impl Routes {
    pub(crate) const ALL: [Self; 2] = [Self::First, Self::Second];

    pub(crate) const fn others(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }

    /// What stands before the kind of a row in the name of its topic.
    pub(crate) const fn prefix(self) -> &'static str {
        match self {
            Self::First => "outbox.event.",
            Self::Second => "rerouted.event.",
        }
    }
}

/// Compiled once: compiling a route costs more than a whole simulated run.
#[derive(Clone)]
pub(crate) struct Plan {
    spec: OutboxSpec,
    routers: [Router; 2],
}

/// What a session begins with.
pub(crate) struct Start<'a> {
    pub(crate) budget: Budget,
    pub(crate) queue: usize,
    /// As the supervisor wants it.
    pub(crate) wanted: supervisor::SessionStart,
    /// Where records are delivered exactly once.
    pub(crate) cluster: Option<&'a mut Cluster>,
    pub(crate) batch: BatchLimits,
    pub(crate) routes: Routes,
}

impl Plan {
    pub(crate) fn new() -> Self {
        let messages = MessageSpec { prefixes: vec!["outbox".to_owned()], null_is_missing: false };
        let tables = vec![TableName::new("public", "outbox")];
        let mut spec = OutboxSpec::new(tables).with_messages(messages);
        let routers = Routes::ALL.map(|routes| {
            let route = RouteSpec {
                by: "aggregate_type".to_owned(),
                topic: format!("{}${{routedByValue}}", routes.prefix()),
                ..RouteSpec::default()
            };
            Router::compile(&route, &mut spec).unwrap()
        });
        Self { spec, routers }
    }

    /// A session's own.
    pub(crate) fn pipeline(&self, rejected: RejectPolicy, budget: Budget) -> Pipeline {
        self.pipeline_by(Routes::First, rejected, budget)
    }

    fn pipeline_by(&self, routes: Routes, rejected: RejectPolicy, budget: Budget) -> Pipeline {
        let policy = Policy { rejected, on_update: UpdatePolicy::Ignore };
        let [first, second] = &self.routers;
        let chosen = if routes == Routes::First { first } else { second };
        Pipeline::new(Outbox::new(self.spec.clone()), chosen.clone(), policy, budget)
    }
}

impl Relay {
    /// The slot is ours, and at `confirmed`.
    pub(crate) fn start(plan: &Plan, start: Start<'_>, confirmed: u64, now: Now) -> Self {
        let supervisor::SessionStart { limits, mode, suspects, mut owed, .. } = start.wanted;
        // What the modes come to in the producer's settings.
        let (mut budget, mut queue) = (start.budget, start.queue);
        match mode.map(|mode| mode.kind) {
            Some(ModeKind::Small) => budget.bytes = budget.bytes.min(SMALL_BYTES),
            Some(ModeKind::Cautious) => queue = 1,
            Some(ModeKind::Backlog) | None => {}
        }
        let rejected = RejectPolicy::DeadLetter { topic: DEAD_LETTERS.to_owned() };
        let mut pipeline = plan.pipeline_by(start.routes, rejected, budget);
        let delivery = match start.cluster {
            None => Delivery::AtLeastOnce(Box::new(Producer::new(queue))),
            Some(cluster) => {
                let (epoch, progress) = cluster.fence();
                // What is in no committed transaction is a row of the slot like any other.
                owed = Owed::default();
                let confirmed = Lsn::new(confirmed);
                // Postgres is told no more than progress covers, and progress says how much that is.
                let mark = progress.unwrap_or_default().max(Mark::at(confirmed));
                pipeline.resume_at(mark, ResumeCheck::new(mark, confirmed, true));
                let client = TransactionalProducer::new(epoch, queue);
                let linger = Duration::from_millis(5);
                let machine = Transactional::new(client, start.batch, linger, mark, now.at);
                Delivery::ExactlyOnce(Box::new(machine))
            }
        };
        pipeline.set_suspects(suspects);
        let session = Session::new(pipeline, limits, PROFILE, owed, now.at);
        let sink = ModelSink { delivery, taken: Vec::new() };
        Self { session, sink, budget, told: 0, unreadable: None }
    }

    /// One turn of the loop. Returns whether it read the socket: while there is no room it does not.
    pub(crate) fn turn(
        &mut self,
        now: Now,
        asked: Requested,
        (server, judge): (&mut Server, &Judge),
        chance: &mut Chance,
    ) -> Result<bool, Ended> {
        let result = self.session.request(now, asked);
        result.map_err(|error| self.failed(error))?;
        let taken = self.forward(now, server, chance)?;
        if taken > 0 && asked.is_paused && self.session.is_paused() {
            return Err(violation("pause", &format!("{taken} frames were taken")));
        }
        let mut confirmed = self.session.confirm(now, &mut self.sink);
        if confirmed.is_ok() {
            confirmed = self.session.advance(now, &mut self.sink);
        }
        if self.session.drain_audit().any(|audit| matches!(audit, Audit::Skipped(_))) {
            return Err(violation("G4", "a record was skipped"));
        }
        confirmed.map_err(|error| self.failed(error))?;
        if let Some(status) = self.session.status_due(now, &self.sink) {
            self.tell(status.settled.get(), (server, judge))?;
            server.hear(now.at, status.settled.get(), status.ask_reply);
        }
        if let Some(end) =
            self.session.ended(now, &self.sink).map_err(|error| self.failed(error))?
        {
            return Err(match self.unreadable {
                Some(at) => Ended::Badly(SessionFailure::Unreadable(at)),
                None => Ended::Well(end),
            });
        }
        let takes_frames = self.session.takes_frames(&self.sink);
        let can_go_on =
            matches!(server.peek(), Some(sent) if !matches!(sent, Sent::End)) && takes_frames;
        match self
            .session
            .next(&self.sink, || look(server, takes_frames).map(|sent| sent.is_some()))?
        {
            Next::Wait(_) => Ok(false),
            // The read meets what has come, and that may be the end.
            Next::Refill(_) => look(server, true).map(|_| false),
            Next::Read(wait) if can_go_on && wait > Duration::ZERO => {
                Err(violation("latency", "a frame that may be taken waits for another one"))
            }
            Next::Read(wait) => {
                let bytes = server.arrived() * FRAME_BYTES;
                let waited = if bytes > 0 { Duration::ZERO } else { wait };
                let later = Now { at: now.at + waited, ..now };
                let buffered = server.backlog() * FRAME_BYTES;
                let read = self.session.has_read(later, bytes, buffered);
                read.map_err(|error| self.failed(error))?;
                Ok(true)
            }
        }
    }

    /// Some of the frames that have come; how many were taken.
    fn forward(
        &mut self,
        now: Now,
        server: &mut Server,
        chance: &mut Chance,
    ) -> Result<usize, Ended> {
        let mut taken = 0;
        for _ in 0..chance.between(1, 6) {
            if !self.session.takes_frames(&self.sink) {
                break;
            }
            let Some(sent) = look(server, true)? else { break };
            let handled = self.session.frame(now.at, sent.as_frame(), &mut self.sink);
            if let (Err(SessionError::Pipeline(error)), Sent::Unreadable(at)) = (&handled, sent)
                && error.is_of_a_message()
            {
                self.unreadable = Some(Lsn::new(*at));
                self.session.stop_reading(End::Drained, now);
                break;
            }
            match handled.map_err(|error| self.failed(error))? {
                Handled::Done | Handled::DeadLetter(_) => {
                    server.consume();
                    taken += 1;
                }
                Handled::Full => break,
                Handled::Skipped(_) => return Err(violation("G4", "a row was skipped")),
            }
        }
        Ok(taken)
    }

    /// Postgres is told a position.
    fn tell(&mut self, settled: u64, (server, judge): (&Server, &Judge)) -> Result<(), Ended> {
        if settled < self.told {
            return Err(violation("G1", &format!("{settled} told after {}", self.told)));
        }
        self.told = settled;
        judge.acknowledged(settled, &server.history).map_err(Ended::Violation)
    }

    fn failed(&self, error: SessionError<Died>) -> Ended {
        match error {
            SessionError::Sink(Died::Refused(blame)) => {
                match self.session.pipeline().analyse_refusals(&[(*blame).clone()], None) {
                    Ok(analysis) => Ended::Refused(Box::new(analysis), blame),
                    Err(error) => violation("error", &error.to_string()),
                }
            }
            SessionError::Sink(Died::Fatally) => {
                Ended::Badly(SessionFailure::Sink(SinkFault::Fatal))
            }
            SessionError::Silent { .. } => Ended::Badly(SessionFailure::Silent),
            // A grace is over only where the brokers make no progress.
            SessionError::GraceExpired { .. } | SessionError::Aborted { .. } => {
                Ended::Badly(SessionFailure::Final)
            }
            // No peer breaks its protocol here, so the pipeline has nothing to complain about.
            SessionError::Pipeline(error) => violation("error", &complaint(&error)),
        }
    }

    /// G3: what is in flight, by our books and by the producer's.
    pub(crate) fn within_budget(&self) -> Result<(), Violation> {
        let books = self.session.pipeline().in_flight();
        // Soft by one record: see `Budget`.
        let bytes_max = self.budget.bytes + RECORD_BYTES_MAX;
        let is_over = books.records > self.budget.records
            || books.bytes >= bytes_max
            || books.transactions > self.budget.transactions;
        if is_over { Err(Violation::new("G3", format!("{books:?} in flight"))) } else { Ok(()) }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.session.pipeline().is_idle()
    }

    /// Whether the session may have left a transaction that is stored in part.
    pub(crate) fn is_within(&self) -> bool {
        let pipeline = self.session.pipeline();
        let is_whole = pipeline.may_end_here() && pipeline.reached().part.is_none();
        !(is_whole && pipeline.is_idle())
    }
}

/// The next frame, where one is wanted; what ends the stream is not to be met otherwise.
fn look(server: &Server, is_wanted: bool) -> Result<Option<&Sent>, Ended> {
    match server.peek() {
        Some(Sent::End) if is_wanted => Err(Ended::Badly(SessionFailure::Transient)),
        Some(Sent::End) => {
            Err(violation("G8", "the stream's end is met before what was sent is confirmed"))
        }
        sent => Ok(sent),
    }
}

/// What a session may have under way after one whose records were late.
const SMALL_BYTES: u64 = 500;

/// No record of the simulation weighs more, dead letters included.
const RECORD_BYTES_MAX: u64 = 600;

fn complaint(error: &PipelineError) -> String {
    format!("the pipeline complains: {error}")
}

fn violation(guarantee: &'static str, what: &str) -> Ended {
    Ended::Violation(Violation::new(guarantee, what))
}
