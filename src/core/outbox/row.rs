//! Defines [`OutboxRow`]: one outbox row, borrowed from the read buffer and the relation cache.
//!
//! It gives columns by slot ([`Value`]: NULL, absent, or bytes in text or binary format), their declared
//! types, the row's table and its [`Position`] in commit order, and, where the row was too large to hold,
//! what was cut. The debug output of a [`Value`] tells its length alone, since contents belong in no log.

use super::spec::{ColumnSlot, TableName};
use crate::lsn::Lsn;
use crate::pgoutput::{Cut, Excerpt, PgTime};

/// Where a row stands in the history of the database. `(commit_lsn, index)` rises strictly from
/// row to row, also across tables and sessions: transactions are sent in commit order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// Begin's `final_lsn`: where the transaction's commit record begins.
    pub commit_lsn: Lsn,
    /// The row's number among the outbox rows of its transaction, from 0. The row's own log
    /// position would not do: all rows of a COPY can share one.
    pub index: u64,
    /// When the transaction committed.
    pub commit_time: PgTime,
}

/// The form a value has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// As `SELECT` prints it.
    Text,
    /// As the type's send function writes it.
    Binary,
    /// As [`Format::Text`], but in the database's encoding: UTF-8 has no equivalent. Whatever it looks
    /// like in UTF-8, it is another text.
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
        /// As it came over the wire.
        bytes: &'a [u8],
        /// Its type; for a domain over a built-in type, that type.
        type_oid: u32,
        /// How to read `bytes`.
        format: Format,
    },
}

impl std::fmt::Debug for Value<'_> {
    /// Tells the length only: contents belong in no log.
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

/// What one column of a tuple is, apart from its bytes: these stay where they are in the frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cell {
    Null,
    Bytes { start: usize, end: usize, format: Format },
}

/// Where a wanted column stands in its table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ColumnPosition {
    pub(super) column: usize,
    pub(super) type_oid: u32,
    /// As in `pg_attribute.atttypmod`; -1 for none.
    pub(super) modifier: i32,
    pub(super) is_nullable: bool,
}

/// What a column is declared as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Declared {
    /// The type; for a domain over a built-in type, that type.
    pub type_oid: u32,
    /// As in `pg_attribute.atttypmod`: for times the digits after the second; -1 for none.
    pub modifier: i32,
    /// Whether it may be NULL, as far as is known.
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

/// Apart from those that look for a value, which happens some twenty times a row.
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

    /// Where the column stands, if the table has it. A message with a flaw has none.
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

    /// What it was made of, where it was too large to be held: then longer values are cut.
    pub fn excerpt(&self) -> Option<&'a Excerpt> {
        self.excerpt
    }

    /// Size and hash of a wanted column's value, of which [`OutboxRow::column`] gives the beginning
    /// alone; `None` where it gives all of it.
    pub fn cut(&self, slot: ColumnSlot) -> Option<&'a Cut> {
        let excerpt = self.excerpt.filter(|_| !self.is_message)?;
        let place = self.place(slot)?;
        excerpt.cuts().iter().find(|cut| cut.column == place.column)
    }

    /// The name of the column that stands in this place of its table; of a logical message none.
    pub fn column_name(&self, column: usize) -> Option<&'a str> {
        self.names.get(column).map(String::as_str)
    }

    /// What the column is declared as; `None` where the table lacks it.
    pub fn declared(&self, slot: ColumnSlot) -> Option<Declared> {
        let place = self.place(slot)?;
        let ColumnPosition { type_oid, modifier, is_nullable, .. } = *place;
        Some(Declared { type_oid, modifier, is_nullable })
    }

    /// Why no column of it can be read: it is a logical message of which no row can be made. What
    /// it holds instead is in [`OutboxRow::content`].
    pub fn flaw(&self) -> Option<&'static str> {
        self.flaw
    }

    /// Whether a column, read or not, has text without an equivalent in UTF-8.
    pub fn has_untranslatable(&self) -> bool {
        let is = |cell: &Cell| matches!(cell, Cell::Bytes { format: Format::Untranslatable, .. });
        self.cells.iter().any(is)
    }

    /// Whether it is a logical message.
    pub fn is_message(&self) -> bool {
        self.is_message
    }

    /// Every column of a table's row by name, wanted or not; `None` is NULL. Of a message there are
    /// none.
    pub fn all(&self) -> impl Iterator<Item = (&'a str, Option<(&'a [u8], Format)>)> {
        let (names, cells, tuple) = (self.names, self.cells, self.tuple);
        names.iter().zip(cells).map(move |(name, cell)| match cell {
            Cell::Null => (name.as_str(), None),
            Cell::Bytes { start, end, format } => {
                (name.as_str(), tuple.get(*start..*end).map(|bytes| (bytes, *format)))
            }
        })
    }

    /// The bytes that its columns lie in.
    pub fn content(&self) -> &'a [u8] {
        self.tuple
    }

    /// The table it was inserted into; for a logical message `message.<prefix>`.
    pub fn table(&self) -> &'a TableName {
        self.table
    }

    /// Where it stands in history.
    pub fn position(&self) -> Position {
        self.position
    }
}
