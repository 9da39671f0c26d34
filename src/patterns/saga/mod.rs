//! Sagas: a process over several services that ends well or is undone, and never hangs.
//!
//! Enters: events about one saga, in any order, some twice, some late. Leaves: its next state and the
//! events it emits, written in one transaction with the outbox. What always holds: [`Saga::on`] is
//! pure, so every order of events can be tested; a saga that has not ended has a deadline, and
//! [`overdue`] finds those that passed it. The caller keeps repeats away (`inbox`); a saga should
//! tolerate them all the same.
//!
//! The way to tolerate reordered events is to keep *facts* that only grow (paid, then refunded; never
//! back) and to derive the status from them: then the last event completes the picture, whichever it
//! is.

mod driver;

pub use driver::{Standing, Step, View, advance, history, overdue, standing, start, view};

use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_postgres::Error;

use crate::outbox_writer::WriterError;

/// The state of a process, and how it goes on.
pub trait Saga: Serialize + DeserializeOwned + Debug + Send + Sync {
    /// Names this kind of saga in the tables, and its events' aggregate type in the outbox.
    const KIND: &'static str;
    /// What it hears of.
    type Event: Sync;

    /// Takes in one event; returns what is to be told to others. Must not fail: an event that does not
    /// fit any more (late, repeated) changes nothing.
    fn on(&mut self, event: &Self::Event) -> Vec<Emitted>;

    /// How an event is named in the history.
    fn name(event: &Self::Event) -> &'static str;

    /// The state in one word, for people.
    fn status(&self) -> &'static str;

    /// Whether it has ended, so that no deadline is needed any more.
    fn has_ended(&self) -> bool;
}

/// What a saga tells others through the outbox; its aggregate is the saga itself.
#[derive(Debug, Clone, PartialEq)]
pub struct Emitted {
    /// What happened; becomes the topic.
    pub event_type: &'static str,
    /// The record's value.
    pub payload: serde_json::Value,
}

/// Why a saga did not go on. The caller's transaction has to be rolled back.
#[derive(Debug, thiserror::Error)]
pub enum SagaError {
    /// There is no such saga: its first event has not been here.
    #[error("there is no saga `{kind}` `{id}`")]
    Unknown {
        /// [`Saga::KIND`].
        kind: &'static str,
        /// The saga's id.
        id: String,
    },
    /// What is stored is no state of this kind: an older program wrote it, or somebody else.
    #[error("the stored state of saga `{kind}` `{id}` is not understood")]
    State {
        /// [`Saga::KIND`].
        kind: &'static str,
        /// The saga's id.
        id: String,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
    /// What it tells others could not be appended to the outbox.
    #[error("a saga's event was not appended")]
    Outbox(#[from] WriterError),
    /// The tables `sagas` and `saga_history`.
    #[error("the saga's tables failed")]
    Database(#[from] Error),
}

impl SagaError {
    /// The exact remedy, where one is known.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Outbox(error) => error.hint(),
            Self::State { .. } => Some(
                "add serde defaults for fields that are new, or fix the row in the table `sagas`",
            ),
            Self::Unknown { .. } | Self::Database(_) => None,
        }
    }

    /// The database's own error, for who tells a conflict from a fault by its code.
    pub fn database(&self) -> Option<&Error> {
        match self {
            Self::Outbox(error) => Some(error.database()),
            Self::Database(error) => Some(error),
            Self::Unknown { .. } | Self::State { .. } => None,
        }
    }
}
