//! Creates the slots of the benchmarks and writes the rows that are read through them. All slots
//! see the same rows, so that all runs read the same WAL.

use tokio_postgres::Client;

use postrider_core::lsn::Lsn;

/// Rows per key, few enough to spread records over all partitions.
const ROWS_PER_KEY: u32 = 100;

/// Decoding starts at a note of open transactions, which the server writes every 15 s and at
/// checkpoints. This number equals 1,300 rows per second.
const ROWS_PER_SNAPSHOT: u32 = 20_000;

#[derive(Debug, Clone, Copy)]
pub(super) struct Rows {
    pub(super) count: u32,
    pub(super) per_transaction: u32,
    /// Number of event types, which are topics under the seed routing.
    pub(super) topics: u32,
    /// Words of ten bytes in each payload, besides about 90 bytes.
    pub(super) note_words: u32,
}

pub(super) fn topics(count: u32) -> Vec<String> {
    (0..count).map(|number| format!("BenchEvent{number}")).collect()
}

pub(super) async fn make_slot(client: &Client, slot: &str) -> Result<(), tokio_postgres::Error> {
    let sql = "SELECT pg_create_logical_replication_slot($1, 'pgoutput')";
    client.execute(sql, &[&slot]).await.map(drop)
}

/// Only a procedure can commit in a loop on the server.
const LOADER: &str = "
CREATE PROCEDURE bench_load(begun int, rows int, tx_rows int, topics int, keys int, words int) LANGUAGE plpgsql AS $$
DECLARE
    done int := begun;
BEGIN
    WHILE done < rows LOOP
        INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload)
        SELECT gen_random_uuid(), 'order', 'order-' || n % keys, 'BenchEvent' || n % topics,
               jsonb_build_object('order_id', n, 'customer', 'customer-' || n % 977,
                                  'amount_cents', n * 7 % 100000, 'currency', 'EUR',
                                  'note', repeat('postrider ', words))
        FROM generate_series(done, least(done + tx_rows, rows) - 1) AS n;
        COMMIT;
        done := done + tx_rows;
    END LOOP;
END $$";

/// Returns the position behind the rows.
pub(super) async fn write(client: &Client, plan: Rows) -> Result<Lsn, tokio_postgres::Error> {
    client.batch_execute("SET synchronous_commit = off").await?;
    client.batch_execute(LOADER).await?;
    let keys = (plan.count / ROWS_PER_KEY).max(1);
    let piece = ROWS_PER_SNAPSHOT.next_multiple_of(plan.per_transaction);
    for begun in (0..plan.count).step_by(piece as usize) {
        let call = format!(
            "CALL bench_load({begun}, {}, {}, {}, {keys}, {})",
            plan.count.min(begun.saturating_add(piece)),
            plan.per_transaction,
            plan.topics,
            plan.note_words
        );
        client.batch_execute(&call).await?;
        client.batch_execute("CHECKPOINT").await?;
    }
    // A synchronous commit flushes everything before it.
    client.batch_execute("SET synchronous_commit = on").await?;
    client.batch_execute("CREATE TABLE bench_loaded ()").await?;
    let row = client.query_one("SELECT pg_current_wal_flush_lsn()::text", &[]).await?;
    let text: String = row.get(0);
    Ok(text.parse().unwrap_or_default())
}
