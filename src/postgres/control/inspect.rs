//! Reads the database facts that the relay needs.
//!
//! Input: [`Requirements`]. Output: an [`Inspection`] of facts, which `requirements_check` judges.
//! PostgreSQL 12 to 18: columns that a version lacks are read through `to_jsonb`.

use std::time::Duration;

use tokio_postgres::Row;

use super::connect::{Client, sql_error};
use super::error::ControlError;
use super::grants::{self, LackingRights};
use super::slot::{SlotFacts, slot};
use crate::wal::WalError;
use postrider_core::lsn::Lsn;
use postrider_core::outbox::{TableName, Wanted};

const DOING: &str = "inspecting the database";

/// First version with publications of all tables of a schema.
const SCHEMAS_SINCE: i32 = 150_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirements {
    pub slot: String,
    pub publication: String,
    pub tables: Vec<TableName>,
    /// Columns to read; required ones must exist in each table.
    pub columns: Vec<Wanted>,
    /// Servers before 14 do not send logical messages.
    pub messages: bool,
    pub create: bool,
    pub new_slot: NewSlot,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NewSlot {
    Plain,
    Failover,
    OfStandby,
}

/// First version that decodes in recovery.
pub(super) const STANDBY_STREAMS_SINCE: i32 = 160_000;

pub const FAILOVER_SLOTS_SINCE: i32 = 170_000;

impl Requirements {
    pub const fn makes_failover_slot(&self, server: &ServerFacts) -> bool {
        matches!(self.new_slot, NewSlot::Failover) && server.version_num >= FAILOVER_SLOTS_SINCE
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspection {
    pub server: ServerFacts,
    /// Tables in the order of [`Requirements::tables`].
    pub tables: Vec<Option<TableFacts>>,
    pub publication: Option<PublicationFacts>,
    pub slot: Option<SlotFacts>,
    pub others: Others,
    pub lacking: LackingRights,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Others {
    pub publications: Vec<String>,
    pub slots: Vec<String>,
}

impl Inspection {
    pub fn not_null(&self, wanted: &Requirements) -> Vec<(TableName, String)> {
        let tables = wanted.tables.iter().zip(&self.tables);
        let columns = tables.flat_map(|(name, facts)| {
            let columns = facts.iter().flat_map(|facts| &facts.not_null);
            columns.map(|column| (name.clone(), column.clone()))
        });
        columns.collect()
    }

    /// A partition's own OID counts if `publish_via_partition_root` was off when the rows were
    /// written. The tables' OIDs come last, because one table may be another's partition.
    pub fn oids(&self, wanted: &Requirements) -> Vec<(TableName, u32)> {
        let tables = || wanted.tables.iter().zip(&self.tables);
        let partitions = tables().flat_map(|(name, facts)| {
            let parts = facts.iter().flat_map(|facts| &facts.parts);
            parts.filter(|part| part.is_partition).map(|part| (name.clone(), part.oid))
        });
        let own = tables().filter_map(|(name, facts)| Some((name.clone(), facts.as_ref()?.oid)));
        partitions.chain(own).collect()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFacts {
    /// Version, for example 150018 for 15.18.
    pub version_num: i32,
    pub encoding: String,
    pub wal_level: String,
    /// Silence after which the server ends a stream; zero is never.
    pub wal_sender_timeout: Duration,
    pub in_recovery: bool,
    pub database: String,
    pub role: String,
    pub may_replicate: bool,
    /// System identifier and the last checkpoint's timeline. IDENTIFY_SYSTEM is authoritative.
    pub system: Option<(String, u32)>,
}

impl ServerFacts {
    pub fn is_sql_ascii(&self) -> bool {
        self.encoding == "SQL_ASCII"
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableFacts {
    pub oid: u32,
    pub kind: char,
    pub persistence: char,
    pub columns: Vec<String>,
    pub not_null: Vec<String>,
    /// Generated columns are in the stream only from 18 on, and only if published.
    pub generated: Vec<String>,
    pub parts: Vec<PartFacts>,
    pub published: Option<Published>,
}

impl TableFacts {
    pub fn is_partitioned(&self) -> bool {
        self.kind == 'p'
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartFacts {
    pub oid: u32,
    pub name: TableName,
    /// Rows of a partition are published under the table's name.
    pub is_partition: bool,
    pub kind: char,
    pub persistence: char,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    pub filters_rows: bool,
    /// Empty if the server does not show them (before 15: all). Before 18 they include generated
    /// ones, which are not sent.
    pub columns: Vec<String>,
    /// OID of the table's or schema's entry. Removing and adding it changes the OID. `None` in a
    /// publication of all tables.
    pub member: Option<u32>,
    /// Transaction that put a table into its published schema (`xmin` of the dependency).
    pub place: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicationFacts {
    pub oid: u32,
    /// `xmin` of the publication's row: changes with options, name and owner.
    pub xid: u32,
    pub inserts: bool,
    /// UPDATE, DELETE or TRUNCATE, which the relay only counts.
    pub other_changes: bool,
    pub via_partition_root: bool,
    pub others: i64,
    pub first_others: Vec<TableName>,
}

pub async fn inspect(client: &Client, wanted: &Requirements) -> Result<Inspection, ControlError> {
    let server = server(client).await?;
    // Reads the slot before the publication, because another relay creates them in the other order.
    // A slot seen here without its publication really lacks it.
    let slot = slot(client, &wanted.slot).await?;
    let publication = publication(client, wanted).await?;
    let mut tables = Vec::new();
    for table in &wanted.tables {
        let publication = (wanted.publication.as_str(), server.version_num >= SCHEMAS_SINCE);
        tables.push(self::table(client, table, publication).await?);
    }
    let mut others = Others::default();
    if publication.is_none() {
        others.publications = publications(client, wanted).await?;
    }
    if slot.is_none() {
        const SQL: &str = "SELECT slot_name::text FROM pg_catalog.pg_replication_slots \
            WHERE database = current_database() AND plugin = 'pgoutput' ORDER BY 1 LIMIT 20";
        others.slots = names(client, SQL).await?;
    }
    let schemas = wanted.schemas_of_missing(&tables);
    let lacking = if schemas.is_empty() && publication.is_some() {
        LackingRights::default()
    } else {
        grants::lacking(client, &schemas, publication.is_some()).await?
    };
    Ok(Inspection { server, tables, publication, slot, others, lacking })
}

/// Names, those with a configured table first.
async fn publications(client: &Client, wanted: &Requirements) -> Result<Vec<String>, ControlError> {
    const SQL: &str = "\
        SELECT p.pubname::text FROM pg_catalog.pg_publication p \
        ORDER BY NOT EXISTS (SELECT FROM pg_catalog.pg_publication_tables t \
            WHERE t.pubname = p.pubname AND t.schemaname::text = ANY ($1::text[]) \
            AND t.tablename::text = ANY ($2::text[])), 1 LIMIT 20";
    let (schemas, names): (Vec<_>, Vec<_>) =
        wanted.tables.iter().map(|table| (&table.schema, &table.name)).unzip();
    let rows = client.run(DOING, client.sql().query(SQL, &[&schemas, &names])).await?;
    rows.iter().map(|row| get(row, 0)).collect()
}

async fn names(client: &Client, sql: &str) -> Result<Vec<String>, ControlError> {
    let rows = client.run(DOING, client.sql().query(sql, &[])).await?;
    rows.iter().map(|row| get(row, 0)).collect()
}

/// Reads server, database and role alone.
///
/// # Panics
///
/// Panics if `wal_sender_timeout` is negative, which Postgres does not allow.
pub async fn server(client: &Client) -> Result<ServerFacts, ControlError> {
    const SQL: &str = "\
        SELECT current_setting('server_version_num')::int, current_setting('server_encoding'), \
            current_setting('wal_level'), \
            (SELECT setting::bigint FROM pg_catalog.pg_settings WHERE name = 'wal_sender_timeout'), \
            pg_is_in_recovery(), current_database()::text, session_user::text, \
            EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = session_user \
                AND (r.rolsuper OR r.rolreplication)) \
            OR EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = 'rds_replication' \
                AND pg_has_role(session_user, r.oid, 'member'))";
    const SYSTEM: &str = "\
        SELECT (SELECT system_identifier::text FROM pg_control_system()), \
            (SELECT timeline_id FROM pg_control_checkpoint())";
    let row = client.run(DOING, client.sql().query_one(SQL, &[])).await?;
    let timeout_ms: i64 = get(&row, 3)?;
    assert!(timeout_ms >= 0, "wal_sender_timeout is {timeout_ms} ms, and its least value is 0");
    let system = match client.run(DOING, client.sql().query_one(SYSTEM, &[])).await {
        // SQL lacks unsigned numbers.
        Ok(row) => Some((get(&row, 0)?, get::<i32>(&row, 1)?.cast_unsigned())),
        // Managed servers may hide it.
        Err(error) if error.class() == crate::wal::Class::Permission => None,
        Err(error) => return Err(error),
    };
    Ok(ServerFacts {
        version_num: get(&row, 0)?,
        encoding: get(&row, 1)?,
        wal_level: get(&row, 2)?,
        wal_sender_timeout: Duration::from_millis(timeout_ms.unsigned_abs()),
        in_recovery: get(&row, 4)?,
        database: get(&row, 5)?,
        role: get(&row, 6)?,
        may_replicate: get(&row, 7)?,
        system,
    })
}

async fn publication(
    client: &Client,
    wanted: &Requirements,
) -> Result<Option<PublicationFacts>, ControlError> {
    const SQL: &str = "\
        SELECT p.oid, p.pubinsert, p.pubupdate OR p.pubdelete OR p.pubtruncate, \
            coalesce((to_jsonb(p)->>'pubviaroot')::bool, false), p.xmin::text::oid \
        FROM pg_catalog.pg_publication p WHERE p.pubname = $1::text";
    const OTHERS: &str = "\
        SELECT t.schemaname::text, t.tablename::text, count(*) OVER () \
        FROM pg_catalog.pg_publication_tables t \
        WHERE t.pubname = $1::text AND (t.schemaname::text, t.tablename::text) NOT IN \
            (SELECT s.name, r.name FROM unnest($2::text[]) WITH ORDINALITY AS s (name, place) \
                JOIN unnest($3::text[]) WITH ORDINALITY AS r (name, place) USING (place)) \
        ORDER BY 1, 2 LIMIT 5";
    let name = &wanted.publication;
    let row = client.run(DOING, client.sql().query_opt(SQL, &[name])).await?;
    let Some(row) = row else { return Ok(None) };
    let (schemas, names): (Vec<_>, Vec<_>) =
        wanted.tables.iter().map(|table| (&table.schema, &table.name)).unzip();
    let others = client.run(DOING, client.sql().query(OTHERS, &[name, &schemas, &names])).await?;
    let table = |row: &Row| Ok(TableName::new(&get::<String>(row, 0)?, &get::<String>(row, 1)?));
    Ok(Some(PublicationFacts {
        oid: get(&row, 0)?,
        xid: get(&row, 4)?,
        inserts: get(&row, 1)?,
        other_changes: get(&row, 2)?,
        via_partition_root: get(&row, 3)?,
        others: others.first().map_or(Ok(0), |row| get(row, 2))?,
        first_others: others.iter().map(table).collect::<Result<_, ControlError>>()?,
    }))
}

const LOOKS_MAX: usize = 5;

/// A publication's columns come partly from the server's caches. No single statement sees both at
/// one moment, so a look during DDL is repeated.
async fn table(
    client: &Client,
    table: &TableName,
    publication: (&str, bool),
) -> Result<Option<TableFacts>, ControlError> {
    let mut before = relation(client, table).await?;
    for _ in 0..LOOKS_MAX {
        let Some(relation) = before else { return Ok(None) };
        let oid = relation.facts.oid;
        let published = published(client, table, publication, oid).await?;
        let parts = parts(client, oid).await?;
        before = self::relation(client, table).await?;
        if before.as_ref() == Some(&relation) {
            return Ok(Some(TableFacts { parts, published, ..relation.facts }));
        }
    }
    Err(ControlError::Connection {
        doing: DOING,
        source: WalError::Protocol("a table that keeps changing while it is inspected"),
    })
}

#[derive(PartialEq)]
struct Relation {
    facts: TableFacts,
    /// Transactions that last wrote the columns' entries: they reveal a reverted rename.
    writers: Vec<String>,
}

async fn relation(client: &Client, table: &TableName) -> Result<Option<Relation>, ControlError> {
    const SQL: &str = "\
        SELECT c.oid, c.relkind::text, c.relpersistence::text, \
            ARRAY(SELECT a.attname::text FROM pg_catalog.pg_attribute a \
                WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum), \
            ARRAY(SELECT a.attname::text FROM pg_catalog.pg_attribute a \
                WHERE a.attrelid = c.oid AND a.attnum > 0 AND a.attnotnull AND NOT a.attisdropped \
                ORDER BY a.attnum), \
            ARRAY(SELECT a.xmin::text FROM pg_catalog.pg_attribute a \
                WHERE a.attrelid = c.oid AND a.attnum > 0 ORDER BY a.attnum), \
            ARRAY(SELECT a.attname::text FROM pg_catalog.pg_attribute a \
                WHERE a.attrelid = c.oid AND a.attnum > 0 AND a.attgenerated <> '' ORDER BY a.attnum) \
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
        WHERE n.nspname = $1::text AND c.relname = $2::text";
    let (schema, name) = (table.schema.as_str(), table.name.as_str());
    let found = client.run(DOING, client.sql().query_opt(SQL, &[&schema, &name])).await?;
    let Some(row) = found else { return Ok(None) };
    let facts = TableFacts {
        oid: get(&row, 0)?,
        kind: letter(&row, 1)?,
        persistence: letter(&row, 2)?,
        columns: get(&row, 3)?,
        not_null: get(&row, 4)?,
        generated: get(&row, 6)?,
        parts: Vec::new(),
        published: None,
    };
    Ok(Some(Relation { facts, writers: get(&row, 5)? }))
}

async fn published(
    client: &Client,
    table: &TableName,
    (publication, has_schemas): (&str, bool),
    oid: u32,
) -> Result<Option<Published>, ControlError> {
    const OF_SCHEMA: &str = "\
        (SELECT s.oid FROM pg_catalog.pg_publication_namespace s \
            JOIN pg_catalog.pg_publication p ON p.oid = s.pnpubid \
            JOIN pg_catalog.pg_class c ON c.relnamespace = s.pnnspid \
            WHERE p.pubname = t.pubname AND c.oid = $4::oid)";
    const OF_TABLE: &str = "\
        (SELECT r.oid FROM pg_catalog.pg_publication_rel r \
            JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid \
            WHERE p.pubname = t.pubname AND r.prrelid = $4::oid)";
    const PLACE: &str = "\
        (SELECT d.xmin::text::oid FROM pg_catalog.pg_depend d \
            WHERE d.classid = 'pg_catalog.pg_class'::regclass AND d.objid = $4::oid AND d.objsubid = 0 \
            AND d.refclassid = 'pg_catalog.pg_namespace'::regclass LIMIT 1)";
    let of_schema = if has_schemas { OF_SCHEMA } else { "NULL" };
    let sql = format!(
        "SELECT to_jsonb(t)->>'rowfilter' IS NOT NULL, \
            ARRAY(SELECT jsonb_array_elements_text(to_jsonb(t)->'attnames')), \
            coalesce({OF_TABLE}, {of_schema}), \
            CASE WHEN {OF_TABLE} IS NULL AND {of_schema} IS NOT NULL THEN {PLACE} END \
        FROM pg_catalog.pg_publication_tables t \
        WHERE t.pubname = $1::text AND t.schemaname = $2::text AND t.tablename = $3::text"
    );
    let (schema, name) = (table.schema.as_str(), table.name.as_str());
    let found = client
        .run(DOING, client.sql().query_opt(&sql, &[&publication, &schema, &name, &oid]))
        .await?;
    found
        .map(|row| {
            let (filters_rows, columns) = (get(&row, 0)?, get(&row, 1)?);
            Ok(Published { filters_rows, columns, member: get(&row, 2)?, place: get(&row, 3)? })
        })
        .transpose()
}

async fn parts(client: &Client, table: u32) -> Result<Vec<PartFacts>, ControlError> {
    const SQL: &str = "\
        WITH RECURSIVE part (oid) AS ( \
            SELECT inhrelid FROM pg_catalog.pg_inherits WHERE inhparent = $1::oid \
            UNION SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN part ON i.inhparent = part.oid) \
        SELECT n.nspname::text, c.relname::text, c.relispartition, c.relkind::text, \
            c.relpersistence::text, c.oid \
        FROM part JOIN pg_catalog.pg_class c ON c.oid = part.oid \
        JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace ORDER BY 1, 2";
    let rows = client.run(DOING, client.sql().query(SQL, &[&table])).await?;
    let part = |row: &Row| {
        Ok(PartFacts {
            name: TableName::new(&get::<String>(row, 0)?, &get::<String>(row, 1)?),
            is_partition: get(row, 2)?,
            kind: letter(row, 3)?,
            persistence: letter(row, 4)?,
            oid: get(row, 5)?,
        })
    };
    rows.iter().map(part).collect()
}

pub(super) fn letter(row: &Row, column: usize) -> Result<char, ControlError> {
    get::<&str>(row, column)?.chars().next().ok_or(ControlError::Connection {
        doing: DOING,
        source: WalError::Protocol("an empty letter in the catalog"),
    })
}

/// The statements name every type, so a mismatch is the server's fault.
pub(super) fn get<'a, T: tokio_postgres::types::FromSql<'a>>(
    row: &'a Row,
    column: usize,
) -> Result<T, ControlError> {
    row.try_get(column)
        .map_err(|error| ControlError::Connection { doing: DOING, source: sql_error(&error) })
}

/// Position that must exist. If it does not exist yet, the caller asks again.
pub(super) fn known(row: &Row, column: usize) -> Result<Lsn, ControlError> {
    position(row, column)?.ok_or(ControlError::Connection {
        doing: DOING,
        source: WalError::Protocol("a position that the server does not know yet"),
    })
}

pub(super) fn position(row: &Row, column: usize) -> Result<Option<Lsn>, ControlError> {
    let text: Option<String> = get(row, column)?;
    let unreadable = |_| ControlError::Connection {
        doing: DOING,
        source: WalError::Protocol("a position that is none"),
    };
    text.map(|text| text.parse().map_err(unreadable)).transpose()
}
