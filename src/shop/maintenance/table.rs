//! The tables that are cleaned, and the rows that may be deleted.
//!
//! Output: per table its name, key columns, and SQL. The SQL gives the age of a row, and whether it
//! is complete and still needed. It also finds the rows of other tables that are deleted with it.
//! Invariant: rows of unfinished sagas, valid charges and reservations, and outbox rows that the
//! slot has not passed are never deleted. No statement reads a table of another service. Pure.

use clap::ValueEnum;
use postrider_postgres::control::prune::not_passed;
use uuid::Uuid;

/// A table that grows for ever unless it is cleaned up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(super) enum CleanupTable {
    /// Markers of messages that consumers have processed.
    ProcessedMessages,
    /// Claims of requests that were executed.
    IdempotencyKeys,
    /// Ended sagas, their history, and the sequences of their events.
    Sagas,
    /// Payments that were undone or never taken, their gateway operations, and the sequences of their events.
    Payments,
    /// Reservations that were undone or never made, and the sequences of their events.
    Reservations,
    /// Mails that were sent or refused.
    Notifications,
    /// Events that were written.
    Outbox,
}

/// Rows of another table that are deleted with a row `g` of this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Dependent {
    /// The other table, `a`.
    pub(super) table: &'static str,
    /// Condition on its rows.
    pub(super) which: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyType {
    /// Any text.
    Text,
    Uuid,
}

impl KeyType {
    /// Returns the type's name in Postgres.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Uuid => "uuid",
        }
    }

    /// Returns the smallest value of the type.
    pub(super) fn least(self) -> String {
        match self {
            Self::Text => String::new(),
            Self::Uuid => Uuid::nil().to_string(),
        }
    }
}

impl CleanupTable {
    /// All tables. The outbox is last, because it may have to be skipped.
    pub(super) const ALL: [Self; 7] = [
        Self::ProcessedMessages,
        Self::IdempotencyKeys,
        Self::Sagas,
        Self::Payments,
        Self::Reservations,
        Self::Notifications,
        Self::Outbox,
    ];

    /// Returns the table's name in the migrations.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::ProcessedMessages => "processed_messages",
            Self::IdempotencyKeys => "idempotency_keys",
            Self::Sagas => "sagas",
            Self::Payments => "payments",
            Self::Reservations => "reservations",
            Self::Notifications => "notifications",
            Self::Outbox => "outbox",
        }
    }

    /// Whether a row is kept for as long as a message may be redelivered.
    pub(super) const fn outlives_topics(self) -> bool {
        !matches!(self, Self::IdempotencyKeys | Self::Outbox)
    }

    /// Returns the timestamp column for the age of a row: the first column of an index, followed by
    /// the key.
    pub(super) const fn age(self) -> &'static str {
        match self {
            Self::ProcessedMessages => "processed_at",
            Self::IdempotencyKeys | Self::Outbox => "created_at",
            Self::Sagas => "ended_at",
            Self::Payments | Self::Reservations | Self::Notifications => "updated_at",
        }
    }

    /// Returns the condition on the visited rows `t`: the predicate of the index over the age.
    pub(super) const fn has_ended(self) -> &'static str {
        match self {
            Self::Sagas => "t.ended_at IS NOT NULL",
            // A valid charge or reservation is kept like its order, because a later undo needs it.
            // Only the order service knows when the order ends. Requests to undo are answered
            // without the row too.
            Self::Payments => "t.status IN ('DECLINED', 'REFUNDED', 'VOIDED')",
            Self::Reservations => "t.status IN ('UNAVAILABLE', 'RELEASED')",
            Self::Notifications => "t.status NOT IN ('WAITING', 'PENDING')",
            _ => "true",
        }
    }

    /// Returns the condition on rows that are still needed at any age. `$4` is the slot.
    pub(super) fn is_needed(self) -> String {
        match self {
            Self::Outbox => not_passed("$4::text"),
            _ => "false".to_owned(),
        }
    }

    /// Returns the columns and types of the primary key. The key distinguishes rows of one age, and
    /// `dependents` uses it to find dependent rows.
    pub(super) const fn key(self) -> &'static [(&'static str, KeyType)] {
        match self {
            Self::ProcessedMessages => {
                &[("consumer", KeyType::Text), ("message_id", KeyType::Uuid)]
            }
            Self::IdempotencyKeys => &[("scope", KeyType::Text), ("key", KeyType::Text)],
            Self::Sagas => &[("kind", KeyType::Text), ("id", KeyType::Text)],
            Self::Payments | Self::Reservations | Self::Notifications => {
                &[("order_id", KeyType::Uuid)]
            }
            Self::Outbox => &[("id", KeyType::Uuid)],
        }
    }

    /// Returns the dependent rows. The sequence of an aggregate is deleted with the aggregate,
    /// never before, because its numbers would restart at 1.
    pub(super) const fn dependents(self) -> &'static [Dependent] {
        const COUNTER: &str = "outbox_sequences";
        match self {
            Self::Sagas => &[
                Dependent { table: "saga_history", which: "a.kind = g.kind AND a.id = g.id" },
                Dependent {
                    table: COUNTER,
                    which: "a.aggregate_type = g.kind AND a.aggregate_id = g.id",
                },
            ],
            Self::Payments => &[
                Dependent {
                    table: "gateway_operations",
                    which: "a.key = ANY (ARRAY['charge-' || g.order_id, 'refund-' || g.order_id])",
                },
                Dependent {
                    table: COUNTER,
                    which: "a.aggregate_type = 'payment' AND a.aggregate_id = g.order_id::text",
                },
            ],
            Self::Reservations => &[Dependent {
                table: COUNTER,
                which: "a.aggregate_type = 'reservation' AND a.aggregate_id = g.order_id::text",
            }],
            _ => &[],
        }
    }
}
