//! Sagas: processes over several services that complete or are compensated, and never hang.
//!
//! Input: the events of one saga in any order, and the clock. Output: the next state and the
//! emitted events, written with the outbox, or a [`SagaError`].
//!
//! Invariant: [`Saga::apply`] is pure. An open saga has a deadline, and [`run_deadlines`] applies
//! an event to each overdue saga until it ends.
//!
//! Needs [`Piece::Saga`](crate::migrations::Piece::Saga) and
//! [`Piece::Outbox`](crate::migrations::Piece::Outbox). The caller filters duplicates (`inbox`).
//! Store *facts* that only grow, and derive status and timers from them, so that the order of
//! events does not matter.
//!
//! ```no_run
//! use std::time::Duration;
//! use postrider_patterns::saga::{self, Emitted, Saga, SagaError, Timer};
//! use serde::{Deserialize, Serialize};
//! use serde_json::json;
//!
//! #[derive(Debug, Default, Serialize, Deserialize)]
//! struct Trip { booked: bool, asked: bool, given_up: bool, undone: bool }
//!
//! enum Fact { Booked, AskDue, DeadlinePassed, Undone }
//!
//! impl Saga for Trip {
//!     const KIND: &'static str = "trip";
//!     type Event = Fact;
//!
//!     fn apply(&mut self, fact: &Fact) -> Vec<Emitted> {
//!         match fact {
//!             Fact::Booked => self.booked = true,
//!             Fact::AskDue => self.asked = true,
//!             Fact::DeadlinePassed if !self.has_ended() => self.given_up = true,
//!             Fact::DeadlinePassed => {}
//!             Fact::Undone => self.undone = true,
//!         }
//!         match fact {
//!             Fact::AskDue => vec![Emitted::new("HotelAsked", json!({}))],
//!             // Whatever is booked, or will have been when this comes, is undone, however late it is told.
//!             Fact::Booked | Fact::DeadlinePassed if self.given_up => {
//!                 vec![Emitted::new("HotelCancelled", json!({}))]
//!             }
//!             _ => vec![],
//!         }
//!     }
//!     fn name(fact: &Fact) -> &'static str {
//!         match fact {
//!             Fact::Booked => "Booked",
//!             Fact::AskDue => "AskDue",
//!             Fact::DeadlinePassed => "DeadlinePassed",
//!             Fact::Undone => "Undone",
//!         }
//!     }
//!     fn status(&self) -> &'static str { if self.has_ended() { "ENDED" } else { "OPEN" } }
//!     fn has_ended(&self) -> bool { if self.given_up { self.undone } else { self.booked } }
//!     fn deadline_passed() -> Fact { Fact::DeadlinePassed }
//!     fn timers(&self) -> Vec<Timer> {
//!         let ask = Timer { name: "ask", after: Duration::from_secs(3_600) };
//!         if self.asked { vec![] } else { vec![ask] }
//!     }
//!     fn timer_fired(name: &str) -> Option<Fact> { (name == "ask").then_some(Fact::AskDue) }
//! }
//!
//! # async fn example(mut client: tokio_postgres::Client) -> Result<(), SagaError> {
//! let day = Duration::from_secs(86_400);
//! let transaction = client.transaction().await?;
//! saga::start(&transaction, "42", &Trip::default(), &[], day).await?;
//! saga::advance::<Trip>(&transaction, "42", &Fact::Booked, saga::Cause::default()).await?;
//! transaction.commit().await?;
//! // Every half second or so, in any number of processes:
//! saga::fire_due::<Trip>(&mut client, day).await?;
//! # Ok(())
//! # }
//! ```

mod deadlines;
mod error;
mod operator;
mod store;
mod timers;

pub use deadlines::{DueRound, OpenSagas, count_open, fire_due, overdue, run_deadlines};
pub use error::SagaError;
pub use operator::{
    CleanedSagas, OperatorAction, SagaDetails, SagaSummary, TimerEntry, act, clean_ended, list,
    show,
};
pub use store::{
    Cause, HistoryEntry, NewSaga, SagaView, Transition, advance, history, start, start_or_advance,
    view,
};

use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_postgres::Transaction;

use crate::traceparent::Traceparent;

/// The state of a process, and its transitions.
pub trait Saga: Serialize + DeserializeOwned + Debug + Send + Sync {
    /// Kind of saga in the tables, and aggregate type of its events.
    const KIND: &'static str;
    /// Type of the events that the saga handles.
    type Event: Send + Sync;

    /// Applies one event and returns the events to emit. A late or repeated event changes nothing.
    fn apply(&mut self, event: &Self::Event) -> Vec<Emitted>;

    /// Name of an event for the history.
    fn name(event: &Self::Event) -> &'static str;

    /// Status, derived from the state.
    fn status(&self) -> &'static str;

    /// Whether the saga has ended. An event must not reopen it ([`SagaError::Reopened`]).
    fn has_ended(&self) -> bool;

    /// Event that is applied each time the deadline has passed, usually to compensate everything.
    fn deadline_passed() -> Self::Event;

    /// Event with which an operator compensates the saga ([`OperatorAction::Compensate`]).
    fn compensation() -> Self::Event {
        Self::deadline_passed()
    }

    /// Timers that run in this state. After each event, new timers are set, missing ones are
    /// cancelled, and the others keep their time. A fired timer that is still listed is set again.
    fn timers(&self) -> Vec<Timer> {
        Vec::new()
    }

    /// Event of a fired timer, or `None` for a name that only an earlier version used.
    fn timer_fired(name: &str) -> Option<Self::Event> {
        let _ = name;
        None
    }

    /// Writes a new status to the caller's own tables, in the transaction that changes the status.
    fn status_changed(
        transaction: &Transaction<'_>,
        id: &str,
        status: &'static str,
    ) -> impl Future<Output = Result<(), SagaError>> + Send {
        let _ = (transaction, id, status);
        async { Ok(()) }
    }
}

/// An event that a saga emits through the outbox.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Emitted {
    /// Event type, which becomes the topic.
    pub event_type: &'static str,
    /// The record's value.
    pub payload: serde_json::Value,
    /// Type and id of the aggregate, the record's key. `None` means the saga itself.
    pub aggregate: Option<(String, String)>,
    /// Trace of the event. `None` means the trace of the message that advanced the saga.
    pub traceparent: Option<Traceparent>,
}

impl Emitted {
    /// Creates an event of the saga itself.
    pub fn new(event_type: &'static str, payload: serde_json::Value) -> Self {
        Self { event_type, payload, aggregate: None, traceparent: None }
    }

    /// Makes this an event of another aggregate.
    #[must_use]
    pub fn of_aggregate(
        mut self,
        aggregate_type: impl Into<String>,
        id: impl Into<String>,
    ) -> Self {
        self.aggregate = Some((aggregate_type.into(), id.into()));
        self
    }

    /// Makes the event part of this trace.
    #[must_use]
    pub fn with_traceparent(mut self, traceparent: impl Into<Option<Traceparent>>) -> Self {
        self.traceparent = traceparent.into();
        self
    }
}

/// A timer of one saga.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timer {
    /// Name, unique within the saga.
    pub name: &'static str,
    /// Time between setting and firing the timer.
    pub after: Duration,
}
