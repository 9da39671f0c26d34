//! Reads the newest rows of the configured tables over SQL, for `route --from-database` and `setup
//! --topics`. Rows with a character that UTF8 lacks are left out, with a warning.

use super::line::{InputChange, InputColumn, InputLine};
use super::types::ColumnType;
use postrider_core::outbox::TableName;
use postrider_postgres::control::{Client, ControlError, RowColumn, newest_rows};

pub(super) async fn newest(
    client: &Client,
    tables: &[TableName],
    limit: u32,
) -> Result<Vec<InputLine>, ControlError> {
    let mut lines = Vec::new();
    for table in tables {
        let found = newest_rows(client, table, limit).await?;
        if found.untranslatable > 0 {
            let (rows, table) = (found.untranslatable, table.to_string());
            tracing::warn!(rows, table, "rows with a character that UTF8 lacks are left out here");
        }
        lines.extend(found.rows.into_iter().map(|row| line_of(table, &found.columns, row)));
    }
    Ok(lines)
}

/// Line for a row, as if it had just been inserted.
pub(super) fn line_of(
    table: &TableName,
    columns: &[RowColumn],
    values: Vec<Option<String>>,
) -> InputLine {
    let column = |(column, value): (&RowColumn, Option<String>)| InputColumn {
        name: column.name.clone(),
        declared: ColumnType {
            type_oid: column.type_oid,
            modifier: column.modifier,
            is_nullable: column.is_nullable,
        },
        value: value.map(String::into_bytes),
    };
    InputLine {
        change: InputChange::Insert,
        table: Some(table.clone()),
        columns: columns.iter().zip(values).map(column).collect(),
    }
}
