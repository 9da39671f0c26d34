//! The relation cache.

use std::collections::BTreeMap;

use super::error::OutboxError;
use super::row::{Cell, Format, OutboxRow, Place, Position};
use super::spec::{OutboxSpec, TableName, Wanted};
use super::type_oid;
use crate::pgoutput::{Column, Insert, Relation, Type};

/// Knows the shape of every table of the stream, and lends the rows of outbox tables.
#[derive(Debug, Clone)]
pub struct Outbox {
    spec: OutboxSpec,
    /// By OID. `None`: described, but not an outbox table.
    relations: BTreeMap<u32, Option<Layout>>,
    /// Domains over built-in types: their OID and that of the base type.
    domains: BTreeMap<u32, u32>,
    /// The columns of the row last lent; kept for its capacity.
    cells: Vec<Cell>,
}

/// An outbox table as last described.
#[derive(Debug, Clone)]
struct Layout {
    table: TableName,
    columns: usize,
    /// By slot.
    places: Vec<Option<Place>>,
}

impl Outbox {
    /// A cache that knows no table yet; one per replication session, since the server describes
    /// every table anew in each.
    pub fn new(spec: OutboxSpec) -> Self {
        Self { spec, relations: BTreeMap::new(), domains: BTreeMap::new(), cells: Vec::new() }
    }

    /// Takes a table's shape, in place of the one known before. The server sends it before the
    /// table's first row and again after each change, so columns are found by name every time.
    pub fn relation(&mut self, relation: &Relation<'_>) -> Result<(), OutboxError> {
        let known = self.spec.tables().iter().find(|table| {
            table.name.as_bytes() == relation.name && schema_of(table) == relation.schema
        });
        let layout = known.map(|table| self.layout(table, relation)).transpose();
        // The old shape must not outlive a refusal of the new one.
        self.relations.remove(&relation.id);
        self.relations.insert(relation.id, layout?);
        Ok(())
    }

    /// Takes the name of a type that is not built in. A domain over a built-in type is from then
    /// on treated as that type.
    pub fn type_name(&mut self, named: &Type<'_>) {
        let base = if named.schema.is_empty() { type_oid::by_name(named.name) } else { None };
        match base {
            Some(base) => self.domains.insert(named.id, base),
            None => self.domains.remove(&named.id),
        };
    }

    /// The outbox table with this OID; `None` when it is another table or was never described.
    pub fn table(&self, relation: u32) -> Option<&TableName> {
        self.relations.get(&relation)?.as_ref().map(|layout| &layout.table)
    }

    /// Lends an inserted row; `None` when it is not of an outbox table. Calling it again for the
    /// same insert gives the same row.
    pub fn row<'a>(
        &'a mut self,
        insert: &Insert<'a>,
        position: Position,
    ) -> Result<Option<OutboxRow<'a>>, OutboxError> {
        let relation = insert.relation;
        let layout = match self.relations.get(&relation) {
            None => return Err(OutboxError::UnknownRelation { relation }),
            Some(None) => return Ok(None),
            Some(Some(layout)) => layout,
        };
        let table = &layout.table;
        if insert.tuple.len() != layout.columns {
            return Err(OutboxError::ColumnCount {
                table: table.clone(),
                expected: layout.columns,
                found: insert.tuple.len(),
            });
        }
        let tuple = insert.tuple.as_bytes();
        self.cells.clear();
        for (column, end) in insert.tuple.columns().with_ends() {
            let (bytes, format) = match column {
                Column::Null => {
                    self.cells.push(Cell::Null);
                    continue;
                }
                Column::Unchanged => {
                    return Err(OutboxError::ValueLeftOut { table: table.clone() });
                }
                Column::Text(bytes) => (bytes, Format::Text),
                Column::Binary(bytes) => (bytes, Format::Binary),
            };
            self.cells.push(Cell::Bytes { start: end.saturating_sub(bytes.len()), end, format });
        }
        let (places, cells) = (layout.places.as_slice(), self.cells.as_slice());
        Ok(Some(OutboxRow { table, places, cells, tuple, position }))
    }

    fn layout(&self, table: &TableName, relation: &Relation<'_>) -> Result<Layout, OutboxError> {
        let places = self.spec.wanted().iter().map(|wanted| self.place(table, wanted, relation));
        Ok(Layout {
            table: table.clone(),
            columns: relation.columns().len(),
            places: places.collect::<Result<_, _>>()?,
        })
    }

    fn place(
        &self,
        table: &TableName,
        wanted: &Wanted,
        relation: &Relation<'_>,
    ) -> Result<Option<Place>, OutboxError> {
        let names = std::iter::once(&wanted.name).chain(&wanted.aliases);
        let place = names.map(|name| self.find(name, relation)).find(Option::is_some).flatten();
        if place.is_none() && wanted.required {
            return Err(OutboxError::MissingColumn {
                table: table.clone(),
                column: wanted.name.clone(),
                present: relation
                    .columns()
                    .map(|column| String::from_utf8_lossy(column.name).into_owned())
                    .collect(),
            });
        }
        Ok(place)
    }

    fn find(&self, name: &str, relation: &Relation<'_>) -> Option<Place> {
        let (column, found) =
            relation.columns().enumerate().find(|(_, column)| column.name == name.as_bytes())?;
        let type_oid = self.domains.get(&found.type_oid).copied().unwrap_or(found.type_oid);
        Some(Place { column, type_oid })
    }
}

/// pgoutput writes `pg_catalog` as the empty string.
fn schema_of(table: &TableName) -> &[u8] {
    if table.schema == "pg_catalog" { &[] } else { table.schema.as_bytes() }
}
