//! Appends events to the outbox, inside the caller's transaction.
//!
//! Input: a transaction that also changes the business rows, and [`Event`]s. Output: an outbox row
//! per event, or a [`WriterError`]. Invariant: the numbers of an aggregate rise in commit order,
//! without gaps. Needs [`Piece::Outbox`](crate::migrations::Piece::Outbox). Other languages call
//! the same SQL functions.
//!
//! ```no_run
//! # async fn place(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
//! use postrider_patterns::outbox_writer::{Event, append};
//!
//! let transaction = client.transaction().await?;
//! transaction.execute("UPDATE accounts SET balance = balance - 990 WHERE id = 42", &[]).await?;
//! let payload = serde_json::json!({ "account": 42, "cents": 990 });
//! append(&transaction, &Event::new("account", "42", "AccountDebited", payload)).await?;
//! transaction.commit().await?;
//! # Ok(())
//! # }
//! ```

use std::error::Error;

use bytes::{BufMut as _, BytesMut};
use serde_json::value::RawValue;
use tokio_postgres::Transaction;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use uuid::Uuid;

use crate::table_error::TableFault;
use crate::traceparent::Traceparent;

/// An event for the outbox.
#[derive(Debug, Clone, PartialEq)]
#[must_use]
#[non_exhaustive]
pub struct Event {
    /// Idempotency key for consumers. Version 7, so that the index grows at one end.
    pub id: Uuid,
    /// Type of the aggregate.
    pub aggregate_type: String,
    /// Id of the aggregate. It becomes the record's key.
    pub aggregate_id: String,
    /// Event type, which becomes the topic unless the relay's `[route]` sets another one.
    pub event_type: String,
    /// `None` becomes a null value: a tombstone.
    payload: Option<Payload>,
    /// Trace of the event, sent as the header `traceparent`.
    pub traceparent: Option<Traceparent>,
}

impl Event {
    /// Creates an event with a new id. JSON `null` is not a [`tombstone`](Self::tombstone).
    pub fn new(
        aggregate_type: impl Into<String>,
        aggregate_id: impl Into<String>,
        event_type: impl Into<String>,
        payload: serde_json::Value,
    ) -> Self {
        let tombstone = Self::tombstone(aggregate_type, aggregate_id, event_type);
        Self { payload: Some(Payload::Value(payload)), ..tombstone }
    }

    /// Replaces the payload by serialized JSON, which keeps the digits of numbers such as `1.50`.
    pub fn with_json(self, payload: &RawValue) -> Self {
        Self { payload: Some(Payload::Written(payload.get().to_owned())), ..self }
    }

    /// Creates an event with a null value: a compacted topic deletes the earlier records of the
    /// key.
    pub fn tombstone(
        aggregate_type: impl Into<String>,
        aggregate_id: impl Into<String>,
        event_type: impl Into<String>,
    ) -> Self {
        Self {
            id: Uuid::now_v7(),
            aggregate_type: aggregate_type.into(),
            aggregate_id: aggregate_id.into(),
            event_type: event_type.into(),
            payload: None,
            traceparent: None,
        }
    }

    /// Makes the event part of this trace.
    pub fn with_traceparent(self, traceparent: impl Into<Option<Traceparent>>) -> Self {
        Self { traceparent: traceparent.into(), ..self }
    }

    fn trace(&self) -> Option<&str> {
        self.traceparent.as_ref().map(Traceparent::as_str)
    }
}

#[derive(Debug, Clone, PartialEq)]
enum Payload {
    Value(serde_json::Value),
    Written(String),
}

impl ToSql for Payload {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        // Version of jsonb's binary form (jsonb_recv).
        out.put_u8(1);
        match self {
            Self::Value(value) => serde_json::to_writer(out.writer(), value)?,
            Self::Written(text) => out.put_slice(text.as_bytes()),
        }
        Ok(IsNull::No)
    }

    fn accepts(of: &Type) -> bool {
        *of == Type::JSONB
    }

    to_sql_checked!();
}

/// Reason why an event was not appended. The transaction is aborted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriterError {
    /// The functions or their tables do not exist, or have an earlier version.
    #[error("the function `outbox_append` or `outbox_append_all`, or its tables do not exist")]
    Missing(#[source] tokio_postgres::Error),
    /// The role lacks a privilege on the functions or tables.
    #[error("the role lacks rights on `outbox`, `outbox_sequences` or their schema")]
    Forbidden(#[source] tokio_postgres::Error),
    /// An event with this id exists already.
    #[error("the outbox already has an event with this id")]
    Repeated(#[source] tokio_postgres::Error),
    /// The function refuses a value, which the source error names.
    #[error(
        "an event has an empty aggregate type, aggregate id or event type, or a control character in a type"
    )]
    Invalid(#[source] tokio_postgres::Error),
    /// The statement failed for another reason.
    #[error("cannot append the event to the outbox")]
    Database(#[source] tokio_postgres::Error),
}

impl WriterError {
    /// Exact fix, if one is known.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Missing(_) => Some(
                "run `migrations::migrate` with `Piece::Outbox`, or migrations/0001_outbox.sql and \
                 0003_application.sql; have the schema in this role's search_path: \
                 ALTER ROLE <role> SET search_path = public, <schema>",
            ),
            Self::Forbidden(_) => Some(
                "GRANT USAGE ON SCHEMA <schema> TO <role>; GRANT INSERT, SELECT ON outbox TO <role>; \
                 GRANT INSERT, SELECT, UPDATE ON outbox_sequences TO <role>",
            ),
            Self::Repeated(_) | Self::Invalid(_) | Self::Database(_) => None,
        }
    }

    /// Error of Postgres, with its SQLSTATE.
    pub fn database(&self) -> &tokio_postgres::Error {
        match self {
            Self::Missing(error)
            | Self::Forbidden(error)
            | Self::Repeated(error)
            | Self::Invalid(error)
            | Self::Database(error) => error,
        }
    }
}

impl From<tokio_postgres::Error> for WriterError {
    fn from(error: tokio_postgres::Error) -> Self {
        match TableFault::of(&error) {
            TableFault::Missing => Self::Missing(error),
            TableFault::Forbidden => Self::Forbidden(error),
            TableFault::Repeated => Self::Repeated(error),
            TableFault::Invalid => Self::Invalid(error),
            TableFault::Busy | TableFault::Other => Self::Database(error),
        }
    }
}

#[cfg(feature = "inbox")]
impl From<WriterError> for crate::inbox::Failure {
    fn from(error: WriterError) -> Self {
        Self::technical(error)
    }
}

/// Appends one event. Returns its number within its aggregate, from 1.
///
/// Writers of one aggregate wait for each other until the transaction ends. Transactions that
/// append to several aggregates must use one order everywhere, because otherwise they may deadlock.
pub async fn append(transaction: &Transaction<'_>, event: &Event) -> Result<i64, WriterError> {
    let Some(payload) = &event.payload else {
        let numbers = append_all(transaction, std::slice::from_ref(event)).await?;
        let [number] = numbers.as_slice() else { unreachable!("an event has one number") };
        return Ok(*number);
    };
    let row = transaction
        .query_typed_one(
            "SELECT outbox_append($1, $2, $3, $4, $5, $6)",
            &[
                (&event.aggregate_type, Type::TEXT),
                (&event.aggregate_id, Type::TEXT),
                (&event.event_type, Type::TEXT),
                (payload, Type::JSONB),
                (&event.id, Type::UUID),
                (&event.trace(), Type::TEXT),
            ],
        )
        .await?;
    row.try_get(0).map_err(WriterError::Database)
}

/// Appends several events in one round trip, all or none, and returns their numbers.
///
/// Counters are locked in a fixed order, so transactions with one call each cannot deadlock.
pub async fn append_all(
    transaction: &Transaction<'_>,
    events: &[Event],
) -> Result<Vec<i64>, WriterError> {
    let texts = |of: fn(&Event) -> &str| events.iter().map(of).collect::<Vec<_>>();
    let payloads: Vec<_> = events.iter().map(|event| event.payload.as_ref()).collect();
    let ids: Vec<Uuid> = events.iter().map(|event| event.id).collect();
    let traces: Vec<_> = events.iter().map(Event::trace).collect();
    let tombstones: Vec<bool> = events.iter().map(|event| event.payload.is_none()).collect();
    let rows = transaction
        .query_typed(
            "SELECT outbox_append_all($1, $2, $3, $4, $5, $6, $7)",
            &[
                (&texts(|event| &event.aggregate_type), Type::TEXT_ARRAY),
                (&texts(|event| &event.aggregate_id), Type::TEXT_ARRAY),
                (&texts(|event| &event.event_type), Type::TEXT_ARRAY),
                (&payloads, Type::JSONB_ARRAY),
                (&ids, Type::UUID_ARRAY),
                (&traces, Type::TEXT_ARRAY),
                (&tombstones, Type::BOOL_ARRAY),
            ],
        )
        .await?;
    rows.iter().map(|row| row.try_get(0).map_err(WriterError::Database)).collect()
}
