//! The consumer's offsets in the database: reads and writes `consumer_offsets`.
//!
//! Invariant: every message below a row's `next_offset` is handled in this database. A row is
//! advanced in or after the transaction of the messages, and never backwards. If a row is smaller
//! than expected, the database has gone back (`RolledBack::WentBack`).

use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error, Row, Statement, Transaction};

use super::assignments::Advance;
use super::session::{Database, PgSession, RolledBack, marker_error};
use super::start::{DatabaseOffsets, Plan};

/// A consumer that lost its partition may still commit: its row is too old to change anything, or
/// the new owner finds the markers.
const ADVANCE: &str = "\
    UPDATE consumer_offsets AS kept \
    SET next_offset = greatest(kept.next_offset, new.next_offset), updated_at = now() \
    FROM unnest($2, $3, $4, $5) AS new (topic, partition, at_least, next_offset) \
    WHERE kept.consumer = $1 AND kept.topic = new.topic AND kept.partition = new.partition \
    AND kept.next_offset >= new.at_least";

/// A standby, which may be behind, refuses the lock. Sessions that advance the row do not block it.
const READ: &str = "\
    SELECT topic, partition, next_offset FROM consumer_offsets WHERE consumer = $1 FOR KEY SHARE";

const HAS_MARKERS: &str = "SELECT EXISTS (SELECT FROM processed_messages WHERE consumer = $1)";

/// Another member may have written the row since.
const CREATE: &str = "\
    INSERT INTO consumer_offsets (consumer, topic, partition, next_offset) \
    SELECT $1, new.* FROM unnest($2, $3, $4) AS new ON CONFLICT DO NOTHING";

const RESET: &str = "\
    UPDATE consumer_offsets AS kept SET next_offset = new.next_offset, updated_at = now() \
    FROM unnest($2, $3, $4, $5) AS new (topic, partition, was, next_offset) \
    WHERE kept.consumer = $1 AND kept.topic = new.topic AND kept.partition = new.partition \
    AND kept.next_offset = new.was";

const CREATE_TYPES: [Type; 4] = [Type::TEXT, Type::TEXT_ARRAY, Type::INT4_ARRAY, Type::INT8_ARRAY];
const ADVANCE_TYPES: [Type; 5] =
    [Type::TEXT, Type::TEXT_ARRAY, Type::INT4_ARRAY, Type::INT8_ARRAY, Type::INT8_ARRAY];

pub(super) async fn prepare_advance(client: &Client) -> Result<Statement, Error> {
    client.prepare_typed(ADVANCE, &ADVANCE_TYPES).await
}

/// After an error the transaction must be rolled back.
pub(super) async fn advance(
    client: &Transaction<'_>,
    statement: &Statement,
    consumer: &str,
    advances: &[Advance],
) -> Result<(), RolledBack> {
    if advances.is_empty() {
        return Ok(());
    }
    let topics: Vec<&str> = advances.iter().map(|it| it.partition.0.as_str()).collect();
    let partitions: Vec<i32> = advances.iter().map(|it| it.partition.1).collect();
    let at_least: Vec<i64> = advances.iter().map(|it| it.at_least).collect();
    let next: Vec<i64> = advances.iter().map(|it| it.next).collect();
    let rows = client
        .execute(statement, &[&consumer, &topics, &partitions, &at_least, &next])
        .await
        .map_err(marker_error)?;
    let is_complete = usize::try_from(rows).is_ok_and(|count| count == advances.len());
    if is_complete { Ok(()) } else { Err(RolledBack::WentBack) }
}

impl Database {
    pub(super) async fn offsets(&mut self) -> Result<DatabaseOffsets, RolledBack> {
        let PgSession { client, consumer, .. } = self.session().await?;
        let outcome = async {
            let tx = client.build_transaction().read_only(false).start().await?;
            let offsets = read(&tx, consumer).await?;
            tx.commit().await?;
            Ok(offsets)
        };
        let outcome = outcome.await.map_err(marker_error);
        outcome.inspect_err(|rolled_back| self.end_if_unavailable(rolled_back))
    }

    pub(super) async fn carry_out(&mut self, plan: &Plan) -> Result<(), RolledBack> {
        if plan.new_rows.is_empty() && plan.resets.is_empty() {
            return Ok(());
        }
        let PgSession { client, consumer, .. } = self.session().await?;
        let outcome = async {
            let tx = client.build_transaction().read_only(false).start().await?;
            write(&tx, consumer, plan).await?;
            tx.commit().await
        };
        let outcome = outcome.await.map_err(marker_error);
        outcome.inspect_err(|rolled_back| self.end_if_unavailable(rolled_back))
    }

    /// For messages that need no transaction.
    pub(super) async fn store(&mut self, advances: &[Advance]) -> Result<(), RolledBack> {
        let session = self.session().await?;
        let PgSession { client, consumer, advance: statement, .. } = session;
        let outcome = async {
            let tx = client.build_transaction().read_only(false).start().await;
            let tx = tx.map_err(marker_error)?;
            advance(&tx, statement, consumer, advances).await?;
            tx.commit().await.map_err(marker_error)
        };
        let outcome = outcome.await;
        outcome.inspect_err(|rolled_back| self.end_if_unavailable(rolled_back))
    }
}

async fn read(client: &Transaction<'_>, consumer: &str) -> Result<DatabaseOffsets, Error> {
    let rows = client.query_typed(READ, &[(&consumer, Type::TEXT)]).await?;
    let offset = |row: &Row| Ok(((row.try_get(0)?, row.try_get(1)?), row.try_get(2)?));
    let next = rows.iter().map(offset).collect::<Result<_, Error>>()?;
    let has_markers = if rows.is_empty() {
        client.query_typed_one(HAS_MARKERS, &[(&consumer, Type::TEXT)]).await?.try_get(0)?
    } else {
        true
    };
    Ok(DatabaseOffsets { next, has_markers })
}

async fn write(client: &Transaction<'_>, consumer: &str, plan: &Plan) -> Result<(), Error> {
    let rows = || plan.new_rows.iter().map(|((topic, partition), next)| (topic, partition, next));
    let topics: Vec<&str> = rows().map(|(topic, ..)| topic.as_str()).collect();
    let partitions: Vec<i32> = rows().map(|(_, partition, _)| *partition).collect();
    let next: Vec<i64> = rows().map(|(.., next)| *next).collect();
    let create = client.prepare_typed(CREATE, &CREATE_TYPES).await?;
    client.execute(&create, &[&consumer, &topics, &partitions, &next]).await?;
    if plan.resets.is_empty() {
        return Ok(());
    }
    let topics: Vec<&str> = plan.resets.iter().map(|((topic, _), ..)| topic.as_str()).collect();
    let partitions: Vec<i32> = plan.resets.iter().map(|((_, partition), ..)| *partition).collect();
    let was: Vec<i64> = plan.resets.iter().map(|(_, was, _)| *was).collect();
    let next: Vec<i64> = plan.resets.iter().map(|(.., next)| *next).collect();
    let reset = client.prepare_typed(RESET, &ADVANCE_TYPES).await?;
    client.execute(&reset, &[&consumer, &topics, &partitions, &was, &next]).await?;
    Ok(())
}
