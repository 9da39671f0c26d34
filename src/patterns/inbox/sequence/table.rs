//! The last handled number of each aggregate: reads and writes `consumer_sequences`. Invariant: a
//! row is advanced in the transaction of the effects, and only from the number that was read. If
//! two members handle an aggregate at once, the second is rolled back.

use std::collections::BTreeMap;

use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error, GenericClient, Row, Statement};

use super::super::session::{Database, PgSession, RolledBack, TransactionFailure, marker_error};
use super::super::{ConsumerSpec, Failure, sqlstate::FailureCause};
use super::{Aggregate, SequenceStart, SequenceStep};

const READ: &str = "\
    SELECT kept.aggregate_type, kept.aggregate_id, kept.last \
    FROM unnest($2, $3) AS wanted (aggregate_type, aggregate_id) \
    JOIN consumer_sequences AS kept USING (aggregate_type, aggregate_id) WHERE kept.consumer = $1";

const ADVANCE: &str = "\
    WITH new AS ( \
        SELECT * FROM unnest($2, $3, $4, $5) AS new (aggregate_type, aggregate_id, was, last) \
    ), updated AS ( \
        UPDATE consumer_sequences AS kept SET last = new.last, updated_at = now() FROM new \
        WHERE kept.consumer = $1 AND kept.aggregate_type = new.aggregate_type \
        AND kept.aggregate_id = new.aggregate_id AND kept.last = new.was RETURNING 1 \
    ), inserted AS ( \
        INSERT INTO consumer_sequences (consumer, aggregate_type, aggregate_id, last) \
        SELECT $1, aggregate_type, aggregate_id, last FROM new WHERE was IS NULL \
        ON CONFLICT DO NOTHING RETURNING 1 \
    ) \
    SELECT (SELECT count(*) FROM updated) + (SELECT count(*) FROM inserted)";

const READ_TYPES: [Type; 3] = [Type::TEXT, Type::TEXT_ARRAY, Type::TEXT_ARRAY];
const ADVANCE_TYPES: [Type; 5] =
    [Type::TEXT, Type::TEXT_ARRAY, Type::TEXT_ARRAY, Type::INT8_ARRAY, Type::INT8_ARRAY];

pub(in crate::inbox) struct SequenceTable {
    read: Statement,
    advance: Statement,
    pub(in crate::inbox) start: SequenceStart,
}

#[derive(Debug, thiserror::Error)]
#[error("another member has advanced the sequence of an aggregate")]
struct AdvancedByAnother;

impl SequenceTable {
    /// `None` if the consumer does not enforce an order.
    pub(in crate::inbox) async fn prepare(
        client: &Client,
        start: Option<SequenceStart>,
    ) -> Result<Option<Self>, Error> {
        let Some(start) = start else { return Ok(None) };
        let read = client.prepare_typed(READ, &READ_TYPES).await?;
        let advance = client.prepare_typed(ADVANCE, &ADVANCE_TYPES).await?;
        Ok(Some(Self { read, advance, start }))
    }

    pub(in crate::inbox) async fn read<C: GenericClient>(
        &self,
        client: &C,
        consumer: &str,
        aggregates: &[Aggregate],
    ) -> Result<BTreeMap<Aggregate, i64>, RolledBack> {
        let (types, ids) = columns(aggregates);
        let rows = client.query(&self.read, &[&consumer, &types, &ids]).await;
        let last = |row: &Row| Ok(((row.try_get(0)?, row.try_get(1)?), row.try_get(2)?));
        rows.and_then(|rows| rows.iter().map(last).collect()).map_err(marker_error)
    }

    pub(in crate::inbox) async fn advance<C: GenericClient>(
        &self,
        client: &C,
        consumer: &str,
        steps: &[SequenceStep],
    ) -> Result<(), RolledBack> {
        let aggregates: Vec<Aggregate> = steps.iter().map(|step| step.aggregate.clone()).collect();
        let (types, ids) = columns(&aggregates);
        let was: Vec<Option<i64>> = steps.iter().map(|step| step.was).collect();
        let last: Vec<i64> = steps.iter().map(|step| step.last).collect();
        let row = client.query_one(&self.advance, &[&consumer, &types, &ids, &was, &last]).await;
        let count: Result<i64, Error> = row.and_then(|row| row.try_get(0));
        let count = count.map_err(marker_error)?;
        if usize::try_from(count).is_ok_and(|count| count == steps.len()) {
            return Ok(());
        }
        let failure = Failure::technical(AdvancedByAnother);
        let failed = TransactionFailure::new(failure, None);
        Err(RolledBack::Failed(TransactionFailure { cause: FailureCause::Contention, ..failed }))
    }
}

impl Database {
    pub(in crate::inbox) async fn sequences(
        &mut self,
        aggregates: &[Aggregate],
    ) -> Result<BTreeMap<Aggregate, i64>, RolledBack> {
        let PgSession { client, consumer, sequences, .. } = self.session().await?;
        let Some(table) = sequences else { return Ok(BTreeMap::new()) };
        let outcome = table.read(&**client, consumer, aggregates).await;
        outcome.inspect_err(|rolled_back| self.end_if_unavailable(rolled_back))
    }
}

pub(in crate::inbox) fn start_of(spec: &ConsumerSpec) -> Option<SequenceStart> {
    spec.sequence.map(|sequence| sequence.start)
}

fn columns(aggregates: &[Aggregate]) -> (Vec<&str>, Vec<&str>) {
    aggregates.iter().map(|(kind, id)| (kind.as_str(), id.as_str())).unzip()
}
