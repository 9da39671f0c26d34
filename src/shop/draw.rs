//! Generates the rows of a load from a seed, as values.
//!
//! Invariant: the committed rows of an aggregate are numbered 1, 2, 3, ... in the order of their
//! transactions. A checker therefore sees a lost row as a gap and a reordering as a step back. The
//! payload shows if its row is rolled back.

use serde_json::json;
use uuid::Uuid;

use super::load::LoadPlan;

const EVENT_TYPES: [&str; 8] = [
    "OrderPlaced",
    "OrderPaid",
    "OrderPacked",
    "OrderShipped",
    "OrderDelivered",
    "OrderReturned",
    "OrderRefunded",
    "OrderCancelled",
];

pub const AGGREGATE_TYPE: &str = "customer";

/// Event types of a load, which are its topics under the seed configuration (`topic =
/// "${routedByValue}"`, by `event_type`).
pub fn event_types(types: u32) -> Vec<String> {
    let named = EVENT_TYPES.iter().map(ToString::to_string);
    named.chain((9u64..).map(|n| format!("OrderEvent{n:02}"))).take(types as usize).collect()
}

/// Only [`Fate::Committed`] rows may ever be visible outside Postgres.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fate {
    Committed,
    RolledBack,
    /// The transaction commits, but a rollback to a savepoint removes the row.
    SavepointRolledBack,
}

impl Fate {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Committed => "committed",
            Self::RolledBack => "rolled_back",
            Self::SavepointRolledBack => "savepoint_rolled_back",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// UUID version 7: the consumer's idempotency key.
    pub id: Uuid,
    /// UUID version 7.
    pub order_id: Uuid,
    /// The customer, which is the record's key.
    pub aggregate_id: String,
    /// Number among the committed rows of the aggregate, from 1.
    pub sequence: u64,
    pub event_type: String,
    /// In cents, 1 to 100,000.
    pub amount_cents: i64,
    /// JSON text with `seq`, `fate` and `run` members for a checker.
    pub payload: String,
    pub fate: Fate,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SavepointPosition {
    First,
    Last,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transaction {
    Commit {
        rows: Vec<Row>,
        /// Rolled back to a savepoint; may be empty.
        rolled_back: Vec<Row>,
        position: SavepointPosition,
    },
    Rollback {
        /// Rows that must never be visible.
        rows: Vec<Row>,
    },
}

#[derive(Debug)]
pub struct Orders {
    plan: LoadPlan,
    run: Uuid,
    types: Vec<String>,
    sequences: Vec<u64>,
    remaining: u64,
    random: Random,
}

impl Orders {
    /// Two runs of one seed differ only in their ids.
    pub fn new(plan: &LoadPlan) -> Self {
        Self {
            run: Uuid::now_v7(),
            types: event_types(plan.types),
            sequences: vec![0; plan.customers as usize],
            remaining: plan.count,
            random: Random(plan.seed),
            plan: plan.clone(),
        }
    }

    fn rows(&mut self, count: u64, fate: Fate) -> Vec<Row> {
        (0..count).map(|_| self.row(fate)).collect()
    }

    fn row(&mut self, fate: Fate) -> Row {
        let customer = self.random.below(u64::from(self.plan.customers));
        let event = self.random.below(u64::from(self.plan.types));
        let amount = self.random.below(100_000) + 1;
        let sequence = self.next_sequence(customer, fate);
        let (id, order_id) = (Uuid::now_v7(), Uuid::now_v7());
        let aggregate_id = format!("customer-{customer:05}");
        let payload = json!({
            "order_id": order_id.to_string(),
            "customer": aggregate_id,
            "seq": sequence,
            "amount_cents": amount,
            "fate": fate.as_str(),
            "run": self.run.to_string(),
        });
        Row {
            id,
            order_id,
            aggregate_id,
            sequence,
            event_type: usize::try_from(event)
                .ok()
                .and_then(|event| self.types.get(event).cloned())
                .unwrap_or_default(),
            amount_cents: i64::try_from(amount).unwrap_or(i64::MAX),
            payload: self.pad(payload),
            fate,
        }
    }

    /// Reuses the numbers of rolled-back rows, so that committed rows have no gaps.
    fn next_sequence(&mut self, customer: u64, fate: Fate) -> u64 {
        let slot = usize::try_from(customer).ok().and_then(|slot| self.sequences.get_mut(slot));
        let Some(last) = slot else { return 0 };
        if fate == Fate::Committed {
            *last += 1;
            return *last;
        }
        *last + 1
    }

    /// Random letters compress badly.
    fn pad(&mut self, mut payload: serde_json::Value) -> String {
        const MEMBER: usize = r#","note":"""#.len();
        let bare = payload.to_string();
        let missing = (self.plan.payload_bytes as usize).saturating_sub(bare.len());
        if missing <= MEMBER {
            return bare;
        }
        let note: String =
            std::iter::repeat_with(|| self.random.letter()).take(missing - MEMBER).collect();
        if let Some(members) = payload.as_object_mut() {
            members.insert("note".to_owned(), note.into());
        }
        payload.to_string()
    }
}

impl Iterator for Orders {
    type Item = Transaction;

    fn next(&mut self) -> Option<Transaction> {
        if self.remaining == 0 {
            return None;
        }
        let count = u64::from(self.plan.tx_rows).min(self.remaining);
        if self.random.percent(self.plan.rollback_percent) {
            return Some(Transaction::Rollback { rows: self.rows(count, Fate::RolledBack) });
        }
        let savepoint = self.random.percent(self.plan.savepoint_percent);
        let first = self.random.percent(50);
        let rolled_back = self.rows(u64::from(savepoint), Fate::SavepointRolledBack);
        self.remaining -= count;
        Some(Transaction::Commit {
            rows: self.rows(count, Fate::Committed),
            rolled_back,
            position: if first { SavepointPosition::First } else { SavepointPosition::Last },
        })
    }
}

/// SplitMix64 (Steele, Lea and Flood, 2014).
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// The remainder's bias does not matter.
    fn below(&mut self, bound: u64) -> u64 {
        self.next_u64().checked_rem(bound).unwrap_or(0)
    }

    fn letter(&mut self) -> char {
        u8::try_from(self.below(26)).map_or('a', |place| char::from(b'a' + place))
    }

    fn percent(&mut self, percent: u8) -> bool {
        self.below(100) < u64::from(percent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{HashMap, HashSet};

    fn plan() -> LoadPlan {
        LoadPlan {
            count: 500,
            customers: 7,
            rollback_percent: 20,
            savepoint_percent: 20,
            ..LoadPlan::default()
        }
    }

    fn committed(transactions: impl Iterator<Item = Transaction>) -> Vec<Row> {
        transactions
            .flat_map(|transaction| match transaction {
                Transaction::Commit { rows, .. } => rows,
                Transaction::Rollback { .. } => Vec::new(),
            })
            .collect()
    }

    #[test]
    fn committed_rows_are_as_many_as_planned_and_numbered_without_gaps() {
        let rows = committed(Orders::new(&LoadPlan { tx_rows: 7, ..plan() }));
        assert_eq!(rows.len(), 500);
        let mut last = HashMap::<String, u64>::new();
        for row in &rows {
            let last = last.entry(row.aggregate_id.clone()).or_default();
            assert_eq!(row.sequence, *last + 1, "aggregate {}", row.aggregate_id);
            *last = row.sequence;
        }
        assert_eq!(last.len(), 7, "every customer orders something");
        let ids: HashSet<Uuid> = rows.iter().map(|row| row.id).collect();
        assert_eq!(ids.len(), 500);
        assert!(rows.iter().all(|row| row.id.get_version_num() == 7));
    }

    #[test]
    fn rows_that_roll_back_say_so_in_their_payload() {
        let (mut rolled_back, mut doomed_rows) = (0, 0);
        for transaction in Orders::new(&plan()) {
            let (rolled_back, spelled) = match transaction {
                Transaction::Rollback { rows } => {
                    rolled_back += rows.len();
                    (rows, "rolled_back")
                }
                Transaction::Commit { rolled_back, rows, .. } => {
                    assert!(rows.iter().all(|row| row.payload.contains(r#""fate":"committed""#)));
                    doomed_rows += rolled_back.len();
                    (rolled_back, "savepoint_rolled_back")
                }
            };
            for row in rolled_back {
                let payload: serde_json::Value = serde_json::from_str(&row.payload).unwrap();
                assert_eq!(payload["fate"], spelled);
                assert_eq!(payload["seq"], row.sequence);
            }
        }
        assert!((60..200).contains(&rolled_back), "{rolled_back} of about 125");
        assert!((50..150).contains(&doomed_rows), "{doomed_rows} of about 100");
    }

    #[test]
    fn one_seed_generates_one_load() {
        let shape = |seed| -> Vec<(String, u64, String, i64)> {
            committed(Orders::new(&LoadPlan { seed, ..plan() }))
                .into_iter()
                .map(|row| (row.aggregate_id, row.sequence, row.event_type, row.amount_cents))
                .collect()
        };
        assert_eq!(shape(3), shape(3));
        assert_ne!(shape(3), shape(4));
    }

    #[test]
    fn payloads_have_the_size_asked_for() {
        for size in [0, 300, 1_000] {
            let rows = committed(Orders::new(&LoadPlan { payload_bytes: size, ..plan() }));
            let wanted = size as usize;
            assert!(rows.iter().all(|row| wanted == 0 || row.payload.len() == wanted));
            assert!(
                rows.iter()
                    .all(|row| serde_json::from_str::<serde_json::Value>(&row.payload).is_ok())
            );
        }
    }

    #[test]
    fn many_types_have_distinct_names() {
        let types = event_types(50);
        assert_eq!(types.len(), 50);
        assert_eq!(types.iter().collect::<HashSet<_>>().len(), 50);
        assert_eq!(types[..2], ["OrderPlaced", "OrderPaid"]);
    }
}
