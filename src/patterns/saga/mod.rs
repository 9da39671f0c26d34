//! Sagas: processes over several services that complete or are compensated, and never hang.
//!
//! Input: events of one saga, in any order, some repeated, some late. Output: its next state and the events
//! it emits, written in one transaction with the outbox, or a [`SagaError`]. Invariant: [`Saga::apply`] is
//! pure, so every order of events can be tested; a saga that has not ended has a deadline, and [`overdue`]
//! finds those that passed it. The caller filters duplicates (`inbox`); a saga should tolerate them all the
//! same.
//!
//! The way to tolerate reordered events is to store *facts* that only grow (paid, then refunded; never
//! back) and to derive the status from them: then the outcome does not depend on the order of events.

mod driver;

pub use driver::{
    OpenSagas, SagaView, Transition, advance, count_open, history, overdue, start, view,
};

use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_postgres::Error;

use crate::outbox_writer::WriterError;

/// The state of a process, and its transitions.
pub trait Saga: Serialize + DeserializeOwned + Debug + Send + Sync {
    /// Names this kind of saga in the tables, and its events' aggregate type in the outbox.
    const KIND: &'static str;
    /// The events that it handles.
    type Event: Sync;

    /// Applies one event; returns the events to emit. Must not fail: a late or repeated event changes nothing.
    fn apply(&mut self, event: &Self::Event) -> Vec<Emitted>;

    /// The name of an event in the history.
    fn name(event: &Self::Event) -> &'static str;

    /// The status, derived from the state.
    fn status(&self) -> &'static str;

    /// Whether it has ended, so that no deadline is needed any more.
    fn has_ended(&self) -> bool;
}

/// An event that a saga emits through the outbox; its aggregate is the saga itself.
#[derive(Debug, Clone, PartialEq)]
pub struct Emitted {
    /// What happened; becomes the topic.
    pub event_type: &'static str,
    /// The record's value.
    pub payload: serde_json::Value,
}

/// Why a saga did not advance. The caller's transaction has to be rolled back.
#[derive(Debug, thiserror::Error)]
pub enum SagaError {
    /// The saga does not exist: it was not started here.
    #[error("there is no saga `{kind}` `{id}`")]
    Unknown {
        /// [`Saga::KIND`].
        kind: &'static str,
        /// The saga's id.
        id: String,
    },
    /// The stored state is not of this kind: an older version or another program wrote it.
    #[error("cannot decode the stored state of saga `{kind}` `{id}`")]
    State {
        /// [`Saga::KIND`].
        kind: &'static str,
        /// The saga's id.
        id: String,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
    /// An emitted event could not be appended to the outbox.
    #[error("cannot append a saga's event to the outbox")]
    Outbox(#[from] WriterError),
    /// The tables `sagas` and `saga_history`.
    #[error("a statement on the saga tables failed")]
    Database(#[from] Error),
}

impl SagaError {
    /// The exact fix, where one is known.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Outbox(error) => error.hint(),
            Self::State { .. } => Some(
                "add serde defaults for fields that are new, or fix the row in the table `sagas`",
            ),
            Self::Unknown { .. } | Self::Database(_) => None,
        }
    }

    /// The error of Postgres, for callers that distinguish errors by SQLSTATE.
    pub fn database(&self) -> Option<&Error> {
        match self {
            Self::Outbox(error) => Some(error.database()),
            Self::Database(error) => Some(error),
            Self::Unknown { .. } | Self::State { .. } => None,
        }
    }
}
