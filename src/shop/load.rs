//! Writes orders at a steady rate, each with its outbox row in one transaction, to test the relay.
//!
//! Invariant: a row is reported as committed only after Postgres confirmed its COMMIT. A slow
//! COMMIT does not postpone later transactions (open loop), so latency is not hidden.

use std::time::{Duration, Instant};

use tokio_postgres::{Client, Statement};
use uuid::Uuid;

use super::draw::{AGGREGATE_TYPE, Fate, Orders, Row, SavepointPosition, Transaction};
use super::error::ShopError;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rate {
    PerSecond(u32),
    Unlimited,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadPlan {
    pub count: u64,
    pub rate: Rate,
    pub seed: u64,
    /// Percentage of all transactions; below 100.
    pub rollback_percent: u8,
    /// Percentage of committing transactions; each rolls one row back.
    pub savepoint_percent: u8,
    /// Aggregates, which are the record keys; at least 1.
    pub customers: u32,
    /// Topics under the seed configuration; at least 1.
    pub types: u32,
    /// Bytes of JSON text. Less than about 200 has no effect.
    pub payload_bytes: u32,
    /// 1 to 100,000. The last transaction may have fewer.
    pub tx_rows: u32,
}

impl Default for LoadPlan {
    fn default() -> Self {
        Self {
            count: 1_000,
            rate: Rate::Unlimited,
            seed: 1,
            rollback_percent: 2,
            savepoint_percent: 2,
            customers: 100,
            types: 5,
            payload_bytes: 300,
            tx_rows: 1,
        }
    }
}

impl LoadPlan {
    fn check(&self) -> Result<(), ShopError> {
        let checks = [
            (self.customers == 0, "there must be at least one customer"),
            (self.types == 0, "there must be at least one event type"),
            (self.rate == Rate::PerSecond(0), "the rate must be at least one row per second"),
            (self.rollback_percent > 99, "if every transaction rolls back, none ever commits"),
            (self.savepoint_percent > 100, "the savepoint percentage is at most 100"),
            (!(1..=100_000).contains(&self.tx_rows), "a transaction holds 1 to 100,000 rows"),
        ];
        match checks.iter().find(|(broken, _)| *broken) {
            Some((_, why)) => Err(ShopError::Plan(why)),
            None => Ok(()),
        }
    }

    /// Due time, relative to the start.
    fn due(&self, committed: u64) -> Duration {
        match self.rate {
            Rate::Unlimited => Duration::ZERO,
            #[expect(clippy::cast_precision_loss, reason = "exact up to 2^53 rows")]
            Rate::PerSecond(rate) => Duration::from_secs_f64(committed as f64 / f64::from(rate)),
        }
    }
}

#[derive(Debug)]
pub struct Written<'a> {
    pub row: &'a Row,
    /// Just before the COMMIT (or ROLLBACK) was sent.
    pub commit_sent: Instant,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize)]
pub struct LoadReport {
    pub committed: u64,
    pub rolled_back: u64,
    pub savepoints_rolled_back: u64,
    pub seconds: f64,
}

/// Calls `observe` once per row, after Postgres confirmed the COMMIT or ROLLBACK. A consumer may
/// have seen the row before.
///
/// If the future is dropped, the session may be inside a transaction: drop the client too.
pub async fn run(
    client: &Client,
    plan: &LoadPlan,
    mut observe: impl FnMut(&Written<'_>),
) -> Result<LoadReport, ShopError> {
    plan.check()?;
    let writer = LoadWriter { client, insert: client.prepare(INSERT).await? };
    let mut report = LoadReport::default();
    let start = Instant::now();
    for transaction in Orders::new(plan) {
        tokio::time::sleep_until((start + plan.due(report.committed)).into()).await;
        let commit_sent = writer.write(&transaction).await?;
        for row in rows_of(&transaction) {
            *counter(&mut report, row.fate) += 1;
            observe(&Written { row, commit_sent });
        }
    }
    report.seconds = start.elapsed().as_secs_f64();
    Ok(report)
}

/// A single round trip for any number of rows, in the order of the arrays.
const INSERT: &str = "\
    WITH placed AS ( \
        INSERT INTO orders (id, customer, amount_cents, status, created_at) \
        SELECT o.id, o.customer, o.amount_cents, 'placed', now() \
        FROM unnest($1::uuid[], $2::text[], $3::bigint[]) AS o (id, customer, amount_cents)) \
    INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload, created_at) \
    SELECT e.id, $4::text, e.aggregate_id, e.event_type, e.payload::jsonb, now() \
    FROM unnest($5::uuid[], $2::text[], $6::text[], $7::text[]) \
        WITH ORDINALITY AS e (id, aggregate_id, event_type, payload, place) \
    ORDER BY e.place";

struct LoadWriter<'c> {
    client: &'c Client,
    insert: Statement,
}

impl LoadWriter<'_> {
    async fn write(&self, transaction: &Transaction) -> Result<Instant, ShopError> {
        let (rows, rolled_back, position, end) = match transaction {
            Transaction::Rollback { rows } => {
                (rows, [].as_slice(), SavepointPosition::Last, "ROLLBACK")
            }
            Transaction::Commit { rows, rolled_back, position } => {
                (rows, rolled_back.as_slice(), *position, "COMMIT")
            }
        };
        // Joined futures send their requests in this order.
        if position == SavepointPosition::First && !rolled_back.is_empty() {
            self.client.batch_execute("BEGIN").await?;
            self.insert_and_roll_back(rolled_back).await?;
            self.insert(rows).await?;
        } else {
            tokio::try_join!(self.simple("BEGIN"), self.insert(rows))?;
            self.insert_and_roll_back(rolled_back).await?;
        }
        let commit_sent = Instant::now();
        self.simple(end).await?;
        Ok(commit_sent)
    }

    async fn insert_and_roll_back(&self, rolled_back: &[Row]) -> Result<(), ShopError> {
        if rolled_back.is_empty() {
            return Ok(());
        }
        let savepoint = self.simple("SAVEPOINT rolled_back");
        let roll_back = self.simple("ROLLBACK TO SAVEPOINT rolled_back");
        tokio::try_join!(savepoint, self.insert(rolled_back), roll_back)?;
        Ok(())
    }

    async fn simple(&self, sql: &str) -> Result<(), ShopError> {
        Ok(self.client.batch_execute(sql).await?)
    }

    async fn insert(&self, rows: &[Row]) -> Result<(), ShopError> {
        let orders: Vec<Uuid> = rows.iter().map(|row| row.order_id).collect();
        let customers: Vec<&str> = rows.iter().map(|row| row.aggregate_id.as_str()).collect();
        let amounts: Vec<i64> = rows.iter().map(|row| row.amount_cents).collect();
        let ids: Vec<Uuid> = rows.iter().map(|row| row.id).collect();
        let types: Vec<&str> = rows.iter().map(|row| row.event_type.as_str()).collect();
        let payloads: Vec<&str> = rows.iter().map(|row| row.payload.as_str()).collect();
        self.client
            .execute(
                &self.insert,
                &[&orders, &customers, &amounts, &AGGREGATE_TYPE, &ids, &types, &payloads],
            )
            .await?;
        Ok(())
    }
}

fn rows_of(transaction: &Transaction) -> impl Iterator<Item = &Row> {
    let (rows, rolled_back) = match transaction {
        Transaction::Commit { rows, rolled_back, .. } => (rows, rolled_back.as_slice()),
        Transaction::Rollback { rows } => (rows, [].as_slice()),
    };
    rows.iter().chain(rolled_back)
}

fn counter(report: &mut LoadReport, fate: Fate) -> &mut u64 {
    match fate {
        Fate::Committed => &mut report.committed,
        Fate::RolledBack => &mut report.rolled_back,
        Fate::SavepointRolledBack => &mut report.savepoints_rolled_back,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schedule_does_not_slip() {
        let plan = LoadPlan { rate: Rate::PerSecond(1_000), ..LoadPlan::default() };
        assert_eq!(plan.due(0), Duration::ZERO);
        assert_eq!(plan.due(250), Duration::from_millis(250));
        assert_eq!(plan.due(3_600_000), Duration::from_hours(1));
        assert_eq!(LoadPlan::default().due(1_000_000), Duration::ZERO);
    }

    #[test]
    fn impossible_plans_are_refused() {
        let good = LoadPlan::default();
        assert!(good.check().is_ok());
        for bad in [
            LoadPlan { customers: 0, ..good.clone() },
            LoadPlan { types: 0, ..good.clone() },
            LoadPlan { rate: Rate::PerSecond(0), ..good.clone() },
            LoadPlan { rollback_percent: 100, ..good.clone() },
            LoadPlan { savepoint_percent: 101, ..good.clone() },
            LoadPlan { tx_rows: 0, ..good.clone() },
        ] {
            assert!(matches!(bad.check(), Err(ShopError::Plan(_))), "{bad:?}");
        }
    }

    #[test]
    fn rows_are_counted_by_fate() {
        let plan = LoadPlan { savepoint_percent: 100, rollback_percent: 50, ..LoadPlan::default() };
        let mut report = LoadReport::default();
        for transaction in Orders::new(&plan) {
            for row in rows_of(&transaction) {
                *counter(&mut report, row.fate) += 1;
            }
        }
        assert_eq!((report.committed, report.savepoints_rolled_back), (1_000, 1_000));
        assert!((700..1_300).contains(&report.rolled_back), "{}", report.rolled_back);
    }
}
