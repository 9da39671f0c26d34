//! Sagas: processes over several services that complete or are compensated, and never hang.
//!
//! Input: events of one saga, in any order, some repeated, some late; the clock. Output: its next state and
//! the events it emits, written in one transaction with the outbox, or a [`SagaError`]. Invariant:
//! [`Saga::apply`] is pure, so every order of events can be tested; a saga that has not ended has a deadline,
//! and [`run_deadlines`] applies an event to each that passed it, again and again until it ends. The caller
//! filters duplicates (`inbox`); a saga should tolerate them all the same. Needs
//! [`Piece::Saga`](crate::migrations::Piece::Saga) and [`Piece::Outbox`](crate::migrations::Piece::Outbox).
//!
//! The way to tolerate reordered events is to store *facts* that only grow (paid, then refunded; never
//! back) and to derive the status from them, and so the timers: then the outcome does not depend on the order
//! of events.
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
    /// Names this kind of saga in the tables, and its events' aggregate type in the outbox.
    const KIND: &'static str;
    /// The events that it handles.
    type Event: Send + Sync;

    /// Applies one event; returns the events to emit. Must not fail: a late or repeated event changes nothing.
    fn apply(&mut self, event: &Self::Event) -> Vec<Emitted>;

    /// The name of an event in the history.
    fn name(event: &Self::Event) -> &'static str;

    /// The status, derived from the state.
    fn status(&self) -> &'static str;

    /// Whether it has ended, so that neither deadline nor timers are needed any more. An event that would have it
    /// go on is refused ([`SagaError::Reopened`]).
    fn has_ended(&self) -> bool;

    /// The event to apply when the deadline has passed, each time: usually the one that gives up and has
    /// everything undone.
    fn deadline_passed() -> Self::Event;

    /// The event by which an operator has everything undone ([`OperatorAction::Compensate`]).
    fn compensation() -> Self::Event {
        Self::deadline_passed()
    }

    /// The timers that run in this state, derived from it. After each event those that are new are set, those
    /// that are gone are cancelled, the others keep their time. One that has fired and is still here is set
    /// again.
    fn timers(&self) -> Vec<Timer> {
        Vec::new()
    }

    /// The event to apply when a timer fires; `None` for a name that only an earlier version knew.
    fn timer_fired(name: &str) -> Option<Self::Event> {
        let _ = name;
        None
    }

    /// Writes a new status to the caller's own tables, in the transaction that changes it: whoever advances the
    /// saga, a message, the clock or an operator.
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
    /// What happened; becomes the topic.
    pub event_type: &'static str,
    /// The record's value.
    pub payload: serde_json::Value,
    /// Type and id of the aggregate, which is the record's key; `None`: the saga itself.
    pub aggregate: Option<(String, String)>,
    /// The trace that it belongs to; `None`: that of the message which the saga was advanced by, if any.
    pub traceparent: Option<Traceparent>,
}

impl Emitted {
    /// An event of the saga itself.
    pub fn new(event_type: &'static str, payload: serde_json::Value) -> Self {
        Self { event_type, payload, aggregate: None, traceparent: None }
    }

    /// Makes it an event of another aggregate, ordered among the events of that one.
    #[must_use]
    pub fn of_aggregate(
        mut self,
        aggregate_type: impl Into<String>,
        id: impl Into<String>,
    ) -> Self {
        self.aggregate = Some((aggregate_type.into(), id.into()));
        self
    }

    /// As part of this trace: of the request that starts the saga, for example.
    #[must_use]
    pub fn with_traceparent(mut self, traceparent: impl Into<Option<Traceparent>>) -> Self {
        self.traceparent = traceparent.into();
        self
    }
}

/// A timer of one saga.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timer {
    /// Its name, unique within the saga.
    pub name: &'static str,
    /// When it fires, from the moment at which it is set.
    pub after: Duration,
}
