//! Determines the order of delivery for the rows of a table.
//!
//! Invariant: the columns identify every row, so that a session can resume after it. Rows of one
//! key keep this order.

use super::error::TableRowsError;
use crate::error::RelayError;
use postrider_config::Config;
use postrider_core::outbox::TableName;
use postrider_postgres::control::{Client, TableFacts, is_number, unique_columns};
use postrider_postgres::wal::{OrderColumn, WalError};

/// Column in which `outbox_append` numbers the events of an aggregate.
const SEQUENCE: &str = "sequence";
const CREATED_AT: &str = "created_at";

/// `outbox.order_by`, or sequence number and time as far as they exist. The id separates equal
/// rows.
pub(super) async fn order_of(
    config: &Config,
    client: &Client,
    table: &TableName,
    facts: &TableFacts,
) -> Result<Vec<OrderColumn>, RelayError> {
    let has = |name: &str| facts.columns.iter().any(|column| column == name);
    let mut order = Vec::new();
    if config.outbox.order_by.is_empty() {
        let is_null = !facts.not_null.iter().any(|column| column == SEQUENCE);
        if has(SEQUENCE) && is_number(client, facts.oid, SEQUENCE).await? {
            // Rows written without a sequence number come first.
            let null_as = is_null.then_some("0");
            order.push(OrderColumn { name: SEQUENCE.to_owned(), null_as });
        }
        order.extend(has(CREATED_AT).then(|| OrderColumn::not_null(CREATED_AT)));
    } else {
        order.extend(config.outbox.order_by.iter().map(OrderColumn::not_null));
    }
    let unique = unique_columns(client, table).await?;
    let is_distinct = |order: &[OrderColumn]| {
        let not_null = order.iter().filter(|column| column.null_as.is_none());
        let names: Vec<&str> = not_null.map(|column| column.name.as_str()).collect();
        unique.iter().any(|index| index.iter().all(|column| names.contains(&column.as_str())))
    };
    let id = &config.outbox.id;
    if !is_distinct(&order) && has(id) && order.iter().all(|column| column.name != *id) {
        order.push(OrderColumn::not_null(id));
    }
    for column in &order {
        if !has(&column.name) {
            let (table, column) = (table.to_string(), column.name.clone());
            return Err(WalError::OrderColumnMissing { table, column }.into());
        }
        if column.null_as.is_none() && !facts.not_null.contains(&column.name) {
            let (table, column) = (table.to_string(), column.name.clone());
            return Err(TableRowsError::OrderNullable { table, column }.into());
        }
    }
    if !is_distinct(&order) {
        let names: Vec<&str> = order.iter().map(|column| column.name.as_str()).collect();
        let (table, columns) = (table.to_string(), names.join(", "));
        return Err(TableRowsError::OrderNotUnique { table, columns }.into());
    }
    Ok(order)
}
