//! What is cleaned, and what of it may go.
//!
//! Enters: nothing. Leaves: for each table the SQL that says how old a row is, whether its thing has
//! ended, whether it is needed all the same, and what goes with it. What always holds: no row of a saga
//! that has not ended, and no outbox row that the slot has not passed, may go. Pure.

use clap::ValueEnum;
use uuid::Uuid;

/// A table that grows for ever unless it is cleaned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(super) enum Table {
    /// Messages that consumers have done.
    ProcessedMessages,
    /// Requests that have had their effect.
    IdempotencyKeys,
    /// Sagas that have ended, their history, and the numbers of their events.
    Sagas,
    /// Payments that are settled, what the gateway knows of them, and the numbers of their events.
    Payments,
    /// Reservations of orders that have ended, and the numbers of their events.
    Reservations,
    /// Events that were written.
    Outbox,
}

/// Rows of another table that go with a row `g` of this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Along {
    /// The other table, `a`.
    pub(super) table: &'static str,
    /// Which rows of it.
    pub(super) which: &'static str,
}

/// What a column of a key holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Type {
    /// Text of any kind.
    Text,
    /// A UUID.
    Uuid,
}

impl Type {
    /// As Postgres calls it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Uuid => "uuid",
        }
    }

    /// A value that no other is below.
    pub(super) fn least(self) -> String {
        match self {
            Self::Text => String::new(),
            Self::Uuid => Uuid::nil().to_string(),
        }
    }
}

/// A payment or a reservation is what undoing its order finds, so it stays while that can come.
/// Written as a scalar: Postgres may answer EXISTS by reading all of `sagas`.
const ORDER_IS_OPEN: &str = "coalesce((SELECT ended_at IS NULL FROM sagas \
     WHERE kind = 'order' AND id = t.order_id::text), false)";

/// Postgres writes into its log, every 15 seconds, which transactions are running. A slot's
/// `catalog_xmin` is the oldest of those at such a place which the slot has confirmed (Postgres's
/// `SnapBuildProcessRunningXacts` and `LogicalIncreaseXminForSlot`). So what older transactions wrote was
/// committed before the confirmed position, however long they were open and whatever `created_at` says.
/// A visible row whose transaction seems to lie ahead is from more than 2^31 transactions ago.
const NOT_PASSED: &str = "coalesce(NOT (age(t.xmin) < 0 OR age(t.xmin) > \
     (SELECT age(catalog_xmin) FROM pg_catalog.pg_replication_slots \
      WHERE slot_name = $4::text AND database = current_database() \
          AND wal_status IS DISTINCT FROM 'lost')), true)";

impl Table {
    /// All of them. The outbox is the last: it is the one that may have to be left alone.
    pub(super) const ALL: [Self; 6] = [
        Self::ProcessedMessages,
        Self::IdempotencyKeys,
        Self::Sagas,
        Self::Payments,
        Self::Reservations,
        Self::Outbox,
    ];

    /// As the migrations call it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::ProcessedMessages => "processed_messages",
            Self::IdempotencyKeys => "idempotency_keys",
            Self::Sagas => "sagas",
            Self::Payments => "payments",
            Self::Reservations => "reservations",
            Self::Outbox => "outbox",
        }
    }

    /// The column that says how old a row is. It begins an index, which the key completes.
    pub(super) const fn age(self) -> &'static str {
        match self {
            Self::ProcessedMessages => "processed_at",
            Self::IdempotencyKeys | Self::Outbox => "created_at",
            Self::Sagas => "ended_at",
            Self::Payments | Self::Reservations => "updated_at",
        }
    }

    /// Which rows of `t` are looked at: what the index over the age holds.
    pub(super) const fn has_ended(self) -> &'static str {
        match self {
            Self::Sagas => "t.ended_at IS NOT NULL",
            Self::Payments => "t.status NOT IN ('PENDING', 'REFUNDING')",
            _ => "true",
        }
    }

    /// Which of them are needed, however old. `$4` is the slot.
    pub(super) const fn is_needed(self) -> &'static str {
        match self {
            Self::Payments | Self::Reservations => ORDER_IS_OPEN,
            Self::Outbox => NOT_PASSED,
            _ => "false",
        }
    }

    /// The primary key: its columns with their types. It tells rows of one age
    /// apart, and `along` finds by it what goes with a row.
    pub(super) const fn key(self) -> &'static [(&'static str, Type)] {
        match self {
            Self::ProcessedMessages => &[("consumer", Type::Text), ("message_id", Type::Uuid)],
            Self::IdempotencyKeys => &[("scope", Type::Text), ("key", Type::Text)],
            Self::Sagas => &[("kind", Type::Text), ("id", Type::Text)],
            Self::Payments | Self::Reservations => &[("order_id", Type::Uuid)],
            Self::Outbox => &[("id", Type::Uuid)],
        }
    }

    /// What goes with a row. The counter of an aggregate goes with what it counted for; one that
    /// lives on keeps it, or its numbers would begin anew.
    pub(super) const fn along(self) -> &'static [Along] {
        const COUNTER: &str = "outbox_sequences";
        match self {
            Self::Sagas => &[
                Along { table: "saga_history", which: "a.kind = g.kind AND a.id = g.id" },
                Along {
                    table: COUNTER,
                    which: "a.aggregate_type = g.kind AND a.aggregate_id = g.id",
                },
            ],
            Self::Payments => &[
                Along {
                    table: "gateway_operations",
                    which: "a.key = ANY (ARRAY['charge-' || g.order_id, 'refund-' || g.order_id])",
                },
                Along {
                    table: COUNTER,
                    which: "a.aggregate_type = 'payment' AND a.aggregate_id = g.order_id::text",
                },
            ],
            Self::Reservations => &[Along {
                table: COUNTER,
                which: "a.aggregate_type = 'reservation' AND a.aggregate_id = g.order_id::text",
            }],
            _ => &[],
        }
    }
}
