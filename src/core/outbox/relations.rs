//! The relation cache ([`Outbox`]): remembers the tables that the stream describes, and reads outbox rows
//! by them.
//!
//! Input: Relation and Type messages, then inserts and logical messages. Output: outbox rows, borrowed from
//! the frame and the cache; nothing for other tables and other message prefixes. Invariant: columns are
//! found by name in the newest description, never by the place they had before. A domain over a built-in
//! type counts as that type.

use std::collections::BTreeMap;

use super::error::OutboxError;
use super::glob;
use super::logical::Content;
use super::row::{Cell, ColumnPosition, Format, OutboxRow, Position};
use super::spec::{OutboxSpec, TableName, Wanted};
use super::type_oid;
use crate::pgoutput::{Column, Excerpt, Insert, LogicalMessage, Relation, RelationColumn, Type};

/// The prefix of what `run --once` writes to mark the end of the log.
const OWN_PREFIX: &[u8] = b"postrider";

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
    /// The logical message last lent as a row.
    content: Content,
}

/// An outbox table as last described.
#[derive(Debug, Clone)]
struct Layout {
    table: TableName,
    /// Of its columns, in its order.
    names: Vec<String>,
    /// By slot.
    places: Vec<Option<ColumnPosition>>,
}

impl Outbox {
    /// A cache that knows no table yet; one per replication session, since the server describes
    /// every table anew in each.
    pub fn new(spec: OutboxSpec) -> Self {
        Self {
            spec,
            relations: BTreeMap::new(),
            domains: BTreeMap::new(),
            cells: Vec::new(),
            content: Content::default(),
        }
    }

    /// Takes a table's shape, in place of the one known before. The server sends it before the
    /// table's first row and again after each change, so columns are found by name every time. A
    /// column that the shape lacks is absent from its rows: what was written before a column had its
    /// name is decoded without it, whatever the table looks like now.
    pub fn relation(&mut self, relation: &Relation<'_>) {
        let layout = self.spec.table(relation).map(|table| self.layout(table, relation));
        self.relations.insert(relation.id, layout);
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
    ///
    /// # Panics
    /// Never on what the decoder takes, which counts a row's columns before it gives it.
    pub fn row<'a>(
        &'a mut self,
        insert: &Insert<'a>,
        position: Position,
    ) -> Result<Option<OutboxRow<'a>>, OutboxError> {
        self.row_of(insert, None, &[], position)
    }

    /// The same for an insert that may be what an excerpt has kept, and of which these columns, from 0,
    /// are text without an equivalent in UTF-8.
    ///
    /// # Panics
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

    /// Whether a logical message stands for a row. Those of the relay itself never do. Of a prefix
    /// that an excerpt has cut, it is enough that it may be one.
    pub fn is_row_of(&self, message: &LogicalMessage<'_>, excerpt: Option<&Excerpt>) -> bool {
        if !excerpt.is_some_and(Excerpt::prefix_is_cut) {
            return self.is_row(message);
        }
        let prefixes = &self.spec.messages().prefixes;
        prefixes.iter().any(|prefix| glob::may_match(prefix.as_bytes(), message.prefix))
    }

    /// Whether a logical message stands for a row. Those of the relay itself never do.
    pub fn is_row(&self, message: &LogicalMessage<'_>) -> bool {
        if message.prefix == OWN_PREFIX {
            return false;
        }
        let prefixes = &self.spec.messages().prefixes;
        prefixes.iter().any(|prefix| glob::matches(prefix.as_bytes(), message.prefix))
    }

    /// Lends the row that a logical message stands for, which may be what an excerpt has kept.
    /// Calling it again for the same message gives the same row.
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
