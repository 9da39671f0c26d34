//! The relay's loop, one step at a time, around the real pipeline.

use std::collections::VecDeque;

use postrider::kafka::{SendError, Sink, SinkError};
use postrider::ledger::Budget;
use postrider::outbox::{MessageSpec, Outbox, OutboxSpec, TableName};
use postrider::pipeline::{
    Answer, Confirmation, Outcome, OwnedOutgoing, Pipeline, PipelineError, Policy, Refused,
    RejectPolicy, Step, UpdatePolicy,
};
use postrider::route::{RouteSpec, Router};

use crate::broker::{DEAD_LETTERS, Producer};
use crate::core::Mutation;
use crate::judge::{Judge, Violation};
use crate::server::Server;

/// What ends a session.
#[derive(Debug)]
pub(crate) enum End {
    /// The producer died: start again from the slot.
    Session,
    /// The product is wrong.
    Violation(Violation),
}

impl From<PipelineError> for End {
    /// No peer breaks its protocol here, so the pipeline has nothing to complain about.
    fn from(error: PipelineError) -> Self {
        violation("error", &error.to_string())
    }
}

impl From<SinkError> for End {
    fn from(_: SinkError) -> Self {
        Self::Session
    }
}

/// One session.
pub(crate) struct Relay<M> {
    pipeline: Pipeline,
    mutation: M,
    pub(crate) producer: Producer,
    /// Dead letters of refused records that wait for room.
    resend: VecDeque<OwnedOutgoing>,
    confirmations: Vec<Confirmation>,
    budget: Budget,
    settled: u64,
}

/// Compiled once: compiling a route costs more than a whole simulated run.
#[derive(Clone)]
pub(crate) struct Plan {
    spec: OutboxSpec,
    router: Router,
}

impl Plan {
    pub(crate) fn new() -> Self {
        let messages = MessageSpec { prefixes: vec!["outbox".to_owned()], null_is_missing: false };
        let tables = vec![TableName::new("public", "outbox")];
        let mut spec = OutboxSpec::new(tables).with_messages(messages);
        let route = RouteSpec {
            by: "aggregate_type".to_owned(),
            topic: "outbox.event.${routedByValue}".to_owned(),
            ..RouteSpec::default()
        };
        let router = Router::compile(&route, &mut spec).unwrap();
        Self { spec, router }
    }
}

impl<M: Mutation> Relay<M> {
    pub(crate) fn start(plan: &Plan, budget: Budget, queue: usize) -> Self {
        let policy = Policy {
            rejected: RejectPolicy::DeadLetter { topic: DEAD_LETTERS.to_owned() },
            on_update: UpdatePolicy::Ignore,
        };
        let outbox = Outbox::new(plan.spec.clone());
        Self {
            pipeline: Pipeline::new(outbox, plan.router.clone(), policy, budget),
            mutation: M::default(),
            producer: Producer::new(queue),
            resend: VecDeque::new(),
            confirmations: Vec::new(),
            budget,
            settled: 0,
        }
    }

    /// Offers the next frame on the wire.
    pub(crate) fn read(&mut self, server: &mut Server) -> Result<(), End> {
        let Some(sent) = server.peek().filter(|_| self.pipeline.has_room()) else { return Ok(()) };
        let frame = sent.as_frame();
        let mut refused = None;
        // At most three turns: the record, its dead letter, and the end.
        let is_done = loop {
            let step = match refused.take() {
                None => self.pipeline.frame(frame),
                Some(rejection) => self.pipeline.reject(frame, rejection),
            };
            let outgoing = match step? {
                Step::Nothing => break true,
                Step::Skipped(_) => return Err(violation("G4", "a row was skipped")),
                Step::Send(outgoing) => outgoing,
            };
            let ticket = outgoing.ticket;
            let taken = self.producer.send(&outgoing.record, ticket);
            drop(outgoing);
            match taken {
                Ok(()) => {
                    self.mutation.sent(&mut self.pipeline, ticket)?;
                    break true;
                }
                Err(SendError::Full) => break false,
                Err(SendError::Refused(rejection)) => refused = Some(rejection),
                Err(SendError::Broken(error)) => return Err(error.into()),
            }
        };
        if is_done {
            self.mutation.consumed(frame);
            server.consume();
        }
        Ok(())
    }

    /// Books what came back, and sends what has to be sent again.
    pub(crate) fn poll(&mut self) -> Result<(), End> {
        self.producer.poll(&mut self.confirmations)?;
        for confirmation in std::mem::take(&mut self.confirmations) {
            match self.mutation.confirm(&mut self.pipeline, confirmation)? {
                Answer::Stored => {}
                Answer::Send(outgoing) => self.resend.push_back(*outgoing),
                Answer::Skipped(_) => return Err(violation("G4", "a record was skipped")),
            }
        }
        while let Some(outgoing) = self.resend.front() {
            match self.producer.send(&outgoing.record.as_record(), outgoing.ticket) {
                Ok(()) => {}
                Err(SendError::Full) => break,
                Err(SendError::Refused(rejection)) => {
                    let (ticket, record) = (outgoing.ticket, outgoing.record.clone());
                    let refused = Box::new(Refused { record, rejection });
                    let outcome = Outcome::Refused(refused);
                    self.pipeline.confirm(Confirmation { ticket, outcome })?;
                }
                Err(SendError::Broken(error)) => return Err(error.into()),
            }
            self.resend.pop_front();
        }
        Ok(())
    }

    /// Sends a status update.
    pub(crate) fn acknowledge(&mut self, server: &mut Server, judge: &Judge) -> Result<(), End> {
        let settled = self.mutation.settled(&self.pipeline).get();
        if settled < self.settled {
            return Err(violation("G1", &format!("{settled} told after {}", self.settled)));
        }
        self.settled = settled;
        judge.acknowledged(settled, &server.history).map_err(End::Violation)?;
        server.acknowledge(settled);
        Ok(())
    }

    /// G3: what is in flight, by our books and by the producer's.
    pub(crate) fn within_budget(&self) -> Result<(), Violation> {
        let books = self.pipeline.in_flight();
        let (records, bytes) = self.producer.in_flight;
        let waiting = self.resend.len() as u64;
        let weight = self.resend.iter().map(|outgoing| outgoing.ticket.weight()).sum::<u64>();
        if (books.records, books.bytes) != (records + waiting, bytes + weight) {
            let what = format!("{books:?} booked, {records} records in {bytes} bytes in flight");
            return Err(Violation::new("G3", what));
        }
        // Soft by one record: see `Budget`.
        let bytes_max = self.budget.bytes + RECORD_BYTES_MAX;
        let is_over = books.records > self.budget.records
            || books.bytes >= bytes_max
            || books.transactions > self.budget.transactions;
        if is_over { Err(Violation::new("G3", format!("{books:?} in flight"))) } else { Ok(()) }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.pipeline.is_idle() && self.resend.is_empty()
    }
}

/// No record of the simulation weighs more, dead letters included.
const RECORD_BYTES_MAX: u64 = 600;

fn violation(guarantee: &'static str, what: &str) -> End {
    End::Violation(Violation::new(guarantee, what))
}
