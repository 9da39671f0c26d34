//! The relation cache ([`Outbox`]): remembers table descriptions, and reads outbox rows with them.
//!
//! Columns are found by name in the newest description. A domain over a built-in type counts as
//! that type.

use std::collections::BTreeMap;

use super::error::OutboxError;
use super::glob;
use super::logical::Content;
use super::row::{Cell, ColumnPosition, Format, OutboxRow, Position};
use super::spec::{OutboxSpec, TableName, Wanted};
use super::type_oid;
use crate::pgoutput::{Column, Excerpt, Insert, LogicalMessage, Relation, RelationColumn, Type};

/// Messages with which `run --once` marks the end of the log.
const OWN_PREFIX: &[u8] = b"postrider";

/// The shape of every table in the stream.
#[derive(Debug, Clone)]
pub struct Outbox {
    spec: OutboxSpec,
    /// `None`: not an outbox table.
    relations: BTreeMap<u32, Option<Layout>>,
    /// Base types by domain.
    domains: BTreeMap<u32, u32>,
    cells: Vec<Cell>,
    content: Content,
}

#[derive(Debug, Clone)]
struct Layout {
    table: TableName,
    names: Vec<String>,
    places: Vec<Option<ColumnPosition>>,
}

impl Outbox {
    /// Creates a cache for one session; the server describes every table again.
    pub fn new(spec: OutboxSpec) -> Self {
        Self {
            spec,
            relations: BTreeMap::new(),
            domains: BTreeMap::new(),
            cells: Vec::new(),
            content: Content::default(),
        }
    }

    /// Replaces a table's shape. Rows from before a column's rename lack the column.
    pub fn relation(&mut self, relation: &Relation<'_>) {
        let layout = self.spec.table(relation).map(|table| self.layout(table, relation));
        self.relations.insert(relation.id, layout);
    }

    /// Handles a type that is not built in.
    pub fn type_name(&mut self, named: &Type<'_>) {
        let base = if named.schema.is_empty() { type_oid::by_name(named.name) } else { None };
        match base {
            Some(base) => self.domains.insert(named.id, base),
            None => self.domains.remove(&named.id),
        };
    }

    /// The outbox table with this OID.
    pub fn table(&self, relation: u32) -> Option<&TableName> {
        self.relations.get(&relation)?.as_ref().map(|layout| &layout.table)
    }

    /// An inserted row; `None` if the table is not an outbox.
    ///
    /// # Panics
    ///
    /// If the decoder miscounted columns.
    pub fn row<'a>(
        &'a mut self,
        insert: &Insert<'a>,
        position: Position,
    ) -> Result<Option<OutboxRow<'a>>, OutboxError> {
        self.row_of(insert, None, &[], position)
    }

    /// An inserted row, perhaps from an excerpt. `untranslatable`: columns, from 0, not in UTF-8.
    ///
    /// # Panics
    ///
    /// As [`Outbox::row`].
    pub fn row_of<'a>(
        &'a mut self,
        insert: &Insert<'a>,
        excerpt: Option<&'a Excerpt>,
        untranslatable: &[usize],
        position: Position,
    ) -> Result<Option<OutboxRow<'a>>, OutboxError> {
        let relation = insert.relation;
        let layout = match self.relations.get(&relation) {
            None => return Err(OutboxError::UnknownRelation { relation }),
            Some(None) => return Ok(None),
            Some(Some(layout)) => layout,
        };
        let table = &layout.table;
        if insert.tuple.len() != layout.names.len() {
            return Err(OutboxError::ColumnCount {
                table: table.clone(),
                expected: layout.names.len(),
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
        assert_eq!(self.cells.len(), layout.names.len(), "a decoded row has what it announced");
        for &column in untranslatable {
            let Some(Cell::Bytes { format, .. }) = self.cells.get_mut(column) else {
                unreachable!("column {column} was found to be text");
            };
            *format = Format::Untranslatable;
        }
        let (places, cells) = (layout.places.as_slice(), self.cells.as_slice());
        let names = layout.names.as_slice();
        let (is_message, flaw) = (false, None);
        let row =
            OutboxRow { table, names, places, cells, tuple, position, is_message, flaw, excerpt };
        Ok(Some(row))
    }

    /// True if a message is a row, or, with a cut prefix, may be one.
    pub fn is_row_of(&self, message: &LogicalMessage<'_>, excerpt: Option<&Excerpt>) -> bool {
        if !excerpt.is_some_and(Excerpt::prefix_is_cut) {
            return self.is_row(message);
        }
        let prefixes = &self.spec.messages().prefixes;
        prefixes.iter().any(|prefix| glob::may_match(prefix.as_bytes(), message.prefix))
    }

    /// True if a message is a row. The relay's own messages never are.
    pub fn is_row(&self, message: &LogicalMessage<'_>) -> bool {
        if message.prefix == OWN_PREFIX {
            return false;
        }
        let prefixes = &self.spec.messages().prefixes;
        prefixes.iter().any(|prefix| glob::matches(prefix.as_bytes(), message.prefix))
    }

    /// The row of a logical message, perhaps from an excerpt.
    pub fn message_row<'a>(
        &'a mut self,
        message: &LogicalMessage<'a>,
        excerpt: Option<&'a Excerpt>,
        position: Position,
    ) -> OutboxRow<'a> {
        self.content.read(message, excerpt, &self.spec, position)
    }

    fn layout(&self, table: &TableName, relation: &Relation<'_>) -> Layout {
        let name = |column: RelationColumn<'_>| String::from_utf8_lossy(column.name).into_owned();
        let place = |wanted: &Wanted| {
            let mut names = std::iter::once(&wanted.name).chain(&wanted.aliases);
            names.find_map(|name| self.find(table, name, relation))
        };
        Layout {
            table: table.clone(),
            names: relation.columns().map(name).collect(),
            places: self.spec.wanted().iter().map(place).collect(),
        }
    }

    fn find(
        &self,
        table: &TableName,
        name: &str,
        relation: &Relation<'_>,
    ) -> Option<ColumnPosition> {
        let (column, found) =
            relation.columns().enumerate().find(|(_, column)| column.name == name.as_bytes())?;
        let type_oid = self.domains.get(&found.type_oid).copied().unwrap_or(found.type_oid);
        let is_nullable = !self.spec.is_not_null(table, name);
        Some(ColumnPosition { column, type_oid, modifier: found.type_modifier, is_nullable })
    }
}
