//! The shop's load against PostgreSQL: what is reported as committed is there, and nothing
//! that was rolled back is.

#![expect(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "test code throughout: a panic here is a failed test"
)]

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use postrider::shop::ShopError;
use postrider::shop::draw::Fate;
use postrider::shop::load::{LoadPlan, LoadReport, Rate, run};
use tokio_postgres::Client;
use uuid::Uuid;

use crate::database::Stage;

const TABLES: &str = "\
    CREATE TABLE orders (id uuid PRIMARY KEY, customer text NOT NULL, amount_cents bigint NOT NULL, \
        status text NOT NULL, created_at timestamptz NOT NULL); \
    CREATE TABLE outbox (id uuid PRIMARY KEY, aggregate_type text NOT NULL, \
        aggregate_id text NOT NULL, event_type text NOT NULL, payload jsonb, \
        created_at timestamptz NOT NULL)";

/// What the observer was told of one row.
struct Told {
    id: Uuid,
    aggregate_id: String,
    sequence: u64,
    fate: Fate,
}

async fn load(client: &Client, plan: &LoadPlan) -> (LoadReport, Vec<Told>) {
    let (mut told, start) = (Vec::new(), Instant::now());
    let report = run(client, plan, |written| {
        assert!(written.commit_sent >= start && written.commit_sent <= Instant::now());
        told.push(Told {
            id: written.row.id,
            aggregate_id: written.row.aggregate_id.clone(),
            sequence: written.row.sequence,
            fate: written.row.fate,
        });
    });
    (report.await.expect("the load runs to its end"), told)
}

fn ids(told: &[Told], wanted: impl Fn(Fate) -> bool) -> HashSet<Uuid> {
    told.iter().filter(|row| wanted(row.fate)).map(|row| row.id).collect()
}

async fn assert_told_is_true(client: &Client, plan: &LoadPlan) {
    client.batch_execute("TRUNCATE orders, outbox").await.unwrap();
    let (report, told) = load(client, plan).await;
    assert_eq!(report.committed, plan.count);

    let rows = client.query("SELECT id, payload->>'fate' AS fate FROM outbox", &[]).await.unwrap();
    let stored: HashSet<Uuid> = rows.iter().map(|row| row.get("id")).collect();
    assert_eq!(stored, ids(&told, |fate| fate == Fate::Committed));
    assert!(rows.iter().all(|row| row.get::<_, &str>("fate") == "committed"));
    let phantoms = ids(&told, |fate| fate != Fate::Committed).len() as u64;
    assert_eq!(phantoms, report.rolled_back + report.savepoints_rolled_back);
    assert!(report.rolled_back > 0 && report.savepoints_rolled_back > 0, "{report:?}");

    let orders =
        "SELECT count(*) FROM orders JOIN outbox ON orders.id::text = payload->>'order_id'";
    let paired: i64 = client.query_one(orders, &[]).await.unwrap().get(0);
    assert_eq!(paired, i64::try_from(plan.count).unwrap(), "each row has its order");

    let mut last = HashMap::<&str, u64>::new();
    for row in told.iter().filter(|row| row.fate == Fate::Committed) {
        let last = last.entry(&row.aggregate_id).or_default();
        assert_eq!(row.sequence, *last + 1, "{} in commit order, without gaps", row.aggregate_id);
        *last = row.sequence;
    }
}

async fn assert_rate_is_kept(client: &Client) {
    let plan = LoadPlan { count: 100, rate: Rate::PerSecond(200), ..LoadPlan::default() };
    let (report, _) = load(client, &plan).await;
    // 100 rows at 200 a second: the last is due after 0.495 s.
    assert!(report.seconds >= 0.49, "{report:?}");
}

#[tokio::test(flavor = "current_thread")]
async fn what_the_load_reports_is_what_the_database_holds() {
    let (_stage, client) = Stage::empty().await;
    let error = run(&client, &LoadPlan::default(), |_| ()).await.unwrap_err();
    assert!(matches!(error, ShopError::TablesMissing(_)), "{error:?}");

    client.batch_execute(TABLES).await.unwrap();
    let plan =
        LoadPlan { count: 400, rollback_percent: 20, savepoint_percent: 30, ..LoadPlan::default() };
    assert_told_is_true(&client, &plan).await;
    assert_told_is_true(&client, &LoadPlan { tx_rows: 7, ..plan }).await;
    assert_rate_is_kept(&client).await;
}
