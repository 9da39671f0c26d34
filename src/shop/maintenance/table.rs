//! The tables that are cleaned, and SQL for the rows that may be deleted.
//!
//! Invariant: rows of unfinished sagas, valid charges and reservations, and outbox rows that the
//! slot has not passed are never deleted. No statement reads a table of another service.

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

/// Rows `a` of another table that are deleted with a row `g`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Dependent {
    pub(super) table: &'static str,
    pub(super) which: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyType {
    Text,
    Uuid,
}

impl KeyType {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Uuid => "uuid",
        }
    }

    pub(super) fn least(self) -> String {
        match self {
            Self::Text => String::new(),
            Self::Uuid => Uuid::nil().to_string(),
        }
    }
}

impl CleanupTable {
    /// The outbox is last, because it may have to be skipped.
    pub(super) const ALL: [Self; 7] = [
        Self::ProcessedMessages,
        Self::IdempotencyKeys,
        Self::Sagas,
        Self::Payments,
        Self::Reservations,
        Self::Notifications,
        Self::Outbox,
    ];

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

    /// True if a row is kept for as long as a message may be redelivered.
    pub(super) const fn outlives_topics(self) -> bool {
        !matches!(self, Self::IdempotencyKeys | Self::Outbox)
    }

    /// Timestamp column: the first column of an index, followed by the key.
    pub(super) const fn age(self) -> &'static str {
        match self {
            Self::ProcessedMessages => "processed_at",
            Self::IdempotencyKeys | Self::Outbox => "created_at",
            Self::Sagas => "ended_at",
            Self::Payments | Self::Reservations | Self::Notifications => "updated_at",
        }
    }

    /// Condition on rows `t`: the predicate of the index over the age.
    pub(super) const fn has_ended(self) -> &'static str {
        match self {
            Self::Sagas => "t.ended_at IS NOT NULL",
            // A later undo needs a valid charge or reservation, and only the order service knows
            // when the order ends. Requests to undo are answered without the row too.
            Self::Payments => "t.status IN ('DECLINED', 'REFUNDED', 'VOIDED')",
            Self::Reservations => "t.status IN ('UNAVAILABLE', 'RELEASED')",
            Self::Notifications => "t.status NOT IN ('WAITING', 'PENDING')",
            _ => "true",
        }
    }

    /// Condition on rows that are needed at any age. `$4` is the slot.
    pub(super) fn is_needed(self) -> String {
        match self {
            Self::Outbox => not_passed("$4::text"),
            _ => "false".to_owned(),
        }
    }

    /// Primary key, which distinguishes rows of one age and finds `dependents`.
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

    /// A sequence is deleted with its aggregate, never before: its numbers would restart at 1.
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
