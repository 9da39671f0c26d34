//! Defines [`OutboxRow`]: one outbox row, borrowed from the read buffer and the relation cache.
//!
//! A row provides its columns by slot ([`Value`]: NULL, absent, or bytes in text or binary format),
//! their declared types, the table, the [`Position`] in commit order, and the cuts of an oversized
//! row. The debug output of a [`Value`] shows only its length, because contents must not be logged.

use super::spec::{ColumnSlot, TableName};
use crate::lsn::Lsn;
use crate::pgoutput::{Cut, Excerpt, PgTime};

/// A row's place in the database's history. `(commit_lsn, index)` rises strictly from row to row,
/// across tables and sessions, because transactions are sent in commit order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// Begin's `final_lsn`: the start of the transaction's commit record.
    pub commit_lsn: Lsn,
    /// Number of the row among the outbox rows of its transaction, from 0. A log position is not
    /// unique: all rows of a COPY can share one.
    pub index: u64,
    /// Commit time of the transaction.
    pub commit_time: PgTime,
}

/// Format of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Text, as in the output of `SELECT`.
    Text,
    /// Output of the type's send function.
    Binary,
    /// Text in the database's encoding, without an equivalent in UTF-8. Read as UTF-8 it would be
    /// another text.
    Untranslatable,
}

/// One column of an [`OutboxRow`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// SQL NULL.
    Null,
    /// The table has no such column.
    Absent,
    /// A value.
    Bytes {
        /// Bytes as received.
        bytes: &'a [u8],
        /// The type; for a domain over a built-in type, that type.
        type_oid: u32,
        /// Format of `bytes`.
        format: Format,
    },
}

impl std::fmt::Debug for Value<'_> {
    /// Shows only the length, because contents must not be logged.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Null => f.write_str("Null"),
            Self::Absent => f.write_str("Absent"),
            Self::Bytes { bytes, type_oid, format } => f
                .debug_struct("Bytes")
                .field("length", &bytes.len())
                .field("type_oid", type_oid)
                .field("format", format)
                .finish(),
        }
    }
}

/// A tuple's column without its bytes, which stay in the frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cell {
    Null,
    Bytes { start: usize, end: usize, format: Format },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ColumnPosition {
    pub(super) column: usize,
    pub(super) type_oid: u32,
    /// `pg_attribute.atttypmod`; -1 for none.
    pub(super) modifier: i32,
    pub(super) is_nullable: bool,
}

/// A column's declaration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Declared {
    /// The type; for a domain over a built-in type, that type.
    pub type_oid: u32,
    /// `pg_attribute.atttypmod`: for times the fractional digits; -1 for none.
    pub modifier: i32,
    /// True if it may be NULL, as far as known.
    pub is_nullable: bool,
}

/// A row of an outbox table, or a logical message that stands for one. Borrows the frame and the
/// relation cache.
#[derive(Debug, Clone, Copy)]
pub struct OutboxRow<'a> {
    pub(super) table: &'a TableName,
    pub(super) names: &'a [String],
    pub(super) places: &'a [Option<ColumnPosition>],
    pub(super) cells: &'a [Cell],
    pub(super) tuple: &'a [u8],
    pub(super) position: Position,
    pub(super) is_message: bool,
    pub(super) flaw: Option<&'static str>,
    pub(super) excerpt: Option<&'a Excerpt>,
}

/// Kept out of the value lookups, which run about twenty times per row.
#[cold]
#[inline(never)]
fn no_such_value(place: usize, of: usize) -> ! {
    unreachable!("place {place} of {of}: a row is read by the layout that it was decoded by")
}

impl<'a> OutboxRow<'a> {
    /// The value of a wanted column.
    #[inline]
    pub fn column(&self, slot: ColumnSlot) -> Value<'a> {
        let Some(place) = self.place(slot) else { return Value::Absent };
        match self.cells.get(place.column) {
            Some(Cell::Null) => Value::Null,
            Some(&Cell::Bytes { start, end, format }) => {
                let Some(bytes) = self.tuple.get(start..end) else {
                    no_such_value(end, self.tuple.len())
                };
                Value::Bytes { bytes, type_oid: place.type_oid, format }
            }
            None => no_such_value(place.column, self.cells.len()),
        }
    }

    /// The column's place, if the table has it. A message with a flaw has no columns.
    #[inline]
    fn place(&self, slot: ColumnSlot) -> Option<&'a ColumnPosition> {
        let Some(place) = self.places.get(slot.0) else {
            return if self.flaw.is_some() {
                None
            } else {
                no_such_value(slot.0, self.places.len())
            };
        };
        place.as_ref()
    }

    /// The excerpt of an oversized row, in which longer values are cut.
    pub fn excerpt(&self) -> Option<&'a Excerpt> {
        self.excerpt
    }

    /// Size and hash of a value of which [`OutboxRow::column`] returns only the beginning; `None`
    /// if it returns the whole value.
    pub fn cut(&self, slot: ColumnSlot) -> Option<&'a Cut> {
        let excerpt = self.excerpt.filter(|_| !self.is_message)?;
        let place = self.place(slot)?;
        excerpt.cuts().iter().find(|cut| cut.column == place.column)
    }

    /// Name of the column at this place of its table; `None` for a logical message.
    pub fn column_name(&self, column: usize) -> Option<&'a str> {
        self.names.get(column).map(String::as_str)
    }

    /// The column's declaration; `None` if the table lacks the column.
    pub fn declared(&self, slot: ColumnSlot) -> Option<Declared> {
        let place = self.place(slot)?;
        let ColumnPosition { type_oid, modifier, is_nullable, .. } = *place;
        Some(Declared { type_oid, modifier, is_nullable })
    }

    /// Why no column can be read: a logical message that does not form a row. Its contents are in
    /// [`OutboxRow::content`].
    pub fn flaw(&self) -> Option<&'static str> {
        self.flaw
    }

    /// True if any column, wanted or not, has text without an equivalent in UTF-8.
    pub fn has_untranslatable(&self) -> bool {
        let is = |cell: &Cell| matches!(cell, Cell::Bytes { format: Format::Untranslatable, .. });
        self.cells.iter().any(is)
    }

    /// True for a logical message.
    pub fn is_message(&self) -> bool {
        self.is_message
    }

    /// All columns of a table's row by name, wanted or not; `None` is NULL. Empty for a message.
    pub fn all(&self) -> impl Iterator<Item = (&'a str, Option<(&'a [u8], Format)>)> {
        let (names, cells, tuple) = (self.names, self.cells, self.tuple);
        names.iter().zip(cells).map(move |(name, cell)| match cell {
            Cell::Null => (name.as_str(), None),
            Cell::Bytes { start, end, format } => {
                (name.as_str(), tuple.get(*start..*end).map(|bytes| (bytes, *format)))
            }
        })
    }

    /// The bytes that contain the columns.
    pub fn content(&self) -> &'a [u8] {
        self.tuple
    }

    /// The row's table; for a logical message `message.<prefix>`.
    pub fn table(&self) -> &'a TableName {
        self.table
    }

    /// The row's place in history.
    pub fn position(&self) -> Position {
        self.position
    }
}
