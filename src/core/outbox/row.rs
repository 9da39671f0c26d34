//! Defines [`OutboxRow`], which borrows the read buffer and the relation cache.

use super::spec::{ColumnSlot, TableName};
use crate::lsn::Lsn;
use crate::pgoutput::{Cut, Excerpt, PgTime};

/// A row's place in history; `(commit_lsn, index)` rises strictly, across tables and sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// Start of the transaction's commit record.
    pub commit_lsn: Lsn,
    /// Number among the transaction's outbox rows, from 0. All rows of a COPY can share a log
    /// position.
    pub index: u64,
    /// Commit time.
    pub commit_time: PgTime,
}

/// Format of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Output of `SELECT`.
    Text,
    /// Output of the send function.
    Binary,
    /// Text in the database's encoding, without an equivalent in UTF-8. Read as UTF-8 it would be
    /// another text.
    Untranslatable,
}

/// A column's value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// SQL NULL.
    Null,
    /// The table lacks the column.
    Absent,
    /// A value.
    Bytes {
        /// Bytes as received.
        bytes: &'a [u8],
        /// Type; a domain's base type, if built in.
        type_oid: u32,
        /// Format.
        format: Format,
    },
}

impl std::fmt::Debug for Value<'_> {
    /// Contents must not be logged.
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

/// A column whose bytes stay in the frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cell {
    Null,
    Bytes { start: usize, end: usize, format: Format },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ColumnPosition {
    pub(super) column: usize,
    pub(super) type_oid: u32,
    pub(super) modifier: i32,
    pub(super) is_nullable: bool,
}

/// A column's declaration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Declared {
    /// Type; a domain's base type, if built in.
    pub type_oid: u32,
    /// `pg_attribute.atttypmod`: for times the fractional digits; -1 for none.
    pub modifier: i32,
    /// False if declared NOT NULL.
    pub is_nullable: bool,
}

/// A row of an outbox table, or a logical message.
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

/// Not inlined into the value lookups, which run about twenty times per row.
#[cold]
#[inline(never)]
fn no_such_value(place: usize, of: usize) -> ! {
    unreachable!("place {place} of {of}: a row is read by the layout that it was decoded by")
}

impl<'a> OutboxRow<'a> {
    /// Value of a wanted column.
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

    /// The column's place. A message with a flaw has no columns.
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

    /// The excerpt of an oversized row.
    pub fn excerpt(&self) -> Option<&'a Excerpt> {
        self.excerpt
    }

    /// Size and hash of a value that [`OutboxRow::column`] cuts.
    pub fn cut(&self, slot: ColumnSlot) -> Option<&'a Cut> {
        let excerpt = self.excerpt.filter(|_| !self.is_message)?;
        let place = self.place(slot)?;
        excerpt.cuts().iter().find(|cut| cut.column == place.column)
    }

    /// Name of a column; `None` for a logical message.
    pub fn column_name(&self, column: usize) -> Option<&'a str> {
        self.names.get(column).map(String::as_str)
    }

    /// The column's declaration, if the table has it.
    pub fn declared(&self, slot: ColumnSlot) -> Option<Declared> {
        let place = self.place(slot)?;
        let ColumnPosition { type_oid, modifier, is_nullable, .. } = *place;
        Some(Declared { type_oid, modifier, is_nullable })
    }

    /// Why a logical message has no columns; [`OutboxRow::content`] has the bytes.
    pub fn flaw(&self) -> Option<&'static str> {
        self.flaw
    }

    /// True if any column has text without an equivalent in UTF-8.
    pub fn has_untranslatable(&self) -> bool {
        let is = |cell: &Cell| matches!(cell, Cell::Bytes { format: Format::Untranslatable, .. });
        self.cells.iter().any(is)
    }

    /// True for a logical message.
    pub fn is_message(&self) -> bool {
        self.is_message
    }

    /// All columns of a table's row, wanted or not; `None` is NULL. Empty for a message.
    pub fn all(&self) -> impl Iterator<Item = (&'a str, Option<(&'a [u8], Format)>)> {
        let (names, cells, tuple) = (self.names, self.cells, self.tuple);
        names.iter().zip(cells).map(move |(name, cell)| match cell {
            Cell::Null => (name.as_str(), None),
            Cell::Bytes { start, end, format } => {
                (name.as_str(), tuple.get(*start..*end).map(|bytes| (bytes, *format)))
            }
        })
    }

    /// Bytes that contain the columns.
    pub fn content(&self) -> &'a [u8] {
        self.tuple
    }

    /// Table; for a message `message.<prefix>`.
    pub fn table(&self) -> &'a TableName {
        self.table
    }

    /// Place in history.
    pub fn position(&self) -> Position {
        self.position
    }
}
