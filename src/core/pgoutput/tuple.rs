//! Reads the column values of a row (TupleData).

use super::cursor::Cursor;
use super::error::DecodeError;

/// A column of a [`Tuple`]. A type without a send function stays text in binary mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Column<'a> {
    /// SQL NULL.
    Null,
    /// A TOAST value that an UPDATE did not change; never part of an INSERT.
    Unchanged,
    /// Text in the session's encoding.
    Text(&'a [u8]),
    /// Binary form.
    Binary(&'a [u8]),
}

/// A row's columns. They were checked, so walking them cannot fail. Each walk parses them again,
/// which saves an index.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Tuple<'a> {
    count: u16,
    columns: &'a [u8],
}

impl<'a> Tuple<'a> {
    pub(super) fn read(cursor: &mut Cursor<'a>) -> Result<Self, DecodeError> {
        let count = cursor.u16("number of columns")?;
        let columns = cursor.span(|cursor| {
            for _ in 0..count {
                read_column(cursor)?;
            }
            Ok(())
        })?;
        Ok(Self { count, columns })
    }

    /// Number of columns.
    pub const fn len(&self) -> usize {
        self.count as usize
    }

    /// True for a row without columns, which Postgres allows.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Wire bytes; see [`Columns::with_ends`].
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.columns
    }

    /// Iterates over the columns.
    pub fn columns(&self) -> Columns<'a> {
        Columns { cursor: Cursor::new(self.columns), left: self.count }
    }
}

impl std::fmt::Debug for Tuple<'_> {
    /// Contents must not be logged.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tuple").field("columns", &self.count).finish_non_exhaustive()
    }
}

/// Iterator over [`Column`]s.
#[derive(Debug, Clone)]
pub struct Columns<'a> {
    cursor: Cursor<'a>,
    left: u16,
}

impl<'a> Columns<'a> {
    /// Each column with its end offset in [`Tuple::as_bytes`]. A value is the last part of its
    /// column, so it starts its own length before that offset.
    pub fn with_ends(mut self) -> impl Iterator<Item = (Column<'a>, usize)> {
        std::iter::from_fn(move || {
            let column = self.next()?;
            Some((column, self.cursor.offset()))
        })
    }
}

impl<'a> Iterator for Columns<'a> {
    type Item = Column<'a>;

    fn next(&mut self) -> Option<Column<'a>> {
        self.left = self.left.checked_sub(1)?;
        match read_column(&mut self.cursor) {
            Ok(column) => Some(column),
            Err(error) => unreachable!("a column was checked when the row was decoded: {error}"),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (usize::from(self.left), Some(usize::from(self.left)))
    }
}

impl ExactSizeIterator for Columns<'_> {}

fn read_column<'a>(cursor: &mut Cursor<'a>) -> Result<Column<'a>, DecodeError> {
    const FIELD: &str = "column value";
    match cursor.u8("column kind")? {
        b'n' => Ok(Column::Null),
        b'u' => Ok(Column::Unchanged),
        b't' => {
            let length = cursor.length("column length")?;
            cursor.bytes(length, FIELD).map(Column::Text)
        }
        b'b' => {
            let length = cursor.length("column length")?;
            cursor.bytes(length, FIELD).map(Column::Binary)
        }
        found => Err(DecodeError::UnknownMarker { field: "column kind", found }),
    }
}
