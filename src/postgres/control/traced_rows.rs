//! Reads the rows of a table with given ids, for `postrider trace`.
//!
//! Invariant: only Postgres decides which texts are equal ids. A text that the type does not accept
//! matches no row and causes no error. Nothing is written. PostgreSQL 12 to 18.

use super::connect::Client;
use super::error::ControlError;
use super::hint_text::qualified;
use super::newest_rows::{columns_of, texts};
use super::prune::not_passed;
use crate::wal::RowColumn;
use crate::wal::quote::{identifier, literal};
use postrider_core::outbox::TableName;

const AT_ONCE: usize = 500;

/// invalid_text_representation, numeric_value_out_of_range.
const NO_ID: [&str; 2] = ["22P02", "22003"];

#[derive(Debug, Clone, Copy)]
pub struct RowSearch<'a> {
    /// Possible names of the id column.
    pub id_names: &'a [String],
    pub created_at: &'a str,
    /// Slot that may have passed the row.
    pub slot: &'a str,
    pub ids: &'a [String],
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TracedRows {
    /// Columns without generated ones, which are not sent.
    pub columns: Vec<RowColumn>,
    pub rows: Vec<TracedRow>,
    /// Ids as given, and as the column's type prints them.
    pub forms: Vec<(String, String)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracedRow {
    pub asked: String,
    pub id: String,
    pub values: Vec<Option<String>>,
    /// Time of writing since the Unix epoch.
    pub written_ms: Option<i64>,
    pub is_passed: bool,
}

pub async fn rows_with_ids(
    client: &Client,
    table: &TableName,
    search: RowSearch<'_>,
) -> Result<TracedRows, ControlError> {
    let columns = columns_of(client, table).await?;
    let has = |name: &str| columns.iter().any(|column| column.name == name);
    let id = search.id_names.iter().find_map(|name| columns.iter().find(|it| it.name == **name));
    let Some(id) = id else {
        return Ok(TracedRows { columns, ..TracedRows::default() });
    };
    let time = if has(search.created_at) {
        format!("(extract(epoch FROM t.{}) * 1000)::bigint", identifier(search.created_at))
    } else {
        "NULL".to_owned()
    };
    let of_type = type_name(client, id.type_oid).await?;
    let id = identifier(&id.name);
    let mut list: Vec<String> =
        columns.iter().map(|column| format!("t.{}", identifier(&column.name))).collect();
    list.extend([
        "v.asked".to_owned(),
        format!("t.{id}::text"),
        time,
        format!("NOT ({})", not_passed(&literal(search.slot))),
    ]);
    let (list, table) = (list.join(", "), qualified(table));
    let rows_of = |ids: &str| {
        format!("SELECT {list} FROM {ids} JOIN {table} AS t ON t.{id} = v.asked::{of_type}")
    };
    let forms_of = |ids: &str| format!("SELECT v.asked, v.asked::{of_type}::text FROM {ids}");
    let (mut rows, mut forms) = (Vec::new(), Vec::new());
    for ids in search.ids.chunks(AT_ONCE) {
        rows.extend(of_ids(client, &rows_of, ids).await?.into_iter().filter_map(row));
        forms.extend(of_ids(client, &forms_of, ids).await?.into_iter().filter_map(form));
    }
    Ok(TracedRows { columns, rows, forms })
}

/// Type for a cast, without a length that would truncate.
async fn type_name(client: &Client, oid: u32) -> Result<String, ControlError> {
    let found = texts(client, &format!("SELECT pg_catalog.format_type({oid}, -1)")).await?;
    let name = found.into_iter().next().and_then(|row| row.into_iter().next().flatten());
    Ok(name.unwrap_or_else(|| unreachable!("format_type has an answer for every number")))
}

type Texts = Vec<Vec<Option<String>>>;

/// An invalid id fails the whole query.
async fn of_ids(
    client: &Client,
    query: &impl Fn(&str) -> String,
    ids: &[String],
) -> Result<Texts, ControlError> {
    let sql = |ids: &[String]| {
        let ids: Vec<_> = ids.iter().map(|id| format!("({}::text)", literal(id))).collect();
        query(&format!("(VALUES {}) AS v (asked)", ids.join(", ")))
    };
    let is_no_id = |error: &ControlError| NO_ID.iter().any(|code| error.is_of(&[code]));
    match texts(client, &sql(ids)).await {
        Err(error) if is_no_id(&error) => {}
        found => return found,
    }
    let mut rows = Vec::new();
    for one in ids {
        match texts(client, &sql(std::slice::from_ref(one))).await {
            Err(error) if is_no_id(&error) => {}
            found => rows.extend(found?),
        }
    }
    Ok(rows)
}

fn form(values: Vec<Option<String>>) -> Option<(String, String)> {
    let [asked, form] = values.try_into().ok()?;
    Some((asked?, form?))
}

fn row(mut values: Vec<Option<String>>) -> Option<TracedRow> {
    let is_passed = values.pop()?.as_deref() == Some("t");
    let written_ms = values.pop()?.and_then(|ms| ms.parse().ok());
    let id = values.pop()??;
    let asked = values.pop()??;
    Some(TracedRow { asked, id, values, written_ms, is_passed })
}
