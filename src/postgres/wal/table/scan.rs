//! What to read from one table, and its COPY command. Invariant: the caller has locked the table
//! ([`super::lock_tables`]).

use super::columns::{RowColumn, columns_sql};
use super::copy_text::Shape;
use crate::wal::quote::{identifier, literal};
use crate::wal::{Connection, Transport, WalError};
use postrider_core::outbox::TableName;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScanRequest {
    pub table: TableName,
    pub table_oid: u32,
    /// True if partitions' rows belong to the table; an inheriting table's rows do not.
    pub is_partitioned: bool,
    /// Empty: any order.
    pub order_by: Vec<OrderColumn>,
    /// Empty: all. The order's columns are read, too.
    pub columns: Vec<String>,
    pub condition: Option<String>,
    /// Values of `order_by` of the row behind which reading starts.
    pub after: Option<Vec<String>>,
    /// SQL for each row's mark ([`super::TableStream::marks`]): a number from 0 to 255.
    pub marks: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderColumn {
    pub name: String,
    /// Replaces NULL; `None`: the column is NOT NULL.
    pub null_as: Option<&'static str>,
}

impl OrderColumn {
    pub fn not_null(name: impl Into<String>) -> Self {
        Self { name: name.into(), null_as: None }
    }

    fn sql(&self) -> String {
        let name = identifier(&self.name);
        match self.null_as {
            None => name,
            Some(value) => format!("coalesce({name}, {})", literal(value)),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableScan {
    pub(super) table: TableName,
    pub(super) table_oid: u32,
    pub(super) columns: Vec<RowColumn>,
    /// The other columns serve only for the order.
    pub(super) sent: usize,
    pub(super) order: Vec<(usize, OrderColumn)>,
    pub(super) is_marked: bool,
    pub(super) sql: String,
}

impl ScanRequest {
    pub fn prepare<T: Transport>(
        self,
        connection: &mut Connection<T>,
    ) -> Result<TableScan, WalError> {
        let (columns, sent) = self.read_of(columns(connection, self.table_oid)?);
        let order = self.order_by.iter().map(|wanted| {
            let found = columns.iter().position(|column| column.name == wanted.name);
            let missing = || WalError::OrderColumnMissing {
                table: self.table.to_string(),
                column: wanted.name.clone(),
            };
            found.map(|at| (at, wanted.clone())).ok_or_else(missing)
        });
        let order = order.collect::<Result<Vec<_>, _>>()?;
        let (sql, is_marked) = (self.sql(&columns), self.marks.is_some());
        let Self { table, table_oid, .. } = self;
        Ok(TableScan { table, table_oid, columns, sent, order, is_marked, sql })
    }

    fn read_of(&self, columns: Vec<RowColumn>) -> (Vec<RowColumn>, usize) {
        let is_sent =
            |column: &RowColumn| self.columns.is_empty() || self.columns.contains(&column.name);
        let (mut read, others): (Vec<_>, Vec<_>) = columns.into_iter().partition(is_sent);
        let sent = read.len();
        let is_of_order =
            |column: &RowColumn| self.order_by.iter().any(|it| it.name == column.name);
        read.extend(others.into_iter().filter(is_of_order));
        (read, sent)
    }

    fn sql(&self, columns: &[RowColumn]) -> String {
        let rows = sql_rows(&self.table, self.is_partitioned);
        let columns = columns.iter().map(|column| identifier(&column.name));
        let marks = self.marks.iter().map(|marks| format!("({marks})"));
        let columns: Vec<String> = columns.chain(marks).collect();
        let order: Vec<String> = self.order_by.iter().map(OrderColumn::sql).collect();
        let (columns, order) = (columns.join(", "), order.join(", "));
        let after = self.after.as_ref().map(|values| sql_after(&self.order_by, values));
        let condition = self.condition.as_ref().map(|condition| format!("({condition})"));
        let conditions: Vec<String> = condition.into_iter().chain(after).collect();
        let filter = match conditions.join(" AND ") {
            none if none.is_empty() => none,
            conditions => format!(" WHERE {conditions}"),
        };
        let order = if order.is_empty() { order } else { format!(" ORDER BY {order}") };
        format!("COPY (SELECT {columns} FROM {rows}{filter}{order}) TO STDOUT")
    }
}

/// Condition: the row comes behind the one with these values.
pub fn sql_after(order_by: &[OrderColumn], values: &[String]) -> String {
    let order: Vec<String> = order_by.iter().map(OrderColumn::sql).collect();
    // A literal takes the type of the column.
    let values: Vec<String> = values.iter().map(|value| literal(value)).collect();
    format!("({}) > ({})", order.join(", "), values.join(", "))
}

impl TableScan {
    pub(super) fn sent(&self) -> &[RowColumn] {
        let sent = self.columns.get(..self.sent);
        sent.unwrap_or_else(|| unreachable!("what is sent is read"))
    }

    pub(super) fn shape(&self) -> Shape {
        Shape { columns: self.columns.len() + usize::from(self.is_marked), sent: self.sent }
    }

    /// The order's columns, then the mark.
    pub(super) fn kept(&self) -> Vec<usize> {
        let order = self.order.iter().map(|(at, _)| *at);
        order.chain(self.is_marked.then_some(self.columns.len())).collect()
    }

    pub(super) fn named(&self) -> (String, Vec<OrderColumn>) {
        let columns = self.order.iter().map(|(_, column)| column.clone());
        (self.table.to_string(), columns.collect())
    }
}

/// Number of rows by statistics. A plan without a number counts as 0.
pub fn expected_rows<T: Transport>(
    scans: &[TableScan],
    connection: &mut Connection<T>,
) -> Result<u64, WalError> {
    let mut all = 0;
    for scan in scans {
        let query = scan.sql.strip_prefix("COPY (").and_then(|sql| sql.strip_suffix(") TO STDOUT"));
        let query = query.unwrap_or_else(|| unreachable!("a scan is a COPY of a query"));
        let plan = connection.simple_query(&format!("EXPLAIN {query}"))?;
        let top = plan.first().and_then(|row| row.first()?.as_deref());
        all += top.and_then(planned_rows).unwrap_or(0);
    }
    Ok(all)
}

pub fn planned_rows(line: &str) -> Option<u64> {
    let (_, rest) = line.split_once(" rows=")?;
    rest.split(' ').next()?.parse().ok()
}

pub(in crate::wal) fn sql_name(table: &TableName) -> String {
    format!("{}.{}", identifier(&table.schema), identifier(&table.name))
}

pub fn sql_rows(table: &TableName, is_partitioned: bool) -> String {
    let name = sql_name(table);
    if is_partitioned { name } else { format!("ONLY {name}") }
}

fn columns<T: Transport>(
    connection: &mut Connection<T>,
    table_oid: u32,
) -> Result<Vec<RowColumn>, WalError> {
    columns_of(connection, &columns_sql(&table_oid.to_string()))
}

pub(in crate::wal) fn columns_of<T: Transport>(
    connection: &mut Connection<T>,
    sql: &str,
) -> Result<Vec<RowColumn>, WalError> {
    let malformed = || WalError::Protocol("a malformed answer about a table's columns");
    let rows = connection.simple_query(sql)?;
    let column = |row: Vec<Option<String>>| {
        let [Some(name), Some(type_oid), Some(modifier), Some(is_nullable)] =
            <[Option<String>; 4]>::try_from(row).map_err(|_| malformed())?
        else {
            return Err(malformed());
        };
        Ok(RowColumn {
            name,
            type_oid: type_oid.parse().map_err(|_| malformed())?,
            modifier: modifier.parse().map_err(|_| malformed())?,
            is_nullable: is_nullable == "t",
        })
    };
    rows.into_iter().map(column).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_behind_a_key_are_asked_for_in_its_order() {
        let column = |name: &str| RowColumn {
            name: name.to_owned(),
            type_oid: 25,
            modifier: -1,
            is_nullable: false,
        };
        let columns = [column("id"), column("Made at")];
        let mut request = ScanRequest {
            table: TableName::new("public", "outbox"),
            table_oid: 1,
            is_partitioned: false,
            order_by: vec![],
            columns: vec![],
            condition: None,
            after: None,
            marks: None,
        };
        let sql = |request: &ScanRequest| request.sql(&columns);
        let all = "COPY (SELECT \"id\", \"Made at\" FROM ONLY \"public\".\"outbox\") TO STDOUT";
        assert_eq!(sql(&request), all);
        let number = OrderColumn { name: "n".to_owned(), null_as: Some("0") };
        request.order_by = vec![number, OrderColumn::not_null("Made at")];
        request.condition = Some("a OR b".to_owned());
        request.after = Some(vec!["it's".to_owned(), "2".to_owned()]);
        assert_eq!(
            sql(&request),
            "COPY (SELECT \"id\", \"Made at\" FROM ONLY \"public\".\"outbox\" WHERE (a OR b) AND \
             (coalesce(\"n\", '0'), \"Made at\") > ('it''s', '2') \
             ORDER BY coalesce(\"n\", '0'), \"Made at\") TO STDOUT"
        );
        request.marks = Some("1 + n".to_owned());
        let marked = sql(&request);
        assert!(marked.starts_with("COPY (SELECT \"id\", \"Made at\", (1 + n) FROM"), "{marked}");
        request.columns = vec!["id".to_owned()];
        let all = ["n", "secret", "id", "Made at"].map(column).to_vec();
        let (read, sent) = request.read_of(all);
        let names: Vec<_> = read.iter().map(|column| column.name.as_str()).collect();
        assert_eq!((names, sent), (vec!["id", "n", "Made at"], 1), "what is not published stays");
    }
}
