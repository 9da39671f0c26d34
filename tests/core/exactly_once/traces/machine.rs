//! One session of the code that ships, between the wire and the client library.
//!
//! Input: where progress and the slot stand, through the gate; frames; the time. Output: the orders of the
//! machine, and what it says of itself as the model would ([`Machine::view`]). Invariant: it is
//! driven as the relay's thread drives it.

use std::collections::VecDeque;
use std::time::Duration;

use postrider::gate::{self, Facts};
use postrider::ledger::{Budget, Ticket};
use postrider::pipeline::{Handled, Mark, RejectPolicy};
use postrider::progress::{Lineage, Progress};
use postrider::session::{ControlRequest, Limits, Owed, Requested, Session, SessionError};
use postrider::sink::Sink as _;
use postrider::time::Now;
use postrider::transaction::{BatchLimits, TransactionState, Transactional};

use super::library::{Gone, Library, Order};
use super::wire::{self, Sent};
use crate::exactly_once::state::{BATCH, Stage};
use crate::exactly_once::stream::Place;
use crate::session::{self, PROFILE, Plan};

/// As in the simulation, but for how often Postgres is told.
const LIMITS: Limits = Limits { status_interval: Duration::from_millis(300), ..session::LIMITS };

/// So many records are under way at most: this is what keeps a Kafka transaction as small as the model's.
const BUDGET: Budget = Budget { records: BATCH as u64, bytes: 1 << 20, transactions: 10 };

/// Any number will do.
const FRAME_BYTES: usize = 100;

/// What a session begins with.
pub struct Start {
    pub confirmed: u8,
    pub progress: Mark,
    pub batch: BatchLimits,
    pub frames: VecDeque<Sent>,
    pub now: Now,
}

/// What a machine says of itself, in the model's words.
#[derive(Debug, PartialEq)]
pub struct View {
    pub stage: Stage,
    /// `None`: no place of the stream.
    pub done: Option<Place>,
    pub reached: Option<Place>,
    pub unconfirmed: u64,
}

/// See the module.
pub struct Machine {
    pub session: Session,
    pub sink: Transactional<Library>,
    pub frames: VecDeque<Sent>,
    /// The mark that the last commit kept, and the one that the open transaction ends at.
    pub kept: Mark,
    pub closes_at: Mark,
    /// Orders that the coordinator does not take yet.
    pub waiting: VecDeque<Order>,
    /// Of records that were announced and not reported, by partition.
    pub tickets: [VecDeque<Ticket>; 3],
    pub request: ControlRequest,
}

impl Machine {
    pub fn start(plan: &Plan, start: Start) -> Result<Self, String> {
        let mut pipeline = plan.pipeline(RejectPolicy::Stop, BUDGET);
        let facts = Facts {
            server: wire::log_end(start.now),
            confirmed: wire::end_lsn(start.confirmed),
            exactly_once: true,
            ..Facts::default()
        };
        let found = Progress { lineage: Lineage::default(), mark: start.progress, backfill: None };
        let resume = gate::judge(&facts, Some(&found)).map_err(|error| error.to_string())?;
        let (library, now) = (Library::default(), start.now.at);
        let linger = Duration::from_millis(5);
        let mut sink = Transactional::new(library, start.batch, linger, found.mark, now);
        pipeline.resume_at(resume.mark, resume.check);
        sink.begin_at(resume.mark);
        let session = Session::new(pipeline, LIMITS, PROFILE, Owed::default(), now);
        Ok(Self {
            session,
            sink,
            frames: start.frames,
            kept: resume.mark,
            closes_at: resume.mark,
            waiting: VecDeque::new(),
            tickets: Default::default(),
            request: ControlRequest::Run,
        })
    }

    pub fn library(&mut self) -> &mut Library {
        self.sink.client_mut()
    }

    pub fn asked(&self) -> Requested {
        Requested {
            request: self.request,
            server_stops: false,
            told_for: Duration::ZERO,
            is_paused: false,
        }
    }

    /// Takes one frame, if there is one and it is to be taken. A place that was passed without a record
    /// is put among the orders.
    pub fn forward(&mut self, now: Now) -> Result<bool, SessionError<Gone>> {
        let (true, Some(sent)) = (self.session.takes_frames(&self.sink), self.frames.front())
        else {
            return Ok(false);
        };
        let before = wire::place_of(self.session.pipeline().reached());
        let handled = self.session.frame(now.at, sent.as_frame(), &mut self.sink)?;
        if handled == Handled::Full {
            return Ok(false);
        }
        self.frames.pop_front();
        let after = wire::place_of(self.session.pipeline().reached());
        if after > before && self.sink.client().orders.is_empty() {
            self.library().orders.push_back(Order::NoRow);
        }
        Ok(true)
    }

    /// Reads the socket.
    pub fn listen(&mut self, now: Now) -> Result<(), SessionError<Gone>> {
        self.session.next(&self.sink, || Ok::<_, SessionError<Gone>>(false))?;
        let buffered = self.frames.len() * FRAME_BYTES;
        self.session.has_read(now, FRAME_BYTES, buffered).map(drop)
    }

    /// Whether the sink keeps what the trace saw it keep.
    pub fn keeps(&self) -> bool {
        self.sink.kept() == Some(self.kept.end)
            && self.sink.may_end_within() == self.kept.part.is_some()
    }

    pub fn view(&self) -> View {
        let stage = match self.sink.state() {
            TransactionState::Idle
            | TransactionState::Open { .. }
            | TransactionState::Closing { .. }
            | TransactionState::Pausing { .. } => Stage::Open,
            TransactionState::Settling { .. } => Stage::Settling,
            TransactionState::Ending { .. } => Stage::Committing,
        };
        let pipeline = self.session.pipeline();
        View {
            stage,
            done: wire::place_of(self.kept),
            reached: wire::place_of(pipeline.reached()),
            unconfirmed: pipeline.in_flight().records,
        }
    }
}
