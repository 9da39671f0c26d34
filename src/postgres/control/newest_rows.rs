//! Reads a table's newest rows as the stream would have sent them, for `postrider route --table`.
//!
//! Invariant: nothing is written, and only SELECT's lock is taken.

use tokio_postgres::types::ToSql;
use tokio_postgres::{SimpleQueryMessage, SimpleQueryRow};

use super::connect::Client;
use super::encoding::UNTRANSLATABLE;
use super::error::ControlError;
use super::hint_text::qualified;
use super::inspect::{get, letter};
use super::requirements_check::unsuitable;
use crate::wal::quote::identifier;
use crate::wal::{Class, RowColumn, columns_sql};
use postrider_core::outbox::TableName;

const DOING: &str = "reading rows";

/// Rows from the oldest to the newest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewestRows {
    /// Columns without generated ones, which are not sent.
    pub columns: Vec<RowColumn>,
    pub rows: Vec<Vec<Option<String>>>,
    /// Omitted rows with a character that UTF8 lacks.
    pub untranslatable: usize,
}

/// Settings of the replication session.
const SETTINGS: &str = "SET TimeZone = 'UTC'; SET DateStyle = 'ISO'; SET IntervalStyle = 'postgres'; \
    SET extra_float_digits = 3; SET bytea_output = 'hex'";

const TABLE: &str = "\
    SELECT c.oid, c.relkind::text, c.relpersistence::text \
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
    WHERE n.nspname = $1::text AND c.relname = $2::text";

/// Pages read first: 8 MiB with the usual page size.
const TAIL_PAGES: i64 = 1_024;
const TAIL_GROWTH: i64 = 16;

/// The table's last rows count as the newest, which is true for an append-only table. From version
/// 14 on, only the end of a large table is read.
pub async fn newest_rows(
    client: &Client,
    table: &TableName,
    limit: u32,
) -> Result<NewestRows, ControlError> {
    let columns = columns_of(client, table).await?;
    let list: Vec<String> = columns.iter().map(|column| identifier(&column.name)).collect();
    let list = list.join(", ");
    let all = pages(client, table).await?;
    let mut tail = TAIL_PAGES;
    let (mut rows, untranslatable) = loop {
        let first = all.saturating_sub(tail).max(0);
        let from = if first > 0 { format!("WHERE ctid >= '({first},0)'") } else { String::new() };
        let newest = format!("{from} ORDER BY ctid DESC LIMIT {limit}");
        let (rows, untranslatable) = last(client, table, &list, &newest).await?;
        if first == 0 || rows.len() + untranslatable >= limit as usize {
            break (rows, untranslatable);
        }
        tail = tail.saturating_mul(TAIL_GROWTH);
    };
    rows.reverse();
    Ok(NewestRows { columns, rows, untranslatable })
}

/// 0 if partitioned, and before 14, where a range of pages is not faster to read.
async fn pages(client: &Client, table: &TableName) -> Result<i64, ControlError> {
    const SQL: &str = "\
        SELECT CASE WHEN current_setting('server_version_num')::int >= 140000 AND c.relkind = 'r' \
            AND NOT c.relhassubclass \
            THEN pg_relation_size(c.oid) / current_setting('block_size')::bigint ELSE 0 END \
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
        WHERE n.nspname = $1::text AND c.relname = $2::text";
    let names: [&(dyn ToSql + Sync); 2] = [&table.schema, &table.name];
    let row = client.run(DOING, client.sql().query_opt(SQL, &names)).await?;
    // The next statement reports a dropped table better.
    row.map_or(Ok(0), |row| get::<Option<i64>>(&row, 0).map(Option::unwrap_or_default))
}

/// Rows from the last one backwards, and the number of untranslatable ones.
async fn last(
    client: &Client,
    table: &TableName,
    list: &str,
    newest: &str,
) -> Result<(Vec<Vec<Option<String>>>, usize), ControlError> {
    let name = qualified(table);
    let error = match texts(client, &format!("SELECT {list} FROM {name} {newest}")).await {
        Ok(rows) => return Ok((rows, 0)),
        Err(error) => error,
    };
    if error.class() == Class::Permission {
        let (_, role) = whereabouts(client).await?;
        return Err(ControlError::TableForbidden { table: table.clone(), role });
    }
    // An untranslatable row fails the whole query.
    if !error.is_of(&UNTRANSLATABLE) {
        return Err(error);
    }
    let (mut rows, mut untranslatable) = (Vec::new(), 0);
    for place in texts(client, &format!("SELECT tableoid, ctid FROM {name} {newest}")).await? {
        let [Some(part), Some(ctid)] = place.as_slice() else {
            unreachable!("every row has these")
        };
        let one =
            format!("SELECT {list} FROM {name} WHERE tableoid = '{part}' AND ctid = '{ctid}'");
        match texts(client, &one).await {
            Err(error) if error.is_of(&UNTRANSLATABLE) => untranslatable += 1,
            found => rows.extend(found?),
        }
    }
    Ok((rows, untranslatable))
}

/// Columns of the stream. From now on this session prints values like the stream.
pub(super) async fn columns_of(
    client: &Client,
    table: &TableName,
) -> Result<Vec<RowColumn>, ControlError> {
    client.run(DOING, client.sql().batch_execute(SETTINGS)).await?;
    let oid = find(client, table).await?;
    let rows = client.run(DOING, client.sql().query(&columns_sql("$1::oid"), &[&oid])).await?;
    let column = |row| {
        Ok(RowColumn {
            name: get(row, 0)?,
            type_oid: get(row, 1)?,
            modifier: get(row, 2)?,
            is_nullable: get(row, 3)?,
        })
    };
    rows.iter().map(column).collect()
}

/// Rows in the simple protocol's text, like the stream's.
pub(super) async fn texts(
    client: &Client,
    sql: &str,
) -> Result<Vec<Vec<Option<String>>>, ControlError> {
    let answer = client.run(DOING, client.sql().simple_query(sql)).await?;
    let rows = answer.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    let values =
        |row: &SimpleQueryRow| (0..row.len()).map(|at| row.get(at).map(str::to_owned)).collect();
    Ok(rows.map(values).collect())
}

/// Refuses every table that `run` would refuse.
async fn find(client: &Client, table: &TableName) -> Result<u32, ControlError> {
    let names: [&(dyn ToSql + Sync); 2] = [&table.schema, &table.name];
    let Some(row) = client.run(DOING, client.sql().query_opt(TABLE, &names)).await? else {
        let (database, _) = whereabouts(client).await?;
        return Err(ControlError::TableMissing { table: table.clone(), database });
    };
    match unsuitable(letter(&row, 1)?, letter(&row, 2)?) {
        Some(kind) => Err(ControlError::TableUnsuitable { table: table.clone(), kind }),
        None => get(&row, 0),
    }
}

async fn whereabouts(client: &Client) -> Result<(String, String), ControlError> {
    const SQL: &str = "SELECT current_database()::text, session_user::text";
    let row = client.run(DOING, client.sql().query_one(SQL, &[])).await?;
    Ok((get(&row, 0)?, get(&row, 1)?))
}
