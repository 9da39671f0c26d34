//! Reads the rows of a table that have given ids, for `postrider trace`.
//!
//! Input: a table, the names of its id column, ids as text. Output: each row's values as the stream would print them,
//! when it was written, and whether the slot has passed it. Invariant: an id that the column's type does not take is
//! in no row, and no error; nothing is written. Works on PostgreSQL 12 to 18.

use super::connect::Client;
use super::error::ControlError;
use super::hint_text::qualified;
use super::newest_rows::{columns_of, texts};
use super::prune::not_passed;
use crate::wal::RowColumn;
use crate::wal::quote::{identifier, literal};
use postrider_core::outbox::TableName;

/// So many ids are asked for at once.
const AT_ONCE: usize = 500;

/// Texts that the type of the id column does not take: invalid_text_representation, numeric_value_out_of_range.
const NO_ID: [&str; 2] = ["22P02", "22003"];

/// What is looked for.
#[derive(Debug, Clone, Copy)]
pub struct RowSearch<'a> {
    /// Names that the column with the id may have.
    pub id_names: &'a [String],
    /// The column with the time of writing, if the table has it.
    pub created_at: &'a str,
    /// The slot that may have passed the row.
    pub slot: &'a str,
    /// The ids.
    pub ids: &'a [String],
}

/// Rows of one table.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TracedRows {
    /// In the table's order; generated ones are not sent, and not here.
    pub columns: Vec<RowColumn>,
    /// In no order.
    pub rows: Vec<TracedRow>,
}

/// One row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracedRow {
    /// Its id as text.
    pub id: String,
    /// Values in the order of the columns; `None` is NULL.
    pub values: Vec<Option<String>>,
    /// When it was written, in milliseconds since the Unix epoch, if a column tells.
    pub written_ms: Option<i64>,
    /// The slot has passed whatever its transaction wrote.
    pub is_passed: bool,
}

/// Reads them.
pub async fn rows_with_ids(
    client: &Client,
    table: &TableName,
    search: RowSearch<'_>,
) -> Result<TracedRows, ControlError> {
    let columns = columns_of(client, table).await?;
    let has = |name: &str| columns.iter().any(|column| column.name == name);
    let Some(id) = search.id_names.iter().find(|name| has(name)) else {
        return Ok(TracedRows { columns, rows: Vec::new() });
    };
    let time = if has(search.created_at) {
        format!("(extract(epoch FROM t.{}) * 1000)::bigint", identifier(search.created_at))
    } else {
        "NULL".to_owned()
    };
    let mut list: Vec<String> =
        columns.iter().map(|column| format!("t.{}", identifier(&column.name))).collect();
    list.extend([
        format!("t.{}::text", identifier(id)),
        time,
        format!("NOT ({})", not_passed(&literal(search.slot))),
    ]);
    let select = format!("SELECT {} FROM {} AS t", list.join(", "), qualified(table));
    let mut rows = Vec::new();
    for ids in search.ids.chunks(AT_ONCE) {
        let found = of_ids(client, &select, &identifier(id), ids).await?;
        rows.extend(found.into_iter().filter_map(row));
    }
    Ok(TracedRows { columns, rows })
}

type Texts = Vec<Vec<Option<String>>>;

/// One id that is none fails the whole query: then each is asked for alone.
async fn of_ids(
    client: &Client,
    select: &str,
    id: &str,
    ids: &[String],
) -> Result<Texts, ControlError> {
    let query = |ids: &[String]| {
        let ids: Vec<_> = ids.iter().map(|id| literal(id)).collect();
        format!("{select} WHERE t.{id} IN ({})", ids.join(", "))
    };
    let is_no_id = |error: &ControlError| NO_ID.iter().any(|code| error.is_of(&[code]));
    match texts(client, &query(ids)).await {
        Err(error) if is_no_id(&error) => {}
        found => return found,
    }
    let mut rows = Vec::new();
    for one in ids {
        match texts(client, &query(std::slice::from_ref(one))).await {
            Err(error) if is_no_id(&error) => {}
            found => rows.extend(found?),
        }
    }
    Ok(rows)
}

fn row(mut values: Vec<Option<String>>) -> Option<TracedRow> {
    let is_passed = values.pop()?.as_deref() == Some("t");
    let written_ms = values.pop()?.and_then(|ms| ms.parse().ok());
    let id = values.pop()??;
    Some(TracedRow { id, values, written_ms, is_passed })
}
